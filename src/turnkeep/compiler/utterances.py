"""Utterances: stored rows, and the files that they name, in the form in which one target may see them.

A row is read from its blocks; an imported row without blocks is read from its legacy tool calls, or else from its
plain content. Reading never fails: a part of an old row that has no meaning here is left out. `repair` in `exchange.py`
checks that calls and results fit together.

A picture becomes an image block if the model sees images and providers accept its format. A file that has a text is
inlined. The files of one turn may take three quarters of the budget together; longer texts are cut, the longest first,
and cut again when the rest of the turn needs the room. Any other file is named with its type and size, and the model is
told that it does not see the content. A file that is gone becomes a note, never a failure. Nothing is fetched here:
`wanted` lists the contents that are needed, and the caller passes them in as `Contents`.

Two things depend on the target. Reasoning goes back only to the provider that can verify it, and pictures go only to
a model that sees. Every later step is the same for all targets.

Decision: docs/decisions/0301
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from turnkeep.compiler.exchange import Exchange, Repair, Speaker, Utterance
from turnkeep.compiler.window import Budget, Measure, block_size
from turnkeep.ids import FileId, TurnId
from turnkeep.model.legacy import legacy_blocks
from turnkeep.model.messages import Message
from turnkeep.model.truncation import inline_text
from turnkeep_client.wire.blocks import (
    Block,
    FileRef,
    Image,
    Reading,
    Reasoning,
    Role,
    Text,
    ToolResult,
    ToolUse,
)

IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
MAX_IMAGE_CHARS = 5 * 1024 * 1024
"""Maximum length of a picture as base64: Anthropic's limit. Other providers allow more."""
_ROOM_STEPS = 16
"""The room for files shrinks in steps of this part of the budget, so that the same text is sent for several rounds."""
_CUT_NOTE_CHARS = 60
GONE = "no longer available"

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


class Unread(Struct, frozen=True):
    """The file has no text that could be read; `problem` says why."""

    problem: str


FileContent = TextContent | PictureContent | Gone | Unread
Contents = Mapping[FileId, FileContent]
"""The contents of the files of a history. A file without an entry is only named."""

ContentKind = Literal["text", "picture"]


class ShownFile(Struct, frozen=True, kw_only=True):
    """A file as the model gets it, and how that is called on the wire."""

    block: Block
    reading: Reading


def wanted(rows: Iterable[Message], *, sees_images: bool) -> dict[FileId, ContentKind]:
    """The files of these rows whose content is needed, and in which form."""
    kinds: dict[FileId, ContentKind] = {}
    for row in rows:
        for ref in (*row.attachments, *row.blocks) if row.attachments else row.blocks:
            if isinstance(ref, FileRef) and (kind := _content_kind(ref, sees_images=sees_images)):
                kinds[ref.file_id] = kind
    return kinds


def _content_kind(ref: FileRef, *, sees_images: bool) -> ContentKind | None:
    kind = ref.mime_type.partition(";")[0].strip().lower()
    if kind in IMAGE_TYPES:
        return "picture" if sees_images else None
    return "text"


def shown_files(rows: Sequence[Message], view: "View") -> dict[FileId, ShownFile]:
    """The user's files of one turn as the model gets them. Texts that do not fit are cut."""
    shown: dict[FileId, ShownFile] = {}
    texts: dict[FileId, tuple[FileRef, TextContent]] = {}
    words = results = 0
    for row in rows:
        for block in blocks_of(row):
            if not isinstance(block, FileRef):
                size = block_size(block, measure=view.budget.measure, image=view.budget.image)
                if isinstance(block, ToolResult):
                    results += size
                else:
                    words += size
                continue
            if row.role == "assistant":
                continue
            content = view.contents.get(block.file_id)
            if isinstance(content, TextContent) and content.text.strip():
                texts[block.file_id] = block, content
            else:
                shown[block.file_id] = _without_text(block, content, sees_images=view.sees_images)
                words += block_size(shown[block.file_id].block, measure=view.budget.measure, image=view.budget.image)
    room = _room_for_files(view.budget, words=words, results=results)
    return shown | _with_texts(texts, room, view.budget.measure)


