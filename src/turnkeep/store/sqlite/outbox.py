"""The outbox on SQLite. `write_outbox` is called by what ends a turn, inside its transaction."""

from collections.abc import Sequence

from turnkeep.ids import OutboxId, new_outbox_id
from turnkeep.model.outbox import OutboxEntry
from turnkeep.model.turns import Turn
from turnkeep.store.rows import to_entry
from turnkeep.store.rules.outbox import ToldStatus, told_turn
from turnkeep.store.sqlite.io.executors import StoreThreads
from turnkeep.store.sqlite.io.session import Session


class SqliteOutbox(StoreThreads):
    """The verbs of the outbox. Promises are those of `ports.OutboxStore`."""

    async def take_entries(self, *, limit: int = 100, lease_seconds: float) -> list[OutboxEntry]:
        # A look costs no write. Most looks find nothing.
        if not await self._read(_has_due):
            return []
        return await self._write(_take, limit, int(lease_seconds * 1000))

    async def mark_delivered(self, entry_ids: Sequence[OutboxId]) -> None:
        if entry_ids:
            await self._write(_delete, list(entry_ids))

    async def postpone_entry(self, entry_id: OutboxId, *, seconds: float) -> None:
        await self._write(_postpone, entry_id, int(seconds * 1000))


def write_outbox(session: Session, turn: Turn, status: ToldStatus, org_id: str) -> None:
    """Write the entry which says that this turn has ended, or waits."""
    entry = told_turn(new_outbox_id(), turn.id, status)
    session.run(
        "insert_entry",
        (
            entry.id,
            org_id,
            turn.workspace_id,
            turn.user_id,
            entry.type,
            turn.conversation_id,
            entry.turn_id,
            session.now,
        ),
    )


def _has_due(session: Session) -> bool:
    return session.row("has_due_entries", {"now": session.clock()}) is not None


def _take(session: Session, limit: int, lease_ms: int) -> list[OutboxEntry]:
    taken = session.rows("take_entries", {"now": session.now, "limit": limit, "until": session.now + lease_ms})
    return sorted(map(to_entry, taken), key=lambda entry: entry.id)


def _delete(session: Session, entry_ids: Sequence[OutboxId]) -> None:
    session.many("delete_entry", [{"id": id_} for id_ in entry_ids])


def _postpone(session: Session, entry_id: OutboxId, ms: int) -> None:
    session.run("postpone_entry", {"id": entry_id, "until": session.now + ms})
