"""The account: models, service keys, user tokens, workspaces, usage."""

from collections.abc import AsyncGenerator, Sequence
from typing import Literal, TypedDict, Unpack

from turnkeep_client.transport import Resource, given, part
from turnkeep_client.wire import Key, ModelName, MonthlyUsage, Token, Workspace


class WorkspaceFields(TypedDict, total=False):
    """What a workspace has beside its name; None takes it away."""

    model: str | None
    monthly_message_limit: int | None
    user_monthly_message_limit: int | None


class WorkspaceChanges(WorkspaceFields, total=False):
    name: str


class Models(Resource):
    def list(self) -> AsyncGenerator[ModelName, None]:
        """The models that the server can reach now."""
        return self._pages("/v1/models", ModelName)


class Keys(Resource):
    """Service keys of the org."""

    def list(self) -> AsyncGenerator[Key, None]:
        return self._pages("/v1/keys", Key)

    async def create(
        self,
        name: str,
        *,
        monthly_message_limit: int | None = None,
        requests_per_minute: int | None = None,
        allowed_tools: Sequence[str] | None = None,
    ) -> Key:
        """A new key; `key.key` is the secret, shown only once."""
        body = {
            "name": name,
            "monthly_message_limit": monthly_message_limit,
            "requests_per_minute": requests_per_minute,
            "allowed_tools": None if allowed_tools is None else list(allowed_tools),
        }
        return await self._transport.call("POST", "/v1/keys", Key, body=body)

    async def revoke(self, key_id: str) -> None:
        await self._transport.fetch("DELETE", f"/v1/keys/{part(key_id)}")


class Tokens(Resource):
    async def create(
        self,
        user: str,
        *,
        workspace_id: str | None = None,
        ttl_seconds: int = 3_600,
        role: Literal["member", "admin"] | None = None,
    ) -> Token:
        """A short-lived token for one user of one workspace, to be used in a browser (service keys only)."""
        body = given(user=user, workspace_id=workspace_id, ttl_seconds=ttl_seconds, role=role)
        # Two tokens for one user do no harm, so a lost answer is asked for again.
        return await self._transport.call("POST", "/v1/tokens", Token, body=body, is_safe=True)


class Workspaces(Resource):
    """Containers inside the org, with limits of their own."""

    def list(self) -> AsyncGenerator[Workspace, None]:
        return self._pages("/v1/workspaces", Workspace)

    async def get(self, workspace_id: str) -> Workspace:
        return await self._transport.call("GET", f"/v1/workspaces/{part(workspace_id)}", Workspace)

    async def create(self, /, name: str, **fields: Unpack[WorkspaceFields]) -> Workspace:
        return await self._transport.call("POST", "/v1/workspaces", Workspace, body={"name": name, **fields})

    async def update(self, /, workspace_id: str, **fields: Unpack[WorkspaceChanges]) -> Workspace:
        """Change the given fields; None takes a model or a limit away."""
        return await self._transport.call("PATCH", f"/v1/workspaces/{part(workspace_id)}", Workspace, body=fields)

    async def delete(self, workspace_id: str) -> None:
        """Delete an empty workspace."""
        await self._transport.fetch("DELETE", f"/v1/workspaces/{part(workspace_id)}")


class UsageResource(Resource):
    async def get(self, *, month: str | None = None) -> MonthlyUsage:
        """What a month (`2026-11`; by default this one) has used."""
        return await self._transport.call("GET", "/v1/usage", MonthlyUsage, query={"month": month})
