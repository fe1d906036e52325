"""The bag: rows in the store and bytes among the objects, kept together.

Bytes come first and rows after them, so that a row always has its object; what is left over when something fails in
between is an object that no row names, which is removed here if possible and by the sweeper otherwise.
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
    """A zip that is made while it is read."""

    size: int
    blocks: AsyncIterator[bytes]


class Bag:
    """Takes files in, hands them out. Who may do it is the store's to say, except where a token says it."""

    def __init__(self, store: FileStore, objects: Objects, *, max_file_bytes: int) -> None:
        self.objects = objects
        self._store = store
        self._max_file_bytes = max_file_bytes
        self._completion = UploadCompletion(store, objects, max_file_bytes=max_file_bytes)

    # In, at once

    async def receive(
        self, principal: Principal, conversation_id: ConversationId, parts: AsyncIterator[FilePart]
    ) -> list[File]:
        """All files of a form, or none of them."""
        folder = Folder(principal.workspace_id, conversation_id)
        new = await self._take_all(parts, partial(self._take, folder=folder))
        return await commit(self.objects, _keys(new), lambda: self._store.add_files(principal, new))

    async def write_back(self, token_hash: bytes, folder: Folder, parts: AsyncIterator[FilePart]) -> list[File]:
        """What a sandbox made, for the turn of this token, which is spent with the rows: all of it or none.

        A form that is refused or cut off does not spend the token. Of many forms that come at once exactly one is
        kept; the others raise Unauthorized.
        """
        new = await self._take_all(parts, partial(self._take, folder=folder, is_output=True))
        return await commit(self.objects, _keys(new), lambda: self._store.write_back(token_hash, new))

    # In, by a PUT that goes elsewhere

    async def promise(
        self, principal: Principal, conversation_id: ConversationId | None, *, name: str, size: int, mime_type: str
    ) -> File:
        """A row for a file whose bytes will come; it is pending until `complete`."""
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
        """The bytes of a promised file, where the server itself takes them. More or fewer than these change nothing."""
        if file_id not in await self._store.pending_files([file_id]):
            raise Conflict("This file is complete, or its upload was given up.")
        await self.objects.put(incoming_key(file_id), exactly(size, chunks))

    async def complete(
        self, principal: Principal, file_id: FileId, *, size: int | None = None, sha256: str | None = None
    ) -> File:
        """The promised bytes have come: look at them, and make the file ready. The same again changes nothing.

        A ready file has the bytes whose sha256 its row tells, whatever is put meanwhile and however many workers are
        asked at once: one of them decides. Who comes later with the same bytes gets the same answer, with other bytes
        a Conflict.

        Raises Conflict while there are no bytes, and whatever is wrong with them; they are erased then, and may be sent
        again for as long as the address holds.
        """
        return await self._completion.complete(principal, file_id, size=size, sha256=sha256)

    # Out

    def content(self, file: File, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        return self.objects.read(file.storage_key, start=start, end=file.size if end is None else end)

    async def beginning(self, file: File, *, limit: int) -> bytes:
        """The first bytes, up to a limit that fits into memory."""
        return b"".join([block async for block in self.content(file, end=min(file.size, limit))])

    def archive(self, files: Sequence[File]) -> Archive:
        """These files as a zip, in the order in which they came into the bag."""
        by_name = {file.name: file for file in sorted(files, key=lambda file: (file.created_at, file.id))}
        entries = [
            ZipEntry(name=file.name, size=file.size, modified_at=file.created_at, crc32=file.crc32)
            for file in by_name.values()
        ]
        return Archive(length_of(entries), zipped(entries, lambda entry: self.content(by_name[entry.name])))

    async def save(self, principal: Principal, file_id: FileId, conversation_id: ConversationId | None) -> File:
        """A copy among the workspace's Files, or in the bag of a conversation."""
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

    # Both together

    async def _take_all(
        self, parts: AsyncIterator[FilePart], take: Callable[[FilePart], Awaitable[NewFile]]
    ) -> list[NewFile]:
        taken: list[NewFile] = []
        try:
            async for part in parts:
                taken.append(await take(part))  # noqa: PERF401 - what was taken before a failure must be known
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
