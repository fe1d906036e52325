"""Usage by group: what turns have used, by user, agent, model, day and source, also after they are gone."""

import pytest
from msgspec import structs

from tests.store.databases import Database
from tests.store.factories import (
    Tenant,
    a_tenant,
    answered,
    begin,
    elsewhere,
    failed,
    finish,
    stopped,
    wait_in_queue,
)
from turnkeep.errors import InvalidRequest
from turnkeep.ids import new_agent_id
from turnkeep.model.agents import Snapshot
from turnkeep.store.commands import NewConversation
from turnkeep.store.ports import Store
from turnkeep_client.wire.account import UsageRow
from turnkeep_client.wire.blocks import Usage

JUNE = "2025-06"
USAGE = Usage(input_tokens=10, output_tokens=5, cache_read_tokens=4, cache_write_tokens=2)


def row(group: str | None, messages: int, *, times: int | None = None, cost: float | None = None) -> UsageRow:
    """What `messages` turns have used; `times` of them have ended, with `USAGE` each."""
    ended = messages if times is None else times
    return UsageRow(
        group=group,
        messages=messages,
        input_tokens=10 * ended,
        output_tokens=5 * ended,
        cache_read_tokens=4 * ended,
        cache_write_tokens=2 * ended,
        cost=cost,
        unpriced_messages=ended if cost is None else 0,
    )


async def use(store: Store, by: object, *, cost: float | None = None, how: object = answered, **fields: object) -> None:
    held = await begin(store, by, **fields)  # type: ignore[arg-type]
    settlement = structs.replace(how(held), usage=USAGE, cost=cost)  # type: ignore[operator]
    await store.settle(held, after=1, settlement=settlement)


class TestGroups:
    async def test_by_user_source_and_model(self, store: Store, tenant: Tenant) -> None:
        await use(store, tenant.ann, source="ui", model="m/1")
        await use(store, tenant.ann, source="api", model="m/2")
        await use(store, tenant.bob, source="ui", model="m/1")
        await use(store, tenant.service)
        rows = await store.usage_rows(tenant.service, month=JUNE, group_by="user")
        assert rows[0] == row(tenant.ann.user_id, 2)
        assert {each.group: each for each in rows} == {
            tenant.ann.user_id: row(tenant.ann.user_id, 2),
            tenant.bob.user_id: row(tenant.bob.user_id, 1),
            None: row(None, 1),
        }
        assert await store.usage_rows(tenant.service, month=JUNE, group_by="source") == [row("api", 2), row("ui", 2)]
        models = {
            each.group: each.messages for each in await store.usage_rows(tenant.service, month=JUNE, group_by="model")
        }
        assert models == {"m/1": 2, "m/2": 1, None: 1}

    async def test_by_agent_and_of_one_agent(self, store: Store, tenant: Tenant) -> None:
        agent_id = new_agent_id()
        await use(store, tenant.ann, snapshot=Snapshot(agent_id=agent_id))
        await use(store, tenant.ann)
        rows = await store.usage_rows(tenant.service, month=JUNE, group_by="agent")
        assert {each.group: each.messages for each in rows} == {agent_id: 1, None: 1}
        assert await store.usage_rows(tenant.service, month=JUNE, group_by="user", agent_id=agent_id) == [
            row(tenant.ann.user_id, 1)
        ]

    async def test_by_day_of_the_question(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        await database.advance(seconds=86_400)
        await store.settle(held, after=1, settlement=structs.replace(answered(held), usage=USAGE))
        await use(store, tenant.ann)
        rows = await store.usage_rows(tenant.service, month=JUNE, group_by="day")
        assert rows == [row("2025-06-15", 1), row("2025-06-16", 1)]
        await database.advance(seconds=31 * 86_400)
        assert await store.usage_rows(tenant.service, month="2025-07", group_by="day") == []

    async def test_of_one_user_and_of_members_themselves(self, store: Store, tenant: Tenant) -> None:
        await use(store, tenant.ann)
        await use(store, tenant.bob)
        of_ann = [row(tenant.ann.user_id, 1)]
        by_user = {"month": JUNE, "group_by": "user"}
        assert await store.usage_rows(tenant.service, user_id=tenant.ann.user_id, **by_user) == of_ann  # type: ignore[arg-type]
        assert await store.usage_rows(tenant.ann, **by_user) == of_ann  # type: ignore[arg-type]
        assert await store.usage_rows(tenant.ann, user_id=tenant.bob.user_id, **by_user) == of_ann  # type: ignore[arg-type]

    async def test_tenants_do_not_share_it(self, store: Store, tenant: Tenant) -> None:
        await use(store, tenant.ann)
        stranger = await a_tenant(store, "Other")
        assert await store.usage_rows(stranger.service, month=JUNE, group_by="user") == []

    @pytest.mark.parametrize("month", ["2025", "2025-13", "' OR 1"])
    async def test_a_month_is_a_month(self, store: Store, tenant: Tenant, month: str) -> None:
        with pytest.raises(InvalidRequest):
            await store.usage_rows(tenant.service, month=month, group_by="user")


class TestWhatCounts:
    async def test_turns_that_were_stopped_or_failed(self, store: Store, tenant: Tenant) -> None:
        await use(store, tenant.ann, how=stopped)
        await use(store, tenant.ann, how=failed)
        assert await store.usage_rows(tenant.ann, month=JUNE, group_by="source") == [row("api", 2)]

    async def test_turns_that_run_or_wait_but_not_one_that_never_started(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        waiting = await wait_in_queue(store, tenant.ann, held.conversation_id)
        assert await store.usage_rows(tenant.ann, month=JUNE, group_by="source") == [row("api", 2, times=0)]
        await store.request_cancel(tenant.ann, waiting.id)
        assert await store.usage_rows(tenant.ann, month=JUNE, group_by="source") == [row("api", 1, times=0)]
        assert (await store.usage(tenant.ann)).messages == 1

    async def test_not_what_happened_elsewhere(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann)
        await store.append(tenant.ann, turn.conversation_id, elsewhere(turn.conversation_id))
        [counted] = await store.usage_rows(tenant.ann, month=JUNE, group_by="source")
        assert counted.messages == 1

    async def test_turns_that_were_purged(self, store: Store, tenant: Tenant, database: Database) -> None:
        await use(store, tenant.ann, new=NewConversation(title="Gone"))
        [hit] = (await store.conversations(tenant.ann)).data
        await store.delete_conversation(tenant.ann, hit.conversation.id)
        await store.purge(deleted_before=database.now + 1)
        assert await store.usage_rows(tenant.ann, month=JUNE, group_by="source") == [row("api", 1)]

    async def test_costs_of_those_that_have_a_price(self, store: Store, tenant: Tenant) -> None:
        await use(store, tenant.ann, model="priced", cost=0.25)
        await use(store, tenant.ann, model="priced", cost=0.5)
        await use(store, tenant.ann, model="free to guess")
        rows = {each.group: each for each in await store.usage_rows(tenant.ann, month=JUNE, group_by="model")}
        assert rows["priced"] == row("priced", 2, cost=0.75)
        assert (rows["free to guess"].cost, rows["free to guess"].unpriced_messages) == (None, 1)
        [both] = await store.usage_rows(tenant.ann, month=JUNE, group_by="source")
        assert (both.cost, both.unpriced_messages) == (0.75, 1)
