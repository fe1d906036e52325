"""Zip archives that are sent while they are made: every tool reads them, and their length is known in advance."""

import functools
import io
import os
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.files.blocks import in_pieces, whole
from turnkeep.errors import Unavailable
from turnkeep.files.objects import LocalObjects
from turnkeep.files.ports import BLOCK
from turnkeep.files.zip_files import WrittenEntry, ZipEntry, directory, length_of, local_header, zipped

NOON = 1_750_000_000_000


both = pytest.mark.parametrize("is_known", [True, False], ids=["checksums known", "checksums not known"])


def entries_of(files: dict[str, bytes], *, is_known: bool) -> list[ZipEntry]:
    return [
        ZipEntry(name=name, size=len(data), modified_at=NOON, crc32=zlib.crc32(data) if is_known else None)
        for name, data in files.items()
    ]


async def made(files: dict[str, bytes], *, is_known: bool) -> bytes:
    entries = entries_of(files, is_known=is_known)
    return await whole(zipped(entries, lambda entry: in_pieces(files[entry.name], 1_000)))


FILES = {"b.txt": b"hello", "a.bin": os.urandom(100_000), "empty": b"", "Größe 資料 👍.md": b"# \xc3\xa4"}


class TestWriting:
    @both
    async def test_files_are_read_back_in_order(self, is_known: bool) -> None:
        files = FILES
        with zipfile.ZipFile(io.BytesIO(await made(files, is_known=is_known))) as archive:
            assert archive.testzip() is None
            assert archive.namelist() == list(files)
            assert {name: archive.read(name) for name in archive.namelist()} == files
            assert all(info.date_time == (2025, 6, 15, 15, 6, 40) for info in archive.infolist())
            assert all(info.external_attr >> 16 == 0o100644 for info in archive.infolist())

    async def test_some_checksums_may_be_known_and_others_not(self) -> None:
        known, unknown = (entries_of(FILES, is_known=is_known) for is_known in (True, False))
        entries = [*known[:2], *unknown[2:]]
        data = await whole(zipped(entries, lambda entry: in_pieces(FILES[entry.name], 1_000)))
        assert len(data) == length_of(entries)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            assert {name: archive.read(name) for name in archive.namelist()} == FILES

    async def test_with_known_checksums_it_can_be_read_from_its_beginning(self) -> None:
        """Tools that cannot wait for the directory at the end need size and checksum in each header."""
        data, place = await made(FILES, is_known=True), 0
        for name, content in FILES.items():
            magic, flags, crc, size, length, extra = struct.unpack("<4s2xH6xI4xIHH", data[place : place + 30])
            assert (magic, flags & 1 << 3, crc, size, extra) == (b"PK\3\4", 0, zlib.crc32(content), len(content), 0)
            place += 30 + length
            assert data[place - length : place].decode() == name
            assert data[place : place + size] == content
            place += size

    async def test_an_empty_bag_is_an_empty_zip(self) -> None:
        with zipfile.ZipFile(io.BytesIO(await made({}, is_known=True))) as archive:
            assert archive.namelist() == []

    @settings(max_examples=40, deadline=None)
    @given(
        st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\\"), min_size=1, max_size=20),
            st.binary(max_size=3_000),
            max_size=8,
        ),
        st.booleans(),
    )
    async def test_the_length_is_known_in_advance(self, files: dict[str, bytes], is_known: bool) -> None:
        data = await made(files, is_known=is_known)
        assert len(data) == length_of(entries_of(files, is_known=is_known))
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            assert {info.orig_filename: archive.read(info) for info in archive.infolist()} == files

    async def test_the_same_bag_is_the_same_zip(self) -> None:
        files = {"a": b"1", "b": b"2"}
        assert await made(files, is_known=True) == await made(files, is_known=True)


