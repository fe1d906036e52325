"""Files on PostgreSQL: the rows of the bags."""

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from turnkeep.ids import ConversationId, FileId, TurnId, check_id
from turnkeep.model.files import NO_LIMITS, File, NewFile, StorageLimits, TurnBag
from turnkeep.model.principals import Principal
from turnkeep.store.checks import AFTER_ALL_FILES, check_completion, check_limit, check_new_files
from turnkeep.store.commands import Page, page_of
from turnkeep.store.cursors import decode_cursor, encode_cursor
from turnkeep.store.postgres.directory import check_user
from turnkeep.store.postgres.io.database import Database, Statements, owner_of
from turnkeep.store.rows import json_text, to_file
from turnkeep.store.rules.conversations import no_conversation
from turnkeep.store.rules.directory import no_workspace
from turnkeep.store.rules.files import (
    OFFERED,
    FileOwner,
    StoredBytes,
    Upload,
    check_stored,
    file_record,
    free_names,
    ids_of,
    is_to_be_spent,
    names_to_look_up,
    no_file,
    no_turn_bag,
    owner_by,
    same_bytes,
    same_file,
    token_refused,
)


class PostgresFiles:
    """The rows of the file bags."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add_files(
        self, principal: Principal, new: Sequence[NewFile], *, limits: StorageLimits = NO_LIMITS
    ) -> list[File]:
        check_new_files(new)
        org_id, workspace_id, owner = owner_of(principal)

        async def add(statements: Statements) -> list[File]:
            # Bags are locked in the order of their ids, so that two callers never wait for each other.
            for conversation_id in sorted({each.conversation_id or "" for each in new}):
                if conversation_id:
                    if not await statements.fetch("lock_bag", org_id, workspace_id, owner, conversation_id):
                        raise no_conversation()
                elif not await statements.fetch("workspace_exists", org_id, workspace_id):
                    raise no_workspace()
                else:
                    await check_user(statements, principal)
            return await _insert(statements, owner_by(principal), new, limits)

        return await self._database.transact(add)

    async def write_back(
        self, token_hash: bytes, new: Sequence[NewFile], *, limits: StorageLimits = NO_LIMITS
    ) -> list[File]:
        check_new_files(new)

        async def add(statements: Statements) -> list[File]:
            # The conversation, then the turn, stay locked: what follows happens while the turn is running.
            await statements.fetch("lock_bag_of_token", token_hash)
            found = await statements.fetch("upload", token_hash, ids_of(new))
            if not found:
                raise token_refused()
            upload = Upload(*found[0])
            if is_to_be_spent(upload, len(new)):
                await statements.fetch("mark_token_spent", token_hash, upload.turn_id, len(new))
            bagged = [structs.replace(each, conversation_id=upload.conversation_id) for each in new]
            return await _insert(statements, upload.owner, bagged, limits)

        return await self._database.transact(add)

    async def complete_file(
        self,
        principal: Principal,
        file_id: FileId,
        *,
        size: int,
        sha256: str,
        mime_type: str | None = None,
        storage_key: str | None = None,
        crc32: int | None = None,
    ) -> File:
        check_id(file_id, "file")
        check_completion(size, sha256, mime_type, storage_key, crc32)
        whose = owner_of(principal)
        found = (size, sha256, mime_type, storage_key, crc32)
        done = await self._database.write("complete_file", *whose, file_id, *found)
        if done:
            return to_file(done[0])
        stored = await self._database.read("own_file", *whose, False, file_id)
        if not stored:
            raise no_file()
        return same_bytes(to_file(stored[0]), sha256)

    async def file(self, principal: Principal, file_id: FileId) -> File:
        check_id(file_id, "file")
        rows = await self._database.read_as(principal, "my_file", file_id)
        if not rows:
            raise no_file()
        return to_file(rows[0])

    async def files(self, principal: Principal, conversation_id: ConversationId) -> list[File]:
        check_id(conversation_id, "conv")
        rows = await self._database.read_as(principal, "my_files", conversation_id)
        if not rows and not await self._database.read_as(principal, "my_conversation", conversation_id):
            raise no_conversation()
        return [to_file(row) for row in rows]

    async def saved_files(self, principal: Principal, *, limit: int = 50, cursor: str | None = None) -> Page[File]:
        return await self._page("my_saved_files", principal, limit, cursor)

    async def loose_files(self, principal: Principal, *, limit: int = 50, cursor: str | None = None) -> Page[File]:
        return await self._page("my_loose_files", principal, limit, cursor)

    async def _page(self, query: str, principal: Principal, limit: int, cursor: str | None) -> Page[File]:
        check_limit(limit)
        before = AFTER_ALL_FILES if cursor is None else decode_cursor(cursor, "files", tuple[str])[0]
        rows = await self._database.read_as(principal, query, before, limit + 1)
        return page_of(
            [to_file(row) for row in rows], limit=limit, cursor_of=lambda file: encode_cursor("files", file.id)
        )

    async def delete_file(self, principal: Principal, file_id: FileId) -> None:
        check_id(file_id, "file")
        if not await self._database.write("delete_file", *owner_of(principal), principal.role == "admin", file_id):
            raise no_file()

    async def files_by_id(self, principal: Principal, file_ids: Sequence[FileId]) -> list[File]:
        return await self._files("files_by_id", principal.org_id, principal.workspace_id, list(file_ids))

    async def ready_files(self, file_ids: Sequence[FileId]) -> set[FileId]:
        return {file_id for (file_id,) in await self._database.read("ready_file_ids", list(file_ids))}

    async def written_files(self, turn_id: TurnId) -> list[File]:
        return await self._files("files_of_turn", check_id(turn_id, "turn"))

    async def turn_bag(self, turn_id: TurnId, attempt: int) -> TurnBag:
        found = await self._database.read("bag_of_running_turn", check_id(turn_id, "turn"), attempt)
        if not found:
            raise no_turn_bag()
        org_id, workspace_id, conversation_id = found[0]
        files = await self._files("ready_files_of_conversation", conversation_id)
        return TurnBag(org_id=org_id, workspace_id=workspace_id, conversation_id=conversation_id, files=tuple(files))

    async def all_files(self, *, after: FileId | None = None, limit: int = 1_000) -> list[File]:
        return await self._files("all_files", after or "", limit)

    async def discard_files(self, file_ids: Sequence[FileId]) -> list[tuple[FileId, str]]:
        rows = await self._database.write("discard_files", list(file_ids))
        return [(file_id, key) for file_id, key in rows]

    async def drop_unfinished(
        self, *, created_before: int, unused_before: int = 0, limit: int = 100
    ) -> list[tuple[FileId, str]]:
        rows = await self._database.write("drop_unfinished_files", created_before, unused_before, limit)
        return [(file_id, key) for file_id, key in rows]

    async def known_keys(self, storage_keys: Sequence[str]) -> set[str]:
        return {key for (key,) in await self._database.read("known_storage_keys", list(storage_keys))}

    async def pending_files(self, file_ids: Sequence[FileId]) -> set[FileId]:
        return {file_id for (file_id,) in await self._database.read("pending_file_ids", list(file_ids))}

    async def _files(self, name: str, *values: Any) -> list[File]:
        return [to_file(row) for row in await self._database.read(name, *values)]


async def _insert(
    statements: Statements, owner: FileOwner, new: Sequence[NewFile], limits: StorageLimits
) -> list[File]:
    """Insert these files under names that are free in their bags, which the caller has locked."""
    whose = (owner.workspace_id, owner.user_id, owner.key_id, bool(limits.workspace_bytes), bool(limits.user_bytes))
    limited = [row["id"] for row in await statements.fetch("stored_bytes", *whose)]
    if limited:
        await statements.fetch("lock_stored_bytes", limited)
    names = {each.id: each.name for each in new}
    for conversation_id in {each.conversation_id for each in new} - {None}:
        own = [each for each in new if each.conversation_id == conversation_id]
        free = await _free_names(statements, conversation_id, [each.name for each in own])
        names |= {each.id: name for each, name in zip(own, free, strict=True)}
    now = (await statements.fetch("now"))[0][0]
    records = [file_record(each, owner, name=names[each.id], now=now) for each in new]
    stored = {row["id"]: to_file(row) for row in await statements.fetch("insert_files", json_text(records))}
    if len(stored) < len(new):
        rows = await statements.fetch("stored_files", ids_of(new), owner.org_id)
        stored = {row["id"]: to_file(row) for row in rows}
    if limited:
        check_stored(limits, [StoredBytes(*row) for row in await statements.fetch("stored_bytes", *whose)])
    return [same_file(stored.get(each.id), each) for each in new]


async def _free_names(statements: Statements, conversation_id: ConversationId | None, names: list[str]) -> list[str]:
    offered = OFFERED
    while True:
        keys = names_to_look_up(names, offered)
        taken = {key for (key,) in await statements.fetch("taken_names_among", conversation_id, keys)}
        free = free_names(names, taken, offered)
        if free is not None:
            return free
        offered *= 4
