"""Forms of files, parsed while they arrive: a malformed form is refused, and no file is held in memory."""

import os
import tracemalloc
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.files.blocks import in_pieces, whole
from turnkeep.errors import InvalidRequest, TooManyFiles
from turnkeep.files.multipart import file_parts

TYPE = "multipart/form-data; boundary=XX"

Found = list[tuple[str, str | None, bytes]]


def part(name: str = "a.txt", data: bytes = b"hello", *, field: str = "file", headers: str = "") -> bytes:
    head = f'--XX\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"\r\n{headers}\r\n'
    return head.encode() + data + b"\r\n"


END = b"--XX--\r\n"


async def read(body: bytes, *, content_type: str = TYPE, max_files: int = 10, piece: int = 65_536) -> Found:
    found = []
    async for each in file_parts(content_type, in_pieces(body, piece), max_files=max_files):
        found.append((each.name, each.declared_type, await whole(each.chunks)))  # noqa: PERF401
    return found


class TestReading:
    async def test_files_come_in_order_with_name_type_and_bytes(self) -> None:
        body = part("a.txt", headers="Content-Type: text/plain\r\n") + part("b.bin", bytes(range(256))) + END
        assert await read(body) == [("a.txt", "text/plain", b"hello"), ("b.bin", None, bytes(range(256)))]

    @settings(max_examples=50, deadline=None)
    @given(
        datas=st.lists(st.binary(max_size=300), min_size=1, max_size=4),
        piece=st.integers(min_value=20, max_value=400),
    )
    async def test_the_body_may_arrive_in_any_pieces(self, datas: list[bytes], piece: int) -> None:
        body = b"".join(part(f"{n}.bin", data) for n, data in enumerate(datas)) + END
        assert [data for _, _, data in await read(body, piece=piece)] == datas

    async def test_a_file_may_contain_text_that_looks_like_a_boundary(self) -> None:
        data = b"\r\n--X\r\n--XY\r\n-XX--\r\n"
        assert await read(part(data=b"--XX in the middle" + data.replace(b"--XY", b"--Z")) + END, piece=21)

    @pytest.mark.parametrize(
        "disposition, name",
        [
            ('form-data; name="file"; filename="na\u00efve.txt"', "na\u00efve.txt"),
            ('form-data; name="file"; filename="a%22b.txt"', 'a"b.txt'),
            ("form-data; name=\"file\"; filename*=utf-8''%E2%82%AC.txt", "\u20ac.txt"),
            ('form-data; name="file"; filename="x"; filename*=UTF-8\'\'real.txt', "real.txt"),
            ('form-data; name="file"; filename="x; filename*=utf-8\'\'%00.txt"', "x; filename*=utf-8''%00.txt"),
            ("form-data; name=file; filename=plain.txt", "plain.txt"),
        ],
    )
    async def test_names_as_browsers_and_libraries_write_them(self, disposition: str, name: str) -> None:
        body = f"--XX\r\nContent-Disposition: {disposition}\r\n\r\nhi\r\n".encode() + END
        assert await read(body) == [(name, None, b"hi")]

    async def test_memory_is_constant(self) -> None:
        async def huge() -> AsyncIterator[bytes]:
            yield part(data=b"")[:-2]
            for _ in range(320):
                yield os.urandom(65_536)
            yield b"\r\n" + END

        size = 0
        tracemalloc.start()
        try:
            async for each in file_parts(TYPE, huge(), max_files=1):
                async for chunk in each.chunks:
                    size += len(chunk)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert size == 320 * 65_536
        assert peak < 2_000_000


class TestRefusing:
    async def test_a_name_that_is_not_utf8_is_explained(self) -> None:
        body = b'--XX\r\nContent-Disposition: form-data; name="file"; filename="\xfc.txt"\r\n\r\n\r\n' + END
        with pytest.raises(InvalidRequest) as refused:
            await read(body)
        assert "not UTF-8" in refused.value.detail
        assert "Error(" not in refused.value.detail

    async def test_a_million_parts_are_refused_at_the_limit(self) -> None:
        asked = 0

        async def endless() -> AsyncIterator[bytes]:
            nonlocal asked
            for _ in range(1_000_000):
                asked += 1
                yield part(data=b"")
            yield END

        taken: list[bytes] = []

        async def take() -> None:
            async for each in file_parts(TYPE, endless(), max_files=10):
                taken.append(await whole(each.chunks))  # noqa: PERF401

        with pytest.raises(TooManyFiles, match="10"):
            await take()
        assert len(taken) == 10
        assert asked < 20

    @pytest.mark.parametrize(
        "body",
        [
            part(headers="X-Long: " + "x" * 100_000 + "\r\n") + END,
            part(name="n" * 100_000) + END,
            part(headers="".join(f"X-{n}: 1\r\n" for n in range(1_000))) + END,
            b"--XX\r\n" + b"x" * 100_000,
        ],
        ids=["one giant header", "a giant name", "a thousand headers", "a header without an end"],
    )
    async def test_giant_part_headers(self, body: bytes) -> None:
        with pytest.raises(InvalidRequest, match="headers of a part"):
            await read(body)

    @pytest.mark.parametrize(
        "content_type",
        [
            "",
            "multipart/form-data",
            "multipart/form-data; boundary=",
            'multipart/form-data; boundary=""',
            "multipart/form-data; boundary=" + "x" * 1_000,
            "multipart/mixed; boundary=XX",
            "application/json",
            "text/plain; boundary=XX",
        ],
    )
    async def test_a_missing_boundary_or_another_type(self, content_type: str) -> None:
        with pytest.raises(InvalidRequest):
            await read(part() + END, content_type=content_type)

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            END,
            b"hello",
            part(),
            part()[:-10],
            b"--XX\r\n",
            b"x" * 5_000_000,
            part() + END + b"x" * 5_000_000,
            b"--XX\r\nContent-Type: text/plain\r\n\r\nhello\r\n" + END,
            b"--XX\r\nnonsense\r\n\r\nhello\r\n" + END,
            b"--XX\nContent-Disposition: form-data\n\nhello\n" + END,
            part(headers="Content-Length: 2\r\n") + END,
            part(headers="Content-Length: -1\r\n") + END,
            b'--XX\r\nContent-Disposition: form-data; name="file"\r\n\r\nno file\r\n' + END,
            b'--XX\r\nContent-Disposition: form-data; name="file"; filename=""\r\n\r\n\r\n' + END,
            b"--XX\r\nContent-Disposition: form-data; name=\"file\"; filename*=latin-9000''a\r\n\r\n\r\n" + END,
            b'--XX\r\nContent-Disposition: form-data; name="file"; filename="\xff\xfe"\r\n\r\n\r\n' + END,
            part(field="other") + END,
        ],
    )
    async def test_a_body_that_is_no_form_of_files(self, body: bytes) -> None:
        with pytest.raises(InvalidRequest):
            await read(body)
