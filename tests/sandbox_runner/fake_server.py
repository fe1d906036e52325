"""The server's side of a sandbox turn, as CONTRACT "Sandbox" describes it, with a scripted model behind its gateway.

Tokens are good for one call each; the bag's address is signed; the gateway opens to its own token alone.
"""

import asyncio
import io
import json
import secrets
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import BodyPartReader, web

from turnkeep.providers.scripted import Call, Pause, Think, Until

Item = str | Call | Pause | Think | Until
Script = Sequence[Item]
Scripts = Sequence[Script] | Callable[[Mapping[str, Any]], Script]


def zip_of(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


class FakeTurn:
    """One turn of the server: what it answers, and what it was told."""

    def __init__(self, scripts: Scripts = (), **config: Any) -> None:
        self.id = f"turn_{secrets.token_hex(16)}"
        self.scripts = scripts
        self.bag: bytes | None = config.pop("bag", None)
        self.variables: dict[str, str] = config.pop("variables", {})
        self.setup_script: str | None = config.pop("setup_script", None)
        self.gateway: dict[str, Any] = config.pop("gateway", {})
        self.on_tool: Callable[[dict[str, Any]], Awaitable[web.StreamResponse]] | None = config.pop("on_tool", None)
        self.tool_calls: list[dict[str, Any]] = []
        self.agent: dict[str, Any] = {"instructions": "Be brief.", "model": "demo"} | config.pop("agent", {})
        self.config = {"prompt": "Go on.", "conversation": [], "chat_id": None, "limits": {}} | config
        self.tokens = {purpose: f"otp_{purpose}_{secrets.token_hex(8)}" for purpose in ("setup", "run", "upload")}
        self.gateway_token = f"gate_{secrets.token_hex(8)}"
        self.signature = secrets.token_hex(8)
        self.asked: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.uploads = 0
        self.on_upload: Callable[[], Awaitable[object]] | None = None

    def spend(self, purpose: str, given: str | None) -> None:
        if given is None or self.tokens.get(purpose) != given:
            raise web.HTTPUnauthorized
        del self.tokens[purpose]


class FakeServer:
    def __init__(self) -> None:
        self.turns: dict[str, FakeTurn] = {}
        self.url = ""
        app = web.Application(client_max_size=1 << 30)
        app.router.add_get("/v1/sandbox/{turn}/env", self._env)
        app.router.add_get("/v1/sandbox/{turn}/config", self._config)
        app.router.add_get("/v1/sandbox/{turn}/bag.zip", self._bag)
        app.router.add_post("/v1/sandbox/{turn}/results", self._results)
        app.router.add_post("/v1/sandbox/{turn}/gateway/chat/completions", self._completions)
        app.router.add_post("/v1/sandbox/{turn}/gateway/tools", self._tools)
        self._runner = web.AppRunner(app, shutdown_timeout=1)

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator["FakeServer"]:
        server = cls()
        await server._runner.setup()
        site = web.TCPSite(server._runner, "127.0.0.1", 0)
        await site.start()
        server.url = f"http://127.0.0.1:{server._runner.addresses[0][1]}"
        try:
            yield server
        finally:
            await server._runner.cleanup()

    def add(self, turn: FakeTurn) -> dict[str, Any]:
        """The body of `POST /stream` for this turn."""
        self.turns[turn.id] = turn
        return {
            "agent_url": f"{self.url}/v1/sandbox/{turn.id}",
            "otp_setup": turn.tokens["setup"],
            "otp_run": turn.tokens["run"],
            "otp_upload": turn.tokens["upload"],
            "prompt": turn.config["prompt"],
        }

    def _turn(self, request: web.Request) -> FakeTurn:
        turn = self.turns.get(request.match_info["turn"])
        if turn is None:
            raise web.HTTPNotFound
        return turn

    async def _env(self, request: web.Request) -> web.Response:
        turn = self._turn(request)
        turn.spend("setup", request.headers.get("Authorization"))
        return web.json_response({"variables": turn.variables, "setup_script": turn.setup_script})

    async def _config(self, request: web.Request) -> web.Response:
        turn = self._turn(request)
        turn.spend("run", request.headers.get("Authorization"))
        base = f"{self.url}/v1/sandbox/{turn.id}"
        assets = {"url": f"{base}/bag.zip?sig={turn.signature}", "expires_at": 9_999_999_999_999}
        gateway = {"base_url": f"{base}/gateway", "token": turn.gateway_token, "expires_at": 9_999_999_999_999}
        gateway |= turn.gateway
        answer = {**turn.config, "agent": turn.agent, "gateway": gateway, "assets": assets if turn.bag else None}
        return web.json_response(answer)

    async def _bag(self, request: web.Request) -> web.Response:
        turn = self._turn(request)
        if request.query.get("sig") != turn.signature or turn.bag is None:
            raise web.HTTPForbidden
        return web.Response(body=turn.bag, content_type="application/zip")

    async def _results(self, request: web.Request) -> web.Response:
        turn = self._turn(request)
        turn.spend("upload", request.headers.get("Authorization"))
        if turn.on_upload is not None:
            await turn.on_upload()
        received: dict[str, bytes] = {}
        async for part in await request.multipart():
            assert isinstance(part, BodyPartReader)
            assert part.name == "file"
            assert part.filename is not None
            received[part.filename] = bytes(await part.read())
        turn.files |= received
        turn.uploads += 1
        return web.json_response({"data": [{"name": name} for name in received]}, status=201)

    async def _tools(self, request: web.Request) -> web.StreamResponse:
        turn = self._turn(request)
        if request.headers.get("Authorization") != f"Bearer {turn.gateway_token}":
            raise web.HTTPUnauthorized
        asked = await request.json()
        turn.tool_calls.append(asked)
        if turn.on_tool is None:
            return web.json_response({"result": "called", "error": None})
        return await turn.on_tool(asked)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        turn = self._turn(request)
        if request.headers.get("Authorization") != f"Bearer {turn.gateway_token}":
            raise web.HTTPUnauthorized
        body = await request.json()
        if body["model"] != turn.agent["model"]:
            raise web.HTTPForbidden
        turn.asked.append(body)
        script = turn.scripts(body) if callable(turn.scripts) else turn.scripts[len(turn.asked) - 1]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        async for delta in _deltas(script):
            await response.write(_chunk({"delta": delta, "finish_reason": None}))
        called = any(isinstance(item, Call) for item in script)
        await response.write(_chunk({"delta": {}, "finish_reason": "tool_calls" if called else "stop"}))
        await response.write(b"data: [DONE]\n\n")
        return response


async def _deltas(script: Script) -> AsyncIterator[dict[str, Any]]:
    calls = 0
    for item in script:
        match item:
            case str():
                yield {"content": item}
            case Think():
                yield {"reasoning_content": item.text}
                yield {
                    "reasoning_details": [{"type": "reasoning.text", "text": item.text, "signature": item.signature}]
                }
            case Call():
                function = {"name": item.name, "arguments": json.dumps(item.args)}
                yield {"tool_calls": [{"index": calls, "id": f"up_{calls}", "type": "function", "function": function}]}
                calls += 1
            case Pause():
                await asyncio.sleep(item.seconds)
            case Until():
                await item.happened()


def _chunk(choice: dict[str, Any]) -> bytes:
    chunk = {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, **choice}],
    }
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"
