"""The worker runs the turns that this process holds, each in a task of its own; the sweeper adopts turns for it."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

from msgspec import Struct

from turnkeep.clock import DAY_MS
from turnkeep.compiler import Budget, EncodedHistory
from turnkeep.engine.assembly import Assembly, FilesUnavailable, HistoryCache, PastTurns, ReadTurns, read_window
from turnkeep.engine.erasure import Eraser
from turnkeep.engine.held_turn import (
    FileAnnouncer,
    HeldLease,
    HeldTurn,
    Leases,
    principal_of,
    settle_bare,
    settle_cancelled,
    settle_failed,
)
from turnkeep.engine.loop import LocalTurn, StopReason
from turnkeep.engine.outbox import OutboxDelivery
from turnkeep.engine.recorder import Recorder
from turnkeep.engine.sandbox.remote_turn import RemoteTurn, TakeLines
from turnkeep.engine.sandbox.runner_client import SandboxFailed
from turnkeep.engine.services import Services
from turnkeep.engine.webhooks import WebhookSender
from turnkeep.errors import (
    CallerError,
    Fenced,
    HandedOver,
    InvalidRequest,
    LeaseLost,
    QuotaExceeded,
    SandboxUnavailable,
    TurnkeepError,
    WorldError,
)
from turnkeep.ids import ConversationId, TurnId
from turnkeep.model.messages import Message
from turnkeep.model.turns import Held, Turn, TurnError
from turnkeep.providers.ports import Provider, ProviderFailed
from turnkeep.store.commands import Settlement
from turnkeep.store.ports import TurnStore
from turnkeep.tools.ports import Toolbox
from turnkeep.tools.registry import FixedToolbox
from turnkeep.trace_context import Origin, set_origin
from turnkeep_client.wire.events import Failure, Recorded

ADOPT_AT_ONCE = 50
ADOPT_PAUSE_SECONDS = 0.1
"""After as many, while there may be more of them. Other workers get their share in this time."""
QUEUE_LOOK_SWEEPS = 10
"""One sweep out of so many looks at all queues. The end of a turn lets the next one run, so it seldom finds one."""
PURGE_SECONDS = 600.0
PURGE_RETRY_SECONDS = 60.0
"""The pause after a purge that failed, because the database or the bucket was away."""
SWEEP_LEASE_SECONDS = 15.0
SILENT_IMPORT_MS = 600_000
COMPACT_AFTER_MS = 3_600_000
"""Most streams of a turn are read within an hour. Later its events are made from its rows."""
EVENTS_KEPT_MS = 30 * DAY_MS
"""How long after the end of a month its events go. By then no server of an earlier release, which does not know of
packed turns, works on the database."""
COMPACT_PAUSE_SECONDS = 0.05
"""Between two steps, so that a server that was upgraded goes through old turns beside its other work."""
KNOWLEDGE_STEPS = 200
RENEW_FIRST_SECONDS = 4.0
"""How long living workers may take to renew their leases after the database was away. They try again twice a second,
but may just be waiting for a host that does not answer."""

DEFECT = "Something went wrong on our side; the log has the details."
UNREAD = TurnError(code="internal", message="This turn could not be continued; the log has the details.")

HAND_OVER_SECONDS = 6.0
"""How long the turns that a leaving worker has stopped may take to finish their writes."""
SETTLE_PATIENCE_SECONDS = 5.0
"""How long the model or tool of a stopped turn may take to end. Then the turn is settled without waiting for it."""


class _NotServed(ProviderFailed):
    """This server is not set up for the model of a turn, as the one that claimed the turn was."""


class TurnRecord(Struct, frozen=True, kw_only=True):
    """Everything that the store holds of a turn so far."""

    events: Sequence[Recorded]
    rows: Sequence[Message]


class EndedTurn(Struct, frozen=True, kw_only=True):
    """A settled turn, with its record if this worker has all of it. Then nothing of it need be read."""

    turn: Turn
    record: TurnRecord | None = None


class Hold:
    """One turn that this worker runs: its task, the reason to stop it once there is one, and how it ended.

    `ended` is None for a turn that was not settled here.
    """

    def __init__(
        self, held: Held, *, is_first_start: bool, take_lines: TakeLines | None, over_limit: str | None = None
    ) -> None:
        self.held = held
        self.is_alone = False
        """Whether it is certain that the turn has no siblings."""
        self.is_first_start = is_first_start
        self.take_lines = take_lines
        self.over_limit = over_limit
        """Why the turn ends without a call of the model: a limit was used up while it waited in the queue."""
        loop = asyncio.get_running_loop()
        self.stop: asyncio.Future[StopReason] = loop.create_future()
        self.ended: asyncio.Future[EndedTurn | None] = loop.create_future()
        self.task: asyncio.Task[None] | None = None
        self.waits: asyncio.Event | None = None
        """Of a turn in a sandbox: set while it waits for answers."""

    def let_go(self, reason: StopReason) -> None:
        """Stop the turn. Only the first reason counts."""
        if not self.stop.done():
            self.stop.set_result(reason)


class Worker:
    """Runs turns. `_drive` ends every one of them: it is settled, or let go so that another worker can adopt it."""

    def __init__(self, services: Services, leases: Leases, outbox: OutboxDelivery, *, name: str) -> None:
        self.name = name
        self._outbox = outbox
        self._services = services
        self._store = services.store
        self._hub = services.hub
        self._settings = services.settings
        self._observer = services.observer
        self._clock = services.clock
        self._leases = leases
        self._histories = HistoryCache()
        self._outdated: set[TurnId] = set()
        """Turns that began before the last erasure. The histories in their memory may hold what it has erased."""
        self._holds: dict[TurnId, Hold] = {}
        self._dropped: list[Held] = []
        """Turns that this worker let go because the database was away. The database may still show it as their
        holder."""
        self._unanswered: list[str] = []
        """Names of adoptions whose answer never came. They may have adopted turns that this worker does not know of."""
        self._adoptions = count(1)
        self._acquisitions = 0
        self._no_acquisition = asyncio.Event()
        self._no_acquisition.set()
        self._is_draining = False

    @property
    def capacity(self) -> int:
        """How many more turns this worker may adopt."""
        return 0 if self._is_draining else max(0, self._settings.max_running - len(self._holds))

    def start(
        self,
        turn: Turn,
        held: Held,
        *,
        asked_at: float,
        record: TurnRecord | None = None,
        is_alone: bool = False,
        is_first_start: bool = True,
        take_lines: TakeLines | None = None,
        over_limit: str | None = None,
    ) -> None:
        """Run this turn from now on. `record` is given for a turn that was claimed a moment ago. `is_alone` says that
        it certainly has no siblings.

        `take_lines` gets the lines of a turn that runs in a sandbox, once they are recorded.

        The answer to a claim may come so late that this worker has adopted the turn meanwhile. The last attempt runs.
        """
        former = self._holds.get(turn.id)
        if former is not None and former.held.attempt >= held.attempt:
            return
        hold = Hold(held, is_first_start=is_first_start, take_lines=take_lines, over_limit=over_limit)
        hold.is_alone = is_alone
        self._holds[turn.id] = hold
        lease = self._leases.add(
            held,
            asked_at=asked_at,
            on_cancel=lambda: hold.let_go("cancelled"),
            on_lost=lambda: hold.let_go("lost"),
        )
        hold.task = asyncio.create_task(self._drive(turn, hold, lease, record), name=f"turn {turn.id}")

    @contextmanager
    def acquisition(self) -> Iterator[None]:
        """A claim or an adoption that is under way. `drain` waits for it, because the database may already show this
        worker as the holder of a turn that no task runs yet."""
        self._acquisitions += 1
        self._no_acquisition.clear()
        try:
            yield
        finally:
            self._acquisitions -= 1
            if not self._acquisitions:
                self._no_acquisition.set()

    async def adopt(self, *, limit: int, turn_id: TurnId | None = None, only_handed_over: bool = False) -> int:
        """Take over turns that no worker holds; return how many. While draining, adopted turns are let go again.

        Each adoption has a name of its own, so that an adoption whose answer was lost can be undone.
        """
        with self.acquisition():
            return await self._adopt(limit=limit, turn_id=turn_id, only_handed_over=only_handed_over)

    async def _adopt(self, *, limit: int, turn_id: TurnId | None, only_handed_over: bool) -> int:
        asked_at = time.monotonic()
        name = f"{self.name}:{next(self._adoptions)}"
        try:
            adopted = await self._store.adopt(
                name,
                lease_seconds=self._settings.lease_seconds,
                limit=limit,
                turn_id=turn_id,
                only_handed_over=only_handed_over,
            )
        except WorldError:
            self._unanswered.append(name)
            raise
        if self._is_draining:
            await self._store.hand_over([each.held for each in adopted])
            return 0
        for each in adopted:
            self._observer.reached("adopted", each.turn.id)
            self._observer.turn_adopted(each.turn, is_first_start=each.is_first_start)
            self.start(
                each.turn,
                each.held,
                asked_at=asked_at,
                is_first_start=each.is_first_start,
                over_limit=each.over_limit,
            )
        return len(adopted)

    async def let_go(self) -> bool:
        """Hand over the turns that this worker lost while the database was away; return whether there were any. No
        worker runs them, but their leases may still be this worker's."""
        dropped, unanswered = list(self._dropped), list(self._unanswered)
        await self._store.hand_over(dropped)
        await self._store.release(unanswered)
        del self._dropped[: len(dropped)], self._unanswered[: len(unanswered)]
        return bool(dropped or unanswered)

    def stop(self, turn_id: TurnId) -> None:
        """Stop the turn if it runs here. The stop was requested, and the store has recorded the request."""
        if hold := self._holds.get(turn_id):
            hold.let_go("cancelled")

    def stop_conversation(self, conversation_id: ConversationId, *, before: TurnId) -> None:
        """Stop the turn of this conversation that runs here, unless it is `before`, the turn that waits for the
        stop."""
        for hold in self._holds.values():
            if hold.held.conversation_id == conversation_id and hold.held.turn_id != before:
                hold.let_go("cancelled")

    async def forget_erased(self) -> None:
        """Drop from the caches of this worker what may not be in the store any more."""
        self._histories.forget()
        self._outdated = set(self._holds)
        if self._services.files is not None:
            await self._services.files.forget_erased()

    def holds(self, turn_id: TurnId) -> bool:
        return turn_id in self._holds

    async def ending(self, turn_id: TurnId, *, or_waiting: bool = False) -> EndedTurn | None:
        """Wait while this worker runs the turn. None if it does not run it, or has not settled it. With `or_waiting`
        also None once its sandbox waits for answers."""
        hold = self._holds.get(turn_id)
        if hold is None:
            return None
        if hold.waits is None or not or_waiting:
            return await asyncio.shield(hold.ended)
        waiting = asyncio.create_task(hold.waits.wait())
        try:
            ends: set[asyncio.Future[Any]] = {hold.ended, waiting}
            await asyncio.wait(ends, return_when="FIRST_COMPLETED")
        finally:
            waiting.cancel()
        return hold.ended.result() if hold.ended.done() else None

    async def drain(self, *, seconds: float) -> None:
        """Hand all turns over, so that other workers adopt them at once.

        Calls of models and tools that are under way may end within `seconds`, and so may turns in a sandbox. A turn is
        handed over before its next call. What is left then is stopped; writes that have begun are finished.

        Claims and adoptions that are under way hand their turns over themselves; they are waited for.
        """
        self._is_draining = True
        self._leases.leave()
        await self._until_idle(seconds)
        holds = list(self._holds.values())
        for hold in holds:
            hold.let_go("handover")
        await self._until_idle(HAND_OVER_SECONDS)
        await self._leases.hand_over([hold.held for hold in holds])
        await self.let_go()

    async def _until_idle(self, seconds: float) -> None:
        """Wait until no turn runs here and none is being taken, but not longer than this."""
        tasks = [hold.task for hold in self._holds.values() if hold.task is not None]
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                if tasks:
                    await asyncio.wait(tasks)
                await self._no_acquisition.wait()

    async def _drive(self, turn: Turn, hold: Hold, lease: HeldLease, record: TurnRecord | None) -> None:
        active: HeldTurn | None = None
        asked_by, traceparent = turn.snapshot, self._observer.turn_taken(turn)
        set_origin(
            Origin(request_id=asked_by.request_id, turn_id=turn.id, traceparent=traceparent or asked_by.traceparent)
        )
        try:
            active = await self._prepare(turn, hold, lease, record)
            self._observer.turn_began(turn)
            await self._work(active, hold)
        except HandedOver as exc:
            self._observer.turn_let_go(turn.id, exc)
            await self._hand_over(hold.held)
        except Fenced as exc:
            self._observer.turn_let_go(turn.id, exc)
        except _NotServed as exc:
            await self._give_up(turn, hold.held, active, TurnError(code=exc.code, message=exc.detail))
        except WorldError as exc:
            self._observer.turn_let_go(turn.id, exc)
            self._dropped.append(hold.held)
        except Exception as exc:
            self._observer.defect(turn.id, exc)
            await self._give_up(turn, hold.held, active, UNREAD)
        finally:
            self._leases.remove(hold.held)
            if self._holds.get(turn.id) is hold:
                del self._holds[turn.id]
                self._hub.forget(turn.id)
            hold.ended.set_result(None if active is None else _ended(active, hold))
            self._observer.turn_left(turn, None if active is None or active.settled is None else active.settled.turn)
        if active is not None and active.settled is not None:
            self._observer.turn_ended(active.settled.turn)
            self._outbox.wake()
            if active.settled.promoted is not None and not self._is_draining:
                await self._adopt_promoted(active.settled.promoted)
            if isinstance(active, LocalTurn):
                self._keep_history(active)

    async def _hand_over(self, held: Held) -> None:
        try:
            await self._leases.hand_over([held])
        except WorldError:
            self._dropped.append(held)

    def _keep_history(self, active: LocalTurn) -> None:
        """For the next turn of the conversation. Without it that one reads the store."""
        try:
            history = active.history()
        except Exception as exc:
            self._observer.defect(active.turn.id, exc)
        else:
            if history is not None and active.turn.id not in self._outdated:
                self._histories.keep(active.turn.id, history)

    async def _give_up(self, turn: Turn, held: Held, active: HeldTurn | None, unread: TurnError) -> None:
        """Settle a turn as failed that cannot be read, or whose ending the store refuses. Without this it would fail on
        every worker, again and again."""
        if active is not None and active.settled is not None:
            return
        try:
            if active is None:
                await self._settle_unread(turn, held, unread)
            else:
                await settle_bare(active, "internal", DEFECT)
        except WorldError as exc:
            self._observer.turn_let_go(turn.id, exc)
            self._dropped.append(held)
        except TurnkeepError as exc:
            self._observer.turn_let_go(turn.id, exc)
        except Exception as exc:
            self._observer.defect(turn.id, exc)

    async def _settle_unread(self, turn: Turn, held: Held, error: TurnError) -> None:
        failure = Failure(code=error.code, message=error.message)
        settlement = Settlement(status="failed", terminal=failure, usage=turn.usage, error=error)
        settled = await self._store.settle(held, after=turn.last_seq, settlement=settlement)
        self._observer.turn_ended(settled.turn)
        self._outbox.wake()
        self._hub.publish(turn.id, [Recorded(seq=settled.turn.last_seq, event=failure)])

    async def _adopt_promoted(self, turn_id: TurnId) -> None:
        try:
            await self.adopt(limit=1, turn_id=turn_id)
        except WorldError:
            return  # the sweeper of any worker finds it

    async def _prepare(self, turn: Turn, hold: Hold, lease: HeldLease, record: TurnRecord | None) -> HeldTurn:
        """Read what the turn needs. The turns before it are read with the first request to the model."""
        if record is None:
            record = TurnRecord(events=await self._all_events(turn.id), rows=await self._store.turn_rows(turn.id))
            self._hub.publish(turn.id, record.events[-1:])
        agent = turn.snapshot.agent
        services = self._services if agent is None else self._services.for_agent(agent)
        recorder = Recorder(
            store=self._store,
            hub=self._hub,
            held=hold.held,
            events=record.events,
            rows=record.rows,
            on_cancel_requested=lambda: hold.let_go("cancelled"),
        )
        if turn.snapshot.sandbox:
            remote = RemoteTurn(
                services, turn, recorder, lease, is_first_start=hold.is_first_start, take_lines=hold.take_lines
            )
            hold.waits = remote.waits
            return remote
        assembly = Assembly(
            provider=self._provider(turn, services),
            toolbox=await self._toolbox(turn, hold),
            past=self._past(turn),
            files=services.files,
        )
        return LocalTurn(services, turn, recorder, lease, assembly, FileAnnouncer(self._store, recorder, lease))

    def _provider(self, turn: Turn, services: Services) -> Provider:
        """Raises _NotServed if this server has no provider for the model, which was there when the turn was claimed."""
        try:
            return services.providers.named(turn.model or services.settings.model)
        except InvalidRequest as exc:
            raise _NotServed(exc.detail) from exc

    def _past(self, turn: Turn) -> PastTurns:
        async def read(budget: Budget) -> ReadTurns:
            if turn.ordinal == 1:
                return ReadTurns(rows=())
            return await read_window(self._store, turn.conversation_id, budget, without=turn.id)

        return PastTurns(read, encoded=self._encoded_history(turn))

    def _encoded_history(self, turn: Turn) -> EncodedHistory | None:
        """The history before this turn, if it was kept and can be encoded."""
        history = self._histories.take_before(turn)
        try:
            return None if history is None else history.encoded()
        except Exception as exc:
            self._observer.defect(turn.id, exc)
            return None

    async def _toolbox(self, turn: Turn, hold: Hold) -> Toolbox:
        """The agent's tools. MCP servers may answer slowly; a stop of the turn does not wait for them."""
        agent = turn.snapshot.agent
        toolbox = self._services.tools.toolbox(
            agent, principal_of(turn), turn.conversation_id, turn.snapshot.client_tools
        )
        if agent is None or not agent.mcp_servers:
            return await toolbox
        asking = asyncio.ensure_future(toolbox)
        ends: set[asyncio.Future[Any]] = {asking, hold.stop}
        try:
            await asyncio.wait(ends, return_when="FIRST_COMPLETED")
            return await asking if asking.done() else FixedToolbox({})
        finally:
            await _end(asking)

    async def _all_events(self, turn_id: TurnId) -> list[Recorded]:
        events: list[Recorded] = []
        while page := await self._store.events(turn_id, after=len(events)):
            events += page
        return events

    async def _work(self, active: HeldTurn, hold: Hold) -> None:
        """Run the loop until it ends, is stopped, or its time is over; then settle the turn accordingly."""
        if active.turn.failures >= self._settings.max_failures:
            await settle_failed(active, "worker_lost", "The workers that ran this turn were lost, one after another.")
            return
        if active.turn.cancel_requested_at is not None:
            await settle_cancelled(active)
            return
        if hold.over_limit is not None:
            await settle_failed(active, QuotaExceeded.code, hold.over_limit)
            return
        if not hold.stop.done() and await self._loop_ended(active, hold) and not hold.stop.done():
            return
        await active.recorder.quiesce()
        if active.settled is not None or active.recorder.is_waiting:
            return  # the answer, or the wait, was being written when the stop came, and was quicker
        if not hold.stop.done():
            limit = active.settings.turn_timeout_seconds
            await settle_failed(active, "turn_timeout", f"The turn took longer than {limit:g} seconds.")
        elif hold.stop.result() == "cancelled":
            await settle_cancelled(active)
        elif hold.stop.result() == "handover" and not active.can_be_handed_over:
            await settle_failed(active, "sandbox_lost", "The server was shut down while the turn ran in a sandbox.")
        else:
            raise LeaseLost("Handed over." if hold.stop.result() == "handover" else "Taken over by another worker.")

    async def _loop_ended(self, active: HeldTurn, hold: Hold) -> bool:
        """Run the loop. True if it ended by itself, false if it was stopped or its time was over."""
        loop = asyncio.create_task(active.work(), name=f"loop {active.turn.id}")
        try:
            ends: set[asyncio.Future[Any]] = {loop, hold.stop}
            # A turn whose sandbox waits for answers has more time left afterwards than was known before.
            while (left := self._time_left(active)) > 0 and not (loop.done() or hold.stop.done()):
                await asyncio.wait(ends, timeout=left, return_when="FIRST_COMPLETED")
            if loop.done():
                await self._conclude(active, loop)
                return True
        finally:
            await _end(loop)
        return False

    async def _conclude(self, active: HeldTurn, loop: asyncio.Task[None]) -> None:
        """The loop has ended by itself. If it ended with an error, settle the turn with that error."""
        try:
            await loop
        except (ProviderFailed, FilesUnavailable, SandboxFailed, SandboxUnavailable) as exc:
            await settle_failed(active, exc.code, exc.detail)
        except CallerError as exc:
            await settle_failed(active, "internal", exc.detail)
        except (Fenced, WorldError):
            raise
        except Exception as exc:
            self._observer.defect(active.turn.id, exc)
            await settle_failed(active, "internal", DEFECT)

    def _time_left(self, active: HeldTurn) -> float:
        started_at = active.turn.started_at if active.turn.started_at is not None else self._clock()
        ran_ms = self._clock() - started_at - active.waited_ms
        return max(0.0, active.settings.turn_timeout_seconds - ran_ms / 1000)


