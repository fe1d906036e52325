"""Usage by group, as JSON and CSV, and the limits that refuse a request: who reads it, who sets them, what is said."""

import asyncio
import csv
import io
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.conftest import both
from tests.api.harness import ApiServer, Client, settings_for
from turnkeep.clock import month_of, next_month, system_clock
from turnkeep.config import Settings
from turnkeep.providers.scripted import Until

PRICES = {"scripted": {"input": 1_000, "output": 2_000}}
"""A turn of the scripted model has 10 tokens in and 5 out: 0.02."""

Json = Any


@pytest.fixture
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps(PRICES), encoding="utf-8")
    more: Json = {"prices": prices}
    if getattr(request, "param", "sqlite") == "postgres":
        more["database_url"] = request.getfixturevalue("api_database")
    return settings_for(tmp_path, **more)


async def usage(client: Client, **query: str) -> Json:
    return await client.read("/v1/usage", params=query)


def problem(response: httpx.Response) -> Json:
    return response.json()


@both
class TestGroups:
    async def test_are_rows_with_messages_tokens_and_cost(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        bob = await server.user(service, "bob", source="api")
        await user.ask()
        await user.ask()
        await bob.ask()
        by_user = await usage(service, group_by="user")
        ann, other = by_user["rows"]
        assert (ann["user"]["external_id"], other["user"]["external_id"]) == ("ann", "bob")
        assert ann == {
            "group": ann["user"]["id"],
            "user": ann["user"],
            "messages": 2,
            "input_tokens": 20,
            "output_tokens": 10,
            "cache_read_tokens": 0,
            "cache_write_tokens": 0,
            "cost": 0.04,
            "unpriced_messages": 0,
        }
        assert (by_user["messages"], by_user["input_tokens"], by_user["cost"]) == (3, 30, 0.06)
        assert [(row["group"], row["messages"]) for row in (await usage(service, group_by="source"))["rows"]] == [
            ("ui", 2),
            ("api", 1),
        ]
        [model] = (await usage(service, group_by="model"))["rows"]
        assert (model["group"], model["messages"]) == ("scripted", 3)
        [day] = (await usage(service, group_by="day", user="ann"))["rows"]
        assert (day["group"][:7], day["messages"]) == (month_of(system_clock()), 2)

    async def test_are_of_one_agent_if_it_is_named(self, server: ApiServer, service: Client, user: Client) -> None:
        agent_id = (await service.post("/v1/agents", json={"name": "A"})).json()["id"]
        await user.ask(agent_id=agent_id)
        await user.ask()
        rows = (await usage(service, group_by="agent"))["rows"]
        assert sorted((row["group"] or "", row["messages"]) for row in rows) == [("", 1), (agent_id, 1)]
        of_agent = await usage(service, group_by="user", agent_id=agent_id)
        assert (of_agent["messages"], of_agent["input_tokens"], len(of_agent["rows"])) == (1, 10, 1)
        assert of_agent["by_source"] == {"ui": 1, "api": 0}
        assert (await usage(service, agent_id=agent_id))["by_source"] == {"ui": 1, "api": 0}
        narrow = await server.user(service, scopes={"agents": [agent_id]})
        assert (await usage(narrow, agent_id=agent_id))["messages"] == 1
        other = (await service.post("/v1/agents", json={"name": "B"})).json()["id"]
        assert (await narrow.get("/v1/usage", params={"agent_id": other})).status_code == 404

    async def test_are_the_callers_own_for_a_member(self, server: ApiServer, service: Client, user: Client) -> None:
        admin = await server.user(service, "boss", role="admin")
        bob = await server.user(service, "bob")
        acting = await server.client(service.key, turnkeep_user="ann")
        await user.ask()
        await bob.ask()
        for own in (user, acting):
            [row] = (await usage(own, group_by="user"))["rows"]
            assert row["user"]["external_id"] == "ann"
            assert (await usage(own, user="ann"))["messages"] == 1
            assert (await own.get("/v1/usage", params={"user": "bob"})).status_code == 404
        assert len((await usage(admin, group_by="user"))["rows"]) == 2
        assert (await usage(admin, user="bob"))["messages"] == 1
        assert (await usage(admin))["messages"] == 0, "without a group, an admin reads their own month"
        scoped = await server.user(service, "boss", role="admin", scopes={"models": []})
        assert (await usage(scoped, group_by="user"))["rows"] == []
        assert (await scoped.get("/v1/usage", params={"user": "bob"})).status_code == 404
        assert (await service.get("/v1/usage", params={"user": "nobody"})).status_code == 404

    async def test_can_be_read_as_csv_that_runs_nothing(self, server: ApiServer, service: Client) -> None:
        evil = await server.user(service, "=cmd|' /C calc'!A0")
        await evil.ask()
        response = await service.get("/v1/usage", params={"group_by": "user", "format": "csv"})
        assert response.headers["content-type"].startswith("text/csv")
        header, row = list(csv.reader(io.StringIO(response.text)))
        assert header[:4] == ["month", "user", "external_id", "name"]
        assert header[4:] == [
            *("messages", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "cost"),
            "unpriced_messages",
        ]
        assert row[2] == "'=cmd|' /C calc'!A0"
        assert row[4:7] == ["1", "10", "5"]

    @pytest.mark.parametrize("query", ["group_by=colour", "format=xml", "agent_id=x", "month=2026", "colour=red"])
    async def test_are_asked_for_by_known_words(self, service: Client, query: str) -> None:
        assert (await service.get(f"/v1/usage?{query}")).status_code in {404, 422}


@both
class TestTurns:
    async def test_are_listed_for_an_admin_and_a_member_sees_their_own(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        admin = await server.user(service, "boss", role="admin")
        bob = await server.user(service, "bob")
        first = (await user.ask())["turn"]["id"]
        second = (await bob.ask())["turn"]["id"]
        for caller in (admin, service):
            listed = (await caller.read("/v1/usage/turns"))["data"]
            assert [(turn["id"], turn["user"]["external_id"]) for turn in listed] == [(second, "bob"), (first, "ann")]
            assert (listed[0]["cost"], listed[0]["input_tokens"], listed[0]["status"]) == (0.02, 10, "succeeded")
            assert "conversation_id" not in listed[0]
            [only] = (await caller.read("/v1/usage/turns", params={"user": "ann"}))["data"]
            assert only["id"] == first
        assert [turn["id"] for turn in (await user.read("/v1/usage/turns"))["data"]] == [first]
        assert (await user.get("/v1/usage/turns", params={"user": "bob"})).status_code == 404
        scoped = await server.user(service, "boss", role="admin", scopes={"models": []})
        assert (await scoped.read("/v1/usage/turns"))["data"] == []
        stranger = await server.tenant("another")
        assert (await stranger.read("/v1/usage/turns"))["data"] == []
        page = await service.read("/v1/usage/turns", params={"limit": 1})
        rest = await service.read("/v1/usage/turns", params={"limit": 1, "cursor": page["next_cursor"]})
        assert [turn["id"] for turn in (*page["data"], *rest["data"])] == [second, first]

    async def test_and_totals_are_narrowed_by_model(self, service: Client, user: Client) -> None:
        await user.ask()
        assert len((await service.read("/v1/usage/turns", params={"model": "scripted"}))["data"]) == 1
        assert (await service.read("/v1/usage/turns", params={"model": "other"}))["data"] == []
        assert (await usage(service, group_by="day", model="other"))["messages"] == 0
        assert (await usage(service, group_by="day", model="scripted"))["messages"] == 1

    @pytest.mark.parametrize("query", ["day=2020-01-01", "day=today", "month=2026", "colour=red", "cursor=x"])
    async def test_are_asked_for_by_known_words(self, service: Client, query: str) -> None:
        assert (await service.get(f"/v1/usage/turns?{query}")).status_code == 422


@both
class TestHowFarLimitsAreUsed:
    async def test_is_told_to_a_user_and_of_the_workspace_to_an_admin(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        workspace = (await service.read("/v1/workspaces"))["data"][0]["id"]
        limits = {"monthly_cost_limit": 1.0, "user_monthly_token_limit": 60}
        await service.patch(f"/v1/workspaces/{workspace}", json=limits)
        await user.ask()
        assert (await usage(user))["limits"] == [
            {"scope": "user", "name": "monthly_token_limit", "limit": 60, "used": 15}
        ]
        admin = await server.user(service, "boss", role="admin")
        assert (await usage(admin, group_by="day"))["limits"] == [
            {"scope": "workspace", "name": "monthly_cost_limit", "limit": 1.0, "used": 0.02}
        ]


class TestWhatAStoppedTurnUsed:
    async def test_is_counted_as_far_as_it_is_known(self, server: ApiServer, user: Client) -> None:
        spoken = asyncio.Event()

        async def wait() -> None:
            spoken.set()
            await asyncio.Event().wait()

        server.scripts.say("x" * 400, Until(wait), "never")
        turn = await user.ask("y" * 4_000, background=True)
        await spoken.wait()
        stopped = (await user.post(f"/v1/turns/{turn['turn_id']}/cancel")).json()
        assert stopped["status"] == "cancelled"
        assert stopped["usage"]["output_tokens"] == 100
        assert 1_000 <= stopped["usage"]["input_tokens"] < 1_200
        [row] = (await usage(user, group_by="source"))["rows"]
        assert (row["messages"], row["output_tokens"]) == (1, 100)
        assert row["cost"] > 1


@both
class TestLimits:
    async def test_say_what_is_used_and_when_it_resets(self, server: ApiServer, service: Client, user: Client) -> None:
        month = {"scope": "user", "resets_at": next_month(system_clock())}
        for patch, told in (
            ({"monthly_message_limit": 1}, {"name": "monthly_message_limit", "value": 1, "used": 1, **month}),
            ({"monthly_token_limit": 15}, {"name": "monthly_token_limit", "value": 15, "used": 15, **month}),
            ({"monthly_cost_limit": 0.02}, {"name": "monthly_cost_limit", "value": 0.02, "used": 0.02, **month}),
        ):
            if not (await usage(user))["messages"]:
                await user.ask()
            none = dict.fromkeys(("monthly_message_limit", "monthly_token_limit", "monthly_cost_limit"))
            assert (await service.patch("/v1/users/ann", json=none | patch)).status_code == 200
            refused = await user.post("/v1/turns", json={"message": "Hi"})
            assert (refused.status_code, problem(refused)["code"]) == (429, "quota_exceeded")
            assert problem(refused)["limit"] == told

    async def test_of_parallel_turns_can_be_tried_again_soon(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        await service.patch("/v1/users/ann", json={"parallel_turn_limit": 1})
        server.scripts.say("Slow ", Until(asyncio.Event().wait))
        running = await user.ask(background=True)
        refused = await user.post("/v1/turns", json={"message": "Hi"})
        assert (refused.status_code, problem(refused)["code"]) == (429, "rate_limited")
        assert int(refused.headers["retry-after"]) > 0
        assert problem(refused)["limit"] == {
            "scope": "user",
            "name": "parallel_turn_limit",
            "value": 1,
            "used": 1,
            "resets_at": None,
        }
        await user.post(f"/v1/turns/{running['turn_id']}/cancel")
        await user.ask()

    async def test_of_tokens_hold_for_turns_that_run_or_wait(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        await service.patch("/v1/users/ann", json={"monthly_token_limit": 15})
        go_on = asyncio.Event()
        server.scripts.say("Slow ", Until(go_on.wait))
        running = await user.ask(background=True)
        refused = await user.post("/v1/turns", json={"message": "Hi"})
        assert (refused.status_code, problem(refused)["code"]) == (429, "rate_limited")
        assert problem(refused)["limit"]["name"] == "monthly_token_limit"
        assert int(refused.headers["retry-after"]) > 0
        await service.patch("/v1/users/ann", json={"monthly_token_limit": 10_000})
        body = {"conversation_id": running["conversation_id"], "background": True, "if_busy": "enqueue"}
        waiting = await user.ask("Next", **body)
        await service.patch("/v1/users/ann", json={"monthly_token_limit": 15})
        go_on.set()
        ended = await server.runtime.engine.wait(waiting["turn_id"])
        assert (ended.status, ended.error and ended.error.code) == ("failed", "quota_exceeded")
        said = (await user.read(f"/v1/conversations/{running['conversation_id']}/messages"))["data"]
        assert [message["content"][0]["text"] for message in said if message["role"] == "user"][-1] == "Next"
        assert len(server.scripts.requests) == 1

    async def test_that_change_at_the_same_time_all_stand(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        names = ("message", "token", "cost")
        workspace = f"/v1/workspaces/{(await service.read('/v1/workspaces'))['data'][0]['id']}"
        for path in ("/v1/users/ann", workspace):
            for round in range(5):
                changes = {f"monthly_{name}_limit": 100 + round for name in names}
                await asyncio.gather(*(service.patch(path, json={name: value}) for name, value in changes.items()))
                stored = await service.read(path)
                assert {name: stored[name] for name in changes} == changes

    async def test_of_stored_bytes_are_a_full_storage(self, server: ApiServer, service: Client, user: Client) -> None:
        key = (await service.post("/v1/keys", json={"name": "k", "stored_byte_limit": 10})).json()
        assert key["stored_byte_limit"] == 10
        limited = await server.client(key["key"])
        files = f"/v1/conversations/{(await limited.post('/v1/conversations')).json()['id']}/files"
        assert (await limited.post(files, files={"file": ("a.txt", b"12345")})).status_code == 201
        refused = await limited.post(files, files={"file": ("b.txt", b"123456")})
        assert (refused.status_code, problem(refused)["code"]) == (507, "storage_full")
        assert (problem(refused)["limit"]["scope"], problem(refused)["limit"]["used"]) == ("key", 11)

    async def test_of_a_workspace_are_raised_by_a_key_of_the_whole_org_alone(
        self, server: ApiServer, service: Client
    ) -> None:
        place = f"/v1/workspaces/{(await service.read('/v1/workspaces'))['data'][0]['id']}"
        names = ("monthly_message_limit", "monthly_token_limit", "monthly_cost_limit", "stored_byte_limit")
        limits = dict.fromkeys((*names, "parallel_turn_limit"), 10)
        assert (await service.patch(place, json=limits)).status_code == 200
        admin = await server.user(service, "boss", role="admin")
        for name in limits:
            for raised in (11, None):
                assert (await admin.patch(place, json={name: raised})).status_code == 403, name
            lowered = await admin.patch(place, json={name: 9, f"user_{name}": 100})
            assert lowered.status_code == 200, lowered.text
            assert (lowered.json()[name], lowered.json()[f"user_{name}"]) == (9, 100)
            assert (await service.patch(place, json={name: 11})).status_code == 200

    async def test_of_a_key_hold_for_the_keys_that_it_makes(self, server: ApiServer, service: Client) -> None:
        names = ("monthly_message_limit", "monthly_token_limit", "monthly_cost_limit", "stored_byte_limit")
        limits = dict.fromkeys((*names, "parallel_turn_limit"), 10)
        made = (await service.post("/v1/keys", json={"name": "k", **limits})).json()
        limited = await server.client(made["key"])
        child = (await limited.post("/v1/keys", json={"name": "child"})).json()
        assert {name: child[name] for name in limits} == limits
        for name in limits:
            assert (await limited.post("/v1/keys", json={"name": "more", name: 11})).status_code == 403, name
