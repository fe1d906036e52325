"""Images: thumbnails, and images in a form that every model accepts.

A hostile file may pretend to be an image. So only four raster formats are opened, only up to a number of pixels that
fits into memory, two at a time and one of each tenant, and outside of the event loop. A file that cannot be decoded is
not an image. Pillow is loaded with the first image: it takes 3 MB, and many servers never see one.
"""

import asyncio
import io
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from turnkeep.errors import UnsupportedMediaType
from turnkeep.fair_queue import FairQueue, Owner, Shares

if TYPE_CHECKING:
    from PIL.Image import Image

RASTER_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
THUMBNAIL_SIDE = 320
AVATAR_SIDE = 96
MODEL_SIDE = 2_000
"""Pixels of the longer side. Providers shrink larger images themselves, or refuse them."""
MODEL_BYTES = 3_900_000
"""More than that is over 5 MiB as base64, which providers refuse."""
MAX_BYTES = 20 * 1024 * 1024
MAX_PIXELS = 40_000_000
AT_ONCE = 2
WAITING = 200
"""Images that wait. One user may have half of them."""

_FORMATS = ("PNG", "JPEG", "GIF", "WEBP")
_BROKEN = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    MemoryError,
    OverflowError,
)


class Picture(Struct, frozen=True):
    """An encoded image."""

    media_type: Literal["image/png", "image/jpeg", "image/gif", "image/webp"]
    data: bytes


class ImageConverter:
    """Converts a few images at a time, in threads. Its places are shared fairly between the owners of the images."""

    def __init__(self) -> None:
        self._places = FairQueue(Shares.of(AT_ONCE, waiting=WAITING))

    async def thumbnail(self, data: bytes, owner: Owner) -> Picture:
        """The image, shrunk to a small square. Raises UnsupportedMediaType if it cannot be decoded, and QueueFull."""
        made = await self._work(_thumbnail, data, owner)
        if made is None:
            raise UnsupportedMediaType("This picture cannot be shown small: it is broken, or too large to be opened.")
        return made

    async def avatar(self, data: bytes, owner: Owner) -> Picture | None:
        """The middle of the image as a very small square; None if it cannot be decoded. Raises QueueFull."""
        return await self._work(_avatar, data, owner)

    async def for_model(self, data: bytes, owner: Owner) -> Picture | None:
        """The image, shrunk if it is too large for models; None if it is broken or too large to be decoded. Raises
        QueueFull.

        A provider refuses a request with a broken image, and would refuse every later one of the conversation too.
        """
        return await self._work(_for_model, data, owner)

    async def _work(self, work: "Callable[[Image, bytes], Picture]", data: bytes, owner: Owner) -> Picture | None:
        if len(data) > MAX_BYTES:
            return None
        async with self._places.place(owner):
            return await asyncio.to_thread(_opened, work, data)


def _opened(work: "Callable[[Image, bytes], Picture]", data: bytes) -> Picture | None:
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
                # Opening reads only the header. Nothing is decoded before the size is known.
                if not 0 < image.width * image.height <= MAX_PIXELS:
                    return None
                return work(image, data)
    except (Image.DecompressionBombError, *_BROKEN):
        return None


def _thumbnail(image: "Image", _: bytes) -> Picture:
    return _smaller(image, THUMBNAIL_SIDE)


def _avatar(image: "Image", _: bytes) -> Picture:
    from PIL import ImageOps

    upright = ImageOps.exif_transpose(image)
    side = min(upright.size)
    left, top = (upright.width - side) // 2, (upright.height - side) // 2
    return _smaller(upright.crop((left, top, left + side, top + side)), AVATAR_SIDE)


def _for_model(image: "Image", data: bytes) -> Picture:
    if max(image.size) > MODEL_SIDE or len(data) > MODEL_BYTES:
        return _smaller(image, MODEL_SIDE)
    image.load()
    match image.format:
        case "PNG":
            return Picture("image/png", data)
        case "JPEG":
            return Picture("image/jpeg", data)
        case "GIF":
            return Picture("image/gif", data)
        case _:
            return Picture("image/webp", data)


def _smaller(image: "Image", side: int) -> Picture:
    from PIL import ImageOps

    image.draft("RGB", (side * 2, side * 2))  # a JPEG can be decoded at a fraction of its size
    upright = ImageOps.exif_transpose(image)
    has_alpha = upright.mode in {"RGBA", "LA", "PA"} or "transparency" in upright.info
    upright = upright.convert("RGBA" if has_alpha else "RGB")
    upright.thumbnail((side, side))
    made = io.BytesIO()
    if has_alpha:
        upright.save(made, "PNG", optimize=True)
        return Picture("image/png", made.getvalue())
    upright.save(made, "JPEG", quality=85)
    return Picture("image/jpeg", made.getvalue())
