"""openai-agents: its sessions, one row per item in the format of the Responses API.

A turn is four items, the fewest that can say it (the assistant's words before the call are part of the call here).
History is inserted in bulk in the sessions' own format, one turn a second, since they read back in the order of
`created_at`.
"""

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any, ClassVar

from agents.extensions.memory import SQLAlchemySession
from agents.memory import SQLiteSession
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from bench.harness import Place
from bench.store_contender import Database, Role
from bench.store_payloads import Exchange

ITEMS_PER_TURN = 4


def items(exchange: Exchange) -> list[dict[str, Any]]:
    arguments = json.dumps({"query": exchange.said + exchange.asked})
    answer = {"type": "output_text", "text": exchange.final, "annotations": []}
    return [
        {"role": "user", "content": exchange.user},
        {"type": "function_call", "call_id": "call_1", "name": exchange.tool, "arguments": arguments},
        {"type": "function_call_output", "call_id": "call_1", "output": exchange.result},
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "content": [answer]},
    ]


class _Sessions:
    role: Role = "peer"

    def __init__(self) -> None:
        self._sessions = 0

    def _new_id(self) -> str:
        self._sessions += 1
        return f"session-{self._sessions:06}"

    def shape(self, thread: Any, exchange: Exchange) -> list[dict[str, Any]]:
        return items(exchange)

    async def append(self, thread: Any, payload: list[dict[str, Any]]) -> None:
        await thread.add_items(payload)

    async def load(self, thread: Any, turns: int) -> list[Any]:
        loaded: list[Any] = await thread.get_items(limit=turns * ITEMS_PER_TURN)
        return loaded


class AgentsSqliteSession(_Sessions):
    """`SQLiteSession` on a file. WAL and synchronous=FULL are its defaults."""

    name = "openai-agents SQLiteSession"
    database: Database = "sqlite"

    async def open(self, place: Place) -> None:
        self._path = place.directory / "agents.db"
        self._threads: list[Any] = []

    async def prepare(self, history: Sequence[Exchange]) -> Any:
        thread = SQLiteSession(self._new_id(), self._path)
        if history:
            await thread.add_items([item for exchange in history for item in items(exchange)])
        self._threads.append(thread)
        return thread

    async def close(self) -> None:
        with closing(sqlite3.connect(self._path)) as connection:
            assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        for thread in self._threads:
            thread.close()


class AgentsSqlAlchemySession(_Sessions):
    """`SQLAlchemySession` on aiosqlite (WAL, synchronous=FULL) or on asyncpg, all sessions on one engine."""

    _HISTORY: ClassVar[dict[str, str]] = {
        "sqlite": "INSERT INTO agent_messages (session_id, message_data, created_at) "
        "VALUES (:session, :item, datetime('now', -:age || ' seconds'))",
        "postgres": "INSERT INTO agent_messages (session_id, message_data, created_at) "
        "VALUES (:session, :item, CURRENT_TIMESTAMP - make_interval(secs => :age))",
    }

    def __init__(self, database: Database, connections: int) -> None:
        super().__init__()
        self.database = database
        self.name = f"openai-agents SQLAlchemySession ({'aiosqlite' if database == 'sqlite' else 'asyncpg'})"
        self._connections = connections

    async def open(self, place: Place) -> None:
        if self.database == "sqlite":
            url = f"sqlite+aiosqlite:///{place.directory / 'sqlalchemy.db'}"
        else:
            url = (await place.create_database("sqlalchemy")).replace("postgresql:", "postgresql+asyncpg:", 1)
        self._engine = create_async_engine(url, pool_size=self._connections)

    async def prepare(self, history: Sequence[Exchange]) -> Any:
        thread = SQLAlchemySession(self._new_id(), engine=self._engine, create_tables=True)
        await thread.get_items(limit=1)  # creates the tables
        if history:
            await thread.add_items(items(history[0]))
            rows = [
                {"session": thread.session_id, "item": json.dumps(item), "age": len(history) - place}
                for place, exchange in enumerate(history)
                for item in items(exchange)
            ]
            async with self._engine.begin() as connection:
                await connection.execute(text("DELETE FROM agent_messages WHERE session_id = :session"), rows[:1])
                await connection.execute(text(self._HISTORY[self.database]), rows)
        return thread

    async def close(self) -> None:
        if self.database == "sqlite":
            async with self._engine.connect() as connection:
                assert (await connection.execute(text("PRAGMA synchronous"))).scalar() == 2
        await self._engine.dispose()
