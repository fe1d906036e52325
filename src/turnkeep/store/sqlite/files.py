"""Files on SQLite: the rows of the bags. Names never collide within a bag."""

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from turnkeep.ids import ConversationId, FileId, TurnId, check_id
from turnkeep.model.files import NO_LIMITS, File, NewFile, StorageLimits, TurnBag
from turnkeep.model.principals import Principal
from turnkeep.store import checks
from turnkeep.store.commands import Page, page_of
from turnkeep.store.cursors import decode_cursor, encode_cursor
from turnkeep.store.rows import json_text, to_file
from turnkeep.store.rules.conversations import no_conversation
from turnkeep.store.rules.directory import no_workspace
from turnkeep.store.rules.files import (
    OFFERED,
    FileOwner,
    FoundBytes,
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
from turnkeep.store.sqlite.conversations import conversation_for_write
from turnkeep.store.sqlite.directory import check_user, has_workspace
from turnkeep.store.sqlite.io.executors import StoreThreads
from turnkeep.store.sqlite.io.session import Session, in_workspace, owner_of


class SqliteFiles(StoreThreads):
    """The rows of the file bags. Promises are those of `ports.FileStore`."""

    async def add_files(
        self, principal: Principal, new: Sequence[NewFile], *, limits: StorageLimits = NO_LIMITS
    ) -> list[File]:
        checks.check_new_files(new)
        return await self._write(_add_all, principal, new, limits)

    async def write_back(
        self, token_hash: bytes, new: Sequence[NewFile], *, limits: StorageLimits = NO_LIMITS
    ) -> list[File]:
        checks.check_new_files(new)
        return await self._write(_write_back, token_hash, new, limits)

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
        found = FoundBytes(size=size, sha256=sha256, mime_type=mime_type, storage_key=storage_key, crc32=crc32)
        return await self._write(_complete, principal, file_id, found)

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
        return await self._page("my_saved_files", principal, limit, cursor)

    async def loose_files(self, principal: Principal, *, limit: int = 50, cursor: str | None = None) -> Page[File]:
        return await self._page("my_loose_files", principal, limit, cursor)

    async def _page(self, query: str, principal: Principal, limit: int, cursor: str | None) -> Page[File]:
        checks.check_limit(limit)
        before = checks.AFTER_ALL_FILES if cursor is None else decode_cursor(cursor, "files", tuple[str])[0]

        def found(session: Session) -> list[File]:
            return [to_file(row) for row in session.rows(query, {"before": before, "limit": limit + 1})]

        files = await self._see(principal, found)
        return page_of(files, limit=limit, cursor_of=lambda file: encode_cursor("files", file.id))

    async def delete_file(self, principal: Principal, file_id: FileId) -> None:
        await self._write(_delete, principal, check_id(file_id, "file"))

    async def files_by_id(self, principal: Principal, file_ids: Sequence[FileId]) -> list[File]:
        return await self._files("files_by_id", in_workspace(principal) | {"files": json_text(list(file_ids))})

    async def ready_files(self, file_ids: Sequence[FileId]) -> set[FileId]:
        which = {"files": json_text(list(file_ids))}
        return {file_id for (file_id,) in await self._read(lambda session: session.rows("ready_file_ids", which))}

    async def written_files(self, turn_id: TurnId) -> list[File]:
        return await self._files("files_of_turn", {"turn": check_id(turn_id, "turn")})

    async def turn_bag(self, turn_id: TurnId, attempt: int) -> TurnBag:
        return await self._read(_turn_bag, check_id(turn_id, "turn"), attempt)

    async def all_files(self, *, after: FileId | None = None, limit: int = 1_000) -> list[File]:
        return await self._files("all_files", {"after": after or "", "limit": limit})

    async def discard_files(self, file_ids: Sequence[FileId]) -> list[tuple[FileId, str]]:
        which = {"files": json_text(list(file_ids))}
        return await self._write(lambda session: session.rows("discard_files", which))

    async def drop_unfinished(
        self, *, created_before: int, unused_before: int = 0, limit: int = 100
    ) -> list[tuple[FileId, str]]:
        which = {"before": created_before, "unused_before": unused_before, "limit": limit}
        return await self._write(lambda session: session.rows("drop_unfinished_files", which))

    async def known_keys(self, storage_keys: Sequence[str]) -> set[str]:
        which = {"keys": json_text(list(storage_keys))}
        return {key for (key,) in await self._read(lambda session: session.rows("known_storage_keys", which))}

    async def pending_files(self, file_ids: Sequence[FileId]) -> set[FileId]:
        which = {"files": json_text(list(file_ids))}
        return {file_id for (file_id,) in await self._read(lambda session: session.rows("pending_file_ids", which))}

    async def _files(self, name: str, which: dict[str, Any]) -> list[File]:
        return await self._read(lambda session: [to_file(row) for row in session.rows(name, which)])


def _add_all(session: Session, principal: Principal, new: Sequence[NewFile], limits: StorageLimits) -> list[File]:
    for conversation_id in {each.conversation_id for each in new}:
        if conversation_id is not None:
            conversation_for_write(session, principal, conversation_id)
        elif not has_workspace(session, principal):
            raise no_workspace()
        else:
            check_user(session, principal)
    return _insert_all(session, owner_by(principal), new, limits)


def _write_back(session: Session, token_hash: bytes, new: Sequence[NewFile], limits: StorageLimits) -> list[File]:
    """Spend the token, and add these files to the bag of its turn."""
    found = session.row("upload", {"hash": token_hash, "now": session.now, "files": json_text(ids_of(new))})
    if found is None:
        raise token_refused()
    upload = Upload(*found)
    if is_to_be_spent(upload, len(new)):
        session.run("mark_token_spent", {"hash": token_hash, "now": session.now})
        session.run("count_written_files", {"turn": upload.turn_id, "count": len(new)})
    bagged = [structs.replace(each, conversation_id=upload.conversation_id) for each in new]
    return _insert_all(session, upload.owner, bagged, limits)


def _turn_bag(session: Session, turn_id: TurnId, attempt: int) -> TurnBag:
    with session.snapshot():
        found = session.row("bag_of_running_turn", {"turn": turn_id, "attempt": attempt})
        if found is None:
            raise no_turn_bag()
        org_id, workspace_id, conversation_id = found
        files = session.rows("ready_files_of_conversation", {"conversation": conversation_id})
    return TurnBag(
        org_id=org_id,
        workspace_id=workspace_id,
        conversation_id=conversation_id,
        files=tuple(to_file(row) for row in files),
    )


def _insert_all(session: Session, owner: FileOwner, new: Sequence[NewFile], limits: StorageLimits) -> list[File]:
    files = [_insert(session, owner, each) for each in new]
    whose = {"workspace": owner.workspace_id, "user": owner.user_id, "key": owner.key_id}
    asked = {"workspace_asked": bool(limits.workspace_bytes), "user_asked": bool(limits.user_bytes)}
    check_stored(limits, [StoredBytes(*row) for row in session.rows("stored_bytes", whose | asked)])
    return files


def _insert(session: Session, owner: FileOwner, new: NewFile) -> File:
    name = new.name if new.conversation_id is None else _free_name(session, new.conversation_id, new.name)
    inserted = session.row("insert_file", file_record(new, owner, name=name, now=session.now))
    if inserted is not None:
        return to_file(inserted)
    stored = session.row("stored_file", {"file": new.id, "org": owner.org_id})
    return same_file(None if stored is None else to_file(stored), new)


def _complete(session: Session, principal: Principal, file_id: FileId, found: FoundBytes) -> File:
    file = _own(session, principal, file_id, is_admin=False)
    done = session.rows("complete_file", {"file": file_id, **structs.asdict(found)})
    return to_file(done[0]) if done else same_bytes(file, found.sha256)


def _delete(session: Session, principal: Principal, file_id: FileId) -> None:
    _own(session, principal, file_id, is_admin=principal.role == "admin")
    session.run("delete_file", {"file": file_id, "now": session.now})


def _free_name(session: Session, conversation_id: ConversationId, name: str) -> str:
    """The first of `name`, `name-1`, … that no file of the bag has. There is one writer, so the name stays free."""
    offered = OFFERED
    while True:
        keys = json_text(names_to_look_up([name], offered))
        taken = [key for (key,) in session.rows("taken_names", {"conversation": conversation_id, "keys": keys})]
        free = free_names([name], taken, offered)
        if free is not None:
            return free[0]
        offered *= 4


def _own(session: Session, principal: Principal, file_id: FileId, *, is_admin: bool) -> File:
    row = session.row("own_file", owner_of(principal) | {"file": file_id, "is_admin": is_admin})
    if row is None:
        raise no_file()
    return to_file(row)
