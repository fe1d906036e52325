"""The account: user tokens, service keys, workspaces with their limits, usage, and the available models."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import UNSET, structs
from starlette.responses import Response
from starlette.types import ASGIApp

from turnkeep.api import views
from turnkeep.api.http.endpoints import ApiCall, Endpoints, Nothing, Policy, ResponseSpec, known_id
from turnkeep.api.http.responses import json_response, no_content
from turnkeep.api.identity.authentication import USER_CHARS, check_enabled
from turnkeep.api.identity.service_keys import check_unlimited, make_key, narrowed, within_limits_of
from turnkeep.api.identity.tokens import Claims, UserTokens
from turnkeep.api.identity.users import shown_users
from turnkeep.api.native.query_parameters import (
    ListQuery,
    RevocationQuery,
    UsageQuery,
    UsageTurnsQuery,
    UsersQuery,
    page_of,
)
from turnkeep.clock import month_of, system_clock
from turnkeep.errors import Forbidden, NotFound, OutOfScope
from turnkeep.ids import AgentId, ErasureId, KeyId, OrgId, UserId, WorkspaceId
from turnkeep.knowledge.csv_files import csv_lines
from turnkeep.model.principals import LIMITS, NO_TITLE_MODEL, Member, Principal, UserRef, Workspace
from turnkeep.runtime import Runtime
from turnkeep.store.commands import UsageFilter
from turnkeep_client import wire
from turnkeep_client.wire.account import MonthlyUsage

WORKSPACE_LIMITS = (*LIMITS, *(f"user_{name}" for name in LIMITS))
USER = ResponseSpec(status=200, meaning="The user", type=wire.User)
WORKSPACE = ResponseSpec(status=200, meaning="The workspace", type=wire.Workspace)


def token_endpoints(tokens: UserTokens) -> Endpoints:
    """The route that makes user tokens. It needs the signing secrets, which the other routes do not know."""
    endpoints = Endpoints("account")

    @endpoints.add(
        "POST",
        "/v1/tokens",
        policy=Policy.KEY,
        body=wire.NewToken,
        responses=(ResponseSpec(status=201, meaning="A token for that user alone", type=wire.Token),),
        errors=(404, 507),
    )
    async def create_token(call: ApiCall[wire.NewToken, Nothing]) -> ASGIApp:
        """Make a short-lived token for one user of one workspace, to be used in a browser."""
        body, principal, store = call.body, call.principal, call.runtime.store
        workspace_id = principal.workspace_id
        if body.workspace_id is not None:
            asked_for = WorkspaceId(known_id(body.workspace_id, "ws"))
            workspace_id = (await _workspace(call, asked_for)).id
        role = None if body.role is UNSET else body.role
        scopes = narrowed(principal.scopes, body.scopes)
        known = await store.member_of_host(principal.org_id, workspace_id, body.user)
        if known is not None:
            check_enabled(known)
        # A token for a member does not take the role of an admin away; PATCH /v1/users does.
        stored = "admin" if role == "admin" else None
        if stored and (known is None or known.role != stored):
            if principal.scopes is not None:
                raise OutOfScope("A key with scopes cannot make a user an admin. It needs one without scopes.")
            await check_unlimited(store, principal, wish="make admins")
        member = await store.ensure_member(principal.org_id, workspace_id, body.user, role=stored)
        expires_at = system_clock() + body.ttl_seconds * 1000
        claims = Claims(
            org=principal.org_id,
            ws=workspace_id,
            user=member.id,
            role=role or "member",
            exp=expires_at,
            key=principal.key_id,
            scopes=scopes,
            src=body.source,
        )
        signed = tokens.sign(claims)
        return json_response(wire.Token(token=signed, expires_at=expires_at, user=member.shown), status=201)

    return endpoints


endpoints = Endpoints("account")


@endpoints.add(
    "GET",
    "/v1/me",
    policy=Policy.MEMBER,
    responses=(ResponseSpec(status=200, meaning="The caller", type=wire.Me),),
)
async def read_me(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Who the caller is, and the limits that a page explains before anything is uploaded."""
    principal, settings, session = call.principal, call.runtime.settings, call.identity.session
    workspace = await call.runtime.store.workspace(principal.org_id, principal.workspace_id)
    shown = wire.Me(
        user=principal.user,
        user_id=principal.user_id,
        workspace_id=principal.workspace_id,
        role=principal.role,
        model=workspace.model or settings.model,
        max_file_bytes=settings.max_file_bytes,
        max_files_per_message=settings.max_files_per_message,
        scopes=views.scopes_of(principal.scopes),
        session=None if session is None else views.session_of(session, is_current=True),
    )
    return json_response(shown)


