"""The gate before every handler: who asks, may they, how often, and is what they sent well-formed."""

from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from litestar import Request
from litestar.datastructures import Headers
from litestar.types import ASGIApp, Receive

from turnkeep.api.http.endpoints import Call, Endpoint, Nothing
from turnkeep.api.identity.authentication import Asker, Authenticator, check_policy, own_origins, refuse_key_in_query
from turnkeep.api.identity.policies import Identity
from turnkeep.api.identity.rate_limits import RateLimiter
from turnkeep.api.notes import notes_of
from turnkeep.api.wording import refusal
from turnkeep.errors import InvalidRequest, RateLimited, TooLarge, Unauthorized, Unavailable
from turnkeep.runtime import Runtime

_SAID_ONCE = {
    name.lower().encode(): name
    for name in ("Authorization", "Turnkeep-User", "Turnkeep-Workspace", "Idempotency-Key", "Last-Event-ID")
}


class Gate:
    """Lets a request through to its handler, or raises what is wrong with it. Nothing was read or written then."""

    def __init__(self, runtime: Runtime, authenticator: Authenticator, limiter: RateLimiter) -> None:
        self._runtime = runtime
        self._authenticator = authenticator
        self._limiter = limiter
        self._decoders: dict[Any, msgspec.json.Decoder[Any]] = {}

    async def admit(self, endpoint: Endpoint, request: Request[Any, Any, Any]) -> ASGIApp:
        scope = request.scope
        notes = notes_of(scope)
        notes["route"] = endpoint.path
        refuse_doubled_headers(scope["headers"])
        identity = await self._identity(endpoint, request)
        over_limit = self._count(identity)
        if over_limit is not None and not endpoint.limits_itself:
            raise over_limit
        raw = b""
        is_raw = _is_raw(endpoint, request.headers)
        if endpoint.body is not None and not is_raw:
            raw = await read_body(request.receive, request.headers, limit=self._runtime.settings.max_body_bytes)
        call = Call[Any, Any](
            runtime=self._runtime,
            identity=identity,
            path=request.path_params,
            headers=request.headers,
            body=Nothing() if is_raw else self._body(endpoint, raw),
            query=parse_query(endpoint.query, scope["query_string"]),
            target=f"{scope['method']} {scope['path']}",
            receive=request.receive,
            notes=notes,
            over_limit=over_limit,
            query_string=scope["query_string"],
        )
        return await endpoint.handle(call)

    async def _identity(self, endpoint: Endpoint, request: Request[Any, Any, Any]) -> Identity | None:
        if not endpoint.policy.identifies:
            return None
        refuse_key_in_query(request.scope["query_string"])
        asker = Asker(
            method=request.scope["method"],
            headers=request.headers,
            own_origins=own_origins(request.headers, self._runtime.settings.public_url),
        )
        identity = await self._authenticator.identify(asker)
        check_policy(endpoint.policy, identity)
        return identity

    def _count(self, identity: Identity | None) -> RateLimited | None:
        if identity is None or identity.requests_per_minute is None or identity.principal.key_id is None:
            return None
        return self._limiter.take(identity.principal.key_id, per_minute=identity.requests_per_minute)

    def _body(self, endpoint: Endpoint, raw: bytes) -> Any:
        if endpoint.body is None:
            return Nothing()
        if not raw and endpoint.is_body_optional:
            return endpoint.body()
        decoder = self._decoders.get(endpoint.body)
        if decoder is None:
            decoder = self._decoders[endpoint.body] = msgspec.json.Decoder(endpoint.body)
        try:
            return decoder.decode(raw)
        except msgspec.ValidationError as exc:
            raise refusal(exc, endpoint.body) from exc
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise InvalidRequest(f"The body is not valid JSON: {exc}.") from exc


def refuse_doubled_headers(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Who asks, for whom and which request it is must be said once: with two answers, one would count unseen."""
    seen: set[bytes] = set()
    for name, _ in headers:
        if name in seen:
            kind = Unauthorized if name == b"authorization" else InvalidRequest
            raise kind(f"The header `{_SAID_ONCE[name]}` is sent twice. Send it once.")
        if name in _SAID_ONCE:
            seen.add(name)


def _is_raw(endpoint: Endpoint, headers: Headers) -> bool:
    """Whether the handler itself reads this body as it arrives."""
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    return endpoint.raw_body is not None and (endpoint.body is None or media_type == endpoint.raw_body)


async def read_body(receive: Receive, headers: Headers, *, limit: int) -> bytes:
    """The whole body, as long as it stays within `limit`, whatever its Content-Length says."""
    refusal = TooLarge(f"The body is over {limit:,} bytes. Make it shorter, or attach it as a file.")
    announced = headers.get("content-length", "0")
    if announced.isascii() and announced.isdigit() and int(announced[:20]) > limit:
        raise refusal
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise Unavailable("The connection was closed before the body was complete.")
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise refusal
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def parse_query(kind: Any, query_string: bytes) -> Any:
    """The query as that type. Names that it does not know are passed over; a name that comes twice is refused."""
    if kind is None:
        return Nothing()
    try:
        pairs = parse_qsl(query_string.decode("ascii"), keep_blank_values=True, errors="strict")
    except (ValueError, UnicodeDecodeError) as exc:
        raise InvalidRequest("The query string is malformed.") from exc
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    given: dict[str, str] = {}
    for name, value in pairs:
        if name in given:
            raise InvalidRequest(f"The parameter `{name}` is given twice.")
        if name in known:
            given[name] = value
    try:
        return msgspec.convert(given, type=kind, strict=False)
    except msgspec.ValidationError as exc:
        raise refusal(exc, kind) from exc
