"""Files of an HTTP form (`multipart/form-data`), parsed while they arrive. Bytes in, parts out; no HTTP library."""

import re
from collections.abc import AsyncIterator, Iterator, Mapping, MutableMapping
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote_to_bytes

from msgspec import Struct
from multipart import (  # type: ignore[import-untyped]
    MultipartError,
    ParserLimitReached,
    PushMultipartParser,
    content_disposition_unquote,
    parse_options_header,
)

from turnkeep.errors import InvalidRequest, TooManyFiles

FIELD = "file"
HEADER_BYTES = 4_096
HEADERS = 8
BOUNDARY_CHARS = 200
IDLE_BYTES = 1024 * 1024
"""Maximum number of bytes before, between and after the parts of a form."""

TEXT_BYTES = 200
"""How much is kept of a field that is no file."""

_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"')
_STARRED = re.compile(r"filename\*\s*=\s*([\w-]+)'[\w-]*'([^;\s]+)", re.IGNORECASE)


class FormFile(Struct, frozen=True):
    """One file of a form: the name and type that the client declared, and its bytes as they arrive."""

    name: str
    declared_type: str | None
    chunks: AsyncIterator[bytes]


class _Part(Struct, frozen=True):
    """The headers of a part."""

    field: str
    disposition: str
    declared_type: str | None


async def file_parts(
    content_type: str,
    body: AsyncIterator[bytes],
    *,
    max_files: int,
    advice: str = "Send the rest with the next request.",
    texts: MutableMapping[str, str] | None = None,
    refused: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[FormFile]:
    """The files of a form, one after the other. The caller must read the bytes of one before it asks for the next.
    Fields that `texts` has may be in the form too, and get their value there. A field in `refused` raises
    InvalidRequest with the reason given there.

    Raises TooManyFiles, with this advice, at the first file over the limit. Raises InvalidRequest if the body is not a
    form of files.
    """
    events = _Events(_boundary(content_type), body)
    found = 0
    while (part := await events.next()) is not None:
        if not isinstance(part, _Part):
            raise InvalidRequest("A part of the form was not read to its end.")
        if part.field in refused:
            raise InvalidRequest(refused[part.field])
        if texts is not None and part.field in texts:
            texts[part.field] = await _text(events)
            continue
        found += 1
        if found > max_files:
            raise TooManyFiles(f"At most {max_files} files can be sent at once. {advice}")
        yield FormFile(_name(part), part.declared_type, _chunks(events))
    if not found:
        raise InvalidRequest(f"The form holds no file. Send at least one as the field `{FIELD}`.")


class _Events:
    """Events of the parser, one by one: a part, its bytes, `b""` at the end of a part, None at the end of the form."""

    def __init__(self, boundary: str, body: AsyncIterator[bytes]) -> None:
        self._body = body
        # Not strict: strict mode refuses the line break that most clients send after the last boundary.
        self._parser = PushMultipartParser(boundary, max_header_size=HEADER_BYTES, max_header_count=HEADERS)
        self._ready: Iterator[Any] = iter(())
        self._idle = 0

    async def next(self) -> _Part | bytes | None:
        try:
            while True:
                for event in self._ready:
                    self._idle = 0
                    return _event(event)
                if self._parser.closed:
                    return None
                chunk = await anext(self._body, b"")
                self._idle += len(chunk)
                if self._idle > IDLE_BYTES:
                    raise InvalidRequest("The form is malformed: there is too much before or behind its parts.")
                self._ready = self._parser.parse(chunk)
        except ParserLimitReached as exc:
            raise InvalidRequest(f"The headers of a part are too long or too many: {HEADER_BYTES} bytes.") from exc
        except MultipartError as exc:
            if any(isinstance(reason, UnicodeError) for reason in exc.args):
                raise InvalidRequest(
                    "A part of the form has a header that is not UTF-8, most likely the name of its file. Send it so."
                ) from exc
            raise InvalidRequest(f"The form is malformed or was cut off: {exc}.") from exc


def _event(event: Any) -> _Part | bytes:
    if event is None:
        return b""
    if isinstance(event, bytes | bytearray):
        return bytes(event)
    return _Part(event.name, event.header("Content-Disposition") or "", event.content_type)


async def _chunks(events: _Events) -> AsyncIterator[bytes]:
    while isinstance(event := await events.next(), bytes):
        if not event:
            return
        yield event
    raise InvalidRequest("The form is malformed or was cut off.")


async def _text(events: _Events) -> str:
    """The value of a field that is no file, up to a limit."""
    value = b""
    async for chunk in _chunks(events):
        value = (value + chunk)[:TEXT_BYTES]
    return value.decode(errors="replace")


def _boundary(content_type: str) -> str:
    kind, options = parse_options_header(content_type)
    if kind != "multipart/form-data":
        raise InvalidRequest("Send the files as multipart/form-data.")
    boundary = options.get("boundary", "")
    if not boundary or len(boundary) > BOUNDARY_CHARS or not boundary.isascii():
        raise InvalidRequest("The Content-Type of a form names its boundary: `multipart/form-data; boundary=…`.")
    return str(boundary)


def _name(part: _Part) -> str:
    """The name that the client gave the file. Some libraries encode it as in e-mails (`filename*=`)."""
    if part.field != FIELD:
        raise InvalidRequest(f"The form has a field {part.field[:100]!r}. Send every file as the field `{FIELD}`.")
    starred = _STARRED.search(_QUOTED.sub('""', part.disposition))
    if starred is not None:
        try:
            return unquote_to_bytes(starred[2]).decode(starred[1])
        except (LookupError, UnicodeDecodeError) as exc:
            raise InvalidRequest("The name of a file is not valid Unicode.") from exc
    # Parsed here, because the library silently cuts a path off a name. A path must be refused.
    _, options = parse_options_header(part.disposition, unquote=lambda value, _: content_disposition_unquote(value))
    name = options.get("filename", "")
    if not name:
        raise InvalidRequest(f"The field `{FIELD}` is no file: it has no filename.")
    return str(name)
