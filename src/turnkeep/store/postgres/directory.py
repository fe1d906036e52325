"""Tenants on PostgreSQL: workspaces, members, keys, agents, usage and one-time tokens.

Ids are made before the write begins, so that one whose answer was lost can be repeated.
"""

import hmac

from turnkeep.errors import Conflict, NotFound
from turnkeep.ids import (
    AgentId,
    KeyId,
    OrgId,
    TurnId,
    UserId,
    WorkspaceId,
    check_id,
    new_agent_id,
    new_org_id,
    new_user_id,
    new_workspace_id,
)
from turnkeep.model.agents import Agent, AgentSpec
from turnkeep.model.principals import ApiKey, Member, Org, Principal, Workspace
from turnkeep.store.checks import KEY_CHARS, check_agent, check_binding, check_hash, check_json, check_limit, check_text
from turnkeep.store.commands import Page, TokenBinding, TokenPurpose, page_of
from turnkeep.store.cursors import decode_cursor, encode_cursor
from turnkeep.store.postgres.io.database import Database, Statements
from turnkeep.store.postgres.io.pool import Rows
from turnkeep.store.rows import json_text, to_agent, to_key, to_member, to_org, to_workspace
from turnkeep.store.rules.directory import check_may_go, check_model, check_month, check_name, check_quota, check_role
from turnkeep_client.wire.usage import KeyUsage, Messages, MonthlyUsage

DEFAULT_WORKSPACE = "Default"
AFTER_EVERY_AGENT = "agent_g"
"""Ids are hexadecimal, so this is behind all of them."""


