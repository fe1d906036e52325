"""The directory on SQLite: orgs, workspaces, members, keys, agents, usage, tokens, sessions and invites."""

import hmac
from collections.abc import Callable, Sequence
from typing import Any

from turnkeep.clock import month_of
from turnkeep.ids import (
    AgentId,
    ConnectionId,
    InviteId,
    KeyId,
    OrgId,
    SessionId,
    TurnId,
    UserId,
    WorkspaceId,
    check_id,
    new_agent_id,
    new_invite_id,
    new_org_id,
    new_session_id,
    new_user_id,
    new_workspace_id,
)
from turnkeep.model.agents import Agent, AgentSpec, McpConnection
from turnkeep.model.principals import ApiKey, Member, Org, Principal, Workspace
from turnkeep.model.sessions import Invite, NewSession, PageSession, SignedIn
from turnkeep.store import checks
from turnkeep.store.commands import CountedTurn, Page, TokenBinding, TokenPurpose, UsageFilter, page_of, rows_that_fit
from turnkeep.store.cursors import decode_cursor, encode_cursor
from turnkeep.store.rows import (
    json_text,
    to_agent,
    to_binding,
    to_invite,
    to_key,
    to_mcp_connection,
    to_member,
    to_org,
    to_session,
    to_signed_in,
    to_workspace,
)
from turnkeep.store.rules.claims import user_gone
from turnkeep.store.rules.directory import (
    DEFAULT_WORKSPACE,
    ScopeUse,
    agent_name_key,
    check_key_is_new,
    check_may_go,
    check_model,
    check_month,
    check_name,
    check_role,
    check_workspace,
    key_record,
    limit_of,
    limit_uses_of,
    limits_query,
    member_record,
    members_page,
    members_query,
    monthly_usage,
    no_agent,
    no_connection,
    no_key,
    no_org,
    no_user,
    no_workspace,
    oldest,
    reached_agents,
    usage_query,
    usage_row,
    usage_scope,
    usage_turns_page,
    usage_turns_query,
    workspace_record,
)
from turnkeep.store.rules.sessions import invite_record, no_invite, no_session, session_record
from turnkeep.store.rules.turns import no_turn
from turnkeep.store.sqlite.io.executors import StoreThreads
from turnkeep.store.sqlite.io.session import Session, in_workspace
from turnkeep_client.wire.account import GroupBy, LimitUse, MonthlyUsage, UsageRow


