"""PostgreSQL goes away in the middle of turns and comes back: no turn fails."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Literal

import pytest

from tests.faults.engines import ask, running_engine
from tests.faults.script import question
from tests.faults.sites import Site
from tests.faults.stores import open_store
from tests.servers import PostgresServer
from turnkeep.ids import TurnId

ROUNDS = ("look+pay", "left+right", "look")


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of the test's own, since it is stopped."""
    with PostgresServer() as server:
        server.start()
        yield server


async def restart_under_turns(
    site: Site,
    server: PostgresServer,
    mode: Literal["fast", "immediate"],
    *,
    turns: int,
    times: int,
    lease_seconds: float,
) -> None:
    """Two workers with turns in all stages while the server is restarted; then everything must have settled."""
    async with AsyncExitStack() as stack:
        engines = []
        for name in ("worker-1", "worker-2"):
            store = await open_store(site.url)
            stack.push_async_callback(store.close)
            engines.append(
                await stack.enter_async_context(
                    running_engine(store, site.journal, name=name, pace=0.02, lease_seconds=lease_seconds)
                )
            )
        waiting: list[asyncio.Task[object]] = []

        async def settled(n: int, turn_id: TurnId) -> None:
            await engines[n % 2].wait(turn_id)

        for n in range(turns):
            claimed = await ask(engines[n % 2], site.tenant.ann, question(f"q{n}", *ROUNDS))
            site.acknowledged.append(claimed.turn.id)
            waiting.append(asyncio.create_task(settled(n, claimed.turn.id)))
            if n % (turns // times) == turns // times // 2:
                await asyncio.to_thread(server.restart, mode)
        async with asyncio.timeout(60):
            await asyncio.gather(*waiting)
    examined = await site.examine()
    assert examined.violations == ()
    assert [turn.error for turn in examined.turns if turn.status != "succeeded"] == []
    assert len(examined.turns) == turns


class TestARestartOfTheDatabase:
    @pytest.mark.parametrize("mode", ["fast", "immediate"])
    async def test_fails_no_turn(
        self, server: PostgresServer, tmp_path: Path, mode: Literal["fast", "immediate"]
    ) -> None:
        site = await Site.open(server.uri(), tmp_path)
        await restart_under_turns(site, server, mode, turns=12, times=1, lease_seconds=1)

    @pytest.mark.nightly
    @pytest.mark.parametrize("mode", ["fast", "immediate"])
    async def test_fails_no_turn_however_often_it_happens(
        self, server: PostgresServer, tmp_path: Path, mode: Literal["fast", "immediate"]
    ) -> None:
        site = await Site.open(server.uri(), tmp_path)
        await restart_under_turns(site, server, mode, turns=120, times=10, lease_seconds=1)
