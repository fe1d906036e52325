"""One-time tokens: bound to a turn and an attempt, spent once, dead with either."""

import asyncio
import secrets

import pytest

from tests.store.databases import Database
from tests.store.factories import Tenant, answered, begin, nothing_written
from turnkeep.errors import CallerError
from turnkeep.ids import new_call_id, new_turn_id
from turnkeep.model.turns import Held
from turnkeep.store.commands import TokenBinding, TokenPurpose
from turnkeep.store.ports import Store
from turnkeep_client.wire.blocks import Usage


async def a_token(
    store: Store, held: Held, purpose: TokenPurpose = "run", *, seconds: float = 60
) -> tuple[bytes, TokenBinding]:
    token = secrets.token_bytes(32)
    binding = TokenBinding(purpose=purpose, turn_id=held.turn_id, attempt=held.attempt)
    await store.add_token(token, binding, expires_in_seconds=seconds)
    return token, binding


class TestSpending:
    async def test_once_and_never_again(self, store: Store, tenant: Tenant) -> None:
        token, binding = await a_token(store, await begin(store, tenant.ann))
        assert await store.spend_token(token, "run") == binding
        assert await store.spend_token(token, "run") is None

    async def test_of_200_at_once_exactly_one_wins(self, store: Store, tenant: Tenant) -> None:
        token, binding = await a_token(store, await begin(store, tenant.ann))
        answers = await asyncio.gather(*(store.spend_token(token, "run") for _ in range(200)))
        assert [answer for answer in answers if answer is not None] == [binding]

    async def test_only_for_its_purpose_and_a_wrong_one_does_not_spend_it(self, store: Store, tenant: Tenant) -> None:
        token, binding = await a_token(store, await begin(store, tenant.ann), "upload")
        for purpose in ("setup", "run"):
            assert await store.spend_token(token, purpose) is None
        assert await store.spend_token(token, "upload") == binding

    async def test_before_it_expires(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        early, binding = await a_token(store, held, seconds=60)
        late, _ = await a_token(store, held, seconds=60)
        await database.advance(seconds=59.999)
        assert await store.spend_token(early, "run") == binding
        await database.advance(seconds=0.001)
        assert await store.spend_token(late, "run") is None

    async def test_an_unknown_one_buys_nothing(self, store: Store, tenant: Tenant) -> None:
        assert await store.spend_token(secrets.token_bytes(32), "run") is None
        assert await store.spend_token(b"", "run") is None


class TestTheirEnd:
    async def test_all_unspent_ones_of_a_turn_can_be_ended(self, store: Store, tenant: Tenant) -> None:
        mine, other = await begin(store, tenant.ann), await begin(store, tenant.bob)
        tokens = [(await a_token(store, mine))[0] for _ in range(2)]
        theirs, binding = await a_token(store, other)
        await store.expire_tokens(mine.turn_id)
        for token in tokens:
            assert await store.spend_token(token, "run") is None
        assert await store.spend_token(theirs, "run") == binding

    async def test_they_die_with_the_attempt(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        old, _ = await a_token(store, held, seconds=3600)
        await database.advance(seconds=31)
        [adopted] = await store.adopt("worker-2", lease_seconds=30)
        assert await store.spend_token(old, "run") is None
        new, binding = await a_token(store, adopted.held)
        assert await store.spend_token(new, "run") == binding

    async def test_they_die_with_the_turn(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        token, _ = await a_token(store, held)
        await store.settle(held, after=1, settlement=answered(held))
        assert await store.spend_token(token, "run") is None

    async def test_for_a_turn_that_does_not_exist_there_is_none(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        binding = TokenBinding(purpose="run", turn_id=new_turn_id(), attempt=1)
        async with nothing_written(database):
            with pytest.raises(CallerError):
                await store.add_token(secrets.token_bytes(32), binding, expires_in_seconds=60)


class TestTokensOfTheModel:
    """What a sandbox spent through the gateway, counted by whichever worker served it."""

    async def test_are_added_up_while_the_turn_runs(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        spent = Usage(input_tokens=7, output_tokens=3, cache_read_tokens=2, cache_write_tokens=1)
        for _ in range(2):
            assert await store.count_usage(held.turn_id, held.attempt, spent, call_id=new_call_id())
        turn = await store.running_turn(held.turn_id, held.attempt)
        assert turn is not None
        assert turn.usage == spent + spent

    async def test_of_another_attempt_or_an_ended_turn_are_not(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        call_id = new_call_id()
        assert not await store.count_usage(held.turn_id, held.attempt + 1, Usage(input_tokens=1), call_id=call_id)
        assert await store.running_turn(held.turn_id, held.attempt + 1) is None
        await store.settle(held, after=1, settlement=answered(held, "Done."))
        assert not await store.count_usage(held.turn_id, held.attempt, Usage(input_tokens=1), call_id=call_id)
        assert await store.running_turn(held.turn_id, held.attempt) is None

    async def test_are_never_counted_down(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        with pytest.raises(CallerError):
            await store.count_usage(held.turn_id, held.attempt, Usage(input_tokens=-1), call_id=new_call_id())

    async def test_of_one_call_are_counted_once_however_often_it_is_told(self, store: Store, tenant: Tenant) -> None:
        """Its answer was lost, so it is asked again, perhaps while the first is still on its way."""
        held, call_id = await begin(store, tenant.ann), new_call_id()
        spent = Usage(input_tokens=7, output_tokens=3)
        tellings = [store.count_usage(held.turn_id, held.attempt, spent, call_id=call_id) for _ in range(5)]
        others = [store.count_usage(held.turn_id, held.attempt, spent, call_id=new_call_id()) for _ in range(3)]
        assert all(await asyncio.gather(*tellings, *others))
        turn = await store.running_turn(held.turn_id, held.attempt)
        assert turn is not None
        assert turn.usage == Usage(input_tokens=28, output_tokens=12)
        await store.settle(held, after=1, settlement=answered(held, "Done."))
        assert not await store.count_usage(held.turn_id, held.attempt, spent, call_id=call_id)

    async def test_of_a_call_that_is_open_are_missing_until_they_are_counted(
        self, store: Store, tenant: Tenant
    ) -> None:
        held, call_id, other = await begin(store, tenant.ann), new_call_id(), new_call_id()
        which = (held.turn_id, held.attempt)
        await store.add_token(
            secrets.token_bytes(32),
            TokenBinding(purpose="run", turn_id=held.turn_id, attempt=held.attempt),
            expires_in_seconds=60,
        )
        await store.expire_tokens(held.turn_id)
        assert not await store.has_open_calls(*which)
        for each in (call_id, call_id, other):
            await store.open_call(*which, call_id=each)
        await store.expire_tokens(held.turn_id)
        assert await store.has_open_calls(*which)
        for _ in range(2):
            assert await store.count_usage(*which, Usage(input_tokens=7), call_id=call_id)
        assert await store.has_open_calls(*which)
        assert await store.count_usage(*which, Usage(input_tokens=7), call_id=other)
        await store.open_call(*which, call_id=other)
        assert not await store.has_open_calls(*which)
        turn = await store.running_turn(*which)
        assert turn is not None
        assert turn.usage.input_tokens == 14
