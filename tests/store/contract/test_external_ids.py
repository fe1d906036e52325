"""External ids of conversations: one conversation for each, however many requests ask for it; and filtered lists."""

import asyncio
from typing import Any

import pytest
from msgspec import structs

from tests.store.databases import Database
from tests.store.factories import (
    Tenant,
    a_claim,
    a_conversation,
    a_tenant,
    as_user,
    claim,
    finish,
    finish_with_tool,
    nothing_written,
)
from turnkeep.errors import CallerError, ExternalIdTaken, InvalidRequest
from turnkeep.ids import ConversationId
from turnkeep.model.agents import AgentSpec
from turnkeep.model.principals import Principal
from turnkeep.store.commands import ConversationFilter, NewConversation
from turnkeep.store.ports import Store

DOC = NewConversation(external_id="doc-1")


async def listed(store: Store, by: Principal, *, query: str | None = None, **only: Any) -> list[ConversationId]:
    page = await store.conversations(by, query=query, only=ConversationFilter(**only), limit=100)
    return [hit.conversation.id for hit in page.data]


async def found(store: Store, by: Principal, external_id: str = "doc-1") -> ConversationId | None:
    conversation = await store.conversation_of_host(by, external_id)
    return None if conversation is None else conversation.id


class TestAnExternalId:
    async def test_names_one_conversation_of_a_user(self, store: Store, tenant: Tenant, database: Database) -> None:
        made = await store.create_conversation(tenant.ann, DOC)
        assert made.external_id == "doc-1"
        assert await store.conversation_of_host(tenant.ann, "doc-1") == made
        async with nothing_written(database):
            with pytest.raises(ExternalIdTaken) as taken:
                await store.create_conversation(tenant.ann, DOC)
            assert taken.value.conversation_id == made.id
            with pytest.raises(ExternalIdTaken) as taken:
                await claim(store, tenant.ann, new=DOC)
            assert taken.value.conversation_id == made.id

    async def test_is_another_one_for_each_user_and_for_services(self, store: Store, tenant: Tenant) -> None:
        owners = [tenant.ann, tenant.bob, tenant.service]
        made = [(await store.create_conversation(by, DOC)).id for by in owners]
        assert [await found(store, by) for by in owners] == made
        assert await found(store, as_user(tenant.service, tenant.ann)) == made[0]
        other = await a_tenant(store, "Other")
        assert await found(store, other.ann) is None
        assert await found(store, other.service) is None
        assert (await store.create_conversation(other.service, DOC)).external_id == "doc-1"

    async def test_comes_with_the_first_turn(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann, new=DOC)
        conversation = await store.conversation_of_host(tenant.ann, "doc-1")
        assert conversation is not None
        assert (conversation.id, conversation.turn_count) == (turn.conversation_id, 1)

    async def test_does_not_hide_a_repeated_request(self, store: Store, tenant: Tenant) -> None:
        fields: dict[str, Any] = {"new": DOC, "idempotency_key": "k", "request_hash": "h"}
        first = await claim(store, tenant.ann, **fields)
        again = await claim(store, tenant.ann, **fields)
        assert (again.turn.id, again.is_new) == (first.turn.id, False)

    async def test_is_checked(self, store: Store, tenant: Tenant, database: Database) -> None:
        async with nothing_written(database):
            for bad in ("", "x" * 201, "a\0b", "\ud800"):
                with pytest.raises(CallerError):
                    await store.create_conversation(tenant.ann, NewConversation(external_id=bad))
                with pytest.raises(CallerError):
                    await claim(store, tenant.ann, new=NewConversation(external_id=bad))
                with pytest.raises(CallerError):
                    await store.conversation_of_host(tenant.ann, bad)
                with pytest.raises(CallerError):
                    await listed(store, tenant.ann, external_id=bad)
        assert (await a_conversation(store, tenant.ann, external_id="é" * 200)).external_id == "é" * 200


