"""What the sweeper takes away."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest
from msgspec import structs

from tests.engine.harness import QUICK, Cluster, Latch
from turnkeep.config import EngineSettings
from turnkeep.errors import NotFound, Unavailable
from turnkeep.ids import TurnId
from turnkeep.model.knowledge import Column
from turnkeep.model.outbox import TakenDelivery
from turnkeep.providers.scripted import Until
from turnkeep.store.commands import AttemptOutcome, NewConversation, Purged
from turnkeep.streaming.follow import follow
from turnkeep.streaming.hub import LocalHub


def remembered(asked: list[str], verb: str, real: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
    """The same verb. It writes its name down."""

    async def call(*args: object, **fields: object) -> object:
        if args != ([],):  # the database is not asked to do nothing
            asked.append(verb)
        return await real(*args, **fields)

    return call


class NoWebhooks:
    async def post(self, taken: TakenDelivery) -> AttemptOutcome:
        raise AssertionError("there is none")


class TestAnIdleWorker:
    async def test_asks_one_question_with_each_sweep_and_writes_nothing(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = await cluster.enter([["Hi."]], start=False)
        turn = await cluster.answer(engine)
        await cluster.store.index_pending()
        asked: list[str] = []
        for verb in ("due_work", "promote_waiting", "adopt", "cancel_unwatched", "index_pending", "renew"):
            monkeypatch.setattr(cluster.store, verb, remembered(asked, verb, getattr(cluster.store, verb)))
        await cluster.enter([])

        async def has_swept() -> bool:
            return asked.count("due_work") >= 4

        await cluster.until(has_swept)
        assert turn.status == "succeeded"
        assert set(asked) == {"due_work"}

    async def test_asks_at_most_twice_a_second_with_all_that_it_does(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever asks: sweeps, readers, the outbox, titles, webhooks. With the intervals of a server."""
        asked: list[str] = []
        verbs = [name for name in dir(cluster.store) if not name.startswith("_")]
        for verb in verbs:
            real = getattr(cluster.store, verb)
            if inspect.iscoroutinefunction(real):
                monkeypatch.setattr(cluster.store, verb, remembered(asked, verb, real))
        await cluster.enter([], settings=EngineSettings(), webhooks=NoWebhooks())
        await asyncio.sleep(1.5)  # what a start asks once
        del asked[:]
        began = time.monotonic()
        await asyncio.sleep(3)
        assert 1 <= len(asked) <= 2 * (time.monotonic() - began), asked


