"""The directory on PostgreSQL: orgs, workspaces, members, keys, agents, usage, tokens, sessions and invites.

Ids are made before the write begins, so that one whose answer was lost can be repeated.
"""

import hmac
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

import asyncpg

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
from turnkeep.store.checks import KEY_CHARS, check_agent, check_binding, check_hash, check_limit, check_text
from turnkeep.store.commands import CountedTurn, Page, TokenBinding, TokenPurpose, UsageFilter, page_of, rows_that_fit
from turnkeep.store.cursors import decode_cursor, encode_cursor
from turnkeep.store.postgres.io.database import Database, Statements
from turnkeep.store.postgres.io.pool import Rows
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
    agent_name_taken,
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
from turnkeep_client.wire.account import GroupBy, LimitUse, MonthlyUsage, UsageRow

AFTER_EVERY_AGENT = "agent_g"
"""Ids are hexadecimal, so this sorts after all of them."""


def _new_org(name: str) -> Callable[[Statements], Awaitable[tuple[Org, Workspace]]]:
    """Work that makes an org. Its ids are made now, so that the work can be repeated."""
    name, org_id, workspace_id = check_name(name), new_org_id(), new_workspace_id()

    async def work(statements: Statements) -> tuple[Org, Workspace]:
        org = to_org((await statements.fetch("insert_org", org_id, name))[0])
        rows = await statements.fetch("insert_workspace", workspace_id, org_id, DEFAULT_WORKSPACE, True, None)
        return org, to_workspace(rows[0])

    return work


