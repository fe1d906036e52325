"""Tenants, members, keys, agents, tokens and usage, inside one session."""

import hmac

from turnkeep.clock import month_of
from turnkeep.errors import NotFound
from turnkeep.ids import (
    AgentId,
    KeyId,
    OrgId,
    UserId,
    WorkspaceId,
    new_agent_id,
    new_org_id,
    new_user_id,
    new_workspace_id,
)
from turnkeep.model.agents import Agent, AgentSpec
from turnkeep.model.principals import ApiKey, Member, Org, Principal, Workspace
from turnkeep.model.usage import KeyUsage, Messages, MonthlyUsage
from turnkeep.store.commands import Page, TokenBinding, TokenPurpose, page_of
from turnkeep.store.cursors import decode_cursor, encode_cursor
from turnkeep.store.rows import json_text, to_agent, to_key, to_member, to_workspace
from turnkeep.store.sqlite.io.session import Session
from turnkeep.store.sqlite.ownership import in_workspace
from turnkeep.store.tenants import check_may_go

DEFAULT_WORKSPACE = "Default"


def create_org(session: Session, name: str) -> tuple[Org, Workspace]:
    org = Org(id=new_org_id(), name=name, created_at=session.now)
    session.run("insert_org", {"id": org.id, "name": name, "now": session.now})
    return org, _insert_workspace(session, org.id, DEFAULT_WORKSPACE, None, is_default=True)


def create_workspace(session: Session, org_id: OrgId, name: str, model: str | None) -> Workspace:
    if session.row("org_exists", {"org": org_id}) is None:
        raise NotFound("No such org.")
    return _insert_workspace(session, org_id, name, model, is_default=False)


def _insert_workspace(session: Session, org_id: OrgId, name: str, model: str | None, *, is_default: bool) -> Workspace:
    values = {"id": new_workspace_id(), "org": org_id, "name": name, "model": model}
    row = session.rows("insert_workspace", values | {"is_default": is_default, "now": session.now})[0]
    return to_workspace(row)


def workspace(session: Session, org_id: OrgId, workspace_id: WorkspaceId | None) -> Workspace:
    if workspace_id is None:
        row = session.row("default_workspace", {"org": org_id})
    else:
        row = session.row("workspace", {"org": org_id, "workspace": workspace_id})
    if row is None:
        raise NotFound("No such workspace.")
    return to_workspace(row)


def change_workspace(session: Session, wanted: Workspace) -> Workspace:
    row = session.row(
        "change_workspace",
        {
            "org": wanted.org_id,
            "workspace": wanted.id,
            "name": wanted.name,
            "model": wanted.model,
            "limit": wanted.monthly_message_limit,
            "user_limit": wanted.user_monthly_message_limit,
        },
    )
    if row is None:
        raise NotFound("No such workspace.")
    return to_workspace(row)


def delete_workspace(session: Session, org_id: OrgId, workspace_id: WorkspaceId) -> None:
    is_default = workspace(session, org_id, workspace_id).is_default
    check_may_go(is_default, *session.rows("workspace_holds", {"workspace": workspace_id})[0])
    for name in ("delete_members", "delete_agents", "delete_keys", "delete_workspace"):
        session.run(name, {"workspace": workspace_id})


def ensure_member(
    session: Session, org_id: OrgId, workspace_id: WorkspaceId, external_id: str, role: str | None
) -> Member:
    workspace(session, org_id, workspace_id)
    values = {"id": new_user_id(), "org": org_id, "workspace": workspace_id, "external": external_id}
    return to_member(session.rows("ensure_member", values | {"role": role, "now": session.now})[0])


def add_key(session: Session, key: ApiKey, secret_hash: bytes) -> None:
    if session.row("org_exists", {"org": key.org_id}) is None:
        raise NotFound("No such org.")
    if key.workspace_id is not None:
        workspace(session, key.org_id, key.workspace_id)
    session.run(
        "insert_key",
        {
            "id": key.id,
            "org": key.org_id,
            "name": key.name,
            "hash": secret_hash,
            "limit": key.monthly_message_limit,
            "per_minute": key.requests_per_minute,
            "tools": None if key.allowed_tools is None else json_text(key.allowed_tools),
            "created_at": key.created_at,
            "revoked_at": key.revoked_at,
            "workspace": key.workspace_id,
        },
    )


