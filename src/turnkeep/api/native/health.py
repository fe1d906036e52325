"""Operation: liveness, readiness, metrics, the OpenAPI document, sign-in, and `GET /` without a built page."""

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp

from turnkeep.api.http.endpoints import Call, Endpoints, Nothing, Policy, Reply
from turnkeep.api.http.responses import JSON, json_response
from turnkeep.api.identity.authentication import COOKIE, COOKIE_SECONDS
from turnkeep.api.identity.service_keys import SigninLinks
from turnkeep.api.identity.tokens import PAGE_COOKIE, Claims, UserTokens
from turnkeep.api.native.queries import SigninQuery
from turnkeep.clock import system_clock
from turnkeep.errors import Unauthorized, Unavailable
from turnkeep_client import wire

READY_SECONDS = 2.0
LOCAL_USER = "local"

FRONT_PAGE = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Turnkeep</title></head>
<body><h1>Turnkeep</h1>
<p>A conversation runtime for AI assistants and agents. This server is running, without its chat page: the page was
not built into this installation. In a checkout, run <code>make run</code>, or <code>scripts/web build</code> and start
the server again.</p>
<p>The API is described at <a href="/openapi.json">/openapi.json</a>.
Ask something with <code>POST /v1/turns</code> and a service key.</p>
</body></html>
"""

endpoints = Endpoints("health")


@endpoints.add("GET", "/healthz", policy=Policy.PUBLIC, replies=(Reply(status=200, meaning="Alive", type=wire.Health),))
async def check_alive(call: Call[Nothing, Nothing]) -> ASGIApp:
    """Whether the process answers at all."""
    return json_response(wire.Health(status="ok"))


@endpoints.add(
    "GET",
    "/readyz",
    policy=Policy.PUBLIC,
    replies=(Reply(status=200, meaning="Ready for questions", type=wire.Health),),
    errors=(503,),
)
async def check_ready(call: Call[Nothing, Nothing]) -> ASGIApp:
    """Whether questions are taken: the database answers, and the server is not shutting down."""
    runtime = call.runtime
    if runtime.engine.is_draining:
        raise Unavailable("This server is shutting down.")
    try:
        async with asyncio.timeout(READY_SECONDS):
            await runtime.store.workspace(runtime.home_org)
    except TimeoutError as exc:
        raise Unavailable(f"The database did not answer within {READY_SECONDS:g} s.") from exc
    return json_response(wire.Health(status="ready"))


@endpoints.add(
    "GET",
    "/",
    policy=Policy.PUBLIC,
    replies=(Reply(status=200, meaning="What this is", type=str, media_type="text/html; charset=utf-8"),),
    is_described=False,
)
async def front_page(call: Call[Nothing, Nothing]) -> ASGIApp:
    """What this server is and where to read on. If the page was built, `PageMiddleware` answers with the page."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
    return HTMLResponse(FRONT_PAGE, headers={"content-security-policy": policy})


def document_endpoints(metrics: Callable[[], tuple[bytes, str]], document: Callable[[], bytes]) -> Endpoints:
    """The routes of two documents that are made elsewhere: the metrics of this worker, and the OpenAPI document."""
    endpoints = Endpoints("health")

    @endpoints.add(
        "GET",
        "/metrics",
        policy=Policy.PUBLIC,
        replies=(Reply(status=200, meaning="Prometheus text", type=str, media_type="text/plain"),),
    )
    async def read_metrics(call: Call[Nothing, Nothing]) -> ASGIApp:
        """The numbers of this worker, for Prometheus."""
        body, media_type = metrics()
        return Response(body, media_type=media_type)

    @endpoints.add(
        "GET",
        "/openapi.json",
        policy=Policy.PUBLIC,
        replies=(Reply(status=200, meaning="This document", type=dict[str, Any]),),
    )
    async def read_openapi(call: Call[Nothing, Nothing]) -> ASGIApp:
        """This API as an OpenAPI 3.1 document."""
        return Response(document(), media_type=JSON)

    return endpoints


def signin_endpoints(tokens: UserTokens, links: SigninLinks) -> Endpoints:
    """The route that signs a browser in with the link that `turnkeep serve` prints."""
    endpoints = Endpoints("health")

    @endpoints.add(
        "GET",
        "/signin",
        policy=Policy.PUBLIC,
        query=SigninQuery,
        replies=(Reply(status=303, meaning="Signed in"),),
        errors=(401,),
        is_described=False,
    )
    async def sign_in(call: Call[Nothing, SigninQuery]) -> ASGIApp:
        """Open a sign-in link: the browser becomes an admin of the default workspace."""
        if not await asyncio.to_thread(links.admits, call.query.token):
            raise Unauthorized("This sign-in link is not valid any more. Start the server again for a new one.")
        runtime = call.runtime
        workspace = await runtime.store.workspace(runtime.home_org)
        member = await runtime.store.ensure_member(runtime.home_org, workspace.id, LOCAL_USER, role="admin")
        claims = Claims(
            org=runtime.home_org,
            ws=workspace.id,
            user=member.id,
            role="admin",
            exp=system_clock() + COOKIE_SECONDS * 1000,
        )
        cookie = (
            f"{COOKIE}={tokens.sign(PAGE_COOKIE, claims)}; Path=/; Max-Age={COOKIE_SECONDS}; HttpOnly; SameSite=Lax"
        )
        if (runtime.settings.public_url or "").startswith("https:"):
            cookie += "; Secure"
        return Response(status_code=303, headers={"location": "/", "set-cookie": cookie, "cache-control": "no-store"})

    return endpoints
