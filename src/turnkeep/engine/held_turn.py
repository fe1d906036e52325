"""A turn that this worker holds: its lease, how far it has come, its rows, and how it is settled.

All of this is the same whether the loop of the turn runs here or in a sandbox.

- Progress is read from what the turn recorded, so that another worker can continue it. A turn that has just begun is
  read in the same way, so that the loop has one way to start.
- Endings settle a turn that did not reach its answer. The partial text is kept, every open step is closed, and every
  tool call gets a result. So no provider refuses the conversation later because this turn was interrupted.
- Leases: one statement a second renews every turn of this worker and brings back the turns that shall stop. A worker
  trusts a lease only until its own monotonic clock says so, counted from the moment *before* the last renewal was sent.
  After that it starts no more calls and waits for a renewal that succeeds.
- Files that a sandbox wrote back become events, each once. The request that took the upload only left rows and a number
  on the turn, because only the holder appends events. The holder reads that number with every record and every renewal,
  and reads the rows when the number has grown.

Decision: docs/decisions/0201
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec
from msgspec import Struct, structs

from turnkeep.config import EngineSettings
from turnkeep.engine.observer import Observer
from turnkeep.engine.outcomes import of_stopped_wait, shown_to_readers, stopped, told_to_model
from turnkeep.engine.recorder import Recorder
from turnkeep.engine.services import LoopServices
from turnkeep.engine.waits import as_begun, note_of_edit
from turnkeep.errors import HandedOver, LeaseLost, WorldError
from turnkeep.ids import TurnId, new_message_id
from turnkeep.model.files import File
from turnkeep.model.messages import Message
from turnkeep.model.principals import Principal
from turnkeep.model.timeline import USAGE, WHOLE_RESULT
from turnkeep.model.truncation import fit_display
from turnkeep.model.turns import NO_REPORT, FinalStatus, Held, Turn, TurnError, TurnReport
from turnkeep.model.waits import WaitingCall, digest_of
from turnkeep.store.commands import Settled, Settlement
from turnkeep.store.ports import TurnStore
from turnkeep.tools.ports import Outcome
from turnkeep_client.wire.blocks import Block, Text, ToolResult, ToolUse, Usage
from turnkeep_client.wire.display import Display, fold
from turnkeep_client.wire.events import Failure, Files, Step, ToolCalls, TurnEvent

MAX_REPLY_CHARS = 400_000
"""Maximum length of one reply. A model that says more does not come to an end."""
CANCELLED = TurnError(code="cancelled", message="Stopped.")


class HeldTurn(ABC):
    """One turn, held by this worker. `work` runs it until it is settled, or raises the reason why it cannot be."""

    can_be_handed_over: bool
    """Whether another worker could continue the turn. If not, it ends when this worker ends."""

    def __init__(self, services: LoopServices, turn: Turn, recorder: Recorder) -> None:
        """`services` hold the settings as they are for this turn. Raises LeaseLost for a turn without a principal."""
        self.turn = turn
        self.recorder = recorder
        self.settings = services.settings
        self.usage = Usage()
        self._principal = principal_of(turn)
        self._observer = services.observer
        self._clock = services.clock
        self._prices = services.prices
        self._iteration = 0

    @property
    def settled(self) -> Settled | None:
        return self.recorder.settled

    @abstractmethod
    async def work(self) -> None: ...

    async def wind_up(self) -> tuple[TurnEvent, ...]:
        """Called before every ending: brings `usage` up to date, and returns the events that must precede the last
        one."""
        return ()

    def report(self) -> TurnReport:
        """What is reported of the turn when it settles."""
        return NO_REPORT

    @property
    def waited_ms(self) -> int:
        """How long the turn has waited for answers. That time does not count as its running time."""
        return 0 if self.turn.wait is None else self.turn.wait.total_ms

    async def settle(self, settlement: Settlement) -> None:
        self._observer.reached("settling", self.turn.id)
        cost = self._prices.cost(self.turn.model or self.settings.model, settlement.usage)
        await self.recorder.settle(structs.replace(settlement, cost=cost, report=self.report()))
        self._observer.reached("settled", self.turn.id)

    def final_row(self, text: str, *, display: Display) -> Message:
        """The visible row of an answer: its last words, and everything that a reader saw of the turn."""
        blocks: tuple[Block, ...] = (Text(text=text),) if text else ()
        row = self.row("assistant", blocks, internal=False, iteration=self._iteration)
        return shown(row, display, usage=self.usage)

    def broken_off(self, *, text: str, reasoning: str) -> ToolCalls:
        """The event of an iteration that was not finished: its words so far, and no calls."""
        return ToolCalls(iteration=self._iteration, text=text, calls=(), reasoning=reasoning or None)

    def result_row(self, call: ToolUse, outcome: Outcome, *, note: str = "") -> Message:
        """The row of a call's result. The model reads the `note` before it."""
        content, is_error = told_to_model(outcome, limit=self.settings.tool_result_chars)
        block = ToolResult(call_id=call.id, content=note + content, is_error=is_error)
        row = self.row("user", (block,), internal=True, iteration=max(0, self._iteration - 1))
        if shown_to_readers(outcome.result) is outcome.result:
            return row
        return msgspec.structs.replace(row, metadata={WHOLE_RESULT: outcome.result})

    def row(
        self,
        role: Literal["user", "assistant"],
        blocks: tuple[Block, ...],
        *,
        internal: bool,
        iteration: int,
        usage: Usage | None = None,
    ) -> Message:
        """A row of this turn; the recorder numbers it. `usage` is what this iteration alone has cost."""
        return Message(
            id=new_message_id(),
            turn_id=self.turn.id,
            conversation_id=self.turn.conversation_id,
            turn_sequence=0,
            role=role,
            blocks=blocks,
            created_at=self._clock(),
            iteration=iteration,
            internal=internal,
            metadata={} if usage is None else {USAGE: msgspec.to_builtins(usage)},
            provider=self.turn.model if role == "assistant" else None,
        )


