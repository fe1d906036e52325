"""Stopping a turn, and what is left of it."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec import structs

from tests.engine.harness import DYING, QUICK, Cluster, Latch, kinds
from turnkeep.compiler import compile
from turnkeep.errors import NotFound
from turnkeep.ids import TurnId
from turnkeep.providers.scripted import Call, Until
from turnkeep.tools.functions import tool
from turnkeep_client.wire.blocks import StepPart, TextPart, ToolResult, ToolUse
from turnkeep_client.wire.events import Failure, ToolCalls


class TestCancelling:
    async def test_keeps_what_was_said(self, cluster: Cluster) -> None:
        latch = Latch()
        engine = await cluster.enter([["Once upon", Until(latch.pass_through), " a time"]])
        claimed = await cluster.ask(engine)
        await latch.reached.wait()
        turn = await engine.cancel(cluster.ann, claimed.turn.id)
        assert turn.status == "cancelled"
        events = await cluster.events(turn.id)
        assert events[-2] == ToolCalls(iteration=0, text="Once upon", calls=()), "for readers who were cut off"
        failure = events[-1]
        assert isinstance(failure, Failure)
        assert failure.code == "cancelled"
        page = await cluster.store.transcript(cluster.ann, turn.conversation_id)
        assert page.data[-1].content == (TextPart(text="Once upon"),)
        assert (page.data[-1].id, page.data[-1].status) == (failure.message_id, "cancelled")

    async def test_closes_every_open_step_and_answers_every_call(self, cluster: Cluster) -> None:
        latch = Latch()

        @tool
        async def slow() -> str:
            await latch.pass_through()
            return "never told"

        @tool
        def quick() -> str:
            return "told"

        engine = await cluster.enter([[Call("slow"), Call("quick")]], tools=[slow, quick])
        claimed = await cluster.ask(engine)

        async def quick_is_done() -> bool:
            return "step succeeded" in kinds(await cluster.events(claimed.turn.id))

        await cluster.until(quick_is_done)
        turn = await engine.cancel(cluster.ann, claimed.turn.id)
        events = await cluster.events(turn.id)
        assert kinds(events)[-2:] == ["step failed", "error"]
        rows = await cluster.rows(turn.id)
        calls = {block.id for row in rows for block in row.blocks if isinstance(block, ToolUse)}
        results = [block.call_id for row in rows for block in row.blocks if isinstance(block, ToolResult)]
        assert sorted(results) == sorted(calls)
        page = await cluster.store.transcript(cluster.ann, turn.conversation_id)
        steps = [part for part in page.data[-1].content if isinstance(part, StepPart)]
        assert [(step.name, step.status) for step in steps] == [("slow", "failed"), ("quick", "succeeded")]

    async def test_leaves_nothing_to_repair_for_the_next_turn(self, cluster: Cluster) -> None:
        latch = Latch()

        @tool
        async def slow() -> str:
            await latch.pass_through()
            return "never told"

        engine = await cluster.enter([[Call("slow")], ["Fine."]], tools=[slow])
        claimed = await cluster.ask(engine)
        await latch.reached.wait()
        turn = await engine.cancel(cluster.ann, claimed.turn.id)
        window = await cluster.store.window(turn.conversation_id)
        repaired = {repair.kind for repair in compile(window.rows, target="anthropic").repairs}
        assert not repaired & {"result_missing", "result_orphaned", "result_moved"}
        again = await cluster.answer(engine, "Go on", conversation_id=turn.conversation_id)
        assert again.status == "succeeded"

    async def test_is_idempotent(self, cluster: Cluster) -> None:
        latch = Latch()
        engine = await cluster.enter([["Once", Until(latch.pass_through)]])
        claimed = await cluster.ask(engine)
        await latch.reached.wait()
        first, second = await asyncio.gather(
            engine.cancel(cluster.ann, claimed.turn.id), engine.cancel(cluster.ann, claimed.turn.id)
        )
        assert first.status == second.status == "cancelled"
        assert (await engine.cancel(cluster.ann, claimed.turn.id)).last_seq == first.last_seq

    async def test_of_a_settled_turn_changes_nothing(self, cluster: Cluster) -> None:
        engine = await cluster.enter([["Done."]])
        turn = await cluster.answer(engine)
        assert (await engine.cancel(cluster.ann, turn.id)).status == "succeeded"

    async def test_of_somebody_elses_turn_is_not_found(self, cluster: Cluster) -> None:
        engine = await cluster.enter([["Done."]])
        turn = await cluster.answer(engine)
        with pytest.raises(NotFound):
            await engine.cancel(cluster.tenant.bob, turn.id)

    async def test_works_from_another_worker(self, cluster: Cluster) -> None:
        latch = Latch()
        engine = await cluster.enter([["Once", Until(latch.pass_through)]])
        other = await cluster.enter([])
        claimed = await cluster.ask(engine)
        await latch.reached.wait()
        turn = await other.cancel(cluster.ann, claimed.turn.id)
        assert turn.status == "cancelled"
        assert turn.attempt == 1

    async def test_of_a_turn_that_nobody_holds_any_more_is_settled_by_the_caller(self, cluster: Cluster) -> None:
        latch = Latch()
        asleep = await cluster.enter([["Once", Until(latch.pass_through)]], start=False)
        claimed = await cluster.ask(asleep)
        await latch.reached.wait()
        await asyncio.sleep(DYING.lease_seconds)
        awake = await cluster.enter([], start=False)
        turn = await awake.cancel(cluster.ann, claimed.turn.id)
        assert (turn.status, turn.attempt) == ("cancelled", 2)


class TestATurnThatTakesTooLong:
    async def test_is_ended_with_its_own_code(self, cluster: Cluster) -> None:
        settings = structs.replace(QUICK, turn_timeout_seconds=1.0)
        engine = await cluster.enter([["Once", Until(asyncio.Event().wait)]], settings=settings)
        turn = await cluster.answer(engine)
        assert turn.error is not None
        assert (turn.status, turn.error.code) == ("failed", "turn_timeout")
        page = await cluster.store.transcript(cluster.ann, turn.conversation_id)
        assert page.data[-1].content == (TextPart(text="Once"),)


class TestReadersWhoLeave:
    async def test_stop_the_turn_after_the_grace(self, cluster: Cluster) -> None:
        settings = structs.replace(QUICK, disconnect_grace_seconds=1.0)
        latch = Latch()
        engine = await cluster.enter([["Once", Until(latch.pass_through)]], settings=settings)
        claimed = await cluster.ask(engine)
        with engine.attach(claimed.turn.id):
            await latch.reached.wait()
            await asyncio.sleep(2.0)
            assert not (await cluster.store.turn(cluster.ann, claimed.turn.id)).is_settled

        async def is_stopped() -> bool:
            return (await cluster.store.turn(cluster.ann, claimed.turn.id)).status == "cancelled"

        await cluster.until(is_stopped)

    async def test_start_the_grace_with_the_last_of_them(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        latch = Latch()
        engine = await cluster.enter([["Once", Until(latch.pass_through), " more"]])
        told: list[tuple[list[TurnId], float]] = []
        unwatch = cluster.store.unwatch

        async def remembered(turn_ids: Sequence[TurnId], *, seconds: float) -> None:
            told.append((list(turn_ids), seconds))
            await unwatch(turn_ids, seconds=seconds)

        async def is_told() -> bool:
            return bool(told)

        monkeypatch.setattr(cluster.store, "unwatch", remembered)
        turn_id = (await cluster.ask(engine)).turn.id
        with engine.attach(turn_id):
            with engine.attach(turn_id):
                await latch.reached.wait()
            await asyncio.sleep(0.5)
            assert told == []
        await cluster.until(is_told)
        assert told == [([turn_id], QUICK.disconnect_grace_seconds)]
        latch.open()
        assert (await engine.wait(turn_id)).status == "succeeded"
        await asyncio.sleep(0.5)
        assert len(told) == 1  # a turn that has ended needs no grace

    async def test_are_not_missed_while_they_read_where_there_is_no_grace(self, cluster: Cluster) -> None:
        settings = structs.replace(QUICK, disconnect_grace_seconds=0.0)
        latch = Latch()
        engine = await cluster.enter([["Once", Until(latch.pass_through), " more"]], settings=settings)
        claimed = await cluster.ask(engine)
        with engine.attach(claimed.turn.id):
            await latch.reached.wait()
            await asyncio.sleep(3.0)
            latch.open()
            assert (await engine.wait(claimed.turn.id)).status == "succeeded"

    async def test_do_not_stop_a_turn_in_the_background(self, cluster: Cluster) -> None:
        settings = structs.replace(QUICK, disconnect_grace_seconds=0.05)
        latch = Latch()
        engine = await cluster.enter([["Once", Until(latch.pass_through), " more"]], settings=settings)
        claimed = await cluster.ask(engine, background=True)
        with engine.attach(claimed.turn.id):
            await latch.reached.wait()
        await asyncio.sleep(1.0)
        latch.open()
        assert (await engine.wait(claimed.turn.id)).status == "succeeded"
