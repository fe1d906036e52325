"""Share links: one branch of a conversation, read-only, for everybody who has the link, until it ends.

A link is `/share#tks_…`. Browsers do not send what follows `#`, and the page sends it in a header. So the token is in
no address that a server or a proxy writes to a log, and the database has only its hash.

A link shows questions and answers, the names of the tools that ran, and the sources as far as they say no more than the
answer does. It shows no ids, no arguments and results of tools, no reasoning, no instructions, no words that steered a
turn, no errors, and no files unless the owner chose to share them.

Decision: docs/decisions/0505
"""

import secrets
from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct, structs
from starlette.types import ASGIApp

from turnkeep.api import views
from turnkeep.api.http.downloads import download
from turnkeep.api.http.endpoints import ApiCall, Endpoints, Nothing, Policy, ResponseSpec, known_id
from turnkeep.api.http.responses import address_of, json_response, no_content
from turnkeep.api.identity.authentication import SHARE, hash_key
from turnkeep.api.identity.users import shown_users
from turnkeep.api.native.query_parameters import ListQuery, PageQuery, page_of
from turnkeep.errors import Forbidden, InvalidRequest, NotFound
from turnkeep.ids import ConversationId, FileId, ShareId, TurnId, UserId
from turnkeep.model.conversations import NewShare, OpenShare, Share
from turnkeep.model.messages import PublicMessage
from turnkeep.model.principals import Principal
from turnkeep_client import wire
from turnkeep_client.wire.blocks import FilePart, FileRef, Part, ReasoningPart, StepPart, TextPart
from turnkeep_client.wire.events import Source

PATH = "/share"
"""Where the page shows a link. The token follows `#`."""
TOKEN = "Turnkeep-Share"
DAY = 86_400
USUAL_DAYS = 30
TOKEN_CHARS = 200
PRIVATE = {"cache-control": "no-store", "referrer-policy": "no-referrer", "x-robots-tag": "noindex, nofollow"}

endpoints = Endpoints("shares")


class SharesQuery(ListQuery, frozen=True, kw_only=True):
    conversation_id: wire.Id | None = None


class SharedFileQuery(Struct, frozen=True, kw_only=True):
    file_id: Annotated[str, Meta(max_length=100)] = ""


@endpoints.add(
    "POST",
    "/v1/conversations/{conversation_id}/shares",
    policy=Policy.MEMBER,
    body=wire.NewShare,
    is_body_optional=True,
    responses=(ResponseSpec(status=201, meaning="The new link; `url` is shown only once", type=wire.Share),),
    errors=(404, 409, 507),
    feature="export",
)
async def share_conversation(call: ApiCall[wire.NewShare, Nothing]) -> ASGIApp:
    """Make a link that shows the conversation to everybody who has it: the branch up to `turn_id` as it is now. Files
    are shown with `with_files` only. The link ends by itself, when it is revoked, when a message of the branch is
    edited or answered again, and with the conversation."""
    body, principal, settings = call.body, call.principal, call.runtime.settings
    if settings.share_link_days == 0:
        raise Forbidden("Share links are switched off on this server (TURNKEEP_SHARE_LINK_DAYS).")
    longest = round(settings.share_link_days * DAY)
    seconds = min(USUAL_DAYS * DAY, longest) if body.ttl_seconds is None else body.ttl_seconds
    if seconds > longest:
        raise InvalidRequest(
            f"A share link may last {settings.share_link_days:g} days here: `ttl_seconds` ≤ {longest}."
        )
    conversation_id = ConversationId(call.id("conversation_id", "conv"))
    call.notes["conversation_id"] = conversation_id
    conversation = await call.runtime.store.conversation(principal, conversation_id)
    principal.check_agent(conversation.agent_id)
    token = SHARE + secrets.token_urlsafe(32)
    turn_id = None if body.turn_id is None else TurnId(known_id(body.turn_id, "turn"))
    new = NewShare(secret_hash=hash_key(token), seconds=seconds, turn_id=turn_id, with_files=body.with_files)
    made = await call.runtime.store.share_conversation(principal, conversation_id, new)
    [shown] = await _shown(call, [made])
    address = address_of(settings, call.headers.get("host"))
    return json_response(structs.replace(shown, url=f"{address}{PATH}#{token}"), status=201)


@endpoints.add(
    "GET",
    "/v1/shares",
    policy=Policy.MEMBER,
    query=SharesQuery,
    responses=(ResponseSpec(status=200, meaning="Links, without tokens, newest first", type=wire.Page[wire.Share]),),
    feature="export",
)
async def list_shares(call: ApiCall[Nothing, SharesQuery]) -> ASGIApp:
    """The links to conversations of the caller that have not ended. An admin gets those of the whole workspace, without
    the titles of conversations of others."""
    given = call.query.conversation_id
    conversation_id = None if given is None else ConversationId(known_id(given, "conv"))
    principal = call.principal
    found = await call.runtime.store.shares(
        principal.org_id, principal.workspace_id, user_id=_only_of(principal), conversation_id=conversation_id
    )
    return json_response(page_of(await _shown(call, found), call.query, name=lambda share: share.id))