class SqliteDirectory(StoreThreads):
    """Tenants and who may act in them. Promises are those of `ports.DirectoryStore`."""

    async def create_org(self, name: str) -> tuple[Org, Workspace]:
        return await self._write(_create_org, check_name(name))

    async def first_org(self, name: str) -> Org:
        orgs = await self.orgs()
        return oldest(orgs) if orgs else await self._write(_first_org, check_name(name))

    async def orgs(self) -> list[Org]:
        return await self._read(lambda session: [to_org(row) for row in session.rows("orgs")])

    async def create_workspace(self, org_id: OrgId, name: str, *, model: str | None = None) -> Workspace:
        check_id(org_id, "org")
        return await self._write(_create_workspace, org_id, check_name(name), check_model(model))

    async def workspace(self, org_id: OrgId, workspace_id: WorkspaceId | None = None) -> Workspace:
        check_workspace(org_id, workspace_id)
        return await self._read(workspace, org_id, workspace_id)

    async def workspaces(self, org_id: OrgId) -> list[Workspace]:
        check_id(org_id, "org")
        return await self._read(
            lambda session: [to_workspace(row) for row in session.rows("workspaces", {"org": org_id})]
        )

    async def change_workspace(
        self, org_id: OrgId, workspace_id: WorkspaceId, change: Callable[[Workspace], Workspace]
    ) -> Workspace:
        check_workspace(org_id, workspace_id)
        return await self._write(_change_workspace, org_id, workspace_id, change)

    async def delete_workspace(self, org_id: OrgId, workspace_id: WorkspaceId) -> None:
        await self._write(_delete_workspace, check_id(org_id, "org"), check_id(workspace_id, "ws"))

    async def ensure_member(
        self,
        org_id: OrgId,
        workspace_id: WorkspaceId,
        external_id: str,
        *,
        role: str | None = None,
        name: str | None = None,
    ) -> Member:
        check_workspace(org_id, workspace_id)
        checks.check_text(external_id, "user", limit=checks.KEY_CHARS)
        check_role(role)
        given = {"role": role, "name": None if name is None else check_name(name)}
        return await self._write(_ensure_member, org_id, workspace_id, external_id, given)

    async def members(
        self,
        org_id: OrgId,
        workspace_id: WorkspaceId,
        *,
        query: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Member]:
        which = members_query(org_id, workspace_id, query, limit, cursor)
        return members_page(await self._read(lambda session: session.rows("members", which)), limit)

    async def member(self, org_id: OrgId, workspace_id: WorkspaceId, name: str) -> Member:
        check_workspace(org_id, workspace_id)
        checks.check_text(name, "user", limit=checks.KEY_CHARS)
        return await self._read(_member, {"org": org_id, "workspace": workspace_id, "name": name})

    async def member_of_host(self, org_id: OrgId, workspace_id: WorkspaceId, external_id: str) -> Member | None:
        check_workspace(org_id, workspace_id)
        checks.check_text(external_id, "user", limit=checks.KEY_CHARS)
        which = {"org": org_id, "workspace": workspace_id, "external": external_id}
        row = await self._read(lambda session: session.row("member_of_host", which))
        return None if row is None else to_member(row)

    async def members_by_id(self, org_id: OrgId, user_ids: Sequence[UserId]) -> list[Member]:
        which = {"org": check_id(org_id, "org"), "users": json_text([check_id(user, "user") for user in user_ids])}
        return await self._read(lambda session: [to_member(row) for row in session.rows("members_by_id", which)])

    async def change_member(
        self, org_id: OrgId, workspace_id: WorkspaceId, user_id: UserId, change: Callable[[Member], Member]
    ) -> Member:
        check_workspace(org_id, workspace_id)
        which = {"org": org_id, "workspace": workspace_id, "user": check_id(user_id, "user")}
        return await self._write(_change_member, which, change)

    async def open_turns(self, org_id: OrgId, user_id: UserId) -> list[TurnId]:
        which = {"org": check_id(org_id, "org"), "user": check_id(user_id, "user")}
        return await self._read(lambda session: [row[0] for row in session.rows("open_turns", which)])

    async def add_key(self, key: ApiKey, secret_hash: bytes) -> None:
        await self._write(_add_key, key_record(key, secret_hash))

    async def key_by_hash(self, secret_hash: bytes) -> ApiKey | None:
        return await self._read(_key_by_hash, secret_hash)

    async def keys(self, org_id: OrgId, *, workspace_id: WorkspaceId | None = None) -> list[ApiKey]:
        check_workspace(org_id, workspace_id)
        which = {"org": org_id, "workspace": workspace_id}
        return await self._read(lambda session: [to_key(row) for row in session.rows("keys", which)])

    async def keys_by_id(self, org_id: OrgId, key_ids: Sequence[KeyId]) -> list[ApiKey]:
        which = {"org": check_id(org_id, "org"), "keys": json_text([check_id(key, "key") for key in key_ids])}
        return await self._read(lambda session: [to_key(row) for row in session.rows("keys_by_id", which)])

    async def revoke_key(
        self, org_id: OrgId, key_id: KeyId, *, workspace_id: WorkspaceId | None = None, keeps_made: bool = False
    ) -> None:
        check_workspace(org_id, workspace_id)
        check_id(key_id, "key")
        which = {"org": org_id, "key": key_id, "workspace": workspace_id}
        await self._write(_revoke_key, which, keeps_made)

    async def create_agent(self, principal: Principal, spec: AgentSpec) -> Agent:
        return await self._write(_create_agent, principal, checks.check_agent(spec))

    async def agent(self, principal: Principal, agent_id: AgentId) -> Agent:
        return await self._see(principal, _my_agent, check_id(agent_id, "agent"))

    async def agents(self, principal: Principal, *, limit: int = 50, cursor: str | None = None) -> Page[Agent]:
        checks.check_limit(limit)
        reached = reached_agents(principal)
        return await self._see(principal, _my_agents, limit, cursor, None if reached is None else json_text(reached))

    async def change_agent(
        self, principal: Principal, agent_id: AgentId, change: Callable[[AgentSpec], AgentSpec]
    ) -> Agent:
        check_id(agent_id, "agent")
        return await self._write(_change_agent, principal, agent_id, change)

    async def delete_agent(self, principal: Principal, agent_id: AgentId) -> None:
        await self._write(_delete_agent, principal, check_id(agent_id, "agent"))

    async def begin_mcp_connection(
        self, principal: Principal, url: str, *, connection_id: ConnectionId, issuer: str, attempt: str
    ) -> McpConnection:
        values = {"id": check_id(connection_id, "mcp"), "url": url, "issuer": issuer, "attempt": attempt}
        return await self._write(_begin_mcp_connection, principal, values)

    async def mcp_connections(self, org_id: OrgId, workspace_id: WorkspaceId) -> list[McpConnection]:
        check_workspace(org_id, workspace_id)
        which = {"org": org_id, "workspace": workspace_id}
        return [to_mcp_connection(row) for row in await self._read(lambda one: one.rows("mcp_connections", which))]

    async def mcp_connection(
        self, org_id: OrgId, workspace_id: WorkspaceId, connection_id: ConnectionId
    ) -> McpConnection:
        check_workspace(org_id, workspace_id)
        which = {"org": org_id, "workspace": workspace_id, "id": check_id(connection_id, "mcp")}
        row = await self._read(lambda session: session.row("mcp_connection", which))
        if row is None:
            raise no_connection()
        return to_mcp_connection(row)

    async def mcp_connection_at(self, org_id: OrgId, workspace_id: WorkspaceId, url: str) -> McpConnection | None:
        check_workspace(org_id, workspace_id)
        which = {"org": org_id, "workspace": workspace_id, "url": url}
        row = await self._read(lambda session: session.row("mcp_connection_at", which))
        return None if row is None else to_mcp_connection(row)

    async def finish_mcp_connection(
        self, principal: Principal, connection_id: ConnectionId, *, attempt: str, sealed: str, issuer: str
    ) -> McpConnection | None:
        given = {"user": principal.user_id, "attempt": attempt, "sealed": sealed, "issuer": issuer}
        which = in_workspace(principal) | {"id": check_id(connection_id, "mcp")} | given
        row = await self._write(
            lambda session: next(iter(session.rows("finish_mcp_connection", which | {"now": session.now})), None)
        )
        return None if row is None else to_mcp_connection(row)

    async def lease_mcp_connection(self, connection_id: ConnectionId, *, version: int, seconds: float) -> bool:
        which = {"id": check_id(connection_id, "mcp"), "version": version, "ms": int(seconds * 1000)}
        return bool(
            await self._write(lambda session: session.rows("lease_mcp_connection", which | {"now": session.now}))
        )

    async def renew_mcp_connection(
        self, connection_id: ConnectionId, *, version: int, sealed: str | None, problem: str | None = None
    ) -> None:
        which = {"id": check_id(connection_id, "mcp"), "version": version, "sealed": sealed, "problem": problem}
        await self._write(lambda session: session.run("renew_mcp_connection", which))

    async def delete_mcp_connection(
        self, org_id: OrgId, workspace_id: WorkspaceId, connection_id: ConnectionId
    ) -> McpConnection:
        check_workspace(org_id, workspace_id)
        which = {"org": org_id, "workspace": workspace_id, "id": check_id(connection_id, "mcp")}
        rows = await self._write(lambda session: session.rows("delete_mcp_connection", which))
        if not rows:
            raise no_connection()
        return to_mcp_connection(rows[0])

    async def usage(
        self, principal: Principal, *, month: str | None = None, user_id: UserId | None = None
    ) -> MonthlyUsage:
        check_month(month)
        if user_id is not None:
            check_id(user_id, "user")
        return await self._read(_usage, principal, month, user_id)

    async def add_up_usage(self, *, limit: int = 1_000) -> bool:
        """One thread writes, so each counter is one row."""
        return False

    async def usage_rows(self, principal: Principal, only: UsageFilter, *, group_by: GroupBy) -> list[UsageRow]:
        which = usage_query(principal, only, group_by)
        return await self._read(lambda session: [usage_row(row) for row in session.rows("usage_rows", which)])

    async def usage_turns(
        self, principal: Principal, only: UsageFilter, *, limit: int = 50, cursor: str | None = None
    ) -> Page[CountedTurn]:
        which = usage_turns_query(principal, only, limit, cursor)
        return usage_turns_page(await self._read(lambda session: session.rows("usage_turns", which)), which, limit)

    async def limit_uses(self, principal: Principal, *, month: str, user_id: UserId | None = None) -> list[LimitUse]:
        return await self._read(_limit_uses, limits_query(principal, month, user_id))

    async def add_token(self, token_hash: bytes, binding: TokenBinding, *, expires_in_seconds: float) -> None:
        checks.check_binding(binding)
        check_id(binding.turn_id, "turn")
        checks.check_hash(token_hash, "A token")
        await self._write(_add_token, token_hash, binding, expires_in_seconds)

    async def spend_token(self, token_hash: bytes, purpose: TokenPurpose) -> TokenBinding | None:
        return await self._write(_spend_token, token_hash, purpose)

    async def peek_token(self, token_hash: bytes, purpose: TokenPurpose) -> TokenBinding | None:
        return await self._read(_peek_token, token_hash, purpose)

    async def expire_tokens(self, turn_id: TurnId) -> None:
        check_id(turn_id, "turn")
        await self._write(lambda session: session.run("expire_tokens", {"turn": turn_id, "now": session.now}))