class PostgresDirectory:
    """Tenants and who may act in them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create_org(self, name: str) -> tuple[Org, Workspace]:
        return await self._database.transact(_new_org(name))

    async def first_org(self, name: str) -> Org:
        if orgs := await self.orgs():
            return oldest(orgs)
        create = _new_org(name)

        async def work(statements: Statements) -> Org:
            await statements.fetch("lock_first_org")
            if rows := await statements.fetch("orgs"):
                return oldest([to_org(row) for row in rows])
            return (await create(statements))[0]

        return await self._database.transact(work)

    async def orgs(self) -> list[Org]:
        return [to_org(row) for row in await self._database.read("orgs")]

    async def create_workspace(self, org_id: OrgId, name: str, *, model: str | None = None) -> Workspace:
        check_id(org_id, "org")
        rows = await self._database.write(
            "insert_workspace", new_workspace_id(), org_id, check_name(name), False, check_model(model)
        )
        if not rows:
            raise no_org()
        return to_workspace(rows[0])

    async def workspace(self, org_id: OrgId, workspace_id: WorkspaceId | None = None) -> Workspace:
        check_workspace(org_id, workspace_id)
        rows = await self._database.read("workspace", org_id, workspace_id)
        if not rows:
            raise no_workspace()
        return to_workspace(rows[0])

    async def workspaces(self, org_id: OrgId) -> list[Workspace]:
        check_id(org_id, "org")
        return [to_workspace(row) for row in await self._database.read("workspaces", org_id)]

    async def change_workspace(
        self, org_id: OrgId, workspace_id: WorkspaceId, change: Callable[[Workspace], Workspace]
    ) -> Workspace:
        check_workspace(org_id, workspace_id)

        async def work(statements: Statements) -> Workspace:
            before = await statements.fetch("workspace_to_change", org_id, workspace_id)
            if not before:
                raise no_workspace()
            record = workspace_record(change(to_workspace(before[0])))
            [row] = await statements.fetch("change_workspace", *record.values())
            return to_workspace(row)

        return await self._database.transact(work)

    async def delete_workspace(self, org_id: OrgId, workspace_id: WorkspaceId) -> None:
        check_workspace(org_id, workspace_id)

        async def work(statements: Statements) -> None:
            rows = await statements.fetch("lock_workspace", org_id, workspace_id)
            if not rows:
                raise no_workspace()
            check_may_go(*rows[0])
            for name in ("delete_webhooks", "delete_members", "delete_agents", "delete_keys", "delete_workspace"):
                await statements.fetch(name, workspace_id)

        await self._database.transact(work)

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
        check_text(external_id, "user", limit=KEY_CHARS)
        check_role(role)
        given = (role, None if name is None else check_name(name))
        rows = await self._database.write("ensure_member", new_user_id(), org_id, workspace_id, external_id, *given)
        if not rows:
            raise no_workspace()
        return to_member(rows[0])

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
        return members_page(await self._database.read("members", *which.values()), limit)

    async def member(self, org_id: OrgId, workspace_id: WorkspaceId, name: str) -> Member:
        check_workspace(org_id, workspace_id)
        check_text(name, "user", limit=KEY_CHARS)
        rows = await self._database.read("member", org_id, workspace_id, name)
        if not rows:
            raise no_user()
        return to_member(rows[0])

    async def member_of_host(self, org_id: OrgId, workspace_id: WorkspaceId, external_id: str) -> Member | None:
        check_workspace(org_id, workspace_id)
        check_text(external_id, "user", limit=KEY_CHARS)
        rows = await self._database.read("member_of_host", org_id, workspace_id, external_id)
        return to_member(rows[0]) if rows else None

    async def members_by_id(self, org_id: OrgId, user_ids: Sequence[UserId]) -> list[Member]:
        ids = [check_id(user, "user") for user in user_ids]
        return [to_member(row) for row in await self._database.read("members_by_id", check_id(org_id, "org"), ids)]

    async def change_member(
        self, org_id: OrgId, workspace_id: WorkspaceId, user_id: UserId, change: Callable[[Member], Member]
    ) -> Member:
        check_workspace(org_id, workspace_id)
        check_id(user_id, "user")

        async def work(statements: Statements) -> Member:
            before = await statements.fetch("member_to_change", org_id, workspace_id, user_id)
            if not before:
                raise no_user()
            record = member_record(org_id, change(to_member(before[0])))
            [row] = await statements.fetch("change_member", *record.values())
            return to_member(row)

        return await self._database.transact(work)

    async def open_turns(self, org_id: OrgId, user_id: UserId) -> list[TurnId]:
        rows = await self._database.read("open_turns", check_id(org_id, "org"), check_id(user_id, "user"))
        return [row[0] for row in rows]

    async def add_key(self, key: ApiKey, secret_hash: bytes) -> None:
        record = key_record(key, secret_hash)
        if await self._database.write("insert_key", *record.values()):
            return
        which = (key.id, key.org_id, key.workspace_id, secret_hash, record["maker"])
        [(has_org, has_workspace, has_maker, is_same)] = await self._database.read("facts_for_key", *which)
        check_key_is_new(has_org=has_org, has_workspace=has_workspace, has_maker=has_maker or is_same, is_same=is_same)

    async def key_by_hash(self, secret_hash: bytes) -> ApiKey | None:
        rows = await self._database.read("key_by_hash", secret_hash)
        if not rows:
            return None
        *key, stored_hash = rows[0]
        return to_key(key) if hmac.compare_digest(stored_hash, secret_hash) else None

    async def keys(self, org_id: OrgId, *, workspace_id: WorkspaceId | None = None) -> list[ApiKey]:
        check_workspace(org_id, workspace_id)
        return [to_key(row) for row in await self._database.read("keys", org_id, workspace_id)]

    async def keys_by_id(self, org_id: OrgId, key_ids: Sequence[KeyId]) -> list[ApiKey]:
        ids = [check_id(key, "key") for key in key_ids]
        return [to_key(row) for row in await self._database.read("keys_by_id", check_id(org_id, "org"), ids)]

    async def revoke_key(
        self, org_id: OrgId, key_id: KeyId, *, workspace_id: WorkspaceId | None = None, keeps_made: bool = False
    ) -> None:
        check_workspace(org_id, workspace_id)
        check_id(key_id, "key")

        async def work(statements: Statements) -> None:
            if not await statements.fetch("revoke_key", org_id, key_id, workspace_id):
                raise no_key()
            if not keeps_made:
                await statements.fetch("revoke_made_keys", org_id, key_id)

        await self._database.transact(work)

    async def create_agent(self, principal: Principal, spec: AgentSpec) -> Agent:
        agent_id, text = new_agent_id(), _spec(spec)

        async def work(statements: Statements) -> Agent:
            key = await _name_key(statements, principal, agent_id, spec.name)
            with _unique_names(spec.name):
                rows = await statements.fetch(
                    "insert_agent", agent_id, principal.org_id, principal.workspace_id, text, key
                )
            if not rows:
                raise no_workspace()
            return to_agent(rows[0])

        return await self._database.transact(work)

    async def agent(self, principal: Principal, agent_id: AgentId) -> Agent:
        check_id(agent_id, "agent")
        rows = await self._database.read_as(principal, "my_agent", agent_id)
        if not rows:
            raise no_agent()
        return to_agent(rows[0])

    async def agents(self, principal: Principal, *, limit: int = 50, cursor: str | None = None) -> Page[Agent]:
        check_limit(limit)
        before = AFTER_EVERY_AGENT if cursor is None else decode_cursor(cursor, "agents", tuple[str])[0]
        reached = reached_agents(principal)
        if reached is None:
            rows = await self._database.read_as(principal, "my_agents", before, limit + 1)
        else:
            rows = await self._database.read_as(principal, "my_reached_agents", before, limit + 1, reached)
        return page_of(
            [to_agent(row) for row in rows],
            limit=rows_that_fit(rows, limit),
            cursor_of=lambda agent: encode_cursor("agents", agent.id),
        )

    async def change_agent(
        self, principal: Principal, agent_id: AgentId, change: Callable[[AgentSpec], AgentSpec]
    ) -> Agent:
        which = (principal.org_id, principal.workspace_id, check_id(agent_id, "agent"))

        async def work(statements: Statements) -> Agent:
            before = await statements.fetch("agent_to_change", *which)
            if not before:
                raise no_agent()
            known = to_agent(before[0]).spec
            spec = change(known)
            text = _spec(spec)
            key = await _name_key(statements, principal, agent_id, spec.name, before=known.name)
            with _unique_names(spec.name):
                [row] = await statements.fetch("change_agent", *which, text, key)
            return to_agent(row)

        return await self._database.transact(work)

    async def delete_agent(self, principal: Principal, agent_id: AgentId) -> None:
        check_id(agent_id, "agent")
        if not await self._database.write("delete_agent", principal.org_id, principal.workspace_id, agent_id):
            raise no_agent()

    async def begin_mcp_connection(
        self, principal: Principal, url: str, *, connection_id: ConnectionId, issuer: str, attempt: str
    ) -> McpConnection:
        who = (principal.org_id, principal.workspace_id, principal.user_id)
        rows = await self._database.write(
            "begin_mcp_connection", check_id(connection_id, "mcp"), *who, url, issuer, attempt
        )
        if not rows:
            raise no_workspace()
        return to_mcp_connection(rows[0])

    async def mcp_connections(self, org_id: OrgId, workspace_id: WorkspaceId) -> list[McpConnection]:
        check_workspace(org_id, workspace_id)
        return [to_mcp_connection(row) for row in await self._database.read("mcp_connections", org_id, workspace_id)]

    async def mcp_connection(
        self, org_id: OrgId, workspace_id: WorkspaceId, connection_id: ConnectionId
    ) -> McpConnection:
        check_workspace(org_id, workspace_id)
        rows = await self._database.read("mcp_connection", org_id, workspace_id, check_id(connection_id, "mcp"))
        if not rows:
            raise no_connection()
        return to_mcp_connection(rows[0])

    async def mcp_connection_at(self, org_id: OrgId, workspace_id: WorkspaceId, url: str) -> McpConnection | None:
        check_workspace(org_id, workspace_id)
        rows = await self._database.read("mcp_connection_at", org_id, workspace_id, url)
        return to_mcp_connection(rows[0]) if rows else None

    async def finish_mcp_connection(
        self, principal: Principal, connection_id: ConnectionId, *, attempt: str, sealed: str, issuer: str
    ) -> McpConnection | None:
        which = (principal.org_id, principal.workspace_id, check_id(connection_id, "mcp"))
        rows = await self._database.write("finish_mcp_connection", *which, attempt, sealed, principal.user_id, issuer)
        return to_mcp_connection(rows[0]) if rows else None

    async def lease_mcp_connection(self, connection_id: ConnectionId, *, version: int, seconds: float) -> bool:
        check_id(connection_id, "mcp")
        return bool(await self._database.write("lease_mcp_connection", connection_id, version, int(seconds * 1000)))

    async def renew_mcp_connection(
        self, connection_id: ConnectionId, *, version: int, sealed: str | None, problem: str | None = None
    ) -> None:
        await self._database.write("renew_mcp_connection", check_id(connection_id, "mcp"), version, sealed, problem)

    async def delete_mcp_connection(
        self, org_id: OrgId, workspace_id: WorkspaceId, connection_id: ConnectionId
    ) -> McpConnection:
        check_workspace(org_id, workspace_id)
        which = (org_id, workspace_id, check_id(connection_id, "mcp"))
        rows = await self._database.write("delete_mcp_connection", *which)
        if not rows:
            raise no_connection()
        return to_mcp_connection(rows[0])

    async def usage(
        self, principal: Principal, *, month: str | None = None, user_id: UserId | None = None
    ) -> MonthlyUsage:
        check_month(month)
        if user_id is not None:
            check_id(user_id, "user")
        scope, scope_id = usage_scope(principal, user_id)
        found = await self.workspace(principal.org_id, principal.workspace_id)
        if month is None:
            month = month_of((await self._database.read("now"))[0][0])
        rows = await self._database.read("usage", principal.org_id, scope, scope_id, month)
        own = await self._database.read("limit_of_user", principal.org_id, scope_id) if scope == "user" else []
        key: Rows = []
        if principal.role == "service" and principal.key_id is not None:
            key = await self._database.read("key_usage", principal.org_id, principal.key_id, month)
        limit = limit_of(scope, found, own[0] if own else None)
        return monthly_usage(month, rows[0], limit, key[0] if key else None)

    async def add_up_usage(self, *, limit: int = 1_000) -> bool:
        months = await self._database.write("add_up_slots", limit)
        days = await self._database.write("add_up_day_slots", limit)
        return len(months) == limit or len(days) == limit

    async def usage_rows(self, principal: Principal, only: UsageFilter, *, group_by: GroupBy) -> list[UsageRow]:
        which = usage_query(principal, only, group_by)
        return [usage_row(row) for row in await self._database.read("usage_rows", *which.values())]

    async def usage_turns(
        self, principal: Principal, only: UsageFilter, *, limit: int = 50, cursor: str | None = None
    ) -> Page[CountedTurn]:
        which = usage_turns_query(principal, only, limit, cursor)
        return usage_turns_page(await self._database.read("usage_turns", *which.values()), which, limit)

    async def limit_uses(self, principal: Principal, *, month: str, user_id: UserId | None = None) -> list[LimitUse]:
        which = limits_query(principal, month, user_id)
        [[now]] = await self._database.read("now")
        rows = await self._database.read("limit_uses", *which.values())
        scopes = [ScopeUse(scope, scope_id, tuple(rest[:5]), tuple(rest[5:])) for scope, scope_id, *rest in rows]
        return limit_uses_of(scopes, is_this_month=month == month_of(now))

    async def add_token(self, token_hash: bytes, binding: TokenBinding, *, expires_in_seconds: float) -> None:
        check_binding(binding)
        check_id(binding.turn_id, "turn")
        check_hash(token_hash, "A token")
        rows = await self._database.write(
            "insert_token",
            token_hash,
            binding.turn_id,
            binding.attempt,
            binding.purpose,
            int(expires_in_seconds * 1000),
        )
        if not rows:
            raise no_turn()

    async def spend_token(self, token_hash: bytes, purpose: TokenPurpose) -> TokenBinding | None:
        return _binding(await self._database.write("spend_token", token_hash, purpose))

    async def peek_token(self, token_hash: bytes, purpose: TokenPurpose) -> TokenBinding | None:
        return _binding(await self._database.read("peek_token", token_hash, purpose))

    async def expire_tokens(self, turn_id: TurnId) -> None:
        check_id(turn_id, "turn")
        await self._database.write("expire_tokens", turn_id)


async def check_user(statements: Statements, principal: Principal) -> None:
    """Raises Forbidden if the principal's user was erased or disabled since the request began. An erasure waits until
    the transaction has ended."""
    if principal.user_id is not None and not await statements.fetch("lock_user", principal.org_id, principal.user_id):
        raise user_gone()


async def _name_key(
    statements: Statements, principal: Principal, agent_id: AgentId, name: str, *, before: str | None = None
) -> str | None:
    which = (principal.workspace_id, agent_id, agent_name_key(name, None, ()))
    others = [(row[0], row[1]) for row in await statements.fetch("agents_named", *which)]
    return agent_name_key(name, before, others)


@contextmanager
def _unique_names(name: str) -> Iterator[None]:
    """The unique index decides who was first with a name, also when two come at once."""
    try:
        yield
    except asyncpg.UniqueViolationError as exc:
        if exc.constraint_name != "agents_names":
            raise
        raise agent_name_taken(name) from exc


def _spec(spec: AgentSpec) -> str:
    return json_text(check_agent(spec))


def _binding(rows: Rows) -> TokenBinding | None:
    return to_binding(rows[0]) if rows else None


class PostgresSessions:
    """Who is signed in."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add_session(self, org_id: OrgId, user_id: UserId, session: NewSession) -> PageSession:
        which = (new_session_id(), check_id(org_id, "org"), check_id(user_id, "user"))
        record = session_record(session)
        await self._database.write("delete_expired_sessions")
        rows = await self._database.write("insert_session", *which, *record.values())
        if not rows:
            raise no_user()
        return to_session(rows[0])

    async def signed_in(self, secret_hash: bytes) -> SignedIn | None:
        rows = await self._database.read("session_by_hash", secret_hash)
        if not rows or not hmac.compare_digest(rows[0][-1], secret_hash):
            return None
        return to_signed_in(rows[0])

    async def use_session(self, session_id: SessionId) -> None:
        await self._database.write("use_session", check_id(session_id, "session"))

    async def sessions(self, org_id: OrgId, user_id: UserId) -> list[PageSession]:
        rows = await self._database.read("sessions_of_user", check_id(org_id, "org"), check_id(user_id, "user"))
        return [to_session(row) for row in rows]

    async def end_session(self, org_id: OrgId, user_id: UserId, session_id: SessionId) -> None:
        which = (check_id(org_id, "org"), check_id(user_id, "user"), check_id(session_id, "session"))
        if not await self._database.write("end_session", *which):
            raise no_session()

    async def end_sessions(self, org_id: OrgId, user_id: UserId, *, kept: SessionId | None = None) -> None:
        await self._database.write("end_sessions", check_id(org_id, "org"), check_id(user_id, "user"), kept)

    async def end_session_by_hash(self, secret_hash: bytes) -> None:
        await self._database.write("end_session_by_hash", secret_hash)

    async def add_invite(self, org_id: OrgId, user_id: UserId, secret_hash: bytes, *, seconds: float) -> Invite:
        which = (new_invite_id(), check_id(org_id, "org"), check_id(user_id, "user"))
        record = invite_record(secret_hash, seconds)
        await self._database.write("delete_expired_invites")
        rows = await self._database.write("insert_invite", *which, *record.values())
        if not rows:
            raise no_user()
        return to_invite(rows[0])

    async def invites(self, org_id: OrgId, workspace_id: WorkspaceId) -> list[Invite]:
        check_workspace(org_id, workspace_id)
        return [to_invite(row) for row in await self._database.read("invites", org_id, workspace_id)]

    async def delete_invite(self, org_id: OrgId, workspace_id: WorkspaceId, invite_id: InviteId) -> None:
        check_workspace(org_id, workspace_id)
        if not await self._database.write("delete_invite", org_id, workspace_id, check_id(invite_id, "invite")):
            raise no_invite()

    async def spend_invite(self, secret_hash: bytes, session: NewSession) -> PageSession | None:
        record = session_record(session)
        rows = await self._database.write(
            "spend_invite", secret_hash, new_session_id(), record["hash"], record["browser"], record["ms"]
        )
        return to_session(rows[0]) if rows else None
