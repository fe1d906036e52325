"""What a sandbox asks the server to do for its turn: done while that runs and somebody waits for the answer."""

import asyncio
from collections.abc import Awaitable
from typing import NoReturn, TypeVar

from starlette.types import Receive

from turnkeep.api.http.disconnects import while_connected
from turnkeep.errors import TurnkeepError, Unauthorized
from turnkeep.model.turns import Turn
from turnkeep.store.ports import TurnStore

WATCH_SECONDS = 1.0
"""How often a call under way looks whether its turn still runs."""

Done = TypeVar("Done")


async def while_turn_runs(store: TurnStore, turn: Turn, receive: Receive, work: Awaitable[Done]) -> Done:
    """What the work comes to. It is cancelled when the caller leaves (CallerLeft) or the turn ends (Unauthorized)."""
    return await while_connected(receive, work, _turn_ended(store, turn))


def turn_has_ended() -> Unauthorized:
    return Unauthorized("The turn has ended, and this token with it.")


async def _turn_ended(store: TurnStore, turn: Turn) -> NoReturn:
    while True:
        await asyncio.sleep(WATCH_SECONDS)
        try:
            if await store.running_turn(turn.id, turn.attempt) is None:
                break
        except TurnkeepError:
            continue  # the database is away; the next look tells
    raise turn_has_ended()
