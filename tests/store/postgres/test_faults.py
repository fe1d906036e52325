"""When PostgreSQL goes away: nothing that was acknowledged is lost, and nothing is there twice."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import asyncpg
import pytest

from tests.servers import PostgresServer, create_database
from tests.store.databases import CLIENT_PASSWORD
from tests.store.factories import (
    Tenant,
    a_claim,
    a_conversation,
    a_file,
    a_row,
    a_tenant,
    answered,
    begin,
    elsewhere,
    finish,
    kinds,
    step,
)
from tests.store.postgres.proxy import CuttingProxy
from turnkeep.errors import Unavailable
from turnkeep.ids import TurnId, new_call_id, new_file_id
from turnkeep.model.agents import AgentSpec
from turnkeep.model.files import NewFile
from turnkeep.store.commands import NewConversation
from turnkeep.store.postgres import PostgresStore
from turnkeep_client.wire.blocks import Usage
from turnkeep_client.wire.events import LogLine

WRITERS = 16


@pytest.fixture
async def proxy(uri: str) -> AsyncIterator[CuttingProxy]:
    async with CuttingProxy(uri) as opened:
        yield opened


@pytest.fixture
async def cut_store(proxy: CuttingProxy) -> AsyncIterator[PostgresStore]:
    """A store behind the proxy, on one connection, so that the answer that is lost is the one that is meant."""
    opened = await PostgresStore.open(proxy.uri, client_password=CLIENT_PASSWORD, pool_size=1)
    yield opened
    await opened.close()


class TestALostAnswer:
    """Each verb runs once, so that its statement is known, and then again with its answer cut off after the commit."""

    async def test_of_a_claim(self, cut_store: PostgresStore, proxy: CuttingProxy) -> None:
        tenant = await a_tenant(cut_store)
        await cut_store.claim(a_claim(tenant.ann))
        claimed = await cut(proxy, lambda: cut_store.claim(a_claim(tenant.ann, idempotency_key="k", request_hash="h")))
        assert claimed.held is not None
        assert kinds(await cut_store.events(claimed.turn.id)) == ["turn"]
        assert (await cut_store.usage(tenant.ann)).messages == 2

    async def test_of_a_record(self, cut_store: PostgresStore, proxy: CuttingProxy) -> None:
        tenant = await a_tenant(cut_store)
        held = await begin(cut_store, tenant.ann)
        await cut_store.record(held, after=1, rows=[a_row(held, 1)], events=[step("a")])
        row = a_row(held, 2)
        receipt = await cut(
            proxy, lambda: cut_store.record(held, after=2, rows=[row], events=[step("a"), step("a", "succeeded")])
        )
        assert receipt.last_seq == 4
        assert kinds(await cut_store.events(held.turn_id)) == ["turn", "step", "step", "step"]
        assert [each.turn_sequence for each in await cut_store.turn_rows(held.turn_id)] == [0, 1, 2]

    async def test_of_rows_and_of_logs_without_events(self, cut_store: PostgresStore, proxy: CuttingProxy) -> None:
        tenant = await a_tenant(cut_store)
        held = await begin(cut_store, tenant.ann)
        await cut_store.record(held, after=1, rows=[a_row(held, 1)])
        row, line = a_row(held, 2), LogLine(after_seq=1, level="info", message="working", ts=5)
        await cut(proxy, lambda: cut_store.record(held, after=1, rows=[row]))
        await cut(proxy, lambda: cut_store.record(held, after=1, logs=[line]))
        trace = await cut_store.trace(tenant.service, held.turn_id)
        assert [each.turn_sequence for each in trace.rows] == [0, 1, 2]
        assert trace.logs == (line,)

    async def test_of_a_settlement(self, cut_store: PostgresStore, proxy: CuttingProxy) -> None:
        tenant = await a_tenant(cut_store)
        await finish(cut_store, tenant.ann)
        held = await begin(cut_store, tenant.ann)
        settlement = answered(held)
        settled = await cut(proxy, lambda: cut_store.settle(held, after=1, settlement=settlement))
        assert settled.turn.status == "succeeded"
        assert kinds(await cut_store.events(held.turn_id)) == ["turn", "result"]
        assert (await cut_store.conversation(tenant.ann, held.conversation_id)).message_count == 2
        assert (await cut_store.usage(tenant.ann)).output_tokens == 2 * settlement.usage.output_tokens

    async def test_of_a_count_of_tokens(self, cut_store: PostgresStore, proxy: CuttingProxy) -> None:
        tenant = await a_tenant(cut_store)
        held, spent = await begin(cut_store, tenant.ann), Usage(input_tokens=7)
        count = partial(cut_store.count_usage, held.turn_id, held.attempt, spent)
        await count(call_id=new_call_id())
        call_id = new_call_id()
        assert await cut(proxy, lambda: count(call_id=call_id))
        turn = await cut_store.running_turn(held.turn_id, held.attempt)
        assert turn is not None
        assert turn.usage.input_tokens == 14

    async def test_of_an_append(self, cut_store: PostgresStore, proxy: CuttingProxy) -> None:
        tenant = await a_tenant(cut_store)
        conversation = await a_conversation(cut_store, tenant.ann)
        await cut_store.append(tenant.ann, conversation.id, elsewhere(conversation.id))
        turn = elsewhere(conversation.id)
        assert await cut(proxy, lambda: cut_store.append(tenant.ann, conversation.id, turn)) == 2
        assert (await cut_store.conversation(tenant.ann, conversation.id)).turn_count == 2

    @pytest.mark.parametrize("verb", ["conversation", "org", "workspace", "agent", "member", "file", "import"])
    async def test_of_something_new(self, cut_store: PostgresStore, proxy: CuttingProxy, verb: str, uri: str) -> None:
        tenant = await a_tenant(cut_store)
        turn = await finish(cut_store, tenant.ann)
        exported = await cut_store.export_conversation(tenant.service, turn.conversation_id)
        file_id = new_file_id()

        def make(again: bool) -> Awaitable[Any]:
            store = cut_store
            match verb:
                case "conversation":
                    return store.create_conversation(tenant.ann, NewConversation(title="New"))
                case "org":
                    return store.create_org("New")
                case "workspace":
                    return store.create_workspace(tenant.org.id, "New")
                case "agent":
                    return store.create_agent(tenant.service, AgentSpec(name=f"new {again}"))
                case "member":
                    return store.ensure_member(tenant.org.id, tenant.workspace.id, f"new {again}")
                case "file":
                    id_ = file_id if again else new_file_id()
                    new = NewFile(
                        id=id_,
                        conversation_id=turn.conversation_id,
                        name="a.txt",
                        mime_type="text/plain",
                        size=1,
                        storage_key=id_,
                    )
                    return store.add_files(tenant.ann, [new])
                case _:
                    return store.import_conversation(tenant.ann, exported)

        table = {"import": "conversation"}.get(verb, verb) + "s"
        await make(False)
        before = await count(uri, table)
        await cut(proxy, lambda: make(True))
        assert await count(uri, table) == before + 1

    async def test_of_a_purge_forgets_no_object(self, cut_store: PostgresStore, proxy: CuttingProxy) -> None:
        tenant = await a_tenant(cut_store)
        await cut_store.purge(deleted_before=0)
        turn = await finish(cut_store, tenant.ann)
        file = await a_file(cut_store, tenant.ann, conversation_id=turn.conversation_id)
        await cut_store.delete_conversation(tenant.ann, turn.conversation_id)
        purged = await cut(proxy, lambda: cut_store.purge(deleted_before=2**60), after_answers=2)
        assert (purged.conversations, purged.storage_keys) == (1, (file.storage_key,))
        assert (await cut_store.purge(deleted_before=2**60)).conversations == 0

    async def test_of_a_read_is_read_again(self, cut_store: PostgresStore, proxy: CuttingProxy) -> None:
        tenant = await a_tenant(cut_store)
        turn = await finish(cut_store, tenant.ann)
        await cut_store.transcript(tenant.ann, turn.conversation_id)
        page = await cut(proxy, lambda: cut_store.transcript(tenant.ann, turn.conversation_id))
        assert len(page.data) == 2


class TestACancelledCaller:
    async def test_does_not_stop_a_write_that_has_begun(self, uri: str, store: PostgresStore, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        conversation = await a_conversation(store, tenant.ann)
        writes: list[Awaitable[Any]] = [
            store.record(held, after=1, events=[step("a")]),
            store.append(tenant.ann, conversation.id, elsewhere(conversation.id)),
            store.create_org("Begun"),
        ]
        tasks = [asyncio.ensure_future(write) for write in writes]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() for task in tasks)
        await store.close()
        again = await PostgresStore.open(uri, client_password=CLIENT_PASSWORD)
        assert kinds(await again.events(held.turn_id)) == ["turn", "step"]
        assert (await again.conversation(tenant.ann, conversation.id)).turn_count == 1
        assert "Begun" in {org.name for org in await again.orgs()}
        await again.close()


class TestADatabaseThatIsAway:
    async def test_is_an_error_of_ours_after_the_deadline(self) -> None:
        with PostgresServer() as server:
            server.start()
            store = await PostgresStore.open(server.uri(), retry_seconds=2.0)
            tenant = await a_tenant(store)
            turn = await finish(store, tenant.ann)
            server.stop("immediate")
            began = time.monotonic()
            for read in (store.transcript(tenant.ann, turn.conversation_id), store.orgs()):
                with pytest.raises(Unavailable):
                    await read
            with pytest.raises(Unavailable, match="may have happened or not: look before you send it again"):
                await store.claim(a_claim(tenant.ann))
            assert time.monotonic() - began < 30
            server.start()
            assert (await store.claim(a_claim(tenant.ann))).is_new
            await store.close()

    async def test_stopped_at_once_while_sixteen_write_loses_and_doubles_nothing(self) -> None:
        with PostgresServer() as server:
            server.start()
            store = await PostgresStore.open(await create_database(server.uri(), "faults"), retry_seconds=15)
            tenant = await a_tenant(store)
            conversations = [await a_conversation(store, tenant.ann) for _ in range(WRITERS)]
            acknowledged: list[list[TurnId]] = [[] for _ in range(WRITERS)]
            ends = asyncio.Event()

            async def write(n: int) -> None:
                conversation_id = conversations[n].id
                while not ends.is_set():
                    if n % 2:
                        turn = elsewhere(conversation_id)
                        await store.append(tenant.ann, conversation_id, turn)
                        acknowledged[n].append(turn.turn_id)
                    else:
                        held = await begin(store, tenant.ann, conversation_id=conversation_id)
                        await store.record(held, after=1, rows=[a_row(held, 1)], events=[step("a")])
                        await store.settle(held, after=2, settlement=answered(held, sequence=2))
                        acknowledged[n].append(held.turn_id)

            writers = [asyncio.create_task(write(n)) for n in range(WRITERS)]
            recovered = []
            for _ in range(2):
                await asyncio.sleep(0.5)
                await asyncio.to_thread(server.stop, "immediate")
                await asyncio.to_thread(server.start)
                recovered.append(await until_each_has_written(acknowledged))
            ends.set()
            await asyncio.gather(*writers)
            await check_all_there_once(store, tenant, [each.id for each in conversations], acknowledged)
            await store.close()
            assert max(recovered) < 15, "nobody waits longer than the store tries"


async def until_each_has_written(acknowledged: list[list[TurnId]]) -> float:
    """How long it takes until every writer has been answered once more."""
    began = time.monotonic()
    before = [len(each) for each in acknowledged]
    while any(len(now) == then for now, then in zip(acknowledged, before, strict=True)):
        await asyncio.sleep(0.02)
        assert time.monotonic() - began < 30
    return time.monotonic() - began


async def check_all_there_once(
    store: PostgresStore, tenant: Tenant, conversations: list[Any], acknowledged: list[list[TurnId]]
) -> None:
    for conversation_id, written in zip(conversations, acknowledged, strict=True):
        exported = await store.export_conversation(tenant.service, conversation_id)
        stored = [trace.turn.id for trace in exported.turns]
        assert stored == written
        assert [trace.turn.ordinal for trace in exported.turns] == list(range(1, len(stored) + 1))
        assert exported.conversation.turn_count == len(stored)
        assert exported.conversation.message_count == 2 * len(stored)
        assert all(trace.turn.status == "succeeded" for trace in exported.turns)


async def cut(proxy: CuttingProxy, call: Callable[[], Awaitable[Any]], *, after_answers: int = 0) -> Any:
    before = proxy.cuts
    proxy.cut_next_answer(after_answers)
    answer = await call()
    assert proxy.cuts == before + 1
    return answer


async def count(uri: str, table: str) -> int:
    connection = await asyncpg.connect(uri)
    try:
        found: int = await connection.fetchval(f"SELECT count(*) FROM turnkeep.{table}")
        return found
    finally:
        await connection.close()