def _room_for_files(budget: Budget, *, words: int, results: int) -> int:
    """What the texts of the files of a turn may take together. When the words and tool results of the turn take more
    than a quarter of the budget, the files become shorter. When they take more than three quarters, the files keep the
    last quarter, and the oldest results are left out instead."""
    least = min(budget.size // 4, budget.size - words)
    room = min(budget.kept, max(budget.size - words - results, least, 0))
    return room if room == budget.kept else room - room % max(1, budget.size // _ROOM_STEPS)


def _with_texts(
    texts: Mapping[FileId, tuple[FileRef, TextContent]], room: int, measure: Measure
) -> dict[FileId, ShownFile]:
    """The texts, shortest first: each gets an equal part of the room that is left."""
    whole = {file_id: _inlined(ref, content, len(content.text)) for file_id, (ref, content) in texts.items()}
    sizes = {file_id: measure(written) for file_id, written in whole.items()}
    shown: dict[FileId, ShownFile] = {}
    for left, file_id in zip(range(len(sizes), 0, -1), sorted(sizes, key=sizes.__getitem__), strict=True):
        ref, content = texts[file_id]
        written = whole[file_id]
        if sizes[file_id] > room // left:
            written = _shortened(ref, content, room // left, measure)
        is_whole = written is whole[file_id] and not content.is_cut
        shown[file_id] = ShownFile(block=Text(text=written), reading="text" if is_whole else "too_long")
        room = max(0, room - measure(written))
    return shown


def _shortened(ref: FileRef, content: TextContent, limit: int, measure: Measure) -> str:
    """The longest beginning of the text that fits, about. Without room, a note alone."""
    chars = len(content.text)
    written = _inlined(ref, content, chars)
    while chars and (size := measure(written)) > limit:
        chars = max(0, min(chars - 1, chars * limit // size - _CUT_NOTE_CHARS))
        written = _inlined(ref, content, chars)
    return written


def _without_text(ref: FileRef, content: FileContent | None, *, sees_images: bool) -> ShownFile:
    """The file as a picture, or named, with the reason why its content is missing."""
    match content:
        case PictureContent():
            image = Image(media_type=content.media_type, data=content.data)
            if sees_images and _is_acceptable(image):
                return ShownFile(block=image, reading="image")
            why = "its content is not shown"
        case Gone():
            why = GONE
        case Unread():
            why = f"its content could not be read: {_plain(content.problem)}"
        case TextContent():
            why = "it is empty"
        case _:
            why = "its content is not shown"
    return ShownFile(block=Text(text=f"[file: {_label(ref)}; {why}]"), reading="named")


def _named(ref: FileRef, contents: Contents) -> Text:
    is_gone = isinstance(contents.get(ref.file_id), Gone)
    return Text(text=f"[file: {_label(ref)}; {GONE}]" if is_gone else f"[file: {_label(ref)}]")


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
    budget: Budget = Budget()
    has_files: bool = False
    """Whether the target has the files themselves, as a sandbox does. Then their names are enough."""


def view_turn(turn_id: TurnId, rows: Sequence[Message], view: View) -> tuple[Exchange, list[Repair]]:
    """The rows of one turn as utterances, with the contents of files, and without reasoning of other providers."""
    utterances: list[Utterance] = []
    repairs: list[Repair] = []
    files: dict[FileId, ShownFile] | None = None
    for row in rows:
        if _is_plain(row):
            utterances.append(Utterance(role=row.role, blocks=row.blocks, ts=row.created_at))  # type: ignore[arg-type]
        else:
            if files is None:
                files = shown_files(rows, view)
            utterances.extend(_show(utterance, row, view, files, repairs) for utterance in read(row))
    return Exchange(turn_id=turn_id, utterances=tuple(utterances)), repairs


def plain_text(row: Message) -> str | None:
    """The words of a row that holds one text and nothing else; None for any other row."""
    if len(row.blocks) != 1 or row.attachments:
        return None
    block = row.blocks[0]
    return block.text if isinstance(block, Text) and block.text and not block.text.isspace() else None


def _is_plain(row: Message) -> bool:
    """Whether the row holds only texts, calls or results of one side, as most rows do. It is the same for all
    targets."""
    own = _PLAIN.get(row.role)
    return own is not None and bool(row.blocks) and not row.attachments and own.issuperset(map(type, row.blocks))


def _show(
    utterance: Utterance, row: Message, view: View, files: Mapping[FileId, ShownFile], repairs: list[Repair]
) -> Utterance:
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
                # Providers accept pictures only from users, so an assistant's file is named.
                is_users = utterance.role == "user" and block.file_id in files and not view.has_files
                blocks.append(files[block.file_id].block if is_users else _named(block, view.contents))
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
