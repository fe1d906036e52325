"""langgraph: its checkpoint savers, through the public `aput` and `aget_tuple`.

A checkpoint holds the values of all channels, and `MessagesState` keeps the whole conversation in one of them. So a
turn is written as a new copy of the list. Measured is the least that a graph can do: one checkpoint per turn (as with
`durability="exit"`; the default writes one per step, and pending writes besides), the list still in memory.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiosqlite
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from bench.harness import Place
from bench.store_contender import Database, Role
from bench.store_payloads import Exchange

MESSAGES_PER_TURN = 4


@dataclass
class Thread:
    """A thread of the graph: where it stands, and its state."""

    config: dict[str, Any]
    version: Any = None
    step: int = 0
    messages: list[Any] = field(default_factory=list)


class LanggraphSaver:
    """One saver on one connection, as `from_conn_string` makes it."""

    role: Role = "peer"

    def __init__(self, database: Database) -> None:
        self.database = database
        self.name = f"langgraph {'AsyncSqliteSaver' if database == 'sqlite' else 'AsyncPostgresSaver'}"
        self._threads = 0
        self._messages = 0

    async def open(self, place: Place) -> None:
        self._lifetime: AbstractAsyncContextManager[Any]
        if self.database == "sqlite":
            self._lifetime = _sqlite_saver(str(place.directory / "langgraph.db"))
        else:
            self._lifetime = AsyncPostgresSaver.from_conn_string(await place.create_database("langgraph"))
        self._saver = await self._lifetime.__aenter__()
        await self._saver.setup()

    async def prepare(self, history: Sequence[Exchange]) -> Thread:
        self._threads += 1
        thread = Thread({"configurable": {"thread_id": f"thread-{self._threads}", "checkpoint_ns": ""}})
        messages = [message for exchange in history for message in self.shape(thread, exchange)]
        if messages:
            await self.append(thread, messages)
        return thread

    def shape(self, thread: Thread, exchange: Exchange) -> list[Any]:
        self._messages += MESSAGES_PER_TURN
        first = self._messages
        call = {"name": exchange.tool, "args": {"query": exchange.asked}, "id": "call_1", "type": "tool_call"}
        return [
            HumanMessage(exchange.user, id=f"m{first}"),
            AIMessage(exchange.said, tool_calls=[call], id=f"m{first + 1}"),
            ToolMessage(exchange.result, tool_call_id="call_1", id=f"m{first + 2}"),
            AIMessage(exchange.final, id=f"m{first + 3}"),
        ]

    async def append(self, thread: Thread, payload: list[Any]) -> None:
        thread.messages = [*thread.messages, *payload]
        thread.version = self._saver.get_next_version(thread.version, None)
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"messages": thread.messages}
        checkpoint["channel_versions"] = {"messages": thread.version}
        metadata = {"source": "loop", "step": thread.step, "parents": {}}
        thread.config = await self._saver.aput(thread.config, checkpoint, metadata, {"messages": thread.version})
        thread.step += 1

    async def load(self, thread: Thread, turns: int) -> list[Any]:
        config = {"configurable": {**thread.config["configurable"]}}
        config["configurable"].pop("checkpoint_id", None)
        found = await self._saver.aget_tuple(config)
        messages: list[Any] = found.checkpoint["channel_values"]["messages"] if found else []
        return messages[-turns * MESSAGES_PER_TURN :]

    async def close(self) -> None:
        await self._lifetime.__aexit__(None, None, None)


@asynccontextmanager
async def _sqlite_saver(path: str) -> AsyncIterator[Any]:
    """The saver sets WAL by itself and leaves synchronous at SQLite's default, which is FULL."""
    async with aiosqlite.connect(path) as connection:
        async with connection.execute("PRAGMA synchronous") as cursor:
            assert await cursor.fetchone() == (2,)
        yield AsyncSqliteSaver(connection)