def _create_org(session: Session, name: str) -> tuple[Org, Workspace]:
    org = Org(id=new_org_id(), name=name, created_at=session.now)
    session.run("insert_org", {"id": org.id, "name": name, "now": session.now})
    return org, _insert_workspace(session, org.id, DEFAULT_WORKSPACE, None, is_default=True)


def _first_org(session: Session, name: str) -> Org:
    rows = session.rows("orgs")
    return oldest([to_org(row) for row in rows]) if rows else _create_org(session, name)[0]


def _create_workspace(session: Session, org_id: OrgId, name: str, model: str | None) -> Workspace:
    if session.row("org_exists", {"org": org_id}) is None:
        raise no_org()
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
        raise no_workspace()
    return to_workspace(row)


def _change_workspace(
    session: Session, org_id: OrgId, workspace_id: WorkspaceId, change: Callable[[Workspace], Workspace]
) -> Workspace:
    changed = change(workspace(session, org_id, workspace_id))
    [row] = session.rows("change_workspace", workspace_record(changed))
    return to_workspace(row)


def _delete_workspace(session: Session, org_id: OrgId, workspace_id: WorkspaceId) -> None:
    is_default = workspace(session, org_id, workspace_id).is_default
    check_may_go(is_default, *session.rows("workspace_holds", {"workspace": workspace_id})[0])
    for name in ("delete_webhooks", "delete_members", "delete_agents", "delete_keys", "delete_workspace"):
        session.run(name, {"workspace": workspace_id})


