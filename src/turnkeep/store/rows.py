"""Rows ↔ values: the only code that knows columns. Both databases hold the same text in the same columns.

Decision: docs/decisions/0101
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import structs

from turnkeep.ids import ConversationId, TurnId
from turnkeep.model.agents import Agent, AgentSpec, McpConnection, Snapshot
from turnkeep.model.conversations import Conversation, OpenShare, Share, events_from_rows
from turnkeep.model.files import File
from turnkeep.model.knowledge import Cell, Column, KnowledgePage, KnowledgeTable, PageSummary
from turnkeep.model.knowledge import Row as TableRow
from turnkeep.model.messages import (
    PROVIDERS,
    Legacy,
    Message,
    PublicMessage,
    Removed,
    finish_of,
    kept_rows,
    read_files,
)
from turnkeep.model.outbox import Delivery, OutboxEntry, Webhook
from turnkeep.model.principals import LIMITS, ApiKey, Member, Org, Principal, Scopes, Workspace
from turnkeep.model.sessions import Invite, PageSession, SignedIn
from turnkeep.model.turns import NO_REPORT, Feedback, RatedTurn, Turn, TurnError, TurnReport
from turnkeep.model.waits import Wait
from turnkeep.store.commands import ErasureJob, TokenBinding, Window
from turnkeep_client.wire.account import ErasedCounts
from turnkeep_client.wire.blocks import Block, FileRef, JsonObject, Part, Usage
from turnkeep_client.wire.display import parts_of
from turnkeep_client.wire.events import Failure, Recorded, Result, Source, TurnEvent

Row = Sequence[Any]

_NEW_MESSAGE_COLUMNS = (
    "turn_id, turn_sequence, id, conversation_id, role, internal, iteration, blocks, display, attachments, "
    "sources, metadata, usage, legacy, provider, created_at"
)
MESSAGE_COLUMNS = f"{_NEW_MESSAGE_COLUMNS}, removed"
"""Nothing is removed of a new message, unless it is imported."""
_TURN_COLUMNS = (
    "id, conversation_id, workspace_id, user_id, parent_turn_id, ordinal, active, status, attempt, failures, "
    "last_seq, cancel_requested_at, background, source, model, snapshot, input_tokens, output_tokens, "
    "cache_read_tokens, cache_write_tokens, month, error, metadata, created_at, started_at, settled_at"
)
TURN_COLUMNS = f"{_TURN_COLUMNS}, report, waiting, waiting_until"
"""On PostgreSQL `report` is no column: it is a row of `turn_reports`."""
_CONVERSATION_FIELDS = [name for name in Conversation.__struct_fields__ if name != "waiting_for"]
CONVERSATION_COLUMNS = ", ".join(_CONVERSATION_FIELDS)
"""`running_turn_id` is no column: each query adds it as a subquery on the single-flight index. If that turn waits, what
it waits for follows its id."""
_FIXED = {"id", "workspace_id", "user_id", "kind", "running_turn_id", "created_at", "updated_at", "deleted_at"}
_CHANGEABLE = [name for name in _CONVERSATION_FIELDS if name not in _FIXED]
CHANGED_CONVERSATION_COLUMNS = ", ".join([*_CHANGEABLE, "updated_at"])
"""What a change of a conversation writes."""
NEW_CONVERSATION_COLUMNS = ", ".join(
    ["id, org_id, workspace_id, user_id, kind, next_ordinal", *_CHANGEABLE, "created_at, updated_at"]
)
"""What a new conversation is inserted with."""
IMPORTED_TURN_COLUMNS = f"{_TURN_COLUMNS}, org_id, key_id, principal_ref"
TURN_ROW_COLUMNS = (
    "id, org_id, workspace_id, conversation_id, user_id, key_id, parent_turn_id, beside_turn_id, ordinal, active, "
    "status, attempt, failures, last_seq, seq_at_adoption, worker, lease_until, watched_until, cancel_requested_at, "
    "background, principal_ref, idempotency_key, request_hash, snapshot, source, model, metadata, month, "
    "input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, error, created_at, started_at, settled_at, "
    "files_written, watched_ms, cost, agent_id, steers_turn_id"
)
"""What a claim sends of a turn to PostgreSQL, in this order. The next three are the same for other rows."""
MESSAGE_ROW_COLUMNS = _NEW_MESSAGE_COLUMNS.replace("conversation_id", "org_id, conversation_id")
EVENT_ROW_COLUMNS = "turn_id, seq, org_id, type, payload"
LOG_ROW_COLUMNS = "turn_id, n, org_id, after_seq, level, message, ts"
FILE_COLUMNS = ", ".join(File.__struct_fields__)
NEW_FILE_COLUMNS = (
    "id, org_id, workspace_id, user_id, conversation_id, message_id, name, name_key, mime_type, size, sha256, "
    "storage_key, source, status, created_at, turn_id, saved_at, crc32, key_id, purpose"
)
ORG_COLUMNS = ", ".join(Org.__struct_fields__)
WORKSPACE_COLUMNS = ", ".join(Workspace.__struct_fields__)
KEY_COLUMNS = ", ".join(ApiKey.__struct_fields__)
MEMBER_COLUMNS = ", ".join(Member.__struct_fields__)
AGENT_COLUMNS = ", ".join(Agent.__struct_fields__)
MCP_CONNECTION_COLUMNS = ", ".join(McpConnection.__struct_fields__)
SESSION_COLUMNS = ", ".join(PageSession.__struct_fields__)
INVITE_COLUMNS = ", ".join(Invite.__struct_fields__)
SHARE_COLUMNS = ", ".join(Share.__struct_fields__)
FEEDBACK_COLUMNS = ", ".join(Feedback.__struct_fields__)
OUTBOX_COLUMNS = ", ".join(field for field in OutboxEntry.__struct_fields__ if field != "request_id")
WEBHOOK_COLUMNS = ", ".join(Webhook.__struct_fields__)
DELIVERY_COLUMNS = ", ".join(Delivery.__struct_fields__)
ERASURE_COLUMNS = ", ".join(ErasureJob.__struct_fields__)
TABLE_COLUMNS = "id, workspace_id, name, description, columns, row_count, created_at, updated_at"
"""SQLite adds `serial`, a number of the table in its row ids."""

COLUMNS = {
    "message": MESSAGE_COLUMNS,
    "turn": TURN_COLUMNS,
    "imported_turn": IMPORTED_TURN_COLUMNS,
    "turn_row": TURN_ROW_COLUMNS,
    "message_row": MESSAGE_ROW_COLUMNS,
    "event_row": EVENT_ROW_COLUMNS,
    "log_row": LOG_ROW_COLUMNS,
    "conversation": CONVERSATION_COLUMNS,
    "my_conversation": CONVERSATION_COLUMNS,
    "new_conversation": NEW_CONVERSATION_COLUMNS,
    "changed_conversation": CHANGED_CONVERSATION_COLUMNS,
    "file": FILE_COLUMNS,
    "new_file": NEW_FILE_COLUMNS,
    "org": ORG_COLUMNS,
    "workspace": WORKSPACE_COLUMNS,
    "key": KEY_COLUMNS,
    "member": MEMBER_COLUMNS,
    "agent": AGENT_COLUMNS,
    "mcp_connection": MCP_CONNECTION_COLUMNS,
    "table": TABLE_COLUMNS,
    "session": SESSION_COLUMNS,
    "invite": INVITE_COLUMNS,
    "share": SHARE_COLUMNS,
    "feedback": FEEDBACK_COLUMNS,
    "outbox": OUTBOX_COLUMNS,
    "webhook": WEBHOOK_COLUMNS,
    "delivery": DELIVERY_COLUMNS,
    "erasure": ERASURE_COLUMNS,
    "limit": ", ".join(LIMITS),
    "user_limit": ", ".join(f"user_{name}" for name in LIMITS),
}
"""The lists that queries may name, as `{turn_columns}`. `my_conversation` is that of the client's view, in which
`running_turn_id` is a column like any other."""

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
_report = msgspec.json.Decoder(TurnReport).decode
to_wait = msgspec.json.Decoder(Wait).decode
_event = msgspec.json.Decoder(TurnEvent).decode
_payloads = msgspec.json.Decoder(tuple[msgspec.Raw, ...]).decode
_spec = msgspec.json.Decoder(AgentSpec).decode
to_removed = msgspec.json.Decoder(Removed).decode
_extras = msgspec.json.Decoder(
    tuple[tuple[FileRef, ...] | None, tuple[Source, ...] | None, JsonObject | None, Legacy | None, Removed | None]
).decode
_facts = msgspec.json.Decoder(tuple[TurnError | None, JsonObject | None, TurnReport | None]).decode
to_names = msgspec.json.Decoder(tuple[str, ...]).decode
_scopes = msgspec.json.Decoder(Scopes).decode
to_counts = msgspec.json.Decoder(ErasedCounts).decode
_columns = msgspec.json.Decoder(tuple[Column, ...]).decode
_cells = msgspec.json.Decoder(tuple[Cell, ...]).decode


def json_text(value: object) -> str:
    """The JSON of a value, as it is stored."""
    return encode(value).decode()


def json_or_null(value: object) -> str | None:
    """The same, with NULL for what is empty."""
    return encode(value).decode() if value else None


def report_text(report: TurnReport) -> str | None:
    """The report of a turn as it is stored: NULL if it says nothing."""
    return None if report == NO_REPORT else json_text(report)


def message_values(message: Message) -> tuple[Any, ...]:
    """The values of `MESSAGE_COLUMNS` for a new message, in that order: all but the last one."""
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
        removed,
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
    if not (attachments or sources or metadata or legacy or removed):
        # Most rows. What is left to its default is not built, and a row without a dictionary is cheaper to keep:
        # a third of the time.
        return message
    return structs.replace(
        message,
        attachments=_refs(attachments) if attachments else (),
        sources=_sources(sources) if sources else (),
        metadata=_object(metadata) if metadata else {},
        legacy=_legacy(legacy) if legacy else None,
        removed=to_removed(removed) if removed else (),
    )


def to_replayed(conversation_id: ConversationId, row: Row) -> Message:
    """A message as the model sees it, from `turn_id, turn_sequence, id, role, internal, iteration, blocks, usage,
    provider, created_at, extras` (and what may follow): without its display, which is half the bytes of a window.
    `extras` is None for most rows, else the JSON list of attachments, sources, metadata, legacy and removed."""
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
    attachments, sources, metadata, legacy, removed = _extras(extras)
    return structs.replace(
        message,
        attachments=attachments or (),
        sources=sources or (),
        metadata=metadata or {},
        legacy=legacy,
        removed=removed or (),
    )


def to_window(conversation_id: ConversationId, rows: Sequence[Row], *, turns: int, row_limit: int) -> Window:
    """A window from rows as `to_replayed` reads them, each followed by the ordinal and the report of its turn; oldest
    first, of at most `turns` turns, and perhaps more than `row_limit`. What was removed is left out."""
    kept = rows[-row_limit:]
    is_cut = len(kept) < len(rows)
    has_more = is_cut or len({row[-2] for row in kept}) >= turns
    reports = dict.fromkeys(row[-1] for row in reversed(kept) if row[-1])
    return Window(
        rows=tuple(kept_rows([to_replayed(conversation_id, row) for row in kept])),
        is_cut=is_cut,
        first=kept[0][-2] if has_more and kept else None,
        cut=next((cut for report in reports if (cut := _report(report).cut)), None),
    )


def to_content(blocks: str | None, display: str | None) -> tuple[Part, ...]:
    """What a reader sees of a visible row: its display, or else its blocks."""
    return parts_of(_blocks(blocks or "[]")) if display is None else _parts(display)


def to_public_message(conversation_id: ConversationId, row: Row) -> PublicMessage:
    """A visible message from `id, turn_id, role, blocks, display, attachments, sources, usage, status, created_at,
    model, facts, siblings` (and what may follow). `facts` is None for most rows, else the JSON list of error, metadata
    and report."""
    id_, turn_id, role, blocks, display, attachments, sources, usage, status, created_at, model, facts, *more = row
    error, metadata, report = (None, None, None) if facts is None else _facts(facts)
    report = report or NO_REPORT
    return PublicMessage(
        id=id_,
        conversation_id=conversation_id,
        turn_id=turn_id,
        role=role,
        content=to_content(blocks, display),
        attachments=read_files(_refs(attachments), report) if attachments else (),
        sources=_sources(sources) if sources else (),
        usage=_usage(usage) if usage else None,
        status=status,
        created_at=created_at,
        error=error,
        model=None if model in PROVIDERS else model,
        metadata=metadata or {},
        finish=finish_of(role, status, report),
        siblings=tuple(more[0]) if more[0] else (),
    )


def turns_with_siblings(messages: Iterable[PublicMessage]) -> list[TurnId]:
    """The turns beside each other, whose questions tell an edit from a regenerated answer."""
    return list(dict.fromkeys(turn_id for message in messages for turn_id in message.siblings))


def with_versions(messages: Iterable[PublicMessage], questions: Mapping[TurnId, str]) -> tuple[PublicMessage, ...]:
    """The messages, with their siblings grouped by question. `questions` has what is equal for equal questions."""
    return tuple(
        structs.replace(message, versions=_versions(message.siblings, questions)) if message.siblings else message
        for message in messages
    )


def _versions(siblings: Iterable[TurnId], questions: Mapping[TurnId, str]) -> tuple[tuple[TurnId, ...], ...]:
    groups: dict[str, list[TurnId]] = {}
    for turn_id in siblings:
        groups.setdefault(questions.get(turn_id, turn_id), []).append(turn_id)
    return tuple(tuple(group) for group in groups.values())


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
        "report": report_text(turn.report),
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
        report,
        waiting,
        waiting_until,
    ) = row
    wait = to_wait(waiting) if waiting else None
    is_waiting = waiting_until is not None or (
        status == "running" and cancel_requested_at is None and wait is not None and wait.is_kept_by(attempt)
    )
    return Turn(
        id=id_,
        conversation_id=conversation_id,
        workspace_id=workspace_id,
        user_id=user_id,
        parent_turn_id=parent_turn_id,
        ordinal=ordinal,
        active=bool(active),
        status="waiting" if is_waiting else status,
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
        report=_report(report) if report else NO_REPORT,
        wait=wait,
    )


def to_conversation(row: Row) -> Conversation:
    """A conversation from the values of `CONVERSATION_COLUMNS` (and what may follow)."""
    values = dict(zip(_CONVERSATION_FIELDS, row, strict=False))
    values["metadata"] = _object(values["metadata"]) if values["metadata"] else {}
    values["is_listed"] = bool(values["is_listed"])  # SQLite has no booleans
    values["is_pinned"] = bool(values["is_pinned"])
    if running := values["running_turn_id"]:
        values["running_turn_id"], _, reason = running.partition(" ")
        values["waiting_for"] = reason or None
    return Conversation(**values)


def conversation_record(conversation: Conversation) -> dict[str, Any]:
    """The columns of a conversation by their names, but for those that it does not have itself (`org_id`, …)."""
    record = structs.asdict(conversation)
    del record["running_turn_id"], record["waiting_for"]
    return record | {"metadata": json_or_null(conversation.metadata)}


def settled_rows(rows: Sequence[Message]) -> list[Message]:
    """The rows with which a turn is settled, as they are stored: without a display that follows from the blocks, as
    that of an answer without steps does."""
    return [structs.replace(row, display=None) if _is_plain(row) else row for row in rows]


def _is_plain(row: Message) -> bool:
    return row.role == "assistant" and row.display is not None and row.display == parts_of(row.blocks)


def event_values(event: TurnEvent, *, rows: Sequence[Message] = ()) -> tuple[str, str]:
    """The values of `type, payload`. The content of the last event is not stored with it if one of these rows of the
    turn has it as its display."""
    is_in_rows = any(row.display is not None for row in rows)
    if is_in_rows and (isinstance(event, Result) or (isinstance(event, Failure) and event.content is not None)):
        event = structs.replace(event, content=())
    kind = event.__struct_config__.tag
    assert isinstance(kind, str)
    return kind, encode(event).decode()


def to_recorded(seq: int, payload: str, display: str | None) -> Recorded:
    """An event from its payload and, for the last one, the display of the turn's final row."""
    event = _event(payload)
    if display is not None and isinstance(event, Result | Failure) and event.content is not None:
        event = structs.replace(event, content=_parts(display))
    return Recorded(seq=seq, event=event)