class TestManyAtOnce:
    async def test_make_one_conversation(self, store: Store, tenant: Tenant) -> None:
        made = await asyncio.gather(
            *(store.create_conversation(tenant.ann, DOC) for _ in range(50)), return_exceptions=True
        )
        [first] = [each for each in made if not isinstance(each, BaseException)]
        taken = [each.conversation_id for each in made if isinstance(each, ExternalIdTaken)]
        assert taken == [first.id] * 49

    async def test_claims_make_one_conversation_and_one_turn(self, store: Store, tenant: Tenant) -> None:
        claims = [a_claim(tenant.ann, new=DOC) for _ in range(50)]
        made = await asyncio.gather(*map(store.claim, claims), return_exceptions=True)
        [first] = [each for each in made if not isinstance(each, BaseException)]
        assert {each.conversation_id for each in made if isinstance(each, ExternalIdTaken)} == {
            first.turn.conversation_id
        }
        assert sum(isinstance(each, ExternalIdTaken) for each in made) == 49
        conversation = await store.conversation(tenant.ann, first.turn.conversation_id)
        assert (conversation.turn_count, conversation.external_id) == (1, "doc-1")

    async def test_of_different_ids_do_not_meet(self, store: Store, tenant: Tenant) -> None:
        claims = [
            a_claim(by, new=NewConversation(external_id=f"doc-{n}"))
            for n in range(10)
            for by in (tenant.ann, tenant.bob, tenant.service)
        ]
        made = await asyncio.gather(*map(store.claim, claims))
        assert len({each.turn.conversation_id for each in made}) == 30


