"""A bag's zip, distrusted: everything is looked at before the first byte is unpacked.

Refused are names that lead elsewhere, links, devices and other things that are no files, entries that occur twice or
share bytes, encryption, sizes that do not hold, and more than fits into the workspace. It is all or nothing.
"""

import stat
import zipfile
from collections.abc import Iterator
from typing import IO

from msgspec import Struct

from turnkeep.errors import CallerError

PIECE_BYTES = 256 * 1024
NAME_BYTES = 255
PATH_BYTES = 1_024
_LOCAL_HEADER_BYTES = 30


class BagRefused(CallerError):
    """The zip of the bag is broken or hostile; nothing of it was unpacked."""

    code = "bag_refused"


class Entry(Struct, frozen=True, kw_only=True):
    """A file of the archive: where it goes, and how large it says it is."""

    path: str
    size: int
    info: zipfile.ZipInfo


class Archive:
    """A zip that has passed. `entries` are its files, folders aside."""

    def __init__(self, file: IO[bytes], *, max_bytes: int, max_files: int) -> None:
        try:
            self._zip = zipfile.ZipFile(file)
            infos = self._zip.infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError, UnicodeDecodeError) as exc:
            raise BagRefused(f"The bag is not a zip archive: {exc}") from exc
        if len(infos) > max_files:
            raise BagRefused(f"The bag has {len(infos):,} entries; {max_files:,} fit into the workspace.")
        if sum(info.file_size for info in infos) > max_bytes:
            raise BagRefused(f"The bag is larger than the workspace ({max_bytes:,} bytes).")
        _refuse_overlaps(infos, self._zip.start_dir)
        self.entries = tuple(_entry(info) for info in infos if not info.is_dir())
        _refuse_collisions([entry.path for entry in self.entries])

    def pieces(self, entry: Entry) -> Iterator[bytes]:
        """The bytes of a file, exactly as many as it said, with the right checksum. Raises BagRefused."""
        left = entry.size
        try:
            with self._zip.open(entry.info) as file:
                while piece := file.read(PIECE_BYTES):
                    left -= len(piece)
                    if left < 0:
                        break
                    yield piece
        except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, OSError) as exc:
            raise BagRefused(f"{entry.path!r} in the bag cannot be read: {exc}") from exc
        except Exception as exc:  # zlib.error, which is no ValueError
            raise BagRefused(f"{entry.path!r} in the bag is damaged: {exc}") from exc
        if left != 0:
            raise BagRefused(f"{entry.path!r} in the bag has another size than it says.")


def _entry(info: zipfile.ZipInfo) -> Entry:
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in {0, stat.S_IFREG}:
        raise BagRefused(f"{info.filename!r} in the bag is not a file.")
    if info.flag_bits & 0x1:
        raise BagRefused(f"{info.filename!r} in the bag is encrypted.")
    if info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise BagRefused(f"{info.filename!r} in the bag is compressed in a way that is not accepted.")
    # orig_filename is what was written; ZipInfo cuts names at a NUL.
    return Entry(path=safe_path(info.orig_filename), size=info.file_size, info=info)


def safe_path(path: str) -> str:
    """The path itself if it leads straight down from a folder. Raises BagRefused."""
    parts = path.split("/")
    is_straight = all(part not in {"", ".", ".."} for part in parts)
    is_clean = path.isprintable() and "\\" not in path and not (len(path) > 1 and path[1] == ":")
    try:
        fits = len(path.encode()) <= PATH_BYTES and all(len(part.encode()) <= NAME_BYTES for part in parts)
    except UnicodeEncodeError:
        fits = False
    if not (is_straight and is_clean and fits):
        raise BagRefused(f"{path[:200]!r} is not a path below the workspace.")
    return path


def _refuse_overlaps(infos: list[zipfile.ZipInfo], end: int) -> None:
    """Two entries that share compressed bytes make a small zip very large."""
    ordered = sorted(infos, key=lambda info: info.header_offset)
    ends = [info.header_offset for info in ordered[1:]] + [end]
    for info, next_offset in zip(ordered, ends, strict=True):
        if info.header_offset + _LOCAL_HEADER_BYTES + info.compress_size > next_offset:
            raise BagRefused(f"{info.filename!r} in the bag overlaps with another entry.")


def _refuse_collisions(paths: list[str]) -> None:
    """No file twice, and none where another needs a folder."""
    files = set(paths)
    if len(files) < len(paths):
        raise BagRefused("The bag has two entries of the same name.")
    for path in paths:
        parts = path.split("/")
        if any("/".join(parts[:count]) in files for count in range(1, len(parts))):
            raise BagRefused(f"{path!r} in the bag lies inside a file.")