def _ensure_member(
    session: Session, org_id: OrgId, workspace_id: WorkspaceId, external_id: str, given: dict[str, str | None]
) -> Member:
    workspace(session, org_id, workspace_id)
    values = {"id": new_user_id(), "org": org_id, "workspace": workspace_id, "external": external_id}
    return to_member(session.rows("ensure_member", values | given | {"now": session.now})[0])


def _member(session: Session, which: dict[str, str]) -> Member:
    row = session.row("member", which)
    if row is None:
        raise no_user()
    return to_member(row)


def _change_member(session: Session, which: dict[str, Any], change: Callable[[Member], Member]) -> Member:
    before = session.row("member_to_change", which)
    if before is None:
        raise no_user()
    [row] = session.rows("change_member", member_record(which["org"], change(to_member(before))))
    return to_member(row)


def _add_key(session: Session, record: dict[str, Any]) -> None:
    has_org = session.row("org_exists", record) is not None
    has_workspace = record["workspace"] is None or session.row("workspace", record) is not None
    has_maker = record["maker"] is None or session.row("key_is_live", record) is not None
    is_same = has_org and has_workspace and has_maker and bool(session.run("insert_key", record))
    if not is_same:
        is_same = session.row("same_key", record) is not None
    check_key_is_new(has_org=has_org, has_workspace=has_workspace, has_maker=has_maker or is_same, is_same=is_same)