class TestAWorkerWithSilentReaders:
    async def test_renews_and_reports_them_with_one_statement_and_does_not_poll(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        latch, hub = Latch(), LocalHub()
        settings = structs.replace(QUICK, lease_seconds=0.6, disconnect_grace_seconds=0.75)
        engine = await cluster.enter([["Once", Until(latch.pass_through)]], settings=settings, hub=hub)
        turn_id = (await cluster.ask(engine)).turn.id
        asked: list[str] = []
        watched: list[TurnId] = []
        renew = cluster.store.renew

        async def renewed(*args: Any, **fields: Any) -> Any:
            asked.append("renew")
            watched.extend(fields["watched"])
            return await renew(*args, **fields)

        with engine.attach(turn_id):
            await latch.reached.wait()
            async with aclosing(follow(cluster.store, hub, turn_id)) as following:  # type: ignore[type-var]
                await anext(following)
                await asyncio.sleep(0.5)  # its first reader was reported
                monkeypatch.setattr(cluster.store, "renew", renewed)
                for verb in ("watch", "last_seqs", "events"):
                    monkeypatch.setattr(cluster.store, verb, remembered(asked, verb, getattr(cluster.store, verb)))
                await asyncio.sleep(3.0)
        assert set(asked) == {"renew"}
        assert set(watched) == {turn_id}
        latch.open()


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A purge passes over a conversation that another statement holds, or that was deleted in the same millisecond."""
    monkeypatch.setattr("turnkeep.engine.worker.PURGE_SECONDS", 0.2)


@pytest.mark.usefixtures("often")
class TestADeletedConversation:
    async def test_is_erased_after_the_days_of_the_settings(self, cluster: Cluster) -> None:
        engine = await cluster.enter([["Hi."]], start=False)
        turn = await cluster.answer(engine)
        await cluster.store.delete_conversation(cluster.ann, turn.conversation_id)
        await cluster.store.restore_conversation(cluster.ann, turn.conversation_id)
        await cluster.store.delete_conversation(cluster.ann, turn.conversation_id)
        await cluster.enter([], settings=structs.replace(QUICK, retention_days=0.0))

        async def is_erased() -> bool:
            return not await cluster.rows(turn.id)

        await cluster.until(is_erased)
        with pytest.raises(NotFound):
            await cluster.store.restore_conversation(cluster.ann, turn.conversation_id)

    async def test_is_erased_however_many_there_are_in_one_round(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for _ in range(120):
            made = await cluster.store.create_conversation(cluster.ann, NewConversation())
            await cluster.store.delete_conversation(cluster.ann, made.id)
        purge, erased = cluster.store.purge, list[int]()

        async def counting(**fields: Any) -> Purged:
            purged = await purge(**fields)
            erased.append(purged.conversations)
            return purged

        async def is_done() -> bool:
            return sum(erased) == 120

        monkeypatch.setattr(cluster.store, "purge", counting)
        await asyncio.sleep(0.01)  # so that the last one was deleted before now
        await cluster.enter([], settings=structs.replace(QUICK, retention_days=0.0))
        await cluster.until(is_done, seconds=30)

    async def test_is_erased_soon_also_if_the_database_was_away_at_first(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = await cluster.enter([["Hi."]], start=False)
        turn = await cluster.answer(engine)
        await cluster.store.delete_conversation(cluster.ann, turn.conversation_id)
        purge, failures = cluster.store.purge, [Unavailable("The database is away.")]

        async def failing(**fields: Any) -> object:
            if failures:
                raise failures.pop()
            return await purge(**fields)

        monkeypatch.setattr(cluster.store, "purge", failing)
        monkeypatch.setattr("turnkeep.engine.worker.PURGE_RETRY_SECONDS", 0.1)
        await cluster.enter([], settings=structs.replace(QUICK, retention_days=0.0))

        async def is_erased() -> bool:
            return not await cluster.rows(turn.id)

        await cluster.until(is_erased)


class TestAnIdleConversation:
    async def test_is_deleted_and_erased_after_the_days_of_the_settings(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = await cluster.enter([["Hi."]], start=False)
        turn = await cluster.answer(engine)
        monkeypatch.setattr("turnkeep.engine.worker.PURGE_SECONDS", 0.2)
        settings = structs.replace(QUICK, retention_days=0.0, idle_conversation_days=0.1 / 86_400)
        await cluster.enter([], settings=settings)

        async def is_erased() -> bool:
            return not await cluster.rows(turn.id)

        await cluster.until(is_erased)

    async def test_is_kept_for_ever_unless_an_operator_says_otherwise(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = await cluster.enter([["Hi."], ["Hi."]], start=False)
        idle, deleted = await cluster.answer(engine), await cluster.answer(engine)
        await cluster.store.delete_conversation(cluster.ann, deleted.conversation_id)
        monkeypatch.setattr("turnkeep.engine.worker.PURGE_SECONDS", 0.2)
        await cluster.enter([], settings=structs.replace(QUICK, retention_days=0.0))

        async def has_swept() -> bool:
            return not await cluster.rows(deleted.id)

        await cluster.until(has_swept)
        assert await cluster.rows(idle.id)


@pytest.mark.usefixtures("often")
class TestTheKeysOfRows:
    async def test_are_remembered_for_a_day_even_where_nothing_else_is(self, cluster: Cluster) -> None:
        engine = await cluster.enter([["Hi."]], start=False)
        turn = await cluster.answer(engine)
        table = await cluster.store.create_table(cluster.ann, name="T", columns=[Column(key=0, name="A", type="text")])
        await cluster.store.add_rows(cluster.ann, table.id, [["x"]], batch="k")
        await cluster.store.delete_conversation(cluster.ann, turn.conversation_id)
        await cluster.enter([], settings=structs.replace(QUICK, retention_days=0.0))

        async def has_swept() -> bool:
            return not await cluster.rows(turn.id)

        await cluster.until(has_swept)
        assert await cluster.store.added_rows(cluster.ann, table.id, batch="k") == range(1, 2)


class TestThePartitions:
    async def test_are_made_ahead_and_dropped_until_none_is_left(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made, dropped, left = list[int](), list[int](), [True, True, False]

        async def making(*, now: int, months: int) -> None:
            assert months == 12
            made.append(now)

        async def dropping(*, ended_before: int) -> bool:
            dropped.append(ended_before)
            return left.pop(0)

        async def is_done() -> bool:
            return not left

        monkeypatch.setattr(cluster.store, "make_partitions", making)
        monkeypatch.setattr(cluster.store, "drop_partitions", dropping)
        await cluster.enter([])
        await cluster.until(is_done)
        [now] = made
        assert [now - each for each in dropped] == [pytest.approx(30 * 86_400_000, abs=60_000)] * 3


class TestAnOldTurn:
    async def test_is_compacted_and_read_as_before(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = await cluster.enter([["Hi ", "there."]], start=False)
        turn = await cluster.answer(engine)
        before = await cluster.events(turn.id)
        assert (await cluster.store.last_seqs([turn.id])) == {turn.id: 2}
        monkeypatch.setattr("turnkeep.engine.worker.COMPACT_AFTER_MS", -60_000)
        await cluster.enter([])

        async def is_compacted() -> bool:
            return (await cluster.store.last_seqs([turn.id])) == {turn.id: 0}

        await cluster.until(is_compacted)
        assert await cluster.events(turn.id) == before
        assert [row.display for row in await cluster.rows(turn.id)] == [None, None]
