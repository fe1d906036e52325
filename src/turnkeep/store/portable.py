"""Portable conversations: what an export looks like as a file, and foreign rows as something that can be imported."""

from collections.abc import Sequence
from itertools import groupby

import msgspec
from msgspec import Struct, structs

from turnkeep.clock import month_of
from turnkeep.errors import InvalidRequest
from turnkeep.ids import TurnId, WorkspaceId, new_conversation_id
from turnkeep.model.agents import Snapshot
from turnkeep.model.conversations import Conversation, title_and_preview
from turnkeep.model.messages import Message
from turnkeep.model.past_events import events_from_rows
from turnkeep.model.turns import Turn
from turnkeep.store.commands import Exported, TurnTrace
from turnkeep_client.wire.events import Result
from turnkeep_client.wire.usage import Usage

FORMAT = 1


class _File(Struct, frozen=True, kw_only=True):
    turnkeep_export: int
    exported: Exported


def write_export(exported: Exported) -> bytes:
    """The whole of it as JSON, with the number of the format in front."""
    return msgspec.json.encode(_File(turnkeep_export=FORMAT, exported=exported))


def read_export(data: bytes) -> Exported:
    """What `write_export` wrote. Raises InvalidRequest for anything else, and for a format of a later release."""
    try:
        number = msgspec.json.decode(data, type=_Header).turnkeep_export
        if number != FORMAT:
            raise InvalidRequest(f"This export has format {number}; this release reads {FORMAT}. Upgrade Turnkeep.")
        return msgspec.json.decode(data, type=_File).exported
    except msgspec.DecodeError as exc:
        raise InvalidRequest(f"This is not an export of a Turnkeep conversation: {exc}.") from exc


class _Header(Struct, frozen=True, kw_only=True):
    turnkeep_export: int


def exported_from_rows(rows: Sequence[Message], *, title: str | None = None) -> Exported:
    """A conversation made of rows from elsewhere, in which every turn has ended well.

    Rows of one turn stand side by side. The final row of a turn gets the display that a live turn would have left.
    """
    if not rows:
        raise InvalidRequest("There is nothing to import: the history is empty.")
    conversation_id = new_conversation_id()
    traces: list[TurnTrace] = []
    for ordinal, (turn_id, group) in enumerate(groupby(rows, key=lambda row: row.turn_id), start=1):
        own = [structs.replace(row, conversation_id=conversation_id) for row in group]
        parent = traces[-1].turn.id if traces else None
        turn = _ended_turn(own, turn_id, ordinal=ordinal, parent=parent)
        traces.append(TurnTrace(turn=turn, rows=tuple(_with_display(turn, own)), events=(), logs=()))
    asked = next((row.blocks for row in rows if row.role == "user" and not row.internal), ())
    first_words, preview = title_and_preview(asked)
    return Exported(
        conversation=Conversation(
            id=conversation_id,
            workspace_id=_NOWHERE,
            user_id=None,
            kind="chat",
            agent_id=None,
            model=None,
            workflow_id=None,
            title=title or first_words,
            preview=preview,
            message_count=sum(not row.internal for row in rows),
            turn_count=len(traces),
            head_turn_id=traces[-1].turn.id,
            running_turn_id=None,
            metadata={},
            created_at=rows[0].created_at,
            updated_at=rows[-1].created_at,
        ),
        turns=tuple(traces),
    )


_NOWHERE = WorkspaceId("")
"""An import belongs to whoever imports it; until then to nobody."""


def _ended_turn(rows: Sequence[Message], turn_id: TurnId, *, ordinal: int, parent: TurnId | None) -> Turn:
    said = [row.provider for row in rows if row.provider]
    return Turn(
        id=turn_id,
        conversation_id=rows[0].conversation_id,
        workspace_id=_NOWHERE,
        user_id=None,
        parent_turn_id=parent,
        ordinal=ordinal,
        active=True,
        status="succeeded",
        attempt=1,
        failures=0,
        last_seq=0,
        cancel_requested_at=None,
        background=False,
        source="api",
        model=said[-1] if said else None,
        snapshot=Snapshot(),
        usage=Usage(),
        month=month_of(rows[0].created_at),
        error=None,
        metadata={},
        created_at=rows[0].created_at,
        started_at=rows[0].created_at,
        settled_at=rows[-1].created_at,
    )


def _with_display(turn: Turn, rows: Sequence[Message]) -> list[Message]:
    """Steps of an imported turn are shown as those of a live one: on its final row."""
    result = events_from_rows(turn, rows)[-1]
    assert isinstance(result, Result)
    return [structs.replace(row, display=result.content) if row.id == result.message_id else row for row in rows]