def _key_by_hash(session: Session, secret_hash: bytes) -> ApiKey | None:
    row = session.row("key_by_hash", {"hash": secret_hash})
    if row is None:
        return None
    *key, stored_hash = row
    return to_key(key) if hmac.compare_digest(stored_hash, secret_hash) else None


def _revoke_key(session: Session, which: dict[str, Any], keeps_made: bool) -> None:
    if not session.run("revoke_key", which | {"now": session.now}):
        raise no_key()
    if not keeps_made:
        session.run("revoke_made_keys", which | {"now": session.now})


def _create_agent(session: Session, principal: Principal, spec: AgentSpec) -> Agent:
    workspace(session, principal.org_id, principal.workspace_id)
    values = in_workspace(principal) | {"id": new_agent_id(), "spec": json_text(spec), "now": session.now}
    values["name_key"] = _name_key(session, principal, values["id"], spec.name)
    return to_agent(session.rows("insert_agent", values)[0])


def _name_key(
    session: Session, principal: Principal, agent_id: str, name: str, *, before: str | None = None
) -> str | None:
    which = {"workspace": principal.workspace_id, "agent": agent_id, "name_key": agent_name_key(name, None, ())}
    return agent_name_key(name, before, session.rows("agents_named", which))


def _begin_mcp_connection(session: Session, principal: Principal, values: dict[str, Any]) -> McpConnection:
    workspace(session, principal.org_id, principal.workspace_id)
    who = in_workspace(principal) | {"user": principal.user_id, "now": session.now}
    return to_mcp_connection(session.rows("begin_mcp_connection", who | values)[0])


def _my_agent(session: Session, agent_id: AgentId) -> Agent:
    row = session.row("my_agent", {"agent": agent_id})
    if row is None:
        raise no_agent()
    return to_agent(row)


def _my_agents(session: Session, limit: int, cursor: str | None, reached: str | None) -> Page[Agent]:
    before = None if cursor is None else decode_cursor(cursor, "agents", tuple[str])[0]
    found = session.rows("my_agents_page", {"before": before, "limit": limit + 1, "reached": reached})
    return page_of(
        [to_agent(row) for row in found],
        limit=rows_that_fit(found, limit),
        cursor_of=lambda agent: encode_cursor("agents", agent.id),
    )


