"""Connections: when they end, and a uvicorn protocol that gives a response access to its own socket.

ASGI alone cannot tell how much is still unsent. It can close a connection only after flushing it, which never ends if
the reader does not read.

    uvicorn.Config(app, http=WatchedProtocol)

Without this protocol streams work too, but a reader that was cut keeps its socket until the peer closes it.

Decision: docs/decisions/0401
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
"""The types of ASGI."""

EXTENSION = "turnkeep.connection"


class Connection(Protocol):
    """The part of a transport that streams use."""

    def get_write_buffer_size(self) -> int: ...

    def abort(self) -> None:
        """Close at once; unsent bytes are lost."""


class WatchedProtocol(HttpToolsProtocol):
    """HTTP/1.1 as uvicorn speaks it, with the transport among the scope's extensions."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope = cast(dict[str, object], self.scope)
        scope["extensions"] = {EXTENSION: {"transport": self.transport}}


async def disconnected(receive: Callable[[], Awaitable[Any]]) -> None:
    """Return when the client has disconnected. Read the request body first: messages until then are ignored."""
    while (await receive())["type"] != "http.disconnect":
        pass


def connection_of(scope: object) -> Connection | None:
    """The connection of an ASGI scope, if the server runs with `WatchedProtocol`."""
    extensions = cast(dict[str, object], scope).get("extensions") or {}
    found = cast(dict[str, dict[str, object]], extensions).get(EXTENSION)
    return None if found is None else cast(Connection, found["transport"])
