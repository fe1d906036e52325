"""Whole conversations that leave for elsewhere, or come from there."""

from typing import Any

from turnkeep.errors import NotFound
from turnkeep.ids import ConversationId, check_id
from turnkeep.model.conversations import Conversation
from turnkeep.model.events import LogLine, Recorded
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Turn
from turnkeep.store.checks import check_exported
from turnkeep.store.commands import Exported, TurnTrace
from turnkeep.store.naming import name_key
from turnkeep.store.postgres.history import ALL
from turnkeep.store.postgres.io.database import Database, Statements, check_service, owner_of
from turnkeep.store.postgres.records import entries_of
from turnkeep.store.renaming import rename
from turnkeep.store.rows import (
    json_or_null,
    json_text,
    to_conversation,
    to_file,
    to_message,
    to_recorded,
    to_turn,
)


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
                raise NotFound("No such conversation.")
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
            await _insert(statements, principal, renamed)
            found = await statements.fetch("own_conversation", *owner_of(principal), renamed.conversation.id)
            if not found:
                raise NotFound("No such workspace.")
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


async def _insert(statements: Statements, principal: Principal, exported: Exported) -> None:
    """Insert what is given as it is; its ids were made for this database. Done already: nothing happens."""
    conversation = exported.conversation
    inserted = await statements.fetch(
        "import_conversation",
        principal.org_id,
        principal.workspace_id,
        principal.user_id,
        conversation.id,
        conversation.kind,
        conversation.agent_id,
        conversation.model,
        conversation.workflow_id,
        conversation.title,
        conversation.preview,
        json_or_null(conversation.metadata),
        conversation.message_count,
        conversation.turn_count,
        max((trace.turn.ordinal for trace in exported.turns), default=0) + 1,
        conversation.head_turn_id,
        conversation.created_at,
        conversation.updated_at,
    )
    if not inserted:
        return
    for trace in exported.turns:
        await _insert_turn(statements, principal, trace)
    for file in exported.files:
        await statements.fetch(
            "import_file",
            file.id,
            principal.org_id,
            principal.workspace_id,
            principal.user_id,
            file.conversation_id,
            file.message_id,
            file.name,
            name_key(file.name),
            file.mime_type,
            file.size,
            file.sha256,
            file.storage_key,
            file.source,
            file.status,
            file.created_at,
        )


async def _insert_turn(statements: Statements, principal: Principal, trace: TurnTrace) -> None:
    turn = trace.turn
    await statements.fetch("import_turn", *_turn_values(principal, trace))
    entries = entries_of(turn.id, 0, trace.rows, [each.event for each in trace.events], trace.logs)
    await statements.fetch("import_entries", [turn.id], entries.rows, entries.events, entries.logs)


def _turn_values(principal: Principal, trace: TurnTrace) -> tuple[Any, ...]:
    turn, usage = trace.turn, trace.turn.usage
    return (
        turn.id,
        principal.org_id,
        principal.workspace_id,
        turn.conversation_id,
        principal.user_id,
        principal.key_id,
        turn.parent_turn_id,
        turn.ordinal,
        turn.active,
        turn.status,
        turn.attempt,
        turn.failures,
        len(trace.events),
        turn.cancel_requested_at,
        turn.background,
        principal.ref,
        json_text(turn.snapshot),
        turn.source,
        turn.model,
        json_or_null(turn.metadata),
        turn.month,
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
        None if turn.error is None else json_text(turn.error),
        turn.created_at,
        turn.started_at,
        turn.settled_at,
    )
