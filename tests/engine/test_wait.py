"""Waiting for a turn: how often the store is asked, and what wakes those who wait."""

import asyncio
from collections.abc import Sequence

import pytest

from tests.engine.harness import Cluster, Latch
from turnkeep.engine import Draining
from turnkeep.ids import TurnId
from turnkeep.model.turns import Turn
from turnkeep.providers.scripted import Script, Until
from turnkeep.streaming.follow import follow
from turnkeep.streaming.frames import DeltaFrame, EventFrame
from turnkeep_client.wire.events import Recorded


class TestWaiting:
    @pytest.mark.parametrize("runs_here, most_looks", [(True, 0), (False, 9)])
    async def test_asks_the_store_when_something_happened_and_not_without_end(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, runs_here: bool, most_looks: int
    ) -> None:
        looks = 0
        claimed_turn = cluster.store.claimed_turn

        async def counted(turn_id: TurnId) -> Turn:
            nonlocal looks
            looks += 1
            return await claimed_turn(turn_id)

        monkeypatch.setattr(cluster.store, "claimed_turn", counted)
        latch = Latch()
        hub = cluster.new_hub()
        script: Script = [*("word " for _ in range(200)), Until(latch.pass_through), "the end."]
        holder = await cluster.enter([script], hub=hub)
        claimed = await cluster.ask(holder)
        engine = holder if runs_here else await cluster.enter([], hub=hub)
        waiting = asyncio.create_task(engine.wait(claimed.turn.id))
        await latch.reached.wait()
        await asyncio.sleep(0.5)
        latch.open()
        turn = await waiting
        assert turn.status == "succeeded"
        assert looks <= most_looks, "words are no reason to look, and time passes without asking"

    async def test_for_a_turn_of_another_worker_ends_with_the_turn(self, cluster: Cluster) -> None:
        latch = Latch()
        busy, idle = await cluster.enter([[Until(latch.pass_through), "Done."]]), await cluster.enter([])
        claimed = await cluster.ask(busy)
        waiting = asyncio.create_task(idle.wait(claimed.turn.id))
        await latch.reached.wait()
        await asyncio.sleep(0.1)
        latch.open()
        assert (await asyncio.wait_for(waiting, 60)).status == "succeeded"

    async def test_for_a_turn_of_another_worker_ends_when_this_one_drains(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def nothing(turn_ids: Sequence[TurnId]) -> dict[TurnId, int]:
            return {}

        monkeypatch.setattr(cluster.store, "last_seqs", nothing)  # so a poll does not wake it
        latch = Latch()
        busy, leaving = await cluster.enter([[Until(latch.pass_through), "Done."]]), await cluster.enter([])
        claimed = await cluster.ask(busy)
        waiting = asyncio.create_task(leaving.wait(claimed.turn.id))
        await latch.reached.wait()
        await asyncio.sleep(0.1)
        await leaving.drain()
        with pytest.raises(Draining):
            await asyncio.wait_for(waiting, 60)
        latch.open()
        assert (await busy.wait(claimed.turn.id)).status == "succeeded"


class TestFollowing:
    async def test_asks_the_store_nothing_where_the_turn_began(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def events(*args: object, **fields: object) -> list[Recorded]:
            raise AssertionError("the hub has all of it")

        hub = cluster.new_hub()
        engine = await cluster.enter([["Hello."]], hub=hub)
        monkeypatch.setattr(cluster.store, "events", events)
        claimed = await cluster.ask(engine)
        batches = [batch async for batch in follow(cluster.store, hub, claimed.turn.id)]
        assert [type(frame) for batch in batches for frame in batch] == [EventFrame, DeltaFrame, EventFrame]
        await engine.wait(claimed.turn.id)
        assert hub.turn_count == 0
