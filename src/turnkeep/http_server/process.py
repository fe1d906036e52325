"""A process that serves HTTP: uvicorn around an app, with a graceful shutdown.

The API server and the sandbox runner are both such processes. Each brings its own steps of a shutdown.
"""

import asyncio
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from turnkeep.http_server.protocol import BoundedProtocol


class GracefulServer(uvicorn.Server):
    """Serves one app. `stop` begins the shutdown by calling `leave`; `serve` returns when the shutdown is done.

    The first SIGTERM or SIGINT calls `stop`; a second one ends the server at once.
    """

    def __init__(
        self,
        app: Any,
        *,
        leave: Callable[[], Awaitable[None]],
        backlog: int,
        close_seconds: int,
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        config = uvicorn.Config(
            app,
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=backlog,
            timeout_graceful_shutdown=close_seconds,
        )
        super().__init__(config)
        self._leave = leave
        self._on_ready = on_ready
        self._leaving: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self._on_ready is not None:
            self._on_ready()

    def stop(self) -> None:
        """Shut down gracefully; when called again, at once."""
        if self._leaving is None:
            self._leaving = asyncio.get_running_loop().create_task(self._go())
        else:
            self.force_exit = self.should_exit = True

    async def _go(self) -> None:
        try:
            await self._leave()
        finally:
            self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn would raise the signal again at the end, before what was opened around the server is closed."""
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
