"""The application: every endpoint as a Starlette route, the middleware around them, and the process that serves it.

On the first SIGTERM or SIGINT the server takes no new requests (503), hands running turns over, ends streams with a
hint to come back, and answers waiting requests with 202; then it closes the connections. A second signal ends it at
once.
"""

import socket
from collections.abc import Callable
from functools import cache

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from turnkeep.api.http.bundled_page import BundledPage
from turnkeep.api.http.endpoints import Dispatcher, Endpoint
from turnkeep.api.http.middleware import Cors, PageMiddleware, RequestMiddleware
from turnkeep.api.http.problem_details import answer_error
from turnkeep.api.identity.authentication import Authenticator
from turnkeep.api.identity.rate_limits import RateLimiter
from turnkeep.api.identity.service_keys import SigninLinks, local_key, signing_secrets
from turnkeep.api.identity.tokens import UserTokens
from turnkeep.api.native import account, agents, conversations, files, knowledge, operations, sandbox, skills, turns
from turnkeep.api.openai import chat_completions
from turnkeep.api.openapi import document
from turnkeep.api.telemetry.metrics import Metrics
from turnkeep.api.telemetry.tracing import Tracing
from turnkeep.config import MetricsAccess, Settings
from turnkeep.errors import NotFound, TurnkeepError
from turnkeep.http_server.sockets import listen
from turnkeep.http_server.uvicorn_server import ConnectionCounts, GracefulServer
from turnkeep.runtime import Runtime

CLOSE_SECONDS = 5
BACKLOG = 2_048


def create_app(runtime: Runtime, *, metrics: Metrics | None = None, tracing: Tracing | None = None) -> Starlette:
    """The whole HTTP API of this runtime."""
    metrics = metrics or Metrics()
    metrics.watch(runtime)
    settings = runtime.settings
    tokens = UserTokens(signing_secrets(settings))
    endpoints = all_endpoints(tokens, SigninLinks(settings.data_dir), metrics, metrics_access=settings.metrics)
    authenticator = Authenticator(
        runtime.store,
        tokens,
        home_org=runtime.home_org,
        standing_keys=[key for key in (settings.bootstrap_key, local_key(settings.data_dir)) if key],
        public_url=settings.public_url,
    )
    dispatcher = Dispatcher(runtime, authenticator, RateLimiter())
    app = Starlette(
        routes=dispatcher.routes(endpoints),
        middleware=_middleware(runtime, metrics, tracing),
        exception_handlers={TurnkeepError: answer_error, HTTPException: answer_error},
    )
    app.router.redirect_slashes = False
    app.router.default = UnknownPath(app.router)
    return app


def _middleware(runtime: Runtime, metrics: Metrics, tracing: Tracing | None) -> list[Middleware]:
    """From the outside in."""
    layers = [Middleware(RequestMiddleware, runtime=runtime, metrics=metrics, tracing=tracing)]
    page = BundledPage(runtime.bag.objects.upload_origin)
    if page.is_built:
        layers.append(Middleware(PageMiddleware, page=page))
    if runtime.settings.allowed_origins:
        layers.append(Middleware(Cors, origins=runtime.settings.allowed_origins))
    return layers


class UnknownPath:
    """Requests that match no route. A path with odd slashes is not read as another path: a proxy in front, which closes
    some paths, would let it pass."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and ("//" in scope["path"] or scope["path"].endswith("/")):
            raise NotFound("There is nothing here. Write the path without doubled or trailing slashes.")
        await self._router.not_found(scope, receive, send)


def all_endpoints(
    tokens: UserTokens, links: SigninLinks, metrics: Metrics, *, metrics_access: MetricsAccess = "public"
) -> tuple[Endpoint, ...]:
    """All endpoints, sorted by path."""
    made: list[Endpoint] = []

    @cache
    def openapi() -> bytes:
        return document(made)

    topics = (
        turns.endpoints,
        conversations.endpoints,
        files.endpoints,
        agents.endpoints,
        skills.endpoints,
        knowledge.endpoints,
        sandbox.endpoints,
        chat_completions.endpoints,
        account.endpoints,
        account.token_endpoints(tokens),
        operations.endpoints,
        operations.health_endpoints,
        operations.signin_endpoints(tokens, links),
        operations.openapi_endpoints(openapi),
        *([] if metrics_access == "off" else [operations.metrics_endpoints(metrics.text, metrics_access)]),
    )
    made += [endpoint for topic in topics for endpoint in topic.all]
    made.sort(key=lambda endpoint: (endpoint.path, endpoint.method))
    return tuple(made)


class Server(GracefulServer):
    """One worker."""

    def __init__(self, app: ASGIApp, runtime: Runtime, *, on_ready: Callable[[], None] | None = None) -> None:
        super().__init__(
            app,
            leave=lambda: runtime.engine.drain(seconds=runtime.settings.drain_seconds),
            backlog=BACKLOG,
            close_seconds=CLOSE_SECONDS,
            connections=ConnectionCounts(
                total=runtime.settings.max_connections, per_address=runtime.settings.max_connections_per_address
            ),
            on_ready=on_ready,
        )


def bind(settings: Settings) -> socket.socket:
    """A listening socket on host and port. Raises Conflict if another program listens there."""
    return listen(settings.host, settings.port, variable="TURNKEEP_HOST", backlog=BACKLOG)
