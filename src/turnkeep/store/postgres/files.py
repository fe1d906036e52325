"""Files on PostgreSQL: the rows of the bags."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

from turnkeep.errors import NotFound, Unauthorized
from turnkeep.ids import ConversationId, FileId, TurnId, check_id
from turnkeep.model.files import File, NewFile, TurnBag
from turnkeep.model.principals import Principal
from turnkeep.store.checks import AFTER_ALL_FILES, check_completion, check_limit, check_new_files
from turnkeep.store.commands import Page, page_of
from turnkeep.store.cursors import decode_cursor, encode_cursor
from turnkeep.store.naming import candidates, name_key
from turnkeep.store.postgres.io.database import Database, Statements, owner_of
from turnkeep.store.rows import to_file

CANDIDATES = 32
"""So many names are offered at a time; the first that is free is taken under the conversation's lock."""


class PostgresFiles:
    """The rows of the file bags."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add_files(self, principal: Principal, new: Sequence[NewFile]) -> list[File]:
        check_new_files(new)
        org_id, workspace_id, owner = owner_of(principal)

        async def add(statements: Statements) -> list[File]:
            whose = (org_id, workspace_id, principal.user_id, owner)
            return [await _add(statements, whose, each, each.conversation_id, turn_id=None) for each in new]

        return await self._database.transact(add)

    async def write_back(self, token_hash: bytes, new: Sequence[NewFile]) -> list[File]:
        check_new_files(new)

        async def add(statements: Statements) -> list[File]:
            begun = await statements.fetch("begin_write_back", token_hash, [each.id for each in new])
            if not begun:
                raise Unauthorized("This token is not valid. It may have been spent, or its turn has ended.")
            turn_id, org_id, workspace_id, conversation_id, user_id = begun[0]
            whose = (org_id, workspace_id, user_id, None)
            return [await _add(statements, whose, each, conversation_id, turn_id=turn_id) for each in new]

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
        found = (size, sha256, mime_type, storage_key, crc32)
        rows = await self._database.write("complete_file", *owner_of(principal), file_id, *found)
        return to_file(rows[0])

    async def file(self, principal: Principal, file_id: FileId) -> File:
        check_id(file_id, "file")
        rows = await self._database.read_as(principal, "my_file", file_id)
        if not rows:
            raise NotFound("No such file.")
        return to_file(rows[0])

    async def files(self, principal: Principal, conversation_id: ConversationId) -> list[File]:
        check_id(conversation_id, "conv")
        return [to_file(row) for row in await self._database.read_as(principal, "my_files", conversation_id)]

    async def saved_files(self, principal: Principal, *, limit: int = 50, cursor: str | None = None) -> Page[File]:
        check_limit(limit)
        before = AFTER_ALL_FILES if cursor is None else decode_cursor(cursor, "files", tuple[str])[0]
        rows = await self._database.read_as(principal, "my_saved_files", before, limit + 1)
        return page_of(
            [to_file(row) for row in rows], limit=limit, cursor_of=lambda file: encode_cursor("files", file.id)
        )

    async def delete_file(self, principal: Principal, file_id: FileId) -> None:
        check_id(file_id, "file")
        await self._database.write("delete_file", *owner_of(principal), principal.role == "admin", file_id)

    async def files_by_id(self, file_ids: Sequence[FileId]) -> list[File]:
        return await self._files("files_by_id", list(file_ids))

    async def written_files(self, turn_id: TurnId) -> list[File]:
        return await self._files("files_of_turn", check_id(turn_id, "turn"))

    async def turn_bag(self, turn_id: TurnId, attempt: int) -> TurnBag:
        found = await self._database.read("bag_of_running_turn", check_id(turn_id, "turn"), attempt)
        if not found:
            raise NotFound("This turn has ended, or another attempt runs it.")
        org_id, workspace_id, conversation_id = found[0]
        files = await self._files("ready_files_of_conversation", conversation_id)
        return TurnBag(org_id=org_id, workspace_id=workspace_id, conversation_id=conversation_id, files=tuple(files))

    async def all_files(self, *, after: FileId | None = None, limit: int = 1_000) -> list[File]:
        return await self._files("all_files", after or "", limit)

    async def drop_unfinished(self, *, created_before: int, limit: int = 100) -> list[tuple[FileId, str]]:
        rows = await self._database.write("drop_unfinished_files", created_before, limit)
        return [(file_id, key) for file_id, key in rows]

    async def known_keys(self, storage_keys: Sequence[str]) -> set[str]:
        return {row[0] for row in await self._database.read("known_storage_keys", list(storage_keys))}

    async def pending_files(self, file_ids: Sequence[FileId]) -> set[FileId]:
        return {row[0] for row in await self._database.read("pending_file_ids", list(file_ids))}

    async def _files(self, name: str, *values: Any) -> list[File]:
        return [to_file(row) for row in await self._database.read(name, *values)]


async def _add(
    statements: Statements,
    whose: tuple[str, str, str | None, str | None],
    new: NewFile,
    conversation_id: ConversationId | None,
    *,
    turn_id: TurnId | None,
) -> File:
    """Offer names until one is free. The bag's lock is held from the first offer to the end of the transaction."""
    names = candidates(new.name)
    while True:
        offered = list(islice(names, CANDIDATES))
        rows = await statements.fetch(
            "add_file",
            *whose,
            new.id,
            conversation_id,
            offered,
            [name_key(each) for each in offered],
            new.mime_type,
            new.size,
            new.sha256,
            new.storage_key,
            new.source,
            turn_id,
            new.is_saved,
            new.crc32,
        )
        if rows:
            return to_file(rows[0])
