"""The native tools: whole hits within the limit, sources for each, and errors that say what to do."""

import re

import pytest
from msgspec import structs

from tests.knowledge.conftest import Library, on_sqlite
from tests.store.factories import as_user, finish
from turnkeep.ids import new_call_id
from turnkeep.model.knowledge import Cell, Column, KnowledgeTable
from turnkeep.store.commands import NewConversation
from turnkeep.tools.ports import Outcome

COLUMNS = (
    Column(key=0, name="Name", type="text"),
    Column(key=1, name="Price", type="number"),
    Column(key=2, name="Since", type="date"),
)


def told(outcome: Outcome) -> str:
    """The text that the model reads."""
    assert outcome.error is None, outcome.error
    passages = [passage.rendered(number) for number, passage in enumerate(outcome.passages, start=1)]
    return "\n\n".join([str(outcome.result), *passages])


async def spices(library: Library, count: int = 5) -> KnowledgeTable:
    table = await library.store.create_table(library.tenant.service, name="Spices", columns=COLUMNS)
    rows: list[list[Cell]] = [[f"Spice {n}", n, f"2024-01-{n:02}"] for n in range(1, count + 1)]
    await library.store.add_rows(library.tenant.service, table.id, rows, batch="b")
    return table


class TestSearchPages:
    async def test_a_hit_is_a_source_that_names_its_place(self, library: Library) -> None:
        page = await library.store.create_page(
            library.tenant.service, title="Refunds", content="# How\n\nWithin 30 days of the purchase."
        )
        outcome = await library.call("search_pages", {"query": "what are the days of purchase"})
        [passage] = outcome.passages
        assert passage.source.page_id == page.id
        assert (passage.source.title, passage.source.place) == ("Refunds", "How")
        assert "30 days" in passage.source.snippet
        assert told(outcome).endswith("[1] Refunds, How\n# How Within 30 days of the purchase.")

    async def test_long_results_are_whole_and_the_next_ones_follow(self, library: Library) -> None:
        for number in range(12):
            text = f"saffron {number} " + "and many more words about it " * 100
            await library.store.create_page(library.tenant.service, title=f"Page {number}", content=text)
        seen: list[str] = []
        offset: int | None = 0
        while offset is not None:
            outcome = await library.call("search_pages", {"query": "saffron", "offset": offset}, result_chars=2_000)
            assert len(told(outcome)) <= 2_000
            assert outcome.passages
            seen += [passage.source.title for passage in outcome.passages]
            heading = str(outcome.result)
            offset = int(heading.rpartition("offset ")[2].partition(".")[0]) if "offset" in heading else None
        assert sorted(seen) == sorted(f"Page {number}" for number in range(12))

    @on_sqlite
    async def test_no_hit_and_bad_arguments_are_reported(self, library: Library) -> None:
        assert "Nothing was found" in told(await library.call("search_pages", {"query": "saffron"}))
        for args in ({}, {"query": ""}, {"query": 3}, {"query": "a", "offset": -1}, {"query": "a", "more": 1}):
            outcome = await library.call("search_pages", args)
            assert outcome.error is not None
            assert "search_pages" in outcome.error


