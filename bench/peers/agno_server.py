"""Agno's AgentOS with one agent that keeps its sessions in a database, as its manual shows it.

It runs in `.venv-bench`. The asynchronous databases are used, telemetry is off, and the agent is shown the same 20
turns of history as Turnkeep's.
"""

import os

from agno.agent import Agent
from agno.db.postgres import AsyncPostgresDb
from agno.db.sqlite import AsyncSqliteDb
from agno.models.openai import OpenAIChat
from agno.os import AgentOS

_url = os.environ["BENCH_DATABASE"]
_db = (
    AsyncPostgresDb(db_url=_url.replace("postgresql:", "postgresql+asyncpg:", 1))
    if _url.startswith("postgresql:")
    else AsyncSqliteDb(db_file=_url)
)
_agent = Agent(
    id="assistant",
    name="Assistant",
    model=OpenAIChat(id="bench"),
    db=_db,
    instructions="Answer.",
    add_history_to_context=True,
    num_history_runs=20,
    telemetry=False,
)
app = AgentOS(agents=[_agent], telemetry=False).get_app()
