"""Settled turns, encoded once: later requests of the conversation copy their bytes.

`compile` reads every row of the window for every request, although it writes nearly the same bytes for a settled turn
each time. `encode_turns` makes these bytes once. `compile_after` puts a request together of them and of the rows of the
open turn. The result is equal to that of `compile` for all rows together.

A turn is encoded only if its bytes depend on nothing but its own rows and files. So it begins with the user and ends
with the assistant, and none of its calls has the name of a call of another turn. If one turn is different, nothing is
encoded, and the caller uses `compile`. A file does not change, but it may be deleted: a history names its files, and
the caller checks that those which were there are still there.

Decision: docs/decisions/0301
"""

from collections.abc import Sequence
from sys import getsizeof

import msgspec
from msgspec import Raw, Struct, structs

from turnkeep.compiler.exchange import Repair, Utterance
from turnkeep.compiler.provider_formats import MARKED_USER_MESSAGES, CallNames, mark_for_cache
from turnkeep.compiler.request import (
    ID_CHARS,
    Compiled,
    Target,
    Thinking,
    chars_of,
    compile,
    join,
    prepare_turn,
    renamed_call,
    tool_names,
    write_lines,
)
from turnkeep.compiler.utterances import Contents, Gone, View, plain_text, wanted
from turnkeep.compiler.window import Budget, Group, close_settled, first_kept, group_turns, size_of
from turnkeep.ids import FileId, TurnId
from turnkeep.model.messages import Message
from turnkeep_client.wire.blocks import JsonObject

_TURN_BYTES = 200
"""The struct of an encoded turn itself, with what Python adds to it, and its numbers."""
_WORDS_BYTES = 400
"""The same for a turn of words, with the objects that hold its messages."""
_HISTORY_BYTES = 200

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(JsonObject).decode


class Encoding(Struct, frozen=True, kw_only=True):
    """What the bytes and the size of a settled turn depend on, apart from its rows and files."""

    target: Target
    reasoning_of: str | None
    sees_images: bool
    budget: Budget


class EncodedTurn(Struct, frozen=True, kw_only=True):
    """A settled turn: its messages as JSON, and what a request must know about them."""

    turn_id: TurnId
    messages: tuple[Raw, ...]
    byte_count: int
    """What the turn takes in memory."""
    row_count: int
    size: int
    chars: int
    tool_names: tuple[str, ...]
    call_names: frozenset[str]
    repairs: tuple[Repair, ...]
    renamed: tuple[str, ...]
    files: dict[FileId, bool] = {}
    """Its files, and whether each was there when it was encoded."""


class EncodedHistory(Struct, frozen=True, kw_only=True):
    """The settled turns before a turn, oldest first. With `is_cut` there were others before them, which are no longer
    shown. The other fields are sums over the turns: a history may have thousands of them, and each request needs the
    sums."""

    encoding: Encoding
    turns: tuple[EncodedTurn, ...]
    is_cut: bool
    messages: tuple[Raw, ...]
    turn_bytes: int
    """What the turns take in memory."""
    size: int
    chars: int
    call_names: frozenset[str]
    tool_names: tuple[str, ...]
    repairs: tuple[Repair, ...]
    renamed: tuple[str, ...]
    files: dict[FileId, bool]

    @property
    def byte_count(self) -> int:
        """What the history takes in memory."""
        return _HISTORY_BYTES + getsizeof(self.turns) + getsizeof(self.messages) + self.turn_bytes

    def then(
        self, rows: Sequence[Message], *, first_turn: TurnId | None, contents: Contents | None = None
    ) -> "EncodedHistory | None":
        """The same, followed by the turn of these rows. It begins with `first_turn`, with which the last request of
        that turn began. None if the turn cannot be encoded."""
        added = encode_turns(rows, self.encoding, contents=contents)
        if added is None or len(added.turns) != 1:
            return None
        kept = self.since(_index_of(self.turns, first_turn))
        if not kept.call_names.isdisjoint(added.call_names):
            return None
        return EncodedHistory(
            encoding=self.encoding,
            turns=(*kept.turns, *added.turns),
            is_cut=kept.is_cut,
            messages=kept.messages + added.messages,
            turn_bytes=kept.turn_bytes + added.turn_bytes,
            size=kept.size + added.size,
            chars=kept.chars + added.chars,
            call_names=kept.call_names | added.call_names,
            tool_names=_joined_names(kept.tool_names, added.tool_names),
            repairs=kept.repairs + added.repairs,
            renamed=kept.renamed + added.renamed,
            files=kept.files | added.files,
        )

    def since(self, first: int) -> "EncodedHistory":
        """The turns from this index on."""
        if first == 0:
            return self
        return _history(self.encoding, self.turns[first:], is_cut=True)


