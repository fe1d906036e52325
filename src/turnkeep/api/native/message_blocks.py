"""From the `message` of a request body to the blocks and files of a question.

Images inside a message are checked before anything is stored: a provider refuses a request with a broken image in it,
and would refuse every later request of that conversation too.
"""

import base64
import binascii
from collections.abc import Sequence
from typing import assert_never

from turnkeep.api.http.requests import known_id
from turnkeep.compiler.utterances import MAX_IMAGE_CHARS
from turnkeep.config import Settings
from turnkeep.errors import InvalidRequest, TooManyFiles
from turnkeep.files.images import RASTER_TYPES
from turnkeep.ids import FileId
from turnkeep.runtime import Runtime
from turnkeep.tools.addresses import AddressGuard, AddressRefused
from turnkeep_client import wire
from turnkeep_client.wire.blocks import Block, Image, Text

ANY_TYPE = "image/*"
_TYPES = ", ".join(sorted(RASTER_TYPES))


async def blocks_of(
    message: str | Sequence[wire.TextBlock | wire.ImageBlock | wire.FileBlock], runtime: Runtime
) -> tuple[tuple[Block, ...], list[FileId]]:
    """The blocks of the message, and the files that it names. Empty texts are left out: no provider accepts them."""
    if isinstance(message, str):
        return ((Text(text=message),) if message.strip() else ()), []
    blocks: list[Block] = []
    files: list[FileId] = []
    for n, block in enumerate(message):
        match block:
            case wire.TextBlock():
                if block.text.strip():
                    blocks.append(Text(text=block.text))
            case wire.ImageBlock():
                blocks.append(await image_of(block, runtime, place=f"message[{n}]"))
            case wire.FileBlock():
                files.append(FileId(known_id(block.file_id, "file")))
            case _:
                assert_never(block)
    return tuple(blocks), files


def attachments_of(given: Sequence[str], named: Sequence[FileId], settings: Settings) -> tuple[FileId, ...]:
    """The files of a message, from `attachment_ids` and from its blocks."""
    return check_attachments([*given, *(file_id for file_id in named if file_id not in given)], settings)


def check_attachments(file_ids: Sequence[str], settings: Settings) -> tuple[FileId, ...]:
    limit = settings.max_files_per_message
    if len(file_ids) > limit:
        raise TooManyFiles(f"A message may carry {limit} files, this one names {len(file_ids)}.")
    return tuple(FileId(known_id(file_id, "file")) for file_id in file_ids)


async def image_of(block: wire.ImageBlock, runtime: Runtime, *, place: str) -> Image:
    """The image as models accept it. Raises InvalidRequest, which names the block by its place in the body."""
    if block.data is not None and block.url is None:
        return await _inline(block.data, block.media_type, runtime, place)
    if block.url is not None and block.data is None:
        return _remote(block.url, block.media_type, runtime, place)
    raise InvalidRequest(f"An image has either `data` or a `url`, and `{place}` has both or neither.")


async def _inline(data: str, media_type: str, runtime: Runtime, place: str) -> Image:
    """The bytes decide the media type, as for files. An image that is too large for models is made smaller."""
    if media_type not in RASTER_TYPES:
        raise InvalidRequest(f"`{place}.media_type` must be one of {_TYPES}. Attach anything else as a file.")
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise InvalidRequest(
            f"`{place}.data` is not base64: the standard alphabet, padded, without line breaks or a `data:` prefix."
        ) from exc
    picture = await runtime.pictures.for_model(raw)
    if picture is None:
        raise InvalidRequest(f"`{place}.data` is no picture that can be read. It must be one of {_TYPES}.")
    encoded = base64.b64encode(picture.data).decode()
    if len(encoded) > MAX_IMAGE_CHARS:
        raise InvalidRequest(f"`{place}.data` is over {MAX_IMAGE_CHARS:,} characters. Attach the picture as a file.")
    return Image(media_type=picture.media_type, data=encoded)


def _remote(url: str, media_type: str, runtime: Runtime, place: str) -> Image:
    """The provider fetches the image, perhaps inside the operator's network. So the same rule holds as for tools."""
    if media_type not in RASTER_TYPES | {ANY_TYPE}:
        raise InvalidRequest(f"`{place}.media_type` must be one of {_TYPES}, or {ANY_TYPE} where it is not known.")
    if url[:5].lower() == "data:":
        raise InvalidRequest(f"`{place}.url` is a data: address. Send what follows its comma as `data`.")
    guard = AddressGuard(allow_private=runtime.settings.allow_private_addresses)
    try:
        return Image(media_type=media_type, url=str(guard.check_url(url)))
    except AddressRefused as exc:
        raise InvalidRequest(f"`{place}.url` cannot be used. {exc.detail}") from exc
