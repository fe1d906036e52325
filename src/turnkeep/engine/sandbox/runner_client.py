"""The way to the sandbox runner and back: one request per turn, the bytes that come back, and the gateway tokens.

To stop a turn the server closes its connection; then the runner kills the box.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct, to_builtins

from turnkeep.clock import Clock, system_clock
from turnkeep.errors import SandboxUnavailable, Unauthorized, WorldError
from turnkeep.http_server.sockets import keep_alive
from turnkeep.ids import TurnId
from turnkeep.model.turns import Turn
from turnkeep.signed_values import SigningKeys
from turnkeep.store.ports import TurnStore
from turnkeep.trace_context import TRACEPARENT, current_origin
from turnkeep_client.wire.sandbox import SandboxRequest

CONNECT_SECONDS = 10.0
PROBE_SECONDS = 1.0
AGAIN_SECONDS = 0.1
TRUSTED_SECONDS = 2.0
"""A runner that answered within this time is not probed again."""
BUFFER_BYTES = 256 * 1024
_WORDS = 300

GATEWAY_TOKEN = "tkg_"
TOKEN_CHARS = 200


class SandboxFailed(WorldError):
    """A turn in a sandbox cannot go on. `code` is that of the turn."""

    code = "sandbox_lost"


class SandboxLost(SandboxFailed):
    """The runner, or the server that read its lines, went away in the middle of the turn."""


class SandboxProtocol(SandboxFailed):
    """The runner's answer does not follow the contract."""

    code = "sandbox_protocol"


class RunnerAccess(Struct, frozen=True, kw_only=True):
    """Where the runner is, and where it reaches this server."""

    url: str
    server_url: str
    secret: str = ""
    """What the runner asks of its clients."""
    patience_seconds: float = 0.0
    """How long a turn waits for a runner that does not answer, because it is being started beside the server."""


class RunnerClient:
    """One runner, for all turns of this worker."""

    def __init__(self, access: RunnerAccess) -> None:
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
        """Whether the runner accepts connections. It may still refuse the turn."""
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
    async def stream(self, envelope: SandboxRequest, turn: Turn) -> AsyncIterator[AsyncIterator[bytes]]:
        """The body of one turn, in pieces as they arrive: all bytes that have arrived come as one piece.

        The headers say whose turn it is, so that the runner can share its places fairly, and to which trace it belongs.

        Raises SandboxUnavailable when no runner takes the turn, and SandboxProtocol when the answer is not a stream;
        reading the pieces may raise SandboxLost. Leaving the block closes the connection.
        """
        import aiohttp

        response: aiohttp.ClientResponse | None = None
        try:
            response = await self._open().post(
                f"{self._access.url}/stream", json=to_builtins(envelope), headers=self._headers(turn)
            )
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

    def _headers(self, turn: Turn) -> dict[str, str]:
        principal = turn.snapshot.principal
        headers = {
            "Turnkeep-Org": turn.workspace_id if principal is None else principal.org_id,
            "Turnkeep-User": turn.user_id or "",
        }
        origin = current_origin()
        if origin.request_id is not None:
            headers["X-Request-Id"] = origin.request_id
        if origin.traceparent is not None:
            headers[TRACEPARENT] = origin.traceparent
        return headers | ({"Authorization": f"Bearer {self._access.secret}"} if self._access.secret else {})

    def _open(self) -> Any:
        """One pool of connections, without a limit: the runner decides how many turns it runs."""
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


class GatewayTokens:
    """The tokens with which the sandboxes of turns reach the model gateway of this server.

    A token is a signed value, since every model call shows it. It names the turn and the attempt, and is invalid
    once either has ended. One set of secrets signs and verifies: the first signs, all verify.

    Decision: docs/decisions/0902
    """

    def __init__(self, secrets: Sequence[str], *, clock: Clock = system_clock) -> None:
        self._keys = SigningKeys(secrets, purpose="gateway tokens", encode=bytes.hex)
        self._clock = clock

    def make(self, turn_id: TurnId, attempt: int, *, expires_at: int) -> str:
        signed = f"{GATEWAY_TOKEN}{turn_id}.{attempt}.{expires_at}"
        return f"{signed}.{self._keys.sign(signed.encode())}"

    async def turn(self, store: TurnStore, turn_id: TurnId, token: str) -> Turn:
        """The running turn that this token was made for. Raises Unauthorized for any other."""
        refusal = Unauthorized("This needs the gateway token of a turn that runs. It ends with the turn.")
        signed, _, signature = token.rpartition(".")
        if len(token) > TOKEN_CHARS or not token.isascii():
            raise refusal
        if not self._keys.is_signed(signed.encode(), signature):
            raise refusal
        made_for, attempt, expires_at = signed.removeprefix(GATEWAY_TOKEN).split(".")
        if made_for != turn_id or int(expires_at) <= self._clock():
            raise refusal
        turn = await store.running_turn(turn_id, int(attempt))
        if turn is None:
            raise refusal
        return turn


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
    """The runner's refusal, with its own text as far as it can be read."""
    import aiohttp

    words = ""
    with suppress(aiohttp.ClientError, OSError, TimeoutError):
        async with asyncio.timeout(PROBE_SECONDS):
            body = await response.content.read(_WORDS)
            words = " ".join(body.decode("utf-8", "replace").replace("\0", "").split())
    said = f"The sandbox runner answered with status {response.status}. {words}".strip()
    return SandboxUnavailable(said) if response.status == 429 or response.status >= 500 else SandboxProtocol(said)
