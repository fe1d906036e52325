"""Limits: messages, tokens, cost, stored bytes and parallel turns, for a workspace, a user and a key."""

import asyncio
import secrets
from typing import Any

import pytest
from msgspec import structs

from tests.store.databases import Database
from tests.store.factories import (
    Tenant,
    a_file,
    a_key,
    a_user,
    answered,
    begin,
    claim,
    nothing_written,
    save_member,
    save_workspace,
    wait_in_queue,
)
from turnkeep.errors import QuotaExceeded, RateLimited, ReachedLimit, StorageFull
from turnkeep.ids import new_file_id
from turnkeep.model.agents import Snapshot
from turnkeep.model.files import NewFile
from turnkeep.model.principals import Principal
from turnkeep.store.commands import EXPECTED_TOKENS, Claimed
from turnkeep.store.ports import Store
from turnkeep_client.wire.blocks import Usage

JULY = 1_751_328_000_000
SCOPES = ["workspace", "user", "each user", "key", "maker of the key"]
"""Where a limit is set. A limit for each user is one of the user."""


async def limited(store: Store, tenant: Tenant, scope: str, **limits: Any) -> Principal:
    """Somebody for whom these limits hold."""
    if scope in {"workspace", "each user"}:
        names = {f"user_{name}" if scope == "each user" else name: value for name, value in limits.items()}
        await save_workspace(store, structs.replace(tenant.workspace, **names))
        return tenant.ann
    if scope == "user":
        ann = await store.member(tenant.org.id, tenant.workspace.id, "ann")
        await save_member(store, tenant.org.id, structs.replace(ann, **limits))
        return tenant.ann
    maker = a_key(tenant.org, **limits)
    made = a_key(tenant.org, ancestors=(maker.id,))
    for key in (maker, made):
        await store.add_key(key, secrets.token_bytes(32))
    if scope == "key":
        return structs.replace(tenant.ann, key_id=maker.id)
    return structs.replace(tenant.ann, key_id=made.id, key_ancestors=made.ancestors)


def shown(scope: str) -> str:
    return {"each user": "user", "maker of the key": "key"}.get(scope, scope)


async def spend(store: Store, by: Principal, *, cost: float | None = None) -> None:
    held = await begin(store, by)
    settlement = structs.replace(answered(held, usage=Usage(input_tokens=3, output_tokens=4)), cost=cost)
    await store.settle(held, after=1, settlement=settlement)


def a_new_file(size: int) -> NewFile:
    file_id = new_file_id()
    return NewFile(
        id=file_id,
        conversation_id=None,
        name="a.txt",
        mime_type="text/plain",
        size=size,
        storage_key=f"bag/{file_id}",
        sha256="ab" * 32,
    )


