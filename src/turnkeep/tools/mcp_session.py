"""One connection to an MCP server, over the official SDK: a program that this server starts, or an HTTP address.

The SDK requires that a connection is opened and closed in the same task, so each session has a task for that alone.
Calls come from any task. When the server ends the connection, the task notices and ends; the next call opens another
session.

The SDK takes an httpx client, so HTTP servers are called by one that applies the same rules as the client of
`http_tools.py`: the socket is opened to an address that the guard has accepted, while `Host` and the name in TLS stay
those of the URL.
"""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import TracebackType
from typing import Any, Self, TextIO, TypeVar

import anyio
import httpcore2
import httpx2
import mcp_types
import msgspec
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from msgspec import Struct, field

from turnkeep.config import masked
from turnkeep.errors import TurnkeepError, WorldError
from turnkeep.tls import trusted_tls
from turnkeep.tools.addresses import AddressGuard
from turnkeep.tools.call_identity import context_meta
from turnkeep.tools.http_tools import KEEPALIVE_SECONDS, MAX_CONNECTIONS
from turnkeep.tools.oauth import AccessToken, AuthorizationMissing
from turnkeep.tools.ports import CallContext
from turnkeep.tools.secret_masking import MIN_SECRET_CHARS
from turnkeep.trace_context import TRACEPARENT

CONNECT_SECONDS = 10.0
READ_SECONDS = 3_600.0
MAX_ANSWER_BYTES = 8 * 1024 * 1024
KEPT_BYTES = 4_096
SHOWN_CHARS = 300
CLOSE_SECONDS = 5.0
MAX_TOOLS = 200
MAX_PAGES = 200
LIST_SECONDS = 300.0
RELISTEN_SECONDS = 5.0
EVENT_LOOP_ROUNDS = 20
IDEMPOTENCY_META = "turnkeep/idempotency-key"
CONTEXT_META = "turnkeep/context"

Transport = AbstractAsyncContextManager[Any]
OpenTransport = Callable[[], Transport]
SessionTasks = set[asyncio.Task[None]]
Sign = Callable[[bytes], Mapping[str, str]]
"""Makes the headers that say for whom a request with this body is made."""
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

    async def call(self, name: str, args: Mapping[str, Any], *, context: CallContext) -> mcp_types.CallToolResult:
        """Raises McpBroken if the connection ended, MCPError if the server refused the call."""
        meta: Any = {IDEMPOTENCY_META: context.call_id, CONTEXT_META: context_meta(context)}
        if context.traceparent is not None:
            meta[TRACEPARENT] = context.traceparent
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


class StderrTail:
    """The end of a program's standard error, kept only for the message that says why it ended. `secrets` are masked."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = tuple(secrets)
        self._kept = b""
        self._writer: TextIO | None = None

    @contextmanager
    def capture(self) -> Iterator[TextIO]:
        """A file for the program's standard error, which is read as long as the block runs."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        loop = asyncio.get_running_loop()
        self._writer = os.fdopen(writing, "w")
        loop.add_reader(reading, self._read, reading)
        try:
            yield self._writer
        finally:
            self.close_writer()
            loop.remove_reader(reading)
            self._read(reading)
            os.close(reading)

    def close_writer(self) -> None:
        """Close our copy of the file after the program has started; otherwise its end would not be noticed."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __call__(self) -> str:
        """The end of the output, on one line."""
        text = masked(self._kept.decode(errors="replace"), self._secrets, shortest=MIN_SECRET_CHARS)
        return " ".join(text.split())[-SHOWN_CHARS:]

    def _read(self, descriptor: int) -> None:
        try:
            chunk = os.read(descriptor, 65_536)
        except (BlockingIOError, OSError):
            return
        if not chunk:
            asyncio.get_running_loop().remove_reader(descriptor)
            return
        self._kept = (self._kept + chunk)[-KEPT_BYTES:]


class OpenCalls:
    """The calls that a session sends over HTTP just now, and how to sign each.

    The SDK sends the requests of a session from a task of its own, and all under the same headers. So the HTTP client
    finds the call in the body that it sends, and asks here for the headers of that call.
    """

    def __init__(self) -> None:
        self._signs: dict[tuple[str, str], Sign] = {}
        """By turn and call: the id of a call comes from the model, so that two turns may have the same one."""

    @contextmanager
    def signed(self, turn_id: str, call_id: str, sign: Sign) -> Iterator[None]:
        self._signs[turn_id, call_id] = sign
        try:
            yield
        finally:
            self._signs.pop((turn_id, call_id), None)

    def headers_for(self, body: bytes) -> Mapping[str, str]:
        """The headers of the call that this body is; none for other messages."""
        if not self._signs:
            return {}
        try:
            message = msgspec.json.decode(body, type=_JsonRpc)
        except msgspec.MsgspecError:
            return {}
        context = message.params.meta.context
        sign = self._signs.get((context.turn, context.call))
        return {} if sign is None else sign(body)


class _Context(Struct):
    turn: str = ""
    call: str = ""


class _Meta(Struct):
    context: _Context = field(default_factory=_Context, name=CONTEXT_META)


class _Params(Struct):
    meta: _Meta = field(default_factory=_Meta, name="_meta")


class _JsonRpc(Struct):
    params: _Params = field(default_factory=_Params)


def over_http(
    url: str, headers: Mapping[str, str], guard: AddressGuard, calls: OpenCalls, token: AccessToken | None = None
) -> OpenTransport:
    """Streamable HTTP through the guarded client, which follows no redirects and signs calls. `token` is sent with each
    request."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        timeout = httpx2.Timeout(READ_SECONDS, connect=CONNECT_SECONDS, pool=CONNECT_SECONDS)
        async with AsyncExitStack() as stack:
            client = open_client(
                guard,
                headers=headers,
                timeout=timeout,
                max_bytes=MAX_ANSWER_BYTES,
                sign=calls.headers_for,
                auth=None if token is None else TokenAuth(token),
            )
            await stack.enter_async_context(client)
            yield await stack.enter_async_context(streamable_http_client(str(guard.check_url(url)), http_client=client))

    return opened


