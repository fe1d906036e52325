"""The transport: requests to one server, identified, repeated where that is safe, and answered with values or errors.

**What is repeated.** A request that could not be sent, or that the server refused with 503 (which promises that
nothing was written) or for its rate, is sent again after the pause that the server asks for. One whose answer was lost
is sent again only if that cannot double anything: reads, changes that say the whole new state, and questions with an
idempotency key.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar, Unpack
from urllib.parse import quote

import msgspec
from msgspec import Struct, structs

from turnkeep_client.discovery import ServerAddress
from turnkeep_client.errors import ConnectionLost, error_of, retry_after
from turnkeep_client.retry import STRANGER_SECONDS, OnTrouble, Retry
from turnkeep_client.wire import Page
from turnkeep_client.wire.base import without_unset
from turnkeep_client.wire.blocks import JsonObject
from turnkeep_client.wire.errors import Defect, InvalidRequest, NotFound, RateLimited, TurnkeepError, Unavailable

if TYPE_CHECKING:
    import httpx


Found = TypeVar("Found")
Item = TypeVar("Item")

CONNECT_SECONDS = 10.0
TIMEOUT_SECONDS = 60.0
SILENCE_SECONDS = 40.0
"""A stream without any byte for this long is dead: a heartbeat comes every 15 s."""
PATIENCE_SECONDS = 60.0
PAGE_ITEMS = 100

JSON = {"content-type": "application/json"}
SAFE = frozenset({"GET", "PUT", "PATCH", "DELETE"})

_encode = msgspec.json.Encoder().encode


class ClientOptions(Struct, frozen=True, kw_only=True):
    """For whom a client acts, and how long it waits."""

    user: str | None = None
    workspace_id: str | None = None
    timeout_seconds: float = TIMEOUT_SECONDS
    silence_seconds: float = SILENCE_SECONDS
    patience_seconds: float = PATIENCE_SECONDS
    on_trouble: OnTrouble | None = None


class OptionChanges(TypedDict, total=False):
    """The same as keyword arguments."""

    user: str | None
    workspace_id: str | None
    timeout_seconds: float
    silence_seconds: float
    patience_seconds: float
    on_trouble: OnTrouble | None


_NETWORK = (
    "httpcore._async.http11",
    "httpcore._backends.anyio",
    "anyio._backends._asyncio",
    "anyio.to_thread",
    "concurrent.futures.thread",
    "encodings.idna",
)


def load_network() -> None:
    """Import here and now what httpx imports with its first request.

    If another thread imported it while the process is forked, the locks of these imports would stay held in the child.
    """
    for name in _NETWORK:
        with suppress(ImportError):
            import_module(name)


class ConnectionPool:
    """The HTTP connections to one server, shared by a client and those made from it.

    A forked process opens connections of its own. It neither uses nor closes those of its parent, which still reads
    and writes on the same sockets.
    """

    def __init__(self, place: ServerAddress, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """`transport` replaces the network. It stays the caller's, who closes it."""
        import httpx

        self.place = place
        # Made here, in the thread of the caller, because a fork in the middle of it would leave OpenSSL locked.
        self._ssl = httpx.create_ssl_context(verify=place.url.startswith("https:"), trust_env=not place.is_loopback)
        self.has_answered = False
        self._transport = transport
        self._http: httpx.AsyncClient | None = None
        self._process = os.getpid()
        self._inherited: list[object] = []
        """Kept, because the garbage collector would close their sockets with a warning."""

    @property
    def http(self) -> httpx.AsyncClient:
        """The connections of this process."""
        self._leave_parent()
        if self._http is None:
            self._http = self.new_client(self.place.url, base_url=self.place.url)
        return self._http

    def new_client(self, url: str, **options: Any) -> httpx.AsyncClient:
        """Connections for this address. The caller closes them."""
        import httpx

        # A server on this machine needs no certificates, but its bucket may be elsewhere.
        needs_certificates = url.startswith("https:") and not self.place.url.startswith("https:")
        return httpx.AsyncClient(
            verify=True if needs_certificates else self._ssl,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
            trust_env=not self.place.is_loopback,
            transport=None if self._transport is None else _borrowed(self._transport),
            **options,
        )

    async def close(self) -> None:
        """Close the connections of this process."""
        self._leave_parent()
        if self._http is not None:
            await self._http.aclose()

    def _leave_parent(self) -> None:
        if self._process != os.getpid():
            self._process = os.getpid()
            self._inherited.append(self._http)
            self._http = None


