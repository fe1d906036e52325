"""Progress: the output of a step while it runs, shown at a bounded rate.

A step that prints is told again as `running`, with the end of its output as its result, at most once in a while. Every
such line becomes a durable event of the turn, so there are few of them, and they are short.
"""

import asyncio
import codecs
from collections.abc import Callable

EVERY_SECONDS = 1.0
SHOWN_CHARS = 2_000
MOST_LINES = 120
"""Of one step. After two minutes the rate falls: each line then waits twice as long as the one before."""

Show = Callable[[str, str], None]
"""Takes the id of a call and the end of its output."""


class Progress:
    """Shows the output of the steps of one turn."""

    def __init__(self, show: Show, *, every_seconds: float = EVERY_SECONDS) -> None:
        self._show = show
        self._every = every_seconds

    def listen(self, call_id: str) -> "Heard":
        return Heard(lambda text: self._show(call_id, text), self._every)


class Heard:
    """What one step has said so far."""

    def __init__(self, show: Callable[[str], None], every_seconds: float) -> None:
        self._show = show
        self._wait = every_seconds
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pieces: list[str] = []
        self._lines = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, piece: bytes) -> None:
        self._pieces.append(self._decoder.decode(piece))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._wait, self._tell)

    def text(self) -> str:
        """All of it. The step has ended."""
        return "".join(self._pieces) + self._decoder.decode(b"", final=True)

    def stop(self) -> None:
        """Show nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _tell(self) -> None:
        self._timer = None
        self._lines += 1
        if self._lines >= MOST_LINES:
            self._wait *= 2
        self._pieces = ["".join(self._pieces)]
        self._show(self._pieces[0][-SHOWN_CHARS:])
