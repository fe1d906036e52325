"""Files: the rows of a bag, whose names never collide."""

import asyncio

import pytest

from tests.store.databases import Database
from tests.store.factories import (
    Tenant,
    a_conversation,
    a_file,
    a_tenant,
    as_user,
    claim,
    nothing_written,
)
from turnkeep.errors import CallerError, Conflict, NotFound
from turnkeep.ids import new_conversation_id, new_file_id
from turnkeep.store.ports import Store


class TestAdding:
    async def test_with_its_hash_it_is_ready(self, store: Store, tenant: Tenant, database: Database) -> None:
        conversation = await a_conversation(store, tenant.ann)
        file = await a_file(store, tenant.ann, "a.txt", conversation_id=conversation.id, source="sandbox", size=7)
        assert (file.status, file.name, file.size, file.source) == ("ready", "a.txt", 7, "sandbox")
        assert (file.workspace_id, file.conversation_id) == (tenant.workspace.id, conversation.id)
        assert file.message_id is None
        assert file.created_at == database.now
        assert await store.file(tenant.ann, file.id) == file

    async def test_without_its_hash_it_is_pending_until_completed(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        file = await a_file(store, tenant.ann, conversation_id=conversation.id, sha256=None, size=0)
        assert (file.status, file.sha256) == ("pending", None)
        assert await store.files(tenant.ann, conversation.id) == []
        done = await store.complete_file(tenant.ann, file.id, size=9, sha256="cd" * 32)
        assert (done.status, done.size, done.sha256) == ("ready", 9, "cd" * 32)
        assert await store.files(tenant.ann, conversation.id) == [done]

    async def test_completing_again_is_fine_with_the_same_hash_and_a_conflict_with_another(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        file = await a_file(store, tenant.ann, sha256=None)
        done = await store.complete_file(tenant.ann, file.id, size=9, sha256="cd" * 32)
        async with nothing_written(database):
            assert await store.complete_file(tenant.ann, file.id, size=9, sha256="cd" * 32) == done
            with pytest.raises(Conflict):
                await store.complete_file(tenant.ann, file.id, size=9, sha256="ef" * 32)

    async def test_into_a_conversation_of_somebody_else_is_not_found(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        mine = await a_conversation(store, tenant.ann)
        stranger = await a_tenant(store, "Other")
        async with nothing_written(database):
            for by in (tenant.bob, stranger.ann, stranger.service):
                with pytest.raises(NotFound):
                    await a_file(store, by, conversation_id=mine.id)
            with pytest.raises(NotFound):
                await a_file(store, tenant.ann, conversation_id=new_conversation_id())

    async def test_ready_ones_are_listed_in_the_order_in_which_they_came(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        conversation = await a_conversation(store, tenant.ann)
        names = ["c.txt", "a.txt", "b.txt"]
        for name in names:
            await a_file(store, tenant.ann, name, conversation_id=conversation.id)
            await database.advance(seconds=1)
        assert [file.name for file in await store.files(tenant.ann, conversation.id)] == names


class TestNames:
    async def test_a_taken_name_gets_a_number(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        names = [
            (await a_file(store, tenant.ann, "report.pdf", conversation_id=conversation.id)).name for _ in range(3)
        ]
        assert names == ["report.pdf", "report-1.pdf", "report-2.pdf"]

    @pytest.mark.parametrize(
        "first, second, expected",
        [
            ("Report.PDF", "report.pdf", "report-1.pdf"),
            ("caf\u00e9.txt", "cafe\u0301.txt", "cafe\u0301-1.txt"),
            ("\uff21.txt", "a.txt", "a-1.txt"),
            ("Straße", "STRASSE", "STRASSE-1"),
            ("README", "readme", "readme-1"),
            (".env", ".ENV", ".ENV-1"),
            ("a.tar.gz", "a.tar.gz", "a.tar-1.gz"),
        ],
    )
    async def test_names_that_differ_only_in_case_or_unicode_form_are_the_same(
        self, store: Store, tenant: Tenant, first: str, second: str, expected: str
    ) -> None:
        conversation = await a_conversation(store, tenant.ann)
        await a_file(store, tenant.ann, first, conversation_id=conversation.id)
        file = await a_file(store, tenant.ann, second, conversation_id=conversation.id)
        assert file.name == expected

    async def test_a_number_that_is_taken_is_passed_over(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        for name in ("a.txt", "A-1.txt"):
            await a_file(store, tenant.ann, name, conversation_id=conversation.id)
        assert (await a_file(store, tenant.ann, "a.txt", conversation_id=conversation.id)).name == "a-2.txt"

    async def test_the_name_of_a_deleted_file_is_free(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        first = await a_file(store, tenant.ann, "a.txt", conversation_id=conversation.id)
        await store.delete_file(tenant.ann, first.id)
        assert (await a_file(store, tenant.ann, "a.txt", conversation_id=conversation.id)).name == "a.txt"

    async def test_other_bags_and_loose_files_do_not_matter(self, store: Store, tenant: Tenant) -> None:
        for conversation_id in (
            (await a_conversation(store, tenant.ann)).id,
            (await a_conversation(store, tenant.ann)).id,
            None,
            None,
        ):
            file = await a_file(store, tenant.ann, "a.txt", conversation_id=conversation_id)
            assert file.name == "a.txt"

    async def test_fifty_of_one_name_at_once_get_fifty_names(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        files = await asyncio.gather(
            *(a_file(store, tenant.ann, "a.txt", conversation_id=conversation.id) for _ in range(50))
        )
        expected = {"a.txt", *(f"a-{number}.txt" for number in range(1, 50))}
        assert {file.name for file in files} == expected

    async def test_fifty_attachments_of_one_name_at_once_too(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        loose = [await a_file(store, tenant.ann, "a.txt") for _ in range(20)]
        await asyncio.gather(
            *(
                claim(
                    store,
                    tenant.ann,
                    conversation_id=conversation.id,
                    attachment_ids=(file.id,),
                    if_busy="enqueue",
                )
                for file in loose
            ),
            *(a_file(store, tenant.ann, "a.txt", conversation_id=conversation.id) for _ in range(20)),
        )
        names = [file.name for file in await store.files(tenant.ann, conversation.id)]
        assert len(names) == len(set(names)) == 40


class TestWhoSeesThem:
    async def test_files_of_a_conversation_belong_to_its_owner(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        file = await a_file(store, tenant.service, conversation_id=conversation.id)
        for by in (tenant.ann, tenant.service, as_user(tenant.service, tenant.ann)):
            assert await store.file(by, file.id) == file
            assert await store.files(by, conversation.id) == [file]

    async def test_loose_files_belong_to_who_brought_them(self, store: Store, tenant: Tenant) -> None:
        file = await a_file(store, tenant.ann)
        for by in (tenant.ann, tenant.service):
            assert await store.file(by, file.id) == file

    async def test_nobody_else(self, store: Store, tenant: Tenant, database: Database) -> None:
        conversation = await a_conversation(store, tenant.ann)
        stranger = await a_tenant(store, "Other")
        bagged = await a_file(store, tenant.ann, conversation_id=conversation.id)
        loose = await a_file(store, tenant.ann, sha256=None)
        async with nothing_written(database):
            for by in (tenant.bob, stranger.ann, stranger.service, as_user(tenant.service, tenant.bob)):
                with pytest.raises(NotFound):
                    await store.files(by, conversation.id)
                for file in (bagged, loose):
                    with pytest.raises(NotFound):
                        await store.file(by, file.id)
                    with pytest.raises(NotFound):
                        await store.delete_file(by, file.id)
                    with pytest.raises(NotFound):
                        await store.complete_file(by, file.id, size=1, sha256="ab" * 32)
            with pytest.raises(NotFound):
                await store.file(tenant.ann, new_file_id())


class TestDeleting:
    async def test_a_deleted_file_is_not_found(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        file = await a_file(store, tenant.ann, conversation_id=conversation.id)
        await store.delete_file(tenant.ann, file.id)
        assert await store.files(tenant.ann, conversation.id) == []
        for attempt in (
            store.file(tenant.ann, file.id),
            store.delete_file(tenant.ann, file.id),
            store.complete_file(tenant.ann, file.id, size=1, sha256="ab" * 32),
        ):
            with pytest.raises(NotFound):
                await attempt


class TestRefusals:
    @pytest.mark.parametrize(
        "fields",
        [
            {"name": ""},
            {"name": "  "},
            {"name": "a\0b"},
            {"name": "\ud800"},
            {"name": "n" * 100_000},
            {"size": -1},
            {"size": "5"},
            {"size": 2**70},
            {"mime_type": "a\0b"},
            {"storage_key": "a\0b"},
            {"source": "elsewhere"},
            {"sha256": "a\0b"},
        ],
        ids=lambda fields: next(f"{name}-{str(value)[:10]!a}" for name, value in fields.items()),
    )
    async def test_values_that_cannot_be_kept(
        self, store: Store, tenant: Tenant, database: Database, fields: dict[str, object]
    ) -> None:
        async with nothing_written(database):
            with pytest.raises(CallerError):
                await a_file(store, tenant.ann, **{"name": "a.txt", **fields})  # type: ignore[arg-type]
