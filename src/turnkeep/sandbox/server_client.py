"""The server that a turn came from, as the runner sees it: four addresses, each token good for one call."""

import tempfile
from collections.abc import Sequence
from typing import IO, TypeVar
from urllib.parse import urlsplit

import aiohttp
from msgspec import Struct

from turnkeep.errors import InvalidRequest, WorldError
from turnkeep.sandbox.envelope import Assets, Config, Environment, read
from turnkeep.sandbox.workspace import Asset

ANSWER_BYTES = 32 * 1024 * 1024
"""Skills come inside the configuration."""
_PIECE_BYTES = 256 * 1024
_SPOOL_BYTES = 8 * 1024 * 1024
_PATIENCE = aiohttp.ClientTimeout(total=600, connect=10, sock_read=60)

Answer = TypeVar("Answer", bound=Struct)


class OriginFailed(WorldError):
    """The server could not be reached, or did not answer as the contract says."""

    code = "sandbox_origin"


class TokenRefused(OriginFailed):
    """A token was used before, came too late, or belongs to another turn."""

    code = "sandbox_token"


class Origin:
    """One turn's server. Redirects are not followed: a token goes where it was meant to go."""

    def __init__(self, session: aiohttp.ClientSession, agent_url: str) -> None:
        if urlsplit(agent_url).scheme not in {"http", "https"} or not urlsplit(agent_url).hostname:
            raise InvalidRequest("agent_url must be an http or https address.")
        self._session = session
        self._url = agent_url.rstrip("/")

    async def environment(self, otp_setup: str) -> Environment:
        return await self._get("env", otp_setup, Environment)

    async def config(self, otp_run: str) -> Config:
        return await self._get("config", otp_run, Config)

    async def bag(self, assets: Assets, *, max_bytes: int) -> IO[bytes]:
        """The zip, in a file without a name. Close it."""
        file = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES)  # noqa: SIM115 - the caller closes it
        try:
            async with self._session.get(assets.url, allow_redirects=False, timeout=_PATIENCE) as response:
                _check(response, "The bag")
                size = 0
                async for piece in response.content.iter_chunked(_PIECE_BYTES):
                    size += len(piece)
                    if size > max_bytes:
                        raise OriginFailed(f"The bag is larger than the workspace ({max_bytes:,} bytes).")
                    file.write(piece)
        except (aiohttp.ClientError, TimeoutError) as exc:
            file.close()
            raise OriginFailed(f"The bag could not be fetched: {_words(exc)}") from exc
        except BaseException:
            file.close()
            raise
        file.seek(0)
        return file

    async def results(self, otp_upload: str, assets: Sequence[Asset]) -> None:
        """Hand the files back, all in one request."""
        form = aiohttp.FormData(quote_fields=False)  # else a%20b.txt comes of "a b.txt"
        for asset in assets:
            form.add_field("file", asset.file, filename=asset.path, content_type="application/octet-stream")
        try:
            async with self._session.post(
                f"{self._url}/results",
                data=form,
                headers={"Authorization": otp_upload},
                allow_redirects=False,
                timeout=_PATIENCE,
            ) as response:
                detail = await _detail(response) if response.status >= 400 else ""
                _check(response, "The files", detail)
        except (aiohttp.ClientError, TimeoutError) as exc:
            raise OriginFailed(f"The files could not be handed back: {_words(exc)}") from exc

    async def _get(self, name: str, token: str, kind: type[Answer]) -> Answer:
        try:
            async with self._session.get(
                f"{self._url}/{name}", headers={"Authorization": token}, allow_redirects=False, timeout=_PATIENCE
            ) as response:
                _check(response, f"/{name}")
                data = await _whole(response)
        except (aiohttp.ClientError, TimeoutError) as exc:
            raise OriginFailed(f"The server did not answer /{name}: {_words(exc)}") from exc
        try:
            found: Answer = read(data, kind, origin=f"/{name}")
        except InvalidRequest as exc:
            raise OriginFailed(exc.detail) from exc
        return found


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for piece in response.content.iter_chunked(_PIECE_BYTES):
        data += piece
        if len(data) > ANSWER_BYTES:
            raise OriginFailed(f"The server's answer is longer than {ANSWER_BYTES:,} bytes.")
    return bytes(data)


async def _detail(response: aiohttp.ClientResponse) -> str:
    """What the server says about a refusal, if it says it as problem+json."""
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
        raise OriginFailed(f"{what}: the server answered with status {response.status}. {detail}".strip())


def _words(exc: BaseException) -> str:
    """Addresses may hold signatures, so only the kind of the failure is told."""
    return type(exc).__name__
