"""The tutorial, followed by a reader: its files are written, its commands are run, its page is used in a browser."""

import asyncio
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from tests.browser.harness import ROOT, TIMEOUT_MS
from tests.ports import free_ports
from tests.server_process import SECONDS, TURNKEEP, clean_environment

TUTORIAL = ROOT / "docs" / "tutorials" / "an-assistant-in-your-product.md"
PORTS = ("8787", "8000")
LASTING = {"turnkeep serve": "Ctrl-C", "python shop.py": "CTRL+C"}
"""Commands that go on, and what they print when they are ready."""


class Reader:
    """Somebody who does what the tutorial says, in a folder of their own and on free ports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = dict(zip(PORTS, map(str, free_ports(2)), strict=True))
        blocks = re.findall(r"^```(\w+)\n(.*?)^```", TUTORIAL.read_text("utf-8"), re.MULTILINE | re.DOTALL)
        self.commands = [self._with_ports(text) for language, text in blocks if language == "sh"]
        for _, text in blocks:
            if named := re.match(r"(?:# |<!-- )([\w.]+)(?: -->)?\n", text):
                body = text[named.end() :] if named[1].endswith(".html") else text
                (folder / named[1]).write_text(self._with_ports(body), encoding="utf-8")

    def _with_ports(self, text: str) -> str:
        return re.sub("|".join(PORTS), lambda found: self.ports[found[0]], text)

    @property
    def environment(self) -> dict[str, str]:
        """One in which `turnkeep` and `python` are those of the tests."""
        programs = self.folder / "bin"
        programs.mkdir(exist_ok=True)
        for name, command in (("turnkeep", TURNKEEP), ("python", (sys.executable,))):
            (programs / name).write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
            (programs / name).chmod(0o755)
        own = {name: value for name, value in clean_environment().items() if not name.startswith("PYTEST")}
        return own | {"PATH": f"{programs}{os.pathsep}{own['PATH']}", "NO_PROXY": "127.0.0.1", "PYTHONUNBUFFERED": "1"}

    def run(self, command: str) -> str:
        """A command that ends. What it printed."""
        done = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=2 * SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    @contextmanager
    def running(self, command: str) -> Iterator[None]:
        """A command that goes on, once it is ready."""
        with (
            (self.folder / "log").open("w") as log,
            subprocess.Popen(
                shlex.split(command),
                cwd=self.folder,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            ) as process,
        ):
            assert process.stdout is not None
            try:
                printed = ""
                for line in process.stdout:
                    printed += line
                    if LASTING[command] in line:
                        break
                assert LASTING[command] in printed, printed + (self.folder / "log").read_text()
                yield
            finally:
                process.send_signal(signal.SIGINT)
                process.wait(SECONDS)


async def in_thread(work: Callable[[], str]) -> str:
    return await asyncio.to_thread(work)


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path)


async def ask(page: Page, question: str, answer: str) -> None:
    await page.get_by_label("Your question").fill(question)
    await page.get_by_role("button", name="Ask").click()
    await expect(page.get_by_role("log")).to_contain_text(answer, timeout=TIMEOUT_MS)


def problems_of(page: Page) -> list[str]:
    """The errors of scripts on the page, which fill up while it is open."""
    found: list[str] = []
    page.on("pageerror", lambda error: found.append(str(error)))
    return found


class TestTheTutorial:
    async def test_ends_with_an_assistant_that_knows_its_users(self, reader: Reader, browser: Browser) -> None:
        serve, make_agent, serve_shop, make_analyst, run_tests = reader.commands
        with reader.running(serve.strip()):
            assert "is saved" in await in_thread(lambda: reader.run(make_agent))
            with reader.running(serve_shop.strip()):
                for user, theirs, others in (("ann", "red bicycle", "kettle"), ("bob", "blue kettle", "bicycle")):
                    context = await browser.new_context()
                    page = await context.new_page()
                    problems = problems_of(page)
                    await page.goto(f"http://127.0.0.1:{reader.ports['8000']}/login?user={user}")
                    await ask(page, "use orders", theirs)
                    await expect(page.get_by_text("orders: succeeded")).to_be_visible()
                    await expect(page.get_by_role("log")).not_to_contain_text(others)
                    await ask(page, "hello", "demo model")
                    assert problems == []
                    await context.close()
            assert "\n3\n" in await in_thread(lambda: reader.run(make_analyst))
        assert "2 passed" in await in_thread(lambda: reader.run(run_tests))
