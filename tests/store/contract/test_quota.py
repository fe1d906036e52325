"""Quota: one POST counts once, reserved before the model is called, and refunded only if the turn never started."""

import asyncio
import secrets

import pytest
from msgspec import structs

from tests.store.databases import Database
from tests.store.factories import (
    Tenant,
    a_key,
    a_tenant,
    a_user,
    answered,
    begin,
    claim,
    elsewhere,
    failed,
    finish,
    finish_with_tool,
    nothing_written,
    save_member,
    save_workspace,
    stopped,
    wait_in_queue,
)
from turnkeep.errors import QuotaExceeded
from turnkeep.store.commands import Claimed
from turnkeep.store.ports import Store
from turnkeep_client.wire.account import Messages, MonthlyUsage
from turnkeep_client.wire.blocks import Usage

A_MONTH = 31 * 24 * 3600.0


class TestCounting:
    async def test_a_post_counts_once_however_many_rows_it_leaves(self, store: Store, tenant: Tenant) -> None:
        await finish_with_tool(store, tenant.ann)
        assert await store.usage(tenant.ann) == MonthlyUsage(
            month="2025-06", messages=1, by_source=Messages(ui=0, api=1), input_tokens=10, output_tokens=5, limit=None
        )

    async def test_by_source_by_user_and_for_the_workspace(self, store: Store, tenant: Tenant) -> None:
        await finish(store, tenant.ann, source="ui")
        await finish(store, tenant.ann, source="api")
        await finish(store, tenant.bob, source="ui")
        await finish(store, tenant.service, source="api")
        assert (await store.usage(tenant.ann)).by_source == Messages(ui=1, api=1)
        assert (await store.usage(tenant.bob)).by_source == Messages(ui=1, api=0)
        workspace = await store.usage(tenant.service)
        assert workspace.by_source == Messages(ui=2, api=2)
        assert (workspace.messages, workspace.input_tokens, workspace.output_tokens) == (4, 40, 20)
        of_ann = await store.usage(tenant.service, user_id=tenant.ann.user_id)
        assert structs.replace(of_ann, key=None) == await store.usage(tenant.ann)

    async def test_nothing_used_is_zero(self, store: Store, tenant: Tenant) -> None:
        nothing = await store.usage(tenant.ann, month="2020-01")
        assert nothing == MonthlyUsage(
            month="2020-01", messages=0, by_source=Messages(), input_tokens=0, output_tokens=0, limit=None
        )

    async def test_limits_are_shown_with_it(self, store: Store, tenant: Tenant) -> None:
        await save_workspace(
            store, structs.replace(tenant.workspace, monthly_message_limit=50, user_monthly_message_limit=7)
        )
        assert (await store.usage(tenant.service)).limit == 50
        assert (await store.usage(tenant.ann)).limit == 7

    async def test_tokens_go_to_the_month_in_which_the_turn_was_asked(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        await database.advance(seconds=A_MONTH)
        await store.settle(held, after=1, settlement=answered(held, usage=Usage(input_tokens=3, output_tokens=4)))
        before = await store.usage(tenant.ann, month="2025-06")
        assert (before.messages, before.input_tokens, before.output_tokens) == (1, 3, 4)
        now = await store.usage(tenant.ann)
        assert (now.month, now.messages, now.input_tokens) == ("2025-07", 0, 0)

    async def test_the_month_ends_at_midnight_utc(self, store: Store, tenant: Tenant, database: Database) -> None:
        midnight = 1_751_328_000_000  # 1 July 2025
        await database.move_clock_to(midnight - 1)
        assert (await begin_month(store, tenant)) == "2025-06"
        await database.move_clock_to(midnight)
        assert (await begin_month(store, tenant)) == "2025-07"

    async def test_what_happened_elsewhere_is_not_counted(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann)
        await store.append(tenant.ann, turn.conversation_id, elsewhere(turn.conversation_id))
        assert (await store.usage(tenant.ann)).messages == 1


async def begin_month(store: Store, tenant: Tenant) -> str:
    return (await claim(store, tenant.ann)).turn.month


def words(scope: str, limit: int) -> str:
    return f"^{scope} has used up its limit of {limit} messages a month. Raise the limit, or wait for the next month.$"


async def limit(store: Store, tenant: Tenant, **limits: float) -> None:
    """Give Ann these limits, and no others."""
    ann = await store.ensure_member(tenant.org.id, tenant.workspace.id, "ann")
    none = dict.fromkeys(("monthly_message_limit", "monthly_token_limit", "monthly_cost_limit"))
    await save_member(store, tenant.org.id, structs.replace(ann, **none | limits))


class TestLimits:
    async def test_a_workspace_limit_stops_everybody_and_names_itself(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        await save_workspace(store, structs.replace(tenant.workspace, monthly_message_limit=2))
        await finish(store, tenant.ann, source="ui")
        await finish(store, tenant.bob, source="api")
        async with nothing_written(database):
            for by in (tenant.ann, tenant.bob, tenant.service):
                with pytest.raises(QuotaExceeded, match=words("This workspace", 2)):
                    await claim(store, by)

    async def test_limits_of_one_user_take_the_place_of_those_of_the_workspace(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        await save_workspace(store, structs.replace(tenant.workspace, user_monthly_message_limit=1))
        await limit(store, tenant, monthly_message_limit=2)
        await finish(store, tenant.ann)
        await finish(store, tenant.ann)
        assert (await store.usage(tenant.ann)).limit == 2
        async with nothing_written(database):
            with pytest.raises(QuotaExceeded, match=words("This user", 2)):
                await claim(store, tenant.ann)

    async def test_tokens_and_cost_of_a_user_stop_the_next_claim(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        usage = Usage(input_tokens=3, output_tokens=4)
        held = await begin(store, tenant.ann)
        settlement = structs.replace(answered(held, usage=usage), cost=0.25)
        await store.settle(held, after=1, settlement=settlement)
        for limits, name in (({"monthly_token_limit": 7}, "tokens"), ({"monthly_cost_limit": 0.25}, "cost")):
            await limit(store, tenant, **limits)
            async with nothing_written(database):
                with pytest.raises(QuotaExceeded, match=f"This user has used up the limit of {name}"):
                    await claim(store, tenant.ann)
            assert (await claim(store, tenant.bob)).is_new
        await limit(store, tenant, monthly_token_limit=8, monthly_cost_limit=0.26)
        held = await begin(store, tenant.ann)
        await store.settle(held, after=1, settlement=answered(held))
        await limit(store, tenant, monthly_token_limit=0)
        await database.advance(seconds=A_MONTH)
        with pytest.raises(QuotaExceeded):
            await claim(store, tenant.ann)
        await limit(store, tenant, monthly_token_limit=1)
        assert (await claim(store, tenant.ann)).is_new, "a new month"

    async def test_a_message_of_a_key_counts_for_the_keys_that_made_it(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        maker = a_key(tenant.org, monthly_message_limit=3)
        made = a_key(tenant.org, ancestors=(maker.id,))
        for key in (maker, made):
            await store.add_key(key, secrets.token_bytes(32))
        by_maker = structs.replace(tenant.service, key_id=maker.id)
        by_made = structs.replace(tenant.service, key_id=made.id, key_ancestors=made.ancestors)
        held = await begin(store, by_made)
        await wait_in_queue(store, by_made, held.conversation_id)
        await finish(store, by_maker)
        used = (await store.usage(by_maker)).key
        assert used is not None
        assert used.messages == 3
        async with nothing_written(database):
            for by in (by_maker, by_made):
                with pytest.raises(QuotaExceeded, match=words("This API key", 3)):
                    await claim(store, by)
        await store.delete_conversation(by_made, held.conversation_id)
        await finish(store, by_maker)

    async def test_a_user_limit_stops_that_user_alone(self, store: Store, tenant: Tenant, database: Database) -> None:
        await save_workspace(store, structs.replace(tenant.workspace, user_monthly_message_limit=1))
        await finish(store, tenant.ann)
        async with nothing_written(database):
            with pytest.raises(QuotaExceeded, match=words("This user", 1)):
                await claim(store, tenant.ann)
        assert (await claim(store, tenant.bob)).is_new
        assert (await claim(store, tenant.service)).is_new

    async def test_a_key_limit_stops_that_key_alone(self, store: Store, tenant: Tenant, database: Database) -> None:
        key = a_key(tenant.org, monthly_message_limit=1)
        await store.add_key(key, secrets.token_bytes(32))
        limited = structs.replace(tenant.service, key_id=key.id)
        await finish(store, limited)
        async with nothing_written(database):
            with pytest.raises(QuotaExceeded, match=words("This API key", 1)):
                await claim(store, limited)
        assert (await claim(store, tenant.service)).is_new

    async def test_zero_stops_everything(self, store: Store, tenant: Tenant, database: Database) -> None:
        await save_workspace(store, structs.replace(tenant.workspace, monthly_message_limit=0))
        async with nothing_written(database):
            with pytest.raises(QuotaExceeded):
                await claim(store, tenant.ann)

    async def test_a_refused_claim_counts_in_no_scope(self, store: Store, tenant: Tenant) -> None:
        await save_workspace(store, structs.replace(tenant.workspace, user_monthly_message_limit=1))
        await finish(store, tenant.ann)
        with pytest.raises(QuotaExceeded):
            await claim(store, tenant.ann)
        assert (await store.usage(tenant.service)).messages == 1

    async def test_a_new_month_begins_at_zero(self, store: Store, tenant: Tenant, database: Database) -> None:
        await save_workspace(store, structs.replace(tenant.workspace, monthly_message_limit=1))
        await finish(store, tenant.ann)
        await database.advance(seconds=A_MONTH)
        assert (await claim(store, tenant.ann)).is_new

    async def test_orgs_do_not_share_them(self, store: Store, tenant: Tenant) -> None:
        await save_workspace(store, structs.replace(tenant.workspace, monthly_message_limit=0))
        stranger = await a_tenant(store, "Other")
        assert (await claim(store, stranger.ann)).is_new

    async def test_busy_is_said_before_quota(self, store: Store, tenant: Tenant) -> None:
        await save_workspace(store, structs.replace(tenant.workspace, monthly_message_limit=1))
        held = await begin(store, tenant.ann)
        with pytest.raises(QuotaExceeded):
            await wait_in_queue(store, tenant.ann, held.conversation_id)

    async def test_of_500_claims_at_once_with_one_message_left_exactly_one_passes(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        await save_workspace(store, structs.replace(tenant.workspace, monthly_message_limit=3))
        await finish(store, tenant.ann)
        await finish(store, tenant.bob)
        users = [tenant.ann, tenant.bob, *[await a_user(store, tenant.workspace, f"u{n}") for n in range(8)]]
        claims = (claim(store, users[number % 10]) for number in range(500))
        answers = await asyncio.gather(*claims, return_exceptions=True)
        assert sum(isinstance(answer, Claimed) for answer in answers) == 1
        assert sum(isinstance(answer, QuotaExceeded) for answer in answers) == 499
        assert (await store.usage(tenant.service)).messages == 3
        contents = await database.contents()
        assert len(contents["turns"]) == len(contents["conversations"]) == 3

    async def test_of_many_claims_at_once_a_user_gets_those_that_are_left_and_others_all(
        self, store: Store, tenant: Tenant
    ) -> None:
        await limit(store, tenant, monthly_message_limit=3)
        asked = [tenant.ann if number % 2 else tenant.bob for number in range(40)]
        answers = await asyncio.gather(*(claim(store, by) for by in asked), return_exceptions=True)
        passed = [by for by, answer in zip(asked, answers, strict=True) if isinstance(answer, Claimed)]
        assert (passed.count(tenant.ann), passed.count(tenant.bob)) == (3, 20)
        assert sum(isinstance(answer, QuotaExceeded) for answer in answers) == 17
        assert (await store.usage(tenant.ann)).messages == 3
        assert (await store.usage(tenant.service)).messages == 23

    async def test_of_many_claims_at_once_by_keys_of_one_maker_those_pass_that_the_maker_has_left(
        self, store: Store, tenant: Tenant
    ) -> None:
        maker = a_key(tenant.org, monthly_message_limit=4)
        made = [a_key(tenant.org, monthly_message_limit=3, ancestors=(maker.id,)) for _ in range(2)]
        for key in (maker, *made):
            await store.add_key(key, secrets.token_bytes(32))
        by = [structs.replace(tenant.service, key_id=key.id, key_ancestors=key.ancestors) for key in (*made, maker)]
        answers = await asyncio.gather(*(claim(store, by[number % 2]) for number in range(40)), return_exceptions=True)
        assert sum(isinstance(answer, Claimed) for answer in answers) == 4
        assert sum(isinstance(answer, QuotaExceeded) for answer in answers) == 36
        first, second, both = [used.key.messages for each in by if (used := await store.usage(each)).key]
        assert (first + second, both) == (4, 4)
        assert max(first, second) <= 3


class TestRefunds:
    async def test_a_waiting_turn_reserves_and_a_stop_before_it_began_gives_back(
        self, store: Store, tenant: Tenant
    ) -> None:
        held = await begin(store, tenant.ann)
        waiting = await wait_in_queue(store, tenant.ann, held.conversation_id, source="ui")
        assert (await store.usage(tenant.ann)).by_source == Messages(ui=1, api=1)
        await store.request_cancel(tenant.ann, waiting.id)
        assert (await store.usage(tenant.ann)).by_source == Messages(ui=0, api=1)
        assert (await store.usage(tenant.service)).by_source == Messages(ui=0, api=1)

    async def test_a_second_stop_gives_nothing_more_back(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        waiting = await wait_in_queue(store, tenant.ann, held.conversation_id)
        await asyncio.gather(*(store.request_cancel(tenant.ann, waiting.id) for _ in range(10)))
        assert (await store.usage(tenant.ann)).messages == 1

    async def test_it_goes_back_to_the_month_from_which_it_came(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        waiting = await wait_in_queue(store, tenant.ann, held.conversation_id)
        await database.advance(seconds=A_MONTH)
        await store.request_cancel(tenant.ann, waiting.id)
        assert (await store.usage(tenant.ann, month="2025-06")).messages == 1
        assert (await store.usage(tenant.ann, month="2025-07")).messages == 0

    async def test_the_key_gets_its_message_back_too(self, store: Store, tenant: Tenant) -> None:
        key = a_key(tenant.org, monthly_message_limit=2)
        await store.add_key(key, secrets.token_bytes(32))
        limited = structs.replace(tenant.service, key_id=key.id)
        held = await begin(store, limited)
        waiting = await wait_in_queue(store, limited, held.conversation_id)
        await store.request_cancel(limited, waiting.id)
        assert (await claim(store, limited)).is_new

    async def test_a_turn_that_started_is_never_refunded(self, store: Store, tenant: Tenant) -> None:
        for how in (stopped, failed):
            held = await begin(store, tenant.ann)
            await store.request_cancel(tenant.ann, held.turn_id)
            await store.settle(held, after=1, settlement=how(held))
        assert (await store.usage(tenant.ann)).messages == 2

    async def test_a_turn_that_was_promoted_has_started(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        waiting = await wait_in_queue(store, tenant.ann, held.conversation_id)
        await store.settle(held, after=1, settlement=answered(held))
        marked = await store.request_cancel(tenant.ann, waiting.id)
        assert marked.status == "running"
        assert (await store.usage(tenant.ann)).messages == 2
