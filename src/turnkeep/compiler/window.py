"""The window: which turns a model is shown, within a budget.

Only whole turns are shown, the most recent ones. If they exceed the budget together, the oldest are left out until the
rest takes three quarters of it. So the next requests begin with the same words, which the provider has in its cache,
until the budget is exceeded again. `first_kept` decides it. A first turn whose beginning was cut off by the store's row
limit is left out. The turn that is being answered is always shown; if it alone exceeds the budget, its oldest tool
results are replaced by notes. Turns are read from the end, so the cost does not depend on the length of the
conversation.

A budget counts characters, or tokens if an agent names a tokenizer. The rest of the compiler calls `Budget.measure`
and does not know which of the two it is. The budget does not include the system prompt and the answer: the caller
leaves room for them.

Decision: docs/decisions/0301
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import blake2b
from importlib import import_module
from itertools import takewhile
from typing import assert_never

import msgspec
from msgspec import Struct, structs

from turnkeep.compiler.exchange import (
    BEGAN_EARLIER,
    EMPTY_MESSAGE,
    NO_ANSWER,
    PLEASE_CONTINUE,
    Exchange,
    Repair,
    Utterance,
)
from turnkeep.config import EngineSettings
from turnkeep.errors import InvalidRequest, Unavailable
from turnkeep.ids import TurnId
from turnkeep.model.messages import Message
from turnkeep.model.truncation import elided
from turnkeep_client.wire.blocks import Block, FileRef, Image, JsonObject, Reasoning, Text, ToolResult, ToolUse

Measure = Callable[[str], int]

ALL_TURNS = 2**31
CONTEXT_CHARS = EngineSettings().context_chars
CHARS_PER_TOKEN = 4
IMAGE_TOKENS = 1_600
"""What a picture costs after providers have scaled it down. Its base64 length does not say that."""
COUNTS_KEPT = 4_096
"""Texts whose number of tokens is remembered, for each tokenizer."""


class Budget(Struct, frozen=True, kw_only=True):
    """A total of at most `size`, as `measure` counts it; `image` is the size of a picture. A sandbox is also limited to
    a number of turns."""

    turns: int = ALL_TURNS
    size: int = CONTEXT_CHARS
    measure: Measure = len
    image: int = IMAGE_TOKENS * CHARS_PER_TOKEN

    @property
    def kept(self) -> int:
        """What is left at most when the budget was exceeded and turns were dropped. A window that is limited to a
        number of turns moves with every turn anyway, so nothing is gained by dropping more than must be."""
        return self.size * 3 // 4 if self.turns == ALL_TURNS else self.size


UNLIMITED = Budget(size=2**62)


def budget_for(tokenizer: str | None = None, *, turns: int = ALL_TURNS, chars: int = CONTEXT_CHARS) -> Budget:
    """The budget in characters, or the equivalent in tokens of the named tokenizer."""
    if tokenizer is None:
        return Budget(turns=turns, size=chars)
    size = max(1, chars // CHARS_PER_TOKEN)
    return Budget(turns=turns, size=size, measure=measure_for(tokenizer), image=IMAGE_TOKENS)


class Group(Struct, frozen=True, kw_only=True):
    """The stored rows of one turn, in order. `turns` is above 1 if rows of results were joined to it."""

    turn_id: TurnId
    rows: tuple[Message, ...]
    turns: int = 1

    @property
    def is_instruction(self) -> bool:
        """Whether the group holds only instructions, so that no answer is missing."""
        return bool(self.rows) and self.rows[0].role == "system" and all(row.role == "system" for row in self.rows)


class FittedTurns(Struct, frozen=True, kw_only=True):
    """The turns that are shown, oldest first, and the turn that they begin with. `asked` are the sizes of the open turn
    when the model was asked, from its first request to this one."""

    exchanges: list[Exchange]
    repairs: list[Repair]
    turns: int
    size: int
    first_turn: TurnId | None
    asked: tuple[int, ...]


Prepare = Callable[[Group], tuple[Exchange, list[Repair]]]
"""Makes an exchange of a group: reads its rows for one target, and repairs them."""


def group_turns(rows: Sequence[Message], *, limit: int, open_turn: TurnId | None) -> list[Group]:
    """The last `limit` turns, oldest first. The rows of a turn are joined even if rows of another turn lie between
    them.

    A row without a turn is a turn of its own, but a row of tool results alone belongs to the turn before it. Turns
    that are queued behind the open turn have not happened yet and are left out.
    """
    found: dict[str | int, list[Message]] = {}
    first_at: dict[str | int, int] = {}
    headless: set[str | int] = set()
    room = max(limit, 1)
    for index in range(len(rows) - 1, -1, -1):
        row = rows[index]
        key: str | int = row.turn_id or index
        group = found.get(key)
        if group is None:
            if key == open_turn:
                room = len(found) + max(limit, 1)
            elif len(found) >= room:
                if headless or (open_turn is not None and open_turn not in found):
                    continue
                break
            group = found[key] = []
            headless.add(key)
        group.append(row)
        first_at[key] = index
        if row.turn_sequence == 0 or key == index:
            headless.discard(key)
    keys = sorted(found, key=first_at.__getitem__)
    if open_turn in found:
        keys = keys[: keys.index(open_turn) + 1]
    if keys and keys[0] in headless and keys[0] != open_turn:
        del keys[0]
    groups = [_group(found[key]) for key in keys]
    if open_turn is not None and open_turn not in found:
        groups.append(Group(turn_id=open_turn, rows=(), turns=0))
    return _with_results_joined(groups, open_turn)


def _group(rows: list[Message]) -> Group:
    rows.reverse()
    sequence = [row.turn_sequence for row in rows]
    if sequence != sorted(sequence):
        rows.sort(key=lambda row: row.turn_sequence)
    return Group(turn_id=rows[0].turn_id, rows=tuple(rows))


def _with_results_joined(groups: list[Group], open_turn: TurnId | None) -> list[Group]:
    """The groups, of which none begins with results of calls in the one before: a client may have sent its history in
    pieces that were cut there."""
    joined: list[Group] = []
    for group in groups:
        if not joined or group.turn_id == open_turn or not (group.rows and _is_result(group.rows[0])):
            joined.append(group)
            continue
        results = tuple(takewhile(_is_result, group.rows))
        last, rest = joined[-1], group.rows[len(results) :]
        turns = last.turns + (0 if rest else group.turns)
        joined[-1] = Group(turn_id=last.turn_id, rows=last.rows + results, turns=turns)
        if rest:
            joined.append(Group(turn_id=group.turn_id, rows=rest, turns=group.turns))
    return joined


def _is_result(row: Message) -> bool:
    blocks = row.blocks
    return bool(blocks) and isinstance(blocks[0], ToolResult) and all(isinstance(each, ToolResult) for each in blocks)


class _FittedTurn(Struct, frozen=True, kw_only=True):
    group: Group
    exchange: Exchange
    repairs: list[Repair]
    size: int


def fit(
    groups: Sequence[Group], prepare: Prepare, *, budget: Budget, open_turn: TurnId | None, close: bool
) -> FittedTurns:
    """The newest groups that are shown within the budget. With `close`, each gets an end after which the next may
    follow."""
    found: list[_FittedTurn] = []
    asked: tuple[int, ...] = (0,)
    total = 0
    newer: Exchange | None = None
    for group in reversed(groups):
        is_open = group.turn_id == open_turn
        exchange, done = prepare(group)
        if close and (is_open or not group.is_instruction):
            exchange, closing = _closed(exchange, newer, is_open=is_open)
            done = done + closing
        size = size_of(exchange, budget)
        if is_open:
            asked = asked_sizes(exchange, budget)
            exchange, shortened = _elide(exchange, size - budget.size, budget)
            done, size = done + shortened, size_of(exchange, budget) if shortened else size
        else:
            total += size + _opening_size(exchange, budget)
        found.append(_FittedTurn(group=group, exchange=exchange, repairs=done, size=size))
        if exchange.utterances:
            newer = exchange
        if total > budget.size or asked[-1] > budget.size:
            break  # what is older is dropped anyway
    found.reverse()
    settled = [each.size + _opening_size(each.exchange, budget) for each in found if each.group.turn_id != open_turn]
    shown = found[first_kept(settled, asked, budget) :]
    exchanges = [each.exchange for each in shown if each.exchange.utterances]
    opening = _opening_size(exchanges[0], budget) if exchanges else 0
    return FittedTurns(
        exchanges=exchanges,
        repairs=[repair for each in shown for repair in each.repairs],
        turns=sum(each.group.turns for each in shown),
        size=sum(each.size for each in shown) + opening,
        first_turn=shown[0].group.turn_id if shown else None,
        asked=asked,
    )


def first_kept(settled: Sequence[int], asked: Sequence[int], budget: Budget) -> int:
    """The index of the first settled turn that is shown, from the sizes of all of them, oldest first.

    `asked` are the sizes of the open turn at each of its requests so far. Each request follows from the one before, so
    the answer is the same for a worker that has just taken the turn over.
    """
    first, total = 0, sum(settled)
    for size in asked:
        if total + size > budget.size:
            while first < len(settled) and total + size > budget.kept:
                total -= settled[first]
                first += 1
    return first


def asked_sizes(exchange: Exchange, budget: Budget) -> tuple[int, ...]:
    """The size of a turn at each of its requests to the model: whenever the user's side has said something."""
    sizes: list[int] = []
    total = 0
    for utterance, following in zip(exchange.utterances, (*exchange.utterances[1:], None), strict=True):
        total += _blocks_size(utterance.blocks, budget)
        if utterance.role == "user" and (following is None or following.role == "assistant"):
            sizes.append(total)
    return tuple(sizes) or (total,)


