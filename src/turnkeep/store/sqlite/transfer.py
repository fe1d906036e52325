"""Whole conversations on SQLite: exported, and imported under new ids."""

from turnkeep.ids import ConversationId, check_id
from turnkeep.model.conversations import Conversation
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Turn
from turnkeep.store import checks
from turnkeep.store.commands import Exported, TurnTrace
from turnkeep.store.exports import rename
from turnkeep.store.rows import to_file, to_recorded, to_turn
from turnkeep.store.rules.conversations import (
    check_new,
    imported_conversation,
    imported_events,
    imported_logs,
    imported_messages,
    imported_turn,
)
from turnkeep.store.rules.files import imported_files
from turnkeep.store.rules.refusals import check_service
from turnkeep.store.sqlite.conversations import by_id, own_conversation
from turnkeep.store.sqlite.history import ALL, trace_of
from turnkeep.store.sqlite.io.executors import StoreThreads
from turnkeep.store.sqlite.io.session import Session
from turnkeep.store.sqlite.ownership import in_workspace
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
    conversation, org_id = exported.conversation, principal.org_id
    has_workspace = session.row("workspace_exists", in_workspace(principal)) is not None
    check_new(has_workspace=has_workspace, has_agent=True)
    session.run("insert_conversation", imported_conversation(exported, principal))
    if conversation.title is not None:
        refresh_title(session, conversation.id, conversation.title)
    for trace in exported.turns:
        session.run("insert_imported_turn", imported_turn(trace, principal))
        session.many("insert_imported_message", imported_messages(trace, org_id))
        session.many("insert_imported_event", imported_events(trace, org_id))
        session.many("insert_imported_log", imported_logs(trace, org_id))
    session.many("insert_file", imported_files(exported.files, principal))
    return by_id(session, conversation.id)
