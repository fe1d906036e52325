"""A program on a terminal of its own, as a person uses it: keys go in, a screen comes out."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

PATIENCE_SECONDS = 40.0
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[()][A-Z0-9]|\x1b[=>]|\r|[\x01\x02]")


def _own_the_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # tests that run in the background of a shell inherit SIG_IGN


class Terminal:
    """Starts the program; `expect` waits until its screen has said something since the last time."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], *, columns: int = 100) -> None:
        self._screen, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self._process = subprocess.Popen(
            list(command),
            env={**env, "TERM": "xterm-256color"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=_own_the_terminal,  # noqa: PLW1509 - so that Ctrl-C is a signal
        )
        os.close(slave)
        self._raw = b""
        self._place = 0

    def send(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def line(self, text: str) -> None:
        self.send(text + "\r")

    def interrupt(self) -> None:
        self.send("\x03")

    def interrupt_until(self, words: str) -> None:
        """Ctrl-C until it is heard: a key that comes while a program is about to wait may be heard with the next."""
        for _ in range(int(PATIENCE_SECONDS)):
            with contextlib.suppress(OSError):  # it may have left already
                self.interrupt()
            with contextlib.suppress(AssertionError):
                self.expect(words, seconds=1.0)
                return
        raise AssertionError(f"{words!r} did not come; the screen has:\n{self.text[-3000:]}")

    def expect(self, words: str, *, seconds: float = PATIENCE_SECONDS) -> str:
        """Everything up to these words, from where the last call ended; AssertionError with the screen if they do
        not come."""
        ending = time.monotonic() + seconds
        while (found := self.text.find(words, self._place)) < 0:
            if not self._read(ending - time.monotonic()):
                raise AssertionError(f"{words!r} did not come; the screen has:\n{self.text[-3000:]}")
        seen = self.text[self._place : found + len(words)]
        self._place = found + len(words)
        return seen

    def leave(self) -> int:
        """The exit code, once the program has ended."""
        ending = time.monotonic() + PATIENCE_SECONDS
        while self._read(ending - time.monotonic()):
            pass
        return self._process.wait(PATIENCE_SECONDS)

    @property
    def raw(self) -> str:
        """All that was written to it."""
        return self._raw.decode(errors="replace")

    @property
    def text(self) -> str:
        """All that was shown, without colours and movements."""
        return _CONTROL.sub("", self.raw)

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._screen], [], [], max(seconds, 0))
        try:
            chunk = os.read(self._screen, 65_536) if ready else b""
        except OSError:  # Linux: the other end is closed
            chunk = b""
        self._raw += chunk
        return bool(chunk)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._screen)
