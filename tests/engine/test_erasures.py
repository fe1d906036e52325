"""Erasures across workers: turns stop wherever they run, caches forget, and what is left over is continued."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec import structs

from tests.engine.harness import QUICK, Cluster, FailOnDefect, Latch
from tests.store.factories import a_file, a_tenant
from turnkeep.engine import Engine, Services
from turnkeep.engine.erasure import LEASE_SECONDS, LONGEST_PAUSE_SECONDS, RETRY_SECONDS
from turnkeep.engine.services import FileCleanup
from turnkeep.errors import NotFound, StorageFull, Unavailable
from turnkeep.ids import ConversationId, ErasureId, FileId, TurnId, WorkspaceId
from turnkeep.model.knowledge import Column
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Turn
from turnkeep.providers.registry import ProviderRegistry
from turnkeep.providers.scripted import ScriptedProvider, Until
from turnkeep.store.commands import Claimed
from turnkeep.streaming.follow import follow
from turnkeep.streaming.frames import EventFrame
from turnkeep.streaming.hub import LocalHub
from turnkeep.tools.registry import ToolRegistry
from turnkeep_client.wire.events import Failure, TurnEvent


def service_of(cluster: Cluster) -> Principal:
    return cluster.tenant.service


async def is_gone(cluster: Cluster, turn_id: TurnId) -> bool:
    try:
        await cluster.store.claimed_turn(turn_id)
    except NotFound:
        return True
    return False


class TestOtherWorkers:
    async def test_forget_with_their_next_sweep(self, cluster: Cluster) -> None:
        """All of it, and what a turn that is under way would keep: words can be erased in turns that stay."""
        latch = Latch()
        first = await cluster.enter([["One."], ["Slow ", Until(latch.pass_through), "end."], ["Two."]])
        second = await cluster.enter([])
        gone = await cluster.answer(first)
        slow = await cluster.ask(first, background=True)
        await latch.reached.wait()
        histories = first._worker._histories._histories
        assert set(histories) == {gone.id}
        await second.eraser.erase_conversation(cluster.ann, gone.conversation_id)

        async def has_forgotten() -> bool:
            return not histories

        await cluster.until(has_forgotten)
        latch.open()

        async def has_ended() -> bool:
            return (await cluster.store.turn(cluster.ann, slow.turn.id)).is_settled and not first._worker._holds

        await cluster.until(has_ended)
        assert set(histories) == set()
        after = await cluster.answer(first)
        assert set(histories) == {after.id}

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


class TestReaders:
    async def queued(self, cluster: Cluster, engine: Engine, latch: Latch) -> tuple[Claimed, Claimed]:
        """A turn that runs, and one that waits behind it."""
        first = await cluster.ask(engine, background=True)
        await latch.reached.wait()
        where = first.turn.conversation_id
        return first, await cluster.ask(engine, conversation_id=where, if_busy="enqueue", background=True)

    async def last_of(self, engine: Engine, cluster: Cluster, turn_id: TurnId) -> TurnEvent:
        """The last event that a reader of this worker gets."""
        frames = [frame async for batch in follow(cluster.store, engine._hub, turn_id) for frame in batch]
        last = frames[-1]
        assert isinstance(last, EventFrame)
        return last.recorded.event

    async def test_of_a_turn_that_waited_end_with_its_cancellation_where_it_was_erased(self, cluster: Cluster) -> None:
        latch = Latch()
        engine = await cluster.enter([["Slow ", Until(latch.pass_through)]])
        running, waiting = await self.queued(cluster, engine, latch)
        reading = asyncio.create_task(self.last_of(engine, cluster, waiting.turn.id))
        await cluster.until(lambda: is_followed(engine, waiting.turn.id))
        await engine.eraser.erase_conversation(cluster.ann, running.turn.conversation_id)
        last = await asyncio.wait_for(reading, 60)
        assert isinstance(last, Failure)
        assert last.code == "cancelled"

    @pytest.mark.parametrize("which", ["running", "waiting"])
    async def test_on_another_worker_end(self, cluster: Cluster, which: str) -> None:
        latch = Latch()
        engine = await cluster.enter([["Slow ", Until(latch.pass_through)]])
        turns = dict(zip(("running", "waiting"), await self.queued(cluster, engine, latch), strict=True))
        turn = turns[which].turn
        other = await cluster.enter([])
        reading = asyncio.create_task(self.last_of(other, cluster, turn.id))
        posted = asyncio.create_task(other.wait(turn.id))
        await cluster.until(lambda: is_followed(other, turn.id, readers=2))
        await engine.eraser.erase_conversation(cluster.ann, turn.conversation_id)
        last = await asyncio.wait_for(reading, 60)
        assert isinstance(last, Failure)
        assert last.code in {"not_found", "cancelled"}
        [ended] = await asyncio.wait_for(asyncio.gather(posted, return_exceptions=True), 60)
        assert isinstance(ended, NotFound) or (isinstance(ended, Turn) and ended.status == "cancelled")


async def is_followed(engine: Engine, turn_id: TurnId, *, readers: int = 1) -> bool:
    assert isinstance(engine._hub, LocalHub)
    channel = engine._hub._channels.get(turn_id)
    return channel is not None and len(channel.subscriptions) >= readers


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


class TestAConversation:
    async def test_leaves_to_the_sweeper_what_is_not_its_own(self, cluster: Cluster) -> None:
        """Others may have deleted large tables. The request does not wait until they are erased."""
        engine = await cluster.enter([["Hi."]], start=False)
        turn = await cluster.answer(engine)
        stranger = await a_tenant(cluster.store, "Other")
        columns = [Column(key=0, name="c", type="text")]
        table = await cluster.store.create_table(stranger.ann, name="t", columns=columns)
        await cluster.store.add_rows(stranger.ann, table.id, [["words"]], batch="b")
        await cluster.store.delete_table(stranger.ann, table.id)
        await engine.eraser.erase_conversation(cluster.ann, turn.conversation_id)
        assert await is_gone(cluster, turn.id)
        assert await cluster.store.purge_knowledge(before=0) == 1, "the rows of the table were still there"


class Deletions:
    """A bucket that writes down what is deleted, and which conversations are left then."""

    def __init__(self, cluster: Cluster, turns: Sequence[Turn]) -> None:
        self._cluster = cluster
        self._turns = turns
        self.seen: list[tuple[Sequence[str], int]] = []

    async def delete(self, storage_keys: Sequence[str]) -> None:
        left = [turn for turn in self._turns if not await is_gone(self._cluster, turn.id)]
        self.seen.append((storage_keys, len(left)))

    async def tidy(self) -> None: ...

    async def erase(
        self,
        workspace_id: WorkspaceId,
        conversation_ids: Sequence[ConversationId],
        files: Sequence[tuple[FileId, str]],
    ) -> None: ...


class TestFilesThatCameLate:
    async def test_are_deleted_before_the_next_conversation_is_erased(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If the next step failed, no row would name their bytes any more."""
        monkeypatch.setattr("turnkeep.store.rules.erasures.TURNS_AT_ONCE", 1)
        engine = await cluster.enter([["One."], ["Two."]], start=False)
        turns = [await cluster.answer(engine) for _ in range(2)]
        files = [await a_file(cluster.store, cluster.ann, conversation_id=turn.conversation_id) for turn in turns]
        bucket = Deletions(cluster, turns)
        engine.eraser._files = bucket

        async def none(*_: object) -> list[tuple[FileId, str]]:
            return []  # the files came after this was asked

        monkeypatch.setattr(cluster.store, "files_to_erase", none)
        assert cluster.ann.user_id is not None
        job = await cluster.store.begin_erasure(
            service_of(cluster), user_id=cluster.ann.user_id, lease_seconds=LEASE_SECONDS
        )
        await engine.eraser._erase(job)
        assert [left for _, left in bucket.seen] == [1, 0]
        assert {key for keys, _ in bucket.seen for key in keys} == {file.storage_key for file in files}


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


