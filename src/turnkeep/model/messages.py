"""Messages: the rows of a turn, and the form in which readers get the visible ones.

One POST leaves 1 user row (sequence 0), N assistant rows (all `internal` but the final one) and 0..N rows of tool
results (internal, role `user`), numbered +1 per row under one turn id.
"""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct, structs

from turnkeep.ids import ConversationId, MessageId, TurnId
from turnkeep.model.turns import TurnError, TurnReport, TurnStatus
from turnkeep_client.wire.blocks import Block, FileRef, Finish, JsonObject, JsonValue, Part, Role, Usage
from turnkeep_client.wire.events import Source


class Legacy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an imported row carried before it had blocks. Read in this order: blocks, tool_calls, content."""

    content: JsonValue = None
    tool_calls: JsonValue = None


Removed = tuple[int, ...] | Literal["all"]
"""What was removed of a row since it was written: the places of some blocks (-1: its attachments), or all of it."""
PROVIDERS = frozenset({"anthropic", "openai"})


class Message(Struct, frozen=True, kw_only=True):
    """One stored row.

    `blocks` is what the model said or was told; `display` is what a reader sees, on the final row only (None
    elsewhere: a user's row is shown from its blocks). `usage` stands on the final visible row only.
    """

    id: MessageId
    turn_id: TurnId
    conversation_id: ConversationId
    turn_sequence: int
    role: Role
    blocks: tuple[Block, ...]
    created_at: int
    iteration: int | None = None
    internal: bool = False
    display: tuple[Part, ...] | None = None
    attachments: tuple[FileRef, ...] = ()
    sources: tuple[Source, ...] = ()
    metadata: JsonObject = {}
    usage: Usage | None = None
    legacy: Legacy | None = None
    provider: str | None = None
    """The model that wrote it, as `provider/model`. Signatures of its reasoning are valid only there. A message from
    another system may name the provider alone (`PROVIDERS`)."""
    removed: Removed = ()
    """Models are not sent this any more. A row without anything left is not shown to readers either. The trace keeps
    it."""


def kept_rows(rows: Sequence[Message]) -> list[Message]:
    """The rows without what was removed of them. The rows of a turn are numbered without gaps again."""
    if not any(row.removed for row in rows):
        return list(rows)
    kept: list[Message] = []
    lost = {row.turn_id: 0 for row in rows}
    for row in rows:
        left = _left_of(row)
        if left is None:
            lost[row.turn_id] += 1
        else:
            kept.append(structs.replace(left, turn_sequence=row.turn_sequence - lost[row.turn_id]))
    return kept


def _left_of(row: Message) -> Message | None:
    """The row without what was removed of it; None if nothing is left."""
    if row.removed == "all":
        return None
    if not row.removed:
        return row
    blocks = tuple(block for place, block in enumerate(row.blocks) if place not in row.removed)
    attachments = () if -1 in row.removed else row.attachments
    return structs.replace(row, blocks=blocks, attachments=attachments) if blocks or attachments else None


class PublicMessage(Struct, frozen=True, kw_only=True):
    """A visible message as readers get it. `status` is that of its turn."""

    id: MessageId
    conversation_id: ConversationId
    turn_id: TurnId
    role: Role
    content: tuple[Part, ...]
    attachments: tuple[FileRef, ...]
    sources: tuple[Source, ...]
    usage: Usage | None
    status: TurnStatus
    created_at: int
    error: TurnError | None = None
    """Why the turn failed."""
    model: str | None = None
    """The model that wrote it; of a question, the model that was asked."""
    metadata: JsonObject = {}
    """What the caller gave with the turn."""
    finish: Finish | None = None
    """How the answer ended; None for a question, and for an answer that failed or was stopped."""
    siblings: tuple[TurnId, ...] = ()
    """Other turns that start from the same place (this one among them), when there are any."""
    versions: tuple[tuple[TurnId, ...], ...] = ()
    """The siblings in groups: the turns of a group answer the same question."""


def finish_of(role: Role, status: TurnStatus, report: TurnReport) -> Finish | None:
    """How a message of this role ended, in a turn of this status."""
    return report.finish if role == "assistant" and status == "succeeded" else None


def read_files(attachments: tuple[FileRef, ...], report: TurnReport) -> tuple[FileRef, ...]:
    """The attachments with what the report of their turn says of them."""
    if not report.readings:
        return attachments
    return tuple(structs.replace(ref, reading=report.readings.get(ref.file_id)) for ref in attachments)


Order = Literal["asc", "desc"]
