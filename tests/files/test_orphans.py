"""The orphan sweep: old objects without a row and unfinished uploads are removed, new ones stay."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.files.blocks import blocks, keys
from tests.store.factories import Tenant, a_conversation, a_tenant
from turnkeep.clock import FakeClock, system_clock
from turnkeep.errors import Conflict, NotFound
from turnkeep.files.bag import Bag
from turnkeep.files.keys import incoming_key
from turnkeep.files.multipart import FormFile
from turnkeep.files.orphans import BagSweeper, check_bag
from turnkeep.files.ports import Objects
from turnkeep.ids import ConversationId, new_file_id
from turnkeep.model.files import File
from turnkeep.store.sqlite import SqliteStore

DAY = 25 * 3600
HOURS = 3 * 3600 + 1


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(system_clock())


@pytest.fixture
async def store(tmp_path: Path, clock: FakeClock) -> AsyncIterator[SqliteStore]:
    opened = await SqliteStore.open(tmp_path / "turnkeep.db", clock=clock)
    yield opened
    await opened.close()


@pytest.fixture
async def tenant(store: SqliteStore) -> Tenant:
    return await a_tenant(store)


@pytest.fixture
def bag(store: SqliteStore, objects: Objects) -> Bag:
    return Bag(store, objects, max_file_bytes=1_000)


@pytest.fixture
def sweeper(store: SqliteStore, objects: Objects, clock: FakeClock) -> BagSweeper:
    return BagSweeper(store, objects, clock=clock)


async def a_file(bag: Bag, tenant: Tenant, conversation_id: ConversationId, name: str = "a.txt") -> File:
    async def parts() -> AsyncIterator[FormFile]:
        yield FormFile(name, None, blocks(b"hello"))

    [file] = await bag.receive(tenant.ann, conversation_id, parts())
    return file


class TestLeftovers:
    async def test_an_object_without_a_row_is_removed_once_it_is_old(
        self, store: SqliteStore, objects: Objects, bag: Bag, tenant: Tenant, sweeper: BagSweeper, clock: FakeClock
    ) -> None:
        kept = await a_file(bag, tenant, (await a_conversation(store, tenant.ann)).id)
        orphans = {"bag/ws/conv/nobody.txt", "files/ws/nobody.bin", incoming_key(new_file_id())}
        for key in orphans:
            await objects.put(key, blocks(b"left behind"))
        assert (await sweeper.sweep()).is_clean, "young ones are left alone"
        clock.advance(seconds=DAY)
        report = await check_bag(store, objects, clock=clock)
        assert set(report.orphans) == orphans
        assert await keys(objects) == orphans | {kept.storage_key}, "a check changes nothing"
        assert set((await sweeper.sweep()).orphans) == orphans
        assert await keys(objects) == {kept.storage_key}
        assert (await check_bag(store, objects, clock=clock)).is_clean

    async def test_an_upload_that_was_not_completed_is_removed_with_its_row(
        self, store: SqliteStore, objects: Objects, bag: Bag, tenant: Tenant, sweeper: BagSweeper, clock: FakeClock
    ) -> None:
        promised = await bag.promise(tenant.ann, None, name="a.txt", size=5, mime_type="")
        await bag.accept(promised.id, 5, blocks(b"hello"))
        silent = await bag.promise(tenant.ann, None, name="b.txt", size=5, mime_type="")
        await sweeper.tidy()
        assert await keys(objects) == {incoming_key(promised.id)}
        clock.advance(seconds=HOURS)
        assert (await check_bag(store, objects, clock=clock)).is_clean, "it is still somebody's"
        await sweeper.tidy()
        assert await keys(objects) == set()
        assert await store.pending_files([promised.id, silent.id]) == set()

    async def test_a_file_that_no_message_came_to_name_is_removed_after_the_retention_period(
        self, store: SqliteStore, objects: Objects, bag: Bag, tenant: Tenant, sweeper: BagSweeper, clock: FakeClock
    ) -> None:
        used = await a_file(bag, tenant, (await a_conversation(store, tenant.ann)).id)
        saved = await bag.save(tenant.ann, used.id, None)
        unused = (await bag.copy(tenant.ann, [used.id]))[used.id]
        clock.advance(seconds=29 * 86_400)
        await sweeper.drop_unfinished()
        assert (await store.file(tenant.ann, unused)).status == "ready"
        clock.advance(seconds=2 * 86_400)
        await sweeper.drop_unfinished()
        assert await keys(objects) == {used.storage_key, saved.storage_key}
        with pytest.raises(NotFound):
            await store.file(tenant.ann, unused)

    async def test_an_upload_that_was_given_up_leaves_nothing(
        self, store: SqliteStore, objects: Objects, bag: Bag, tenant: Tenant
    ) -> None:
        promised = await bag.promise(tenant.ann, None, name="a.txt", size=5, mime_type="")
        await bag.accept(promised.id, 5, blocks(b"hello"))
        await bag.delete(tenant.ann, promised.id)
        assert await keys(objects) == set()
        assert await store.all_files() == []

    async def test_bytes_for_a_file_that_does_not_wait_for_them_are_removed_at_once(
        self, store: SqliteStore, objects: Objects, bag: Bag, tenant: Tenant, sweeper: BagSweeper
    ) -> None:
        ready, waiting, erased = [
            await bag.promise(tenant.ann, None, name="a.txt", size=5, mime_type="") for _ in range(3)
        ]
        await bag.accept(ready.id, 5, blocks(b"hello"))
        ready = await bag.complete(tenant.ann, ready.id)
        await bag.delete(tenant.ann, erased.id)
        for file in (ready, waiting, erased):
            await objects.put(incoming_key(file.id), blocks(b"hello"))
        await sweeper.tidy()
        assert await keys(objects) == {ready.storage_key, incoming_key(waiting.id)}

    async def test_an_upload_that_is_given_up_while_its_bytes_arrive_leaves_nothing(
        self, objects: Objects, bag: Bag, tenant: Tenant
    ) -> None:
        promised = await bag.promise(tenant.ann, None, name="a.txt", size=5, mime_type="")

        async def given_up_meanwhile() -> AsyncIterator[bytes]:
            yield b"he"
            await bag.delete(tenant.ann, promised.id)
            yield b"llo"

        with pytest.raises(Conflict):
            await bag.accept(promised.id, 5, given_up_meanwhile())
        assert await keys(objects) == set()

    async def test_a_purge_deletes_the_bytes_too(
        self, store: SqliteStore, objects: Objects, bag: Bag, tenant: Tenant, sweeper: BagSweeper, clock: FakeClock
    ) -> None:
        conversation = await a_conversation(store, tenant.ann)
        await a_file(bag, tenant, conversation.id)
        alone = await a_file(bag, tenant, (await a_conversation(store, tenant.ann)).id)
        stays = await a_file(bag, tenant, (await a_conversation(store, tenant.ann)).id)
        await store.delete_conversation(tenant.ann, conversation.id)
        await store.delete_file(tenant.ann, alone.id)
        assert len(await keys(objects)) == 3, "they can still be restored"
        clock.advance(seconds=10)
        purged = await store.purge(deleted_before=clock())
        await sweeper.delete(purged.storage_keys)
        assert await keys(objects) == {stays.storage_key}

    async def test_a_deleted_conversation_keeps_its_bytes_until_then_and_gets_them_back(
        self, store: SqliteStore, objects: Objects, bag: Bag, tenant: Tenant, sweeper: BagSweeper, clock: FakeClock
    ) -> None:
        conversation = await a_conversation(store, tenant.ann)
        file = await a_file(bag, tenant, conversation.id)
        await store.delete_conversation(tenant.ann, conversation.id)
        clock.advance(seconds=DAY)
        assert (await sweeper.sweep()).is_clean
        await store.restore_conversation(tenant.ann, conversation.id)
        assert await store.files(tenant.ann, conversation.id) == [file]
        assert await bag.beginning(file, limit=100) == b"hello"


class TestLosses:
    async def test_a_row_without_its_object_is_reported_and_kept(
        self,
        store: SqliteStore,
        objects: Objects,
        bag: Bag,
        tenant: Tenant,
        sweeper: BagSweeper,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        conversation = await a_conversation(store, tenant.ann)
        files = [await a_file(bag, tenant, conversation.id, name) for name in ("a.txt", "b.txt")]
        await objects.delete([files[1].storage_key])
        report = await check_bag(store, objects)
        assert (report.files, report.objects, report.missing, report.is_clean) == (2, 1, (files[1].id,), False)
        with caplog.at_level(logging.ERROR, "turnkeep.files"):
            await sweeper.sweep()
        assert files[1].id in caplog.text
        assert await store.files(tenant.ann, conversation.id) == files


class TestRounds:
    async def test_a_full_comparison_runs_once_in_many_rounds(
        self, objects: Objects, sweeper: BagSweeper, clock: FakeClock
    ) -> None:
        await objects.put("bag/ws/conv/nobody.txt", blocks(b"x"))
        clock.advance(seconds=DAY)
        await sweeper.tidy()
        assert await keys(objects) == {"bag/ws/conv/nobody.txt"}, "not at once, when a server has just started"
        await sweeper.tidy()
        assert await keys(objects) == set()
