"""The client for the server that sent a turn: environment, configuration, files and results.

Each token is valid for one call.
"""

import io
import tempfile
from collections.abc import Sequence
from typing import IO, TypeVar
from urllib.parse import urlsplit

import aiohttp
from msgspec import Struct

from turnkeep.errors import InvalidRequest, WorldError
from turnkeep.sandbox.envelope import read
from turnkeep.sandbox.workspace import Asset
from turnkeep_client.wire.sandbox import SandboxAssets, SandboxConfig, SandboxEnvironment

ANSWER_BYTES = 32 * 1024 * 1024
"""Maximum size of a response. The configuration contains the skills."""
_PIECE_BYTES = 256 * 1024
_SPOOL_BYTES = 8 * 1024 * 1024
_TIMEOUT = aiohttp.ClientTimeout(total=600, connect=10, sock_read=60)

Shape = TypeVar("Shape", bound=Struct)


class ServerCallFailed(WorldError):
    """The server could not be reached, or its response does not follow the contract."""

    code = "sandbox_origin"


class TokenRefused(ServerCallFailed):
    """The token was used before, has expired, or belongs to another turn."""

    code = "sandbox_token"


class ServerClient:
    """The server of one turn. Redirects are not followed, so that a token reaches no other server."""

    def __init__(self, session: aiohttp.ClientSession, agent_url: str) -> None:
        if urlsplit(agent_url).scheme not in {"http", "https"} or not urlsplit(agent_url).hostname:
            raise InvalidRequest("agent_url must be an http or https address.")
        self._session = session
        self._url = agent_url.rstrip("/")

    async def environment(self, otp_setup: str) -> SandboxEnvironment:
        return await self._get("env", otp_setup, SandboxEnvironment)

    async def config(self, otp_run: str) -> SandboxConfig:
        return await self._get("config", otp_run, SandboxConfig)

    async def bag(self, assets: SandboxAssets, *, max_bytes: int) -> IO[bytes]:
        """The zip of the conversation's files, in a temporary file. Close it."""
        file = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES)  # noqa: SIM115 - the caller closes it
        try:
            async with self._session.get(assets.url, allow_redirects=False, timeout=_TIMEOUT) as response:
                _check(response, "The bag")
                size = 0
                async for piece in response.content.iter_chunked(_PIECE_BYTES):
                    size += len(piece)
                    if size > max_bytes:
                        raise ServerCallFailed(f"The bag is larger than the workspace ({max_bytes:,} bytes).")
                    file.write(piece)
        except (aiohttp.ClientError, TimeoutError) as exc:
            file.close()
            raise ServerCallFailed(f"The bag could not be fetched: {_words(exc)}") from exc
        except BaseException:
            file.close()
            raise
        file.seek(0)
        return file

    async def results(self, otp_upload: str, assets: Sequence[Asset]) -> None:
        """Send the files back, all in one request. They stay open: their owner closes them."""
        form = aiohttp.FormData(quote_fields=False)  # otherwise "a b.txt" becomes a%20b.txt
        for asset in assets:
            form.add_field("file", _LentFile(asset.file), filename=asset.path, content_type="application/octet-stream")
        try:
            async with self._session.post(
                f"{self._url}/results",
                data=form,
                headers={"Authorization": otp_upload},
                allow_redirects=False,
                timeout=_TIMEOUT,
            ) as response:
                detail = await _detail(response) if response.status >= 400 else ""
                _check(response, "The files", detail)
        except (aiohttp.ClientError, TimeoutError) as exc:
            raise ServerCallFailed(f"The files could not be handed back: {_words(exc)}") from exc

    async def _get(self, name: str, token: str, kind: type[Shape]) -> Shape:
        try:
            async with self._session.get(
                f"{self._url}/{name}", headers={"Authorization": token}, allow_redirects=False, timeout=_TIMEOUT
            ) as response:
                _check(response, f"/{name}")
                data = await _read_all(response)
        except (aiohttp.ClientError, TimeoutError) as exc:
            raise ServerCallFailed(f"The server did not answer /{name}: {_words(exc)}") from exc
        try:
            found: Shape = read(data, kind, origin=f"/{name}")
        except InvalidRequest as exc:
            raise ServerCallFailed(exc.detail) from exc
        return found


class _LentFile(io.IOBase):
    """A file that aiohttp reads and does not close. It would close it in a thread while the owner closes it too, and
    one of the two would fail."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._file.seekable()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        """The owner closes it."""


async def _read_all(response: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for piece in response.content.iter_chunked(_PIECE_BYTES):
        data += piece
        if len(data) > ANSWER_BYTES:
            raise ServerCallFailed(f"The server's answer is longer than {ANSWER_BYTES:,} bytes.")
    return bytes(data)


async def _detail(response: aiohttp.ClientResponse) -> str:
    """The detail of a refusal, if the response is problem+json."""
    try:
        problem = read(await response.content.read(64 * 1024), _Problem, origin="the answer")
    except InvalidRequest:
        return ""
    return str(problem.detail)


class _Problem(Struct, frozen=True):
    detail: str = ""


def _check(response: aiohttp.ClientResponse, what: str, detail: str = "") -> None:
    if response.status in {401, 403}:
        raise TokenRefused(f"{what}: the server refused the token (status {response.status}).")
    if not 200 <= response.status < 300:
        raise ServerCallFailed(f"{what}: the server answered with status {response.status}. {detail}".strip())


def _words(exc: BaseException) -> str:
    """The kind of a failure. Its message is left out: it may contain an address with a signature."""
    return type(exc).__name__
