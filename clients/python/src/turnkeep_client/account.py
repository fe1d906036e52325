"""The account: models, tools, service keys, user tokens, users, workspaces, usage."""

from collections.abc import AsyncGenerator, Sequence
from typing import Literal, TypedDict, Unpack

from turnkeep_client.transport import Resource, given, part
from turnkeep_client.wire import (
    Erasure,
    GroupBy,
    Key,
    ModelName,
    MonthlyUsage,
    NativeTool,
    StartedErasure,
    Token,
    UsageTurn,
    User,
    Workspace,
)


class ScopeFields(TypedDict, total=False):
    """What a token or key may reach; a field that is left out is everything that a member may."""

    agents: Sequence[str]
    models: Sequence[str]
    features: Sequence[Literal["files", "runs", "knowledge", "export"]]


class LimitFields(TypedDict, total=False):
    """Limits of a user, a key or a workspace; None: no limit."""

    monthly_message_limit: int | None
    monthly_token_limit: int | None
    monthly_cost_limit: float | None
    stored_byte_limit: int | None
    parallel_turn_limit: int | None


class UserChanges(LimitFields, total=False):
    """What can be changed of a user; None takes a name or a limit away."""

    name: str | None
    role: Literal["member", "admin"]
    is_disabled: bool


class WorkspaceFields(LimitFields, total=False):
    """What a workspace has beside its name; None takes it away. `user_…` limits are for each user."""

    model: str | None
    user_monthly_message_limit: int | None
    user_monthly_token_limit: int | None
    user_monthly_cost_limit: float | None
    user_stored_byte_limit: int | None
    user_parallel_turn_limit: int | None
    title_model: str | None


class WorkspaceChanges(WorkspaceFields, total=False):
    """What can be changed of a workspace."""

    name: str


class Models(Resource):
    """The models of the server."""

    def list(self) -> AsyncGenerator[ModelName, None]:
        """The models that the server can reach now."""
        return self._pages("/v1/models", ModelName)


class NativeTools(Resource):
    """The tools that agents can name."""

    def list(self) -> AsyncGenerator[NativeTool, None]:
        """The tools that agents can name: those of the server, and those of its operator (admins only)."""
        return self._pages("/v1/tools", NativeTool)


class Keys(Resource):
    """Service keys of the org."""

    def list(self) -> AsyncGenerator[Key, None]:
        """All keys, revoked ones included, without their secrets (admins only)."""
        return self._pages("/v1/keys", Key)

    async def create(
        self,
        name: str,
        *,
        requests_per_minute: int | None = None,
        allowed_tools: Sequence[str] | None = None,
        scopes: ScopeFields | None = None,
        **limits: Unpack[LimitFields],
    ) -> Key:
        """A new key; `key.key` is the secret, shown only once."""
        body = {
            "name": name,
            "requests_per_minute": requests_per_minute,
            "allowed_tools": None if allowed_tools is None else list(allowed_tools),
            "scopes": scopes,
            **limits,
        }
        return await self._transport.call("POST", "/v1/keys", Key, body=body)

    async def revoke(self, key_id: str, *, keep_made: bool = False) -> None:
        """Make a key invalid from now on, with its tokens and all keys that it made; with `keep_made`, without those
        keys."""
        query = {"keep_made": "true"} if keep_made else None
        await self._transport.fetch("DELETE", f"/v1/keys/{part(key_id)}", query=query)


class Tokens(Resource):
    """Tokens of users."""

    async def create(
        self,
        user: str,
        *,
        workspace_id: str | None = None,
        ttl_seconds: int = 3_600,
        role: Literal["member", "admin"] | None = None,
        scopes: ScopeFields | None = None,
        source: Literal["ui", "api"] | None = None,
    ) -> Token:
        """A short-lived token for one user of one workspace, to be used in a browser (service keys only)."""
        body = given(
            user=user, workspace_id=workspace_id, ttl_seconds=ttl_seconds, role=role, scopes=scopes, source=source
        )
        # Two tokens for one user do no harm, so a lost answer is asked for again.
        return await self._transport.call("POST", "/v1/tokens", Token, body=body, is_safe=True)


