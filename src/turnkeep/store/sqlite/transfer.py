"""Whole turns and whole conversations that come from elsewhere, or go there."""

from turnkeep.errors import NotFound
from turnkeep.ids import ConversationId, check_id
from turnkeep.model.conversations import Conversation
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Turn
from turnkeep.store import checks
from turnkeep.store.commands import Exported, TurnTrace
from turnkeep.store.exports import rename
from turnkeep.store.rows import (
    json_or_null,
    json_text,
    message_values,
    to_file,
    to_recorded,
    to_turn,
)
from turnkeep.store.rules.files import imported_files
from turnkeep.store.sqlite.conversations import by_id
from turnkeep.store.sqlite.history import ALL, own_conversation, trace_of
from turnkeep.store.sqlite.io.executors import StoreThreads
from turnkeep.store.sqlite.io.session import Session
from turnkeep.store.sqlite.leases import insert_events
from turnkeep.store.sqlite.ownership import check_service, in_workspace
from turnkeep.store.sqlite.search import refresh_title


class SqliteTransfer(StoreThreads):
    """Export and import, without loss."""

    async def export_conversation(self, principal: Principal, conversation_id: ConversationId) -> Exported:
        check_service(principal)
        return await self._read(_export, principal, check_id(conversation_id, "conv"))

    async def import_conversation(self, principal: Principal, exported: Exported) -> Conversation:
        checks.check_exported(exported)
        renamed = rename(exported, workspace_id=principal.workspace_id, user_id=principal.user_id)
        return await self._write(_import_renamed, principal, renamed)


def _export(session: Session, principal: Principal, conversation_id: ConversationId) -> Exported:
    with session.snapshot():
        conversation = own_conversation(session, principal, conversation_id)
        which = {"conversation": conversation_id}
        return Exported(
            conversation=conversation,
            turns=tuple(_export_turn(session, to_turn(row)) for row in session.rows("conversation_turns", which)),
            files=tuple(to_file(row) for row in session.rows("files_of_conversation", which)),
        )


def _export_turn(session: Session, turn: Turn) -> TurnTrace:
    stored = session.rows("events_after", (turn.id, 0, ALL))
    return trace_of(session, turn, [to_recorded(*row) for row in stored])


def _import_renamed(session: Session, principal: Principal, exported: Exported) -> Conversation:
    """Insert what is given as it is; its ids were made for this database."""
    conversation = exported.conversation
    owner = in_workspace(principal)
    if session.row("workspace_exists", owner) is None:
        raise NotFound("No such workspace.")
    session.run(
        "insert_conversation",
        owner
        | {
            "id": conversation.id,
            "user": principal.user_id,
            "kind": conversation.kind,
            "agent": conversation.agent_id,
            "model": conversation.model,
            "workflow": conversation.workflow_id,
            "title": conversation.title,
            "preview": conversation.preview,
            "metadata": json_or_null(conversation.metadata),
            "message_count": conversation.message_count,
            "turn_count": conversation.turn_count,
            "next_ordinal": max((trace.turn.ordinal for trace in exported.turns), default=0) + 1,
            "head": conversation.head_turn_id,
            "created_at": conversation.created_at,
            "updated_at": conversation.updated_at,
        },
    )
    if conversation.title is not None:
        refresh_title(session, conversation.id, conversation.title)
    for trace in exported.turns:
        _import_turn(session, principal, trace)
    session.many("insert_file", imported_files(exported.files, principal))
    return by_id(session, conversation.id)


def _import_turn(session: Session, principal: Principal, trace: TurnTrace) -> None:
    turn, org_id = trace.turn, principal.org_id
    session.run(
        "insert_imported_turn",
        {
            "id": turn.id,
            "org": org_id,
            "workspace": principal.workspace_id,
            "conversation": turn.conversation_id,
            "user": principal.user_id,
            "key": principal.key_id,
            "parent": turn.parent_turn_id,
            "ordinal": turn.ordinal,
            "active": turn.active,
            "status": turn.status,
            "attempt": turn.attempt,
            "failures": turn.failures,
            "last_seq": len(trace.events),
            "cancel_requested_at": turn.cancel_requested_at,
            "background": turn.background,
            "ref": principal.ref,
            "snapshot": json_text(turn.snapshot),
            "source": turn.source,
            "model": turn.model,
            "metadata": json_or_null(turn.metadata),
            "month": turn.month,
            "input": turn.usage.input_tokens,
            "output": turn.usage.output_tokens,
            "cache_read": turn.usage.cache_read_tokens,
            "cache_write": turn.usage.cache_write_tokens,
            "error": None if turn.error is None else json_text(turn.error),
            "created_at": turn.created_at,
            "started_at": turn.started_at,
            "settled_at": turn.settled_at,
        },
    )
    session.many("insert_message", [(*message_values(row), org_id) for row in trace.rows])
    insert_events(session, turn.id, org_id, 0, [recorded.event for recorded in trace.events])
    session.many(
        "insert_log",
        [
            (turn.id, n, org_id, line.after_seq, line.level, line.message, line.ts)
            for n, line in enumerate(trace.logs, start=1)
        ],
    )
