"""People: the sessions of a user on the page, which can be listed and ended, and invites."""

import secrets
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.types import ASGIApp

from turnkeep.api import views
from turnkeep.api.http.endpoints import ApiCall, Endpoints, Nothing, Policy, ResponseSpec
from turnkeep.api.http.responses import address_of, json_response, no_content
from turnkeep.api.identity.authentication import INVITE, check_enabled, hash_key
from turnkeep.api.identity.service_keys import check_unlimited
from turnkeep.api.identity.users import shown_users
from turnkeep.api.native.account import user_of_path
from turnkeep.api.native.query_parameters import ListQuery, page_of
from turnkeep.errors import Forbidden, NotFound
from turnkeep.ids import InviteId, SessionId, UserId
from turnkeep_client import wire

SESSIONS = ResponseSpec(status=200, meaning="Sessions, newest first", type=wire.Page[wire.PageSession])
INVITE_PATH = "/invite"
"""Where the page shows an invite. The secret follows `#`, which browsers do not send to servers."""

endpoints = Endpoints("people")


@endpoints.add("GET", "/v1/me/sessions", policy=Policy.MEMBER, query=ListQuery, responses=(SESSIONS,))
async def list_my_sessions(call: ApiCall[Nothing, ListQuery]) -> ASGIApp:
    """The browsers in which the caller is signed in to the page. A service key that acts for no user has none."""
    user_id = call.principal.user_id
    return await _sessions(call, user_id) if user_id is not None else json_response(wire.Page(data=[]))


@endpoints.add(
    "DELETE",
    "/v1/me/sessions",
    policy=Policy.MEMBER,
    responses=(ResponseSpec(status=204, meaning="The others are signed out"),),
    errors=(404, 507),
)
async def end_my_other_sessions(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Sign the caller out everywhere else: all sessions end but the one of the request."""
    session = call.identity.session
    await call.runtime.store.end_sessions(
        call.principal.org_id, _own_id(call), kept=None if session is None else session.id
    )
    return no_content()


@endpoints.add(
    "DELETE",
    "/v1/me/sessions/{session_id}",
    policy=Policy.MEMBER,
    responses=(ResponseSpec(status=204, meaning="Signed out there"),),
    errors=(404, 507),
)
async def end_my_session(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """End one session of the caller, at once and on every worker."""
    session_id = SessionId(call.id("session_id", "session"))
    await call.runtime.store.end_session(call.principal.org_id, _own_id(call), session_id)
    return no_content()


@endpoints.add(
    "GET", "/v1/users/{user}/sessions", policy=Policy.ADMIN, query=ListQuery, responses=(SESSIONS,), errors=(404,)
)
async def list_sessions(call: ApiCall[Nothing, ListQuery]) -> ASGIApp:
    """The browsers in which a user is signed in to the page."""
    return await _sessions(call, (await user_of_path(call)).id)


@endpoints.add(
    "DELETE",
    "/v1/users/{user}/sessions",
    policy=Policy.ADMIN,
    responses=(ResponseSpec(status=204, meaning="Signed out everywhere"),),
    errors=(404, 507),
)
async def end_sessions(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Sign a user out of the page, in all browsers."""
    member = await user_of_path(call)
    await call.runtime.store.end_sessions(call.principal.org_id, member.id)
    return no_content()


@endpoints.add(
    "DELETE",
    "/v1/users/{user}/sessions/{session_id}",
    policy=Policy.ADMIN,
    responses=(ResponseSpec(status=204, meaning="Signed out there"),),
    errors=(404, 507),
)
async def end_session(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """End one session of a user."""
    member = await user_of_path(call)
    session_id = SessionId(call.id("session_id", "session"))
    await call.runtime.store.end_session(call.principal.org_id, member.id, session_id)
    return no_content()


@endpoints.add(
    "POST",
    "/v1/invites",
    policy=Policy.ADMIN,
    body=wire.NewInvite,
    responses=(ResponseSpec(status=201, meaning="The new invite; `url` is shown only once", type=wire.Invite),),
    errors=(507,),
)
async def create_invite(call: ApiCall[wire.NewInvite, Nothing]) -> ASGIApp:
    """Invite a person to the page: a link that signs them in, once. The user is made if there is none of that id.

    A key with limits or allowed tools of its own cannot invite: a session does not have them.
    """
    body, principal, store = call.body, call.principal, call.runtime.store
    await check_unlimited(store, principal, wish="invite")
    org_id, workspace_id = principal.org_id, principal.workspace_id
    known = await store.member_of_host(org_id, workspace_id, body.user)
    if known is not None:
        check_enabled(known)
        if known.id == principal.user_id and body.role == "member":
            raise Forbidden("You cannot take your own rights away. Leave `role` out, or ask another admin.")
    name = body.name or (body.user[:200] if known is None else None)
    role = None if body.role is UNSET else body.role
    member = await store.ensure_member(org_id, workspace_id, body.user, role=role, name=name)
    token = INVITE + secrets.token_urlsafe(32)
    made = await store.add_invite(org_id, member.id, hash_key(token), seconds=body.ttl_seconds)
    address = address_of(call.runtime.settings, call.headers.get("host"))
    shown = views.invite_of(made, member.shown)
    return json_response(msgspec.structs.replace(shown, url=f"{address}{INVITE_PATH}#{token}"), status=201)


@endpoints.add(
    "GET",
    "/v1/invites",
    policy=Policy.ADMIN,
    query=ListQuery,
    responses=(ResponseSpec(status=200, meaning="Open invites, without links", type=wire.Page[wire.Invite]),),
)
async def list_invites(call: ApiCall[Nothing, ListQuery]) -> ASGIApp:
    """The invites of the workspace that are neither used nor expired, newest first."""
    principal, store = call.principal, call.runtime.store
    found = await store.invites(principal.org_id, principal.workspace_id)
    users = await shown_users(store, principal, [invite.user_id for invite in found])
    shown = [views.invite_of(one, users[one.user_id]) for one in found if one.user_id in users]
    return json_response(page_of(shown, call.query, name=lambda invite: invite.id))


@endpoints.add(
    "DELETE",
    "/v1/invites/{invite_id}",
    policy=Policy.ADMIN,
    responses=(ResponseSpec(status=204, meaning="The link is invalid from now on"),),
    errors=(404, 507),
)
async def delete_invite(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Take an invite back that was not used yet. The user stays."""
    principal = call.principal
    invite_id = InviteId(call.id("invite_id", "invite"))
    await call.runtime.store.delete_invite(principal.org_id, principal.workspace_id, invite_id)
    return no_content()


async def _sessions(call: ApiCall[Any, ListQuery], user_id: UserId) -> ASGIApp:
    current = call.identity.session
    found = await call.runtime.store.sessions(call.principal.org_id, user_id)
    shown = [views.session_of(one, is_current=current is not None and one.id == current.id) for one in found]
    return json_response(page_of(shown, call.query, name=lambda session: session.id))


def _own_id(call: ApiCall[Any, Any]) -> UserId:
    if call.principal.user_id is None:
        raise NotFound("A service key that acts for no user has no sessions.")
    return call.principal.user_id
