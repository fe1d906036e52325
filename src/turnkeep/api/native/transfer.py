"""Whole conversations that leave, and histories that come in: our own exports, and those of others."""

import asyncio
from typing import Any

import msgspec
from msgspec import Struct, structs
from starlette.responses import Response
from starlette.types import ASGIApp

from turnkeep.api import showing, wire
from turnkeep.api.agent_wire import masked_snapshot
from turnkeep.api.http.endpoints import Call, Endpoints, Nothing, Policy, Reply
from turnkeep.api.http.requests import read_body
from turnkeep.api.http.responses import JSON, json_response
from turnkeep.clock import system_clock
from turnkeep.errors import InvalidRequest, NotFound
from turnkeep.ids import ConversationId
from turnkeep.store.commands import Exported
from turnkeep.store.portable import exported_from_rows, read_export, write_export
from turnkeep.transfer.foreign import Form, read_history

endpoints = Endpoints("conversations")


class ImportQuery(Struct, frozen=True, kw_only=True):
    title: wire.Name | None = None
    form: Form | None = None
    """The form of a foreign history, where it does not show it."""


class Imported(Struct, frozen=True, kw_only=True):
    """The new conversation, and what of the history has no equal here and became a line of text."""

    conversation: wire.Conversation
    remarks: list[str]


@endpoints.add(
    "GET",
    "/v1/conversations/{conversation_id}/export",
    policy=Policy.SERVICE,
    replies=(Reply(status=200, meaning="The whole conversation, without loss", type=dict[str, Any]),),
    errors=(404,),
)
async def export_conversation(call: Call[Nothing, Nothing]) -> ASGIApp:
    """Everything in a conversation, as a document that `import` takes: turns of all branches, rows, events, logs."""
    conversation_id = ConversationId(call.id("conversation_id", "conv"))
    call.notes["conversation_id"] = conversation_id
    exported = await call.runtime.store.export_conversation(call.principal, conversation_id)
    body = await asyncio.to_thread(write_export, _without_secrets(_without_places(exported)))
    headers = {
        "cache-control": "no-store",
        "content-disposition": f'attachment; filename="{conversation_id}.json"',
    }
    return Response(body, 200, headers, JSON)


@endpoints.add(
    "POST",
    "/v1/conversations/import",
    policy=Policy.SERVICE,
    query=ImportQuery,
    raw_body="application/json",
    replies=(Reply(status=201, meaning="The new conversation", type=Imported),),
    errors=(413, 422, 507),
)
async def import_conversation(call: Call[Nothing, ImportQuery]) -> ASGIApp:
    """Make a conversation of an export, or of a list of messages as Anthropic, OpenAI or plain chats keep them.

    Leading system and developer messages are kept as system messages. A message without content is refused. The body
    may be as large as a file may be. The conversation gets new ids and belongs to the principal.
    """
    # A history may be far longer than any other body, so it has the limit of a file and is read here.
    raw = await read_body(call.receive, call.headers, limit=call.runtime.settings.max_file_bytes)
    exported, remarks = await asyncio.to_thread(_read, raw, call.query)
    exported = await _with_known_agent(call, exported)
    made = await call.runtime.store.import_conversation(call.principal, exported)
    call.notes["conversation_id"] = made.id
    return json_response(Imported(conversation=showing.conversation_of(made), remarks=remarks), status=201)


def _read(raw: bytes, query: ImportQuery) -> tuple[Exported, list[str]]:
    try:
        document = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidRequest(f"The body is not valid JSON: {exc}.") from exc
    if isinstance(document, dict) and "turnkeep_export" in document:
        exported = read_export(raw)
        if query.title is not None:
            conversation = structs.replace(exported.conversation, title=query.title)
            exported = structs.replace(exported, conversation=conversation)
        return exported, []
    transcript = read_history(document, form=query.form, created_at=system_clock())
    return exported_from_rows(transcript.rows, title=query.title), list(transcript.remarks)


async def _with_known_agent(call: Call[Any, Any], exported: Exported) -> Exported:
    """An agent that is not this principal's own is left behind."""
    conversation = exported.conversation
    if conversation.agent_id is None:
        return exported
    try:
        await call.runtime.store.agent(call.principal, conversation.agent_id)
    except NotFound:
        return structs.replace(exported, conversation=structs.replace(conversation, agent_id=None))
    return exported


def _without_secrets(exported: Exported) -> Exported:
    """What agents call their tools with stays here, sealed as it is."""
    turns = tuple(
        structs.replace(trace, turn=structs.replace(trace.turn, snapshot=masked_snapshot(trace.turn.snapshot)))
        for trace in exported.turns
    )
    return structs.replace(exported, turns=turns)


def _without_places(exported: Exported) -> Exported:
    """Where the bytes of a file lie is nobody's business outside; they are fetched by the file's id."""
    return structs.replace(exported, files=tuple(structs.replace(file, storage_key="") for file in exported.files))
