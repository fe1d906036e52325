"""HTTP endpoints as tools, and the client that calls them.

The arguments are the JSON body or the query of a request; the body of the response is the result.

The client is aiohttp, restricted by the address guard (`addresses.py`). The guard resolves each name, and the socket is
opened to an address that the guard has accepted. `Host` and the server name in the TLS handshake stay those of the URL.
That holds for every connection, so also after a redirect and for a reconnection. No proxy and no password is taken from
the environment, and no cookie is kept. The MCP SDK insists on an httpx client; `mcp_session.py` applies the same guard
to that one.

Decision: docs/decisions/0601
"""

import errno
import io
import re
import socket
import zlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Final, Literal
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from msgspec import Struct
from multidict import CIMultiDict
from yarl import URL

from turnkeep.errors import InvalidRequest, TurnkeepError, WorldError
from turnkeep.model.truncation import is_too_deep
from turnkeep.tls import trusted_tls
from turnkeep.tools.addresses import AddressGuard, AddressRefused
from turnkeep.tools.call_identity import HEADER_PREFIX, CallSigner, Placeholders, without_arguments
from turnkeep.tools.ports import CallContext, Outcome, ToolSpec
from turnkeep_client.wire.blocks import JsonObject, JsonValue

MAX_RESPONSE_BYTES = 1024 * 1024
"""Maximum number of bytes that are read of a response. The trace keeps no more either."""
MAX_ERROR_CHARS = 4_000
MAX_URL_CHARS = 8_000
MAX_REDIRECTS = 5
CONNECT_SECONDS = 10.0
MAX_CONNECTIONS: Final = 200
KEEPALIVE_SECONDS: Final = 30.0
MAX_HEADER_BYTES: Final = 64 * 1024
"""Maximum length of one header line of a response."""

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_IN_QUERY = frozenset({"GET", "DELETE"})
_CHARSETS = re.compile(
    r"(?i)utf-?8|utf-16(le|be)?|(us-)?ascii|iso-8859-([1-9]|1[013-6])|latin-?1|windows-125[0-8]|shift_jis|euc-(jp|kr)|gbk|gb18030|big5"
)
"""Charsets that servers really use. Python has others that take quadratic time, or are not charsets of text."""
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")
_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS)
"""The engine limits the call as a whole. This limit reports a server that cannot be reached before that."""


class HttpDefinition(Struct, frozen=True, kw_only=True):
    """An HTTP tool as an agent declares it."""

    name: str
    url: str
    description: str = ""
    input_schema: JsonObject = {}
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "POST"
    headers: dict[str, str] = {}
    timeout_seconds: float | None = None
    idempotent: bool = False
    arguments: JsonObject = {}
    """Constant arguments. They take the place of what the model says, and the model does not see them."""


class _Request(Struct, frozen=True, kw_only=True):
    """One request of a call; a redirect makes another one."""

    method: str
    url: URL
    headers: CIMultiDict[str]
    """Without those that name the caller: `sign` makes them for each request."""
    body: bytes | None = None
    sign: Callable[[bytes], dict[str, str]] | None
    """Makes the headers that name the caller, for this body. None: the request goes to an origin that the agent does
    not name, and is not told for whom it is."""


