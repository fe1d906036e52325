"""Tables: typed columns, rows with numbers that are never used again, filters, order, and imports that nobody sees
before they are whole."""

import asyncio

import pytest
from msgspec import structs

from tests.store.databases import Database
from tests.store.factories import Tenant, a_tenant, nothing_written
from turnkeep.errors import Conflict, IdempotencyConflict, InvalidRequest, NotFound
from turnkeep.ids import TableId
from turnkeep.model.knowledge import Cell, Column, Filter, KnowledgeTable, Operator, RowQuery, Sort
from turnkeep.model.principals import Principal
from turnkeep.store.ports import Store

NAME = Column(key=0, name="Name", type="text")
PRICE = Column(key=1, name="Price", type="number")
SINCE = Column(key=2, name="Since", type="date")
LIVE = Column(key=3, name="Live", type="boolean")
SEEN = Column(key=4, name="Seen", type="datetime")
COLUMNS = (NAME, PRICE, SINCE, LIVE, SEEN)

ROWS: list[list[Cell]] = [
    ["Saffron", 9.5, "2024-01-09", True, "2024-01-09T23:00:00.000Z"],
    ["Salt", 10, "2023-12-31", False, None],
    ["Pepper black", -2, None, True, "2024-01-10T01:00:00.000Z"],
    ["pepper white", 100, "2024-10-01", None, None],
    [None, None, "1999-01-01", False, None],
]

CASES: list[tuple[Column, Operator, Cell | tuple[Cell, ...], list[int]]] = [
    (NAME, "eq", "Salt", [2]),
    (NAME, "ne", "Salt", [1, 3, 4, 5]),
    (NAME, "contains", "PEPPER", [3, 4]),
    (NAME, "in", ("Salt", "Saffron"), [1, 2]),
    (NAME, "empty", None, [5]),
    (NAME, "not_empty", None, [1, 2, 3, 4]),
    (PRICE, "gt", 9.5, [2, 4]),
    (PRICE, "ge", 9.5, [1, 2, 4]),
    (PRICE, "lt", 10, [1, 3]),
    (PRICE, "le", 10, [1, 2, 3]),
    (PRICE, "eq", 10, [2]),
    (PRICE, "ne", 10, [1, 3, 4, 5]),
    (PRICE, "in", (10, 100.0), [2, 4]),
    (PRICE, "empty", None, [5]),
    (SINCE, "lt", "2024-01-10", [1, 2, 5]),
    (SINCE, "ge", "2024-01-09", [1, 4]),
    (SEEN, "lt", "2024-01-10T00:00:00.000Z", [1]),
    (LIVE, "eq", True, [1, 3]),
    (LIVE, "ne", True, [2, 4, 5]),
    (LIVE, "empty", None, [4]),
]
"""A filter, and the rows that fit it."""

ODD = ["' OR 1=1 --", "\\", '"', "%", "$[0]", ":f0", "$1"]

ORDERS: list[tuple[Column, bool, list[int]]] = [
    (PRICE, False, [3, 1, 2, 4, 5]),
    (PRICE, True, [4, 2, 1, 3, 5]),
    (SINCE, False, [5, 2, 1, 4, 3]),
    (SINCE, True, [4, 1, 2, 5, 3]),
    (NAME, False, [3, 1, 2, 4, 5]),
    (LIVE, True, [1, 3, 2, 5, 4]),
]


async def a_table(
    store: Store, tenant: Tenant, name: str = "Spices", *, rows: list[list[Cell]] = ROWS
) -> KnowledgeTable:
    table = await store.create_table(tenant.service, name=name, columns=COLUMNS)
    if rows:
        await store.add_rows(tenant.service, table.id, rows, batch="first")
    return await store.table(tenant.service, table.id)


async def found(store: Store, by: Principal, table: KnowledgeTable, **query: object) -> list[int]:
    hits = (await store.find_rows(by, RowQuery(**query), table=table, limit=100)).hits  # type: ignore[arg-type]
    return [hit.row.number for hit in hits]


