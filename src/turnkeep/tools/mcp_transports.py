"""Transports to an MCP server: a program that this server starts, or an HTTP address behind the address guard.

The MCP SDK takes an httpx client, so HTTP servers are called by one that applies the same rules as `guarded_http.py`:
the socket is opened to an address that the guard has accepted, while `Host` and the name in TLS stay those of the URL.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import TracebackType
from typing import Any, Self, TextIO

import httpcore2
import httpx2
from mcp import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from turnkeep.config import masked
from turnkeep.errors import WorldError
from turnkeep.tools.addresses import AddressGuard
from turnkeep.tools.guarded_http import KEEPALIVE_SECONDS, MAX_CONNECTIONS, trusted_tls
from turnkeep.tools.secret_masking import MIN_SECRET_CHARS

CONNECT_SECONDS = 10.0
READ_SECONDS = 3_600.0
MAX_ANSWER_BYTES = 8 * 1024 * 1024

KEPT_BYTES = 4_096
SHOWN_CHARS = 300

Transport = AbstractAsyncContextManager[Any]
OpenTransport = Callable[[], Transport]


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


def over_http(url: str, headers: Mapping[str, str], guard: AddressGuard) -> OpenTransport:
    """Streamable HTTP through the guarded client, which follows no redirects."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        timeout = httpx2.Timeout(READ_SECONDS, connect=CONNECT_SECONDS, pool=CONNECT_SECONDS)
        async with AsyncExitStack() as stack:
            client = open_client(guard, headers=headers, timeout=timeout, max_bytes=MAX_ANSWER_BYTES)
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
) -> httpx2.AsyncClient:
    """The client that the MCP SDK is given: httpx, under the same rules as `guarded_http.open_session`."""
    return httpx2.AsyncClient(
        transport=GuardedTransport(guard, max_bytes=max_bytes),
        headers={"user-agent": "turnkeep", "accept-encoding": "identity", **(headers or {})},
        timeout=timeout or httpx2.Timeout(30.0),
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        follow_redirects=False,
        trust_env=False,
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

    def __init__(self, guard: AddressGuard, *, max_bytes: int | None = None) -> None:
        self._max_bytes = max_bytes
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=trusted_tls(),
            max_connections=MAX_CONNECTIONS,
            keepalive_expiry=KEEPALIVE_SECONDS,
            network_backend=GuardedNetwork(guard),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
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
