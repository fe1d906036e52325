"""Routes for the operator of the server and the command line: tenants, their keys, and a check of stored files."""

from typing import Any

from starlette.types import ASGIApp

from turnkeep.api import views
from turnkeep.api.http.endpoints import Call, Endpoints, Nothing, Policy, Reply
from turnkeep.api.http.responses import json_response, no_content
from turnkeep.api.identity.service_keys import make_key, make_org
from turnkeep.api.native.queries import ListQuery, page_of
from turnkeep.errors import NotFound
from turnkeep.files.orphans import BagReport, check_bag
from turnkeep.ids import KeyId, OrgId
from turnkeep_client import wire

endpoints = Endpoints("operating")

KEYS = "/v1/orgs/{org_id}/keys"


@endpoints.add(
    "GET",
    "/v1/orgs",
    policy=Policy.OPERATOR,
    query=ListQuery,
    replies=(Reply(status=200, meaning="All tenants", type=wire.Page[wire.Org]),),
)
async def list_orgs(call: Call[Nothing, ListQuery]) -> ASGIApp:
    """All tenants of this server."""
    orgs = [views.org_of(org) for org in await call.runtime.store.orgs()]
    return json_response(page_of(orgs, call.query, name=lambda org: org.id))


@endpoints.add(
    "POST",
    "/v1/orgs",
    policy=Policy.OPERATOR,
    body=wire.NewOrg,
    replies=(Reply(status=201, meaning="The new tenant; `key` is shown this once", type=wire.Org),),
    errors=(507,),
)
async def create_org(call: Call[wire.NewOrg, Nothing]) -> ASGIApp:
    """Make a tenant with a default workspace and a service key."""
    org, _, secret = await make_org(call.runtime.store, call.body.name)
    return json_response(views.org_of(org, secret=secret), status=201)


@endpoints.add(
    "GET",
    KEYS,
    policy=Policy.OPERATOR,
    query=ListQuery,
    replies=(Reply(status=200, meaning="All keys, without their secrets", type=wire.Page[wire.Key]),),
    errors=(404,),
)
async def list_keys_of_org(call: Call[Nothing, ListQuery]) -> ASGIApp:
    """The service keys of a tenant."""
    keys = [views.key_of(key) for key in await call.runtime.store.keys(await _org(call))]
    return json_response(page_of(keys, call.query, name=lambda key: key.id))


@endpoints.add(
    "POST",
    KEYS,
    policy=Policy.OPERATOR,
    body=wire.NewKey,
    replies=(Reply(status=201, meaning="The new key; `key` is shown this once", type=wire.Key),),
    errors=(404, 507),
)
async def create_key_of_org(call: Call[wire.NewKey, Nothing]) -> ASGIApp:
    """Make a service key for a tenant."""
    key, secret = await make_key(call.runtime.store, await _org(call), call.body)
    return json_response(views.key_of(key, secret=secret), status=201)


@endpoints.add(
    "DELETE",
    f"{KEYS}/{{key_id}}",
    policy=Policy.OPERATOR,
    replies=(Reply(status=204, meaning="The key is worth nothing from now on"),),
    errors=(404, 507),
)
async def revoke_key_of_org(call: Call[Nothing, Nothing]) -> ASGIApp:
    """Revoke a service key of a tenant."""
    await call.runtime.store.revoke_key(await _org(call), KeyId(call.id("key_id", "key")))
    return no_content()


@endpoints.add(
    "GET",
    "/v1/operator/files",
    policy=Policy.OPERATOR,
    replies=(Reply(status=200, meaning="What was found", type=BagReport),),
)
async def check_files(call: Call[Nothing, Nothing]) -> ASGIApp:
    """Compare the files of all tenants with the objects that hold their bytes. Changes nothing."""
    return json_response(await check_bag(call.runtime.store, call.runtime.bag.objects))


async def _org(call: Call[Any, Any]) -> OrgId:
    org_id = OrgId(call.id("org_id", "org"))
    if org_id not in {org.id for org in await call.runtime.store.orgs()}:
        raise NotFound("No such org.")
    return org_id
