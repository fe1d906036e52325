"""The application: every endpoint as a Starlette route, the middleware around them, and the process that serves it.

On the first SIGTERM or SIGINT the server takes no new requests (503), hands running turns over, ends streams with a
hint to come back, and answers waiting requests with 202; then it closes the connections. A second signal ends it at
once.
"""

import re

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from turnkeep.api.http.bundled_page import BundledPage
from turnkeep.api.http.dispatch import Dispatcher
from turnkeep.api.http.endpoints import Endpoint
from turnkeep.api.http.middleware import Cors, PageMiddleware, RequestMiddleware
from turnkeep.api.http.problem_details import answer_error
from turnkeep.api.identity.authentication import Authenticator
from turnkeep.api.identity.rate_limits import RateLimiter
from turnkeep.api.identity.service_keys import SigninLinks, local_key, signing_secrets
from turnkeep.api.identity.tokens import Signer
from turnkeep.api.native import (
    account,
    agents,
    bag,
    conversations,
    files,
    health,
    operations,
    pages,
    rows,
    runs,
    sandbox,
    skills,
    tables,
    transfer,
    turn_tools,
    turns,
)
from turnkeep.api.openai import gateway
from turnkeep.api.openapi import document
from turnkeep.api.telemetry.metrics import Metrics
from turnkeep.api.telemetry.tracing import Tracing
from turnkeep.errors import TurnkeepError
from turnkeep.runtime import Runtime


def create_app(runtime: Runtime, *, metrics: Metrics | None = None, tracing: Tracing | None = None) -> Starlette:
    """The whole HTTP API of this runtime."""
    metrics = metrics or Metrics()
    metrics.watch(runtime)
    settings = runtime.settings
    signer = Signer(signing_secrets(settings))
    endpoints = all_endpoints(signer, SigninLinks(settings.data_dir), metrics)
    standing = [key for key in (settings.bootstrap_key, local_key(settings.data_dir)) if key]
    authenticator = Authenticator(runtime.store, signer, home_org=runtime.home_org, standing_keys=standing)
    dispatcher = Dispatcher(runtime, authenticator, RateLimiter())
    app = Starlette(
        routes=dispatcher.routes(endpoints),
        middleware=_middleware(runtime, metrics, tracing),
        exception_handlers={TurnkeepError: answer_error, HTTPException: answer_error},
    )
    app.router.redirect_slashes = False
    app.router.default = ForgivingPaths(app.router)
    return app


def _middleware(runtime: Runtime, metrics: Metrics, tracing: Tracing | None) -> list[Middleware]:
    """From the outside in."""
    layers = [Middleware(RequestMiddleware, runtime=runtime, metrics=metrics, tracing=tracing)]
    page = BundledPage()
    if page.is_built:
        layers.append(Middleware(PageMiddleware, page=page))
    if runtime.settings.allowed_origins:
        layers.append(Middleware(Cors, origins=runtime.settings.allowed_origins))
    return layers


class ForgivingPaths:
    """Requests that match no route. A path with doubled or trailing slashes is tried once more without them, because
    clients often join an address that ends with a slash and a path that begins with one."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = "/" + re.sub("//+", "/", scope["path"].strip("/"))
        if scope["type"] != "http" or path == scope["path"]:
            await self._router.not_found(scope, receive, send)
        else:
            await self._router({**scope, "path": path}, receive, send)


def all_endpoints(signer: Signer, links: SigninLinks, metrics: Metrics) -> tuple[Endpoint, ...]:
    """Every endpoint there is, sorted by path."""
    made: list[Endpoint] = []

    def openapi() -> bytes:
        return document(made)

    documents = health.document_endpoints(metrics.text, openapi)
    topics = (
        turns.endpoints,
        conversations.endpoints,
        files.endpoints,
        bag.endpoints,
        transfer.endpoints,
        agents.endpoints,
        skills.endpoints,
        pages.endpoints,
        tables.endpoints,
        rows.endpoints,
        runs.endpoints,
        sandbox.endpoints,
        gateway.endpoints,
        turn_tools.endpoints,
        account.token_endpoints(signer),
        account.endpoints,
        operations.endpoints,
        health.endpoints,
        health.signin_endpoints(signer, links),
        documents,
    )
    made += [endpoint for topic in topics for endpoint in topic.all]
    made.sort(key=lambda endpoint: (endpoint.path, endpoint.method))
    return tuple(made)
