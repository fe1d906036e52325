"""The application: endpoints on Litestar's routes, behind the gate and the front."""

import logging
from typing import Any

from litestar import Litestar, Request, Response
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from turnkeep.api.cors import Cors
from turnkeep.api.http.bundled_page import Page
from turnkeep.api.http.dispatch import Gate
from turnkeep.api.http.endpoints import Endpoint
from turnkeep.api.http.middleware import Front
from turnkeep.api.http.problem_details import problem, status_of, translated
from turnkeep.api.http.responses import head_of
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
from turnkeep.api.notes import notes_of
from turnkeep.api.openai import gateway
from turnkeep.api.openapi import document
from turnkeep.api.telemetry.logs import FIELDS
from turnkeep.api.telemetry.metrics import Metrics
from turnkeep.api.telemetry.tracing import Tracing
from turnkeep.runtime import Runtime

_logger = logging.getLogger("turnkeep.http")


def create_app(runtime: Runtime, *, metrics: Metrics | None = None, tracing: Tracing | None = None) -> ASGIApp:
    """The whole HTTP API of this runtime, as one ASGI app."""
    metrics = metrics or Metrics()
    metrics.watch(runtime)
    settings = runtime.settings
    signer = Signer(signing_secrets(settings))
    endpoints = all_endpoints(signer, SigninLinks(settings.data_dir), metrics)
    standing = [key for key in (settings.bootstrap_key, local_key(settings.data_dir)) if key]
    authenticator = Authenticator(runtime.store, signer, home_org=runtime.home_org, standing_keys=standing)
    gate = Gate(runtime, authenticator, RateLimiter())
    routes = Litestar(
        route_handlers=[_route(endpoint, gate) for endpoint in endpoints],
        exception_handlers={Exception: _answer_error},
        openapi_config=None,
        logging_config=None,
        debug=False,
    )
    app = Cors(routes, settings.allowed_origins) if settings.allowed_origins else routes
    return Front(app, Page(), runtime, metrics, tracing)


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


def _route(endpoint: Endpoint, gate: Gate) -> HTTPRouteHandler:
    async def handle(request: Request[Any, Any, Any]) -> ASGIApp:
        answer = await gate.admit(endpoint, request)
        return head_of(answer) if request.scope["method"] == "HEAD" else answer

    handle.__name__ = endpoint.name
    return HTTPRouteHandler(
        path=_litestar_path(endpoint.path),
        http_method=["GET", "HEAD"] if endpoint.answers_head else endpoint.method,
        status_code=200,
        opt={"endpoint": endpoint},
        include_in_schema=False,
    )(handle)


def _litestar_path(path: str) -> str:
    return path.replace("}", ":str}")


def _answer_error(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    notes = notes_of(request.scope)
    ours = translated(error)
    notes["code"] = ours.code
    if status_of(type(ours)) == 500:
        _logger.error("a request failed", exc_info=error, extra={FIELDS: dict(notes)})
    answer = problem(error, request_id=notes.get("request_id", ""))
    return Response(answer.body, status_code=answer.status, media_type=answer.media_type, headers=answer.headers)
