"""A relay over TCP that can fall silent: it drops what both sides say, accepts connections, and ends none of them.

So does a network that drops packets, but for the TCP options of both sides: the kernels here go on to acknowledge.
"""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Self

_CHUNK = 65_536


class SilentProxy:
    """Listens on a port of its own, and relays to a Unix socket or a port of this machine."""

    def __init__(self, target: Path | int) -> None:
        self.accepted = 0
        """How many connections were made."""
        self._target = target
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._server: asyncio.Server | None = None
        self._relays: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def fall_silent(self) -> None:
        self._is_open.clear()

    def speak_again(self) -> None:
        """New connections work. Those from before have lost what was said meanwhile, and stay silent."""
        for relay in list(self._relays):
            relay.cancel()
        self._is_open.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
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
        self.accepted += 1
        try:
            await self._is_open.wait()
            await self._relay(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._relays.discard(task)
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if isinstance(self._target, Path):
            far_reader, far_writer = await asyncio.open_unix_connection(self._target)
        else:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        ways = [
            asyncio.create_task(self._pass(reader, far_writer)),
            asyncio.create_task(self._pass(far_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            far_writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                await self._is_open.wait()
                writer.write(data)
                await writer.drain()
            await self._is_open.wait()
