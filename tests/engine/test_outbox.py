"""The outbox is delivered: each entry reaches the sink soon after its turn has ended, and is tried again if refused."""

import asyncio
import logging
from collections.abc import Sequence

import pytest

from tests.engine.harness import Cluster, FailOnDefect, Latch
from turnkeep.engine.outbox import AuditLog, OutboxDelivery, retry_seconds
from turnkeep.errors import Defect, Unavailable
from turnkeep.ids import OutboxId
from turnkeep.model.outbox import OutboxEntry
from turnkeep.providers.scripted import Until
from turnkeep.store.ports import Store
from turnkeep.trace_context import Origin, origin


class Receiver:
    """A sink that keeps what it takes, and refuses what it is told to refuse."""

    def __init__(self, *refusals: Exception) -> None:
        self.taken: list[OutboxEntry] = []
        self.refused: list[OutboxEntry] = []
        self._refusals = list(refusals)

    async def send(self, entry: OutboxEntry) -> None:
        if self._refusals:
            self.refused.append(entry)
            raise self._refusals.pop(0)
        self.taken.append(entry)

    @property
    def told(self) -> list[tuple[str, str]]:
        return [(entry.type, entry.subject_id) for entry in self.taken]


class CountingStore:
    """Counts how often entries are taken."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.takes = 0

    async def take_entries(self, *, limit: int = 100, lease_seconds: float) -> list[OutboxEntry]:
        self.takes += 1
        return await self._store.take_entries(limit=limit, lease_seconds=lease_seconds)

    async def mark_delivered(self, entry_ids: Sequence[OutboxId]) -> None:
        await self._store.mark_delivered(entry_ids)

    async def postpone_entry(self, entry_id: OutboxId, *, seconds: float) -> None:
        await self._store.postpone_entry(entry_id, seconds=seconds)


class StoreThatGoesAway(CountingStore):
    """Gives entries, and is away when they are to be erased."""

    async def mark_delivered(self, entry_ids: Sequence[OutboxId]) -> None:
        raise Unavailable("The database is away.")


class BrokenStore(CountingStore):
    """Has a bug."""

    async def take_entries(self, *, limit: int = 100, lease_seconds: float) -> list[OutboxEntry]:
        raise Defect("A bug.")


async def is_empty(store: Store) -> bool:
    return await store.take_entries(lease_seconds=0) == []


class TestAWorker:
    async def test_delivers_the_end_of_its_turn(self, cluster: Cluster) -> None:
        receiver = Receiver()
        engine = await cluster.enter([["Hi."]], outbox_sink=receiver)
        turn = await cluster.answer(engine)

        async def has_come() -> bool:
            return bool(receiver.taken)

        await cluster.until(has_come)
        assert receiver.told == [("turn.succeeded", turn.id)]
        await cluster.until(lambda: is_empty(cluster.store))

    async def test_delivers_what_a_dead_worker_left(self, cluster: Cluster) -> None:
        dead = await cluster.enter([["Hi."]], start=False)
        turn = await cluster.answer(dead)
        receiver = Receiver()
        await cluster.enter([], outbox_sink=receiver)

        async def has_come() -> bool:
            return bool(receiver.taken)

        await cluster.until(has_come)
        assert receiver.told == [("turn.succeeded", turn.id)]

    async def test_delivers_the_stop_of_a_waiting_turn(self, cluster: Cluster) -> None:
        receiver, latch = Receiver(), Latch()
        engine = await cluster.enter([[Until(latch.pass_through), "Hi."]], outbox_sink=receiver)
        running = await cluster.ask(engine)
        waiting = await cluster.ask(engine, conversation_id=running.turn.conversation_id, if_busy="enqueue")
        await engine.cancel(cluster.ann, waiting.turn.id)

        async def has_come() -> bool:
            return bool(receiver.taken)

        await cluster.until(has_come)
        assert receiver.told == [("turn.cancelled", waiting.turn.id)]
        latch.open()
        await engine.wait(running.turn.id)

    async def test_delivers_its_last_turns_before_it_leaves(self, cluster: Cluster) -> None:
        receiver = Receiver()
        engine = await cluster.enter([["Hi."]], outbox_sink=receiver)
        turn = await cluster.answer(engine)
        await engine.drain(seconds=5)
        assert receiver.told == [("turn.succeeded", turn.id)]


class SlowReceiver(Receiver):
    """Waits at a latch before it takes an entry."""

    def __init__(self) -> None:
        super().__init__()
        self.latch = Latch()

    async def send(self, entry: OutboxEntry) -> None:
        await self.latch.pass_through()
        await super().send(entry)


class TestDelivery:
    async def test_the_last_delivery_waits_for_the_one_under_way(self, cluster: Cluster) -> None:
        engine = await cluster.enter([["Hi."]], start=False)
        await cluster.answer(engine)
        receiver = SlowReceiver()
        delivery = OutboxDelivery(cluster.store, receiver, FailOnDefect())
        running = asyncio.create_task(delivery.deliver_for_ever())
        await receiver.latch.reached.wait()
        last = asyncio.create_task(delivery.finish())
        await asyncio.sleep(0)
        assert not last.done()
        receiver.latch.open()
        await last
        running.cancel()
        assert len(receiver.taken) == 1
        assert await is_empty(cluster.store)

    async def test_is_cancelled_also_if_the_database_goes_away_at_that_moment(self, cluster: Cluster) -> None:
        engine = await cluster.enter([["Hi."]], start=False)
        await cluster.answer(engine)
        receiver = SlowReceiver()
        delivery = OutboxDelivery(StoreThatGoesAway(cluster.store), receiver, FailOnDefect())
        running = asyncio.create_task(delivery.deliver_for_ever())
        await receiver.latch.reached.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, 30)

    async def test_a_defect_does_not_keep_a_worker_from_leaving(self, cluster: Cluster) -> None:
        observer = FailOnDefect()
        await OutboxDelivery(BrokenStore(cluster.store), Receiver(), observer).finish()
        assert [type(defect) for defect in observer.defects] == [Defect]

    async def test_many_entries_cost_few_looks(self, cluster: Cluster) -> None:
        engine = await cluster.enter(lambda *_: ["Hi."], start=False)
        await asyncio.gather(*(cluster.answer(engine) for _ in range(12)))
        receiver, store = Receiver(), CountingStore(cluster.store)
        await OutboxDelivery(store, receiver, FailOnDefect()).deliver()
        assert (len(receiver.taken), store.takes) == (12, 1)

    async def test_a_refused_entry_is_tried_again_later_and_the_others_go_on(self, cluster: Cluster) -> None:
        engine = await cluster.enter(lambda *_: ["Hi."], start=False)
        first, second = await cluster.answer(engine), await cluster.answer(engine)
        receiver = Receiver(Unavailable("The receiver is away."))
        delivery = OutboxDelivery(cluster.store, receiver, FailOnDefect())
        await delivery.deliver()
        assert [entry.subject_id for entry in receiver.taken] == [second.id]
        assert await is_empty(cluster.store)  # nothing is due
        await cluster.store.postpone_entry(receiver.refused[0].id, seconds=0)
        await delivery.deliver()
        assert [entry.subject_id for entry in receiver.taken] == [second.id, first.id]

    async def test_a_sink_with_a_bug_is_reported_and_its_entry_kept(self, cluster: Cluster) -> None:
        engine = await cluster.enter([["Hi."]], start=False)
        await cluster.answer(engine)
        observer, receiver = FailOnDefect(), Receiver(KeyError("a bug"))
        await OutboxDelivery(cluster.store, receiver, observer).deliver()
        assert [type(defect) for defect in observer.defects] == [KeyError]
        assert receiver.taken == []

    def test_pauses_grow_up_to_an_hour(self) -> None:
        assert [retry_seconds(attempts) for attempts in (1, 2, 3, 10, 10_000)] == [5.0, 10.0, 20.0, 2560.0, 3600.0]


class TestTheAuditLog:
    async def test_has_one_line_for_each_entry(self, cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
        engine = await cluster.enter([["Hi."]], start=False)
        with origin(Origin(request_id="req_1")):
            turn = await cluster.answer(engine)
        with caplog.at_level(logging.INFO, logger="turnkeep.audit"):
            await OutboxDelivery(cluster.store, AuditLog(), FailOnDefect()).deliver()
        [line] = [record for record in caplog.records if record.name == "turnkeep.audit"]
        assert line.getMessage() == "turn.succeeded"
        fields = line.fields  # type: ignore[attr-defined]
        assert fields.pop("id").startswith("evt_")
        assert fields == {
            "type": "turn.succeeded",
            "org_id": cluster.tenant.org.id,
            "workspace_id": cluster.tenant.workspace.id,
            "conversation_id": turn.conversation_id,
            "turn_id": turn.id,
            "user_id": cluster.ann.user_id,
            "request_id": "req_1",
            "at": turn.settled_at,
        }
