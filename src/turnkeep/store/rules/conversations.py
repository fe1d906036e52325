"""Rules of conversations: what a new one is, what a change makes of it, what an import writes, and what a share link
shows."""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import UNSET, Struct, structs

from turnkeep.errors import Conflict, ConversationBusy, InvalidRequest, NotFound
from turnkeep.ids import ConversationId, OrgId, TurnId
from turnkeep.model.conversations import Conversation, NewShare
from turnkeep.model.messages import PublicMessage, Removed
from turnkeep.model.principals import Principal
from turnkeep.model.waits import WaitReason
from turnkeep.store.checks import check_hash
from turnkeep.store.commands import ConversationChange, Exported, NewConversation, TurnTrace, rows_that_fit
from turnkeep.store.rows import (
    MESSAGE_COLUMNS,
    conversation_record,
    event_values,
    json_or_null,
    message_values,
    to_public_message,
    turn_values,
)
from turnkeep.store.rules.directory import no_agent, no_workspace
from turnkeep.store.rules.turns import no_turn

IMPORTED_CHARS = 8_000_000
"""About as much of an import is made and written together. All of it is in memory, also in PostgreSQL."""


FOLDERS = 1_000
"""A list of folders has no more than these."""


class Head(Struct, frozen=True):
    """The turn that is to become the head."""

    started_at: int | None
    settled_at: int | None


class Ahead(Struct, frozen=True):
    """The turn that runs in a conversation, or else the first that waits."""

    id: TurnId
    started_at: int | None
    waiting_for: WaitReason | None = None


def check_new(*, has_workspace: bool, has_agent: bool) -> None:
    """Raises NotFound if a new conversation has no workspace, or names an agent that does not exist."""
    if not has_workspace:
        raise no_workspace()
    if not has_agent:
        raise no_agent()


def new_conversation(
    principal: Principal, new: NewConversation, conversation_id: ConversationId, now: int
) -> Conversation:
    """A conversation without turns."""
    return Conversation(
        **structs.asdict(new),
        id=conversation_id,
        workspace_id=principal.workspace_id,
        user_id=principal.user_id,
        preview=None,
        message_count=0,
        turn_count=0,
        head_turn_id=None,
        running_turn_id=None,
        created_at=now,
        updated_at=now,
        titled_by=None if new.title is None else "user",
    )


def insertion(conversation: Conversation, org_id: OrgId, *, next_ordinal: int = 1) -> dict[str, Any]:
    """The columns with which a conversation is inserted."""
    return conversation_record(conversation) | {"org_id": org_id, "next_ordinal": next_ordinal}


def check_head(head: Head | None, ahead: Ahead | None) -> None:
    """Raises unless this turn can become the head: it has run and ended, and nothing runs or waits."""
    if head is None:
        raise no_turn()
    check_idle(ahead)
    if head.started_at is None or head.settled_at is None:
        raise InvalidRequest("Only a turn that has run and ended can become the head.")


def check_idle(ahead: Ahead | None) -> None:
    """Raises ConversationBusy if a turn runs or waits."""
    if ahead is not None:
        raise ConversationBusy(ahead.id, ahead.started_at, waiting_for=ahead.waiting_for)


def removed_with(before: Removed, more: Removed) -> Removed:
    """What is removed of a row after a further removal."""
    return "all" if before == "all" or more == "all" else tuple(sorted({*before, *more}))


def check_expected_head(head: TurnId | None, change: ConversationChange) -> None:
    """Raises Conflict if another turn became the head since the caller looked."""
    if change.expected_head is not UNSET and head != change.expected_head:
        raise Conflict(
            "The conversation has changed meanwhile. Read it again, and repeat the change if you still want it."
        )


def changed(
    before: Conversation, change: ConversationChange, now: int, *, more_turns: int = 0, more_messages: int = 0
) -> Conversation:
    """The conversation after a change. A new head moves it up in the list; a new title, model or agent does not."""
    others = {"without", "expected_head", "appended", "attached", "is_unread", "removed"}
    given = {field: getattr(change, field) for field in change.__struct_fields__ if field not in others}
    values = {
        field: value or None if isinstance(value, str) else value for field, value in given.items() if value is not None
    }
    return structs.replace(
        before,
        **values | dict.fromkeys(change.without),
        read_at=_read_at(before, change, now),
        titled_by=before.titled_by if change.title is None else "user",
        turn_count=before.turn_count + more_turns,
        message_count=before.message_count + more_messages,
        updated_at=before.updated_at if change.head_turn_id is None else now,
    )


def _read_at(before: Conversation, change: ConversationChange, now: int) -> int | None:
    """A user who switches to another branch has seen the conversation; what was unread before stays unread."""
    if change.is_unread is not None:
        return 0 if change.is_unread else max(now, before.updated_at)
    has_seen = change.head_turn_id is not None and before.read_at is not None and not before.is_unread
    return now if has_seen else before.read_at