def shown(row: Message, display: Display, *, usage: Usage) -> Message:
    """The row as the final one: with what a reader saw, and the tokens of the whole turn."""
    return msgspec.structs.replace(row, display=display.content, sources=display.sources, usage=usage, metadata={})


def principal_of(turn: Turn) -> Principal:
    """For whom the turn runs. Raises LeaseLost for a turn that this engine did not make, so that it is let go."""
    if turn.snapshot.principal is None:
        raise LeaseLost(f"Turn {turn.id} has no principal: it was not made by this engine.")
    return turn.snapshot.principal


class OpenCall(Struct, frozen=True, kw_only=True):
    """A tool call without a result. If it `has_begun`, its effect may or may not have happened."""

    use: ToolUse
    has_begun: bool


class TurnProgress(Struct, frozen=True, kw_only=True):
    """How far a turn has come: complete iterations, what they cost, and the calls that still need a result."""

    iterations: int
    usage: Usage
    open_calls: tuple[OpenCall, ...]


def progress_of(rows: Sequence[Message], events: Sequence[TurnEvent]) -> TurnProgress:
    spoken = [row for row in rows if row.role == "assistant"]
    usage = Usage()
    for row in spoken:
        usage += msgspec.convert(row.metadata.get(USAGE, {}), Usage)
    return TurnProgress(iterations=len(spoken), usage=usage, open_calls=open_calls(rows, events))


def open_calls(rows: Sequence[Message], events: Sequence[TurnEvent]) -> tuple[OpenCall, ...]:
    """The calls without a result, in the order in which they were asked for."""
    answered = {block.call_id for row in rows for block in row.blocks if isinstance(block, ToolResult)}
    begun = {event.id for event in events if isinstance(event, Step)}
    return tuple(
        OpenCall(use=block, has_begun=block.id in begun)
        for row in rows
        for block in row.blocks
        if isinstance(block, ToolUse) and block.id not in answered
    )


async def settle_cancelled(active: HeldTurn) -> None:
    await _settle(active, "cancelled", CANCELLED)


async def settle_failed(active: HeldTurn, code: str, message: str) -> None:
    await _settle(active, "failed", TurnError(code=code, message=message))


async def settle_bare(active: HeldTurn, code: str, message: str) -> None:
    """For a turn whose ending the store refuses. It leaves out the words, files and tokens of this attempt, because one
    of them must be the reason, and uses only what is in the store already."""
    await active.recorder.quiesce()
    recorder, error = active.recorder, TurnError(code=code, message=message)
    await active.settle(
        Settlement(
            status="failed",
            terminal=Failure(code=error.code, message=error.message),
            usage=active.turn.usage,
            rows=tuple(_row_of_stop(active, call) for call in open_calls(recorder.rows, recorder.events)),
            events=tuple(closed_steps(recorder.display())),
            error=error,
        )
    )


