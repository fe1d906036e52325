"""Endpoint declarations: a handler together with everything the outside may know about it.

Each endpoint names its policy, its body and query, and every reply. From this one declaration follow the checks before
the handler runs (`dispatch`), the OpenAPI document, and the tests that try every route with every kind of caller.

Decision: docs/decisions/0501
"""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, Literal, TypeVar

from msgspec import Struct
from starlette.requests import Request
from starlette.types import ASGIApp, Receive

from turnkeep.api.http.requests import known_id, notes_of
from turnkeep.api.identity.policies import Identity, Policy
from turnkeep.errors import RateLimited
from turnkeep.model.principals import Principal
from turnkeep.runtime import Runtime

__all__ = ["Call", "Endpoint", "Endpoints", "Method", "Nothing", "Policy", "Reply", "known_id"]

Body = TypeVar("Body")
Query = TypeVar("Query")

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


class Nothing(Struct, frozen=True):
    """No body, no query."""


class Reply(Struct, frozen=True, kw_only=True):
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
    handle: Callable[["Call[Any, Any]"], Awaitable[ASGIApp]]
    replies: tuple[Reply, ...]
    body: Any = None
    is_body_optional: bool = False
    raw_body: str | None = None
    """The media type of a body that the handler reads as it arrives. With `body`, the client may send either."""
    query: Any = None
    headers: tuple[str, ...] = ()
    errors: tuple[int, ...] = ()
    limits_itself: bool = False
    """The handler applies the rate limit itself, after it has looked for a repeated idempotency key."""
    is_described: bool = True
    """Whether the OpenAPI document lists it."""

    @property
    def answers_head(self) -> bool:
        """Whether HEAD is answered as GET is, without the body. Not for a sandbox: its GET spends a token."""
        return self.method == "GET" and self.policy is not Policy.TURN


class Call(Generic[Body, Query]):
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
    """The endpoints of one topic, collected by decorator."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.all: list[Endpoint] = []

    def add(
        self, method: Method, path: str, *, policy: Policy, replies: tuple[Reply, ...], **more: Any
    ) -> Callable[
        [Callable[[Call[Any, Any]], Awaitable[ASGIApp]]],
        Callable[[Call[Any, Any]], Awaitable[ASGIApp]],
    ]:
        """Declare the function below as the handler; its docstring is the summary."""

        def declare(
            handle: Callable[[Call[Any, Any]], Awaitable[ASGIApp]],
        ) -> Callable[[Call[Any, Any]], Awaitable[ASGIApp]]:
            self.all.append(
                Endpoint(
                    method=method,
                    path=path,
                    name=handle.__name__,
                    policy=policy,
                    summary=" ".join((handle.__doc__ or "").split()),
                    tag=self.tag,
                    handle=handle,
                    replies=replies,
                    **more,
                )
            )
            return handle

        return declare
