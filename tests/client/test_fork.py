"""A client that was made before a fork works in the child and in the parent, as web servers and task queues need it."""

import json
import subprocess
import sys
import textwrap
import threading
from typing import Any

from tests.api.harness import OPERATOR_KEY
from tests.client.site import Site
from tests.client.test_sync import site as blocking_site
from tests.server_process import SECONDS, clean_environment
from turnkeep.client import Turnkeep

site = blocking_site

PRELUDE = """
import json, os, sys, threading, warnings

warnings.filterwarnings("ignore", category=DeprecationWarning)  # Python warns of every fork beside threads
from turnkeep_client import Turnkeep
from turnkeep_client.errors import InvalidRequest

URL, KEY = sys.argv[1:]


def forked(work):
    '''What the work returns in a forked process.'''
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            said = work()
        except BaseException as exc:
            said = f"{type(exc).__name__}: {exc}"
        os.write(writer, json.dumps(said).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = json.load(pipe)
    os.waitpid(child, 0)
    return said


def threads():
    return [thread.name for thread in threading.enumerate()].count("turnkeep client")
"""


def run(site: Site, program: str) -> Any:
    """What a program prints as JSON. It runs alone, since a fork inherits the threads and sockets of the tests."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PRELUDE + textwrap.dedent(program), site.url, OPERATOR_KEY],
        env=clean_environment(NO_PROXY="127.0.0.1"),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


class TestAClientMadeBeforeAFork:
    def test_starts_no_thread_before_it_is_used(self, site: Site) -> None:
        """As under gunicorn with `preload_app`."""
        program = """
            turnkeep = Turnkeep(URL, KEY)
            before = threads()
            said = [forked(lambda: turnkeep.ask("Hello?").text) for _ in range(3)]
            print(json.dumps([before, threads(), said]))
        """
        assert run(site, program) == [0, 0, ["Hello there."] * 3]

    def test_and_used_before_it_works_in_the_child_and_in_the_parent(self, site: Site) -> None:
        """As in a prefork pool of Celery whose parent has asked something already."""
        program = """
            turnkeep = Turnkeep(URL, KEY)
            said = [turnkeep.ask("Hello?").text]

            def work():
                first = turnkeep.ask("Hello?").text
                turnkeep.close()
                return [first, threads()]

            said.append(forked(work))
            said.append(turnkeep.ask("Hello?").text)
            said.append(forked(lambda: len(list(turnkeep.conversations.list()))))
            turnkeep.close()
            print(json.dumps(said))
        """
        assert run(site, program) == ["Hello there.", ["Hello there.", 0], "Hello there.", 3]

    def test_leaves_the_open_connections_to_the_parent(self, site: Site) -> None:
        program = """
            turnkeep = Turnkeep(URL, KEY, patience_seconds=5, timeout_seconds=5)

            def names():
                return [model.id for model in turnkeep.models.list()]

            said = [names()]  # its connection stays open
            said += [forked(names) for _ in range(3)]
            said.append(names())
            turnkeep.close()
            print(json.dumps(said))
        """
        assert run(site, program) == [["demo", "scripted"]] * 5

    def test_and_forked_while_a_thread_uses_it(self, site: Site) -> None:
        program = """
            turnkeep = Turnkeep(URL, KEY)
            is_over = threading.Event()

            def ask():
                while not is_over.is_set():
                    turnkeep.ask("Hello?")

            asking = [threading.Thread(target=ask) for _ in range(4)]
            for thread in asking:
                thread.start()
            said = [forked(lambda: turnkeep.ask("Hello?").text) for _ in range(8)]
            is_over.set()
            for thread in asking:
                thread.join()
            print(json.dumps(said))
        """
        assert run(site, program) == ["Hello there."] * 8

    def test_has_streams_that_stay_with_the_process_that_opened_them(self, site: Site) -> None:
        program = """
            turnkeep = Turnkeep(URL, KEY)
            with turnkeep.stream("Hello?", background=True) as stream:
                next(stream)

                def work():
                    try:
                        next(stream)
                    except InvalidRequest as exc:
                        refused = exc.detail
                    stream.close()
                    return [refused, turnkeep.turns.follow(stream.turn_id, after=stream.cursor).result().text]

                refused, text = forked(work)
                print(json.dumps(["turns.follow" in refused, text, stream.result().text]))
        """
        assert run(site, program) == [True, "Hello there.", "Hello there."]


class TestManyClients:
    def test_share_one_thread_which_ends_with_the_last_of_them(self, site: Site) -> None:
        def count() -> int:
            return [thread.name for thread in threading.enumerate()].count("turnkeep client")

        before = count()
        clients = [Turnkeep(site.url, OPERATOR_KEY) for _ in range(20)]
        for client in clients:
            assert client.ask("Hello?").text == "Hello there."
        assert count() == 1
        for client in clients:
            client.close()
            client.close()
        assert count() == before
