"""The directory: orgs, workspaces, members, keys, agents."""

import asyncio
import secrets
from typing import Any

import pytest
from msgspec import structs

from tests.store.databases import Database, PostgresDatabase
from tests.store.factories import (
    Tenant,
    a_conversation,
    a_key,
    a_tenant,
    begin,
    claim,
    finish,
    nothing_written,
    save_agent,
    save_member,
    save_workspace,
    wait_in_queue,
)
from turnkeep.errors import CallerError, Conflict, Forbidden, InvalidRequest, NotFound
from turnkeep.ids import OrgId, UserId, new_agent_id, new_connection_id, new_key_id, new_org_id, new_workspace_id
from turnkeep.model.agents import Agent, AgentSpec, McpConnection, Snapshot
from turnkeep.model.principals import Member, Principal, Scopes, Workspace
from turnkeep.store.ports import Store

BAD_NAMES = ["", "   ", "n" * 201, "a\0b", "\udfff"]


class TestOrgs:
    async def test_an_org_has_a_default_workspace_from_the_start(self, store: Store, database: Database) -> None:
        org, workspace = await store.create_org("Acme")
        assert (org.name, org.created_at) == ("Acme", database.now)
        assert workspace.is_default
        assert workspace.org_id == org.id
        assert (workspace.monthly_message_limit, workspace.user_monthly_message_limit) == (None, None)
        assert org in await store.orgs()
        assert await store.workspace(org.id) == workspace
        assert await store.workspaces(org.id) == [workspace]

    async def test_the_first_one_is_made_once_however_many_servers_start(self, store: Store) -> None:
        made = await asyncio.gather(*(store.first_org("Home") for _ in range(8)))
        assert await store.orgs() == [made[0]] == [(await store.first_org("Other"))]
        assert {org.id for org in made} == {made[0].id}
        assert (await store.workspace(made[0].id)).is_default

    @pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
    async def test_a_name_that_cannot_be_kept_is_refused(self, store: Store, database: Database, name: str) -> None:
        async with nothing_written(database):
            with pytest.raises(CallerError):
                await store.create_org(name)


