"""An MCP server that asks for authorization, and its authorization server, on one loopback port.

It is strict where such servers must be: registered clients and redirect addresses, PKCE, the `resource`, codes and
refresh tokens that are accepted once. A refresh token that comes twice ends the whole grant. It is wrong where a test
asks for it.
"""

import asyncio
import base64
import hashlib
import secrets
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self
from urllib.parse import unquote, urlencode

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import ToolAnnotations
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

PAGE = """<!doctype html><html lang="en"><title>Agree</title><main><h1>Let Turnkeep read your tickets?</h1>
<p><a href="{agree}">Agree</a> <a href="{deny}">Deny</a></p></main></html>"""


def tickets() -> MCPServer:
    server = MCPServer("tickets")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
    def search_tickets(query: str) -> str:
        """Search the tickets of your team."""
        return f"3 tickets about {query}"

    @server.tool(structured_output=False)
    def close_ticket(number: int) -> str:
        """Close a ticket."""
        return f"closed {number}"

    @server.tool(structured_output=False)
    def leak_token(context: Context) -> str:
        """The token of the caller."""
        request = context.request_context.request
        assert request is not None
        return f"your token is {request.headers['authorization']}"

    return server


class OAuthServer:
    """`url` is the address of the MCP server, `issuer` that of its authorization server."""

    def __init__(self) -> None:
        self.port = 0
        self.token_seconds: float | None = 3_600
        self.gives_refresh_tokens = True
        self.can_register = True
        self.has_metadata = True
        self.is_away = False
        self.metadata: dict[str, Any] = {}
        self.resource_metadata: dict[str, Any] = {}
        self.registered: dict[str, dict[str, Any]] = {}
        self.requests: list[str] = []
        self.tokens: dict[str, float] = {}
        """Access tokens, and until when they hold."""
        self.grants: dict[str, str] = {}
        """Refresh tokens that can be used, and the grant of each."""
        self.used_refresh_tokens: dict[str, str] = {}
        self.ended_grants: set[str] = set()
        self.revoked: list[str] = []
        self._codes: dict[str, dict[str, str]] = {}
        self._mcp = tickets().streamable_http_app()
        self._pages = Starlette(
            routes=[
                Route("/.well-known/oauth-protected-resource/mcp", self._describe_resource),
                Route("/.well-known/oauth-authorization-server/login", self._describe_server),
                Route("/login/register", self._register, methods=["POST"]),
                Route("/login/authorize", self._authorize),
                Route("/login/agree", self._agree),
                Route("/login/token", self._token, methods=["POST"]),
                Route("/login/revoke", self._revoke, methods=["POST"]),
            ]
        )

    @classmethod
    @asynccontextmanager
    async def start(cls) -> AsyncIterator[Self]:
        made = cls()
        listening = socket.create_server(("127.0.0.1", 0))
        made.port = listening.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(made, log_config=None, timeout_graceful_shutdown=1))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            while not server.started:  # noqa: ASYNC110 - uvicorn has only a flag
                await asyncio.sleep(0.005)
            yield made
        finally:
            server.should_exit = True
            await serving
            listening.close()

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.origin}/mcp"

    @property
    def issuer(self) -> str:
        return f"{self.origin}/login"

    def add_client(self, redirect_uri: str, *, secret: str | None = None) -> str:
        """Register a client by hand."""
        client_id = f"by-hand-{secrets.token_hex(4)}"
        self.registered[client_id] = {"redirect_uris": [redirect_uri], "client_secret": secret}
        return client_id

    def end_tokens(self) -> None:
        """No access token holds any more. Refresh tokens do."""
        self.tokens.clear()

    def end_grants(self) -> None:
        self.tokens.clear()
        self.grants.clear()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._mcp(scope, receive, send)
            return
        self.requests.append(f"{scope['method']} {scope['path']}")
        if self.is_away and scope["path"].startswith("/login"):
            await Response(status_code=503)(scope, receive, send)
        elif scope["path"] != "/mcp":
            await self._pages(scope, receive, send)
        elif self._is_allowed(scope):
            await self._mcp(scope, receive, send)
        else:
            metadata = f"{self.origin}/.well-known/oauth-protected-resource/mcp"
            challenge = (
                f'Bearer error="invalid_token", resource_metadata="{metadata}"' if self.has_metadata else "Bearer"
            )
            await Response(status_code=401, headers={"www-authenticate": challenge})(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"").decode()
        return self.tokens.get(given.removeprefix("Bearer "), 0) > time.monotonic()

    async def _describe_resource(self, request: Request) -> Response:
        if not self.has_metadata:
            return Response(status_code=404)
        about = {"resource": self.url, "authorization_servers": [self.issuer], "scopes_supported": ["tickets"]}
        return JSONResponse(about | self.resource_metadata)

    async def _describe_server(self, request: Request) -> Response:
        about: dict[str, Any] = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "revocation_endpoint": f"{self.issuer}/revoke",
            "response_types_supported": ["code"],
            "scopes_supported": ["tickets", "offline_access"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic", "none"],
            "authorization_response_iss_parameter_supported": True,
        }
        if self.can_register:
            about["registration_endpoint"] = f"{self.issuer}/register"
        return JSONResponse(about | self.metadata)

    async def _register(self, request: Request) -> Response:
        asked = await request.json()
        client_id, secret = f"client-{secrets.token_hex(8)}", secrets.token_hex(16)
        self.registered[client_id] = asked | {"client_secret": secret}
        return JSONResponse(asked | {"client_id": client_id, "client_secret": secret}, status_code=201)

    async def _authorize(self, request: Request) -> Response:
        asked = dict(request.query_params)
        client = self.registered.get(asked.get("client_id", ""))
        if client is None or asked.get("redirect_uri") not in client["redirect_uris"]:
            return HTMLResponse("unknown client or redirect address", status_code=400)
        fits = asked.get("code_challenge_method") == "S256" and asked.get("resource") == self.url
        if not fits or asked.get("response_type") != "code" or "state" not in asked:
            return self._back(asked, error="invalid_request")
        agree = f"/login/agree?{urlencode(asked)}".replace("&", "&amp;")
        return HTMLResponse(PAGE.format(agree=agree, deny=agree + "&amp;deny=1"))

    async def _agree(self, request: Request) -> Response:
        asked = dict(request.query_params)
        if asked.pop("deny", None):
            return self._back(asked, error="access_denied")
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked
        return self._back(asked, code=code)

    def _back(self, asked: dict[str, str], **answer: str) -> Response:
        query = urlencode({**answer, "state": asked.get("state", ""), "iss": self.issuer})
        return RedirectResponse(f"{asked['redirect_uri']}?{query}", status_code=302)

    async def _token(self, request: Request) -> Response:
        form = {name: str(value) for name, value in (await request.form()).items()}
        client_id = self._client_of(request, form)
        if client_id is None:
            return JSONResponse({"error": "invalid_client"}, status_code=401)
        if form.get("resource") != self.url:
            return JSONResponse({"error": "invalid_target"}, status_code=400)
        if form["grant_type"] == "authorization_code":
            asked = self._codes.pop(form["code"], None)
            verifier = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
            challenge = base64.urlsafe_b64encode(verifier).decode().rstrip("=")
            if asked is None or asked["code_challenge"] != challenge or asked["client_id"] != client_id:
                return JSONResponse({"error": "invalid_grant"}, status_code=400)
            return self._give(secrets.token_hex(8))
        refresh_token = form.get("refresh_token", "")
        if refresh_token in self.used_refresh_tokens:
            ended = self.used_refresh_tokens[refresh_token]
            self.ended_grants.add(ended)
            self.grants = {token: grant for token, grant in self.grants.items() if grant != ended}
        grant = self.grants.pop(refresh_token, None)
        if grant is None:
            error = {"error": "invalid_grant", "error_description": "The refresh token is not valid."}
            return JSONResponse(error, status_code=400)
        self.used_refresh_tokens[refresh_token] = grant
        await asyncio.sleep(0.05)  # long enough for others to come with the same token
        return self._give(grant)

    def _give(self, grant: str) -> Response:
        access_token = f"access-{secrets.token_urlsafe(16)}"
        self.tokens[access_token] = time.monotonic() + (self.token_seconds or 3_600)
        given: dict[str, Any] = {"access_token": access_token, "token_type": "bearer", "scope": "tickets"}
        if self.token_seconds is not None:
            given["expires_in"] = self.token_seconds
        if self.gives_refresh_tokens:
            given["refresh_token"] = f"refresh-{secrets.token_urlsafe(16)}"
            self.grants[given["refresh_token"]] = grant
        return JSONResponse(given, headers={"cache-control": "no-store"})

    def _client_of(self, request: Request, form: dict[str, str]) -> str | None:
        given = request.headers.get("authorization", "")
        client_id, secret = form.get("client_id", ""), form.get("client_secret")
        if given.startswith("Basic "):
            client_id, _, secret = base64.b64decode(given.removeprefix("Basic ")).decode().partition(":")
            client_id, secret = unquote(client_id), unquote(secret)
        client = self.registered.get(client_id)
        return client_id if client is not None and client.get("client_secret") == secret else None

    async def _revoke(self, request: Request) -> Response:
        self.revoked.append(str((await request.form())["token"]))
        return Response(status_code=200)
