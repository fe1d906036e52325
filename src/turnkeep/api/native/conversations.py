"""Conversations: list, search, make, change, delete, restore, and read in four ways."""

from contextlib import suppress
from typing import Any, Literal

from msgspec import UNSET, UnsetType
from starlette.types import ASGIApp

from turnkeep.api import showing, wire
from turnkeep.api.http.endpoints import Call, Endpoints, Nothing, Policy, Reply, known_id
from turnkeep.api.http.responses import json_response, no_content
from turnkeep.api.native.queries import ConversationsQuery, MessagesQuery, PageQuery, ReplayQuery
from turnkeep.compiler import Target, budget_for, compile
from turnkeep.errors import ConversationBusy, InvalidRequest, NotFound
from turnkeep.ids import AgentId, ConversationId, TurnId
from turnkeep.model.agents import AgentSpec
from turnkeep.model.conversations import Conversation
from turnkeep.providers.ports import Abilities
from turnkeep.runtime import Runtime
from turnkeep.store.commands import ConversationChange, NewConversation

endpoints = Endpoints("conversations")

CONVERSATION = Reply(status=200, meaning="The conversation", type=wire.Conversation)
ONE = "/v1/conversations/{conversation_id}"
WAIT_OR_CANCEL = "The branch can be switched once it has ended: follow its events, or cancel it."


@endpoints.add(
    "GET",
    "/v1/conversations",
    policy=Policy.MEMBER,
    query=ConversationsQuery,
    replies=(Reply(status=200, meaning="Conversations, newest change first", type=wire.Page[wire.Conversation]),),
)
async def list_conversations(call: Call[Nothing, ConversationsQuery]) -> ASGIApp:
    """Conversations of the principal, or those that `q` finds in titles and visible messages."""
    query = call.query
    page = await call.runtime.store.conversations(
        call.principal, query=query.q or None, limit=query.limit, cursor=query.cursor or None
    )
    data = [showing.hit_of(hit, is_search=bool(query.q)) for hit in page.data]
    return json_response(wire.Page(data=data, next_cursor=page.next_cursor))


@endpoints.add(
    "POST",
    "/v1/conversations",
    policy=Policy.MEMBER,
    body=wire.NewConversation,
    is_body_optional=True,
    replies=(Reply(status=201, meaning="The new conversation", type=wire.Conversation),),
    errors=(404, 507),
)
async def create_conversation(call: Call[wire.NewConversation, Nothing]) -> ASGIApp:
    """Make an empty conversation. A turn without `conversation_id` makes one too."""
    body = call.body
    if body.model is not None:
        call.runtime.providers.named(body.model)
    new = NewConversation(
        kind=body.kind,
        agent_id=None if body.agent_id is None else AgentId(known_id(body.agent_id, "agent")),
        model=body.model,
        workflow_id=body.workflow_id,
        title=body.title,
        metadata=body.metadata,
    )
    made = await call.runtime.store.create_conversation(call.principal, new)
    return json_response(showing.conversation_of(made, queue=()), status=201)


@endpoints.add("GET", ONE, policy=Policy.MEMBER, replies=(CONVERSATION,), errors=(404,))
async def read_conversation(call: Call[Nothing, Nothing]) -> ASGIApp:
    """One conversation, with the turn that runs in it and those that wait."""
    return await _shown(call)


@endpoints.add(
    "PATCH",
    ONE,
    policy=Policy.MEMBER,
    body=wire.ConversationPatch,
    replies=(CONVERSATION,),
    errors=(404, 409, 507),
)
async def change_conversation(call: Call[wire.ConversationPatch, Nothing]) -> ASGIApp:
    """Change the title, the model or the agent (`null` takes it away); `head_turn_id` switches to another branch."""
    body = call.body
    if body.model:
        call.runtime.providers.named(body.model)
    change = ConversationChange(
        title=_given(body.title),
        model=_given(body.model),
        agent_id=AgentId(known_id(body.agent_id, "agent")) if isinstance(body.agent_id, str) else None,
        head_turn_id=None if body.head_turn_id is UNSET else TurnId(known_id(body.head_turn_id, "turn")),
        metadata=None if body.metadata is UNSET else body.metadata,
        without=_taken_away(body),
    )
    try:
        await call.runtime.store.change_conversation(call.principal, _id(call), change)
    except ConversationBusy as busy:
        raise ConversationBusy(busy.turn_id, busy.started_at, advice=WAIT_OR_CANCEL) from busy
    return await _shown(call)


@endpoints.add("DELETE", ONE, policy=Policy.MEMBER, replies=(Reply(status=204, meaning="Deleted"),), errors=(404, 507))
async def delete_conversation(call: Call[Nothing, Nothing]) -> ASGIApp:
    """Delete a conversation and its files; a turn that runs is stopped. It can be restored for a while."""
    await call.runtime.store.delete_conversation(call.principal, _id(call))
    return no_content()


