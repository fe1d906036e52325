"""Endpoints: a handler together with everything the outside may know about it, and the way from a request to it.

Each endpoint names its policy, its body and query, and every response. From this one declaration follow the checks
before the handler runs (`Dispatcher`), the OpenAPI document, and the tests that try every route with every kind of
caller. `Dispatcher.routes` gives the Starlette routes of all endpoints. When a check fails, the handler does not run.

Decision: docs/decisions/0501
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec
from msgspec import Struct
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from turnkeep.api.http.problem_details import InvalidField, answer_error
from turnkeep.api.http.requests import known_id, notes_of, read_body, refuse_duplicate_headers, validation_error
from turnkeep.api.http.responses import head_of
from turnkeep.api.identity.authentication import (
    Authenticator,
    Identity,
    Policy,
    check_policy,
    check_scopes,
    refuse_key_in_query,
)
from turnkeep.api.identity.rate_limits import RateLimiter
from turnkeep.errors import InvalidRequest, RateLimited
from turnkeep.model.principals import Feature, Principal
from turnkeep.runtime import Runtime

__all__ = [
    "ApiCall",
    "Dispatcher",
    "Endpoint",
    "Endpoints",
    "Method",
    "Nothing",
    "PathEndpoints",
    "Policy",
    "ResponseSpec",
    "known_id",
    "parse_query",
]

Body = TypeVar("Body")
Query = TypeVar("Query")

_ENCODED_SLASH = re.compile("%2f", re.IGNORECASE)
_NO_CHARACTER = "\ud800"
"""It stands for an encoded slash while a route is chosen. No text that was decoded has it."""

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


class Nothing(Struct, frozen=True):
    """No body, no query."""


class ResponseSpec(Struct, frozen=True, kw_only=True):
    """One response that an endpoint may give: its meaning, and the type of its body (None: no body)."""

    status: int
    meaning: str
    type: Any = None
    media_type: str = "application/json"


class Endpoint(Struct, frozen=True, kw_only=True):
    """One method on one path. `errors` are statuses beyond those that the policy and the inputs imply."""

    method: Method
    path: str
    name: str
    policy: Policy
    summary: str
    tag: str
    handle: Callable[["ApiCall[Any, Any]"], Awaitable[ASGIApp]]
    responses: tuple[ResponseSpec, ...]
    body: Any = None
    is_body_optional: bool = False
    raw_body: str | None = None
    """The media type of a body that the handler reads as it arrives. With `body`, the client may send either."""
    query: Any = None
    query_names: tuple[str, ...] = ()
    """Without `query`: the parameters that the handler itself reads. One that ends with `[]` may be given many times,
    with or without these brackets."""
    headers: tuple[str, ...] = ()
    errors: tuple[int, ...] = ()
    limits_itself: bool = False
    """The handler applies the rate limit itself, after it has looked for a repeated idempotency key."""
    has_foreign_query: bool = False
    """The query was written by another server, so the handler reads it, and passes over what it does not know."""
    is_described: bool = True
    """Whether the OpenAPI document lists it."""
    feature: Feature | None = None
    """The feature that a token or key with scopes needs for it."""

    @property
    def answers_head(self) -> bool:
        """Whether HEAD is answered as GET is, without the body. Not for a sandbox: its GET spends a token."""
        return self.method == "GET" and self.policy is not Policy.TURN

    @property
    def may_change_identities(self) -> bool:
        """Whether it may change keys, users or workspaces. No endpoint for all members does, and none for callers
        without an identity: those could make the server forget what it knows as often as they like."""
        return self.method != "GET" and self.policy.identifies and self.policy is not Policy.MEMBER


class ApiCall(Generic[Body, Query]):
    """One request to one endpoint: its caller is authenticated, its rate is counted, its body and query are parsed."""

    __slots__ = ("_identity", "body", "headers", "notes", "over_limit", "query", "request", "runtime")

    def __init__(
        self,
        *,
        runtime: Runtime,
        request: Request,
        identity: Identity | None,
        body: Body,
        query: Query,
        over_limit: RateLimited | None = None,
    ) -> None:
        self.runtime = runtime
        self.request = request
        self.body = body
        self.query = query
        self.over_limit = over_limit
        self.headers = request.headers
        self.notes = notes_of(request.scope)
        self._identity = identity

    @property
    def identity(self) -> Identity:
        assert self._identity is not None, "a public endpoint has no principal"
        return self._identity

    @property
    def principal(self) -> Principal:
        return self.identity.principal

    @property
    def receive(self) -> Receive:
        return self.request.receive

    @property
    def target(self) -> str:
        """Method and path, as one text."""
        scope = self.request.scope
        return f"{scope['method']} {scope['path']}"

    @property
    def query_string(self) -> bytes:
        """The query as it was sent."""
        raw: bytes = self.request.scope["query_string"]
        return raw

    def path(self, name: str) -> str:
        """A parameter of the path."""
        text: str = self.request.path_params[name]
        return text

    def id(self, name: str, prefix: str) -> str:
        """The id in the path. Raises NotFound if it cannot be an id of this kind."""
        return known_id(self.path(name), prefix)


class Endpoints:
    """The endpoints of one topic, collected by decorator. `feature` is what all of them need of scopes."""

    def __init__(self, tag: str, *, feature: Feature | None = None) -> None:
        self.tag = tag
        self.feature = feature
        self.all: list[Endpoint] = []

    def add(
        self, method: Method, path: str, *, policy: Policy, responses: tuple[ResponseSpec, ...], **more: Any
    ) -> Callable[
        [Callable[[ApiCall[Any, Any]], Awaitable[ASGIApp]]],
        Callable[[ApiCall[Any, Any]], Awaitable[ASGIApp]],
    ]:
        """Declare the function below as the handler; its docstring is the summary."""

        def declare(
            handle: Callable[[ApiCall[Any, Any]], Awaitable[ASGIApp]],
        ) -> Callable[[ApiCall[Any, Any]], Awaitable[ASGIApp]]:
            self.all.append(
                Endpoint(
                    method=method,
                    path=path,
                    name=handle.__name__,
                    policy=policy,
                    summary=" ".join((handle.__doc__ or "").split()),
                    tag=self.tag,
                    handle=handle,
                    responses=responses,
                    **{"feature": self.feature} | more,
                )
            )
            return handle

        return declare


class Dispatcher:
    """Checks a request and calls the handler of its endpoint."""

    def __init__(self, runtime: Runtime, authenticator: Authenticator, limiter: RateLimiter) -> None:
        self._runtime = runtime
        self._authenticator = authenticator
        self._limiter = limiter
        self._decoders: dict[Any, msgspec.json.Decoder[Any]] = {}

    def routes(self, endpoints: Iterable[Endpoint]) -> list[Route]:
        """One route for each path. Starlette takes the first that matches, so fixed paths come before those with
        parameters, and among them the turns, which are called most."""
        by_path: dict[str, list[Endpoint]] = {}
        for endpoint in endpoints:
            by_path.setdefault(endpoint.path, []).append(endpoint)
        ordered = sorted(by_path.items(), key=lambda item: ("{" in item[0], item[1][0].tag != "turns"))
        return [EndpointRoute(path, PathEndpoints(self, group)) for path, group in ordered]

    async def call(self, endpoint: Endpoint, request: Request) -> ASGIApp:
        """The response of the handler. Raises the first thing that is wrong with the request."""
        scope = request.scope
        notes_of(scope)["route"] = endpoint.path
        refuse_duplicate_headers(scope["headers"])
        identity = await self._identity(endpoint, request)
        over_limit = self._count(identity)
        if over_limit is not None and not endpoint.limits_itself:
            raise over_limit
        call = ApiCall[Any, Any](
            runtime=self._runtime,
            request=request,
            identity=identity,
            body=await self._body(endpoint, request),
            query=_query(endpoint, scope["query_string"]),
            over_limit=over_limit,
        )
        try:
            return await endpoint.handle(call)
        finally:
            if endpoint.may_change_identities:
                self._authenticator.forget()

    async def _identity(self, endpoint: Endpoint, request: Request) -> Identity | None:
        if not endpoint.policy.identifies:
            return None
        refuse_key_in_query(request.scope["query_string"])
        identity = await self._authenticator.identify(request.method, request.headers)
        check_policy(endpoint.policy, identity)
        check_scopes(endpoint.policy, endpoint.feature, identity, agent_id=request.path_params.get("agent_id"))
        return identity

    def _count(self, identity: Identity | None) -> RateLimited | None:
        return None if identity is None or not identity.rates else self._limiter.take(identity.rates)

    async def _body(self, endpoint: Endpoint, request: Request) -> Any:
        if endpoint.body is None or _is_raw(endpoint, request.headers):
            return Nothing()
        limit = self._runtime.settings.max_body_bytes
        raw = await read_body(request.receive, request.headers, limit=limit)
        if not raw and endpoint.is_body_optional:
            return endpoint.body()
        decoder = self._decoders.get(endpoint.body)
        if decoder is None:
            decoder = self._decoders[endpoint.body] = msgspec.json.Decoder(endpoint.body)
        try:
            return decoder.decode(raw)
        except msgspec.ValidationError as exc:
            raise validation_error(exc, endpoint.body) from exc
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise InvalidRequest(f"The body is not valid JSON: {exc}.") from exc


class EndpointRoute(Route):
    """A route in whose parameters a client may write a slash as `%2F`: ids of other systems have slashes."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        raw: bytes = scope.get("raw_path") or b""
        parts = _ENCODED_SLASH.split(raw.decode("latin-1")) if b"%" in raw else ()
        if len(parts) < 2:
            return super().matches(scope)
        match, found = super().matches({**scope, "path": _NO_CHARACTER.join(map(unquote, parts))})
        if match is not Match.NONE:
            values: dict[str, str] = found["path_params"]
            found["path_params"] = {name: value.replace(_NO_CHARACTER, "/") for name, value in values.items()}
        return match, found