def to_packed(events: str, display: str | None) -> list[TurnEvent]:
    """The events of a turn from one JSON array and the display of the turn's final row."""
    return [to_recorded(0, bytes(payload).decode(), display).event for payload in _payloads(events)]


class Compacted(msgspec.Struct, frozen=True):
    """What of a turn need not be stored. `sequence` is the row whose display follows from its blocks."""

    turn_id: TurnId
    drops_events: bool
    sequence: int | None


def compacted(turn: Turn, rows: Sequence[Message], payloads: Sequence[str]) -> Compacted:
    """What of a settled turn follows from its rows.

    The events that are made from rows (`events_from_rows`) must be those that are stored, byte for byte, so that a
    reader gets the same. A display must be what readers are shown of the blocks alone.

    Decision: docs/decisions/0204
    """
    final = next((row for row in reversed(rows) if not row.internal and row.display is not None), None)
    display = None if final is None or final.display is None else json_text(final.display)
    stored = [to_recorded(0, payload, display).event for payload in payloads]
    made = events_from_rows(turn, settled_rows(rows))
    follows = [encode(event) for event in stored] == [encode(event) for event in made]
    sequence = final.turn_sequence if final is not None and _is_plain(final) and follows else None
    return Compacted(turn.id, drops_events=follows, sequence=sequence)


