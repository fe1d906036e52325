"""Turns found half-done, and workers that come and go."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from itertools import count
from typing import Any

import pytest
from msgspec import structs

from tests.engine.harness import DYING, QUICK, Cluster, FailOnDefect, Latch, kinds
from tests.redis_server import RedisServer
from turnkeep.engine import Draining, Engine, Observer, Options
from turnkeep.engine.held_turn import open_calls
from turnkeep.engine.worker import ADOPT_AT_ONCE
from turnkeep.errors import Defect, TooLarge, Unavailable
from turnkeep.ids import TurnId
from turnkeep.model.timeline import timeline_of
from turnkeep.model.turns import TurnError
from turnkeep.providers.ports import ModelRequest
from turnkeep.providers.scripted import Call, Script, ScriptedProvider, Until
from turnkeep.store.commands import DueWork, Settlement
from turnkeep.streaming import redis_hub
from turnkeep.streaming.follow import follow
from turnkeep.streaming.frames import DeltaFrame, EventFrame, Frame
from turnkeep.streaming.redis_hub import RedisHub
from turnkeep.tools.functions import tool
from turnkeep_client.wire.blocks import Text, ToolResult, Usage
from turnkeep_client.wire.events import Recorded, Reset, TurnBegan


def call_then_answer(request: ModelRequest) -> Script:
    """A model without memory of its own: looks at the messages, as a real one does on another worker."""
    if any(message["role"] == "tool" for message in request.messages):
        return ["Done."]
    return [Call("act")]


class TestAWorkerThatDies:
    async def test_loses_its_turn_to_another_which_starts_the_iteration_again(self, cluster: Cluster) -> None:
        latch = Latch()
        dead = await cluster.enter([["Half an ans", Until(latch.pass_through)]], start=False)
        claimed = await cluster.ask(dead)
        await latch.reached.wait()
        heir = await cluster.enter([["A whole answer."]])
        turn = await heir.wait(claimed.turn.id)
        assert (turn.status, turn.attempt) == ("succeeded", 2)
        events = await cluster.events(turn.id)
        assert kinds(events) == ["turn", "reset", "result"]
        taken_over = events[1]
        assert isinstance(taken_over, Reset)
        assert (taken_over.attempt, taken_over.reason) == (2, "lease_expired")
        trace = await cluster.store.trace(structs.replace(cluster.ann, user_id=None, role="service"), turn.id)
        shown = timeline_of(
            trace.turn,
            trace.rows,
            trace.events,
            trace.logs,
            access="full",
            cost=lambda _: None,
            now=turn.settled_at or 0,
        )
        assert [(span.kind, span.name, span.note) for span in shown.spans] == [
            ("takeover", "lease_expired", "2"),
            ("model", "scripted", None),
        ]
        assert shown.spans[0].ended_at == taken_over.at
        assert (taken_over.at or 0) <= shown.spans[1].started_at + 1

    async def test_is_succeeded_also_where_a_lease_is_as_short_as_the_pause_between_sweeps(
        self, cluster: Cluster
    ) -> None:
        latch = Latch()
        settings = structs.replace(QUICK, lease_seconds=1.0, sweep_seconds=1.0)
        dead = await cluster.enter([["Half", Until(latch.pass_through)]], start=False, settings=settings)
        heir = await cluster.enter([["A whole answer."]], settings=settings)
        claimed = await cluster.ask(dead)
        await latch.reached.wait()
        async with asyncio.timeout(30):
            assert (await heir.wait(claimed.turn.id)).status == "succeeded"

    async def test_that_wakes_up_again_writes_nothing(self, cluster: Cluster) -> None:
        latch = Latch()
        sleeper = await cluster.enter([["Half", Until(latch.pass_through), " and half."]], start=False)
        claimed = await cluster.ask(sleeper)
        await latch.reached.wait()
        heir = await cluster.enter([["A whole answer."]])
        turn = await heir.wait(claimed.turn.id)
        before = (await cluster.events(turn.id), await cluster.rows(turn.id))
        latch.open()
        await asyncio.sleep(0.3)
        assert (await cluster.events(turn.id), await cluster.rows(turn.id)) == before

    async def test_during_a_tool_that_may_not_be_repeated_leaves_an_honest_result(self, cluster: Cluster) -> None:
        calls = []
        latch = Latch()

        @tool
        async def act() -> str:
            calls.append(1)
            await latch.pass_through()
            return "acted"

        dead = await cluster.enter(call_then_answer, tools=[act], start=False)
        claimed = await cluster.ask(dead)
        await latch.reached.wait()
        heir = await cluster.enter(call_then_answer, tools=[act])
        turn = await heir.wait(claimed.turn.id)
        assert turn.status == "succeeded"
        assert calls == [1]
        (result,) = [
            block for row in await cluster.rows(turn.id) for block in row.blocks if isinstance(block, ToolResult)
        ]
        assert result.is_error
        assert result.content.startswith("outcome_unknown")

    async def test_during_an_idempotent_tool_has_it_run_again(self, cluster: Cluster) -> None:
        calls = []
        latch = Latch()

        @tool(idempotent=True)
        async def act() -> str:
            calls.append(1)
            if len(calls) == 1:
                await latch.pass_through()
            return "acted"

        dead = await cluster.enter(call_then_answer, tools=[act], start=False)
        claimed = await cluster.ask(dead)
        await latch.reached.wait()
        heir = await cluster.enter(call_then_answer, tools=[act])
        turn = await heir.wait(claimed.turn.id)
        assert turn.status == "succeeded"
        assert calls == [1, 1]
        results = [
            block for row in await cluster.rows(turn.id) for block in row.blocks if isinstance(block, ToolResult)
        ]
        assert [result.content for result in results] == ["acted"]

    async def test_three_times_without_progress_fails_the_turn(self, cluster: Cluster) -> None:
        latch = Latch()
        scripts: list[Script] = [["Hm", Until(latch.pass_through)]]
        settings = structs.replace(QUICK, lease_seconds=0.2)
        dead = await cluster.enter(scripts, settings=settings, start=False)
        claimed = await cluster.ask(dead)
        for _ in range(2):
            await asyncio.sleep(0.3)
            adopted = await cluster.store.adopt("also dead", lease_seconds=0.2, turn_id=claimed.turn.id)
            assert len(adopted) == 1
        heir = await cluster.enter([["Never asked."]], settings=settings)
        turn = await heir.wait(claimed.turn.id)
        assert turn.error is not None
        assert (turn.status, turn.error.code) == ("failed", "worker_lost")


class TestADatabaseThatWasAway:
    async def test_gives_holders_a_lease_to_renew_before_anybody_adopts(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        latch = Latch()
        settings = structs.replace(QUICK, lease_seconds=2.0)
        script: Script = ["Half", Until(latch.pass_through), " and half."]
        holder = await cluster.enter([script], settings=settings, start=False)
        claimed = await cluster.ask(holder)
        await latch.reached.wait()
        away = True
        real = cluster.store.due_work

        async def due_work() -> object:
            if away:
                raise Unavailable("away")
            return await real()

        monkeypatch.setattr(cluster.store, "due_work", due_work)
        other = await cluster.enter([["Never asked."]], settings=settings)
        await asyncio.sleep(settings.lease_seconds + 0.3)
        away = False
        await asyncio.sleep(0.5)
        assert (await cluster.store.turn(cluster.ann, claimed.turn.id)).attempt == 1
        latch.open()
        turn = await other.wait(claimed.turn.id)
        assert (turn.status, turn.attempt) == ("succeeded", 1)

    async def test_has_what_was_dropped_meanwhile_handed_over_as_soon_as_it_is_back(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # With so long a lease the turn goes on only if it is handed over.
        settings = structs.replace(QUICK, lease_seconds=600.0)
        conversation_id = (await cluster.answer(await cluster.enter([["First."]], start=False))).conversation_id
        engine = await cluster.enter([["Hello."]], settings=settings)
        monkeypatch.setattr(cluster.store, "window", away_once(cluster.store.window))
        turn = await cluster.answer(engine, conversation_id=conversation_id)
        assert (turn.status, turn.attempt, turn.failures) == ("succeeded", 2, 0)
        assert kinds(await cluster.events(turn.id)) == ["turn", "reset", "result"]

    async def test_lets_living_workers_renew_first_but_not_what_was_handed_over(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        patient = structs.replace(DYING, provider_timeout_seconds=60.0)
        dead = await cluster.enter([["Half", Until(Latch().pass_through)]], settings=patient, start=False)
        left = await cluster.enter([["Half", Until(Latch().pass_through)]], settings=patient, start=False)
        silent, handed_over = await cluster.ask(dead), await cluster.ask(left)
        real, away = cluster.store.due_work, True

        async def due_work(**options: Any) -> DueWork:
            if away:
                raise Unavailable("away")
            return await real(**options)

        monkeypatch.setattr(cluster.store, "due_work", due_work)
        heir = await cluster.enter([["Whole."], ["Whole."]])
        await asyncio.sleep(QUICK.lease_seconds / 2 + 0.5)  # by then the lease of the dead one has ended too
        await left.drain(seconds=0)
        away = False
        assert (await heir.wait(handed_over.turn.id)).status == "succeeded"
        assert (await cluster.store.turn(cluster.ann, silent.turn.id)).attempt == 1
        assert (await heir.wait(silent.turn.id)).attempt == 2

    async def test_has_an_adoption_taken_back_whose_answer_was_lost(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings = structs.replace(QUICK, lease_seconds=600.0)
        leaving = await cluster.enter([["Never", Until(Latch().pass_through)]], settings=settings, start=False)
        claimed = await cluster.ask(leaving)
        await leaving.drain(seconds=0)
        monkeypatch.setattr(cluster.store, "adopt", away_once(cluster.store.adopt, after=True))
        heir = await cluster.enter([["Hello."]], settings=settings)
        turn = await heir.wait(claimed.turn.id)
        assert (turn.status, turn.attempt, turn.failures) == ("succeeded", 3, 0)


class TestAWorkerThatAdoptsItsOwnTurn:
    """Its lease had ended, because the worker or the database stood still for a while. The last attempt runs."""

    async def test_gives_up_the_attempt_before_and_finishes_the_last_one(self, cluster: Cluster) -> None:
        settings = structs.replace(QUICK, lease_seconds=600.0, provider_timeout_seconds=60.0)
        first, second = Latch(), Latch()
        engine = await cluster.enter(
            [["Half", Until(first.pass_through), " lost."], ["A whole", Until(second.pass_through), " answer."]],
            settings=settings,
        )
        claimed = await cluster.ask(engine)
        assert claimed.held is not None
        await first.reached.wait()
        await cluster.store.hand_over([claimed.held])
        async with asyncio.timeout(60):
            await second.reached.wait()
        first.open()
        await asyncio.sleep(0.3)
        assert [lease.held.attempt for lease in engine._leases._held.values()] == [2]
        second.open()
        turn = await engine.wait(claimed.turn.id)
        assert (turn.status, turn.attempt) == ("succeeded", 2)
        assert kinds(await cluster.events(turn.id)) == ["turn", "reset", "result"]

    async def test_runs_the_last_attempt_where_the_answer_to_the_claim_comes_after_it(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        late, speaking = Latch(), Latch()
        model = ScriptedProvider([["A whole", Until(speaking.pass_through), " answer."], ["Asked in vain."]])
        engine = await cluster.enter(model, settings=structs.replace(QUICK, lease_seconds=1.0))
        with monkeypatch.context() as patched:
            patched.setattr(cluster.store, "claim", held_back(cluster.store.claim, late))
            asking = asyncio.create_task(cluster.ask(engine))
            await late.reached.wait()
        async with asyncio.timeout(60):
            await speaking.reached.wait()  # the lease of the claim has ended, and this worker has adopted the turn
        late.open()
        claimed = await asking
        speaking.open()
        turn = await engine.wait(claimed.turn.id)
        assert (turn.status, turn.attempt, len(model.requests)) == ("succeeded", 2, 1)

    async def test_passes_over_an_adoption_that_is_older_than_the_one_it_runs(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        late, speaking = Latch(), Latch()
        dead = await cluster.enter([["Half", Until(Latch().pass_through)]], start=False)
        claimed = await cluster.ask(dead)
        assert claimed.held is not None
        await cluster.store.hand_over([claimed.held])
        settings = structs.replace(QUICK, sweep_seconds=600.0, lease_seconds=2_400.0)
        real = cluster.store.adopt
        monkeypatch.setattr(cluster.store, "adopt", held_back(real, late))
        model = ScriptedProvider([["A whole", Until(speaking.pass_through), " answer."], ["Asked in vain."]])
        engine = await cluster.enter(model, settings=settings)
        await late.reached.wait()  # the first sweep has adopted the turn; its answer is under way
        monkeypatch.setattr(cluster.store, "adopt", real)
        held = structs.replace(claimed.held, attempt=2)
        await cluster.store.hand_over([held])
        assert await engine._worker.adopt(limit=1, turn_id=claimed.turn.id) == 1
        await speaking.reached.wait()
        late.open()
        await asyncio.sleep(0.3)
        speaking.open()
        turn = await engine.wait(claimed.turn.id)
        assert (turn.status, turn.attempt, len(model.requests)) == ("succeeded", 3, 1)


def away_once(real: Callable[..., Awaitable[Any]], *, after: bool = False) -> Callable[..., Awaitable[Any]]:
    """The verb, whose first call fails: before it does anything, or with its answer lost."""
    calls = count(1)

    async def verb(*args: Any, **fields: Any) -> Any:
        if next(calls) > 1:
            return await real(*args, **fields)
        if after:
            async with asyncio.timeout(60):
                # PostgreSQL passes over a turn that is being written just now.
                while not await real(*args, **fields):  # noqa: ASYNC110 - there is nothing to wait for
                    await asyncio.sleep(0.01)
        raise Unavailable("away")

    return verb


class TestTurnsOfAWorkerThatLeaves:
    async def test_are_all_adopted_at_once_however_many_they_are(self, cluster: Cluster) -> None:
        # With so long a pause between sweeps they go on only if the first one does not leave the rest to the next.
        settings = structs.replace(QUICK, sweep_seconds=600.0, lease_seconds=2_400.0, provider_timeout_seconds=60.0)
        leaving = await cluster.enter(lambda _: ["Half", Until(Latch().pass_through)], settings=settings, start=False)
        claims = [await cluster.ask(leaving) for _ in range(2 * ADOPT_AT_ONCE + 1)]
        await leaving.drain(seconds=0)
        heir = await cluster.enter(lambda _: ["Whole."], settings=settings)
        async with asyncio.timeout(60):
            turns = await asyncio.gather(*(heir.wait(claimed.turn.id) for claimed in claims))
        assert {(turn.status, turn.attempt) for turn in turns} == {("succeeded", 2)}


class TestATurnThatCannotBeRead:
    async def broken(self, *args: object, **fields: object) -> None:
        raise Defect("a row that nobody can decode")

    async def test_ends_instead_of_failing_on_every_worker_for_ever(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        latch = Latch()
        engine = await cluster.enter([["Half", Until(latch.pass_through)], ["Never asked."]])
        first = await cluster.ask(engine)
        await latch.reached.wait()
        waiting = await cluster.ask(engine, conversation_id=first.turn.conversation_id, if_busy="enqueue")
        monkeypatch.setattr(cluster.store, "turn_rows", self.broken)
        latch.open()
        turn = await engine.wait(waiting.turn.id)
        assert turn.error is not None
        assert (turn.status, turn.error.code) == ("failed", "internal")
        assert kinds(await cluster.events(turn.id)) == ["turn", "turn", "error"]

    async def test_ends_also_when_it_is_the_past_that_cannot_be_read(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        conversation_id = (await cluster.answer(await cluster.enter([["First."]], start=False))).conversation_id
        engine = await cluster.enter([["Never asked."]])
        monkeypatch.setattr(cluster.store, "window", self.broken)
        turn = await cluster.answer(engine, conversation_id=conversation_id)
        assert turn.error is not None
        assert (turn.status, turn.error.code) == ("failed", "internal")
        assert kinds(await cluster.events(turn.id)) == ["turn", "error"]


class TestTheFirstTurnOfAConversation:
    async def test_reads_no_history(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        async def unwanted(*args: object, **fields: object) -> None:
            raise Defect("there is nothing to read")

        engine = await cluster.enter([["Hello."]])
        for verb in ("window", "turn_rows"):
            monkeypatch.setattr(cluster.store, verb, unwanted)
        turn = await cluster.answer(engine)
        assert turn.status == "succeeded"


class TestATurnThatCannotBeSettled:
    @pytest.mark.parametrize(
        "usage",
        [Usage(input_tokens=5.5), Usage(input_tokens=float("nan")), Usage(input_tokens=2**70)],  # type: ignore[arg-type]
        ids=repr,
    )
    async def test_for_what_its_provider_counted_fails_once(self, cluster: Cluster, usage: Usage) -> None:
        engine = await cluster.enter(ScriptedProvider([["Hello."]], usage=usage), observer=Observer())
        turn = await cluster.answer(engine)
        assert turn.error is not None
        assert (turn.status, turn.error.code, turn.attempt) == ("failed", "internal", 1)
        assert turn.usage == Usage()
        assert kinds(await cluster.events(turn.id)) == ["turn", "error"]
        follower = await cluster.enter([["And on."]])
        assert (await cluster.answer(follower, conversation_id=turn.conversation_id)).status == "succeeded"

    async def test_leaves_no_step_and_no_call_open(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        @tool
        async def never() -> str:
            await asyncio.Event().wait()
            return "never"

        monkeypatch.setattr(cluster.store, "settle", refusing_a_message(cluster.store.settle))
        engine = await cluster.enter([["Let me look.", Call("never")]], tools=[never], observer=Observer())
        claimed = await cluster.ask(engine)
        await cluster.until(lambda: has_event(cluster, claimed.turn.id, "step running"))
        await engine.cancel(cluster.ann, claimed.turn.id)
        turn = await engine.wait(claimed.turn.id)
        assert turn.error is not None
        assert (turn.status, turn.error.code, turn.attempt) == ("failed", "internal", 1)
        assert kinds(await cluster.events(turn.id)) == ["turn", "tool_calls", "step running", "step failed", "error"]
        assert not open_calls(await cluster.rows(turn.id), await cluster.events(turn.id))

    async def test_because_the_database_is_away_is_handed_over_as_ever(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings = structs.replace(QUICK, lease_seconds=600.0)
        engine = await cluster.enter([["Hello."], ["Hello again."]], settings=settings)
        monkeypatch.setattr(cluster.store, "settle", away_once(cluster.store.settle))
        turn = await cluster.answer(engine)
        assert (turn.status, turn.attempt, turn.failures) == ("succeeded", 2, 0)

    async def test_and_then_the_database_goes_away_is_handed_over_too(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings = structs.replace(QUICK, lease_seconds=600.0)
        engine = await cluster.enter([["Hello."], ["Hello again."]], settings=settings)
        monkeypatch.setattr(cluster.store, "settle", broken_then_away(cluster.store.settle))
        turn = await cluster.answer(engine)
        assert (turn.status, turn.attempt, turn.failures) == ("succeeded", 2, 0)


def refusing_a_message(real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """A store that takes no ending with words in it."""

    async def settle(held: Any, *, after: int, settlement: Settlement) -> Any:
        if settlement.final is not None:
            raise TooLarge("The settlement takes too many bytes.")
        return await real(held, after=after, settlement=settlement)

    return settle


def broken_then_away(real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Two endings are refused, and the third meets no database."""
    faults: list[Exception] = [Defect("refused"), Defect("refused"), Unavailable("away")]

    async def settle(*args: Any, **fields: Any) -> Any:
        if faults:
            raise faults.pop(0)
        return await real(*args, **fields)

    return settle