class PathEndpoints:
    """All endpoints of one path, as an ASGI app that chooses by method.

    Two Starlette routes with the same path would each name only their own methods in `Allow`.
    """

    def __init__(self, dispatcher: Dispatcher, endpoints: Sequence[Endpoint]) -> None:
        self.endpoints = tuple(endpoints)
        self._dispatcher = dispatcher
        self._by_method: dict[str, Endpoint] = {endpoint.method: endpoint for endpoint in endpoints}
        if (get := self._by_method.get("GET")) is not None and get.answers_head:
            self._by_method["HEAD"] = get
        self._allow = {"allow": ", ".join(sorted([*self._by_method, "OPTIONS"]))}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._respond(request)
            await response(scope, receive, send)
        except Exception as exc:
            if notes_of(scope).get("status") is not None:
                raise  # a part of another response was sent already
            await answer_error(request, exc)(scope, receive, send)

    async def _respond(self, request: Request) -> ASGIApp:
        method = request.method
        if request.scope["path"].endswith("\n"):
            raise HTTPException(404)  # the `$` in Starlette's pattern also matches before a line break
        endpoint = self._by_method.get(method)
        if endpoint is not None:
            response = await self._dispatcher.call(endpoint, request)
            return head_of(response) if method == "HEAD" else response
        if method == "OPTIONS":
            return Response(status_code=204, headers=self._allow)
        raise HTTPException(405, headers=self._allow)


