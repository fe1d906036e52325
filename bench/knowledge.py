"""Knowledge: searches among 100,000 rows and 10,000 pages beside a raw query of the same index, and a CSV import.

The raw query is the one that finds and ranks: FTS5 with BM25, or the GIN index with ts_rank, for the same words, with
as many results, and once more for any of the words where all of them find too little. A search does that, then reads
what it found through the client path and cuts excerpts. The import goes through the importer, as the server runs it;
its memory is the growth of the process's peak beside that of an import a tenth as large, which is what would grow with
the file if anything did.
"""

import asyncio
import random
import resource
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import uvloop

from bench.harness import Place, place, quiet, target
from turnkeep.knowledge.csv_files import Importer
from turnkeep.model.knowledge import Column, Filter, KnowledgeTable, RowQuery, Sort
from turnkeep.model.principals import Principal
from turnkeep.model.text_search import SearchQuery, parse_query
from turnkeep.store.fulltext import CANDIDATES, TITLE_WEIGHT, fts_text, loose, tsquery_text
from turnkeep.store.postgres import PostgresStore
from turnkeep.store.sqlite import SqliteStore

packages = ("apsw", "asyncpg", "msgspec", "uvloop")

ROWS, PAGES, QUERIES = 100_000, 10_000, 300
QUICK = (5_000, 500, 50)
COLUMNS = [
    Column(key=0, name="Name", type="text"),
    Column(key=1, name="Note", type="text"),
    Column(key=2, name="Price", type="number"),
    Column(key=3, name="Since", type="date"),
]
LIMIT = 10
AT_ONCE = 50
"""Pages that are written at once, while everything is made ready."""
LIMIT_MS = 50.0

Store = Any
Search = Callable[[str], Awaitable[object]]


class Words:
    """A language of 20,000 words, used as people use words: few often, most seldom."""

    def __init__(self) -> None:
        self._chance = random.Random(9)
        letters = "abcdefghijklmnopqrstuvwxyz"
        self._words = ["".join(self._chance.choices(letters, k=self._chance.randint(3, 9))) for _ in range(20_000)]
        self._sums = list(accumulate(1 / rank for rank in range(1, len(self._words) + 1)))
        self._rarer = list(accumulate(1 / rank for rank in range(51, len(self._words) + 1)))

    def some(self, count: int) -> str:
        return " ".join(self._chance.choices(self._words, cum_weights=self._sums, k=count))

    def query(self) -> str:
        """One to three words, none of them among the fifty commonest: people leave those out."""
        count = self._chance.choice((1, 2, 2, 3))
        return " ".join(self._chance.choices(self._words[50:], cum_weights=self._rarer, k=count))


def run(*, quick: bool = False) -> list[dict[str, Any]]:
    return uvloop.run(_run(*(QUICK if quick else (ROWS, PAGES, QUERIES))))


