"""A program for a network namespace of its own: workers here, a primary and a standby behind one link each.

The link to the primary begins to drop packets, as a broken switch does: no connection is reset. The standby is
promoted. Prints how long it took until a question was accepted again.

    unshare --net python -m tests.faults.dropped_packets FOLDER

No packet leaves: the namespaces are connected with each other only.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import asyncpg

from tests.faults.engines import ask
from tests.faults.script import question
from tests.faults.sites import Site
from tests.faults.test_silent_networks import ROUNDS, TURNS, an_engine
from tests.servers import PostgresServer
from turnkeep.store.postgres.io.address import DatabaseAddress

FOUND_SECONDS = 15.0
"""How long it may take until writes go on at the standby."""


class Link:
    """A host of the test's own, at the other end of a link."""

    def __init__(self, number: int, process: "subprocess.Popen[bytes]") -> None:
        self.near, self.far = f"198.18.{number}.1", f"198.18.{number}.2"
        self.namespace = process.pid
        run("ip", "link", "add", f"near{number}", "type", "veth", "peer", "name", "far", "netns", str(process.pid))
        run("ip", "address", "add", f"{self.near}/30", "dev", f"near{number}")
        run("ip", "link", "set", f"near{number}", "up")
        self._there("address", "add", f"{self.far}/30", "dev", "far")
        self._there("link", "set", "far", "up")
        self._there("link", "set", "lo", "up")

    def drop_packets(self) -> None:
        """From now on nothing that the host sends arrives here, and it gets no error either."""
        self._there("route", "add", "blackhole", f"{self.near}/32")

    def server(self) -> PostgresServer:
        return PostgresServer(namespace=self.namespace)

    def _there(self, *arguments: str) -> None:
        run("nsenter", f"--target={self.namespace}", "--net", "ip", *arguments)


@contextmanager
def link(number: int) -> Iterator[Link]:
    process = subprocess.Popen(["unshare", "--net", "sleep", "600"])
    try:
        time.sleep(0.5)  # until it is in its namespace
        yield Link(number, process)
    finally:
        process.kill()
        process.wait()


def run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=30)


async def fail_over(folder: Path) -> None:
    async with AsyncExitStack() as stack:
        one, two = stack.enter_context(link(1)), stack.enter_context(link(2))
        primary, standby = stack.enter_context(one.server()), stack.enter_context(two.server())
        primary.start(settings={"listen_addresses": "*"})
        with (primary.data / "pg_hba.conf").open("a") as file:
            file.write("host all all 198.18.0.0/16 trust\n")
        primary.restart()
        site = await Site.open(primary.uri(), folder)
        standby.follow(primary)
        site.url = f"postgresql://postgres@{one.far},{two.far}/postgres"
        engines = [await an_engine(stack, site, name) for name in ("worker-1", "worker-2")]
        waiting = asyncio.create_task(notice_silence(one.far))
        for n in range(TURNS):
            claimed = await ask(engines[n % 2], site.tenant.ann, question(f"q{n}", *ROUNDS))
            site.acknowledged.append(claimed.turn.id)
        one.drop_packets()
        began = time.monotonic()
        standby.promote()
        async with asyncio.timeout(60):
            late = await ask(engines[0], site.tenant.ann, question("late"))
        seconds = time.monotonic() - began
        sys.stdout.write(f"a question was accepted after {seconds:.1f} s\n")
        assert seconds <= FOUND_SECONDS, seconds
        site.acknowledged.append(late.turn.id)
        async with asyncio.timeout(60):
            await asyncio.gather(*(engines[0].wait(turn_id) for turn_id in site.acknowledged))
        site.url = standby.uri()
        examined = await site.examine()
        assert examined.violations == ()
        assert {turn.status for turn in examined.turns} == {"succeeded"}
        assert len(examined.turns) == TURNS + 1
        await waiting
        sys.stdout.write(f"the kernel closed a connection within {time.monotonic() - began:.1f} s\n")


async def notice_silence(host: str) -> None:
    """A statement without any time limit ends because of the options of its socket."""
    connection = await DatabaseAddress(f"postgresql://postgres@{host}/postgres").connect()
    asked = asyncio.create_task(connection.fetch("SELECT pg_sleep(600)"))
    await asyncio.wait({asked}, timeout=60)
    assert asked.done(), "nobody noticed"
    assert isinstance(asked.exception(), OSError | asyncpg.PostgresConnectionError), asked
    connection.terminate()


if __name__ == "__main__":
    asyncio.run(fail_over(Path(sys.argv[1])))
