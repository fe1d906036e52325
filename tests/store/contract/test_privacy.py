"""Who may see what, through the verbs: a stranger's id does not exist, and no user sees an internal row."""

import asyncio

import pytest
from msgspec import structs

from tests.store.databases import Database
from tests.store.factories import (
    Tenant,
    a_conversation,
    a_row,
    a_tenant,
    answered,
    as_user,
    begin,
    elsewhere,
    finish_with_tool,
    nothing_written,
)
from turnkeep.errors import Forbidden, NotFound
from turnkeep.ids import new_org_id, new_user_id, new_workspace_id
from turnkeep.model.principals import Principal
from turnkeep.store.ports import Store
from turnkeep_client.wire.blocks import Text

SECRET = "the-secret-of-the-model"


async def everything_a_user_can_read(store: Store, by: Principal, tenant: Tenant) -> str:
    """All answers to a user's reads, as one text."""
    seen: list[object] = []
    for query in (None, SECRET, "secret"):
        page = await store.conversations(by, query=query)
        seen.append(page)
        for hit in page.data:
            seen.append(await store.conversation(by, hit.conversation.id))
            seen.append(await store.conversation_with_queue(by, hit.conversation.id))
            transcript = await store.transcript(by, hit.conversation.id)
            seen.append(transcript)
            seen.extend([await store.turn(by, message.turn_id) for message in transcript.data])
            seen.append(await store.files(by, hit.conversation.id))
    seen.append(await store.agents(by))
    seen.append(await store.usage(by))
    return repr(seen)


class TestInternalRows:
    async def test_no_read_of_any_user_shows_one(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann, "Question")
        await store.record(held, after=1, rows=[a_row(held, 1, Text(text=SECRET))])
        await store.settle(held, after=1, settlement=answered(held, "Answer", sequence=2))
        conversation = await a_conversation(store, tenant.ann)
        await store.append(tenant.ann, conversation.id, elsewhere(conversation.id, "Q", SECRET, "A"))
        for by in (tenant.ann, structs.replace(tenant.ann, role="admin"), as_user(tenant.service, tenant.ann)):
            seen = await everything_a_user_can_read(store, by, tenant)
            assert "Question" in seen
            assert SECRET not in seen
        assert SECRET in repr(await store.trace(tenant.service, held.turn_id))

    async def test_a_service_key_of_one_workspace_sees_that_workspace_but_nothing_internal(
        self, store: Store, tenant: Tenant
    ) -> None:
        held = await begin(store, tenant.ann, "Question")
        await store.record(held, after=1, rows=[a_row(held, 1, Text(text=SECRET))])
        await store.settle(held, after=1, settlement=answered(held, "Answer", sequence=2))
        pinned = structs.replace(tenant.service, is_pinned=True)
        seen = await everything_a_user_can_read(store, pinned, tenant)
        assert "Question" in seen
        assert SECRET not in seen
        for attempt in (
            store.trace(pinned, held.turn_id),
            store.conversation_trace(pinned, held.conversation_id),
            store.export_conversation(pinned, held.conversation_id),
        ):
            with pytest.raises(Forbidden):
                await attempt


class TestStrangers:
    @pytest.mark.parametrize(
        "change",
        [
            pytest.param({"org_id": new_org_id()}, id="another-org"),
            pytest.param({"workspace_id": new_workspace_id()}, id="another-workspace"),
            pytest.param({"user_id": new_user_id()}, id="another-user"),
            pytest.param({"org_id": new_org_id(), "user_id": None, "role": "service"}, id="a-service-of-another-org"),
            pytest.param(
                {"workspace_id": new_workspace_id(), "user_id": None, "role": "service"},
                id="a-service-of-another-workspace",
            ),
        ],
    )
    async def test_one_wrong_piece_of_identity_and_nothing_is_there(
        self, store: Store, tenant: Tenant, database: Database, change: dict[str, object]
    ) -> None:
        turn = await finish_with_tool(store, tenant.ann, "needle")
        await store.index_pending()
        stranger = structs.replace(tenant.ann, **change)
        async with nothing_written(database):
            for attempt in (
                store.conversation(stranger, turn.conversation_id),
                store.conversation_with_queue(stranger, turn.conversation_id),
                store.transcript(stranger, turn.conversation_id),
                store.turn(stranger, turn.id),
                store.request_cancel(stranger, turn.id),
                store.add_notes(stranger, turn.id, {"a": 1}),
                store.files(stranger, turn.conversation_id),
            ):
                with pytest.raises(NotFound):
                    await attempt
            assert (await store.conversations(stranger)).data == ()
            assert (await store.conversations(stranger, query="needle")).data == ()

    async def test_a_foreign_id_and_an_unknown_one_get_the_same_answer(self, store: Store, tenant: Tenant) -> None:
        turn = await finish_with_tool(store, tenant.ann)
        stranger = await a_tenant(store, "Other")
        unknown = await finish_with_tool(store, tenant.ann)
        await store.delete_conversation(tenant.ann, unknown.conversation_id)
        answers = set()
        for conversation_id in (turn.conversation_id, unknown.conversation_id):
            with pytest.raises(NotFound) as refused:
                await store.conversation(stranger.ann, conversation_id)
            answers.add((type(refused.value), refused.value.detail))
        assert len(answers) == 1


class TestTwoTenantsOnOneStore:
    async def test_a_thousand_interleaved_reads_mix_nothing(self, store: Store, tenant: Tenant) -> None:
        stranger = await a_tenant(store, "Other")
        owners = [tenant.ann, tenant.bob, stranger.ann, stranger.bob]
        turns = {owner.user_id: await finish_with_tool(store, owner, f"by {owner.user_id}") for owner in owners}

        async def read(owner: Principal, other: Principal) -> None:
            page = await store.conversations(owner)
            assert [hit.conversation.user_id for hit in page.data] == [owner.user_id]
            transcript = await store.transcript(owner, turns[owner.user_id].conversation_id)
            assert f"by {owner.user_id}" in repr(transcript)
            with pytest.raises(NotFound):
                await store.transcript(owner, turns[other.user_id].conversation_id)

        await asyncio.gather(*(read(owners[n % 4], owners[(n + 1 + n // 4 % 3) % 4]) for n in range(333)))
