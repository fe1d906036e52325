"""Sign-in to the page: the link that `turnkeep serve` prints, an identity provider, an invite; and sign-out.

A sign-in makes a session. Its cookie is random and has a row in the database, so that it can be listed and ended.

A person meets these routes with a browser. So an error is a page with words, unless the client wants JSON.

Decision: docs/decisions/0504
"""

import asyncio
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from html import escape
from typing import Any
from urllib.parse import parse_qsl, quote

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp

from turnkeep.api.http.endpoints import ApiCall, Endpoints, Nothing, Policy, ResponseSpec
from turnkeep.api.http.problem_details import status_of
from turnkeep.api.http.responses import address_of, json_response, no_content
from turnkeep.api.identity.authentication import COOKIE, PAGE_COOKIE, check_enabled, check_origin, cookie_of, hash_key
from turnkeep.api.identity.oidc import CALLBACK, IdentityProviderClient
from turnkeep.api.identity.service_keys import SigninLinks
from turnkeep.api.telemetry.logs import FIELDS
from turnkeep.config import Settings
from turnkeep.errors import CallerError, NotFound, TurnkeepError, Unauthorized, WorldError
from turnkeep.ids import OrgId, UserId
from turnkeep.model.sessions import NewSession, SigninMethod
from turnkeep.store.ports import SessionStore
from turnkeep_client import wire
from turnkeep_client.discovery import LOCAL_USER

OPERATOR_NAME = "Operator"
ATTEMPT_COOKIE = "turnkeep_signin"
ATTEMPT_PATH = "/signin"
ATTEMPT_SECONDS = 600
BEGIN = "/signin/oidc"

_PATH = re.compile(r"/(?![/\\])[\x21-\x5b\x5d-\x7e]*")
"""A path of this server: `//host` and `/\\host` would lead to another one."""
PATH_CHARS = 2_000
TOKEN_CHARS = 200

_logger = logging.getLogger("turnkeep.signin")

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title} · Turnkeep</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ display: grid; place-content: center; min-height: 90vh; margin: 0; padding: 1.5rem;
  background: light-dark(#fbfaf7, #161a18); color: light-dark(#20261f, #e6e9e4);
  font: 1rem/1.55 system-ui, sans-serif; }}
