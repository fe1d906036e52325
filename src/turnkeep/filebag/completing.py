"""Promised bytes that have come: looked at, and made a file's.

The address of a PUT holds for a while, so other bytes may come at any moment, and any number of workers may be asked to
complete the same file. Each attempt therefore looks at a copy that nobody else knows, and one statement of the store
makes the copy and what was found in it the file's. Whoever is later throws its own copy away.
"""

import asyncio
import secrets
from functools import partial
from weakref import WeakValueDictionary

from turnkeep.errors import Conflict, InvalidRequest, TurnkeepError, WorldError
from turnkeep.filebag.keys import Folder, incoming_key, storage_key
from turnkeep.filebag.pairing import commit, discard
from turnkeep.filebag.ports import Missing, Objects
from turnkeep.filebag.receiving import Intake, other_size
from turnkeep.filebag.sniffing import UNKNOWN, type_of
from turnkeep.ids import FileId
from turnkeep.model.files import File
from turnkeep.model.principals import Principal
from turnkeep.store.ports import FileStore


class Completion:
    """Makes pending files ready. A ready file has exactly the bytes whose sha256 its row tells."""

    def __init__(self, store: FileStore, objects: Objects, *, max_file_bytes: int) -> None:
        self._store = store
        self._objects = objects
        self._max_file_bytes = max_file_bytes
        self._under_way: WeakValueDictionary[FileId, asyncio.Lock] = WeakValueDictionary()

    async def complete(self, principal: Principal, file_id: FileId, *, size: int | None, sha256: str | None) -> File:
        """As `Bag.complete` promises it."""
        lock = self._under_way.setdefault(file_id, asyncio.Lock())
        async with lock:  # only to save work: other workers have locks of their own
            file = await self._store.file(principal, file_id)
            if file.status == "pending":
                key = await self._own_copy(file)
                if key is not None:
                    found = await self._look_at(file, key, size=size, sha256=sha256)
                    return await self._make_ready(principal, file, key, found)
                file = await self._store.file(principal, file_id)  # no bytes: another worker may have been quicker
            if file.status == "pending":
                raise Conflict("Nothing was uploaded for this file yet. PUT its bytes first.")
            _check(file.size, file.sha256 or "", size=size, sha256=sha256)
            return file

    async def _own_copy(self, file: File) -> str | None:
        """Out of the place where somebody may still write, to one that only this attempt knows."""
        folder = Folder(file.workspace_id, file.conversation_id)
        key = storage_key(folder, file.id, file.name, attempt=secrets.token_hex(8))
        try:
            await self._objects.copy(incoming_key(file.id), key)
        except Missing:
            return None
        return key

    async def _look_at(self, file: File, key: str, *, size: int | None, sha256: str | None) -> Intake:
        declared = None if file.mime_type == UNKNOWN else file.mime_type
        intake = Intake(limit=self._max_file_bytes, type_of=partial(type_of, file.name, declared))
        try:
            found = await self._objects.size(key)
            if found != file.size:
                raise other_size(file.size, found or 0)
            async for _ in intake.passing(self._objects.read(key, start=0, end=found)):
                pass
            _check(intake.size, intake.sha256, size=size, sha256=sha256)
        except BaseException as exc:
            is_refused = isinstance(exc, TurnkeepError) and not isinstance(exc, WorldError)
            await discard(self._objects, [key, incoming_key(file.id)] if is_refused else [key])
            raise
        return intake

    async def _make_ready(self, principal: Principal, file: File, key: str, found: Intake) -> File:
        done = await commit(
            self._objects,
            [key],
            lambda: self._store.complete_file(
                principal,
                file.id,
                size=found.size,
                sha256=found.sha256,
                mime_type=found.mime_type,
                storage_key=key,
                crc32=found.crc32,
            ),
        )
        incoming = incoming_key(file.id)
        await discard(self._objects, [incoming] if done.storage_key == key else [incoming, key])
        return done


def _check(found_size: int, found_sha256: str, *, size: int | None, sha256: str | None) -> None:
    if size is not None and size != found_size:
        raise other_size(size, found_size)
    if sha256 is not None and sha256.lower() != found_sha256:
        raise InvalidRequest(f"The bytes that came have the sha256 {found_sha256}, not {sha256.lower()}. Upload again.")
