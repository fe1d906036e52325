"""Idempotency: the same key means the same turn, for the same principal, as long as the turn exists."""

import asyncio

import pytest
from msgspec import structs

from tests.store.databases import Database
from tests.store.factories import (
    Tenant,
    a_claim,
    a_tenant,
    answered,
    begin,
    claim,
    finish,
    held_of,
    nothing_written,
    save_workspace,
)
from turnkeep.errors import ConversationBusy, IdempotencyConflict, QuotaExceeded
from turnkeep.ids import new_turn_id
from turnkeep.model.principals import Principal
from turnkeep.store.commands import Claim, Claimed
from turnkeep.store.ports import Store


def keyed(
    by: Principal, text: str = "Hello", *, key: str = "k-1", request_hash: str = "h-1", **fields: object
) -> Claim:
    """A claim with a new turn id each time, as a retried request has."""
    return a_claim(by, text, idempotency_key=key, request_hash=request_hash, **fields)


class TestTheSameKey:
    async def test_with_the_same_body_it_answers_with_the_same_turn(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        first = await store.claim(keyed(tenant.ann))
        async with nothing_written(database):
            again = await store.claim(keyed(tenant.ann))
        assert again.turn == first.turn
        assert again.user_message_id == first.user_message_id
        assert again.held is None
        assert not again.is_new

    async def test_after_the_turn_ended_it_answers_with_how_it_ended(self, store: Store, tenant: Tenant) -> None:
        held = held_of(await store.claim(keyed(tenant.ann)))
        await store.settle(held, after=1, settlement=answered(held))
        again = await store.claim(keyed(tenant.ann))
        assert (again.turn.id, again.turn.status) == (held.turn_id, "succeeded")

    async def test_with_another_body_it_conflicts_and_names_the_turn(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        first = await store.claim(keyed(tenant.ann))
        async with nothing_written(database):
            with pytest.raises(IdempotencyConflict) as refused:
                await store.claim(keyed(tenant.ann, "Other", request_hash="h-2"))
        assert refused.value.turn_id == first.turn.id

    async def test_of_another_principal_is_another_key(self, store: Store, tenant: Tenant) -> None:
        stranger = await a_tenant(store, "Other")
        turns = {
            (await store.claim(keyed(by))).turn.id for by in (tenant.ann, tenant.bob, tenant.service, stranger.ann)
        }
        assert len(turns) == 4

    async def test_finds_a_turn_that_waits(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        waiting = keyed(tenant.ann, conversation_id=held.conversation_id, if_busy="enqueue")
        first = await store.claim(waiting)
        again = await store.claim(structs.replace(waiting, turn_id=new_turn_id()))
        assert again.turn == first.turn
        assert again.turn.status == "queued"


class TestWhenItIsLookedUp:
    async def test_before_busy(self, store: Store, tenant: Tenant) -> None:
        first = await store.claim(keyed(tenant.ann))
        again = await store.claim(keyed(tenant.ann, conversation_id=first.turn.conversation_id))
        assert again.turn.id == first.turn.id

    async def test_before_quota_and_it_counts_once(self, store: Store, tenant: Tenant) -> None:
        await save_workspace(store, structs.replace(tenant.workspace, monthly_message_limit=1))
        first = await store.claim(keyed(tenant.ann))
        with pytest.raises(QuotaExceeded):
            await claim(store, tenant.ann)
        assert (await store.claim(keyed(tenant.ann))).turn.id == first.turn.id
        assert (await store.usage(tenant.ann)).messages == 1


class TestARefusedClaim:
    async def test_stores_no_key_so_that_it_may_be_used_again(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        with pytest.raises(ConversationBusy):
            await store.claim(keyed(tenant.ann, conversation_id=held.conversation_id))
        claimed = await store.claim(keyed(tenant.ann, "Other", request_hash="h-2"))
        assert claimed.is_new


class TestAtTheSameMoment:
    async def test_fifty_requests_with_one_key_make_one_turn(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        answers = await asyncio.gather(*(store.claim(keyed(tenant.ann)) for _ in range(50)))
        assert len({answer.turn.id for answer in answers}) == 1
        assert sum(answer.is_new for answer in answers) == 1
        assert (await store.usage(tenant.ann)).messages == 1
        contents = await database.contents()
        assert len(contents["turns"]) == len(contents["conversations"]) == len(contents["messages"]) == 1

    async def test_in_an_existing_conversation_too(self, store: Store, tenant: Tenant) -> None:
        first = await finish(store, tenant.ann)
        answers: list[Claimed] = await asyncio.gather(
            *(store.claim(keyed(tenant.ann, conversation_id=first.conversation_id)) for _ in range(50))
        )
        assert len({answer.turn.id for answer in answers}) == 1
        assert (await store.conversation(tenant.ann, first.conversation_id)).message_count == 3
