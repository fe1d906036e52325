"""What the user types: lines while an answer is drawn, and answers to questions that may be withdrawn.

While an answer is drawn, the keyboard is read key by key, because the terminal belongs to the drawing.
"""

import codecs
import contextlib
import os
import re
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

_KEYS = re.compile("\x1b\\[[0-9;?]*[ -/]*[@-~]|\x1bO.|\x1b.?", re.DOTALL)
"""Keys that move a cursor, and others that are no text."""
POLL_SECONDS = 0.1
REPEAT_SECONDS = 0.2
"""A signal that comes just before the terminal is waited for does not end the wait. So it is sent again."""


class TypeAhead:
    """Reads lines while it is entered. `on_line` gets each line that Enter ends, in a thread of its own.

    Without a terminal, or without `termios`, it reads nothing. Ctrl-C stays a signal.
    """

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._text = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._modes: list[Any] | None = None

    @property
    def text(self) -> str:
        """The line that is being typed."""
        return self._text

    def take(self) -> str:
        """The line that is being typed, which is then empty."""
        text, self._text = self._text, ""
        return text

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The terminal is as it was before, so that a prompt can read from it."""
        self._stop()
        try:
            yield
        finally:
            self._start()

    def feed(self, keys: bytes) -> None:
        """Take these keys."""
        for key in _KEYS.sub("", self._decoder.decode(keys)):
            if key in "\r\n":
                self._on_line(self.take())
            elif key in "\x7f\b":
                self._text = self._text[:-1]
            elif key == "\x15":
                self._text = ""
            elif key == "\x17":
                self._text = self._text.rstrip().rpartition(" ")[0]
            elif key.isprintable():
                self._text += key

    def _start(self) -> None:
        if not sys.stdin.isatty():
            return
        try:
            import termios
            import tty
        except ImportError:  # not on this system
            return
        descriptor = sys.stdin.fileno()
        self._modes = termios.tcgetattr(descriptor)
        tty.setcbreak(descriptor, termios.TCSANOW)  # at once: what was typed before stays to be read
        self._ended.clear()
        self._thread = threading.Thread(target=self._read, args=(descriptor,), name="type-ahead", daemon=True)
        self._thread.start()

    def _stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._ended.set()
        try:
            thread.join()
        finally:
            import termios

            with contextlib.suppress(termios.error):
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, self._modes or [])

    def _read(self, descriptor: int) -> None:
        while not self._ended.is_set():
            try:
                ready, _, _ = select.select([descriptor], [], [], POLL_SECONDS)
                keys = os.read(descriptor, 4096) if ready else None
            except OSError:  # the terminal is gone
                return
            if keys == b"":
                return
            if keys:
                self.feed(keys)


class Withdrawn(Exception):
    """A question needs no answer any more. The text says why."""


class Withdrawal:
    """Ends a question to the user that another thread withdraws. While it is entered, `withdraw` makes the main thread
    raise Withdrawn, also if it waits for a line.

    Outside of the main thread, or without signals, nothing is withdrawn.
    """

    def __init__(self) -> None:
        self._is_open = False
        self._closed = threading.Event()
        self._sending = threading.Lock()
        self._why = ""
        self._before: Any = None

    def withdraw(self, why: str) -> None:
        """Called by another thread. It returns when the question has ended."""
        self._why = why
        main = threading.main_thread().ident
        while main is not None and not self._closed.wait(REPEAT_SECONDS):
            with self._sending:
                if self._is_open:
                    signal.pthread_kill(main, signal.SIGUSR1)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread() and hasattr(signal, "pthread_kill"):
            self._before = signal.signal(signal.SIGUSR1, self._raise)
            self._is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        is_open, self._is_open = self._is_open, False
        self._closed.set()
        if is_open:
            with self._sending:  # no signal may come after this: the handler before would end the process
                signal.signal(signal.SIGUSR1, self._before)

    def _raise(self, number: int, frame: Any) -> None:
        if self._is_open:
            raise Withdrawn(self._why)