@endpoints.add(
    "POST",
    "/v1/keys",
    policy=Policy.ADMIN,
    body=wire.NewKey,
    responses=(ResponseSpec(status=201, meaning="The new key; `key` is shown only once", type=wire.Key),),
    errors=(507,),
)
async def create_key(call: ApiCall[wire.NewKey, Nothing]) -> ASGIApp:
    """Make a service key: for the whole org if the caller's own key is, else for the caller's workspace."""
    principal, store = call.principal, call.runtime.store
    asked = await within_limits_of(store, principal, call.body)
    key, secret = await make_key(
        store, principal.org_id, asked, workspace_id=_only_in(principal), ancestors=principal.counted_keys
    )
    return json_response(views.key_of(key, secret=secret), status=201)


@endpoints.add(
    "GET",
    "/v1/keys",
    policy=Policy.ADMIN,
    query=ListQuery,
    responses=(ResponseSpec(status=200, meaning="The keys, without their secrets", type=wire.Page[wire.Key]),),
)
async def list_keys(call: ApiCall[Nothing, ListQuery]) -> ASGIApp:
    """The service keys, revoked ones included: of the org for a key of the whole org, else of the workspace."""
    found = await call.runtime.store.keys(call.principal.org_id, workspace_id=_only_in(call.principal))
    keys = [views.key_of(key) for key in found]
    return json_response(page_of(keys, call.query, name=lambda key: key.id))


@endpoints.add(
    "DELETE",
    "/v1/keys/{key_id}",
    policy=Policy.ADMIN,
    query=RevocationQuery,
    responses=(ResponseSpec(status=204, meaning="The key is invalid from now on"),),
    errors=(404, 507),
)
async def revoke_key(call: ApiCall[Nothing, RevocationQuery]) -> ASGIApp:
    """Revoke a service key, at once and on every worker, with its tokens and all keys that it made. With `keep_made`
    the keys that it made stay valid: so a key can be replaced by one that it has made."""
    principal, key_id = call.principal, KeyId(call.id("key_id", "key"))
    await call.runtime.store.revoke_key(
        principal.org_id, key_id, workspace_id=_only_in(principal), keeps_made=call.query.keep_made
    )
    return no_content()


@endpoints.add(
    "GET",
    "/v1/workspaces",
    policy=Policy.MEMBER,
    query=ListQuery,
    responses=(ResponseSpec(status=200, meaning="The workspaces", type=wire.Page[wire.Workspace]),),
)
async def list_workspaces(call: ApiCall[Nothing, ListQuery]) -> ASGIApp:
    """All workspaces for a service key of the whole org. Other callers: their own workspace."""
    principal = call.principal
    if principal.is_org_wide:
        found = await call.runtime.store.workspaces(principal.org_id)
    else:
        found = [await call.runtime.store.workspace(principal.org_id, principal.workspace_id)]
    shown = [views.workspace_of(one) for one in found]
    return json_response(page_of(shown, call.query, name=lambda one: one.id))