class TestADeletedConversation:
    async def test_frees_its_external_id(self, store: Store, tenant: Tenant) -> None:
        first = await store.create_conversation(tenant.ann, DOC)
        await store.delete_conversation(tenant.ann, first.id)
        assert await found(store, tenant.ann) is None
        second = await finish(store, tenant.ann, new=DOC)
        assert second.conversation_id != first.id
        assert await listed(store, tenant.ann, external_id="doc-1") == [second.conversation_id]

    async def test_has_it_again_when_it_is_restored(self, store: Store, tenant: Tenant) -> None:
        made = await store.create_conversation(tenant.ann, DOC)
        await store.delete_conversation(tenant.ann, made.id)
        assert (await store.restore_conversation(tenant.ann, made.id)).external_id == "doc-1"
        assert (await store.restore_conversation(tenant.ann, made.id)).external_id == "doc-1"
        assert await found(store, tenant.ann) == made.id

    async def test_comes_back_without_it_if_it_was_taken(self, store: Store, tenant: Tenant) -> None:
        first = await store.create_conversation(tenant.ann, DOC)
        await store.delete_conversation(tenant.ann, first.id)
        second = await store.create_conversation(tenant.ann, DOC)
        assert (await store.restore_conversation(tenant.ann, first.id)).external_id is None
        assert (await store.conversation(tenant.ann, first.id)).external_id is None
        assert await found(store, tenant.ann) == second.id

    async def test_leaves_no_trace_of_it_once_it_is_erased(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        made = await a_conversation(store, tenant.ann, external_id="canary-of-a-host")
        await store.delete_conversation(tenant.ann, made.id)
        await store.purge(deleted_before=2**53)
        assert "canary-of-a-host" not in repr(await database.contents())


class TestAnExport:
    async def test_has_it_and_an_import_keeps_it_where_it_is_free(self, store: Store, tenant: Tenant) -> None:
        turn = await finish_with_tool(store, tenant.ann, new=DOC)
        exported = await store.export_conversation(tenant.service, turn.conversation_id)
        assert exported.conversation.external_id == "doc-1"
        for_bob = await store.import_conversation(tenant.bob, exported)
        assert for_bob.external_id == "doc-1"
        again = await store.import_conversation(tenant.bob, exported)
        assert (again.external_id, again.turn_count) == (None, 1)
        assert await found(store, tenant.bob) == for_bob.id

    async def test_of_a_wrong_one_is_refused(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann)
        exported = await store.export_conversation(tenant.service, turn.conversation_id)
        wrong = structs.replace(exported.conversation, external_id="x" * 201)
        with pytest.raises(CallerError, match="external_id"):
            await store.import_conversation(tenant.ann, structs.replace(exported, conversation=wrong))


class TestAFilteredList:
    async def test_has_what_every_filter_leaves(self, store: Store, tenant: Tenant, database: Database) -> None:
        agent = (await store.create_agent(tenant.service, AgentSpec(name="A"))).id
        made: dict[str, ConversationId] = {}
        kinds: dict[str, dict[str, Any]] = {
            "plain": {},
            "doc": {"external_id": "doc-1"},
            "agents": {"agent_id": agent},
            "sandbox": {"kind": "sandbox"},
            "run": {"kind": "run", "agent_id": agent},
            "both": {"external_id": "doc-2", "agent_id": agent, "kind": "sandbox"},
        }
        times: dict[str, int] = {}
        for name, fields in kinds.items():
            turn = await finish(store, tenant.ann, f"needle {name}", new=NewConversation(**fields))
            made[name] = turn.conversation_id
            times[name] = (await store.conversation(tenant.ann, turn.conversation_id)).updated_at
            await database.advance(seconds=1)
        theirs = (
            await finish(store, tenant.bob, "needle", new=NewConversation(agent_id=agent, external_id="doc-1"))
        ).conversation_id

        def ids(*names: str) -> list[ConversationId]:
            return [made[name] for name in names]

        for query in (None, "needle"):
            for by, more in ((tenant.ann, []), (tenant.service, [theirs])):
                cases: list[tuple[dict[str, Any], list[ConversationId]]] = [
                    ({"external_id": "doc-1"}, [*more, *ids("doc")]),
                    ({"external_id": "none"}, []),
                    ({"agent_id": agent}, [*more, *ids("both", "agents")]),
                    ({"kind": "run"}, ids("run")),
                    ({"kind": "sandbox"}, ids("both", "sandbox")),
                    ({"kind": "chat"}, [*more, *ids("agents", "doc", "plain")]),
                    ({"agent_id": agent, "kind": "run"}, ids("run")),
                    ({"agent_id": agent, "kind": "chat"}, [*more, *ids("agents")]),
                    ({"external_id": "doc-2", "agent_id": agent, "kind": "sandbox"}, ids("both")),
                    ({"external_id": "doc-2", "kind": "chat"}, []),
                    ({"since": times["sandbox"]}, [*more, *ids("both", "sandbox")]),
                    ({"since": times["sandbox"] + 1, "kind": "sandbox"}, ids("both")),
                    ({"since": times["run"], "agent_id": agent}, [*more, *ids("both")]),
                    ({"since": 2**53}, []),
                ]
                for only, expected in cases:
                    assert await listed(store, by, query=query, **only) == expected, (query, only)

    async def test_comes_in_pages_whose_cursors_belong_to_it(self, store: Store, tenant: Tenant) -> None:
        agent = (await store.create_agent(tenant.service, AgentSpec(name="A"))).id
        made = [
            (await finish(store, tenant.ann, new=NewConversation(agent_id=agent))).conversation_id for _ in range(5)
        ]
        only = ConversationFilter(agent_id=agent)
        seen: list[ConversationId] = []
        cursor: str | None = None
        while True:
            page = await store.conversations(tenant.ann, only=only, limit=2, cursor=cursor)
            seen.extend(hit.conversation.id for hit in page.data)
            if (cursor := page.next_cursor) is None:
                break
            with pytest.raises(InvalidRequest, match="another list"):
                await store.conversations(tenant.ann, cursor=cursor)
        assert sorted(seen) == sorted(made)
        assert len(seen) == 5

    async def test_shows_no_one_what_is_not_theirs(self, store: Store, tenant: Tenant) -> None:
        agent = (await store.create_agent(tenant.service, AgentSpec(name="A"))).id
        await finish(store, tenant.ann, new=NewConversation(agent_id=agent, external_id="doc-1", kind="sandbox"))
        other = await a_tenant(store, "Other")
        missing = structs.replace(tenant.ann, user_id=None)
        for stranger in (tenant.bob, other.ann, other.service, missing):
            for only in ({"external_id": "doc-1"}, {"agent_id": agent}, {"kind": "sandbox"}, {"since": 0}):
                assert await listed(store, stranger, **only) == []
            assert await found(store, stranger) is None
