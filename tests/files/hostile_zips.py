"""Zips as only an attacker makes them, each with what is wrong with it."""

import io
import stat
import struct
import zipfile
from collections.abc import Callable

import pytest

from tests.sandbox_runner.fake_server import zip_of


def entry(name: str, data: bytes = b"x", *, kind: int = 0) -> tuple[zipfile.ZipInfo, bytes]:
    info = zipfile.ZipInfo(name)
    info.filename = name  # ZipInfo would clean it
    info.external_attr = kind << 16
    return info, data


def zipped(*entries: tuple[zipfile.ZipInfo, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for info, data in entries:
            archive.writestr(info, data, compress_type=method)
    return buffer.getvalue()


def renamed(name: bytes) -> bytes:
    """A zip whose one entry bears a name that the library would not write."""
    return zip_of({"N" * len(name): b"x"}).replace(b"N" * len(name), name)


def twice_the_same() -> bytes:
    with pytest.warns(UserWarning, match="Duplicate name"):
        return zipped(entry("same"), entry("same"))


def overlapping() -> bytes:
    """An entry inside the bytes of another, each of them in order for itself: so bombs are made."""
    single = zipped(entry("inner", b"I" * 500))
    at = single.index(b"PK\x01\x02")
    local, directory = single[:at], bytearray(single[at : single.index(b"PK\x05\x06")])
    outer = zipped(entry("outer", local))
    at, end = outer.index(b"PK\x01\x02"), bytearray(outer[outer.rindex(b"PK\x05\x06") :])
    directory[42:46] = struct.pack("<I", outer.index(b"PK\x03\x04", 4))
    both = outer[at : outer.rindex(b"PK\x05\x06")] + directory
    end[8:16] = struct.pack("<HHI", 2, 2, len(both))
    return outer[:at] + both + bytes(end)


def lying(claimed: int) -> bytes:
    """An entry that says another size than it has."""
    data = bytearray(zip_of({"liar": b"z" * 1_000}))
    directory = data.index(b"PK\x01\x02")
    data[directory + 24 : directory + 28] = struct.pack("<I", claimed)
    return bytes(data)


def damaged() -> bytes:
    data = bytearray(zip_of({"broken": bytes(range(256)) * 20}))
    data[50:60] = b"\xff" * 10
    return bytes(data)


def encrypted() -> bytes:
    data = bytearray(zip_of({"closed": b"x"}))
    for head, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.index(head) + offset
        data[at : at + 2] = struct.pack("<H", 1)
    return bytes(data)


HOSTILE: dict[str, Callable[[], bytes]] = {
    "traversal": lambda: zip_of({"../../etc/passwd": b"x"}),
    "traversal in the middle": lambda: zip_of({"a/../../b": b"x"}),
    "absolute": lambda: renamed(b"/etc/passwd"),
    "a drive": lambda: renamed(b"C:evil.exe"),
    "backslashes": lambda: renamed(b"..\\..\\evil"),
    "a NUL": lambda: renamed(b"good\0.txt"),
    "a line break": lambda: zip_of({"a\nb": b"x"}),
    "a name without end": lambda: zip_of({"n" * 300: b"x"}),
    "a path without end": lambda: zip_of({"/".join(["d" * 100] * 20): b"x"}),
    "symlink": lambda: zipped(entry("link", b"/etc/passwd", kind=stat.S_IFLNK | 0o777)),
    "device": lambda: zipped(entry("disk", b"", kind=stat.S_IFBLK | 0o666)),
    "FIFO": lambda: zipped(entry("pipe", b"", kind=stat.S_IFIFO | 0o666)),
    "socket": lambda: zipped(entry("sock", b"", kind=stat.S_IFSOCK | 0o666)),
    "duplicate": twice_the_same,
    "a file inside a file": lambda: zip_of({"a": b"x", "a/b": b"y"}),
    "overlapping": overlapping,
    "smaller than it says": lambda: lying(2_000),
    "larger than it says": lambda: lying(10),
    "bomb": lambda: zip_of({f"{number}": bytes(8 << 20) for number in range(8)}),
    "ten thousand files": lambda: zip_of({str(number): b"" for number in range(3_000)}),
    "encrypted": encrypted,
    "damaged": damaged,
    "another compression": lambda: zipped(entry("x", b"y" * 100), method=zipfile.ZIP_LZMA),
    "no zip at all": lambda: b"PK\x03\x04 not really",
    "nothing": lambda: b"",
}
