"""The floor: the rows that Turnkeep keeps, written by a bare driver without one check.

The limit (`store_limits.py`) writes four rows to one table. A turn here is more: a row of its own, the display that
readers see on the final row (about as many bytes again), and the conversation's counters and order. This contender
writes all of that in the quickest way known to us, on SQLite from a thread of its own as an event loop needs it, and
reads it back with the same joins. What lies between it and the limit is the price of what is kept; what lies between
it and Turnkeep is the price of how.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

import asyncpg
import msgspec
from asyncpg.prepared_stmt import PreparedStatement

from bench.harness import Place
from bench.store_contender import Database, Role
from bench.store_limits import Thread
from bench.store_ours import USAGE, rows_of
from bench.store_payloads import Exchange
from turnkeep.ids import ConversationId, TurnId, new_conversation_id, new_turn_id
from turnkeep.model.messages import Message

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode

Payload = tuple[TurnId, tuple[Message, ...]]


class _Floor:
    role: Role = "floor"

    def shape(self, thread: Thread, exchange: Exchange) -> Payload:
        turn_id = new_turn_id()
        return turn_id, rows_of(ConversationId(thread.id), turn_id, exchange)[0]


def _message(row: Message) -> tuple[Any, ...]:
    display = None if row.display is None else _encode(row.display).decode()
    usage = None if row.usage is None else _encode(row.usage).decode()
    return (row.turn_sequence, row.id, row.role, row.internal, _encode(row.blocks).decode(), display, usage)


class FloorSqlite(_Floor):
    """sqlite3 on a thread of its own: WAL, synchronous=FULL, one transaction of three statements."""

    name = "same rows, sqlite3 on a thread"
    database: Database = "sqlite"

    _LOAD = (
        "SELECT m.turn_id, m.turn_sequence, m.id, m.role, m.internal, m.blocks, m.usage, m.created_at"
        " FROM (SELECT id, ordinal FROM turns WHERE conversation_id = ? ORDER BY ordinal DESC LIMIT ?) t"
        " JOIN messages m ON m.turn_id = t.id ORDER BY t.ordinal, m.turn_sequence"
    )
    _PAGE = (
        "SELECT m.turn_id, m.id, m.role, coalesce(m.display, m.blocks), m.usage, t.status, m.created_at"
        " FROM turns t JOIN messages m ON m.turn_id = t.id WHERE t.conversation_id = ? AND NOT m.internal"
        " ORDER BY t.ordinal DESC, m.turn_sequence DESC LIMIT ?"
    )

    _TABLES = """
        CREATE TABLE conversations (id text PRIMARY KEY, turn_count integer NOT NULL, message_count integer NOT NULL,
            head_turn_id text, updated_at integer NOT NULL) WITHOUT ROWID;
        CREATE INDEX conversations_listed ON conversations (updated_at, id);
        CREATE TABLE turns (id text PRIMARY KEY, conversation_id text NOT NULL, ordinal integer NOT NULL,
            status text NOT NULL, input_tokens integer, output_tokens integer, created_at integer NOT NULL);
        CREATE UNIQUE INDEX turns_of_conversation ON turns (conversation_id, ordinal);
        CREATE TABLE messages (turn_id text NOT NULL, turn_sequence integer NOT NULL, id text NOT NULL,
            role text NOT NULL, internal integer NOT NULL, blocks text NOT NULL, display text, usage text,
            created_at integer NOT NULL, PRIMARY KEY (turn_id, turn_sequence)) WITHOUT ROWID;
    """

    async def open(self, place: Place) -> None:
        self._path = place.directory / "floor.db"
        self._queue: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    async def prepare(self, history: Sequence[Exchange]) -> Thread:
        thread = Thread(new_conversation_id())
        await self._do(lambda: self._begin(thread.id))
        for exchange in history:
            await self.append(thread, self.shape(thread, exchange))
        return thread

    async def append(self, thread: Thread, payload: Payload) -> None:
        turn_id, rows = payload
        values = [(turn_id, *_message(row), row.created_at) for row in rows]
        await self._do(lambda: self._write(thread, turn_id, values))
        thread.rows += 1

    async def load(self, thread: Thread, turns: int) -> list[Any]:
        rows = await self._do(lambda: self._connection.execute(self._LOAD, (thread.id, turns)).fetchall())
        return [_decode(row[5]) for row in rows]

    async def transcript(self, thread: Thread, messages: int) -> list[Any]:
        rows = await self._do(lambda: self._connection.execute(self._PAGE, (thread.id, messages)).fetchall())
        return [_decode(row[3]) for row in rows]

    async def close(self) -> None:
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _begin(self, conversation: str) -> None:
        self._connection.execute("INSERT INTO conversations VALUES (?, 0, 0, NULL, 0)", (conversation,))

    def _write(self, thread: Thread, turn_id: TurnId, values: list[tuple[Any, ...]]) -> None:
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        execute(
            "INSERT INTO turns VALUES (?, ?, ?, 'succeeded', ?, ?, ?)",
            (turn_id, thread.id, thread.rows, USAGE.input_tokens, USAGE.output_tokens, values[0][-1]),
        )
        self._connection.executemany("INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
        execute(
            "UPDATE conversations SET turn_count = turn_count + 1, message_count = message_count + 2,"
            " head_turn_id = ?, updated_at = ? WHERE id = ?",
            (turn_id, values[0][-1], thread.id),
        )
        execute("COMMIT")

    async def _do(self, job: Callable[[], Any]) -> Any:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        self._queue.put(lambda: loop.call_soon_threadsafe(done.set_result, job()))
        return await done

    def _work(self) -> None:
        self._connection = sqlite3.connect(self._path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.executescript(self._TABLES)
        while (job := self._queue.get()) is not None:
            job()
        self._connection.close()


class FloorPostgres(_Floor):
    """asyncpg on one connection: one prepared statement that changes three tables."""

    name = "same rows, one asyncpg statement"
    database: Database = "postgres"

    _TABLES = """
        CREATE TABLE conversations (id text COLLATE "C" PRIMARY KEY, turn_count integer NOT NULL,
            message_count integer NOT NULL, head_turn_id text, updated_at bigint NOT NULL) WITH (fillfactor = 80);
        CREATE INDEX conversations_listed ON conversations (updated_at, id);
        CREATE TABLE turns (id text COLLATE "C" PRIMARY KEY, conversation_id text COLLATE "C" NOT NULL,
            ordinal integer NOT NULL, status text NOT NULL, input_tokens bigint, output_tokens bigint,
            created_at bigint NOT NULL);
        CREATE UNIQUE INDEX turns_of_conversation ON turns (conversation_id, ordinal);
        CREATE TABLE messages (turn_id text COLLATE "C" NOT NULL, turn_sequence integer NOT NULL, id text NOT NULL,
            role text NOT NULL, internal boolean NOT NULL, blocks text NOT NULL, display text, usage text,
            created_at bigint NOT NULL, PRIMARY KEY (turn_id, turn_sequence)) WITH (toast_tuple_target = 8160);
    """
    _LOAD = FloorSqlite._LOAD.replace("ordinal DESC LIMIT ?", "ordinal DESC LIMIT $2").replace("= ?", "= $1")
    _PAGE = FloorSqlite._PAGE.replace("= ?", "= $1").replace("LIMIT ?", "LIMIT $2")
    _APPEND = """
        WITH changed AS (
            UPDATE conversations SET turn_count = turn_count + 1, message_count = message_count + 2, head_turn_id = $2,
                                     updated_at = $3
             WHERE id = $1 RETURNING turn_count
        ), begun AS (
            INSERT INTO turns SELECT $2, $1, turn_count, 'succeeded', $4, $5, $3 FROM changed
        )
        INSERT INTO messages
        SELECT $2, r.sequence, r.id, r.role, r.internal, r.blocks, r.display, r.usage, $3
          FROM unnest($6::integer[], $7::text[], $8::text[], $9::boolean[], $10::text[], $11::text[], $12::text[])
               AS r (sequence, id, role, internal, blocks, display, usage)
    """

    async def open(self, place: Place) -> None:
        self._connection = await asyncpg.connect(await place.create_database("floor"))
        await self._connection.execute(self._TABLES)
        self._append: PreparedStatement[Any] = await self._connection.prepare(self._APPEND)
        self._load: PreparedStatement[Any] = await self._connection.prepare(self._LOAD)
        self._page: PreparedStatement[Any] = await self._connection.prepare(self._PAGE)

    async def prepare(self, history: Sequence[Exchange]) -> Thread:
        thread = Thread(new_conversation_id())
        await self._connection.execute("INSERT INTO conversations VALUES ($1, 0, 0, NULL, 0)", thread.id)
        for exchange in history:
            await self.append(thread, self.shape(thread, exchange))
        return thread

    async def append(self, thread: Thread, payload: Payload) -> None:
        turn_id, rows = payload
        columns = zip(*map(_message, rows), strict=True)
        await self._append.fetch(
            thread.id, turn_id, rows[0].created_at, USAGE.input_tokens, USAGE.output_tokens, *map(list, columns)
        )

    async def load(self, thread: Thread, turns: int) -> list[Any]:
        return [_decode(row[5]) for row in await self._load.fetch(thread.id, turns)]

    async def transcript(self, thread: Thread, messages: int) -> list[Any]:
        return [_decode(row[3]) for row in await self._page.fetch(thread.id, messages)]

    async def close(self) -> None:
        await self._connection.close()
