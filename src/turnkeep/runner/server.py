"""The runner as a process, and how it leaves. Every way out kills every box."""

import asyncio
import socket
import sys
import threading
from collections.abc import Callable

from turnkeep.http_server.process import GracefulServer
from turnkeep.http_server.sockets import keep_alive, listen
from turnkeep.runner.app import RunnerApp, open_runner
from turnkeep.runner.boxes.cgroups import Cgroups
from turnkeep.runner.boxes.docker import Docker
from turnkeep.runner.boxes.ports import Driver
from turnkeep.runner.settings import RunnerSettings

BACKLOG = 512
CLOSE_SECONDS = 2


class RunnerServer(GracefulServer):
    """One runner: its way out kills the boxes and ends the streams."""

    def __init__(self, app: RunnerApp, *, on_ready: Callable[[], None] | None = None) -> None:
        super().__init__(app, leave=app.close, backlog=BACKLOG, close_seconds=CLOSE_SECONDS, on_ready=on_ready)


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
    return keep_alive(listen(settings.host, settings.port, variable="TURNKEEP_SANDBOX_HOST", backlog=BACKLOG))


def _wait_for_eof(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    while sys.stdin.buffer.read(4096):
        pass
    if not loop.is_closed():
        loop.call_soon_threadsafe(stop)