class TestWorkspaces:
    async def test_another_one(self, store: Store, tenant: Tenant) -> None:
        made = await store.create_workspace(tenant.org.id, "Lab", model="m-1")
        assert (made.name, made.model, made.is_default) == ("Lab", "m-1", False)
        assert await store.workspace(tenant.org.id, made.id) == made
        assert await store.workspace(tenant.org.id) == tenant.workspace
        assert {workspace.id for workspace in await store.workspaces(tenant.org.id)} == {
            tenant.workspace.id,
            made.id,
        }

    async def test_changing_name_model_and_limits(self, store: Store, tenant: Tenant) -> None:
        wanted = structs.replace(
            tenant.workspace, name="New", model="m-2", monthly_message_limit=5, user_monthly_message_limit=0
        )
        assert await save_workspace(store, wanted) == wanted
        assert await store.workspace(tenant.org.id) == wanted
        back = structs.replace(wanted, model=None, monthly_message_limit=None, user_monthly_message_limit=None)
        assert await save_workspace(store, back) == back

    async def test_changes_at_the_same_time_all_stand(self, store: Store, tenant: Tenant) -> None:
        org_id, place = tenant.org.id, tenant.workspace.id
        ann = await store.ensure_member(org_id, place, "ann")
        agent = await store.create_agent(tenant.service, AgentSpec(name="A"))

        def add_workspace(before: Workspace) -> Workspace:
            return structs.replace(before, monthly_message_limit=(before.monthly_message_limit or 0) + 1)

        def add_member(before: Member) -> Member:
            return structs.replace(before, monthly_message_limit=(before.monthly_message_limit or 0) + 1)

        def add_agent(before: AgentSpec) -> AgentSpec:
            return structs.replace(before, name=before.name + "a")

        for _ in range(3):
            await asyncio.gather(
                *(store.change_workspace(org_id, place, add_workspace) for _ in range(10)),
                *(store.change_member(org_id, place, ann.id, add_member) for _ in range(10)),
                *(store.change_agent(tenant.service, agent.id, add_agent) for _ in range(10)),
            )
        assert (await store.workspace(org_id)).monthly_message_limit == 30
        assert (await store.member(org_id, place, "ann")).monthly_message_limit == 30
        assert (await store.agent(tenant.service, agent.id)).spec.name == "A" + "a" * 30

    async def test_a_change_that_is_refused_stores_nothing(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        ann = await store.ensure_member(tenant.org.id, tenant.workspace.id, "ann")
        agent = await store.create_agent(tenant.service, AgentSpec(name="A"))

        def refuse(before: object) -> Any:
            raise Forbidden("no")

        async with nothing_written(database):
            for attempt in (
                store.change_workspace(tenant.org.id, tenant.workspace.id, refuse),
                store.change_member(tenant.org.id, tenant.workspace.id, ann.id, refuse),
                store.change_agent(tenant.service, agent.id, refuse),
            ):
                with pytest.raises(Forbidden, match="no"):
                    await attempt

    async def test_what_a_change_must_not_touch_stays(self, store: Store, tenant: Tenant) -> None:
        forged = structs.replace(tenant.workspace, is_default=False, created_at=1)
        await save_workspace(store, forged)
        assert await store.workspace(tenant.org.id) == tenant.workspace

    async def test_of_another_org_it_is_not_found(self, store: Store, tenant: Tenant, database: Database) -> None:
        stranger = await a_tenant(store, "Other")
        async with nothing_written(database):
            for attempt in (
                store.workspace(stranger.org.id, tenant.workspace.id),
                store.workspace(tenant.org.id, new_workspace_id()),
                store.workspace(new_org_id()),
                save_workspace(store, structs.replace(tenant.workspace, org_id=stranger.org.id)),
                store.delete_workspace(stranger.org.id, tenant.workspace.id),
                store.create_workspace(new_org_id(), "Lab"),
                store.ensure_member(stranger.org.id, tenant.workspace.id, "eve"),
            ):
                with pytest.raises(NotFound):
                    await attempt
        assert await store.workspaces(new_org_id()) == []

    async def test_deleting_an_empty_one(self, store: Store, tenant: Tenant) -> None:
        made = await store.create_workspace(tenant.org.id, "Lab")
        await store.delete_workspace(tenant.org.id, made.id)
        assert await store.workspaces(tenant.org.id) == [tenant.workspace]
        with pytest.raises(NotFound):
            await store.workspace(tenant.org.id, made.id)

    async def test_not_the_default_one(self, store: Store, tenant: Tenant, database: Database) -> None:
        async with nothing_written(database):
            with pytest.raises(Conflict):
                await store.delete_workspace(tenant.org.id, tenant.workspace.id)

    async def test_not_one_with_conversations_even_deleted_until_they_are_purged(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        made = await store.create_workspace(tenant.org.id, "Lab")
        there = structs.replace(tenant.service, workspace_id=made.id)
        conversation = await a_conversation(store, there)
        with pytest.raises(Conflict):
            await store.delete_workspace(tenant.org.id, made.id)
        await store.delete_conversation(there, conversation.id)
        with pytest.raises(Conflict):
            await store.delete_workspace(tenant.org.id, made.id)
        await store.purge(deleted_before=database.now + 1)
        await store.delete_workspace(tenant.org.id, made.id)
        with pytest.raises(NotFound):
            await store.workspace(tenant.org.id, made.id)

    async def test_with_members_and_agents_it_can_be_deleted(self, store: Store, tenant: Tenant) -> None:
        made = await store.create_workspace(tenant.org.id, "Lab")
        await store.ensure_member(tenant.org.id, made.id, "ann")
        there = structs.replace(tenant.service, workspace_id=made.id)
        await store.create_agent(there, AgentSpec(name="Guide"))
        await store.delete_workspace(tenant.org.id, made.id)
        assert await store.workspaces(tenant.org.id) == [tenant.workspace]

    @pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
    async def test_a_name_that_cannot_be_kept_is_refused(
        self, store: Store, tenant: Tenant, database: Database, name: str
    ) -> None:
        async with nothing_written(database):
            with pytest.raises(CallerError):
                await store.create_workspace(tenant.org.id, name)
            with pytest.raises(CallerError):
                await save_workspace(store, structs.replace(tenant.workspace, name=name))

    @pytest.mark.parametrize("limit", [-1, 2**70, "5", 1.5])
    async def test_a_limit_that_is_none_is_refused(
        self, store: Store, tenant: Tenant, database: Database, limit: int
    ) -> None:
        async with nothing_written(database):
            for field in ("monthly_message_limit", "user_monthly_message_limit"):
                with pytest.raises(CallerError):
                    await save_workspace(store, structs.replace(tenant.workspace, **{field: limit}))


class TestMembers:
    async def test_a_member_is_made_on_first_sight_and_found_again(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        first = await store.ensure_member(tenant.org.id, tenant.workspace.id, "carl")
        assert (first.external_id, first.role, first.created_at) == ("carl", "member", database.now)
        async with nothing_written(database):
            assert await store.ensure_member(tenant.org.id, tenant.workspace.id, "carl") == first

    async def test_a_given_role_is_stored_and_stays(self, store: Store, tenant: Tenant) -> None:
        where = (tenant.org.id, tenant.workspace.id)
        assert (await store.ensure_member(*where, "carl", role="admin")).role == "admin"
        assert (await store.ensure_member(*where, "carl")).role == "admin"
        assert (await store.ensure_member(*where, "carl", role="member")).role == "member"

    async def test_twenty_at_once_are_one(self, store: Store, tenant: Tenant) -> None:
        members = await asyncio.gather(
            *(store.ensure_member(tenant.org.id, tenant.workspace.id, "carl") for _ in range(20))
        )
        assert len({member.id for member in members}) == 1
        assert len((await store.members(tenant.org.id, tenant.workspace.id)).data) == 3

    async def test_the_same_name_in_another_workspace_is_another_member(self, store: Store, tenant: Tenant) -> None:
        other = await store.create_workspace(tenant.org.id, "Lab")
        there = await store.ensure_member(tenant.org.id, other.id, "ann")
        assert there.id != tenant.ann.user_id
        assert (await store.members(tenant.org.id, other.id)).data == (there,)

    @pytest.mark.parametrize("name", ["", "a\0b", "\udfff", "n" * 10_000_000], ids=lambda text: ascii(text)[:12])
    async def test_a_name_that_cannot_be_kept_is_refused(
        self, store: Store, tenant: Tenant, database: Database, name: str
    ) -> None:
        async with nothing_written(database):
            with pytest.raises(CallerError):
                await store.ensure_member(tenant.org.id, tenant.workspace.id, name)

    async def test_are_found_by_id_by_host_id_and_by_a_part_of_their_names(self, store: Store, tenant: Tenant) -> None:
        where = (tenant.org.id, tenant.workspace.id)
        carl = await store.ensure_member(*where, "carl@example.com")
        twin = await store.ensure_member(*where, carl.id)
        assert await store.member(*where, "carl@example.com") == await store.member(*where, carl.id) == carl
        assert await store.member_of_host(*where, carl.id) == twin, "the id of another does not count as a host id"
        assert await store.member_of_host(*where, "nobody") is None
        named = await save_member(store, tenant.org.id, structs.replace(carl, name="Charles"))
        for query, found in (("CARL@", [named]), ("harle", [named]), ("%", []), ("example_com", [])):
            assert list((await store.members(*where, query=query)).data) == found
        assert set(await store.members_by_id(tenant.org.id, [carl.id, twin.id])) == {named, twin}
        with pytest.raises(NotFound):
            await store.member(*where, "nobody")

    async def test_are_listed_in_pages(self, store: Store, tenant: Tenant) -> None:
        where = (tenant.org.id, tenant.workspace.id)
        for n in range(3):
            await store.ensure_member(*where, f"user {n}")
        seen: list[str] = []
        cursor = None
        for _ in range(3):
            page = await store.members(*where, limit=2, cursor=cursor)
            seen += [member.external_id for member in page.data]
            cursor = page.next_cursor
        assert seen == ["ann", "bob", "user 0", "user 1", "user 2"]
        assert cursor is None

    async def test_keep_what_is_changed(self, store: Store, tenant: Tenant) -> None:
        stranger = await a_tenant(store, "Other")
        [ann] = await store.members_by_id(tenant.org.id, [tenant.ann.user_id or UserId("")])
        changed = structs.replace(
            ann,
            name="Ann",
            role="admin",
            is_disabled=True,
            monthly_message_limit=1,
            monthly_token_limit=2**40,
            monthly_cost_limit=0.5,
        )
        assert await save_member(store, tenant.org.id, changed) == changed
        assert await store.ensure_member(tenant.org.id, tenant.workspace.id, "ann") == changed
        assert await store.members_by_id(stranger.org.id, [ann.id]) == []
        with pytest.raises(NotFound):
            await save_member(store, stranger.org.id, ann)
        for wrong in ({"monthly_token_limit": -1}, {"monthly_cost_limit": -0.1}, {"monthly_cost_limit": float("nan")}):
            with pytest.raises(InvalidRequest):
                await save_member(store, tenant.org.id, structs.replace(ann, **wrong))

    async def test_have_open_turns_that_can_be_found(self, store: Store, tenant: Tenant) -> None:
        assert tenant.ann.user_id is not None
        running = await begin(store, tenant.ann)
        waiting = await wait_in_queue(store, tenant.ann, running.conversation_id)
        await finish(store, tenant.ann)
        await begin(store, tenant.bob)
        assert await store.open_turns(tenant.org.id, tenant.ann.user_id) == [waiting.id, running.turn_id]

    async def test_an_unknown_role_is_refused(self, store: Store, tenant: Tenant, database: Database) -> None:
        async with nothing_written(database):
            with pytest.raises(CallerError):
                await store.ensure_member(tenant.org.id, tenant.workspace.id, "carl", role="owner")


class TestKeys:
    async def test_a_key_is_found_by_the_hash_of_its_secret(self, store: Store, tenant: Tenant) -> None:
        key = a_key(tenant.org, name="ci", monthly_message_limit=9, requests_per_minute=60, allowed_tools=("a", "b"))
        secret = secrets.token_bytes(32)
        await store.add_key(key, secret)
        assert await store.key_by_hash(secret) == key
        assert key in await store.keys(tenant.org.id)

    async def test_no_tools_at_all_is_not_the_same_as_all_of_them(self, store: Store, tenant: Tenant) -> None:
        for tools in ((), None):
            key, secret = a_key(tenant.org, allowed_tools=tools), secrets.token_bytes(32)
            await store.add_key(key, secret)
            found = await store.key_by_hash(secret)
            assert found is not None
            assert found.allowed_tools == tools

    async def test_any_other_hash_finds_nothing(self, store: Store, tenant: Tenant) -> None:
        secret = secrets.token_bytes(32)
        await store.add_key(a_key(tenant.org), secret)
        for wrong in (secrets.token_bytes(32), secret[:-1], secret + b"\0", b""):
            assert await store.key_by_hash(wrong) is None

    async def test_a_revoked_key_opens_nothing_but_is_still_listed(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        key, secret = a_key(tenant.org), secrets.token_bytes(32)
        await store.add_key(key, secret)
        await store.revoke_key(tenant.org.id, key.id)
        assert await store.key_by_hash(secret) is None
        revoked = next(each for each in await store.keys(tenant.org.id) if each.id == key.id)
        assert revoked.revoked_at == database.now
        await database.advance(seconds=1)
        await store.revoke_key(tenant.org.id, key.id)

    async def test_with_a_revoked_key_end_the_keys_that_it_made(self, store: Store, tenant: Tenant) -> None:
        maker = a_key(tenant.org)
        made = a_key(tenant.org, ancestors=(maker.id,))
        last = a_key(tenant.org, ancestors=(made.id, maker.id))
        other = a_key(tenant.org)
        hashes = {key.id: secrets.token_bytes(32) for key in (maker, made, last, other)}
        for key in (maker, made, last, other):
            await store.add_key(key, hashes[key.id])
        await store.revoke_key(tenant.org.id, made.id)
        assert [await store.key_by_hash(hashes[key.id]) for key in (maker, made, last, other)] == [
            maker,
            None,
            None,
            other,
        ]
        with pytest.raises(Forbidden, match="revoked"):
            await store.add_key(a_key(tenant.org, ancestors=(made.id, maker.id)), secrets.token_bytes(32))
        await store.add_key(last, hashes[last.id])  # a repeat, whose first answer was lost

    async def test_the_keys_that_it_made_can_be_kept(self, store: Store, tenant: Tenant) -> None:
        old = a_key(tenant.org)
        new, secret = a_key(tenant.org, ancestors=(old.id,)), secrets.token_bytes(32)
        await store.add_key(old, secrets.token_bytes(32))
        await store.add_key(new, secret)
        await store.revoke_key(tenant.org.id, old.id, keeps_made=True)
        assert await store.key_by_hash(secret) == new
        await store.add_key(a_key(tenant.org, ancestors=(new.id, old.id)), secrets.token_bytes(32))

    async def test_no_key_slips_through_while_its_maker_is_revoked(self, store: Store, tenant: Tenant) -> None:
        maker = a_key(tenant.org)
        await store.add_key(maker, secrets.token_bytes(32))
        hashes = [secrets.token_bytes(32) for _ in range(20)]
        adding = [store.add_key(a_key(tenant.org, ancestors=(maker.id,)), each) for each in hashes]
        await asyncio.gather(
            *adding[:10], store.revoke_key(tenant.org.id, maker.id), *adding[10:], return_exceptions=True
        )
        assert [await store.key_by_hash(each) for each in hashes] == [None] * 20

    async def test_keys_are_found_by_id(self, store: Store, tenant: Tenant) -> None:
        keys = [a_key(tenant.org, requests_per_minute=n) for n in range(3)]
        for key in keys:
            await store.add_key(key, secrets.token_bytes(32))
        await store.revoke_key(tenant.org.id, keys[1].id)
        stranger = await a_tenant(store, "Other")
        found = await store.keys_by_id(tenant.org.id, [keys[0].id, keys[1].id, new_key_id()])
        assert {key.id: key.revoked_at is None for key in found} == {keys[0].id: True, keys[1].id: False}
        assert await store.keys_by_id(stranger.org.id, [keys[0].id]) == []

    async def test_a_key_of_another_org_or_none_is_not_found(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        key, secret = a_key(tenant.org), secrets.token_bytes(32)
        await store.add_key(key, secret)
        stranger = await a_tenant(store, "Other")
        async with nothing_written(database):
            with pytest.raises(NotFound):
                await store.revoke_key(stranger.org.id, key.id)
            with pytest.raises(NotFound):
                await store.revoke_key(tenant.org.id, new_key_id())
        assert await store.key_by_hash(secret) == key
        assert key not in await store.keys(stranger.org.id)

    async def test_a_pinned_key_is_of_its_workspace_alone(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        other = await store.create_workspace(tenant.org.id, "Lab")
        key, secret = a_key(tenant.org, workspace_id=other.id), secrets.token_bytes(32)
        await store.add_key(key, secret)
        assert await store.key_by_hash(secret) == key
        assert await store.keys(tenant.org.id, workspace_id=other.id) == [key]
        assert await store.keys(tenant.org.id, workspace_id=tenant.workspace.id) == []
        everything = await store.keys(tenant.org.id)
        assert [each.workspace_id for each in everything] == [None, other.id]
        async with nothing_written(database):
            for foreign, workspace in ((key, tenant.workspace), (everything[0], other)):
                with pytest.raises(NotFound):
                    await store.revoke_key(tenant.org.id, foreign.id, workspace_id=workspace.id)
        await store.revoke_key(tenant.org.id, key.id, workspace_id=other.id)
        assert await store.key_by_hash(secret) is None

    async def test_it_cannot_be_pinned_to_a_workspace_of_another_org_or_none(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        stranger = await a_tenant(store, "Other")
        async with nothing_written(database):
            for workspace_id in (stranger.workspace.id, new_workspace_id()):
                with pytest.raises(NotFound):
                    await store.add_key(a_key(tenant.org, workspace_id=workspace_id), secrets.token_bytes(32))

    async def test_a_pinned_key_goes_with_its_workspace(self, store: Store, tenant: Tenant) -> None:
        other = await store.create_workspace(tenant.org.id, "Lab")
        secret = secrets.token_bytes(32)
        await store.add_key(a_key(tenant.org, workspace_id=other.id), secret)
        await store.delete_workspace(tenant.org.id, other.id)
        assert await store.key_by_hash(secret) is None
        assert [key.workspace_id for key in await store.keys(tenant.org.id)] == [None]

    async def test_the_secret_is_nowhere_in_what_is_shown(self, store: Store, tenant: Tenant) -> None:
        key, secret = a_key(tenant.org), secrets.token_bytes(32)
        await store.add_key(key, secret)
        assert repr(secret) not in repr(await store.keys(tenant.org.id))
        assert secret.hex() not in repr(await store.keys(tenant.org.id))

    @pytest.mark.parametrize(
        "fields",
        [{"name": ""}, {"name": "a\0b"}, {"monthly_message_limit": -1}, {"allowed_tools": ("\ud800",)}],
        ids=ascii,
    )
    async def test_values_that_cannot_be_kept_are_refused(
        self, store: Store, tenant: Tenant, database: Database, fields: dict[str, object]
    ) -> None:
        async with nothing_written(database):
            with pytest.raises(CallerError):
                await store.add_key(a_key(tenant.org, **fields), secrets.token_bytes(32))

    async def test_a_key_for_an_org_that_does_not_exist_is_refused(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        async with nothing_written(database):
            with pytest.raises(CallerError):
                await store.add_key(
                    structs.replace(a_key(tenant.org), org_id=OrgId(new_org_id())), secrets.token_bytes(32)
                )


class TestAgents:
    async def test_created_read_changed_deleted(self, store: Store, tenant: Tenant, database: Database) -> None:
        spec = AgentSpec(
            name="Guide",
            instructions="Be kind. \U0001f600",
            model="m-1",
            tools=("weather", {"name": "http", "idempotent": True}),
            mcp_servers=({"url": "https://example.org"},),
            sandbox=True,
            environment={"A": "b"},
        )
        created = await store.create_agent(tenant.service, spec)
        assert created.spec == spec
        assert created.workspace_id == tenant.workspace.id
        assert created.created_at == created.updated_at == database.now
        assert await store.agent(tenant.ann, created.id) == created
        await database.advance(seconds=1)
        renamed = structs.replace(spec, name="Other")
        changed = await save_agent(store, tenant.service, created.id, renamed)
        assert changed == structs.replace(created, spec=renamed, updated_at=database.now)
        assert await store.agent(tenant.ann, created.id) == changed
        await store.delete_agent(tenant.service, created.id)
        for attempt in (
            store.agent(tenant.ann, created.id),
            save_agent(store, tenant.service, created.id, spec),
            store.delete_agent(tenant.service, created.id),
        ):
            with pytest.raises(NotFound):
                await attempt
        assert (await store.agents(tenant.ann)).data == ()

    async def test_newest_first_and_page_by_page(self, store: Store, tenant: Tenant) -> None:
        made = [await store.create_agent(tenant.service, AgentSpec(name=f"A{n}")) for n in range(5)]
        met: list[Agent] = []
        cursor: str | None = None
        while not met or cursor is not None:
            page = await store.agents(tenant.ann, limit=2, cursor=cursor)
            met += page.data
            cursor = page.next_cursor
        assert met == made[::-1]

    async def test_outside_of_the_scopes_take_no_place_on_a_page(self, store: Store, tenant: Tenant) -> None:
        made = [await store.create_agent(tenant.service, AgentSpec(name=f"A{n}")) for n in range(6)]
        by = structs.replace(tenant.ann, scopes=Scopes(agents=tuple(agent.id for agent in made[::2])))
        first = await store.agents(by, limit=2)
        assert first.data == (made[4], made[2])
        assert (await store.agents(by, limit=2, cursor=first.next_cursor)).data == (made[0],)
        assert (await store.agents(structs.replace(by, scopes=Scopes(agents=())))).data == ()
        assert len((await store.agents(structs.replace(by, scopes=Scopes()))).data) == 6

    async def test_of_another_workspace_they_do_not_exist(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        agent = await store.create_agent(tenant.service, AgentSpec(name="Guide"))
        stranger = await a_tenant(store, "Other")
        other = structs.replace(tenant.service, workspace_id=(await store.create_workspace(tenant.org.id, "Lab")).id)
        async with nothing_written(database):
            for by in (stranger.service, other):
                assert (await store.agents(by)).data == ()
                for attempt in (
                    store.agent(by, agent.id),
                    save_agent(store, by, agent.id, AgentSpec(name="Stolen")),
                    store.delete_agent(by, agent.id),
                ):
                    with pytest.raises(NotFound):
                        await attempt
            with pytest.raises(NotFound):
                await store.agent(tenant.service, new_agent_id())

    @pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
    async def test_a_name_that_cannot_be_kept_is_refused(
        self, store: Store, tenant: Tenant, database: Database, name: str
    ) -> None:
        async with nothing_written(database):
            with pytest.raises(CallerError):
                await store.create_agent(tenant.service, AgentSpec(name=name))

    async def test_a_name_is_given_once_in_a_workspace(self, store: Store, tenant: Tenant, database: Database) -> None:
        guide = await store.create_agent(tenant.service, AgentSpec(name="Straße"))
        other = await store.create_agent(tenant.service, AgentSpec(name="Other"))
        async with nothing_written(database):
            for name in ("Straße", "STRASSE", " strasse "):
                with pytest.raises(Conflict, match="Choose another name"):
                    await store.create_agent(tenant.service, AgentSpec(name=name))
                with pytest.raises(Conflict, match="Choose another name"):
                    await save_agent(store, tenant.service, other.id, AgentSpec(name=name))
        await save_agent(store, tenant.service, guide.id, AgentSpec(name="STRASSE"))
        stranger = await a_tenant(store, "Stranger")
        await store.create_agent(stranger.service, AgentSpec(name="Straße"))
        lab = structs.replace(tenant.service, workspace_id=(await store.create_workspace(tenant.org.id, "Lab")).id)
        await store.create_agent(lab, AgentSpec(name="Straße"))
        await store.delete_agent(tenant.service, guide.id)
        assert (await save_agent(store, tenant.service, other.id, AgentSpec(name="Straße"))).spec.name == "Straße"

    async def test_of_many_who_come_with_one_name_one_gets_it(self, store: Store, tenant: Tenant) -> None:
        attempts = (store.create_agent(tenant.service, AgentSpec(name="Guide")) for _ in range(8))
        made = await asyncio.gather(*attempts, return_exceptions=True)
        assert sum(isinstance(each, Agent) for each in made) == 1
        assert sum(isinstance(each, Conflict) for each in made) == 7

    async def test_those_that_share_a_name_since_an_earlier_release_keep_it(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        first = await store.create_agent(tenant.service, AgentSpec(name="Guide"))
        second = await store.create_agent(tenant.service, AgentSpec(name="Guide 2"))
        prefix = "turnkeep." if isinstance(database, PostgresDatabase) else ""
        await database.execute(f"UPDATE {prefix}agents SET name_key = NULL")
        await database.execute(f"UPDATE {prefix}agents SET spec = replace(spec, 'Guide 2', 'Guide')")
        for agent in (first, second):
            spec = AgentSpec(name="Guide", instructions="Changed.")
            assert (await save_agent(store, tenant.service, agent.id, spec)).spec == spec
        with pytest.raises(Conflict):
            await store.create_agent(tenant.service, AgentSpec(name="guide"))
        await save_agent(store, tenant.service, second.id, AgentSpec(name="Another"))
        with pytest.raises(Conflict):
            await save_agent(store, tenant.service, second.id, AgentSpec(name="Guide"))

    async def test_a_turn_keeps_the_agent_that_it_began_with(self, store: Store, tenant: Tenant) -> None:
        agent = await store.create_agent(tenant.service, AgentSpec(name="Guide"))
        snapshot = Snapshot(agent_id=agent.id, agent=agent.spec)
        claimed = await claim(store, tenant.ann, snapshot=snapshot)
        await save_agent(store, tenant.service, agent.id, AgentSpec(name="Other"))
        await store.delete_agent(tenant.service, agent.id)
        assert (await store.turn(tenant.ann, claimed.turn.id)).snapshot == snapshot


class TestMcpConnections:
    URL = "https://mcp.example.org/mcp"

    async def begin(self, store: Store, by: Principal, attempt: str = "attempt") -> McpConnection:
        return await store.begin_mcp_connection(
            by, self.URL, connection_id=new_connection_id(), issuer="https://login.example.org", attempt=attempt
        )

    async def connect(self, store: Store, by: Principal, sealed: str = "tokens") -> McpConnection:
        begun = await self.begin(store, by)
        made = await store.finish_mcp_connection(
            by, begun.id, attempt="attempt", sealed=sealed, issuer="https://login.example.org"
        )
        assert made is not None
        return made

    async def test_begin_and_end_once(self, store: Store, tenant: Tenant, database: Database) -> None:
        begun = await self.begin(store, tenant.ann)
        assert (begun.user_id, begun.is_connected, begun.attempt) == (tenant.ann.user_id, False, "attempt")
        ended: dict[str, Any] = {"sealed": "tokens", "issuer": "https://other.example.org"}
        assert await store.finish_mcp_connection(tenant.bob, begun.id, attempt="another", **ended) is None
        made = await store.finish_mcp_connection(tenant.bob, begun.id, attempt="attempt", **ended)
        assert made is not None
        assert (made.id, made.sealed, made.attempt, made.user_id) == (begun.id, "tokens", None, tenant.bob.user_id)
        assert (made.version, made.connected_at) == (1, database.now)
        assert await store.mcp_connections(tenant.org.id, tenant.workspace.id) == [made]
        assert await store.mcp_connection_at(tenant.org.id, tenant.workspace.id, self.URL) == made
        assert await store.mcp_connection_at(tenant.org.id, tenant.workspace.id, "https://elsewhere.org") is None
        assert await store.finish_mcp_connection(tenant.bob, begun.id, attempt="attempt", sealed="x", issuer="") is None

    async def test_a_new_attempt_leaves_what_is_connected(self, store: Store, tenant: Tenant) -> None:
        made = await self.connect(store, tenant.ann)
        again = await self.begin(store, tenant.bob, "another")
        assert again == structs.replace(made, attempt="another")

    async def test_one_of_many_renews_the_tokens(self, store: Store, tenant: Tenant, database: Database) -> None:
        made = await self.connect(store, tenant.ann)
        leases = (store.lease_mcp_connection(made.id, version=1, seconds=30) for _ in range(8))
        assert sum(await asyncio.gather(*leases)) == 1
        await database.advance(seconds=31)
        assert await store.lease_mcp_connection(made.id, version=1, seconds=30)
        await store.renew_mcp_connection(made.id, version=1, sealed="newer")
        await store.renew_mcp_connection(made.id, version=1, sealed="of a worker that was too late")
        now = await store.mcp_connection(tenant.org.id, tenant.workspace.id, made.id)
        assert now == structs.replace(made, sealed="newer", version=2)
        assert not await store.lease_mcp_connection(made.id, version=1, seconds=30)
        assert await store.lease_mcp_connection(made.id, version=2, seconds=30)
        await store.renew_mcp_connection(made.id, version=2, sealed=None, problem="It has ended.")
        now = await store.mcp_connection(tenant.org.id, tenant.workspace.id, made.id)
        assert (now.is_connected, now.problem) == (False, "It has ended.")

    async def test_belong_to_one_workspace(self, store: Store, tenant: Tenant, database: Database) -> None:
        made = await self.connect(store, tenant.ann)
        stranger = await a_tenant(store, "Stranger")
        lab = await store.create_workspace(tenant.org.id, "Lab")
        async with nothing_written(database):
            for where in ((stranger.org.id, stranger.workspace.id), (tenant.org.id, lab.id)):
                assert await store.mcp_connections(*where) == []
                assert await store.mcp_connection_at(*where, self.URL) is None
                for attempt in (store.mcp_connection(*where, made.id), store.delete_mcp_connection(*where, made.id)):
                    with pytest.raises(NotFound):
                        await attempt
        there = structs.replace(tenant.service, workspace_id=lab.id)
        assert (await self.connect(store, there)).id != made.id
        assert await store.delete_mcp_connection(tenant.org.id, tenant.workspace.id, made.id) == made
        assert await store.mcp_connections(tenant.org.id, tenant.workspace.id) == []
        await store.delete_workspace(tenant.org.id, lab.id)
        assert await store.mcp_connections(tenant.org.id, lab.id) == []


class TestASecondTenant:
    async def test_lists_do_not_mix(self, store: Store, tenant: Tenant) -> None:
        stranger = await a_tenant(store, "Other")
        mine: list[Workspace] = await store.workspaces(tenant.org.id)
        theirs = await store.workspaces(stranger.org.id)
        assert not {workspace.id for workspace in mine} & {workspace.id for workspace in theirs}
        assert (await store.members(stranger.org.id, tenant.workspace.id)).data == ()
