"""Zip archives: a writer for those that are sent, and a reader for those that are not trusted.

An archive is sent while it is made, without compression, with a length known in advance. `zipped` reads the contents of
one entry after the other; everything else is pure bytes. A known checksum is written before the bytes of an entry. An
unknown one is computed while they are sent, and written after them. Entries and archives above 4 GiB use ZIP64.

The reader checks the whole archive before the first byte is unpacked. It refuses paths that leave the folder, links,
devices and other entries that are no files, entries that occur twice or share bytes, encryption, wrong sizes, and more
bytes or files than allowed. One bad entry refuses the whole archive.

Decision: docs/decisions/0703
"""

import asyncio
import stat
import struct
import time
import zipfile
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import IO

from msgspec import Struct

from turnkeep.errors import CallerError, Unavailable

PIECE_BYTES = 256 * 1024
NAME_BYTES = 255
PATH_BYTES = 1_024

_MANY = 0xFFFF
_LARGE = 0xFFFFFFFF
_SIZES_FOLLOW = 1 << 3
_NAMES_ARE_UTF8 = 1 << 11
_PLAIN, _ZIP64 = 20, 45
_MADE_BY_UNIX = 3 << 8
_REGULAR_FILE = 0o100644 << 16
_LOCAL_HEADER_BYTES = 30


class ZipEntry(Struct, frozen=True, kw_only=True):
    """A file of the archive: name, size, time (Unix epoch milliseconds), and the checksum of its bytes if it is known.

    If the bytes do not have that checksum, every reader refuses the archive.
    """

    name: str
    size: int
    modified_at: int
    crc32: int | None = None

    @property
    def is_large(self) -> bool:
        return self.size >= _LARGE

    @property
    def flags(self) -> int:
        return _NAMES_ARE_UTF8 | (_SIZES_FOLLOW if self.crc32 is None else 0)


class WrittenEntry(Struct, frozen=True):
    """An entry that was written: its offset, and the checksum of its bytes."""

    entry: ZipEntry
    offset: int
    crc: int


class Checksum:
    """A CRC-32 that is known, or that another thread computes while the block is sent."""

    def __init__(self, known: int | None) -> None:
        self._is_known = known is not None
        self._crc = known or 0
        self._adding: asyncio.Future[int] | None = None

    async def add(self, block: bytes) -> None:
        if self._is_known:
            return
        crc = await self.value()
        self._adding = asyncio.get_running_loop().run_in_executor(None, zlib.crc32, block, crc)

    async def value(self) -> int:
        if self._adding is not None:
            self._crc, self._adding = await self._adding, None
        return self._crc


def length_of(entries: Sequence[ZipEntry]) -> int:
    """The length of the archive in bytes."""
    placed, offset = [], 0
    for entry in entries:
        placed.append(WrittenEntry(entry, offset, 0))
        offset += len(local_header(entry)) + entry.size + len(descriptor(entry, 0))
    return offset + len(directory(placed, offset))


async def zipped(
    entries: Sequence[ZipEntry], contents: Callable[[ZipEntry], AsyncIterator[bytes]]
) -> AsyncIterator[bytes]:
    """The archive in pieces, its entries in the given order.

    Raises Unavailable if an entry does not have its declared size. The archive then has no directory, so no reader
    accepts it as complete. If the first entry cannot be read, the error is raised before the first piece.
    """
    placed, offset = [], 0
    for entry in entries:
        header, blocks = local_header(entry), contents(entry)
        checksum, size = Checksum(entry.crc32), 0
        block = await anext(blocks, b"")
        yield header
        while block:
            size += len(block)
            await checksum.add(block)
            yield block
            block = await anext(blocks, b"")
        crc = await checksum.value()
        if size != entry.size:
            raise Unavailable(f"{entry.name!r} has {size} bytes in the store and {entry.size} in its row.")
        tail = descriptor(entry, crc)
        if tail:
            yield tail
        placed.append(WrittenEntry(entry, offset, crc))
        offset += len(header) + size + len(tail)
    yield directory(placed, offset)


