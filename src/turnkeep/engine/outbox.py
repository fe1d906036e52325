"""The delivery of the outbox: each worker takes entries from the store and hands them to a sink.

An entry is written in the transaction that ends its turn, so none is lost. It is erased only after the sink took it, so
a crash in between delivers it again: at least once. Several workers deliver side by side, because an entry is leased
to one of them.

A worker delivers a moment after one of its own turns has ended, many entries at a time. It also looks every few
seconds, for entries of workers that died and for those whose time to be tried again has come.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol

from turnkeep.engine.observer import Observer
from turnkeep.errors import WorldError
from turnkeep.ids import OutboxId, TurnId
from turnkeep.model.outbox import OutboxEntry
from turnkeep.store.ports import OutboxStore

PERIOD_SECONDS = 5.0
"""How often a worker looks for entries when none of its own turns ends."""
GATHER_SECONDS = 0.5
"""How long a worker waits after the end of a turn, so that the ends of many turns cost one delivery."""
BATCH = 100
LEASE_SECONDS = 60.0
LONGEST_RETRY_SECONDS = 3_600.0
LAST_SECONDS = 2.0

AUDIT_LOGGER = "turnkeep.audit"


class OutboxSink(Protocol):
    """Takes entries to the outside."""

    async def send(self, entry: OutboxEntry) -> None:
        """The outside has the entry when this returns. If it raises, the entry is tried again later. The same entry may
        come again: its id tells."""


class AuditLog:
    """A sink that writes one line per entry to the logger `turnkeep.audit`.

    The handler of the server raises if it cannot write such a line (`api/telemetry/logs.py`), so the entry stays.
    """

    async def send(self, entry: OutboxEntry) -> None:
        fields = {
            "id": entry.id,
            "type": entry.type,
            "org_id": entry.org_id,
            "workspace_id": entry.workspace_id,
            "conversation_id": entry.conversation_id,
            "turn_id": entry.subject_id,
            "user_id": entry.user_id,
            "request_id": entry.request_id,
            "at": entry.created_at,
        }
        logging.getLogger(AUDIT_LOGGER).info(entry.type, extra={"fields": fields})


OnSuccess = Callable[[Sequence[TurnId]], Awaitable[None]]
"""Is told of turns that have succeeded, at least once, before their entries are erased."""


class OutboxDelivery:
    """Delivers entries for one worker."""

    def __init__(
        self, store: OutboxStore, sink: OutboxSink, observer: Observer, *, on_success: OnSuccess | None = None
    ) -> None:
        self._store = store
        self._on_success = on_success
        self._sink = sink
        self._observer = observer
        self._wanted = asyncio.Event()
        self._delivering = asyncio.Lock()

    def wake(self) -> None:
        """A turn has ended here: deliver soon."""
        self._wanted.set()

    async def deliver_for_ever(self) -> None:
        while True:
            try:
                await self.deliver()
            except WorldError:
                pass  # the database is away; the entries wait
            except Exception as exc:  # a delivery that fails must not end all deliveries
                self._observer.defect(None, exc)
            await self._pause()

    async def deliver(self) -> None:
        """Deliver every entry that is due. A delivery that is under way is waited for."""
        async with self._delivering:
            while await self._deliver_some() == BATCH:
                pass

    async def finish(self) -> None:
        """Deliver what the last turns of this worker left. What cannot be delivered quickly is left to another worker
        or to the next start."""
        try:
            async with asyncio.timeout(LAST_SECONDS):
                await self.deliver()
        except (WorldError, TimeoutError):
            pass
        except Exception as exc:  # a worker that leaves must still hand over its turns
            self._observer.defect(None, exc)

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(PERIOD_SECONDS):
                await self._wanted.wait()
            await asyncio.sleep(GATHER_SECONDS)
        self._wanted.clear()

    async def _deliver_some(self) -> int:
        """Deliver one batch; return how many entries it had."""
        entries = await self._store.take_entries(limit=BATCH, lease_seconds=LEASE_SECONDS)
        ends_at = time.monotonic() + LEASE_SECONDS / 2
        succeeded = [TurnId(entry.subject_id) for entry in entries if entry.type == "turn.succeeded"]
        if self._on_success is not None and succeeded:
            await self._on_success(succeeded)
        delivered: list[OutboxId] = []
        try:
            for entry in entries:
                if time.monotonic() > ends_at:
                    break  # the sink is slow; the rest is due again when the lease has ended
                if await self._is_sent(entry):
                    delivered.append(entry.id)
        except BaseException:
            # Also a task that is cancelled erases what the sink has taken. Its cancellation must go on all the same.
            with suppress(Exception):
                await self._store.mark_delivered(delivered)
            raise
        await self._store.mark_delivered(delivered)
        return len(entries)

    async def _is_sent(self, entry: OutboxEntry) -> bool:
        try:
            await self._sink.send(entry)
        except Exception as exc:
            if not isinstance(exc, WorldError):
                self._observer.defect(None, exc)
            await self._store.postpone_entry(entry.id, seconds=retry_seconds(entry.attempts))
            return False
        return True


def retry_seconds(attempts: int) -> float:
    """The pause before the next try: 5 seconds, then twice as long each time, up to an hour."""
    return min(LONGEST_RETRY_SECONDS, 5.0 * 2.0 ** min(attempts - 1, 20))
