"""Connections: when they end, and a uvicorn protocol that lets a response see its own socket. ASGI alone cannot say how
much is still unsent, and can end a connection only by flushing it, which a reader that never reads prevents for ever.

    uvicorn.Config(app, http=WatchedProtocol)

Without it streams work too, but a reader that was cut keeps its socket until the peer lets go.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

EXTENSION = "turnkeep.connection"


class Connection(Protocol):
    """The part of a transport that streams use."""

    def get_write_buffer_size(self) -> int: ...

    def abort(self) -> None:
        """Close now; what is unsent is lost."""


class WatchedProtocol(HttpToolsProtocol):
    """HTTP/1.1 as uvicorn speaks it, with the transport among the scope's extensions."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope = cast(dict[str, object], self.scope)
        scope["extensions"] = {EXTENSION: {"transport": self.transport}}


async def disconnected(receive: Callable[[], Awaitable[Mapping[str, object]]]) -> None:
    """Return once the other side is gone. What it says until then is passed over, so its body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


def connection_of(scope: object) -> Connection | None:
    """The connection behind an ASGI scope, if the server shows it."""
    extensions = cast(dict[str, object], scope).get("extensions") or {}
    found = cast(dict[str, dict[str, object]], extensions).get(EXTENSION)
    return None if found is None else cast(Connection, found["transport"])
