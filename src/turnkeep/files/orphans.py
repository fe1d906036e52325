"""The orphan sweep: compare rows with objects, and remove objects without a row and uploads that were never finished.

Any worker may run any part at any time. Objects younger than a day and uploads younger than three hours are left alone,
because their upload may still be running. Bytes that were uploaded for a file that does not wait for them go at once.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

from msgspec import Struct

from turnkeep.clock import Clock, system_clock
from turnkeep.files.keys import INCOMING, PREFIXES, Folder, incoming_key
from turnkeep.files.ports import Objects
from turnkeep.ids import ConversationId, FileId, WorkspaceId
from turnkeep.store.ports import FileStore

DAY_MS = 24 * 3_600_000
GRACE_MS = DAY_MS
"""Longer than any upload may take."""
UNFINISHED_MS = 3 * 3_600_000
"""The address of an upload is valid for an hour. An upload that began within it has two more hours."""
FULL_EVERY = 144
"""A full comparison runs once in this many rounds: once a day, with a round every ten minutes."""
SHOWN = 100
ASKED_AT_ONCE = 16

_logger = logging.getLogger("turnkeep.files")


class BagReport(Struct, frozen=True, kw_only=True):
    """What a comparison found. Of each kind of trouble up to 100 are named."""

    objects: int
    """Objects that were looked at."""
    files: int
    """Rows that should have an object."""
    orphans: tuple[str, ...]
    """Keys of objects that no row names, and that are old enough to be sure of it."""
    missing: tuple[FileId, ...]
    """Files whose object is not there: their bytes are lost."""

    @property
    def is_clean(self) -> bool:
        return not self.orphans and not self.missing


async def check_bag(store: FileStore, objects: Objects, *, clock: Clock = system_clock) -> BagReport:
    """Compare rows and objects. Changes nothing."""
    seen, orphans = 0, list[str]()
    async for found, unreferenced in _compared(store, objects, before=clock() - GRACE_MS):
        seen += found
        orphans += unreferenced[: SHOWN - len(orphans)]
    files, missing = await _missing(store, objects)
    return BagReport(objects=seen, files=files, orphans=tuple(orphans), missing=tuple(missing))


class BagSweeper:
    """Removes unfinished uploads, files that no conversation took in, and objects that no row names."""

    def __init__(
        self, store: FileStore, objects: Objects, *, retention_days: float = 30.0, clock: Clock = system_clock
    ) -> None:
        self._store = store
        self._objects = objects
        self._unused_ms = max(1.0, retention_days) * DAY_MS
        self._clock = clock
        self._rounds = 0

    async def delete(self, storage_keys: Sequence[str]) -> None:
        """Delete these objects. Raises WorldError if the bucket cannot be reached."""
        await self._objects.delete(storage_keys)

    async def tidy(self) -> None:
        """Delete unfinished uploads, uploads that came too late, and unused files; once a day all orphans.

        Raises WorldError if the bucket cannot be reached. A later round finds what was missed.
        """
        self._rounds += 1
        await self.drop_unfinished()
        await self.drop_late_uploads()
        if self._rounds % FULL_EVERY == 2:
            await self.sweep()

    async def erase(
        self,
        workspace_id: WorkspaceId,
        conversation_ids: Sequence[ConversationId],
        files: Sequence[tuple[FileId, str]],
    ) -> None:
        """Delete the bytes of these files, wherever their upload stands, and all objects in the bags of these
        conversations. Raises WorldError if the bucket cannot be reached."""
        await self._objects.delete([key for file_id, known in files for key in (known, incoming_key(file_id))])
        for conversation_id in conversation_ids:
            async for page in self._objects.list(Folder(workspace_id, conversation_id).path):
                await self._objects.delete([found.key for found in page])

    async def drop_unfinished(self) -> None:
        """Delete uploads that were not completed in time, and files that no conversation took in within the retention
        period: their rows and their bytes."""
        now = self._clock()
        while dropped := await self._store.drop_unfinished(
            created_before=now - UNFINISHED_MS, unused_before=int(now - self._unused_ms)
        ):
            for file_id, key in dropped:
                await self._objects.delete([incoming_key(file_id), key])

    async def drop_late_uploads(self) -> None:
        """Delete bytes that were uploaded for a file that is complete, or that was erased: the address of an upload
        stays valid for a while. An upload has its row before it has its address, so however young the bytes are, no
        row will come."""
        async for page in self._objects.list(INCOMING):
            await self._objects.delete(await _unreferenced(self._store, [found.key for found in page]))

    async def sweep(self) -> BagReport:
        """Remove objects that no row names, and drafts of killed uploads; report rows that have no object."""
        await self._objects.discard_unfinished(before=self._clock() - GRACE_MS)
        seen, removed = 0, list[str]()
        async for found, orphans in _compared(self._store, self._objects, before=self._clock() - GRACE_MS):
            await self._objects.delete(orphans)
            seen += found
            removed += orphans[: SHOWN - len(removed)]
        files, missing = await _missing(self._store, self._objects)
        if missing:
            _logger.error("the bytes of files are missing: %s", ", ".join(missing))
        if removed:
            _logger.warning("objects that no file names were removed: %s", ", ".join(removed))
        return BagReport(objects=seen, files=files, orphans=tuple(removed), missing=tuple(missing))


async def _compared(store: FileStore, objects: Objects, *, before: int) -> AsyncIterator[tuple[int, list[str]]]:
    """For each page of objects: their number, and the keys that no row names."""
    for prefix in PREFIXES:
        async for page in objects.list(prefix):
            old = [found.key for found in page if found.modified_at < before]
            yield len(page), await _unreferenced(store, old)


async def _unreferenced(store: FileStore, keys: Sequence[str]) -> list[str]:
    incoming = {key: FileId(key.rpartition("/")[2]) for key in keys if key.startswith(f"{INCOMING}/")}
    known = await store.known_keys([key for key in keys if key not in incoming])
    pending = await store.pending_files(list(incoming.values()))
    return [key for key in keys if key not in known and incoming.get(key) not in pending]


async def _missing(store: FileStore, objects: Objects) -> tuple[int, list[FileId]]:
    """The number of rows that should have an object, and the first ids of those that have none."""
    asking = asyncio.Semaphore(ASKED_AT_ONCE)

    async def is_there(key: str) -> bool:
        async with asking:
            return await objects.size(key) is not None

    count, missing = 0, list[FileId]()
    last: FileId | None = None
    while page := await store.all_files(after=last):
        last = page[-1].id
        ready = [file for file in page if file.status == "ready"]
        count += len(ready)
        answers = await asyncio.gather(*(is_there(file.storage_key) for file in ready))
        lost = [file.id for file, there in zip(ready, answers, strict=True) if not there]
        missing += lost[: SHOWN - len(missing)]
    return count, missing
