"""Downloads of stored files, whole or in part, with constant memory.

An uploaded file is served as an attachment, under a media type that browsers show and never execute, with a content
security policy that forbids scripts and frames. So an HTML or SVG file with a script in it does no harm.
"""

import re
from collections.abc import AsyncIterator, Mapping
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.responses import Response, StreamingResponse

from turnkeep.api.http.problem_details import RangeNotSatisfiable
from turnkeep.files.bag import Bag
from turnkeep.files.images import RASTER_TYPES
from turnkeep.model.files import File

UNKNOWN = "application/octet-stream"
SAFE_HEADERS: Mapping[str, str] = {
    "content-security-policy": "default-src 'none'; sandbox; frame-ancestors 'none'; form-action 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
}

_RANGE = re.compile(r"bytes=([0-9]+)?-([0-9]+)?")
_FAR = 10**18
"""Larger than any file."""
_SHOWN = frozenset({*RASTER_TYPES, "text/plain"})


async def streamed(
    status: int, headers: Mapping[str, str], size: int, blocks: AsyncIterator[bytes]
) -> StreamingResponse:
    """The response, once its first block has been read: a file that cannot be read at all still gets an error status.
    The length is announced, so that a client notices a body that breaks off."""
    first = await anext(blocks, b"")
    return StreamingResponse(_with_first(first, blocks), status, {**headers, "content-length": str(size)})


async def download(bag: Bag, file: File, headers: Headers) -> Response:
    """The file, or the requested range of it; 304 if the client has it already."""
    tag = f'"{file.sha256}"'
    about = {
        **SAFE_HEADERS,
        "content-type": shown_type(file.mime_type),
        "content-disposition": disposition(file.name),
        "etag": tag,
        "accept-ranges": "bytes",
        "cache-control": "private, no-cache",
    }
    if _matches(headers.get("if-none-match", ""), tag):
        return Response(status_code=304, headers={name: about[name] for name in ("etag", "cache-control")})
    asked = headers.get("range") if headers.get("if-range", tag) == tag else None
    span = range_of(asked, file.size)
    if span is None:
        return await streamed(200, about, file.size, bag.content(file))
    start, end = span
    about["content-range"] = f"bytes {start}-{end - 1}/{file.size}"
    return await streamed(206, about, end - start, bag.content(file, start=start, end=end))


def range_of(asked: str | None, size: int) -> tuple[int, int] | None:
    """Start and end of the range that a Range header names; None for the whole file. Several ranges, or a header that
    cannot be parsed, are ignored. Raises RangeNotSatisfiable for a range outside the file."""
    match = _RANGE.fullmatch((asked or "").strip())
    if match is None or match[1] is match[2] is None:
        return None
    if match[1] is None:
        start, end = max(0, size - _number(match[2])), size
    else:
        start = _number(match[1])
        end = size if match[2] is None else min(_number(match[2]) + 1, size)
        if match[2] is not None and _number(match[2]) < start:
            return None
    if start >= end:
        raise RangeNotSatisfiable(f"The file has {size} bytes; the range lies outside.", size=size)
    return start, end


def shown_type(mime_type: str) -> str:
    """The media type to serve: the file's own if browsers can show it without harm, else plain bytes."""
    if mime_type == "text/plain":
        return "text/plain; charset=utf-8"
    if mime_type in _SHOWN or mime_type.startswith(("audio/", "video/")):
        return mime_type
    return UNKNOWN


def disposition(name: str) -> str:
    """`attachment`, with the name in ASCII for old clients and as it is for others."""
    plain = re.sub(r'[^\x20-\x7e]|["\\%]', "_", name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"


def _number(digits: str) -> int:
    """The number. One that is larger than any file is cut short, because parsing many digits is slow."""
    digits = digits.lstrip("0")
    return int(digits or "0") if len(digits) <= 18 else _FAR


def _matches(header: str, tag: str) -> bool:
    return header.strip() == "*" or tag in {each.strip().removeprefix("W/") for each in header.split(",")}


async def _with_first(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if first:
        yield first
    async for block in rest:
        yield block
