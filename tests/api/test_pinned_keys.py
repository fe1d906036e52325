"""Service keys of one workspace: what an admin makes speaks for the admin's workspace, and is no more than an admin."""

import sys
from typing import Any

import pytest
from msgspec import structs

from tests.api.conftest import both
from tests.api.harness import ApiServer, Client, code_of
from turnkeep.api.identity.service_keys import SigninLinks
from turnkeep.config import Settings

COMMAND = {"name": "A", "mcp_servers": [{"name": "own", "command": sys.executable, "args": ["-c", "pass"]}]}


async def second_workspace(service: Client) -> str:
    return str((await service.post("/v1/workspaces", json={"name": "Second"})).json()["id"])


async def new_key(maker: Client, **body: Any) -> Any:
    response = await maker.post("/v1/keys", json={"name": "k", **body})
    assert response.status_code == 201, response.text
    return response.json()


async def key_ids(client: Client) -> set[str]:
    return {key["id"] for key in (await client.read("/v1/keys"))["data"]}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Keys of a whole org may save commands here, so a test sees that pinned ones may not."""
    return structs.replace(settings, allow_mcp_commands=True)


@pytest.fixture
async def admin(server: ApiServer, service: Client) -> Client:
    """An admin of the default workspace."""
    return await server.user(service, "boss", role="admin")


@pytest.fixture
async def pinned(server: ApiServer, admin: Client) -> Client:
    """A key that this admin made."""
    return await server.client((await new_key(admin))["key"])


class TestWhoMakesWhat:
    @both
    async def test_a_key_made_by_an_admin_or_by_a_pinned_key_is_pinned(
        self, server: ApiServer, admin: Client, pinned: Client
    ) -> None:
        workspace = (await admin.read("/v1/me"))["workspace_id"]
        assert [key["workspace_id"] for key in (await admin.read("/v1/keys"))["data"]] == [workspace]
        assert (await new_key(pinned))["workspace_id"] == workspace
        deputy = await server.user(pinned, "deputy", role="admin")
        assert (await new_key(deputy))["workspace_id"] == workspace

    async def test_so_is_one_made_with_the_cookie_of_the_page(self, server: ApiServer, settings: Settings) -> None:
        browser = await server.client(None, origin=server.url)
        await browser.get("/signin", params={"token": SigninLinks.of(settings).make()})
        made = await new_key(browser)
        assert made["workspace_id"] == (await browser.read("/v1/me"))["workspace_id"]

    async def test_one_made_by_a_key_of_the_whole_org_or_by_the_operator_is_of_the_whole_org(
        self, server: ApiServer, service: Client
    ) -> None:
        for maker in (service, await server.operator()):
            made = await new_key(maker)
            assert made["workspace_id"] is None
            made_client = await server.client(made["key"])
            assert (await made_client.post("/v1/workspaces", json={"name": "W"})).status_code == 201
        acting = await service.post("/v1/keys", json={"name": "k"}, headers={"turnkeep-user": "ann"})
        assert acting.json()["workspace_id"] is None


class TestItsWorkspace:
    @both
    async def test_no_other_workspace_exists_for_it(self, service: Client, pinned: Client) -> None:
        second = await second_workspace(service)
        there = {"turnkeep-workspace": second}
        conversation = (await service.ask(headers=there))["conversation_id"]
        for response in (
            await pinned.get("/v1/conversations", headers=there),
            await pinned.get(f"/v1/conversations/{conversation}"),
            await pinned.get(f"/v1/workspaces/{second}"),
            await pinned.patch(f"/v1/workspaces/{second}", json={"name": "mine"}),
            await pinned.post("/v1/tokens", json={"user": "ann", "workspace_id": second}),
        ):
            assert code_of(response) == (404, "not_found"), response.url
        assert [one["is_default"] for one in (await pinned.read("/v1/workspaces"))["data"]] == [True]

    async def test_it_needs_not_be_the_default_one(self, server: ApiServer, service: Client) -> None:
        second = await second_workspace(service)
        admin = await server.user(service, "boss", role="admin", workspace_id=second)
        pinned = await server.client((await new_key(admin))["key"])
        assert (await pinned.read("/v1/me"))["workspace_id"] == second
        named = await pinned.get("/v1/me", headers={"turnkeep-workspace": second})
        assert named.json()["workspace_id"] == second
        assert (await service.delete(f"/v1/workspaces/{second}")).status_code == 204
        assert code_of(await pinned.get("/v1/me")) == (401, "unauthorized")

    async def test_in_it_the_key_owns_what_it_makes_sees_all_and_acts_for_users(
        self, server: ApiServer, pinned: Client, user: Client
    ) -> None:
        mine, theirs = (await pinned.ask())["conversation_id"], (await user.ask())["conversation_id"]
        assert {one["id"] for one in (await pinned.read("/v1/conversations"))["data"]} == {mine, theirs}
        assert (await pinned.read(f"/v1/conversations/{mine}"))["user_id"] is None
        as_ann = {"turnkeep-user": "ann"}
        assert [one["id"] for one in (await pinned.read("/v1/conversations", headers=as_ann))["data"]] == [theirs]
        token = await server.user(pinned, "ann")
        assert [one["id"] for one in (await token.read("/v1/conversations"))["data"]] == [theirs]
        assert (await pinned.post("/v1/agents", json={"name": "A"})).status_code == 201
        assert (await pinned.post("/v1/pages", json={"title": "P"})).status_code == 201


class TestWhatItMayNot:
    @both
    async def test_it_sees_nothing_internal(self, service: Client, pinned: Client) -> None:
        answer = await pinned.ask()
        conversation = f"/v1/conversations/{answer['conversation_id']}"
        exported = (await service.get(f"{conversation}/export")).content
        for path in (
            f"/v1/turns/{answer['turn']['id']}/trace",
            f"{conversation}/trace",
            f"{conversation}/replay?provider=anthropic",
            f"{conversation}/export",
        ):
            assert code_of(await pinned.get(path)) == (403, "forbidden"), path
            assert (await service.get(path)).status_code == 200, path
        imported = await pinned.post("/v1/conversations/import", content=exported)
        assert code_of(imported) == (403, "forbidden")

    async def test_it_saves_no_command(self, service: Client, pinned: Client) -> None:
        assert code_of(await pinned.post("/v1/agents", json=COMMAND)) == (403, "forbidden")
        path = f"/v1/agents/{(await pinned.post('/v1/agents', json={'name': 'A'})).json()['id']}"
        for method in ("PUT", "PATCH"):
            assert code_of(await pinned.request(method, path, json=COMMAND)) == (403, "forbidden")
        assert (await service.put(path, json=COMMAND)).status_code == 200

    async def test_it_makes_and_deletes_no_workspaces_and_no_orgs(self, service: Client, pinned: Client) -> None:
        second = await second_workspace(service)
        for response in (
            await pinned.post("/v1/workspaces", json={"name": "W"}),
            await pinned.delete(f"/v1/workspaces/{second}"),
            await pinned.post("/v1/orgs", json={"name": "O"}),
            await pinned.get("/v1/orgs"),
        ):
            assert code_of(response) == (403, "forbidden"), response.url


class TestListingAndRevoking:
    @both
    async def test_admins_and_pinned_keys_reach_the_keys_of_their_workspace_alone(
        self, server: ApiServer, service: Client, admin: Client, pinned: Client
    ) -> None:
        second = await second_workspace(service)
        elsewhere = await new_key(await server.user(service, "eve", role="admin", workspace_id=second))
        wide, here = await new_key(service), await new_key(admin)
        assert await key_ids(admin) == await key_ids(pinned)
        assert here["id"] in await key_ids(admin)
        assert await key_ids(service) > {elsewhere["id"], wide["id"], here["id"]}
        for foreign in (elsewhere, wide):
            assert foreign["id"] not in await key_ids(admin)
            for client in (admin, pinned):
                assert code_of(await client.delete(f"/v1/keys/{foreign['id']}")) == (404, "not_found")
            assert (await (await server.client(foreign["key"])).get("/v1/me")).status_code == 200
        assert (await pinned.delete(f"/v1/keys/{here['id']}")).status_code == 204
        assert (await service.delete(f"/v1/keys/{elsewhere['id']}")).status_code == 204


class TestNoFreerThanItsMaker:
    @pytest.mark.parametrize("field", ["monthly_message_limit", "requests_per_minute"])
    async def test_a_limit_of_the_maker_is_the_most_that_it_can_give(
        self, server: ApiServer, service: Client, field: str
    ) -> None:
        key = await server.client((await new_key(service, **{field: 100}))["key"])
        await server.user(service, "boss", role="admin")
        token = await server.user(key, "boss", role="admin")
        for maker in (key, token):
            refused = await maker.post("/v1/keys", json={"name": "k", field: 101})
            assert code_of(refused) == (403, "forbidden")
            assert f"`{field}` of 100" in refused.json()["detail"]
            for asked, given in ((None, 100), (100, 100), (7, 7)):
                assert (await new_key(maker, **{field: asked}))[field] == given

    async def test_a_maker_without_limits_gives_what_is_asked_for(self, service: Client, admin: Client) -> None:
        for maker in (service, admin):
            made = await new_key(maker, monthly_message_limit=5)
            assert (made["monthly_message_limit"], made["requests_per_minute"]) == (5, None)
