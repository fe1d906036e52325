"""What a program wrote to its standard error last: kept for the sentence that says why it ended, and nowhere else."""

import asyncio
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TextIO

from turnkeep.config import masked
from turnkeep.tools.discretion import SHORTEST

KEPT_BYTES = 4_096
SHOWN_CHARS = 300


class LastWords:
    """Reads a program's standard error for as long as it runs. `secrets` are masked, should it print them."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = tuple(secrets)
        self._kept = b""
        self._writer: TextIO | None = None

    @contextmanager
    def listening(self) -> Iterator[TextIO]:
        """A file for the program to write to."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        loop = asyncio.get_running_loop()
        self._writer = os.fdopen(writing, "w")
        loop.add_reader(reading, self._read, reading)
        try:
            yield self._writer
        finally:
            self.spawned()
            loop.remove_reader(reading)
            self._read(reading)
            os.close(reading)

    def spawned(self) -> None:
        """The program has its own copy of the file; ours must go, or its end would not be seen."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __call__(self) -> str:
        """The last line or so, on one line."""
        text = masked(self._kept.decode(errors="replace"), self._secrets, shortest=SHORTEST)
        return " ".join(text.split())[-SHOWN_CHARS:]

    def _read(self, descriptor: int) -> None:
        try:
            chunk = os.read(descriptor, 65_536)
        except (BlockingIOError, OSError):
            return
        if not chunk:
            asyncio.get_running_loop().remove_reader(descriptor)
            return
        self._kept = (self._kept + chunk)[-KEPT_BYTES:]
