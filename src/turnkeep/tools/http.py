"""HTTP endpoints as tools: arguments are the JSON body (or the query), the response body is the result."""

import re
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

import httpx2
import msgspec
from msgspec import Struct

from turnkeep.errors import TurnkeepError
from turnkeep.model.json_depth import is_too_deep
from turnkeep.tools.addresses import PORTS, AddressGuard, AddressRefused
from turnkeep.tools.ports import CallContext, Outcome, ToolSpec
from turnkeep_client.wire.blocks import JsonObject, JsonValue

MAX_RESPONSE_BYTES = 1024 * 1024
"""So much of a response is read; the trace keeps no more either."""
MAX_ERROR_CHARS = 4_000
MAX_URL_CHARS = 8_000
MAX_REDIRECTS = 5
CONNECT_SECONDS = 10.0

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_IN_QUERY = frozenset({"GET", "DELETE"})
_CHARSETS = re.compile(
    r"(?i)utf-?8|utf-16(le|be)?|(us-)?ascii|iso-8859-([1-9]|1[013-6])|latin-?1|windows-125[0-8]|shift_jis|euc-(jp|kr)|gbk|gb18030|big5"
)
"""Those that servers really use. Python knows others which take quadratic time, or are no text at all."""
_TIMEOUT = httpx2.Timeout(None, connect=CONNECT_SECONDS, pool=CONNECT_SECONDS)
"""The engine limits the call as a whole; here only what can be told early."""


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


class HttpTool:
    """Calls one endpoint. `open_headers` gives the agent's headers in the clear, at the moment of the call."""

    def __init__(
        self,
        definition: HttpDefinition,
        *,
        client: httpx2.AsyncClient,
        guard: AddressGuard,
        open_headers: Callable[[], dict[str, str]],
    ) -> None:
        self.spec = ToolSpec(
            name=definition.name,
            description=definition.description,
            input_schema={"type": "object", "properties": {}} | definition.input_schema,
            is_idempotent=definition.idempotent,
            timeout_seconds=definition.timeout_seconds,
        )
        self._definition = definition
        self._client = client
        self._guard = guard
        self._open_headers = open_headers

    async def call(self, args: JsonObject, context: CallContext) -> Outcome:
        try:
            request = self._request(args, context)
            response = await self._send(request)
        except TurnkeepError as exc:
            return Outcome(error=exc.detail)
        except httpx2.TimeoutException:
            return Outcome(error=f"The tool's server did not accept the connection within {CONNECT_SECONDS:g} seconds.")
        except httpx2.LocalProtocolError:  # its words would quote the header
            return Outcome(error="The tool's headers cannot be sent. They must be plain ASCII without line breaks.")
        except httpx2.HTTPError as exc:
            return Outcome(error=f"The tool's server cannot be reached: {_words(exc)}.")
        try:
            body, is_cut = await _read(response)
        except (httpx2.HTTPError, zlib.error) as exc:
            return Outcome(error=f"The response broke off: {_words(exc)}.")
        finally:
            await response.aclose()
        return _outcome(response, body, is_cut=is_cut)

    def _request(self, args: JsonObject, context: CallContext) -> httpx2.Request:
        url = self._guard.check_url(self._definition.url)
        headers = {"accept": "application/json, text/*;q=0.9, */*;q=0.5", **self._open_headers()}
        headers["idempotency-key"] = context.call_id
        method = self._definition.method
        if method not in _IN_QUERY:
            headers = {"content-type": "application/json"} | headers
            content = msgspec.json.encode(args)
            return self._client.build_request(method, url, headers=headers, content=content, timeout=_TIMEOUT)
        url = url.copy_merge_params(httpx2.QueryParams(_query(args))) if args else url
        if len(str(url)) > MAX_URL_CHARS:
            raise AddressRefused(f"The arguments make an address of more than {MAX_URL_CHARS:,} characters.")
        return self._client.build_request(method, url, headers=headers, timeout=_TIMEOUT)

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        """The response, after redirects. To another origin the agent's own headers are not sent."""
        own = self._guard.check_url(self._definition.url)
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._client.send(request, stream=True, follow_redirects=False)
            location = response.headers.get("location")
            if response.status_code not in _REDIRECTS or location is None:
                return response
            await response.aclose()
            request = self._redirected(request, response.status_code, location, own=own)
        raise AddressRefused(f"The tool's server redirected more than {MAX_REDIRECTS} times.")

    def _redirected(self, sent: httpx2.Request, status: int, location: str, *, own: httpx2.URL) -> httpx2.Request:
        try:
            target = self._guard.check_url(str(sent.url.join(location)))
        except (httpx2.InvalidURL, ValueError) as exc:
            raise AddressRefused(f"The tool's server redirected to an invalid address: {exc}.") from exc
        if sent.url.scheme == "https" and target.scheme == "http":
            raise AddressRefused("The tool's server redirected from https to http, which is not followed.")
        # What was left behind once does not come back: a way back to the first origin is chosen by the other one.
        dropped = {"host", "content-length"}
        if _origin(target) != _origin(own):
            dropped |= {name.lower() for name in self._definition.headers}
        keeps_body = status in {307, 308}
        method = sent.method if keeps_body or sent.method == "GET" else "GET"
        if not keeps_body:
            dropped.add("content-type")
        headers = {name: value for name, value in sent.headers.items() if name not in dropped}
        content = sent.content if keeps_body and sent.method not in _IN_QUERY else None
        return self._client.build_request(method, target, headers=headers, content=content, timeout=_TIMEOUT)


