"""A balancer in front of servers that come and go: it relays each connection to the next server that accepts one."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

_CHUNK = 65_536


class Balancer:
    """Listens on a port of its own. It asks no server how it is: a server that does not accept is passed over."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.ports = list(ports)
        """Those of the servers. They may be changed at any time."""
        self._next = 0
        self._server: asyncio.Server | None = None
        self._relays: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=1_024)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for relay in list(self._relays):
            relay.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._relays.add(task)
        try:
            far_reader, far_writer = await self._connect()
            await asyncio.gather(_pass(reader, far_writer), _pass(far_reader, writer))
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._relays.discard(task)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for _ in range(len(self.ports)):
            self._next += 1
            with suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", self.ports[self._next % len(self.ports)])
        raise ConnectionError("no server accepts a connection")


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One direction, to its end; the end is passed on too."""
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
