"""The server process, and how it leaves.

On the first SIGTERM or SIGINT intake stops (503), running turns are handed over, streams end with a hint to come
back, waiting answers become 202; then connections are closed. A second signal ends it at once.
"""

import socket
from collections.abc import Callable

from starlette.types import ASGIApp

from turnkeep.config import Settings
from turnkeep.http_server.process import OrderlyServer
from turnkeep.http_server.sockets import listen
from turnkeep.runtime import Runtime

CLOSE_SECONDS = 5
BACKLOG = 2_048


class Server(OrderlyServer):
    """One worker."""

    def __init__(self, app: ASGIApp, runtime: Runtime, *, on_ready: Callable[[], None] | None = None) -> None:
        super().__init__(
            app,
            leave=lambda: runtime.engine.drain(seconds=runtime.settings.drain_seconds),
            backlog=BACKLOG,
            close_seconds=CLOSE_SECONDS,
            on_ready=on_ready,
        )


def bind(settings: Settings) -> socket.socket:
    """A listening socket on host and port. Raises Conflict if somebody else listens there."""
    return listen(settings.host, settings.port, variable="TURNKEEP_HOST", backlog=BACKLOG)
