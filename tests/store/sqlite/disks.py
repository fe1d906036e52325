"""A disk that can lose power: it remembers every write, truncate and sync, and can say what may be left at each moment.

What was synced stays. What was written after the last sync may be there, or not, or in parts: a write of many sectors
may reach the platter one sector and not the next, in any order.
"""

import random
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
from msgspec import Struct

SECTOR = 512


class Write(Struct, frozen=True):
    file: str
    offset: int
    data: bytes


class Truncate(Struct, frozen=True):
    file: str
    size: int


class Sync(Struct, frozen=True):
    file: str


class Delete(Struct, frozen=True):
    """`is_synced`: the directory was flushed too, so the file does not come back."""

    file: str
    is_synced: bool


class Acknowledged(Struct, frozen=True):
    """The caller was told that this is done."""

    what: Any


Happening = Write | Truncate | Sync | Delete | Acknowledged
Image = dict[str, bytes]


class RecordingDisk(apsw.VFS):
    """SQLite's own files, with a record of what was done to them."""

    def __init__(self) -> None:
        self.name = f"recording-{secrets.token_hex(8)}"
        self.happenings: list[Happening] = []
        super().__init__(self.name, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> "_File":
        return _File(self.happenings, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        self.happenings.append(Delete(Path(filename).name, bool(syncdir)))

    def acknowledge(self, what: object) -> None:
        self.happenings.append(Acknowledged(what))


class _File(apsw.VFSFile):
    def __init__(self, happenings: list[Happening], name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self._happenings = happenings
        self._file = Path(name.filename() if isinstance(name, apsw.URIFilename) else name or "unnamed").name

    def xWrite(self, data: bytes, offset: int) -> None:
        self._happenings.append(Write(self._file, offset, bytes(data)))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        self._happenings.append(Truncate(self._file, newsize))
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        self._happenings.append(Sync(self._file))


def power_cuts(happenings: list[Happening], *, seed: int, torn: int) -> Iterator[tuple[Image, list[Any]]]:
    """For a cut right after each write, truncate, delete and sync: what may be on the disk, and what was acknowledged.

    Of each moment: nothing unsynced is left, all of it is left, and `torn` mixtures. The same image with the same
    acknowledgements comes only once.
    """
    chance = random.Random(seed)
    disk = _Disk()
    acknowledged: list[Any] = []
    seen: set[tuple[int, int]] = set()
    for happening in happenings:
        if isinstance(happening, Acknowledged):
            acknowledged.append(happening.what)
        else:
            disk.take(happening)
        mixtures = () if isinstance(happening, Acknowledged | Sync) else range(torn)
        for image in (disk.left(0, chance), disk.left(1, chance), *(disk.left(None, chance) for _ in mixtures)):
            key = (hash(tuple(sorted(image.items()))), len(acknowledged))
            if key not in seen:
                seen.add(key)
                yield image, list(acknowledged)


class _Disk:
    def __init__(self) -> None:
        self._durable: dict[str, bytearray] = {}
        self._pending: dict[str, list[Write | Truncate | Delete]] = {}

    def take(self, happening: Write | Truncate | Sync | Delete) -> None:
        pending = self._pending.setdefault(happening.file, [])
        if isinstance(happening, Sync):
            content: bytearray | None = self._durable.get(happening.file, bytearray())
            for change in pending:
                content = _changed(content, change)
            pending.clear()
            self._keep(self._durable, happening.file, content)
        elif isinstance(happening, Delete) and happening.is_synced:
            pending.clear()
            self._durable.pop(happening.file, None)
        else:
            pending.append(happening)

    def left(self, share: float | None, chance: random.Random) -> Image:
        """Everything synced, and of the rest nothing (0), all (1), or whatever chance says (None)."""
        image = {file: bytearray(content) for file, content in self._durable.items()}
        for file, pending in self._pending.items():
            content = image.get(file)
            for change in pending:
                for piece in _pieces(change):
                    if share == 1 or (share is None and chance.random() < 0.5):
                        content = _changed(content, piece)
            self._keep(image, file, content)
        return {file: bytes(content) for file, content in image.items()}

    @staticmethod
    def _keep(files: dict[str, bytearray], file: str, content: bytearray | None) -> None:
        if content is None:
            files.pop(file, None)
        else:
            files[file] = content


def _pieces(change: Write | Truncate | Delete) -> Iterator[Write | Truncate | Delete]:
    """A write as its sectors; anything else is whole."""
    if not isinstance(change, Write):
        yield change
        return
    start, end = change.offset, change.offset + len(change.data)
    while start < end:
        stop = min(end, (start // SECTOR + 1) * SECTOR)
        yield Write(change.file, start, change.data[start - change.offset : stop - change.offset])
        start = stop


def _changed(content: bytearray | None, change: Write | Truncate | Delete) -> bytearray | None:
    if isinstance(change, Delete):
        return None
    content = bytearray() if content is None else content
    if isinstance(change, Truncate):
        del content[change.size :]
        return content
    if len(content) < change.offset:
        content.extend(bytes(change.offset - len(content)))
    content[change.offset : change.offset + len(change.data)] = change.data
    return content
