"""Partitions: messages and events of each month apart, made ahead of time and dropped as a whole."""

import calendar
import time
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from tests.store.factories import (
    Tenant,
    answered,
    begin,
    elsewhere,
    finish,
    finish_with_tool,
    kinds,
    transcript_of,
)
from tests.store.postgres.test_boundary import problems
from turnkeep.errors import TurnkeepError
from turnkeep.ids import TurnId, first_turn_id, new_turn_id
from turnkeep.store.postgres import PostgresStore
from turnkeep.store.postgres.io.partitions import Partition, missing_partitions
from turnkeep.store.postgres.io.statements import statements

YEAR = time.gmtime().tm_year + 3
"""A year of which there are no partitions yet."""


def moment(month: int, day: int = 15, year: int = YEAR) -> int:
    return calendar.timegm((year, month, day, 0, 0, 0)) * 1000


def a_turn_id(month: int, day: int = 15) -> TurnId:
    """An id as a server makes it in that month."""
    begin = first_turn_id(moment(month, day))
    return TurnId(begin + new_turn_id()[len(begin) :])


@pytest.fixture
async def admin(uri: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(uri)
    yield connection
    await connection.close()


async def names(admin: Any, table: str) -> set[str]:
    """The partitions of a table, without its name."""
    rows = await admin.fetch(
        "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = $1::text::regclass", f"turnkeep.{table}"
    )
    return {row[0].removeprefix(f"turnkeep.{table}_") for row in rows}


async def place_of(admin: Any, table: str, turn_id: TurnId) -> set[str]:
    """The partitions that have the rows of a turn."""
    rows = await admin.fetch(f"SELECT tableoid::regclass::text FROM turnkeep.{table} WHERE turn_id = $1", turn_id)
    return {row[0].removeprefix(f"turnkeep.{table}_") for row in rows}


def missing(known: list[Partition], months: int, now: int, until: int) -> list[str]:
    return [each.name.removeprefix("messages_") for each in missing_partitions("messages", known, months, now, until)]


class TestWhatIsMissing:
    def test_are_the_periods_until_then(self) -> None:
        assert missing([], 1, moment(11), moment(1, 1, YEAR + 1)) == [f"{YEAR}_11", f"{YEAR}_12", f"{YEAR + 1}_01"]
        assert missing([], 3, moment(11), moment(1, 1, YEAR + 1)) == [f"{YEAR}_10", f"{YEAR + 1}_01"]
        assert missing([], 12, moment(11), moment(1, 1, YEAR + 1)) == [f"{YEAR}_01", f"{YEAR + 1}_01"]
        assert missing([], 12, moment(11), moment(11)) == [f"{YEAR}_01"]

    def test_is_the_rest_of_a_period_that_has_begun(self) -> None:
        first = Partition("messages", "messages_first", None, first_turn_id(moment(11, 1)))
        [rest] = missing_partitions("messages", [first], 12, moment(10), moment(12))
        assert (rest.name, rest.first, rest.end) == (
            f"messages_{YEAR}_11",
            first.end,
            first_turn_id(moment(1, 1, YEAR + 1)),
        )
        assert missing([first, rest], 1, moment(10), moment(12)) == []

    def test_is_the_rest_also_where_periods_were_shorter(self) -> None:
        months = [*missing_partitions("messages", [], 1, moment(1), moment(3))]
        assert missing(months, 12, moment(2), moment(5)) == [f"{YEAR}_04"]

    def test_is_nothing_that_another_partition_has(self) -> None:
        first = Partition("messages", "messages_first", None, first_turn_id(moment(12, 1, YEAR + 1)))
        other = Partition("messages", "messages_other", None, None)
        assert missing([first, other], 1, moment(6), moment(12)) == []

    def test_does_not_depend_on_one_that_a_wrong_clock_made(self) -> None:
        wrong = [*missing_partitions("messages", [], 3, moment(5, 1, YEAR + 70), moment(5, 1, YEAR + 70))]
        assert len(missing(wrong, 3, moment(5), moment(5))) == 1


class TestMaking:
    async def test_an_opened_database_has_room_for_the_coming_months(self, store: PostgresStore, admin: Any) -> None:
        now = time.time_ns() // 1_000_000
        await store.make_partitions(now=now)
        for table in ("messages", "turn_events"):
            end = await admin.fetchval(
                "SELECT max(substring(pg_get_expr(c.relpartbound, c.oid) FROM 'TO .''(.+?)''')) FROM pg_class c "
                "JOIN pg_inherits i ON i.inhrelid = c.oid WHERE i.inhparent = $1::text::regclass",
                f"turnkeep.{table}",
            )
            assert end > first_turn_id(now + 59 * 86_400_000)

    async def test_twice_makes_nothing_more(self, store: PostgresStore, admin: Any) -> None:
        await store.make_partitions(now=moment(5), months=3)
        before = await names(admin, "messages"), await names(admin, "turn_events")
        assert before[0] >= {f"{YEAR}_04", f"{YEAR}_07"}
        assert before[1] >= {f"{YEAR}_05", f"{YEAR}_06", f"{YEAR}_07"}
        await store.make_partitions(now=moment(5), months=3)
        assert (await names(admin, "messages"), await names(admin, "turn_events")) == before

    async def test_a_turn_is_stored_in_the_partition_of_its_month(
        self, store: PostgresStore, tenant: Tenant, admin: Any
    ) -> None:
        await store.make_partitions(now=moment(5), months=3)
        turn = await finish_with_tool(store, tenant.ann, turn_id=a_turn_id(6))
        assert await place_of(admin, "messages", turn.id) == {f"{YEAR}_04"}
        assert await place_of(admin, "turn_events", turn.id) == {f"{YEAR}_06"}

    async def test_a_turn_ends_once_in_every_partition(self, store: PostgresStore, tenant: Tenant, admin: Any) -> None:
        await store.make_partitions(now=moment(5))
        again = (
            "INSERT INTO turnkeep.turn_events (turn_id, seq, org_id, type, payload) "
            "SELECT turn_id, 9, org_id, 'error', '{}' FROM turnkeep.turn_events WHERE turn_id = $1 AND seq = 1"
        )
        for turn_id in (new_turn_id(), a_turn_id(5), a_turn_id(12)):
            await finish(store, tenant.ann, turn_id=turn_id)
            with pytest.raises(asyncpg.UniqueViolationError):
                await admin.execute(again, turn_id)

    async def test_a_turn_without_a_partition_is_stored_and_moves_when_there_is_one(
        self, store: PostgresStore, tenant: Tenant, admin: Any
    ) -> None:
        held = await begin(store, tenant.ann, turn_id=a_turn_id(5))
        assert await place_of(admin, "messages", held.turn_id) == {"other"}
        await store.make_partitions(now=moment(5), months=3)
        await store.settle(held, after=1, settlement=answered(held))
        assert await place_of(admin, "messages", held.turn_id) == {f"{YEAR}_04"}
        assert await place_of(admin, "turn_events", held.turn_id) == {f"{YEAR}_05"}
        assert await transcript_of(store, tenant.ann, held.conversation_id) == ["user: Hello", "assistant: Hi!"]
        assert kinds(await store.events(held.turn_id)) == ["turn", "result"]

    async def test_waits_for_no_dump(self, store: PostgresStore, tenant: Tenant, admin: Any) -> None:
        """A dump holds a lock on every table until it has ended. Turns go on meanwhile."""
        async with admin.transaction():
            await admin.execute("LOCK TABLE turnkeep.messages, turnkeep.turn_events IN ACCESS SHARE MODE")
            await store.make_partitions(now=moment(5), months=3)
            assert f"{YEAR}_04" not in await names(admin, "messages")
            await finish(store, tenant.ann, turn_id=a_turn_id(5))
        await store.make_partitions(now=moment(5), months=3)
        assert f"{YEAR}_04" in await names(admin, "messages")

    async def test_no_worker_makes_one_while_a_database_is_migrated(self, store: PostgresStore, admin: Any) -> None:
        async with admin.transaction():
            await admin.execute(f"SELECT pg_advisory_xact_lock({0x7475726E6B656570})")
            await store.make_partitions(now=moment(5), months=3)
            assert f"{YEAR}_04" not in await names(admin, "messages")


class TestTheSizes:
    async def test_of_partitions_are_those_of_their_table(
        self, store: PostgresStore, tenant: Tenant, admin: Any
    ) -> None:
        await store.make_partitions(now=moment(5), months=3)
        await finish(store, tenant.ann, turn_id=a_turn_id(5))
        await finish(store, tenant.ann)
        sizes = {name: size for name, size, _, _ in await admin.fetch(statements()["table_sizes"])}
        assert {name for name in sizes if name.startswith(("messages", "turn_events"))} == {"messages", "turn_events"}
        parts = [f"turnkeep.messages_{name}" for name in await names(admin, "messages")]
        total = await admin.fetchval("SELECT sum(pg_total_relation_size(n::regclass)) FROM unnest($1::text[]) n", parts)
        assert sizes["messages"] == total


class TestTheBoundary:
    async def test_holds_for_partitions_that_were_made_later(
        self, store: PostgresStore, tenant: Tenant, uri: str, admin: Any
    ) -> None:
        await store.make_partitions(now=moment(5), months=3)
        await finish_with_tool(store, tenant.ann, turn_id=a_turn_id(5))
        assert await problems(uri) == []
        for table in ("messages", "turn_events"):
            for name in await names(admin, table):
                with pytest.raises(TurnkeepError, match="permission denied"):
                    await store.client_query(tenant.ann, f"SELECT * FROM turnkeep.{table}_{name}")
        mine = await store.client_query(tenant.ann, "SELECT internal FROM turnkeep.messages")
        assert mine == [(False,), (False,)]
        assert await store.client_query(tenant.bob, "SELECT internal FROM turnkeep.messages") == []


async def drop_all(store: PostgresStore, *, ended_before: int) -> None:
    while await store.drop_partitions(ended_before=ended_before, limit=1):
        pass


class TestDroppingEvents:
    async def test_of_old_months_leaves_what_readers_get(
        self, store: PostgresStore, tenant: Tenant, admin: Any
    ) -> None:
        await store.make_partitions(now=moment(5), months=3)
        turns = [
            await finish(store, tenant.ann, turn_id=a_turn_id(5)),
            await finish_with_tool(store, tenant.ann, turn_id=a_turn_id(5, 16)),
            await finish_with_tool(store, tenant.ann, turn_id=a_turn_id(6)),
        ]
        held = await begin(store, tenant.ann, turn_id=a_turn_id(5, 17))
        await store.settle(held, after=1, settlement=answered(held, "Bye."))
        before = await self._read(store, tenant, [*[turn.id for turn in turns], held.turn_id])
        await drop_all(store, ended_before=moment(6, 1))
        assert await self._read(store, tenant, [*[turn.id for turn in turns], held.turn_id]) == before
        left = await names(admin, "turn_events")
        assert f"{YEAR}_05" not in left
        assert f"{YEAR}_06" in left
        assert await place_of(admin, "turn_events", turns[2].id) == {f"{YEAR}_06"}
        exported = await store.export_conversation(tenant.service, turns[1].conversation_id)
        again = await store.import_conversation(tenant.service, exported)
        assert len(await transcript_of(store, tenant.service, again.id)) == 2

    async def _read(self, store: PostgresStore, tenant: Tenant, turn_ids: list[TurnId]) -> list[Any]:
        return [
            [await store.events(turn_id, after=after, limit=2) for after in range(6)]
            + [(await store.trace(tenant.service, turn_id)).events]
            for turn_id in turn_ids
        ]

    async def test_waits_for_a_turn_that_has_not_ended(self, store: PostgresStore, tenant: Tenant, admin: Any) -> None:
        await store.make_partitions(now=moment(5), months=3)
        held = await begin(store, tenant.ann, turn_id=a_turn_id(5))
        await drop_all(store, ended_before=moment(12))
        assert await place_of(admin, "turn_events", held.turn_id) == {f"{YEAR}_05"}
        assert kinds(await store.events(held.turn_id)) == ["turn"]
        await store.settle(held, after=1, settlement=answered(held))
        await drop_all(store, ended_before=moment(12))
        assert f"{YEAR}_05" not in await names(admin, "turn_events")
        assert kinds(await store.events(held.turn_id)) == ["turn", "result"]

    async def test_of_an_erased_conversation_leaves_nothing(
        self, store: PostgresStore, tenant: Tenant, admin: Any
    ) -> None:
        turn = await finish_with_tool(store, tenant.ann, turn_id=a_turn_id(5))
        await store.make_partitions(now=moment(5), months=3)
        await drop_all(store, ended_before=moment(12))
        assert await admin.fetchval("SELECT count(*) FROM turnkeep.old_events") == 1
        await store.delete_conversation(tenant.ann, turn.conversation_id)
        await store.purge(deleted_before=2**62)
        assert await admin.fetchval("SELECT count(*) FROM turnkeep.old_events") == 0

    async def test_goes_on_when_a_late_event_finds_no_partition(
        self, store: PostgresStore, tenant: Tenant, admin: Any
    ) -> None:
        await store.make_partitions(now=moment(5), months=3)
        await drop_all(store, ended_before=moment(12))
        assert f"{YEAR}_05" not in await names(admin, "turn_events")
        turn = await finish_with_tool(store, tenant.ann, turn_id=a_turn_id(5))
        assert await place_of(admin, "turn_events", turn.id) == {"other"}
        assert len(await store.events(turn.id)) == 5


class TestDroppingMessages:
    async def test_happens_when_no_conversation_has_rows_there(
        self, store: PostgresStore, tenant: Tenant, admin: Any
    ) -> None:
        await store.make_partitions(now=moment(5), months=3)
        kept = await finish(store, tenant.ann, turn_id=a_turn_id(5))
        gone = await finish(store, tenant.ann, turn_id=a_turn_id(8))
        await store.append(tenant.ann, kept.conversation_id, elsewhere(kept.conversation_id, turn_id=a_turn_id(5, 20)))
        await store.delete_conversation(tenant.ann, gone.conversation_id)
        await store.purge(deleted_before=2**62)
        await drop_all(store, ended_before=moment(12))
        left = await names(admin, "messages")
        assert f"{YEAR}_04" in left
        assert f"{YEAR}_07" not in left
        assert len(await transcript_of(store, tenant.ann, kept.conversation_id)) == 4

    async def test_waits_for_no_dump(self, store: PostgresStore, tenant: Tenant, admin: Any) -> None:
        await store.make_partitions(now=moment(5), months=3)
        async with admin.transaction():
            await admin.execute("LOCK TABLE turnkeep.messages IN ACCESS SHARE MODE")
            await drop_all(store, ended_before=moment(12))
            await finish(store, tenant.ann)
        assert f"{YEAR}_04" in await names(admin, "messages")
        await drop_all(store, ended_before=moment(12))
        assert f"{YEAR}_04" not in await names(admin, "messages")