def imported_conversation(exported: Exported, principal: Principal) -> dict[str, Any]:
    """The columns of an imported conversation. Its ids were made for this database."""
    last = max((trace.turn.ordinal for trace in exported.turns), default=0)
    return insertion(exported.conversation, principal.org_id, next_ordinal=last + 1)


def without_external_id(exported: Exported) -> Exported:
    """The same conversation, for a principal who has another one of its external id."""
    return structs.replace(exported, conversation=structs.replace(exported.conversation, external_id=None))


class ImportedRows(Struct, frozen=True):
    """The columns of imported turns, and of their messages, events and log lines."""

    turns: list[dict[str, Any]]
    messages: list[dict[str, Any]]
    events: list[dict[str, Any]]
    logs: list[dict[str, Any]]


def imported_rows(traces: Sequence[TurnTrace], principal: Principal) -> Iterator[ImportedRows]:
    """What an import writes, in groups of turns of limited size. It belongs to the importer."""
    rows, size = ImportedRows([], [], [], []), 0
    for trace in traces:
        if size >= IMPORTED_CHARS:
            yield rows
            rows, size = ImportedRows([], [], [], []), 0
        messages = _messages(trace, principal.org_id)
        events = _events(trace, principal.org_id)
        rows.turns.append(_turn(trace, principal))
        rows.messages.extend(messages)
        rows.events.extend(events)
        rows.logs.extend(_logs(trace, principal.org_id))
        size += sum(len(value) for row in (*messages, *events) for value in row.values() if isinstance(value, str))
    yield rows


def _turn(trace: TurnTrace, principal: Principal) -> dict[str, Any]:
    return turn_values(trace.turn) | {
        "org_id": principal.org_id,
        "workspace_id": principal.workspace_id,
        "user_id": principal.user_id,
        "key_id": principal.key_id,
        "principal_ref": principal.ref,
        "last_seq": len(trace.events),
    }


def _messages(trace: TurnTrace, org_id: OrgId) -> list[dict[str, Any]]:
    names = MESSAGE_COLUMNS.split(", ")
    return [
        dict(zip(names, (*message_values(row), json_or_null(row.removed)), strict=True)) | {"org_id": org_id}
        for row in trace.rows
    ]


def _events(trace: TurnTrace, org_id: OrgId) -> list[dict[str, Any]]:
    return [
        {"turn_id": trace.turn.id, "seq": seq, "org_id": org_id, "type": kind, "payload": payload}
        for seq, (kind, payload) in enumerate(
            (event_values(each.event, rows=trace.rows) for each in trace.events), start=1
        )
    ]


def _logs(trace: TurnTrace, org_id: OrgId) -> list[dict[str, Any]]:
    return [
        {"turn_id": trace.turn.id, "n": n, "org_id": org_id, **structs.asdict(line)}
        for n, line in enumerate(trace.logs, start=1)
    ]


def share_record(share: NewShare) -> dict[str, Any]:
    """What a new share link is written with."""
    return {
        "with_files": share.with_files,
        "hash": check_hash(share.secret_hash, "A link"),
        "ms": int(share.seconds * 1000),
    }


def shared_page(rows: Sequence[Sequence[Any]], conversation_id: ConversationId) -> tuple[PublicMessage, ...]:
    """What a share link shows of these rows, which are those of whole turns: the question and the answer of each. Words
    that steered a turn were meant for the model alone, and so are instructions."""
    shown: list[PublicMessage] = []
    asked: set[TurnId] = set()
    for row in rows:
        message = to_public_message(conversation_id, (*row, None))
        if message.role == "assistant":
            shown.append(message)
        elif message.role == "user" and message.turn_id not in asked:
            asked.add(message.turn_id)
            shown.append(message)
    return tuple(shown)


def turns_that_fit(turns: Sequence[tuple[TurnId, int]], rows: Sequence[Sequence[Any]], limit: int) -> int:
    """How many of these turns a page shows: at most `limit`, of about so many bytes as a page may have, and at least
    one. `rows` are those of the turns, in order, with the turn second."""
    fit = rows_that_fit(rows, len(rows))
    if fit >= len(rows):
        return limit
    cut: TurnId = rows[fit][1]
    return max(1, min(limit, [turn_id for turn_id, _ in turns].index(cut)))


def nothing_to_share() -> Conflict:
    return Conflict(
        "There is nothing to share: the conversation has no such turn that has ended. Share it when the answer is "
        "complete."
    )


def no_share() -> NotFound:
    return NotFound("No such share link. It may have ended.")


def no_folder() -> NotFound:
    return NotFound("No such folder. A folder exists while conversations are in it.")


def no_conversation() -> NotFound:
    return NotFound("No such conversation.")
