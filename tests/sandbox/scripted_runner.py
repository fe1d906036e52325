"""A fake runner: it follows the contract with the server, and writes the lines that a test gives it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from turnkeep_client.wire.sandbox import FEATURES_HEADER, WAITS

Json = Any


class Visit:
    """One `POST /stream`: what the server sent, and the way back to it."""

    def __init__(
        self,
        envelope: Json,
        session: aiohttp.ClientSession,
        request: web.Request,
        response: web.StreamResponse,
    ) -> None:
        self.envelope = envelope
        self.response = response
        self._request = request
        self.left = asyncio.Event()
        """The server has closed the connection: here a box would be killed."""
        self._session = session

    @property
    def url(self) -> str:
        return str(self.envelope["agent_url"])

    def header(self, name: str) -> str | None:
        """A header of what the server sent."""
        return self._request.headers.get(name)

    async def write(self, *lines: Json) -> None:
        """Each as a line of JSON; bytes go out as they are."""
        body = b"".join(line if isinstance(line, bytes) else msgspec.json.encode(line) + b"\n" for line in lines)
        await self.response.write(body)

    async def get(self, path: str, token: str, **headers: str) -> tuple[int, Json]:
        given = {"Authorization": token, **headers}
        async with self._session.get(f"{self.url}/{path}", headers=given) as response:
            return response.status, await response.json()

    def elsewhere(self, agent_url: str) -> "Visit":
        """The same tokens, used at the address of another turn."""
        return Visit({**self.envelope, "agent_url": agent_url}, self._session, self._request, self.response)

    async def env(self) -> Json:
        return (await self.get("env", self.envelope["otp_setup"]))[1]

    async def config(self) -> Json:
        status, config = await self.get("config", self.envelope["otp_run"], **{FEATURES_HEADER: WAITS})
        assert status == 200, config
        return config

    async def hand_back(self, **files: bytes) -> tuple[int, Json]:
        form = aiohttp.FormData()
        for name, content in files.items():
            form.add_field("file", content, filename=name.replace("__", "."))
        headers = {"Authorization": self.envelope["otp_upload"]}
        async with self._session.post(f"{self.url}/results", data=form, headers=headers) as response:
            return response.status, await response.json()

    async def chat(self, config: Json, message: str, **body: Json) -> tuple[int, Json]:
        """Ask the model through the gateway, not streamed."""
        asked = {"model": config["agent"]["model"], "messages": [{"role": "user", "content": message}], **body}
        headers = {"Authorization": f"Bearer {config['gateway']['token']}"}
        url = f"{config['gateway']['base_url']}/chat/completions"
        async with self._session.post(url, json=asked, headers=headers) as response:
            return response.status, await response.json()

    async def break_off(self) -> None:
        """As if the runner had been killed."""
        transport = self._request.transport
        assert transport is not None
        transport.abort()


Part = Callable[[Visit], Awaitable[None]]


class ScriptedRunner:
    """Plays one part after the other; when none is planned, it answers `Done.`"""

    def __init__(self, url: str) -> None:
        self.url = url
        self.parts: list[Part] = []
        self.visits: list[Visit] = []
        self.refusal: tuple[int, str] | None = None
        self.session: aiohttp.ClientSession | None = None

    def plays(self, part: Part) -> None:
        self.parts.append(part)

    def says(self, *lines: Json) -> None:
        async def part(visit: Visit) -> None:
            await visit.write(*lines)

        self.plays(part)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        if self.refusal is not None:
            return web.Response(status=self.refusal[0], text=self.refusal[1])
        assert self.session is not None
        response = web.StreamResponse(headers={"content-type": "application/x-ndjson"})
        response.enable_compression()  # as a proxy would, if the server said that it can read that
        visit = Visit(await request.json(), self.session, request, response)
        part = self.parts.pop(0) if self.parts else None
        self.visits.append(visit)
        await response.prepare(request)
        try:
            if part is None:
                await visit.write(result("Done."))
            else:
                await part(visit)
        except (asyncio.CancelledError, ConnectionError):
            visit.left.set()
            raise
        with contextlib.suppress(ConnectionError):
            await response.write_eof()
        return response


@asynccontextmanager
async def scripted_runner() -> AsyncIterator[ScriptedRunner]:
    app = web.Application()
    server = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
    runner = ScriptedRunner("")
    app.router.add_post("/stream", runner.stream)
    await server.setup()
    site = web.TCPSite(server, "127.0.0.1", 0)
    await site.start()
    runner.url = f"http://127.0.0.1:{server.addresses[0][1]}"
    async with aiohttp.ClientSession() as session:
        runner.session = session
        try:
            yield runner
        finally:
            await server.cleanup()


def log(message: str, level: str = "info") -> Json:
    return {"type": "log", "level": level, "message": message}


def delta(text: str) -> Json:
    return {"type": "delta", "text": text}


def running(step: str, name: str = "shell", **more: Json) -> Json:
    return {"type": "step", "id": step, "name": name, "status": "running", **more}


def succeeded(step: str, name: str = "shell", **more: Json) -> Json:
    return {"type": "step", "id": step, "name": name, "status": "succeeded", **more}


def result(message: str, **fields: Json) -> Json:
    return {"type": "result", "message": message, **fields}


def error(code: str, message: str) -> Json:
    return {"type": "error", "code": code, "message": message}
