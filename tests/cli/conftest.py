"""A server that the commands find by themselves, and the commands as processes of their own."""

import asyncio
import io
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.cli.terminal import Terminal
from tests.client.site import Model, Site
from tests.server_process import SECONDS, TURNKEEP, environment, run_turnkeep
from turnkeep.cli.database import remember_server
from turnkeep.cli.main import main
from turnkeep.config import Settings

Found = TypeVar("Found")


class Written(io.TextIOWrapper):
    """A stream that keeps what is written to it, and says that it is a terminal if it is to be one."""

    def __init__(self, *, is_terminal: bool) -> None:
        self._kept = io.BytesIO()
        self._is_terminal = is_terminal
        super().__init__(self._kept, encoding="utf-8")

    def isatty(self) -> bool:
        return self._is_terminal

    @property
    def text(self) -> str:
        self.flush()
        return self._kept.getvalue().decode()


class Shell:
    """Types commands where a server runs."""

    def __init__(self, site: Site, folder: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.site = site
        self.folder = folder
        self._loop = loop

    def model(self, model: Model) -> None:
        """What the model says from now on."""
        self.site.model = model

    def on_server(self, work: Callable[[], Coroutine[Any, Any, Found]]) -> Found:
        """Do something in the server's own loop."""
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(SECONDS)

    def run(self, *arguments: str | Path, input: str = "", **changes: str) -> "subprocess.CompletedProcess[str]":
        return run_turnkeep(*arguments, env=environment(self.folder, **changes), input=input)

    def here(
        self, *arguments: str | Path, input: str = "", on_terminal: bool = False
    ) -> "subprocess.CompletedProcess[str]":
        """The same inside this process, which is quicker: for the many ways in which a command can be refused.

        `on_terminal` is one without colours and movements, so that what is written is what the command says.
        """
        out, err, code = Written(is_terminal=on_terminal), Written(is_terminal=on_terminal), 0
        given = io.TextIOWrapper(io.BytesIO(input.encode()), encoding="utf-8")
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment(self.folder, TERM="dumb", LINES="40").items():
                patch.setenv(name, value)
            for stream, fake in (("stdout", out), ("stderr", err), ("stdin", given)):
                patch.setattr(sys, stream, fake)
            try:
                main([str(argument) for argument in arguments])
            except SystemExit as left:
                code = left.code if isinstance(left.code, int) else 0
        return subprocess.CompletedProcess(list(map(str, arguments)), code, out.text, err.text)

    def ok(self, *arguments: str | Path, input: str = "", **changes: str) -> str:
        """What a command that must work says on standard output."""
        done = self.run(*arguments, input=input, **changes)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *arguments: str | Path, input: str = "") -> Any:
        """The answer as scripts get it; made inside this process, for what a test only needs to know."""
        done = self.here(*arguments, "--json", input=input)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def lines(self, *arguments: str | Path) -> list[Any]:
        done = self.here(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def terminal(self, *arguments: str | Path) -> Terminal:
        return Terminal([*TURNKEEP, *map(str, arguments)], environment(self.folder))


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop in a thread of its own, so that the tests may wait for processes."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, loop: asyncio.AbstractEventLoop) -> Iterator[Shell]:
    """One server for the tests of a module."""
    folder = tmp_path_factory.mktemp("cli")
    site = Site(folder / "data")
    asyncio.run_coroutine_threadsafe(site.start(), loop).result(SECONDS)
    remember_server(Settings(data_dir=folder / "data"), site.port)
    yield Shell(site, folder, loop)
    asyncio.run_coroutine_threadsafe(site.stop(), loop).result(SECONDS)


@pytest.fixture
def shell(server: Shell) -> Shell:
    """The server with a model that greets."""
    server.model(lambda request: ["Hello ", "there."])
    return server
