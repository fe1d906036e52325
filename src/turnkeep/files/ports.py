"""The object store: the bytes of files, by key, on a disk or in a bucket.

Each verb may raise `Unavailable` when the disk or the bucket cannot be used, and `StorageFull`. An object that does not
exist raises `Missing`.
"""

from collections.abc import AsyncIterable, AsyncIterator, Sequence
from typing import Protocol

from msgspec import Struct

from turnkeep.errors import NotFound

BLOCK = 1024 * 1024
"""Bytes are passed on in blocks of about this size."""


class Missing(NotFound):
    """No object has this key."""


class StoredObject(Struct, frozen=True, kw_only=True):
    """An object in a listing. `modified_at` is in Unix epoch milliseconds."""

    key: str
    size: int
    modified_at: int


class Objects(Protocol):
    """Immutable objects by key. A key may be put again, which replaces its object as a whole."""

    async def put(self, key: str, blocks: AsyncIterable[bytes]) -> None:
        """Store these bytes. The object is complete and durable when this returns.

        If `blocks` raises, or the caller is cancelled, no object is stored.
        """

    def read(self, key: str, *, start: int, end: int) -> AsyncIterator[bytes]:
        """The bytes from `start` up to `end`, in blocks, with constant memory.

        Raises Unavailable if the object is shorter than `end`.
        """

    async def size(self, key: str) -> int | None:
        """The number of bytes; None if the object does not exist."""

    async def copy(self, source: str, target: str) -> None:
        """The same bytes under another key, durable once this returns."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete these objects. Keys without an object are ignored."""

    def list(self, prefix: str) -> AsyncIterator[Sequence[StoredObject]]:
        """All objects under this prefix, in pages, in any order."""

    async def discard_unfinished(self, *, before: int) -> int:
        """Remove drafts of puts that were killed before this time; return their number."""

    async def upload_url(self, key: str, *, size: int, seconds: int) -> str | None:
        """An address at which a client may PUT this object, of exactly `size` bytes, for a while; None if only the
        server can receive it."""

    async def upload_origin(self) -> str | None:
        """The origin of all these addresses, as `https://bucket.example.org`; None if there are none."""
