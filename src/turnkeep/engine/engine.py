"""The engine's public interface: a question is claimed as a turn, and the turn runs here or on another worker.

`ClaimBuilder` makes the claim of a question, with the agent as it is at this moment.

`AttachedReaders` keeps turns in the foreground alive. Such a turn goes on while a client reads its stream or waits for
its answer. The worker reports the turns that have readers here. When the last reader leaves, `watched_until` becomes
the end of the grace period, and once it has passed any worker may ask for a stop. A reader on another worker moves it
again with the next report.
"""

import asyncio
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import get_args

from msgspec import Struct, structs

from turnkeep.config import EngineSettings
from turnkeep.engine.erasure import Eraser
from turnkeep.engine.held_turn import Leases
from turnkeep.engine.observer import Observer
from turnkeep.engine.outbox import OutboxDelivery
from turnkeep.engine.sandbox.remote_turn import TakeLines
from turnkeep.engine.services import Services
from turnkeep.engine.titles import TitleWriter
from turnkeep.engine.webhooks import WebhookSender
from turnkeep.engine.worker import ADOPT_AT_ONCE, EndedTurn, Sweeper, TurnRecord, Worker
from turnkeep.errors import (
    AttachedElsewhere,
    ConversationChanged,
    ExternalIdTaken,
    InvalidRequest,
    NotFound,
    SandboxUnavailable,
    TurnkeepError,
    Unavailable,
    UnsupportedOption,
    WorldError,
)
from turnkeep.ids import (
    AgentId,
    CallId,
    ConversationId,
    FileId,
    TurnId,
    UserId,
    WorkspaceId,
    new_conversation_id,
    new_turn_id,
)
from turnkeep.model.agents import AgentSpec, OpeningRow, Snapshot
from turnkeep.model.conversations import Conversation, TurnSettings, first_event
from turnkeep.model.principals import Principal, Workspace
from turnkeep.model.sampling import DEFAULT_SAMPLING, Sampling
from turnkeep.model.turns import IfBusy, Turn
from turnkeep.model.waits import CallAnswer, WaitReason
from turnkeep.providers.ports import Provider
from turnkeep.store.commands import EXPECTED_TOKENS, Claim, Claimed, NewConversation
from turnkeep.store.ports import TurnStore
from turnkeep.streaming.follow import poll
from turnkeep.streaming.frames import WHOLE
from turnkeep.streaming.ports import Subscription
from turnkeep.trace_context import current_origin
from turnkeep_client.wire.account import TurnSource
from turnkeep_client.wire.agents import BoxToolName
from turnkeep_client.wire.blocks import Block, FileRef, Image, JsonObject, Text, Usage
from turnkeep_client.wire.events import Recorded

CANCEL_POLL_SECONDS = 0.25
MOST_CLAIMS = 10
"""How often a conversation may come, change and go while a turn is claimed in it."""
MOST_REMEMBERED = 2_000
"""Conversations whose settings a worker remembers."""
LATE_SECONDS = 1.0
"""A report may be late by this much, even with a very short grace, without stopping a turn that has readers."""


class Draining(Unavailable):
    """This worker is shutting down. The turn goes on elsewhere; follow its events."""


class Options(Struct, frozen=True, kw_only=True):
    """How a turn shall run, apart from the question itself. `agent_id` and `model` apply to this turn only."""

    agent_id: AgentId | None = None
    model: str | None = None
    names_model: bool = False
    """Whether the caller has named a model or an agent for this turn. Then those of the conversation do not hold: a
    plain model answers without the agent of the conversation, and an agent with its own model."""
    if_busy: IfBusy = "reject"
    drop_queue: bool = False
    background: bool = False
    source: TurnSource = "api"
    metadata: JsonObject = {}
    client_tools: tuple[JsonObject, ...] = ()
    """Tools that the caller runs."""
    ends_with_calls: bool = False
    """Whether a call of such a tool ends the turn, for a caller that sends the history with the next question."""
    instructions: str = ""
    """Instructions for this turn. They follow those of the agent."""
    sampling: Sampling = DEFAULT_SAMPLING
    opening: tuple[OpeningRow, ...] = ()
    """Calls of tools, and their results, that followed the question before this turn."""
    idempotency_key: str | None = None
    request_hash: str | None = None


