"""Pages: Markdown documents of a workspace, read by everyone in it, and found by their words."""

import pytest
from msgspec import structs

from tests.store.databases import Database
from tests.store.factories import Tenant, a_file, a_tenant, as_user, nothing_written
from turnkeep.errors import Conflict, InvalidRequest, NotFound, TooLarge
from turnkeep.ids import PageId
from turnkeep.model.knowledge import FileText
from turnkeep.model.principals import Principal
from turnkeep.store.ports import Store

MISSING = PageId("page_" + "0" * 32)


async def titles(store: Store, by: Principal, query: str) -> list[str]:
    return [hit.title for hit in (await store.search_pages(by, query)).hits]


class TestKeeping:
    async def test_a_page_comes_back_as_it_was_written(self, store: Store, tenant: Tenant) -> None:
        made = await store.create_page(tenant.service, title="Refunds", content="# How\n\nWithin **30** days.")
        assert await store.page(tenant.ann, made.id) == made
        assert (made.title, made.content, made.size) == ("Refunds", "# How\n\nWithin **30** days.", 26)

    async def test_a_change_leaves_what_it_does_not_name(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        made = await store.create_page(tenant.service, title="Refunds", content="Within 30 days.")
        await database.advance(seconds=5)
        changed = await store.change_page(tenant.service, made.id, title="Returns")
        assert (changed.title, changed.content) == ("Returns", "Within 30 days.")
        assert changed.updated_at == made.updated_at + 5000
        emptied = await store.change_page(tenant.service, made.id, content="")
        assert (emptied.title, emptied.content) == ("Returns", "")

    async def test_pages_are_listed_newest_first_and_in_parts(self, store: Store, tenant: Tenant) -> None:
        for number in range(5):
            await store.create_page(tenant.service, title=f"P{number}", content="")
        first = await store.pages(tenant.ann, limit=3)
        rest = await store.pages(tenant.ann, limit=3, cursor=first.next_cursor)
        assert [page.title for page in (*first.data, *rest.data)] == ["P4", "P3", "P2", "P1", "P0"]
        assert rest.next_cursor is None

    async def test_a_deleted_page_is_gone_and_is_not_found(self, store: Store, tenant: Tenant) -> None:
        made = await store.create_page(tenant.service, title="Refunds", content="saffron")
        await store.delete_page(tenant.service, made.id)
        with pytest.raises(NotFound):
            await store.page(tenant.ann, made.id)
        with pytest.raises(NotFound):
            await store.delete_page(tenant.service, made.id)
        assert await titles(store, tenant.ann, "saffron") == []

    async def test_a_workspace_that_holds_pages_is_not_deleted(self, store: Store, tenant: Tenant) -> None:
        workspace = await store.create_workspace(tenant.org.id, "Second")
        by = structs.replace(tenant.service, workspace_id=workspace.id)
        made = await store.create_page(by, title="Refunds", content="")
        with pytest.raises(Conflict, match="pages or tables"):
            await store.delete_workspace(tenant.org.id, workspace.id)
        await store.delete_page(by, made.id)
        await store.delete_workspace(tenant.org.id, workspace.id)

    async def test_what_cannot_be_kept_is_refused(self, store: Store, tenant: Tenant, database: Database) -> None:
        async with nothing_written(database):
            for title, content in (("", "x"), ("a\0b", "x"), ("a", "\ud800")):
                with pytest.raises(InvalidRequest):
                    await store.create_page(tenant.service, title=title, content=content)
            with pytest.raises(TooLarge):
                await store.create_page(tenant.service, title="a", content="x" * 1_000_001)
            with pytest.raises(NotFound):
                await store.change_page(tenant.service, MISSING, title="x")


class TestPrivacy:
    async def test_another_tenant_and_another_workspace_meet_nothing(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        made = await store.create_page(tenant.service, title="Secret", content="saffron")
        other = await a_tenant(store, "Other")
        workspace = await store.create_workspace(tenant.org.id, "Second")
        elsewhere = structs.replace(tenant.service, workspace_id=workspace.id)
        nobody = structs.replace(tenant.ann, user_id=None)
        async with nothing_written(database):
            for by in (other.ann, other.service, elsewhere, nobody):
                with pytest.raises(NotFound):
                    await store.page(by, made.id)
                assert (await store.pages(by)).data == ()
                assert await titles(store, by, "saffron") == []
            for by in (other.service, elsewhere):
                with pytest.raises(NotFound):
                    await store.change_page(by, made.id, title="Mine")
                with pytest.raises(NotFound):
                    await store.delete_page(by, made.id)

    async def test_every_user_of_the_workspace_reads_it(self, store: Store, tenant: Tenant) -> None:
        made = await store.create_page(tenant.service, title="Open", content="saffron")
        for by in (tenant.ann, tenant.bob, tenant.service, as_user(tenant.service, tenant.bob)):
            assert (await store.page(by, made.id)).title == "Open"
            assert await titles(store, by, "saffron") == ["Open"]


class TestFinding:
    async def test_a_page_is_found_by_its_present_words(self, store: Store, tenant: Tenant) -> None:
        made = await store.create_page(tenant.service, title="Spices", content="Saffron grows in Kashmir.")
        for query in ("saffron", "SAFFRON", "kashm", "spices kashmir"):
            assert await titles(store, tenant.ann, query) == ["Spices"], query
        await store.change_page(tenant.service, made.id, content="Vanilla grows in Madagascar.")
        assert await titles(store, tenant.ann, "saffron") == []
        assert await titles(store, tenant.ann, "vanilla") == ["Spices"]

    async def test_a_hit_shows_where_in_a_long_page_it_is(self, store: Store, tenant: Tenant) -> None:
        filler = "\n\n".join("Nothing of interest happens here. " * 20 for _ in range(8))
        content = (
            f"# Intro\n\n{filler}\n\n## Cancelling\n\nYou may cancel the subscription at any time.\n\n# End\n\nBye."
        )
        await store.create_page(tenant.service, title="Terms", content=content)
        [hit] = (await store.search_pages(tenant.ann, "cancel subscription")).hits
        assert hit.place == "Cancelling"
        assert "cancel the subscription" in hit.excerpt
        assert len(hit.excerpt) < 400

    async def test_a_search_can_be_paged_through_without_a_gap(self, store: Store, tenant: Tenant) -> None:
        for number in range(7):
            await store.create_page(tenant.service, title=f"P{number}", content="saffron " * (number + 1))
        seen: list[str] = []
        offset: int | None = 0
        while offset is not None:
            found = await store.search_pages(tenant.ann, "saffron", limit=3, offset=offset)
            seen += [hit.title for hit in found.hits]
            offset = found.next_offset
        assert sorted(seen) == [f"P{number}" for number in range(7)]

    async def test_any_text_is_a_query(self, store: Store, tenant: Tenant) -> None:
        await store.create_page(tenant.service, title="T", content="東京 text")
        for query in ("", "  ", "?!", '"', "'", "a OR", "NEAR(", "*", "-", "東", "x:*", "\\", "@ws", "a:b & c | !d"):
            await store.search_pages(tenant.ann, query)


class TestTextOfFiles:
    async def test_is_kept_once_for_the_same_bytes_and_found_where_it_is_allowed(
        self, store: Store, tenant: Tenant
    ) -> None:
        file = await a_file(store, tenant.ann)
        key, unknown = f"{file.sha256}.pdf", f"{file.sha256}.text"
        text = FileText(key=key, text="first page\fsaffron on the second page")
        await store.save_file_text(tenant.org.id, text, unit="page")
        await store.save_file_text(tenant.org.id, text, unit="page")
        assert await store.file_texts(tenant.org.id, [key, unknown]) == {key: text}
        found = await store.search_file_texts(tenant.org.id, [key], "saffron")
        assert [(hit.key, hit.place) for hit in found.hits] == [(key, "page 2")]
        assert (await store.search_file_texts(tenant.org.id, [unknown], "saffron")).hits == ()
        other = await a_tenant(store, "Other")
        assert await store.file_texts(other.org.id, [key]) == {}
        assert (await store.search_file_texts(other.org.id, [key], "saffron")).hits == ()
        assert await titles(store, tenant.ann, "saffron") == []

    async def test_goes_with_the_last_file_of_these_bytes(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        file = await a_file(store, tenant.ann)
        assert file.sha256 is not None
        keys = [f"{file.sha256}.text", f"{file.sha256}.pdf"]
        for key in keys:
            await store.save_file_text(tenant.org.id, FileText(key=key, text="saffron"), unit="page")
        await store.purge_knowledge(before=0)
        assert list(await store.file_texts(tenant.org.id, keys)) == sorted(keys)
        await store.delete_file(tenant.ann, file.id)
        await store.purge(deleted_before=database.now + 1)
        await store.purge_knowledge(before=0)
        assert await store.file_texts(tenant.org.id, keys) == {}
        assert (await store.search_file_texts(tenant.org.id, keys, "saffron")).hits == ()

    async def test_of_an_earlier_release_is_erased(self, store: Store, tenant: Tenant, database: Database) -> None:
        """It was kept for its bytes alone, and found by the name of the first file that had them. The migration has put
        the bytes of all texts on the list."""
        file = await a_file(store, tenant.ann)
        assert file.sha256 is not None
        await store.save_file_text(tenant.org.id, FileText(key=file.sha256, text="saffron"), unit="page")
        table = "turnkeep.freed_bytes" if database.name == "postgres" else "freed_bytes"
        await database.execute(f"INSERT INTO {table} VALUES ('{tenant.org.id}', '{file.sha256}')")
        await store.purge_knowledge(before=0)
        assert await store.file_texts(tenant.org.id, [file.sha256]) == {}
