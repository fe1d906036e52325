"""The server process: uvicorn around the app, and how it leaves.

On the first SIGTERM or SIGINT intake stops (503), running turns are handed over, streams end with a hint to come
back, waiting answers become 202; then connections are closed. A second signal ends it at once.
"""

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from litestar.types import ASGIApp

from turnkeep.config import Settings
from turnkeep.errors import Conflict, InvalidRequest
from turnkeep.runtime import Runtime
from turnkeep.streaming.connection import WatchedProtocol

CLOSE_SECONDS = 5
BACKLOG = 2_048


class Server(uvicorn.Server):
    """One worker. `stop` begins the way out; `serve` returns at its end."""

    def __init__(self, app: ASGIApp, runtime: Runtime, *, on_ready: Callable[[], None] | None = None) -> None:
        config = uvicorn.Config(
            app,
            http=WatchedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=CLOSE_SECONDS,
        )
        super().__init__(config)
        self._runtime = runtime
        self._on_ready = on_ready
        self._leaving: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self._on_ready is not None:
            self._on_ready()

    def stop(self) -> None:
        """Leave in order; when called again, at once."""
        if self._leaving is None:
            self._leaving = asyncio.get_running_loop().create_task(self._leave())
        else:
            self.force_exit = self.should_exit = True

    async def _leave(self) -> None:
        try:
            await self._runtime.engine.drain(seconds=self._runtime.settings.drain_seconds)
        finally:
            self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn would raise the signal again at the end, before the database is closed."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)


def bind(settings: Settings) -> socket.socket:
    """A listening socket on host and port. Raises Conflict if somebody else listens there."""
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as exc:
        raise InvalidRequest(f"TURNKEEP_HOST {settings.host!r} is no address of this machine.") from exc
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as exc:
        listener.close()
        raise Conflict(
            f"Cannot listen on {settings.host}:{settings.port}: {exc.strerror}. "
            "Stop the program that listens there, or choose another --port."
        ) from exc
    listener.setblocking(False)
    return listener