class Question(Struct, frozen=True, kw_only=True):
    """One request for a turn. Without a conversation id it opens a new conversation, as `new` says, or uses the
    conversation that has the `external_id` of `new`; then agent and model of `new` hold for this turn."""

    principal: Principal
    message: tuple[Block, ...]
    conversation_id: ConversationId | None = None
    new: NewConversation = NewConversation()
    beside: TurnId | None = None
    after: TurnId | None = None
    """The turn that it must follow. If the conversation has gone on by then, the question is refused."""
    steers: TurnId | None = None
    attachment_ids: tuple[FileId, ...] = ()
    options: Options = Options()
    agent: AgentSpec | None = None
    """An agent that is not saved, which answers in place of any other."""
    workspace: Workspace | None = None
    """The principal's workspace, if the caller has just read it."""


class Engine:
    """Runs the turns of one process."""

    def __init__(self, services: Services, *, worker: str) -> None:
        """`worker` is the name under which this process holds turns, unlike that of any other."""
        self._store = services.store
        self._hub = services.hub
        self._observer = services.observer
        self._sandboxes = services.sandboxes
        self._file_copies = services.file_copies
        self.draining = asyncio.Event()
        self._leases = Leases(services.store, services.settings, services.observer)
        self.titles = TitleWriter(services)
        self._outbox = OutboxDelivery(
            services.store,
            services.outbox_sink,
            services.observer,
            on_success=self.titles.want,
        )
        self._worker = Worker(services, self._leases, self._outbox, name=worker)
        self._readers = AttachedReaders(services.store, services.settings, services.observer, self._worker.holds)
        self._claims = ClaimBuilder(services, worker=worker, watched_seconds=self._readers.grace_seconds)
        self.eraser = Eraser(
            services,
            stop_turn=self.stop_turn,
            forget=self._worker.forget_erased,
            forget_seconds=2 * min(services.settings.sweep_seconds, services.settings.lease_seconds / 4),
        )
        self._webhooks = None
        if services.webhooks is not None:
            self._webhooks = WebhookSender(services.store, services.webhooks, services.observer)
        self._sweeper = Sweeper(services, self._worker, self.eraser, self._webhooks)
        self._background: list[asyncio.Task[None]] = []
        self._waiting: set[Subscription] = set()
        """Subscriptions of the requests that wait for the end of a turn."""

    @property
    def is_draining(self) -> bool:
        return self.draining.is_set()

    @property
    def running(self) -> int:
        """Number of turns that this worker holds."""
        return len(self._leases)

    @property
    def has_leases_in_doubt(self) -> bool:
        """Whether renewals fail: turns that this worker runs may soon be another worker's."""
        return self._leases.are_in_doubt

    async def start(self) -> None:
        """Start to renew leases, to report readers, to adopt turns that other workers left, to deliver the outbox,
        to send to webhooks, and to poll the store for readers."""
        self._background = [
            asyncio.create_task(self._leases.keep(self._readers.take_due), name="renew leases"),
            asyncio.create_task(self._readers.report(), name="report readers"),
            asyncio.create_task(self._sweeper.sweep_for_ever(), name="sweep"),
            asyncio.create_task(self._sweeper.purge_for_ever(), name="purge"),
            asyncio.create_task(self._outbox.deliver_for_ever(), name="deliver the outbox"),
            asyncio.create_task(poll(self._store, self._hub, holds=self._worker.holds), name="poll for readers"),
        ]
        self._background.append(asyncio.create_task(self.titles.write_for_ever(), name="write titles"))
        if self._webhooks is not None:
            self._background.append(asyncio.create_task(self._webhooks.send_for_ever(), name="send to webhooks"))

    async def drain(self, *, seconds: float = 10.0) -> None:
        """Stop accepting questions, let running calls end for `seconds`, and hand the turns over.

        Requests that wait for a turn of another worker are told at once, the others when their turn is handed over.
        After this only `close` is of use.
        """
        self.draining.set()
        for subscription in self._waiting:
            subscription.wake()
        await self._worker.drain(seconds=seconds)
        await self._outbox.finish()

    async def close(self) -> None:
        await self.eraser.close()
        for task in self._background:
            task.cancel()
        for task in self._background:
            with suppress(asyncio.CancelledError):
                await task
        if self._webhooks is not None:
            await self._webhooks.finish()
        await self._sweeper.close()

    async def ask(self, question: Question, *, take_lines: TakeLines | None = None) -> Claimed:
        """Claim a turn and run it. Raises what the store's `claim` raises; nothing is stored then.

        A question for a sandbox raises SandboxUnavailable when no runner answers. If its turn runs here, `take_lines`
        gets its lines. A claim that was under way when this worker began to drain is valid: another worker runs it.
        """
        if self.is_draining:
            raise Draining("This server is shutting down. Send the request again in a moment.")
        for _ in range(MOST_CLAIMS):
            try:
                return await self._ask(question, take_lines)
            except ExternalIdTaken:
                continue  # another request has made the conversation meanwhile
            except ConversationChanged:
                self._claims.forget(question)
        raise Unavailable("Too many requests make, change or delete this conversation at once. Try again.")

    async def _ask(self, question: Question, take_lines: TakeLines | None) -> Claimed:
        claim = await self._claims.claim_of(question)
        if claim.snapshot.sandbox:
            await self._ensure_sandbox(question)
        asked_at = time.monotonic()
        with self._worker.acquisition():
            claimed = await self._claim(claim)
            turn, held = claimed.turn, claimed.held
            self._claims.remember(claim, claimed)
            if held is not None and self.draining.is_set():
                with suppress(WorldError):  # then its lease ends, and another worker adopts it a little later
                    await self._store.hand_over([held])
                return claimed
        if held is not None and not self._worker.holds(turn.id):
            began = Recorded(seq=1, event=first_event(turn, claimed.user_message_id))
            self._observer.reached("claimed", turn.id)
            self._worker.start(
                turn,
                held,
                asked_at=asked_at,
                record=None if claimed.question is None else TurnRecord(events=[began], rows=[claimed.question]),
                is_alone=question.beside is None and turn.ordinal == claimed.turns_before + 1,
                take_lines=take_lines,
            )
            self._hub.publish(turn.id, [began])
        elif claimed.is_new and question.options.if_busy == "interrupt":
            self._worker.stop_conversation(turn.conversation_id, before=turn.id)
            await self._adopt_handed_over()
        return claimed

    async def _adopt_handed_over(self) -> None:
        """Take over at once what the last write has let go. Otherwise a sweep does it."""
        with suppress(WorldError):
            await self._worker.adopt(limit=ADOPT_AT_ONCE, only_handed_over=True)

    async def answer_calls(
        self, principal: Principal, turn_id: TurnId, answers: Mapping[CallId, CallAnswer], *, reason: WaitReason
    ) -> Turn:
        """Answer calls of a turn that waits for this `reason`; raises what the store raises. With the last answer the
        turn goes on, here if this worker is not shutting down."""
        turn = await self._store.answer_calls(principal, turn_id, answers, reason=reason)
        self._observer.reached("answered", turn_id)
        if reason == "approval" and turn.wait is not None and turn.wait.held_by is None:
            with suppress(WorldError):  # then readers find it with the next poll
                self._hub.publish(turn_id, (await self._store.events(turn_id, after=turn.last_seq - 1))[:1])
        if turn.status == "running" and not self.is_draining:
            with suppress(WorldError):  # then a sweep adopts it
                await self._worker.adopt(limit=1, turn_id=turn_id)
        return turn

    async def _claim(self, claim: Claim) -> Claimed:
        """Claim the turn. Files that belong elsewhere are attached as copies; only the store knows which they are."""
        try:
            return await self._store.claim(claim)
        except AttachedElsewhere as elsewhere:
            if self._file_copies is None:
                raise
            copies = await self._file_copies.copy(claim.principal, elsewhere.file_ids)
        attached = tuple(copies.get(file_id, file_id) for file_id in claim.attachment_ids)
        is_new = False
        try:
            claimed = await self._store.claim(structs.replace(claim, attachment_ids=attached))
            is_new = claimed.is_new
            return claimed
        finally:
            if not is_new:  # it was refused, or the same request was accepted meanwhile, with copies of its own
                await asyncio.shield(self._file_copies.discard(list(copies.values())))

    async def check(self, question: Question) -> None:
        """Raise what `ask` would raise before it writes anything. A caller that must write first asks this before."""
        self._claims.forget(question)
        await self._claims.claim_of(question)

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

    async def steer(
        self, principal: Principal, turn_id: TurnId, message: tuple[Block, ...], options: Options
    ) -> tuple[Turn, Claimed]:
        """Add words to a turn. They wait as a queued turn in front of the others. The turn takes them before it asks
        the model again; if it ends before that, they are the next turn. Returns the turn, and what was claimed."""
        turn = await self._store.turn(principal, turn_id)
        question = Question(
            principal=principal,
            message=message,
            conversation_id=turn.conversation_id,
            steers=turn_id,
            options=structs.replace(options, if_busy="enqueue", background=True),
        )
        return turn, await self.ask(question)

    async def cancel(self, principal: Principal, turn_id: TurnId) -> Turn:
        """Stop a turn wherever it runs, and return it once it is settled. A settled turn is returned as it is.

        Raises NotFound for a turn that the principal does not see now. A later deletion does not change the result.
        """
        turn = await self._store.request_cancel(principal, turn_id)
        if turn.is_settled:
            self._outbox.wake()
            self._hub.publish(turn_id, (await self._store.events(turn_id, after=turn.last_seq - 1))[-1:])
            return turn
        return await self.stop_turn(turn_id)

    async def stop_turn(self, turn_id: TurnId) -> Turn:
        """Wait for the end of a turn whose stop was requested in the store. Stops it at once if it runs here, and takes
        it over if no worker holds it."""
        self._worker.stop(turn_id)

        async def take_over() -> None:
            if not self._worker.holds(turn_id):
                await self._worker.adopt(limit=1, turn_id=turn_id)

        turn = await self._settled(turn_id, every=CANCEL_POLL_SECONDS, meanwhile=take_over)
        await self._worker.ending(turn_id)
        return turn

    async def wait(self, turn_id: TurnId, *, or_waiting: bool = True) -> Turn:
        """Wait for the turn to settle, or to wait for answers (`or_waiting`), as an attached reader. Raises Draining
        when this worker goes away first.

        The caller has claimed the turn or was allowed to see it, so no principal is checked here. If the conversation
        is deleted meanwhile, the caller gets the turn as the deletion has settled it. Raises NotFound if it is erased.
        """
        return (await self.ending(turn_id, or_waiting=or_waiting)).turn

    async def ending(self, turn_id: TurnId, *, or_waiting: bool = True) -> EndedTurn:
        """The same as `wait`, with the record of the turn if it was settled here."""
        with self.attach(turn_id):
            ended = await self._worker.ending(turn_id, or_waiting=or_waiting)
            return EndedTurn(turn=await self._settled(turn_id, or_waiting=or_waiting)) if ended is None else ended

    def runs(self, turn_id: TurnId) -> bool:
        """Whether the turn runs on this worker."""
        return self._worker.holds(turn_id)

    def attach(self, turn_id: TurnId) -> AbstractContextManager[None]:
        """The turn has a reader while this is open."""
        return self._readers.attach(turn_id)

    async def _settled(
        self,
        turn_id: TurnId,
        *,
        every: float = math.inf,
        meanwhile: Callable[[], Awaitable[None]] | None = None,
        or_waiting: bool = False,
    ) -> Turn:
        """Wait for the end of the turn. The hub only wakes this task; the store says whether the turn has ended.

        With `or_waiting` it is returned as soon as it waits for answers, too. Raises NotFound when the turn has been
        erased.
        """
        async with self._hub.subscribe(turn_id) as subscription:
            while True:
                head = subscription.head
                turn = await self._store.claimed_turn(turn_id)
                if turn.is_settled or (or_waiting and turn.status == "waiting"):
                    return turn
                if self._has_given_up(turn_id):
                    raise Draining("This server is shutting down; the turn goes on. Follow its events.")
                if meanwhile is not None:
                    await meanwhile()
                await self._next_event(turn_id, subscription, after=head, seconds=every)

    async def _next_event(self, turn_id: TurnId, subscription: Subscription, *, after: int, seconds: float) -> None:
        """Wait for an event later than `after`, at most `seconds`, or until this worker gives the turn up or the turn
        is gone."""
        now = asyncio.get_running_loop().time
        until = now() + seconds

        def is_in_vain() -> bool:
            """Previews do not wake this task: only an event is a reason to ask the store."""
            return subscription.head <= after and not self._has_given_up(turn_id)

        subscription.take = is_in_vain
        self._waiting.add(subscription)
        try:
            while is_in_vain() and await subscription.wait(until):
                subscription.frames(after, WHOLE)
        finally:
            self._waiting.discard(subscription)

    def _has_given_up(self, turn_id: TurnId) -> bool:
        return self.is_draining and not self._worker.holds(turn_id)


