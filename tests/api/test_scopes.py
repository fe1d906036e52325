"""Scopes of tokens and keys: which agents, models and features they reach, and that nothing widens them."""

import openai
import pytest

from tests.api.conftest import both
from tests.api.harness import ApiServer, Client, Json, code_of
from turnkeep.providers.scripted import Pause

NOT_FOUND = (404, "not_found")
OUT = (403, "out_of_scope")


async def an_agent(service: Client, name: str = "A", **fields: Json) -> str:
    response = await service.post("/v1/agents", json={"name": name, **fields})
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


async def a_key(server: ApiServer, maker: Client, **fields: Json) -> Client:
    response = await maker.post("/v1/keys", json={"name": "k", **fields})
    assert response.status_code == 201, response.text
    return await server.client(response.json()["key"])


@both
class TestAgents:
    async def test_outside_do_not_exist(self, server: ApiServer, service: Client) -> None:
        mine, other = await an_agent(service), await an_agent(service, "B")
        scopes = {"agents": [mine]}
        key = await a_key(server, service, scopes=scopes)
        for caller in (await server.user(service, scopes=scopes), key):
            assert [agent["id"] for agent in (await caller.read("/v1/agents"))["data"]] == [mine]
            assert (await caller.read(f"/v1/agents/{mine}"))["name"] == "A"
            answer = await caller.ask(agent_id=mine)
            conversation = f"/v1/conversations/{answer['conversation_id']}"
            again = f"{conversation}/turns/{answer['turn']['id']}/regenerate"
            for response in (
                await caller.get(f"/v1/agents/{other}"),
                await caller.post("/v1/turns", json={"message": "?", "agent_id": other}),
                await caller.post(again, json={"agent_id": other}),
                await caller.post("/v1/conversations", json={"agent_id": other}),
                await caller.patch(conversation, json={"agent_id": other}),
            ):
                assert code_of(response) == NOT_FOUND

    async def test_outside_keep_their_instructions_to_themselves(self, server: ApiServer, service: Client) -> None:
        mine = await an_agent(service)
        other = await an_agent(service, "B", instructions="The secret of B")
        key = await a_key(server, service, scopes={"agents": [mine]})
        turns = [await service.ask(agent_id=agent) for agent in (mine, other)]
        for turn, expected in zip(turns, (200, 404), strict=True):
            conversation = f"/v1/conversations/{turn['conversation_id']}"
            trace = f"/v1/turns/{turn['turn']['id']}/trace"
            for path in (trace, f"{conversation}/trace", f"{conversation}/replay", f"{conversation}/export"):
                response = await key.get(path)
                assert response.status_code == expected, path
                assert "The secret of B" not in response.text

    async def test_outside_are_no_models_of_openai(self, server: ApiServer, service: Client) -> None:
        mine, other = await an_agent(service), await an_agent(service, "B")
        caller = await server.user(service, scopes={"agents": [mine], "models": []})
        listed = (await caller.read("/openai/v1/models"))["data"]
        assert [model["id"] for model in listed] == ["agent/A"]
        before = ""
        for name in ("agent/A", mine):
            assert (await caller.get(f"/openai/v1/models/{name}")).status_code == 200
            asked = await caller.post("/openai/v1/responses", json={"model": name, "input": "Hi"})
            assert asked.status_code == 200, asked.text
            before = asked.json()["id"]
        for name in ("agent/B", other):
            assert (await caller.get(f"/openai/v1/models/{name}")).status_code == 404
            for path, question in (
                ("responses", {"input": "Hi"}),
                ("chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
                ("responses", {"input": "Hi", "previous_response_id": before}),
            ):
                refused = await caller.post(f"/openai/v1/{path}", json={"model": name, **question})
                assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
        assert (await caller.post("/openai/v1/responses", json={"model": "scripted", "input": "Hi"})).status_code == 403

    async def test_are_listed_in_full_pages(self, server: ApiServer, service: Client) -> None:
        agents = [await an_agent(service, f"Agent {number}") for number in range(6)]
        mine = agents[::2]
        caller = await server.user(service, scopes={"agents": mine})
        first = await caller.read("/v1/agents", params={"limit": 2})
        assert [agent["id"] for agent in first["data"]] == [mine[2], mine[1]]
        rest = await caller.read("/v1/agents", params={"limit": 2, "cursor": first["next_cursor"]})
        assert ([agent["id"] for agent in rest["data"]], rest["next_cursor"]) == ([mine[0]], None)
        nobody = await server.user(service, scopes={"agents": []})
        assert (await nobody.read("/v1/agents"))["data"] == []

    async def test_are_needed_for_every_turn(self, server: ApiServer, service: Client) -> None:
        mine = await an_agent(service)
        caller = await server.user(service, scopes={"agents": [mine]})
        assert code_of(await caller.post("/v1/turns", json={"message": "?"})) == OUT
        answer = await caller.ask(agent_id=mine)
        conversation = answer["conversation_id"]
        assert code_of(await caller.patch(f"/v1/conversations/{conversation}", json={"agent_id": None})) == OUT
        await service.delete(f"/v1/agents/{mine}")
        response = await caller.post("/v1/turns", json={"message": "?", "conversation_id": conversation})
        assert code_of(response) == OUT, "without its agent a conversation goes on, but not for this token"

    async def test_of_a_conversation_that_another_token_made_count_too(
        self, server: ApiServer, service: Client
    ) -> None:
        mine, other = await an_agent(service), await an_agent(service, "B")
        wide, narrow = await server.user(service), await server.user(service, scopes={"agents": [mine]})
        answer = await wide.ask(agent_id=other)
        body = {"message": "?", "conversation_id": answer["conversation_id"]}
        assert code_of(await narrow.post("/v1/turns", json=body)) == NOT_FOUND


@both
class TestModels:
    async def test_outside_cannot_be_chosen(self, server: ApiServer, service: Client) -> None:
        agent = await an_agent(service, model="scripted/own")
        for scopes, allowed in (({"models": ["scripted/x"]}, ["scripted/x"]), ({"models": []}, [])):
            caller = await server.user(service, scopes=scopes)
            assert {model["id"] for model in (await caller.read("/v1/models"))["data"]} <= set(allowed)
            answer = await caller.ask(agent_id=agent)
            assert answer["turn"]["model"] == "scripted/own", "the model of the agent is not the caller's choice"
            conversation = f"/v1/conversations/{answer['conversation_id']}"
            again = f"{conversation}/turns/{answer['turn']['id']}/regenerate"
            for model in allowed:
                assert (await caller.ask(model=model))["turn"]["model"] == model
            for response in (
                await caller.post("/v1/turns", json={"message": "?", "model": "scripted/y"}),
                await caller.post(again, json={"model": "scripted"}),
                await caller.post("/v1/conversations", json={"model": "scripted/y"}),
                await caller.patch(conversation, json={"model": "scripted/y"}),
            ):
                assert code_of(response) == OUT


@both
class TestFeatures:
    async def test_that_are_left_out_are_refused_inside_other_requests_too(
        self, server: ApiServer, service: Client
    ) -> None:
        wide = await server.user(service)
        conversation = (await wide.ask())["conversation_id"]
        uploaded = await wide.post(f"/v1/conversations/{conversation}/files", files={"file": ("f.txt", b"x")})
        file_id = uploaded.json()["data"][0]["id"]
        narrow = await server.user(service, scopes={"features": []})
        for body in (
            {"message": "?", "conversation_id": conversation, "attachment_ids": [file_id]},
            {"message": [{"type": "file", "file_id": file_id}], "conversation_id": conversation},
            {"message": "?", "kind": "sandbox"},
        ):
            assert code_of(await narrow.post("/v1/turns", json=body)) == OUT
        assert code_of(await narrow.post("/v1/conversations", json={"kind": "sandbox"})) == OUT
        assert (await narrow.ask())["turn"]["status"] == "succeeded"

    async def test_runs_are_needed_for_every_turn_in_a_sandbox(self, server: ApiServer, service: Client) -> None:
        wide = await server.user(service)
        boxed = (await wide.post("/v1/conversations", json={"kind": "sandbox"})).json()["id"]
        agent = await an_agent(service, sandbox=True)
        chat = (await wide.ask())["conversation_id"]
        with_agent = (await wide.post("/v1/conversations", json={"agent_id": agent})).json()["id"]
        narrow = await server.user(service, scopes={"features": ["files"]})
        runs = await server.user(service, scopes={"features": ["runs"]})
        for body in (
            {"conversation_id": boxed},
            {"agent_id": agent},
            {"conversation_id": chat, "agent_id": agent},
            {"conversation_id": with_agent},
        ):
            assert code_of(await narrow.post("/v1/turns", json={"message": "?", **body})) == OUT
            assert code_of(await runs.post("/v1/turns", json={"message": "?", **body})) == (503, "sandbox_unavailable")

    async def test_that_a_scope_does_not_mention_are_there(self, server: ApiServer, service: Client) -> None:
        caller = await server.user(service, scopes={"models": []})
        assert (await caller.read("/v1/pages"))["data"] == []
        assert (await caller.read("/v1/me"))["scopes"] == {"agents": "*", "models": [], "features": "*"}
        assert (await service.read("/v1/me"))["scopes"] is None


@both
class TestNothingWidensScopes:
    async def test_a_token_has_at_most_those_of_the_key_that_made_it(self, server: ApiServer, service: Client) -> None:
        mine, other = await an_agent(service), await an_agent(service, "B")
        scopes = {"agents": [mine], "models": ["scripted/x"], "features": ["files"]}
        key = await a_key(server, service, scopes=scopes)
        inherited = await server.user(key)
        assert (await inherited.read("/v1/me"))["scopes"] == scopes
        assert code_of(await inherited.get(f"/v1/agents/{other}")) == NOT_FOUND
        narrower = await server.user(key, scopes={**scopes, "features": []})
        assert code_of(await narrower.get("/v1/files")) == OUT
        for wider in ({"agents": [mine, other]}, {"models": "*"}, {"features": ["runs"]}):
            body = {"user": "ann", "scopes": {**scopes, **wider}}
            assert code_of(await key.post("/v1/tokens", json=body)) == OUT
        assert code_of(await key.post("/v1/tokens", json={"user": "ann", "scopes": {}})) == OUT

    async def test_neither_a_key_nor_an_admin_with_scopes_can_make_keys_or_agents(
        self, server: ApiServer, service: Client
    ) -> None:
        scopes: Json = {"models": []}
        for caller in (
            await a_key(server, service, scopes=scopes),
            await server.user(service, role="admin", scopes=scopes),
        ):
            assert code_of(await caller.post("/v1/keys", json={"name": "wider"})) == OUT
            assert code_of(await caller.post("/v1/agents", json={"name": "A", "model": "scripted"})) == OUT

    @pytest.mark.parametrize(
        "scopes", [{"agents": "all"}, {"features": ["everything"]}, {"more": []}, {"models": ["x"] * 51}]
    )
    async def test_malformed_ones_are_refused(self, service: Client, scopes: Json) -> None:
        for path, body in (("/v1/tokens", {"user": "ann"}), ("/v1/keys", {"name": "k"})):
            assert code_of(await service.post(path, json={**body, "scopes": scopes})) == (422, "invalid_request")

    async def test_ones_that_make_a_token_too_long_are_refused(self, service: Client) -> None:
        scopes = {"models": ["x" * 200] * 50}
        response = await service.post("/v1/tokens", json={"user": "ann", "scopes": scopes})
        assert code_of(response) == (422, "invalid_request")


@both
class TestLimits:
    async def test_of_a_workspace_can_be_raised_only_from_above(self, server: ApiServer, service: Client) -> None:
        admin = await server.user(service, "boss", role="admin")
        pinned = await a_key(server, admin)
        workspace = (await admin.read("/v1/me"))["workspace_id"]
        path = f"/v1/workspaces/{workspace}"
        await service.patch(path, json={"monthly_message_limit": 10})
        for caller in (admin, pinned):
            for limit in (11, None):
                response = await caller.patch(path, json={"monthly_message_limit": limit})
                assert code_of(response) == (403, "forbidden")
            assert (await caller.patch(path, json={"monthly_message_limit": 9})).status_code == 200
            response = await caller.patch(path, json={"user_monthly_message_limit": 1_000, "name": "Renamed"})
            assert response.json()["monthly_message_limit"] == 9
            assert (await service.patch(path, json={"monthly_message_limit": 10})).status_code == 200

    async def test_of_a_key_hold_for_all_keys_that_it_made(self, server: ApiServer, service: Client) -> None:
        first = await a_key(server, service, monthly_message_limit=4)
        second = await a_key(server, first)
        third = await a_key(server, second, monthly_message_limit=1)
        user = await server.user(third)
        await second.ask()
        await user.ask()
        assert (await first.read("/v1/usage"))["key"] == {"messages": 2, "limit": 4}
        assert (await third.read("/v1/usage"))["key"] == {"messages": 1, "limit": 1}
        assert code_of(await third.post("/v1/turns", json={"message": "?"})) == (429, "quota_exceeded")
        assert (await first.read("/v1/usage"))["key"]["messages"] == 2, "a refused message counts nowhere"
        await first.ask()
        await second.ask()
        for caller in (first, second):
            assert code_of(await caller.post("/v1/turns", json={"message": "?"})) == (429, "quota_exceeded")

    async def test_of_a_key_get_back_what_a_made_key_did_not_use(self, server: ApiServer, service: Client) -> None:
        first = await a_key(server, service, monthly_message_limit=10)
        second = await a_key(server, first)
        answer = await second.ask()
        body = {"message": "?", "conversation_id": answer["conversation_id"], "background": True}
        server.scripts.say("One ", Pause(60.0), "two.")
        await second.ask(**{**body, "message": "runs"})
        queued = await second.post("/v1/turns", json={**body, "if_busy": "enqueue"})
        turn = (await second.post(f"/v1/turns/{queued.json()['turn_id']}/cancel")).json()
        assert (turn["status"], turn["started_at"]) == ("cancelled", None)
        assert (await first.read("/v1/usage"))["key"]["messages"] == 2


class TestTheSourceOfATurn:
    async def test_is_a_page_unless_the_token_says_otherwise(self, server: ApiServer, service: Client) -> None:
        for source, counted in ((None, "ui"), ("ui", "ui"), ("api", "api")):
            name = f"user {source}"
            user = await server.user(service, name, **({} if source is None else {"source": source}))
            await user.ask()
            by_source = (await user.read("/v1/usage"))["by_source"]
            assert by_source == {"ui": 0, "api": 0, counted: 1}
        assert code_of(await service.post("/v1/tokens", json={"user": "a", "source": "x"})) == (422, "invalid_request")


class TestARun:
    async def test_needs_an_agent_with_a_sandbox(self, service: Client, user: Client) -> None:
        agent = await an_agent(service)
        response = await user.post(f"/v1/agents/{agent}/runs", json={"prompt": "Go."})
        assert code_of(response) == (422, "invalid_request")


@both
class TestUnknownParameters:
    async def test_are_refused_everywhere(self, server: ApiServer, service: Client, user: Client) -> None:
        answer = await user.ask()
        conversation = f"/v1/conversations/{answer['conversation_id']}"
        for path in (
            "/v1/me",
            "/v1/conversations",
            conversation,
            f"{conversation}/messages",
            "/v1/usage",
            "/v1/agents",
            "/healthz",
            f"/v1/turns/{answer['turn']['id']}/events",
        ):
            assert code_of(await user.get(path, params={"colour": "red"})) == (422, "invalid_request"), path
        created = await user.post("/v1/turns", params={"colour": "red"}, json={"message": "?"})
        assert code_of(created) == (422, "invalid_request")
        refused = await service.get("/v1/keys", params={"Limit": "1"})
        assert "`Limit`" in refused.json()["detail"]
        assert "limit" in refused.json()["detail"]

    async def test_are_refused_to_openais_clients_and_theirs_are_known(self, server: ApiServer, user: Client) -> None:
        words: Json = {"type": "message", "role": "user", "content": "?"}
        included: Json = ["message.input_image.image_url", "file_search_call.results"]
        page: Json = {"limit": 5, "order": "asc"}
        async with openai.AsyncOpenAI(base_url=f"{server.url}/openai/v1", api_key=user.key, max_retries=0) as sdk:
            response = await sdk.responses.create(model="scripted", input="?")
            await sdk.responses.retrieve(response.id, include=included)
            async with await sdk.responses.retrieve(
                response.id, stream=True, starting_after=1, include=included, include_obfuscation=False
            ) as events:
                numbers = [event.sequence_number async for event in events]
            assert min(numbers) > 1
            [item] = (await sdk.responses.input_items.list(response.id, include=included, **page)).data
            assert (await sdk.responses.input_items.list(response.id, after=str(item.id), **page)).data == []
            conversation = await sdk.conversations.create()
            items: Json = sdk.conversations.items
            [made] = (await items.create(conversation.id, items=[words], include=included)).data
            await items.retrieve(made.id, conversation_id=conversation.id, include=included)
            assert (await items.list(conversation.id, after=made.id, include=included, **page)).data == []
            await sdk.files.list(purpose="user_data", **page)
            with pytest.raises(openai.BadRequestError) as caught:
                await sdk.responses.retrieve(response.id, extra_query={"starting_at": 1})
            assert (caught.value.param, "starting_after" in caught.value.message) == ("starting_at", True)
        assert "twice" in (await user.get("/openai/v1/files?order=asc&order=desc")).json()["error"]["message"]


@both
class TestOtherWires:
    """Scopes and limits hold for the clients of the AI SDK, of AG-UI and of OpenAI as they do in the native API."""

    async def asked(self, caller: Client, *, agent: str | None, model: str | None = None) -> list[int]:
        """The statuses of one question on each wire."""
        query = {key: value for key, value in (("agent", agent), ("model", model)) if value is not None}
        part, history = {"type": "text", "text": "?"}, [{"role": "user", "content": "a"}]
        history += [{"role": "assistant", "content": "b"}, {"role": "user", "content": "?"}]
        sdk = {"id": "c", "messages": [{"id": "m", "role": "user", "parts": [part]}]}
        run = {"threadId": "t", "runId": "r", "messages": [{"id": "m", "role": "user", "content": "?"}]}
        named = agent or model or "scripted"
        answers = [
            await caller.post("/ai-sdk/chat", params=query, json=sdk),
            await caller.post("/ag-ui", params=query, json=run),
            await caller.post("/openai/v1/chat/completions", json={"model": named, "messages": history}),
            await caller.post("/openai/v1/responses", json={"model": named, "input": history}),
        ]
        return [answer.status_code for answer in answers]

    async def test_agents_outside_do_not_exist_and_one_is_needed(self, server: ApiServer, service: Client) -> None:
        mine, other = await an_agent(service), await an_agent(service, "B")
        caller = await server.user(service, scopes={"agents": [mine], "models": []})
        assert [model["id"] for model in (await caller.read("/openai/v1/models"))["data"]] == ["agent/A"]
        assert (await caller.get(f"/openai/v1/models/{other}")).status_code == 404
        assert await self.asked(caller, agent=other) == [404] * 4
        assert await self.asked(caller, agent=None) == [403] * 4
        assert (await caller.read("/v1/conversations"))["data"] == []
        assert await self.asked(caller, agent=mine) == [200] * 4

    async def test_models_outside_cannot_be_chosen(self, server: ApiServer, service: Client) -> None:
        caller = await server.user(service, scopes={"models": ["scripted/x"]})
        assert await self.asked(caller, agent=None, model="scripted/y") == [403] * 4
        assert await self.asked(caller, agent=None, model="scripted/x") == [200] * 4

    async def test_files_need_their_feature(self, server: ApiServer, service: Client) -> None:
        caller = await server.user(service, scopes={"features": []})
        part = {"type": "file", "mediaType": "text/plain", "filename": "a.txt", "url": "data:text/plain,milk"}
        sdk = {"id": "c", "messages": [{"id": "m", "role": "user", "parts": [part]}]}
        assert code_of(await caller.post("/ai-sdk/chat", json=sdk)) == OUT
        source = {"type": "data", "value": "bWlsaw==", "mimeType": "text/plain"}
        content = [{"type": "document", "source": source}]
        run = {"threadId": "t", "runId": "r", "messages": [{"id": "m", "role": "user", "content": content}]}
        assert code_of(await caller.post("/ag-ui", json=run)) == OUT
        form = {"file": ("a.txt", b"milk")}
        sent = await caller.post("/openai/v1/files", files=form, data={"purpose": "user_data"})
        assert (sent.status_code, (await caller.get("/openai/v1/files")).status_code) == (403, 403)

    async def test_limits_of_users_and_keys_hold(self, server: ApiServer, service: Client, user: Client) -> None:
        await service.patch("/v1/users/ann", json={"monthly_message_limit": 0})
        assert await self.asked(user, agent=None) == [429] * 4
        assert (await user.read("/v1/conversations"))["data"] == []
        limited = await a_key(server, service, requests_per_minute=1)
        assert (await limited.get("/v1/me")).status_code == 200
        assert await self.asked(limited, agent=None) == [429] * 4
        assert (await limited.get("/openai/v1/models")).status_code == 429

    async def test_limits_of_stored_bytes_hold(self, server: ApiServer, service: Client, user: Client) -> None:
        await service.patch("/v1/users/ann", json={"stored_byte_limit": 3})
        part = {"type": "file", "mediaType": "text/plain", "filename": "a.txt", "url": "data:text/plain,milk"}
        sdk = {"id": "c", "messages": [{"id": "m", "role": "user", "parts": [part]}]}
        form = {"file": ("a.txt", b"milk")}
        for sent in (
            await user.post("/ai-sdk/chat", json=sdk),
            await user.post("/openai/v1/files", files=form, data={"purpose": "user_data"}),
        ):
            assert sent.status_code == 507, sent.text
        assert (await user.read("/v1/conversations"))["data"] == []