@pytest.mark.parametrize("scope", SCOPES)
class TestEveryScope:
    async def test_limits_messages(self, store: Store, tenant: Tenant, database: Database, scope: str) -> None:
        by = await limited(store, tenant, scope, monthly_message_limit=2)
        await spend(store, by)
        await spend(store, by)
        async with nothing_written(database):
            with pytest.raises(QuotaExceeded) as refused:
                await claim(store, by)
        limit = ReachedLimit(scope=shown(scope), name="monthly_message_limit", value=2, used=2, resets_at=JULY)
        assert refused.value.limit == limit

    async def test_counts_no_message_of_a_waiting_turn_that_gives_way(
        self, store: Store, tenant: Tenant, database: Database, scope: str
    ) -> None:
        by = await limited(store, tenant, scope, monthly_message_limit=2)
        held = await begin(store, by)
        waiting = await wait_in_queue(store, by, held.conversation_id)
        first: dict[str, Any] = {"conversation_id": held.conversation_id, "if_busy": "interrupt"}
        edited = await claim(store, by, "Better", beside=waiting.id, **first)
        assert (edited.is_new, edited.turn.status) == (True, "queued")
        async with nothing_written(database):
            with pytest.raises(QuotaExceeded):
                await claim(store, by, "Another", **first)
        assert (await claim(store, by, "Now", drop_queue=True, **first)).is_new

    async def test_limits_tokens(self, store: Store, tenant: Tenant, database: Database, scope: str) -> None:
        by = await limited(store, tenant, scope, monthly_token_limit=8)
        await spend(store, by)
        await spend(store, by)
        async with nothing_written(database):
            with pytest.raises(QuotaExceeded) as refused:
                await claim(store, by)
        limit = ReachedLimit(scope=shown(scope), name="monthly_token_limit", value=8, used=14, resets_at=JULY)
        assert refused.value.limit == limit
        await database.advance(seconds=31 * 86_400)
        assert (await claim(store, by)).is_new

    async def test_limits_cost(self, store: Store, tenant: Tenant, database: Database, scope: str) -> None:
        by = await limited(store, tenant, scope, monthly_cost_limit=0.5)
        await spend(store, by, cost=0.25)
        await spend(store, by, cost=0.25)
        async with nothing_written(database):
            with pytest.raises(QuotaExceeded) as refused:
                await claim(store, by)
        limit = ReachedLimit(scope=shown(scope), name="monthly_cost_limit", value=0.5, used=0.5, resets_at=JULY)
        assert refused.value.limit == limit

    async def test_counts_open_turns_against_the_tokens_that_are_left(
        self, store: Store, tenant: Tenant, database: Database, scope: str
    ) -> None:
        by = await limited(store, tenant, scope, monthly_token_limit=2 * EXPECTED_TOKENS + 7)
        await spend(store, by)
        first = await begin(store, by)
        await wait_in_queue(store, by, first.conversation_id)
        async with nothing_written(database):
            with pytest.raises(RateLimited, match="may use up what is left of the limit of tokens") as refused:
                await claim(store, by)
        value = 2 * EXPECTED_TOKENS + 7
        limit = ReachedLimit(scope=shown(scope), name="monthly_token_limit", value=value, used=7, resets_at=JULY)
        assert refused.value.limit == limit
        await store.settle(first, after=1, settlement=answered(first))
        assert (await claim(store, by)).is_new

    async def test_gives_the_last_token_to_one_of_many(self, store: Store, tenant: Tenant, scope: str) -> None:
        by = await limited(store, tenant, scope, monthly_token_limit=1)
        answers = await asyncio.gather(*(claim(store, by) for _ in range(30)), return_exceptions=True)
        assert sum(isinstance(each, Claimed) for each in answers) == 1
        assert sum(isinstance(each, RateLimited) for each in answers) == 29

    async def test_expects_of_an_open_turn_what_the_last_ones_cost(
        self, store: Store, tenant: Tenant, scope: str
    ) -> None:
        by = await limited(store, tenant, scope, monthly_cost_limit=1.0)
        await spend(store, by, cost=0.5)
        await begin(store, by, expected_cost=0.25)
        await begin(store, by, expected_cost=0.25)
        with pytest.raises(RateLimited, match="the limit of cost"):
            await claim(store, by, expected_cost=0.25)

    async def test_refuses_a_turn_from_the_queue_once_it_is_used_up(
        self, store: Store, tenant: Tenant, scope: str
    ) -> None:
        by = await limited(store, tenant, scope, monthly_token_limit=2 * EXPECTED_TOKENS)
        snapshot = Snapshot(principal=by)
        held = await begin(store, by, snapshot=snapshot)
        waiting = await wait_in_queue(store, by, held.conversation_id, snapshot=snapshot)
        usage = Usage(input_tokens=2 * EXPECTED_TOKENS)
        await store.settle(held, after=1, settlement=answered(held, usage=usage))
        [adopted] = await store.adopt("another", lease_seconds=30)
        assert adopted.turn.id == waiting.id
        assert "has used up the limit of tokens" in (adopted.over_limit or "")
        await store.hand_over([adopted.held])
        [again] = await store.adopt("another", lease_seconds=30)
        assert again.over_limit is None, "a turn that has started once goes on"

    async def test_limits_parallel_turns(self, store: Store, tenant: Tenant, database: Database, scope: str) -> None:
        by = await limited(store, tenant, scope, parallel_turn_limit=2)
        held = await begin(store, by)
        waiting = await wait_in_queue(store, by, held.conversation_id)
        async with nothing_written(database):
            with pytest.raises(RateLimited) as refused:
                await claim(store, by)
        assert refused.value.limit == ReachedLimit(scope=shown(scope), name="parallel_turn_limit", value=2, used=2)
        await store.request_cancel(by, waiting.id)
        second = await begin(store, by)
        await store.settle(held, after=1, settlement=answered(held))
        assert (await claim(store, by)).is_new
        await store.request_cancel(by, second.turn_id)
        assert (await claim(store, by)).is_new, "a turn that is being stopped has no place any more"

    async def test_limits_stored_bytes(self, store: Store, tenant: Tenant, database: Database, scope: str) -> None:
        by = await limited(store, tenant, scope, stored_byte_limit=100)
        await store.add_files(by, [a_new_file(60)])
        async with nothing_written(database):
            with pytest.raises(StorageFull, match="100 bytes") as refused:
                await store.add_files(by, [a_new_file(41)])
        assert refused.value.limit == ReachedLimit(scope=shown(scope), name="stored_byte_limit", value=100, used=101)
        await store.add_files(by, [a_new_file(40)])

    async def test_gives_the_last_place_to_one_of_many(self, store: Store, tenant: Tenant, scope: str) -> None:
        by = await limited(store, tenant, scope, parallel_turn_limit=3)
        await begin(store, by)
        answers = await asyncio.gather(*(claim(store, by) for _ in range(30)), return_exceptions=True)
        assert sum(isinstance(each, Claimed) for each in answers) == 2
        assert sum(isinstance(each, RateLimited) for each in answers) == 28

    async def test_gives_the_last_bytes_to_one_of_many(self, store: Store, tenant: Tenant, scope: str) -> None:
        by = await limited(store, tenant, scope, stored_byte_limit=100)
        adding = (store.add_files(by, [a_new_file(30)]) for _ in range(12))
        done = await asyncio.gather(*adding, return_exceptions=True)
        assert sum(isinstance(each, list) for each in done) == 3
        assert sum(isinstance(each, StorageFull) for each in done) == 9