def _query(endpoint: Endpoint, query_string: bytes) -> Any:
    """The query, unless the handler reads it: that of a signed address is the signature."""
    if endpoint.policy is Policy.SIGNED or endpoint.has_foreign_query:
        return Nothing()
    if endpoint.query is None:
        if query_string:
            _named_values(query_string, endpoint.query_names)
        return Nothing()
    return parse_query(endpoint.query, query_string)


def parse_query(kind: Any, query_string: bytes) -> Any:
    """The query as that type. A name that is unknown, or given twice, is refused."""
    if not query_string:
        return kind()
    given = _named_values(query_string, kind.__struct_encode_fields__)
    try:
        return msgspec.convert(given, type=kind, strict=False)
    except msgspec.ValidationError as exc:
        raise validation_error(exc, kind) from exc


def _named_values(query_string: bytes, known: Sequence[str]) -> dict[str, str]:
    """The parameters of a query. Raises InvalidRequest for a name that is not known, or given twice."""
    try:
        pairs = parse_qsl(query_string.decode("ascii"), keep_blank_values=True, errors="strict")
    except (ValueError, UnicodeDecodeError) as exc:
        raise InvalidRequest("The query string is malformed.") from exc
    given: dict[str, str] = {}
    for name, value in pairs:
        is_list = f"{name.removesuffix('[]')}[]" in known
        if name not in known and not is_list:
            there_are = f"There are: {', '.join(known)}." if known else "There are none."
            raise InvalidField(f"This route has no parameter `{name[:60]}`. {there_are}", field=name[:60])
        if name in given and not is_list:
            raise InvalidField(f"The parameter `{name}` is given twice.", field=name)
        given[name] = value
    return given


def _is_raw(endpoint: Endpoint, headers: Headers) -> bool:
    """Whether the handler itself reads this body as it arrives."""
    if endpoint.raw_body is None or endpoint.body is None:
        return endpoint.raw_body is not None
    return headers.get("content-type", "").partition(";")[0].strip().lower() == endpoint.raw_body
