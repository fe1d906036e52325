"""Erasures across workers: turns stop wherever they run, caches forget, and what is left over is continued."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec import structs

from tests.engine.harness import QUICK, Cluster, FailOnDefect, Latch
from turnkeep.engine import Engine, Services
from turnkeep.engine.services import FileCleanup
from turnkeep.errors import NotFound, Unavailable
from turnkeep.ids import ConversationId, FileId, TurnId, WorkspaceId
from turnkeep.model.principals import Principal
from turnkeep.providers.registry import ProviderRegistry
from turnkeep.providers.scripted import ScriptedProvider, Until
from turnkeep.streaming.hub import LocalHub
from turnkeep.tools.registry import ToolRegistry


def service_of(cluster: Cluster) -> Principal:
    return cluster.tenant.service


async def is_gone(cluster: Cluster, turn_id: TurnId) -> bool:
    try:
        await cluster.store.claimed_turn(turn_id)
    except NotFound:
        return True
    return False


class TestOtherWorkers:
    async def test_forget_with_their_next_sweep_and_keep_the_rest(self, cluster: Cluster) -> None:
        first = await cluster.enter([["One."], ["Two."]])
        second = await cluster.enter([])
        gone, kept = await cluster.answer(first), await cluster.answer(first)
        histories = first._worker._histories._histories
        assert {gone.id, kept.id} <= set(histories)
        await second.eraser.erase_conversation(cluster.ann, gone.conversation_id)

        async def has_forgotten() -> bool:
            return gone.id not in histories

        await cluster.until(has_forgotten)
        assert kept.id in histories

    async def test_stop_their_turns(self, cluster: Cluster) -> None:
        latch = Latch()
        first = await cluster.enter([["Slow ", Until(latch.pass_through)]])
        second = await cluster.enter([])
        claimed = await cluster.ask(first, background=True)
        await latch.reached.wait()
        await second.eraser.erase_conversation(cluster.ann, claimed.turn.conversation_id)
        assert await is_gone(cluster, claimed.turn.id)

        async def has_forgotten() -> bool:
            return not first._worker._histories._histories

        await cluster.until(has_forgotten)


class TestAUser:
    async def test_is_gone_when_the_job_is_done(self, cluster: Cluster) -> None:
        engine = await cluster.enter([["Hi."]])
        turn = await cluster.answer(engine)
        assert cluster.ann.user_id is not None
        job = await engine.eraser.erase_user(service_of(cluster), cluster.ann.user_id)

        async def is_done() -> bool:
            return (await cluster.store.erasure(service_of(cluster), job.id)).done_at is not None

        await cluster.until(is_done)
        assert await is_gone(cluster, turn.id)

    async def test_whose_worker_left_in_the_middle_is_erased_by_another(self, cluster: Cluster) -> None:
        engine = await cluster.enter([["Hi."]], start=False)
        turn = await cluster.answer(engine)
        job = await cluster.store.begin_erasure(service_of(cluster), user_id=cluster.ann.user_id, lease_seconds=0.5)
        await cluster.enter([])

        async def is_done() -> bool:
            return (await cluster.store.erasure(service_of(cluster), job.id)).done_at is not None

        await cluster.until(is_done)
        assert await is_gone(cluster, turn.id)


class AwayFirst:
    """A bucket that cannot be reached at first."""

    def __init__(self) -> None:
        self.calls = 0

    async def delete(self, storage_keys: Sequence[str]) -> None: ...

    async def tidy(self) -> None: ...

    async def erase(
        self,
        workspace_id: WorkspaceId,
        conversation_ids: Sequence[ConversationId],
        files: Sequence[tuple[FileId, str]],
    ) -> None:
        self.calls += 1
        if self.calls == 1:
            raise Unavailable("The bucket is away.")


class TestABucketThatIsAway:
    async def test_refuses_the_request_and_loses_no_row_that_names_bytes(self, cluster: Cluster) -> None:
        engine = await cluster.enter([["Hi."]], start=False)
        turn = await cluster.answer(engine)
        files: FileCleanup = AwayFirst()
        services = Services(
            store=cluster.store,
            hub=LocalHub(),
            providers=ProviderRegistry([ScriptedProvider([])]),
            tools=ToolRegistry([]),
            settings=structs.replace(QUICK, sweep_seconds=0.05),
            observer=FailOnDefect(),
            file_cleanup=files,
        )
        other = Engine(services, worker="other")
        with pytest.raises(Unavailable):
            await other.eraser.erase_conversation(cluster.ann, turn.conversation_id)
        assert not await is_gone(cluster, turn.id)
        await other.start()
        try:
            async with asyncio.timeout(60):
                while not await is_gone(cluster, turn.id):  # noqa: ASYNC110 - the sweeper of the other worker does it
                    await asyncio.sleep(0.05)
        finally:
            await other.close()