def local_header(entry: ZipEntry) -> bytes:
    name = entry.name.encode()
    size_in_header = 0 if entry.crc32 is None else entry.size
    extra = struct.pack("<HHQQ", 1, 16, size_in_header, size_in_header) if entry.is_large else b""
    size = _LARGE if entry.is_large else size_in_header
    return (
        struct.pack(
            "<4sHHHIIIIHH",
            b"PK\3\4",
            _ZIP64 if entry.is_large else _PLAIN,
            entry.flags,
            0,
            _dos_time(entry.modified_at),
            entry.crc32 or 0,
            size,
            size,
            len(name),
            len(extra),
        )
        + name
        + extra
    )


def descriptor(entry: ZipEntry, crc: int) -> bytes:
    """The data descriptor after the bytes of an entry; empty if the header had the checksum."""
    if entry.crc32 is not None:
        return b""
    form = "<4sIQQ" if entry.is_large else "<4sIII"
    return struct.pack(form, b"PK\7\x08", crc, entry.size, entry.size)


def directory(placed: Sequence[WrittenEntry], offset: int) -> bytes:
    """The central directory, which begins at `offset`, and the end of the archive."""
    listed = b"".join(map(_listed, placed))
    ending = struct.pack(
        "<4sHHHHIIH",
        b"PK\5\6",
        0,
        0,
        min(len(placed), _MANY),
        min(len(placed), _MANY),
        min(len(listed), _LARGE),
        min(offset, _LARGE),
        0,
    )
    if len(placed) < _MANY and offset < _LARGE and len(listed) < _LARGE:
        return listed + ending
    large = struct.pack(
        "<4sQHHIIQQQQ", b"PK\6\6", 44, _ZIP64, _ZIP64, 0, 0, len(placed), len(placed), len(listed), offset
    )
    return listed + large + struct.pack("<4sIQI", b"PK\6\7", 0, offset + len(listed), 1) + ending


def _listed(placed: WrittenEntry) -> bytes:
    entry = placed.entry
    name = entry.name.encode()
    large = [entry.size, entry.size] if entry.is_large else []
    if placed.offset >= _LARGE:
        large.append(placed.offset)
    extra = struct.pack(f"<HH{len(large)}Q", 1, 8 * len(large), *large) if large else b""
    size = min(entry.size, _LARGE)
    return (
        struct.pack(
            "<4sHHHHIIIIHHHHHII",
            b"PK\1\2",
            _MADE_BY_UNIX | (_ZIP64 if large else _PLAIN),
            _ZIP64 if large else _PLAIN,
            entry.flags,
            0,
            _dos_time(entry.modified_at),
            placed.crc,
            size,
            size,
            len(name),
            len(extra),
            0,
            0,
            0,
            _REGULAR_FILE,
            min(placed.offset, _LARGE),
        )
        + name
        + extra
    )


