"""Conversations: list, search, create, change, delete, restore, read in four ways, export and import."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from itertools import count
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType, structs
from starlette.responses import Response
from starlette.types import ASGIApp

from turnkeep.api import views
from turnkeep.api.http.endpoints import ApiCall, Endpoints, Nothing, Policy, ResponseSpec, known_id
from turnkeep.api.http.requests import command_of, null_fields, spooled_body
from turnkeep.api.http.responses import JSON, json_response, no_content
from turnkeep.api.identity.users import shown_users
from turnkeep.api.native.query_parameters import (
    ConversationsQuery,
    ListQuery,
    MessagesQuery,
    PageQuery,
    ReplayQuery,
    page_of,
)
from turnkeep.api.native.turns import ANY_IMAGE, abilities_for, image_of
from turnkeep.clock import DAY_MS, system_clock
from turnkeep.compiler import compile
from turnkeep.engine.assembly import budget_of, read_window, standing_instructions
from turnkeep.errors import ConversationBusy, ExternalIdTaken, InvalidRequest, NotFound, TooLarge, TurnkeepError
from turnkeep.fair_queue import in_daemon_thread, owner_of
from turnkeep.files.zip_files import ZipReader, ZipRefused
from turnkeep.ids import AgentId, ConversationId, TurnId
from turnkeep.model.agents import AgentSpec
from turnkeep.model.conversations import Conversation
from turnkeep.model.messages import Message
from turnkeep.model.principals import Principal, UserRef
from turnkeep.runtime import Runtime
from turnkeep.store.checks import NAME_CHARS
from turnkeep.store.commands import ConversationChange, ConversationFilter, Exported, NewConversation
from turnkeep.store.exports import blocks_of, exported_from_rows, read_export, write_export
from turnkeep.transfer.chatgpt import BranchLimit, is_chatgpt_export, is_conversation_file, read_chatgpt_export
from turnkeep.transfer.transcripts import Form, read_history
from turnkeep_client import wire
from turnkeep_client.wire.blocks import Block, Image, Text

endpoints = Endpoints("conversations")

CONVERSATION = ResponseSpec(status=200, meaning="The conversation", type=wire.Conversation)
ONE = "/v1/conversations/{conversation_id}"
UNPACKED = 2
"""A zip may have this many times the bytes of the largest file when it is unpacked."""
ZIP_FILES = 50_000
JSON_VALUES = 3_000_000
"""An import may have about this many values. Each takes memory, however few bytes it has in the body. An export of
ChatGPT has about one in 25 bytes."""
SMALLER = "Import fewer conversations at a time; `turnkeep import` sends them one by one."
WAIT_OR_CANCEL = "The branch can be switched once it has ended: follow its events, or cancel it."


class ImportQuery(Struct, frozen=True, kw_only=True):
    title: wire.Name | None = None
    form: Form | None = None
    """The form of the messages, if it cannot be detected."""


@endpoints.add(
    "GET",
    "/v1/conversations",
    policy=Policy.MEMBER,
    query=ConversationsQuery,
    responses=(
        ResponseSpec(status=200, meaning="Conversations, newest change first", type=wire.Page[wire.Conversation]),
    ),
)
async def list_conversations(call: ApiCall[Nothing, ConversationsQuery]) -> ASGIApp:
    """Conversations of the principal, or those that `q` finds in titles and visible messages.

    The other parameters narrow the list. Runs are listed only with `kind=run`. `user` is for service keys. With
    `deleted`, the list has what was deleted and can be restored, the last deleted first.
    """
    query = call.query
    if query.deleted:
        return await _list_deleted(call)
    agent_id = _agent_id(query.agent_id)
    if agent_id is not None:
        call.principal.check_agent(agent_id)
    if query.kind == "run":
        call.principal.check_feature("runs")
    page = await call.runtime.store.conversations(
        await _listed_for(call),
        query=query.q or None,
        only=ConversationFilter(
            external_id=query.external_id,
            agent_id=agent_id,
            kind=query.kind,
            since=query.since,
            is_pinned=query.is_pinned,
            folder=query.folder,
            is_filed=query.is_filed,
        ),
        limit=query.limit,
        cursor=query.cursor or None,
    )
    users = await shown_users(call.runtime.store, call.principal, (hit.conversation.user_id for hit in page.data))
    data = [views.hit_of(hit, users, is_search=bool(query.q)) for hit in page.data]
    return json_response(wire.Page(data=data, next_cursor=page.next_cursor))


@endpoints.add(
    "POST",
    "/v1/conversations",
    policy=Policy.MEMBER,
    body=wire.NewConversation,
    is_body_optional=True,
    responses=(
        ResponseSpec(status=201, meaning="The new conversation", type=wire.Conversation),
        ResponseSpec(status=200, meaning="The conversation that has this `external_id`", type=wire.Conversation),
    ),
    errors=(404, 507),
)
async def create_conversation(call: ApiCall[wire.NewConversation, Nothing]) -> ASGIApp:
    """Make an empty conversation, or get the one that has this `external_id`, as it is. A turn without
    `conversation_id` makes one too."""
    body = call.body
    if body.model is not None:
        call.principal.check_model(body.model)
        call.runtime.providers.named(body.model)
    if body.agent_id is not None:
        call.principal.check_agent(_agent_id(body.agent_id))
    if body.kind != "chat":
        call.principal.check_feature("runs")
    new = command_of(NewConversation, body, agent_id=_agent_id(body.agent_id))
    try:
        made = await call.runtime.store.create_conversation(call.principal, new)
    except ExternalIdTaken as taken:
        return await _shown(call, taken.conversation_id)
    users = await shown_users(call.runtime.store, call.principal, [made.user_id])
    return json_response(views.conversation_of(made, users, queue=()), status=201)


@endpoints.add("GET", ONE, policy=Policy.MEMBER, responses=(CONVERSATION,), errors=(404,))
async def read_conversation(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """One conversation, with the turn that runs in it and those that wait."""
    return await _shown(call)


@endpoints.add(
    "PATCH",
    ONE,
    policy=Policy.MEMBER,
    body=wire.ConversationPatch,
    responses=(CONVERSATION,),
    errors=(404, 409, 507),
)
async def change_conversation(call: ApiCall[wire.ConversationPatch, Nothing]) -> ASGIApp:
    """Change the title, the model, the agent, the folder, the instructions or the temperature (`null` takes all but the
    title away), pin it, or mark it as read or unread; `head_turn_id` switches to another branch."""
    body = call.body
    if body.model:
        call.principal.check_model(body.model)
        call.runtime.providers.named(body.model)
    if body.agent_id is not UNSET:
        call.principal.check_agent(_agent_id(body.agent_id))
    change = command_of(
        ConversationChange,
        body,
        agent_id=_agent_id(body.agent_id),
        head_turn_id=None if body.head_turn_id is UNSET else TurnId(known_id(body.head_turn_id, "turn")),
        without=null_fields(body),
    )
    try:
        await call.runtime.store.change_conversation(call.principal, _id(call), change)
    except ConversationBusy as busy:
        raise ConversationBusy(
            busy.turn_id, busy.started_at, advice=WAIT_OR_CANCEL, waiting_for=busy.waiting_for
        ) from busy
    return await _shown(call)


@endpoints.add(
    "GET",
    "/v1/folders",
    policy=Policy.MEMBER,
    query=ListQuery,
    responses=(ResponseSpec(status=200, meaning="Folders, by name", type=wire.Page[wire.ConversationFolder]),),
)
async def list_folders(call: ApiCall[Nothing, ListQuery]) -> ASGIApp:
    """The folders of the principal's conversations. A folder exists while conversations are in it."""
    found = await call.runtime.store.folders(call.principal)
    return json_response(page_of(found, call.query, name=lambda folder: folder.name))


