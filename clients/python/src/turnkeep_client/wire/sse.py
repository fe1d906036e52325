"""Server-sent events as bytes: writing frames, and reading them again. No I/O.

The parser follows the WHATWG text to the letter (line ends, the byte order mark, fields without a colon, an `id` with
a NUL, an id that stays until another one comes) and may be fed any cut of the bytes.
"""

from msgspec import Struct

HEARTBEAT = b":\n\n"
"""A comment, which readers ignore. It keeps proxies from closing an idle connection."""


def frame(data: bytes, *, event: str | None = None, id: str | None = None) -> bytes:
    """One frame. `data` must have no line breaks, as JSON without indentation has none."""
    head = f"event: {event}\n" if event else ""
    if id is not None:
        head += f"id: {id}\n"
    return b"%bdata: %b\n\n" % (head.encode(), data)


def retry(milliseconds: int) -> bytes:
    """Tell the reader how long to wait before it connects again."""
    return b"retry: %d\n\n" % milliseconds


class ServerSentEvent(Struct, frozen=True, kw_only=True):
    """A frame as a reader receives it. `id` is the last id so far, perhaps of an earlier frame."""

    event: str
    data: str
    id: str


class SseParser:
    """Feed it bytes as they come; it returns complete frames. An unfinished frame is never returned."""

    def __init__(self, last_id: str = "") -> None:
        self.last_id = last_id
        """The cursor to resume at: that of the last complete frame."""
        self.retry_milliseconds: int | None = None
        self._id = last_id
        self._event = ""
        self._data: list[str] = []
        self._line = b""
        self._after_cr = False
        self._at_start = True

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        found: list[ServerSentEvent] = []
        for line in self._lines(chunk):
            if line:
                self._field(line)
                continue
            self.last_id = self._id
            if self._data:
                found.append(
                    ServerSentEvent(event=self._event or "message", data="\n".join(self._data), id=self.last_id)
                )
            self._event, self._data = "", []
        return found

    def _lines(self, chunk: bytes) -> list[bytes]:
        """Complete lines. A carriage return ends a line at once, and swallows a line feed that comes right after."""
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        text = self._line + chunk
        if text.endswith(b"\r"):
            self._after_cr = True
        *lines, self._line = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        if lines and self._at_start:
            self._at_start = False
            lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
        return lines

    def _field(self, line: bytes) -> None:
        name, _, rest = line.partition(b":")
        value = rest.removeprefix(b" ").decode("utf-8", "replace")
        match name:
            case b"data":
                self._data.append(value)
            case b"event":
                self._event = value
            case b"id" if "\0" not in value:
                self._id = value
            case b"retry" if value.isascii() and value.isdigit():
                self.retry_milliseconds = int(value)
            case _:
                pass
