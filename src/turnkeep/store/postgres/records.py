"""Values as rows of tables: parameters of the types `turnkeep.turns`, `turnkeep.messages` and so on.

The driver sends such a row as a tuple of all columns, in the order in which the table has them. Only this module knows
that order, and a test compares it with the database.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from turnkeep.ids import ConversationId, TurnId
from turnkeep.model.messages import Message
from turnkeep.store.rows import event_values, message_values
from turnkeep_client.wire.events import LogLine, TurnEvent

# fmt: off
TURNS = (
    "id", "org_id", "workspace_id", "conversation_id", "user_id", "key_id", "parent_turn_id", "beside_turn_id",
    "ordinal", "active", "status", "attempt", "failures", "last_seq", "seq_at_adoption", "worker", "lease_until",
    "watched_until", "cancel_requested_at", "background", "principal_ref", "idempotency_key", "request_hash",
    "snapshot", "source", "model", "metadata", "month", "input_tokens", "output_tokens", "cache_read_tokens",
    "cache_write_tokens", "error", "created_at", "started_at", "settled_at", "files_written", "watched_ms",
)
MESSAGES = (
    "turn_id", "turn_sequence", "id", "org_id", "conversation_id", "role", "internal", "iteration", "blocks", "display",
    "attachments", "sources", "metadata", "usage", "legacy", "provider", "created_at",
)
EVENTS = ("turn_id", "seq", "org_id", "type", "payload")
LOGS = ("turn_id", "n", "org_id", "after_seq", "level", "message", "ts")
# fmt: on

Record = tuple[Any, ...]


def turn_record(columns: Mapping[str, Any]) -> Record:
    """A row of `turns`. A column that is not given becomes NULL."""
    return tuple([columns.get(name) for name in TURNS])


def message_record(
    message: Message, org_id: str | None = None, place: tuple[TurnId, ConversationId] | None = None
) -> Record:
    """A row of `messages`, under the turn and the conversation that it names, or else at this `place`."""
    turn_id, sequence, id_, conversation_id, *rest = message_values(message)
    if place is not None:
        turn_id, conversation_id = place
    return (turn_id, sequence, id_, org_id, conversation_id, *rest)


class Entries(Struct, frozen=True):
    """Rows, events and log lines of one turn, as rows of their tables. The database fills in the org."""

    rows: list[Record]
    events: list[Record]
    logs: list[Record]
    size: int


def entries_of(
    turn_id: TurnId, after: int, rows: Sequence[Message], events: Sequence[TurnEvent], logs: Sequence[LogLine]
) -> Entries:
    """The events get the numbers after `after`; log lines are numbered from 1, and placed behind those there are."""
    records = [message_record(row) for row in rows]
    told = [(turn_id, seq, None, *event_values(event)) for seq, event in enumerate(events, start=after + 1)]
    lines = [
        (turn_id, n, None, line.after_seq, line.level, line.message, line.ts) for n, line in enumerate(logs, start=1)
    ]
    return Entries(records, told, lines, size_of(records) + size_of(told))


def all_entries(entries: Iterable[Entries]) -> tuple[list[Record], list[Record], list[Record]]:
    """The rows, the events and the log lines of several turns."""
    those = list(entries)
    return (
        [row for each in those for row in each.rows],
        [event for each in those for event in each.events],
        [line for each in those for line in each.logs],
    )


def size_of(records: Iterable[Record]) -> int:
    """How many characters of text these records hold."""
    return sum(len(value) for record in records for value in record if isinstance(value, str))
