"""Values as rows of tables: parameters of the types `turnkeep.turns`, `turnkeep.messages` and so on.

The driver sends such a row as a tuple of all columns, in the order in which the table has them. Only this module knows
that order, and a test compares it with the database.
"""

from collections.abc import Mapping
from typing import Any

from turnkeep.model.messages import Message
from turnkeep.store.rows import message_values

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
# fmt: on

Record = tuple[Any, ...]


def turn_record(columns: Mapping[str, Any]) -> Record:
    """A row of `turns`. A column that is not given becomes NULL."""
    return tuple([columns.get(name) for name in TURNS])


def message_record(message: Message, org_id: str | None = None) -> Record:
    """A row of `messages`."""
    turn_id, sequence, id_, conversation_id, *rest = message_values(message)
    return (turn_id, sequence, id_, org_id, conversation_id, *rest)