class TestTogether:
    async def test_a_limit_of_one_user_leaves_others_alone(self, store: Store, tenant: Tenant) -> None:
        await limited(store, tenant, "each user", parallel_turn_limit=1, stored_byte_limit=10, monthly_token_limit=7)
        await begin(store, tenant.ann)
        with pytest.raises(RateLimited):
            await claim(store, tenant.ann)
        await spend(store, tenant.bob)
        with pytest.raises(QuotaExceeded):
            await claim(store, tenant.bob)
        carl = await a_user(store, tenant.workspace, "carl")
        assert (await claim(store, carl)).is_new
        assert (await claim(store, tenant.service)).is_new

    async def test_a_users_own_limit_takes_the_place_of_that_of_each_user(self, store: Store, tenant: Tenant) -> None:
        await limited(store, tenant, "each user", parallel_turn_limit=1, stored_byte_limit=10)
        await limited(store, tenant, "user", parallel_turn_limit=2, stored_byte_limit=20)
        await begin(store, tenant.ann)
        await begin(store, tenant.ann)
        with pytest.raises(RateLimited):
            await claim(store, tenant.ann)
        await store.add_files(tenant.ann, [a_new_file(20)])
        with pytest.raises(StorageFull):
            await store.add_files(tenant.bob, [a_new_file(20)])

    async def test_keys_of_one_maker_share_its_places_tokens_and_bytes(self, store: Store, tenant: Tenant) -> None:
        tokens = EXPECTED_TOKENS + 14
        maker = a_key(tenant.org, parallel_turn_limit=2, monthly_token_limit=tokens, stored_byte_limit=100)
        made = [a_key(tenant.org, ancestors=(maker.id,)) for _ in range(2)]
        for key in (maker, *made):
            await store.add_key(key, secrets.token_bytes(32))
        first, second = [structs.replace(tenant.service, key_id=key.id, key_ancestors=key.ancestors) for key in made]
        turns = [await begin(store, first), await begin(store, second)]
        with pytest.raises(RateLimited):
            await claim(store, second)
        for held in turns:
            usage = Usage(input_tokens=EXPECTED_TOKENS // 2 + 3, output_tokens=4)
            await store.settle(held, after=1, settlement=answered(held, usage=usage))
        with pytest.raises(QuotaExceeded, match="This API key has used up the limit of tokens"):
            await claim(store, first)
        await store.add_files(first, [a_new_file(60)])
        with pytest.raises(StorageFull):
            await store.add_files(second, [a_new_file(60)])

    async def test_an_interrupt_takes_the_place_of_what_it_stops(self, store: Store, tenant: Tenant) -> None:
        by = await limited(store, tenant, "user", parallel_turn_limit=1)
        held = await begin(store, by)
        assert (await claim(store, by, conversation_id=held.conversation_id, if_busy="interrupt")).is_new

    async def test_words_that_steer_a_turn_need_no_place_of_their_own(self, store: Store, tenant: Tenant) -> None:
        by = await limited(store, tenant, "user", parallel_turn_limit=1)
        held = await begin(store, by)
        where = {"conversation_id": held.conversation_id, "if_busy": "enqueue"}
        with pytest.raises(RateLimited):
            await claim(store, by, **where)
        assert (await claim(store, by, steers=held.turn_id, **where)).is_new

    async def test_limits_that_are_taken_away_hold_no_more(self, store: Store, tenant: Tenant) -> None:
        by = await limited(store, tenant, "workspace", parallel_turn_limit=0, stored_byte_limit=0)
        with pytest.raises(RateLimited):
            await claim(store, by)
        await save_workspace(store, tenant.workspace)
        assert (await claim(store, by)).is_new
        await a_file(store, by)