def to_file(row: Row) -> File:
    """A file from the values of `FILE_COLUMNS`."""
    return File(**dict(zip(File.__struct_fields__, row, strict=True)))


def to_org(row: Row) -> Org:
    return Org(**dict(zip(Org.__struct_fields__, row, strict=True)))


def to_workspace(row: Row) -> Workspace:
    """A workspace from the values of `WORKSPACE_COLUMNS`."""
    values = dict(zip(Workspace.__struct_fields__, row, strict=True))
    return Workspace(**values | {"is_default": bool(values["is_default"])})


def to_member(row: Row) -> Member:
    """A member from the values of `MEMBER_COLUMNS`."""
    values = dict(zip(Member.__struct_fields__, row, strict=True))
    return Member(**values | {"is_disabled": bool(values["is_disabled"])})


def to_session(row: Row) -> PageSession:
    """A session from the values of `SESSION_COLUMNS`."""
    return PageSession(**dict(zip(PageSession.__struct_fields__, row, strict=True)))


def to_signed_in(row: Row) -> SignedIn:
    """A session, its user and its workspace, from the values of their columns one after the other."""
    user = len(PageSession.__struct_fields__)
    workspace = user + len(Member.__struct_fields__)
    end = workspace + len(Workspace.__struct_fields__)
    return SignedIn(
        session=to_session(row[:user]),
        member=to_member(row[user:workspace]),
        workspace=to_workspace(row[workspace:end]),
    )