@endpoints.add(
    "PATCH",
    "/v1/folders",
    policy=Policy.MEMBER,
    body=wire.FolderChange,
    responses=(ResponseSpec(status=200, meaning="What was moved", type=wire.MovedConversations),),
    errors=(404, 507),
)
async def rename_folder(call: ApiCall[wire.FolderChange, Nothing]) -> ASGIApp:
    """Give a folder another name, also that of a folder that exists. With `null` its conversations are in no folder any
    more."""
    moved = await call.runtime.store.rename_folder(call.principal, call.body.name, call.body.new_name)
    return json_response(wire.MovedConversations(conversations=moved))


@endpoints.add(
    "DELETE", ONE, policy=Policy.MEMBER, responses=(ResponseSpec(status=204, meaning="Deleted"),), errors=(404, 507)
)
async def delete_conversation(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Delete a conversation and its files; a turn that runs is stopped. It can be restored for a while."""
    await call.runtime.store.delete_conversation(call.principal, _id(call))
    return no_content()


@endpoints.add(
    "POST",
    f"{ONE}/erase",
    policy=Policy.MEMBER,
    responses=(ResponseSpec(status=204, meaning="Erased, with everything in it"),),
    errors=(404, 507),
)
async def erase_conversation(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Erase a conversation for good, with its messages, traces and files, whether it was deleted before or not. A turn
    that runs is stopped first. It cannot be restored."""
    await call.runtime.engine.eraser.erase_conversation(call.principal, _id(call))
    return no_content()


@endpoints.add("POST", f"{ONE}/restore", policy=Policy.MEMBER, responses=(CONVERSATION,), errors=(404, 507))
async def restore_conversation(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Undo a delete. A conversation that is not deleted does not change."""
    await call.runtime.store.restore_conversation(call.principal, _id(call))
    return await _shown(call)


@endpoints.add(
    "GET",
    f"{ONE}/messages",
    policy=Policy.MEMBER,
    query=MessagesQuery,
    responses=(
        ResponseSpec(status=200, meaning="Visible messages along the head's branch", type=wire.Page[wire.Message]),
    ),
    errors=(404,),
)
async def list_messages(call: ApiCall[Nothing, MessagesQuery]) -> ASGIApp:
    """The public transcript."""
    query = call.query
    page = await call.runtime.store.transcript(
        call.principal, _id(call), order=query.order, limit=query.limit, cursor=query.cursor or None
    )
    data = [views.message_of(message) for message in page.data]
    return json_response(wire.Page(data=data, next_cursor=page.next_cursor))


@endpoints.add(
    "GET",
    f"{ONE}/trace",
    policy=Policy.SERVICE,
    query=PageQuery,
    responses=(ResponseSpec(status=200, meaning="All rows, internal ones included", type=wire.Page[wire.TraceRow]),),
    errors=(404,),
    feature="export",
)
async def trace_conversation(call: ApiCall[Nothing, PageQuery]) -> ASGIApp:
    """Every stored row of every branch, in order."""
    query = call.query
    conversation = await _conversation(call)
    call.principal.check_agent(conversation.agent_id)
    page = await call.runtime.store.conversation_trace(
        call.principal, conversation.id, limit=query.limit, cursor=query.cursor or None
    )
    user = await _owner(call, conversation)
    data = [views.row_of(row, user) for row in page.data]
    return json_response(wire.Page(data=data, next_cursor=page.next_cursor))


@endpoints.add(
    "GET",
    f"{ONE}/replay",
    policy=Policy.SERVICE,
    query=ReplayQuery,
    responses=(ResponseSpec(status=200, meaning="What the next turn would send of the past", type=wire.Replay),),
    errors=(404,),
    feature="export",
)
async def replay_conversation(call: ApiCall[Nothing, ReplayQuery]) -> ASGIApp:
    """Exactly what the next turn would send, in the shape of one provider (by default that of the model)."""
    runtime = call.runtime
    conversation = await _conversation(call)
    call.principal.check_agent(conversation.agent_id)
    agent = await _agent_of(call, conversation)
    model = await _next_model(call, runtime, conversation, agent)
    target = call.query.provider or runtime.providers.named(model).target
    can = await abilities_for(runtime, model, target)
    budget = budget_of(agent, runtime.settings)
    if target == "sandbox" or conversation.kind != "chat":
        budget = structs.replace(budget, turns=runtime.settings.replay_turns)
        rows: Sequence[Message] = (await runtime.store.window(conversation.id, turns=budget.turns)).rows
    else:
        rows = (await read_window(runtime.store, conversation.id, budget)).rows
    compiled = compile(
        rows,
        target=target,
        budget=budget,
        system=standing_instructions(agent, conversation.instructions),
        sees_images=can.sees_images,
        thinking=can.thinking,
        turn_count=conversation.turn_count,
        contents=await runtime.files.contents(rows, call.principal, sees_images=can.sees_images),
    )
    return json_response(views.replay_of(compiled))


@endpoints.add(
    "GET",
    "/v1/conversations/{conversation_id}/export",
    policy=Policy.SERVICE,
    responses=(ResponseSpec(status=200, meaning="The whole conversation, without loss", type=dict[str, Any]),),
    errors=(404,),
    feature="export",
)
async def export_conversation(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Everything in a conversation, as a document that `import` takes: turns of all branches, rows, events, logs."""
    conversation_id = _id(call)
    exported = await call.runtime.store.export_conversation(call.principal, conversation_id)
    for agent_id in {exported.conversation.agent_id, *(trace.turn.snapshot.agent_id for trace in exported.turns)}:
        call.principal.check_agent(agent_id)
    exported = structs.replace(exported, user=await _owner(call, exported.conversation))
    body = await asyncio.to_thread(write_export, _without_secrets(_without_storage_keys(exported)))
    headers = {
        "cache-control": "no-store",
        "content-disposition": f'attachment; filename="{conversation_id}.json"',
    }
    return Response(body, 200, headers, JSON)


IMPORT: dict[str, Any] = {
    "policy": Policy.SERVICE,
    "query": ImportQuery,
    "raw_body": "application/json",
    "responses": (ResponseSpec(status=201, meaning="The new conversations", type=wire.Imported),),
    "errors": (413, 422, 507),
    "feature": "export",
}


@endpoints.add("POST", "/v1/import", **IMPORT)
async def import_history(call: ApiCall[Nothing, ImportQuery]) -> ASGIApp:
    """Make conversations of an export of Turnkeep or ChatGPT, or of a list of messages from elsewhere.

    Messages may be those of Anthropic, OpenAI, the AI SDK (`parts`) or plain chats, or rows with `content_blocks`.
    ChatGPT's export is `conversations.json` or the whole zip; branches are kept. Leading system and developer messages
    are kept as system messages. A message without content is refused. `remarks` say what was left out. The body may be
    as large as a file may be. The conversations get new ids and belong to the principal.
    """
    # A history may be far longer than any other body, so it has the limit of a file. It waits on the disk.
    limit = call.runtime.settings.max_file_bytes
    async with (
        spooled_body(call.receive, call.headers, limit=limit) as body,
        call.runtime.imports.place(owner_of(call.principal)),
    ):
        histories, remarks = await in_daemon_thread(lambda: _read_histories(body.read(), call.query, limit * UNPACKED))
        made = await _import(call, histories, remarks)
    call.notes["conversation_id"] = made[0].id
    users = await shown_users(call.runtime.store, call.principal, [one.user_id for one in made])
    shown = [views.conversation_of(one, users) for one in made]
    return json_response(wire.Imported(conversation=shown[0], remarks=remarks, conversations=shown), status=201)


@endpoints.add("POST", "/v1/conversations/import", **IMPORT)
async def import_conversation(call: ApiCall[Nothing, ImportQuery]) -> ASGIApp:
    """The same as `POST /v1/import`."""
    return await import_history(call)


async def _import(call: ApiCall[Any, Any], histories: Sequence[Exported], remarks: list[str]) -> list[Conversation]:
    """The conversations that were made of these, in their order."""
    made: list[Conversation] = []
    for exported in histories:
        try:
            known = await _with_known_agent(call, exported)
            readable = await _with_readable_images(call, known, remarks)
            made.append(await call.runtime.store.import_conversation(call.principal, readable))
            if readable.conversation.external_id != made[-1].external_id:
                remarks.append(
                    f"Another conversation has the external_id {readable.conversation.external_id!r}. "
                    f"{made[-1].id} was imported without it."
                )
        except TurnkeepError as exc:
            if made:
                exc.detail += f" {len(made)} of {len(histories)} conversations are imported, in their order."
            raise
    return made


async def _list_deleted(call: ApiCall[Nothing, ConversationsQuery]) -> ASGIApp:
    query = call.query
    unused = ConversationsQuery(limit=query.limit, cursor=query.cursor, user=query.user, deleted=True)
    if query != unused:
        raise InvalidRequest("`deleted` lists everything that can be restored. Of the filters it takes only `user`.")
    principal = await _listed_for(call)
    page = await call.runtime.store.deleted_conversations(principal, limit=query.limit, cursor=query.cursor or None)
    users = await shown_users(call.runtime.store, call.principal, (one.user_id for one in page.data))
    retention = call.runtime.settings.retention_days * DAY_MS
    data = [
        views.conversation_of(
            one, users, deleted_at=deleted_at, purge_at=int(deleted_at + retention), instructions=None
        )
        for one in page.data
        if (deleted_at := one.deleted_at) is not None
    ]
    return json_response(wire.Page(data=data, next_cursor=page.next_cursor))


async def _listed_for(call: ApiCall[Any, ConversationsQuery]) -> Principal:
    """The one whose conversations are listed. Raises NotFound for a user whose conversations the caller may not read:
    a service key that acts for no user reads those of every user of the workspace, other callers read their own."""
    principal, user = call.principal, call.query.user
    if user is None or (principal.user is not None and user in {principal.user.id, principal.user.external_id}):
        return principal
    if principal.user_id is not None or principal.role != "service":
        raise NotFound("No such user. Only a service key that acts for no user lists conversations of other users.")
    member = await call.runtime.store.member(principal.org_id, principal.workspace_id, user)
    return structs.replace(principal, user_id=member.id)


async def _shown(call: ApiCall[Any, Any], conversation_id: ConversationId | None = None) -> ASGIApp:
    """The conversation of this id, or else that of the path."""
    found = await call.runtime.store.conversation_with_queue(call.principal, conversation_id or _id(call))
    users = await shown_users(call.runtime.store, call.principal, [found.conversation.user_id])
    return json_response(views.conversation_of(found.conversation, users, queue=found.queue))


async def _owner(call: ApiCall[Any, Any], conversation: Conversation) -> UserRef | None:
    """The user to whom the conversation belongs; None if it belongs to a service."""
    users = await shown_users(call.runtime.store, call.principal, [conversation.user_id])
    return users.get(conversation.user_id)


async def _agent_of(call: ApiCall[Any, Any], conversation: Conversation) -> AgentSpec:
    """The agent of the next turn; an empty one if the agent was deleted."""
    with suppress(NotFound):
        if conversation.agent_id is not None:
            return (await call.runtime.store.agent(call.principal, conversation.agent_id)).spec
    return AgentSpec(name="")


async def _next_model(call: ApiCall[Any, Any], runtime: Runtime, conversation: Conversation, agent: AgentSpec) -> str:
    """The model of the next turn. Precedence: conversation, agent, workspace, server."""
    model = conversation.model or agent.model
    if model is None:
        model = (await runtime.store.workspace(call.principal.org_id, call.principal.workspace_id)).model
    return model or runtime.settings.model


async def _conversation(call: ApiCall[Any, Any]) -> Conversation:
    return await call.runtime.store.conversation(call.principal, _id(call))


def _id(call: ApiCall[Any, Any]) -> ConversationId:
    conversation_id = ConversationId(call.id("conversation_id", "conv"))
    call.notes["conversation_id"] = conversation_id
    return conversation_id


def _agent_id(given: str | UnsetType | None) -> AgentId | None:
    return AgentId(known_id(given, "agent")) if isinstance(given, str) else None


def _read_histories(raw: bytes, query: ImportQuery, limit: int) -> tuple[list[Exported], list[str]]:
    """The conversations in a body, and remarks about them. Raises InvalidRequest if there is none."""
    histories: list[Exported] = []
    remarks: list[str] = []
    documents = _documents(raw, limit)
    if sum(document.count(mark) for document in documents for mark in (b",", b"[", b"{")) > JSON_VALUES:
        raise TooLarge(f"The history has more than {JSON_VALUES:,} values. {SMALLER}")
    branches = BranchLimit(sum(map(len, documents)))
    for document in documents:
        found, said = _read_document(document, query, branches)
        histories += found
        remarks += said
    if not histories:
        raise InvalidRequest("There is nothing to import: nothing was said in these conversations.")
    if query.title is not None:
        if len(histories) > 1:
            raise InvalidRequest(f"`title` fits one conversation, and these are {len(histories)}.")
        histories = [_with_title(histories[0], query.title)]
    return [_with_short_title(exported, remarks) for exported in histories], remarks


def _with_title(exported: Exported, title: str) -> Exported:
    return structs.replace(exported, conversation=structs.replace(exported.conversation, title=title))


def _with_short_title(exported: Exported, remarks: list[str]) -> Exported:
    """The export with a title that may stand here. A remark says the whole of one that is cut."""
    title = exported.conversation.title
    if title is None or len(title) <= NAME_CHARS:
        return exported
    remarks.append(f"The title was cut after {NAME_CHARS} characters. It was: {title}")
    return _with_title(exported, title[:NAME_CHARS])


def _read_document(raw: bytes, query: ImportQuery, branches: BranchLimit) -> tuple[list[Exported], Sequence[str]]:
    try:
        document = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidRequest(f"The body is not valid JSON: {exc}.") from exc
    if isinstance(document, dict) and "turnkeep_export" in document:
        del document  # it is read again into its own types, and memory for both is much
        return [read_export(raw)], ()
    if query.form is None and is_chatgpt_export(document):
        transcripts = read_chatgpt_export(document, created_at=system_clock(), limit=branches)
    else:
        transcripts = [read_history(document, form=query.form, created_at=system_clock())]
    made = [
        exported_from_rows(each.rows, title=each.title, parents=each.parents, head=each.head) for each in transcripts
    ]
    return made, [remark for each in transcripts for remark in each.remarks]


def _documents(raw: bytes, limit: int) -> list[bytes]:
    """The JSON documents of a body: itself, or those of ChatGPT's zip. All together they have at most `limit` bytes."""
    if not raw.startswith(b"PK\x03\x04"):
        return [raw]
    if raw.count(b"PK\x01\x02") > ZIP_FILES:  # the directory is read whole, before the number of files is known
        raise TooLarge(f"The zip has more than {ZIP_FILES:,} files. Send only its conversations.json.")
    try:
        archive = ZipReader(BytesIO(raw), max_bytes=limit, max_files=ZIP_FILES)
        found = [entry for entry in archive.entries if is_conversation_file(entry.path)]
        if not found:
            raise InvalidRequest("This zip has no conversations.json, so it is not an export of ChatGPT.")
        return [b"".join(archive.pieces(entry)) for entry in sorted(found, key=lambda entry: entry.path)]
    except ZipRefused as exc:
        raise InvalidRequest(f"{exc.detail} {SMALLER}") from exc


async def _with_known_agent(call: ApiCall[Any, Any], exported: Exported) -> Exported:
    """The export without its agent, if this principal has no such agent."""
    conversation = exported.conversation
    if conversation.agent_id is None:
        return exported
    try:
        await call.runtime.store.agent(call.principal, conversation.agent_id)
    except NotFound:
        return structs.replace(exported, conversation=structs.replace(conversation, agent_id=None))
    return exported


async def _with_readable_images(call: ApiCall[Any, Any], exported: Exported, remarks: list[str]) -> Exported:
    """The export with images that models accept, as a new message would have them. A line of text stands for any other,
    and a remark says why: a provider refuses every request with a broken image."""
    shown = await asyncio.to_thread(_rows_with_images, exported)
    for n, row in shown.items():
        blocks = [await _readable(call, block, n, remarks) for block in row.blocks]
        shown[n] = structs.replace(row, blocks=tuple(blocks))
    return await asyncio.to_thread(_with_rows, exported, shown) if shown else exported


def _rows_with_images(exported: Exported) -> dict[int, Message]:
    """By their places in the conversation. A legacy row has the blocks that the import makes of it."""
    rows = (row for trace in exported.turns for row in trace.rows)
    with_blocks = ((n, row, blocks_of(row)) for n, row in enumerate(rows))
    return {
        n: structs.replace(row, blocks=blocks)
        for n, row, blocks in with_blocks
        if any(isinstance(block, Image) for block in blocks)
    }


def _with_rows(exported: Exported, changed: Mapping[int, Message]) -> Exported:
    """The export with these rows at their places."""
    place = count()
    turns = (
        structs.replace(trace, rows=tuple(changed.get(next(place), row) for row in trace.rows))
        for trace in exported.turns
    )
    return structs.replace(exported, turns=tuple(turns))


async def _readable(call: ApiCall[Any, Any], block: Block, n: int, remarks: list[str]) -> Block:
    if not isinstance(block, Image):
        return block
    # The bytes decide the media type. Other systems write names that are not exact, such as image/jpg.
    data = None if block.data is None else "".join(block.data.split())
    given = wire.ImageBlock(media_type="image/png" if block.url is None else ANY_IMAGE, data=data, url=block.url)
    try:
        return await image_of(given, call.runtime, owner=owner_of(call.principal), place=f"messages[{n}]")
    except InvalidRequest as exc:
        remarks.append(f"{exc.detail} A line of text stands for it.")
        return Text(text="[image: left out]")


def _without_secrets(exported: Exported) -> Exported:
    """The export does not hold the secrets of agents, not even encrypted."""
    turns = tuple(
        structs.replace(trace, turn=structs.replace(trace.turn, snapshot=views.masked_snapshot(trace.turn.snapshot)))
        for trace in exported.turns
    )
    return structs.replace(exported, turns=turns)


def _without_storage_keys(exported: Exported) -> Exported:
    """The export does not say where the bytes of a file are stored. Clients fetch them by the id of the file."""
    return structs.replace(exported, files=tuple(structs.replace(file, storage_key="") for file in exported.files))
