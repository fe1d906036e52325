"""openai-agents behind FastAPI: a streamed run in a `SQLAlchemySession`, as its manual shows it.

It runs in `.venv-bench`, with the newest parts that it can use: uvloop, httptools, one engine with a pool for all
sessions. Tracing is off, since it would send every run to OpenAI.
"""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
from agents.extensions.memory import SQLAlchemySession
from fastapi import Body, FastAPI
from fastapi.responses import Response, StreamingResponse
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent
from sqlalchemy.ext.asyncio import create_async_engine

set_tracing_disabled(True)
_url = os.environ["BENCH_DATABASE"]
_is_postgres = _url.startswith("postgresql:")
_url = _url.replace("postgresql:", "postgresql+asyncpg:", 1) if _is_postgres else f"sqlite+aiosqlite:///{_url}"
_engine = create_async_engine(_url, pool_size=16, max_overflow=16)
_agent = Agent(
    name="Assistant",
    instructions="Answer.",
    model=OpenAIChatCompletionsModel(model="bench", openai_client=AsyncOpenAI()),
)


@asynccontextmanager
async def _lifespan(_: FastAPI) -> AsyncIterator[None]:
    """The tables are made once, as in production; then sessions need not look for them."""
    await SQLAlchemySession("first", engine=_engine, create_tables=True).get_items()
    if not _is_postgres:
        async with _engine.connect() as connection:
            await connection.exec_driver_sql("PRAGMA journal_mode=WAL")
    yield
    await _engine.dispose()


async def ready() -> dict[str, bool]:
    return {"ok": True}


async def add_items(session_id: str, items: Annotated[list[dict[str, Any]], Body()]) -> dict[str, bool]:
    """A history, as it would be after that many turns."""
    await SQLAlchemySession(session_id, engine=_engine).add_items(items)
    return {"ok": True}


async def ask(session_id: Annotated[str, Body()], message: Annotated[str, Body()]) -> Response:
    session = SQLAlchemySession(session_id, engine=_engine)

    async def stream() -> AsyncIterator[str]:
        result = Runner.run_streamed(_agent, message, session=session)
        async for event in result.stream_events():
            if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
                yield f"data: {json.dumps({'text': event.data.delta})}\n\n"
        yield f"event: result\ndata: {json.dumps({'message': result.final_output})}\n\n"

    return StreamingResponse(stream(), media_type="text/event-stream")


app = FastAPI(lifespan=_lifespan)
app.add_api_route("/ready", ready)
app.add_api_route("/sessions/{session_id}/items", add_items, methods=["POST"])
app.add_api_route("/turns", ask, methods=["POST"], response_class=StreamingResponse)
