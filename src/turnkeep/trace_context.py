"""For which request and which turn the running code works, and to which trace that belongs.

Log lines name them, and calls of other services pass the trace on. Each task inherits them from the task that started
it, so code in between does not hand them on.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from msgspec import Struct

from turnkeep.ids import TurnId

TRACEPARENT = "traceparent"
"""The name of the header, and of the key in the `_meta` of an MCP call."""

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class Origin(Struct, frozen=True, kw_only=True):
    """What caused the work that is being done. `traceparent` has the form of W3C Trace Context."""

    request_id: str | None = None
    turn_id: TurnId | None = None
    traceparent: str | None = None


_NONE = Origin()
_current: ContextVar[Origin] = ContextVar("turnkeep.origin", default=_NONE)

current_origin = _current.get
"""The origin of the running task."""
set_origin = _current.set
"""Set it for the rest of the running task, and for the tasks that it starts."""


@contextmanager
def origin(value: Origin) -> Iterator[None]:
    """The same for a block."""
    token = _current.set(value)
    try:
        yield
    finally:
        _current.reset(token)


def valid_traceparent(text: str) -> str | None:
    """The text, if it is a valid `traceparent` of version 00. A later version may have more fields; they are dropped.
    None otherwise: the caller's trace is then not known."""
    found = _TRACEPARENT.match(text)
    if found is None or (text.startswith("00") and len(text) != found.end()):
        return None
    return "00" + found[0][2:]
