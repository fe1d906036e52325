"""The verbs of `DirectoryStore`: each checks what it is given, then runs as one job."""

import msgspec

from turnkeep.ids import AgentId, KeyId, OrgId, TurnId, UserId, WorkspaceId, check_id
from turnkeep.model.agents import Agent, AgentSpec
from turnkeep.model.principals import ApiKey, Member, Org, Principal, Workspace
from turnkeep.model.usage import MonthlyUsage
from turnkeep.store import checks, tenants
from turnkeep.store.commands import Page, TokenBinding, TokenPurpose
from turnkeep.store.rows import to_key, to_member, to_org, to_workspace
from turnkeep.store.sqlite import directory
from turnkeep.store.sqlite.io.executors import StoreThreads


class DirectoryVerbs(StoreThreads):
    """Tenants and who may act in them. Promises are those of `ports.DirectoryStore`."""

    async def create_org(self, name: str) -> tuple[Org, Workspace]:
        return await self._write(directory.create_org, tenants.check_name(name))

    async def orgs(self) -> list[Org]:
        return await self._read(lambda session: [to_org(row) for row in session.rows("orgs")])

    async def create_workspace(self, org_id: OrgId, name: str, *, model: str | None = None) -> Workspace:
        check_id(org_id, "org")
        return await self._write(
            directory.create_workspace, org_id, tenants.check_name(name), tenants.check_model(model)
        )

    async def workspace(self, org_id: OrgId, workspace_id: WorkspaceId | None = None) -> Workspace:
        check_id(org_id, "org")
        if workspace_id is not None:
            check_id(workspace_id, "ws")
        return await self._read(directory.workspace, org_id, workspace_id)

    async def workspaces(self, org_id: OrgId) -> list[Workspace]:
        check_id(org_id, "org")
        return await self._read(
            lambda session: [to_workspace(row) for row in session.rows("workspaces", {"org": org_id})]
        )

    async def change_workspace(self, workspace: Workspace) -> Workspace:
        check_id(workspace.id, "ws")
        tenants.check_model(workspace.model)
        tenants.check_quota(workspace.monthly_message_limit)
        tenants.check_quota(workspace.user_monthly_message_limit)
        wanted = msgspec.structs.replace(workspace, name=tenants.check_name(workspace.name))
        return await self._write(directory.change_workspace, wanted)

    async def delete_workspace(self, org_id: OrgId, workspace_id: WorkspaceId) -> None:
        await self._write(directory.delete_workspace, check_id(org_id, "org"), check_id(workspace_id, "ws"))

    async def ensure_member(
        self, org_id: OrgId, workspace_id: WorkspaceId, external_id: str, *, role: str | None = None
    ) -> Member:
        check_id(org_id, "org")
        check_id(workspace_id, "ws")
        checks.check_text(external_id, "user", limit=checks.KEY_CHARS)
        tenants.check_role(role)
        return await self._write(directory.ensure_member, org_id, workspace_id, external_id, role)

    async def members(self, org_id: OrgId, workspace_id: WorkspaceId) -> list[Member]:
        which = {"org": check_id(org_id, "org"), "workspace": check_id(workspace_id, "ws")}
        return await self._read(lambda session: [to_member(row) for row in session.rows("members", which)])

    async def add_key(self, key: ApiKey, secret_hash: bytes) -> None:
        check_id(key.id, "key")
        check_id(key.org_id, "org")
        if key.workspace_id is not None:
            check_id(key.workspace_id, "ws")
        tenants.check_name(key.name)
        tenants.check_quota(key.monthly_message_limit)
        tenants.check_quota(key.requests_per_minute)
        checks.check_json(key.allowed_tools, "allowed_tools")
        await self._write(directory.add_key, key, checks.check_hash(secret_hash, "A secret"))

    async def key_by_hash(self, secret_hash: bytes) -> ApiKey | None:
        return await self._read(directory.key_by_hash, secret_hash)

    async def keys(self, org_id: OrgId, *, workspace_id: WorkspaceId | None = None) -> list[ApiKey]:
        check_id(org_id, "org")
        if workspace_id is not None:
            check_id(workspace_id, "ws")
        which = {"org": org_id, "workspace": workspace_id}
        return await self._read(lambda session: [to_key(row) for row in session.rows("keys", which)])

    async def revoke_key(self, org_id: OrgId, key_id: KeyId, *, workspace_id: WorkspaceId | None = None) -> None:
        check_id(org_id, "org")
        check_id(key_id, "key")
        if workspace_id is not None:
            check_id(workspace_id, "ws")
        await self._write(directory.revoke_key, org_id, key_id, workspace_id)

    async def create_agent(self, principal: Principal, spec: AgentSpec) -> Agent:
        return await self._write(directory.create_agent, principal, checks.check_agent(spec))

    async def agent(self, principal: Principal, agent_id: AgentId) -> Agent:
        return await self._see(principal, directory.my_agent, check_id(agent_id, "agent"))

    async def agents(self, principal: Principal, *, limit: int = 50, cursor: str | None = None) -> Page[Agent]:
        checks.check_limit(limit)
        return await self._see(principal, directory.my_agents, limit, cursor)

    async def change_agent(self, principal: Principal, agent_id: AgentId, spec: AgentSpec) -> Agent:
        check_id(agent_id, "agent")
        return await self._write(directory.change_agent, principal, agent_id, checks.check_agent(spec))

    async def delete_agent(self, principal: Principal, agent_id: AgentId) -> None:
        await self._write(directory.delete_agent, principal, check_id(agent_id, "agent"))

    async def usage(
        self, principal: Principal, *, month: str | None = None, user_id: UserId | None = None
    ) -> MonthlyUsage:
        tenants.check_month(month)
        if user_id is not None:
            check_id(user_id, "user")
        return await self._read(directory.usage, principal, month, user_id)

    async def add_token(self, token_hash: bytes, binding: TokenBinding, *, expires_in_seconds: float) -> None:
        checks.check_binding(binding)
        check_id(binding.turn_id, "turn")
        checks.check_hash(token_hash, "A token")
        await self._write(directory.add_token, token_hash, binding, expires_in_seconds)

    async def spend_token(self, token_hash: bytes, purpose: TokenPurpose) -> TokenBinding | None:
        return await self._write(directory.spend_token, token_hash, purpose)

    async def peek_token(self, token_hash: bytes, purpose: TokenPurpose) -> TokenBinding | None:
        return await self._read(directory.peek_token, token_hash, purpose)

    async def expire_tokens(self, turn_id: TurnId) -> None:
        check_id(turn_id, "turn")
        await self._write(lambda session: session.run("expire_tokens", {"turn": turn_id, "now": session.now}))
