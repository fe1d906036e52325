"""Servers of the last release and of this one on one database, as they are while a fleet is upgraded."""

import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import servers
from tests.migrations import last_release
from tests.redis_server import RedisServer
from tests.server_process import Serving, environment, run_turnkeep, serving
from turnkeep.store.migrations import OLDEST_SERVED

KEY = "the-key-of-the-rolling-upgrade"
LONG = "write 400 words"
"""The demo model takes five seconds for it."""
PATIENCE_SECONDS = 90


class Fleet:
    """Servers of two releases with one database, one Redis and one folder of files."""

    def __init__(self, folder: Path, database_url: str, redis_url: str) -> None:
        self._folder = folder
        self._settings = {
            "TURNKEEP_DATABASE_URL": database_url,
            "TURNKEEP_REDIS_URL": redis_url,
            "TURNKEEP_BOOTSTRAP_KEY": KEY,
            "TURNKEEP_SECRET_KEYS": "a secret that both releases of the fleet share",
            "TURNKEEP_LEASE_SECONDS": "3",
            "TURNKEEP_SANDBOX_URL": "off",
        }
        self._old_path = last_release.unpack(folder / "release")
        self._started = 0

    @contextmanager
    def old(self) -> Iterator[Serving]:
        with self._serving(PYTHONPATH=self._old_path) as server:
            yield server

    @contextmanager
    def new(self, **settings: str) -> Iterator[Serving]:
        with self._serving(**settings) as server:
            yield server

    def run_new(self, *arguments: str) -> str:
        """What a command of this release prints, with what it printed as errors."""
        done = run_turnkeep(*arguments, env=environment(self._folder, **self._settings), cwd=self._folder)
        return done.stdout + done.stderr

    @property
    def old_migrations(self) -> int:
        return last_release.migrations(self._folder / "release")

    @contextmanager
    def _serving(self, **settings: str) -> Iterator[Serving]:
        self._started += 1
        folder = self._folder / f"server-{self._started}"
        folder.mkdir()
        with serving(folder, environment(self._folder, **self._settings | settings)) as server:
            yield server


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    name = servers.of_this_worker("rolling")
    async with RedisServer() as redis:
        yield Fleet(tmp_path, await servers.create_database(servers.shared_postgres_uri(), name), redis.url)
    await servers.drop_database(servers.shared_postgres_uri(), name)


