"""Uploads: bytes inspected while they arrive, two-step uploads completed, and rows kept together with their objects.

An object is always written before its row. If the row cannot be written, the object is deleted; an object that cannot
be deleted at once is removed by the orphan sweep (`orphans.py`).
"""

import asyncio
import hashlib
import secrets
import zlib
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

from turnkeep.errors import Conflict, FileTooLarge, InvalidRequest, TurnkeepError, Unavailable, WorldError
from turnkeep.files.keys import Folder, incoming_key, storage_key
from turnkeep.files.media_types import HEAD_BYTES, UNKNOWN, type_of
from turnkeep.files.ports import BLOCK, Missing, Objects
from turnkeep.ids import FileId
from turnkeep.model.files import File
from turnkeep.model.principals import Principal
from turnkeep.store.ports import FileStore

Rows = TypeVar("Rows")


class UploadInspector:
    """Inspects the bytes of one file. `size`, `sha256`, `crc32` and `mime_type` are final after the last byte."""

    def __init__(self, *, limit: int, type_of: Callable[[bytes], str]) -> None:
        self.size = 0
        self.mime_type = ""
        self.crc32 = 0
        self._limit = limit
        self._type_of = type_of
        self._hash = hashlib.sha256()

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    async def inspect(self, chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        """The same bytes, in blocks of about the same size.

        Raises FileTooLarge at the first byte over the limit, whatever size the client announced. Errors of `type_of`
        are raised before the first block.
        """
        hashing: asyncio.Future[None] | None = None
        async for block in in_blocks(self._counted(chunks)):
            if not self.mime_type:
                self.mime_type = self._type_of(block[:HEAD_BYTES])
            if hashing is not None:
                await hashing
            # Another thread hashes the block while the caller writes it: hashing releases the interpreter lock.
            hashing = asyncio.get_running_loop().run_in_executor(None, self._add, block)
            yield block
        if hashing is not None:
            await hashing
        if not self.mime_type:
            self.mime_type = self._type_of(b"")

    def _add(self, block: bytes) -> None:
        self._hash.update(block)
        self.crc32 = zlib.crc32(block, self.crc32)

    async def _counted(self, chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            self.size += len(chunk)
            if self.size > self._limit:
                raise too_large(self._limit)
            yield chunk


class UploadCompletion:
    """Makes pending files ready. A ready file has exactly the bytes whose sha256 is in its row.

    The upload address stays valid for a while, so a client may PUT other bytes at any moment, and several workers may
    be asked to complete the same file at once. Each attempt therefore inspects a private copy of the bytes, and one
    statement of the store makes that copy the file's. Every later attempt deletes its own copy.
    """

    def __init__(self, store: FileStore, objects: Objects, *, max_file_bytes: int) -> None:
        self._store = store
        self._objects = objects
        self._max_file_bytes = max_file_bytes
        self._locks: WeakValueDictionary[FileId, asyncio.Lock] = WeakValueDictionary()

    async def complete(self, principal: Principal, file_id: FileId, *, size: int | None, sha256: str | None) -> File:
        """See `Bag.complete`."""
        lock = self._locks.setdefault(file_id, asyncio.Lock())
        async with lock:  # only to save work: other workers have locks of their own
            file = await self._store.file(principal, file_id)
            if file.status == "pending":
                key = await self._private_copy(file)
                if key is not None:
                    found = await self._inspect(file, key, size=size, sha256=sha256)
                    return await self._make_ready(principal, file, key, found)
                file = await self._store.file(principal, file_id)  # no bytes: another worker may have been faster
            if file.status == "pending":
                raise Conflict("Nothing was uploaded for this file yet. PUT its bytes first.")
            _check(file.size, file.sha256 or "", size=size, sha256=sha256)
            return file

    async def _private_copy(self, file: File) -> str | None:
        """The key of a copy that only this attempt knows; None if no bytes have arrived."""
        folder = Folder(file.workspace_id, file.conversation_id)
        key = storage_key(folder, file.id, file.name, attempt=secrets.token_hex(8))
        try:
            await self._objects.copy(incoming_key(file.id), key)
        except Missing:
            return None
        return key

    async def _inspect(self, file: File, key: str, *, size: int | None, sha256: str | None) -> UploadInspector:
        declared = None if file.mime_type == UNKNOWN else file.mime_type
        inspector = UploadInspector(limit=self._max_file_bytes, type_of=partial(type_of, file.name, declared))
        try:
            found = await self._objects.size(key)
            if found != file.size:
                raise other_size(file.size, found or 0)
            async for _ in inspector.inspect(self._objects.read(key, start=0, end=found)):
                pass
            _check(inspector.size, inspector.sha256, size=size, sha256=sha256)
        except BaseException as exc:
            is_refused = isinstance(exc, TurnkeepError) and not isinstance(exc, WorldError)
            await discard(self._objects, [key, incoming_key(file.id)] if is_refused else [key])
            raise
        return inspector

    async def _make_ready(self, principal: Principal, file: File, key: str, found: UploadInspector) -> File:
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


async def commit(objects: Objects, keys: Sequence[str], make_rows: Callable[[], Awaitable[Rows]]) -> Rows:
    """Write the rows of these objects; if the store refuses them, delete the objects.

    If the database fails in the middle, it is unknown whether the rows were written. The objects stay, and the orphan
    sweep decides later.
    """
    try:
        return await make_rows()
    except Unavailable:
        raise
    except TurnkeepError:
        await discard(objects, keys)
        raise


async def discard(objects: Objects, keys: Sequence[str]) -> None:
    """Delete objects that no row names, also when the caller is cancelled. The orphan sweep finds what remains."""
    with suppress(WorldError):
        await asyncio.shield(objects.delete(keys))


async def exactly(size: int, chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The same bytes, in blocks. Raises at the first byte over `size`, and at the end if there were fewer."""
    found = 0
    async for block in in_blocks(chunks):
        found += len(block)
        if found > size:
            raise too_large(size)
        yield block
    if found != size:
        raise other_size(size, found)


async def in_blocks(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    waiting: list[bytes] = []
    length = 0
    async for chunk in chunks:
        waiting.append(chunk)
        length += len(chunk)
        if length >= BLOCK:
            yield b"".join(waiting)
            waiting.clear()
            length = 0
    if length:
        yield b"".join(waiting)


def too_large(limit: int) -> FileTooLarge:
    return FileTooLarge(f"A file may have {limit:,} bytes, this one has more.")


def other_size(expected: int, found: int) -> InvalidRequest:
    return InvalidRequest(f"{expected:,} bytes were announced for this file, and {found:,} came. Upload it again.")


def _check(found_size: int, found_sha256: str, *, size: int | None, sha256: str | None) -> None:
    if size is not None and size != found_size:
        raise other_size(size, found_size)
    if sha256 is not None and sha256.lower() != found_sha256:
        raise InvalidRequest(f"The bytes that came have the sha256 {found_sha256}, not {sha256.lower()}. Upload again.")