class HttpEndpointTool:
    """Calls one endpoint. `open_headers` returns the agent's headers, decrypted, at the moment of the call."""

    def __init__(
        self,
        definition: HttpDefinition,
        *,
        session: aiohttp.ClientSession,
        guard: AddressGuard,
        open_headers: Callable[[], dict[str, str]],
        signer: CallSigner,
    ) -> None:
        schema = {"type": "object", "properties": {}} | definition.input_schema
        self._fixed = _fixed_parameters(definition)
        self.spec = ToolSpec(
            name=definition.name,
            description=definition.description,
            input_schema=without_arguments(schema, {*definition.arguments, *self._fixed}),
            is_idempotent=definition.idempotent,
            timeout_seconds=definition.timeout_seconds,
        )
        self._definition = definition
        self._session = session
        self._guard = guard
        self._open_headers = open_headers
        self._signer = signer

    async def call(self, args: JsonObject, context: CallContext) -> Outcome:
        try:
            response = await self._send(self._request(args, context))
        except TurnkeepError as exc:
            return Outcome(error=exc.detail)
        except aiohttp.ConnectionTimeoutError:
            return Outcome(error=f"The tool's server did not accept the connection within {CONNECT_SECONDS:g} seconds.")
        except aiohttp.ClientError as exc:
            return Outcome(error=f"The tool's server cannot be reached: {failure_words(exc)}.")
        try:
            body, is_cut = await read_response(response)
        except (aiohttp.ClientError, OSError, zlib.error) as exc:
            return Outcome(error=f"The response broke off: {failure_words(exc)}.")
        finally:
            response.release()
        return _outcome(response, body, is_cut=is_cut)

    def _request(self, args: JsonObject, context: CallContext) -> _Request:
        """Raises AddressRefused and InvalidRequest for an address or a header that cannot be sent."""
        placeholders = Placeholders.of(context.principal, context.conversation_id)
        url = self._guard.check_url(placeholders.in_url(self._definition.url))
        args = {**args, **placeholders.in_json(self._definition.arguments)}
        sign = partial(self._signer.headers, context)
        headers = CIMultiDict({"Accept": "application/json, text/*;q=0.9, */*;q=0.5"})
        method = self._definition.method
        if method not in _IN_QUERY:
            headers["Content-Type"] = "application/json"
        headers.update(self._open_headers())
        headers["Idempotency-Key"] = context.call_id
        _check_headers(headers)
        headers = CIMultiDict(
            (name, placeholders.in_header(value))
            for name, value in headers.items()
            if not name.lower().startswith(HEADER_PREFIX)  # of an agent that was saved by an older release
        )
        if method not in _IN_QUERY:
            return _Request(method=method, url=url, headers=headers, body=msgspec.json.encode(args), sign=sign)
        url = _with_query(url, {name: value for name, value in args.items() if name not in self._fixed})
        if len(str(url)) > MAX_URL_CHARS:
            raise AddressRefused(f"The arguments make an address of more than {MAX_URL_CHARS:,} characters.")
        return _Request(method=method, url=url, headers=headers, sign=sign)

    async def _send(self, request: _Request) -> aiohttp.ClientResponse:
        """The response, after redirects. Another origin gets neither the agent's own headers nor the caller's."""
        own = request.url.origin()
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._session.request(
                request.method,
                request.url,
                headers={**request.headers, **(request.sign(request.body or b"") if request.sign else {})},
                data=None if request.body is None else io.BytesIO(request.body),
                allow_redirects=False,
                timeout=_TIMEOUT,
            )
            location = response.headers.get("Location")
            if response.status not in _REDIRECTS or location is None:
                return response
            response.release()
            request = self._redirected(request, response.status, location, own=own)
        raise AddressRefused(f"The tool's server redirected more than {MAX_REDIRECTS} times.")

    def _redirected(self, sent: _Request, status: int, location: str, *, own: URL) -> _Request:
        """The request that follows. Its address is checked like the first one. Raises AddressRefused."""
        try:
            target = self._guard.check_url(urljoin(str(sent.url), location))
        except ValueError as exc:
            raise AddressRefused(f"The tool's server redirected to an invalid address: {exc}.") from exc
        if sent.url.scheme == "https" and target.scheme == "http":
            raise AddressRefused("The tool's server redirected from https to http, which is not followed.")
        dropped = {"host", "content-length"}
        # Headers that were dropped once stay dropped: a way back to the first origin is chosen by the other one.
        is_foreign = sent.sign is None or target.origin() != own
        if is_foreign:
            dropped |= {name.lower() for name in self._definition.headers}
        keeps_body = status in {307, 308}
        if not keeps_body:
            dropped.add("content-type")
        return _Request(
            method=sent.method if keeps_body or sent.method == "GET" else "GET",
            url=target,
            headers=CIMultiDict((name, value) for name, value in sent.headers.items() if name.lower() not in dropped),
            body=sent.body if keeps_body else None,
            sign=None if is_foreign else sent.sign,
        )