class TestKeeping:
    async def test_a_table_and_its_rows_come_back_as_they_were_written(self, store: Store, tenant: Tenant) -> None:
        table = await a_table(store, tenant)
        assert (table.name, table.columns, table.row_count) == ("Spices", COLUMNS, 5)
        assert [list(row.cells) for row in await store.rows(tenant.ann, table.id)] == ROWS
        assert (await store.row(tenant.ann, table.id, 3)).cells == tuple(ROWS[2])

    async def test_numbers_of_rows_are_never_used_again(self, store: Store, tenant: Tenant) -> None:
        table = await a_table(store, tenant)
        await store.delete_row(tenant.service, table.id, 5)
        assert await store.add_rows(tenant.service, table.id, [["Mint"]], batch="second") == [6]
        assert [row.number for row in await store.rows(tenant.ann, table.id)] == [1, 2, 3, 4, 6]
        assert (await store.table(tenant.ann, table.id)).row_count == 5

    async def test_the_same_batch_again_adds_nothing(self, store: Store, tenant: Tenant) -> None:
        table = await a_table(store, tenant, rows=[])
        once = await store.add_rows(tenant.service, table.id, [["a"], ["b"]], batch="x")
        await store.add_rows(tenant.service, table.id, [["c"]], batch="y")
        assert await store.add_rows(tenant.service, table.id, [["a"], ["b"]], batch="x") == once == [1, 2]
        assert (await store.table(tenant.ann, table.id)).row_count == 3

    async def test_the_same_batch_with_another_digest_is_refused(self, store: Store, tenant: Tenant) -> None:
        table = await a_table(store, tenant, rows=[])
        once = await store.add_rows(tenant.service, table.id, [["a"], ["b"]], batch="x", digest="d1")
        assert await store.add_rows(tenant.service, table.id, [["a"], ["b"]], batch="x", digest="d1") == once
        assert await store.added_rows(tenant.service, table.id, batch="x", digest="d1") == range(1, 3)
        assert await store.added_rows(tenant.service, table.id, batch="y", digest="d1") is None
        with pytest.raises(IdempotencyConflict):
            await store.add_rows(tenant.service, table.id, [["c"]], batch="x", digest="d2")
        with pytest.raises(IdempotencyConflict):
            await store.added_rows(tenant.service, table.id, batch="x", digest="d2")
        assert (await store.table(tenant.ann, table.id)).row_count == 2

    async def test_a_batch_from_before_digests_is_known_by_its_name(self, store: Store, tenant: Tenant) -> None:
        table = await a_table(store, tenant, rows=[])
        await store.add_rows(tenant.service, table.id, [["a"], ["b"]], batch="x")
        assert await store.add_rows(tenant.service, table.id, [["c"]], batch="x", digest="d") == [1, 2]

    async def test_many_who_add_at_once_get_numbers_of_their_own(self, store: Store, tenant: Tenant) -> None:
        table = await a_table(store, tenant, rows=[])
        numbers = await asyncio.gather(
            *(store.add_rows(tenant.service, table.id, [[f"r{n}"], [f"s{n}"]], batch=f"b{n}") for n in range(20))
        )
        assert sorted(number for batch in numbers for number in batch) == list(range(1, 41))

    async def test_a_changed_row_is_found_by_its_new_words_alone(self, store: Store, tenant: Tenant) -> None:
        table = await a_table(store, tenant)
        changed = await store.change_row(tenant.service, table.id, 1, ["Vanilla", 1])
        assert changed.cells == ("Vanilla", 1)
        assert await found(store, tenant.ann, table, text="vanilla") == [1]
        assert await found(store, tenant.ann, table, text="saffron") == []

    async def test_a_name_is_given_once_in_a_workspace(self, store: Store, tenant: Tenant) -> None:
        table = await a_table(store, tenant)
        with pytest.raises(Conflict, match="sPICES"):
            await store.create_table(tenant.service, name="sPICES", columns=COLUMNS)
        other = await a_table(store, tenant, "Other", rows=[])
        with pytest.raises(Conflict, match="Spices"):
            await store.change_table(tenant.service, other.id, name="Spices")
        await store.delete_table(tenant.service, table.id)
        assert (await store.change_table(tenant.service, other.id, name="Spices")).name == "Spices"

    async def test_columns_are_added_and_renamed_without_touching_rows(self, store: Store, tenant: Tenant) -> None:
        table = await a_table(store, tenant)
        new = (structs.replace(NAME, name="Title"), *COLUMNS[1:], Column(key=5, name="Note", type="text"))
        changed = await store.change_table(tenant.service, table.id, columns=new)
        row = await store.row(tenant.ann, table.id, 1)
        assert row.cell(new[0]) == "Saffron"
        assert row.cell(new[5]) is None
        assert await found(store, tenant.ann, changed, filters=(Filter(column=new[5], op="empty"),)) == [1, 2, 3, 4, 5]

    async def test_a_column_with_rows_does_not_go_and_keeps_its_type(self, store: Store, tenant: Tenant) -> None:
        table = await a_table(store, tenant)
        with pytest.raises(Conflict, match="Seen"):
            await store.change_table(tenant.service, table.id, columns=COLUMNS[:4])
        with pytest.raises(Conflict, match="type"):
            await store.change_table(
                tenant.service, table.id, columns=(structs.replace(NAME, type="number"), *COLUMNS[1:])
            )
        assert (await store.table(tenant.ann, table.id)).columns == COLUMNS

    async def test_a_deleted_table_is_gone_at_once_and_erased_bit_by_bit(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        table = await a_table(store, tenant)
        kept = await a_table(store, tenant, "Kept")
        await store.delete_table(tenant.service, table.id)
        with pytest.raises(NotFound):
            await store.rows(tenant.ann, table.id)
        assert [each.name for each in (await store.tables(tenant.ann)).data] == ["Kept"]
        hits = (await store.find_rows(tenant.ann, RowQuery(text="saffron"), table=None)).hits
        assert [hit.table.id for hit in hits] == [kept.id]
        assert await store.purge_knowledge(before=0, limit=3) == 3
        while await store.purge_knowledge(before=0, limit=3):
            pass
        contents = await database.contents()
        assert len(contents["table_rows"]) == 5
        assert len(contents["tables"]) == 1

    async def test_what_cannot_be_kept_is_refused_whole(self, store: Store, tenant: Tenant, database: Database) -> None:
        table = await a_table(store, tenant)
        bad: list[Cell] = [float("nan"), float("inf"), 2**60, "a\0b", "\ud800"]
        async with nothing_written(database):
            for cell in bad:
                with pytest.raises(InvalidRequest):
                    await store.add_rows(tenant.service, table.id, [["fine"], [cell]], batch="bad")
            with pytest.raises(InvalidRequest, match="40,000 characters"):
                await store.add_rows(tenant.service, table.id, [["x" * 40_000]], batch="bad")
            with pytest.raises(InvalidRequest, match="A row takes"):
                await store.add_rows(tenant.service, table.id, [["ü" * 30_000] * 5], batch="bad")
            with pytest.raises(InvalidRequest):
                await store.add_rows(tenant.service, table.id, [], batch="bad")
            for columns in ((), (NAME, structs.replace(PRICE, name="name")), (NAME, NAME)):
                with pytest.raises(InvalidRequest):
                    await store.create_table(tenant.service, name="Bad", columns=columns)
            with pytest.raises(NotFound):
                await store.change_row(tenant.service, table.id, 99, ["x"])


class TestPrivacy:
    async def test_another_tenant_and_another_workspace_meet_nothing(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        table = await a_table(store, tenant)
        other = await a_tenant(store, "Other")
        workspace = await store.create_workspace(tenant.org.id, "Second")
        elsewhere = structs.replace(tenant.service, workspace_id=workspace.id)
        nobody = structs.replace(tenant.ann, user_id=None)
        async with nothing_written(database):
            for by in (other.ann, other.service, elsewhere, nobody):
                for reading in (store.table(by, table.id), store.rows(by, table.id), store.row(by, table.id, 1)):
                    with pytest.raises(NotFound):
                        await reading
                assert (await store.tables(by)).data == ()
                assert (await store.find_rows(by, RowQuery(text="saffron"), table=None)).hits == ()
                assert (await store.find_rows(by, RowQuery(text="saffron"), table=table)).hits == ()
                assert (await store.find_rows(by, RowQuery(), table=table)).hits == ()
            for by in (other.service, elsewhere):
                for writing in (
                    store.add_rows(by, table.id, [["x"]], batch="x"),
                    store.delete_table(by, table.id),
                    store.change_table(by, table.id, name="Mine"),
                    store.delete_row(by, table.id, 1),
                    store.change_row(by, table.id, 1, ["x"]),
                    store.begin_import(by, table.id, import_id="i", count=1),
                ):
                    with pytest.raises(NotFound):
                        await writing


class TestFilters:
    async def test_compare_values_as_what_they_are(self, store: Store, tenant: Tenant) -> None:
        table = await a_table(store, tenant)
        for column, op, value, numbers in CASES:
            fitting = await found(store, tenant.ann, table, filters=(Filter(column=column, op=op, value=value),))
            assert fitting == numbers, (column.name, op, value)

    async def test_all_of_them_hold_together_and_with_words(self, store: Store, tenant: Tenant) -> None:
        table = await a_table(store, tenant)
        cheap = Filter(column=PRICE, op="lt", value=50)
        live = Filter(column=LIVE, op="eq", value=True)
        assert await found(store, tenant.ann, table, filters=(cheap, live)) == [1, 3]
        assert await found(store, tenant.ann, table, text="pepper", filters=(cheap, live)) == [3]

    async def test_a_value_is_never_read_as_sql(self, store: Store, tenant: Tenant) -> None:
        table = await a_table(store, tenant, rows=[[value] for value in ODD])
        for number, value in enumerate(ODD, start=1):
            equal = Filter(column=NAME, op="eq", value=value)
            assert await found(store, tenant.ann, table, filters=(equal,)) == [number]
            part = Filter(column=NAME, op="contains", value=value)
            assert number in await found(store, tenant.ann, table, filters=(part,))


class TestOrder:
    async def test_is_that_of_numbers_dates_and_letters_and_what_is_empty_comes_last(
        self, store: Store, tenant: Tenant
    ) -> None:
        table = await a_table(store, tenant)
        for column, is_descending, numbers in ORDERS:
            sort = Sort(column=column, is_descending=is_descending)
            assert await found(store, tenant.ann, table, sort=sort) == numbers, (column.name, is_descending)

    async def test_words_with_an_order(self, store: Store, tenant: Tenant) -> None:
        table = await a_table(store, tenant)
        assert await found(store, tenant.ann, table, text="pepper", sort=Sort(column=PRICE, is_descending=True)) == [
            4,
            3,
        ]

    async def test_across_tables_there_are_neither_filters_nor_an_order(self, store: Store, tenant: Tenant) -> None:
        await a_table(store, tenant)
        for query in (
            RowQuery(text="x", sort=Sort(column=PRICE)),
            RowQuery(text="x", filters=(Filter(column=PRICE, op="empty"),)),
        ):
            with pytest.raises(InvalidRequest, match="table"):
                await store.find_rows(tenant.ann, query, table=None)

    async def test_results_can_be_paged_through_without_a_gap(self, store: Store, tenant: Tenant) -> None:
        table = await a_table(store, tenant, rows=[[f"saffron {n}", n] for n in range(25)])
        for query in (RowQuery(text="saffron"), RowQuery(sort=Sort(column=PRICE)), RowQuery()):
            seen: list[int] = []
            offset: int | None = 0
            while offset is not None:
                part = await store.find_rows(tenant.ann, query, table=table, limit=10, offset=offset)
                seen += [hit.row.number for hit in part.hits]
                offset = part.next_offset
            assert sorted(seen) == list(range(1, 26))


class TestImports:
    async def test_nobody_sees_a_row_before_the_last_is_there(self, store: Store, tenant: Tenant) -> None:
        table = await a_table(store, tenant)
        first = await store.begin_import(tenant.service, table.id, import_id="i1", count=3)
        assert first == 6
        await store.import_rows(table, import_id="i1", first=6, rows=[["Saffron two", 1], ["Saffron three", 2]])
        assert await store.add_rows(tenant.service, table.id, [["between"]], batch="b") == [9]
        assert [row.number for row in await store.rows(tenant.ann, table.id)] == [1, 2, 3, 4, 5, 9]
        assert await found(store, tenant.ann, table, text="saffron") == [1]
        assert 6 not in await found(store, tenant.ann, table)
        with pytest.raises(NotFound):
            await store.row(tenant.ann, table.id, 6)
        with pytest.raises(NotFound):
            await store.delete_row(tenant.service, table.id, 6)
        await store.import_rows(table, import_id="i1", first=8, rows=[["Saffron four", 3]])
        done = await store.finish_import(table, import_id="i1")
        assert done.row_count == 9
        assert sorted(await found(store, tenant.ann, table, text="saffron")) == [1, 6, 7, 8]

    async def test_the_same_rows_again_change_nothing(self, store: Store, tenant: Tenant) -> None:
        table = await a_table(store, tenant, rows=[])
        await store.begin_import(tenant.service, table.id, import_id="i1", count=1)
        for _ in range(2):
            await store.import_rows(table, import_id="i1", first=1, rows=[["Saffron"]])
        assert (await store.finish_import(table, import_id="i1")).row_count == 1
        assert await found(store, tenant.ann, table, text="saffron") == [1]

    async def test_one_import_at_a_time(self, store: Store, tenant: Tenant) -> None:
        table = await a_table(store, tenant)
        await store.begin_import(tenant.service, table.id, import_id="i1", count=3)
        with pytest.raises(Conflict, match="under way"):
            await store.begin_import(tenant.service, table.id, import_id="i2", count=3)
        with pytest.raises(Conflict, match="under way"):
            await store.change_table(tenant.service, table.id, columns=COLUMNS)
        for stray in (
            store.import_rows(table, import_id="i2", first=6, rows=[["x"]]),
            store.finish_import(table, import_id="i2"),
        ):
            with pytest.raises(Conflict, match="given up"):
                await stray
        with pytest.raises(Conflict):
            await store.import_rows(table, import_id="i1", first=7, rows=[["x"], ["y"], ["z"]])

    async def test_what_was_abandoned_never_was(self, store: Store, tenant: Tenant, database: Database) -> None:
        table = await a_table(store, tenant)
        await store.begin_import(tenant.service, table.id, import_id="i1", count=3)
        await store.import_rows(table, import_id="i1", first=6, rows=[["Saffron two"]])
        await store.abandon_import(table, import_id="i1")
        with pytest.raises(Conflict):
            await store.finish_import(table, import_id="i1")
        assert len((await database.contents())["table_rows"]) == 5
        assert await store.begin_import(tenant.service, table.id, import_id="i2", count=1) == 9

    async def test_an_import_whose_server_died_is_cleared_away_after_a_silence(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        table = await a_table(store, tenant)
        await store.begin_import(tenant.service, table.id, import_id="i1", count=3)
        await store.import_rows(table, import_id="i1", first=6, rows=[["Saffron two"]])
        await store.purge_knowledge(before=database.now)
        assert len((await database.contents())["table_rows"]) == 6
        await database.advance(seconds=3600)
        while await store.purge_knowledge(before=database.now):
            pass
        assert len((await database.contents())["table_rows"]) == 5
        assert (await store.table(tenant.ann, table.id)).row_count == 5
        await store.begin_import(tenant.service, table.id, import_id="i2", count=1)

    async def test_is_kept_as_a_batch_once_it_is_seen(self, store: Store, tenant: Tenant) -> None:
        table = await a_table(store, tenant)
        first = await store.begin_import(tenant.service, table.id, import_id="i1", count=2)
        await store.import_rows(table, import_id="i1", first=first, rows=[["a"], ["b"]])
        assert await store.added_rows(tenant.service, table.id, batch="k", digest="d") is None
        await store.finish_import(table, import_id="i1", batch="k", digest="d")
        assert await store.added_rows(tenant.service, table.id, batch="k", digest="d") == range(6, 8)
        with pytest.raises(IdempotencyConflict):
            await store.add_rows(tenant.service, table.id, [["c"]], batch="k", digest="e")

    async def test_is_not_shown_when_its_batch_was_added_meanwhile(self, store: Store, tenant: Tenant) -> None:
        table = await a_table(store, tenant)
        first = await store.begin_import(tenant.service, table.id, import_id="i1", count=1)
        await store.import_rows(table, import_id="i1", first=first, rows=[["imported"]])
        await store.add_rows(tenant.service, table.id, [["added"]], batch="k", digest="e")
        with pytest.raises(Conflict, match=r"under this Idempotency-Key meanwhile\. Nothing was imported"):
            await store.finish_import(table, import_id="i1", batch="k", digest="d")
        await store.abandon_import(table, import_id="i1")
        assert [row.cells[0] for row in await store.rows(tenant.ann, table.id, after=5)] == ["added"]

    async def test_a_deleted_table_takes_its_import_with_it(self, store: Store, tenant: Tenant) -> None:
        table = await a_table(store, tenant)
        await store.begin_import(tenant.service, table.id, import_id="i1", count=3)
        await store.delete_table(tenant.service, table.id)
        with pytest.raises(Conflict):
            await store.import_rows(table, import_id="i1", first=6, rows=[["x"]])
        with pytest.raises(NotFound):
            await store.begin_import(tenant.service, TableId(table.id), import_id="i2", count=1)
