"""Request bodies that are read as they arrive, past the limit of ordinary ones."""

import asyncio
from collections.abc import AsyncIterator

from litestar.types import Receive

from turnkeep.errors import Unavailable

STALLED_SECONDS = 120.0


async def body_chunks(receive: Receive, *, stalled_seconds: float = STALLED_SECONDS) -> AsyncIterator[bytes]:
    """The body piece by piece. Raises Unavailable when the connection ends before the body does, or falls silent."""
    while True:
        try:
            async with asyncio.timeout(stalled_seconds):
                message = await receive()
        except TimeoutError as exc:
            raise Unavailable(f"Nothing came for {stalled_seconds:g} seconds. Upload it again.") from exc
        if message["type"] != "http.request":
            raise Unavailable("The connection was closed before the body was complete.")
        if chunk := message.get("body", b""):
            yield chunk
        if not message.get("more_body", False):
            return
