"""The lines of one turn on their way out: written at once, sent as the reader takes them, closed by one ending."""

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

import msgspec

from turnkeep.clock import Clock, system_clock
from turnkeep.streaming.ndjson import (
    LINE_BYTES,
    DeltaLine,
    Ending,
    ErrorLine,
    Line,
    LogLevel,
    LogLine,
    ResultLine,
    SourcesLine,
    StepLine,
    encode_line,
)
from turnkeep_client.wire.blocks import JsonValue
from turnkeep_client.wire.events import Source, Step
from turnkeep_client.wire.parts import StepStatus

ARGS_BYTES = 64 * 1024
ARG_CHARS = 2_000
LOG_CHARS = 8_000

UNSENT_BYTES = 16 * 1024 * 1024
"""A reader that has let so much pile up is not one."""


class Lines:
    """Never blocks whoever writes. `on_flood` is called once when the reader does not keep up."""

    def __init__(self, *, clock: Clock = system_clock) -> None:
        self.on_flood: Callable[[], object] | None = None
        self._clock = clock
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._wake = asyncio.Event()
        self.ending: Ending | None = None

    def log(self, level: LogLevel, message: str) -> None:
        self._write(LogLine(level=level, message=message[:LOG_CHARS], ts=self._clock()))

    def delta(self, text: str) -> None:
        self._write(DeltaLine(text=text))

    def step(self, step: Step, *, name: str | None = None) -> None:
        self._write(
            StepLine(
                id=step.id,
                name=name or step.name,
                status=cast(StepStatus, step.status),
                args=shown_args(step.args),
                result=step.result,
                error=step.error,
                duration_ms=step.duration_ms,
                ts=self._clock(),
            )
        )

    def sources(self, sources: Sequence[Source]) -> None:
        self._write(SourcesLine(sources=tuple(sources), ts=self._clock()))

    def result(self, message: str) -> None:
        ending = ResultLine(message=message, ts=self._clock())
        if len(encode_line(ending)) > LINE_BYTES:
            self.error("answer_too_long", f"The answer has {len(message):,} characters, more than fits into a line.")
        else:
            self._end(ending)

    def error(self, code: str, message: str) -> None:
        self._end(ErrorLine(code=code, message=message, ts=self._clock()))

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def wake(self) -> None:
        """Whoever waits in `take` need not wait any longer."""
        self._wake.set()

    async def take(self, *, seconds: float) -> bytes:
        """What was written since the last call; nothing if nothing came for so long, or at `wake`."""
        if not self._unsent:
            try:
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
            except TimeoutError:
                return b""
        self._wake.clear()
        body = b"".join(self._unsent)
        self._unsent, self._unsent_bytes = [], 0
        return body

    def _end(self, ending: Ending) -> None:
        """The first ending counts; nothing follows it."""
        if self.ending is None:
            self._write(ending)
            self.ending = ending

    def _write(self, line: Line) -> None:
        if self.ending is not None:
            return
        encoded = encode_line(line)
        self._unsent.append(encoded)
        self._unsent_bytes += len(encoded)
        self._wake.set()
        if self._unsent_bytes > UNSENT_BYTES and self.on_flood is not None:
            on_flood, self.on_flood = self.on_flood, None
            on_flood()


def shown_args(args: JsonValue) -> JsonValue:
    """The arguments of a call as a reader gets them: whole, unless they are as long as a file."""
    if not isinstance(args, dict) or len(msgspec.json.encode(args)) <= ARGS_BYTES:
        return args
    short = {name: _cut(value) for name, value in args.items()}
    return short if len(msgspec.json.encode(short)) <= ARGS_BYTES else {"cut": f"{len(args):,} arguments"}


def _cut(value: JsonValue) -> JsonValue:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return value if len(text) <= ARG_CHARS else f"{text[:ARG_CHARS]} [cut: {len(text):,} characters in all]"
