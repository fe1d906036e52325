"""Claims: a caller's question becomes the claim of a turn, with the agent as it is at this moment."""

from msgspec import Struct

from turnkeep.engine.services import Services
from turnkeep.errors import InvalidRequest, NotFound
from turnkeep.ids import AgentId, ConversationId, FileId, TurnId, new_turn_id
from turnkeep.model.agents import AgentSpec, Snapshot
from turnkeep.model.principals import Principal
from turnkeep.model.turns import IfBusy
from turnkeep.store.commands import Claim, NewConversation
from turnkeep_client.wire.blocks import Block, FileRef, Image, JsonObject, Text
from turnkeep_client.wire.usage import Source

_NOWHERE = ConversationId("conv_" + "0" * 32)


class Options(Struct, frozen=True, kw_only=True):
    """How a turn shall run, apart from the question itself. `agent_id` and `model` apply to this turn only."""

    agent_id: AgentId | None = None
    model: str | None = None
    if_busy: IfBusy = "reject"
    background: bool = False
    source: Source = "api"
    metadata: JsonObject = {}
    idempotency_key: str | None = None
    request_hash: str | None = None


class Question(Struct, frozen=True, kw_only=True):
    """One request for a turn. Without a conversation id it opens a new conversation, as `new` says."""

    principal: Principal
    message: tuple[Block, ...]
    conversation_id: ConversationId | None = None
    new: NewConversation = NewConversation()
    beside: TurnId | None = None
    attachment_ids: tuple[FileId, ...] = ()
    options: Options = Options()


class ClaimBuilder:
    """Makes a claim of a question: finds its agent and model, and copies them into the turn's snapshot."""

    def __init__(self, services: Services, *, worker: str, watched_seconds: float) -> None:
        self._store = services.store
        self._providers = services.providers
        self._settings = services.settings
        self._worker = worker
        self._watched_seconds = watched_seconds

    async def claim_of(self, question: Question) -> Claim:
        """Raises NotFound for an agent or conversation that is not there, InvalidRequest for an unknown model."""
        try:
            snapshot = await self._snapshot(question)
            self._providers.named(snapshot.model or self._settings.model)
            if snapshot.sandbox and any(isinstance(block, Image) for block in question.message):
                raise InvalidRequest(
                    "A sandbox takes pictures as files. Upload the picture, and name it in `attachment_ids`."
                )
        except (NotFound, InvalidRequest):
            # The agent or conversation may be gone since the first request. A repeated request still gets its turn.
            if not await self.is_repeat(question.principal, question.options):
                raise
            snapshot = Snapshot(model=self._settings.model, principal=question.principal)
        return self._claim(question, snapshot)

    def _claim(self, question: Question, snapshot: Snapshot) -> Claim:
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
            attachment_ids=question.attachment_ids,
            if_busy=options.if_busy,
            queue_limit=self._settings.queue_limit,
            background=options.background,
            watched_seconds=None if options.background else self._watched_seconds,
            source=options.source,
            model=snapshot.model,
            snapshot=snapshot,
            metadata=options.metadata,
            idempotency_key=options.idempotency_key,
            request_hash=options.request_hash,
        )

    async def is_repeat(self, principal: Principal, options: Options) -> bool:
        """Whether the idempotency key was used before. The store checks the key first, so a claim for a conversation
        that cannot exist finds the earlier turn (or the conflict), or stores nothing."""
        if options.idempotency_key is None:
            return False
        probe = Claim(
            principal=principal,
            turn_id=new_turn_id(),
            worker=self._worker,
            lease_seconds=self._settings.lease_seconds,
            blocks=(Text(text="?"),),
            conversation_id=_NOWHERE,
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
            options=options,
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

    async def _snapshot(self, question: Question) -> Snapshot:
        """Precedence of the model: turn, conversation, agent, workspace, server."""
        principal, options = question.principal, question.options
        kind, agent_id, model = question.new.kind, question.new.agent_id, question.new.model
        if question.conversation_id is not None:
            conversation = await self._store.conversation(principal, question.conversation_id)
            kind, agent_id, model = conversation.kind, conversation.agent_id, conversation.model
            if kind == "run":
                raise InvalidRequest("A run has one turn. Start another run, or a conversation.")
        agent_id = options.agent_id or agent_id
        agent: AgentSpec | None = None
        if agent_id is not None:
            try:
                agent = (await self._store.agent(principal, agent_id)).spec
            except NotFound:
                if question.conversation_id is None or options.agent_id is not None:
                    raise
                agent_id = None  # it was deleted since, and the conversation goes on without it
        if kind == "run" and (agent is None or not agent.sandbox):
            raise InvalidRequest(
                "This agent has no sandbox, so it cannot be run. Set `sandbox` to true, or ask it in a conversation."
            )
        model = options.model or model or (agent.model if agent else None)
        if model is None:
            model = (await self._store.workspace(principal.org_id, principal.workspace_id)).model
        return Snapshot(
            agent_id=agent_id,
            agent=agent,
            model=model or self._settings.model,
            principal=principal,
            sandbox=kind != "chat" or (agent is not None and agent.sandbox),
        )
