"""Views: from the values of the model to the shapes of the wire."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from turnkeep.api.http.responses import events_url
from turnkeep.config import MASK
from turnkeep.knowledge.table_rows import values_of
from turnkeep.model.agents import Agent as StoredAgent
from turnkeep.model.agents import AgentSpec, Snapshot, with_secrets
from turnkeep.model.conversations import Conversation, Hit
from turnkeep.model.knowledge import KnowledgePage, KnowledgeTable, PageSummary, Row
from turnkeep.model.messages import Message, PublicMessage
from turnkeep.model.principals import ApiKey, Org, Principal, Workspace
from turnkeep.model.turns import Turn
from turnkeep_client import wire
from turnkeep_client.wire.events import Files, Recorded, Result


def turn_of(turn: Turn, events: Sequence[Recorded] = ()) -> wire.Turn:
    """The turn with what its events say it came to."""
    response = next((one.event.message for one in reversed(events) if isinstance(one.event, Result)), None)
    return wire.Turn(
        id=turn.id,
        conversation_id=turn.conversation_id,
        status=turn.status,
        attempt=turn.attempt,
        model=turn.model,
        usage=turn.usage,
        error=None if turn.error is None else wire.TurnFailure(code=turn.error.code, message=turn.error.message),
        started_at=turn.started_at,
        settled_at=turn.settled_at,
        response=response,
        files=[file for one in events if isinstance(one.event, Files) for file in one.event.files],
    )


def message_of(message: PublicMessage) -> wire.Message:
    return wire.Message(
        id=message.id,
        conversation_id=message.conversation_id,
        turn_id=message.turn_id,
        role=message.role,
        content=message.content,
        attachments=message.attachments,
        sources=message.sources,
        usage=message.usage,
        status=message.status,
        created_at=message.created_at,
        siblings=message.siblings,
    )


def conversation_of(
    stored: Conversation,
    *,
    queue: Sequence[PublicMessage] | None = None,
    snippet: str | UnsetType | None = UNSET,
) -> wire.Conversation:
    """The conversation. Without `queue` (in lists) the answer does not speak of queued turns at all."""
    running = stored.running_turn_id
    return wire.Conversation(
        id=stored.id,
        workspace_id=stored.workspace_id,
        user_id=stored.user_id,
        kind=stored.kind,
        agent_id=stored.agent_id,
        model=stored.model,
        workflow_id=stored.workflow_id,
        title=stored.title,
        preview=stored.preview,
        message_count=stored.message_count,
        turn_count=stored.turn_count,
        head_turn_id=stored.head_turn_id,
        running_turn=None if running is None else wire.RunningTurn(id=running, events_url=events_url(running)),
        metadata=stored.metadata,
        created_at=stored.created_at,
        updated_at=stored.updated_at,
        queued_turns=() if queue is None else [_queued(message) for message in queue],
        snippet=snippet,
    )


def _queued(message: PublicMessage) -> wire.QueuedTurn:
    return wire.QueuedTurn(id=message.turn_id, events_url=events_url(message.turn_id), message=message_of(message))


def hit_of(hit: Hit, *, is_search: bool) -> wire.Conversation:
    return conversation_of(hit.conversation, snippet=hit.snippet if is_search else UNSET)


def row_of(row: Message) -> wire.TraceRow:
    return wire.TraceRow(
        id=row.id,
        conversation_id=row.conversation_id,
        turn_id=row.turn_id,
        turn_sequence=row.turn_sequence,
        iteration=row.iteration,
        role=row.role,
        internal=row.internal,
        blocks=row.blocks,
        content=row.display,
        attachments=row.attachments,
        sources=row.sources,
        metadata=row.metadata,
        usage=row.usage,
        provider=row.provider,
        created_at=row.created_at,
    )


def key_of(key: ApiKey, *, secret: str | UnsetType = UNSET) -> wire.Key:
    return wire.Key(
        id=key.id,
        name=key.name,
        workspace_id=key.workspace_id,
        monthly_message_limit=key.monthly_message_limit,
        requests_per_minute=key.requests_per_minute,
        allowed_tools=key.allowed_tools,
        created_at=key.created_at,
        revoked_at=key.revoked_at,
        key=secret,
    )


def workspace_of(stored: Workspace) -> wire.Workspace:
    return wire.Workspace(
        id=stored.id,
        name=stored.name,
        is_default=stored.is_default,
        model=stored.model,
        monthly_message_limit=stored.monthly_message_limit,
        user_monthly_message_limit=stored.user_monthly_message_limit,
        created_at=stored.created_at,
    )


def org_of(org: Org, *, secret: str | UnsetType = UNSET) -> wire.Org:
    return wire.Org(id=org.id, name=org.name, created_at=org.created_at, key=secret)


def agent_for(principal: Principal, agent: StoredAgent) -> wire.Agent:
    """What this principal may see of an agent."""
    if principal.role == "member":
        return wire.Agent(id=agent.id, name=agent.spec.name, model=agent.spec.model)
    return agent_of(agent)


def agent_of(agent: StoredAgent, *, warnings: Sequence[str] = ()) -> wire.Agent:
    spec = masked(agent.spec)
    return wire.Agent(
        id=agent.id,
        workspace_id=agent.workspace_id,
        name=spec.name,
        instructions=spec.instructions,
        model=spec.model,
        tools=list(spec.tools),
        mcp_servers=list(spec.mcp_servers),
        skills=list(spec.skills),
        sandbox=spec.sandbox,
        environment=spec.environment,
        limits=spec.limits,
        created_at=agent.created_at,
        updated_at=agent.updated_at,
        warnings=warnings,
    )


def masked(spec: AgentSpec) -> AgentSpec:
    return with_secrets(spec, lambda _place, _text: MASK)


def masked_snapshot(snapshot: Snapshot) -> Snapshot:
    return snapshot if snapshot.agent is None else msgspec.structs.replace(snapshot, agent=masked(snapshot.agent))


def snapshot_of(snapshot: Snapshot) -> dict[str, Any]:
    """What a turn ran with, as the trace shows it."""
    allowed = None if snapshot.principal is None else snapshot.principal.allowed_tools
    shown = msgspec.to_builtins(msgspec.structs.replace(masked_snapshot(snapshot), principal=None))
    return shown if allowed is None else {**shown, "allowed_tools": list(allowed)}


def page_item_of(page: PageSummary) -> wire.PageItem:
    return wire.PageItem(
        id=page.id,
        workspace_id=page.workspace_id,
        title=page.title,
        size=page.size,
        created_at=page.created_at,
        updated_at=page.updated_at,
    )


def page_of(page: KnowledgePage) -> wire.KnowledgePage:
    return wire.KnowledgePage(
        id=page.id,
        workspace_id=page.workspace_id,
        title=page.title,
        content=page.content,
        size=page.size,
        created_at=page.created_at,
        updated_at=page.updated_at,
    )


def table_of(table: KnowledgeTable) -> wire.Table:
    return wire.Table(
        id=table.id,
        workspace_id=table.workspace_id,
        name=table.name,
        description=table.description,
        columns=[wire.TableColumn(name=column.name, type=column.type) for column in table.columns],
        row_count=table.row_count,
        created_at=table.created_at,
        updated_at=table.updated_at,
    )


def table_row_of(table: KnowledgeTable, row: Row) -> wire.Row:
    values = values_of(table, row.cells)
    return wire.Row(row=row.number, values=values, created_at=row.created_at, updated_at=row.updated_at)
