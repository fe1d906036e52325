"""Rules of steering: how the words of queued turns become rows and events of the turn that runs."""

from collections.abc import Sequence

from msgspec import structs

from turnkeep.model.messages import Message
from turnkeep.model.turns import Held
from turnkeep.store.commands import Taken
from turnkeep_client.wire.blocks import paragraphs_of
from turnkeep_client.wire.events import Steered, TurnEvent


def taken(held: Held, questions: Sequence[Message], *, sequence: int) -> Taken:
    """These questions as rows of the turn that is held, numbered from `sequence` on. They keep their ids."""
    rows = tuple(
        structs.replace(question, turn_id=held.turn_id, turn_sequence=sequence + place)
        for place, question in enumerate(questions)
    )
    return Taken(rows=rows, events=tuple(Steered(message_id=row.id, message=paragraphs_of(row.blocks)) for row in rows))


def already_taken(rows: Sequence[Message], events: Sequence[TurnEvent], *, sequence: int) -> Taken | None:
    """What was taken by a call whose answer was lost; None if these events are not of such a call."""
    if not events or not all(isinstance(event, Steered) for event in events):
        return None
    return Taken(rows=tuple(row for row in rows if row.turn_sequence >= sequence), events=tuple(events))
