"""Attachments: files and pictures in the form in which a model gets them.

A picture becomes an image block if the model sees images and providers accept its format. A text file is inlined up
to a limit. Any other file is named with its type and size. A file that is gone becomes a note, never a failure.
Nothing is fetched here: `wanted` lists the contents that are needed, and the caller passes them in as `Contents`.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct

from turnkeep.compiler.exchange import Speaker
from turnkeep.ids import FileId
from turnkeep.model.messages import Message
from turnkeep.model.truncation import inline_text
from turnkeep_client.wire.blocks import Block, FileRef, Image, Text

INLINE_CHARS = 20_000
IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
MAX_IMAGE_CHARS = 5 * 1024 * 1024
"""Maximum length of a picture as base64: Anthropic's limit. Other providers allow more."""

_TEXT_TYPES = frozenset(
    {
        "application/json",
        "application/x-ndjson",
        "application/xml",
        "application/yaml",
        "application/x-yaml",
        "application/toml",
        "application/sql",
        "application/javascript",
        "image/svg+xml",
    }
)
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


class TextContent(Struct, frozen=True):
    """The text of a file, or its beginning."""

    text: str
    is_cut: bool = False


class PictureContent(Struct, frozen=True):
    """A picture as base64."""

    media_type: str
    data: str


class Gone(Struct, frozen=True):
    """The file was deleted, or its bytes cannot be found."""


FileContent = TextContent | PictureContent | Gone
Contents = Mapping[FileId, FileContent]
"""The contents of the files of a history. A file without an entry is only named."""

ContentKind = Literal["text", "picture"]


def content_kind(ref: FileRef, *, sees_images: bool) -> ContentKind | None:
    """The form in which the content of this file is shown; None if it is only named."""
    kind = ref.mime_type.partition(";")[0].strip().lower()
    if kind in IMAGE_TYPES:
        return "picture" if sees_images and ref.size * 4 // 3 <= MAX_IMAGE_CHARS else None
    return "text" if kind.startswith("text/") or kind in _TEXT_TYPES else None


def wanted(rows: Iterable[Message], *, sees_images: bool) -> dict[FileId, ContentKind]:
    """The files of these rows whose content is needed, and in which form."""
    kinds: dict[FileId, ContentKind] = {}
    for row in rows:
        for ref in (*row.attachments, *row.blocks):
            if isinstance(ref, FileRef) and (kind := content_kind(ref, sees_images=sees_images)):
                kinds[ref.file_id] = kind
    return kinds


def show_file(ref: FileRef, role: Speaker, contents: Contents, *, sees_images: bool, inline_chars: int) -> Block:
    """The file as the model gets it. Providers accept pictures only from users, so an assistant's file is named."""
    content = contents.get(ref.file_id)
    if isinstance(content, Gone):
        return Text(text=f"[file: {_label(ref)}; no longer available]")
    if role == "user" and isinstance(content, TextContent) and content.text.strip():
        return Text(text=_inlined(ref, content, inline_chars))
    if role == "user" and isinstance(content, PictureContent):
        image = Image(media_type=content.media_type, data=content.data)
        if sees_images and _is_acceptable(image):
            return image
    return Text(text=f"[file: {_label(ref)}]")


def show_image(image: Image, role: Speaker, *, sees_images: bool) -> Block:
    """The picture, or a line of text in its place if it cannot be sent."""
    if role == "user" and sees_images and _is_acceptable(image):
        return image
    return Text(text=f"[image: {_plain(image.media_type) or 'unknown type'}; not shown]")


def _is_acceptable(image: Image) -> bool:
    if image.data is not None:
        return image.media_type in IMAGE_TYPES and _is_base64(image.data)
    return image.url is not None and image.url.startswith(("https://", "http://"))


def _is_base64(data: str) -> bool:
    if not data or len(data) > MAX_IMAGE_CHARS or len(data) % 4 or not data.isascii():
        return False
    return not data[-2:].rstrip("=").encode().translate(None, _BASE64) and not (
        data[:-2].encode().translate(None, _BASE64)
    )


def _inlined(ref: FileRef, content: TextContent, limit: int) -> str:
    shown = inline_text(content.text, limit, has_more=content.is_cut)
    return f'<file name="{_plain(ref.name)}" type="{_plain(ref.mime_type)}">\n{shown}\n</file>'


def _label(ref: FileRef) -> str:
    return f"{_plain(ref.name)}, {_plain(ref.mime_type)}, {_bytes(ref.size)}"


def _plain(name: str) -> str:
    """A name on one line that cannot close the quotes around it."""
    return " ".join(name.replace('"', "'").replace("<", "‹").replace(">", "›").split())


def _bytes(size: int) -> str:
    if size < 1000:
        return f"{size} bytes"
    return f"{size / 1000:.1f} kB" if size < 1_000_000 else f"{size / 1_000_000:.1f} MB"