async def _run(rows: int, pages: int, queries: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    async with place() as here:
        path = here.directory / "knowledge.db"
        sqlite = await SqliteStore.open(path)
        found += await _measure(
            "SQLite", sqlite, lambda who, table: _raw_sqlite(path, who, table), here, rows, pages, queries
        )
        await sqlite.close()
        uri = await here.create_database("knowledge")
        postgres = await PostgresStore.open(uri)
        found += await _measure(
            "PostgreSQL", postgres, lambda who, table: _raw_postgres(uri, who, table), here, rows, pages, queries
        )
        await postgres.close()
    return found


async def _measure(
    on: str,
    store: Store,
    raw: Callable[[Principal, KnowledgeTable], Awaitable[tuple[Search, Search]]],
    here: Place,
    rows: int,
    pages: int,
    queries: int,
) -> list[dict[str, Any]]:
    words = Words()
    org, workspace = await store.create_org("bench")
    who = Principal(org_id=org.id, workspace_id=workspace.id, user_id=None, role="service")
    found = await _import(on, store, who, words, here.directory, rows)
    [table] = (await store.tables(who)).data[:1]
    for _ in range(0, pages, AT_ONCE):
        written = [(words.some(4), f"# {words.some(3)}\n\n{words.some(250)}") for _ in range(AT_ONCE)]
        await asyncio.gather(*(store.create_page(who, title=title, content=text) for title, text in written))
    raw_rows, raw_pages = await raw(who, table)
    asked = [words.query() for _ in range(queries)]

    async def search_rows(query: str) -> object:
        return await store.find_rows(who, RowQuery(text=query), table=table, limit=LIMIT)

    async def search_pages(query: str) -> object:
        return await store.search_pages(who, query, limit=LIMIT)

    cheap = Filter(column=COLUMNS[2], op="lt", value=5_000)

    async def filtered(query: str) -> object:
        sort = Sort(column=COLUMNS[3], is_descending=True)
        return await store.find_rows(who, RowQuery(text=query, filters=(cheap,), sort=sort), table=table, limit=LIMIT)

    for name, ours, theirs in (("rows", search_rows, raw_rows), ("pages", search_pages, raw_pages)):
        mine, bare = await _times(asked, ours, theirs)
        found += _figures(on, f"search {name}", mine, bare)
    narrowed, _ = await _times(asked[: queries // 3], filtered, raw_rows)
    found.append(_row(on, "search rows, filtered and sorted", "Turnkeep", narrowed))
    return found


async def _times(asked: Sequence[str], ours: Search, theirs: Search) -> tuple[list[float], list[float]]:
    mine: list[float] = []
    bare: list[float] = []
    for query in asked[:20]:
        await ours(query)
        await theirs(query)
    with quiet():
        for query in asked:
            for search, seconds in ((ours, mine), (theirs, bare)):
                began = time.perf_counter()
                await search(query)
                seconds.append(time.perf_counter() - began)
    return mine, bare


def _figures(on: str, figure: str, mine: list[float], bare: list[float]) -> list[dict[str, Any]]:
    return [
        _row(on, figure, "Turnkeep", mine),
        _row(on, figure, "raw query", bare),
        target(f"{on}: {figure}, p95", _p95(mine) * 1000, LIMIT_MS, unit="ms"),
        target(f"{on}: {figure}, p95 beside the raw query", _p95(mine) / _p95(bare), 2.0),
    ]


def _row(on: str, figure: str, contender: str, seconds: list[float]) -> dict[str, Any]:
    median = statistics.median(seconds) * 1000
    return {
        "on": on,
        "figure": figure,
        "contender": contender,
        "median": f"{median:.2f} ms",
        "more": f"p95 {_p95(seconds) * 1000:.2f} ms",
    }


def _p95(seconds: list[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.95)]


async def _import(on: str, store: Store, who: Principal, words: Words, folder: Path, rows: int) -> list[dict[str, Any]]:
    """A small import first, so that the peak of the large one is that of its size and not of what both need."""
    peaks: list[int] = []
    seconds = 0.0
    for name, count in (("Small", rows // 10), ("Large", rows)):
        path = folder / f"{on}-{name}.csv"
        with path.open("w") as file:
            file.write("Name,Note,Price,Since\n")
            for number in range(count):
                file.write(f"{words.some(2)},{words.some(8)},{number % 10_000}.5,2024-{number % 12 + 1:02}-15\n")
        table = await store.create_table(who, name=name, columns=COLUMNS)
        began = time.perf_counter()
        importer = Importer(store)
        with path.open("rb") as file:
            csv = await importer.open(file, charset=None, delimiter=None)
            await importer.fill(who, table, csv)
        seconds = time.perf_counter() - began
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    grown = (peaks[1] - peaks[0]) / 1024
    return [
        {
            "on": on,
            "figure": f"import of {rows:,} rows of CSV",
            "contender": "Turnkeep",
            "median": f"{seconds:.1f} s",
            "more": f"{rows / seconds:,.0f} rows/s",
        },
        target(f"{on}: memory that {rows:,} rows take beyond {rows // 10:,}", grown, 40.0, unit="MB"),
    ]


async def _raw_sqlite(path: Path, who: Principal, table: KnowledgeTable) -> tuple[Search, Search]:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    connection.pragma("cache_size", -16 * 1024)
    rows_sql = (
        "SELECT n FROM (SELECT rowid AS n, bm25(row_tokens) AS rank FROM row_tokens WHERE row_tokens MATCH ? "
        "AND rowid BETWEEN ? AND ? ORDER BY rowid DESC LIMIT ?) ORDER BY rank LIMIT 200"
    )
    pages_sql = (
        "SELECT n FROM (SELECT rowid AS n, bm25(passage_tokens, ?, 1.0) AS rank FROM passage_tokens "
        "WHERE passage_tokens MATCH ? ORDER BY rowid DESC LIMIT ?) ORDER BY rank LIMIT 200"
    )
    first, last = table.serial << 32, (table.serial + 1 << 32) - 1

    def rows_of(wanted: SearchQuery, any_word: bool) -> list[Any]:
        text = fts_text(wanted, any_word=any_word)
        return connection.execute(rows_sql, (text, first, last, CANDIDATES)).fetchall()

    def pages_of(wanted: SearchQuery, any_word: bool) -> list[Any]:
        text = fts_text(wanted, any_word=any_word)
        return connection.execute(pages_sql, (TITLE_WEIGHT, text, CANDIDATES)).fetchall()

    def both(ask: Callable[[SearchQuery, bool], list[Any]], query: str) -> None:
        wanted = parse_query(query)
        if looser := loose(wanted, len(ask(wanted, False))):
            ask(looser, True)

    async def rows(query: str) -> object:
        return await asyncio.to_thread(both, rows_of, query)

    async def pages(query: str) -> object:
        return await asyncio.to_thread(both, pages_of, query)

    return rows, pages


async def _raw_postgres(uri: str, who: Principal, table: KnowledgeTable) -> tuple[Search, Search]:
    connection = await asyncpg.connect(uri)
    await connection.execute("VACUUM ANALYZE turnkeep.table_rows")
    await connection.execute("VACUUM ANALYZE turnkeep.passages")
    sql = (
        "SELECT {0} FROM (SELECT * FROM turnkeep.{1} x WHERE x.tokens @@ $1::text::tsquery LIMIT $2) f "
        "ORDER BY ts_rank(f.tokens, $3::text::tsquery, 1) DESC LIMIT 200"
    )
    prepared = {
        "rows": await connection.prepare(sql.format("f.number", "table_rows")),
        "pages": await connection.prepare(sql.format("f.owner", "passages")),
    }

    def search(name: str, scope: str) -> Search:
        async def asked(query: str) -> object:
            wanted = parse_query(query)
            words = tsquery_text(wanted)
            found = await prepared[name].fetch(f"'@{scope}' & ({words})", CANDIDATES, words)
            if looser := loose(wanted, len(found)):
                words = tsquery_text(looser, any_word=True)
                found = await prepared[name].fetch(f"'@{scope}' & ({words})", CANDIDATES, words)
            return found

        return asked

    return search("rows", table.id), search("pages", who.workspace_id)
