"""HTTP to the model providers: one session for all of them, requests with redirects, and the events of a stream.

Proxies are those of the environment (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY`). Trusted certificates are
those of `turnkeep.tls`. There is no limit of connections, since each turn holds one while its model speaks.

Decision: docs/decisions/0306
"""

import asyncio
import io
import ssl
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Literal, cast
from urllib.request import getproxies, proxy_bypass

import aiohttp
from aiohttp.client_proto import ResponseHandler
from msgspec import Struct
from yarl import URL

from turnkeep.providers.failures import BROKEN_CONNECTION, ErrorResponse, NotAsked, StreamFailed
from turnkeep.tls import trusted_tls

CONNECT_SECONDS = 10.0
KEEPALIVE_SECONDS = 30.0
MAX_REDIRECTS = 5
MAX_HEADER_BYTES = 64 * 1024
MAX_ERROR_BYTES = 64 * 1024
"""How much of a response with an error status is read."""
ERROR_SECONDS = 5.0
"""How long the body of an error is awaited."""
MAX_JSON_BYTES = 16 * 1024 * 1024
"""Maximum size of a list of models."""
MAX_EVENT_BYTES = 32 * 1024 * 1024
"""Maximum size of one event of a stream. A call with the longest arguments, all of it escaped, is still shorter."""

_LARGE_BYTES = 1024 * 1024
"""aiohttp warns when it is given more than this as bytes; a file in memory is sent in pieces."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_KEEP_METHOD = frozenset({307, 308})
_BOM = b"\xef\xbb\xbf"
_SENT_ANYWHERE = frozenset({"accept", "content-type", "user-agent", "anthropic-version"})
"""Headers that may follow a redirect to another server. All others may be keys."""

Event = tuple[bytes, bytes | bytearray]
"""One event of a stream: its name (empty without one) and its data."""


class Account(Struct, frozen=True, kw_only=True):
    """Where a provider is reached, and as whom: with a key, or with a bearer token. `headers` are sent with every
    request."""

    api_key: str | None = None
    auth_token: str | None = None
    base_url: str | None = None
    headers: dict[str, str] = {}


class ProviderSession:
    """The HTTP session of all providers of a process. It is opened with the first request. Close it.

    A session that is given is used without proxies, and stays open.
    """

    def __init__(self, session: aiohttp.ClientSession | None = None) -> None:
        self._session = session
        self._is_own = session is None
        self._proxies: dict[URL, str | None] = {}
        self._certificates: ssl.SSLContext | None = None

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None and self._is_own:
            await session.close()

    async def request(
        self,
        method: Literal["GET", "POST"],
        url: URL,
        *,
        headers: Mapping[str, str],
        body: bytes | None = None,
        seconds: float,
    ) -> aiohttp.ClientResponse:
        """The response with its headers, after redirects. Close it.

        Raises ErrorResponse for an error status, NotAsked when the request cannot be sent at all, and the errors of
        aiohttp. `seconds` is the time limit for all of it.
        """
        async with asyncio.timeout(seconds):
            for _ in range(MAX_REDIRECTS + 1):
                response = await self._send_once_more(method, url, headers, body)
                if response.status < 300:
                    return response
                try:
                    location = response.headers.get("location")
                    is_followed = response.status in _KEEP_METHOD or method == "GET"
                    if location is None or response.status not in _REDIRECTS or not is_followed:
                        raise await _error_response(response)
                finally:
                    response.close()
                url, headers = _redirected(url, headers, location)
        raise NotAsked(f"it redirected more than {MAX_REDIRECTS} times")

    async def _send_once_more(
        self, method: str, url: URL, headers: Mapping[str, str], body: bytes | None
    ) -> aiohttp.ClientResponse:
        """A server may close a connection that was kept for the next request, just as that one is sent. So a request
        without any response is sent a second time, on another connection."""
        try:
            return await self._send(method, url, headers, body)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientConnectionResetError):
            return await self._send(method, url, headers, body)

    async def _send(
        self, method: str, url: URL, headers: Mapping[str, str], body: bytes | None
    ) -> aiohttp.ClientResponse:
        try:
            return await self._open().request(
                method,
                url,
                headers=headers,
                data=None if body is None else _payload(body),
                proxy=self._proxy(url),
                ssl=await self._tls(url),
                allow_redirects=False,
                timeout=_TIMEOUT,
            )
        except aiohttp.InvalidURL as exc:
            raise NotAsked("its address or that of the proxy is not valid") from exc
        except (ValueError, TypeError) as exc:
            raise NotAsked(str(exc)) from exc

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._is_own = True
            self._session = aiohttp.ClientSession(
                connector=_Connector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,  # it would look for passwords in .netrc, in a thread, for each request
                max_line_size=MAX_HEADER_BYTES,
                max_field_size=MAX_HEADER_BYTES,
            )
        return self._session

    async def _tls(self, url: URL) -> ssl.SSLContext | bool:
        """The trusted certificates, if they are needed. Reading them takes 30 ms, so it is done in a thread."""
        if url.scheme != "https":
            return True
        if self._certificates is None:
            self._certificates = await asyncio.to_thread(trusted_tls)
        return self._certificates

    def _proxy(self, url: URL) -> str | None:
        """The proxy of the environment for this server. The environment is read once for each."""
        if not self._is_own:
            return None
        origin = url.origin()
        if origin not in self._proxies:
            self._proxies[origin] = _proxy_for(origin)
        return self._proxies[origin]


class _Connection(ResponseHandler):
    """A connection that goes on reading only if it has stopped.

    A model sends each token as a chunk. For each chunk that is taken, aiohttp tells the parser and the socket to go on,
    also when they never stopped. That is a tenth of what a token costs.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._has_stopped = False

    def pause_reading(self) -> None:
        self._has_stopped = True
        super().pause_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:
        if self._has_stopped:
            self._has_stopped = False
            super().resume_reading(resume_parser)


