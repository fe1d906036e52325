"""The worker: drives the turns that this process holds, each in a task of its own."""

import asyncio
import time
from collections.abc import Sequence
from itertools import count
from typing import Any

from turnkeep.clock import Clock, system_clock
from turnkeep.engine.announcing import Announcer
from turnkeep.engine.endings import settle_bare, settle_cancelled, settle_failed
from turnkeep.engine.held_turn import HeldTurn
from turnkeep.engine.leases import HeldLease, Leases
from turnkeep.engine.observer import Observer
from turnkeep.engine.recorder import Recorder
from turnkeep.engine.remote import RemoteRun, SandboxFailed, TakeLines
from turnkeep.engine.run import FileReader, Run, StopReason
from turnkeep.engine.sandboxes import Sandboxes
from turnkeep.engine.settings import EngineSettings
from turnkeep.errors import CallerError, Fenced, LeaseLost, SandboxUnavailable, TurnkeepError, WorldError
from turnkeep.ids import ConversationId, TurnId
from turnkeep.model.agents import AgentSpec
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Held, Turn, TurnError
from turnkeep.providers.ports import ProviderFailed, Providers
from turnkeep.store.commands import Settlement
from turnkeep.store.ports import Store
from turnkeep.streaming.ports import Publisher
from turnkeep.tools.ports import Toolbox, Tools
from turnkeep.tools.registry import FixedToolbox
from turnkeep_client.wire.events import Failure, Recorded

DEFECT = "Something went wrong on our side; the log has the details."

SETTLE_PATIENCE_SECONDS = 5.0
"""How long a stopped turn may take to let go of its model or tool before it is settled over its head."""


class Grip:
    """This worker's hold on one turn: how it is told to stop, and what it last said of itself."""

    def __init__(self, held: Held, *, is_first_start: bool, take_lines: TakeLines | None) -> None:
        self.held = held
        self.is_first_start = is_first_start
        self.take_lines = take_lines
        self.stop: asyncio.Future[StopReason] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None

    def let_go(self, reason: StopReason) -> None:
        """The first reason counts."""
        if not self.stop.done():
            self.stop.set_result(reason)


