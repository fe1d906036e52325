"""The engine's facts as lines: a journal that keeps a turn in memory and a hub that tells it, in place of a database.

So the loop in a sandbox is the loop of the server, word for word: it records, and what it records goes out.
"""

from collections.abc import Awaitable, Callable, Sequence

from turnkeep.ids import TurnId
from turnkeep.model.messages import Message
from turnkeep.model.turns import Held, Turn
from turnkeep.runner.lines import Lines
from turnkeep.runner.tools import step_name
from turnkeep.store.commands import Receipt, Settled, Settlement
from turnkeep.streaming.ports import PreviewPiece
from turnkeep_client.wire.events import (
    Failure,
    Files,
    LogLine,
    Recorded,
    Reset,
    Result,
    Sources,
    Step,
    ToolCalls,
    TurnBegan,
    TurnEvent,
)


class TellingJournal:
    """Keeps nothing: the recorder has the rows, the reader has the lines. `before_ending` runs before the last one."""

    def __init__(self, turn: Turn, lines: Lines, before_ending: Callable[[], Awaitable[None]]) -> None:
        self._turn = turn
        self._lines = lines
        self._before_ending = before_ending

    async def record(
        self,
        held: Held,
        *,
        after: int,
        rows: Sequence[Message] = (),
        events: Sequence[TurnEvent] = (),
        logs: Sequence[LogLine] = (),
    ) -> Receipt:
        for log in logs:
            self._lines.log(log.level, log.message)
        return Receipt(last_seq=after + len(events), cancel_requested=False)

    async def settle(self, held: Held, *, after: int, settlement: Settlement) -> Settled:
        await self._before_ending()
        return Settled(turn=self._turn, promoted=None)


class TellingHub:
    """Publishes events as lines. What readers of the server see of a turn is made there, of these lines."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._names: dict[str, str] = {}
        self._in_progress: set[str] = set()
        self._has_spoken = False

    def publish(self, turn_id: TurnId, recorded: Sequence[Recorded]) -> None:
        for each in recorded:
            self._tell(each.event)

    def preview(self, piece: PreviewPiece) -> None:
        if piece.kind == "text":
            self._has_spoken = True
            self._lines.delta(piece.text)

    def progress(self, call_id: str, output: str) -> None:
        """A step goes on; this is the end of what it has printed so far."""
        name = self._names.get(call_id)
        if name is not None:
            self._in_progress.add(call_id)
            self._lines.step(Step(id=call_id, name=name, status="running", result=output))

    def forget(self, turn_id: TurnId) -> None:
        pass

    def _tell(self, event: TurnEvent) -> None:
        match event:
            case Step():
                self._tell_step(event)
            case ToolCalls():
                if event.text and not self._has_spoken:
                    self._lines.delta(event.text)
                self._has_spoken = False
            case Result():
                self._lines.result(event.message)
            case Failure():
                self._lines.error(event.code, event.message)
            case Reset():
                self._lines.log("warn", f"The model was asked again: {event.reason}")
            case Sources():
                self._lines.sources(event.sources)
            case TurnBegan() | Files():
                pass

    def _tell_step(self, step: Step) -> None:
        if step.status == "running" and isinstance(step.args, dict):
            self._names[step.id] = step_name(step.name, step.args)
        name = self._names.get(step.id, step.name)
        if step.status != "running":
            self._names.pop(step.id, None)  # late output of an ended step is not shown
        # The output that was shown while a step ran is in its error, where it failed; it must not stand there twice.
        drops_output = step.status == "failed" and step.id in self._in_progress
        shown = Step(
            id=step.id,
            name=name,
            status=step.status,
            args=step.args,
            result=None if drops_output else step.result,
            error=step.error,
            duration_ms=step.duration_ms,
        )
        self._lines.step(shown)
