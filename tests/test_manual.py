"""Programs that the manual shows, run as they stand."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer

from tests.server_process import SECONDS, clean_environment, serving
from turnkeep.client import Turnkeep
from turnkeep.ids import OrgId
from turnkeep.model.agents import AgentSpec
from turnkeep.tools.vault import SecretUnreadable, Vault
from turnkeep_client import AsyncTurnkeep

MANUAL = Path(__file__).parents[1] / "docs"
SECRET = "a credential of the tests"
OLD, NEW = "o" * 32, "n" * 32


def program(page: str, words: str) -> str:
    """The Python of a page that has these words in it."""
    text = (MANUAL / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^( *)```python\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    [found] = [
        "\n".join(line.removeprefix(indent) for line in block.split("\n")) for indent, block in blocks if words in block
    ]
    return found


def environment(**own: str) -> dict[str, str]:
    return clean_environment(NO_PROXY="127.0.0.1", **own)


def stored_secrets(folder: Path, key: str) -> list[str]:
    """The credentials of all agents, opened with that key alone. Raises SecretUnreadable."""
    connection = apsw.Connection(str(folder / ".turnkeep" / "turnkeep.db"), flags=apsw.SQLITE_OPEN_READONLY)
    rows = connection.execute("SELECT org_id, spec FROM agents ORDER BY id").fetchall()
    connection.close()
    vault, found = Vault([key]), []
    for org_id, text in rows:
        opened = vault.open_spec(OrgId(str(org_id)), msgspec.json.decode(str(text), type=AgentSpec))
        found += opened.environment["variables"].values()
    return found


class TestReplacingTheSecret:
    def test_the_old_key_is_not_needed_any_more(self, tmp_path: Path) -> None:
        with serving(tmp_path, environment(TURNKEEP_SECRET_KEYS=OLD), "--sandbox-url", "off"):
            with Turnkeep(data_dir=tmp_path / ".turnkeep") as turnkeep:
                other = turnkeep.workspaces.create("Another").id
                turnkeep.agents.create("One", environment={"variables": {"KEY": SECRET}})
            with Turnkeep(data_dir=tmp_path / ".turnkeep", workspace_id=other) as turnkeep:
                turnkeep.agents.create("Two", environment={"variables": {"KEY": SECRET}})
        with pytest.raises(SecretUnreadable):
            stored_secrets(tmp_path, NEW)
        with serving(tmp_path, environment(TURNKEEP_SECRET_KEYS=f"{NEW},{OLD}"), "--sandbox-url", "off"):
            run = [sys.executable, "-c", program("howto/deploy.md", "turnkeep.agents.update")]
            subprocess.run(run, cwd=tmp_path, env=environment(), check=True, timeout=SECONDS)
        assert stored_secrets(tmp_path, NEW) == [SECRET, SECRET]


@contextmanager
def running(folder: Path, text: str) -> Iterator[str]:
    """A program that prints the address at which it serves."""
    (folder / "serve.py").write_text(text, encoding="utf-8")
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            [sys.executable, "serve.py"],
            cwd=folder,
            env=environment(TURNKEEP_PORT="0"),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, (folder / "log").read_text()
        try:
            yield address
        finally:
            process.terminate()
            process.wait(SECONDS)
    assert process.returncode == 0, (folder / "log").read_text()


class TestAProviderOfYourOwn:
    def test_is_served_by_a_program_of_your_own(self, tmp_path: Path) -> None:
        with running(tmp_path, program("reference/providers.md", "class Parrot")) as address:
            key = (tmp_path / ".turnkeep" / "local.key").read_text()
            with Turnkeep(address, key) as turnkeep:
                assert turnkeep.ask("Polly?", model="parrot/grey").text == "Polly?"
                assert {"demo", "parrot/grey"} <= {model.id for model in turnkeep.models.list()}


class TestPutItBeforeYourCustomers:
    PAGE = "howto/put-it-before-your-customers.md"

    @pytest.fixture
    def backend(self, tmp_path: Path) -> Iterator[dict[str, str]]:
        """What the host's programs are told: the server, its key and the agent for customers."""
        with serving(tmp_path, environment(), "--sandbox-url", "off") as server:
            key = (tmp_path / ".turnkeep" / "local.key").read_text()
            with Turnkeep(server.url, key) as turnkeep:
                agent = turnkeep.agents.create("Shop", instructions="Be kind.").id
            yield {"TURNKEEP_URL": server.url, "TURNKEEP_KEY": key, "AGENT": agent}

    def test_a_customer_is_refused_whatever_the_check_tries(self, tmp_path: Path, backend: dict[str, str]) -> None:
        run = [sys.executable, "-c", program(self.PAGE, "refused = 0")]
        told = subprocess.run(
            run, cwd=tmp_path, env=environment(**backend), check=True, timeout=SECONDS, capture_output=True, text=True
        ).stdout
        assert "ALLOWED" not in told
        tried = told.count("refused (")
        assert told.endswith(f"instructions: hidden\n{tried} of {tried} refused\n")

    async def test_the_backend_gives_tokens_to_those_who_are_signed_in(
        self, backend: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in backend.items():
            monkeypatch.setenv(name, value)
        names: dict[str, Any] = {}
        exec(program(self.PAGE, "turnkeep-token"), names)
        async with names["turnkeep"], TestClient(TestServer(names["app"])) as browser:
            made = await (await browser.post("/turnkeep-token", cookies={"session": "session-of-ann"})).json()
            assert (await browser.post("/turnkeep-token", cookies={"session": "of nobody"})).status == 500
        async with AsyncTurnkeep(backend["TURNKEEP_URL"], made["token"]) as customer:
            answer = await customer.ask("Hello", agent_id=backend["AGENT"])
            found = await customer.conversations.get(answer.conversation_id)
        assert found.user is not None
        assert found.user.external_id == "customer-1"
