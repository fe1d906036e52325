"""MCP servers before an agent with them is saved: their tools, and connections to those that ask for authorization.

A person connects a server in the browser: the page begins, the person agrees at the authorization server, and the
browser comes back to the callback. All of it must happen in one session of the page. The connection then belongs to the
workspace. A person meets the callback with a browser, so its answers are pages with words.

Decision: docs/decisions/0604
"""

from typing import Any
from urllib.parse import parse_qsl

from starlette.types import ASGIApp

from turnkeep.api import views
from turnkeep.api.http.endpoints import ApiCall, Endpoints, Nothing, Policy, ResponseSpec
from turnkeep.api.http.problem_details import status_of
from turnkeep.api.http.responses import address_of, json_response, no_content
from turnkeep.api.identity.authentication import COOKIE, check_enabled, cookie_of, hash_key, page_principal
from turnkeep.api.identity.users import shown_users
from turnkeep.api.native.agents import sealed_server
from turnkeep.api.native.query_parameters import ListQuery, page_of
from turnkeep.api.native.signin import words_page
from turnkeep.errors import CallerError, Forbidden, Unauthorized, WorldError
from turnkeep.ids import ConnectionId
from turnkeep.model.agents import McpConnection
from turnkeep_client import wire

endpoints = Endpoints("mcp")

CALLBACK = "/mcp/callback"
BACK = "/settings/agents"


@endpoints.add(
    "POST",
    "/v1/mcp/tools",
    policy=Policy.ADMIN,
    body=wire.McpProbe,
    responses=(ResponseSpec(status=200, meaning="The tools, or what is missing", type=wire.McpTools),),
    errors=(404,),
)
async def list_mcp_tools(call: ApiCall[wire.McpProbe, Nothing]) -> ASGIApp:
    """Connect to an MCP server and list its tools, before an agent with it is saved."""
    body, runtime, principal = call.body, call.runtime, call.principal
    server = await sealed_server(call, body.server, body.agent_id)
    found = await runtime.tools.mcp_listing(server, principal)
    connection = None
    if body.server.url is not None and (body.server.auth is not None or found.issuer is not None):
        address = runtime.authorizations.address_of(body.server.url)
        connection = await runtime.store.mcp_connection_at(principal.org_id, principal.workspace_id, address)
    return json_response(
        wire.McpTools(
            tools=[
                wire.ListedMcpTool(
                    name=spec.name,
                    description=spec.description,
                    input_schema=spec.input_schema,
                    idempotent=spec.is_idempotent,
                )
                for spec in found.tools
            ],
            problem=found.problem,
            issuer=found.issuer,
            can_register=found.can_register,
            redirect_uri=_redirect_uri(call),
            connection=None if connection is None else (await _shown(call, [connection]))[0],
        )
    )


@endpoints.add(
    "GET",
    "/v1/mcp/connections",
    policy=Policy.ADMIN,
    query=ListQuery,
    responses=(ResponseSpec(status=200, meaning="Connections, newest first", type=wire.Page[wire.McpConnection]),),
)
async def list_mcp_connections(call: ApiCall[Nothing, ListQuery]) -> ASGIApp:
    """The connections of the workspace to MCP servers that ask for authorization. Tokens are never shown."""
    found = await call.runtime.store.mcp_connections(call.principal.org_id, call.principal.workspace_id)
    return json_response(page_of(await _shown(call, found), call.query, name=lambda one: one.id))


@endpoints.add(
    "POST",
    "/v1/mcp/connections",
    policy=Policy.ADMIN,
    body=wire.NewMcpConnection,
    responses=(ResponseSpec(status=201, meaning="Where the person agrees", type=wire.BegunMcpConnection),),
    errors=(503, 507),
)
async def begin_mcp_connection(call: ApiCall[wire.NewMcpConnection, Nothing]) -> ASGIApp:
    """Begin to connect an MCP server that asks for authorization. It ends in the same session of the page."""
    body, session = call.body, call.identity.session
    if session is None:
        raise Forbidden(
            "A person must agree in a browser. Sign in to the page as an admin, and connect the server in the form of "
            "an agent."
        )
    connection, url = await call.runtime.authorizations.begin(
        call.principal,
        session.id,
        body.url,
        redirect_uri=_redirect_uri(call),
        client_id=body.client_id,
        client_secret=body.client_secret,
        scope=body.scope,
    )
    shown = (await _shown(call, [connection]))[0]
    return json_response(wire.BegunMcpConnection(connection=shown, authorization_url=url), status=201)


@endpoints.add(
    "DELETE",
    "/v1/mcp/connections/{connection_id}",
    policy=Policy.ADMIN,
    responses=(ResponseSpec(status=204, meaning="Removed"),),
    errors=(404, 507),
)
async def delete_mcp_connection(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Remove a connection: its tokens are forgotten, and revoked if the authorization server supports that."""
    await call.runtime.authorizations.remove(call.principal, ConnectionId(call.id("connection_id", "mcp")))
    return no_content()


@endpoints.add(
    "GET",
    CALLBACK,
    policy=Policy.PUBLIC,
    responses=(ResponseSpec(status=200, meaning="Connected", type=str, media_type="text/html"),),
    errors=(401, 403, 503),
    has_foreign_query=True,
    is_described=False,
)
async def finish_mcp_connection(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Come back from an authorization server: the workspace is connected to the MCP server."""
    try:
        connection = await _finished(call)
    except (CallerError, WorldError) as exc:
        if "text/html" not in call.headers.get("accept", ""):
            raise
        call.notes["code"] = exc.code
        return words_page("The server is not connected", exc.detail, {"To the agents": BACK}, status_of(type(exc)))
    detail = f"{connection.url} is connected. You can close this tab, and go on in the form of the agent."
    return words_page("Connected", detail, {"To the agents": BACK}, 200)


async def _finished(call: ApiCall[Any, Any]) -> McpConnection:
    cookie = cookie_of(call.headers, COOKIE)
    found = None if cookie is None else await call.runtime.store.signed_in(hash_key(cookie))
    if found is None:
        raise Unauthorized("Your session has ended. Sign in to the page, and connect the server again.")
    check_enabled(found.member)
    if found.member.role != "admin":
        raise Forbidden("Only an admin of the workspace can connect a server.")
    answer = dict(parse_qsl(call.query_string.decode("latin-1")))
    return await call.runtime.authorizations.finish(page_principal(found), found.session.id, answer)


def _redirect_uri(call: ApiCall[Any, Any]) -> str:
    return address_of(call.runtime.settings, call.headers.get("host")) + CALLBACK


async def _shown(call: ApiCall[Any, Any], connections: list[McpConnection]) -> list[wire.McpConnection]:
    users = await shown_users(call.runtime.store, call.principal, [one.user_id for one in connections])
    return [views.mcp_connection_of(one, users) for one in connections]
