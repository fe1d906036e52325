"""Logs: one JSON object per line on standard error, with the ids of turn and request, and without secrets.

A line that is written while a turn runs, or a request is answered, names both. The turn brings the id of the request
that asked it along, also to another worker.

Headers, bodies and query strings are not logged. A secret in the message of an exception is masked by its shape.

A server writes several lines of the level `info` for each turn, and a write costs more than all else about a line. So
these lines are written many at a time. Lines of errors and of the audit log are written at once.
"""

import asyncio
import logging
import os
import re
import select
import stat
import sys
import time
import traceback
from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from typing import Any, TextIO

import msgspec

from turnkeep.clock import system_clock
from turnkeep.config import MASK, LogLevel
from turnkeep.engine.outbox import AUDIT_LOGGER
from turnkeep.trace_context import current_origin

FIELDS = "fields"
"""`extra={"fields": {...}}` adds these keys to the line."""

GATHER_SECONDS = 0.1
"""How long a line of the level `info` may wait for others."""
GATHER_CHARS = 65_536
BACKLOG_BYTES = 16 << 20
"""How much may wait for a reader of standard error that is slow."""
CLOSE_SECONDS = 2.0
"""How long the end of a process waits for that reader."""

_SHAPES = re.compile(
    r"\btk[up]?_[A-Za-z0-9_.~-]{16,}"
    r"|(?i:\bbearer\s+)\S+"
    r"|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"
    r"|\bsk-[A-Za-z0-9_-]{16,}"
)

_SHORTEST_SECRET = 4
"""Also secrets that are shorter than elsewhere are masked: many people read a log, and a masked word too many does no
harm."""


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        super().__init__()
        known = {secret for secret in secrets if len(secret) >= _SHORTEST_SECRET}
        self._secrets = tuple(sorted(known, key=len, reverse=True))

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": int(record.created * 1000),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        origin = current_origin()
        if origin.turn_id is not None:
            line["turn_id"] = origin.turn_id
        if origin.request_id is not None:
            line["request_id"] = origin.request_id
        fields: Mapping[str, Any] = getattr(record, FIELDS, {})
        line |= {name: value for name, value in fields.items() if value is not None}
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = "".join(traceback.format_exception(*record.exc_info))
        return self._masked(msgspec.json.encode(line, enc_hook=repr).decode("utf-8", "replace"))

    def _masked(self, text: str) -> str:
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, MASK)
        return _SHAPES.sub(MASK, text) if _may_have_shapes(text) else text


def _may_have_shapes(text: str) -> bool:
    """Whether the text has what one of `_SHAPES` contains. This takes a tenth of the time of looking for a shape."""
    return (
        "tk_" in text or "tku_" in text or "tkp_" in text or "sk-" in text or "://" in text or "bearer" in text.lower()
    )


