"""The engine's public face: a question comes in, is claimed as a turn, and the turn runs here or on another worker."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress

from turnkeep.engine.claims import ClaimBuilder, Options, Question
from turnkeep.engine.leases import Leases, Readers
from turnkeep.engine.outbox import OutboxDelivery
from turnkeep.engine.sandbox.remote_turn import TakeLines
from turnkeep.engine.services import Services
from turnkeep.engine.worker import Sweeper, Worker
from turnkeep.errors import SandboxUnavailable, Unavailable, WorldError
from turnkeep.ids import FileId, TurnId
from turnkeep.model.past_events import first_event
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Turn
from turnkeep.store.commands import Claimed
from turnkeep.streaming.frames import WHOLE
from turnkeep.streaming.ports import Subscription
from turnkeep_client.wire.blocks import Block
from turnkeep_client.wire.events import Recorded

POLL_SECONDS = 2.0
CANCEL_POLL_SECONDS = 0.25
GLANCE_SECONDS = 0.25
"""How often a waiting request checks whether this worker drains."""


class Draining(Unavailable):
    """This worker is shutting down. The turn goes on elsewhere; follow its events."""


class Engine:
    """Runs the turns of one process."""

    def __init__(self, services: Services, *, worker: str) -> None:
        """`worker` is the name under which this process holds turns, unlike that of any other."""
        self._store = services.store
        self._hub = services.hub
        self._observer = services.observer
        self._sandboxes = services.sandboxes
        self.draining = asyncio.Event()
        self._leases = Leases(services.store, services.settings, services.observer)
        self._readers = Readers(services.store, services.settings, services.observer)
        self._outbox = OutboxDelivery(services.store, services.outbox_sink, services.observer)
        self._worker = Worker(services, self._leases, self._outbox, name=worker)
        self._claims = ClaimBuilder(services, worker=worker, watched_seconds=self._readers.window_seconds)
        self._sweeper = Sweeper(services, self._worker)
        self._background: list[asyncio.Task[None]] = []

    @property
    def is_draining(self) -> bool:
        return self.draining.is_set()

    @property
    def running(self) -> int:
        """Number of turns that this worker holds."""
        return len(self._leases)

    async def start(self) -> None:
        """Start to renew leases, to report readers, to adopt turns that other workers left, and to deliver the
        outbox."""
        self._background = [
            asyncio.create_task(self._leases.keep(), name="renew leases"),
            asyncio.create_task(self._readers.report(), name="report readers"),
            asyncio.create_task(self._sweeper.sweep_for_ever(), name="sweep"),
            asyncio.create_task(self._outbox.deliver_for_ever(), name="deliver the outbox"),
        ]

    async def drain(self, *, seconds: float = 10.0) -> None:
        """Stop accepting questions, tell waiting requests, and hand running turns over. After this only `close` is of
        use."""
        self.draining.set()
        await self._worker.drain(seconds=seconds)
        await self._outbox.finish()

    async def close(self) -> None:
        for task in self._background:
            task.cancel()
        for task in self._background:
            with suppress(asyncio.CancelledError):
                await task

    async def ask(self, question: Question, *, take_lines: TakeLines | None = None) -> Claimed:
        """Claim a turn and run it. Raises what the store's `claim` raises; nothing is stored then.

        A question for a sandbox raises SandboxUnavailable when no runner answers. If its turn runs here, `take_lines`
        gets its lines. A claim that was under way when this worker began to drain is valid: another worker runs it.
        """
        if self.is_draining:
            raise Draining("This server is shutting down. Send the request again in a moment.")
        claim = await self._claims.claim_of(question)
        if claim.snapshot.sandbox:
            await self._ensure_sandbox(question)
        asked_at = time.monotonic()
        with self._worker.acquisition():
            claimed = await self._store.claim(claim)
            turn, held = claimed.turn, claimed.held
            if held is not None and self.draining.is_set():
                with suppress(WorldError):  # then its lease ends, and another worker adopts it a little later
                    await self._store.hand_over([held])
                return claimed
        if held is not None and not self._worker.holds(turn.id):
            began = Recorded(seq=1, event=first_event(turn, claimed.user_message_id))
            self._observer.reached("claimed", turn.id)
            self._worker.start(turn, held, asked_at=asked_at, events=[began], take_lines=take_lines)
            self._hub.publish(turn.id, [began])
        elif claimed.is_new and question.options.if_busy == "interrupt":
            self._worker.stop_conversation(turn.conversation_id, before=turn.id)
        return claimed

    async def is_repeat(self, principal: Principal, options: Options) -> bool:
        """Whether the idempotency key was used for the same request before. Raises IdempotencyConflict if it was used
        for another request."""
        return await self._claims.is_repeat(principal, options)

    async def _ensure_sandbox(self, question: Question) -> None:
        """Raise SandboxUnavailable when no runner answers, unless the question repeats a request that was accepted."""
        if self._sandboxes is not None and await self._sandboxes.answers():
            return
        if await self.is_repeat(question.principal, question.options):
            return
        raise SandboxUnavailable("No sandbox runner is connected. Start one, or use a conversation of kind `chat`.")

    async def regenerate(self, principal: Principal, turn_id: TurnId, options: Options) -> Claimed:
        """Ask the same question again, as a sibling of the turn that answered it."""
        return await self.ask(await self._claims.again(principal, turn_id, options))

    async def edit(
        self,
        principal: Principal,
        turn_id: TurnId,
        message: tuple[Block, ...],
        options: Options,
        *,
        attachment_ids: tuple[FileId, ...] | None = None,
    ) -> Claimed:
        """Ask another question in the same place, with these files; with None, with the files of the earlier
        question."""
        question = await self._claims.again(principal, turn_id, options, message=message, attachment_ids=attachment_ids)
        return await self.ask(question)

    async def cancel(self, principal: Principal, turn_id: TurnId) -> Turn:
        """Stop a turn wherever it runs, and return it once it is settled. A settled turn is returned as it is.

        Raises NotFound for a turn that the principal does not see now. A later deletion does not change the result.
        """
        turn = await self._store.request_cancel(principal, turn_id)
        if turn.is_settled:
            self._outbox.wake()
            self._hub.publish(turn_id, (await self._store.events(turn_id, after=turn.last_seq - 1))[-1:])
            return turn
        self._worker.stop(turn_id)

        async def take_over() -> None:
            if not self._worker.holds(turn_id):
                await self._worker.adopt(limit=1, turn_id=turn_id)

        return await self._settled(turn_id, every=CANCEL_POLL_SECONDS, meanwhile=take_over)

    async def wait(self, turn_id: TurnId) -> Turn:
        """Wait for the turn to settle, as an attached reader. Raises Draining when this worker goes away first.

        The caller has claimed the turn or was allowed to see it, so no principal is checked here. If the conversation
        is deleted meanwhile, the caller gets the turn as the deletion has settled it.
        """
        with self.attach(turn_id):
            return await self._settled(turn_id, every=POLL_SECONDS)

    def attach(self, turn_id: TurnId) -> AbstractContextManager[None]:
        """The turn has a reader while this is open."""
        return self._readers.attach(turn_id)

    async def _settled(
        self, turn_id: TurnId, *, every: float, meanwhile: Callable[[], Awaitable[None]] | None = None
    ) -> Turn:
        """Wait for the end of the turn. The hub only wakes this task; the store says whether the turn has ended."""
        async with self._hub.subscribe(turn_id) as subscription:
            while True:
                head = subscription.head
                turn = await self._store.claimed_turn(turn_id)
                if turn.is_settled:
                    return turn
                if self._has_given_up(turn_id):
                    raise Draining("This server is shutting down; the turn goes on. Follow its events.")
                if meanwhile is not None:
                    await meanwhile()
                await self._next_event(turn_id, subscription, after=head, seconds=every)

    async def _next_event(self, turn_id: TurnId, subscription: Subscription, *, after: int, seconds: float) -> None:
        """Wait for an event later than `after`, until this worker gives the turn up, or for so many seconds."""
        now = asyncio.get_running_loop().time
        until = now() + seconds
        while subscription.head <= after and now() < until and not self._has_given_up(turn_id):
            await subscription.wait(min(until, now() + GLANCE_SECONDS))
            subscription.frames(
                after, WHOLE
            )  # previews are read and dropped: only an event is a reason to ask the store

    def _has_given_up(self, turn_id: TurnId) -> bool:
        return self.is_draining and not self._worker.holds(turn_id)