def to_invite(row: Row) -> Invite:
    """An invite from the values of `INVITE_COLUMNS`."""
    return Invite(**dict(zip(Invite.__struct_fields__, row, strict=True)))


def to_share(row: Row) -> Share:
    """A share link from the values of `SHARE_COLUMNS`."""
    values = dict(zip(Share.__struct_fields__, row, strict=True))
    return Share(**values | {"with_files": bool(values["with_files"])})


def to_open_share(row: Row) -> OpenShare:
    """The same, followed by the org. A conversation that belongs to no user is read as a service reads it."""
    *values, org_id = row
    share = to_share(values)
    role: Literal["service", "member"] = "service" if share.user_id is None else "member"
    owner = Principal(org_id=org_id, workspace_id=share.workspace_id, user_id=share.user_id, role=role, is_pinned=True)
    return OpenShare(share=share, owner=owner)


def to_key(row: Row) -> ApiKey:
    """A key from the values of `KEY_COLUMNS` (and what may follow)."""
    values = dict(zip(ApiKey.__struct_fields__, row, strict=False))
    tools, scopes, ancestors = values["allowed_tools"], values["scopes"], values["ancestors"]
    return ApiKey(
        **values
        | {
            "allowed_tools": None if tools is None else to_names(tools),
            "scopes": None if scopes is None else _scopes(scopes),
            "ancestors": () if ancestors is None else to_names(ancestors),
        }
    )


