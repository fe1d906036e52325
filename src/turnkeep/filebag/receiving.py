"""Bytes on their way in: counted, hashed and looked at as they pass, in blocks of an even size."""

import asyncio
import hashlib
import zlib
from collections.abc import AsyncIterable, AsyncIterator, Callable

from turnkeep.errors import FileTooLarge, InvalidRequest
from turnkeep.filebag.ports import BLOCK
from turnkeep.filebag.sniffing import HEAD_BYTES


class Intake:
    """One file on its way in. `size`, `sha256`, `crc32` and `mime_type` are true once all of it has passed."""

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

    async def passing(self, chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        """The same bytes. Raises FileTooLarge with the first one over the limit, whatever was announced, and what
        `type_of` raises before anything is passed on."""
        hashing: asyncio.Future[None] | None = None
        async for block in in_blocks(self._counted(chunks)):
            if not self.mime_type:
                self.mime_type = self._type_of(block[:HEAD_BYTES])
            if hashing is not None:
                await hashing
            # While the block is written, another thread hashes it: hashing lets go of the interpreter.
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


async def exactly(size: int, chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The same bytes, in blocks. Raises when there are more of them, and at the end when there were fewer."""
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
