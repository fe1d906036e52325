"""Jobs: work that an event loop hands to a thread of the store, and the way its outcome comes back."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from turnkeep.store.sqlite.session import Session, translated

T = TypeVar("T")
Job = Callable[[Session], T]


class Asked(Struct, eq=False):
    """A job, who waits for it, and what it came to."""

    job: Job[Any]
    future: "asyncio.Future[Any]"
    result: Any = None
    error: Exception | None = None


def answer(asked: Sequence[Asked]) -> None:
    """Tell the callers, with one call for each event loop among them."""
    waiting: dict[asyncio.AbstractEventLoop, list[Asked]] = {}
    for each in asked:
        waiting.setdefault(each.future.get_loop(), []).append(each)
    for loop, those in waiting.items():
        try:
            loop.call_soon_threadsafe(_resolve, those)
        except RuntimeError:  # the loop was closed; nobody waits there any more
            continue


def _resolve(asked: Sequence[Asked]) -> None:
    for each in asked:
        if each.future.done():  # its caller was cancelled
            continue
        if each.error is None:
            each.future.set_result(each.result)
        else:
            each.future.set_exception(ours(each.error))


def ours(exc: Exception) -> Exception:
    """Our error, with what SQLite said as its cause."""
    ours = translated(exc)
    if ours is not exc:
        ours.__cause__ = exc
    return ours
