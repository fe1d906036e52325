"""A relay between an engine and PostgreSQL that loses answers: the server has done it, the client never hears.

It reads just enough of the wire protocol (version 3) to know which statement a client runs, and when the server has
finished it. Over a Unix socket nothing is encrypted.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, quote, urlsplit

_SOCKET = ".s.PGSQL.5432"
_HEADER = 5

Cut = Callable[[str, int], bool]
"""Decides, for the name of a function (`record`, `settle`, …) and how often it was called, whether to cut."""


class LossyProxy:
    """Listens in a directory of its own. `cut` is asked about every call of one of Turnkeep's functions."""

    def __init__(self, directory: Path, uri: str) -> None:
        self.cut: Cut = lambda name, nth: False
        self.calls: Counter[str] = Counter()
        self.cuts = 0
        parts = urlsplit(uri)
        self._upstream = Path(parse_qs(parts.query)["host"][0]) / _SOCKET
        self._directory = directory
        self._uri = f"{parts.scheme}://{parts.netloc}{parts.path}?host={quote(str(directory), safe='')}&port=5432"
        self._server: asyncio.Server | None = None
        self._relays: set[asyncio.Task[None]] = set()

    @property
    def uri(self) -> str:
        """The same database, through this relay."""
        return self._uri

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._accept, self._directory / _SOCKET)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for relay in list(self._relays):
            relay.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)

    def begin(self, cut: Cut) -> None:
        """Count anew, with this rule."""
        self.calls.clear()
        self.cuts = 0
        self.cut = cut

    def is_lost(self, function: str) -> bool:
        """Note that the function is being called; whether its answer gets lost."""
        self.calls[function] += 1
        lost = self.cut(function, self.calls[function])
        self.cuts += lost
        return lost

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._relays.add(task)
        try:
            up_reader, up_writer = await asyncio.open_unix_connection(self._upstream)
            await _Relay(self, reader, writer, up_reader, up_writer).run()
        except OSError:
            writer.transport.abort()
        finally:
            self._relays.discard(task)


class _Relay:
    """One connection."""

    def __init__(
        self,
        proxy: LossyProxy,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._reader = reader
        self._writer = writer
        self._up_reader = up_reader
        self._up_writer = up_writer
        self._statements: dict[bytes, str] = {}
        self._is_deaf = False
        self._last = ""
        """The answer that comes now gets lost, and the connection with it."""

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._up())
                group.create_task(self._down())
        except* (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writer.transport.abort()
            self._up_writer.transport.abort()

    async def _up(self) -> None:
        """From the client to the server, message by message; the first one has no type."""
        length = await self._reader.readexactly(4)
        self._up_writer.write(length + await self._reader.readexactly(int.from_bytes(length) - 4))
        while True:
            header, body = await _message(self._reader)
            self._look(header[:1], body)
            self._up_writer.write(header + body)

    async def _down(self) -> None:
        """From the server to the client, until an answer is to be lost: then it is read to its end and dropped."""
        while True:
            header, body = await _message(self._up_reader)
            if not self._is_deaf:
                self._writer.write(header + body)
            elif header[:1] == b"Z":  # ready for the next query: this one is committed
                raise ConnectionAbortedError

    def _look(self, kind: bytes, body: bytes) -> None:
        if kind == b"P":
            name, query, _ = body.split(b"\0", 2)
            self._statements[name] = _function_of(query.decode())
        elif kind == b"B":
            _, name, _ = body.split(b"\0", 2)
            self._last = self._statements.get(name, "")
            if self._last and self._proxy.is_lost(self._last):
                self._is_deaf = True
        elif kind == b"Q" and body.startswith(b"COMMIT") and self._proxy.is_lost(f"commit of {self._last}"):
            self._is_deaf = True


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    header = await reader.readexactly(_HEADER)
    return header, await reader.readexactly(int.from_bytes(header[1:]) - 4)


def _function_of(query: str) -> str:
    """The name of the function of ours that a statement calls, or of its first common table, or nothing."""
    found = re.search(r"\bturnkeep\w*\.(\w+)\(", query) or re.match(r"WITH (\w+) AS", re.sub(r"(?m)^--.*\n", "", query))
    return found[1] if found else ""
