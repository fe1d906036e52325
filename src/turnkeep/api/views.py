"""Views: from the values of the model to the shapes of the wire.

A field with the same name in both is copied. So a new field of a conversation, a turn or a key needs no line here.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from turnkeep.api.http.requests import shared_fields
from turnkeep.api.http.responses import events_url
from turnkeep.api.identity.users import UserRefs
from turnkeep.compiler import Compiled
from turnkeep.config import MASK
from turnkeep.knowledge.table_rows import values_of
from turnkeep.model.agents import Agent as StoredAgent
from turnkeep.model.agents import AgentSpec, McpConnection, Snapshot, with_secrets
from turnkeep.model.conversations import Conversation, Hit, Share
from turnkeep.model.knowledge import KnowledgePage, KnowledgeTable, PageSummary, Row
from turnkeep.model.messages import Message, PublicMessage
from turnkeep.model.outbox import Delivery, Webhook
from turnkeep.model.principals import ApiKey, Member, Org, Principal, Scopes, UserRef, Workspace
from turnkeep.model.sessions import Invite, PageSession
from turnkeep.model.turns import Feedback, RatedTurn, Turn
from turnkeep.model.waits import Wait
from turnkeep.providers.ports import ToolOffer
from turnkeep.store.commands import CountedTurn
from turnkeep_client import wire
from turnkeep_client.wire.conversations import TimelineAccess
from turnkeep_client.wire.display import parts_of
from turnkeep_client.wire.events import Files, Recorded, Result, ToolCall

Shape = TypeVar("Shape", bound=Struct)


def turn_of(turn: Turn, events: Sequence[Recorded] = ()) -> wire.Turn:
    """The turn, with the result from its events."""
    return _view(
        wire.Turn,
        turn,
        error=None if turn.error is None else _view(wire.TurnFailure, turn.error),
        response=next((one.event.message for one in reversed(events) if isinstance(one.event, Result)), None),
        files=[file for one in events if isinstance(one.event, Files) for file in one.event.files],
        waiting_for=None if turn.status != "waiting" or turn.wait is None else _waiting_for(turn, turn.wait),
    )


def _waiting_for(turn: Turn, wait: Wait) -> wire.WaitingFor | None:
    """What is still missing, and what was decided in this wait."""
    approvers = ("author",) if turn.snapshot.agent is None else turn.snapshot.agent.approvers
    calls: dict[str, list[ToolCall]] = {"approval": [], "client_tools": []}
    for call in wait.open_calls:
        calls[call.reason].append(ToolCall(id=call.id, name=call.name, args=call.args))
    if wait.reason is None:
        return None
    return wire.WaitingFor(
        type=wait.reason,
        calls=calls[wait.reason],
        expires_at=wait.expires_at,
        client_calls=calls["client_tools"] if wait.reason == "approval" else (),
        approvers=None if wait.reason != "approval" or approvers == ("author",) else list(approvers),
        decided=wait.decisions,
    )


def timeline_of(
    turn: Turn,
    spans: Sequence[wire.Span],
    *,
    access: TimelineAccess,
    cost: float | None,
    user: UserRef | None,
    now: int,
) -> wire.Timeline:
    """The timeline of a turn. An outline does not say why the turn failed, as the reason may quote what was said."""
    agent = turn.snapshot.agent
    error = None if turn.error is None else _view(wire.TurnFailure, turn.error)
    if error is not None and access == "outline":
        error = wire.TurnFailure(code=error.code, message="")
    return _view(
        wire.Timeline,
        turn,
        turn_id=turn.id,
        access=access,
        agent_id=turn.snapshot.agent_id,
        agent_name=None if agent is None else agent.name,
        user=user,
        error=error,
        cost=cost,
        now=now,
        spans=spans,
    )


def replay_of(compiled: Compiled) -> wire.Replay:
    return wire.Replay(
        messages=compiled.messages,
        system=compiled.system,
        turns_included=compiled.turns_included,
        turns_dropped=compiled.turns_dropped,
        chars=compiled.chars,
    )


def turn_replay_of(compiled: Compiled, tools: Sequence[ToolOffer], missing: Sequence[str]) -> wire.TurnReplay:
    offered = [_view(wire.OfferedTool, tool) for tool in tools]
    return wire.TurnReplay(**msgspec.structs.asdict(replay_of(compiled)), tools=offered, missing=missing)


def usage_turn_of(turn: CountedTurn, user: UserRef | None) -> wire.UsageTurn:
    return _view(wire.UsageTurn, turn, user=user)


def message_of(message: PublicMessage) -> wire.Message:
    return _view(
        wire.Message,
        message,
        error=None if message.error is None else _view(wire.TurnFailure, message.error),
        finish=message.finish,
    )


def conversation_of(
    stored: Conversation,
    users: UserRefs,
    *,
    queue: Sequence[PublicMessage] | None = None,
    shape: type[wire.Conversation] = wire.Conversation,
    **more: Any,
) -> wire.Conversation:
    """The conversation. Without `queue` (in lists) the answer does not speak of queued turns at all."""
    running = stored.running_turn_id
    return _view(
        shape,
        stored,
        user=users.get(stored.user_id),
        is_unread=stored.is_unread,
        running_turn=None
        if running is None
        else wire.RunningTurn(id=running, events_url=events_url(running), waiting_for=stored.waiting_for),
        queued_turns=() if queue is None else [_queued(message) for message in queue],
        **more,
    )


def _queued(message: PublicMessage) -> wire.QueuedTurn:
    return wire.QueuedTurn(id=message.turn_id, events_url=events_url(message.turn_id), message=message_of(message))


def hit_of(hit: Hit, users: UserRefs, *, is_search: bool) -> wire.Conversation:
    """A conversation of a list; that of a search has a snippet, or null if no message has all the words. Lists leave
    the instructions out, which may be long."""
    if not is_search:
        return conversation_of(hit.conversation, users, instructions=None)
    found = wire.FoundConversation
    return conversation_of(hit.conversation, users, shape=found, snippet=hit.snippet, instructions=None)


def row_of(row: Message, user: UserRef | None) -> wire.TraceRow:
    """A row of a conversation that belongs to this user. The display of an answer without steps may not be stored."""
    is_answer = row.role == "assistant" and not row.internal
    content = parts_of(row.blocks) if row.display is None and is_answer else row.display
    return _view(wire.TraceRow, row, user=user, content=content)


def key_of(key: ApiKey, *, secret: str | None = None) -> wire.Key:
    return _view(wire.Key, key, key=secret, scopes=scopes_of(key.scopes))


def scopes_of(scopes: Scopes | None) -> wire.GrantedScopes | None:
    return None if scopes is None else _view(wire.GrantedScopes, scopes)


def user_of(member: Member) -> wire.User:
    return _view(wire.User, member)


def session_of(session: PageSession, *, is_current: bool) -> wire.PageSession:
    return _view(wire.PageSession, session, is_current=is_current)


def invite_of(invite: Invite, user: UserRef) -> wire.Invite:
    return _view(wire.Invite, invite, user=user)


def share_of(share: Share, users: UserRefs, *, shows_title: bool) -> wire.Share:
    """A share link. The title of a conversation is for those who may see the conversation."""
    return _view(wire.Share, share, user=users.get(share.user_id), title=share.title if shows_title else None)


def feedback_of(feedback: Feedback) -> wire.Feedback:
    return _view(wire.Feedback, feedback)


def feedback_item_of(rated: RatedTurn, users: UserRefs) -> wire.FeedbackItem:
    """A rating of any user, with what the turn ran with."""
    more = {"model": rated.model, "agent_id": rated.agent_id, "usage": rated.usage}
    return _view(wire.FeedbackItem, rated.feedback, user=users.get(rated.feedback.user_id), **more)


def webhook_of(webhook: Webhook, *, secret: str | None = None) -> wire.Webhook:
    """The webhook. Its secret is shown only when it is made."""
    return _view(wire.Webhook, webhook, secret=secret)


def delivery_of(delivery: Delivery) -> wire.WebhookDelivery:
    return _view(wire.WebhookDelivery, delivery, next_attempt_at=delivery.not_before, payload=delivery.payload)


def workspace_of(stored: Workspace) -> wire.Workspace:
    return _view(wire.Workspace, stored)


def org_of(org: Org, *, secret: str | None = None) -> wire.Org:
    return _view(wire.Org, org, key=secret)


def agent_for(principal: Principal, agent: StoredAgent) -> wire.Agent:
    """What this principal may see of an agent."""
    if principal.role == "member":
        spec = agent.spec
        return wire.Agent(
            id=agent.id,
            name=spec.name,
            avatar=spec.avatar,
            description=spec.description,
            starters=spec.starters,
            model=spec.model,
        )
    return agent_of(agent)


def agent_of(agent: StoredAgent, *, warnings: Sequence[str] = (), tool_secret: str | None = None) -> wire.Agent:
    spec = masked(agent.spec)
    return _view(
        wire.Agent,
        spec,
        id=agent.id,
        workspace_id=agent.workspace_id,
        # Lists, because the shape leaves out an empty tuple.
        tools=list(spec.tools),
        mcp_servers=list(spec.mcp_servers),
        skills=list(spec.skills),
        approvers=list(spec.approvers),
        created_at=agent.created_at,
        updated_at=agent.updated_at,
        tool_secret=tool_secret,
        warnings=warnings,
    )


def masked(spec: AgentSpec) -> AgentSpec:
    return msgspec.structs.replace(with_secrets(spec, lambda _place, _text: MASK), tool_secret=None)


def masked_snapshot(snapshot: Snapshot) -> Snapshot:
    return snapshot if snapshot.agent is None else msgspec.structs.replace(snapshot, agent=masked(snapshot.agent))


def snapshot_of(snapshot: Snapshot) -> dict[str, Any]:
    """What a turn ran with, as the trace shows it."""
    allowed = None if snapshot.principal is None else snapshot.principal.allowed_tools
    shown = msgspec.to_builtins(msgspec.structs.replace(masked_snapshot(snapshot), principal=None))
    return shown if allowed is None else {**shown, "allowed_tools": list(allowed)}


def mcp_connection_of(connection: McpConnection, users: UserRefs) -> wire.McpConnection:
    status = "connected" if connection.is_connected else "pending" if connection.problem is None else "ended"
    return _view(wire.McpConnection, connection, status=status, user=users.get(connection.user_id))


def page_item_of(page: PageSummary) -> wire.PageItem:
    return _view(wire.PageItem, page)


def page_of(page: KnowledgePage) -> wire.KnowledgePage:
    return _view(wire.KnowledgePage, page)


def table_of(table: KnowledgeTable) -> wire.Table:
    return _view(wire.Table, table, columns=[_view(wire.TableColumn, column) for column in table.columns])


def table_row_of(table: KnowledgeTable, row: Row) -> wire.Row:
    values = values_of(table, row.cells)
    return wire.Row(row=row.number, values=values, created_at=row.created_at, updated_at=row.updated_at)


def _view(shape: type[Shape], stored: Struct, **more: Any) -> Shape:
    """The shape with every field that the stored value has under the same name. `more` gives the other fields, and
    those that the wire writes in another way."""
    return shape(**{name: getattr(stored, name) for name in shared_fields(shape, type(stored))} | more)
