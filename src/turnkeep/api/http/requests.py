"""Reading a request: its body within a limit, its headers, and what the log records about it.

Knows bytes, headers and types, and nothing of endpoints or identities.
"""

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, MutableMapping
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, BinaryIO, TypeVar

import msgspec
from msgspec import UNSET, Struct, inspect
from starlette.datastructures import Headers
from starlette.types import Receive

from turnkeep.errors import InvalidRequest, NotFound, TooLarge, Unauthorized, Unavailable
from turnkeep.ids import check_id

Command = TypeVar("Command", bound=Struct)

STALLED_SECONDS = 120.0
"""An upload that sends nothing for this long is given up."""

_NOTES = "turnkeep.notes"
_SENT_ONCE = {
    name.lower().encode(): name
    for name in ("Authorization", "Turnkeep-User", "Turnkeep-Workspace", "Idempotency-Key", "Last-Event-ID")
}
_UNKNOWN_WORD = re.compile(r"Invalid (?:enum )?value .* - at `(?P<path>\$[^`]*)`", re.DOTALL)
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `.*?`(?: - at `(?P<path>\$[^`]*)`)?", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(?:\d+|\.\.\.)\]")

Notes = dict[str, Any]
"""Fields of the log line of one request, collected on its way through the server."""


def begin_notes(scope: MutableMapping[str, Any], *, request_id: str) -> Notes:
    notes: Notes = {"request_id": request_id, "route": None, "status": None}
    scope[_NOTES] = notes
    return notes


def notes_of(scope: MutableMapping[str, Any]) -> Notes:
    """The notes of this request. Empty if the request did not pass through `RequestMiddleware`."""
    notes: Notes = scope.setdefault(_NOTES, {})
    return notes


def known_id(value: str, prefix: str) -> str:
    """`value` if it could be an id of this kind. Raises NotFound otherwise, as for an id that does not exist."""
    try:
        return check_id(value, prefix)
    except InvalidRequest as exc:
        raise NotFound(exc.detail) from exc


def command_of(kind: type[Command], body: Struct, **more: Any) -> Command:
    """The command that a request body asks for. It has the fields that the body has under the same names, unless they
    are null or left out. `more` gives the other fields, and those that must be checked or changed first."""
    given = {name: getattr(body, name) for name in shared_fields(kind, type(body))}
    return kind(**{name: value for name, value in given.items() if value is not None and value is not UNSET} | more)


def null_fields(body: Struct) -> frozenset[Any]:
    """The names of the fields that the client has set to null."""
    return frozenset(name for name in body.__struct_fields__ if getattr(body, name) is None)


@cache
def shared_fields(one: type[Struct], other: type[Struct]) -> tuple[str, ...]:
    """The names of the fields that both have, in the order of the second."""
    return tuple(name for name in other.__struct_fields__ if name in one.__struct_fields__)


def refuse_duplicate_headers(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raise for a second value of a header that names the caller, the user or the request. One of the two values
    would be ignored silently."""
    seen: set[bytes] = set()
    for name, _ in headers:
        if name in seen:
            kind = Unauthorized if name == b"authorization" else InvalidRequest
            raise kind(f"The header `{_SENT_ONCE[name]}` is sent twice. Send it once.")
        if name in _SENT_ONCE:
            seen.add(name)


async def read_body(receive: Receive, headers: Headers, *, limit: int) -> bytes:
    """The whole body. Raises TooLarge if it is over `limit`, whatever its Content-Length says."""
    refusal = _refusal(limit)
    if _announced(headers) > limit:
        raise refusal
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise Unavailable("The connection was closed before the body was complete.")
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise refusal
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


@asynccontextmanager
async def spooled_body(receive: Receive, headers: Headers, *, limit: int) -> AsyncIterator[BinaryIO]:
    """The whole body as a temporary file, until the end of the block. Raises as `read_body` does."""
    if _announced(headers) > limit:
        raise _refusal(limit)
    with tempfile.TemporaryFile() as file:
        size = 0
        async for chunk in body_chunks(receive):
            size += len(chunk)
            if size > limit:
                raise _refusal(limit)
            await asyncio.to_thread(file.write, chunk)
        file.seek(0)
        yield file


def is_announced_within(headers: Headers, limit: int) -> bool:
    """Whether the client has said how long the body is, and it is not over `limit`."""
    return "content-length" in headers and _announced(headers) <= limit


def _announced(headers: Headers) -> int:
    """The Content-Length, if there is a sensible one."""
    announced = headers.get("content-length", "0")
    return int(announced[:20]) if announced.isascii() and announced.isdigit() else 0


def _refusal(limit: int) -> TooLarge:
    return TooLarge(f"The body is over {limit:,} bytes. Make it shorter, or attach it as a file.")


async def body_chunks(receive: Receive, *, stalled_seconds: float = STALLED_SECONDS) -> AsyncIterator[bytes]:
    """The body in pieces, as it arrives, without a limit. Raises Unavailable if the connection ends before the body
    does, or stays silent for `stalled_seconds`."""
    while True:
        try:
            async with asyncio.timeout(stalled_seconds):
                message = await receive()
        except TimeoutError as exc:
            raise Unavailable(f"Nothing came for {stalled_seconds:g} seconds. Upload it again.") from exc
        if message["type"] != "http.request":
            raise Unavailable("The connection was closed before the body was complete.")
        if chunk := message.get("body", b""):
            yield chunk
        if not message.get("more_body", False):
            return


def validation_error(error: msgspec.ValidationError, kind: Any) -> InvalidRequest:
    """The error for a value that is not a `kind`. For an unknown word or field the message lists those that are
    allowed."""
    words: tuple[str, ...] = ()
    if found := _UNKNOWN_WORD.fullmatch(str(error)):
        words = allowed_words(kind, found["path"])
    elif found := _UNKNOWN_FIELD.fullmatch(str(error)):
        words = allowed_fields(kind, found["path"] or "$")
    if not words:
        return InvalidRequest(f"{error}.")
    return InvalidRequest(f"{error}. Allowed: {', '.join(f'`{word}`' for word in words)}.")


def allowed_words(kind: Any, path: str) -> tuple[str, ...]:
    """The words allowed at a path like `$.message[0].type`. Empty where the type at that path is not a set of words."""
    *steps, last = [step[1] for step in _STEP.finditer(path)] or [None]
    words = dict.fromkeys(word for place in _places(kind, steps) for word in _words_at(place, last))
    return tuple(map(str, words))


def allowed_fields(kind: Any, path: str) -> tuple[str, ...]:
    """The names of the fields of the object at a path. Empty where objects of several kinds may stand."""
    structs = [
        each
        for place in _places(kind, [step[1] for step in _STEP.finditer(path)])
        for each in _alternatives(place)
        if isinstance(each, inspect.StructType)
    ]
    return tuple(inner.encode_name for inner in structs[0].fields) if len(structs) == 1 else ()


def _places(kind: Any, steps: Iterable[str | None]) -> list[inspect.Type]:
    places = [inspect.type_info(kind)]
    for step in steps:
        places = [inner for place in places for inner in _inside(place, step)]
    return places


def _words_at(place: inspect.Type, field: str | None) -> Iterator[object]:
    for struct in _alternatives(place):
        if isinstance(struct, inspect.StructType) and struct.tag_field == field and struct.tag is not None:
            yield struct.tag
    for inner in _inside(place, field):
        for each in _alternatives(inner):
            if isinstance(each, inspect.LiteralType):
                yield from each.values
            elif isinstance(each, inspect.EnumType):
                yield from (member.value for member in each.cls)


def _inside(place: inspect.Type, field: str | None) -> Iterator[inspect.Type]:
    """The types one step further in: of that field, or, without a field, of the items or values."""
    for each in _alternatives(place):
        match each:
            case inspect.StructType():
                yield from (inner.type for inner in each.fields if inner.encode_name == field)
            case inspect.ListType() | inspect.VarTupleType() if field is None:
                yield each.item_type
            case inspect.DictType() if field is None:
                yield each.value_type
            case _:
                pass


def _alternatives(place: inspect.Type) -> Iterator[inspect.Type]:
    match place:
        case inspect.UnionType():
            for each in place.types:
                yield from _alternatives(each)
        case inspect.Metadata():
            yield from _alternatives(place.type)
        case _:
            yield place
