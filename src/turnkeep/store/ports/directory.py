"""The verbs of the directory: tenants, members, keys, agents, usage and tokens."""

from collections.abc import Callable, Sequence
from typing import Protocol

from turnkeep.ids import AgentId, ConnectionId, KeyId, OrgId, TurnId, UserId, WorkspaceId
from turnkeep.model.agents import Agent, AgentSpec, McpConnection
from turnkeep.model.principals import ApiKey, Member, Org, Principal, Workspace
from turnkeep.store.commands import CountedTurn, Page, TokenBinding, TokenPurpose, UsageFilter
from turnkeep_client.wire.account import GroupBy, LimitUse, MonthlyUsage, UsageRow


class DirectoryStore(Protocol):
    """Tenants and who may act in them.

    Each `change_…` reads what is stored, gives it to `change`, and stores what that returns; other changes of the same
    thing wait meanwhile, so none is lost. `change` is quick and may be called again. What it raises is raised here, and
    nothing is stored.
    """

    async def create_org(self, name: str) -> tuple[Org, Workspace]:
        """A tenant with its default workspace."""

    async def first_org(self, name: str) -> Org:
        """The oldest org. If there is none, it is made with this name; servers that ask at once get the same one."""

    async def orgs(self) -> list[Org]: ...

    async def create_workspace(self, org_id: OrgId, name: str, *, model: str | None = None) -> Workspace: ...

    async def workspace(self, org_id: OrgId, workspace_id: WorkspaceId | None = None) -> Workspace:
        """That workspace of the org, or its default one."""

    async def workspaces(self, org_id: OrgId) -> list[Workspace]: ...

    async def change_workspace(
        self, org_id: OrgId, workspace_id: WorkspaceId, change: Callable[[Workspace], Workspace]
    ) -> Workspace:
        """Change name, model and limits."""

    async def delete_workspace(self, org_id: OrgId, workspace_id: WorkspaceId) -> None:
        """Gone with its members, agents and pinned keys. Conflict while it holds conversations (deleted ones too,
        until purged), and for the default one."""

    async def ensure_member(
        self,
        org_id: OrgId,
        workspace_id: WorkspaceId,
        external_id: str,
        *,
        role: str | None = None,
        name: str | None = None,
    ) -> Member:
        """The member with that host id, created when it is first seen (role `member`). A given role or name is
        stored."""

    async def members(
        self,
        org_id: OrgId,
        workspace_id: WorkspaceId,
        *,
        query: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Member]:
        """Members in the order in which they came; with `query`, those whose name or host id has this text in it."""

    async def member(self, org_id: OrgId, workspace_id: WorkspaceId, name: str) -> Member:
        """The member with this id, or else with this host id. NotFound if there is none."""

    async def member_of_host(self, org_id: OrgId, workspace_id: WorkspaceId, external_id: str) -> Member | None:
        """The member with this host id, whatever ids others have; None if there is none."""

    async def members_by_id(self, org_id: OrgId, user_ids: Sequence[UserId]) -> list[Member]:
        """Those of the ids that are members of any workspace of the org, in no order."""

    async def change_member(
        self, org_id: OrgId, workspace_id: WorkspaceId, user_id: UserId, change: Callable[[Member], Member]
    ) -> Member:
        """Change name, role, limits and whether the member is disabled. NotFound if there is no such member."""

    async def open_turns(self, org_id: OrgId, user_id: UserId) -> list[TurnId]:
        """The turns of this user that run or wait, those that wait first: so none of them starts meanwhile."""

    async def add_key(self, key: ApiKey, secret_hash: bytes) -> None:
        """NotFound unless its workspace, if it is pinned to one, is of its org. Forbidden if the key that makes it (the
        first of its ancestors) is revoked."""

    async def key_by_hash(self, secret_hash: bytes) -> ApiKey | None:
        """The live key with that hash (compared in constant time), or None."""

    async def keys(self, org_id: OrgId, *, workspace_id: WorkspaceId | None = None) -> list[ApiKey]:
        """All keys of the org; with `workspace_id`, those alone that are pinned to it."""

    async def keys_by_id(self, org_id: OrgId, key_ids: Sequence[KeyId]) -> list[ApiKey]:
        """Those of the ids that are keys of the org, revoked ones included, in no order."""

    async def revoke_key(
        self, org_id: OrgId, key_id: KeyId, *, workspace_id: WorkspaceId | None = None, keeps_made: bool = False
    ) -> None:
        """Revoke the key and all keys that it made, or with `keeps_made` the key alone. NotFound for a key that `keys`
        with the same arguments would not list."""

    async def create_agent(self, principal: Principal, spec: AgentSpec) -> Agent:
        """Raises Conflict if another agent of the workspace has this name. Case does not tell names apart."""

    async def agent(self, principal: Principal, agent_id: AgentId) -> Agent: ...

    async def agents(self, principal: Principal, *, limit: int = 50, cursor: str | None = None) -> Page[Agent]:
        """The agents of the workspace that the principal's scopes reach, newest first."""

    async def change_agent(
        self, principal: Principal, agent_id: AgentId, change: Callable[[AgentSpec], AgentSpec]
    ) -> Agent:
        """Raises Conflict for a new name that another agent of the workspace has. An agent may keep a name that it
        shares since an earlier release."""

    async def delete_agent(self, principal: Principal, agent_id: AgentId) -> None: ...

    async def begin_mcp_connection(
        self, principal: Principal, url: str, *, connection_id: ConnectionId, issuer: str, attempt: str
    ) -> McpConnection:
        """Store an authorization that has begun, in place of one that has not ended. The workspace has one connection
        for each address: if there is one already, it keeps its id and goes on to work."""

    async def mcp_connections(self, org_id: OrgId, workspace_id: WorkspaceId) -> list[McpConnection]:
        """The connections of the workspace, newest first."""

    async def mcp_connection(
        self, org_id: OrgId, workspace_id: WorkspaceId, connection_id: ConnectionId
    ) -> McpConnection: ...

    async def mcp_connection_at(self, org_id: OrgId, workspace_id: WorkspaceId, url: str) -> McpConnection | None:
        """The connection of the workspace for this address."""

    async def finish_mcp_connection(
        self, principal: Principal, connection_id: ConnectionId, *, attempt: str, sealed: str, issuer: str
    ) -> McpConnection | None:
        """End the stored authorization with these tokens; None if another one has begun since, or it has ended."""

    async def lease_mcp_connection(self, connection_id: ConnectionId, *, version: int, seconds: float) -> bool:
        """Whether this caller may renew the tokens of this version now. Of many callers one may, for these seconds."""

    async def renew_mcp_connection(
        self, connection_id: ConnectionId, *, version: int, sealed: str | None, problem: str | None = None
    ) -> None:
        """Store other tokens, or none and the reason, unless the version has changed since."""

    async def delete_mcp_connection(
        self, org_id: OrgId, workspace_id: WorkspaceId, connection_id: ConnectionId
    ) -> McpConnection:
        """The connection as it was. NotFound if there is none."""

    async def usage(
        self, principal: Principal, *, month: str | None = None, user_id: UserId | None = None
    ) -> MonthlyUsage:
        """The user's own month; without a user, the workspace's. A service key also gets its own month."""

    async def add_up_usage(self, *, limit: int = 1_000) -> bool:
        """Bring counters together that are kept in several places, so that many turns at once can be counted. False if
        there was nothing left to do. What `usage` says does not change."""

    async def usage_rows(self, principal: Principal, only: UsageFilter, *, group_by: GroupBy) -> list[UsageRow]:
        """What each group of the workspace's turns has used, most messages first: turns that ended, however they ended,
        and those that are open. Erased and purged turns stay counted. A member sees their own alone."""

    async def usage_turns(
        self, principal: Principal, only: UsageFilter, *, limit: int = 50, cursor: str | None = None
    ) -> Page[CountedTurn]:
        """The turns that are counted there, newest first, without those that are erased or whose conversation is
        deleted. A member sees their own alone."""

    async def limit_uses(self, principal: Principal, *, month: str, user_id: UserId | None = None) -> list[LimitUse]:
        """The limits of the user and how much of each is used; without a user, those of the workspace. A service key
        also gets its own. What has no month is left out of a month that is not this one."""

    async def add_token(self, token_hash: bytes, binding: TokenBinding, *, expires_in_seconds: float) -> None: ...

    async def spend_token(self, token_hash: bytes, purpose: TokenPurpose) -> TokenBinding | None:
        """The binding, to exactly one caller, before it expires; None for other callers."""

    async def peek_token(self, token_hash: bytes, purpose: TokenPurpose) -> TokenBinding | None:
        """The binding that spending would give just now. Nothing is spent, so a later `spend_token` may still fail."""

    async def expire_tokens(self, turn_id: TurnId) -> None:
        """End all unspent tokens of a turn."""
