"""Which tools there are, and which of them an agent may use: native tools, HTTP endpoints and MCP servers.

Secrets of HTTP tools and MCP servers are decrypted here, at the moment of use, and go nowhere but into the request or
the environment of the program.
"""

import asyncio
import importlib
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Self

import aiohttp
import msgspec

from turnkeep.errors import Forbidden, InvalidRequest, TurnkeepError, WorldError
from turnkeep.ids import ConversationId, OrgId
from turnkeep.model.agents import AgentSpec, McpConnection
from turnkeep.model.principals import Principal
from turnkeep.tools.addresses import AddressGuard, NameUnknown
from turnkeep.tools.call_identity import CallSigner, Placeholders, has_placeholders
from turnkeep.tools.http_tools import HttpDefinition, HttpEndpointTool, open_session
from turnkeep.tools.oauth import AuthorizationMissing, Authorizations
from turnkeep.tools.ports import McpListing, Tool, Toolbox, ToolSpec
from turnkeep.tools.secret_masking import MaskedTool, OpenSecrets, SecretMask
from turnkeep.tools.vault import Vault
from turnkeep.tools.waits import asking, client_tools, is_of_type, native_names
from turnkeep_client.wire.blocks import JsonObject

if TYPE_CHECKING:
    from turnkeep.tools.mcp import McpDefinition, McpPool

_logger = logging.getLogger("turnkeep.tools")

PROBE_SECONDS = 5.0


@asynccontextmanager
async def open_tools(
    vault: Vault,
    guard: AddressGuard,
    *,
    native: Iterable[Tool] = (),
    offered_to_all: Iterable[str] = (),
    command_orgs: frozenset[OrgId] | None = None,
    authorizations: Authorizations | None = None,
) -> "AsyncIterator[ToolRegistry]":
    """All tools of a server. At the end of the block every connection and every program is ended.

    `command_orgs` are the orgs whose agents may start MCP servers as commands; None: all of them.
    `authorizations` has the tokens for MCP servers that ask for one.
    """
    async with RemoteTools(vault, guard, command_orgs=command_orgs, authorizations=authorizations) as remote:
        yield ToolRegistry(native, offered_to_all=offered_to_all, remote=remote)


class ToolRegistry:
    """Native tools by name, and with `remote` the HTTP tools and MCP servers that agents declare.

    An agent uses what it names; a raw model uses the `offered_to_all` ones.
    """

    def __init__(
        self,
        tools: Iterable[Tool] = (),
        *,
        offered_to_all: Iterable[str] = (),
        remote: "RemoteTools | None" = None,
    ) -> None:
        self._tools: dict[str, Tool] = {}
        for each in tools:
            if each.spec.name in self._tools:
                raise InvalidRequest(f"Two tools are called {each.spec.name}. Give one of them another name.")
            self._tools[each.spec.name] = each
        self._offered_to_all = tuple(offered_to_all)
        self._of_raw_models = FixedToolbox(
            {name: self._tools[name] for name in native_names(self._offered_to_all) if name in self._tools}
        )
        self._remote = remote

    @property
    def native(self) -> tuple[ToolSpec, ...]:
        return tuple(self._tools[name].spec for name in sorted(self._tools))

    async def toolbox(
        self,
        agent: AgentSpec | None,
        principal: Principal,
        conversation_id: ConversationId | None = None,
        client: Sequence[JsonObject] = (),
    ) -> Toolbox:
        """Names of tools that no longer exist are skipped; if the model calls one, it gets an error.

        If two tools have the same name, the first is used: native, HTTP, then the MCP servers in the agent's order,
        then the client tools of the agent, and those of the question.
        """
        if agent is None and not client and principal.allowed_tools is None:
            return self._of_raw_models
        wanted = self._offered_to_all if agent is None else agent.tools
        found: list[Tool] = [self._tools[name] for name in native_names(wanted) if name in self._tools]
        notes: list[str] = []
        if agent is not None and self._remote is not None:
            remote, notes = await self._remote.tools_of(agent, principal, conversation_id)
            found += remote
        found = [each for each in found if principal.may_use(each.spec.name)]
        if agent is not None:
            found = [*asking(found, agent), *client_tools(agent.tools)]
        taken: dict[str, Tool] = {}
        for each in (*found, *client_tools(client)):
            if taken.setdefault(each.spec.name, each) is not each:
                notes.append(f"There are two tools called {each.spec.name}; the first is used.")
        for note in notes:
            _logger.warning(note)
        return FixedToolbox(taken, notes)

    async def mcp_server_problem(self, server: JsonObject, principal: Principal) -> str | None:
        """Why this MCP server cannot be used now; None if it can, or if that depends on the user."""
        return None if self._remote is None else await self._remote.mcp_server_problem(server, principal)

    async def mcp_listing(self, server: JsonObject, principal: Principal) -> McpListing:
        """The tools of this MCP server, listed now, or what is missing. Raises AddressRefused."""
        if self._remote is None:
            return McpListing(problem="This server has no tools of other servers.")
        return await self._remote.mcp_listing(server, principal)

    async def check_address(self, url: str) -> str | None:
        """Raises AddressRefused for an address that tools may not call. Returns another problem with it, or None."""
        return None if self._remote is None else await self._remote.check_address(url)


