"""Rows ↔ values: the only code that knows columns. Both databases hold the same text in the same columns."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import structs

from turnkeep.ids import ConversationId
from turnkeep.model.agents import Agent, AgentSpec, Snapshot
from turnkeep.model.blocks import Block, FileRef, JsonObject
from turnkeep.model.conversations import Conversation
from turnkeep.model.display import parts_of
from turnkeep.model.events import Recorded, Result, Source, TurnEvent
from turnkeep.model.files import File
from turnkeep.model.messages import Legacy, Message, PublicMessage
from turnkeep.model.parts import Part
from turnkeep.model.principals import ApiKey, Member, Org, Workspace
from turnkeep.model.turns import Turn, TurnError
from turnkeep.model.usage import Usage

Row = Sequence[Any]

MESSAGE_COLUMNS = (
    "turn_id, turn_sequence, id, conversation_id, role, internal, iteration, blocks, display, attachments, "
    "sources, metadata, usage, legacy, provider, created_at"
)
TURN_COLUMNS = (
    "id, conversation_id, workspace_id, user_id, parent_turn_id, ordinal, active, status, attempt, failures, "
    "last_seq, cancel_requested_at, background, source, model, snapshot, input_tokens, output_tokens, "
    "cache_read_tokens, cache_write_tokens, month, error, metadata, created_at, started_at, settled_at"
)
CONVERSATION_COLUMNS = (
    "id, workspace_id, user_id, kind, agent_id, model, workflow_id, title, preview, message_count, turn_count, "
    "head_turn_id, running_turn_id, metadata, created_at, updated_at, deleted_at"
)
"""`running_turn_id` is no column: each query adds it as a subquery on the single-flight index."""
FILE_COLUMNS = (
    "id, workspace_id, conversation_id, message_id, name, mime_type, size, sha256, storage_key, source, status, "
    "created_at, turn_id, saved_at, crc32"
)
WORKSPACE_COLUMNS = "id, org_id, name, is_default, model, monthly_message_limit, user_monthly_message_limit, created_at"
KEY_COLUMNS = (
    "id, org_id, name, monthly_message_limit, requests_per_minute, allowed_tools, created_at, revoked_at, workspace_id"
)
MEMBER_COLUMNS = "id, workspace_id, external_id, role, created_at"
AGENT_COLUMNS = "id, workspace_id, spec, created_at, updated_at"
TABLE_COLUMNS = "id, workspace_id, name, description, columns, row_count, created_at, updated_at"

encode = msgspec.json.Encoder().encode
_blocks = msgspec.json.Decoder(tuple[Block, ...]).decode
_parts = msgspec.json.Decoder(tuple[Part, ...]).decode
_refs = msgspec.json.Decoder(tuple[FileRef, ...]).decode
_sources = msgspec.json.Decoder(tuple[Source, ...]).decode
_object = msgspec.json.Decoder(JsonObject).decode
_usage = msgspec.json.Decoder(Usage).decode
_legacy = msgspec.json.Decoder(Legacy).decode
_snapshot = msgspec.json.Decoder(Snapshot).decode
_error = msgspec.json.Decoder(TurnError).decode
_event = msgspec.json.Decoder(TurnEvent).decode
_spec = msgspec.json.Decoder(AgentSpec).decode
_extras = msgspec.json.Decoder(
    tuple[tuple[FileRef, ...] | None, tuple[Source, ...] | None, JsonObject | None, Legacy | None]
).decode
_names = msgspec.json.Decoder(tuple[str, ...]).decode


def json_text(value: object) -> str:
    """The JSON of a value, as it is stored."""
    return encode(value).decode()


def json_or_null(value: object) -> str | None:
    """The same, with NULL for what is empty."""
    return encode(value).decode() if value else None


def message_values(message: Message) -> tuple[Any, ...]:
    """The values of `MESSAGE_COLUMNS`, in that order."""
    return (
        message.turn_id,
        message.turn_sequence,
        message.id,
        message.conversation_id,
        message.role,
        message.internal,
        message.iteration,
        encode(message.blocks).decode(),
        None if message.display is None else encode(message.display).decode(),
        json_or_null(message.attachments),
        json_or_null(message.sources),
        json_or_null(message.metadata),
        json_or_null(message.usage),
        json_or_null(message.legacy),
        message.provider,
        message.created_at,
    )


def to_message(row: Row) -> Message:
    """A message from the values of `MESSAGE_COLUMNS`."""
    (
        turn_id,
        turn_sequence,
        id_,
        conversation_id,
        role,
        internal,
        iteration,
        blocks,
        display,
        attachments,
        sources,
        metadata,
        usage,
        legacy,
        provider,
        created_at,
    ) = row
    message = Message(
        id=id_,
        turn_id=turn_id,
        conversation_id=conversation_id,
        turn_sequence=turn_sequence,
        role=role,
        blocks=_blocks(blocks),
        created_at=created_at,
        iteration=iteration,
        internal=bool(internal),
        display=None if display is None else _parts(display),
        usage=_usage(usage) if usage else None,
        provider=provider,
    )
    if not (attachments or sources or metadata or legacy):
        # Most rows. What is left to its default is not built, and a row without a dictionary is cheaper to keep:
        # a third of the time.
        return message
    return structs.replace(
        message,
        attachments=_refs(attachments) if attachments else (),
        sources=_sources(sources) if sources else (),
        metadata=_object(metadata) if metadata else {},
        legacy=_legacy(legacy) if legacy else None,
    )


def to_replayed(conversation_id: ConversationId, row: Row) -> Message:
    """A message as the model sees it, from `turn_id, turn_sequence, id, role, internal, iteration, blocks, usage,
    provider, created_at, extras` (and what may follow): without its display, which is half the bytes of a window.
    `extras` is None for most rows, else the JSON list of attachments, sources, metadata and legacy."""
    turn_id, sequence, id_, role, internal, iteration, blocks, usage, provider, created_at, extras, *_ = row
    message = Message(
        id=id_,
        turn_id=turn_id,
        conversation_id=conversation_id,
        turn_sequence=sequence,
        role=role,
        blocks=_blocks(blocks),
        created_at=created_at,
        iteration=iteration,
        internal=bool(internal),
        usage=_usage(usage) if usage else None,
        provider=provider,
    )
    if extras is None:
        return message
    attachments, sources, metadata, legacy = _extras(extras)
    return structs.replace(
        message, attachments=attachments or (), sources=sources or (), metadata=metadata or {}, legacy=legacy
    )


def to_content(blocks: str | None, display: str | None) -> tuple[Part, ...]:
    """What a reader sees of a visible row: its display, or else its blocks."""
    return parts_of(_blocks(blocks or "[]")) if display is None else _parts(display)


def to_public_message(conversation_id: ConversationId, row: Row) -> PublicMessage:
    """A visible message from `id, turn_id, role, blocks, display, attachments, sources, usage, status, created_at,
    siblings` (and what may follow)."""
    id_, turn_id, role, blocks, display, attachments, sources, usage, status, created_at, siblings, *_ = row
    return PublicMessage(
        id=id_,
        conversation_id=conversation_id,
        turn_id=turn_id,
        role=role,
        content=to_content(blocks, display),
        attachments=_refs(attachments) if attachments else (),
        sources=_sources(sources) if sources else (),
        usage=_usage(usage) if usage else None,
        status=status,
        created_at=created_at,
        siblings=tuple(siblings) if siblings else (),
    )


def turn_values(turn: Turn) -> dict[str, Any]:
    """The values of `TURN_COLUMNS`, by name."""
    usage = turn.usage
    return {
        "id": turn.id,
        "conversation_id": turn.conversation_id,
        "workspace_id": turn.workspace_id,
        "user_id": turn.user_id,
        "parent_turn_id": turn.parent_turn_id,
        "ordinal": turn.ordinal,
        "active": turn.active,
        "status": turn.status,
        "attempt": turn.attempt,
        "failures": turn.failures,
        "last_seq": turn.last_seq,
        "cancel_requested_at": turn.cancel_requested_at,
        "background": turn.background,
        "source": turn.source,
        "model": turn.model,
        "snapshot": json_text(turn.snapshot),
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "month": turn.month,
        "error": None if turn.error is None else json_text(turn.error),
        "metadata": json_or_null(turn.metadata),
        "created_at": turn.created_at,
        "started_at": turn.started_at,
        "settled_at": turn.settled_at,
    }


def to_turn(row: Row) -> Turn:
    """A turn from the values of `TURN_COLUMNS`."""
    (
        id_,
        conversation_id,
        workspace_id,
        user_id,
        parent_turn_id,
        ordinal,
        active,
        status,
        attempt,
        failures,
        last_seq,
        cancel_requested_at,
        background,
        source,
        model,
        snapshot,
        input_tokens,
        output_tokens,
        cache_read_tokens,
        cache_write_tokens,
        month,
        error,
        metadata,
        created_at,
        started_at,
        settled_at,
    ) = row
    return Turn(
        id=id_,
        conversation_id=conversation_id,
        workspace_id=workspace_id,
        user_id=user_id,
        parent_turn_id=parent_turn_id,
        ordinal=ordinal,
        active=bool(active),
        status=status,
        attempt=attempt,
        failures=failures,
        last_seq=last_seq,
        cancel_requested_at=cancel_requested_at,
        background=bool(background),
        source=source,
        model=model,
        snapshot=_snapshot(snapshot) if snapshot else Snapshot(),
        usage=Usage(
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cache_read_tokens=cache_read_tokens,
            cache_write_tokens=cache_write_tokens,
        ),
        month=month,
        error=_error(error) if error else None,
        metadata=_object(metadata) if metadata else {},
        created_at=created_at,
        started_at=started_at,
        settled_at=settled_at,
    )


def to_conversation(row: Row) -> Conversation:
    """A conversation from the values of `CONVERSATION_COLUMNS`."""
    (
        id_,
        workspace_id,
        user_id,
        kind,
        agent_id,
        model,
        workflow_id,
        title,
        preview,
        message_count,
        turn_count,
        head_turn_id,
        running_turn_id,
        metadata,
        created_at,
        updated_at,
        deleted_at,
        *_,
    ) = row
    return Conversation(
        id=id_,
        workspace_id=workspace_id,
        user_id=user_id,
        kind=kind,
        agent_id=agent_id,
        model=model,
        workflow_id=workflow_id,
        title=title,
        preview=preview,
        message_count=message_count,
        turn_count=turn_count,
        head_turn_id=head_turn_id,
        running_turn_id=running_turn_id,
        metadata=_object(metadata) if metadata else {},
        created_at=created_at,
        updated_at=updated_at,
        deleted_at=deleted_at,
    )


def event_values(event: TurnEvent) -> tuple[str, str]:
    """The values of `type, payload`. The content of a result is not stored twice: it is the final row's display."""
    if isinstance(event, Result):
        event = structs.replace(event, content=())
    kind = event.__struct_config__.tag
    assert isinstance(kind, str)
    return kind, encode(event).decode()


