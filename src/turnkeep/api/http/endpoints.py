"""Endpoints: a handler together with what may be said about it from outside.

Each names its policy, its body and query, and every answer; from this one declaration follow the checks before the
handler runs, the OpenAPI document, and the tests that try every route with every kind of stranger.
"""

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Any, Generic, Literal, TypeVar

from litestar.datastructures import Headers
from litestar.types import ASGIApp, Receive
from msgspec import Struct

from turnkeep.api.identity.policies import Identity
from turnkeep.errors import InvalidRequest, NotFound, RateLimited
from turnkeep.ids import check_id
from turnkeep.model.principals import Principal
from turnkeep.runtime import Runtime

Body = TypeVar("Body")
Query = TypeVar("Query")

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


class Policy(StrEnum):
    """Who may call. Whose rows they then see is the store's to decide."""

    PUBLIC = "public"
    """Anybody, without a key."""
    MEMBER = "member"
    """A user of the workspace, or a service key."""
    ADMIN = "admin"
    """An admin of the workspace, or a service key."""
    KEY = "key"
    """A service key, also one that is pinned to a workspace."""
    SERVICE = "service"
    """A service key of the whole org."""
    OPERATOR = "operator"
    """The operator's own service key: the local one, or the bootstrap key."""
    TURN = "turn"
    """Whoever holds a token of the turn in the path: its sandbox. The handler looks at the token."""
    SIGNED = "signed"
    """Whoever has an address that this server signed. The handler looks at the signature."""

    @property
    def identifies(self) -> bool:
        """Whether a key or a token tells who asks before the handler runs."""
        return self not in {Policy.PUBLIC, Policy.TURN, Policy.SIGNED}


class Nothing(Struct, frozen=True):
    """No body, no query."""


class Reply(Struct, frozen=True, kw_only=True):
    """One answer that an endpoint may give: its meaning, and the type of its body (None: it has none)."""

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
    """The media type of a body that the handler itself reads as it arrives; beside `body`, it is the other choice."""
    query: Any = None
    headers: tuple[str, ...] = ()
    errors: tuple[int, ...] = ()
    limits_itself: bool = False
    """The handler decides when a rate limit counts: a repeated idempotency key comes before it."""
    is_described: bool = True
    """Whether the OpenAPI document tells of it."""

    @property
    def answers_head(self) -> bool:
        """Whether HEAD is answered as GET is, without the body. What a sandbox fetches is spent by fetching it."""
        return self.method == "GET" and self.policy is not Policy.TURN


class Call(Generic[Body, Query]):
    """One request to one endpoint, already identified, limited and parsed."""

    __slots__ = (
        "_identity",
        "body",
        "headers",
        "notes",
        "over_limit",
        "path",
        "query",
        "query_string",
        "receive",
        "runtime",
        "target",
    )

    def __init__(
        self,
        *,
        runtime: Runtime,
        identity: Identity | None,
        path: Mapping[str, str],
        headers: Headers,
        body: Body,
        query: Query,
        target: str,
        receive: Receive,
        notes: dict[str, Any],
        over_limit: RateLimited | None = None,
        query_string: bytes = b"",
    ) -> None:
        self.runtime = runtime
        self.path = path
        self.headers = headers
        self.body = body
        self.query = query
        self.target = target
        self.receive = receive
        self.notes = notes
        self.over_limit = over_limit
        self.query_string = query_string
        self._identity = identity

    @property
    def identity(self) -> Identity:
        assert self._identity is not None, "a public endpoint has no principal"
        return self._identity

    @property
    def principal(self) -> Principal:
        return self.identity.principal

    def id(self, name: str, prefix: str) -> str:
        """The id in the path. One that cannot exist does not exist."""
        return known_id(self.path[name], prefix)


def known_id(value: str, prefix: str) -> str:
    """`value` if it could be an id of this kind; else NotFound, as for any id that nobody has."""
    try:
        return check_id(value, prefix)
    except InvalidRequest as exc:
        raise NotFound(exc.detail) from exc


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