class Users(Resource):
    """The users of the workspace (admins only). A user is named by id or by the host's id."""

    def list(self, query: str | None = None) -> AsyncGenerator[User, None]:
        """All users; with `query`, those whose name or host id has this text in it."""
        return self._pages("/v1/users", User, q=query)

    async def get(self, user: str) -> User:
        """One user, with role and limits."""
        return await self._transport.call("GET", f"/v1/users/{part(user)}", User)

    async def update(self, /, user: str, **fields: Unpack[UserChanges]) -> User:
        """Change the given fields. A user who is disabled can do nothing any more, and their turns are stopped."""
        return await self._transport.call("PATCH", f"/v1/users/{part(user)}", User, body=fields)


class Erasures(Resource):
    """Erasures of users (admins only)."""

    async def start(self, user: str) -> str:
        """Begin to erase a user, with everything that they made; return the id of the erasure. A repeat returns the
        same id while it is under way."""
        path = f"/v1/users/{part(user)}/erase"
        return (await self._transport.call("POST", path, StartedErasure, is_safe=True)).erasure_id

    async def get(self, erasure_id: str) -> Erasure:
        """How far it has come: `status` is `running` or `done`."""
        return await self._transport.call("GET", f"/v1/erasures/{part(erasure_id)}", Erasure)


class Workspaces(Resource):
    """Containers inside the org, with limits of their own."""

    def list(self) -> AsyncGenerator[Workspace, None]:
        """All workspaces of the org, or the one that the caller may see."""
        return self._pages("/v1/workspaces", Workspace)

    async def get(self, workspace_id: str) -> Workspace:
        """One workspace, with its limits."""
        return await self._transport.call("GET", f"/v1/workspaces/{part(workspace_id)}", Workspace)

    async def create(self, /, name: str, **fields: Unpack[WorkspaceFields]) -> Workspace:
        """Make a workspace."""
        return await self._transport.call("POST", "/v1/workspaces", Workspace, body={"name": name, **fields})

    async def update(self, /, workspace_id: str, **fields: Unpack[WorkspaceChanges]) -> Workspace:
        """Change the given fields; None takes a model or a limit away."""
        return await self._transport.call("PATCH", f"/v1/workspaces/{part(workspace_id)}", Workspace, body=fields)

    async def delete(self, workspace_id: str) -> None:
        """Delete an empty workspace."""
        await self._transport.fetch("DELETE", f"/v1/workspaces/{part(workspace_id)}")


class UsageResource(Resource):
    """What was used."""

    async def get(
        self,
        *,
        month: str | None = None,
        group_by: GroupBy | None = None,
        user: str | None = None,
        agent_id: str | None = None,
        model: str | None = None,
    ) -> MonthlyUsage:
        """What a month (`2026-11`; by default this one) has used, and its limits; with `group_by`, also each group
        (`rows`)."""
        query = {"month": month, "group_by": group_by, "user": user, "agent_id": agent_id, "model": model}
        return await self._transport.call("GET", "/v1/usage", MonthlyUsage, query=query)

    async def csv(
        self,
        group_by: GroupBy,
        *,
        month: str | None = None,
        user: str | None = None,
        agent_id: str | None = None,
        model: str | None = None,
    ) -> str:
        """The same groups as a CSV file, for a spreadsheet."""
        query = {"month": month, "group_by": group_by, "user": user, "agent_id": agent_id, "model": model}
        raw = await self._transport.fetch("GET", "/v1/usage", query=query | {"format": "csv"})
        return raw.decode()

    def turns(
        self,
        *,
        month: str | None = None,
        day: str | None = None,
        user: str | None = None,
        agent_id: str | None = None,
        model: str | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[UsageTurn, None]:
        """The turns that a month counts, newest first: what each has used. `day` is one day of it (`2026-11-30`)."""
        query = {"month": month, "day": day, "user": user, "agent_id": agent_id, "model": model}
        return self._pages("/v1/usage/turns", UsageTurn, limit=limit, **query)