def to_mcp_connection(row: Row) -> McpConnection:
    return McpConnection(**dict(zip(McpConnection.__struct_fields__, row, strict=True)))


def to_agent(row: Row) -> Agent:
    values = dict(zip(Agent.__struct_fields__, row, strict=True))
    return Agent(**values | {"spec": _spec(values["spec"])})


def to_summary(row: Row) -> PageSummary:
    """A page without its content, from the fields of `PageSummary` in their order."""
    return PageSummary(**dict(zip(PageSummary.__struct_fields__, row, strict=True)))


def to_page(row: Row) -> KnowledgePage:
    """A page from the fields of `KnowledgePage` in their order."""
    return KnowledgePage(**dict(zip(KnowledgePage.__struct_fields__, row, strict=True)))


def to_table(row: Row) -> KnowledgeTable:
    """A table from the values of `TABLE_COLUMNS`."""
    values = dict(zip(KnowledgeTable.__struct_fields__, row, strict=False))
    return KnowledgeTable(**values | {"columns": _columns(values["columns"])})


def to_row(row: Row) -> TableRow:
    """A row of a table from `number, cells, created_at, updated_at`."""
    values = dict(zip(TableRow.__struct_fields__, row, strict=True))
    return TableRow(**values | {"cells": _cells(values["cells"])})