def key_by_hash(session: Session, secret_hash: bytes) -> ApiKey | None:
    row = session.row("key_by_hash", {"hash": secret_hash})
    if row is None or not hmac.compare_digest(row[-1], secret_hash):
        return None
    return to_key(row)


def revoke_key(session: Session, org_id: OrgId, key_id: KeyId, workspace_id: WorkspaceId | None) -> None:
    which = {"org": org_id, "key": key_id, "workspace": workspace_id}
    if not session.run("revoke_key", which | {"now": session.now}):
        raise NotFound("No such key.")


def create_agent(session: Session, principal: Principal, spec: AgentSpec) -> Agent:
    workspace(session, principal.org_id, principal.workspace_id)
    values = in_workspace(principal) | {"id": new_agent_id(), "spec": json_text(spec), "now": session.now}
    return to_agent(session.rows("insert_agent", values)[0])


def my_agent(session: Session, agent_id: AgentId) -> Agent:
    row = session.row("my_agent", {"agent": agent_id})
    if row is None:
        raise NotFound("No such agent.")
    return to_agent(row)


def my_agents(session: Session, limit: int, cursor: str | None) -> Page[Agent]:
    before = None if cursor is None else decode_cursor(cursor, "agents", tuple[str])[0]
    found = session.rows("my_agents_page", {"before": before, "limit": limit + 1})
    return page_of(
        [to_agent(row) for row in found], limit=limit, cursor_of=lambda agent: encode_cursor("agents", agent.id)
    )


def change_agent(session: Session, principal: Principal, agent_id: AgentId, spec: AgentSpec) -> Agent:
    values = in_workspace(principal) | {"agent": agent_id, "spec": json_text(spec), "now": session.now}
    row = session.row("change_agent", values)
    if row is None:
        raise NotFound("No such agent.")
    return to_agent(row)


def delete_agent(session: Session, principal: Principal, agent_id: AgentId) -> None:
    if not session.run("delete_agent", in_workspace(principal) | {"agent": agent_id, "now": session.now}):
        raise NotFound("No such agent.")


def usage(session: Session, principal: Principal, month: str | None, user_id: UserId | None) -> MonthlyUsage:
    """The user's month with the limit for users, or the workspace's with its own."""
    user = principal.user_id or user_id
    found = workspace(session, principal.org_id, principal.workspace_id)
    month = month or month_of(session.clock())
    row = session.row(
        "usage",
        {
            "org": principal.org_id,
            "scope": "workspace" if user is None else "user",
            "scope_id": principal.workspace_id if user is None else user,
            "month": month,
        },
    )
    ui, api, input_tokens, output_tokens = row or (0, 0, 0, 0)
    return MonthlyUsage(
        month=month,
        messages=ui + api,
        by_source=Messages(ui=ui, api=api),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        limit=found.monthly_message_limit if user is None else found.user_monthly_message_limit,
        key=_key_usage(session, principal, month),
    )


def _key_usage(session: Session, principal: Principal, month: str) -> KeyUsage | None:
    if principal.role != "service" or principal.key_id is None:
        return None
    row = session.row("key_usage", {"org": principal.org_id, "key": principal.key_id, "month": month})
    return None if row is None else KeyUsage(messages=row[0], limit=row[1])


def add_token(session: Session, token_hash: bytes, binding: TokenBinding, expires_in_seconds: float) -> None:
    inserted = session.run(
        "insert_token",
        {
            "hash": token_hash,
            "turn": binding.turn_id,
            "attempt": binding.attempt,
            "purpose": binding.purpose,
            "expires_at": session.now + int(expires_in_seconds * 1000),
        },
    )
    if not inserted:
        raise NotFound("No such turn.")


def peek_token(session: Session, token_hash: bytes, purpose: TokenPurpose) -> TokenBinding | None:
    row = session.row("peek_token", {"hash": token_hash, "purpose": purpose, "now": session.clock()})
    return None if row is None else TokenBinding(purpose=row[0], turn_id=row[1], attempt=row[2])


def spend_token(session: Session, token_hash: bytes, purpose: TokenPurpose) -> TokenBinding | None:
    row = session.row("spend_token", {"hash": token_hash, "purpose": purpose, "now": session.now})
    return None if row is None else TokenBinding(purpose=row[0], turn_id=row[1], attempt=row[2])
