"""MCP servers and their tools. The tools of each server are named `server__tool`.

Sessions are opened on first use, shared by the turns of one org, and closed when they are idle. If the address or the
headers have placeholders, only turns with the same values share a session. After a failure, a server is not tried again
for a moment, so that an agent with a dead server does not make every turn wait.

Decision: docs/decisions/0603
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal, Self

import mcp_types
import msgspec
from mcp import MCPError
from msgspec import Struct

from turnkeep.errors import InvalidRequest, TurnkeepError
from turnkeep.ids import OrgId
from turnkeep.model.agents import McpConnection
from turnkeep.tools.addresses import AddressGuard
from turnkeep.tools.call_identity import CallSigner, Placeholders, without_arguments
from turnkeep.tools.mcp_session import (
    CLOSE_SECONDS,
    CONNECT_SECONDS,
    McpBroken,
    McpSession,
    McpUnreachable,
    OpenCalls,
    OpenTransport,
    SessionTasks,
    StderrTail,
    over_http,
    over_stdio,
)
from turnkeep.tools.oauth import AccessToken, Authorizations
from turnkeep.tools.ports import CallContext, Outcome, ToolSpec
from turnkeep.tools.vault import SecretUnreadable, Vault
from turnkeep_client.wire.blocks import JsonObject, JsonValue

IDLE_SECONDS = 300.0
RETRY_SECONDS = 5.0
SWEEP_SECONDS = 5.0
MAX_SESSIONS = 200


SEPARATOR = "__"
MAX_DESCRIPTION_CHARS = 10_000

MakeTransport = Callable[[OpenCalls], tuple[OpenTransport, StderrTail]]

_encode = msgspec.json.Encoder(order="deterministic").encode


class McpDefinition(Struct, frozen=True, kw_only=True):
    """An MCP server as an agent declares it, with encrypted secrets. `tools` are those it may use; None: all."""

    name: str
    url: str | None = None
    headers: dict[str, str] = {}
    command: str | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    tools: list[str] | None = None
    timeout_seconds: float | None = None
    arguments: JsonObject = {}
    """Constant arguments, for those of its tools that know them. The model does not see them."""
    auth: Literal["oauth"] | None = None

    def key(self, org_id: OrgId, values: Mapping[str, str], connection: McpConnection | None) -> bytes:
        """Agents with the same key share a session. `values` are those of the placeholders in address and headers. A
        new authorization of the `connection` is another session."""
        connected = None if connection is None else [connection.id, connection.connected_at]
        return _encode([org_id, self.url, self.headers, self.command, self.args, self.env, values, connected])


class PooledMcpServer:
    """One server of one org, with its session if there is one. `transport` makes a connection, with opened secrets."""

    def __init__(
        self,
        transport: "MakeTransport",
        *,
        tasks: SessionTasks,
        connected: "set[PooledMcpServer]",
        token: AccessToken | None = None,
    ) -> None:
        self.token = token
        self._transport = transport
        self._calls = OpenCalls()
        self._tasks = tasks
        self._connected_servers = connected
        self._session: McpSession | None = None
        self._connecting = asyncio.Lock()
        self._failure: tuple[float, str] | None = None
        self._in_use = 0
        self._used_at = time.monotonic()

    @property
    def idle_seconds(self) -> float:
        return 0.0 if self._in_use else time.monotonic() - self._used_at

    @property
    def is_connected(self) -> bool:
        return self._session is not None and not self._session.has_ended

    async def tools(self, *, seconds: float = CONNECT_SECONDS, retry_now: bool = False) -> list[mcp_types.Tool]:
        """The tools of the server. Raises McpUnreachable. `retry_now`: connect even if that failed a moment ago."""
        async with self._using():
            if retry_now:
                self._failure = None
            try:
                async with asyncio.timeout(seconds):
                    return await self._listed(seconds)
            except TimeoutError as exc:
                raise self._failed(f"it did not answer within {seconds:g} seconds.") from exc

    async def _listed(self, seconds: float) -> list[mcp_types.Tool]:
        for is_last in (False, True):
            session = await self._connected(seconds)
            try:
                return await session.tools()
            except McpBroken as exc:
                if is_last:
                    raise self._failed(exc.detail) from exc
            except Exception as exc:
                raise self._failed(f"it does not list its tools: {exc}") from exc
        raise AssertionError("unreachable")

    async def call(
        self, name: str, args: Mapping[str, Any], *, context: CallContext, signer: CallSigner, is_idempotent: bool
    ) -> mcp_types.CallToolResult:
        """Call the tool. The call is repeated once if it surely did not arrive, or if it is idempotent.

        Raises McpUnreachable or McpBroken if there is no response, MCPError if the server refused the call.
        """
        async with self._using():
            with self._calls.signed(context.turn_id, context.call_id, partial(signer.headers, context)):
                session = await self._connected(CONNECT_SECONDS)
                try:
                    return await session.call(name, args, context=context)
                except McpBroken as exc:
                    if exc.was_sent and not is_idempotent:
                        raise
                self._failure = None
                session = await self._connected(CONNECT_SECONDS)
                return await session.call(name, args, context=context)

    async def close(self) -> None:
        self._connected_servers.discard(self)
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @asynccontextmanager
    async def _using(self) -> AsyncIterator[None]:
        self._in_use += 1
        try:
            yield
        finally:
            self._in_use -= 1
            self._used_at = time.monotonic()

    async def _connected(self, seconds: float) -> McpSession:
        async with self._connecting:
            if self._session is not None and await self._session.is_open():
                return self._session
            if self._failure is not None and time.monotonic() < self._failure[0]:
                raise McpUnreachable(self._failure[1])
            try:
                transport, tail = self._transport(self._calls)
                self._session = await McpSession.open(transport, stderr_tail=tail, seconds=seconds, tasks=self._tasks)
            except TurnkeepError as exc:
                raise self._failed(exc.detail) from exc
            self._failure = None
            self._connected_servers.add(self)
            return self._session

    def _failed(self, reason: str) -> McpUnreachable:
        self._failure = (time.monotonic() + RETRY_SECONDS, reason)
        return McpUnreachable(reason)


class McpPool:
    """All MCP servers that this process uses. `close` ends every session and every program."""

    def __init__(
        self,
        *,
        vault: Vault,
        guard: AddressGuard,
        authorizations: Authorizations | None = None,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._vault = vault
        self._guard = guard
        self._authorizations = authorizations
        self._idle_seconds = idle_seconds
        self._servers: dict[bytes, PooledMcpServer] = {}
        self._connected: set[PooledMcpServer] = set()
        """All servers with a session, including those that only a running turn still uses."""
        self._tasks: SessionTasks = set()
        self._sweeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._sweeper = asyncio.create_task(self._sweep_for_ever(), name="close idle mcp sessions")
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def sessions(self) -> int:
        return sum(server.is_connected for server in self._connected)

    def server(
        self,
        org_id: OrgId,
        definition: McpDefinition,
        placeholders: Placeholders,
        connection: McpConnection | None = None,
    ) -> PooledMcpServer:
        """The server as these placeholders make it, with the tokens of the connection if it needs them. Raises
        InvalidRequest if a placeholder has no value, and SecretUnreadable."""
        headers = self._vault.open_all(org_id, definition.headers)
        key = definition.key(org_id, placeholders.used_in([definition.url or "", *headers.values()]), connection)
        found = self._servers.get(key)
        if found is None:
            token = None
            if connection is not None and self._authorizations is not None:
                token = AccessToken(self._authorizations, connection)
            transport = partial(self._transport, org_id, definition, placeholders, token)
            found = self._servers[key] = PooledMcpServer(
                transport, tasks=self._tasks, connected=self._connected, token=token
            )
        return found

    def _transport(
        self,
        org_id: OrgId,
        definition: McpDefinition,
        placeholders: Placeholders,
        token: AccessToken | None,
        calls: OpenCalls,
    ) -> tuple[OpenTransport, StderrTail]:
        """The transport to the server, with decrypted secrets."""
        if definition.url is not None:
            opened = self._vault.open_all(org_id, definition.headers)
            headers = {name: placeholders.in_header(value) for name, value in opened.items()}
            return over_http(placeholders.in_url(definition.url), headers, self._guard, calls, token), StderrTail()
        if definition.command is None:
            raise McpUnreachable("it has neither an address nor a command.")
        env = self._vault.open_all(org_id, definition.env)
        tail = StderrTail(env.values())
        return over_stdio(definition.command, definition.args, env, tail), tail

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        self._servers.clear()
        await asyncio.gather(*(server.close() for server in list(self._connected)), return_exceptions=True)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2 * CLOSE_SECONDS)

    async def sweep(self) -> None:
        """Close idle sessions; if too many are open, also the least recently used ones."""
        by_age = sorted(self._connected, key=lambda server: server.idle_seconds, reverse=True)
        spare = len(by_age) - MAX_SESSIONS
        for place, server in enumerate(by_age):
            idle = server.idle_seconds
            if idle > self._idle_seconds or (place < spare and idle > 0):
                await server.close()
        for key, server in list(self._servers.items()):
            if not server.is_connected and server.idle_seconds > self._idle_seconds:
                del self._servers[key]

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(min(SWEEP_SECONDS, self._idle_seconds))
            await self.sweep()


class McpTool:
    """One tool of one server, for one agent."""

    def __init__(
        self, server: PooledMcpServer, definition: McpDefinition, tool: mcp_types.Tool, signer: CallSigner
    ) -> None:
        hints = tool.annotations or mcp_types.ToolAnnotations()
        schema = {"type": "object", "properties": {}} | tool.input_schema
        known = schema["properties"]
        self._constant = {name: value for name, value in definition.arguments.items() if name in known}
        self.spec = ToolSpec(
            name=f"{definition.name}{SEPARATOR}{tool.name}",
            description=(tool.description or tool.title or "")[:MAX_DESCRIPTION_CHARS],
            input_schema=without_arguments(schema, self._constant),
            is_idempotent=bool(hints.idempotent_hint or hints.read_only_hint),
            timeout_seconds=definition.timeout_seconds,
        )
        self._server = server
        self._signer = signer
        self._name = tool.name

    async def call(self, args: JsonObject, context: CallContext) -> Outcome:
        try:
            constant = Placeholders.of(context.principal, context.conversation_id).in_json(self._constant)
            self._signer.headers(context, b"")  # a call that cannot be signed is not sent
            result = await self._server.call(
                self._name,
                {**args, **constant},
                context=context,
                signer=self._signer,
                is_idempotent=self.spec.is_idempotent,
            )
        except (InvalidRequest, SecretUnreadable) as exc:
            return Outcome(error=exc.detail)
        except McpUnreachable as exc:
            return Outcome(error=f"The tool's server cannot be reached: {exc.detail}")
        except McpBroken as exc:
            return Outcome(error=f"outcome_unknown: the tool's server went away during the call: {exc.detail}")
        except MCPError as exc:
            return Outcome(error=f"The tool's server refused the call: {exc.message}")
        return outcome_of(result)


def tools_of(
    server: PooledMcpServer, definition: McpDefinition, listed: Iterable[mcp_types.Tool], signer: CallSigner
) -> list[McpTool]:
    """Those of the listed tools that the agent may use."""
    allowed = definition.tools
    return [McpTool(server, definition, tool, signer) for tool in listed if allowed is None or tool.name in allowed]


def listed_specs(listed: Iterable[mcp_types.Tool]) -> list[ToolSpec]:
    """The listed tools under the names that the server gives them."""
    return [
        ToolSpec(
            name=tool.name,
            description=(tool.description or tool.title or "")[:MAX_DESCRIPTION_CHARS],
            input_schema={"type": "object", "properties": {}} | tool.input_schema,
            is_idempotent=bool(
                tool.annotations and (tool.annotations.idempotent_hint or tool.annotations.read_only_hint)
            ),
        )
        for tool in listed
    ]


def outcome_of(result: mcp_types.CallToolResult) -> Outcome:
    """The structured content if there is some, else the text. Other content is described in words."""
    words = "\n".join(_words(block) for block in result.content)
    if result.is_error:
        return Outcome(error=words or "The tool failed and did not say why.")
    structured: JsonValue = result.structured_content
    if structured is None:
        return Outcome(result=words)
    if all(isinstance(block, mcp_types.TextContent) for block in result.content):
        return Outcome(result=structured)  # the text repeats it, for clients without structured content
    return Outcome(result={"structured": structured, "content": words})


def _words(block: mcp_types.ContentBlock) -> str:
    match block:
        case mcp_types.TextContent():
            return block.text
        case mcp_types.ImageContent() | mcp_types.AudioContent():
            return f"[{block.type}: {block.mime_type}, {len(block.data.rstrip('=')) * 3 // 4:,} bytes, not shown]"
        case mcp_types.ResourceLink():
            return f"[resource: {block.name} at {block.uri}]"
        case mcp_types.EmbeddedResource(resource=mcp_types.TextResourceContents() as resource):
            return resource.text
        case mcp_types.EmbeddedResource(resource=resource):
            return f"[resource: {resource.uri}, {resource.mime_type or 'unknown type'}, not shown]"
