"""The home-made way: a conversation is a row, its messages are one JSON column that grows.

The best case of that design: one statement appends inside the database, so that nothing is read, parsed in Python and
written back (which would also need a lock). The value is rewritten whole all the same.
"""

import sqlite3
from collections.abc import Sequence
from typing import Any

import asyncpg
import msgspec

from bench.harness import Place
from bench.store_contender import Database, Role
from bench.store_limits import ROWS_PER_TURN, raw_rows
from bench.store_payloads import Exchange

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def messages(exchange: Exchange) -> list[dict[str, Any]]:
    return [{"role": row.role, "internal": row.internal, "blocks": row.blocks} for row in raw_rows(exchange)]


class _JsonColumn:
    role: Role = "peer"

    def __init__(self) -> None:
        self._threads = 0

    def _new_id(self) -> str:
        self._threads += 1
        return f"conv_{self._threads:032x}"

    def shape(self, thread: str, exchange: Exchange) -> list[dict[str, Any]]:
        return messages(exchange)


class JsonColumnSqlite(_JsonColumn):
    """sqlite3 on the event loop, WAL, synchronous=FULL: `json_insert` appends, and a load decodes the whole."""

    name = "one JSON column (sqlite3)"
    database: Database = "sqlite"

    async def open(self, place: Place) -> None:
        self._connection = sqlite3.connect(place.directory / "json.db", isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("CREATE TABLE conversations (id text PRIMARY KEY, messages text NOT NULL)")

    async def prepare(self, history: Sequence[Exchange]) -> str:
        thread = self._new_id()
        held = [message for exchange in history for message in messages(exchange)]
        self._connection.execute("INSERT INTO conversations VALUES (?, ?)", (thread, _encode(held).decode()))
        return thread

    async def append(self, thread: str, payload: list[dict[str, Any]]) -> None:
        self._connection.execute(
            "UPDATE conversations SET messages = json_insert(messages, '$[#]', json(?), '$[#]', json(?),"
            " '$[#]', json(?), '$[#]', json(?)) WHERE id = ?",
            (*(_encode(message).decode() for message in payload), thread),
        )

    async def load(self, thread: str, turns: int) -> list[Any]:
        found = self._connection.execute("SELECT messages FROM conversations WHERE id = ?", (thread,)).fetchone()
        held: list[Any] = _decode(found[0])
        return held[-turns * ROWS_PER_TURN :]

    async def close(self) -> None:
        self._connection.close()


class JsonColumnPostgres(_JsonColumn):
    """asyncpg on one connection, a jsonb column: `||` appends, a path takes the newest messages out."""

    name = "one JSON column (asyncpg, jsonb)"
    database: Database = "postgres"

    async def open(self, place: Place) -> None:
        self._connection = await asyncpg.connect(await place.create_database("json"))
        await self._connection.execute("CREATE TABLE conversations (id text PRIMARY KEY, messages jsonb NOT NULL)")

    async def prepare(self, history: Sequence[Exchange]) -> str:
        thread = self._new_id()
        held = [message for exchange in history for message in messages(exchange)]
        await self._connection.fetch("INSERT INTO conversations VALUES ($1, $2)", thread, _encode(held).decode())
        return thread

    async def append(self, thread: str, payload: list[dict[str, Any]]) -> None:
        await self._connection.fetch(
            "UPDATE conversations SET messages = messages || $2::jsonb WHERE id = $1",
            thread,
            _encode(payload).decode(),
        )

    async def load(self, thread: str, turns: int) -> list[Any]:
        newest = f"$[last - {turns * ROWS_PER_TURN - 1} to last]"
        found = await self._connection.fetchval(
            "SELECT jsonb_path_query_array(messages, $2::text::jsonpath) FROM conversations WHERE id = $1",
            thread,
            newest,
        )
        held: list[Any] = _decode(found)
        return held

    async def close(self) -> None:
        await self._connection.close()
