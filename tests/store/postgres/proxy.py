"""A proxy before PostgreSQL that loses answers: the server has done its work, and the client never hears of it."""

import asyncio
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, quote, urlsplit

_CHUNK = 65_536


class CuttingProxy:
    """Listens on a Unix socket and passes everything on. `cut_next_answer` loses one answer and its connection."""

    def __init__(self, uri: str) -> None:
        parts = urlsplit(uri)
        query = parse_qs(parts.query)
        self._port = query["port"][0]
        self._target = Path(query["host"][0]) / f".s.PGSQL.{self._port}"
        self._parts = parts
        self._directory = Path(tempfile.mkdtemp(prefix="turnkeep-cut-", dir="/tmp"))
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._passing: int | None = None
        self.cuts = 0

    @property
    def uri(self) -> str:
        host = quote(str(self._directory), safe="")
        return f"{self._parts.scheme}://{self._parts.netloc}{self._parts.path}?host={host}&port={self._port}"

    def cut_next_answer(self, after_answers: int = 0) -> None:
        """The next bytes from the server are dropped, and their connection is closed on both sides. `after_answers`
        lets so many answers pass first."""
        self._passing = after_answers

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._serve, self._directory / f".s.PGSQL.{self._port}")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        shutil.rmtree(self._directory)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_unix_connection(self._target)
        both = [
            asyncio.create_task(self._pass(reader, server_writer, is_answer=False)),
            asyncio.create_task(self._pass(server_reader, writer, is_answer=True)),
        ]
        self._tasks.update(both)
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for task in both:
            task.cancel()
        for each in (writer, server_writer):
            each.close()
        self._tasks.difference_update(both)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                if is_answer and self._passing is not None:
                    self._passing = self._passing - 1 if self._passing else None
                    if self._passing is None:
                        self.cuts += 1
                        return
                writer.write(data)
                await writer.drain()
