"""Exchanges: the values that the compiler's steps pass to each other, and their repair.

An exchange is one turn as a model will see it. No provider's format appears here, and nothing here reads rows.

`repair` makes an exchange acceptable, whatever interrupted its turn. After it every tool call is answered exactly once,
directly after the utterance that made it and in the order of the calls. No utterance is empty, and reasoning stands
only where a provider accepts it. A second repair changes nothing. The repair of one turn never depends on another turn,
so earlier turns keep their bytes.

Ids alone do not say which result answers which call: they recur, and results come in any order, twice, too early or
not at all. The pairing costs time linear in the number of calls and results.
"""

from collections import defaultdict, deque
from typing import Literal

from msgspec import Struct

from turnkeep.ids import CallId, TurnId
from turnkeep_client.wire.blocks import Block, Reasoning, Text, ToolResult, ToolUse

Speaker = Literal["user", "assistant"]

RepairKind = Literal[
    "result_missing",
    "result_orphaned",
    "result_duplicated",
    "result_moved",
    "results_ordered",
    "result_empty",
    "result_elided",
    "call_renamed",
    "answer_missing",
    "beginning_missing",
    "continuation_asked",
    "message_empty",
    "reasoning_dropped",
    "file_missing",
]


class Utterance(Struct, frozen=True, kw_only=True):
    """What one side said at once. Tool results are the user's, as in Anthropic's protocol."""

    role: Speaker
    blocks: tuple[Block, ...]
    ts: int


class Repair(Struct, frozen=True, kw_only=True):
    """One change that the compiler had to make, described for a person."""

    kind: RepairKind
    turn_id: TurnId
    detail: str


class Exchange(Struct, frozen=True, kw_only=True):
    """One turn: what was said, in order."""

    turn_id: TurnId
    utterances: tuple[Utterance, ...]

    @property
    def opens_with(self) -> Speaker | None:
        return self.utterances[0].role if self.utterances else None

    @property
    def ends_with(self) -> Speaker | None:
        return self.utterances[-1].role if self.utterances else None

    def then(self, role: Speaker, text: str) -> "Exchange":
        """The same, followed by one more sentence."""
        ts = self.utterances[-1].ts if self.utterances else 0
        return Exchange(turn_id=self.turn_id, utterances=(*self.utterances, note(role, text, ts=ts)))


# The compiler's own texts. They never change, because a provider's cache needs the same prefix every time.
EMPTY_MESSAGE = "(empty message)"
NO_ANSWER = "(This turn ended without an answer.)"
BEGAN_EARLIER = "(The conversation began before this point.)"
PLEASE_CONTINUE = "(Please continue.)"
NO_OUTPUT = "(no output)"
OUTCOME_UNKNOWN = (
    "outcome_unknown: the call was interrupted before its result was recorded. "
    "It may or may not have taken effect; check before repeating it."
)


def note(role: Speaker, text: str, *, ts: int) -> Utterance:
    return Utterance(role=role, blocks=(Text(text=text),), ts=ts)


class CallSlot:
    """A call, and its result once it is found. `arrival` numbers the results in the order in which they came."""

    __slots__ = ("arrival", "at", "call", "result")

    def __init__(self, call: ToolUse, at: int) -> None:
        self.call = call
        self.at = at
        self.result: ToolResult | None = None
        self.arrival = -1

    @property
    def name(self) -> str:
        return f"Call {self.call.id!r} ({self.call.name})"


class RepairLog:
    """The repairs of one turn."""

    def __init__(self, turn_id: TurnId) -> None:
        self.turn_id = turn_id
        self.repairs: list[Repair] = []

    def add(self, kind: RepairKind, detail: str) -> None:
        self.repairs.append(Repair(kind=kind, turn_id=self.turn_id, detail=detail))


def repair(exchange: Exchange) -> tuple[Exchange, list[Repair]]:
    """The exchange as every provider accepts it, and the repairs that this needed."""
    if _is_sound(exchange):
        return exchange, []
    log = RepairLog(exchange.turn_id)
    slots = pair(exchange, log)
    utterances: list[Utterance] = []
    for index, utterance in enumerate(exchange.utterances):
        spoken = _spoken(utterance, log)
        if spoken is not None:
            utterances.append(spoken)
        if index in slots:
            results = tuple(_result(slot, log) for slot in slots[index])
            utterances.append(Utterance(role="user", blocks=results, ts=_answered_at(exchange, index)))
    return Exchange(turn_id=exchange.turn_id, utterances=tuple(utterances)), log.repairs


def _is_sound(exchange: Exchange) -> bool:
    """A quick check that a turn needs no repair, as is usual."""
    waiting: list[CallId] = []
    for utterance in exchange.utterances:
        calls: list[CallId] = []
        answers: list[CallId] = []
        for block in utterance.blocks:
            if isinstance(block, Text):
                if calls or not block.text or block.text.isspace():
                    return False
            elif isinstance(block, ToolUse):
                calls.append(block.id)
            elif isinstance(block, ToolResult):
                if not block.content or block.content.isspace():
                    return False
                answers.append(block.call_id)
            else:
                return False
        if answers != waiting or not utterance.blocks or (answers and len(answers) != len(utterance.blocks)):
            return False
        waiting = calls
    return not waiting


