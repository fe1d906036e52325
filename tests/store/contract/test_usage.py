"""Usage by group: what turns have used, by user, agent, model, day and source, also after they are gone."""

import pytest
from msgspec import structs

from tests.store.databases import Database
from tests.store.factories import (
    Tenant,
    a_key,
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
from turnkeep.store.commands import NewConversation, UsageFilter
from turnkeep.store.ports import Store
from turnkeep_client.wire.account import LimitUse, UsageRow
from turnkeep_client.wire.blocks import Usage

JUNE = "2025-06"
IN_JUNE = UsageFilter(month=JUNE)
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
        rows = await store.usage_rows(tenant.service, IN_JUNE, group_by="user")
        assert rows[0] == row(tenant.ann.user_id, 2)
        assert {each.group: each for each in rows} == {
            tenant.ann.user_id: row(tenant.ann.user_id, 2),
            tenant.bob.user_id: row(tenant.bob.user_id, 1),
            None: row(None, 1),
        }
        assert await store.usage_rows(tenant.service, IN_JUNE, group_by="source") == [row("api", 2), row("ui", 2)]
        models = {
            each.group: each.messages for each in await store.usage_rows(tenant.service, IN_JUNE, group_by="model")
        }
        assert models == {"m/1": 2, "m/2": 1, None: 1}

    async def test_by_agent_and_of_one_agent(self, store: Store, tenant: Tenant) -> None:
        agent_id = new_agent_id()
        await use(store, tenant.ann, snapshot=Snapshot(agent_id=agent_id))
        await use(store, tenant.ann)
        rows = await store.usage_rows(tenant.service, IN_JUNE, group_by="agent")
        assert {each.group: each.messages for each in rows} == {agent_id: 1, None: 1}
        assert await store.usage_rows(tenant.service, UsageFilter(month=JUNE, agent_id=agent_id), group_by="user") == [
            row(tenant.ann.user_id, 1)
        ]

    async def test_by_day_of_the_question(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        await database.advance(seconds=86_400)
        await store.settle(held, after=1, settlement=structs.replace(answered(held), usage=USAGE))
        await use(store, tenant.ann)
        rows = await store.usage_rows(tenant.service, IN_JUNE, group_by="day")
        assert rows == [row("2025-06-15", 1), row("2025-06-16", 1)]
        await database.advance(seconds=31 * 86_400)
        assert await store.usage_rows(tenant.service, UsageFilter(month="2025-07"), group_by="day") == []

    async def test_of_one_user_and_of_members_themselves(self, store: Store, tenant: Tenant) -> None:
        await use(store, tenant.ann)
        await use(store, tenant.bob)
        of_ann = [row(tenant.ann.user_id, 1)]
        only_ann, only_bob = (UsageFilter(month=JUNE, user_id=each.user_id) for each in (tenant.ann, tenant.bob))
        assert await store.usage_rows(tenant.service, only_ann, group_by="user") == of_ann
        assert await store.usage_rows(tenant.ann, IN_JUNE, group_by="user") == of_ann
        assert await store.usage_rows(tenant.ann, only_bob, group_by="user") == of_ann

    async def test_tenants_do_not_share_it(self, store: Store, tenant: Tenant) -> None:
        await use(store, tenant.ann)
        stranger = await a_tenant(store, "Other")
        assert await store.usage_rows(stranger.service, IN_JUNE, group_by="user") == []

    @pytest.mark.parametrize("month", ["2025", "2025-13", "' OR 1"])
    async def test_a_month_is_a_month(self, store: Store, tenant: Tenant, month: str) -> None:
        with pytest.raises(InvalidRequest):
            await store.usage_rows(tenant.service, UsageFilter(month=month), group_by="user")


class TestWhatCounts:
    async def test_turns_that_were_stopped_or_failed(self, store: Store, tenant: Tenant) -> None:
        await use(store, tenant.ann, how=stopped)
        await use(store, tenant.ann, how=failed)
        assert await store.usage_rows(tenant.ann, IN_JUNE, group_by="source") == [row("api", 2)]

    async def test_turns_that_run_or_wait_but_not_one_that_never_started(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        waiting = await wait_in_queue(store, tenant.ann, held.conversation_id)
        assert await store.usage_rows(tenant.ann, IN_JUNE, group_by="source") == [row("api", 2, times=0)]
        await store.request_cancel(tenant.ann, waiting.id)
        assert await store.usage_rows(tenant.ann, IN_JUNE, group_by="source") == [row("api", 1, times=0)]
        assert (await store.usage(tenant.ann)).messages == 1

    async def test_not_what_happened_elsewhere(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann)
        await store.append(tenant.ann, turn.conversation_id, elsewhere(turn.conversation_id))
        [counted] = await store.usage_rows(tenant.ann, IN_JUNE, group_by="source")
        assert counted.messages == 1

    async def test_turns_that_were_purged(self, store: Store, tenant: Tenant, database: Database) -> None:
        await use(store, tenant.ann, new=NewConversation(title="Gone"))
        [hit] = (await store.conversations(tenant.ann)).data
        await store.delete_conversation(tenant.ann, hit.conversation.id)
        await store.purge(deleted_before=database.now + 1)
        assert await store.usage_rows(tenant.ann, IN_JUNE, group_by="source") == [row("api", 1)]

    async def test_costs_of_those_that_have_a_price(self, store: Store, tenant: Tenant) -> None:
        await use(store, tenant.ann, model="priced", cost=0.25)
        await use(store, tenant.ann, model="priced", cost=0.5)
        await use(store, tenant.ann, model="free to guess")
        rows = {each.group: each for each in await store.usage_rows(tenant.ann, IN_JUNE, group_by="model")}
        assert rows["priced"] == row("priced", 2, cost=0.75)
        assert (rows["free to guess"].cost, rows["free to guess"].unpriced_messages) == (None, 1)
        [both] = await store.usage_rows(tenant.ann, IN_JUNE, group_by="source")
        assert (both.cost, both.unpriced_messages) == (0.75, 1)


class TestTurns:
    async def test_are_listed_newest_first_with_what_each_has_used(self, store: Store, tenant: Tenant) -> None:
        await use(store, tenant.ann, model="m/1", cost=0.25)
        await use(store, tenant.bob, model="m/2", how=failed)
        held = await begin(store, tenant.ann, model="m/1")
        page = await store.usage_turns(tenant.service, IN_JUNE)
        assert [(turn.user_id, turn.model, turn.status, turn.cost) for turn in page.data] == [
            (tenant.ann.user_id, "m/1", "running", None),
            (tenant.bob.user_id, "m/2", "failed", None),
            (tenant.ann.user_id, "m/1", "succeeded", 0.25),
        ]
        assert page.data[0].id == held.turn_id
        ended = page.data[-1]
        assert (ended.input_tokens, ended.output_tokens, ended.cache_read_tokens) == (10, 5, 4)
        assert ended.settled_at is not None

    async def test_are_narrowed_by_user_agent_model_and_day(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        agent_id = new_agent_id()
        await use(store, tenant.ann, model="m/1", snapshot=Snapshot(agent_id=agent_id))
        await database.advance(seconds=86_400)
        await use(store, tenant.bob, model="m/2")

        async def models(**only: object) -> list[str | None]:
            filtered = structs.replace(IN_JUNE, **only)
            return [turn.model for turn in (await store.usage_turns(tenant.service, filtered)).data]

        assert await models() == ["m/2", "m/1"]
        assert await models(user_id=tenant.bob.user_id) == ["m/2"]
        assert await models(agent_id=agent_id) == ["m/1"]
        assert await models(model="m/1") == ["m/1"]
        assert await models(day="2025-06-16") == ["m/2"]
        assert await models(month="2025-05") == []
        with pytest.raises(InvalidRequest):
            await models(day="2025-07-01")

    async def test_come_in_pages(self, store: Store, tenant: Tenant) -> None:
        for _ in range(3):
            await use(store, tenant.ann)
        whole = (await store.usage_turns(tenant.ann, IN_JUNE)).data
        first = await store.usage_turns(tenant.ann, IN_JUNE, limit=2)
        rest = await store.usage_turns(tenant.ann, IN_JUNE, limit=2, cursor=first.next_cursor)
        assert (*first.data, *rest.data) == whole
        assert (len(first.data), rest.next_cursor) == (2, None)
        with pytest.raises(InvalidRequest):
            await store.usage_turns(tenant.ann, UsageFilter(month="2025-05"), cursor=first.next_cursor)

    async def test_are_those_of_a_member_alone_and_of_one_tenant(self, store: Store, tenant: Tenant) -> None:
        await use(store, tenant.ann)
        only_ann = UsageFilter(month=JUNE, user_id=tenant.ann.user_id)
        assert (await store.usage_turns(tenant.bob, only_ann)).data == ()
        stranger = await a_tenant(store, "Other")
        assert (await store.usage_turns(stranger.service, IN_JUNE)).data == ()

    async def test_are_only_those_that_count_and_whose_conversation_is_there(
        self, store: Store, tenant: Tenant
    ) -> None:
        turn = await finish(store, tenant.ann)
        await store.append(tenant.ann, turn.conversation_id, elsewhere(turn.conversation_id))
        held = await begin(store, tenant.ann)
        waiting = await wait_in_queue(store, tenant.ann, held.conversation_id)
        await store.request_cancel(tenant.ann, waiting.id)
        listed = (await store.usage_turns(tenant.service, IN_JUNE)).data
        assert [each.id for each in listed] == [held.turn_id, turn.id]
        await store.delete_conversation(tenant.ann, turn.conversation_id)
        assert [each.id for each in (await store.usage_turns(tenant.service, IN_JUNE)).data] == [held.turn_id]


class TestLimits:
    async def test_say_how_much_is_used_of_each_that_is_set(self, store: Store, tenant: Tenant) -> None:
        await use(store, tenant.ann, cost=0.25)
        await use(store, tenant.bob, cost=0.5)
        await begin(store, tenant.ann)
        await store.change_workspace(
            tenant.org.id,
            tenant.workspace.id,
            lambda before: structs.replace(
                before, monthly_token_limit=100, monthly_cost_limit=2.0, parallel_turn_limit=5, stored_byte_limit=9
            ),
        )
        found = await store.limit_uses(tenant.service, month=JUNE)
        assert [(each.name, each.limit, each.used) for each in found if each.scope == "workspace"] == [
            ("monthly_token_limit", 100, 30),
            ("monthly_cost_limit", 2.0, 0.75),
            ("stored_byte_limit", 9, 0),
            ("parallel_turn_limit", 5, 1),
        ]
        past = await store.limit_uses(tenant.service, month="2025-05")
        assert [(each.name, each.used) for each in past if each.scope == "workspace"] == [
            ("monthly_token_limit", 0),
            ("monthly_cost_limit", 0),
        ]

    async def test_of_a_user_are_their_own_or_those_of_each_user(self, store: Store, tenant: Tenant) -> None:
        await use(store, tenant.ann)
        await store.change_workspace(
            tenant.org.id,
            tenant.workspace.id,
            lambda before: structs.replace(
                before, monthly_message_limit=50, user_monthly_message_limit=10, user_monthly_token_limit=40
            ),
        )
        assert tenant.ann.user_id is not None
        await store.change_member(
            tenant.org.id,
            tenant.workspace.id,
            tenant.ann.user_id,
            lambda before: structs.replace(before, monthly_message_limit=3),
        )
        of_ann = [LimitUse(scope="user", name="monthly_message_limit", limit=3, used=1)]
        of_ann.append(LimitUse(scope="user", name="monthly_token_limit", limit=40, used=15))
        assert await store.limit_uses(tenant.ann, month=JUNE) == of_ann
        by_service = await store.limit_uses(tenant.service, month=JUNE, user_id=tenant.ann.user_id)
        assert [each for each in by_service if each.scope == "user"] == of_ann
        assert not [each for each in by_service if each.scope == "workspace"]

    async def test_of_a_key_count_the_keys_that_it_made(self, store: Store, tenant: Tenant) -> None:
        key = a_key(tenant.org, monthly_message_limit=7, monthly_token_limit=70)
        made = a_key(tenant.org, ancestors=(key.id,))
        for each in (key, made):
            await store.add_key(each, each.id.encode().ljust(32)[-32:])
        by_key = structs.replace(tenant.service, key_id=key.id)
        await use(store, by_key)
        await use(store, structs.replace(tenant.service, key_id=made.id, key_ancestors=(key.id,)))
        assert await store.limit_uses(by_key, month=JUNE) == [
            LimitUse(scope="key", name="monthly_message_limit", limit=7, used=2),
            LimitUse(scope="key", name="monthly_token_limit", limit=70, used=30),
        ]