async def has_event(cluster: Cluster, turn_id: TurnId, kind: str) -> bool:
    return kind in kinds(await cluster.events(turn_id))


class HubReader:
    """A reader on a worker that does not run the turn. There is no poll beside it: all it gets comes through Redis."""

    def __init__(self, frames: AsyncIterator[Frame]) -> None:
        self._frames = frames

    async def read_until(self, words: str) -> None:
        """Read until these were said since the last event."""
        said = ""
        async with asyncio.timeout(60):
            async for frame in self._frames:
                said = said + frame.text if isinstance(frame, DeltaFrame) else ""
                if said == words:
                    return
        raise AssertionError("The stream has ended.")

    async def rest(self) -> list[Recorded]:
        async with asyncio.timeout(60):
            return [frame.recorded async for frame in self._frames if isinstance(frame, EventFrame)]


async def frames_of(cluster: Cluster, hub: RedisHub, turn_id: TurnId) -> AsyncIterator[Frame]:
    async with aclosing(follow(cluster.store, hub, turn_id)) as batches:  # type: ignore[type-var]
        async for batch in batches:
            for frame in batch:
                yield frame


class TestAWorkerThatTakesOver:
    async def test_right_after_its_start_gives_its_words_to_the_readers_of_other_workers(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It asks what they listen to. Else they would get no word before they ask again, and that is never here."""
        monkeypatch.setattr(redis_hub, "ASK_SECONDS", 3600.0)
        monkeypatch.setattr(redis_hub, "REMEMBER_SECONDS", 3600.0)
        settings = structs.replace(QUICK, provider_timeout_seconds=120.0)
        first, second = Latch(), Latch()
        async with RedisServer() as server, AsyncExitStack() as hubs:

            async def a_hub() -> RedisHub:
                hub = await RedisHub.open(server.url)
                hubs.push_async_callback(hub.close)
                return hub

            leaving = await cluster.enter([["Once ", Until(first.pass_through)]], hub=await a_hub(), settings=settings)
            claimed = await cluster.ask(leaving)
            reader = HubReader(frames_of(cluster, await a_hub(), claimed.turn.id))
            await reader.read_until("Once ")
            await leaving.drain(seconds=0)
            again: Script = ["Once more ", Until(second.pass_through), "and whole."]
            await cluster.enter([again], hub=await a_hub(), settings=settings)
            await reader.read_until("Once more ")
            second.open()
            assert kinds(await reader.rest()) == ["result"]

    async def test_without_the_provider_of_the_model_fails_the_turn_and_says_why(self, cluster: Cluster) -> None:
        latch, defects = Latch(), FailOnDefect()
        dead = await cluster.enter([["Half an ans", Until(latch.pass_through)]], start=False)
        claimed = await cluster.ask(dead)
        await latch.reached.wait()
        other = ScriptedProvider([["Never."]])
        other.name = "other"
        heir = await cluster.enter(other, observer=defects)
        turn = await heir.wait(claimed.turn.id)
        assert (turn.status, turn.attempt) == ("failed", 2)
        assert turn.error == TurnError(
            code="provider_error", message="No provider serves the model 'scripted'. This server has: other."
        )
        assert kinds(await cluster.events(turn.id)) == ["turn", "reset", "error"]
        assert defects.defects == []


class TestDraining:
    async def test_hands_running_turns_over_without_a_failure(self, cluster: Cluster) -> None:
        latch = Latch()
        leaving = await cluster.enter([["Half", Until(latch.pass_through)]])
        claimed = await cluster.ask(leaving)
        await latch.reached.wait()
        await leaving.drain(seconds=0)
        heir = await cluster.enter([["Whole."]])
        turn = await heir.wait(claimed.turn.id)
        assert (turn.status, turn.attempt, turn.failures) == ("succeeded", 2, 0)
        event = (await cluster.events(turn.id))[1]
        assert isinstance(event, Reset)
        assert (event.attempt, event.reason) == (2, "handover")

    async def test_lets_a_model_call_end_and_the_turn_with_it(self, cluster: Cluster) -> None:
        latch = Latch()
        leaving = await cluster.enter([["Half ", Until(latch.pass_through), "and half."]])
        claimed = await cluster.ask(leaving)
        await latch.reached.wait()
        waiting = asyncio.create_task(leaving.wait(claimed.turn.id))
        draining = asyncio.create_task(leaving.drain(seconds=60))
        await asyncio.sleep(0)
        with pytest.raises(Draining):
            await cluster.ask(leaving)
        latch.open()
        await draining
        turn = await waiting
        assert (turn.status, turn.attempt) == ("succeeded", 1)
        assert kinds(await cluster.events(turn.id)) == ["turn", "result"]

    async def test_lets_a_tool_call_end_and_begins_no_other(self, cluster: Cluster) -> None:
        latch, paid = Latch(), []

        @tool
        async def pay(amount: int) -> str:
            """Pay."""
            paid.append(amount)
            await latch.pass_through()
            return "Paid."

        leaving = await cluster.enter([[Call("pay", {"amount": 1})]], tools=[pay])
        claimed = await cluster.ask(leaving)
        await latch.reached.wait()
        draining = asyncio.create_task(leaving.drain(seconds=60))
        await asyncio.sleep(0)
        latch.open()
        await draining
        assert kinds(await cluster.events(claimed.turn.id)) == ["turn", "tool_calls", "step running", "step succeeded"]
        heir = await cluster.enter([["All paid."]], tools=[pay])
        turn = await heir.wait(claimed.turn.id)
        assert (turn.status, turn.attempt, turn.failures, paid) == ("succeeded", 2, 0, [1])
        assert "outcome_unknown" not in str(await cluster.rows(turn.id))

    async def test_hands_a_turn_over_before_the_tools_that_its_model_asks_for(self, cluster: Cluster) -> None:
        latch, paid = Latch(), []

        @tool
        async def pay(amount: int) -> str:
            """Pay."""
            paid.append(amount)
            return "Paid."

        leaving = await cluster.enter([[Until(latch.pass_through), Call("pay", {"amount": 1})]], tools=[pay])
        claimed = await cluster.ask(leaving)
        await latch.reached.wait()
        draining = asyncio.create_task(leaving.drain(seconds=60))
        await asyncio.sleep(0)
        latch.open()
        await draining
        assert (kinds(await cluster.events(claimed.turn.id)), paid) == (["turn", "tool_calls"], [])
        heir = await cluster.enter([["All paid."]], tools=[pay])
        turn = await heir.wait(claimed.turn.id)
        assert (turn.status, turn.attempt, paid) == ("succeeded", 2, [1])

    async def test_hands_over_no_call_whose_arguments_could_not_be_read(self, cluster: Cluster) -> None:
        """It is stored as a call without arguments. The next worker must not take it for one."""
        latch, erased = Latch(), []

        @tool
        async def erase(folder: str = "/") -> str:
            """Erase a folder."""
            erased.append(folder)
            return "Erased."

        broken = Call("erase", malformed="Expecting value at 7")
        leaving = await cluster.enter(
            [[Until(latch.pass_through), broken, Call("erase", {"folder": "a"})]], tools=[erase]
        )
        claimed = await cluster.ask(leaving)
        await latch.reached.wait()
        draining = asyncio.create_task(leaving.drain(seconds=60))
        await asyncio.sleep(0)
        latch.open()
        await draining
        assert (kinds(await cluster.events(claimed.turn.id)), erased) == (["turn", "tool_calls", "step failed"], [])
        heir = await cluster.enter([["Done."]], tools=[erase])
        turn = await heir.wait(claimed.turn.id)
        assert (turn.status, erased) == ("succeeded", ["a"])
        assert "The arguments were not valid: Expecting value at 7" in str(await cluster.rows(turn.id))

    async def test_refuses_questions_and_tells_those_who_wait(self, cluster: Cluster) -> None:
        latch = Latch()
        leaving = await cluster.enter([["Half", Until(latch.pass_through)]])
        claimed = await cluster.ask(leaving)
        await latch.reached.wait()
        waiting = asyncio.create_task(leaving.wait(claimed.turn.id))
        await asyncio.sleep(0)
        await leaving.drain(seconds=0)
        with pytest.raises(Draining):
            await waiting
        with pytest.raises(Draining):
            await cluster.ask(leaving)

    async def test_waits_for_a_renewal_that_is_under_way_which_would_take_the_turn_again(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # With so long a lease the turn goes on only if it is handed over.
        settings = structs.replace(QUICK, lease_seconds=600.0)
        speaking, renewing = Latch(), Latch()
        real = cluster.store.renew

        async def renew(*args: Any, **fields: Any) -> Any:
            await renewing.pass_through()
            return await real(*args, **fields)

        leaving = await cluster.enter([["Half", Until(speaking.pass_through)]], settings=settings)
        claimed = await cluster.ask(leaving)
        await speaking.reached.wait()
        with monkeypatch.context() as patched:
            patched.setattr(cluster.store, "renew", renew)
            await renewing.reached.wait()
            assert await is_drained_once(renewing, leaving, seconds=0)
        await self.is_continued(cluster, claimed.turn.id, attempt=2)

    async def test_waits_for_a_claim_that_is_under_way_and_hands_its_turn_over(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        latch = Latch()
        leaving = await cluster.enter([["Never."]], start=False)
        with monkeypatch.context() as patched:
            patched.setattr(cluster.store, "claim", held_back(cluster.store.claim, latch))
            asking = asyncio.create_task(cluster.ask(leaving))
            await latch.reached.wait()
        assert await is_drained_once(latch, leaving)
        await self.is_continued(cluster, (await asking).turn.id, attempt=2)

    async def test_waits_for_an_adoption_that_is_under_way_and_hands_its_turns_over(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, latch = Latch(), Latch()
        before = await cluster.enter([["Half", Until(first.pass_through)]])
        claimed = await cluster.ask(before)
        await first.reached.wait()
        with monkeypatch.context() as patched:
            patched.setattr(cluster.store, "adopt", held_back(cluster.store.adopt, latch))
            await before.drain(seconds=0)
            leaving = await cluster.enter([["Never."]])
            await latch.reached.wait()
        assert await is_drained_once(latch, leaving)
        await leaving.close()
        await self.is_continued(cluster, claimed.turn.id, attempt=3)

    async def is_continued(self, cluster: Cluster, turn_id: TurnId, *, attempt: int) -> None:
        heir = await cluster.enter([["Whole."]])
        turn = await heir.wait(turn_id)
        assert (turn.status, turn.attempt, turn.failures) == ("succeeded", attempt, 0)
        resets = [event for event in await cluster.events(turn_id) if isinstance(event, Reset)]
        assert {reset.reason for reset in resets} == {"handover"}


def held_back(real: Callable[..., Awaitable[Any]], latch: Latch) -> Callable[..., Awaitable[Any]]:
    """The database has done it, and its answer comes when the test opens the latch."""

    async def verb(*args: Any, **fields: Any) -> Any:
        answer = await real(*args, **fields)
        await latch.pass_through()
        return answer

    return verb


async def is_drained_once(latch: Latch, leaving: Engine, *, seconds: float = 60) -> bool:
    """Drain; whether it waited until the latch was opened."""
    draining = asyncio.create_task(leaving.drain(seconds=seconds))
    done, _ = await asyncio.wait({draining}, timeout=0.3)
    latch.open()
    await draining
    return not done


class TestTheQueue:
    async def test_goes_on_by_itself_in_order(self, cluster: Cluster) -> None:
        latch = Latch()
        engine = await cluster.enter([["One", Until(latch.pass_through)], ["Two"], ["Three"]])
        first = await cluster.ask(engine)
        await latch.reached.wait()
        conversation_id = first.turn.conversation_id
        waiting = [
            await cluster.ask(engine, text, conversation_id=conversation_id, if_busy="enqueue") for text in ("b", "c")
        ]
        assert [claimed.turn.status for claimed in waiting] == ["queued", "queued"]
        latch.open()
        for claimed in waiting:
            assert (await engine.wait(claimed.turn.id)).status == "succeeded"
        events = await cluster.events(waiting[0].turn.id)
        began = [(event.status, event.attempt) for event in events if isinstance(event, TurnBegan)]
        assert began == [("queued", 0), ("running", 1)]
        page = await cluster.store.transcript(cluster.ann, conversation_id)
        said = [part.text for message in page.data for part in message.content]  # type: ignore[union-attr]
        assert said == ["Hello", "One", "b", "Two", "c", "Three"]

    async def test_of_a_worker_that_died_goes_on_elsewhere(self, cluster: Cluster) -> None:
        latch = Latch()
        dead = await cluster.enter([["One", Until(latch.pass_through)]], start=False)
        first = await cluster.ask(dead)
        await latch.reached.wait()
        second = await cluster.ask(dead, "b", conversation_id=first.turn.conversation_id, if_busy="enqueue")
        heir = await cluster.enter([["One."], ["Two."]])
        assert (await heir.wait(second.turn.id)).status == "succeeded"
        assert (await heir.wait(first.turn.id)).status == "succeeded"

    async def test_is_interrupted_by_a_question_that_cannot_wait(self, cluster: Cluster) -> None:
        latch = Latch()
        engine = await cluster.enter([["One", Until(latch.pass_through)], ["Urgent."], ["Two."]])
        first = await cluster.ask(engine)
        await latch.reached.wait()
        conversation_id = first.turn.conversation_id
        second = await cluster.ask(engine, "b", conversation_id=conversation_id, if_busy="enqueue")
        urgent = await cluster.ask(engine, "now", conversation_id=conversation_id, if_busy="interrupt")
        assert (await engine.wait(urgent.turn.id)).status == "succeeded"
        assert (await engine.wait(first.turn.id)).status == "cancelled"
        assert (await engine.wait(second.turn.id)).status == "succeeded"
        page = await cluster.store.transcript(cluster.ann, conversation_id)
        asked = [message.turn_id for message in page.data if message.role == "user"]
        assert asked == [first.turn.id, urgent.turn.id, second.turn.id]


class TestAskingAgain:
    async def test_regenerate_answers_beside_the_first_answer(self, cluster: Cluster) -> None:
        engine = await cluster.enter([["One."], ["Another."]])
        first = await cluster.answer(engine, "Tell me")
        claimed = await engine.regenerate(cluster.ann, first.id, Options())
        second = await engine.wait(claimed.turn.id)
        page = await cluster.store.transcript(cluster.ann, first.conversation_id)
        assert [message.turn_id for message in page.data] == [second.id, second.id]
        assert set(page.data[-1].siblings) == {first.id, second.id}

    async def test_edit_asks_other_words_in_the_same_place(self, cluster: Cluster) -> None:
        engine = await cluster.enter([["One."], ["Two."], ["Edited."]])
        first = await cluster.answer(engine, "a")
        await cluster.answer(engine, "b", conversation_id=first.conversation_id)
        claimed = await engine.edit(cluster.ann, first.id, (Text(text="c"),), Options())
        await engine.wait(claimed.turn.id)
        page = await cluster.store.transcript(cluster.ann, first.conversation_id)
        said = [part.text for message in page.data for part in message.content]  # type: ignore[union-attr]
        assert said == ["c", "Edited."]