def _origin(url: httpx2.URL) -> tuple[str, str, int]:
    return url.scheme, url.host, url.port or PORTS[url.scheme]


def _words(exc: Exception) -> str:
    return str(exc).rstrip(".") or type(exc).__name__


def _query(args: JsonObject) -> tuple[tuple[str, str], ...]:
    """Lists are repeated, objects are JSON, null is left out."""
    pairs: list[tuple[str, str]] = []
    for name, value in args.items():
        values = value if isinstance(value, list) else [value]
        pairs += [(name, _query_text(each)) for each in values if each is not None]
    return tuple(pairs)


def _query_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


async def _read(response: httpx2.Response) -> tuple[bytes, bool]:
    """The body, at most MAX_RESPONSE_BYTES of it, and whether there was more."""
    body = bytearray()
    async for chunk in _decoded(response):
        body += chunk
        if len(body) > MAX_RESPONSE_BYTES:
            return bytes(body[:MAX_RESPONSE_BYTES]), True
    return bytes(body), False


async def _decoded(response: httpx2.Response) -> AsyncIterator[bytes]:
    """The body as it comes. It was asked for uncompressed; what comes compressed anyway is unpacked in small steps,
    since a few bytes may stand for gigabytes."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding in {"", "identity"}:
        async for chunk in response.aiter_raw():
            yield chunk
        return
    if encoding not in {"gzip", "x-gzip", "deflate"}:
        raise httpx2.DecodingError(f"it is encoded as {encoding}, which was not asked for")
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    async for chunk in response.aiter_raw():
        data = chunk
        while data:
            yield unpacker.decompress(data, MAX_RESPONSE_BYTES + 1)
            data = unpacker.unconsumed_tail


def _outcome(response: httpx2.Response, body: bytes, *, is_cut: bool) -> Outcome:
    result = _result(response, body, is_cut=is_cut)
    if response.status_code < 400:
        return Outcome(result=result)
    words = result if isinstance(result, str) else msgspec.json.encode(result).decode()
    return Outcome(error=f"HTTP {response.status_code} {response.reason_phrase}: {words[:MAX_ERROR_CHARS]}")


def _result(response: httpx2.Response, body: bytes, *, is_cut: bool) -> JsonValue:
    if not body:
        return f"(HTTP {response.status_code}, no body)"
    media_type, _, parameters = response.headers.get("content-type", "").partition(";")
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
        return f"(HTTP {response.status_code}, {len(body):,} bytes of {media_type or 'unknown type'}, not shown)"
    return f"{text}\n[cut: the response has more than {MAX_RESPONSE_BYTES:,} bytes]" if is_cut else text


def _text(body: bytes, media_type: str, parameters: str, *, is_cut: bool) -> str | None:
    """The body as text in the charset it names (UTF-8 without one); None for what is no text."""
    named = re.search(r"charset\s*=\s*\"?([\w.-]+)", parameters, re.IGNORECASE)
    charset = named[1] if named and _CHARSETS.fullmatch(named[1]) else "utf-8"
    is_text = media_type.startswith("text/") or media_type.endswith(("json", "xml", "javascript"))
    try:
        return body.decode(charset, "replace" if is_text else "strict")
    except UnicodeDecodeError as exc:
        # The cut may have gone through the last character.
        return body[: exc.start].decode(charset) if is_cut and exc.start > len(body) - 4 else None