def over_stdio(command: str, args: list[str], env: Mapping[str, str], tail: StderrTail) -> OpenTransport:
    """A program. It gets PATH, HOME and a few other variables of this server, and those in `env`."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        parameters = StdioServerParameters(command=command, args=args, env=dict(env))
        with tail.capture() as errors:
            async with stdio_client(parameters, errlog=errors) as streams:
                tail.close_writer()
                yield streams

    return opened


class WatchedTransport:
    """A transport that reports when the server has ended the connection: the SDK reports it only to the next call."""

    def __init__(self, transport: Transport, *, on_end: Callable[[], None]) -> None:
        self._transport = transport
        self._on_end = on_end

    async def __aenter__(self) -> Any:
        read, write = await self._transport.__aenter__()
        return _WatchedStream(read, self._on_end), write

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._transport.__aexit__(kind, error, traceback)


class _WatchedStream:
    def __init__(self, stream: Any, on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = on_end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return await self._stream.__anext__()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        self._on_end()
        return await self._stream.__aexit__(*error)


def open_client(
    guard: AddressGuard,
    *,
    headers: Mapping[str, str] | None = None,
    timeout: httpx2.Timeout | None = None,
    max_bytes: int | None = None,
    sign: Sign | None = None,
    auth: httpx2.Auth | None = None,
) -> httpx2.AsyncClient:
    """The client that the MCP SDK is given: httpx, under the same rules as `http_tools.open_session`. `sign` makes more
    headers for each body that is sent, and `auth` one for each request."""
    given = {"user-agent": "turnkeep", "accept-encoding": "identity", **(headers or {})}
    return httpx2.AsyncClient(
        transport=GuardedTransport(guard, max_bytes=max_bytes, sign=sign),
        headers=[(name.encode(), value.encode()) for name, value in given.items()],
        timeout=timeout or httpx2.Timeout(30.0),
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        auth=auth,
        follow_redirects=False,
        trust_env=False,
    )


class TokenAuth(httpx2.Auth):
    """Sends an access token. If the server refuses it, the token is renewed and the request is sent once more: a server
    that answers 401 has not acted on it."""

    def __init__(self, token: AccessToken) -> None:
        self._token = token

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        sent = await self._token.current()
        request.headers["authorization"] = f"Bearer {sent}"
        response = yield request
        if response.status_code == 401:
            sent = await self._token.current(refused=sent)
            request.headers["authorization"] = f"Bearer {sent}"
            response = yield request
        if response.status_code in {401, 403}:
            raise AuthorizationMissing(
                f"it refuses the authorization of this workspace (status {response.status_code}). "
                "An admin can connect it again in the form of the agent."
            )


class GuardedNetwork(httpcore2.AsyncNetworkBackend):
    """Opens sockets to accepted addresses, one after the other until one answers."""

    def __init__(self, guard: AddressGuard) -> None:
        self._guard = guard
        self._inner = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        began = time.monotonic()
        try:
            addresses = await self._guard.addresses(host, port)
        except WorldError as exc:
            raise httpcore2.ConnectError(exc.detail) from exc
        failure: Exception | None = None
        for place, address in enumerate(addresses):
            left = None
            if timeout is not None:
                left = max(0.001, (timeout - (time.monotonic() - began)) / (len(addresses) - place))
            try:
                return await self._inner.connect_tcp(
                    address, port, timeout=left, local_address=local_address, socket_options=socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as exc:
                failure = exc
        assert failure is not None
        raise failure

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore2.AsyncNetworkStream:
        raise httpcore2.ConnectError("Sockets of this machine may not be called.")

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


class GuardedTransport(httpx2.AsyncHTTPTransport):
    """HTTP over a guarded network. Reading a body longer than `max_bytes` fails, except for event streams."""

    def __init__(self, guard: AddressGuard, *, max_bytes: int | None = None, sign: Sign | None = None) -> None:
        self._max_bytes = max_bytes
        self._sign = sign
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=trusted_tls(),
            max_connections=MAX_CONNECTIONS,
            keepalive_expiry=KEEPALIVE_SECONDS,
            network_backend=GuardedNetwork(guard),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self._sign is not None and request.method == "POST":
            more = [(name.encode(), value.encode()) for name, value in self._sign(await request.aread()).items()]
            names = {name.lower() for name, _ in more}  # a request that is sent again has been signed before
            kept = [(name, value) for name, value in request.headers.raw if name.lower() not in names]
            request.headers = httpx2.Headers([*kept, *more])
        response = await super().handle_async_request(request)
        if self._max_bytes is not None:
            if response.headers.get("content-encoding", "identity") != "identity":
                await response.aclose()
                raise httpx2.DecodingError("The server compressed its answer, which was not asked for.")
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                assert isinstance(response.stream, httpx2.AsyncByteStream)
                response.stream = _Bounded(response.stream, self._max_bytes)
        return response


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, limit: int) -> None:
        self._stream = stream
        self._left = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._left -= len(chunk)
            if self._left < 0:
                raise httpx2.ReadError("The answer is too long.")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
