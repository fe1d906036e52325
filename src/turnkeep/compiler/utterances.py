"""Utterances: stored rows, and the files that they name, in the form in which one target may see them.

A row is read from its blocks; an imported row without blocks is read from its legacy tool calls, or else from its
plain content. Reading never fails: a part of an old row that has no meaning here is left out. `repair` in `exchange.py`
checks that calls and results fit together.

A picture becomes an image block if the model sees images and providers accept its format. A text file is inlined up
to a limit. Any other file is named with its type and size. A file that is gone becomes a note, never a failure.
Nothing is fetched here: `wanted` lists the contents that are needed, and the caller passes them in as `Contents`.

Two things depend on the target. Reasoning goes back only to the provider that can verify it, and pictures go only to
a model that sees. Every later step is the same for all targets.

Decision: docs/decisions/0301
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from turnkeep.compiler.exchange import Exchange, Repair, Speaker, Utterance
from turnkeep.ids import FileId, TurnId
from turnkeep.model.legacy import legacy_blocks
from turnkeep.model.messages import Message
from turnkeep.model.truncation import inline_text
from turnkeep_client.wire.blocks import (
    Block,
    FileRef,
    Image,
    Reasoning,
    Role,
    Text,
    ToolResult,
    ToolUse,
)

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


_PLAIN: dict[str, frozenset[type]] = {
    "user": frozenset({Text, ToolResult}),
    "assistant": frozenset({Text, ToolUse}),
}


class View(Struct, frozen=True, kw_only=True):
    """What a target may see of a history. `reasoning_of` names the provider whose reasoning it accepts."""

    reasoning_of: str | None
    contents: Contents
    sees_images: bool = True
    inline_chars: int = INLINE_CHARS


def view_turn(turn_id: TurnId, rows: Sequence[Message], view: View) -> tuple[Exchange, list[Repair]]:
    """The rows of one turn as utterances, with the contents of files, and without reasoning of other providers."""
    utterances: list[Utterance] = []
    repairs: list[Repair] = []
    for row in rows:
        if _is_plain(row):
            utterances.append(Utterance(role=row.role, blocks=row.blocks, ts=row.created_at))  # type: ignore[arg-type]
        else:
            utterances.extend(_show(utterance, row, view, repairs) for utterance in read(row))
    return Exchange(turn_id=turn_id, utterances=tuple(utterances)), repairs


def _is_plain(row: Message) -> bool:
    """Whether the row holds only texts, calls or results of one side, as most rows do. It is the same for all
    targets."""
    own = _PLAIN.get(row.role)
    return own is not None and bool(row.blocks) and not row.attachments and own.issuperset(map(type, row.blocks))


def _show(utterance: Utterance, row: Message, view: View, repairs: list[Repair]) -> Utterance:
    thoughts = [block for block in utterance.blocks if isinstance(block, Reasoning)]
    # All or none: if one reasoning block of an answer is missing, a provider refuses the others as modified.
    keeps_reasoning = all(is_verifiable(block, row.provider, view.reasoning_of) for block in thoughts)
    blocks: list[Block] = []
    for block in utterance.blocks:
        match block:
            case Reasoning():
                if keeps_reasoning:
                    blocks.append(block)
            case Image():
                blocks.append(show_image(block, utterance.role, sees_images=view.sees_images))
            case FileRef():
                if isinstance(view.contents.get(block.file_id), Gone):
                    detail = f"The file {block.name!r} is no longer available; a note stands in its place."
                    repairs.append(Repair(kind="file_missing", turn_id=row.turn_id, detail=detail))
                blocks.append(
                    show_file(
                        block,
                        utterance.role,
                        view.contents,
                        sees_images=view.sees_images,
                        inline_chars=view.inline_chars,
                    )
                )
            case _:
                blocks.append(block)
    return Utterance(role=utterance.role, blocks=tuple(blocks), ts=utterance.ts)


def is_verifiable(block: Reasoning, said_by: str | None, reader: str | None) -> bool:
    """Whether `reader` accepts this reasoning: it is its own, and has the signature or ciphertext that proves it."""
    origin = (block.provider or said_by or "").partition("/")[0]
    if reader is None or origin != reader:
        return False
    return bool(block.data) or (reader == "anthropic" and bool(block.signature))


def read(row: Message) -> list[Utterance]:
    """The utterances of a row, split where the side changes: a result inside an assistant's row is the user's."""
    utterances: list[Utterance] = []
    for role, blocks in _sides(row.role, blocks_of(row)):
        utterances.append(Utterance(role=role, blocks=blocks, ts=row.created_at))
    return utterances


def blocks_of(row: Message) -> tuple[Block, ...]:
    """Blocks, then legacy tool calls, then plain content; attachments that no block names stand before the words."""
    blocks = row.blocks or (legacy_blocks(row.legacy) if row.legacy is not None else ())
    if row.attachments:
        named = {block.file_id for block in blocks if isinstance(block, FileRef)}
        files = (ref for ref in row.attachments if ref.file_id not in named)
        # Providers refuse reasoning that does not come first in its message.
        start = next((index for index, block in enumerate(blocks) if not isinstance(block, Reasoning)), len(blocks))
        blocks = (*blocks[:start], *files, *blocks[start:])
    return blocks


def _sides(role: Role, blocks: tuple[Block, ...]) -> Iterable[tuple[Speaker, tuple[Block, ...]]]:
    if role == "system":
        blocks = tuple(_as_instruction(block) for block in blocks)
    speaker: Speaker = "assistant" if role == "assistant" else "user"
    sides = [_side(block, speaker) for block in blocks]
    first = sides[0] if sides else speaker
    if sides.count(first) == len(sides):
        return [(first, blocks)]
    runs: list[tuple[Speaker, tuple[Block, ...]]] = []
    start = 0
    for index in range(1, len(sides) + 1):
        if index == len(sides) or sides[index] != sides[start]:
            runs.append((sides[start], blocks[start:index]))
            start = index
    return runs


def _side(block: Block, speaker: Speaker) -> Speaker:
    kind = type(block)
    if kind is ToolUse or kind is Reasoning:
        return "assistant"
    return "user" if kind is ToolResult else speaker


def _as_instruction(block: Block) -> Block:
    # Only a leading system prompt is accepted everywhere, and hoisting a later one would change the whole prefix.
    if isinstance(block, Text) and block.text.strip():
        return Text(text=f"<system>\n{block.text}\n</system>")
    return block
