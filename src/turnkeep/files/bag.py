"""The bag: the files of conversations, each a row in the store and an object among the bytes.

The object is written before the row, so a row always has its object. If something fails in between, an object without a
row remains. It is deleted at once if possible, and by the orphan sweep otherwise.

Decision: docs/decisions/0701
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial

from msgspec import Struct

from turnkeep.errors import Conflict
from turnkeep.files.keys import Folder, incoming_key, storage_key
from turnkeep.files.media_types import UNKNOWN, claimed_type, type_of, type_of_output
from turnkeep.files.multipart import FilePart
from turnkeep.files.names import clean_name
from turnkeep.files.ports import Objects
from turnkeep.files.uploads import UploadCompletion, UploadInspector, commit, discard, exactly, too_large
from turnkeep.files.zip_writer import ZipEntry, length_of, zipped
from turnkeep.ids import ConversationId, FileId, new_file_id
from turnkeep.model.files import File, NewFile
from turnkeep.model.principals import Principal
from turnkeep.store.ports import FileStore


class Archive(Struct, frozen=True):
    """A zip archive that is written while it is read."""

    size: int
    blocks: AsyncIterator[bytes]


class Bag:
    """Stores files and reads them. The store checks permissions; a write-back is authorised by its token."""

    def __init__(self, store: FileStore, objects: Objects, *, max_file_bytes: int) -> None:
        self.objects = objects
        self._store = store
        self._max_file_bytes = max_file_bytes
        self._completion = UploadCompletion(store, objects, max_file_bytes=max_file_bytes)

    # Uploads in one request

    async def receive(
        self, principal: Principal, conversation_id: ConversationId, parts: AsyncIterator[FilePart]
    ) -> list[File]:
        """Store all files of a form, or none of them."""
        folder = Folder(principal.workspace_id, conversation_id)
        new = await self._take_all(parts, partial(self._take, folder=folder))
        return await commit(self.objects, _keys(new), lambda: self._store.add_files(principal, new))

    async def write_back(self, token_hash: bytes, folder: Folder, parts: AsyncIterator[FilePart]) -> list[File]:
        """Store all files that a sandbox made, or none, for the turn of this token.

        The rows and the use of the token are one transaction.

        A form that is refused or cut off does not use up the token. Of several forms sent at once exactly one is kept;
        the others raise Unauthorized.
        """
        new = await self._take_all(parts, partial(self._take, folder=folder, is_output=True))
        return await commit(self.objects, _keys(new), lambda: self._store.write_back(token_hash, new))

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
        [file] = await self._store.add_files(principal, [new])
        return file

    async def accept(self, file_id: FileId, size: int, chunks: AsyncIterator[bytes]) -> None:
        """Store the bytes of a promised file, where the server itself receives them. Another size is refused."""
        if file_id not in await self._store.pending_files([file_id]):
            raise Conflict("This file is complete, or its upload was given up.")
        await self.objects.put(incoming_key(file_id), exactly(size, chunks))

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
        copy_id = new_file_id()
        folder = Folder(principal.workspace_id, conversation_id, is_saved=conversation_id is None)
        new = NewFile(
            id=copy_id,
            conversation_id=conversation_id,
            name=file.name,
            mime_type=file.mime_type,
            size=file.size,
            storage_key=storage_key(folder, copy_id, file.name),
            source=file.source,
            sha256=file.sha256,
            is_saved=conversation_id is None,
            crc32=file.crc32,
        )
        await self.objects.copy(file.storage_key, new.storage_key)
        [saved] = await commit(self.objects, [new.storage_key], lambda: self._store.add_files(principal, [new]))
        return saved

    # Helpers of uploads

    async def _take_all(
        self, parts: AsyncIterator[FilePart], take: Callable[[FilePart], Awaitable[NewFile]]
    ) -> list[NewFile]:
        taken: list[NewFile] = []
        try:
            async for part in parts:
                taken.append(await take(part))  # noqa: PERF401 - after a failure, these are discarded
        except BaseException:
            await discard(self.objects, _keys(taken))
            raise
        return taken

    async def _take(self, part: FilePart, *, folder: Folder, is_output: bool = False) -> NewFile:
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


def _keys(new: Sequence[NewFile]) -> list[str]:
    return [each.storage_key for each in new]
