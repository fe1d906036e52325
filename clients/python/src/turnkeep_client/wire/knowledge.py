"""Pages, tables and rows on the wire."""

from typing import Literal

Cell = str | int | float | bool | None
"""Dates are `2026-11-15`, moments `2026-11-15T08:30:00.000Z`: as text they sort as what they are."""
ColumnType = Literal["text", "number", "date", "datetime", "boolean"]
