"""Rows and their bytes: made together, or taken away together. Bytes come first; see the bag."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from turnkeep.errors import TurnkeepError, Unavailable, WorldError
from turnkeep.filebag.ports import Objects

Made = TypeVar("Made")


async def commit(objects: Objects, keys: Sequence[str], make_rows: Callable[[], Awaitable[Made]]) -> Made:
    """Make the rows of these objects, or take the bytes away again.

    When the database went away in the middle, nobody knows whether the rows are there: the bytes stay, and the
    sweeper finds out.
    """
    try:
        return await make_rows()
    except Unavailable:
        raise
    except TurnkeepError:
        await discard(objects, keys)
        raise


async def discard(objects: Objects, keys: Sequence[str]) -> None:
    """Erase what no row names, also when the caller is cancelled. What cannot be erased now, the sweeper finds."""
    with suppress(WorldError):
        await asyncio.shield(objects.delete(keys))
