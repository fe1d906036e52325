"""Conversations on PostgreSQL: created, listed, searched, read, changed, deleted, purged, exported and imported.

The search is over titles and visible messages. Its tokens are made in Python; PostgreSQL only keeps them, in a tsvector
with a GIN index. The engine's path finds candidates of the owner, because row-level security would keep that index from
being used. What the reader gets is then read on the client path.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import msgspec
from msgspec import structs

from turnkeep.errors import ExternalIdTaken, InvalidRequest
from turnkeep.ids import (
    ConversationId,
    FileId,
    OutboxId,
    TurnId,
    WorkspaceId,
    check_id,
    first_conversation_id,
    new_conversation_id,
)
from turnkeep.model.conversations import Conversation, ConversationFolder, Hit
from turnkeep.model.messages import Message, Order, PublicMessage
from turnkeep.model.outbox import OutboxEntry
from turnkeep.model.principals import Principal
from turnkeep.model.text_search import SearchQuery, parse_query, snippet, tokens_of
from turnkeep.model.turns import Turn
from turnkeep.store.checks import (
    check_append,
    check_change,
    check_external_id,
    check_filter,
    check_folder,
    check_ids,
    check_limit,
    check_new_conversation,
    check_service,
    check_text,
    check_title,
)
from turnkeep.store.commands import (
    EVERYTHING,
    ConversationChange,
    ConversationFilter,
    ConversationWithQueue,
    Exported,
    NewConversation,
    Page,
    Purged,
    RemovedBlocks,
    TurnTrace,
    page_of,
    rows_that_fit,
)
from turnkeep.store.cursors import (
    TRASH,
    decode_cursor,
    encode_cursor,
    list_cursor,
    list_of,
    messages_of,
    rows_of,
    trash_cursor,
)
from turnkeep.store.exports import checked_and_renamed
from turnkeep.store.fulltext import CHUNK_TURNS, SWEPT_WRITES, PendingConversation, index_in_chunks, tsquery_text
from turnkeep.store.postgres.io.database import Database, Statements, owner_of
from turnkeep.store.postgres.io.pool import Rows
from turnkeep.store.postgres.leases import cancel_waiting
from turnkeep.store.postgres.turns import ALL, appending
from turnkeep.store.rows import (
    CONVERSATION_COLUMNS,
    conversation_record,
    json_text,
    to_content,
    to_conversation,
    to_entry,
    to_file,
    to_message,
    to_public_message,
    to_recorded,
    to_removed,
    to_turn,
    turns_with_siblings,
    with_versions,
)
from turnkeep.store.rules.claims import (
    Attachable,
    Attachment,
    attach,
    joined_files,
    named_rows,
    named_traces,
    user_gone,
)
from turnkeep.store.rules.conversations import (
    FOLDERS,
    Ahead,
    Head,
    changed,
    check_expected_head,
    check_head,
    check_idle,
    check_new,
    imported_conversation,
    imported_rows,
    insertion,
    new_conversation,
    no_conversation,
    no_folder,
    removed_with,
    without_external_id,
)
from turnkeep.store.rules.directory import no_workspace
from turnkeep.store.rules.files import imported_files
from turnkeep_client.wire.blocks import Usage
from turnkeep_client.wire.display import words_of
from turnkeep_client.wire.events import LogLine, Recorded

LAST = 2**31 - 1
LATEST = 2**63 - 1
QUERY_CHARS = 1_000
INDEXED_BEFORE_SEARCH = 500
_to_attachable = msgspec.json.Decoder(Attachable).decode
_CONVERSATION_WIDTH = len(CONVERSATION_COLUMNS.split(","))

_PURGED_OF_TURNS = ("purge_events", "purge_logs", "purge_messages", "purge_tokens")
_PURGED = (
    "purge_search",
    "purge_files",
    "purge_outbox",
    "purge_turns",
    "purge_conversations",
)
"""What belongs to a conversation. What depends on others comes first."""


async def purge_rows(statements: Statements, conversation_ids: Sequence[ConversationId]) -> None:
    """Erase everything that belongs to these conversations. They are locked."""
    turn_ids = [id_ for (id_,) in await statements.fetch("turns_to_purge", conversation_ids)]
    for name in _PURGED_OF_TURNS:
        await statements.fetch(name, turn_ids)
    for name in _PURGED:
        await statements.fetch(name, conversation_ids)


class PostgresConversations:
    """Conversations, as lists and as transcripts."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._search = Search(database)

    async def create_conversation(self, principal: Principal, new: NewConversation) -> Conversation:
        check_new_conversation(new)
        whose = (principal.org_id, principal.workspace_id)
        [(has_workspace, has_agent, now)] = await self._database.read("facts_for_new", *whose, new.agent_id)
        check_new(has_workspace=has_workspace, has_agent=has_agent)
        conversation = new_conversation(principal, new, new_conversation_id(), now)
        record = json_text(insertion(conversation, principal.org_id))
        made = await _insert(self._database.write, principal, record, title_tokens(new.title))
        # Not made: the answer to an earlier try was lost, the external id is taken, or the workspace is gone.
        if not made and not await self._database.read("own_conversation", *owner_of(principal), conversation.id):
            if new.external_id is None:
                raise no_workspace()
            if (taken := await self.conversation_of_host(principal, new.external_id)) is not None:
                raise ExternalIdTaken(taken.id)
            return await self.create_conversation(principal, new)  # the other one was deleted meanwhile
        return conversation

    async def conversation_of_host(self, principal: Principal, external_id: str) -> Conversation | None:
        check_external_id(external_id)
        whose = (principal.workspace_id, principal.user_id or "")
        found = await self._database.read("conversation_of_host", *whose, external_id)
        return to_conversation(found[0]) if found else None

    async def conversation(self, principal: Principal, conversation_id: ConversationId) -> Conversation:
        check_id(conversation_id, "conv")
        rows = await self._database.read_as(principal, "my_conversation", conversation_id)
        if not rows:
            raise no_conversation()
        return to_conversation(rows[0])

    async def conversation_with_queue(
        self, principal: Principal, conversation_id: ConversationId
    ) -> ConversationWithQueue:
        check_id(conversation_id, "conv")
        rows = await self._database.read_as(principal, "my_conversation_with_queue", conversation_id)
        if not rows:
            raise no_conversation()
        messages = [row[_CONVERSATION_WIDTH:] for row in rows]
        return ConversationWithQueue(
            conversation=to_conversation(rows[0]),
            queue=tuple(to_public_message(conversation_id, (*row, None)) for row in messages if row[0] is not None),
        )

    async def conversations(
        self,
        principal: Principal,
        *,
        query: str | None = None,
        only: ConversationFilter = EVERYTHING,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[Hit]:
        check_limit(limit)
        check_filter(only)
        of = list_of(query, only)
        before = (LATEST, "") if cursor is None else decode_cursor(cursor, of, tuple[int, str])
        if query is None and only != EVERYTHING:
            values = (*owner_of(principal), *before, limit + 1, json_text(only))
            found = [id_ for (id_,) in await self._database.read("listed_conversations", *values)]
            rows = await self._database.read_as(principal, "my_found", found) if found else []
            hits = [Hit(conversation=to_conversation(row), snippet=None) for row in rows]
            limit = rows_that_fit(rows, limit)
        elif query is None:
            rows = await self._database.read_as(principal, "my_conversations", *before, limit + 1)
            hits = [Hit(conversation=to_conversation(row), snippet=None) for row in rows]
            limit = rows_that_fit(rows, limit)
        else:
            check_text(query, "query", limit=QUERY_CHARS, allow_empty=True)
            wanted = parse_query(query)
            if wanted.is_empty:
                return Page(data=())
            hits, limit = await self._search.find(principal, wanted, only, before, limit)
        return page_of(hits, limit=limit, cursor_of=lambda hit: list_cursor(of, hit))

    async def index_pending(self, *, limit: int = 500) -> int:
        indexed = await self._search.index_pending(None, limit=limit, writes=SWEPT_WRITES)
        await self._database.write("park_waiting", limit)
        return indexed

    async def change_conversation(
        self, principal: Principal, conversation_id: ConversationId, change: ConversationChange
    ) -> Conversation:
        check_id(conversation_id, "conv")
        check_change(change)
        if change.agent_id is not None:
            check_id(change.agent_id, "agent")
        if change.head_turn_id is not None:
            check_id(change.head_turn_id, "turn")
        for turn in change.appended:
            check_append(conversation_id, turn)

        async def work(statements: Statements) -> Conversation:
            before = await _for_write(statements, principal, conversation_id)
            if change.appended and before.head_turn_id == change.appended[-1].turn_id:
                return before  # it was written, and the answer was lost
            whose = (principal.org_id, principal.workspace_id)
            [(has_workspace, has_agent, now)] = await statements.fetch("facts_for_new", *whose, change.agent_id)
            check_new(has_workspace=has_workspace, has_agent=has_agent)
            more_turns, more_messages = 0, 0
            moves = change.head_turn_id is not None or "head_turn_id" in change.without
            is_idle = moves or change.appended or change.removed
            found = await statements.fetch("turn_ahead", conversation_id) if is_idle else []
            ahead = Ahead(*found[0]) if found else None
            if change.appended or change.removed:
                check_idle(ahead)
            check_expected_head(before.head_turn_id, change)
            if change.head_turn_id is not None:
                head = await statements.fetch("turn_as_head", conversation_id, change.head_turn_id)
                check_head(Head(*head[0]) if head else None, ahead)
            if moves:
                check_idle(ahead)
                shown = await statements.fetch("show_chain", conversation_id, change.head_turn_id)
                more_turns, more_messages = shown[0]
            more_messages -= await _remove_blocks(statements, conversation_id, change.removed)
            after = changed(before, change, now, more_turns=more_turns, more_messages=more_messages)
            record = json_text(conversation_record(after))
            [now_changed] = await statements.fetch("change_conversation", conversation_id, record)
            if change.title is not None:
                await statements.fetch("index_title", conversation_id, title_tokens(change.title))
            if not change.appended:
                return to_conversation(now_changed)
            rows = [row for turn in change.appended for row in turn.rows]
            joined = await _attach_files(statements, principal, conversation_id, change.attached, rows)
            for turn in change.appended:
                named = structs.replace(turn, rows=named_rows(turn.rows, joined))
                job = appending(principal, conversation_id, named)
                await statements.fetch("append", [job.record], job.rows)
            return await _for_write(statements, principal, conversation_id)

        return await self._database.transact(work)

    async def folders(self, principal: Principal) -> list[ConversationFolder]:
        rows = await self._database.read_as(principal, "my_folders", FOLDERS)
        return [ConversationFolder(name=name, conversations=count) for name, count in rows]

    async def rename_folder(self, principal: Principal, name: str, new_name: str | None) -> int:
        check_folder(name)
        if new_name is not None:
            check_folder(new_name)
        moved = await self._database.write("rename_folder", *owner_of(principal), name, new_name)
        if not moved:
            raise no_folder()
        return len(moved)

    async def delete_conversation(self, principal: Principal, conversation_id: ConversationId) -> None:
        check_id(conversation_id, "conv")

        async def work(statements: Statements) -> None:
            await _for_write(statements, principal, conversation_id)
            now = (await statements.fetch("now"))[0][0]
            await statements.fetch("delete_conversation", conversation_id, now)
            waiting = [turn_id for (turn_id,) in await statements.fetch("waiting_turns", conversation_id)]
            await cancel_waiting(statements, waiting, now)

        await self._database.transact(work)

    async def deleted_conversations(
        self, principal: Principal, *, limit: int = 20, cursor: str | None = None
    ) -> Page[Conversation]:
        check_limit(limit)
        before = (LATEST, "") if cursor is None else decode_cursor(cursor, TRASH, tuple[int, str])
        rows = await self._database.read("deleted_conversations", *owner_of(principal), *before, limit + 1)
        found = [to_conversation(row) for row in rows]
        return page_of(found, limit=rows_that_fit(rows, limit), cursor_of=trash_cursor)

    async def restore_conversation(self, principal: Principal, conversation_id: ConversationId) -> Conversation:
        check_id(conversation_id, "conv")

        async def work(statements: Statements) -> Conversation:
            found = await statements.fetch("restorable_conversation", *owner_of(principal), conversation_id)
            if not found:
                raise no_conversation()
            conversation = to_conversation(found[0])
            if conversation.deleted_at is None:
                return conversation
            [(external_id,)] = await statements.fetch("restore_conversation", conversation_id)
            return structs.replace(conversation, deleted_at=None, external_id=external_id)

        return await self._database.transact(work)

    async def delete_idle(self, *, unchanged_since: int, limit: int = 100) -> int:
        return len(
            await self._database.write("delete_idle", unchanged_since, first_conversation_id(unchanged_since), limit)
        )

    async def delete_unlisted(self, *, unchanged_since: int, limit: int = 100) -> int:
        end = first_conversation_id(unchanged_since)
        return len(await self._database.write("delete_unlisted", unchanged_since, end, limit))

    async def purge(self, *, deleted_before: int, limit: int = 100) -> Purged:
        purged = [id_ for (id_,) in await self._database.read("purgeable", deleted_before, limit)]
        files = dict(map(tuple, await self._database.read("purgeable_files", purged, deleted_before, limit)))

        async def work(statements: Statements) -> None:
            locked = [id_ for (id_,) in await statements.fetch("lock_purgeable", deleted_before, purged)]
            await purge_rows(statements, locked)
            await statements.fetch("purge_deleted_files", deleted_before, list(files))

        # The keys are read before the purge and reported by what is gone after it, so none is forgotten if an answer is
        # lost in between.
        await self._database.transact(work)
        left = {id_ for (id_,) in await self._database.read("not_purged", purged, list(files))}
        return Purged(
            conversations=len([id_ for id_ in purged if id_ not in left]),
            storage_keys=tuple(sorted(key for id_, key in files.items() if id_ not in left)),
        )

    async def transcript(
        self,
        principal: Principal,
        conversation_id: ConversationId,
        *,
        order: Order = "asc",
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[PublicMessage]:
        check_id(conversation_id, "conv")
        check_limit(limit)
        if order not in {"asc", "desc"}:
            raise InvalidRequest("order must be asc or desc.")
        is_ascending = order == "asc"
        of = messages_of(conversation_id, order)
        place = (0, -1) if is_ascending else (LAST, 0)
        if cursor is not None:
            place = _place(cursor, of)
        rows = await self._database.read_as(
            principal, "my_transcript", conversation_id, is_ascending, *place, limit + 1
        )
        if not rows:
            await self.conversation(principal, conversation_id)  # raises NotFound if there is none to be seen
        rows.sort(key=itemgetter("ordinal", "turn_sequence"), reverse=not is_ascending)
        limit = rows_that_fit(rows, limit)
        last = rows[limit - 1] if len(rows) > limit else None
        messages = [to_public_message(conversation_id, row) for row in rows[:limit]]
        beside = turns_with_siblings(messages)
        questions = await self._database.read_as(principal, "my_questions", beside) if beside else ()
        return Page(
            data=with_versions(messages, dict(map(tuple, questions))),
            next_cursor=None if last is None else encode_cursor(of, last["ordinal"], last["turn_sequence"]),
        )

    async def conversation_trace(
        self, principal: Principal, conversation_id: ConversationId, *, limit: int = 100, cursor: str | None = None
    ) -> Page[Message]:
        check_service(principal)
        check_id(conversation_id, "conv")
        check_limit(limit)
        of = rows_of(conversation_id)
        place = (0, -1) if cursor is None else _place(cursor, of)
        if not await self._database.read("own_conversation", *owner_of(principal), conversation_id):
            raise no_conversation()
        rows: list[Any] = await self._database.read("conversation_rows", conversation_id, *place, limit + 1)
        limit = rows_that_fit(rows, limit)
        last = rows[limit - 1] if len(rows) > limit else None
        return Page(
            data=tuple(to_message(message) for *message, _ in rows[:limit]),
            next_cursor=None if last is None else encode_cursor(of, last["ordinal"], last["turn_sequence"]),
        )

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

    async def import_conversation(
        self, principal: Principal, exported: Exported, *, attached: Sequence[FileId] = ()
    ) -> Conversation:
        check_ids(attached, "file")
        renamed = await asyncio.to_thread(checked_and_renamed, exported, principal, attached)
        files = await asyncio.to_thread(lambda: json_text(imported_files(renamed.files, principal)))
        tokens = await asyncio.to_thread(title_tokens, renamed.conversation.title)

        async def insert(statements: Statements, made: Exported) -> Rows:
            record = json_text(imported_conversation(made, principal))
            if await _insert(statements.fetch, principal, record, tokens):
                brought = [row for trace in made.turns for row in trace.rows] if attached else []
                joined = await _attach_files(statements, principal, made.conversation.id, attached, brought)
                await _insert_turns(statements, principal, named_traces(made.turns, joined))
                await statements.fetch("insert_files", files)
            # Else an earlier try was committed and its answer lost, the external id is taken, or there is no workspace.
            return await statements.fetch("own_conversation", *owner_of(principal), made.conversation.id)

        async def work(statements: Statements) -> Conversation:
            found = await insert(statements, renamed)
            if not found and renamed.conversation.external_id is not None:
                found = await insert(statements, without_external_id(renamed))
            if not found:
                raise no_workspace()
            return to_conversation(found[0])

        return await self._database.transact(work)

    async def want_titles(self, turn_ids: Sequence[TurnId], *, by_default: bool) -> bool:
        return bool(turn_ids) and bool(await self._database.write("want_titles", list(turn_ids), by_default))

    async def take_titles(self, *, limit: int = 10, lease_seconds: float) -> list[OutboxEntry]:
        rows = await self._database.write("take_titles", limit, int(lease_seconds * 1000))
        return sorted(map(to_entry, rows), key=lambda entry: entry.id)

    async def end_title(
        self, entry_id: OutboxId, title: str | None, *, model: str, usage: Usage, cost: float | None
    ) -> bool:
        check_title(title)
        tokens = [] if title is None else tokens_of(title)
        used = (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens, cost)
        [(is_written,)] = await self._database.write("end_title", entry_id, title, tokens, *used, model)
        return bool(is_written)


async def _insert(
    run: Callable[..., Awaitable[Rows]], principal: Principal, record: str, tokens: list[str] | None
) -> bool:
    """Whether the conversation was made. Raises Forbidden if the principal's user was erased or disabled since the
    request began."""
    [(has_user, made)] = await run("insert_conversation", record, tokens, principal.org_id, principal.user_id)
    if not has_user:
        raise user_gone()
    return made is not None


async def _remove_blocks(
    statements: Statements, conversation_id: ConversationId, removed: Sequence[RemovedBlocks]
) -> int:
    """Remove these blocks; return how many messages of the visible chain are hidden with it."""
    hidden = 0
    for each in removed:
        row = (each.turn_id, each.turn_sequence)
        found = await statements.fetch("removed_of", *row, conversation_id)
        if not found:
            continue
        text, is_visible, is_active = found[0]
        before = to_removed(text) if text else ()
        after = removed_with(before, each.removed)
        await statements.fetch("remove_blocks", *row, json_text(after))
        if after == "all" and before != "all" and is_visible:
            hidden += is_active
            await statements.fetch("forget_entry", *row, conversation_id)
    if removed:
        await statements.fetch("take_ordinal", conversation_id)
    return hidden


async def _for_write(statements: Statements, principal: Principal, conversation_id: ConversationId) -> Conversation:
    """The principal's conversation, which stays locked until the transaction ends."""
    rows = await statements.fetch("conversation_for_write", *owner_of(principal), conversation_id)
    if not rows:
        raise no_conversation()
    return to_conversation(rows[0])


async def _attach_files(
    statements: Statements,
    principal: Principal,
    conversation_id: ConversationId,
    file_ids: Sequence[FileId],
    rows: Sequence[Message],
) -> list[Attachment]:
    """Put these files into the conversation, which is locked, with the rows that name them. Raises what `attach`
    raises."""
    if not file_ids:
        return []
    await statements.fetch("lock_files", list(file_ids))
    found = await statements.fetch("attachable_files", *owner_of(principal), conversation_id, list(file_ids))
    attachments = attach(file_ids, _to_attachable(found[0][0]), conversation_id)
    await statements.fetch("attach_files", conversation_id, json_text(joined_files(rows, attachments)))
    return list(attachments)


def _place(cursor: str, of: str) -> tuple[int, int]:
    ordinal, sequence = decode_cursor(cursor, of, tuple[int, int])
    if not (0 <= ordinal <= LAST and -1 <= sequence <= LAST):
        raise InvalidRequest("This cursor is malformed. Use the next_cursor of the page before.")
    return ordinal, sequence


class Search:
    """The index of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def index_pending(self, workspace_id: WorkspaceId | None, *, limit: int, writes: int | None = None) -> int:
        """Make settled turns searchable; return how many conversations were brought up to date.

        The mark of a conversation moves only from where it was found, so several workers do not do the same twice.
        """

        async def find() -> list[PendingConversation]:
            found = await self._database.read("pending_conversations", workspace_id, limit, CHUNK_TURNS)
            return [PendingConversation(*row) for row in found]

        await self._index_titles(workspace_id, limit)
        return await index_in_chunks(find, self._index, writes=writes)

    async def find(
        self, principal: Principal, query: SearchQuery, only: ConversationFilter, before: tuple[int, str], limit: int
    ) -> tuple[list[Hit], int]:
        """Conversations of the principal that match, newest change first, with the place where they match; and how many
        of them a page shows. One more is found, if there is one."""
        await self.index_pending(principal.workspace_id, limit=INDEXED_BEFORE_SEARCH)
        match = tsquery_text(query)
        values = (*owner_of(principal), match, *before, limit + 1, None if only == EVERYTHING else json_text(only))
        found = await self._database.read("found_conversations", *values)
        ids = [conversation_id for (conversation_id,) in found]
        if not ids:
            return [], limit
        rows = await self._database.read_as(principal, "my_found", ids)
        texts = await self._matching_texts(principal, ids, match)
        conversations = list(map(to_conversation, rows))
        hits = await asyncio.to_thread(_hits, conversations, texts, query)  # long texts take a while
        return hits, rows_that_fit(rows, limit)

    async def _index_titles(self, workspace_id: WorkspaceId | None, limit: int) -> None:
        titles = sorted(tuple(row) for row in await self._database.read("pending_titles", workspace_id, limit))
        if titles:
            await self._database.write(
                "index_titles",
                [conversation_id for conversation_id, _ in titles],
                [title for _, title in titles],
                [" ".join(tokens_of(title)) for _, title in titles],
            )

    async def _index(self, group: Sequence[PendingConversation]) -> set[ConversationId]:
        """Index the next turns of each; return those whose mark was moved."""
        ids, after, last = [each.id for each in group], [each.after for each in group], [each.last for each in group]
        entries = [
            (conversation_id, turn_id, sequence, tokens)
            for conversation_id, turn_id, sequence, blocks, display in await self._database.read(
                "rows_to_index", ids, after, last
            )
            if (tokens := " ".join(tokens_of(words_of(to_content(blocks, display)))))
        ]
        marked = await self._database.write(
            "index_turns",
            ids,
            after,
            last,
            [each.title for each in group],
            [None if each.title is None else " ".join(tokens_of(each.title)) for each in group],
            *([entry[place] for entry in entries] for place in range(4)),
        )
        return {conversation_id for (conversation_id,) in marked}

    async def _matching_texts(
        self, principal: Principal, ids: list[ConversationId], match: str
    ) -> dict[ConversationId, str]:
        """The words of the newest matching message of each conversation that has one."""
        places = await self._database.read("found_messages", ids, match)
        if not places:
            return {}
        turns, sequences = [turn_id for turn_id, _ in places], [sequence for _, sequence in places]
        rows = await self._database.read_as(principal, "my_messages", turns, sequences)
        return {conversation_id: words_of(to_content(blocks, display)) for conversation_id, blocks, display in rows}


def title_tokens(title: str | None) -> list[str] | None:
    return None if title is None else tokens_of(title)


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
    """Insert turns as they are, with few statements."""
    groups = imported_rows(traces, principal)
    while rows := await asyncio.to_thread(next, groups, None):
        for name, records in (
            ("import_turns", rows.turns),
            ("import_messages", rows.messages),
            ("import_events", rows.events),
            ("import_logs", rows.logs),
        ):
            if records:
                await statements.fetch(name, await asyncio.to_thread(json_text, records))


def _hits(conversations: Sequence[Conversation], texts: Mapping[ConversationId, str], query: SearchQuery) -> list[Hit]:
    hits = []
    for conversation in conversations:
        shown = snippet(texts.get(conversation.id, ""), query)
        if shown is None and conversation.title is not None:
            shown = snippet(conversation.title, query)
        hits.append(Hit(conversation=conversation, snippet=shown))
    return hits