@endpoints.add(
    "POST",
    "/v1/workspaces",
    policy=Policy.SERVICE,
    body=wire.NewWorkspace,
    responses=(ResponseSpec(status=201, meaning="The new workspace", type=wire.Workspace),),
    errors=(507,),
)
async def create_workspace(call: ApiCall[wire.NewWorkspace, Nothing]) -> ASGIApp:
    """Make a workspace, perhaps with limits for all of it and for each user."""
    body, store = call.body, call.runtime.store
    _check_models(call.runtime, body)
    made = await store.create_workspace(call.principal.org_id, body.name, model=body.model)
    given = {name: getattr(body, name) for name in (*WORKSPACE_LIMITS, "title_model")}
    if any(value is not None for value in given.values()):
        made = await store.change_workspace(made.org_id, made.id, lambda before: structs.replace(before, **given))
    return json_response(views.workspace_of(made), status=201)


@endpoints.add("GET", "/v1/workspaces/{workspace_id}", policy=Policy.MEMBER, responses=(WORKSPACE,), errors=(404,))
async def read_workspace(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """One workspace."""
    return json_response(views.workspace_of(await _workspace_of_path(call)))


@endpoints.add(
    "PATCH",
    "/v1/workspaces/{workspace_id}",
    policy=Policy.ADMIN,
    body=wire.WorkspacePatch,
    responses=(WORKSPACE,),
    errors=(404, 507),
)
async def change_workspace(call: ApiCall[wire.WorkspacePatch, Nothing]) -> ASGIApp:
    """Change the name, the models or the limits."""
    body, is_org_wide = call.body, call.principal.is_org_wide
    workspace = await _workspace_of_path(call)
    _check_models(call.runtime, body)
    changes = {name: value for name, value in msgspec.structs.asdict(body).items() if value is not UNSET}

    def change(before: Workspace) -> Workspace:
        asked = structs.replace(before, **changes)
        if not is_org_wide and any(_is_raised(getattr(before, name), getattr(asked, name)) for name in LIMITS):
            raise Forbidden("The limits of a workspace can be raised only with a service key of the whole org.")
        return asked

    changed = await call.runtime.store.change_workspace(workspace.org_id, workspace.id, change)
    return json_response(views.workspace_of(changed))


@endpoints.add(
    "DELETE",
    "/v1/workspaces/{workspace_id}",
    policy=Policy.SERVICE,
    responses=(ResponseSpec(status=204, meaning="Deleted"),),
    errors=(404, 409, 507),
)
async def delete_workspace(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Delete an empty workspace. One that holds conversations stays, and so does the default one."""
    workspace_id = WorkspaceId(call.id("workspace_id", "ws"))
    await call.runtime.store.delete_workspace(call.principal.org_id, workspace_id)
    return no_content()


@endpoints.add(
    "GET",
    "/v1/usage",
    policy=Policy.MEMBER,
    query=UsageQuery,
    responses=(
        ResponseSpec(status=200, meaning="What a month has used", type=MonthlyUsage),
        ResponseSpec(status=200, meaning="The rows as CSV", type=str, media_type="text/csv"),
    ),
    errors=(404,),
)
async def read_usage(call: ApiCall[Nothing, UsageQuery]) -> ASGIApp:
    """The user's month; for a service key that acts for no user, the workspace's. `key` is what that key itself may.

    With `group_by`, an admin reads the whole workspace, and `rows` has what each group used. `user` and `agent_id`
    narrow it, and so does `model`. A member reads their own alone.
    """
    query, store = call.query, call.runtime.store
    user = await _user_of_usage(call)
    user_id, reader = None if user is None else UserId(user.id), _reader_of_usage(call)
    used = await store.usage(reader, month=query.month, user_id=user_id)
    only = _filter_of(call, month=used.month, user_id=user_id)
    rows = await store.usage_rows(reader, only, group_by=query.group_by or "source")
    if only.agent_id is not None or only.model is not None:
        is_by_source = query.group_by in {None, "source"}
        used = _of_part(used, rows if is_by_source else await store.usage_rows(reader, only, group_by="source"))
    limits = await store.limit_uses(reader, month=used.month, user_id=user_id)
    used = _with_rows(structs.replace(used, user=user, limits=limits), rows, query)
    if query.group_by == "user":
        used = structs.replace(used, rows=await _named(call, used.rows))
    if query.format == "csv":
        return Response(_usage_csv(used), media_type="text/csv", headers={"content-disposition": "attachment"})
    return json_response(used)


@endpoints.add(
    "GET",
    "/v1/usage/turns",
    policy=Policy.MEMBER,
    query=UsageTurnsQuery,
    responses=(ResponseSpec(status=200, meaning="Turns, newest first", type=wire.Page[wire.UsageTurn]),),
    errors=(404,),
)
async def list_usage_turns(call: ApiCall[Nothing, UsageTurnsQuery]) -> ASGIApp:
    """The turns that the usage of a month counts: when, for whom, with which model, and what each has used.

    An admin reads those of the whole workspace. A member reads their own alone. Turns that are erased, or whose
    conversation is deleted, stay counted but are not listed.
    """
    query, principal, store = call.query, call.principal, call.runtime.store
    user = await _user_of_usage(call)
    month = query.month or month_of(system_clock())
    only = _filter_of(call, month=month, user_id=None if user is None else UserId(user.id), day=query.day)
    page = await store.usage_turns(_reader_of_usage(call), only, limit=query.limit, cursor=query.cursor or None)
    users = await shown_users(store, principal, [turn.user_id for turn in page.data])
    data = [views.usage_turn_of(turn, users.get(turn.user_id)) for turn in page.data]
    return json_response(wire.Page(data=data, next_cursor=page.next_cursor))


def _reader_of_usage(call: ApiCall[Any, Any]) -> Principal:
    """Whose usage an admin reads is decided here. The store decides it for the others."""
    principal = call.principal
    return structs.replace(principal, user_id=None, role="service", key_id=None) if _is_admin(call) else principal


def _filter_of(
    call: ApiCall[Any, UsageQuery] | ApiCall[Any, UsageTurnsQuery],
    *,
    month: str,
    user_id: UserId | None,
    day: str | None = None,
) -> UsageFilter:
    query = call.query
    agent_id = None if query.agent_id is None else AgentId(known_id(query.agent_id, "agent"))
    if agent_id is not None:
        call.principal.check_agent(agent_id)
    return UsageFilter(month=month, day=day, user_id=user_id, agent_id=agent_id, model=query.model)


def _is_admin(call: ApiCall[Any, Any]) -> bool:
    """Whether the caller may read what others used. A token with scopes manages nothing, and reads its user's own."""
    return call.principal.role == "admin" and call.principal.scopes is None


async def _user_of_usage(call: ApiCall[Any, UsageQuery] | ApiCall[Any, UsageTurnsQuery]) -> UserRef | None:
    """The user whose usage is read; None for that of the workspace. Raises NotFound if the caller may not read it."""
    query, principal = call.query, call.principal
    if query.user is None:
        is_of_all = isinstance(query, UsageTurnsQuery) or query.group_by is not None
        return None if _is_admin(call) and is_of_all else principal.user
    member = await call.runtime.store.member(principal.org_id, principal.workspace_id, query.user)
    if principal.user_id not in {None, member.id} and not _is_admin(call):
        raise NotFound("No such user.")
    return member.shown


def _with_rows(used: MonthlyUsage, rows: Sequence[wire.UsageRow], query: UsageQuery) -> MonthlyUsage:
    costs = [row.cost for row in rows if row.cost is not None]
    return structs.replace(
        used,
        cache_read_tokens=sum(row.cache_read_tokens for row in rows),
        cache_write_tokens=sum(row.cache_write_tokens for row in rows),
        cost=round(sum(costs), 9) if costs else None,
        group_by=query.group_by,
        rows=() if query.group_by is None and query.format == "json" else rows,
    )


def _of_part(used: MonthlyUsage, by_source: Sequence[wire.UsageRow]) -> MonthlyUsage:
    """The same totals of one agent or model alone."""
    messages = {row.group: row.messages for row in by_source}
    return structs.replace(
        used,
        messages=sum(messages.values()),
        by_source=wire.Messages(ui=messages.get("ui", 0), api=messages.get("api", 0)),
        input_tokens=sum(row.input_tokens for row in by_source),
        output_tokens=sum(row.output_tokens for row in by_source),
    )


async def _named(call: ApiCall[Any, Any], rows: Sequence[wire.UsageRow]) -> list[wire.UsageRow]:
    """The rows with the users that they are of, as far as there still are such users."""
    users = await shown_users(call.runtime.store, call.principal, [UserId(row.group) for row in rows if row.group])
    return [structs.replace(row, user=users.get(UserId(row.group)) if row.group else None) for row in rows]


def _usage_csv(used: MonthlyUsage) -> str:
    """The rows for a spreadsheet, which runs nothing in them."""
    counts = ("messages", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "cost")
    header = ["month", used.group_by or "source", "external_id", "name", *counts, "unpriced_messages"]
    lines = [
        [
            used.month,
            row.group,
            None if row.user is None else row.user.external_id,
            None if row.user is None else row.user.name or None,
            *(getattr(row, name) for name in counts),
            row.unpriced_messages,
        ]
        for row in used.rows
    ]
    return csv_lines([header, *lines])


@endpoints.add(
    "GET",
    "/v1/models",
    policy=Policy.MEMBER,
    query=ListQuery,
    responses=(ResponseSpec(status=200, meaning="Names that can be used as `model`", type=wire.Page[wire.ModelName]),),
)
async def list_models(call: ApiCall[Nothing, ListQuery]) -> ASGIApp:
    """The models that this server can reach now."""
    names = [name for name in await call.runtime.providers.models() if call.principal.may_choose(name)]
    models = [wire.ModelName(id=name, provider=name.partition("/")[0]) for name in names]
    return json_response(page_of(models, call.query, name=lambda model: model.id))


@endpoints.add(
    "GET",
    "/v1/users",
    policy=Policy.ADMIN,
    query=UsersQuery,
    responses=(ResponseSpec(status=200, meaning="Users, oldest first", type=wire.Page[wire.User]),),
)
async def list_users(call: ApiCall[Nothing, UsersQuery]) -> ASGIApp:
    """The users of the workspace; with `q`, those whose name or host id has this text in it."""
    query, principal = call.query, call.principal
    page = await call.runtime.store.members(
        principal.org_id, principal.workspace_id, query=query.q, limit=query.limit, cursor=query.cursor or None
    )
    return json_response(wire.Page(data=[views.user_of(one) for one in page.data], next_cursor=page.next_cursor))


@endpoints.add("GET", "/v1/users/{user}", policy=Policy.ADMIN, responses=(USER,), errors=(404,))
async def read_user(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """One user, by id or by the host's id."""
    return json_response(views.user_of(await user_of_path(call)))


@endpoints.add(
    "PATCH", "/v1/users/{user}", policy=Policy.ADMIN, body=wire.UserPatch, responses=(USER,), errors=(404, 507)
)
async def change_user(call: ApiCall[wire.UserPatch, Nothing]) -> ASGIApp:
    """Change name, role or limits of a user, or disable them. A disabled user can do nothing from now on, is
    signed out of the page, and their turns are stopped."""
    member = await user_of_path(call)
    changes = {name: value for name, value in msgspec.structs.asdict(call.body).items() if value is not UNSET}
    if member.id == call.principal.user_id and (changes.get("is_disabled") or changes.get("role") == "member"):
        raise Forbidden("You cannot take your own rights away. Ask another admin, or use a service key.")
    if changes.get("role") == "admin" and member.role != "admin":
        await check_unlimited(call.runtime.store, call.principal, wish="make admins")
    changed = await call.runtime.store.change_member(
        call.principal.org_id, member.workspace_id, member.id, lambda before: structs.replace(before, **changes)
    )
    if changed.is_disabled:
        await call.runtime.store.end_sessions(call.principal.org_id, changed.id)
        await _stop_turns(call.runtime, call.principal.org_id, changed)
    return json_response(views.user_of(changed))


@endpoints.add(
    "POST",
    "/v1/users/{user}/erase",
    policy=Policy.ADMIN,
    responses=(ResponseSpec(status=202, meaning="The erasure has begun", type=wire.StartedErasure),),
    errors=(404, 507),
)
async def erase_user(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Erase a user for good: conversations, files, pages and tables that the user made, and the user. The user can do
    nothing from now on. What the user used stays counted, under an anonymous id."""
    member = await user_of_path(call)
    if member.id == call.principal.user_id:
        raise Forbidden("You cannot erase yourself. Ask another admin, or use a service key.")
    job = await call.runtime.engine.eraser.erase_user(call.principal, member.id)
    return json_response(wire.StartedErasure(erasure_id=job.id), status=202)


@endpoints.add(
    "GET",
    "/v1/erasures/{erasure_id}",
    policy=Policy.ADMIN,
    responses=(ResponseSpec(status=200, meaning="How far it has come", type=wire.Erasure),),
    errors=(404,),
)
async def read_erasure(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Whether an erasure is done, and what it has erased so far. It can be looked up for a month."""
    job = await call.runtime.store.erasure(call.principal, ErasureId(call.id("erasure_id", "erasure")))
    status = "running" if job.done_at is None else "done"
    return json_response(
        wire.Erasure(id=job.id, status=status, counts=job.counts, created_at=job.created_at, done_at=job.done_at)
    )


async def _stop_turns(runtime: Runtime, org_id: OrgId, member: Member) -> None:
    """Stop what runs or waits for this user, on every worker."""
    user = Principal(org_id=org_id, workspace_id=member.workspace_id, user_id=member.id, role="member")
    for turn_id in await runtime.store.open_turns(org_id, member.id):
        with suppress(NotFound):  # its conversation was deleted, which stopped it
            await runtime.engine.cancel(user, turn_id)


async def user_of_path(call: ApiCall[Any, Any]) -> Member:
    """The user with this id, or with this id of the host, in the caller's workspace."""
    name = call.path("user")
    if len(name) > USER_CHARS:
        raise NotFound("No such user.")
    return await call.runtime.store.member(call.principal.org_id, call.principal.workspace_id, name)


def _check_models(runtime: Runtime, body: wire.NewWorkspace | wire.WorkspacePatch) -> None:
    """Raises InvalidRequest for a model that this server does not have."""
    for model in (body.model, None if body.title_model == NO_TITLE_MODEL else body.title_model):
        if isinstance(model, str):
            runtime.providers.named(model)


def _is_raised(before: float | None, after: float | None) -> bool:
    return before is not None and (after is None or after > before)


def _only_in(principal: Principal) -> WorkspaceId | None:
    """The workspace whose keys this principal may make, see and revoke; None for the whole org."""
    return None if principal.is_org_wide else principal.workspace_id


async def _workspace_of_path(call: ApiCall[Any, Any]) -> Workspace:
    return await _workspace(call, WorkspaceId(call.id("workspace_id", "ws")))


async def _workspace(call: ApiCall[Any, Any], workspace_id: WorkspaceId) -> Workspace:
    """The workspace. Raises NotFound if the caller belongs to another workspace."""
    principal = call.principal
    if not principal.is_org_wide and workspace_id != principal.workspace_id:
        raise NotFound("No such workspace.")
    return await call.runtime.store.workspace(principal.org_id, workspace_id)
