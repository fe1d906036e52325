"""Files on their way out: as attachments that no browser runs, whole or in part, with constant memory.

Whatever somebody uploaded is served as a download, under a type that is shown and never executed, with a policy that
forbids scripts, frames and everything else; so a page or a drawing with a script in it does nothing here.
"""

import re
from collections.abc import AsyncIterator, Mapping
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.responses import Response, StreamingResponse

from turnkeep.api.http.problem_details import RangeNotSatisfiable
from turnkeep.filebag.bag import Bag
from turnkeep.filebag.pictures import RASTER_TYPES
from turnkeep.model.files import File

UNKNOWN = "application/octet-stream"
SAFE_HEADERS: Mapping[str, str] = {
    "content-security-policy": "default-src 'none'; sandbox; frame-ancestors 'none'; form-action 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
}

_RANGE = re.compile(r"bytes=([0-9]+)?-([0-9]+)?")
_FAR = 10**18
"""Behind the end of every file."""
_SHOWN = frozenset({*RASTER_TYPES, "text/plain"})


async def streamed(
    status: int, headers: Mapping[str, str], size: int, blocks: AsyncIterator[bytes]
) -> StreamingResponse:
    """The response, once its first block has been read: a file that cannot be read at all still gets an error status.
    The length is announced, so that a client notices a body that breaks off."""
    first = await anext(blocks, b"")
    return StreamingResponse(_with_first(first, blocks), status, {**headers, "content-length": str(size)})


async def download(bag: Bag, file: File, headers: Headers) -> Response:
    """The file, or the one range of it that was asked for; 304 for whom has it already."""
    tag = f'"{file.sha256}"'
    about = {
        **SAFE_HEADERS,
        "content-type": shown_type(file.mime_type),
        "content-disposition": disposition(file.name),
        "etag": tag,
        "accept-ranges": "bytes",
        "cache-control": "private, no-cache",
    }
    if _names(headers.get("if-none-match", ""), tag):
        return Response(status_code=304, headers={name: about[name] for name in ("etag", "cache-control")})
    asked = headers.get("range") if headers.get("if-range", tag) == tag else None
    place = range_of(asked, file.size)
    if place is None:
        return await streamed(200, about, file.size, bag.content(file))
    start, end = place
    about["content-range"] = f"bytes {start}-{end - 1}/{file.size}"
    return await streamed(206, about, end - start, bag.content(file, start=start, end=end))


def range_of(asked: str | None, size: int) -> tuple[int, int] | None:
    """The place that a Range header names; None for the whole. Only one range is served: many, or a header that
    cannot be read, are passed over. Raises RangeNotSatisfiable for one that lies outside."""
    match = _RANGE.fullmatch((asked or "").strip())
    if match is None or match[1] is match[2] is None:
        return None
    if match[1] is None:
        start, end = max(0, size - _place(match[2])), size
    else:
        start = _place(match[1])
        end = size if match[2] is None else min(_place(match[2]) + 1, size)
        if match[2] is not None and _place(match[2]) < start:
            return None
    if start >= end:
        raise RangeNotSatisfiable(f"The file has {size} bytes; the range lies outside.", size=size)
    return start, end


def shown_type(mime_type: str) -> str:
    """The type to serve: as it is where showing it can do no harm, plain bytes otherwise."""
    if mime_type == "text/plain":
        return "text/plain; charset=utf-8"
    if mime_type in _SHOWN or mime_type.startswith(("audio/", "video/")):
        return mime_type
    return UNKNOWN


def disposition(name: str) -> str:
    """`attachment`, with the name once for old readers in ASCII and once as it is."""
    plain = re.sub(r'[^\x20-\x7e]|["\\%]', "_", name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"


def _place(digits: str) -> int:
    """The number. Of those that lie behind every end, one is as good as another."""
    digits = digits.lstrip("0")
    return int(digits or "0") if len(digits) <= 18 else _FAR


def _names(header: str, tag: str) -> bool:
    return header.strip() == "*" or tag in {each.strip().removeprefix("W/") for each in header.split(",")}


async def _with_first(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if first:
        yield first
    async for block in rest:
        yield block
