"""The HTTP client for everything that an agent's definition makes this server call.

Name resolution is taken out of the client's hands: the socket is opened to the address that the guard has judged,
while `Host` and the name in the TLS handshake stay those of the URL. That holds for each connection, so also for
redirects and reconnections, and for the MCP library, which is given the same client. No proxy and no password is
taken from the environment.
"""

import ssl
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from functools import cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpcore2
import httpx2

from turnkeep.errors import WorldError
from turnkeep.tools.addresses import AddressGuard

MAX_CONNECTIONS = 200
KEEPALIVE_SECONDS = 30.0


class GuardedNetwork(httpcore2.AsyncNetworkBackend):
    """Opens sockets to judged addresses, one after the other until one answers."""

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
    """HTTP over a guarded network. With `max_bytes`, a body that is longer (streams of events aside) breaks off."""

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


@cache
def trusted_tls() -> ssl.SSLContext:
    """Whom to believe: the system's authorities, or those of `SSL_CERT_FILE`. Read once, as that takes a while."""
    return httpx2.create_ssl_context()


def open_client(
    guard: AddressGuard,
    *,
    headers: Mapping[str, str] | None = None,
    timeout: httpx2.Timeout | None = None,
    max_bytes: int | None = None,
) -> httpx2.AsyncClient:
    """A client that goes only where the guard lets it. Redirects are not followed by itself.

    It takes no cookies: what a server told one tenant must not reach it again with a call of another.
    """
    return httpx2.AsyncClient(
        transport=GuardedTransport(guard, max_bytes=max_bytes),
        headers={"user-agent": "turnkeep", "accept-encoding": "identity", **(headers or {})},
        timeout=timeout or httpx2.Timeout(30.0),
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        follow_redirects=False,
        trust_env=False,
    )