class Listening(FailOnDefect):
    """Writes down which erasures were delayed, and why."""

    def __init__(self) -> None:
        super().__init__()
        self.delayed: list[tuple[ErasureId, str]] = []

    def erasure_delayed(self, erasure_id: ErasureId, problem: str) -> None:
        self.delayed.append((erasure_id, problem))


class TestADatabaseThatCannotBeScrubbed:
    async def test_is_tried_again_after_growing_pauses_and_reported_once(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def full(*, most_bytes: int | None = None) -> bool:
            raise StorageFull("There is too little room.")

        observer = Listening()
        engine = await cluster.enter([["Hi."]], observer=observer, start=False)
        await cluster.answer(engine)
        scrub = cluster.store.scrub
        monkeypatch.setattr(cluster.store, "scrub", full)
        pauses: list[float] = []
        postpone = cluster.store.postpone_erasure

        async def noted(erasure_id: ErasureId, *, seconds: float, problem: str | None = None) -> None:
            pauses.append(seconds)
            await postpone(erasure_id, seconds=0.0, problem=problem)

        monkeypatch.setattr(cluster.store, "postpone_erasure", noted)
        assert cluster.ann.user_id is not None
        job = await engine.eraser.erase_user(service_of(cluster), cluster.ann.user_id)

        async def is_tried(times: int) -> bool:
            await engine.eraser.continue_open()
            return len(pauses) >= times

        await cluster.until(lambda: is_tried(11))
        assert pauses[:3] == [RETRY_SECONDS, 2 * RETRY_SECONDS, 4 * RETRY_SECONDS]
        assert pauses == sorted(pauses)
        assert pauses[-1] == LONGEST_PAUSE_SECONDS
        assert observer.delayed == [(job.id, "There is too little room.")]
        assert observer.defects == []
        found = await cluster.store.erasure(service_of(cluster), job.id)
        assert (found.problem, found.done_at) == ("There is too little room.", None)
        monkeypatch.setattr(cluster.store, "scrub", scrub)

        async def is_done() -> bool:
            await engine.eraser.continue_open()
            return (await cluster.store.erasure(service_of(cluster), job.id)).done_at is not None

        await cluster.until(is_done)
        assert (await cluster.store.erasure(service_of(cluster), job.id)).problem is None
