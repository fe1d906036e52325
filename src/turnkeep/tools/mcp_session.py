"""One connection to an MCP server, over the official SDK: a program that this server starts, or an HTTP address.

The SDK requires that a connection is opened and closed in the same task, so each session has a task for that alone.
Calls come from any task. When the server ends the connection, the task notices and ends; the next call opens another
session.
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
from turnkeep.tools.mcp_transports import OpenTransport, WatchedTransport

CLOSE_SECONDS = 5.0
MAX_TOOLS = 200
MAX_PAGES = 200
LIST_SECONDS = 300.0
RELISTEN_SECONDS = 5.0
EVENT_LOOP_ROUNDS = 20
IDEMPOTENCY_META = "turnkeep/idempotency-key"

SessionTasks = set[asyncio.Task[None]]
Result = TypeVar("Result")


class McpUnreachable(WorldError):
    """The MCP server cannot be reached, or does not speak MCP."""

    code = "mcp_unreachable"


class McpBroken(WorldError):
    """The connection ended during a call. `was_sent` is false if the server surely did not receive the call."""

    code = "mcp_broken"

    def __init__(self, detail: str, *, was_sent: bool) -> None:
        super().__init__(detail)
        self.was_sent = was_sent


class McpSession:
    """An open connection. Create it with `open`; `close` ends it, and the program behind it."""

    def __init__(self, transport: OpenTransport, stderr_tail: Callable[[], str], tasks: SessionTasks) -> None:
        self._transport = transport
        self._stderr_tail = stderr_tail
        self._scope = anyio.CancelScope()
        self._ending = asyncio.Event()
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._cause: BaseException | None = None
        self._listing: tuple[float, list[mcp_types.Tool]] | None = None
        self._changes = 0
        self._task = asyncio.create_task(self._hold_open(), name="mcp session")
        tasks.add(self._task)
        self._task.add_done_callback(tasks.discard)

    @classmethod
    async def open(
        cls, transport: OpenTransport, *, stderr_tail: Callable[[], str], seconds: float, tasks: SessionTasks
    ) -> Self:
        """Connect and initialize. Raises McpUnreachable, within `seconds`, with the reason.

        After a timeout the connection ends by itself; its task stays in `tasks` until then.
        """
        session = cls(transport, stderr_tail, tasks)
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(session._ready)
        except TimeoutError as exc:
            session._scope.cancel()
            raise McpUnreachable(session._reason(f"it did not answer within {seconds:g} seconds")) from exc
        except asyncio.CancelledError:
            session._scope.cancel()
            raise
        return session

    async def is_open(self) -> bool:
        """Whether the server was still connected a moment ago.

        The end of a program is noticed within a few rounds of the event loop. Waiting for them costs microseconds; the
        outcome of a call that is sent to an ended program would be unknown.
        """
        for _ in range(EVENT_LOOP_ROUNDS):
            if self.has_ended:
                return False
            await asyncio.sleep(0)
        return True

    @property
    def has_ended(self) -> bool:
        return self._ending.is_set() or self._task.done()

    async def close(self) -> None:
        """End the connection. A program gets a moment to exit, then it is killed with all its children."""
        self._ending.set()
        _, late = await asyncio.wait({self._task}, timeout=CLOSE_SECONDS)
        if late:
            self._scope.cancel()
            await asyncio.wait({self._task}, timeout=CLOSE_SECONDS)

    async def tools(self) -> list[mcp_types.Tool]:
        """The tools of the server. The list is kept until the server announces a change, or for a while (some servers
        never announce one)."""
        if self._listing is not None and time.monotonic() < self._listing[0]:
            return self._listing[1]
        changes = self._changes
        found = await self._translated(self._listed())
        if changes == self._changes:
            self._listing = (time.monotonic() + LIST_SECONDS, found)
        return found

    async def call(self, name: str, args: Mapping[str, Any], *, call_id: str) -> mcp_types.CallToolResult:
        """Raises McpBroken if the connection ended, MCPError if the server refused the call."""
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

    async def _translated(self, work: Awaitable[Result]) -> Result:
        """Translate errors. The SDK has one code for all ends of a connection; the session's task knows the cause."""
        try:
            return await work
        except MCPError as exc:
            if exc.code == mcp_types.INVALID_REQUEST and exc.message == "Session terminated":
                self._ending.set()
                raise McpBroken("The server has forgotten the session.", was_sent=False) from exc
            if exc.code != mcp_types.CONNECTION_CLOSED:
                raise
            self._ending.set()
            await asyncio.wait({self._task}, timeout=CLOSE_SECONDS)
            never_connected = isinstance(self._cause, httpx2.ConnectError | httpx2.ConnectTimeout | TurnkeepError)
            raise McpBroken(self._reason("the connection ended"), was_sent=not never_connected) from exc

    async def _hold_open(self) -> None:
        try:
            with self._scope:
                async with Client(
                    WatchedTransport(self._transport(), on_end=self._ending.set),
                    client_info=mcp_types.Implementation(name="turnkeep", version="1"),
                    message_handler=self._on_message,
                    cache=None,
                ) as client:
                    self._ready.set_result(client)
                    async with anyio.create_task_group() as group:
                        group.start_soon(self._follow_changes, client)
                        await self._ending.wait()
                        group.cancel_scope.cancel()
        except BaseException as exc:
            self._cause = _innermost(exc)
            if isinstance(exc, asyncio.CancelledError):
                raise
        finally:
            self._ending.set()
            if not self._ready.done():
                self._ready.set_exception(McpUnreachable(self._reason("the connection ended")))
            self._ready.exception()  # mark it as seen: the caller may have stopped waiting

    async def _on_message(self, message: Any) -> None:
        if isinstance(message, mcp_types.ToolListChangedNotification):
            self._forget_listing()

    def _forget_listing(self) -> None:
        self._changes += 1
        self._listing = None

    async def _follow_changes(self, client: Client) -> None:
        """Since protocol version 2026-07-28 a server announces changes only to clients that listen."""
        capability = client.server_capabilities.tools
        if capability is None or not capability.list_changed:
            return
        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    self._forget_listing()  # it may have changed before we listened
                    async for _ in changes:
                        self._forget_listing()
            except ListenNotSupportedError:
                return
            except (SubscriptionLost, MCPError, TimeoutError):
                self._forget_listing()
            await anyio.sleep(RELISTEN_SECONDS)

    def _reason(self, otherwise: str) -> str:
        """Why the connection ended, in one sentence."""
        cause = self._cause
        words = str(cause).rstrip(".") if isinstance(cause, Exception) and str(cause) else otherwise
        last = self._stderr_tail()
        return f"{words}. It said: {last}" if last else f"{words}."


def _innermost(exc: BaseException) -> BaseException:
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return exc