def _borrowed(transport: httpx.AsyncBaseTransport) -> httpx.AsyncBaseTransport:
    """The transport of a caller, which a client that is closed does not close."""
    import httpx

    class Borrowed(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            return await transport.handle_async_request(request)

    return Borrowed()


class Transport:
    """Requests to one server. Close it at the end."""

    def __init__(self, pool: ConnectionPool, options: ClientOptions, *, owns_pool: bool = True) -> None:
        import httpx

        self.place = pool.place
        self.options = options
        self._pool = pool
        self._owns_pool = owns_pool
        self._identity = _raw(_identity(pool.place, options.user, options.workspace_id))
        connect = min(CONNECT_SECONDS, options.timeout_seconds)
        self._timeout = httpx.Timeout(options.timeout_seconds, connect=connect)
        self._stream_timeout = httpx.Timeout(options.timeout_seconds, connect=connect, read=options.silence_seconds)
        self._connect_errors = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
        self._errors = (httpx.TransportError,)

    def with_options(self, **changes: Unpack[OptionChanges]) -> Self:
        """The same server over the same connections, with other options."""
        if "timeout_seconds" in changes:
            patience = min(self.options.patience_seconds, changes["timeout_seconds"])
            changes = {"patience_seconds": patience, **changes}
        return type(self)(self._pool, structs.replace(self.options, **changes), owns_pool=False)

    async def close(self) -> None:
        if self._owns_pool:
            await self._pool.close()

    def retry(self, on_trouble: OnTrouble | None = None) -> Retry:
        return Retry(self.options.patience_seconds, on_trouble=on_trouble or self.options.on_trouble)

    async def call(
        self,
        method: str,
        path: str,
        answer: type[Found],
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        is_safe: bool | None = None,
    ) -> Found:
        """The answer to a request, decoded."""
        content = None if body is None else _encode(body)
        given = dict(headers or {}) | ({} if content is None else JSON)
        raw = await self.fetch(method, path, query=query, content=content, headers=given, is_safe=is_safe)
        return _decoded(raw, answer)

    async def call_raw(
        self, method: str, path: str, answer: type[Found], *, query: Mapping[str, Any] | None = None, content: bytes
    ) -> Found:
        """The same for a body that is JSON already. It is not repeated when its answer is lost."""
        raw = await self.fetch(method, path, query=query, content=content, headers=JSON, is_safe=False)
        return _decoded(raw, answer)

    async def fetch(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        is_safe: bool | None = None,
    ) -> bytes:
        """The body of the answer, read whole."""
        is_safe = method in SAFE if is_safe is None else is_safe
        retry = self.retry()
        is_repeat = False
        while True:
            try:
                response = await self._pool.http.request(
                    method,
                    path,
                    params=_given(query),
                    content=content,
                    headers=self._headers(headers),
                    timeout=self._timeout,
                )
            except self._errors as exc:
                await self.after(exc, retry, is_safe=is_safe)
                is_repeat = True
                continue
            self._pool.has_answered = True
            if response.status_code < 400:
                return response.content
            error = error_of(response.status_code, response.headers, response.content)
            if is_repeat and method == "DELETE" and isinstance(error, NotFound):
                return b""  # it was our own first try that deleted it
            await self.after_refusal(error, response.headers, retry)

    async def send_parts(
        self,
        path: str,
        answer: type[Found],
        parts: Sequence[tuple[str, tuple[str, bytes, str]]],
        *,
        is_safe: bool = False,
    ) -> Found:
        """A multipart form. It is repeated when its answer is lost only where that `is_safe`."""
        retry = self.retry()
        while True:
            try:
                response = await self._pool.http.post(
                    path, files=list(parts), headers=self._headers(), timeout=self._timeout
                )
            except self._errors as exc:
                await self.after(exc, retry, is_safe=is_safe)
                continue
            self._pool.has_answered = True
            if response.status_code < 400:
                return _decoded(response.content, answer)
            error = error_of(response.status_code, response.headers, response.content)
            await self.after_refusal(error, response.headers, retry)

    async def after(self, exc: Exception, retry: Retry, *, is_safe: bool) -> None:
        """Pause before a request that got no answer is repeated; raises ConnectionLost where it may not be."""
        was_sent = not isinstance(exc, self._connect_errors)
        if was_sent and not is_safe:
            raise ConnectionLost(
                f"The answer of {self.place.url} was lost ({_words(exc)}). "
                "Look whether it was done before you repeat it."
            ) from exc
        lost = ConnectionLost(self._unreachable(exc))
        lost.__cause__ = exc
        await retry.wait(lost, limit=None if self._pool.has_answered or was_sent else STRANGER_SECONDS)

    async def after_refusal(self, error: TurnkeepError, headers: Mapping[str, str], retry: Retry) -> None:
        """Pause where the same request may be taken later; else raise."""
        match error:
            case RateLimited():
                await retry.wait(error, at_least=error.retry_after_seconds)
            case Unavailable() if error.code == "unavailable":
                await retry.wait(error, at_least=retry_after(headers) or 0.0)
            case _:
                raise error

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        content: AsyncIterator[bytes] | None = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[httpx.Response]:
        """One response as it comes. A refusal is raised as Refusal, for the caller to decide whether to try again.

        `content` is a body that is sent as it comes, instead of a `body` that is JSON.
        """
        encoded = None if body is None else _encode(body)
        given = {"accept-encoding": "identity", **(headers or {})} | ({} if encoded is None else JSON)
        async with self._pool.http.stream(
            method,
            path,
            params=_given(query),
            content=content if encoded is None else encoded,
            headers=self._headers(given),
            timeout=self._stream_timeout,
        ) as response:
            self._pool.has_answered = True
            if response.status_code >= 400:
                raise Refusal(
                    error_of(response.status_code, response.headers, await response.aread()), response.headers
                )
            yield response

    @asynccontextmanager
    async def foreign(self, url: str) -> AsyncIterator[httpx.AsyncClient]:
        """A client without our key, for an address that the server gave us (a bucket)."""
        async with self._pool.new_client(url, timeout=self._timeout) as client:
            yield client

    @property
    def transport_errors(self) -> tuple[type[Exception], ...]:
        """What a connection that breaks raises."""
        return self._errors

    def _headers(self, more: Mapping[str, str] | None = None) -> list[tuple[bytes, bytes]]:
        """The identity of the caller, and the headers of one request, which replace those of the same name."""
        own = _raw(more or {})
        replaced = {name for name, _ in own}
        return [*(item for item in self._identity if item[0] not in replaced), *own]

    def _unreachable(self, exc: Exception) -> str:
        if self._pool.has_answered:
            return f"The connection to {self.place.url} was lost: {_words(exc)}."
        hint = "Start it with `turnkeep serve`." if self.place.is_loopback else "Is the address right?"
        return f"No server answers at {self.place.url} ({_words(exc)}). {hint}"


class Resource:
    """A group of verbs on one transport."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._transport.place.url!r})"

    async def _pages(
        self, path: str, item: type[Item], *, limit: int | None = None, **query: Any
    ) -> AsyncGenerator[Item, None]:
        """All items of a list, or the first `limit`; the next page is asked for when it is needed."""
        left, cursor = limit, None
        while left is None or left > 0:
            count = PAGE_ITEMS if left is None else min(left, PAGE_ITEMS)
            page = await self._page(path, item, limit=count, cursor=cursor, **query)
            for one in page.data:
                yield one
            left = None if left is None else left - len(page.data)
            cursor = page.next_cursor
            if cursor is None:
                return

    async def _page(self, path: str, item: type[Item], **query: Any) -> Page[Item]:
        return await self._transport.call("GET", path, Page[item], query=query)  # type: ignore[valid-type]


def part(value: str) -> str:
    """An id as a part of a path, so that a stray slash asks for nothing else."""
    return quote(value, safe="")


def given(**fields: Any) -> JsonObject:
    """The fields that say something; None leaves one out."""
    return {name: value for name, value in fields.items() if value is not None}


async def lines_of(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """The lines of an NDJSON body. Only a line feed ends one: httpx's own `aiter_lines` also splits at U+2028 and the
    like, which JSON allows inside of a string."""
    rest = b""
    async for chunk in response.aiter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


class Refusal(Exception):
    """A refusal on its way to the code that decides whether to try again."""

    def __init__(self, error: TurnkeepError, headers: Mapping[str, str]) -> None:
        super().__init__(error.detail)
        self.error = error
        self.headers = headers


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Headers as UTF-8, as the server reads them; httpx would refuse anything beyond ASCII."""
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def _identity(place: ServerAddress, user: str | None, workspace_id: str | None) -> dict[str, str]:
    headers = {"accept": "application/json", "user-agent": "turnkeep-client"}
    if place.key is not None:
        if not place.key.isascii() or not place.key.isprintable():
            raise InvalidRequest("The key has characters that no key has. Was it copied whole?")
        headers["authorization"] = f"Bearer {place.key}"
    if user is not None:
        headers["turnkeep-user"] = _header(user, "user")
    if workspace_id is not None:
        headers["turnkeep-workspace"] = _header(workspace_id, "workspace")
    return headers


def _header(value: str, name: str) -> str:
    if not value.isprintable():
        raise InvalidRequest(f"The name of the {name} has characters that cannot be sent.")
    return value


def _given(query: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if query is None else {name: value for name, value in query.items() if value is not None}


def _decoded(raw: bytes, answer: type[Found]) -> Found:
    try:
        found = msgspec.json.decode(raw, type=answer)
    except msgspec.MsgspecError as exc:
        raise Defect(f"The server's answer cannot be read: {exc}. Is one of the two older?") from exc
    without_unset(found)
    return found


def _words(exc: Exception) -> str:
    return str(exc) or type(exc).__name__
