"""The floor: a bare ASGI app that forwards the provider's stream with aiohttp, and writes one row at the end.

It has no identity, no checks, no history and no way to resume. Bytes are forwarded as they come; the text of the answer
is read from them for the row, as any server must do that keeps what was said.
"""

import os
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import asyncpg
import msgspec

_CREATE = "CREATE TABLE IF NOT EXISTS turns (conversation text, question text, answer text)"


class _Content(msgspec.Struct):
    content: str = ""


class _Choice(msgspec.Struct):
    delta: _Content


class _Chunk(msgspec.Struct):
    choices: list[_Choice]


class _Question(msgspec.Struct):
    conversation: str
    message: str


_chunk = msgspec.json.Decoder(_Chunk)
_question = msgspec.json.Decoder(_Question)


class Floor:
    """Starts with the lifespan of the app, since the session and the pool belong to its loop."""

    async def __call__(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Any]) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["path"] == "/ready":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body"})
        else:
            await self._turn(receive, send)

    async def _live(self, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Any]) -> None:
        await receive()
        self._url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        database = os.environ["BENCH_DATABASE"]
        if database.startswith("postgresql:"):
            self._pool = await asyncpg.create_pool(database, min_size=4, max_size=16)
            await self._pool.execute(_CREATE)
            self._write = self._write_postgres
        else:
            self._sqlite = sqlite3.connect(database, isolation_level=None)
            self._sqlite.execute("PRAGMA journal_mode=WAL")
            self._sqlite.execute("PRAGMA synchronous=FULL")
            self._sqlite.execute(_CREATE)
            self._write = self._write_sqlite
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._session.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _turn(self, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Any]) -> None:
        body = b""
        while True:
            event = await receive()
            body += event.get("body", b"")
            if not event.get("more_body"):
                break
        question = _question.decode(body)
        messages = [{"role": "user", "content": question.message}]
        request = msgspec.json.encode({"model": "bench", "stream": True, "messages": messages})
        texts: list[str] = []
        rest = b""
        headers = {"content-type": "application/json"}
        async with self._session.post(self._url, data=request, headers=headers) as response:
            head = [(b"content-type", b"text/event-stream")]
            await send({"type": "http.response.start", "status": response.status, "headers": head})
            async for data in response.content.iter_any():
                await send({"type": "http.response.body", "body": data, "more_body": True})
                *frames, rest = (rest + data).split(b"\n\n")
                for frame in frames:
                    if not frame.endswith(b"[DONE]"):
                        texts += [choice.delta.content for choice in _chunk.decode(frame[6:]).choices]
        await self._write(question.conversation, question.message, "".join(texts))
        await send({"type": "http.response.body"})

    async def _write_sqlite(self, *row: str) -> None:
        self._sqlite.execute("INSERT INTO turns VALUES (?, ?, ?)", row)

    async def _write_postgres(self, *row: str) -> None:
        await self._pool.execute("INSERT INTO turns VALUES ($1, $2, $3)", *row)


app = Floor()