main {{ max-width: 30rem; overflow-wrap: anywhere; }}
h1 {{ font: 500 1.8rem/1.2 Georgia, serif; }}
a {{ display: inline-block; margin: 0.5rem 1rem 0 0; color: light-dark(#2a6453, #7cc4ad); }}
</style></head>
<body><main><h1>{title}</h1><p>{detail}</p><p>{links}</p></main></body></html>
"""
_GUARD = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}

Handler = Callable[[ApiCall[Any, Any]], Awaitable[ASGIApp]]


endpoints = Endpoints("sign-in")


@endpoints.add(
    "POST",
    "/v1/signin/invite",
    policy=Policy.PUBLIC,
    body=wire.InviteSecret,
    responses=(ResponseSpec(status=204, meaning="Signed in"),),
    errors=(401, 403, 507),
)
async def accept_invite(call: ApiCall[wire.InviteSecret, Nothing]) -> ASGIApp:
    """Accept an invite, once: the browser is signed in as the invited user."""
    settings, store, cookie = call.runtime.settings, call.runtime.store, new_cookie()
    check_origin(call.headers, settings.public_url)
    session = new_session(cookie, settings, call.headers, method="invite")
    if await store.spend_invite(hash_key(call.body.token), session) is None:
        raise Unauthorized(
            "This invite is not valid any more: it was used, taken back, or has expired. Ask for a new one."
        )
    await end_former_session(store, call.headers)
    header = cookie_header(settings, COOKIE, cookie, seconds=settings.session_seconds)
    return no_content(headers={"set-cookie": header, "cache-control": "no-store"})


def link_endpoints(links: SigninLinks) -> Endpoints:
    """The route of the link that `turnkeep serve` prints."""
    endpoints = Endpoints("sign-in")

    @endpoints.add(
        "GET",
        "/signin",
        policy=Policy.PUBLIC,
        responses=(ResponseSpec(status=303, meaning="Signed in"),),
        errors=(401,),
        has_foreign_query=True,
        is_described=False,
    )
    @_in_words(None)
    async def open_signin_link(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
        """Open a sign-in link: the browser becomes an admin of the default workspace."""
        asked = _query_of(call)
        token = asked.get("token", "")
        if len(token) > TOKEN_CHARS or not await asyncio.to_thread(links.admits, token):
            raise Unauthorized("This sign-in link is not valid any more. Start the server again for a new one.")
        runtime = call.runtime
        store, org_id = runtime.store, runtime.home_org
        workspace = await store.workspace(org_id)
        known = await store.member_of_host(org_id, workspace.id, LOCAL_USER)
        if known is not None:
            check_enabled(known)
        name = OPERATOR_NAME if known is None or known.name is None else None
        member = await store.ensure_member(org_id, workspace.id, LOCAL_USER, role="admin", name=name)
        cookie = await sign_in(store, runtime.settings, call.headers, org_id, member.id, method="link")
        return _see_other(local_path(asked.get("return_to")), cookie)

    return endpoints


def provider_endpoints(provider: IdentityProviderClient | None) -> Endpoints:
    """The routes by which people come from the identity provider and go. Without one, its routes answer 404."""
    endpoints = Endpoints("sign-in")

    @endpoints.add(
        "GET",
        "/v1/signin",
        policy=Policy.PUBLIC,
        responses=(ResponseSpec(status=200, meaning="The ways to sign in", type=wire.SigninWays),),
    )
    async def read_signin(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
        """How people can sign in to the page of this server."""
        shown = None if provider is None else wire.IdentityProvider(name=provider.name, url=BEGIN)
        return json_response(wire.SigninWays(provider=shown))

    @endpoints.add(
        "GET",
        BEGIN,
        policy=Policy.PUBLIC,
        responses=(ResponseSpec(status=303, meaning="To the identity provider"),),
        errors=(404, 503),
        has_foreign_query=True,
        is_described=False,
    )
    @_in_words(provider)
    async def begin_signin(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
        """Go to the identity provider. A signed cookie remembers what the answer must fit to."""
        settings = call.runtime.settings
        address, attempt = await _known(provider).begin(
            redirect_uri=_callback(settings, call.headers), return_to=local_path(_query_of(call).get("return_to"))
        )
        return _see_other(address, _attempt_cookie(settings, attempt, seconds=ATTEMPT_SECONDS))

    @endpoints.add(
        "GET",
        CALLBACK,
        policy=Policy.PUBLIC,
        responses=(ResponseSpec(status=303, meaning="Signed in"),),
        errors=(401, 403, 404, 503),
        has_foreign_query=True,
        is_described=False,
    )
    @_in_words(provider)
    async def finish_signin(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
        """Come back from the identity provider: the browser is signed in as the person whom the provider names."""
        runtime, known = call.runtime, _known(provider)
        store, org_id, settings = runtime.store, runtime.home_org, runtime.settings
        answer = _query_of(call)
        attempt = known.attempt_of(cookie_of(call.headers, ATTEMPT_COOKIE), answer.get("state"))
        person = await known.finish(attempt, answer, redirect_uri=_callback(settings, call.headers))
        workspace = await store.workspace(org_id)
        former = await store.member_of_host(org_id, workspace.id, person.external_id)
        if former is not None:
            check_enabled(former)
        member = await store.ensure_member(
            org_id, workspace.id, person.external_id, role=known.role_of(person), name=person.name
        )
        cookie = await sign_in(store, settings, call.headers, org_id, member.id, method="oidc")
        return _see_other(attempt.return_to, cookie, _attempt_cookie(settings, "", seconds=0))

    @endpoints.add(
        "POST",
        "/v1/signout",
        policy=Policy.PUBLIC,
        responses=(ResponseSpec(status=200, meaning="Signed out", type=wire.SignedOut),),
        errors=(403, 507),
    )
    async def sign_out(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
        """End the session of this browser, if it has one."""
        settings, store = call.runtime.settings, call.runtime.store
        check_origin(call.headers, settings.public_url)
        cookie, url = cookie_of(call.headers, COOKIE), None
        found = None if cookie is None else await store.signed_in(hash_key(cookie))
        await end_former_session(store, call.headers)
        if found is not None and found.session.method == "oidc" and provider is not None:
            url = await provider.signout_url(return_to=f"{address_of(settings, call.headers.get('host'))}/")
        gone = cookie_header(settings, COOKIE, "", seconds=0)
        return json_response(wire.SignedOut(provider_url=url), headers={"set-cookie": gone})

    return endpoints


def _in_words(provider: IdentityProviderClient | None) -> Callable[[Handler], Handler]:
    """Show an error of the handler as a page, to a client that wants pages. It offers to try again at the provider."""

    def decorate(handle: Handler) -> Handler:
        @wraps(handle)
        async def answer(call: ApiCall[Any, Any]) -> ASGIApp:
            try:
                return await handle(call)
            except (CallerError, WorldError) as exc:
                _logger.warning(
                    "a sign-in was refused",
                    extra={FIELDS: {"request_id": call.notes.get("request_id"), "reason": exc.detail}},
                )
                if "text/html" not in call.headers.get("accept", ""):
                    raise
                call.notes["code"] = exc.code
                return _error_page(exc, call, provider)

        return answer

    return decorate


def _error_page(error: TurnkeepError, call: ApiCall[Any, Any], provider: IdentityProviderClient | None) -> Response:
    status = status_of(type(error))
    title = {403: "You cannot sign in", 404: "This is not set up", 503: "Sign-in does not work now"}
    links = {"To the page": "/"}
    if provider is not None and status != 404:
        asked = _query_of(call).get("return_to")
        return_to = local_path(asked or provider.return_of(cookie_of(call.headers, ATTEMPT_COOKIE)))
        links = {"Sign in again": f"{BEGIN}?return_to={quote(return_to, '')}", **links}
    return words_page(title.get(status, "You are not signed in"), error.detail, links, status)


def words_page(title: str, detail: str, links: Mapping[str, str], status: int) -> Response:
    """A page with a few words and links, for a person whom another server has sent here."""
    anchors = " ".join(f'<a href="{escape(path)}">{escape(text)}</a>' for text, path in links.items())
    text = _PAGE.format(title=escape(title), detail=escape(detail), links=anchors)
    return HTMLResponse(text, status, headers=_GUARD)


def _known(provider: IdentityProviderClient | None) -> IdentityProviderClient:
    if provider is None:
        raise NotFound("This server has no identity provider. Its operator can set TURNKEEP_OIDC_ISSUER.")
    return provider


def _query_of(call: ApiCall[Any, Any]) -> dict[str, str]:
    """The query of an address that a person opened. Programs on its way may have added to it, so nothing is refused."""
    return dict(parse_qsl(call.query_string.decode("latin-1")))


def _callback(settings: Settings, headers: Headers) -> str:
    return address_of(settings, headers.get("host")) + CALLBACK


def _attempt_cookie(settings: Settings, value: str, *, seconds: float) -> str:
    return cookie_header(settings, ATTEMPT_COOKIE, value, seconds=seconds, path=ATTEMPT_PATH)


def _see_other(location: str, *cookies: str) -> Response:
    response = Response(status_code=303, headers={"location": location, "cache-control": "no-store"})
    for cookie in cookies:
        response.headers.append("set-cookie", cookie)
    return response


def new_cookie() -> str:
    return PAGE_COOKIE + secrets.token_urlsafe(32)


def new_session(cookie: str, settings: Settings, headers: Headers, *, method: SigninMethod) -> NewSession:
    """What is stored of a sign-in with this browser."""
    return NewSession(
        secret_hash=hash_key(cookie),
        method=method,
        browser=headers.get("user-agent", ""),
        seconds=settings.session_seconds,
    )


async def sign_in(
    store: SessionStore, settings: Settings, headers: Headers, org_id: OrgId, user_id: UserId, *, method: SigninMethod
) -> str:
    """Sign this browser in as that user; the header `Set-Cookie`. The session that the browser had is ended."""
    cookie = new_cookie()
    await end_former_session(store, headers)
    await store.add_session(org_id, user_id, new_session(cookie, settings, headers, method=method))
    return cookie_header(settings, COOKIE, cookie, seconds=settings.session_seconds)


async def end_former_session(store: SessionStore, headers: Headers) -> None:
    """End the session of the cookie that this browser has, if it has one."""
    if former := cookie_of(headers, COOKIE):
        await store.end_session_by_hash(hash_key(former))


def cookie_header(settings: Settings, name: str, value: str, *, seconds: float, path: str = "/") -> str:
    """`Set-Cookie` for a cookie that scripts cannot read. Without seconds it is removed."""
    text = f"{name}={value}; Path={path}; Max-Age={int(seconds)}; HttpOnly; SameSite=Lax"
    return f"{text}; Secure" if (settings.public_url or "").startswith("https:") else text


def local_path(asked: str | None) -> str:
    """The path of this server to return to after a sign-in; `/` for anything that is no such path."""
    is_usable = asked is not None and len(asked) <= PATH_CHARS and _PATH.fullmatch(asked)
    return asked if is_usable and asked is not None and not asked.startswith("/signin") else "/"