def _payload(body: bytes) -> aiohttp.Payload:
    """The body, of a type that aiohttp need not find out. Large ones are written in pieces."""
    return aiohttp.BytesIOPayload(io.BytesIO(body)) if len(body) > _LARGE_BYTES else aiohttp.BytesPayload(body)


class _Connector(aiohttp.TCPConnector):
    def __init__(self, *, limit: int, keepalive_timeout: float) -> None:
        super().__init__(limit=limit, keepalive_timeout=keepalive_timeout)
        self._factory = cast("partial[ResponseHandler]", partial(_Connection, loop=self._loop))


_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS)
"""No time limit between bytes: it would set a timer for each read. See `http_provider.py`."""


def _proxy_for(origin: URL) -> str | None:
    proxies = getproxies()
    proxy = proxies.get(origin.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(f"{origin.host}:{origin.port}"):
        return None
    scheme, separator, _ = proxy.partition("://")
    if not separator:
        return f"http://{proxy}"
    if scheme.lower() not in {"http", "https"}:
        raise NotAsked(f"a proxy of the kind {scheme} is not supported; set an http proxy, or add the host to NO_PROXY")
    return proxy


def _redirected(url: URL, headers: Mapping[str, str], location: str) -> tuple[URL, Mapping[str, str]]:
    """The next address, and the headers for it. Keys are sent to the same server only, or to it by https."""
    try:
        target = url.join(URL(location))
    except ValueError as exc:
        raise NotAsked(f"it redirected to an invalid address: {exc}") from exc
    is_upgrade = target.host == url.host and (url.scheme, target.scheme) == ("http", "https")
    if target.origin() == url.origin() or is_upgrade:
        return target, headers
    return target, {name: value for name, value in headers.items() if name.lower() in _SENT_ANYWHERE}


async def _error_response(response: aiohttp.ClientResponse) -> ErrorResponse:
    """The error with as much of its body as comes. The status alone says what to do."""
    body = bytearray()
    with suppress(*BROKEN_CONNECTION):  # a timeout is one of them
        async with asyncio.timeout(ERROR_SECONDS):
            await _read_into(body, response, MAX_ERROR_BYTES)
    text = body.decode("utf-8", "replace").strip()
    if response.status < 400:
        text = f"it redirects to {response.headers.get('location', 'nowhere')}; set that address"
    return ErrorResponse(text, status=response.status, headers=response.headers)


async def read_body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body, cut at about `limit` bytes."""
    body = bytearray()
    await _read_into(body, response, limit)
    return bytes(body[:limit])


async def _read_into(body: bytearray, response: aiohttp.ClientResponse, limit: int) -> None:
    while len(body) < limit and (chunk := await response.content.readany()):
        body += chunk


def unread(content: aiohttp.StreamReader) -> bytes:
    """What had arrived before the connection broke. aiohttp raises the error first, and would drop it."""
    return b"".join(content._buffer)


class EventSplitter:
    """Cuts the bytes of a stream of server-sent events into events, wherever the bytes were split."""

    __slots__ = ("_after_cr", "_data", "_is_first", "_name", "_tail")

    def __init__(self) -> None:
        self._tail = bytearray()
        self._data: bytes | bytearray | None = None
        self._name = b""
        self._after_cr = False
        self._is_first = True

    def split(self, chunk: bytes) -> list[Event]:
        """The events that are complete now. Raises StreamFailed for an event without an end."""
        if self._after_cr or b"\r" in chunk:
            chunk = self._with_line_feeds(chunk)
        if b"\n" not in chunk:
            self._tail += chunk
            self._check_size(len(self._tail))
            return []
        if self._tail:
            chunk = bytes(self._tail) + chunk
        lines = chunk.split(b"\n")
        self._tail[:] = lines.pop()
        if self._is_first:
            self._is_first = False
            lines[0] = lines[0].removeprefix(_BOM)
        events: list[Event] = []
        data, name = self._data, self._name
        for line in lines:
            if line.startswith(b"data:"):
                data = line[5:] if data is None else self._joined(data, line[5:])
            elif not line:
                if data is not None:
                    events.append((name, data))
                    data = None
                name = b""
            elif line.startswith(b"event:"):
                name = line[6:].strip()
            # Comments, ids and other fields say nothing about the answer.
        self._data, self._name = data, name
        return events

    def _joined(self, data: bytes | bytearray, more: bytes) -> bytearray:
        """Several lines of data are one text with line feeds."""
        self._check_size(len(data) + len(more))
        joined = data if isinstance(data, bytearray) else bytearray(data)
        joined += b"\n"
        joined += more
        return joined

    def _with_line_feeds(self, chunk: bytes) -> bytes:
        """The bytes with one kind of line end. A CR and its LF may come in two reads."""
        if not chunk:
            return chunk
        is_rest_of_line_end = self._after_cr and chunk.startswith(b"\n")
        self._after_cr = chunk.endswith(b"\r")
        if is_rest_of_line_end:
            chunk = chunk[1:]
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _check_size(self, size: int) -> None:
        if size > MAX_EVENT_BYTES:
            raise StreamFailed(f"an event of the stream did not end after {MAX_EVENT_BYTES:,} bytes")
