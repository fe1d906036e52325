"""Settled turns, encoded once: later requests of the conversation copy their bytes.

`compile` reads every row of the window for every request, although it writes nearly the same bytes for a settled turn
each time. `encode_turns` makes these bytes once. `compile_after` puts a request together of them and of the rows of the
open turn. The result is equal to that of `compile` for all rows together.

A turn is encoded only if its bytes depend on nothing but its own rows. So it begins with the user and ends with the
assistant, it has no files (their contents may be gone later), and none of its calls has the name of a call of another
turn. If one turn is different, nothing is encoded, and the caller uses `compile`.

Decision: docs/decisions/0301
"""

from collections.abc import Sequence
from sys import getsizeof

import msgspec
from msgspec import Raw, Struct, structs

from turnkeep.compiler.exchange import Repair
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
from turnkeep.compiler.utterances import Contents, View
from turnkeep.compiler.window import Budget, Group, Measure, close_settled, group_turns, size_of
from turnkeep.ids import TurnId
from turnkeep.model.messages import Message
from turnkeep_client.wire.blocks import FileRef, JsonObject

_TURN_BYTES = 200
"""The struct of an encoded turn itself, with what Python adds to it, and its numbers."""
_HISTORY_BYTES = 200

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(JsonObject).decode


class Encoding(Struct, frozen=True, kw_only=True):
    """What the bytes and the size of a settled turn depend on, apart from its rows."""

    target: Target
    reasoning_of: str | None
    sees_images: bool
    measure: Measure
    image: int


class EncodedTurn(Struct, frozen=True, kw_only=True):
    """A settled turn: its messages as JSON, and what a request must know about them."""

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


class EncodedHistory(Struct, frozen=True, kw_only=True):
    """The settled turns before a turn, oldest first."""

    encoding: Encoding
    turns: tuple[EncodedTurn, ...]

    @property
    def byte_count(self) -> int:
        """What the history takes in memory."""
        return _HISTORY_BYTES + getsizeof(self.turns) + sum([turn.byte_count for turn in self.turns])

    def then(self, rows: Sequence[Message], *, budget: Budget, row_limit: int) -> "EncodedHistory | None":
        """The same, followed by the turn of these rows, and without turns that a request within the budget never shows.

        None if the turn cannot be encoded, or if there are more than `row_limit` rows: then the window that the store
        returns begins later than this history.
        """
        added = encode_turns(rows, self.encoding)
        if added is None:
            return None
        turns = (*self.turns, *added.turns)
        turns = turns[len(turns) - min(budget.turns - 1, _fitting(turns, budget.size)) :]
        if sum(turn.row_count for turn in turns) > row_limit or not _are_distinct(turns):
            return None
        return EncodedHistory(encoding=self.encoding, turns=turns)


def encode_turns(rows: Sequence[Message], encoding: Encoding) -> EncodedHistory | None:
    """The turns of these rows, which all have ended. None if one of them cannot be encoded."""
    turns: list[EncodedTurn] = []
    for group in group_turns(rows, limit=len(rows), open_turn=None):
        turn = _encoded(group, encoding)
        if turn is None:
            return None
        turns.append(turn)
    if sum(turn.row_count for turn in turns) != len(rows) or not _are_distinct(turns):
        return None
    return EncodedHistory(encoding=encoding, turns=tuple(turns))


def compile_after(
    history: EncodedHistory,
    rows: Sequence[Message],
    *,
    open_turn: TurnId,
    budget: Budget,
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
        budget=budget,
        system=system,
        contents=contents,
        sees_images=encoding.sees_images,
        thinking=thinking,
        cache_markers=False,
    )
    kinds = {repair.kind for repair in own.repairs}
    if own.reasoning_of != encoding.reasoning_of or "beginning_missing" in kinds:
        return None
    shown = 0 if "result_elided" in kinds else _fitting(history.turns, budget.size - own.size)
    past = history.turns[len(history.turns) - min(shown, max(budget.turns, 1) - 1) :]
    if own.call_names and not all(own.call_names.isdisjoint(turn.call_names) for turn in past):
        return None
    return _with_past(own, history, past)


