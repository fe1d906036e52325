"""Work for a client that may disconnect before it is done. Then the work is cancelled."""

import asyncio
from collections.abc import Awaitable
from typing import NoReturn, TypeVar

from starlette.types import Receive

from turnkeep.streaming.connection import disconnected

Done = TypeVar("Done")


class ClientDisconnected(Exception):
    """The client closed the connection before the work was done. No response can reach it."""


async def while_connected(receive: Receive, work: Awaitable[Done], *interruptions: Awaitable[NoReturn]) -> Done:
    """The result of the work. The work is cancelled if the client disconnects first (raises ClientDisconnected), or if
    an interruption raises first (its exception is raised)."""
    working = asyncio.ensure_future(work)
    others = [asyncio.ensure_future(each) for each in (_until_disconnected(receive), *interruptions)]
    try:
        await asyncio.wait([working, *others], return_when=asyncio.FIRST_COMPLETED)
        ended = [each for each in others if each.done()]
        return working.result() if working.done() else ended[0].result()
    finally:
        for each in (working, *others):
            each.cancel()
        await asyncio.gather(working, *others, return_exceptions=True)


async def _until_disconnected(receive: Receive) -> NoReturn:
    await disconnected(receive)
    raise ClientDisconnected
