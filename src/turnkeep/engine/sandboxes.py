"""The runner as the server sees it: one address, one request per turn, and the bytes that come back.

Whoever leaves the stream closes its connection, and the runner kills the box: that is how a turn is stopped.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct, to_builtins

from turnkeep.errors import SandboxUnavailable, WorldError
from turnkeep.http_server.sockets import keep_alive
from turnkeep.ids import TurnId

CONNECT_SECONDS = 10.0
PROBE_SECONDS = 1.0
AGAIN_SECONDS = 0.1
TRUSTED_SECONDS = 2.0
"""A runner that answered so recently is not asked whether it is there."""
BUFFER_BYTES = 256 * 1024
_WORDS = 300


class SandboxFailed(WorldError):
    """A turn in a sandbox cannot go on. `code` is that of the turn."""

    code = "sandbox_lost"


class SandboxLost(SandboxFailed):
    """The runner, or the server that listened to it, went away in the middle of the turn."""


class SandboxProtocol(SandboxFailed):
    """What came from the runner does not follow the contract."""

    code = "sandbox_protocol"


class SandboxAccess(Struct, frozen=True, kw_only=True):
    """Where the runner is, and where it reaches this server."""

    url: str
    server_url: str
    patience_seconds: float = 0.0
    """So long a turn waits for a runner that does not answer, because it is being started beside the server."""


class Envelope(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the runner is told at first. The rest it fetches with the tokens, each of which is good for one request."""

    agent_url: str
    otp_setup: str
    otp_run: str
    otp_upload: str
    prompt: str
    chat_id: str | None = None


class Sandboxes:
    """One runner, for all turns of this worker."""

    def __init__(self, access: SandboxAccess) -> None:
        self._access = access
        self._session: Any = None
        self._answered_at = float("-inf")

    @property
    def server_url(self) -> str:
        """Where the runner reaches this server."""
        return self._access.server_url

    def agent_url(self, turn_id: TurnId) -> str:
        return f"{self.server_url}/v1/sandbox/{turn_id}"

    async def answers(self) -> bool:
        """Whether somebody listens there. A runner that refuses the turn later is another matter."""
        if time.monotonic() - self._answered_at < TRUSTED_SECONDS:
            return True
        until = time.monotonic() + self._access.patience_seconds
        while not await self._is_reached():
            if time.monotonic() >= until:
                return False
            await asyncio.sleep(AGAIN_SECONDS)
        self._answered_at = time.monotonic()
        return True

    async def _is_reached(self) -> bool:
        parts = urlsplit(self._access.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                _, writer = await asyncio.open_connection(parts.hostname, port)
        except (OSError, TimeoutError):
            return False
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return True

    @asynccontextmanager
    async def stream(self, envelope: Envelope) -> AsyncIterator[AsyncIterator[bytes]]:
        """The body of one turn, in pieces as they come: all that waits comes at once.

        Raises SandboxUnavailable when nobody takes the turn, SandboxProtocol for another answer than a stream, and from
        the pieces SandboxLost. Leaving closes the connection, whatever is still to come.
        """
        import aiohttp

        response: aiohttp.ClientResponse | None = None
        try:
            response = await self._open().post(f"{self._access.url}/stream", json=to_builtins(envelope))
            if response.status != 200:
                raise await _refusal(response)
            self._answered_at = time.monotonic()
            yield _pieces(response)
        except (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError) as exc:
            raise SandboxUnavailable("No sandbox runner answers.") from exc
        except aiohttp.ClientError as exc:
            raise SandboxLost("The sandbox runner closed the connection before it answered.") from exc
        finally:
            if response is not None:
                response.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _open(self) -> Any:
        """One pool of connections, without a limit: how many turns run is the runner's to decide."""
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, socket_factory=_lively_socket),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                read_bufsize=BUFFER_BYTES,
                auto_decompress=False,
                headers={"Accept-Encoding": "identity"},  # lines must come as they are written
                trust_env=False,
            )
        return self._session


def _lively_socket(address: Any) -> socket.socket:
    family, kind, protocol, _, _ = address
    return keep_alive(socket.socket(family, kind, protocol))


async def _pieces(response: Any) -> AsyncIterator[bytes]:
    import aiohttp

    try:
        while piece := await response.content.readany():
            yield piece
    except (aiohttp.ClientError, OSError) as exc:
        raise SandboxLost("The sandbox runner went away in the middle of the turn.") from exc


async def _refusal(response: Any) -> WorldError:
    """The runner's own words, as far as they can be read."""
    import aiohttp

    words = ""
    with suppress(aiohttp.ClientError, OSError, TimeoutError):
        async with asyncio.timeout(PROBE_SECONDS):
            body = await response.content.read(_WORDS)
            words = " ".join(body.decode("utf-8", "replace").replace("\0", "").split())
    said = f"The sandbox runner answered with status {response.status}. {words}".strip()
    return SandboxUnavailable(said) if response.status == 429 or response.status >= 500 else SandboxProtocol(said)