def _check_headers(headers: CIMultiDict[str]) -> None:
    """Raises InvalidRequest, which does not quote the header: its value may be a secret."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise InvalidRequest("The tool's headers cannot be sent. They must be plain ASCII without line breaks.")


def _fixed_parameters(definition: HttpDefinition) -> frozenset[str]:
    """Parameters of the query that say for whom the tool works. Nothing that the model says replaces them."""
    if definition.method not in _IN_QUERY:
        return frozenset()
    query = parse_qs(urlsplit(definition.url).query, keep_blank_values=True)
    return frozenset(name for name, values in query.items() if any("{{" in value for value in values))


def _with_query(url: URL, args: JsonObject) -> URL:
    """The URL with the arguments in its query. An argument replaces a parameter of the same name in the URL."""
    given = _query(args)
    if not given:
        return url
    query = parse_qs(url.raw_query_string, keep_blank_values=True) | given
    return URL(f"{url.origin()}{url.raw_path}?{urlencode(query, doseq=True)}", encoded=True)


def failure_words(exc: Exception) -> str:
    """The reason of a failure. aiohttp's own sentence would repeat the host and its settings."""
    cause = exc
    if isinstance(exc, aiohttp.ClientConnectorCertificateError):
        cause = exc.certificate_error
    elif isinstance(exc, aiohttp.ClientConnectorError):
        cause = exc.os_error
    return (getattr(cause, "strerror", None) or str(cause)).rstrip(".") or type(exc).__name__


def _query(args: JsonObject) -> dict[str, list[str]]:
    """Lists are repeated, objects are JSON, null is left out."""
    query = {name: value if isinstance(value, list) else [value] for name, value in args.items()}
    texts = {name: [_query_text(each) for each in values if each is not None] for name, values in query.items()}
    return {name: values for name, values in texts.items() if values}


def _query_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


async def read_response(response: aiohttp.ClientResponse) -> tuple[bytes, bool]:
    """The body, at most MAX_RESPONSE_BYTES of it, and whether there was more."""
    body = bytearray()
    async for chunk in _decoded(response):
        body += chunk
        if len(body) > MAX_RESPONSE_BYTES:
            return bytes(body[:MAX_RESPONSE_BYTES]), True
    return bytes(body), False