def _change_agent(
    session: Session, principal: Principal, agent_id: AgentId, change: Callable[[AgentSpec], AgentSpec]
) -> Agent:
    which = in_workspace(principal) | {"agent": agent_id}
    before = session.row("agent_to_change", which)
    if before is None:
        raise no_agent()
    known = to_agent(before).spec
    spec = checks.check_agent(change(known))
    key = _name_key(session, principal, agent_id, spec.name, before=known.name)
    [row] = session.rows("change_agent", which | {"spec": json_text(spec), "name_key": key, "now": session.now})
    return to_agent(row)


def _delete_agent(session: Session, principal: Principal, agent_id: AgentId) -> None:
    if not session.run("delete_agent", in_workspace(principal) | {"agent": agent_id, "now": session.now}):
        raise no_agent()


def _usage(session: Session, principal: Principal, month: str | None, user_id: UserId | None) -> MonthlyUsage:
    """The user's month with the limit for users, or the workspace's with its own."""
    with session.snapshot():
        found = workspace(session, principal.org_id, principal.workspace_id)
        month = month or month_of(session.clock())
        scope, scope_id = usage_scope(principal, user_id)
        which = {"org": principal.org_id, "month": month}
        own = session.row("limit_of_user", {"org": principal.org_id, "user": scope_id}) if scope == "user" else None
        counted = session.row("usage", which | {"scope": scope, "scope_id": scope_id}) or (0, 0, 0, 0)
        has_key = principal.role == "service" and principal.key_id is not None
        key = session.row("key_usage", which | {"key": principal.key_id}) if has_key else None
    return monthly_usage(month, counted, limit_of(scope, found, own), key)


def _limit_uses(session: Session, which: dict[str, Any]) -> list[LimitUse]:
    with session.snapshot():
        scopes = [
            ScopeUse(scope, scope_id, tuple(limits), (*used, _open_turns(session, scope, scope_id, limits[-1])))
            for scope, scope_id, *limits_and_use in session.rows("limit_uses", which)
            for limits, used in [(limits_and_use[:5], limits_and_use[5:])]
        ]
        return limit_uses_of(scopes, is_this_month=which["month"] == month_of(session.clock()))


def _open_turns(session: Session, scope: str, scope_id: str, limit: int | None) -> int | None:
    if limit is None:
        return None
    [(count,)] = session.rows("open_turns_of", {"scope": scope, "scope_id": scope_id, "gone": "[]"})
    return int(count)


def _add_token(session: Session, token_hash: bytes, binding: TokenBinding, expires_in_seconds: float) -> None:
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
        raise no_turn()


def _peek_token(session: Session, token_hash: bytes, purpose: TokenPurpose) -> TokenBinding | None:
    row = session.row("peek_token", {"hash": token_hash, "purpose": purpose, "now": session.clock()})
    return None if row is None else to_binding(row)


def _spend_token(session: Session, token_hash: bytes, purpose: TokenPurpose) -> TokenBinding | None:
    row = session.row("spend_token", {"hash": token_hash, "purpose": purpose, "now": session.now})
    return None if row is None else to_binding(row)


def check_user(session: Session, principal: Principal) -> None:
    """Raises Forbidden if the principal's user was erased or disabled since the request began."""
    which = {"org": principal.org_id, "user": principal.user_id}
    if principal.user_id is not None and session.row("user_is_enabled", which) is None:
        raise user_gone()


def has_workspace(session: Session, principal: Principal) -> bool:
    """Whether the workspace of this principal exists."""
    return session.row("workspace_exists", in_workspace(principal)) is not None


