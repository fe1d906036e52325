"""A web server on a loopback port for tools to call, with a path for each kind of misbehaviour."""

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

FLOOD_BYTES = 100 * 1024 * 1024


class WebServer:
    """What was asked of it, and where it is."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.port = 0
        self.requests: list[dict[str, Any]] = []
        self.redirects: dict[str, tuple[int, str]] = {}
        self.answer: web.Response | None = None
        self.sent_bytes = 0

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def hits(self) -> int:
        return len(self.requests)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.text()
        headers = {name.title(): value for name, value in request.headers.items()}
        self.requests.append({"method": request.method, "path": request.path_qs, "headers": headers, "body": body})
        match request.path:
            case path if path in self.redirects:
                status, location = self.redirects[path]
                return web.Response(status=status, headers={"location": location})
            case "/headers":
                return web.json_response({name.lower(): value for name, value in request.headers.items()})
            case "/cookie":
                return web.Response(headers={"set-cookie": "session=of-somebody-else; Path=/"})
            case "/close":
                return web.Response(headers={"connection": "close"})
            case "/drop":
                assert request.transport is not None
                request.transport.abort()
            case "/hang":
                await asyncio.sleep(3_600)
            case "/trickle":
                return await self._trickle(request)
            case "/flood":
                return await self._flood(request)
            case "/bomb":
                packed = gzip.compress(b"0" * FLOOD_BYTES)
                return web.Response(body=packed, headers={"content-encoding": "gzip", "content-type": "text/plain"})
            case "/gzip":
                packed = gzip.compress(b'{"packed": true}')
                return web.Response(
                    body=packed, headers={"content-encoding": "gzip", "content-type": "application/json"}
                )
        return self.answer or web.json_response({"you_said": body})

    async def _flood(self, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        for _ in range(FLOOD_BYTES // 65_536):
            await response.write(b"1" * 65_536)
            self.sent_bytes += 65_536
        return response

    async def _trickle(self, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b".")
            await asyncio.sleep(0.05)


@asynccontextmanager
async def web_server(
    host: str = "127.0.0.1", *, port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[WebServer]:
    server = WebServer(host)
    runner = web.ServerRunner(web.Server(server.handle), shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, ssl_context=tls)
        await site.start()
        server.port = runner.addresses[0][1]
        yield server
    finally:
        await runner.cleanup()
