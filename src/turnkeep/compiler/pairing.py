"""Pairing: which result answers which call, within one turn.

Ids cannot be trusted to say it alone: they recur, results come in any order, twice, too early or not at all. Cost is
linear in the calls and results.
"""

from collections import defaultdict, deque

from turnkeep.compiler.exchange import Exchange, Repair, RepairKind
from turnkeep.ids import CallId, TurnId
from turnkeep_client.wire.blocks import ToolResult, ToolUse


class Slot:
    """A call, and the place for its answer. `arrival` counts the answers in the order in which they came."""

    __slots__ = ("arrival", "at", "call", "result")

    def __init__(self, call: ToolUse, at: int) -> None:
        self.call = call
        self.at = at
        self.result: ToolResult | None = None
        self.arrival = -1

    @property
    def name(self) -> str:
        return f"Call {self.call.id!r} ({self.call.name})"


class Log:
    """What had to be set right in one turn."""

    def __init__(self, turn_id: TurnId) -> None:
        self.turn_id = turn_id
        self.repairs: list[Repair] = []

    def add(self, kind: RepairKind, detail: str) -> None:
        self.repairs.append(Repair(kind=kind, turn_id=self.turn_id, detail=detail))


def pair(exchange: Exchange, log: Log) -> dict[int, list[Slot]]:
    """Every call with its result, if it has one, by the utterance that made the call."""
    pairing = _Pairing(log)
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


class _Pairing:
    def __init__(self, log: Log) -> None:
        self.slots: dict[int, list[Slot]] = {}
        self.last_spoken = -1
        self._log = log
        self._called: set[CallId] = set()
        self._waiting: dict[CallId, list[deque[Slot]]] = defaultdict(list)
        self._early: dict[CallId, deque[ToolResult]] = defaultdict(deque)
        self._arrivals = 0

    def call(self, block: ToolUse) -> None:
        slot = Slot(block, self.last_spoken)
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
                self._log.add("result_orphaned", f"A result for {call_id!r}, which nobody called, was left out.")
        for made in self.slots.values():
            arrivals = [slot.arrival for slot in made if slot.arrival >= 0]
            if arrivals != sorted(arrivals):
                self._log.add("results_ordered", "Results of parallel calls were put into the order of the calls.")

    def _meant_by(self, block: ToolResult) -> Slot | None:
        """Some models count their ids from 0 in every round: the latest round that still waits is meant, and
        within it the first.
        """
        rounds = self._waiting[block.call_id]
        while rounds and not rounds[-1]:
            rounds.pop()
        return rounds[-1].popleft() if rounds else None
