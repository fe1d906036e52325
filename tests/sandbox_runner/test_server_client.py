"""The runner's client of the server, against a server that takes any form."""

import asyncio
import io
import tempfile

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from turnkeep.sandbox.server_client import ServerClient
from turnkeep.sandbox.workspace import Asset


class CountedFile(tempfile.SpooledTemporaryFile[bytes]):
    """A file that counts how often it is closed."""

    closed_times = 0

    def close(self) -> None:
        self.closed_times += 1
        super().close()


class TestResults:
    async def test_sends_the_files_and_leaves_them_open_for_their_owner(self) -> None:
        received: dict[str, bytes] = {}

        async def take(request: web.Request) -> web.Response:
            async for part in await request.multipart():
                assert isinstance(part, aiohttp.BodyPartReader)
                received[part.filename or ""] = bytes(await part.read())
            return web.Response(status=201)

        app = web.Application()
        app.router.add_post("/results", take)
        contents = {"small.txt": b"small", "large file.bin": b"x" * 300_000}
        assets = [Asset(path=path, size=len(data), sha256="", file=a_file(data)) for path, data in contents.items()]
        async with TestServer(app) as server, aiohttp.ClientSession() as session:
            await ServerClient(session, str(server.make_url("/"))).results("token", assets)
        await asyncio.get_running_loop().shutdown_default_executor()  # aiohttp closes files in a thread
        assert received == contents
        for asset in assets:
            assert isinstance(asset.file, CountedFile)
            assert asset.file.closed_times == 0
            asset.file.close()


def a_file(data: bytes) -> CountedFile:
    file = CountedFile(max_size=1_000)
    file.write(data)
    file.seek(0, io.SEEK_SET)
    return file
