"""The verbs of the outbox. Its entries are written by the verbs that end turns, in their transaction."""

from collections.abc import Sequence
from typing import Protocol

from turnkeep.ids import OutboxId
from turnkeep.model.outbox import OutboxEntry


class OutboxStore(Protocol):
    """Reports to other systems, delivered at least once.

    Every turn that ends writes one entry, in the transaction that ends it: `settle`, and each verb that cancels waiting
    turns. Appended and imported turns write none. The entries of a conversation are erased with it by `purge`,
    also those that are not delivered yet.
    """

    async def take_entries(self, *, limit: int = 100, lease_seconds: float) -> list[OutboxEntry]:
        """Lease the oldest entries that are due, in the order of their ids. No other worker gets them until the lease
        has ended; then any worker may take them again."""

    async def mark_delivered(self, entry_ids: Sequence[OutboxId]) -> None:
        """Erase these entries. Those that are gone already are passed over."""

    async def postpone_entry(self, entry_id: OutboxId, *, seconds: float) -> None:
        """Let no worker take the entry before that time has passed. One that is gone stays gone."""