class SweepLease:
    """The lease on the work that one worker does for all. Two workers that both believe to hold it do no harm, only the
    same work twice.

    Decision: docs/decisions/0110
    """

    def __init__(self, store: TurnStore, worker: str) -> None:
        self._store = store
        self._worker = worker
        self._is_held = False
        self._ask_at = 0.0

    async def is_held(self) -> bool:
        """Whether this worker holds it. The store is asked every few seconds, and only by a worker with work to do."""
        if time.monotonic() >= self._ask_at:
            self._is_held = await self._store.hold_sweep(self._worker, seconds=SWEEP_LEASE_SECONDS)
            self._ask_at = time.monotonic() + SWEEP_LEASE_SECONDS / 3
        return self._is_held

    async def leave(self) -> None:
        """Let another worker take it at once. Without the database, it ends by itself."""
        if self._is_held:
            self._is_held = False
            with suppress(WorldError):
                await self._store.leave_sweep(self._worker)


class Sweeper:
    """Does the periodic work of a worker. Every part of it may run on all workers at once.

    It promotes waiting turns, adopts turns that no worker holds, stops turns without readers, and wakes the sender of
    webhooks. The worker that holds
    the sweep lease also keeps the search index up to date, continues erasures, and erases what was deleted long ago.
    The last of these may take long, and no sweep waits for it.
    """

    def __init__(
        self, services: Services, worker: Worker, eraser: Eraser, webhooks: WebhookSender | None = None
    ) -> None:
        self._webhooks = webhooks
        self._store = services.store
        self._settings = services.settings
        self._observer = services.observer
        self._clock = services.clock
        self._file_cleanup = services.file_cleanup
        self._worker = worker
        self._eraser = eraser
        self._lease = SweepLease(services.store, worker.name)
        self._erased_at = 0
        """When something was last erased, as far as this worker's caches have forgotten it."""
        self._answered_at = time.monotonic()
        """When the database last answered."""
        self._adopt_from = 0.0
        self._look_at_queue_from = 0.0

    async def sweep_for_ever(self) -> None:
        while True:
            has_more = False
            try:
                has_more = await self.sweep()
            except WorldError:
                pass  # the database is away; `_database_answered` measures for how long
            except Exception as exc:  # a sweep that fails must not end all sweeps
                self._observer.defect(None, exc)
            await asyncio.sleep(min(ADOPT_PAUSE_SECONDS, self._pause_seconds) if has_more else self._pause_seconds)

    async def purge_for_ever(self) -> None:
        """Erase what was deleted long ago, all of it, at the start and then every ten minutes, if this worker holds the
        sweep lease."""
        while True:
            pause = PURGE_SECONDS
            try:
                if await self._lease.is_held():
                    await self._purge()
            except WorldError:
                pause = PURGE_RETRY_SECONDS
            except Exception as exc:  # a purge that fails must not end all purges
                self._observer.defect(None, exc)
            await asyncio.sleep(pause)

    async def sweep(self) -> bool:
        """Sweep once: first what lets turns run, then the cleaning. A sweep that finds nothing to do is one query.

        Returns whether there may be more turns to adopt: a worker that leaves hands over all of its turns at once, and
        their readers wait.
        """
        has_more = False
        looks_at_queue = time.monotonic() >= self._look_at_queue_from
        due = await self._store.due_work(queue=looks_at_queue)
        if looks_at_queue:
            self._look_at_queue_from = time.monotonic() + QUEUE_LOOK_SWEEPS * self._pause_seconds
        self._database_answered()
        if due.has_waiting:
            await self._store.promote_waiting()
        if due.has_overdue:
            await self._store.end_overdue_waits()
        has_let_go = await self._worker.let_go()
        if due.has_waiting or due.has_expired or due.has_overdue or has_let_go:
            limit = min(self._worker.capacity, ADOPT_AT_ONCE)
            if limit:
                adopted = await self._worker.adopt(limit=limit, only_handed_over=time.monotonic() < self._adopt_from)
                has_more = adopted == limit
        if due.has_unwatched:
            for turn_id in await self._store.cancel_unwatched():
                self._worker.stop(turn_id)
        if due.has_deliveries and self._webhooks is not None:
            self._webhooks.wake()
        if due.erased_at > self._erased_at:
            await self._worker.forget_erased()
            self._erased_at = due.erased_at
        if (due.has_erasures or due.has_unindexed) and await self._lease.is_held():
            if due.has_erasures:
                await self._eraser.continue_open()
            if due.has_unindexed:
                await self._store.index_pending()
        return has_more

    async def close(self) -> None:
        """Leave the work for all to another worker."""
        await self._lease.leave()

    @property
    def _pause_seconds(self) -> float:
        """The pause between two sweeps. It is shorter than a lease, so that the sweeper can distinguish a
        silent database from a pause."""
        return min(self._settings.sweep_seconds, self._settings.lease_seconds / 4)

    def _database_answered(self) -> None:
        """After a silence so long that living workers may have lost their leases, let them renew first. Turns that were
        handed over are adopted at once all the same.

        The same holds when this process stood still, because other processes of this machine may have stood still
        too. A shorter silence cannot end the lease of a living worker, which renews three times within a lease.
        """
        now, lease = time.monotonic(), self._settings.lease_seconds
        if now - self._answered_at > self._pause_seconds + lease / 2:
            self._adopt_from = now + min(lease, RENEW_FIRST_SECONDS)
        self._answered_at = now

    async def _purge(self) -> None:
        while await self._store.add_up_usage():
            pass
        while await self._store.purge_deliveries():
            pass
        await self._purge_knowledge()
        await self._delete_idle()
        deleted_before = int(self._clock() - self._settings.retention_days * DAY_MS)
        while True:
            purged = await self._store.purge(deleted_before=deleted_before)
            if not purged.conversations and not purged.storage_keys:
                break
            if self._file_cleanup is not None:
                with suppress(WorldError):  # the bucket is away; the orphan sweep finds these objects
                    await self._file_cleanup.delete(purged.storage_keys)
        if self._file_cleanup is not None:
            await self._file_cleanup.tidy()
        await self._compact()
        await self._store.make_partitions(now=self._clock(), months=self._settings.months_of_messages)
        await self._drop_old()

    async def _delete_idle(self) -> None:
        """Delete conversations that are older than the operator wants to keep them."""
        days = self._settings.idle_conversation_days
        if days:
            while await self._store.delete_idle(unchanged_since=int(self._clock() - days * DAY_MS)):
                pass
        if days := self._settings.unlisted_conversation_days:
            while await self._store.delete_unlisted(unchanged_since=int(self._clock() - days * DAY_MS)):
                pass

    async def _drop_old(self) -> None:
        """Drop what the database has of months that ended long ago."""
        ended_before = int(self._clock() - EVENTS_KEPT_MS)
        while await self._lease.is_held():
            if not await self._store.drop_partitions(ended_before=ended_before):
                return
            await asyncio.sleep(COMPACT_PAUSE_SECONDS)

    async def _compact(self) -> None:
        """Compact all turns that settled some time ago."""
        settled_before = int(self._clock() - COMPACT_AFTER_MS)
        while await self._lease.is_held():
            if not await self._store.compact(settled_before=settled_before):
                return
            await asyncio.sleep(COMPACT_PAUSE_SECONDS)

    async def _purge_knowledge(self) -> None:
        """Erase rows of deleted tables, and of imports whose server died. Small steps, so that other writes are not
        held up."""
        now = self._clock()
        # Idempotency keys of added rows are kept for a day at least: a client may repeat its request for that long.
        before = int(now - max(1, self._settings.retention_days) * DAY_MS)
        for _ in range(KNOWLEDGE_STEPS):
            if not await self._store.purge_knowledge(before=before, silent_before=int(now - SILENT_IMPORT_MS)):
                return


def _ended(active: HeldTurn, hold: Hold) -> EndedTurn | None:
    """How the turn ended, if it was settled. Files and siblings are only known to the store."""
    if active.settled is None:
        return None
    recorder, record = active.recorder, None
    if hold.is_alone and isinstance(active, LocalTurn) and not recorder.files_written:
        events = [Recorded(seq=seq, event=event) for seq, event in enumerate(recorder.events, start=1)]
        record = TurnRecord(events=events, rows=recorder.rows)
    return EndedTurn(turn=active.settled.turn, record=record)


async def _end(loop: asyncio.Task[Any]) -> None:
    """Cancel the task and wait for its end, but not for ever: code of a tool or provider may refuse to end."""
    if loop.done():
        return
    loop.cancel()
    await asyncio.wait({loop}, timeout=SETTLE_PATIENCE_SECONDS)
    if loop.done() and not loop.cancelled():
        loop.exception()  # its outcome does not matter: the stop came first