def encode_turns(
    rows: Sequence[Message], encoding: Encoding, *, contents: Contents | None = None, is_cut: bool = False
) -> EncodedHistory | None:
    """The turns of these rows, which all have ended. None if one of them cannot be encoded."""
    if not rows:
        return _history(encoding, (), is_cut=is_cut)
    view = View(
        reasoning_of=encoding.reasoning_of,
        contents=contents or {},
        sees_images=encoding.sees_images,
        budget=encoding.budget,
    )
    turns: list[EncodedTurn] = []
    for group in group_turns(rows, limit=len(rows), open_turn=None):
        turn = _encoded(group, encoding, view)
        if turn is None:
            return None
        turns.append(turn)
    if sum([turn.row_count for turn in turns]) != len(rows):
        return None
    history = _history(encoding, tuple(turns), is_cut=is_cut)
    return history if len(history.call_names) == sum([len(turn.call_names) for turn in turns]) else None


def _history(encoding: Encoding, turns: tuple[EncodedTurn, ...], *, is_cut: bool) -> EncodedHistory:
    files: dict[FileId, bool] = {}
    for turn in turns:
        files |= turn.files
    return EncodedHistory(
        encoding=encoding,
        turns=turns,
        is_cut=is_cut,
        messages=tuple([message for turn in turns for message in turn.messages]),
        turn_bytes=sum([turn.byte_count for turn in turns]),
        size=sum([turn.size for turn in turns]),
        chars=sum([turn.chars for turn in turns]),
        call_names=frozenset[str]().union(*[turn.call_names for turn in turns]),
        tool_names=tuple(dict.fromkeys(name for turn in turns for name in turn.tool_names)),
        repairs=tuple(repair for turn in turns for repair in turn.repairs),
        renamed=tuple(call_id for turn in turns for call_id in turn.renamed),
        files=files,
    )


def _joined_names(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second))) if second else first


def _index_of(turns: Sequence[EncodedTurn], turn_id: TurnId | None) -> int:
    """The place of this turn; behind the last one if it is not among them."""
    return next((place for place, turn in enumerate(turns) if turn.turn_id == turn_id), len(turns))


def compile_after(
    history: EncodedHistory,
    rows: Sequence[Message],
    *,
    open_turn: TurnId,
    system: str = "",
    contents: Contents | None = None,
    thinking: Thinking = "off",
) -> Compiled | None:
    """What `compile` gives for the rows of the history and these rows of the open turn together, with the history as
    `settled`. None if the two cannot be put together: the caller uses `compile`."""
    encoding = history.encoding
    own = compile(
        rows,
        target=encoding.target,
        open_turn=open_turn,
        budget=encoding.budget,
        system=system,
        contents=contents,
        sees_images=encoding.sees_images,
        thinking=thinking,
        cache_markers=False,
    )
    if own.reasoning_of != encoding.reasoning_of or any(repair.kind == "beginning_missing" for repair in own.repairs):
        return None
    if len(history.turns) >= encoding.budget.turns:
        return None  # only a sandbox has such a limit
    past = history
    if history.size + own.asked[-1] > encoding.budget.size:
        past = history.since(first_kept([turn.size for turn in history.turns], own.asked, encoding.budget))
    if not past.call_names.isdisjoint(own.call_names):
        return None
    return _with_past(own, past, dropped=len(history.turns) - len(past.turns))


