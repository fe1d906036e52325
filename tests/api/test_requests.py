"""Request bodies that are read as they arrive."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.files.blocks import whole
from turnkeep.api.http.requests import body_chunks
from turnkeep.errors import Unavailable


def receiving(*messages: dict[str, Any]) -> Any:
    """An ASGI `receive` that gives these and then nothing more."""
    left: list[dict[str, Any]] = list(messages)

    async def receive() -> dict[str, Any]:
        if not left:
            await asyncio.Event().wait()
        return left.pop(0)

    return receive


def pieces(*bodies: bytes) -> Sequence[dict[str, Any]]:
    last = len(bodies) - 1
    return [{"type": "http.request", "body": body, "more_body": n < last} for n, body in enumerate(bodies)]


class TestReading:
    async def test_to_the_end(self) -> None:
        assert await whole(body_chunks(receiving(*pieces(b"a", b"", b"bc")))) == b"abc"

    async def test_a_connection_that_is_closed_before(self) -> None:
        receive = receiving(pieces(b"a", b"b")[0], {"type": "http.disconnect"})
        with pytest.raises(Unavailable, match="closed"):
            await whole(body_chunks(receive))

    async def test_a_sender_that_falls_silent(self) -> None:
        with pytest.raises(Unavailable, match="Nothing came"):
            await whole(body_chunks(receiving(pieces(b"a", b"b")[0]), stalled_seconds=0.01))