async def _decoded(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The body as it comes. It was requested without compression. If it is compressed anyway, it is unpacked in small
    steps, since a few bytes may unpack to gigabytes."""
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding in {"", "identity"}:
        async for chunk in response.content.iter_any():
            yield chunk
        return
    if encoding not in {"gzip", "x-gzip", "deflate"}:
        raise aiohttp.ClientPayloadError(f"it is encoded as {encoding}, which was not asked for")
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    async for chunk in response.content.iter_any():
        data = chunk
        while data:
            yield unpacker.decompress(data, MAX_RESPONSE_BYTES + 1)
            data = unpacker.unconsumed_tail


def _outcome(response: aiohttp.ClientResponse, body: bytes, *, is_cut: bool) -> Outcome:
    result = _result(response, body, is_cut=is_cut)
    if response.status < 400:
        return Outcome(result=result)
    words = result if isinstance(result, str) else msgspec.json.encode(result).decode()
    return Outcome(error=f"HTTP {response.status} {response.reason or ''}: {words[:MAX_ERROR_CHARS]}")


def _result(response: aiohttp.ClientResponse, body: bytes, *, is_cut: bool) -> JsonValue:
    if not body:
        return f"(HTTP {response.status}, no body)"
    media_type, _, parameters = response.headers.get("Content-Type", "").partition(";")
    media_type = media_type.strip().lower()
    if not is_cut and (media_type == "application/json" or media_type.endswith("+json")):
        try:
            decoded: JsonValue = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        else:
            if not is_too_deep(decoded):
                return decoded
    text = _text(body, media_type, parameters, is_cut=is_cut)
    if text is None:
        return f"(HTTP {response.status}, {len(body):,} bytes of {media_type or 'unknown type'}, not shown)"
    return f"{text}\n[cut: the response has more than {MAX_RESPONSE_BYTES:,} bytes]" if is_cut else text


def _text(body: bytes, media_type: str, parameters: str, *, is_cut: bool) -> str | None:
    """The body as text in its charset (UTF-8 if none is given); None if it is not text."""
    named = re.search(r"charset\s*=\s*\"?([\w.-]+)", parameters, re.IGNORECASE)
    charset = named[1] if named and _CHARSETS.fullmatch(named[1]) else "utf-8"
    is_text = media_type.startswith("text/") or media_type.endswith(("json", "xml", "javascript"))
    try:
        return body.decode(charset, "replace" if is_text else "strict")
    except UnicodeDecodeError as exc:
        # The last character may be cut in two.
        return body[: exc.start].decode(charset) if is_cut and exc.start > len(body) - 4 else None


def open_session(guard: AddressGuard) -> aiohttp.ClientSession:
    """A client that connects only to addresses that the guard accepts. Close it.

    Send requests with `allow_redirects=False`: a redirect must be checked as a new address. Bodies come as the server
    sent them, still compressed if they are. Cookies are dropped: a cookie that a server set for one tenant must not be
    sent with a call of another.
    """
    connector = aiohttp.TCPConnector(
        resolver=GuardedResolver(guard),
        use_dns_cache=False,  # every connection is judged by its own answer of the name server
        socket_factory=_GuardedSocketFactory(guard),
        ssl=trusted_tls(),
        limit=MAX_CONNECTIONS,
        keepalive_timeout=KEEPALIVE_SECONDS,
    )
    return aiohttp.ClientSession(
        connector=connector,
        headers={"User-Agent": "turnkeep", "Accept-Encoding": "identity"},
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        max_line_size=MAX_HEADER_BYTES,
        max_field_size=MAX_HEADER_BYTES,
        middlewares=(_send_once,),
    )


class GuardedResolver(AbstractResolver):
    """Resolves names through the guard. aiohttp connects to what this returns and does not resolve the name again."""

    def __init__(self, guard: AddressGuard) -> None:
        self._guard = guard

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Raises AddressRefused as it is; a name that cannot be resolved becomes the OSError that aiohttp expects."""
        try:
            addresses = await self._guard.addresses(host, port)
        except WorldError as exc:
            raise socket.gaierror(socket.EAI_NONAME, exc.detail) from exc
        return [_resolved(host, address, port) for address in addresses]

    async def close(self) -> None:
        pass


def _resolved(host: str, address: str, port: int) -> ResolveResult:
    return ResolveResult(
        hostname=host,
        host=address,
        port=port,
        family=socket.AF_INET6 if ":" in address else socket.AF_INET,
        proto=0,
        flags=socket.AI_NUMERICHOST,
    )


class _GuardedSocketFactory:
    """Makes sockets only for accepted addresses. aiohttp asks no resolver for a host that is an IP address already."""

    def __init__(self, guard: AddressGuard) -> None:
        self._guard = guard

    def __call__(self, address_info: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, address = address_info
        try:
            self._guard.check_ip(str(address[0]))
        except AddressRefused as exc:
            raise PermissionError(errno.EACCES, exc.detail) from exc
        return socket.socket(family, kind, protocol)


async def _send_once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Stop aiohttp from repeating GET, PUT and DELETE when the connection breaks.

    Whether a call of a tool may be repeated is for the engine to decide. aiohttp repeats only after these two errors.
    """
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as exc:
        raise aiohttp.ClientConnectionError(str(exc)) from exc
