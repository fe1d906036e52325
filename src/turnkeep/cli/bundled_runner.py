"""The runner beside the server: a child process of `turnkeep serve`, kept alive for as long as the server lives.

Its standard input is a pipe that only the server holds: when the server is gone, however it went, the pipe ends, the
runner kills its boxes and goes too. It is given no key of any provider: it reaches models through the server.
"""

import asyncio
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping

from turnkeep.config import Settings
from turnkeep.engine.sandboxes import SandboxAccess
from turnkeep.errors import SandboxUnavailable, TurnkeepError
from turnkeep.http_server.sockets import http_address

CLOSE_SECONDS = 5.0
STARTING_SECONDS = 15.0
"""The server answers before its runner does. A turn that comes in between waits for it."""
QUICK_SECONDS = 5.0
PAUSES = (0.2, 1.0, 5.0, 30.0)
"""Before it is started again: longer each time it dies young."""

_KEPT = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "XDG_RUNTIME_DIR",
    "DOCKER_HOST",
)
_PREFIX = "TURNKEEP_SANDBOX_"

_logger = logging.getLogger("turnkeep.serve")


class BundledRunner:
    """Starts at once and starts again when it dies. `close` ends it."""

    def __init__(self, access: SandboxAccess, *, environ: Mapping[str, str]) -> None:
        self.access = access
        self._environ = runner_environment(environ)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closing = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="sandbox runner", daemon=True)
        self._keeper.start()

    def close(self) -> None:
        """End the runner and every box of it; not for ever, if it refuses."""
        self._is_closing.set()
        process = self._process
        if process is not None:
            _end(process)
        self._keeper.join(CLOSE_SECONDS)

    def _keep(self) -> None:
        young_deaths = 0
        while not self._is_closing.is_set():
            began = time.monotonic()
            self._process = process = self._start()
            if self._is_closing.is_set():
                _end(process)
            code = process.wait()
            if self._is_closing.is_set():
                return
            young_deaths = young_deaths + 1 if time.monotonic() - began < QUICK_SECONDS else 0
            _logger.warning("The sandbox runner ended with code %d and is started again", code)
            self._is_closing.wait(PAUSES[min(young_deaths, len(PAUSES) - 1)])

    def _start(self) -> "subprocess.Popen[bytes]":
        port = self.access.url.rpartition(":")[2]
        return subprocess.Popen(
            [
                *(sys.executable, "-c", "from turnkeep.cli.main import main; main()", "sandbox", "--until-eof"),
                *("--host", "127.0.0.1", "--port", port, "--server", self.access.server_url),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=self._environ,
            start_new_session=True,  # Ctrl-C is the server's to pass on, after it has handed its turns over
        )


def start_runner(settings: Settings, listener: socket.socket, environ: Mapping[str, str]) -> BundledRunner | str:
    """The runner, or why there is none, in words for the operator."""
    if settings.sandbox_url == "off":
        return "off (TURNKEEP_SANDBOX_URL)"
    try:
        asyncio.run(_check(environ))
    except TurnkeepError as exc:
        return f"none: {exc.detail}"
    access = SandboxAccess(
        url=f"http://127.0.0.1:{_free_port()}", server_url=local_address(listener), patience_seconds=STARTING_SECONDS
    )
    return BundledRunner(access, environ=environ)


def local_address(listener: socket.socket) -> str:
    """Where a program of this machine reaches the server, whatever its public address is."""
    return http_address(*listener.getsockname()[:2])


def runner_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What the runner needs to start, and the settings of its own."""
    return {
        name: value
        for name, value in environ.items()
        if name in _KEPT or (name.startswith(_PREFIX) and name != "TURNKEEP_SANDBOX_URL")
    }


async def _check(environ: Mapping[str, str]) -> None:
    """Start a box once. Raises SandboxUnavailable, in words that help."""
    try:
        from turnkeep.runner.server import make_driver
        from turnkeep.runner.settings import read_runner_settings
    except ImportError as exc:
        raise SandboxUnavailable(f"The runner cannot be loaded ({exc.name} is missing).") from exc
    await make_driver(read_runner_settings(runner_environment(environ))).check()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Closing its input is the sign to leave."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(CLOSE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