def _dos_time(milliseconds: int) -> int:
    """Date and time in the format of MS-DOS, in UTC. Its range is 1980 to 2107."""
    moment = time.gmtime(min(max(milliseconds // 1000, 315_532_800), 4_354_819_198))
    date = (moment.tm_year - 1980) << 9 | moment.tm_mon << 5 | moment.tm_mday
    return date << 16 | moment.tm_hour << 11 | moment.tm_min << 5 | moment.tm_sec // 2


class ZipRefused(CallerError):
    """A zip is broken or hostile; nothing of it was unpacked."""

    code = "zip_refused"


class NotAZip(ZipRefused):
    """These bytes are no zip archive at all."""


class ZipMember(Struct, frozen=True, kw_only=True):
    """A file in the archive: its path, and its declared size."""

    path: str
    size: int
    info: zipfile.ZipInfo


class ZipReader:
    """An archive that has passed the checks. `entries` are its files, without folders."""

    def __init__(self, file: IO[bytes], *, max_bytes: int, max_files: int) -> None:
        try:
            self._zip = zipfile.ZipFile(file)
            infos = self._zip.infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError, UnicodeDecodeError) as exc:
            raise NotAZip(f"This is not a zip archive: {exc}") from exc
        if len(infos) > max_files:
            raise ZipRefused(f"The zip has {len(infos):,} entries, and may have {max_files:,}.")
        if sum(info.file_size for info in infos) > max_bytes:
            raise ZipRefused(f"Unpacked, the zip has more than {max_bytes:,} bytes.")
        _refuse_overlaps(infos, self._zip.start_dir)
        self.entries = tuple(_entry(info) for info in infos if not info.is_dir())
        refuse_collisions([entry.path for entry in self.entries])

    def pieces(self, entry: ZipMember) -> Iterator[bytes]:
        """The bytes of a file. Raises ZipRefused if its size or checksum is not as declared."""
        left = entry.size
        try:
            with self._zip.open(entry.info) as file:
                while piece := file.read(PIECE_BYTES):
                    left -= len(piece)
                    if left < 0:
                        break
                    yield piece
        except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, OSError) as exc:
            raise ZipRefused(f"{entry.path!r} in the zip cannot be read: {exc}") from exc
        except Exception as exc:  # zlib.error, which is no ValueError
            raise ZipRefused(f"{entry.path!r} in the zip is damaged: {exc}") from exc
        if left != 0:
            raise ZipRefused(f"{entry.path!r} in the zip has another size than it says.")


def safe_path(path: str) -> str:
    """The path, if it stays inside its folder. Raises ZipRefused otherwise."""
    parts = path.split("/")
    is_straight = all(part not in {"", ".", ".."} for part in parts)
    is_clean = path.isprintable() and "\\" not in path and not (len(path) > 1 and path[1] == ":")
    try:
        fits = len(path.encode()) <= PATH_BYTES and all(len(part.encode()) <= NAME_BYTES for part in parts)
    except UnicodeEncodeError:
        fits = False
    if not (is_straight and is_clean and fits):
        raise ZipRefused(f"{path[:200]!r} is not a path that leads down into a folder.")
    return path


def refuse_collisions(paths: Sequence[str]) -> None:
    """Raises ZipRefused if a path occurs twice, or if a file has the path of a folder that another file needs."""
    files: set[str] = set()
    for path in paths:
        if path in files:
            raise ZipRefused(f"Two files have the same name: {path!r}.")
        files.add(path)
    for path in paths:
        parts = path.split("/")
        if any("/".join(parts[:count]) in files for count in range(1, len(parts))):
            raise ZipRefused(f"{path!r} lies inside a file.")


def _entry(info: zipfile.ZipInfo) -> ZipMember:
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in {0, stat.S_IFREG}:
        raise ZipRefused(f"{info.filename!r} in the zip is not a file.")
    if info.flag_bits & 0x1:
        raise ZipRefused(f"{info.filename!r} in the zip is encrypted.")
    if info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise ZipRefused(f"{info.filename!r} in the zip is compressed in a way that is not accepted.")
    # orig_filename is the name in the archive; ZipInfo.filename is cut at a NUL.
    return ZipMember(path=safe_path(info.orig_filename), size=info.file_size, info=info)


def _refuse_overlaps(infos: list[zipfile.ZipInfo], end: int) -> None:
    """Entries that share compressed bytes would make a small archive very large."""
    ordered = sorted(infos, key=lambda info: info.header_offset)
    starts = [info.header_offset for info in ordered] + [end]
    for info, next_offset in zip(ordered, starts[1:], strict=True):
        if info.header_offset + _LOCAL_HEADER_BYTES + info.compress_size > next_offset:
            raise ZipRefused(f"{info.filename!r} in the zip overlaps with another entry.")
