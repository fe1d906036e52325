"""Display: events → what a reader sees. The only place that folds.

A reload must render what the live stream showed, so the fold of a turn's events is stored with its final message
and served as that message's `content`.
"""

from collections.abc import Iterable
from typing import assert_never

from msgspec import UNSET, Struct

from turnkeep_client.wire.blocks import (
    Block,
    FilePart,
    FileRef,
    Image,
    Part,
    Reasoning,
    ReasoningPart,
    StepPart,
    Text,
    TextPart,
    ToolResult,
    ToolUse,
)
from turnkeep_client.wire.events import (
    Approval,
    ClientCalls,
    Decided,
    Failure,
    Files,
    Reset,
    Result,
    Source,
    Sources,
    Steered,
    Step,
    ToolCalls,
    TurnBegan,
    TurnEvent,
)


class Display(Struct, frozen=True, kw_only=True):
    """What a reader sees of one turn's answer, in the order in which it happened."""

    content: tuple[Part, ...] = ()
    sources: tuple[Source, ...] = ()

    def open_steps(self) -> tuple[StepPart, ...]:
        """Steps that began and have not ended. A stopped turn must close them."""
        return tuple(part for part in self.content if isinstance(part, StepPart) and part.status == "running")

    def then_said(self, *, text: str, reasoning: str = "") -> "Display":
        """The same, followed by the words of the final iteration (empty words leave no part)."""
        return Display(content=(*self.content, *_spoken(text=text, reasoning=reasoning)), sources=self.sources)


def fold(events: Iterable[TurnEvent]) -> Display:
    """What a reader sees after these events. A step stays where it began and is updated in place."""
    content: list[Part] = []
    sources: dict[Source, None] = {}
    places: dict[str, int] = {}
    for event in events:
        match event:
            case TurnBegan() | Reset() | Approval() | ClientCalls() | Decided() | Steered():
                pass
            case ToolCalls():
                content.extend(_spoken(text=event.text, reasoning=event.reasoning or ""))
            case Step():
                if event.id in places:
                    place = places[event.id]
                    before = content[place]
                    assert isinstance(before, StepPart)
                    content[place] = _updated(before, event)
                else:
                    places[event.id] = len(content)
                    content.append(_began(event))
            case Sources():
                sources |= dict.fromkeys(event.sources)
            case Files():
                content.extend(
                    FilePart(file_id=file.id, name=file.name, mime_type=file.mime_type, size=file.size)
                    for file in event.files
                )
            case Result():
                content = list(event.content)
            case Failure():
                content = content if event.content is None else list(event.content)
            case _:
                assert_never(event)
    return Display(content=tuple(content), sources=tuple(sources))


def parts_of(blocks: Iterable[Block]) -> tuple[Part, ...]:
    """What a reader sees of blocks that never were events: a user's message, or an imported row."""
    parts: list[Part] = []
    for block in blocks:
        match block:
            case Text():
                parts.extend(_spoken(text=block.text))
            case Reasoning():
                parts.extend(_spoken(reasoning=block.text))
            case FileRef():
                parts.append(
                    FilePart(file_id=block.file_id, name=block.name, mime_type=block.mime_type, size=block.size)
                )
            case ToolUse():
                parts.append(StepPart(id=block.id, name=block.name, status="running", args=block.input))
            case ToolResult() | Image():
                pass
            case _:
                assert_never(block)
    return tuple(parts)


def words_of(parts: Iterable[Part]) -> str:
    """The text that a search looks through: the words, without reasoning and steps."""
    return "\n".join(part.text for part in parts if isinstance(part, TextPart))


def _spoken(*, text: str = "", reasoning: str = "") -> list[Part]:
    parts: list[Part] = []
    if reasoning:
        parts.append(ReasoningPart(text=reasoning))
    if text:
        parts.append(TextPart(text=text))
    return parts


def _began(step: Step) -> StepPart:
    return StepPart(
        id=step.id,
        name=step.name,
        status=step.status,
        args=step.args,
        result=step.result,
        error=step.error,
        duration_ms=step.duration_ms,
    )


def _updated(before: StepPart, step: Step) -> StepPart:
    """The later line wins; what it leaves out (usually `args`) stays as it was."""
    return StepPart(
        id=before.id,
        name=step.name,
        status=step.status,
        args=before.args if step.args is UNSET else step.args,
        result=before.result if step.result is UNSET else step.result,
        error=before.error if step.error is UNSET else step.error,
        duration_ms=before.duration_ms if step.duration_ms is None else step.duration_ms,
    )
