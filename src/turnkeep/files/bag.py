"""The bag: the files of conversations, each a row in the store and an object among the bytes.

The object is written before the row, so a row always has its object. If something fails in between, an object without a
row remains. It is deleted at once if possible, and by the orphan sweep (`orphans.py`) otherwise.

Bytes are inspected while they arrive, and never held whole. An upload in two steps is completed from a private copy of
its bytes.

Decision: docs/decisions/0701
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

from msgspec import Struct, structs

from turnkeep.errors import Conflict, FileTooLarge, InvalidRequest, TurnkeepError, Unavailable, WorldError
from turnkeep.files.keys import Folder, incoming_key, storage_key
from turnkeep.files.media_types import HEAD_BYTES, UNKNOWN, claimed_type, type_of, type_of_output
from turnkeep.files.multipart import FormFile
from turnkeep.files.names import clean_name
from turnkeep.files.ports import BLOCK, Missing, Objects
from turnkeep.files.zip_files import ZipEntry, length_of, zipped
from turnkeep.ids import ConversationId, FileId, new_file_id
from turnkeep.model.files import NO_LIMITS, File, NewFile, StorageLimits
from turnkeep.model.principals import Principal
from turnkeep.store.ports import FileStore

Rows = TypeVar("Rows")


class Archive(Struct, frozen=True):
    """A zip archive that is written while it is read."""

    size: int
    blocks: AsyncIterator[bytes]


class Bag:
    """Stores files and reads them. The store checks permissions; a write-back is authorised by its token."""

    def __init__(
        self, store: FileStore, objects: Objects, *, max_file_bytes: int, limits: StorageLimits = NO_LIMITS
    ) -> None:
        self.objects = objects
        self._store = store
        self._limits = limits
        self._max_file_bytes = max_file_bytes
        self._completion = UploadCompletion(store, objects, max_file_bytes=max_file_bytes)

    # Uploads in one request

    async def receive(
        self,
        principal: Principal,
        conversation_id: ConversationId | None,
        parts: AsyncIterator[FormFile],
        *,
        purpose: Callable[[], str | None] = lambda: None,
    ) -> list[File]:
        """Store all files of a form, or none of them. Without a conversation they join the one that attaches them.
        `purpose` is called when the form was read."""
        folder = Folder(principal.workspace_id, conversation_id)
        taken = await self._take_all(parts, partial(self._take, folder=folder))
        said = purpose()
        new = [structs.replace(each, purpose=said) for each in taken]
        return await commit(self.objects, _keys(new), lambda: self._add(principal, new))

    async def write_back(self, token_hash: bytes, folder: Folder, parts: AsyncIterator[FormFile]) -> list[File]:
        """Store all files that a sandbox made, or none, for the turn of this token.

        The rows and the use of the token are one transaction.

        A form that is refused or cut off does not use up the token. Of several forms sent at once exactly one is kept;
        the others raise Unauthorized.
        """
        new = await self._take_all(parts, partial(self._take, folder=folder, is_output=True))
        return await commit(
            self.objects, _keys(new), lambda: self._store.write_back(token_hash, new, limits=self._limits)
        )

    # Uploads in two steps: a promise, a PUT to a signed address, a completion

    async def promise(
        self, principal: Principal, conversation_id: ConversationId | None, *, name: str, size: int, mime_type: str
    ) -> File:
        """Create the row of a file whose bytes will follow. It is pending until `complete`."""
        name = clean_name(name)
        if size > self._max_file_bytes:
            raise too_large(self._max_file_bytes)
        file_id = new_file_id()
        new = NewFile(
            id=file_id,
            conversation_id=conversation_id,
            name=name,
            mime_type=claimed_type(name, mime_type) or UNKNOWN,
            size=size,
            storage_key=storage_key(Folder(principal.workspace_id, conversation_id), file_id, name),
        )
        [file] = await self._add(principal, [new])
        return file

    async def accept(self, file_id: FileId, size: int, chunks: AsyncIterator[bytes]) -> None:
        """Store the bytes of a promised file, where the server itself receives them. Another size is refused, and so
        are bytes whose file is erased while they arrive."""
        await self._check_pending(file_id)
        await self.objects.put(incoming_key(file_id), exactly(size, chunks))
        try:
            await self._check_pending(file_id)
        except Conflict:
            await discard(self.objects, [incoming_key(file_id)])
            raise

    async def _check_pending(self, file_id: FileId) -> None:
        if file_id not in await self._store.pending_files([file_id]):
            raise Conflict("This file is complete, or its upload was given up.")

    async def complete(
        self, principal: Principal, file_id: FileId, *, size: int | None = None, sha256: str | None = None
    ) -> File:
        """Inspect the uploaded bytes and make the file ready. A repeated call changes nothing.

        A ready file has exactly the bytes whose sha256 is in its row, even if a client uploads again meanwhile or
        several workers complete the file at once. A later call with the same size and sha256 returns the same file; a
        call with others is refused.

        Raises Conflict if no bytes have arrived. If the bytes are refused, they are deleted, and the client may upload
        again while the address is valid.
        """
        return await self._completion.complete(principal, file_id, size=size, sha256=sha256)

    # Reading

    def content(self, file: File, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        return self.objects.read(file.storage_key, start=start, end=file.size if end is None else end)

    async def beginning(self, file: File, *, limit: int) -> bytes:
        """The first bytes of the file, at most `limit`, in memory."""
        return b"".join([block async for block in self.content(file, end=min(file.size, limit))])

    def archive(self, files: Sequence[File]) -> Archive:
        """These files as a zip, oldest first."""
        by_name = {file.name: file for file in sorted(files, key=lambda file: (file.created_at, file.id))}
        entries = [
            ZipEntry(name=file.name, size=file.size, modified_at=file.created_at, crc32=file.crc32)
            for file in by_name.values()
        ]
        return Archive(length_of(entries), zipped(entries, lambda entry: self.content(by_name[entry.name])))

    async def save(self, principal: Principal, file_id: FileId, conversation_id: ConversationId | None) -> File:
        """Copy a file to the workspace's Files, or to the bag of a conversation."""
        file = await self._store.file(principal, file_id)
        if file.status != "ready":
            raise Conflict("This file is not complete yet. Save it once its upload has ended.")
        new = _copy_of(file, Folder(principal.workspace_id, conversation_id, is_saved=conversation_id is None))
        await self.objects.copy(file.storage_key, new.storage_key)
        [saved] = await commit(self.objects, [new.storage_key], lambda: self._add(principal, [new]))
        return saved

    async def copy(self, principal: Principal, file_ids: Sequence[FileId]) -> dict[FileId, FileId]:
        """Copies of files that the principal may read, by the ids of the files. They belong to no conversation yet, and
        join the one that attaches them. All are made, or none."""
        files = [await self._store.file(principal, file_id) for file_id in file_ids]
        new = [_copy_of(file, Folder(principal.workspace_id, None)) for file in files]
        try:
            for file, copy in zip(files, new, strict=True):
                await self.objects.copy(file.storage_key, copy.storage_key)
        except BaseException:
            await discard(self.objects, _keys(new))
            raise
        await commit(self.objects, _keys(new), lambda: self._add(principal, new))
        return {file.id: copy.id for file, copy in zip(files, new, strict=True)}

    async def discard(self, file_ids: Sequence[FileId]) -> None:
        """Erase files that are of no use: uploads that were not completed, and files in no conversation. Others stay.

        What cannot be erased now is erased later, as everything that was not attached.
        """
        with suppress(WorldError):
            await self._discard(file_ids)

    async def _discard(self, file_ids: Sequence[FileId]) -> int:
        erased = await self._store.discard_files(file_ids)
        for file_id, key in erased:
            await discard(self.objects, [incoming_key(file_id), key])
        return len(erased)

    async def delete(self, principal: Principal, file_id: FileId) -> None:
        """Delete a file. It can be restored with its conversation, unless it is an upload that was not completed: that
        one is erased at once."""
        file = await self._store.file(principal, file_id)
        if file.status == "ready" or not await self._discard([file_id]):
            await self._store.delete_file(principal, file_id)

    # Helpers of uploads

    def _add(self, principal: Principal, new: Sequence[NewFile]) -> Awaitable[list[File]]:
        return self._store.add_files(principal, new, limits=self._limits)

    async def _take_all(
        self, parts: AsyncIterator[FormFile], take: Callable[[FormFile], Awaitable[NewFile]]
    ) -> list[NewFile]:
        taken: list[NewFile] = []
        try:
            async for part in parts:
                taken.append(await take(part))  # noqa: PERF401 - after a failure, these are discarded
        except BaseException:
            await discard(self.objects, _keys(taken))
            raise
        return taken

    async def _take(self, part: FormFile, *, folder: Folder, is_output: bool = False) -> NewFile:
        name = clean_name(part.name)
        decide = partial(type_of_output, name) if is_output else partial(type_of, name, part.declared_type)
        inspector = UploadInspector(limit=self._max_file_bytes, type_of=decide)
        file_id = new_file_id()
        key = storage_key(folder, file_id, name)
        await self.objects.put(key, inspector.inspect(part.chunks))
        return NewFile(
            id=file_id,
            conversation_id=folder.conversation_id,
            name=name,
            mime_type=inspector.mime_type,
            size=inspector.size,
            storage_key=key,
            source="sandbox" if is_output else "user",
            sha256=inspector.sha256,
            crc32=inspector.crc32,
        )


def _copy_of(file: File, folder: Folder) -> NewFile:
    copy_id = new_file_id()
    return NewFile(
        id=copy_id,
        conversation_id=folder.conversation_id,
        name=file.name,
        mime_type=file.mime_type,
        size=file.size,
        storage_key=storage_key(folder, copy_id, file.name),
        source=file.source,
        sha256=file.sha256,
        is_saved=folder.is_saved,
        crc32=file.crc32,
        purpose=file.purpose,
    )


def _keys(new: Sequence[NewFile]) -> list[str]:
    return [each.storage_key for each in new]


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
