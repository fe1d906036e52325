"""Rows that are sent as parameters: their columns stand in the order of the tables."""

import asyncpg
import pytest

from turnkeep.store.postgres.turns import EVENTS, LOGS, MESSAGES, TURNS


@pytest.mark.parametrize(
    "table, columns",
    [
        ("turns", TURNS),
        ("messages", MESSAGES),
        ("turn_events", EVENTS),
        ("turn_logs", LOGS),
    ],
)
async def test_the_columns_of_a_row_are_those_of_its_table_in_order(
    uri: str, table: str, columns: tuple[str, ...]
) -> None:
    connection = await asyncpg.connect(uri)
    try:
        found = await connection.fetch(
            "SELECT a.attname FROM pg_attribute a WHERE a.attrelid = ('turnkeep.' || $1::text)::regclass "
            "AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
            table,
        )
    finally:
        await connection.close()
    assert tuple(row["attname"] for row in found) == columns
