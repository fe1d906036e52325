"""What a sandbox asks the server to do for its turn: done while that runs and somebody waits for the answer."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from litestar.types import Receive

from turnkeep.errors import TurnkeepError, Unauthorized
from turnkeep.model.turns import Turn
from turnkeep.store.ports import TurnStore

WATCH_SECONDS = 1.0
"""How often a call under way looks whether its turn still runs."""

Done = TypeVar("Done")


class CallerLeft(Exception):
    """The connection was closed before the work was done. There is nobody to tell."""


async def while_turn_runs(store: TurnStore, turn: Turn, receive: Receive, work: Coroutine[Any, Any, Done]) -> Done:
    """What the work comes to. It is cancelled when the caller leaves (CallerLeft) or the turn ends (Unauthorized)."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_disconnected(receive))
    ending = asyncio.create_task(_turn_ended(store, turn))
    tasks: set[asyncio.Task[Any]] = {working, leaving, ending}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        is_done, is_left = working.done(), leaving.done()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    if is_done:
        return working.result()
    if is_left:
        raise CallerLeft
    raise turn_has_ended()


def turn_has_ended() -> Unauthorized:
    return Unauthorized("The turn has ended, and this token with it.")


async def _turn_ended(store: TurnStore, turn: Turn) -> None:
    while True:
        await asyncio.sleep(WATCH_SECONDS)
        try:
            if await store.running_turn(turn.id, turn.attempt) is None:
                return
        except TurnkeepError:
            continue  # the database is away; the next look tells


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