class TestTables:
    async def test_filters_and_sorting_compare_numbers_and_dates(self, library: Library) -> None:
        table = await spices(library, 12)
        outcome = await library.call(
            "search_user_tables",
            {
                "table": "spices",
                "filters": [
                    {"column": "price", "op": "gt", "value": 9},
                    {"column": "Since", "op": "le", "value": "2024-01-11"},
                ],
                "sort": "-Price",
            },
        )
        assert [passage.source.row for passage in outcome.passages] == [11, 10]
        first = outcome.passages[0]
        assert first.text == "Name: Spice 11; Price: 11; Since: 2024-01-11"
        assert (first.source.table_id, first.source.place, first.source.title) == (table.id, "row 11", "Spices")

    async def test_words_are_searched_in_all_tables(self, library: Library) -> None:
        await spices(library)
        outcome = await library.call("search_user_tables", {"query": "spice 3"})
        assert outcome.passages[0].source.row == 3

    @on_sqlite
    async def test_without_arguments_it_says_which_tables_there_are(self, library: Library) -> None:
        assert "no tables" in told(await library.call("search_user_tables", {}))
        await spices(library)
        described = told(await library.call("search_user_tables", {}))
        assert "- Spices: 5 rows; Name (text), Price (number), Since (date)." in described

    @on_sqlite
    async def test_lists_many_tables_in_parts_and_finds_each_by_its_name(self, library: Library) -> None:
        columns = [Column(key=0, name="A column with a rather long name", type="text")]
        for number in range(120):
            await library.store.create_table(library.tenant.service, name=f"Table {number:03}", columns=columns)
        seen: list[str] = []
        offset: int | None = 0
        while offset is not None:
            said = told(await library.call("search_user_tables", {"offset": offset}))
            assert len(said) <= 4_000
            seen += re.findall(r"(?m)^- (Table \d+): 0 rows; A column with a rather long name \(text\)\.$", said)
            following = re.search(r"offset (\d+)\.", said.splitlines()[0])
            offset = int(following[1]) if following else None
        assert sorted(seen) == [f"Table {number:03}" for number in range(120)]
        behind = await library.call("search_user_tables", {"offset": 120})
        assert "120 tables" in (behind.error or "")
        saved = await library.call("save_to_table", {"table": "table 000", "rows": [{columns[0].name: "x"}]})
        assert saved.error is None

    @on_sqlite
    @pytest.mark.parametrize(
        "args, hint",
        [
            ({"table": "Nope"}, "There are: Spices"),
            ({"table": "Spices", "filters": [{"column": "Cost", "value": 1}]}, "Name (text), Price (number)"),
            ({"table": "Spices", "filters": [{"column": "Price", "value": "cheap"}]}, "such as 12.5"),
            ({"table": "Spices", "filters": [{"column": "Price", "op": "like", "value": 1}]}, "do not fit"),
            ({"table": "Spices", "sort": "Cost"}, "no column 'Cost'"),
        ],
    )
    async def test_a_bad_filter_is_an_error_with_advice(
        self, library: Library, args: dict[str, object], hint: str
    ) -> None:
        await spices(library)
        outcome = await library.call("search_user_tables", args)
        assert outcome.error is not None
        assert hint in outcome.error

    @on_sqlite
    async def test_a_wide_row_is_cut_between_cells_and_says_so(self, library: Library) -> None:
        columns = [Column(key=key, name=f"Column {key}", type="text") for key in range(100)]
        table = await library.store.create_table(library.tenant.service, name="Wide", columns=columns)
        await library.store.add_rows(library.tenant.service, table.id, [["saffron " * 40] * 100] * 2, batch="b")
        outcome = await library.call("search_user_tables", {"query": "saffron"})
        assert len(told(outcome)) <= 4_000
        assert "more columns)" in outcome.passages[0].text

    async def test_rows_are_saved_once_however_often_the_call_is_run(self, library: Library) -> None:
        table = await spices(library, 1)
        call_id = new_call_id()
        args = {"table": "Spices", "rows": [{"Name": "Mint", "price": "2.5"}, {"Name": "Dill"}]}
        for _ in range(2):
            outcome = await library.call("save_to_table", args, call_id=call_id)
            assert told(outcome) == "Saved to the table 'Spices' as rows 2 to 3."
        rows = await library.store.rows(library.tenant.ann, table.id)
        assert [row.cells for row in rows[1:]] == [("Mint", 2.5, None), ("Dill", None, None)]
        assert library.tools["save_to_table"].spec.is_idempotent

    @on_sqlite
    async def test_a_row_that_does_not_fit_is_not_saved(self, library: Library) -> None:
        table = await spices(library, 1)
        for rows in ([{"Nope": 1}], [{"Name": "a"}, {"Price": "x"}], [], [1]):
            outcome = await library.call("save_to_table", {"table": "Spices", "rows": rows})
            assert outcome.error is not None
        assert (await library.store.table(library.tenant.ann, table.id)).row_count == 1


class TestConversations:
    async def test_only_those_of_the_same_user_are_found(self, library: Library) -> None:
        store, tenant = library.store, library.tenant
        mine = await finish(
            store, tenant.ann, "Where grows saffron?", "In Kashmir.", new=NewConversation(title="Spices")
        )
        await finish(store, tenant.bob, "My secret saffron recipe")
        await finish(store, tenant.service, "The service's own saffron")
        for by in (tenant.ann, as_user(tenant.service, tenant.ann), tenant.service):
            outcome = await library.call("search_conversations", {"query": "tell me where saffron grows"}, by=by)
            assert [passage.source.conversation_id for passage in outcome.passages] == [mine.conversation_id]
            assert outcome.passages[0].source.title == "Spices"

    async def test_a_key_without_a_user_finds_only_conversations_without_a_user(self, library: Library) -> None:
        store, tenant = library.store, library.tenant
        await finish(store, tenant.bob, "My secret saffron recipe")
        own = await finish(store, tenant.service, "The service's own saffron")
        here = await finish(store, tenant.service, "Another one about saffron")
        outcome = await library.call(
            "search_conversations", {"query": "saffron"}, by=tenant.service, conversation_id=here.conversation_id
        )
        assert [passage.source.conversation_id for passage in outcome.passages] == [own.conversation_id]

    @on_sqlite
    async def test_conversations_of_another_workspace_are_not_found(self, library: Library) -> None:
        workspace = await library.store.create_workspace(library.tenant.org.id, "Second")
        by = structs.replace(library.tenant.ann, workspace_id=workspace.id)
        outcome = await library.call("search_conversations", {"query": "saffron"}, by=by)
        assert outcome.error == "No such conversation."