def to_recorded(seq: int, payload: str, display: str | None) -> Recorded:
    """An event from its payload and, for a result, the display of the turn's final row."""
    event = _event(payload)
    if isinstance(event, Result) and display is not None:
        event = structs.replace(event, content=_parts(display))
    return Recorded(seq=seq, event=event)


def to_file(row: Row) -> File:
    """A file from the values of `FILE_COLUMNS`."""
    (
        id_,
        workspace_id,
        conversation_id,
        message_id,
        name,
        mime_type,
        size,
        sha256,
        storage_key,
        source,
        status,
        created_at,
        turn_id,
        saved_at,
        crc32,
        *_,
    ) = row
    return File(
        id=id_,
        workspace_id=workspace_id,
        conversation_id=conversation_id,
        message_id=message_id,
        name=name,
        mime_type=mime_type,
        size=size,
        sha256=sha256,
        storage_key=storage_key,
        source=source,
        status=status,
        created_at=created_at,
        turn_id=turn_id,
        saved_at=saved_at,
        crc32=crc32,
    )


def to_org(row: Row) -> Org:
    id_, name, created_at, *_ = row
    return Org(id=id_, name=name, created_at=created_at)


def to_workspace(row: Row) -> Workspace:
    """A workspace from the values of `WORKSPACE_COLUMNS`."""
    (id_, org_id, name, is_default, model, monthly_message_limit, user_monthly_message_limit, created_at, *_) = row
    return Workspace(
        id=id_,
        org_id=org_id,
        name=name,
        is_default=bool(is_default),
        model=model,
        monthly_message_limit=monthly_message_limit,
        user_monthly_message_limit=user_monthly_message_limit,
        created_at=created_at,
    )


def to_member(row: Row) -> Member:
    id_, workspace_id, external_id, role, created_at, *_ = row
    return Member(id=id_, workspace_id=workspace_id, external_id=external_id, role=role, created_at=created_at)


def to_key(row: Row) -> ApiKey:
    """A key from the values of `KEY_COLUMNS`."""
    (
        id_,
        org_id,
        name,
        monthly_message_limit,
        requests_per_minute,
        allowed_tools,
        created_at,
        revoked_at,
        workspace_id,
        *_,
    ) = row
    return ApiKey(
        id=id_,
        org_id=org_id,
        name=name,
        monthly_message_limit=monthly_message_limit,
        requests_per_minute=requests_per_minute,
        allowed_tools=_names(allowed_tools) if allowed_tools is not None else None,
        created_at=created_at,
        revoked_at=revoked_at,
        workspace_id=workspace_id,
    )


def to_agent(row: Row) -> Agent:
    id_, workspace_id, spec, created_at, updated_at, *_ = row
    return Agent(id=id_, workspace_id=workspace_id, spec=_spec(spec), created_at=created_at, updated_at=updated_at)
