"""Work for a caller who may leave before it is done. Then there is nobody to tell, and it is dropped."""

import asyncio
from collections.abc import Awaitable
from typing import NoReturn, TypeVar

from starlette.types import Receive

from turnkeep.streaming.connection import disconnected

Done = TypeVar("Done")


class CallerLeft(Exception):
    """The connection was closed before the work was done. There is nobody to tell."""


async def while_connected(receive: Receive, work: Awaitable[Done], *interruptions: Awaitable[NoReturn]) -> Done:
    """What the work comes to. It is cancelled if the caller leaves before (CallerLeft), or if an interruption raises
    before: then that is raised."""
    working = asyncio.ensure_future(work)
    others = [asyncio.ensure_future(each) for each in (_left(receive), *interruptions)]
    try:
        await asyncio.wait([working, *others], return_when=asyncio.FIRST_COMPLETED)
        ended = [each for each in others if each.done()]
        return working.result() if working.done() else ended[0].result()
    finally:
        for each in (working, *others):
            each.cancel()
        await asyncio.gather(working, *others, return_exceptions=True)


async def _left(receive: Receive) -> NoReturn:
    await disconnected(receive)
    raise CallerLeft
