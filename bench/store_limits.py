"""The limit: a bare driver doing the least that the same durability can cost. One table, one index, no checks.

The caller numbers the rows, so that nothing is read before a write. The JSON of the blocks is made while the clock
runs, as every store of conversations must make it, and read back on load.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg
import msgspec
from asyncpg.prepared_stmt import PreparedStatement

from bench.harness import Place
from bench.store_contender import Database, Role
from bench.store_payloads import Exchange

ROWS_PER_TURN = 4

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


@dataclass
class Thread:
    """A conversation, and how many rows it has."""

    id: str
    rows: int = 0


@dataclass(frozen=True)
class RawRow:
    role: str
    internal: bool
    blocks: list[dict[str, Any]]


def raw_rows(exchange: Exchange) -> list[RawRow]:
    call = {"type": "tool_use", "id": "call_1", "name": exchange.tool, "input": {"query": exchange.asked}}
    result = {"type": "tool_result", "call_id": "call_1", "content": exchange.result}
    return [
        RawRow("user", False, [{"type": "text", "text": exchange.user}]),
        RawRow("assistant", True, [{"type": "text", "text": exchange.said}, call]),
        RawRow("user", True, [result]),
        RawRow("assistant", False, [{"type": "text", "text": exchange.final}]),
    ]


class _Raw:
    """What both drivers share: threads, payloads and the order of rows."""

    role: Role = "limit"

    def __init__(self) -> None:
        self._threads = 0

    def _new_thread(self) -> Thread:
        self._threads += 1
        return Thread(f"conv_{self._threads:032x}")

    def shape(self, thread: Thread, exchange: Exchange) -> tuple[str, list[RawRow]]:
        return f"turn_{id(exchange):032x}", raw_rows(exchange)

    shape_live = shape


class RawSqlite(_Raw):
    """The standard library's sqlite3, called on the event loop: WAL, synchronous=FULL, one INSERT of four rows."""

    name = "raw sqlite3"
    database: Database = "sqlite"

    _INSERT = "INSERT INTO messages (conversation_id, n, turn_id, role, internal, blocks, created_at) VALUES "
    _FOUR = _INSERT + ",".join(["(?,?,?,?,?,?,?)"] * ROWS_PER_TURN)
    _ONE = _INSERT + "(?,?,?,?,?,?,?)"
    _LOAD = (
        "SELECT n, turn_id, role, internal, blocks, created_at FROM messages "
        "WHERE conversation_id = ? ORDER BY n DESC LIMIT ?"
    )
    _PAGE = (
        "SELECT n, turn_id, role, blocks, created_at FROM messages "
        "WHERE conversation_id = ? AND NOT internal ORDER BY n DESC LIMIT ?"
    )

    async def open(self, place: Place) -> None:
        self._connection = sqlite3.connect(place.directory / "raw.db", isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        assert self._connection.execute("PRAGMA synchronous").fetchone() == (2,)
        self._connection.execute(
            "CREATE TABLE messages (conversation_id text NOT NULL, n integer NOT NULL, turn_id text NOT NULL,"
            " role text NOT NULL, internal integer NOT NULL, blocks text NOT NULL, created_at integer NOT NULL,"
            " PRIMARY KEY (conversation_id, n))"
        )

    async def prepare(self, history: Sequence[Exchange]) -> Thread:
        thread = self._new_thread()
        self._connection.execute("BEGIN")
        for exchange in history:
            await self.append(thread, self.shape(thread, exchange))
        self._connection.execute("COMMIT")
        return thread

    async def append(self, thread: Thread, payload: tuple[str, list[RawRow]]) -> None:
        turn_id, rows = payload
        values: list[Any] = []
        for n, row in enumerate(rows, thread.rows):
            values += (thread.id, n, turn_id, row.role, row.internal, _encode(row.blocks).decode(), 1)
        self._connection.execute(self._FOUR, values)
        thread.rows += ROWS_PER_TURN

    async def live(self, thread: Thread, payload: tuple[str, list[RawRow]]) -> None:
        turn_id, rows = payload
        for row in rows:
            values = (thread.id, thread.rows, turn_id, row.role, row.internal, _encode(row.blocks).decode(), 1)
            self._connection.execute(self._ONE, values)
            thread.rows += 1

    async def load(self, thread: Thread, turns: int) -> list[Any]:
        rows = self._connection.execute(self._LOAD, (thread.id, turns * ROWS_PER_TURN)).fetchall()
        return [_decode(row[4]) for row in reversed(rows)]

    async def transcript(self, thread: Thread, messages: int) -> list[Any]:
        return [_decode(row[3]) for row in self._connection.execute(self._PAGE, (thread.id, messages)).fetchall()]

    async def close(self) -> None:
        self._connection.close()


class RawPostgres(_Raw):
    """asyncpg on one connection: one prepared INSERT … SELECT FROM unnest, committed by itself."""

    name = "raw asyncpg"
    database: Database = "postgres"

    _INSERT = (
        "INSERT INTO messages (conversation_id, n, turn_id, role, internal, blocks, created_at) "
        "SELECT $1, rows.n, $2, rows.role, rows.internal, rows.blocks, 1 "
        "FROM unnest($3::integer[], $4::text[], $5::boolean[], $6::text[]) AS rows (n, role, internal, blocks)"
    )
    _LOAD = (
        "SELECT n, turn_id, role, internal, blocks, created_at FROM messages "
        "WHERE conversation_id = $1 ORDER BY n DESC LIMIT $2"
    )
    _PAGE = (
        "SELECT n, turn_id, role, blocks, created_at FROM messages "
        "WHERE conversation_id = $1 AND NOT internal ORDER BY n DESC LIMIT $2"
    )

    # As in Turnkeep's own table, rows of a few kilobytes are neither compressed nor moved out.
    _TABLE = (
        'CREATE TABLE messages (conversation_id text COLLATE "C" NOT NULL, n integer NOT NULL,'
        ' turn_id text COLLATE "C" NOT NULL, role text NOT NULL, internal boolean NOT NULL, blocks text NOT NULL,'
        " created_at bigint NOT NULL, PRIMARY KEY (conversation_id, n)) WITH (toast_tuple_target = 8160)"
    )

    async def open(self, place: Place) -> None:
        self._connection = await asyncpg.connect(await place.create_database("raw"))
        await self._connection.execute(self._TABLE)
        self._insert: PreparedStatement[Any] = await self._connection.prepare(self._INSERT)
        self._load: PreparedStatement[Any] = await self._connection.prepare(self._LOAD)
        self._page: PreparedStatement[Any] = await self._connection.prepare(self._PAGE)

    async def prepare(self, history: Sequence[Exchange]) -> Thread:
        thread = self._new_thread()
        async with self._connection.transaction():
            for exchange in history:
                await self.append(thread, self.shape(thread, exchange))
        return thread

    async def append(self, thread: Thread, payload: tuple[str, list[RawRow]]) -> None:
        turn_id, rows = payload
        await self._insert.fetch(*_columns(thread, turn_id, rows))
        thread.rows += len(rows)

    async def live(self, thread: Thread, payload: tuple[str, list[RawRow]]) -> None:
        turn_id, rows = payload
        for row in rows:
            await self.append(thread, (turn_id, [row]))

    async def load(self, thread: Thread, turns: int) -> list[Any]:
        rows = await self._load.fetch(thread.id, turns * ROWS_PER_TURN)
        return [_decode(row[4]) for row in reversed(rows)]

    async def transcript(self, thread: Thread, messages: int) -> list[Any]:
        return [_decode(row[3]) for row in await self._page.fetch(thread.id, messages)]

    async def close(self) -> None:
        await self._connection.close()


class RawPool(_Raw):
    """asyncpg's pool with its default reset: acquire, the same one statement, release. For many writers only."""

    name = "raw asyncpg pool"
    database: Database = "postgres"

    def __init__(self, connections: int) -> None:
        super().__init__()
        self._connections = connections

    async def open(self, place: Place) -> None:
        uri = await place.create_database("raw_pool")
        self._pool = await asyncpg.create_pool(uri, min_size=self._connections, max_size=self._connections)
        await self._pool.execute(RawPostgres._TABLE)

    async def prepare(self, history: Sequence[Exchange]) -> Thread:
        thread = self._new_thread()
        for exchange in history:
            await self.append(thread, self.shape(thread, exchange))
        return thread

    async def append(self, thread: Thread, payload: tuple[str, list[RawRow]]) -> None:
        turn_id, rows = payload
        async with self._pool.acquire() as connection:
            await connection.fetch(RawPostgres._INSERT, *_columns(thread, turn_id, rows))
        thread.rows += len(rows)

    async def load(self, thread: Thread, turns: int) -> list[Any]:
        rows = await self._pool.fetch(RawPostgres._LOAD, thread.id, turns * ROWS_PER_TURN)
        return [_decode(row[4]) for row in reversed(rows)]

    async def close(self) -> None:
        await self._pool.close()


def _columns(thread: Thread, turn_id: str, rows: Sequence[RawRow]) -> tuple[Any, ...]:
    return (
        thread.id,
        turn_id,
        list(range(thread.rows, thread.rows + len(rows))),
        [row.role for row in rows],
        [row.internal for row in rows],
        [_encode(row.blocks).decode() for row in rows],
    )