class PostgresDirectory:
    """Tenants and who may act in them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create_org(self, name: str) -> tuple[Org, Workspace]:
        name, org_id, workspace_id = check_name(name), new_org_id(), new_workspace_id()

        async def work(statements: Statements) -> tuple[Org, Workspace]:
            org = to_org((await statements.fetch("insert_org", org_id, name))[0])
            rows = await statements.fetch("insert_workspace", workspace_id, org_id, DEFAULT_WORKSPACE, True, None)
            return org, to_workspace(rows[0])

        return await self._database.transact(work)

    async def orgs(self) -> list[Org]:
        return [to_org(row) for row in await self._database.read("orgs")]

    async def create_workspace(self, org_id: OrgId, name: str, *, model: str | None = None) -> Workspace:
        check_id(org_id, "org")
        rows = await self._database.write(
            "insert_workspace", new_workspace_id(), org_id, check_name(name), False, check_model(model)
        )
        if not rows:
            raise NotFound("No such org.")
        return to_workspace(rows[0])

    async def workspace(self, org_id: OrgId, workspace_id: WorkspaceId | None = None) -> Workspace:
        check_id(org_id, "org")
        if workspace_id is not None:
            check_id(workspace_id, "ws")
        rows = await self._database.read("workspace", org_id, workspace_id)
        if not rows:
            raise NotFound("No such workspace.")
        return to_workspace(rows[0])

    async def workspaces(self, org_id: OrgId) -> list[Workspace]:
        check_id(org_id, "org")
        return [to_workspace(row) for row in await self._database.read("workspaces", org_id)]

    async def change_workspace(self, workspace: Workspace) -> Workspace:
        check_id(workspace.id, "ws")
        rows = await self._database.write(
            "change_workspace",
            workspace.org_id,
            workspace.id,
            check_name(workspace.name),
            check_model(workspace.model),
            check_quota(workspace.monthly_message_limit),
            check_quota(workspace.user_monthly_message_limit),
        )
        if not rows:
            raise NotFound("No such workspace.")
        return to_workspace(rows[0])

    async def delete_workspace(self, org_id: OrgId, workspace_id: WorkspaceId) -> None:
        check_id(org_id, "org")
        check_id(workspace_id, "ws")

        async def work(statements: Statements) -> None:
            rows = await statements.fetch("lock_workspace", org_id, workspace_id)
            if not rows:
                raise NotFound("No such workspace.")
            check_may_go(*rows[0])
            for name in ("delete_members", "delete_agents", "delete_keys", "delete_workspace"):
                await statements.fetch(name, workspace_id)

        await self._database.transact(work)

    async def ensure_member(
        self, org_id: OrgId, workspace_id: WorkspaceId, external_id: str, *, role: str | None = None
    ) -> Member:
        check_id(org_id, "org")
        check_id(workspace_id, "ws")
        check_text(external_id, "user", limit=KEY_CHARS)
        check_role(role)
        rows = await self._database.write("ensure_member", new_user_id(), org_id, workspace_id, external_id, role)
        if not rows:
            raise NotFound("No such workspace.")
        return to_member(rows[0])

    async def members(self, org_id: OrgId, workspace_id: WorkspaceId) -> list[Member]:
        check_id(org_id, "org")
        check_id(workspace_id, "ws")
        return [to_member(row) for row in await self._database.read("members", org_id, workspace_id)]

    async def add_key(self, key: ApiKey, secret_hash: bytes) -> None:
        check_id(key.id, "key")
        check_id(key.org_id, "org")
        if key.workspace_id is not None:
            check_id(key.workspace_id, "ws")
        check_json(key.allowed_tools, "allowed_tools")
        check_hash(secret_hash, "A secret")
        rows = await self._database.write(
            "insert_key",
            key.id,
            key.org_id,
            check_name(key.name),
            secret_hash,
            check_quota(key.monthly_message_limit),
            check_quota(key.requests_per_minute),
            None if key.allowed_tools is None else json_text(key.allowed_tools),
            key.created_at,
            key.revoked_at,
            key.workspace_id,
        )
        if rows or await self._database.read("same_key", key.id, key.org_id, secret_hash):
            return
        if not any(org.id == key.org_id for org in await self.orgs()):
            raise NotFound("No such org.")
        if key.workspace_id is not None:
            await self.workspace(key.org_id, key.workspace_id)
        raise Conflict("This key exists already.")

    async def key_by_hash(self, secret_hash: bytes) -> ApiKey | None:
        rows = await self._database.read("key_by_hash", secret_hash)
        if not rows or not hmac.compare_digest(rows[0][-1], secret_hash):
            return None
        return to_key(rows[0])

    async def keys(self, org_id: OrgId, *, workspace_id: WorkspaceId | None = None) -> list[ApiKey]:
        check_id(org_id, "org")
        if workspace_id is not None:
            check_id(workspace_id, "ws")
        return [to_key(row) for row in await self._database.read("keys", org_id, workspace_id)]

    async def revoke_key(self, org_id: OrgId, key_id: KeyId, *, workspace_id: WorkspaceId | None = None) -> None:
        check_id(org_id, "org")
        check_id(key_id, "key")
        if workspace_id is not None:
            check_id(workspace_id, "ws")
        if not await self._database.write("revoke_key", org_id, key_id, workspace_id):
            raise NotFound("No such key.")

    async def create_agent(self, principal: Principal, spec: AgentSpec) -> Agent:
        rows = await self._database.write(
            "insert_agent", new_agent_id(), principal.org_id, principal.workspace_id, _spec(spec)
        )
        if not rows:
            raise NotFound("No such workspace.")
        return to_agent(rows[0])

    async def agent(self, principal: Principal, agent_id: AgentId) -> Agent:
        check_id(agent_id, "agent")
        rows = await self._database.read_as(principal, "my_agent", agent_id)
        if not rows:
            raise NotFound("No such agent.")
        return to_agent(rows[0])

    async def agents(self, principal: Principal, *, limit: int = 50, cursor: str | None = None) -> Page[Agent]:
        check_limit(limit)
        before = AFTER_EVERY_AGENT if cursor is None else decode_cursor(cursor, "agents", tuple[str])[0]
        rows = await self._database.read_as(principal, "my_agents", before, limit + 1)
        return page_of(
            [to_agent(row) for row in rows], limit=limit, cursor_of=lambda agent: encode_cursor("agents", agent.id)
        )

    async def change_agent(self, principal: Principal, agent_id: AgentId, spec: AgentSpec) -> Agent:
        check_id(agent_id, "agent")
        rows = await self._database.write(
            "change_agent", principal.org_id, principal.workspace_id, agent_id, _spec(spec)
        )
        if not rows:
            raise NotFound("No such agent.")
        return to_agent(rows[0])

    async def delete_agent(self, principal: Principal, agent_id: AgentId) -> None:
        check_id(agent_id, "agent")
        if not await self._database.write("delete_agent", principal.org_id, principal.workspace_id, agent_id):
            raise NotFound("No such agent.")

    async def usage(
        self, principal: Principal, *, month: str | None = None, user_id: UserId | None = None
    ) -> MonthlyUsage:
        check_month(month)
        if user_id is not None:
            check_id(user_id, "user")
        user = principal.user_id or user_id
        scope = ("workspace", principal.workspace_id) if user is None else ("user", user)
        rows = await self._database.read("usage", principal.org_id, principal.workspace_id, *scope, month)
        if not rows:
            raise NotFound("No such workspace.")
        of_month, ui, api, input_tokens, output_tokens, limit, user_limit = rows[0]
        return MonthlyUsage(
            month=of_month,
            messages=ui + api,
            by_source=Messages(ui=ui, api=api),
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            limit=limit if user is None else user_limit,
            key=await self._key_usage(principal, of_month),
        )

    async def _key_usage(self, principal: Principal, month: str) -> KeyUsage | None:
        if principal.role != "service" or principal.key_id is None:
            return None
        rows = await self._database.read("key_usage", principal.org_id, principal.key_id, month)
        return KeyUsage(messages=rows[0][0], limit=rows[0][1]) if rows else None

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
            raise NotFound("No such turn.")

    async def spend_token(self, token_hash: bytes, purpose: TokenPurpose) -> TokenBinding | None:
        return _binding(await self._database.write("spend_token", token_hash, purpose))

    async def peek_token(self, token_hash: bytes, purpose: TokenPurpose) -> TokenBinding | None:
        return _binding(await self._database.read("peek_token", token_hash, purpose))

    async def expire_tokens(self, turn_id: TurnId) -> None:
        check_id(turn_id, "turn")
        await self._database.write("expire_tokens", turn_id)


def _spec(spec: AgentSpec) -> str:
    return json_text(check_agent(spec))


def _binding(rows: Rows) -> TokenBinding | None:
    if not rows:
        return None
    purpose, turn_id, attempt = rows[0]
    return TokenBinding(purpose=purpose, turn_id=turn_id, attempt=attempt)
