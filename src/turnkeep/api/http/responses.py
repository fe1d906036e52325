"""Responses that handlers return: Starlette's `Response` with a body that msgspec encoded. Also the addresses in them.

Addresses are paths, so that they are right behind any proxy. Only an address that may lead to another server is whole.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnkeep.config import Settings

JSON = "application/json"

_encoder = msgspec.json.Encoder()


def json_response(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`value` as JSON. Proxies must not store it, because a response belongs to one principal."""
    return Response(_encoder.encode(value), status, {"cache-control": "no-store", **(headers or {})}, JSON)


def no_content(*, headers: Mapping[str, str] | None = None) -> Response:
    return Response(status_code=204, headers=headers)


def head_of(response: ASGIApp) -> ASGIApp:
    """The status and the headers of this response, without its body."""

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_start(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)

        if isinstance(response, Response):
            await send_start(
                {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
            )
        else:
            # A response of its own class, such as an event stream. It stops because the client seems to be gone.
            await response(scope, _disconnected, send_start)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return respond


def events_url(turn_id: str) -> str:
    """Where the events of a turn can be followed."""
    return f"/v1/turns/{turn_id}/events"


def address_of(settings: Settings, host: str | None) -> str:
    """The address of this server as the caller knows it: the public address, or the Host of the request."""
    return settings.public_url or (f"http://{host}" if host else settings.address())


async def _disconnected() -> Message:
    return {"type": "http.disconnect"}
