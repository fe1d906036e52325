"""What knowledge needs of the file bag: the bytes of a file."""

from collections.abc import AsyncIterator
from typing import Protocol

from turnkeep.model.files import File


class FileBytes(Protocol):
    def content(self, file: File, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """The bytes in pieces. Raises NotFound if they are gone, Unavailable if they cannot be reached."""
