"""What the sweeper takes away."""

from collections.abc import Awaitable, Callable

import pytest
from msgspec import structs

from tests.engine.harness import QUICK, Cluster
from turnkeep.errors import NotFound
from turnkeep.model.knowledge import Column


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
        engine = await cluster.enter([["Hi."]])
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


class TestTheKeysOfRows:
    async def test_are_remembered_for_a_day_even_where_nothing_else_is(self, cluster: Cluster) -> None:
        engine = await cluster.enter([["Hi."]])
        turn = await cluster.answer(engine)
        table = await cluster.store.create_table(cluster.ann, name="T", columns=[Column(key=0, name="A", type="text")])
        await cluster.store.add_rows(cluster.ann, table.id, [["x"]], batch="k")
        await cluster.store.delete_conversation(cluster.ann, turn.conversation_id)
        await cluster.enter([], settings=structs.replace(QUICK, retention_days=0.0))

        async def has_swept() -> bool:
            return not await cluster.rows(turn.id)

        await cluster.until(has_swept)
        assert await cluster.store.added_rows(cluster.ann, table.id, batch="k") == range(1, 2)
