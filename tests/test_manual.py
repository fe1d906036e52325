"""Programs that the manual shows, run as they stand."""

import csv
import io
import re
import shlex
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer

from tests.server_process import SECONDS, TURNKEEP, clean_environment, serving
from turnkeep.client import Turnkeep
from turnkeep.ids import OrgId
from turnkeep.model.agents import AgentSpec
from turnkeep.model.prices import read_prices
from turnkeep.tools.vault import SecretUnreadable, Vault
from turnkeep_client import AsyncTurnkeep
from turnkeep_client.discovery import find_server
from turnkeep_client.wire.blocks import Usage

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


def commands(page: str, words: str) -> str:
    """The shell commands of a page that have these words in them."""
    text = (MANUAL / page).read_text(encoding="utf-8")
    [found] = [block for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL) if words in block]
    return str(found)


def environment(**own: str) -> dict[str, str]:
    return clean_environment(NO_PROXY="127.0.0.1", **own)


def stored_secrets(folder: Path, key: str) -> list[str]:
    """The credentials of all agents, opened with that key alone. Raises SecretUnreadable."""
    connection = apsw.Connection(str(folder / ".turnkeep" / "turnkeep.db"), flags=apsw.SQLITE_OPEN_READONLY)
    rows = connection.execute("SELECT org_id, spec FROM agents ORDER BY id").fetchall()
    hooks = connection.execute("SELECT org_id, secret FROM webhooks").fetchall()
    connection.close()
    vault, found = Vault([key]), []
    assert all(vault.open(OrgId(str(org_id)), str(secret)).startswith("whsec_") for org_id, secret in hooks)
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
                turnkeep.webhooks.create("https://example.com/hook", ["turn.failed"])
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


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which a server runs."""
    folder = tmp_path_factory.mktemp("manual")
    with serving(folder, environment(), "--sandbox-url", "off"):
        yield folder


def printed(folder: Path, text: str, *arguments: str) -> str:
    """What a program prints that is run in this folder."""
    run = [sys.executable, "-W", "error", "-c", text, *arguments]
    done = subprocess.run(
        run, cwd=folder, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_shell(folder: Path, text: str) -> str:
    """What these commands print, run in this folder with the address and the key of its server."""
    place = find_server(data_dir=folder / ".turnkeep", environ={})
    with_turnkeep = f'turnkeep() {{ {shlex.join(TURNKEEP)} "$@"; }}\n' + text.replace("localhost:8787", place.url)
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", with_turnkeep],
        cwd=folder,
        env=environment(KEY=place.key or ""),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class TestBills:
    def test_have_a_line_for_each_user(self, served: Path) -> None:
        with Turnkeep(data_dir=served / ".turnkeep") as turnkeep:
            turnkeep.as_user("ann").ask("Hello?")
            turnkeep.as_user("ann").ask("Again?")
            turnkeep.as_user("bob").ask("Hello?")
        bill = list(csv.DictReader(io.StringIO(printed(served, program("howto/bill-your-users.md", "csv.writer")))))
        lines = {line["user"]: line for line in bill}
        assert (lines["ann"]["messages"], lines["bob"]["messages"]) == ("2", "1")
        assert int(lines["ann"]["input_tokens"]) > int(lines["bob"]["input_tokens"]) > 0
        quiet = printed(served, program("howto/bill-your-users.md", "csv.writer"), "2020-01")
        assert "ann,,0,0,0,0.00" in quiet

    def test_are_kept_small_by_limits(self, served: Path) -> None:
        with Turnkeep(data_dir=served / ".turnkeep") as turnkeep:
            turnkeep.as_user("ann@example.com").me()
            run_shell(served, commands("howto/bill-your-users.md", "turnkeep users update"))
            ann = turnkeep.users.get("ann@example.com")
            [acme] = [one for one in turnkeep.workspaces.list() if one.name == "Acme"]
        assert (ann.monthly_message_limit, ann.monthly_token_limit, ann.monthly_cost_limit) == (1000, 5_000_000, 20)
        assert (acme.monthly_message_limit, acme.user_monthly_message_limit) == (50_000, 500)

    def test_have_a_cost_by_the_prices_of_the_page(self) -> None:
        page = (MANUAL / "howto/bill-your-users.md").read_text(encoding="utf-8")
        [prices] = re.findall(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        used = Usage(output_tokens=1_000_000, cache_read_tokens=1_000_000)
        assert read_prices(prices.encode()).cost("anthropic/claude-sonnet-4-5", used) == pytest.approx(15.30)


class TestErasingAUser:
    def test_is_done_as_the_page_says(self, served: Path) -> None:
        with Turnkeep(data_dir=served / ".turnkeep") as turnkeep:
            turnkeep.as_user("ada@example.com").ask("Hello?")
            begin, *_, look, _ = commands("howto/erase-a-user.md", "/erase").splitlines()
            erasure_id = msgspec.json.decode(run_shell(served, begin))["erasure_id"]
            until, told = time.monotonic() + SECONDS, dict[str, Any](status="running")
            while told["status"] == "running" and time.monotonic() < until:
                told = msgspec.json.decode(run_shell(served, look.replace("erasure_…", erasure_id)))
            assert told["status"] == "done"
            assert (told["counts"]["conversations"], told["counts"]["turns"]) == (1, 1)
            assert "ada@example.com" not in {user.external_id for user in turnkeep.users.list()}


class TestImportingAHistory:
    def test_gives_each_user_their_conversations(self, served: Path) -> None:
        product = sqlite3.connect(served / "product.db")
        product.executescript(
            """
            CREATE TABLE threads (id INTEGER PRIMARY KEY, user TEXT, title TEXT);
            CREATE TABLE messages (id INTEGER PRIMARY KEY, thread INTEGER, role TEXT, text TEXT, sent_at INTEGER);
            INSERT INTO threads VALUES (1, 'kim', 'Hours'), (2, 'lee', 'Prices');
            INSERT INTO messages (thread, role, text, sent_at) VALUES
                (1, 'user', 'When are you open?', 1700000000000), (1, 'assistant', 'From 9 to 17.', 1700000001000),
                (2, 'user', 'How much?', 1700000002000), (2, 'assistant', ' ', 1700000003000);
            """
        )
        product.commit()
        product.close()
        said = printed(served, program("howto/import-your-history.md", "product.db"))
        assert "2 of 2 conversations are imported." in said
        again = printed(served, program("howto/import-your-history.md", "product.db"))
        assert "2 of 2 conversations are imported." in again, "nothing is imported twice"
        made = msgspec.json.decode((served / "imported.json").read_bytes())
        with Turnkeep(data_dir=served / ".turnkeep") as turnkeep:
            kim = turnkeep.as_user("kim")
            assert [one.id for one in kim.conversations.list()] == [made["1"]]
            messages = list(kim.conversations.messages(made["1"]))
            assert [message.text for message in messages] == ["When are you open?", "From 9 to 17."]
            assert messages[0].created_at == 1_700_000_000_000
            assert kim.ask("And on Sundays?", conversation_id=made["1"]).conversation_id == made["1"]


class TestTheClientsPage:
    def test_asks(self, served: Path) -> None:
        assert "Hello" in printed(served, program("reference/client.md", "turnkeep.ask("))

    def test_shows_words(self, served: Path) -> None:
        assert "demo model" in printed(served, program("reference/client.md", "Restarted"))


class TestTestingYourApplication:
    def test_works_as_it_is_shown(self, tmp_path: Path) -> None:
        page = "howto/test-your-app.md"
        (tmp_path / "conftest.py").write_text(program(page, "import turnkeep_server"))
        (tmp_path / "test_shop.py").write_text(program(page, "test_the_shop_answers"))
        (tmp_path / "test_tool.py").write_text(program(page, "test_the_tool_is_called"))
        own = {name: value for name, value in environment().items() if not name.startswith("PYTEST")}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
            cwd=tmp_path,
            env=own,
            capture_output=True,
            text=True,
            timeout=2 * SECONDS,
            check=False,
        )
        assert "2 passed" in done.stdout, done.stdout + done.stderr


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
