"""Interruptions: a caller gives up, or the server is restarted. Nothing is lost, doubled or half-written."""

import asyncio
from collections.abc import Awaitable

import pytest

from tests.store.databases import Database
from tests.store.factories import (
    Tenant,
    a_claim,
    a_conversation,
    a_row,
    answered,
    begin,
    elsewhere,
    finish_with_tool,
    kinds,
    step,
    wait_in_queue,
)
from turnkeep.ids import TurnId
from turnkeep.store.commands import Receipt
from turnkeep.store.ports import Store

MOMENTS = [0, 1, 2, 3, 5, 8, 13, 21, 34]
"""Turns of the event loop after which the caller gives up."""


async def give_up(write: Awaitable[object], moment: int) -> None:
    """Cancel the call after that many turns of the event loop. It may have been written, or not."""
    task = asyncio.ensure_future(write)
    for _ in range(moment):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def halves(store: Store, turn_id: TurnId) -> tuple[int, int]:
    """How many events and how many rows the turn has: two reads, between which a write may land."""
    return len(await store.events(turn_id)), len(await store.turn_rows(turn_id))


class TestACallerWhoGivesUp:
    @pytest.mark.parametrize("moment", MOMENTS)
    async def test_may_claim_again(self, store: Store, tenant: Tenant, moment: int) -> None:
        request = a_claim(tenant.ann)
        await give_up(store.claim(request), moment)
        claimed = await store.claim(request)
        assert claimed.held is not None
        assert (await store.usage(tenant.ann)).messages == 1
        assert len((await store.conversations(tenant.ann)).data) == 1

    @pytest.mark.parametrize("moment", MOMENTS)
    async def test_may_record_again(self, store: Store, tenant: Tenant, moment: int) -> None:
        held = await begin(store, tenant.ann)
        row = a_row(held, 1)
        await give_up(store.record(held, after=1, rows=[row], events=[step("a")]), moment)
        again = await store.record(held, after=1, rows=[row], events=[step("a")])
        assert again == Receipt(last_seq=2, cancel_requested=False)
        assert kinds(await store.events(held.turn_id)) == ["turn", "step"]
        assert len(await store.turn_rows(held.turn_id)) == 2

    @pytest.mark.parametrize("moment", MOMENTS)
    async def test_may_settle_again(self, store: Store, tenant: Tenant, moment: int) -> None:
        held = await begin(store, tenant.ann)
        waiting = await wait_in_queue(store, tenant.ann, held.conversation_id)
        settlement = answered(held)
        await give_up(store.settle(held, after=1, settlement=settlement), moment)
        again = await store.settle(held, after=1, settlement=settlement)
        assert again.turn.status == "succeeded"
        assert (await store.turn(tenant.ann, waiting.id)).status == "running"
        assert (await store.conversation(tenant.ann, held.conversation_id)).message_count == 3
        assert (await store.usage(tenant.ann)).input_tokens == 10

    @pytest.mark.parametrize("moment", MOMENTS)
    async def test_may_append_again(self, store: Store, tenant: Tenant, moment: int) -> None:
        conversation = await a_conversation(store, tenant.ann)
        turn = elsewhere(conversation.id)
        await give_up(store.append(tenant.ann, conversation.id, turn), moment)
        assert await store.append(tenant.ann, conversation.id, turn) == 1
        assert (await store.conversation(tenant.ann, conversation.id)).message_count == 2

    async def test_does_not_disturb_the_others(self, store: Store, tenant: Tenant) -> None:
        helds = [await begin(store, tenant.ann) for _ in range(20)]
        rows = [a_row(held, 1) for held in helds]

        def write(number: int) -> Awaitable[object]:
            return store.record(helds[number], after=1, rows=[rows[number]], events=[step("a")])

        async def quit_or_stay(number: int) -> object:
            if number % 2:
                return await write(number)
            await give_up(write(number), number)
            return None

        answers = await asyncio.gather(*(quit_or_stay(number) for number in range(20)))
        assert set(answers[1::2]) == {Receipt(last_seq=2, cancel_requested=False)}
        for number, held in enumerate(helds):
            assert await write(number) == Receipt(last_seq=2, cancel_requested=False)
            assert kinds(await store.events(held.turn_id)) == ["turn", "step"]
            assert len(await store.turn_rows(held.turn_id)) == 2

    @pytest.mark.parametrize("moment", MOMENTS)
    async def test_leaves_a_whole_write_or_none(self, store: Store, tenant: Tenant, moment: int) -> None:
        """The write may still land after its caller left, so both halves are awaited before they are compared."""
        held = await begin(store, tenant.ann)
        await give_up(store.record(held, after=1, rows=[a_row(held, 1)], events=[step("a")]), moment)
        for _ in range(200):
            if await halves(store, held.turn_id) in {(1, 1), (2, 2)}:
                return
            await asyncio.sleep(0.1)
        pytest.fail("half of the write is there, and the other half did not follow")


class TestARestart:
    async def test_everything_that_was_acknowledged_is_there(self, tenant: Tenant, database: Database) -> None:
        turn = await finish_with_tool(database.store, tenant.ann, "needle")
        before = await database.store.export_conversation(tenant.service, turn.conversation_id)
        usage = await database.store.usage(tenant.service)
        await database.reopen()
        assert await database.store.export_conversation(tenant.service, turn.conversation_id) == before
        assert await database.store.usage(tenant.service) == usage
        [hit] = (await database.store.conversations(tenant.ann, query="needle")).data
        assert hit.conversation.id == turn.conversation_id

    async def test_a_turn_that_ran_goes_on(self, tenant: Tenant, database: Database) -> None:
        held = await begin(database.store, tenant.ann)
        await database.store.record(held, after=1, rows=[a_row(held, 1)], events=[step("a")])
        await database.reopen()
        await database.advance(seconds=31)
        [adopted] = await database.store.adopt("worker-2", lease_seconds=30)
        assert (adopted.turn.id, adopted.turn.attempt) == (held.turn_id, 2)
        assert len(await database.store.turn_rows(held.turn_id)) == 2
        settled = await database.store.settle(adopted.held, after=3, settlement=answered(adopted.held, sequence=2))
        assert settled.turn.status == "succeeded"

    async def test_closing_twice_is_fine(self, database: Database) -> None:
        await database.store.close()
        await database.store.close()
