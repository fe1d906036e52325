"""The writer: many jobs, one flush; a job that fails takes only itself down; what was handed over is done."""

import asyncio
import threading
from pathlib import Path

import apsw
import pytest
from msgspec import structs

from tests.store.factories import (
    Tenant,
    a_claim,
    a_conversation,
    answered,
    begin,
    elsewhere,
    finish,
    held_of,
    save_workspace,
    step,
)
from tests.store.table_invariants import broken, sqlite_tables
from turnkeep.errors import ConversationBusy, LeaseLost, QuotaExceeded, StorageFull, Unavailable
from turnkeep.ids import new_turn_id
from turnkeep.model.turns import Held
from turnkeep.store.commands import ConversationChange, NewConversation
from turnkeep.store.sqlite import SqliteStore
from turnkeep.store.sqlite.io import executors
from turnkeep.store.sqlite.io.session import Session


class TestSharing:
    async def test_writers_that_come_together_share_commits(self, store: SqliteStore, tenant: Tenant) -> None:
        conversations = [await a_conversation(store, tenant.ann) for _ in range(40)]
        before = store.statistics.commits
        await asyncio.gather(*(store.append(tenant.ann, each.id, elsewhere(each.id)) for each in conversations))
        assert store.statistics.commits - before <= 10
        for each in conversations:
            assert (await store.conversation(tenant.ann, each.id)).turn_count == 1

    async def test_one_writer_alone_commits_each_time(self, store: SqliteStore, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        before = store.statistics.commits
        for _ in range(3):
            await store.append(tenant.ann, conversation.id, elsewhere(conversation.id))
        assert store.statistics.commits - before == 3

    async def test_with_many_callers_the_writer_waits_a_moment_for_more_of_them(
        self, store: SqliteStore, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pauses, may_end = threading.Semaphore(0), threading.Semaphore(0)

        def pause(seconds: float) -> None:
            assert 0 < seconds <= 0.001
            pauses.release()
            assert may_end.acquire(timeout=60)

        conversation = await a_conversation(store, tenant.ann)

        def append() -> asyncio.Future[int]:
            return asyncio.ensure_future(store.append(tenant.ann, conversation.id, elsewhere(conversation.id)))

        monkeypatch.setattr(executors, "sleep", pause)
        async with HeldUp(store):
            together = [append() for _ in range(3)]
            await asyncio.sleep(0)
        await asyncio.gather(*together)
        before = store.statistics.commits
        first = append()
        assert await asyncio.to_thread(pauses.acquire, timeout=60)
        second = append()
        await asyncio.sleep(0)
        may_end.release()
        assert (await first, await second) == (4, 5)
        assert store.statistics.commits - before == 1
        may_end.release()
        assert await append() == 6
        assert await append() == 7, "this one does not wait: the caller before it was alone"

    async def test_the_search_index_takes_many_conversations_in_one_commit(
        self, store: SqliteStore, tenant: Tenant
    ) -> None:
        for _ in range(20):
            await finish(store, tenant.ann, "needle")
        before = store.statistics.commits
        assert await store.index_pending() == 20
        assert store.statistics.commits - before <= 2


class TestOneThatNeedsTheFileForItself:
    async def test_keeps_no_answer_back_that_is_known_before_it(self, store: SqliteStore, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        may_end = threading.Event()

        async with HeldUp(store):
            before = asyncio.ensure_future(store.append(tenant.ann, conversation.id, elsewhere(conversation.id)))
            await asyncio.sleep(0)
            bare = store._writer.ask_bare(lambda session: may_end.wait(60))
            after = asyncio.ensure_future(store.append(tenant.ann, conversation.id, elsewhere(conversation.id)))
            await asyncio.sleep(0)
        try:
            async with asyncio.timeout(30):
                assert await before == 1
            assert not bare.done()
            assert not after.done()
        finally:
            may_end.set()
        assert await bare
        assert await after == 2


class TestOneThatFails:
    async def test_does_not_harm_the_others(self, store: SqliteStore, tenant: Tenant) -> None:
        held = [await begin(store, tenant.ann) for _ in range(5)]
        stale = Held(turn_id=held[2].turn_id, conversation_id=held[2].conversation_id, attempt=7)
        asked = [*held[:2], stale, *held[3:]]
        async with HeldUp(store):
            writes = [asyncio.ensure_future(store.record(each, after=1, events=[step("a")])) for each in asked]
            await asyncio.sleep(0)
        answers = await asyncio.gather(*writes, return_exceptions=True)
        assert [type(answer).__name__ for answer in answers] == [
            "Receipt",
            "Receipt",
            "LeaseLost",
            "Receipt",
            "Receipt",
        ]
        assert isinstance(answers[2], LeaseLost)
        assert [len(await store.events(each.turn_id)) for each in held] == [2, 2, 1, 2, 2]
        assert store.statistics.largest_group >= 5
        assert store.statistics.groups_abandoned == 0

    async def test_leaves_nothing_of_what_it_wrote_before_it_failed(self, store: SqliteStore, tenant: Tenant) -> None:
        def half_done(session: Session) -> None:
            session.run("insert_org", {"id": "org_half", "name": "half", "now": 1})
            raise ConversationBusy("turn_x", None)

        async with HeldUp(store):
            failing, working = store._writer.ask(half_done), asyncio.ensure_future(store.create_org("Whole"))
            await asyncio.sleep(0)
        await asyncio.gather(failing, working, return_exceptions=True)
        assert isinstance(failing.exception(), ConversationBusy)
        assert [org.name for org in await store.orgs()] == ["Acme", "Whole"]
        assert store.statistics.groups_abandoned == 1

    async def test_because_of_a_limit_has_no_other_run_again(self, store: SqliteStore, tenant: Tenant) -> None:
        await save_workspace(store, structs.replace(tenant.workspace, monthly_message_limit=2))
        async with HeldUp(store):
            claims = [asyncio.ensure_future(store.claim(a_claim(tenant.ann))) for _ in range(4)]
            await asyncio.sleep(0)
        answers = await asyncio.gather(*claims, return_exceptions=True)
        assert [isinstance(answer, QuotaExceeded) for answer in answers] == [False, False, True, True]
        assert store.statistics.groups_abandoned == 0

    async def test_that_ends_the_transaction_for_all_has_the_others_run_again(
        self, store: SqliteStore, tenant: Tenant, path: Path
    ) -> None:
        """As a full disk does: SQLite rolls everything back by itself, and every job must run again."""

        def ruinous(session: Session) -> None:
            session.connection.execute("ROLLBACK")
            raise apsw.FullError("database or disk is full")

        async with HeldUp(store):
            before = [asyncio.ensure_future(store.create_org(f"before {n}")) for n in range(3)]
            await asyncio.sleep(0)
            failing = store._writer.ask(ruinous)
            after = [asyncio.ensure_future(store.create_org(f"after {n}")) for n in range(3)]
            await asyncio.sleep(0)
        await asyncio.gather(*before, failing, *after, return_exceptions=True)
        assert isinstance(failing.exception(), StorageFull)
        names = sorted(org.name for org in await store.orgs())
        assert names == ["Acme", "after 0", "after 1", "after 2", "before 0", "before 1", "before 2"]
        assert store.statistics.groups_abandoned == 1


class TestTheSearchIndex:
    """Its entries are made beside the writer. What has changed since is not written."""

    @pytest.mark.parametrize("title", ["Parasol", "…"])
    async def test_does_not_get_a_title_that_was_replaced_meanwhile(
        self, store: SqliteStore, tenant: Tenant, title: str
    ) -> None:
        turn = await finish(store, tenant.ann, "Hello", new=NewConversation(title="Umbrella"))
        async with HeldUp(store):
            change = ConversationChange(title=title)
            changing = asyncio.ensure_future(store.change_conversation(tenant.ann, turn.conversation_id, change))
            await asyncio.sleep(0)
            indexing = asyncio.ensure_future(store.index_pending())
            async with asyncio.timeout(30):
                while store._writer._queue.qsize() < 2:  # noqa: ASYNC110 - the queue tells nobody
                    await asyncio.sleep(0.001)
        await changing
        assert await indexing == 1
        for query, is_found in (("hello", True), ("umbrella", False), ("parasol", title == "Parasol")):
            hits = (await store.conversations(tenant.ann, query=query)).data
            assert [hit.conversation.id for hit in hits] == [turn.conversation_id] * is_found, query

    async def test_has_each_title_once(self, store: SqliteStore, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann, "Umbrella")
        await store.index_pending()
        await store.settle(held, after=1, settlement=answered(held))
        await store.index_pending()
        titles = "SELECT count(*) FROM search_entries WHERE turn_sequence = -1"
        assert await store._writer.ask(lambda session: session.connection.execute(titles).fetchall()) == [(1,)]


class TestAFullDisk:
    async def test_refuses_writes_serves_reads_and_recovers_by_itself(
        self, store: SqliteStore, tenant: Tenant, path: Path
    ) -> None:
        conversation = await a_conversation(store, tenant.ann)
        await store.append(tenant.ann, conversation.id, elsewhere(conversation.id))
        pages = await limit_pages(store, None)
        await limit_pages(store, pages)
        with pytest.raises(StorageFull):
            await store.append(tenant.ann, conversation.id, elsewhere(conversation.id, "big " * 5_000, "ok"))
        turns = (await store.conversation(tenant.ann, conversation.id)).turn_count
        assert len((await store.window(conversation.id, turns=100)).rows) == 2 * turns
        await limit_pages(store, 2**30)
        await store.append(tenant.ann, conversation.id, elsewhere(conversation.id, "big " * 5_000, "ok"))
        await store.close()
        assert broken(sqlite_tables(path)) == []

    async def test_in_a_group_refuses_only_what_does_not_fit(
        self, store: SqliteStore, tenant: Tenant, path: Path
    ) -> None:
        conversations = [await a_conversation(store, tenant.ann) for _ in range(8)]
        pages = await limit_pages(store, None)
        await limit_pages(store, pages + 6)
        sizes = [10, 10, 60_000, 10, 10, 60_000, 10, 10]
        async with HeldUp(store):
            writes = [
                asyncio.ensure_future(store.append(tenant.ann, each.id, elsewhere(each.id, "q" * size, "a")))
                for each, size in zip(conversations, sizes, strict=True)
            ]
            await asyncio.sleep(0)
        answers = await asyncio.gather(*writes, return_exceptions=True)
        refused = [isinstance(answer, StorageFull) for answer in answers]
        assert refused == [size > 1_000 for size in sizes]
        counts = [(await store.conversation(tenant.ann, each.id)).turn_count for each in conversations]
        assert counts == [int(not was_refused) for was_refused in refused]
        await store.close()
        assert broken(sqlite_tables(path)) == []


class TestCancelling:
    async def test_a_caller_who_leaves_does_not_stop_the_write(self, store: SqliteStore, tenant: Tenant) -> None:
        claim = a_claim(tenant.ann, turn_id=new_turn_id())
        async with HeldUp(store):
            task = asyncio.ensure_future(store.claim(claim))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        again = await store.claim(claim)
        assert not again.is_new
        await store.record(held_of(again), after=1, events=[step("a")])

    async def test_closing_finishes_what_was_handed_over(self, store: SqliteStore, tenant: Tenant, path: Path) -> None:
        writes = [asyncio.ensure_future(store.create_org(f"org {number}")) for number in range(20)]
        await asyncio.sleep(0)
        await store.close()
        assert len(await asyncio.gather(*writes)) == 20

    async def test_after_closing_nothing_is_taken(self, store: SqliteStore) -> None:
        await store.close()
        with pytest.raises(Unavailable):
            await store.create_org("late")
        with pytest.raises(Unavailable):
            await store.orgs()


class HeldUp:
    """The writer stands still inside, so that what is asked for meanwhile becomes one group."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._began = asyncio.Event()

    async def __aenter__(self) -> None:
        self._go_on = threading.Event()
        self._job = self._store._writer.ask(self._wait)
        await self._began.wait()

    async def __aexit__(self, *_: object) -> None:
        self._go_on.set()
        await self._job

    def _wait(self, session: Session) -> None:
        self._loop.call_soon_threadsafe(self._began.set)
        self._go_on.wait()


async def limit_pages(store: SqliteStore, pages: int | None) -> int:
    """Let the database have so many pages and no more (None: ask how many it has)."""

    def set_limit(session: Session) -> int:
        pragma = "page_count" if pages is None else f"max_page_count = {pages}"
        [[answer]] = session.connection.execute(f"PRAGMA {pragma}").fetchall()
        assert isinstance(answer, int)
        return answer

    return await store._writer.ask(set_limit)
