"""Recording: only the holder of the current attempt writes; its events are numbered without gaps."""

import asyncio

import pytest
from msgspec import structs

from tests.store.databases import Database
from tests.store.factories import (
    Tenant,
    a_row,
    answered,
    asked_for_tool,
    begin,
    kinds,
    nothing_written,
    step,
    tool_answered,
    tool_calls,
    wait_in_queue,
)
from turnkeep.errors import Defect, Fenced, InvalidRequest, LeaseLost, TurnkeepError, TurnSettled
from turnkeep.ids import new_call_id, new_conversation_id, new_turn_id
from turnkeep.model.turns import Held
from turnkeep.store.commands import Receipt
from turnkeep.store.ports import Store
from turnkeep_client import wire
from turnkeep_client.wire.blocks import Usage
from turnkeep_client.wire.events import (
    Failure,
    Files,
    LogLine,
    Reset,
    Result,
    Source,
    Sources,
    TurnEvent,
)


class TestWhatIsRecorded:
    async def test_events_follow_the_last_one_without_gaps(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        first = await store.record(held, after=1, events=[step("a"), step("b")])
        second = await store.record(held, after=3, events=[step("a", "succeeded")])
        assert (first, second) == (
            Receipt(last_seq=3, cancel_requested=False),
            Receipt(last_seq=4, cancel_requested=False),
        )
        assert kinds(await store.events(held.turn_id)) == ["turn", "step", "step", "step"]
        assert (await store.turn(tenant.ann, held.turn_id)).last_seq == 4

    async def test_how_far_many_turns_have_come_is_one_question(self, store: Store, tenant: Tenant) -> None:
        new, advanced, unread = [await begin(store, tenant.ann) for _ in range(3)]
        await store.record(advanced, after=1, events=[step("a"), step("b")])
        asked = [new.turn_id, advanced.turn_id, new_turn_id()]
        assert await store.last_seqs(asked) == {new.turn_id: 1, advanced.turn_id: 3}
        assert unread.turn_id not in await store.last_seqs(asked)
        assert await store.last_seqs([]) == {}

    async def test_every_kind_of_event_comes_back_as_it_was(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        written = wire.File(
            id="file_" + "0" * 32,  # type: ignore[arg-type]
            conversation_id=held.conversation_id,
            message_id=None,
            name="out.csv",
            mime_type="text/csv",
            size=3,
            sha256=None,
            source="sandbox",
            created_at=5,
        )
        told: list[TurnEvent] = [
            tool_calls(new_call_id(), new_call_id(), text='Let me look. 日本 \U0001f600 \\u0000 "quoted"'),
            structs.replace(tool_calls(), reasoning="hmm"),
            step("s", "running", args={"b": 1, "a": [1.5, None, True, ""]}, ts=12),
            step("s", "failed", error={"why": "no"}, duration_ms=1.25),
            step("t", "succeeded", result=None, duration_ms=7),
            Sources(sources=(Source(title="T", snippet="S", url="https://example.org"),)),
            Files(files=(written,)),
            Reset(attempt=1, reason="provider_retry"),
        ]
        await store.record(held, after=1, events=told)
        assert [recorded.event for recorded in await store.events(held.turn_id, after=1)] == told

    async def test_rows_come_back_in_order_as_they_were(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        call = new_call_id()
        rows = [
            structs.replace(asked_for_tool(held, 1, call), provider="demo/echo", metadata={"k": "v"}),
            tool_answered(held, 2, call, "rain, \U0001f327"),
        ]
        await store.record(held, after=1, rows=rows, events=[tool_calls(call)])
        assert (await store.turn_rows(held.turn_id))[1:] == rows

    async def test_each_tool_result_may_be_a_write_of_its_own(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        calls = [new_call_id() for _ in range(3)]
        await store.record(
            held,
            after=1,
            rows=[asked_for_tool(held, 1, calls[0])],
            events=[tool_calls(*calls), *(step(call) for call in calls)],
        )
        for number, call in enumerate(reversed(calls)):
            await store.record(
                held,
                after=5 + number,
                rows=[tool_answered(held, 2 + number, call)],
                events=[step(call, "succeeded")],
            )
        assert len(await store.turn_rows(held.turn_id)) == 5
        assert (await store.turn(tenant.ann, held.turn_id)).last_seq == 8

    async def test_logs_are_kept_in_order_and_only_the_trace_shows_them(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        lines = [LogLine(after_seq=1, level="info", message=f"line {n}", ts=n or None) for n in range(4)]
        await store.record(held, after=1, logs=lines[:3])
        await store.record(held, after=1, events=[step("a")], logs=lines[3:])
        assert list((await store.trace(tenant.service, held.turn_id)).logs) == lines
        assert kinds(await store.events(held.turn_id)) == ["turn", "step"]

    async def test_nothing_at_all_is_only_a_look_at_the_turn(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        async with nothing_written(database):
            assert await store.record(held, after=1) == Receipt(last_seq=1, cancel_requested=False)

    async def test_the_receipt_says_when_somebody_wants_a_stop(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        await store.request_cancel(tenant.ann, held.turn_id)
        assert (await store.record(held, after=1, events=[step("a")])).cancel_requested

    async def test_internal_rows_are_not_counted(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        await store.record(held, after=1, rows=[a_row(held, 1)])
        assert (await store.conversation(tenant.ann, held.conversation_id)).message_count == 1


class TestTheFence:
    async def test_a_paused_worker_that_wakes_after_its_lease_was_taken_writes_nothing(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        paused = await begin(store, tenant.ann)
        await database.advance(seconds=31)
        [adopted] = await store.adopt("worker-2", lease_seconds=30)
        async with nothing_written(database):
            for after in (1, 2):
                with pytest.raises(LeaseLost):
                    await store.record(paused, after=after, rows=[a_row(paused, 1)], events=[step("a")])
                with pytest.raises(LeaseLost):
                    await store.settle(paused, after=after, settlement=answered(paused))
            with pytest.raises(LeaseLost):
                await store.record(paused, after=1, logs=[LogLine(after_seq=1, level="info", message="x")])
        assert (await store.record(adopted.held, after=2, events=[step("a")])).last_seq == 3

    async def test_an_expired_lease_alone_refuses_nothing(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        await database.advance(seconds=3600)
        assert (await store.record(held, after=1, events=[step("a")])).last_seq == 2
        settled = await store.settle(held, after=2, settlement=answered(held))
        assert settled.turn.status == "succeeded"

    async def test_a_settled_turn_takes_nothing_more(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        await store.settle(held, after=1, settlement=answered(held))
        async with nothing_written(database):
            for after in (1, 2):
                with pytest.raises(TurnSettled):
                    await store.record(held, after=after, rows=[a_row(held, 5)], events=[step("late")])

    async def test_an_unknown_turn_is_not_held(self, store: Store, tenant: Tenant, database: Database) -> None:
        nobody = Held(turn_id=new_turn_id(), conversation_id=new_conversation_id(), attempt=1)
        async with nothing_written(database):
            with pytest.raises(LeaseLost):
                await store.record(nobody, after=0, events=[step("a")])
            with pytest.raises(LeaseLost):
                await store.settle(nobody, after=0, settlement=answered(nobody))

    async def test_a_waiting_turn_is_not_held(self, store: Store, tenant: Tenant, database: Database) -> None:
        running = await begin(store, tenant.ann)
        waiting = await wait_in_queue(store, tenant.ann, running.conversation_id)
        forged = Held(turn_id=waiting.id, conversation_id=running.conversation_id, attempt=0)
        async with nothing_written(database):
            with pytest.raises(Fenced):
                await store.record(forged, after=1, events=[step("a")])

    async def test_an_attempt_that_was_not_yet_given_is_refused(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = structs.replace(await begin(store, tenant.ann), attempt=2)
        async with nothing_written(database):
            with pytest.raises(TurnkeepError):
                await store.record(held, after=1, events=[step("a")])

    async def test_rows_of_another_turn_are_refused(self, store: Store, tenant: Tenant, database: Database) -> None:
        mine, other = await begin(store, tenant.ann), await begin(store, tenant.bob)
        async with nothing_written(database):
            with pytest.raises(TurnkeepError):
                await store.record(mine, after=1, rows=[a_row(other, 1)], events=[step("a")])

    async def test_one_that_lost_harms_none_of_those_written_with_it(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        stale = [await begin(store, tenant.ann) for _ in range(5)]
        await database.advance(seconds=31)
        await store.adopt("worker-2", lease_seconds=3600)
        fresh = [await begin(store, tenant.ann) for _ in range(15)]
        mixed = [held for trio in zip(*[iter(fresh)] * 3, strict=True) for held in trio] + stale
        mixed = mixed[::2] + mixed[1::2]
        answers = await asyncio.gather(
            *(store.record(held, after=1, rows=[a_row(held, 1)], events=[step("a")]) for held in mixed),
            return_exceptions=True,
        )
        for held, answer in zip(mixed, answers, strict=True):
            if held in stale:
                assert isinstance(answer, LeaseLost)
            else:
                assert answer == Receipt(last_seq=2, cancel_requested=False)
        for held in fresh:
            assert len(await store.turn_rows(held.turn_id)) == 2
        for held in stale:
            assert len(await store.turn_rows(held.turn_id)) == 1
            assert kinds(await store.events(held.turn_id)) == ["turn", "reset"]


class TestALostAnswer:
    async def test_the_same_record_again_is_recognised(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        call = new_call_id()
        rows = [asked_for_tool(held, 1, call)]
        events: list[TurnEvent] = [tool_calls(call), step(call)]
        logs = [LogLine(after_seq=1, level="info", message="once")]
        first = await store.record(held, after=1, rows=rows, events=events, logs=logs)
        async with nothing_written(database):
            assert await store.record(held, after=1, rows=rows, events=events, logs=logs) == first

    async def test_it_is_recognised_after_later_records_too(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        await store.record(held, after=1, events=[step("a")])
        await store.record(held, after=2, events=[step("b"), step("c")])
        async with nothing_written(database):
            assert (await store.record(held, after=1, events=[step("a")])).last_seq == 4

    async def test_rows_without_events_are_recognised_by_their_ids(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        rows = [a_row(held, 1), a_row(held, 2)]
        await store.record(held, after=1, rows=rows)
        async with nothing_written(database):
            assert (await store.record(held, after=1, rows=rows)).last_seq == 1

    async def test_another_event_at_the_same_place_means_two_writers(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        await store.record(held, after=1, events=[step("a")])
        async with nothing_written(database):
            with pytest.raises(Defect):
                await store.record(held, after=1, events=[step("b")], rows=[a_row(held, 1)])
            with pytest.raises(Defect):
                await store.record(held, after=1, events=[step("a"), step("b")])

    async def test_a_gap_is_refused(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        async with nothing_written(database):
            with pytest.raises(Defect):
                await store.record(held, after=2, events=[step("a")])

    async def test_another_row_at_the_same_place_is_refused_whole(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        await store.record(held, after=1, rows=[a_row(held, 1)], events=[step("a")])
        async with nothing_written(database):
            with pytest.raises(Defect):
                await store.record(held, after=2, rows=[a_row(held, 2), a_row(held, 1)], events=[step("b")])
            with pytest.raises(Defect):
                await store.record(held, after=2, rows=[a_row(held, 1)])
        assert (await store.record(held, after=2, events=[step("b")])).last_seq == 3

    async def test_one_bad_record_harms_none_of_those_written_with_it(self, store: Store, tenant: Tenant) -> None:
        helds = [await begin(store, tenant.ann) for _ in range(12)]
        writes = [
            store.record(held, after=1, rows=[a_row(held, 0 if n % 4 == 0 else 1)], events=[step("a")])
            for n, held in enumerate(helds)
        ]
        answers = await asyncio.gather(*writes, return_exceptions=True)
        assert [isinstance(answer, Defect) for answer in answers] == [n % 4 == 0 for n in range(12)]
        assert [isinstance(answer, Receipt) for answer in answers] == [n % 4 != 0 for n in range(12)]


class TestTerminalEvents:
    async def test_they_belong_to_settle(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        [row] = await store.turn_rows(held.turn_id)
        async with nothing_written(database):
            for terminal in (
                Result(message_id=row.id, message="", content=(), usage=Usage()),
                Failure(code="cancelled", message="No."),
            ):
                with pytest.raises(InvalidRequest):
                    await store.record(held, after=1, events=[step("a"), terminal])


class TestManyAtOnce:
    async def test_of_20_different_records_at_one_place_exactly_one_is_written(
        self, store: Store, tenant: Tenant
    ) -> None:
        held = await begin(store, tenant.ann)
        answers = await asyncio.gather(
            *(store.record(held, after=1, events=[step(f"s{n}"), step(f"t{n}")]) for n in range(20)),
            return_exceptions=True,
        )
        assert sum(isinstance(answer, Receipt) for answer in answers) == 1
        assert sum(isinstance(answer, Defect) for answer in answers) == 19
        assert kinds(await store.events(held.turn_id)) == ["turn", "step", "step"]

    async def test_of_20_equal_records_each_is_acknowledged_and_one_written(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        row = a_row(held, 1)
        answers = await asyncio.gather(
            *(store.record(held, after=1, rows=[row], events=[step("a")]) for _ in range(20))
        )
        assert set(answers) == {Receipt(last_seq=2, cancel_requested=False)}
        assert len(await store.turn_rows(held.turn_id)) == 2

    async def test_the_events_of_each_turn_are_gap_free_while_many_write(self, store: Store, tenant: Tenant) -> None:
        async def write(held: Held) -> None:
            for number in range(10):
                receipt = await store.record(
                    held, after=1 + number, rows=[a_row(held, 1 + number)], events=[step(f"s{number}")]
                )
                assert receipt.last_seq == 2 + number

        helds = await asyncio.gather(*(begin(store, tenant.ann) for _ in range(30)))
        await asyncio.gather(*(write(held) for held in helds))
        for held in helds:
            assert kinds(await store.events(held.turn_id)) == ["turn"] + ["step"] * 10
            sequences = [row.turn_sequence for row in await store.turn_rows(held.turn_id)]
            assert sequences == list(range(11))

    async def test_adoption_and_record_at_once_never_mix(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        helds = [await begin(store, tenant.ann) for _ in range(20)]
        await database.advance(seconds=31)
        records = [store.record(held, after=1, rows=[a_row(held, 1)], events=[step("a")]) for held in helds]
        adoptions = [store.adopt("worker-2", lease_seconds=30, turn_id=held.turn_id) for held in helds]
        answers = await asyncio.gather(*records, *adoptions, return_exceptions=True)
        for held, answer in zip(helds, answers[:20], strict=True):
            events = kinds(await store.events(held.turn_id))
            if isinstance(answer, Receipt):
                assert events == ["turn", "step", "reset"]
            else:
                assert isinstance(answer, LeaseLost)
                assert events == ["turn", "reset"]
                assert len(await store.turn_rows(held.turn_id)) == 1


class TestNotes:
    async def test_they_are_merged_into_the_metadata_and_all_are_kept(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann, metadata={"topic": "a", "wire": {"model": "demo"}})
        noted = [{"wire": {"deleted": {str(number): True}}} for number in range(5)]
        await asyncio.gather(*(store.add_notes(tenant.ann, held.turn_id, notes) for notes in (*noted, *noted)))
        await store.settle(held, after=1, settlement=answered(held))
        turn = await store.add_notes(tenant.ann, held.turn_id, {"topic": {"is": "b"}})
        deleted = {str(number): True for number in range(5)}
        assert turn.metadata == {"topic": {"is": "b"}, "wire": {"model": "demo", "deleted": deleted}}
        assert (await store.turn(tenant.ann, held.turn_id)).metadata == turn.metadata