_ConversationKey = tuple[WorkspaceId, UserId | None, ConversationId]
"""A conversation, and who asked in it."""


class ClaimBuilder:
    """Makes a claim of a question: finds its agent and model, and copies them into the turn's snapshot.

    The settings of a conversation are remembered from its last turn here, so that the next one need not read them
    first. The claim names them, and the store refuses it if they have changed since. Those with instructions are not
    remembered: a user may have written these, and an erasure would have to find them.
    """

    def __init__(self, services: Services, *, worker: str, watched_seconds: float) -> None:
        self._store = services.store
        self._providers = services.providers
        self._tools = services.tools
        self._settings = services.settings
        self._prices = services.prices
        self._worker = worker
        self._watched_seconds = watched_seconds
        self._remembered: OrderedDict[_ConversationKey, TurnSettings] = OrderedDict()

    async def claim_of(self, question: Question) -> Claim:
        """Raises NotFound for an agent or conversation that is not there, InvalidRequest for an unknown model."""
        if question.conversation_id is not None:
            remembered = self._remembered.get(_key_of(question.principal, question.conversation_id))
            if remembered is not None:
                with suppress(TurnkeepError):  # perhaps the conversation has changed: look at it
                    return self._claim(question, await self._checked_snapshot(question, remembered), remembered)
        settings: TurnSettings | None = None
        try:
            conversation: Conversation | None = None
            if question.conversation_id is not None:
                conversation = await self._store.conversation(question.principal, question.conversation_id)
            elif question.new.external_id is not None:
                conversation = await self._store.conversation_of_host(question.principal, question.new.external_id)
                if conversation is not None:
                    question = _in_conversation(question, conversation.id)
            settings = None if conversation is None else conversation.turn_settings
            snapshot = await self._checked_snapshot(question, settings)
        except (NotFound, InvalidRequest):
            # The agent or conversation may be gone since the first request. A repeated request still gets its turn.
            if not await self.is_repeat(question.principal, question.options):
                raise
            snapshot = Snapshot(model=self._settings.model, principal=question.principal)
        return self._claim(question, snapshot, settings)

    def remember(self, claim: Claim, claimed: Claimed) -> None:
        """The conversation had the settings of this claim when its turn was made."""
        if not claimed.is_new:
            return
        settings = claim.new.turn_settings if claim.conversation_id is None else claim.settings
        if settings is None or settings.instructions is not None:
            return
        key = _key_of(claim.principal, claimed.turn.conversation_id)
        self._remembered[key] = settings
        self._remembered.move_to_end(key)
        if len(self._remembered) > MOST_REMEMBERED:
            self._remembered.popitem(last=False)

    def forget(self, question: Question) -> None:
        """Read the settings of its conversation anew, with the next claim."""
        if question.conversation_id is not None:
            self._remembered.pop(_key_of(question.principal, question.conversation_id), None)

    async def _checked_snapshot(self, question: Question, settings: TurnSettings | None) -> Snapshot:
        snapshot = await self._snapshot(question, settings)
        provider = self._providers.named(snapshot.model or self._settings.model)
        await self._check_options(snapshot, provider)
        if snapshot.sandbox and any(isinstance(block, Image) for block in question.message):
            raise InvalidRequest(
                "A sandbox takes pictures as files. Upload the picture, and name it in `attachment_ids`."
            )
        return snapshot

    def _claim(self, question: Question, snapshot: Snapshot, settings: TurnSettings | None) -> Claim:
        options = question.options
        return Claim(
            principal=question.principal,
            turn_id=new_turn_id(),
            worker=self._worker,
            lease_seconds=self._settings.lease_seconds,
            blocks=question.message,
            conversation_id=question.conversation_id,
            new=question.new,
            beside=question.beside,
            after=question.after,
            steers=question.steers,
            settings=settings,
            attachment_ids=question.attachment_ids,
            if_busy=options.if_busy,
            drop_queue=options.drop_queue,
            queue_limit=self._settings.queue_limit,
            background=options.background,
            watched_seconds=None if options.background else self._watched_seconds,
            source=options.source,
            model=snapshot.model,
            snapshot=snapshot,
            metadata=options.metadata,
            idempotency_key=options.idempotency_key,
            request_hash=options.request_hash,
            expected_cost=self._prices.cost(snapshot.model, Usage(input_tokens=EXPECTED_TOKENS)) or 0.0,
        )

    async def is_repeat(self, principal: Principal, options: Options) -> bool:
        """Whether the idempotency key was used before. The store checks the key first, so a claim for a conversation
        that does not exist finds the earlier turn (or the conflict), or stores nothing."""
        if options.idempotency_key is None:
            return False
        probe = Claim(
            principal=principal,
            turn_id=new_turn_id(),
            worker=self._worker,
            lease_seconds=self._settings.lease_seconds,
            blocks=(Text(text="?"),),
            conversation_id=new_conversation_id(),
            idempotency_key=options.idempotency_key,
            request_hash=options.request_hash,
        )
        try:
            await self._store.claim(probe)
        except NotFound:
            return False
        return True

    async def again(
        self,
        principal: Principal,
        turn_id: TurnId,
        options: Options,
        *,
        message: tuple[Block, ...] | None = None,
        attachment_ids: tuple[FileId, ...] | None = None,
    ) -> Question:
        """The question of an earlier turn again, as its sibling: with another message (edit) or the same (regenerate).

        It has the files of that question which still exist, or exactly those that are named. Raises InvalidRequest
        for an imported turn in which the user asked nothing.
        """
        turn = await self._store.turn(principal, turn_id)
        rows = await self._store.turn_rows(turn_id)
        asked = next((row for row in rows if row.role == "user" and not row.internal), None)
        if asked is None:
            raise InvalidRequest("The user asked nothing in this turn, so it cannot be asked again.")
        if attachment_ids is None:
            attachment_ids = await self._existing_files(principal, asked.attachments)
        return Question(
            principal=principal,
            message=asked.blocks if message is None else message,
            conversation_id=turn.conversation_id,
            beside=turn_id,
            attachment_ids=attachment_ids,
            # The agent of a trial is stored only with its turns.
            agent=turn.snapshot.agent if turn.snapshot.agent_id is None else None,
            options=structs.replace(
                options,
                client_tools=options.client_tools or turn.snapshot.client_tools,
                instructions=options.instructions or turn.snapshot.instructions,
                sampling=options.sampling if options.sampling.given else turn.snapshot.sampling,
            ),
        )

    async def _existing_files(self, principal: Principal, refs: tuple[FileRef, ...]) -> tuple[FileId, ...]:
        """The ids of the files that still exist: a question can be asked again without a file that was deleted."""
        found: list[FileId] = []
        for ref in refs:
            try:
                found.append((await self._store.file(principal, ref.file_id)).id)
            except NotFound:
                continue
        return tuple(found)

    async def _snapshot(self, question: Question, settings: TurnSettings | None) -> Snapshot:
        """`settings` are those of an existing conversation. Precedence of the model: turn, conversation, agent,
        workspace, server."""
        principal, options = question.principal, question.options
        principal.check_model(options.model or question.new.model)
        given = settings or question.new.turn_settings
        kind, agent_id, model = given.kind, given.agent_id, given.model
        if settings is not None and kind == "run":
            raise InvalidRequest("A run has one turn. Start another run, or a conversation.")
        if settings is not None and options.names_model:
            agent_id, model = None, None
        if question.attachment_ids:
            principal.check_feature("files")
        agent_id = options.agent_id or agent_id
        agent: AgentSpec | None = None
        if question.agent is not None:
            agent_id, agent = None, question.agent
        elif agent_id is not None:
            try:
                agent = (await self._store.agent(principal, agent_id)).spec
            except NotFound:
                if settings is None or options.agent_id is not None:
                    raise
                agent_id = None  # it was deleted since, and the conversation goes on without it
        principal.check_agent(agent_id)
        is_sandboxed = kind != "chat" or (agent is not None and agent.sandbox)
        if is_sandboxed:
            principal.check_feature("runs")
        if kind == "run" and (agent is None or not agent.sandbox):
            raise InvalidRequest(
                "This agent has no sandbox, so it cannot be run. Set `sandbox` to true, or ask it in a conversation."
            )
        model = options.model or model or (agent.model if agent else None)
        if model is None:
            workspace = question.workspace or await self._store.workspace(principal.org_id, principal.workspace_id)
            model = workspace.model
        self._check_client_tools(options.client_tools, agent, is_sandboxed=is_sandboxed)
        asked_by = current_origin()
        return Snapshot(
            agent_id=agent_id,
            agent=None if agent is None else structs.replace(agent, avatar=""),
            model=model or self._settings.model,
            principal=principal,
            sandbox=is_sandboxed,
            client_tools=options.client_tools,
            ends_with_calls=options.ends_with_calls,
            instructions=options.instructions,
            sampling=options.sampling,
            conversation_instructions=given.instructions or "",
            temperature=given.temperature,
            opening=options.opening,
            request_id=asked_by.request_id,
            traceparent=asked_by.traceparent,
        )

    async def _check_options(self, snapshot: Snapshot, provider: Provider) -> None:
        """Raises UnsupportedOption for an option that the model, or a turn in a sandbox, cannot honour."""
        given = snapshot.sampling.given
        if snapshot.sandbox and (given or snapshot.instructions or snapshot.opening):
            raise UnsupportedOption(
                "A turn in a sandbox takes no instructions, tool results or options of the model from the caller. "
                "Leave them out, or ask an agent without a sandbox.",
                option=min(given, default="instructions"),
            )
        model = snapshot.model or self._settings.model
        if snapshot.temperature is not None and "temperature" not in (await provider.abilities(model)).options:
            raise UnsupportedOption(
                f"The model {model} cannot honour the temperature of this conversation. Take it away from the "
                "conversation, or choose another model.",
                option="temperature",
            )
        if not given:
            return
        if snapshot.sampling.tool is not None:
            _check_choice(snapshot, snapshot.sampling.tool)
        for option in sorted(given - {"output"} - (await provider.abilities(model)).options):
            raise UnsupportedOption(f"The model {model} cannot honour this option. Leave it out.", option=option)

    def _check_client_tools(self, tools: Sequence[JsonObject], agent: AgentSpec | None, *, is_sandboxed: bool) -> None:
        """Raises InvalidRequest for a client tool with the name of another tool."""
        if not tools:
            return
        declared = () if agent is None else agent.tools
        taken = {each if isinstance(each, str) else str(each.get("name")) for each in declared}
        if is_sandboxed:
            taken.update(get_args(BoxToolName))
        taken.update(spec.name for spec in self._tools.native)
        names = [str(tool["name"]) for tool in tools]
        if twice := sorted(name for name in set(names) if name in taken or names.count(name) > 1):
            raise InvalidRequest(
                f"There is another tool called {', '.join(twice)}. Give yours in `tools` another name."
            )


