"""Routes for the operator of the server: health, metrics, the OpenAPI document, tenants and their keys, and a
check of stored files. Also `GET /` without a built page.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp

from turnkeep.api import views
from turnkeep.api.http.endpoints import ApiCall, Endpoints, Nothing, Policy, ResponseSpec
from turnkeep.api.http.responses import JSON, json_response, no_content
from turnkeep.api.identity.service_keys import make_key, make_org
from turnkeep.api.native.query_parameters import ListQuery, RevocationQuery, page_of
from turnkeep.config import MetricsAccess
from turnkeep.errors import NotFound, SchemaMismatch, Unavailable
from turnkeep.files.orphans import BagReport, check_bag
from turnkeep.ids import KeyId, OrgId
from turnkeep_client import wire

READY_SECONDS = 2.0

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

KEYS = "/v1/orgs/{org_id}/keys"

health_endpoints = Endpoints("health")
endpoints = Endpoints("operating")


@health_endpoints.add(
    "GET", "/healthz", policy=Policy.PUBLIC, responses=(ResponseSpec(status=200, meaning="Alive", type=wire.Health),)
)
async def check_alive(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Whether the process answers at all."""
    return json_response(wire.Health(status="ok"))


@health_endpoints.add(
    "GET",
    "/readyz",
    policy=Policy.PUBLIC,
    responses=(ResponseSpec(status=200, meaning="Ready for questions", type=wire.Health),),
    errors=(503,),
)
async def check_ready(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Whether questions are taken: the database answers, takes writes and has a schema that this release works with,
    leases can be renewed, and the server is not shutting down."""
    runtime = call.runtime
    if runtime.engine.is_draining:
        raise Unavailable("This server is shutting down.")
    if runtime.engine.has_leases_in_doubt:
        raise Unavailable("This server cannot renew the leases of its turns just now.")
    try:
        async with asyncio.timeout(READY_SECONDS):
            note = await runtime.store.check_ready()
    except SchemaMismatch as exc:
        raise Unavailable(exc.detail) from exc
    except TimeoutError as exc:
        raise Unavailable(f"The database did not answer within {READY_SECONDS:g} s.") from exc
    return json_response(wire.Health(status="ready", detail=note))


@health_endpoints.add(
    "GET",
    "/",
    policy=Policy.PUBLIC,
    responses=(ResponseSpec(status=200, meaning="What this is", type=str, media_type="text/html; charset=utf-8"),),
    is_described=False,
)
async def front_page(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """What this server is and where to read on. If the page was built, `PageMiddleware` answers with the page."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
    return HTMLResponse(FRONT_PAGE, headers={"content-security-policy": policy})


def metrics_endpoints(metrics: Callable[[], tuple[bytes, str]], access: MetricsAccess) -> Endpoints:
    """The route of the metrics of this worker, for everybody or for the operator's key."""
    endpoints = Endpoints("health")

    @endpoints.add(
        "GET",
        "/metrics",
        policy=Policy.OPERATOR if access == "key" else Policy.PUBLIC,
        responses=(ResponseSpec(status=200, meaning="Prometheus text", type=str, media_type="text/plain"),),
    )
    async def read_metrics(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
        """The numbers of this worker, for Prometheus."""
        body, media_type = metrics()
        return Response(body, media_type=media_type)

    return endpoints


def openapi_endpoints(document: Callable[[], bytes]) -> Endpoints:
    """The route of the OpenAPI document, which is made elsewhere."""
    endpoints = Endpoints("health")

    @endpoints.add(
        "GET",
        "/openapi.json",
        policy=Policy.PUBLIC,
        responses=(ResponseSpec(status=200, meaning="This document", type=dict[str, Any]),),
    )
    async def read_openapi(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
        """This API as an OpenAPI 3.1 document."""
        return Response(document(), media_type=JSON)

    return endpoints


@endpoints.add(
    "GET",
    "/v1/orgs",
    policy=Policy.OPERATOR,
    query=ListQuery,
    responses=(ResponseSpec(status=200, meaning="All tenants", type=wire.Page[wire.Org]),),
)
async def list_orgs(call: ApiCall[Nothing, ListQuery]) -> ASGIApp:
    """All tenants of this server."""
    orgs = [views.org_of(org) for org in await call.runtime.store.orgs()]
    return json_response(page_of(orgs, call.query, name=lambda org: org.id))


@endpoints.add(
    "POST",
    "/v1/orgs",
    policy=Policy.OPERATOR,
    body=wire.NewOrg,
    responses=(ResponseSpec(status=201, meaning="The new tenant; `key` is shown only once", type=wire.Org),),
    errors=(507,),
)
async def create_org(call: ApiCall[wire.NewOrg, Nothing]) -> ASGIApp:
    """Make a tenant with a default workspace and a service key."""
    org, _, secret = await make_org(call.runtime.store, call.body.name)
    return json_response(views.org_of(org, secret=secret), status=201)


@endpoints.add(
    "GET",
    KEYS,
    policy=Policy.OPERATOR,
    query=ListQuery,
    responses=(ResponseSpec(status=200, meaning="All keys, without their secrets", type=wire.Page[wire.Key]),),
    errors=(404,),
)
async def list_keys_of_org(call: ApiCall[Nothing, ListQuery]) -> ASGIApp:
    """The service keys of a tenant."""
    keys = [views.key_of(key) for key in await call.runtime.store.keys(await _org(call))]
    return json_response(page_of(keys, call.query, name=lambda key: key.id))


@endpoints.add(
    "POST",
    KEYS,
    policy=Policy.OPERATOR,
    body=wire.NewKey,
    responses=(ResponseSpec(status=201, meaning="The new key; `key` is shown only once", type=wire.Key),),
    errors=(404, 507),
)
async def create_key_of_org(call: ApiCall[wire.NewKey, Nothing]) -> ASGIApp:
    """Make a service key for a tenant."""
    key, secret = await make_key(call.runtime.store, await _org(call), call.body)
    return json_response(views.key_of(key, secret=secret), status=201)


@endpoints.add(
    "DELETE",
    f"{KEYS}/{{key_id}}",
    policy=Policy.OPERATOR,
    query=RevocationQuery,
    responses=(ResponseSpec(status=204, meaning="The key is invalid from now on"),),
    errors=(404, 507),
)
async def revoke_key_of_org(call: ApiCall[Nothing, RevocationQuery]) -> ASGIApp:
    """Revoke a service key of a tenant, with its tokens and all keys that it made. `keep_made` keeps those keys."""
    key_id = KeyId(call.id("key_id", "key"))
    await call.runtime.store.revoke_key(await _org(call), key_id, keeps_made=call.query.keep_made)
    return no_content()


@endpoints.add(
    "GET",
    "/v1/operator/files",
    policy=Policy.OPERATOR,
    responses=(ResponseSpec(status=200, meaning="What was found", type=BagReport),),
)
async def check_files(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Compare the files of all tenants with the objects that hold their bytes. Changes nothing."""
    return json_response(await check_bag(call.runtime.store, call.runtime.bag.objects))


async def _org(call: ApiCall[Any, Any]) -> OrgId:
    org_id = OrgId(call.id("org_id", "org"))
    if org_id not in {org.id for org in await call.runtime.store.orgs()}:
        raise NotFound("No such org.")
    return org_id
