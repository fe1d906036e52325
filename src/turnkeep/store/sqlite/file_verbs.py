"""The verbs of `FileStore`: each checks what it is given, then runs as one job."""

from collections.abc import Sequence
from typing import Any

from turnkeep.ids import ConversationId, FileId, TurnId, check_id
from turnkeep.model.files import File, NewFile, TurnBag
from turnkeep.model.principals import Principal
from turnkeep.store import checks
from turnkeep.store.commands import Page, page_of
from turnkeep.store.cursors import decode_cursor, encode_cursor
from turnkeep.store.rows import json_text, to_file
from turnkeep.store.sqlite import files
from turnkeep.store.sqlite.io.executors import StoreThreads
from turnkeep.store.sqlite.io.session import Session
from turnkeep.store.sqlite.ownership import no_conversation, no_file


class FileVerbs(StoreThreads):
    """The rows of the file bags. Promises are those of `ports.FileStore`."""

    async def add_files(self, principal: Principal, new: Sequence[NewFile]) -> list[File]:
        checks.check_new_files(new)
        return await self._write(files.add_all, principal, new)

    async def write_back(self, token_hash: bytes, new: Sequence[NewFile]) -> list[File]:
        checks.check_new_files(new)
        return await self._write(files.write_back, token_hash, new)

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
        checks.check_completion(size, sha256, mime_type, storage_key, crc32)
        found = files.FoundBytes(size=size, sha256=sha256, mime_type=mime_type, storage_key=storage_key, crc32=crc32)
        return await self._write(files.complete, principal, file_id, found)

    async def file(self, principal: Principal, file_id: FileId) -> File:
        which = {"file": check_id(file_id, "file")}

        def found(session: Session) -> File:
            row = session.row("my_file", which)
            if row is None:
                raise no_file()
            return to_file(row)

        return await self._see(principal, found)

    async def files(self, principal: Principal, conversation_id: ConversationId) -> list[File]:
        which = {"conversation": check_id(conversation_id, "conv")}

        def found(session: Session) -> list[File]:
            with session.snapshot():
                if session.row("my_conversation_exists", which) is None:
                    raise no_conversation()
                return [to_file(row) for row in session.rows("my_files_of_conversation", which)]

        return await self._see(principal, found)

    async def saved_files(self, principal: Principal, *, limit: int = 50, cursor: str | None = None) -> Page[File]:
        checks.check_limit(limit)
        before = checks.AFTER_ALL_FILES if cursor is None else decode_cursor(cursor, "files", tuple[str])[0]

        def found(session: Session) -> list[File]:
            return [to_file(row) for row in session.rows("my_saved_files", {"before": before, "limit": limit + 1})]

        files = await self._see(principal, found)
        return page_of(files, limit=limit, cursor_of=lambda file: encode_cursor("files", file.id))

    async def delete_file(self, principal: Principal, file_id: FileId) -> None:
        await self._write(files.delete, principal, check_id(file_id, "file"))

    async def files_by_id(self, file_ids: Sequence[FileId]) -> list[File]:
        return await self._files("files_by_id", {"files": json_text(list(file_ids))})

    async def written_files(self, turn_id: TurnId) -> list[File]:
        return await self._files("files_of_turn", {"turn": check_id(turn_id, "turn")})

    async def turn_bag(self, turn_id: TurnId, attempt: int) -> TurnBag:
        return await self._read(files.turn_bag, check_id(turn_id, "turn"), attempt)

    async def all_files(self, *, after: FileId | None = None, limit: int = 1_000) -> list[File]:
        return await self._files("all_files", {"after": after or "", "limit": limit})

    async def drop_unfinished(self, *, created_before: int, limit: int = 100) -> list[tuple[FileId, str]]:
        which = {"before": created_before, "limit": limit}
        return await self._write(lambda session: session.rows("drop_unfinished_files", which))

    async def known_keys(self, storage_keys: Sequence[str]) -> set[str]:
        which = {"keys": json_text(list(storage_keys))}
        return {key for (key,) in await self._read(lambda session: session.rows("known_storage_keys", which))}

    async def pending_files(self, file_ids: Sequence[FileId]) -> set[FileId]:
        which = {"files": json_text(list(file_ids))}
        return {file_id for (file_id,) in await self._read(lambda session: session.rows("pending_file_ids", which))}

    async def _files(self, name: str, which: dict[str, Any]) -> list[File]:
        return await self._read(lambda session: [to_file(row) for row in session.rows(name, which)])
