"""A write that was committed and whose answer never came: it is recorded once, and the turn goes on."""

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest

from tests.faults.engines import LEASE_SECONDS, ask, running_engine
from tests.faults.proxy import Cut, LossyProxy
from tests.faults.script import question
from tests.faults.sites import Site
from tests.faults.stores import open_store
from turnkeep.engine import Engine
from turnkeep.model.turns import Turn

WRITES = frozenset({"write_claim", "write_claims", "record", "settle"})
ROUNDS = ("look+pay", "left+right")


@pytest.fixture
def socket_directory() -> Iterator[Path]:
    """A path short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        yield Path(name)


@pytest.fixture
async def proxy(postgres_site: Site, socket_directory: Path) -> AsyncIterator[LossyProxy]:
    async with LossyProxy(socket_directory, postgres_site.url) as proxy:
        yield proxy


@asynccontextmanager
async def engine_behind(
    proxy: LossyProxy, site: Site, name: str = "worker-1", *, lease_seconds: float = LEASE_SECONDS
) -> AsyncIterator[Engine]:
    store = await open_store(proxy.uri)
    try:
        async with running_engine(store, site.journal, name=name, lease_seconds=lease_seconds) as engine:
            yield engine
    finally:
        await store.close()


async def answer(engine: Engine, site: Site, text: str, *, behind: Turn | None = None) -> Turn:
    conversation_id = None if behind is None else behind.conversation_id
    claimed = await ask(engine, site.tenant.ann, text, conversation_id=conversation_id)
    site.acknowledged.append(claimed.turn.id)
    async with asyncio.timeout(30):
        return await engine.wait(claimed.turn.id)


def only_write(k: int) -> Cut:
    """Lose the answer to the kth write of a turn, and no other."""
    seen = count(1)
    return lambda name, _: name in WRITES and next(seen) == k


class TestAWriteWhoseAnswerIsLost:
    async def test_is_recorded_once_whichever_of_a_turn_it_is(self, postgres_site: Site, proxy: LossyProxy) -> None:
        # With so long a lease nobody can take a turn over: it goes on by itself, or not at all.
        async with engine_behind(proxy, postgres_site, lease_seconds=600) as engine:
            await answer(engine, postgres_site, question("whole", *ROUNDS))
            writes = sum(proxy.calls[name] for name in WRITES)
            assert writes >= 10
            for k in range(1, writes + 1):
                proxy.begin(only_write(k))
                turn = await answer(engine, postgres_site, question(f"k{k}", *ROUNDS))
                assert proxy.cuts == 1, f"write {k}"
                assert (turn.status, turn.attempt) == ("succeeded", 1), f"write {k}"
        assert (await postgres_site.examine()).violations == ()

    @pytest.mark.parametrize("name", ["commit of adopted", "commit of start_waiting", "renew", "hand_over"])
    async def test_is_no_harm_when_it_was_about_a_lease(
        self, postgres_site: Site, proxy: LossyProxy, name: str
    ) -> None:
        async with engine_behind(proxy, postgres_site) as leaving:
            first = await ask(leaving, postgres_site.tenant.ann, question("first", *["right"] * 4))
            conversation_id = first.turn.conversation_id
            second = await ask(
                leaving, postgres_site.tenant.ann, question("second", "pay"), conversation_id=conversation_id
            )
            proxy.begin(lambda called, _: called == name and not proxy.cuts)
            if name in {"renew", "commit of start_waiting"}:
                await leaving.wait(first.turn.id)
        async with engine_behind(proxy, postgres_site, "worker-2") as engine, asyncio.timeout(30):
            for claimed in (first, second):
                turn = await engine.wait(claimed.turn.id)
                assert turn.status == "succeeded"
        assert proxy.cuts == 1
        postgres_site.acknowledged += [first.turn.id, second.turn.id]
        assert (await postgres_site.examine()).violations == ()

    @pytest.mark.nightly
    @pytest.mark.parametrize("seed", range(5))
    async def test_is_recorded_once_when_every_fifth_answer_is_lost(
        self, postgres_site: Site, proxy: LossyProxy, seed: int
    ) -> None:
        chance = random.Random(seed)
        # With a short lease, two workers on a busy machine would take the turns from each other three times.
        async with (
            engine_behind(proxy, postgres_site, "worker-1", lease_seconds=5) as one,
            engine_behind(proxy, postgres_site, "worker-2", lease_seconds=5) as two,
        ):
            proxy.begin(lambda name, _: chance.random() < 0.2)
            asked = [
                answer(engine, postgres_site, question(f"{name}-{n}", *ROUNDS))
                for n in range(20)
                for name, engine in (("one", one), ("two", two))
            ]
            turns = await asyncio.gather(*asked)
            proxy.begin(lambda name, _: False)
        assert [turn.error for turn in turns if turn.status != "succeeded"] == []
        assert (await postgres_site.examine()).violations == ()
