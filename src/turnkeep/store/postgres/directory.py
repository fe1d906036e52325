"""Tenants on PostgreSQL: workspaces, members, keys, agents, usage and one-time tokens.

Ids are made before the write begins, so that one whose answer was lost can be repeated.
"""

import hmac
import re
from typing import Any

from turnkeep.errors import Conflict, InvalidRequest, NotFound
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
from turnkeep.model.usage import Messages, MonthlyUsage
from turnkeep.store.checks import KEY_CHARS, NAME_CHARS, check_json, check_limit, check_text
from turnkeep.store.commands import Page, TokenBinding, TokenPurpose, page_of
from turnkeep.store.cursors import decode_cursor, encode_cursor
from turnkeep.store.postgres.database import Database, Statements
from turnkeep.store.postgres.pools import Rows
from turnkeep.store.rows import json_text, to_agent, to_key, to_member, to_org, to_workspace
from turnkeep.store.shapes import check_agent, check_binding, check_hash

DEFAULT_WORKSPACE = "Default"
AFTER_EVERY_AGENT = "agent_g"
"""Ids are hexadecimal, so this is behind all of them."""

_MONTH = re.compile(r"\d{4}-(0[1-9]|1[0-2])")


class PostgresDirectory:
    """Tenants and who may act in them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create_org(self, name: str) -> tuple[Org, Workspace]:
        name, org_id, workspace_id = _name(name), new_org_id(), new_workspace_id()

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
            "insert_workspace", new_workspace_id(), org_id, _name(name), False, _model(model)
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
            _name(workspace.name),
            _model(workspace.model),
            _limit(workspace.monthly_message_limit),
            _limit(workspace.user_monthly_message_limit),
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
            is_default, has_conversations, has_files, has_knowledge = rows[0]
            if is_default:
                raise Conflict("The default workspace of an org cannot be deleted.")
            if has_conversations or has_files or has_knowledge:
                held = "conversations" if has_conversations else "files" if has_files else "pages or tables"
                raise Conflict(f"This workspace holds {held}. Delete them, and wait until they are purged.")
            for name in ("delete_members", "delete_agents", "delete_keys", "delete_workspace"):
                await statements.fetch(name, workspace_id)

        await self._database.transact(work)

    async def ensure_member(
        self, org_id: OrgId, workspace_id: WorkspaceId, external_id: str, *, role: str | None = None
    ) -> Member:
        check_id(org_id, "org")
        check_id(workspace_id, "ws")
        check_text(external_id, "external_id", limit=KEY_CHARS)
        if role not in {None, "member", "admin"}:
            raise InvalidRequest("role must be member or admin.")
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
            _name(key.name),
            secret_hash,
            _limit(key.monthly_message_limit),
            _limit(key.requests_per_minute),
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
        before = AFTER_EVERY_AGENT if cursor is None else decode_cursor(cursor, tuple[str])[0]
        rows = await self._database.read_as(principal, "my_agents", before, limit + 1)
        return page_of([to_agent(row) for row in rows], limit=limit, cursor_of=lambda agent: encode_cursor(agent.id))

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
        if month is not None and not _MONTH.fullmatch(month):
            raise InvalidRequest("month must look like 2026-11.")
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
        )

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


def _name(value: str) -> str:
    return check_text(value, "name", limit=NAME_CHARS).strip()


def _model(value: str | None) -> str | None:
    return None if value is None else check_text(value, "model", limit=NAME_CHARS)


def _limit(value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        raise InvalidRequest("A limit must be a whole number that is not negative, or absent.")
    return value


def _spec(spec: AgentSpec) -> str:
    return json_text(check_agent(spec))


def _binding(rows: Rows) -> TokenBinding | None:
    if not rows:
        return None
    purpose, turn_id, attempt = rows[0]
    return TokenBinding(purpose=purpose, turn_id=turn_id, attempt=attempt)