def closed_steps(display: Display) -> list[Step]:
    """An end for every step that has begun and not ended. Its outcome is unknown."""
    return [Step(id=step.id, name=step.name, status="failed", error=stopped().error) for step in display.open_steps()]


def _row_of_stop(active: HeldTurn, call: OpenCall) -> Message:
    """The result of a call that has none when its turn is stopped. The model is told with which arguments it began."""
    wait = active.turn.wait
    note = note_of_edit(as_begun(call.use, wait), wait) if call.has_begun else ""
    return active.result_row(call.use, outcome_of_stop(active, call), note=note)


def outcome_of_stop(active: HeldTurn, call: OpenCall) -> Outcome:
    """What a call without a result has come to when its turn is stopped."""
    waited = _waited(active, call)
    return stopped() if waited is None else of_stopped_wait(waited)


def steps_of_waits(active: HeldTurn, calls: Sequence[OpenCall]) -> list[Step]:
    """A step for each call that has waited and not begun, so that readers see what became of it."""
    steps: list[Step] = []
    for call in calls:
        if _waited(active, call) is not None:
            outcome, use = outcome_of_stop(active, call), call.use
            step = Step(id=use.id, name=use.name, status="failed", args=use.input, error=outcome.error)
            if outcome.error is None:
                result = shown_to_readers(outcome.result)
                step = Step(id=use.id, name=use.name, status="succeeded", args=use.input, result=result)
            steps.append(step)
    return steps


def _waited(active: HeldTurn, call: OpenCall) -> WaitingCall | None:
    """The wait of this call. None if it has begun, or never waited."""
    waited = None if active.turn.wait is None or call.has_begun else active.turn.wait.call(call.use.id)
    is_same = waited is not None and waited.digest == digest_of(call.use.name, call.use.input)
    return waited if is_same else None


async def _settle(active: HeldTurn, status: FinalStatus, error: TurnError) -> None:
    """Close what is open, keep what was said, and end with one terminal event."""
    await active.recorder.quiesce()
    recorder = active.recorder
    unanswered = open_calls(recorder.rows, recorder.events)
    closing: list[TurnEvent] = [*closed_steps(recorder.display()), *steps_of_waits(active, unanswered)]
    text, reasoning = recorder.spoken("text"), recorder.spoken("reasoning")
    closing += await active.wind_up()
    if text or reasoning:
        # Recorded as an event too: a reader whose connection broke gets the rest of these words when it resumes.
        closing.append(active.broken_off(text=text, reasoning=reasoning))
    whole = fold((*recorder.events, *closing))
    display = fit_display(whole)
    final = active.final_row(text, display=display) if display.content else None
    terminal = Failure(
        code=error.code,
        message=error.message,
        message_id=None if final is None else final.id,
        content=None if display.content == whole.content else display.content,
    )
    await active.settle(
        Settlement(
            status=status,
            terminal=terminal,
            usage=active.usage,
            final=final,
            rows=tuple(_row_of_stop(active, call) for call in unanswered),
            events=tuple(closing),
            error=error,
        )
    )


class HeldLease:
    """The lease of one turn, as far as this worker can know it."""

    def __init__(self, held: Held, *, trusted_until: float, on_cancel: Callable[[], None], on_lost: Callable[[], None]):
        self.held = held
        self.trusted_until = trusted_until
        self.files_written = 0
        """How many files the turn's sandbox has written back, according to the last renewal."""
        self.is_lost = False
        self.is_leaving = False
        """The worker shuts down. Calls that have begun may end; no other begins."""
        self.on_cancel = on_cancel
        self.on_lost = on_lost
        self.renewed = asyncio.Event()

    def lose(self) -> None:
        """Another attempt of the turn has begun. This one may not write any more."""
        self.is_lost = True
        self.renewed.set()
        self.on_lost()

    async def begin_call(self) -> None:
        """Return if a call may begin now. Raises HandedOver if the worker is leaving, and what `ensure` raises."""
        await self.ensure()
        if self.is_leaving:
            raise HandedOver(f"Turn {self.held.turn_id} is handed over: this worker shuts down.")

    async def ensure(self) -> None:
        """Return if the lease holds for certain; else wait for a renewal. Raises LeaseLost."""
        while not self.is_lost:
            if time.monotonic() < self.trusted_until:
                return
            self.renewed.clear()
            await self.renewed.wait()
        raise LeaseLost(f"Turn {self.held.turn_id} was taken over by another worker.")


