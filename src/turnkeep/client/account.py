"""Agents, and the account: models, keys, tokens, workspaces, usage."""

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

from turnkeep.client.answers import Agent, Key, ModelName, MonthlyUsage, Token, Workspace
from turnkeep.client.runs import RunStream
from turnkeep.client.skills import packed
from turnkeep.client.verbs import Verbs, given, part
from turnkeep_client.wire.blocks import JsonObject


class AgentFields(TypedDict, total=False):
    """What an agent is made of, beside its name."""

    instructions: str
    model: str | None
    tools: Sequence[str | JsonObject]
    mcp_servers: Sequence[JsonObject]
    skills: Sequence[JsonObject]
    sandbox: bool
    environment: JsonObject


class AgentChanges(AgentFields, total=False):
    name: str


class WorkspaceFields(TypedDict, total=False):
    """What a workspace has beside its name; None takes it away."""

    model: str | None
    monthly_message_limit: int | None
    user_monthly_message_limit: int | None


class WorkspaceChanges(WorkspaceFields, total=False):
    name: str


class Agents(Verbs):
    """Instructions, a model and tools under a name."""

    def list(self, *, limit: int | None = None) -> AsyncGenerator[Agent, None]:
        return self._pages("/v1/agents", Agent, limit=limit)

    async def get(self, agent_id: str) -> Agent:
        return await self._transport.call("GET", f"/v1/agents/{part(agent_id)}", Agent)

    async def create(self, /, name: str, **fields: Unpack[AgentFields]) -> Agent:
        return await self._transport.call("POST", "/v1/agents", Agent, body={"name": name, **fields})

    async def update(self, /, agent_id: str, **fields: Unpack[AgentChanges]) -> Agent:
        """Change the given fields; those left out stay."""
        return await self._transport.call("PATCH", f"/v1/agents/{part(agent_id)}", Agent, body=fields)

    async def replace(self, agent_id: str, spec: Mapping[str, Any]) -> Agent:
        """Give an agent other fields, all of them."""
        return await self._transport.call("PUT", f"/v1/agents/{part(agent_id)}", Agent, body=dict(spec))

    async def delete(self, agent_id: str) -> None:
        """Delete an agent. Its conversations stay."""
        await self._transport.fetch("DELETE", f"/v1/agents/{part(agent_id)}")

    async def add_skill(self, agent_id: str, source: str | os.PathLike[str]) -> Agent:
        """Give an agent the skill in this folder or zip. One of the same name is replaced."""
        name, content = await asyncio.to_thread(packed, source)
        path = f"/v1/agents/{part(agent_id)}/skills"
        parts = [("file", (name, content, "application/zip"))]
        # The same skill twice is the same skill, so a lost answer is asked for again.
        return await self._transport.send_parts(path, Agent, parts, is_safe=True)

    async def remove_skill(self, agent_id: str, name: str) -> Agent:
        """Take a skill away from an agent."""
        return await self._transport.call("DELETE", f"/v1/agents/{part(agent_id)}/skills/{part(name)}", Agent)

    def run(self, agent_id: str, prompt: str, *, attachment_ids: Sequence[str] | None = None) -> RunStream:
        """Run an agent once, without a conversation. A run cannot be resumed: leaving the stream stops it."""
        body: JsonObject = {"prompt": prompt}
        if attachment_ids is not None:
            body["attachment_ids"] = list(attachment_ids)
        return RunStream(self._transport, f"/v1/agents/{part(agent_id)}/runs", body)


class Models(Verbs):
    def list(self) -> AsyncGenerator[ModelName, None]:
        """The models that the server can reach now."""
        return self._pages("/v1/models", ModelName)


class Keys(Verbs):
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
        """A new key; `key.key` is the secret, shown this once."""
        body = {
            "name": name,
            "monthly_message_limit": monthly_message_limit,
            "requests_per_minute": requests_per_minute,
            "allowed_tools": None if allowed_tools is None else list(allowed_tools),
        }
        return await self._transport.call("POST", "/v1/keys", Key, body=body)

    async def revoke(self, key_id: str) -> None:
        await self._transport.fetch("DELETE", f"/v1/keys/{part(key_id)}")


class Tokens(Verbs):
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


class Workspaces(Verbs):
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


class UsageVerbs(Verbs):
    async def get(self, *, month: str | None = None) -> MonthlyUsage:
        """What a month (`2026-11`; by default this one) has used."""
        return await self._transport.call("GET", "/v1/usage", MonthlyUsage, query={"month": month})