@endpoints.add("POST", f"{ONE}/restore", policy=Policy.MEMBER, replies=(CONVERSATION,), errors=(404, 507))
async def restore_conversation(call: Call[Nothing, Nothing]) -> ASGIApp:
    """Undo a delete. A conversation that is not deleted is answered as it is."""
    await call.runtime.store.restore_conversation(call.principal, _id(call))
    return await _shown(call)


@endpoints.add(
    "GET",
    f"{ONE}/messages",
    policy=Policy.MEMBER,
    query=MessagesQuery,
    replies=(Reply(status=200, meaning="Visible messages along the head's branch", type=wire.Page[wire.Message]),),
    errors=(404,),
)
async def list_messages(call: Call[Nothing, MessagesQuery]) -> ASGIApp:
    """The public transcript."""
    query = call.query
    page = await call.runtime.store.transcript(
        call.principal, _id(call), order=query.order, limit=query.limit, cursor=query.cursor or None
    )
    data = [showing.message_of(message) for message in page.data]
    return json_response(wire.Page(data=data, next_cursor=page.next_cursor))


@endpoints.add(
    "GET",
    f"{ONE}/trace",
    policy=Policy.SERVICE,
    query=PageQuery,
    replies=(Reply(status=200, meaning="All rows, internal ones included", type=wire.Page[wire.TraceRow]),),
    errors=(404,),
)
async def trace_conversation(call: Call[Nothing, PageQuery]) -> ASGIApp:
    """Every stored row of every branch, in order."""
    query = call.query
    page = await call.runtime.store.conversation_trace(
        call.principal, _id(call), limit=query.limit, cursor=query.cursor or None
    )
    data = [showing.row_of(row) for row in page.data]
    return json_response(wire.Page(data=data, next_cursor=page.next_cursor))


@endpoints.add(
    "GET",
    f"{ONE}/replay",
    policy=Policy.SERVICE,
    query=ReplayQuery,
    replies=(Reply(status=200, meaning="What the next turn would send of the past", type=wire.Replay),),
    errors=(404,),
)
async def replay_conversation(call: Call[Nothing, ReplayQuery]) -> ASGIApp:
    """Exactly what the next turn would send, in the shape of one provider (by default that of the model)."""
    runtime = call.runtime
    conversation = await _conversation(call)
    agent = await _agent_of(call, conversation)
    model = await _next_model(call, runtime, conversation, agent)
    target = call.query.provider or runtime.providers.named(model).target
    can = await _abilities(runtime, model, target)
    settings = runtime.settings
    window = await runtime.store.window(conversation.id, turns=settings.replay_turns)
    compiled = compile(
        window.rows,
        target=target,
        budget=budget_for(agent.tokenizer, turns=settings.replay_turns, chars=settings.context_chars),
        system=agent.instructions,
        sees_images=can.sees_images,
        thinking=can.thinking,
        turn_count=conversation.turn_count,
        contents=await runtime.files.contents(window.rows, sees_images=can.sees_images),
    )
    return json_response(
        wire.Replay(
            messages=compiled.messages,
            system=compiled.system,
            turns_included=compiled.turns_included,
            turns_dropped=compiled.turns_dropped,
            chars=compiled.chars,
        )
    )


async def _shown(call: Call[Any, Any]) -> ASGIApp:
    found = await call.runtime.store.conversation_with_queue(call.principal, _id(call))
    return json_response(showing.conversation_of(found.conversation, queue=found.queue))


async def _agent_of(call: Call[Any, Any], conversation: Conversation) -> AgentSpec:
    """The agent of the next turn. One that was deleted since is none."""
    with suppress(NotFound):
        if conversation.agent_id is not None:
            return (await call.runtime.store.agent(call.principal, conversation.agent_id)).spec
    return AgentSpec(name="")


async def _next_model(call: Call[Any, Any], runtime: Runtime, conversation: Conversation, agent: AgentSpec) -> str:
    """The model of the next turn. Precedence: conversation, agent, workspace, server."""
    model = conversation.model or agent.model
    if model is None:
        model = (await runtime.store.workspace(call.principal.org_id, call.principal.workspace_id)).model
    return model or runtime.settings.model


async def _abilities(runtime: Runtime, model: str, target: Target) -> Abilities:
    """Those of the next turn's model, where it is its own shape that was asked for."""
    try:
        provider = runtime.providers.named(model)
    except InvalidRequest:
        return Abilities()
    return await provider.abilities(model) if provider.target == target else Abilities()


async def _conversation(call: Call[Any, Any]) -> Conversation:
    return await call.runtime.store.conversation(call.principal, _id(call))


def _id(call: Call[Any, Any]) -> ConversationId:
    conversation_id = ConversationId(call.id("conversation_id", "conv"))
    call.notes["conversation_id"] = conversation_id
    return conversation_id


def _taken_away(body: wire.ConversationPatch) -> frozenset[Literal["model", "agent_id"]]:
    given: tuple[tuple[Literal["model", "agent_id"], object], ...] = (
        ("model", body.model),
        ("agent_id", body.agent_id),
    )
    return frozenset(name for name, value in given if value is None)


def _given(value: str | UnsetType | None) -> str | None:
    return None if isinstance(value, UnsetType) else value