def _closed(exchange: Exchange, newer: Exchange | None, *, is_open: bool) -> tuple[Exchange, list[Repair]]:
    """The exchange, with a note in place of a missing answer: two questions in a row would read as one."""
    if is_open:
        return _asking(exchange)
    if newer is not None and newer.opens_with == "assistant":
        return exchange, []
    return close_settled(exchange)


def close_settled(exchange: Exchange) -> tuple[Exchange, list[Repair]]:
    """The same for a turn that has ended and is followed by a question."""
    if exchange.ends_with != "user":
        return exchange, []
    detail = "The turn ended without an answer; a line says so."
    repair = Repair(kind="answer_missing", turn_id=exchange.turn_id, detail=detail)
    return exchange.then("assistant", NO_ANSWER), [repair]


def _asking(exchange: Exchange) -> tuple[Exchange, list[Repair]]:
    """The open exchange, ending with a message that a model can answer."""
    match exchange.ends_with:
        case "user":
            return exchange, []
        case "assistant":
            detail = "The open turn ends with the assistant's words; the model is asked to go on."
            repair = Repair(kind="continuation_asked", turn_id=exchange.turn_id, detail=detail)
            return exchange.then("user", PLEASE_CONTINUE), [repair]
        case None:
            detail = "The open turn holds nothing to answer; a line says so."
            repair = Repair(kind="message_empty", turn_id=exchange.turn_id, detail=detail)
            return exchange.then("user", EMPTY_MESSAGE), [repair]


