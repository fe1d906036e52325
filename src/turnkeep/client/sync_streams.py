"""Streams for code without a loop: a turn as its reader follows it, and the lines of a run."""

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from turnkeep.client.answers import Answer, Turn
from turnkeep.client.events import Event
from turnkeep.client.loop_thread import Items, LoopThread, items_of
from turnkeep.client.runs import RunLine, RunStream
from turnkeep.client.stream import TurnStream
from turnkeep.client.view import View
from turnkeep_client.wire.parts import Part


class Stream:
    """A turn as its reader follows it; see `TurnStream`. Iterate for events, or call `result()`."""

    def __init__(self, loop: LoopThread, stream: TurnStream) -> None:
        self._loop = loop
        self._stream = stream
        self._items: Items[Event] | None = None

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        if self._items is None:
            self._items = Items(self._loop, self._stream, self._stream.close)
        return next(self._items)

    def words(self) -> Iterator[str]:
        """What is said, as it is said."""
        return items_of(self._loop, self._stream.words())

    def result(self) -> Answer:
        """Read to the end and return the answer. Raises TurnFailed, or TurnStopped."""
        self._drop()
        return self._loop.run(self._stream.result())

    def settled(self) -> Answer:
        """Read to the end and return what the turn came to, also when it failed or was stopped."""
        self._drop()
        return self._loop.run(self._stream.settled())

    def cancel(self) -> Turn:
        """Stop the turn; what was said is kept."""
        return self._loop.run(self._stream.cancel())

    def started(self) -> str:
        """Wait until the server has taken the question; the id of its turn."""
        return self._loop.run(self._stream.started())

    def close(self) -> None:
        self._drop()
        self._loop.run(self._stream.close())

    def _drop(self) -> None:
        items, self._items = self._items, None
        if items is not None:
            items.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def turn_id(self) -> str | None:
        return self._stream.turn_id

    @property
    def conversation_id(self) -> str | None:
        return self._stream.conversation_id

    @property
    def cursor(self) -> str:
        return self._stream.cursor

    @property
    def text(self) -> str:
        return self._stream.text

    @property
    def content(self) -> tuple[Part, ...]:
        return self._stream.content

    @property
    def view(self) -> View:
        return self._stream.view

    @property
    def is_over(self) -> bool:
        return self._stream.is_over


class SyncRun:
    """The lines of a run; see `RunStream`."""

    def __init__(self, loop: LoopThread, run: RunStream) -> None:
        self._loop = loop
        self._run = run

    def __iter__(self) -> Iterator[RunLine]:
        return items_of(self._loop, self._run.__aiter__())

    def result(self) -> str:
        return self._loop.run(self._run.result())

    @property
    def turn_id(self) -> str | None:
        return self._run.turn_id
