"""What the sweeper takes away."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec import structs

from tests.engine.harness import QUICK, Cluster
from turnkeep.errors import NotFound, Unavailable
from turnkeep.model.knowledge import Column
from turnkeep.store.commands import NewConversation, Purged


def remembered(asked: list[str], verb: str, real: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
    """The same verb. It writes its name down."""

    async def call(*args: object, **fields: object) -> object:
        asked.append(verb)
        return await real(*args, **fields)

    return call


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