def _with_past(own: Compiled, past: EncodedHistory, *, dropped: int) -> Compiled:
    settled, messages = past.messages, own.messages
    if own.target == "openai_chat" and messages[0]["role"] == "system":
        settled = (Raw(_encode(messages[0])), *settled)
        messages = messages[1:]
    elif own.target == "anthropic":
        marked = _last_to_mark(settled, messages)
        messages = [*marked, *messages]
        settled = settled[: len(settled) - len(marked)]
        assert isinstance(own.system, list)
        mark_for_cache(own.system, messages, closed=len(marked))
    if not past.turns:
        return structs.replace(own, settled=settled, messages=messages, turns_dropped=dropped)
    own_renamed = sum(repair.kind == "call_renamed" for repair in own.repairs)
    own_repairs = own.repairs[: len(own.repairs) - own_renamed]
    return structs.replace(
        own,
        settled=settled,
        messages=messages,
        tool_names=_joined_names(past.tool_names, own.tool_names),
        call_names=own.call_names | past.call_names,
        repairs=(*past.repairs, *own_repairs, *map(renamed_call, past.renamed), *own.repairs[len(own_repairs) :]),
        turns_included=own.turns_included + len(past.turns),
        turns_dropped=dropped,
        size=own.size + past.size,
        chars=own.chars + past.chars,
        first_turn=past.turns[0].turn_id,
    )


def _last_to_mark(settled: Sequence[Raw], messages: Sequence[JsonObject]) -> list[JsonObject]:
    """The last settled messages, as objects: so many that all places for cache markers are among them and `messages`.
    These are the end of the last settled turn, and the last two messages of the user."""
    users = sum(message["role"] == "user" for message in messages)
    found: list[JsonObject] = []
    for raw in reversed(settled):
        found.append(_decode(raw))
        users += found[-1]["role"] == "user"
        if users >= MARKED_USER_MESSAGES:
            break
    found.reverse()
    return found


def _encoded(group: Group, encoding: Encoding, view: View) -> EncodedTurn | None:
    rows, budget = group.rows, encoding.budget
    if not group.turn_id or group.turns != 1 or group.is_instruction or rows[0].turn_sequence != 0:
        return None
    if (plain := _encoded_words(group, encoding)) is not None:
        return plain
    exchange, repairs = prepare_turn(group, view=view)
    exchange, closing = close_settled(exchange)
    if exchange.opens_with != "user" or exchange.ends_with != "assistant":
        return None
    lines = join([exchange], open_turn=None).lines
    names = CallNames(ID_CHARS[encoding.target])
    messages = [_encode(message) for message in write_lines(encoding.target, lines, names)]
    size = size_of(exchange, budget)
    called, renamed = frozenset(names.given), tuple(names.renamed)
    tools = tool_names(lines) if called else ()
    all_repairs = (*repairs, *closing)
    files = {
        file_id: not isinstance(view.contents.get(file_id), Gone)
        for file_id in wanted(rows, sees_images=encoding.sees_images)
    }
    texts = [*messages, *tools, *called, *renamed, *[repair.detail for repair in all_repairs]]
    parts = [messages, tools, called, renamed, all_repairs, files, *all_repairs, *texts]
    return EncodedTurn(
        turn_id=group.turn_id,
        messages=tuple(map(Raw, messages)),
        byte_count=_TURN_BYTES + Raw.__basicsize__ * len(messages) + sum(map(getsizeof, parts)),
        row_count=len(rows),
        size=size,
        chars=size if budget.measure is len else chars_of(exchange, budget),
        tool_names=tools,
        call_names=called,
        repairs=all_repairs,
        renamed=renamed,
        files=files,
    )


def _encoded_words(group: Group, encoding: Encoding) -> EncodedTurn | None:
    """The same for a turn of one question and one answer in plain words, as most are: there is nothing to repair, and
    no call or file to note. None for any other turn."""
    if len(group.rows) != 2:
        return None
    asked, answered = group.rows
    question, answer = plain_text(asked), plain_text(answered)
    if question is None or answer is None or (asked.role, answered.role) != ("user", "assistant"):
        return None
    lines = [
        Utterance(role="user", blocks=asked.blocks, ts=asked.created_at),
        Utterance(role="assistant", blocks=answered.blocks, ts=answered.created_at),
    ]
    written = write_lines(encoding.target, lines, CallNames(ID_CHARS[encoding.target]))
    messages = [_encode(message) for message in written]
    measure = encoding.budget.measure
    size = measure(question) + measure(answer)
    return EncodedTurn(
        turn_id=group.turn_id,
        messages=tuple(map(Raw, messages)),
        byte_count=_WORDS_BYTES + Raw.__basicsize__ * len(messages) + sum(map(len, messages)),
        row_count=2,
        size=size,
        chars=size if measure is len else len(question) + len(answer),
        tool_names=(),
        call_names=frozenset(),
        repairs=(),
        renamed=(),
    )
