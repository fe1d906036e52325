"""One connection to an MCP server, over the official SDK: a program that this server starts, or an HTTP address.

The SDK wants a connection to be opened and closed in the same task, so each has a keeper task that does nothing else.
Calls come from any task. When the other side ends, the keeper notices and leaves; who needs the server then opens
another session.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self, TypeVar

import anyio
import httpx2
import mcp_types
from mcp import Client, MCPError
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost

from turnkeep.errors import TurnkeepError, WorldError
from turnkeep.tools.mcp_transports import OpenTransport, Watched

CLOSE_SECONDS = 5.0
MAX_TOOLS = 200
MAX_PAGES = 200
LIST_SECONDS = 300.0
LISTEN_AGAIN_SECONDS = 5.0
LISTENING_ROUNDS = 20
IDEMPOTENCY_META = "turnkeep/idempotency-key"

Keepers = set[asyncio.Task[None]]
Answer = TypeVar("Answer")


class McpUnreachable(WorldError):
    """The MCP server cannot be reached, or does not speak MCP."""

    code = "mcp_unreachable"


class McpBroken(WorldError):
    """The connection ended during a call. `was_sent` is false when the server surely never saw the call."""

    code = "mcp_broken"

    def __init__(self, detail: str, *, was_sent: bool) -> None:
        super().__init__(detail)
        self.was_sent = was_sent


class McpSession:
    """An open connection. Use `open`; `close` ends it, and the program behind it."""

    def __init__(self, transport: OpenTransport, last_words: Callable[[], str], keepers: Keepers) -> None:
        self._transport = transport
        self._last_words = last_words
        self._scope = anyio.CancelScope()
        self._leaving = asyncio.Event()
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._cause: BaseException | None = None
        self._listing: tuple[float, list[mcp_types.Tool]] | None = None
        self._changes = 0
        self._keeper = asyncio.create_task(self._keep(), name="mcp session")
        keepers.add(self._keeper)
        self._keeper.add_done_callback(keepers.discard)

    @classmethod
    async def open(
        cls, transport: OpenTransport, *, last_words: Callable[[], str], seconds: float, keepers: Keepers
    ) -> Self:
        """Connect and shake hands. Raises McpUnreachable, within `seconds`, with the reason.

        What was begun and is not wanted any more ends by itself; its task stays in `keepers` until then.
        """
        session = cls(transport, last_words, keepers)
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(session._ready)
        except TimeoutError as exc:
            session._scope.cancel()
            raise McpUnreachable(session._told(f"it did not answer within {seconds:g} seconds")) from exc
        except asyncio.CancelledError:
            session._scope.cancel()
            raise
        return session

    async def is_open(self) -> bool:
        """Whether the other side was still there a moment ago.

        The end of a program is heard within a few rounds of the event loop. To wait for them costs microseconds; a
        call that is sent to a program which is gone would have to be called unknown.
        """
        for _ in range(LISTENING_ROUNDS):
            if self.has_ended:
                return False
            await asyncio.sleep(0)
        return True

    @property
    def has_ended(self) -> bool:
        return self._leaving.is_set() or self._keeper.done()

    async def close(self) -> None:
        """End the connection. A program gets a moment to leave by itself, then it is killed with all its children."""
        self._leaving.set()
        _, late = await asyncio.wait({self._keeper}, timeout=CLOSE_SECONDS)
        if late:
            self._scope.cancel()
            await asyncio.wait({self._keeper}, timeout=CLOSE_SECONDS)

    async def tools(self) -> list[mcp_types.Tool]:
        """What the server offers: asked for once, and again when it said that the list has changed, or after a while
        (some servers never say)."""
        if self._listing is not None and time.monotonic() < self._listing[0]:
            return self._listing[1]
        changes = self._changes
        found = await self._translated(self._listed())
        if changes == self._changes:
            self._listing = (time.monotonic() + LIST_SECONDS, found)
        return found

    async def call(self, name: str, args: Mapping[str, Any], *, call_id: str) -> mcp_types.CallToolResult:
        """Raises McpBroken when the connection ended, MCPError when the server refused."""
        meta: Any = {IDEMPOTENCY_META: call_id}
        return await self._translated(self._client.call_tool(name, dict(args), meta=meta))

    @property
    def _client(self) -> Client:
        return self._ready.result()

    async def _listed(self) -> list[mcp_types.Tool]:
        found: list[mcp_types.Tool] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await self._client.list_tools(cursor=cursor, cache_mode="bypass")
            found += page.tools
            cursor = page.next_cursor
            if cursor is None or len(found) >= MAX_TOOLS:
                break
        return found[:MAX_TOOLS]

    async def _translated(self, work: Awaitable[Answer]) -> Answer:
        """The SDK tells all ends alike, by a code; why it ended is known to the keeper."""
        try:
            return await work
        except MCPError as exc:
            if exc.code == mcp_types.INVALID_REQUEST and exc.message == "Session terminated":
                self._leaving.set()
                raise McpBroken("The server has forgotten the session.", was_sent=False) from exc
            if exc.code != mcp_types.CONNECTION_CLOSED:
                raise
            self._leaving.set()
            await asyncio.wait({self._keeper}, timeout=CLOSE_SECONDS)
            never_connected = isinstance(self._cause, httpx2.ConnectError | httpx2.ConnectTimeout | TurnkeepError)
            raise McpBroken(self._told("the connection ended"), was_sent=not never_connected) from exc

    async def _keep(self) -> None:
        try:
            with self._scope:
                async with Client(
                    Watched(self._transport(), on_end=self._leaving.set),
                    client_info=mcp_types.Implementation(name="turnkeep", version="1"),
                    message_handler=self._heard,
                    cache=None,
                ) as client:
                    self._ready.set_result(client)
                    async with anyio.create_task_group() as group:
                        group.start_soon(self._follow_changes, client)
                        await self._leaving.wait()
                        group.cancel_scope.cancel()
        except BaseException as exc:
            self._cause = _innermost(exc)
            if isinstance(exc, asyncio.CancelledError):
                raise
        finally:
            self._leaving.set()
            if not self._ready.done():
                self._ready.set_exception(McpUnreachable(self._told("the connection ended")))
            self._ready.exception()  # read here, so that nobody who stopped waiting leaves it unread

    async def _heard(self, message: Any) -> None:
        if isinstance(message, mcp_types.ToolListChangedNotification):
            self._forget_listing()

    def _forget_listing(self) -> None:
        self._changes += 1
        self._listing = None

    async def _follow_changes(self, client: Client) -> None:
        """Since 2026-07-28 a server tells of changes only to those who listen."""
        capability = client.server_capabilities.tools
        if capability is None or not capability.list_changed:
            return
        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    self._forget_listing()  # it may have changed before anybody listened
                    async for _ in changes:
                        self._forget_listing()
            except ListenNotSupportedError:
                return
            except (SubscriptionLost, MCPError, TimeoutError):
                self._forget_listing()
            await anyio.sleep(LISTEN_AGAIN_SECONDS)

    def _told(self, otherwise: str) -> str:
        """Why it ended, in one sentence."""
        cause = self._cause
        words = str(cause).rstrip(".") if isinstance(cause, Exception) and str(cause) else otherwise
        last = self._last_words()
        return f"{words}. It said: {last}" if last else f"{words}."


def _innermost(exc: BaseException) -> BaseException:
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return exc
