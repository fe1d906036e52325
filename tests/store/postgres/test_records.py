"""Rows that are sent as parameters: their columns stand in the order of their types, and exist in their tables."""

import asyncpg
import pytest

from turnkeep.store.postgres.io.statements import functions
from turnkeep.store.rows import EVENT_ROW_COLUMNS, LOG_ROW_COLUMNS, MESSAGE_ROW_COLUMNS, TURN_ROW_COLUMNS


@pytest.mark.parametrize(
    "type_name, table, columns",
    [
        ("turn_row", "turns", TURN_ROW_COLUMNS),
        ("message_row", "messages", MESSAGE_ROW_COLUMNS),
        ("event_row", "turn_events", EVENT_ROW_COLUMNS),
        ("log_row", "turn_logs", LOG_ROW_COLUMNS),
    ],
)
async def test_the_columns_of_a_row_are_those_of_its_type_in_order_and_of_its_table(
    uri: str, type_name: str, table: str, columns: str
) -> None:
    of_type = await columns_of(uri, f"{functions().schema}.{type_name}")
    of_table = await columns_of(uri, f"turnkeep.{table}")
    assert ", ".join(of_type) == columns
    assert of_type.items() <= of_table.items()


async def columns_of(uri: str, name: str) -> dict[str, str]:
    """The columns of a table or of a composite type, with their types, in order."""
    connection = await asyncpg.connect(uri)
    try:
        found = await connection.fetch(
            "SELECT a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_attribute a "
            "WHERE a.attrelid = $1::text::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
            name,
        )
    finally:
        await connection.close()
    return {row[0]: row[1] for row in found}
