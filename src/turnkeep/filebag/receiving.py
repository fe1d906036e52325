"""Bytes on their way in: counted, hashed and looked at as they pass, in blocks of an even size."""

import asyncio
import hashlib
from collections.abc import AsyncIterable, AsyncIterator, Callable

from turnkeep.errors import FileTooLarge
from turnkeep.filebag.ports import BLOCK
from turnkeep.filebag.sniffing import HEAD_BYTES


class Intake:
    """One file on its way in. `size`, `sha256` and `mime_type` are true once all of it has passed."""

    def __init__(self, *, limit: int, type_of: Callable[[bytes], str]) -> None:
        self.size = 0
        self.mime_type = ""
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
        async for block in self._blocks(chunks):
            if not self.mime_type:
                self.mime_type = self._type_of(block[:HEAD_BYTES])
            if hashing is not None:
                await hashing
            # While the block is written, another thread hashes it: hashing lets go of the interpreter.
            hashing = asyncio.get_running_loop().run_in_executor(None, self._hash.update, block)
            yield block
        if hashing is not None:
            await hashing
        if not self.mime_type:
            self.mime_type = self._type_of(b"")

    async def _blocks(self, chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        waiting: list[bytes] = []
        length = 0
        async for chunk in chunks:
            self.size += len(chunk)
            if self.size > self._limit:
                raise too_large(self._limit)
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
