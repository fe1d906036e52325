"""NDJSON: the strict parser of the lines that come out of a sandbox. No I/O. `wire/sandbox.py` defines the lines.

A body is read like this; there is exactly one ending, whatever the bytes were:

    parser = LineParser()
    async for chunk in body:
        for line in parser.feed(chunk):  # log, delta, step and sources lines
            ...
    ending = parser.close()  # the result or error line, or an error line with the code `sandbox_protocol`

An unknown type, bad JSON, a wrong field, a line over 1 MiB or a body without a terminal line breaks the protocol: what
came before is kept, what comes after is ignored. Lines after the first terminal line are ignored too; `ignored_lines`
counts them. Unknown fields are ignored; `take_notes` names them. Blank lines mean nothing: a runner sends one from time
to time to find out whether the server is still connected.
"""

from typing import get_args

import msgspec

from turnkeep_client.wire.blocks import StepStatus
from turnkeep_client.wire.sandbox import Ending, ErrorLine, Line, OpenLine, ResultLine, StepLine, decode_line

LINE_BYTES = 1024 * 1024
"""The longest line, without its line feed."""

PROTOCOL_ERROR = "sandbox_protocol"

_STATUSES = frozenset(get_args(StepStatus))
_QUOTED_CHARS = 200
_MOST_NOTES = 20
_NAME_CHARS = 60


def checked_line(line: bytes) -> tuple[Line, list[str]]:
    """One line without its line feed, and the names of the unknown fields that it had. Raises ValueError, in words that
    name the fault and quote no content."""
    if len(line) > LINE_BYTES:
        raise ValueError(f"A line is longer than {LINE_BYTES:,} bytes.")
    try:
        decoded, unknown = decode_line(line)
        if isinstance(decoded, StepLine) and decoded.status not in _STATUSES:
            raise msgspec.ValidationError(f"Invalid enum value {decoded.status!r} - at `$.status`")
    except UnicodeDecodeError as exc:
        raise ValueError("A line is not valid UTF-8.") from exc
    except RecursionError as exc:
        raise ValueError("A line is nested too deeply.") from exc
    except msgspec.ValidationError as exc:
        raise ValueError(f"A line does not fit the contract: {str(exc)[:_QUOTED_CHARS]}.") from exc
    except msgspec.DecodeError as exc:
        raise ValueError(f"A line is not JSON: {str(exc)[:_QUOTED_CHARS]}.") from exc
    return decoded, unknown


class LineParser:
    """Feed it bytes as they come, then close it once."""

    def __init__(self) -> None:
        self.ending: Ending | None = None
        """The terminal line once it came, or the fault that takes its place."""
        self.ignored_lines = 0
        """Lines after the ending, the blank ones aside. Note them in the trace."""
        self._notes: dict[str, bool] = {}
        """Notes for the trace about the lines so far, and whether each was taken."""
        self._pieces: list[bytes] = []
        self._piece_bytes = 0

    def take_notes(self) -> list[str]:
        """New notes for the trace about the lines so far. None is returned twice, and there are twenty at most."""
        new = [note for note, is_taken in self._notes.items() if not is_taken]
        self._notes.update(dict.fromkeys(new, True))
        return new

    @property
    def is_broken(self) -> bool:
        """The protocol was broken; the rest of the body need not be read."""
        return isinstance(self.ending, ErrorLine) and self.ending.code == PROTOCOL_ERROR

    def feed(self, chunk: bytes) -> list[OpenLine]:
        """The complete lines before the ending."""
        head, feed, tail = chunk.rpartition(b"\n")
        if not feed:
            self._keep(chunk)
            return []
        if self._pieces:
            head = b"".join((*self._pieces, head))
            self._pieces = []
            self._piece_bytes = 0
        found: list[OpenLine] = []
        for line in head.split(b"\n"):
            if self.ending is None:
                self._take(line, found)
            elif not line.isspace() and line:
                self.ignored_lines += 1
        self._keep(tail)
        return found

    def close(self) -> Ending:
        """The body has ended. A last line without a line feed counts; a body without a terminal line is a fault."""
        if self._pieces:
            rest, self._pieces, self._piece_bytes = b"".join(self._pieces), [], 0
            if self.ending is None:
                # Of an unfinished last line only a terminal one is still of use.
                self._take(rest, [])
            elif rest.strip():
                self.ignored_lines += 1
        if self.ending is None:
            self._break("The stream ended without a result or an error.")
        assert self.ending is not None
        return self.ending

    def _take(self, line: bytes, found: list[OpenLine]) -> None:
        if not line or line.isspace():
            return
        try:
            decoded, unknown = checked_line(line)
        except ValueError as exc:
            self._break(str(exc))
            return
        for name in unknown:
            if len(self._notes) < _MOST_NOTES:
                tag = decoded.__struct_config__.tag
                self._notes.setdefault(f"The field {name[:_NAME_CHARS]!r} of a `{tag}` line was passed over.", False)
        if isinstance(decoded, ResultLine | ErrorLine):
            self.ending = decoded
        else:
            found.append(decoded)

    def _keep(self, piece: bytes) -> None:
        """Keep an unfinished line, but never more than the longest line."""
        if not piece:
            return
        if self.ending is not None:
            self._pieces = [b"x"] if piece.strip() or self._pieces else []
            return
        self._pieces.append(piece)
        self._piece_bytes += len(piece)
        if self._piece_bytes > LINE_BYTES:
            self._break(f"A line is longer than {LINE_BYTES:,} bytes.")
            self._pieces, self._piece_bytes = [b"x"], 1

    def _break(self, why: str) -> None:
        self.ending = ErrorLine(code=PROTOCOL_ERROR, message=why)
