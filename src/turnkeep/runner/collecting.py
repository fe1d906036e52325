"""What `collect` sends back from a box, read as strictly as anything from outside: lines of JSON and bytes."""

import hashlib
import tempfile
from typing import IO

import msgspec
from msgspec import Struct

from turnkeep.filebag.unzipping import ZipRefused, safe_path
from turnkeep.runner.boxes.ports import MIB
from turnkeep_client.wire.blocks import JsonValue

HEAD_BYTES = 16 * 1024
_SPOOL_BYTES = MIB


class Asset(Struct, frozen=True, kw_only=True):
    """A file that came back. `file` stands at its beginning."""

    path: str
    size: int
    sha256: str
    file: IO[bytes]


class _Head(Struct, frozen=True):
    path: str | None = None
    size: int = 0
    skipped: bool = False
    result: JsonValue = None
    error: str | None = None


class CollectReader:
    """Reads what `collect` sends: lines of JSON, each followed by the bytes of a file."""

    def __init__(self) -> None:
        self.assets: list[Asset] = []
        self.skipped: list[str] = []
        self.is_complete = False
        self._is_broken = False
        self._line = b""
        self._current: _Incoming | None = None

    def feed(self, piece: bytes) -> None:
        view = memoryview(piece)
        while view and not self._is_broken:
            view = self._body(view) if self._current is not None else self._header(view)

    def _header(self, view: memoryview) -> memoryview:
        head, feed, rest = bytes(view).partition(b"\n")
        self._line += head
        if not feed:
            self._is_broken = len(self._line) > HEAD_BYTES
            return view[len(view) :]
        line, self._line = self._line, b""
        try:
            self._begin(msgspec.json.decode(line, type=_Head))
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._is_broken = True
        return memoryview(rest)

    def close(self) -> None:
        """Drop what has arrived."""
        for asset in self.assets:
            asset.file.close()
        if self._current is not None:
            self._current.close()

    def _begin(self, head: _Head) -> None:
        if head.path is None:
            self.is_complete = head.error is None
        elif head.skipped:
            self.skipped.append(head.path)
        else:
            self._current = _Incoming(head.path, max(0, head.size))
            self._end_if_whole()

    def _body(self, view: memoryview) -> memoryview:
        assert self._current is not None
        taken = self._current.take(view)
        self._end_if_whole()
        return view[taken:]

    def _end_if_whole(self) -> None:
        current = self._current
        if current is None or current.left:
            return
        self._current = None
        try:
            safe_path(current.path)
        except ZipRefused:  # nobody could open a file of that name
            current.close()
            self.skipped.append(ascii(current.path))
        else:
            self.assets.append(current.asset())


class _Incoming:
    """A file while it arrives: in memory as long as it is small, else in a file that has no name."""

    def __init__(self, path: str, size: int) -> None:
        self.left = size
        self.path = path
        self._size = size
        self._digest = hashlib.sha256()
        self._file = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES)  # noqa: SIM115 - closed by who uploads it

    def take(self, view: memoryview) -> int:
        piece = view[: self.left]
        self._digest.update(piece)
        self._file.write(piece)
        self.left -= len(piece)
        return len(piece)

    def close(self) -> None:
        self._file.close()

    def asset(self) -> Asset:
        self._file.seek(0)
        return Asset(path=self.path, size=self._size, sha256=self._digest.hexdigest(), file=self._file)
