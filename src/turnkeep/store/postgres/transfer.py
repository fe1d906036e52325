"""Whole conversations on PostgreSQL: exported, and imported under new ids."""

from collections.abc import Sequence

from turnkeep.ids import ConversationId, check_id
from turnkeep.model.conversations import Conversation
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Turn
from turnkeep.store.checks import check_exported
from turnkeep.store.commands import Exported, TurnTrace
from turnkeep.store.exports import rename
from turnkeep.store.postgres.history import ALL
from turnkeep.store.postgres.io.database import Database, Statements, owner_of
from turnkeep.store.postgres.search import title_tokens
from turnkeep.store.rows import json_text, to_conversation, to_file, to_message, to_recorded, to_turn
from turnkeep.store.rules.conversations import (
    imported_conversation,
    imported_events,
    imported_logs,
    imported_messages,
    imported_turn,
)
from turnkeep.store.rules.files import imported_files
from turnkeep.store.rules.refusals import check_service, no_conversation, no_workspace
from turnkeep_client.wire.events import LogLine, Recorded

TURNS_AT_ONCE = 20


class PostgresTransfer:
    """Export and import, without loss."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def export_conversation(self, principal: Principal, conversation_id: ConversationId) -> Exported:
        check_service(principal)
        check_id(conversation_id, "conv")

        async def work(statements: Statements) -> Exported:
            found = await statements.fetch("own_conversation", *owner_of(principal), conversation_id)
            if not found:
                raise no_conversation()
            turns = [to_turn(row) for row in await statements.fetch("conversation_turns", conversation_id)]
            files = await statements.fetch("files_of_conversation", conversation_id)
            return Exported(
                conversation=to_conversation(found[0]),
                turns=tuple([await _trace(statements, turn) for turn in turns]),
                files=tuple(map(to_file, files)),
            )

        return await self._database.transact(work, isolation="repeatable_read")

    async def import_conversation(self, principal: Principal, exported: Exported) -> Conversation:
        check_exported(exported)
        renamed = rename(exported, workspace_id=principal.workspace_id, user_id=principal.user_id)

        async def work(statements: Statements) -> Conversation:
            record = json_text(imported_conversation(renamed, principal))
            if await statements.fetch("insert_conversation", record, title_tokens(renamed.conversation.title)):
                await _insert_turns(statements, principal, renamed.turns)
                await statements.fetch("insert_files", json_text(imported_files(renamed.files, principal)))
            # Else an earlier try was committed and its answer lost, or there is no workspace.
            found = await statements.fetch("own_conversation", *owner_of(principal), renamed.conversation.id)
            if not found:
                raise no_workspace()
            return to_conversation(found[0])

        return await self._database.transact(work)


async def _trace(statements: Statements, turn: Turn) -> TurnTrace:
    events: list[Recorded] = [to_recorded(*row) for row in await statements.fetch("events_after", turn.id, 0, ALL)]
    return TurnTrace(
        turn=turn,
        rows=tuple(map(to_message, await statements.fetch("turn_rows", turn.id))),
        events=tuple(events),
        logs=tuple(
            LogLine(after_seq=after, level=level, message=message, ts=ts)
            for after, level, message, ts in await statements.fetch("turn_logs", turn.id)
        ),
    )


async def _insert_turns(statements: Statements, principal: Principal, traces: Sequence[TurnTrace]) -> None:
    """Insert turns as they are, some at a time: one statement would be too large, and one for each turn too many."""
    org_id = principal.org_id
    for start in range(0, len(traces), TURNS_AT_ONCE):
        some = traces[start : start + TURNS_AT_ONCE]
        await statements.fetch("import_turns", json_text([imported_turn(each, principal) for each in some]))
        for name, records in (
            ("import_messages", [record for each in some for record in imported_messages(each, org_id)]),
            ("import_events", [record for each in some for record in imported_events(each, org_id)]),
            ("import_logs", [record for each in some for record in imported_logs(each, org_id)]),
        ):
            if records:
                await statements.fetch(name, json_text(records))
