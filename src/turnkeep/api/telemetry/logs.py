"""Logs: one JSON object per line on standard error, with turn ids, and without secrets.

Headers, bodies and query strings are not logged. A secret in the message of an exception is masked by its shape.
"""

import logging
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

import msgspec

from turnkeep.config import MASK, LogLevel, masked
from turnkeep.engine.outbox import AUDIT_LOGGER

FIELDS = "fields"
"""`extra={"fields": {...}}` adds these keys to the line."""

_SHAPES = re.compile(
    r"\btk[up]?_[A-Za-z0-9_.~-]{16,}"
    r"|(?i:\bbearer\s+)\S+"
    r"|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"
    r"|\bsk-[A-Za-z0-9_-]{16,}"
)

_SIGNS = ("tk_", "tku_", "tkp_", "bearer", "://", "sk-")
"""What a text with one of these shapes contains, in lower case. Looking for it first takes a tenth of the time."""


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        super().__init__()
        self._secrets = tuple(secrets)

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": int(record.created * 1000),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields: Mapping[str, Any] = getattr(record, FIELDS, {})
        line |= {name: value for name, value in fields.items() if value is not None}
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = "".join(traceback.format_exception(*record.exc_info))
        return self._masked(msgspec.json.encode(line, enc_hook=repr).decode("utf-8", "replace"))

    def _masked(self, text: str) -> str:
        # Also secrets that are shorter than elsewhere: many people read a log, and a masked word too many does no harm.
        text = masked(text, self._secrets, shortest=4)
        lowered = text.lower()
        return _SHAPES.sub(MASK, text) if any(sign in lowered for sign in _SIGNS) else text


class JsonHandler(logging.StreamHandler[TextIO]):
    """Writes lines to a stream. A line that cannot be written is dropped, but not one of the audit log."""

    def handleError(self, record: logging.LogRecord) -> None:  # the name is logging's
        if record.name == AUDIT_LOGGER:
            raise  # noqa: PLE0704 - called while the error is handled. The outbox tries the entry again later
        super().handleError(record)


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
