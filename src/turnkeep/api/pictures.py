"""Pictures inside a message: looked at before anything is stored.

A provider refuses a request with a broken picture in it, and would refuse every later one of that conversation too.
"""

import base64
import binascii

from turnkeep.compiler.attachments import MAX_IMAGE_CHARS
from turnkeep.errors import InvalidRequest
from turnkeep.files.images import RASTER_TYPES
from turnkeep.runtime import Runtime
from turnkeep.tools.addresses import AddressGuard, AddressRefused
from turnkeep_client import wire
from turnkeep_client.wire.blocks import Image

ANY_TYPE = "image/*"
_TYPES = ", ".join(sorted(RASTER_TYPES))


async def picture_of(block: wire.ImageBlock, runtime: Runtime, *, place: str) -> Image:
    """The picture as models take it. Raises InvalidRequest, which names the block by its place in the body."""
    if block.data is not None and block.url is None:
        return await _inline(block.data, block.media_type, runtime, place)
    if block.url is not None and block.data is None:
        return _remote(block.url, block.media_type, runtime, place)
    raise InvalidRequest(f"An image has either `data` or a `url`, and `{place}` has both or neither.")


async def _inline(data: str, media_type: str, runtime: Runtime, place: str) -> Image:
    """What the bytes are decides, as it does for files; one that is too large for models is made smaller."""
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
    """Whoever runs the model fetches it, perhaps from inside the operator's network: the rule is that of tools."""
    if media_type not in RASTER_TYPES | {ANY_TYPE}:
        raise InvalidRequest(f"`{place}.media_type` must be one of {_TYPES}, or {ANY_TYPE} where it is not known.")
    if url[:5].lower() == "data:":
        raise InvalidRequest(f"`{place}.url` is a data: address. Send what follows its comma as `data`.")
    guard = AddressGuard(allow_private=runtime.settings.allow_private_addresses)
    try:
        return Image(media_type=media_type, url=str(guard.check_url(url)))
    except AddressRefused as exc:
        raise InvalidRequest(f"`{place}.url` cannot be used. {exc.detail}") from exc