class JsonHandler(logging.StreamHandler[TextIO]):
    """Writes lines to a stream, in their order. A line that cannot be written is dropped, but not one of the audit log.

    In an event loop, lines below the level `warning` wait for others. They wait for `GATHER_SECONDS` at most, and never
    behind a line that is written at once, or when the process ends. Only a process that is killed loses them.

    Standard error may be a pipe that is full while its reader is slow. No write waits for that reader. What the pipe
    does not take is kept, and written later or when the process ends. Beyond `BACKLOG_BYTES` lines are dropped, and a
    line says so.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._lines: list[str] = []
        self._chars = 0
        self._backlog = bytearray()
        """What the stream did not take yet."""
        self._dropped = 0
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
            if record.name == AUDIT_LOGGER:
                self._emit_surely(line)
                return
            if len(self._backlog) > BACKLOG_BYTES and not self._is_written_later():
                self.flush()  # in a thread without an event loop, which may be the only one that writes lines
            if len(self._backlog) > BACKLOG_BYTES:
                self._dropped += 1
                return
            self._lines.append(line)
            self._chars += len(line)
            is_urgent = record.levelno >= logging.WARNING
            if is_urgent or self._chars > GATHER_CHARS or not self._is_written_later():
                self.flush()
        except RecursionError:
            raise
        except Exception:
            self.handleError(record)

    def _emit_surely(self, line: str) -> None:
        """Write this line now, behind those that wait. Raises BlockingIOError if the stream does not take all of it."""
        if self._backlog:
            self.flush()
        if self._backlog:
            raise BlockingIOError("Standard error is a full pipe.")
        self._lines.append(line)
        self.flush()
        if self._backlog:  # a part was written, so the rest must follow, even if the line is written once more
            raise BlockingIOError("Standard error is a full pipe.")

    def flush(self) -> None:
        """Write the lines that wait, as far as the stream takes them."""
        with self.lock or nullcontext():
            lines, self._lines, self._chars = self._lines, [], 0
            text = "".join(line + self.terminator for line in lines)
            descriptor = _descriptor_of(self.stream)
            if descriptor is None:
                if text:
                    self.stream.write(text)
                super().flush()
                return
            self._backlog += text.encode("utf-8", "replace")
            self._send(descriptor)
            if self._backlog:
                self._is_written_later()

    def _send(self, descriptor: int) -> None:
        """Write the backlog until it is empty, or the pipe is full."""
        try:
            while self._backlog and (most := _bytes_taken(descriptor)):
                with memoryview(self._backlog) as all_of_it, all_of_it[:most] as piece:
                    sent = os.write(descriptor, piece)
                del self._backlog[:sent]
                if not self._backlog and self._dropped:
                    self._backlog += self._note_of_dropped()
        except BlockingIOError:
            return
        except OSError:
            self._backlog.clear()  # the stream is gone, and with it every later line
            raise

    def _note_of_dropped(self) -> bytes:
        dropped, self._dropped = self._dropped, 0
        text = f"{dropped} lines of the log were dropped: nobody read standard error."
        line = {"ts": system_clock(), "level": "warning", "logger": __name__, "message": text}
        return msgspec.json.encode(line) + self.terminator.encode()

    def close(self) -> None:
        """Write what is left, and wait up to `CLOSE_SECONDS` for a pipe that is full. Python calls it at the end of the
        process."""
        until = time.monotonic() + CLOSE_SECONDS
        with self.lock or nullcontext(), suppress(OSError, ValueError):
            descriptor = _descriptor_of(self.stream)
            while descriptor is not None and self._backlog and time.monotonic() < until:
                writable = select.poll()
                writable.register(descriptor, select.POLLOUT)
                writable.poll(1_000 * (until - time.monotonic()))
                self._send(descriptor)
        super().close()

    def handleError(self, record: logging.LogRecord) -> None:  # the name is logging's
        if record.name == AUDIT_LOGGER:
            raise  # noqa: PLE0704 - called while the error is handled. The outbox tries the entry again later
        super().handleError(record)

    def _is_written_later(self) -> bool:
        """Whether the event loop of this thread will write the line. Other threads write at once."""
        loop = asyncio._get_running_loop()
        if loop is None:
            return False
        if self._timer is None or self._loop is not loop:
            self._loop = loop
            self._timer = loop.call_later(GATHER_SECONDS, self._write_gathered)
        return True

    def _write_gathered(self) -> None:
        self._timer = None
        with suppress(OSError, ValueError):  # the stream is gone, and with it every later line
            self.flush()


def _descriptor_of(stream: TextIO) -> int | None:
    """The file descriptor of the stream, with nothing of it left in Python's buffer; None for a stream without one."""
    try:
        descriptor = stream.fileno()
    except (AttributeError, OSError, ValueError):  # a stream in memory
        return None
    with suppress(BlockingIOError):
        stream.flush()
    return descriptor


def _bytes_taken(descriptor: int) -> int:
    """How many bytes one write may have, so that it does not wait for a reader; 0 if there is no room now.

    The pipe is shared with other processes, so it cannot be made one that does not block. A pipe that can be written to
    has room for `PIPE_BUF` bytes.
    """
    if not os.get_blocking(descriptor) or stat.S_ISREG(os.fstat(descriptor).st_mode):
        return BACKLOG_BYTES
    writable = select.poll()
    writable.register(descriptor, select.POLLOUT)
    return select.PIPE_BUF if writable.poll(0) else 0


def configure_logging(level: LogLevel, *, secrets: Iterable[str] = (), stream: TextIO | None = None) -> None:
    """Send all logs of this process to `stream` (standard error) as JSON lines."""
    handler = JsonHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(secrets))
    # The lines do not say where in the program they come from, so records need not know it.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # Python's manual names it for this purpose
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers = []
        logger.propagate = name != "uvicorn.access"  # RequestMiddleware writes a line per request
    # HTTP clients log whole addresses at "info", and a tool's address may hold a key.
    for name in ("uvicorn", "httpx", "httpcore", "httpx2", "httpcore2", "aiohttp"):
        logging.getLogger(name).setLevel("WARNING")
    # The providers' SDKs log whole conversations at "debug".
    for name in ("anthropic", "openai"):
        logging.getLogger(name).setLevel("WARNING")
    # The MCP library logs the responses of servers. `turnkeep.tools` logs what went wrong with one.
    logging.getLogger("mcp").setLevel("CRITICAL")
