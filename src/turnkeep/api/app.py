"""The application: every endpoint as a Starlette route, the middleware around them, and the process that serves it.

Starlette's router is used without its application class, whose two layers for errors would pass on every part of every
response. Errors are answered where they are raised (`PathEndpoints`), and what is left by `RequestMiddleware`.

On the first SIGTERM or SIGINT the server takes no new questions (503). Calls of models and tools that are under way may
end. Then their turns are handed over, streams end with a hint to come back, waiting requests are answered with 202, and
the connections are closed. A second signal ends the server at once.
"""

import logging
import socket
from collections.abc import Callable
from functools import cache, partial

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from turnkeep.api.ag_ui import runs
from turnkeep.api.ai_sdk import chat
from turnkeep.api.http.bundled_page import BundledPage
from turnkeep.api.http.endpoints import Dispatcher, Endpoint
from turnkeep.api.http.middleware import Cors, PageMiddleware, RequestMiddleware
from turnkeep.api.http.problem_details import answer_error
from turnkeep.api.identity.authentication import Authenticator
from turnkeep.api.identity.oidc import IdentityProviderClient, provider_of
from turnkeep.api.identity.rate_limits import RateLimiter
from turnkeep.api.identity.service_keys import SigninLinks, local_key, signing_secrets
from turnkeep.api.identity.tokens import UserTokens
from turnkeep.api.native import (
    account,
    agents,
    conversations,
    feedback,
    files,
    knowledge,
    mcp,
    operations,
    people,
    sandbox,
    shares,
    signin,
    skills,
    turns,
    waits,
    webhooks,
)
from turnkeep.api.openai import chat_completions, completions, models, responses
from turnkeep.api.openai import conversations as openai_conversations
from turnkeep.api.openai import files as openai_files
from turnkeep.api.openapi import document
from turnkeep.api.telemetry.logs import FIELDS
from turnkeep.api.telemetry.metrics import Metrics
from turnkeep.api.telemetry.tracing import Tracing
from turnkeep.config import MetricsAccess, Settings
from turnkeep.errors import NotFound
from turnkeep.http_server.sockets import listen
from turnkeep.http_server.uvicorn_server import ConnectionCounts, GracefulServer
from turnkeep.runtime import Runtime

CLOSE_SECONDS = 5
BACKLOG = 2_048

_logger = logging.getLogger("turnkeep.http")


def create_app(runtime: Runtime, *, metrics: Metrics | None = None, tracing: Tracing | None = None) -> ASGIApp:
    """The whole HTTP API of this runtime."""
    metrics = metrics or Metrics()
    metrics.watch(runtime)
    settings = runtime.settings
    signing = signing_secrets(settings)
    tokens = UserTokens(signing)
    endpoints = all_endpoints(
        tokens,
        SigninLinks.of(settings),
        metrics,
        provider=provider_of(settings, signing),
        metrics_access=settings.metrics,
    )
    authenticator = Authenticator(
        runtime.store,
        tokens,
        home_org=runtime.home_org,
        standing_keys=[key for key in (settings.bootstrap_key, local_key(settings.data_dir)) if key],
        public_url=settings.public_url,
    )
    dispatcher = Dispatcher(runtime, authenticator, RateLimiter())
    page = BundledPage(runtime.bag.objects.upload_origin, settings)
    return Router(
        routes=dispatcher.routes(endpoints),
        redirect_slashes=False,
        default=partial(answer_unknown_path, page),
        middleware=_middleware(runtime, page, metrics, tracing),
    )


def _middleware(runtime: Runtime, page: BundledPage, metrics: Metrics, tracing: Tracing | None) -> list[Middleware]:
    """From the outside in."""
    layers = [Middleware(RequestMiddleware, runtime=runtime, metrics=metrics, tracing=tracing)]
    if page.is_built:
        layers.append(Middleware(PageMiddleware, page=page))
    if runtime.settings.allowed_origins:
        layers.append(Middleware(Cors, origins=runtime.settings.allowed_origins))
    return layers


async def answer_unknown_path(page: BundledPage, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request that matches no route. A path with odd slashes is not read as another path: a proxy in front,
    which closes some paths, would let it pass."""
    if page.is_wanted(scope["method"], Headers(scope=scope)):
        await page.answer_unknown_path(scope, receive, send)
        return
    error: Exception = HTTPException(404)
    if "//" in scope["path"] or scope["path"].endswith("/"):
        error = NotFound("There is nothing here. Write the path without doubled or trailing slashes.")
    response = answer_error(Request(scope, receive), error)
    await response(scope, receive, send)


def all_endpoints(
    tokens: UserTokens,
    links: SigninLinks,
    metrics: Metrics,
    *,
    provider: IdentityProviderClient | None = None,
    metrics_access: MetricsAccess = "public",
) -> tuple[Endpoint, ...]:
    """All endpoints, sorted by path."""
    made: list[Endpoint] = []

    @cache
    def openapi() -> bytes:
        return document(made)

    topics = (
        turns.endpoints,
        waits.endpoints,
        conversations.endpoints,
        shares.endpoints,
        feedback.endpoints,
        files.endpoints,
        agents.endpoints,
        skills.endpoints,
        mcp.endpoints,
        knowledge.endpoints,
        sandbox.endpoints,
        chat_completions.endpoints,
        chat.endpoints,
        runs.endpoints,
        models.endpoints,
        completions.endpoints,
        responses.endpoints,
        openai_conversations.endpoints,
        openai_files.endpoints,
        account.endpoints,
        account.token_endpoints(tokens),
        people.endpoints,
        webhooks.endpoints,
        operations.endpoints,
        operations.health_endpoints,
        signin.endpoints,
        signin.link_endpoints(links),
        signin.provider_endpoints(provider),
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
            leave=lambda: leave(runtime),
            backlog=BACKLOG,
            close_seconds=CLOSE_SECONDS,
            connections=ConnectionCounts(
                total=runtime.settings.max_connections, per_address=runtime.settings.max_connections_per_address
            ),
            on_ready=on_ready,
        )


async def leave(runtime: Runtime) -> None:
    """Hand the turns over, and say so first: calls that are under way may take a while to end."""
    seconds, running = runtime.settings.drain_seconds, runtime.engine.running
    if running:
        _logger.info("shutting down; running calls may end", extra={FIELDS: {"turns": running, "seconds": seconds}})
    await runtime.engine.drain(seconds=seconds)


def bind(settings: Settings) -> socket.socket:
    """A listening socket on host and port. Raises Conflict if another program listens there."""
    return listen(settings.host, settings.port, variable="TURNKEEP_HOST", backlog=BACKLOG)