def to_feedback(row: Row) -> Feedback:
    """Feedback from the values of `FEEDBACK_COLUMNS`."""
    return Feedback(**dict(zip(Feedback.__struct_fields__, row, strict=True)))


def to_rated_turn(row: Row) -> RatedTurn:
    """The same, followed by the model, the agent and the tokens of the turn."""
    *feedback, model, agent_id, input_tokens, output_tokens = row
    usage = Usage(input_tokens=input_tokens, output_tokens=output_tokens)
    return RatedTurn(feedback=to_feedback(feedback), model=model, agent_id=agent_id, usage=usage)


def to_entry(row: Row) -> OutboxEntry:
    """An entry of the outbox from the values of `OUTBOX_COLUMNS`, and the `request_id` of its turn."""
    return OutboxEntry(**dict(zip(OutboxEntry.__struct_fields__, row, strict=True)))


def to_webhook(row: Row) -> Webhook:
    """A webhook from the values of `WEBHOOK_COLUMNS`."""
    values = dict(zip(Webhook.__struct_fields__, row, strict=True))
    return Webhook(**values | {"events": to_names(values["events"]), "is_enabled": bool(values["is_enabled"])})


def to_delivery(row: Row) -> Delivery:
    """A delivery from the values of `DELIVERY_COLUMNS`."""
    values = dict(zip(Delivery.__struct_fields__, row, strict=True))
    data = _object(values["data"])
    if values["type"] == "turn.waiting":
        data["status"] = "waiting"  # such a turn is stored as a running one
    return Delivery(**values | {"data": data})


def to_erasure(row: Row) -> ErasureJob:
    """An erasure from the values of `ERASURE_COLUMNS`."""
    values = dict(zip(ErasureJob.__struct_fields__, row, strict=True))
    return ErasureJob(**values | {"counts": to_counts(values["counts"])})


def to_binding(row: Row) -> TokenBinding:
    """What a one-time token was made for, from the fields of `TokenBinding` in their order."""
    return TokenBinding(**dict(zip(TokenBinding.__struct_fields__, row, strict=True)))