def _opening_size(exchange: Exchange, budget: Budget) -> int:
    return budget.measure(BEGAN_EARLIER) if exchange.opens_with == "assistant" else 0


def _elide(exchange: Exchange, excess: int, budget: Budget) -> tuple[Exchange, list[Repair]]:
    """Replace the oldest results by notes until `excess` is gone or no result is longer than its note."""
    if excess <= 0:
        return exchange, []
    utterances: list[Utterance] = []
    repairs: list[Repair] = []
    for utterance in exchange.utterances:
        blocks: list[Block] = []
        for block in utterance.blocks:
            if excess > 0 and isinstance(block, ToolResult):
                shorter = structs.replace(block, content=elided(block.content))
                saved = budget.measure(block.content) - budget.measure(shorter.content)
                if saved > 0:
                    excess -= saved
                    detail = f"The result of call {block.call_id!r} did not fit and gave way to a note."
                    repairs.append(Repair(kind="result_elided", turn_id=exchange.turn_id, detail=detail))
                    block = shorter  # noqa: PLW2901
            blocks.append(block)
        utterances.append(Utterance(role=utterance.role, blocks=tuple(blocks), ts=utterance.ts))
    return Exchange(turn_id=exchange.turn_id, utterances=tuple(utterances)), repairs


@lru_cache(maxsize=16)
def measure_for(tokenizer: str) -> Measure:
    """A counter of tokens, by the name of an encoding (`o200k_base`) or of a model that tiktoken knows."""
    try:
        tiktoken = import_module("tiktoken")
    except ImportError as exc:
        raise InvalidRequest(
            f"The agent counts tokens with {tokenizer!r}, which needs the package tiktoken. "
            "Install it, or leave the tokenizer out to count characters."
        ) from exc
    try:
        known = tokenizer in tiktoken.list_encoding_names()
        encoding = tiktoken.get_encoding(tokenizer) if known else tiktoken.encoding_for_model(tokenizer)
    except KeyError as exc:
        raise InvalidRequest(f"{tokenizer!r} is not a tokenizer that tiktoken knows.") from exc
    except OSError as exc:
        raise Unavailable(f"The vocabulary of tokenizer {tokenizer!r} could not be loaded: {exc}") from exc

    # A tool round measures the same texts again; counting tokens costs about a hundred times more than the lookup. The
    # texts themselves are not kept: they may have to be erased.
    counts: dict[bytes, int] = {}

    def count(text: str) -> int:
        mark = blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
        if mark not in counts:
            if len(counts) >= COUNTS_KEPT:
                counts.clear()
            counts[mark] = len(encoding.encode(text, disallowed_special=()))
        return counts[mark]

    return count


def size_of(exchange: Exchange, budget: Budget) -> int:
    """What the exchange takes of the budget."""
    return sum([_blocks_size(utterance.blocks, budget) for utterance in exchange.utterances])


def _blocks_size(blocks: Sequence[Block], budget: Budget) -> int:
    measure, image = budget.measure, budget.image
    return sum(
        [
            measure(block.text) if isinstance(block, Text) else block_size(block, measure=measure, image=image)
            for block in blocks
        ]
    )


def block_size(block: Block, *, measure: Measure, image: int) -> int:
    match block:
        case Text():
            return measure(block.text)
        case ToolResult():
            return measure(block.content)
        case ToolUse():
            return measure(block.name) + measure(arguments_of(block.input))
        case Reasoning():
            return measure(block.text) + len(block.data or "")
        case Image():
            return image
        case FileRef():
            return measure(block.name)
        case _:
            assert_never(block)


def arguments_of(value: JsonObject) -> str:
    """A call's arguments as compact JSON, keys in the order in which the model wrote them."""
    return msgspec.json.encode(value).decode()
