"""Tools that run elsewhere, made from what an agent declares: HTTP endpoints and MCP servers.

Secrets are opened here, at the moment of use, and go nowhere but into the request or the program's environment.
"""

import asyncio
import importlib
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Self

import httpx2
import msgspec

from turnkeep.errors import Forbidden, TurnkeepError
from turnkeep.ids import OrgId
from turnkeep.model.agents import AgentSpec
from turnkeep.tools.addresses import AddressGuard, NameUnknown
from turnkeep.tools.discretion import DiscreetTool, Mask, OpenSecrets
from turnkeep.tools.http import HttpDefinition, HttpTool
from turnkeep.tools.network import open_client
from turnkeep.tools.ports import Tool
from turnkeep.tools.vault import Vault
from turnkeep_client.wire.blocks import JsonObject

if TYPE_CHECKING:
    from turnkeep.tools.mcp_pool import McpDefinition, McpPool

PROBE_SECONDS = 5.0


class RemoteTools:
    """Open it before use; leaving it ends every connection and every program it started."""

    def __init__(self, vault: Vault, guard: AddressGuard, *, command_orgs: frozenset[OrgId] | None = None) -> None:
        """`command_orgs` are those whose agents may have MCP servers that are commands; None: all of them."""
        self._vault = vault
        self._guard = guard
        self._command_orgs = command_orgs
        self._stack = AsyncExitStack()
        self._client: httpx2.AsyncClient | None = None
        self._pool: McpPool | None = None
        self._opening = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def tools_of(self, agent: AgentSpec, org_id: OrgId) -> tuple[list[Tool], list[str]]:
        """The agent's HTTP tools, then those of its MCP servers (asked all at once); and what had to be left out."""
        tools: list[Tool] = []
        notes: list[str] = []
        for declared in agent.tools:
            if isinstance(declared, dict):
                try:
                    tools.append(self._http_tool(declared, org_id))
                except msgspec.ValidationError as exc:
                    notes.append(f"The tool {declared.get('name')} is left out: {exc}")
        for found, note in await asyncio.gather(*(self._mcp_tools(server, org_id) for server in agent.mcp_servers)):
            tools += found
            notes += [note] if note else []
        return tools, notes

    async def _mcp_tools(self, server: JsonObject, org_id: OrgId) -> tuple[list[Tool], str | None]:
        """The server's tools; none, and the reason, when it cannot be reached. The turn goes on without them."""
        pool = await self._open_pool()
        from turnkeep.tools.mcp import tools_of
        from turnkeep.tools.mcp_pool import McpDefinition

        try:
            definition = msgspec.convert(server, McpDefinition)
        except msgspec.ValidationError as exc:
            return [], f"The MCP server {server.get('name')} is left out: {exc}"
        found = pool.server(org_id, definition)
        secrets = self._secrets(org_id, definition.headers, definition.env)
        try:
            self._check_command(definition, org_id)
            listed = await found.tools()
        except TurnkeepError as exc:
            return [], Mask(secrets).text(f"The MCP server {definition.name} is left out: {exc.detail}")
        return [DiscreetTool(tool, secrets) for tool in tools_of(found, definition, listed)], None

    async def trouble_with(self, server: JsonObject, org_id: OrgId) -> str | None:
        """Why this MCP server cannot be used just now; None if it can."""
        pool = await self._open_pool()
        from turnkeep.tools.mcp_pool import McpDefinition

        definition = msgspec.convert(server, McpDefinition)
        found = pool.server(org_id, definition)
        try:
            self._check_command(definition, org_id)
            names = {tool.name for tool in await found.tools(seconds=PROBE_SECONDS, is_patient=True)}
        except TurnkeepError as exc:
            mask = Mask(self._secrets(org_id, definition.headers, definition.env))
            return mask.text(f"The MCP server {definition.name} cannot be used now: {exc.detail}")
        missing = sorted(set(definition.tools or ()) - names)
        return f"The MCP server {definition.name} has no tool called {', '.join(missing)}." if missing else None

    def _check_command(self, definition: "McpDefinition", org_id: OrgId) -> None:
        """Agents that were saved under other rules may still declare a command."""
        if definition.command is not None and self._command_orgs is not None and org_id not in self._command_orgs:
            raise Forbidden("it is a command, and this server starts none for this org (TURNKEEP_ALLOW_MCP_COMMANDS).")

    async def check_address(self, url: str) -> str | None:
        """Raises AddressRefused for an address that tools may not call; says what else is wrong with it just now."""
        try:
            await self._guard.check_reachable(self._guard.check_url(url))
        except NameUnknown as exc:
            return exc.detail
        return None

    def _http_tool(self, declared: JsonObject, org_id: OrgId) -> Tool:
        definition = msgspec.convert(declared, HttpDefinition)
        tool = HttpTool(
            definition,
            client=self._open_client(),
            guard=self._guard,
            open_headers=partial(self._vault.open_all, org_id, definition.headers),
        )
        return DiscreetTool(tool, self._secrets(org_id, definition.headers))

    def _secrets(self, org_id: OrgId, *sealed: Mapping[str, str]) -> OpenSecrets:
        return lambda: [text for each in sealed for text in self._vault.open_all(org_id, each).values()]

    def _open_client(self) -> httpx2.AsyncClient:
        """One client for all HTTP tools: it keeps connections, and nothing else that one caller could leave behind."""
        if self._client is None:
            self._client = open_client(self._guard)
            self._stack.push_async_callback(self._client.aclose)
        return self._client

    async def _open_pool(self) -> "McpPool":
        """The MCP library takes a second to import, so only who needs it waits for it, and the others go on."""
        async with self._opening:
            if self._pool is None:
                await asyncio.to_thread(importlib.import_module, "turnkeep.tools.mcp")
                from turnkeep.tools.mcp_pool import McpPool

                self._pool = McpPool(vault=self._vault, guard=self._guard)
                await self._stack.enter_async_context(self._pool)
            return self._pool
