"""Images: thumbnails, and images that every model accepts. Decompression bombs and broken files are no images."""

import io
import struct
import zlib

import pytest
from PIL import Image

from tests.files.samples import GIF_SCRIPT, HTML, PDF, SVG, picture
from turnkeep.errors import UnsupportedMediaType
from turnkeep.fair_queue import Owner
from turnkeep.files.images import MAX_BYTES, MODEL_SIDE, THUMBNAIL_SIDE, ImageConverter

OWNER = Owner("org", "user")


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def png_bomb(side: int) -> bytes:
    """A small file whose header declares an image of `side` × `side` pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(1_000_000)))
        + chunk(b"IEND", b"")
    )


BROKEN = {
    "bomb": png_bomb(60_000),
    "bomb of few pixels": png_bomb(6_000),
    "cut": picture("PNG", (300, 300))[:200],
    "header only": b"\x89PNG\r\n\x1a\n",
    "page": HTML,
    "drawing": SVG,
    "pdf": PDF,
    "script": GIF_SCRIPT,
    "tiff": picture("TIFF"),
    "bmp": picture("BMP"),
    "nothing": b"",
    "too many bytes": picture("PNG") + bytes(MAX_BYTES),
}


class TestThumbnails:
    @pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP"])
    async def test_fit_into_a_small_square_and_keep_their_shape(self, kind: str) -> None:
        small = opened((await ImageConverter().thumbnail(picture(kind, (1_600, 800)), OWNER)).data)
        assert small.size == (THUMBNAIL_SIDE, THUMBNAIL_SIDE // 2)

    async def test_are_upright_and_carry_no_metadata(self) -> None:
        made, exif = io.BytesIO(), Image.Exif()
        exif[0x0112] = 6  # turned by 90 degrees
        exif[0x010E] = "where I live"
        Image.new("RGB", (400, 200)).save(made, "JPEG", exif=exif)
        thumbnail = await ImageConverter().thumbnail(made.getvalue(), OWNER)
        small = opened(thumbnail.data)
        assert small.size == (THUMBNAIL_SIDE // 2, THUMBNAIL_SIDE)
        assert b"where I live" not in thumbnail.data

    async def test_keep_transparency(self) -> None:
        made = io.BytesIO()
        Image.new("RGBA", (400, 400), (0, 0, 0, 0)).save(made, "PNG")
        thumbnail = await ImageConverter().thumbnail(made.getvalue(), OWNER)
        assert thumbnail.media_type == "image/png"
        assert opened(thumbnail.data).convert("RGBA").getpixel((5, 5)) == (0, 0, 0, 0)

    @pytest.mark.parametrize("name", BROKEN)
    async def test_are_refused_for_files_that_are_no_image(self, name: str) -> None:
        with pytest.raises(UnsupportedMediaType):
            await ImageConverter().thumbnail(BROKEN[name], OWNER)


class TestForModels:
    @pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP"])
    async def test_an_intact_image_is_unchanged(self, kind: str) -> None:
        data = picture(kind, (100, 50))
        shown = await ImageConverter().for_model(data, OWNER)
        assert shown is not None
        assert (shown.data, shown.media_type) == (data, f"image/{kind.lower()}")

    async def test_a_large_image_is_shrunk(self) -> None:
        shown = await ImageConverter().for_model(picture("PNG", (5_000, 2_500)), OWNER)
        assert shown is not None
        assert opened(shown.data).size == (MODEL_SIDE, MODEL_SIDE // 2)

    @pytest.mark.parametrize("name", BROKEN)
    async def test_a_broken_image_is_none(self, name: str) -> None:
        assert await ImageConverter().for_model(BROKEN[name], OWNER) is None
