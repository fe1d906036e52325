"""The outbox on PostgreSQL. The functions that end turns write its entries, in their transaction."""

from collections.abc import Iterable, Sequence

from turnkeep.ids import OutboxId, TurnId, new_outbox_id
from turnkeep.model.outbox import OutboxEntry
from turnkeep.store.postgres.io.database import Database
from turnkeep.store.rows import to_entry
from turnkeep.store.rules.outbox import NewEntry, told_turn


class PostgresOutbox:
    """The verbs of the outbox."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def take_entries(self, *, limit: int = 100, lease_seconds: float) -> list[OutboxEntry]:
        rows = await self._database.write("take_entries", limit, int(lease_seconds * 1000))
        return sorted(map(to_entry, rows), key=lambda entry: entry.id)

    async def mark_delivered(self, entry_ids: Sequence[OutboxId]) -> None:
        if entry_ids:
            await self._database.write("delete_entries", sorted(entry_ids))

    async def postpone_entry(self, entry_id: OutboxId, *, seconds: float) -> None:
        await self._database.write("postpone_entry", entry_id, int(seconds * 1000))


def cancelled_entries(turn_ids: Iterable[TurnId]) -> list[NewEntry]:
    """The entries of turns that are cancelled while they wait."""
    return [told_turn(new_outbox_id(), turn_id, "cancelled") for turn_id in turn_ids]
