"""Reads that take more than one verb of the store: a turn with its outcome, the message of a settled turn."""

from collections.abc import Sequence
from contextlib import suppress

from turnkeep.api import views
from turnkeep.errors import NotFound
from turnkeep.ids import TurnId
from turnkeep.model.messages import PublicMessage
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Turn
from turnkeep.store.ports import Store
from turnkeep_client import wire
from turnkeep_client.wire.display import parts_of
from turnkeep_client.wire.events import Failure, Recorded, Result

BATCH = 1_000
NEWEST = 6
"""The message of a turn that has just settled is among so many at the end of the transcript, nearly always."""


async def read_events(store: Store, turn_id: TurnId) -> list[Recorded]:
    """All events of a turn so far."""
    events: list[Recorded] = []
    while True:
        batch = await store.events(turn_id, after=len(events), limit=BATCH)
        events += batch
        if len(batch) < BATCH:
            return events


async def read_turn(store: Store, turn: Turn) -> wire.Turn:
    return views.turn_of(turn, await read_events(store, turn.id))


async def read_answer(store: Store, principal: Principal, turn: Turn) -> wire.Answered:
    """A settled turn and the message it left, if it left one; also of a conversation that was deleted meanwhile."""
    events = await read_events(store, turn.id)
    message = await _message(store, principal, turn, events)
    return wire.Answered(
        conversation_id=turn.conversation_id,
        turn=views.turn_of(turn, events),
        message=None if message is None else views.message_of(message),
    )


async def _message(store: Store, principal: Principal, turn: Turn, events: Sequence[Recorded]) -> PublicMessage | None:
    terminal = events[-1].event if events else None
    if not isinstance(terminal, Result | Failure) or not terminal.message_id:
        return None
    with suppress(NotFound):  # deleted: what the turn has left is told to who waited for it
        page = await store.transcript(principal, turn.conversation_id, order="desc", limit=NEWEST)
        for message in page.data:
            if message.id == terminal.message_id:
                return message
    return await _message_of_branch(store, turn)


async def _message_of_branch(store: Store, turn: Turn) -> PublicMessage | None:
    """The visible answer of a turn that is no longer on the visible chain, or far back on it, or deleted."""
    for row in reversed(await store.turn_rows(turn.id)):
        if row.role == "assistant" and not row.internal:
            return PublicMessage(
                id=row.id,
                conversation_id=row.conversation_id,
                turn_id=row.turn_id,
                role=row.role,
                content=row.display if row.display is not None else parts_of(row.blocks),
                attachments=row.attachments,
                sources=row.sources,
                usage=row.usage,
                status=turn.status,
                created_at=row.created_at,
            )
    return None
