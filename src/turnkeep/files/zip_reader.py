"""A reader for zip archives that are not trusted. The whole archive is checked before the first byte is unpacked.

It refuses paths that leave the folder, links, devices and other entries that are no files, entries that occur twice or
share bytes, encryption, wrong sizes, and more bytes or files than allowed. One bad entry refuses the whole archive.
"""

import stat
import zipfile
from collections.abc import Iterator, Sequence
from typing import IO

from msgspec import Struct

from turnkeep.errors import CallerError

PIECE_BYTES = 256 * 1024
NAME_BYTES = 255
PATH_BYTES = 1_024
_LOCAL_HEADER_BYTES = 30


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
