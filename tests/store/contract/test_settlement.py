"""Settling: a turn ends once, with everything that its end means, in one transaction."""

import asyncio
import secrets

import pytest
from msgspec import structs

from tests.store.databases import Database
from tests.store.factories import (
    Tenant,
    a_row,
    answered,
    begin,
    failed,
    final_row,
    finish,
    finish_tool_turn,
    finish_with_tool,
    kinds,
    nothing_written,
    step,
    stopped,
    transcript_of,
    wait_in_queue,
)
from turnkeep.errors import Defect, InvalidRequest, LeaseLost, TurnSettled
from turnkeep.model.turns import TurnError
from turnkeep.store.commands import Settled, TokenBinding
from turnkeep.store.ports import Store
from turnkeep_client.wire.blocks import StepPart, TextPart, Usage
from turnkeep_client.wire.events import Failure, LogLine, Result, Source, Step


class TestAnAnswer:
    async def test_the_turn_has_ended(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        await database.advance(seconds=3)
        usage = Usage(input_tokens=1, output_tokens=2, cache_read_tokens=3, cache_write_tokens=4)
        settled = await store.settle(held, after=1, settlement=answered(held, usage=usage))
        turn = settled.turn
        assert settled.promoted is None
        assert (turn.status, turn.attempt, turn.last_seq, turn.usage) == ("succeeded", 1, 2, usage)
        assert turn.settled_at == database.now
        assert turn.is_settled
        assert turn.error is None
        assert await store.turn(tenant.ann, held.turn_id) == turn

    async def test_the_conversation_moves_on(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        await database.advance(seconds=3)
        await store.settle(held, after=1, settlement=answered(held))
        conversation = await store.conversation(tenant.ann, held.conversation_id)
        assert conversation.head_turn_id == held.turn_id
        assert conversation.running_turn_id is None
        assert (conversation.message_count, conversation.turn_count) == (2, 1)
        assert conversation.updated_at == database.now

    async def test_history_shows_what_the_stream_showed(self, store: Store, tenant: Tenant) -> None:
        turn = await finish_with_tool(store, tenant.ann, "Weather?", "Rain.")
        question, answer = (await store.transcript(tenant.ann, turn.conversation_id)).data
        assert (question.role, answer.role) == ("user", "assistant")
        assert [type(part) for part in answer.content] == [StepPart, TextPart]
        assert answer.status == "succeeded"
        assert answer.usage == Usage(input_tokens=10, output_tokens=5)
        assert question.usage is None
        result = (await store.events(turn.id))[-1].event
        assert isinstance(result, Result)
        assert result.content == answer.content
        assert result.message_id == answer.id
        assert result.message == "Rain."

    async def test_rows_and_events_are_written_before_the_last_one(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        settlement = answered(
            held,
            sequence=2,
            rows=(a_row(held, 1),),
            events=(step("a"), step("a", "succeeded")),
            logs=(LogLine(after_seq=1, level="warn", message="bye"),),
        )
        settled = await store.settle(held, after=1, settlement=settlement)
        assert settled.turn.last_seq == 4
        trace = await store.trace(tenant.service, held.turn_id)
        assert kinds(trace.events) == ["turn", "step", "step", "result"]
        assert [row.turn_sequence for row in trace.rows] == [0, 1, 2]
        assert [row.internal for row in trace.rows] == [False, True, False]
        assert [line.message for line in trace.logs] == ["bye"]

    async def test_the_final_row_keeps_everything(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        settlement = answered(held)
        source = Source(title="T", snippet="S", page_id="p")
        assert settlement.final is not None
        final = structs.replace(settlement.final, sources=(source,), metadata={"m": 1})
        await store.settle(held, after=1, settlement=structs.replace(settlement, final=final))
        stored = (await store.turn_rows(held.turn_id))[-1]
        assert stored == structs.replace(final, display=None), "the display follows from the blocks"
        answer = (await store.transcript(tenant.ann, held.conversation_id)).data[-1]
        assert (answer.sources, answer.content) == ((source,), final.display)

    async def test_a_whole_tool_turn_leaves_four_rows_and_counts_two(self, store: Store, tenant: Tenant) -> None:
        turn = await finish_with_tool(store, tenant.ann)
        rows = await store.turn_rows(turn.id)
        assert [(row.turn_sequence, row.role, row.internal) for row in rows] == [
            (0, "user", False),
            (1, "assistant", True),
            (2, "user", True),
            (3, "assistant", False),
        ]
        assert kinds(await store.events(turn.id)) == ["turn", "tool_calls", "step", "step", "result"]
        assert (await store.conversation(tenant.ann, turn.conversation_id)).message_count == 2

    async def test_its_one_time_tokens_end_with_it(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        token = secrets.token_bytes(32)
        binding = TokenBinding(purpose="run", turn_id=held.turn_id, attempt=1)
        await store.add_token(token, binding, expires_in_seconds=600)
        await store.settle(held, after=1, settlement=answered(held))
        assert await store.spend_token(token, "run") is None

    async def test_a_turn_from_the_queue_ends_like_any_other(self, store: Store, tenant: Tenant) -> None:
        first = await begin(store, tenant.ann)
        await wait_in_queue(store, tenant.ann, first.conversation_id)
        await store.settle(first, after=1, settlement=answered(first))
        [adopted] = await store.adopt("worker-2", lease_seconds=30)
        settled = await finish_tool_turn(store, adopted.held, after=2)
        assert settled.turn.parent_turn_id == first.turn_id


class TestNoAnswer:
    async def test_a_failure_says_why(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        settled = await store.settle(held, after=1, settlement=failed(held, code="provider_failed"))
        assert settled.turn.status == "failed"
        assert settled.turn.error == TurnError(code="provider_failed", message="It ended: provider_failed.")
        event = (await store.events(held.turn_id))[-1].event
        assert event == Failure(code="provider_failed", message="It ended: provider_failed.")
        conversation = await store.conversation(tenant.ann, held.conversation_id)
        assert (conversation.message_count, conversation.turn_count) == (1, 1)
        assert conversation.head_turn_id == held.turn_id
        [message] = (await store.transcript(tenant.ann, held.conversation_id)).data
        assert message.status == "failed"

    async def test_a_stop_keeps_the_partial_text_and_closes_the_open_step(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        await store.record(held, after=1, events=[step("a")])
        settlement = stopped(held, "So far", events=(step("a", "failed", error="stopped"),))
        await store.settle(held, after=2, settlement=settlement)
        *_, closed, last = [recorded.event for recorded in await store.events(held.turn_id)]
        assert isinstance(closed, Step)
        assert closed.status == "failed"
        assert isinstance(last, Failure)
        answer = (await store.transcript(tenant.ann, held.conversation_id)).data[-1]
        assert (answer.id, answer.status) == (last.message_id, "cancelled")
        assert await transcript_of(store, tenant.ann, held.conversation_id) == [
            "user: Hello",
            "assistant: So far",
        ]

    async def test_tokens_are_counted_all_the_same(self, store: Store, tenant: Tenant) -> None:
        for how in (failed, stopped):
            held = await begin(store, tenant.ann)
            usage = Usage(input_tokens=7, output_tokens=1)
            await store.settle(held, after=1, settlement=how(held, usage=usage))
        usage_now = await store.usage(tenant.ann)
        assert (usage_now.input_tokens, usage_now.output_tokens) == (14, 2)


class TestOnce:
    async def test_a_second_end_is_refused(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        await store.settle(held, after=1, settlement=answered(held, "One"))
        async with nothing_written(database):
            for settlement in (answered(held, "Two"), failed(held), stopped(held, "Two")):
                for after in (1, 2):
                    with pytest.raises(TurnSettled):
                        await store.settle(held, after=after, settlement=settlement)

    async def test_the_same_end_again_is_recognised(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        await wait_in_queue(store, tenant.ann, held.conversation_id)
        settlement = answered(held, rows=(a_row(held, 1),), events=(step("a"),), sequence=2)
        first = await store.settle(held, after=1, settlement=settlement)
        async with nothing_written(database):
            again = await store.settle(held, after=1, settlement=settlement)
        assert again.turn == first.turn
        assert again.promoted in {first.promoted, None}

    async def test_it_is_recognised_after_the_next_turn_ended_too(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        settlement = answered(held)
        first = await store.settle(held, after=1, settlement=settlement)
        await finish(store, tenant.ann, conversation_id=held.conversation_id)
        async with nothing_written(database):
            assert (await store.settle(held, after=1, settlement=settlement)).turn == first.turn

    async def test_of_20_different_ends_at_once_exactly_one_counts(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        answers = await asyncio.gather(
            *(store.settle(held, after=1, settlement=answered(held, f"Answer {n}")) for n in range(20)),
            return_exceptions=True,
        )
        assert sum(isinstance(answer, Settled) for answer in answers) == 1
        assert sum(isinstance(answer, TurnSettled) for answer in answers) == 19
        assert kinds(await store.events(held.turn_id)) == ["turn", "result"]
        assert (await store.conversation(tenant.ann, held.conversation_id)).message_count == 2
        assert (await store.usage(tenant.ann)).input_tokens == 10

    async def test_of_20_equal_ends_at_once_each_is_acknowledged_and_one_counts(
        self, store: Store, tenant: Tenant
    ) -> None:
        held = await begin(store, tenant.ann)
        settlement = answered(held)
        answers = await asyncio.gather(*(store.settle(held, after=1, settlement=settlement) for _ in range(20)))
        assert {answer.turn.status for answer in answers} == {"succeeded"}
        assert (await store.conversation(tenant.ann, held.conversation_id)).message_count == 2
        assert (await store.usage(tenant.ann)).input_tokens == 10

    async def test_an_end_and_an_adoption_at_once_never_mix(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        helds = [await begin(store, tenant.ann) for _ in range(20)]
        await database.advance(seconds=31)
        ends = [store.settle(held, after=1, settlement=answered(held)) for held in helds]
        adoptions = [store.adopt("worker-2", lease_seconds=30, turn_id=held.turn_id) for held in helds]
        answers = await asyncio.gather(*ends, *adoptions, return_exceptions=True)
        for held, answer in zip(helds, answers[:20], strict=True):
            events = kinds(await store.events(held.turn_id))
            if isinstance(answer, Settled):
                assert events == ["turn", "result"]
            else:
                assert isinstance(answer, LeaseLost)
                assert events == ["turn", "reset"]


class TestRefusals:
    async def test_two_writers_for_one_turn(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        await store.record(held, after=1, events=[step("a")])
        async with nothing_written(database):
            for after in (1, 3):
                with pytest.raises(Defect):
                    await store.settle(held, after=after, settlement=answered(held))

    async def test_a_row_that_is_there_already(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        async with nothing_written(database):
            with pytest.raises(Defect):
                await store.settle(held, after=1, settlement=answered(held, sequence=0))
        assert (await store.settle(held, after=1, settlement=answered(held))).turn.status == "succeeded"

    async def test_an_end_that_contradicts_itself(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        good = answered(held)
        wrong = [
            structs.replace(good, status="failed"),
            structs.replace(good, final=None),
            structs.replace(failed(held), status="succeeded"),
            structs.replace(good, final=final_row(held, 1, "Hi!", internal=True)),
            structs.replace(good, final=final_row(held, 1, "Hi!", role="user")),
            structs.replace(good, final=final_row(held, 1, "Hi!", display=None)),
            structs.replace(good, events=(good.terminal,)),
        ]
        async with nothing_written(database):
            for settlement in wrong:
                with pytest.raises(InvalidRequest):
                    await store.settle(held, after=1, settlement=settlement)
