"""A relay between a client and its server that breaks connections where a test says."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Self

Budget = Callable[[int], int | None]
"""For the nth connection: after how many bytes of the answer it is cut; None: never."""


def unbroken(nth: int) -> int | None:
    return None


class CuttingProxy:
    """Listens on a port of its own. `budget` may be replaced at any time."""

    def __init__(self, port: int, budget: Budget = unbroken) -> None:
        self.budget = budget
        self.connections = 0
        self.cuts = 0
        self._silent_until = 0
        self._upstream = port
        self._server: asyncio.Server | None = None
        self._relays: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut_all()
        await asyncio.gather(*self._relays, return_exceptions=True)

    def fall_silent(self) -> None:
        """From now on nothing that the server says arrives on the connections there are, and none of them ends."""
        self._silent_until = self.connections

    def cut_all(self) -> None:
        for relay in list(self._relays):
            relay.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._relays.add(task)
        self.connections += 1
        nth = self.connections
        try:
            await self._relay(reader, writer, self.budget(nth), nth)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._relays.discard(task)
            writer.transport.abort()

    async def _relay(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, budget: int | None, nth: int
    ) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        asking = asyncio.create_task(_copy(reader, up_writer))
        try:
            while chunk := await up_reader.read(65_536):
                if nth <= self._silent_until:
                    continue
                if budget is not None and len(chunk) >= budget:
                    writer.write(chunk[:budget])
                    await writer.drain()
                    self.cuts += 1
                    if nth % 2:
                        writer.close()
                    return
                budget = None if budget is None else budget - len(chunk)
                writer.write(chunk)
                await writer.drain()
            if nth <= self._silent_until:
                await asyncio.Event().wait()  # not even the end is heard
        finally:
            asking.cancel()
            up_writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(65_536):
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()