class SqliteSessions(StoreThreads):
    """Who is signed in. Promises are those of `ports.SessionStore`."""

    async def add_session(self, org_id: OrgId, user_id: UserId, session: NewSession) -> PageSession:
        record = {"org": check_id(org_id, "org"), "user": check_id(user_id, "user")} | session_record(session)
        return await self._write(_add_session, record)

    async def signed_in(self, secret_hash: bytes) -> SignedIn | None:
        return await self._read(_signed_in, secret_hash)

    async def use_session(self, session_id: SessionId) -> None:
        which = {"id": check_id(session_id, "session")}
        await self._write(lambda session: session.run("use_session", which | {"now": session.now}))

    async def sessions(self, org_id: OrgId, user_id: UserId) -> list[PageSession]:
        which = {"org": check_id(org_id, "org"), "user": check_id(user_id, "user")}

        def read(session: Session) -> list[PageSession]:
            return [to_session(row) for row in session.rows("sessions_of_user", which | {"now": session.clock()})]

        return await self._read(read)

    async def end_session(self, org_id: OrgId, user_id: UserId, session_id: SessionId) -> None:
        which = {"org": check_id(org_id, "org"), "user": check_id(user_id, "user")}
        await self._write(_end_session, which | {"id": check_id(session_id, "session")})

    async def end_sessions(self, org_id: OrgId, user_id: UserId, *, kept: SessionId | None = None) -> None:
        which = {"org": check_id(org_id, "org"), "user": check_id(user_id, "user"), "kept": kept}
        await self._write(lambda session: session.run("end_sessions", which))

    async def end_session_by_hash(self, secret_hash: bytes) -> None:
        await self._write(lambda session: session.run("end_session_by_hash", {"hash": secret_hash}))

    async def add_invite(self, org_id: OrgId, user_id: UserId, secret_hash: bytes, *, seconds: float) -> Invite:
        record = {"org": check_id(org_id, "org"), "user": check_id(user_id, "user")}
        return await self._write(_add_invite, record | invite_record(secret_hash, seconds))

    async def invites(self, org_id: OrgId, workspace_id: WorkspaceId) -> list[Invite]:
        check_workspace(org_id, workspace_id)
        which = {"org": org_id, "workspace": workspace_id}

        def read(session: Session) -> list[Invite]:
            return [to_invite(row) for row in session.rows("invites", which | {"now": session.clock()})]

        return await self._read(read)

    async def delete_invite(self, org_id: OrgId, workspace_id: WorkspaceId, invite_id: InviteId) -> None:
        check_workspace(org_id, workspace_id)
        which = {"org": org_id, "workspace": workspace_id, "id": check_id(invite_id, "invite")}
        await self._write(_delete_invite, which)

    async def spend_invite(self, secret_hash: bytes, session: NewSession) -> PageSession | None:
        return await self._write(_spend_invite, secret_hash, session_record(session))


def _add_session(session: Session, record: dict[str, Any]) -> PageSession:
    session.run("delete_expired_sessions", {"now": session.now})
    ends = {"now": session.now, "expires_at": session.now + record["ms"]}
    row = session.row("insert_session", record | {"id": new_session_id()} | ends)
    if row is None:
        raise no_user()
    return to_session(row)


def _signed_in(session: Session, secret_hash: bytes) -> SignedIn | None:
    row = session.row("session_by_hash", {"hash": secret_hash, "now": session.clock()})
    if row is None or not hmac.compare_digest(row[-1], secret_hash):
        return None
    return to_signed_in(row)


def _end_session(session: Session, which: dict[str, str]) -> None:
    if not session.run("end_session", which):
        raise no_session()


def _add_invite(session: Session, record: dict[str, Any]) -> Invite:
    session.run("delete_expired_invites", {"now": session.now})
    ends = {"now": session.now, "expires_at": session.now + record["ms"]}
    row = session.row("insert_invite", record | {"id": new_invite_id()} | ends)
    if row is None:
        raise no_user()
    return to_invite(row)


def _delete_invite(session: Session, which: dict[str, str]) -> None:
    if not session.run("delete_invite", which):
        raise no_invite()


def _spend_invite(session: Session, secret_hash: bytes, record: dict[str, Any]) -> PageSession | None:
    row = session.row("spend_invite", {"hash": secret_hash, "now": session.now})
    return None if row is None else _add_session(session, record | {"org": row[0], "user": row[1]})
