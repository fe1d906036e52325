"""Objects: where the bytes of files live, behind a few verbs. A name given by a person never reaches them.

Each verb may raise `Unavailable` when the disk or the bucket cannot be used, and `StorageFull`. An object that is not
there raises `Missing`.
"""

from collections.abc import AsyncIterable, AsyncIterator, Sequence
from typing import Protocol

from msgspec import Struct

from turnkeep.errors import NotFound

BLOCK = 1024 * 1024
"""Bytes travel in pieces of about this size, whatever the length of a file."""


class Missing(NotFound):
    """No object has this key."""


class StoredObject(Struct, frozen=True, kw_only=True):
    """What a listing tells of an object. `modified_at` is in Unix epoch milliseconds."""

    key: str
    size: int
    modified_at: int


class Objects(Protocol):
    """A flat space of immutable objects."""

    async def put(self, key: str, blocks: AsyncIterable[bytes]) -> None:
        """Store these bytes: whole and durable once this returns.

        If `blocks` raises, or the caller is cancelled, nothing is left behind.
        """

    def read(self, key: str, *, start: int, end: int) -> AsyncIterator[bytes]:
        """The bytes from `start` up to `end`, in pieces, with constant memory. Fewer are not taken for the whole: an
        object that was cut raises Unavailable."""

    async def size(self, key: str) -> int | None:
        """How many bytes it has; None if it does not exist."""

    async def copy(self, source: str, target: str) -> None:
        """The same bytes under another key, durable once this returns."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Erase these objects. Those that are not there are passed over."""

    def list(self, prefix: str) -> AsyncIterator[Sequence[StoredObject]]:
        """Every object under this folder, in pages, in no promised order."""

    async def discard_unfinished(self, *, before: int) -> int:
        """Remove what puts that were killed before that moment left behind; return how many there were."""

    async def upload_url(self, key: str, *, seconds: int) -> str | None:
        """Where anybody may PUT this object for so long; None where only the server can take it."""