class FixedToolbox:
    """A toolbox with a fixed set of tools. `notes` say what is missing from it, and why."""

    def __init__(self, tools: Mapping[str, Tool], notes: Sequence[str] = ()) -> None:
        self._tools = dict(tools)
        self.notes = tuple(notes)

    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self._tools.values())

    def get(self, name: str) -> Tool | None:
        return self._tools.get(name)


class AgentSecret:
    """The sealed secret with which calls of one agent are signed, opened at the moment of a call."""

    def __init__(self, vault: Vault, org_id: OrgId, sealed: str | None) -> None:
        self.org_id = org_id
        self.sealed_texts = {} if sealed is None else {"tool_secret": sealed}
        self._vault = vault

    def open(self) -> str | None:
        """None if the agent has no secret. Raises SecretUnreadable."""
        return self._vault.open_all(self.org_id, self.sealed_texts).get("tool_secret")


class RemoteTools:
    """HTTP tools and MCP servers that agents declare. At its end every connection and every program is ended."""

    def __init__(
        self,
        vault: Vault,
        guard: AddressGuard,
        *,
        command_orgs: frozenset[OrgId] | None = None,
        authorizations: Authorizations | None = None,
    ) -> None:
        """`command_orgs` are the orgs whose agents may start MCP servers as commands; None: all of them."""
        self._vault = vault
        self._guard = guard
        self._authorizations = authorizations
        self._command_orgs = command_orgs
        self._stack = AsyncExitStack()
        self._session: aiohttp.ClientSession | None = None
        self._pool: McpPool | None = None
        self._opening = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def tools_of(
        self, agent: AgentSpec, principal: Principal, conversation_id: ConversationId | None
    ) -> tuple[list[Tool], list[str]]:
        """The agent's HTTP tools, then those of its MCP servers (listed in parallel), and notes on what is missing."""
        tools: list[Tool] = []
        notes: list[str] = []
        secret = AgentSecret(self._vault, principal.org_id, agent.tool_secret)
        for declared in agent.tools:
            if is_of_type(declared, "http") and isinstance(declared, dict):
                try:
                    tools.append(self._http_tool(declared, secret))
                except msgspec.ValidationError as exc:
                    notes.append(f"The tool {declared.get('name')} is left out: {exc}")
        placeholders = Placeholders.of(principal, conversation_id)
        listing = (self._mcp_tools(server, principal, placeholders, secret) for server in agent.mcp_servers)
        for found, note in await asyncio.gather(*listing):
            tools += found
            notes += [note] if note else []
        return tools, notes

    async def _mcp_tools(
        self, server: JsonObject, principal: Principal, placeholders: Placeholders, secret: AgentSecret
    ) -> tuple[list[Tool], str | None]:
        """The server's tools, or none and the reason. The turn goes on without them."""
        org_id = secret.org_id
        pool = await self._open_pool()
        from turnkeep.tools.mcp import McpDefinition, tools_of

        try:
            definition = msgspec.convert(server, McpDefinition)
        except msgspec.ValidationError as exc:
            return [], f"The MCP server {server.get('name')} is left out: {exc}"
        secrets = self._secrets(org_id, definition.headers, definition.env, secret.sealed_texts)
        try:
            self._check_command(definition, org_id)
            found = pool.server(org_id, definition, placeholders, await self._connection(definition, principal))
            listed = await found.tools()
        except TurnkeepError as exc:
            return [], SecretMask(secrets).text(f"The MCP server {definition.name} is left out: {exc.detail}")
        tools = tools_of(found, definition, listed, CallSigner(secret.open))
        token = found.token
        all_secrets = secrets if token is None else lambda: [*secrets(), *token.known]
        return [MaskedTool(tool, all_secrets) for tool in tools], None

    async def mcp_server_problem(self, server: JsonObject, principal: Principal) -> str | None:
        """Why this MCP server cannot be used now; None if it can, or if that depends on the user."""
        await self._open_pool()
        from turnkeep.tools.mcp import McpDefinition

        definition = msgspec.convert(server, McpDefinition)
        try:
            if self._depends_on_user(definition, principal.org_id):
                return None
            names = {tool.name for tool in await self._listed(definition, principal)}
        except TurnkeepError as exc:
            return self._masked_problem(definition, principal.org_id, exc)
        missing = sorted(set(definition.tools or ()) - names)
        return f"The MCP server {definition.name} has no tool called {', '.join(missing)}." if missing else None

    async def mcp_listing(self, server: JsonObject, principal: Principal) -> McpListing:
        """The tools of this MCP server, listed now, or what is missing. Raises AddressRefused."""
        await self._open_pool()
        from turnkeep.tools.mcp import McpDefinition

        definition = msgspec.convert(server, McpDefinition)
        try:
            if self._depends_on_user(definition, principal.org_id):
                return McpListing(problem="Its address or headers have placeholders, so its tools depend on the user.")
            return McpListing(tools=tuple(await self._listed(definition, principal)))
        except TurnkeepError as exc:
            problem = self._masked_problem(definition, principal.org_id, exc)
        if definition.url is None or self._authorizations is None:
            return McpListing(problem=problem)
        try:
            demand = await self._authorizations.demand_of(definition.url)
        except WorldError as exc:
            return McpListing(problem=self._masked_problem(definition, principal.org_id, exc))
        if demand is None:
            return McpListing(problem=problem)
        return McpListing(
            problem=problem,
            issuer=demand.server.issuer,
            can_register=demand.server.registration_endpoint is not None,
        )

    def _depends_on_user(self, definition: "McpDefinition", org_id: OrgId) -> bool:
        """Raises Forbidden for a command that may not be started, and SecretUnreadable."""
        self._check_command(definition, org_id)
        return has_placeholders([definition.url or "", *self._vault.open_all(org_id, definition.headers).values()])

    async def _listed(self, definition: "McpDefinition", principal: Principal) -> list[ToolSpec]:
        """The tools of a server without placeholders, as the server calls them."""
        pool = await self._open_pool()
        from turnkeep.tools.mcp import listed_specs

        connection = await self._connection(definition, principal)
        found = pool.server(principal.org_id, definition, Placeholders({}), connection)
        return listed_specs(await found.tools(seconds=PROBE_SECONDS, retry_now=True))

    async def _connection(self, definition: "McpDefinition", principal: Principal) -> McpConnection | None:
        """The connection that the server needs. Raises AuthorizationMissing."""
        if definition.auth is None or definition.url is None:
            return None
        if self._authorizations is None:
            raise AuthorizationMissing("it asks for authorization, which this server cannot keep.")
        return await self._authorizations.connection_at(principal, definition.url)

    def _masked_problem(self, definition: "McpDefinition", org_id: OrgId, exc: TurnkeepError) -> str:
        mask = SecretMask(self._secrets(org_id, definition.headers, definition.env))
        return mask.text(f"The MCP server {definition.name} cannot be used now: {exc.detail}")

    def _check_command(self, definition: "McpDefinition", org_id: OrgId) -> None:
        """Agents that were saved under other settings may still declare a command."""
        if definition.command is not None and self._command_orgs is not None and org_id not in self._command_orgs:
            raise Forbidden("it is a command, and this server starts none for this org (TURNKEEP_ALLOW_MCP_COMMANDS).")

    async def check_address(self, url: str) -> str | None:
        """Raises AddressRefused for an address that tools may not call. Returns another problem with it, or None."""
        try:
            await self._guard.check_reachable(self._guard.check_url(url))
        except NameUnknown as exc:
            return exc.detail
        return None

    def _http_tool(self, declared: JsonObject, secret: AgentSecret) -> Tool:
        definition, org_id = msgspec.convert(declared, HttpDefinition), secret.org_id
        tool = HttpEndpointTool(
            definition,
            session=self._open_session(),
            guard=self._guard,
            open_headers=partial(self._vault.open_all, org_id, definition.headers),
            signer=CallSigner(secret.open),
        )
        return MaskedTool(tool, self._secrets(org_id, definition.headers, secret.sealed_texts))

    def _secrets(self, org_id: OrgId, *sealed: Mapping[str, str]) -> OpenSecrets:
        return lambda: [text for each in sealed for text in self._vault.open_all(org_id, each).values()]

    def _open_session(self) -> aiohttp.ClientSession:
        """One client for all HTTP tools.

        It keeps connections, and nothing else that one caller could leave to another.
        """
        if self._session is None:
            self._session = open_session(self._guard)
            self._stack.push_async_callback(self._session.close)
        return self._session

    async def _open_pool(self) -> "McpPool":
        """The pool. Importing the MCP SDK takes a second, so it is done on first use, in a thread."""
        async with self._opening:
            if self._pool is None:
                await asyncio.to_thread(importlib.import_module, "turnkeep.tools.mcp")
                from turnkeep.tools.mcp import McpPool

                self._pool = McpPool(vault=self._vault, guard=self._guard, authorizations=self._authorizations)
                await self._stack.enter_async_context(self._pool)
            return self._pool
