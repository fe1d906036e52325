"""The timeline of a turn: what happened and when, for its owner, for admins, and for service keys."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import both
from tests.api.harness import ApiServer, Client, code_of, settings_for
from turnkeep.config import Settings
from turnkeep.engine.outcomes import SHOWN_CHARS
from turnkeep.providers.ports import ProviderFailed
from turnkeep.providers.scripted import Call, Fail, Restart, Think, Until
from turnkeep.tools.functions import tool
from turnkeep.tools.registry import ToolRegistry

Json = Any

LONG = "x" * (SHOWN_CHARS + 1_000)
PAY = {"type": "native", "name": "pay", "approval": "always"}


@tool
async def look_up(place: str) -> str:
    """Look something up."""
    return LONG if place == "long" else f"rain in {place}"


@tool
async def broken() -> str:
    """Fail."""
    raise ValueError("secret of the tool")


@tool
def pay(amount: int) -> str:
    """Pay this amount."""
    return f"paid {amount}"


@pytest.fixture
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    prices = tmp_path / "prices.json"
    prices.write_text('{"scripted": {"input": 1000, "output": 2000}}', encoding="utf-8")
    more: Json = {"prices": prices}
    if getattr(request, "param", "sqlite") == "postgres":
        more["database_url"] = request.getfixturevalue("api_database")
    return settings_for(tmp_path, **more)


@pytest.fixture
async def server(settings: Settings) -> AsyncIterator[ApiServer]:
    tools = ToolRegistry([look_up, broken, pay], offered_to_all=["look_up", "broken"])
    async with ApiServer.start(settings, tools=tools) as running:
        yield running


async def timeline(client: Client, turn_id: str) -> Json:
    return await client.read(f"/v1/turns/{turn_id}/timeline")


async def timeline_at_end(client: Client, turn_id: str) -> Json:
    """The same, once the turn has ended."""
    await client.get(f"/v1/turns/{turn_id}/events")
    return await timeline(client, turn_id)


async def content(client: Client, turn_id: str, span: Json) -> Json:
    return await client.read(f"/v1/turns/{turn_id}/timeline/{span['id']}")


def kinds(shown: Json) -> list[tuple[str, str, str]]:
    return [(span["kind"], span["name"], span["status"]) for span in shown["spans"]]


def span_of(shown: Json, kind: str) -> Json:
    return next(span for span in shown["spans"] if span["kind"] == kind)


async def tool_turn(server: ApiServer, user: Client, place: str = "Bern") -> str:
    """A turn with two calls of the model and two tools."""
    server.scripts.say(Think("Hm."), "Let me look.", Call("look_up", {"place": place}), Call("broken", {}))
    server.scripts.say("It rains.")
    return str((await user.ask("Weather?"))["turn"]["id"])


@both
class TestATurnThatEnded:
    async def test_has_its_model_calls_and_tools_with_times_tokens_and_cost(
        self, server: ApiServer, user: Client
    ) -> None:
        shown = await timeline(user, await tool_turn(server, user))
        first, *tools, last = shown["spans"]
        assert {(span["kind"], span["name"], span["status"]) for span in tools} == {
            ("tool", "look_up", "succeeded"),
            ("tool", "broken", "failed"),
        }
        assert [kinds(shown)[0], kinds(shown)[-1]] == [("model", "scripted", "succeeded")] * 2
        assert (first["usage"]["input_tokens"], first["usage"]["output_tokens"], first["cost"]) == (10, 5, 0.02)
        assert (last["usage"]["input_tokens"], last["cost"]) == (10, 0.02)
        assert (shown["usage"]["input_tokens"], shown["cost"]) == (20, 0.04)
        assert [each["parent_id"] for each in tools] == [first["id"], first["id"]]
        assert first["first_token_ms"] >= 0
        assert (first["iteration"], last["iteration"]) == (0, 1)
        for span in shown["spans"]:
            assert shown["created_at"] <= span["started_at"] <= span["ended_at"] <= shown["settled_at"] + 1
            assert not span.get("is_estimated")
        assert all(first["ended_at"] <= each["started_at"] + 1 for each in tools)
        assert all(each["ended_at"] <= last["started_at"] + 1 for each in tools)

    async def test_shows_what_is_in_a_span(self, server: ApiServer, user: Client) -> None:
        turn_id = await tool_turn(server, user)
        shown = await timeline(user, turn_id)
        said = await content(user, turn_id, shown["spans"][0])
        assert (said["text"], said["reasoning"]) == ("Let me look.", "Hm.")
        assert [call["name"] for call in said["calls"]] == ["look_up", "broken"]
        looked = next(span for span in shown["spans"] if span["name"] == "look_up")
        assert await content(user, turn_id, looked) == {
            "id": looked["id"],
            "args": {"place": "Bern"},
            "result": "rain in Bern",
        }
        failed = next(span for span in shown["spans"] if span["name"] == "broken")
        assert (await content(user, turn_id, failed))["error"]
        assert (await content(user, turn_id, shown["spans"][-1]))["text"] == "It rains."
        assert code_of(await user.get(f"/v1/turns/{turn_id}/timeline/tool-99")) == (404, "not_found")

    async def test_stays_the_same_after_it_was_compacted(self, server: ApiServer, user: Client) -> None:
        turn_id = await tool_turn(server, user)
        before = await timeline(user, turn_id)
        plain = str((await user.ask("Hello?"))["turn"]["id"])
        of_plain = await timeline(user, plain)
        while await server.runtime.store.compact(settled_before=before["now"] + 3_600_000):
            pass
        for turn, old in ((turn_id, before), (plain, of_plain)):
            after = await timeline(user, turn)
            assert {**after, "now": 0} == {**old, "now": 0}

    async def test_that_failed_has_the_call_that_failed_with_its_retries(self, server: ApiServer, user: Client) -> None:
        server.scripts.say("Half", Restart("overloaded"), "Again", Fail(ProviderFailed("Out of order.")))
        answer = await user.ask("Try")
        shown = await timeline(user, answer["turn"]["id"])
        assert kinds(shown) == [("model", "scripted", "failed"), ("retry", "scripted", "failed")]
        model, retry = shown["spans"]
        assert (retry["parent_id"], retry["note"]) == (model["id"], "overloaded")
        assert shown["error"]["message"] == "Out of order."
        assert (shown["status"], shown["settled_at"] is None) == ("failed", False)


@both
class TestATurnThatHasNotEnded:
    async def test_shows_what_runs_and_is_stopped(self, server: ApiServer, user: Client) -> None:
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def wait() -> None:
            reached.set()
            await go_on.wait()

        server.scripts.say("Half", Until(wait))
        asked = (await user.post("/v1/turns", json={"message": "Slowly", "background": True})).json()
        await reached.wait()
        shown = await timeline(user, asked["turn_id"])
        assert kinds(shown) == [("model", "scripted", "running")]
        assert (shown["settled_at"], shown["spans"][0]["ended_at"]) == (None, None)
        queued = (
            await user.post(
                "/v1/turns",
                json={
                    "message": "Next",
                    "conversation_id": asked["conversation_id"],
                    "if_busy": "enqueue",
                    "background": True,
                },
            )
        ).json()
        assert kinds(await timeline(user, queued["turn_id"])) == [("queue", "", "running")]
        await user.post(f"/v1/turns/{asked['turn_id']}/cancel")
        assert kinds(await timeline(user, asked["turn_id"])) == [("model", "scripted", "stopped")]
        go_on.set()
        shown = await timeline_at_end(user, queued["turn_id"])
        assert kinds(shown) == [("queue", "", "succeeded"), ("model", "scripted", "succeeded")]
        waited, spoke = shown["spans"]
        assert shown["created_at"] == waited["started_at"] <= waited["ended_at"] <= spoke["started_at"] + 1

    async def test_shows_the_wait_and_who_decided(self, server: ApiServer, service: Client, user: Client) -> None:
        agent = (await service.post("/v1/agents", json={"name": "Payer", "tools": [PAY]})).json()["id"]
        server.scripts.say(Call("pay", {"amount": 5}))
        server.scripts.say("Paid.")
        turn = (await user.ask("Pay", agent_id=agent))["turn"]
        shown = await timeline(user, turn["id"])
        assert kinds(shown) == [("model", "scripted", "succeeded"), ("wait", "approval", "running")]
        assert (shown["agent_name"], span_of(shown, "wait")["ended_at"]) == ("Payer", None)
        call = turn["waiting_for"]["calls"][0]["id"]
        decision = {"decisions": [{"call_id": call, "decision": "allow"}]}
        assert (await user.post(f"/v1/turns/{turn['id']}/approvals", json=decision)).status_code == 200
        shown = await timeline_at_end(user, turn["id"])
        assert [span["kind"] for span in shown["spans"]] == ["model", "wait", "tool", "model"]
        wait = span_of(shown, "wait")
        assert shown["spans"][0]["ended_at"] <= wait["started_at"] + 1
        assert wait["ended_at"] <= shown["spans"][3]["started_at"] + 1
        told = await content(user, turn["id"], wait)
        assert (told["calls"][0]["name"], told["result"][0]["decision"]) == ("pay", "allow")


@both
class TestWhoSeesIt:
    async def test_an_admin_sees_the_outline_of_the_turns_of_others(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        turn_id = await tool_turn(server, user)
        admin = await server.user(service, "boss", role="admin")
        shown = await timeline(admin, turn_id)
        assert (shown["access"], shown["user"]["external_id"]) == ("outline", "ann")
        assert [span["kind"] for span in shown["spans"]] == ["model", "tool", "tool", "model"]
        for span in shown["spans"]:
            assert "has_content" not in span
            assert code_of(await admin.get(f"/v1/turns/{turn_id}/timeline/{span['id']}")) == (404, "not_found")
        assert "Weather" not in str(shown)
        assert code_of(await admin.get(f"/v1/turns/{turn_id}/replay")) == (404, "not_found")
        server.scripts.say(Fail(ProviderFailed("It quotes the question.")))
        failed = (await user.ask("Secret"))["turn"]["id"]
        assert (await timeline(admin, failed))["error"] == {"code": "provider_error", "message": ""}

    async def test_others_see_nothing(self, server: ApiServer, service: Client, user: Client) -> None:
        turn_id = await tool_turn(server, user)
        strangers = [
            await server.user(service, "mallory"),
            await server.tenant("another"),
            await server.user(service, "boss", role="admin", scopes={"agents": "*"}),
        ]
        for stranger in strangers:
            for path in ("timeline", "timeline/model-0"):
                assert code_of(await stranger.get(f"/v1/turns/{turn_id}/{path}")) == (404, "not_found")
        second = (await service.post("/v1/workspaces", json={"name": "Second"})).json()["id"]
        elsewhere = await server.user(service, "chief", role="admin", workspace_id=second)
        assert code_of(await elsewhere.get(f"/v1/turns/{turn_id}/timeline")) == (404, "not_found")

    async def test_whole_results_are_for_admins_and_service_keys(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        admin = await server.user(service, "boss", role="admin")
        for asker, reader, is_whole in ((user, user, False), (user, service, True), (admin, admin, True)):
            turn_id = await tool_turn(server, asker, place="long")
            shown = await timeline(reader, turn_id)
            assert shown["access"] == ("full" if is_whole else "reader")
            looked = next(span for span in shown["spans"] if span["name"] == "look_up")
            found = await content(reader, turn_id, looked)
            assert (found["result"] == LONG, found.get("is_cut", False)) == (is_whole, not is_whole)

    async def test_a_key_without_the_feature_reads_what_readers_see(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        turn_id = await tool_turn(server, user)
        for scopes in ({"features": ["files"]}, {"agents": ["agent_" + "0" * 32]}):
            made = (await service.post("/v1/keys", json={"name": "K", "scopes": scopes})).json()
            scoped = await server.client(made["key"])
            assert (await timeline(scoped, turn_id))["access"] == "reader"


@both
class TestReplay:
    async def test_is_what_the_model_was_sent_by_each_call(self, server: ApiServer, service: Client) -> None:
        admin = await server.user(service, "boss", role="admin")
        first = (await admin.ask("First question"))["turn"]
        turn = await self._in(server, admin, first)
        await admin.ask("A later question", conversation_id=first["conversation_id"])
        sent = [request.messages for request in server.scripts.requests]
        assert len(sent) == 4
        for iteration in (0, 1):
            replayed = await admin.read(f"/v1/turns/{turn['id']}/replay", params={"iteration": iteration})
            assert replayed["messages"] == [dict(message) for message in sent[1 + iteration]]
            offered = [(tool.name, tool.description, tool.input_schema) for tool in server.scripts.requests[1].tools]
            assert [(one["name"], one["description"], one["input_schema"]) for one in replayed["tools"]] == offered
            assert "look_up" in str(offered)
            assert replayed["missing"] == []
        assert (await admin.read(f"/v1/turns/{turn['id']}/replay"))["messages"] == list(sent[2])
        assert (await service.read(f"/v1/turns/{first['id']}/replay"))["messages"] == list(sent[0])
        refused = await admin.get(f"/v1/turns/{turn['id']}/replay", params={"iteration": 2})
        assert code_of(refused) == (422, "invalid_request")

    async def test_of_another_branch_has_the_history_of_that_branch(self, server: ApiServer, service: Client) -> None:
        admin = await server.user(service, "boss", role="admin")
        first = (await admin.ask("One"))["turn"]
        second = (await admin.ask("Two", conversation_id=first["conversation_id"]))["turn"]
        third = (await admin.ask("Three", conversation_id=first["conversation_id"]))["turn"]
        sent = list(server.scripts.requests[-1].messages)
        path = f"/v1/conversations/{first['conversation_id']}/turns/{second['id']}/edit"
        assert (await admin.post(path, json={"message": "Another two"})).status_code == 200
        assert (await admin.read(f"/v1/turns/{third['id']}/replay"))["messages"] == sent

    async def test_members_do_not_read_it(self, server: ApiServer, user: Client) -> None:
        turn_id = (await user.ask())["turn"]["id"]
        assert code_of(await user.get(f"/v1/turns/{turn_id}/replay")) == (403, "forbidden")

    async def _in(self, server: ApiServer, asker: Client, first: Json) -> Json:
        server.scripts.say("Let me look.", Call("look_up", {"place": "Bern"}))
        server.scripts.say("It rains.")
        return (await asker.ask("Weather?", conversation_id=first["conversation_id"]))["turn"]