def _result(slot: CallSlot, log: RepairLog) -> ToolResult:
    result = slot.result
    if result is None:
        log.add("result_missing", f"{slot.name} has no result; the model is told that the outcome is unknown.")
        return ToolResult(call_id=slot.call.id, content=OUTCOME_UNKNOWN, is_error=True)
    if not result.content or result.content.isspace():
        log.add("result_empty", f"The result of {slot.name} was empty.")
        return ToolResult(call_id=result.call_id, content=NO_OUTPUT, is_error=result.is_error)
    return result


def _spoken(utterance: Utterance, log: RepairLog) -> Utterance | None:
    """The utterance without results and empty texts; None if nothing remains."""
    blocks = utterance.blocks
    kept = tuple(block for block in blocks if not _is_void(block))
    if utterance.role == "assistant":
        kept = _with_valid_reasoning(_with_words_before_calls(kept), log)
    if kept:
        return Utterance(role=utterance.role, blocks=kept, ts=utterance.ts)
    if blocks and all(isinstance(block, ToolResult) for block in blocks):
        return None
    log.add("message_empty", f"A message of the {utterance.role} was empty.")
    if utterance.role == "assistant":
        return None
    return Utterance(role="user", blocks=(Text(text=EMPTY_MESSAGE),), ts=utterance.ts)


def _is_void(block: Block) -> bool:
    if isinstance(block, Text):
        return not block.text or block.text.isspace()
    return isinstance(block, ToolResult)


def _with_valid_reasoning(blocks: tuple[Block, ...], log: RepairLog) -> tuple[Block, ...]:
    """Keep reasoning only at the beginning of an utterance. Reasoning at its end was cut off, and is left out."""
    end = len(blocks)
    while end and isinstance(blocks[end - 1], Reasoning):
        end -= 1
    kept = blocks[:end]
    if kept and not isinstance(kept[0], Reasoning):
        kept = without_reasoning(kept)
    if len(kept) != len(blocks):
        log.add("reasoning_dropped", "Reasoning that led to nothing, or came out of its place, was left out.")
    return kept


def _with_words_before_calls(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """Put text before calls, as in every answer of a provider. Imported answers may have text after a call."""
    first = next((index for index, block in enumerate(blocks) if isinstance(block, ToolUse)), len(blocks))
    late = tuple(block for block in blocks[first:] if isinstance(block, Text))
    if not late:
        return blocks
    return (*blocks[:first], *late, *(block for block in blocks[first:] if not isinstance(block, Text)))


def without_reasoning(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    return tuple(block for block in blocks if not isinstance(block, Reasoning))


def _answered_at(exchange: Exchange, index: int) -> int:
    following = exchange.utterances[min(index + 1, len(exchange.utterances) - 1)]
    return following.ts


def pair(exchange: Exchange, log: RepairLog) -> dict[int, list[CallSlot]]:
    """Every call with its result, if it has one, by the utterance that made the call."""
    pairing = _CallPairing(log)
    for index, utterance in enumerate(exchange.utterances):
        for block in utterance.blocks:
            if isinstance(block, ToolResult):
                pairing.answer(block)
            else:
                pairing.last_spoken = index
                if isinstance(block, ToolUse):
                    pairing.call(block)
    pairing.note_the_rest()
    return pairing.slots


class _CallPairing:
    def __init__(self, log: RepairLog) -> None:
        self.slots: dict[int, list[CallSlot]] = {}
        self.last_spoken = -1
        self._log = log
        self._called: set[CallId] = set()
        self._waiting: dict[CallId, list[deque[CallSlot]]] = defaultdict(list)
        self._early: dict[CallId, deque[ToolResult]] = defaultdict(deque)
        self._arrivals = 0

    def call(self, block: ToolUse) -> None:
        slot = CallSlot(block, self.last_spoken)
        self.slots.setdefault(slot.at, []).append(slot)
        self._called.add(block.id)
        if self._early[block.id]:
            slot.result = self._early[block.id].popleft()
            self._log.add("result_moved", f"The result of {slot.name} stood before the call.")
            return
        rounds = self._waiting[block.id]
        if rounds and rounds[-1] and rounds[-1][0].at == slot.at:
            rounds[-1].append(slot)
        else:
            rounds.append(deque([slot]))

    def answer(self, block: ToolResult) -> None:
        slot = self._meant_by(block)
        if slot is not None:
            slot.result, slot.arrival = block, self._arrivals
            self._arrivals += 1
            if self.last_spoken != slot.at:
                self._log.add("result_moved", f"The result of {slot.name} did not directly follow the call.")
        elif block.call_id in self._called:
            self._log.add("result_duplicated", f"Call {block.call_id!r} was answered twice; the first answer holds.")
        else:
            self._early[block.call_id].append(block)

    def note_the_rest(self) -> None:
        for call_id, results in self._early.items():
            for _ in results:
                self._log.add("result_orphaned", f"A result for {call_id!r}, for which there is no call, was left out.")
        for made in self.slots.values():
            arrivals = [slot.arrival for slot in made if slot.arrival >= 0]
            if arrivals != sorted(arrivals):
                self._log.add("results_ordered", "Results of parallel calls were put into the order of the calls.")

    def _meant_by(self, block: ToolResult) -> CallSlot | None:
        """The call that this result answers. Some models number their calls from 0 in every round, so it is the first
        call with that id in the latest round that still waits for results."""
        rounds = self._waiting[block.call_id]
        while rounds and not rounds[-1]:
            rounds.pop()
        return rounds[-1].popleft() if rounds else None