class Caller:
    """A caller of one server."""

    def __init__(self, server: Serving, key: str = KEY) -> None:
        self._url = server.url
        self._headers = {"authorization": f"Bearer {key}"}

    def send(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        sent = httpx.request(
            method, self._url + path, json=body, headers=self._headers, trust_env=False, timeout=60, **options
        )
        assert sent.status_code < 300, f"{method} {path}: {sent.status_code} {sent.text}"
        return sent.json() if sent.content else None

    def ask(self, message: str, **options: Any) -> Any:
        """A turn that has ended."""
        answer = self.send("POST", "/v1/turns", {"message": message, **options})
        assert answer["turn"]["status"] == "succeeded", answer
        return answer["turn"]

    def begin(self, message: str = LONG, **options: Any) -> str:
        """The id of a turn that runs on this server."""
        turn_id: str = self.send("POST", "/v1/turns", {"message": message, "background": True, **options})["turn_id"]
        return turn_id

    def events(self, turn_id: str) -> str:
        """The stream of a turn to its end."""
        path = f"{self._url}/v1/turns/{turn_id}/events"
        with httpx.stream("GET", path, headers=self._headers, trust_env=False, timeout=PATIENCE_SECONDS) as response:
            return "".join(response.iter_text())

    def ended(self, turn_id: str) -> Any:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            turn = self.send("GET", f"/v1/turns/{turn_id}")
            if turn["status"] not in {"running", "queued"}:
                return turn
            assert time.monotonic() < deadline, turn
            time.sleep(0.1)

    def is_ready(self) -> bool:
        return httpx.get(f"{self._url}/readyz", trust_env=False, timeout=60).status_code == 200


def use_everything(caller: Caller, other: Caller) -> None:
    """What a product does in a day on one server, and looks at on another."""
    first = caller.ask("Hello?", metadata={"tag": "1"})
    place = f"/v1/conversations/{first['conversation_id']}"
    again = caller.ask("And again?", conversation_id=first["conversation_id"])
    uploaded = caller.send("POST", f"{place}/files", files={"file": ("notes.txt", b"Some words.", "text/plain")})
    file_id = uploaded["data"][0]["id"]
    caller.ask("What is in it?", conversation_id=first["conversation_id"], attachment_ids=[file_id])
    caller.send("POST", f"{place}/turns/{again['id']}/edit", {"message": "And now?"})
    caller.send("POST", f"{place}/turns/{first['id']}/regenerate", {})
    running = caller.begin(conversation_id=first["conversation_id"])
    waiting = caller.begin("Next?", conversation_id=first["conversation_id"], if_busy="enqueue")
    caller.send("POST", f"/v1/turns/{waiting}/cancel")
    stopping = caller.begin("Stop!", conversation_id=first["conversation_id"], if_busy="interrupt")
    assert caller.ended(running)["status"] == "cancelled"
    assert caller.ended(stopping)["status"] == "succeeded"
    caller.send("PATCH", place, {"title": "Renamed"})
    messages = caller.send("GET", f"{place}/messages")["data"]
    assert messages
    assert [each["id"] for each in other.send("GET", f"{place}/messages")["data"]] == [each["id"] for each in messages]
    assert other.send("GET", place)["title"] == "Renamed"
    document = caller.send("GET", f"{place}/export")
    copy = other.send("POST", "/v1/conversations/import", document)["conversation"]["id"]
    caller.send("DELETE", f"/v1/conversations/{copy}")
    other.send("POST", f"/v1/conversations/{copy}/restore")
    caller.send("POST", f"/v1/conversations/{copy}/erase")
    page = caller.send("POST", "/v1/pages", {"title": "Page", "content": "Words of a page."})
    table = caller.send("POST", "/v1/tables", {"name": "Table", "columns": [{"name": "A", "type": "text"}]})
    other.send("POST", f"/v1/tables/{table['id']}/rows", {"rows": [{"A": "a"}]})
    assert caller.send("GET", f"/v1/tables/{table['id']}/rows")["data"]
    other.send("DELETE", f"/v1/pages/{page['id']}")
    caller.send("DELETE", f"/v1/tables/{table['id']}")
    assert caller.send("GET", "/v1/usage")["messages"] >= 6


class TestSideBySide:
    def test_the_last_release_ends_with_the_migration_that_this_one_serves(self, fleet: Fleet) -> None:
        assert fleet.old_migrations == OLDEST_SERVED

    def test_both_releases_do_all_their_work_and_go_on_with_each_others_conversations(self, fleet: Fleet) -> None:
        with ExitStack() as running:
            old_server = running.enter_context(fleet.old())
            old = Caller(old_server)
            use_everything(old, old)
            begun = old.begin()
            new = Caller(running.enter_context(fleet.new()))  # migrates while a turn runs
            assert old.ended(begun)["status"] == "succeeded"
            assert new.events(begun) == old.events(begun)
            for caller, other in ((old, new), (new, old)):
                use_everything(caller, other)
                turn_id = caller.begin()
                stream = other.events(turn_id)
                assert "event: delta" in stream, "words come through Redis"
                assert "event: result" in stream
                conversation_id = caller.send("GET", f"/v1/turns/{turn_id}")["conversation_id"]
                other.ask("Go on.", conversation_id=conversation_id)
            assert old.is_ready()
            assert new.is_ready()
            assert old_server.stop() == 0
            with fleet.old() as restarted:  # a fleet can also go back
                use_everything(Caller(restarted), new)

    def test_no_question_fails_while_the_database_is_migrated(self, fleet: Fleet) -> None:
        with fleet.old() as old_server:
            old = Caller(old_server)
            stopped = threading.Event()
            failed: list[BaseException] = []
            answered: list[str] = []

            def ask_on() -> None:
                while not stopped.is_set():
                    try:
                        answered.append(old.ask("Hello?")["id"])
                    except BaseException as exc:
                        failed.append(exc)
                        return

            asking = [threading.Thread(target=ask_on) for _ in range(4)]
            for each in asking:
                each.start()
            printed = fleet.run_new("migrate")
            before = len(answered)
            while len(answered) < before + 8 and not failed:
                time.sleep(0.05)
            stopped.set()
            for each in asking:
                each.join(60)
            assert not failed, failed
            assert "is ready for this release" in printed


class TestTakeover:
    @pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGTERM])
    @pytest.mark.parametrize("from_old", [True, False])
    def test_a_server_of_one_release_continues_the_turns_of_the_other(
        self, fleet: Fleet, from_old: bool, ends: signal.Signals
    ) -> None:
        with fleet.old() as old, fleet.new(TURNKEEP_DRAIN_SECONDS="0") as new:
            left, taking = (old, new) if from_old else (new, old)
            turn_id = Caller(left).begin("write 1500 words")
            left.process.send_signal(ends)
            left.process.wait(PATIENCE_SECONDS)
            turn = Caller(taking).ended(turn_id)
            assert turn["status"] == "succeeded"
            assert "event: reset" in Caller(taking).events(turn_id)


class TestWithoutAutoMigrate:
    def test_a_server_refuses_an_older_database_until_it_is_migrated(self, fleet: Fleet) -> None:
        with fleet.old() as old:
            Caller(old).ask("Hello?")
            with pytest.raises(AssertionError, match="turnkeep migrate"), fleet.new(TURNKEEP_AUTO_MIGRATE="0"):
                pass
            fleet.run_new("migrate")
            with fleet.new(TURNKEEP_AUTO_MIGRATE="0") as new:
                Caller(new).ask("Hello?")