class Worker:
    """Runs turns. Every way out of a turn ends in `_drive`: settled, or let go for somebody else to adopt."""

    def __init__(
        self,
        *,
        name: str,
        store: Store,
        hub: Publisher,
        providers: Providers,
        tools: Tools,
        leases: Leases,
        settings: EngineSettings,
        observer: Observer,
        files: FileReader | None = None,
        sandboxes: Sandboxes | None = None,
        clock: Clock = system_clock,
    ) -> None:
        self.name = name
        self._store = store
        self._hub = hub
        self._providers = providers
        self._tools = tools
        self._leases = leases
        self._settings = settings
        self._observer = observer
        self._files = files
        self._sandboxes = sandboxes
        self._clock = clock
        self._grips: dict[TurnId, Grip] = {}
        self._dropped: list[Held] = []
        """Turns that this worker stopped driving because the database was away, and that it still seems to hold."""
        self._unheard: list[str] = []
        """Names under which it adopted without ever hearing what."""
        self._adoptions = count(1)
        self._is_draining = False

    @property
    def room(self) -> int:
        """How many more turns this worker would adopt."""
        return 0 if self._is_draining else max(0, self._settings.max_running - len(self._grips))

    def start(
        self,
        turn: Turn,
        held: Held,
        *,
        asked_at: float,
        events: Sequence[Recorded] | None = None,
        is_first_start: bool = True,
        take_lines: TakeLines | None = None,
    ) -> None:
        """Drive this turn from now on. `events` are given for a turn that was claimed a moment ago.

        `take_lines` is given the lines of a turn that runs in a sandbox, once they are recorded.
        """
        grip = Grip(held, is_first_start=is_first_start, take_lines=take_lines)
        self._grips[turn.id] = grip
        lease = self._leases.add(
            held,
            asked_at=asked_at,
            on_cancel=lambda: grip.let_go("cancelled"),
            on_lost=lambda: grip.let_go("lost"),
        )
        grip.task = asyncio.create_task(self._drive(turn, grip, lease, events), name=f"turn {turn.id}")

    async def adopt(self, *, limit: int, turn_id: TurnId | None = None) -> int:
        """Take over turns that nobody holds; return how many. Those that come while draining are let go again.

        Each adoption goes by a name of its own, so that one whose answer was lost can be taken back.
        """
        asked_at = time.monotonic()
        name = f"{self.name}:{next(self._adoptions)}"
        try:
            adopted = await self._store.adopt(
                name, lease_seconds=self._settings.lease_seconds, limit=limit, turn_id=turn_id
            )
        except WorldError:
            self._unheard.append(name)
            raise
        if self._is_draining:
            await self._store.hand_over([each.held for each in adopted])
            return 0
        for each in adopted:
            self._observer.reached("adopted", each.turn.id)
            self.start(each.turn, each.held, asked_at=asked_at, is_first_start=each.is_first_start)
        return len(adopted)

    async def let_go(self) -> None:
        """Hand over what this worker lost sight of while the database was away: nobody drives it, and nobody died."""
        dropped, unheard = list(self._dropped), list(self._unheard)
        await self._store.hand_over(dropped)
        await self._store.release(unheard)
        del self._dropped[: len(dropped)], self._unheard[: len(unheard)]

    def stop(self, turn_id: TurnId) -> None:
        """Stop the turn if it runs here. Somebody asked for it, and the store knows."""
        if grip := self._grips.get(turn_id):
            grip.let_go("cancelled")

    def stop_conversation(self, conversation_id: ConversationId, *, before: TurnId) -> None:
        """Stop the turn of this conversation that runs here, unless it is already `before`, which waited for that."""
        for grip in self._grips.values():
            if grip.held.conversation_id == conversation_id and grip.held.turn_id != before:
                grip.let_go("cancelled")

    def holds(self, turn_id: TurnId) -> bool:
        return turn_id in self._grips

    async def drain(self, *, seconds: float) -> None:
        """Hand everything over: stop the work, finish what is being written, let others adopt at once."""
        self._is_draining = True
        grips = list(self._grips.values())
        for grip in grips:
            grip.let_go("handover")
        tasks = [grip.task for grip in grips if grip.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        await self._store.hand_over([grip.held for grip in grips])
        await self.let_go()

    async def _drive(self, turn: Turn, grip: Grip, lease: HeldLease, events: Sequence[Recorded] | None) -> None:
        run: HeldTurn | None = None
        try:
            run = await self._prepare(turn, grip, lease, events)
            self._observer.turn_began(turn)
            await self._work(run, grip)
        except Fenced as exc:
            self._observer.turn_let_go(turn.id, exc)
        except WorldError as exc:
            self._observer.turn_let_go(turn.id, exc)
            self._dropped.append(grip.held)
        except Exception as exc:
            self._observer.defect(turn.id, exc)
            await self._give_up(turn, grip.held, run)
        finally:
            self._leases.remove(turn.id)
            if self._grips.get(turn.id) is grip:
                del self._grips[turn.id]
            self._hub.forget(turn.id)
        if run is not None and run.settled is not None:
            self._observer.turn_ended(run.settled.turn)
            if run.settled.promoted is not None and not self._is_draining:
                await self._adopt_promoted(run.settled.promoted)

    async def _give_up(self, turn: Turn, held: Held, run: HeldTurn | None) -> None:
        """A turn that cannot be read, or not be settled with what it has, would fail on every worker, for ever: it ends
        here instead."""
        if run is not None and run.settled is not None:
            return
        try:
            if run is None:
                await self._settle_unread(turn, held)
            else:
                await settle_bare(run, "internal", DEFECT)
        except WorldError as exc:
            self._observer.turn_let_go(turn.id, exc)
            self._dropped.append(held)
        except TurnkeepError as exc:
            self._observer.turn_let_go(turn.id, exc)
        except Exception as exc:
            self._observer.defect(turn.id, exc)

    async def _settle_unread(self, turn: Turn, held: Held) -> None:
        error = TurnError(code="internal", message="This turn could not be continued; the log has the details.")
        failure = Failure(code=error.code, message=error.message)
        settlement = Settlement(status="failed", terminal=failure, usage=turn.usage, error=error)
        settled = await self._store.settle(held, after=turn.last_seq, settlement=settlement)
        self._observer.turn_ended(settled.turn)
        self._hub.publish(turn.id, [Recorded(seq=settled.turn.last_seq, event=failure)])

    async def _adopt_promoted(self, turn_id: TurnId) -> None:
        try:
            await self.adopt(limit=1, turn_id=turn_id)
        except WorldError:
            return  # the sweeper of any worker finds it

    async def _prepare(self, turn: Turn, grip: Grip, lease: HeldLease, events: Sequence[Recorded] | None) -> HeldTurn:
        """Read what the turn needs: its own rows and events, and the window before it."""
        window = await self._store.window(turn.conversation_id, turns=self._settings.window_turns)
        own = [row for row in window.rows if row.turn_id == turn.id] or await self._store.turn_rows(turn.id)
        if events is None:
            events = await self._all_events(turn.id)
            self._hub.publish(turn.id, events[-1:])
        principal = turn.snapshot.principal
        if principal is None:
            raise LeaseLost(f"Turn {turn.id} has no principal: it was not made by this engine.")
        agent = turn.snapshot.agent
        settings = self._settings if agent is None else self._settings.within(agent.limits)
        recorder = Recorder(
            store=self._store,
            hub=self._hub,
            held=grip.held,
            events=events,
            rows=own,
            on_cancel_requested=lambda: grip.let_go("cancelled"),
        )
        announcer = Announcer(self._store, recorder, lease)
        if turn.snapshot.sandbox:
            return RemoteRun(
                turn=turn,
                recorder=recorder,
                announcer=announcer,
                store=self._store,
                sandboxes=self._sandboxes,
                lease=lease,
                settings=settings,
                observer=self._observer,
                clock=self._clock,
                is_first_start=grip.is_first_start,
                take_lines=grip.take_lines,
            )
        return Run(
            turn=turn,
            recorder=recorder,
            announcer=announcer,
            history=[row for row in window.rows if row.turn_id != turn.id],
            provider=self._providers.named(turn.model or self._settings.default_model),
            toolbox=await self._toolbox(agent, principal, grip),
            principal=principal,
            lease=lease,
            settings=settings,
            observer=self._observer,
            clock=self._clock,
            files=self._files,
        )

    async def _toolbox(self, agent: AgentSpec | None, principal: Principal, grip: Grip) -> Toolbox:
        """The agent's tools. Their servers may take a while to answer; who stops the turn need not wait for them."""
        asking = asyncio.create_task(self._tools.toolbox(agent, principal))
        ends: set[asyncio.Future[Any]] = {asking, grip.stop}
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

    async def _work(self, run: HeldTurn, grip: Grip) -> None:
        """Run the loop until it ends, is told to stop, or its time is over; then settle accordingly."""
        if run.turn.failures >= self._settings.max_failures:
            await settle_failed(run, "worker_lost", "The workers that ran this turn were lost, one after another.")
            return
        if run.turn.cancel_requested_at is not None:
            await settle_cancelled(run)
            return
        if not grip.stop.done() and await self._loop_ended(run, grip):
            return
        await run.recorder.quiesce()
        if run.settled is not None:
            return  # the answer was being written when the stop came, and was quicker
        if not grip.stop.done():
            limit = run.settings.turn_timeout_seconds
            await settle_failed(run, "turn_timeout", f"The turn took longer than {limit:g} seconds.")
        elif grip.stop.result() == "cancelled":
            await settle_cancelled(run)
        elif grip.stop.result() == "handover" and not run.can_be_handed_over:
            await settle_failed(run, "sandbox_lost", "The server was shut down while the turn ran in a sandbox.")
        else:
            raise LeaseLost("Handed over." if grip.stop.result() == "handover" else "Taken over by another worker.")

    async def _loop_ended(self, run: HeldTurn, grip: Grip) -> bool:
        """Run the loop; whether it came to its own end, and not to that of its time or of somebody's patience."""
        loop = asyncio.create_task(run.work(), name=f"loop {run.turn.id}")
        try:
            ends: set[asyncio.Future[Any]] = {loop, grip.stop}
            await asyncio.wait(ends, timeout=self._time_left(run), return_when="FIRST_COMPLETED")
            if loop.done():
                await self._conclude(run, loop)
                return True
        finally:
            await _end(loop)
        return False

    async def _conclude(self, run: HeldTurn, loop: asyncio.Task[None]) -> None:
        """The loop came to its own end; if that was an error, the turn says so."""
        try:
            await loop
        except (ProviderFailed, SandboxFailed, SandboxUnavailable) as exc:
            await settle_failed(run, exc.code, exc.detail)
        except CallerError as exc:
            await settle_failed(run, "internal", exc.detail)
        except (Fenced, WorldError):
            raise
        except Exception as exc:
            self._observer.defect(run.turn.id, exc)
            await settle_failed(run, "internal", DEFECT)

    def _time_left(self, run: HeldTurn) -> float:
        started_at = run.turn.started_at if run.turn.started_at is not None else self._clock()
        return max(0.0, run.settings.turn_timeout_seconds - (self._clock() - started_at) / 1000)


async def _end(loop: asyncio.Task[Any]) -> None:
    """Cancel the task and wait until it is gone, but not for ever: foreign code may refuse to end."""
    if loop.done():
        return
    loop.cancel()
    await asyncio.wait({loop}, timeout=SETTLE_PATIENCE_SECONDS)
    if loop.done() and not loop.cancelled():
        loop.exception()  # whatever it was, the stop came first
