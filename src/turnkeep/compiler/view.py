"""Views: what one target may be shown of what was said.

Two things depend on who reads: reasoning goes back only to the provider that can verify it, and pictures only to a
model that sees. Everything after this step is the same for all targets.
"""

from collections.abc import Sequence

from msgspec import Struct

from turnkeep.compiler.attachments import INLINE_CHARS, Contents, Gone, show_file, show_image
from turnkeep.compiler.exchange import Exchange, Repair, Utterance
from turnkeep.compiler.reading import read
from turnkeep.ids import TurnId
from turnkeep.model.messages import Message
from turnkeep_client.wire.blocks import Block, FileRef, Image, Reasoning, Text, ToolResult, ToolUse

_PLAIN: dict[str, frozenset[type]] = {
    "user": frozenset({Text, ToolResult}),
    "assistant": frozenset({Text, ToolUse}),
}


class View(Struct, frozen=True, kw_only=True):
    """How a target looks at a history. `reasoning_of` names the provider whose reasoning it takes back."""

    reasoning_of: str | None
    contents: Contents
    sees_images: bool = True
    inline_chars: int = INLINE_CHARS


def view_turn(turn_id: TurnId, rows: Sequence[Message], view: View) -> tuple[Exchange, list[Repair]]:
    """The rows of one turn as utterances, with files shown and foreign reasoning left out."""
    utterances: list[Utterance] = []
    repairs: list[Repair] = []
    for row in rows:
        if _is_plain(row):
            utterances.append(Utterance(role=row.role, blocks=row.blocks, ts=row.created_at))  # type: ignore[arg-type]
        else:
            utterances.extend(_show(utterance, row, view, repairs) for utterance in read(row))
    return Exchange(turn_id=turn_id, utterances=tuple(utterances)), repairs


def _is_plain(row: Message) -> bool:
    """Most rows: one side's words, calls or results, the same for every reader."""
    own = _PLAIN.get(row.role)
    return own is not None and bool(row.blocks) and not row.attachments and own.issuperset(map(type, row.blocks))


def _show(utterance: Utterance, row: Message, view: View, repairs: list[Repair]) -> Utterance:
    thoughts = [block for block in utterance.blocks if isinstance(block, Reasoning)]
    # All or none: a provider that finds one of an answer's thoughts missing refuses the rest as modified.
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
    """Whether `reader` can take this reasoning back: its own, with the signature or ciphertext that proves it."""
    origin = (block.provider or said_by or "").partition("/")[0]
    if reader is None or origin != reader:
        return False
    return bool(block.data) or (reader == "anthropic" and bool(block.signature))
