"""The zip that is made while it is sent: every tool reads it, and its length is known before."""

import io
import os
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.filebag.blocks import in_pieces, whole
from turnkeep.errors import Unavailable
from turnkeep.filebag.zipping import Entry, Placed, directory, length_of, local_header, zipped

NOON = 1_750_000_000_000


def entries_of(files: dict[str, bytes]) -> list[Entry]:
    return [Entry(name=name, size=len(data), modified_at=NOON) for name, data in files.items()]


async def made(files: dict[str, bytes]) -> bytes:
    return await whole(zipped(entries_of(files), lambda entry: in_pieces(files[entry.name], 1_000)))


class TestMaking:
    async def test_what_goes_in_comes_out_in_order(self) -> None:
        files = {"b.txt": b"hello", "a.bin": os.urandom(100_000), "empty": b"", "Größe 資料 👍.md": b"# \xc3\xa4"}
        with zipfile.ZipFile(io.BytesIO(await made(files))) as archive:
            assert archive.testzip() is None
            assert archive.namelist() == list(files)
            assert {name: archive.read(name) for name in archive.namelist()} == files
            assert all(info.date_time == (2025, 6, 15, 15, 6, 40) for info in archive.infolist())
            assert all(info.external_attr >> 16 == 0o100644 for info in archive.infolist())

    async def test_an_empty_bag_is_an_empty_zip(self) -> None:
        with zipfile.ZipFile(io.BytesIO(await made({}))) as archive:
            assert archive.namelist() == []

    @settings(max_examples=40, deadline=None)
    @given(
        st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\\"), min_size=1, max_size=20),
            st.binary(max_size=3_000),
            max_size=8,
        )
    )
    async def test_its_length_is_known_before(self, files: dict[str, bytes]) -> None:
        data = await made(files)
        assert len(data) == length_of(entries_of(files))
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            assert {info.orig_filename: archive.read(info) for info in archive.infolist()} == files

    async def test_the_same_bag_is_the_same_zip(self) -> None:
        files = {"a": b"1", "b": b"2"}
        assert await made(files) == await made(files)


class TestWhenAFileIsNotWhatItWas:
    @pytest.mark.parametrize("data", [b"", b"hell", b"hello!"])
    async def test_the_archive_has_no_end(self, data: bytes) -> None:
        sent = bytearray()

        async def send() -> None:
            async for block in zipped(entries_of({"a": b"hello"}), lambda _: in_pieces(data)):
                sent.extend(block)

        with pytest.raises(Unavailable):
            await send()
        with pytest.raises(zipfile.BadZipFile):
            zipfile.ZipFile(io.BytesIO(sent))


class TestLargeOnes:
    def test_over_4_gib_python_reads_the_directory(self) -> None:
        large = Entry(name="large.bin", size=5 * 2**30, modified_at=NOON)
        small = Entry(name="small.bin", size=3, modified_at=NOON)
        offset = len(local_header(large)) + large.size + 24
        end = offset + len(local_header(small)) + small.size + 16
        tail = directory([Placed(large, 0, 1), Placed(small, offset, 2)], end)
        assert length_of([large, small]) == end + len(tail)
        with zipfile.ZipFile(_Sparse(end, tail)) as archive:
            assert [(info.filename, info.file_size, info.header_offset) for info in archive.infolist()] == [
                ("large.bin", 5 * 2**30, 0),
                ("small.bin", 3, offset),
            ]

    def test_over_65535_entries(self) -> None:
        placed = [Placed(Entry(name=str(n), size=0, modified_at=NOON), n, 0) for n in range(70_000)]
        with zipfile.ZipFile(_Sparse(1_000_000, directory(placed, 1_000_000))) as archive:
            assert len(archive.infolist()) == 70_000

    async def test_a_large_entry_is_written_with_large_sizes(self) -> None:
        large = Entry(name="a", size=2**32, modified_at=NOON)
        stream = zipped([large], lambda _: in_pieces(b""))
        header = await anext(stream)
        assert header[4:6] == (45).to_bytes(2, "little")
        with pytest.raises(Unavailable):
            await anext(stream)


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
