"""Messages as Markdown, for people and for files."""

import json
from collections.abc import Iterable
from typing import Any, assert_never

from turnkeep.cli.output import clean_line, moment, size_of
from turnkeep_client.wire import Conversation, Message
from turnkeep_client.wire.blocks import FilePart, Part, ReasoningPart, StepPart, TextPart

SHOWN_CHARS = 300
NAMES = {"user": "You", "assistant": "Assistant", "system": "System"}


def conversation_as_markdown(conversation: Conversation, messages: Iterable[Message]) -> str:
    title = conversation.title or conversation.preview or conversation.id
    head = f"# {' '.join(title.split())}\n\n`{conversation.id}` · {moment(conversation.created_at)}"
    return "\n\n".join([head, *(message_as_markdown(message) for message in messages)]) + "\n"


def message_as_markdown(message: Message) -> str:
    """A heading with role and time, then the parts of the message in order."""
    heading = f"## {NAMES.get(message.role, message.role)} · {moment(message.created_at)}"
    parts = [heading, *(part_as_markdown(part) for part in message.content)]
    shown = {part.file_id for part in message.content if isinstance(part, FilePart)}
    parts += [
        f"*attached: {clean_line(file.name)} ({size_of(file.size)})*"
        for file in message.attachments
        if file.file_id not in shown
    ]
    if message.sources:
        parts.append(
            "\n".join(
                clean_line(f"- {source.title}{f' <{source.url}>' if source.url else ''}") for source in message.sources
            )
        )
    if message.role == "assistant" and message.status in {"failed", "cancelled"}:
        parts.append(f"*({'stopped' if message.status == 'cancelled' else 'this turn failed'})*")
    return "\n\n".join(part for part in parts if part)


def part_as_markdown(part: Part) -> str:
    match part:
        case TextPart():
            return part.text
        case ReasoningPart():
            return "\n".join(f"> *{line}*" if line.strip() else ">" for line in part.text.strip().splitlines())
        case StepPart():
            return f"- {step_in_words(part)}"
        case FilePart():
            return f"*file: {clean_line(part.name)} ({size_of(part.size)}, `{part.file_id}`)*"
        case _:
            assert_never(part)


def step_in_words(step: StepPart) -> str:
    """`lookup (city: Bern)` with its state, error and duration."""
    mark = {"running": "…", "succeeded": "✓", "failed": "✗"}.get(step.status, "?")
    said = f"{mark} `{clean_line(step.name)}`{arguments_of(step)}"
    if step.error:
        said += f": {short(step.error)}"
    if step.duration_ms is not None:
        said += f" ({step.duration_ms / 1000:.1f} s)"
    return said


def arguments_of(step: StepPart) -> str:
    if not isinstance(step.args, dict) or not step.args:
        return ""
    return f" ({short(', '.join(f'{name}: {short(value, 60)}' for name, value in step.args.items()))})"


def short(value: Any, limit: int = SHOWN_CHARS) -> str:
    """A value on one line, cut at `limit` characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    words = " ".join(text.split())
    return words if len(words) <= limit else words[: limit - 1] + "…"