@endpoints.add(
    "DELETE",
    "/v1/shares/{share_id}",
    policy=Policy.MEMBER,
    responses=(ResponseSpec(status=204, meaning="The link is invalid from now on"),),
    errors=(404, 507),
    feature="export",
)
async def revoke_share(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Revoke a link, at once and on every worker. An admin may revoke all links of the workspace."""
    principal, share_id = call.principal, ShareId(call.id("share_id", "share"))
    await call.runtime.store.revoke_share(
        principal.org_id, principal.workspace_id, share_id, user_id=_only_of(principal)
    )
    return no_content()


@endpoints.add(
    "GET",
    "/v1/shared",
    policy=Policy.PUBLIC,
    query=PageQuery,
    headers=(TOKEN,),
    responses=(ResponseSpec(status=200, meaning="What the link shows", type=wire.SharedConversation),),
    errors=(404,),
)
async def read_shared(call: ApiCall[Nothing, PageQuery]) -> ASGIApp:
    """What a share link shows, oldest first, `limit` questions with their answers at a time. The token of the link,
    which follows `#` in it, is sent as `Turnkeep-Share`. 404 if there is no such link, or if it has ended."""
    opened = await _opened(call)
    query, share = call.query, opened.share
    page = await call.runtime.store.shared_messages(opened, limit=query.limit, cursor=query.cursor or None)
    shown = wire.SharedConversation(
        title=share.title,
        with_files=share.with_files,
        created_at=share.created_at,
        expires_at=share.expires_at,
        data=[shared_message(message, with_files=share.with_files) for message in page.data],
        next_cursor=page.next_cursor,
    )
    return json_response(shown, headers=PRIVATE)


@endpoints.add(
    "GET",
    "/v1/shared/file",
    policy=Policy.PUBLIC,
    query=SharedFileQuery,
    headers=(TOKEN, "Range", "If-Range", "If-None-Match"),
    responses=(
        ResponseSpec(status=200, meaning="The bytes, as an attachment", type=bytes, media_type="*/*"),
        ResponseSpec(status=206, meaning="The range that was asked for", type=bytes, media_type="*/*"),
        ResponseSpec(status=304, meaning="You have them already"),
    ),
    errors=(404, 416),
)
async def read_shared_file(call: ApiCall[Nothing, SharedFileQuery]) -> ASGIApp:
    """The bytes of a file that a share link shows. 404 unless the link shows files, and this one among them."""
    opened, file_id = await _opened(call), FileId(known_id(call.query.file_id, "file"))
    if not opened.share.with_files or not await _is_shown(call, opened, file_id):
        raise _no_link()
    file = await call.runtime.store.file(opened.owner, file_id)
    if file.conversation_id != opened.share.conversation_id or file.status != "ready":
        raise _no_link()
    response = await download(call.runtime.bag, file, call.headers)
    response.headers.update(PRIVATE)
    return response


async def _opened(call: ApiCall[Any, Any]) -> OpenShare:
    """The link of this request. An unknown one, one that has ended, and a server without links answer alike."""
    token = call.headers.get(TOKEN, "")
    if not token.startswith(SHARE) or len(token) > TOKEN_CHARS:
        raise _no_link()
    opened = await call.runtime.store.open_share(hash_key(token))
    if opened is None or call.runtime.settings.share_link_days == 0:
        raise _no_link()
    return opened


def _no_link() -> NotFound:
    return NotFound("There is nothing here. The link may be incomplete, or it has ended.")


async def _is_shown(call: ApiCall[Any, Any], opened: OpenShare, file_id: FileId) -> bool:
    """Whether a message of the branch shows this file."""
    cursor: str | None = None
    while True:
        page = await call.runtime.store.shared_messages(opened, limit=100, cursor=cursor, file_id=file_id)
        if any(file_id in _files_of(message) for message in page.data):
            return True
        if page.next_cursor is None:
            return False
        cursor = page.next_cursor


def _files_of(message: PublicMessage) -> set[str]:
    files: Sequence[FileRef | FilePart] = [
        *message.attachments,
        *(part for part in message.content if isinstance(part, FilePart)),
    ]
    return {str(file.file_id) for file in files}


def shared_message(message: PublicMessage, *, with_files: bool) -> wire.SharedMessage:
    """What a link shows of a message."""
    return wire.SharedMessage(
        role=message.role,
        content=[shown for n, part in enumerate(message.content) if (shown := _part(part, n, with_files)) is not None],
        attachments=[structs.replace(ref, reading=None) for ref in message.attachments] if with_files else [],
        hidden_files=0 if with_files else len(_files_of(message)),
        sources=[_source(one, with_files) for one in message.sources if one.conversation_id is None],
        status=message.status,
        finish=message.finish,
        created_at=message.created_at,
    )


def _part(part: Part, n: int, with_files: bool) -> Part | None:
    match part:
        case TextPart():
            return part
        case StepPart():
            return StepPart(id=str(n), name=part.name, status=part.status, duration_ms=part.duration_ms)
        case FilePart():
            return part if with_files else None
        case ReasoningPart():
            return None


def _source(source: Source, with_files: bool) -> Source:
    """The source without ids; of a file that is not shared, without its words."""
    hides = source.file_id is not None and not with_files
    return Source(
        title=source.title,
        snippet="" if hides else source.snippet,
        url=source.url,
        place=source.place,
        number=source.number,
    )


def _only_of(principal: Principal) -> UserId | None:
    """Whose links the principal may see and revoke; None: those of the whole workspace."""
    # A token with scopes manages nothing, and sees what is its user's own.
    return None if principal.role == "admin" and principal.scopes is None else principal.user_id


async def _shown(call: ApiCall[Any, Any], shares: Sequence[Share]) -> list[wire.Share]:
    principal = call.principal
    users = await shown_users(call.runtime.store, principal, (share.user_id for share in shares))
    is_service = principal.role == "service" and principal.user_id is None
    return [
        views.share_of(share, users, shows_title=is_service or share.user_id == principal.user_id) for share in shares
    ]