class TestAFileThatHasChanged:
    async def test_readers_refuse_other_bytes_of_the_same_size(self) -> None:
        entries = entries_of({"a": b"hello", "b": b"world"}, is_known=True)
        data = await whole(zipped(entries, lambda entry: in_pieces({"a": b"hello", "b": b"w0rld"}[entry.name])))
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            assert archive.read("a") == b"hello"
            with pytest.raises(zipfile.BadZipFile, match="CRC"):
                archive.read("b")

    async def test_a_file_that_cannot_be_read_fails_before_the_first_piece(self) -> None:
        async def lost(entry: ZipEntry) -> AsyncIterator[bytes]:
            if entry.size:
                raise Unavailable("The bucket is away.")
            yield b""

        with pytest.raises(Unavailable):
            await anext(zipped(entries_of({"a": b"hello"}, is_known=True), lost))

    @both
    @pytest.mark.parametrize("data", [b"", b"hell", b"hello!"])
    async def test_a_file_of_another_size_leaves_the_archive_without_a_directory(
        self, data: bytes, is_known: bool
    ) -> None:
        sent = bytearray()

        async def send() -> None:
            async for block in zipped(entries_of({"a": b"hello"}, is_known=is_known), lambda _: in_pieces(data)):
                sent.extend(block)

        with pytest.raises(Unavailable):
            await send()
        with pytest.raises(zipfile.BadZipFile):
            zipfile.ZipFile(io.BytesIO(sent))


class TestMemory:
    @both
    async def test_is_constant_for_any_size(self, tmp_path: Path, is_known: bool) -> None:
        size, objects = 96 * 2**20, LocalObjects(tmp_path)
        with (tmp_path / "large.bin").open("wb") as file:
            file.truncate(size)  # zeros that take no room on the disk
        crc = functools.reduce(lambda crc, _: zlib.crc32(bytes(2**20), crc), range(96), 0) if is_known else None
        entry = ZipEntry(name="large.bin", size=size, modified_at=NOON, crc32=crc)
        sent = 0
        tracemalloc.start()
        try:
            async for block in zipped([entry], lambda _: objects.read("large.bin", start=0, end=size)):
                sent += len(block)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert sent == length_of([entry])
        assert peak < 6 * BLOCK


class TestLargeArchives:
    @both
    def test_over_4_gib_python_reads_the_directory(self, is_known: bool) -> None:
        large = ZipEntry(name="large.bin", size=5 * 2**30, modified_at=NOON, crc32=1 if is_known else None)
        small = ZipEntry(name="small.bin", size=3, modified_at=NOON, crc32=2 if is_known else None)
        offset = len(local_header(large)) + large.size + (0 if is_known else 24)
        end = offset + len(local_header(small)) + small.size + (0 if is_known else 16)
        tail = directory([WrittenEntry(large, 0, 1), WrittenEntry(small, offset, 2)], end)
        assert length_of([large, small]) == end + len(tail)
        with zipfile.ZipFile(_Sparse(end, tail)) as archive:
            assert [(info.filename, info.file_size, info.header_offset) for info in archive.infolist()] == [
                ("large.bin", 5 * 2**30, 0),
                ("small.bin", 3, offset),
            ]

    def test_over_65535_entries(self) -> None:
        placed = [WrittenEntry(ZipEntry(name=str(n), size=0, modified_at=NOON), n, 0) for n in range(70_000)]
        with zipfile.ZipFile(_Sparse(1_000_000, directory(placed, 1_000_000))) as archive:
            assert len(archive.infolist()) == 70_000

    async def test_a_large_entry_is_written_with_large_sizes(self) -> None:
        large = ZipEntry(name="a", size=2**32, modified_at=NOON)
        stream = zipped([large], lambda _: in_pieces(b""))
        header = await anext(stream)
        assert header[4:6] == (45).to_bytes(2, "little")
        with pytest.raises(Unavailable):
            await anext(stream)

    def test_a_large_entry_with_a_known_checksum_has_its_size_in_its_header(self) -> None:
        header = local_header(ZipEntry(name="a", size=5 * 2**30, modified_at=NOON, crc32=7))
        assert header[14:26] == struct.pack("<III", 7, 2**32 - 1, 2**32 - 1)
        assert header[-20:] == struct.pack("<HHQQ", 1, 16, 5 * 2**30, 5 * 2**30)


class _Sparse(io.RawIOBase):
    """A file of zeros with something at its end, that needs no disk."""

    def __init__(self, zeros: int, tail: bytes) -> None:
        self._zeros, self._tail, self._place = zeros, tail, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        base = {0: 0, 1: self._place, 2: self._zeros + len(self._tail)}[whence]
        self._place = base + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def read(self, size: int = -1) -> bytes:
        end = self._zeros + len(self._tail)
        size = end - self._place if size < 0 else min(size, end - self._place)
        zeros = max(0, min(size, self._zeros - self._place))
        start = max(0, self._place - self._zeros)
        self._place += size
        return bytes(zeros) + self._tail[start : start + size - zeros]
