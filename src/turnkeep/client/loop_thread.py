"""An event loop in a thread of its own, and its async iterators as iterators. Ctrl-C loses none of their items."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

Found = TypeVar("Found")


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="turnkeep client", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, Found]) -> "Future[Found]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, Found]) -> Found:
        """The outcome of the work, which is given up when the caller is interrupted."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        if not self._loop.is_closed():
            self.run(self._loop.shutdown_asyncgens())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class Items(Generic[Found]):
    """An iterator over an async one. An interrupted step is not lost: the next call returns it."""

    def __init__(
        self, loop: LoopThread, source: AsyncIterator[Found], close: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        self._loop = loop
        self._source = source
        self._close = close
        self._pending: Future[Found] | None = None

    def __iter__(self) -> Iterator[Found]:
        return self

    def __next__(self) -> Found:
        if self._pending is None:
            self._pending = self._loop.submit(_next(self._source))
        try:
            found = self._pending.result()
        except KeyboardInterrupt:
            raise
        except StopAsyncIteration:
            raise StopIteration from None
        except BaseException:
            self._pending = None
            raise
        self._pending = None
        return found

    def close(self) -> None:
        if self._pending is not None:
            self._pending.cancel()
            with contextlib.suppress(BaseException):
                self._pending.result()
        self._loop.run(self._close())


async def _next(source: AsyncIterator[Found]) -> Found:
    return await anext(source)


def items_of(loop: LoopThread, source: AsyncGenerator[Found, None]) -> Items[Found]:
    return Items(loop, source, source.aclose)