def _check_choice(snapshot: Snapshot, name: str) -> None:
    """Raises UnsupportedOption if the turn has no tool of this name. Tools of MCP servers are not known yet."""
    agent = snapshot.agent
    declared = [*snapshot.client_tools, *(() if agent is None else agent.tools)]
    names = {each if isinstance(each, str) else str(each.get("name")) for each in declared}
    if name not in names and not (agent is not None and agent.mcp_servers):
        raise UnsupportedOption(f"There is no tool called {name[:80]!r} to choose. Name one of `tools`.", option="tool")


def _key_of(principal: Principal, conversation_id: ConversationId) -> _ConversationKey:
    return principal.workspace_id, principal.user_id, conversation_id


def _in_conversation(question: Question, conversation_id: ConversationId) -> Question:
    """The same question in a conversation that exists."""
    agent_id, model = question.new.agent_id, question.new.model
    options = structs.replace(question.options, agent_id=agent_id, model=model)
    return structs.replace(question, conversation_id=conversation_id, new=NewConversation(), options=options)


class AttachedReaders:
    """The readers that are attached to turns through this worker. `holds` says whether this worker runs a turn."""

    def __init__(
        self, store: TurnStore, settings: EngineSettings, observer: Observer, holds: Callable[[TurnId], bool]
    ) -> None:
        self._store = store
        self._every_seconds = settings.watch_seconds
        # Not shorter than the time until the next report of another worker, which may have readers of the same turn.
        self._grace_seconds = max(settings.disconnect_grace_seconds, settings.watch_seconds + LATE_SECONDS)
        self._observer = observer
        self._holds = holds
        self._readers: Counter[TurnId] = Counter()
        self._new: set[TurnId] = set()
        """Turns whose first reader has come since the last report."""
        self._left: set[TurnId] = set()
        """Turns whose last reader has left since the last report."""
        self._held: set[TurnId] = set()
        """Turns with readers that this worker has run. One that it does not run any more has ended."""
        self._changed = asyncio.Event()
        self._due = 0.0
        """When all readers are reported again."""
        # Short intervals are not waited for by the renewal of leases.
        self._is_apart = settings.watch_seconds < settings.renew_seconds

    @property
    def grace_seconds(self) -> float:
        """How long a turn goes on after its last reader has left."""
        return self._grace_seconds

    @contextmanager
    def attach(self, turn_id: TurnId) -> Iterator[None]:
        """While this is open, the turn has a reader."""
        self._readers[turn_id] += 1
        if self._readers[turn_id] == 1:
            self._left.discard(turn_id)
            self._new.add(turn_id)
            self._changed.set()
        if self._holds(turn_id):
            self._held.add(turn_id)
        try:
            yield
        finally:
            self._readers[turn_id] -= 1
            if not self._readers[turn_id]:
                del self._readers[turn_id]
                self._new.discard(turn_id)
                self._left.add(turn_id)
                self._changed.set()

    def take_due(self) -> tuple[Sequence[TurnId], float]:
        """The turns whose readers must be reported again now, and for how many seconds they then count. The renewal of
        leases reports them, so that an idle worker sends one statement for both."""
        now = asyncio.get_running_loop().time()
        if now < self._due:
            return (), 0.0
        self._due = now + self._every_seconds
        self._held.update(turn_id for turn_id in self._readers if self._holds(turn_id))
        return list(self._readers), self._counted_seconds

    async def report(self) -> None:
        """Report for ever which turns have a first reader, and which have none any more, at once."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every_seconds if self._is_apart and self._readers else None):
                    await self._changed.wait()
            await self._pause()
            self._changed.clear()
            try:
                await self._tell()
            except WorldError:
                pass  # all readers are reported again in a moment; the window is longer than a short outage
            except Exception as exc:  # a report that fails must not end all reports
                self._observer.defect(None, exc)

    async def _pause(self) -> None:
        """Readers that come or leave at the same time are one report. A turn that has ended is let go meanwhile."""
        await asyncio.sleep(min(0.05, self._every_seconds))

    async def _tell(self) -> None:
        self._held.update(turn_id for turn_id in self._readers if self._holds(turn_id))
        left = {turn_id for turn_id in self._left if turn_id not in self._held or self._holds(turn_id)}
        new = self._readers if self._is_apart else self._new
        self._new, self._left = set(), set()
        self._held.intersection_update(self._readers)
        await self._store.watch(sorted(new), seconds=self._counted_seconds)
        if left:
            await self._store.unwatch(sorted(left), seconds=self._grace_seconds)

    @property
    def _counted_seconds(self) -> float:
        """How long a reader counts after a report."""
        return self._grace_seconds + self._every_seconds
