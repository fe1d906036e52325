"""The runner as a process: uvicorn around the app, and how it leaves. Every way out kills every box."""

import asyncio
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from turnkeep.errors import Conflict, InvalidRequest
from turnkeep.runner.app import RunnerApp, open_runner
from turnkeep.runner.boxes.cgroups import Cgroups
from turnkeep.runner.boxes.docker import Docker
from turnkeep.runner.boxes.ports import Driver
from turnkeep.runner.settings import RunnerSettings

BACKLOG = 512
CLOSE_SECONDS = 2
_PROBE_AFTER, _PROBE_EVERY, _PROBES = 15, 5, 3
"""Seconds, seconds and times: a peer that vanished without a word is noticed within half a minute."""


class RunnerServer(uvicorn.Server):
    """One runner. `stop` begins the way out; `serve` returns at its end."""

    def __init__(self, app: RunnerApp, *, on_ready: Callable[[], None] | None = None) -> None:
        config = uvicorn.Config(
            app,
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
        self._app = app
        self._on_ready = on_ready
        self._leaving: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self._on_ready is not None:
            self._on_ready()

    def stop(self) -> None:
        """Kill the boxes, end the streams, leave; when called again, at once."""
        if self._leaving is None:
            self._leaving = asyncio.get_running_loop().create_task(self._leave())
        else:
            self.force_exit = self.should_exit = True

    async def _leave(self) -> None:
        try:
            await self._app.close()
        finally:
            self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn would raise the signal again at the end, before the driver is closed."""
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


async def serve_runner(
    settings: RunnerSettings,
    listener: socket.socket,
    *,
    on_ready: Callable[[], None] | None = None,
    until_eof: bool = False,
) -> None:
    """Serve until a signal comes; with `until_eof` also until standard input ends, as it does when a parent dies.

    Raises BoxUnavailable where no box can be started.
    """
    async with open_runner(make_driver(settings), settings) as app:
        server = RunnerServer(app, on_ready=on_ready)
        if until_eof:
            threading.Thread(target=_wait_for_eof, args=(asyncio.get_running_loop(), server.stop), daemon=True).start()
        await server.serve([listener])


def make_driver(settings: RunnerSettings) -> Driver:
    if settings.driver == "docker":
        return Docker(image=settings.docker_image, runtime=settings.docker_runtime or None)
    from turnkeep.runner.boxes.bubblewrap import Bubblewrap

    return Bubblewrap(cgroups=Cgroups.find())


def bind(settings: RunnerSettings) -> socket.socket:
    """A listening socket. Raises Conflict if somebody else listens there."""
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as exc:
        raise InvalidRequest(f"TURNKEEP_SANDBOX_HOST {settings.host!r} is no address of this machine.") from exc
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # connections inherit these
    for option, value in (("TCP_KEEPIDLE", _PROBE_AFTER), ("TCP_KEEPINTVL", _PROBE_EVERY), ("TCP_KEEPCNT", _PROBES)):
        if hasattr(socket, option):
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
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


def _wait_for_eof(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    while sys.stdin.buffer.read(4096):
        pass
    if not loop.is_closed():
        loop.call_soon_threadsafe(stop)
