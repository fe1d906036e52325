"""Feedback: one rating for each user and turn, which the user changes and removes, and admins read."""

import pytest

from tests.store.databases import Database
from tests.store.factories import Tenant, a_tenant, begin, finish
from turnkeep.errors import Conflict, Forbidden, InvalidRequest, NotFound, TooLarge
from turnkeep.ids import new_turn_id
from turnkeep.model.agents import AgentSpec
from turnkeep.model.turns import RatedTurn
from turnkeep.store.commands import NewConversation
from turnkeep.store.ports import Store
from turnkeep_client.wire.blocks import Usage


async def all_of(store: Store, tenant: Tenant) -> list[RatedTurn]:
    return list((await store.all_feedback(tenant.org.id, tenant.workspace.id)).data)


class TestARating:
    async def test_is_given_changed_and_removed(self, store: Store, tenant: Tenant, database: Database) -> None:
        turn = await finish(store, tenant.ann)
        first = await store.rate_turn(tenant.ann, turn.id, "down", "  Too short.\n")
        assert (first.rating, first.comment, first.user_id) == ("down", "Too short.", tenant.ann.user_id)
        assert (first.turn_id, first.conversation_id) == (turn.id, turn.conversation_id)
        await database.advance(seconds=1)
        second = await store.rate_turn(tenant.ann, turn.id, "up", " ")
        assert (second.rating, second.comment) == ("up", None)
        assert (second.created_at, second.updated_at) == (first.created_at, first.created_at + 1_000)
        assert await store.feedback_of(tenant.ann, turn.conversation_id) == [second]
        await store.delete_feedback(tenant.ann, turn.id)
        assert await store.feedback_of(tenant.ann, turn.conversation_id) == []
        with pytest.raises(NotFound):
            await store.delete_feedback(tenant.ann, turn.id)

    async def test_is_of_an_own_answer_that_has_ended(self, store: Store, tenant: Tenant, database: Database) -> None:
        turn = await finish(store, tenant.ann)
        running = await begin(store, tenant.ann)
        other = await a_tenant(store, "Other")
        for by in (tenant.bob, other.ann):
            with pytest.raises(NotFound):
                await store.rate_turn(by, turn.id, "up")
        with pytest.raises(Forbidden):
            await store.rate_turn(tenant.service, turn.id, "up")
        with pytest.raises(Conflict):
            await store.rate_turn(tenant.ann, running.turn_id, "up")
        with pytest.raises(NotFound):
            await store.rate_turn(tenant.ann, new_turn_id(), "up")
        with pytest.raises(TooLarge):
            await store.rate_turn(tenant.ann, turn.id, "up", "x" * 4_001)
        await store.delete_conversation(tenant.ann, turn.conversation_id)
        with pytest.raises(NotFound):
            await store.rate_turn(tenant.ann, turn.id, "up")
        assert (await database.contents())["feedback"] == []

    async def test_is_not_read_by_others(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann)
        await store.rate_turn(tenant.ann, turn.id, "up", "Mine")
        assert await store.feedback_of(tenant.bob, turn.conversation_id) == []
        assert await store.feedback_of(tenant.service, turn.conversation_id) == []
        with pytest.raises(NotFound):
            await store.delete_feedback(tenant.bob, turn.id)
        other = await a_tenant(store, "Other")
        assert await all_of(store, other) == []


class TestTheList:
    async def test_says_what_the_turn_ran_with(self, store: Store, tenant: Tenant) -> None:
        agent = await store.create_agent(tenant.service, AgentSpec(name="A"))
        new = NewConversation(agent_id=agent.id)
        turn = await finish(store, tenant.ann, new=new, model="demo/echo")
        await store.rate_turn(tenant.ann, turn.id, "down", "Wrong.")
        [rated] = await all_of(store, tenant)
        assert (rated.feedback.comment, rated.model) == ("Wrong.", "demo/echo")
        assert rated.usage == Usage(input_tokens=10, output_tokens=5)

    async def test_is_newest_first_narrowed_and_in_pages(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        made = []
        for n in range(5):
            turn = await finish(store, (tenant.ann, tenant.bob)[n % 2])
            made.append(await store.rate_turn((tenant.ann, tenant.bob)[n % 2], turn.id, ("up", "down")[n % 2]))
            await database.advance(seconds=n % 2)
        where = (tenant.org.id, tenant.workspace.id)
        found, cursor = [], None
        while True:
            page = await store.all_feedback(*where, limit=2, cursor=cursor)
            assert len(page.data) <= 2
            found += [rated.feedback for rated in page.data]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert found == sorted(made, key=lambda one: (one.created_at, one.turn_id), reverse=True)
        downs = (await store.all_feedback(*where, rating="down")).data
        assert {rated.feedback.user_id for rated in downs} == {tenant.bob.user_id}
        late = (await store.all_feedback(*where, since=made[-1].created_at)).data
        assert [rated.feedback.turn_id for rated in late] == [made[-1].turn_id]
        with pytest.raises(InvalidRequest):
            await store.all_feedback(*where, cursor="x")

    async def test_has_nothing_of_a_deleted_conversation(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann)
        await store.rate_turn(tenant.ann, turn.id, "up", "Gone soon")
        await store.delete_conversation(tenant.ann, turn.conversation_id)
        assert await all_of(store, tenant) == []
        await store.restore_conversation(tenant.ann, turn.conversation_id)
        assert len(await all_of(store, tenant)) == 1

    async def test_goes_with_a_purged_conversation(self, store: Store, tenant: Tenant, database: Database) -> None:
        turn = await finish(store, tenant.ann)
        await store.rate_turn(tenant.ann, turn.id, "up")
        await store.delete_conversation(tenant.ann, turn.conversation_id)
        await store.purge(deleted_before=database.now + 1)
        assert (await database.contents())["feedback"] == []
