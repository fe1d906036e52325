"""Answers: what a handler returns, as bare ASGI apps. Knows bytes and headers, nothing of routes."""

from collections.abc import Mapping
from typing import Any

import msgspec
from litestar.types import ASGIApp, HTTPDisconnectEvent, Message, Receive, Scope, Send

_encoder = msgspec.json.Encoder()


class Answer:
    """One response with a body that is already bytes."""

    __slots__ = ("body", "headers", "media_type", "status")

    def __init__(
        self,
        status: int,
        body: bytes = b"",
        *,
        media_type: str | None = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        self.body = body
        self.media_type = media_type
        self.headers = dict(headers or {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name.encode(), value.encode("latin-1")) for name, value in self.headers.items()]
        if self.media_type is not None and self.body:
            headers.append((b"content-type", self.media_type.encode()))
        # Of a 304 it would be the length of what is not sent, which is not known here; 0 is a lie.
        if self.status not in {204, 304}:
            headers.append((b"content-length", str(len(self.body)).encode()))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": False})


def json_answer(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """`value` as JSON. Nothing is cached on the way: answers belong to one principal."""
    return Answer(status, _encoder.encode(value), headers={"cache-control": "no-store", **(headers or {})})


def no_content(*, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(204, media_type=None, headers=headers)


def head_of(answer: ASGIApp) -> ASGIApp:
    """The status and the headers of this answer alone. One that comes in pieces hears that nobody waits for them."""

    async def answer_head(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_start(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)

        await answer(scope, _gone, send_start)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return answer_head


async def _gone() -> HTTPDisconnectEvent:
    return {"type": "http.disconnect"}