class Leases:
    """All leases of one worker."""

    def __init__(self, store: TurnStore, settings: EngineSettings, observer: Observer) -> None:
        self._store = store
        self._lease_seconds = settings.lease_seconds
        self._renew_seconds = settings.renew_seconds
        self._observer = observer
        self._held: dict[TurnId, HeldLease] = {}
        self._renewing = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def are_in_doubt(self) -> bool:
        """Whether a turn is held whose lease could not be renewed for half of its time."""
        due = time.monotonic() + self._lease_seconds / 2
        return any(lease.trusted_until < due for lease in self._held.values())

    def add(
        self, held: Held, *, asked_at: float, on_cancel: Callable[[], None], on_lost: Callable[[], None]
    ) -> HeldLease:
        """Keep this turn from now on; `asked_at` is the monotonic time before the claim or adoption was sent."""
        if former := self._held.get(held.turn_id):
            former.lose()
        lease = HeldLease(held, trusted_until=asked_at + self._lease_seconds, on_cancel=on_cancel, on_lost=on_lost)
        self._held[held.turn_id] = lease
        return lease

    def leave(self) -> None:
        """Let no turn that is held begin another call."""
        for lease in self._held.values():
            lease.is_leaving = True

    async def hand_over(self, held: Sequence[Held]) -> None:
        """Give these leases back, so that any worker may adopt the turns at once. A renewal that is under way ends
        first: it would take them again."""
        for each in held:
            self.remove(each)
        async with self._renewing:
            await self._store.hand_over(held)

    def remove(self, held: Held) -> None:
        """Keep this turn no longer. Another attempt of the same turn is kept."""
        lease = self._held.get(held.turn_id)
        if lease is not None and lease.held == held:
            del self._held[held.turn_id]

    async def keep(self, due_readers: Callable[[], tuple[Sequence[TurnId], float]]) -> None:
        """Renew for ever. The same statement reports readers: `due_readers` says which turns have some, and for how
        many seconds they count."""
        while True:
            await asyncio.sleep(self._renew_seconds)
            try:
                await self.renew(*due_readers())
            except WorldError:
                continue  # the database is away; calls whose lease is in doubt wait in `ensure`
            except Exception as exc:  # one bad answer must not end the renewal of all turns
                self._observer.defect(None, exc)

    async def renew(self, watched: Sequence[TurnId] = (), watch_seconds: float = 0.0) -> None:
        """Renew once, for all turns that are held now, and report that these turns are `watched`."""
        async with self._renewing:
            leases = list(self._held.values())
            if not leases and not watched:
                return
            sent_at = time.monotonic()
            answers = await self._store.renew(
                [lease.held for lease in leases],
                lease_seconds=self._lease_seconds,
                watched=watched,
                watch_seconds=watch_seconds,
            )
        for lease, answer in zip(leases, answers, strict=True):
            if answer.is_held:
                lease.trusted_until = sent_at + self._lease_seconds
                lease.files_written = answer.files_written
                if answer.cancel_requested:
                    lease.on_cancel()
            elif self._held.get(lease.held.turn_id) is lease:
                lease.lose()
            lease.renewed.set()


class WrittenFiles(Protocol):
    """The one method of the store that the announcer needs."""

    async def written_files(self, turn_id: TurnId) -> list[File]: ...


class FileAnnouncer:
    """Announces the files of one turn, for the worker that holds it."""

    def __init__(self, store: WrittenFiles, recorder: Recorder, lease: HeldLease) -> None:
        self._store = store
        self._recorder = recorder
        self._lease = lease

    async def unannounced(self, *, look: bool = False) -> tuple[Files, ...]:
        """An event for the files that no event has announced yet, if there are any.

        The store is asked only where it has said that there are more, or with `look`: at the end of a turn that ran
        in a sandbox, whose last files may be younger than the last renewal.
        """
        count = max(self._recorder.files_written, self._lease.files_written)
        if not look and not count:
            return ()
        announced = {file.id for event in self._recorder.events if isinstance(event, Files) for file in event.files}
        if not look and count <= len(announced):
            return ()
        written = await self._store.written_files(self._recorder.turn_id)
        new = tuple(file.as_wire() for file in written if file.id not in announced)
        return (Files(files=new),) if new else ()

    async def announce(self, *, look: bool = False) -> None:
        """Record that event now. To be called between two iterations, since an event replaces previews."""
        if events := await self.unannounced(look=look):
            await self._recorder.record(events=events)