def _with_past(own: Compiled, history: EncodedHistory, past: Sequence[EncodedTurn]) -> Compiled:
    settled = [message for turn in past for message in turn.messages]
    messages = own.messages
    if own.target == "openai_chat" and messages[0]["role"] == "system":
        settled.insert(0, Raw(_encode(messages[0])))
        messages = messages[1:]
    elif own.target == "anthropic":
        marked = _last_to_mark(settled, messages)
        messages = [*marked, *messages]
        del settled[len(settled) - len(marked) :]
        assert isinstance(own.system, list)
        mark_for_cache(own.system, messages, closed=len(marked))
    dropped = len(history.turns) - len(past)
    if not past:
        return structs.replace(own, settled=tuple(settled), messages=messages, turns_dropped=dropped)
    repairs = [repair for turn in past for repair in turn.repairs]
    renamed = [renamed_call(call_id) for turn in past for call_id in turn.renamed]
    own_renamed = sum(repair.kind == "call_renamed" for repair in own.repairs)
    own_repairs = own.repairs[: len(own.repairs) - own_renamed]
    return structs.replace(
        own,
        settled=tuple(settled),
        messages=messages,
        tool_names=tuple(dict.fromkeys([*(name for turn in past for name in turn.tool_names), *own.tool_names])),
        call_names=own.call_names.union(*(turn.call_names for turn in past)),
        repairs=(*repairs, *own_repairs, *renamed, *own.repairs[len(own_repairs) :]),
        turns_included=own.turns_included + len(past),
        turns_dropped=dropped,
        size=own.size + sum(turn.size for turn in past),
        chars=own.chars + sum(turn.chars for turn in past),
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


def _encoded(group: Group, encoding: Encoding) -> EncodedTurn | None:
    rows = group.rows
    if not group.turn_id or group.turns != 1 or group.is_instruction or rows[0].turn_sequence != 0:
        return None
    if any(row.attachments or any(isinstance(block, FileRef) for block in row.blocks) for row in rows):
        return None
    view = View(reasoning_of=encoding.reasoning_of, contents={}, sees_images=encoding.sees_images)
    exchange, repairs = prepare_turn(group, view=view)
    exchange, closing = close_settled(exchange)
    if exchange.opens_with != "user" or exchange.ends_with != "assistant":
        return None
    lines = join([exchange], open_turn=None).lines
    names = CallNames(ID_CHARS[encoding.target])
    messages = [_encode(message) for message in write_lines(encoding.target, lines, names)]
    budget = Budget(measure=encoding.measure, image=encoding.image)
    size = size_of(exchange, budget)
    turn = EncodedTurn(
        messages=tuple(map(Raw, messages)),
        byte_count=0,
        row_count=len(rows),
        size=size,
        chars=size if encoding.measure is len else chars_of(exchange, budget),
        tool_names=tool_names(lines),
        call_names=frozenset(names.given),
        repairs=(*repairs, *closing),
        renamed=tuple(names.renamed),
    )
    return structs.replace(turn, byte_count=_memory_of(turn, messages))


def _memory_of(turn: EncodedTurn, messages: Sequence[bytes]) -> int:
    """The bytes of the turn and of the objects that it consists of."""
    texts = [*turn.tool_names, *turn.call_names, *turn.renamed, *(repair.detail for repair in turn.repairs)]
    parts = [turn.messages, turn.tool_names, turn.call_names, turn.repairs, turn.renamed, *turn.repairs]
    return _TURN_BYTES + Raw.__basicsize__ * len(messages) + sum(map(getsizeof, [*parts, *messages, *texts]))


def _fitting(turns: Sequence[EncodedTurn], room: int) -> int:
    """How many of the newest turns fit into `room` together."""
    count = 0
    for turn in reversed(turns):
        room -= turn.size
        if room < 0:
            break
        count += 1
    return count


def _are_distinct(turns: Sequence[EncodedTurn]) -> bool:
    """Whether no two turns have calls of the same name. One of them would get another name in a request."""
    names = [turn.call_names for turn in turns if turn.call_names]
    return len(frozenset[str]().union(*names)) == sum(map(len, names))
