"""The model gateway: OpenAI's Chat Completions for one turn, any provider behind it, counted with the turn."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import openai
import pytest

from tests.api.harness import ApiServer, Client, settings_for
from tests.sandbox.conftest import both
from tests.sandbox.scripted_runner import ScriptedRunner, Visit, result
from turnkeep.config import Settings
from turnkeep.ids import TurnId, new_call_id
from turnkeep.providers.ports import Abilities, ModelRequest, ProviderFailed, Reply, Target
from turnkeep.providers.registry import ProviderRegistry
from turnkeep.providers.scripted import Call, Fail, Script, ScriptedProvider, Think, Until
from turnkeep_client.wire.blocks import Reasoning

Json = Any

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "shell", "description": "Run it.", "parameters": {"type": "object", "properties": {}}},
    }
]


async def in_a_turn(
    user: Client, runner: ScriptedRunner, work: Callable[[Visit, Json], Awaitable[None]], **body: Json
) -> Json:
    """Do this as the sandbox of a turn; the answer of the turn."""
    failures: list[BaseException] = []

    async def part(visit: Visit) -> None:
        try:
            await work(visit, await visit.config())
        except BaseException as exc:
            failures.append(exc)
            raise
        await visit.write(result("done"))

    runner.plays(part)
    answer = await user.ask("Go.", kind="sandbox", **body)
    if failures and not isinstance(failures[0], asyncio.CancelledError):
        raise failures[0]
    return answer


def sdk(config: Json) -> openai.AsyncOpenAI:
    gateway = config["gateway"]
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    return openai.AsyncOpenAI(
        api_key=gateway["token"], base_url=gateway["base_url"], max_retries=0, http_client=http, timeout=20
    )


class TestOneCall:
    @both
    async def test_is_answered_whole_and_counted_with_the_turn(
        self, server: ApiServer, user: Client, runner: ScriptedRunner
    ) -> None:
        found: list[Json] = []

        async def work(visit: Visit, config: Json) -> None:
            for _ in range(2):
                status, body = await visit.chat(config, "Hi?")
                assert status == 200, body
                found.append(body)

        server.scripts.say("Hello ", "you.")
        answer = await in_a_turn(user, runner, work)
        assert found[0]["object"] == "chat.completion"
        assert found[0]["choices"][0]["message"]["content"] == "Hello you."
        assert found[0]["choices"][0]["finish_reason"] == "stop"
        assert found[0]["usage"]["prompt_tokens"] == 10
        assert answer["turn"]["usage"]["input_tokens"] == 20
        assert answer["turn"]["usage"]["output_tokens"] == 10
        assert answer["message"]["usage"]["input_tokens"] == 20
        assert (await user.read("/v1/usage"))["input_tokens"] == 20

    async def test_is_streamed_as_the_official_sdk_reads_it(
        self, server: ApiServer, user: Client, runner: ScriptedRunner
    ) -> None:
        chunks: list[Any] = []

        async def work(visit: Visit, config: Json) -> None:
            async with sdk(config) as client:
                stream = await client.chat.completions.create(
                    model=config["agent"]["model"],
                    messages=[{"role": "user", "content": "Hi?"}],
                    tools=TOOLS,
                    stream=True,
                    stream_options={"include_usage": True},
                )
                chunks.extend([chunk async for chunk in stream])

        server.scripts.say("I look", " first.", Call("shell", {"command": "ls"}))
        await in_a_turn(user, runner, work)
        deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        assert "".join(delta.content or "" for delta in deltas) == "I look first."
        [called] = [delta.tool_calls[0] for delta in deltas if delta.tool_calls]
        assert (called.function.name, called.function.arguments) == ("shell", '{"command":"ls"}')
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "tool_calls"
        assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (10, 5)

    async def test_offers_the_tools_and_says_whether_they_may_be_called(
        self, server: ApiServer, user: Client, runner: ScriptedRunner
    ) -> None:
        async def work(visit: Visit, config: Json) -> None:
            await visit.chat(config, "Hi?", tools=TOOLS, tool_choice="none")

        await in_a_turn(user, runner, work)
        [asked] = server.scripts.requests
        assert [offer.name for offer in asked.tools] == ["shell"]
        assert not asked.may_call


class TestCounting:
    @both
    async def test_a_count_whose_answer_is_lost_is_one_count(
        self, server: ApiServer, user: Client, runner: ScriptedRunner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The database has written it, the connection breaks, and the driver asks again."""
        store = server.runtime.store
        count = store.count_usage

        async def twice(*args: Any, **kwargs: Any) -> bool:
            await count(*args, **kwargs)
            return await count(*args, **kwargs)

        monkeypatch.setattr(store, "count_usage", twice)

        async def work(visit: Visit, config: Json) -> None:
            for _ in range(2):
                assert (await visit.chat(config, "Hi?"))[0] == 200

        answer = await in_a_turn(user, runner, work)
        assert answer["turn"]["usage"]["input_tokens"] == 20

    @both
    @pytest.mark.parametrize("stream", [True, False])
    async def test_what_a_call_used_that_was_stopped_with_its_turn_is_estimated(
        self, server: ApiServer, user: Client, runner: ScriptedRunner, stream: bool
    ) -> None:
        spoken = asyncio.Event()

        async def wait() -> None:
            spoken.set()
            await asyncio.Event().wait()

        async def part(visit: Visit) -> None:
            await visit.chat(await visit.config(), "What " * 100, stream=stream)

        server.scripts.say("Four hundred characters. " * 16, Until(wait))
        runner.plays(part)
        turn_id = (await user.ask("Go.", kind="sandbox", background=True))["turn_id"]
        await asyncio.wait_for(spoken.wait(), 60)
        cancelled = (await user.post(f"/v1/turns/{turn_id}/cancel")).json()
        assert cancelled["status"] == "cancelled"
        used = cancelled["usage"]
        assert used["input_tokens"] >= 100
        assert 90 <= used["output_tokens"] <= 200
        whole = await user.read("/v1/usage")
        assert (whole["input_tokens"], whole["output_tokens"]) == (used["input_tokens"], used["output_tokens"])

    @pytest.mark.parametrize("settings", ["postgres"], indirect=True)
    async def test_a_call_that_another_worker_serves_is_estimated_too(
        self, settings: Settings, server: ApiServer, user: Client, runner: ScriptedRunner
    ) -> None:
        spoken = asyncio.Event()

        async def wait() -> None:
            spoken.set()
            await asyncio.Event().wait()

        async with ApiServer.start(settings, runner_url=runner.url) as other:
            other.scripts.say("Four hundred characters. " * 16, Until(wait))

            async def part(visit: Visit) -> None:
                config = await visit.config()
                path = urlsplit(config["gateway"]["base_url"]).path
                config["gateway"]["base_url"] = f"{other.url}{path}"
                await visit.chat(config, "What " * 100)

            runner.plays(part)
            turn_id = (await user.ask("Go.", kind="sandbox", background=True))["turn_id"]
            await asyncio.wait_for(spoken.wait(), 60)
            cancelled = (await user.post(f"/v1/turns/{turn_id}/cancel")).json()
        assert cancelled["usage"]["input_tokens"] >= 100
        assert 90 <= cancelled["usage"]["output_tokens"] <= 200

    async def test_a_call_that_fails_after_some_text_is_estimated(
        self, server: ApiServer, user: Client, runner: ScriptedRunner
    ) -> None:
        async def work(visit: Visit, config: Json) -> None:
            assert (await visit.chat(config, "Hi?"))[0] == 502

        server.scripts.say("Four hundred characters. " * 16, Fail(ProviderFailed("It broke off.")))
        answer = await in_a_turn(user, runner, work)
        assert 90 <= answer["turn"]["usage"]["output_tokens"] <= 200

    async def test_a_worker_that_died_with_a_call_does_not_keep_its_turn_from_ending(
        self, server: ApiServer, user: Client, runner: ScriptedRunner
    ) -> None:
        async def work(visit: Visit, config: Json) -> None:
            turn_id = TurnId(visit.url.rpartition("/")[2])
            await server.runtime.store.open_call(turn_id, 1, call_id=new_call_id())

        assert (await in_a_turn(user, runner, work))["turn"]["status"] == "succeeded"

    async def test_is_in_the_metrics_like_any_other_model_call(
        self, server: ApiServer, user: Client, runner: ScriptedRunner
    ) -> None:
        async def work(visit: Visit, config: Json) -> None:
            await visit.chat(config, "Hi?")
            await visit.chat(config, "Hi?")

        server.scripts.say("Hello.")
        server.scripts.say(Fail(ProviderFailed("It is overloaded.")))
        await in_a_turn(user, runner, work)
        told = (await user.get("/metrics")).text
        for outcome in ("answered", "failed"):
            line = f'turnkeep_model_call_seconds_count{{outcome="{outcome}",provider="scripted"}} 1'
            assert line in told, told
        assert 'turnkeep_tokens_total{kind="input",provider="scripted"} 10' in told


class TestARoundTrip:
    """What the model said comes back as it was, whichever protocol the provider behind it speaks."""

    @pytest.mark.parametrize("target", ["openai_chat", "openai_responses", "anthropic"])
    async def test_calls_results_and_signatures_survive(
        self, tmp_path: Any, runner: ScriptedRunner, target: Target
    ) -> None:
        name = "openai" if target == "openai_responses" else target.partition("_")[0]
        thought = Reasoning(text="Hm.", provider=name, signature="sig-1", data="cipher", item_id="rs_1")

        class Thinker(ScriptedProvider):
            async def speak(self, request: ModelRequest) -> Any:
                async for piece in super().speak(request):
                    if isinstance(piece, Reply):
                        blocks = tuple(thought if isinstance(each, Reasoning) else each for each in piece.blocks)
                        yield Reply(blocks=blocks, usage=piece.usage)
                    else:
                        yield piece

        scripts: list[Script] = [[Think("Hm."), "Looking.", Call("shell", {"command": "ls"})], ["Two files."]]
        abilities = Abilities(thinking="enabled" if target == "anthropic" else "off")
        provider = Thinker(scripts, name=name, target=target, abilities=abilities)
        settings = settings_for(tmp_path, model=f"{name}/m")

        async def work(visit: Visit, config: Json) -> None:
            async with sdk(config) as client:
                question: list[Any] = [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "Files?"},
                ]
                model = config["agent"]["model"]
                first = await client.chat.completions.create(model=model, messages=question, tools=TOOLS)
                said = first.choices[0].message.model_dump(exclude_none=True)
                assert said["reasoning_content"] == "Hm."
                [call] = said["tool_calls"]
                call["id"] = "call_renamed_by_the_runner"
                told = {"role": "tool", "tool_call_id": call["id"], "content": "Error: no such folder"}
                await client.chat.completions.create(
                    model=model,
                    messages=[*question, said, told],  # type: ignore[list-item]
                    tools=TOOLS,
                )

        async with ApiServer.start(settings, providers=ProviderRegistry([provider]), runner_url=runner.url) as server:
            user = await server.user(await server.tenant())
            await in_a_turn(user, runner, work)
        sent = provider.requests[1].messages
        text = str(sent)
        assert "Looking." in text
        assert "no such folder" in text
        if target == "anthropic":
            blocks = sent[1]["content"]
            assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use"]
            assert blocks[0]["signature"] == "sig-1"
            assert sent[2]["content"][0]["is_error"] is True
        if target == "openai_responses":
            assert {item.get("encrypted_content") for item in sent if item.get("type") == "reasoning"} == {"cipher"}

    async def test_pictures_come_through(self, server: ApiServer, user: Client, runner: ScriptedRunner) -> None:
        url = "data:image/png;base64,iVBORw0KGgo="

        async def work(visit: Visit, config: Json) -> None:
            content = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
            status, _ = await visit.chat(config, "", messages=[{"role": "user", "content": content}])
            assert status == 200

        await in_a_turn(user, runner, work)
        [asked] = server.scripts.requests
        assert asked.messages[-1]["content"][1]["image_url"]["url"] == url


class TestRefusals:
    """In OpenAI's shape, since OpenAI's clients read them."""

    async def refused(self, user: Client, runner: ScriptedRunner, **body: Json) -> tuple[int, Json]:
        found: list[tuple[int, Json]] = []

        async def work(visit: Visit, config: Json) -> None:
            found.append(await visit.chat(config, "Hi?", **body))

        await in_a_turn(user, runner, work)
        status, answer = found[0]
        assert set(answer["error"]) == {"message", "type", "param", "code"}
        return status, answer["error"]

    async def test_another_model_than_the_agent_s(self, user: Client, runner: ScriptedRunner) -> None:
        status, error = await self.refused(user, runner, model="openai/expensive")
        assert (status, error["type"]) == (422, "invalid_request_error")
        assert "only the model 'scripted'" in error["message"]

    async def test_invalid_messages(self, user: Client, runner: ScriptedRunner) -> None:
        wizard, alone = {"role": "wizard", "content": "x"}, {"role": "assistant", "content": "x"}
        for messages in ([], "no list", [wizard], [alone]):
            status, error = await self.refused(user, runner, messages=messages)
            assert (status, error["type"]) == (422, "invalid_request_error")

    async def test_a_provider_that_fails(self, server: ApiServer, user: Client, runner: ScriptedRunner) -> None:
        server.scripts.say(Fail(ProviderFailed("It is overloaded.")))
        status, error = await self.refused(user, runner)
        assert (status, error["code"], error["message"]) == (502, "provider_error", "It is overloaded.")

    async def test_a_token_of_another_turn_or_a_forged_one(self, user: Client, runner: ScriptedRunner) -> None:
        configs: list[Json] = []

        async def keep(visit: Visit, config: Json) -> None:
            configs.append(config)

        async def work(visit: Visit, config: Json) -> None:
            mine, other = config["gateway"], configs[0]["gateway"]
            later = mine["token"].replace(str(mine["expires_at"]), str(mine["expires_at"] + 1))
            for token in ("", "tkg_", other["token"], later, mine["token"][:-1] + "x", "ü" * 20):
                status, body = await visit.chat({**config, "gateway": {**mine, "token": token}}, "Hi?")
                assert (status, body["error"]["type"]) == (401, "authentication_error"), token
            status, _ = await visit.chat({**config, "gateway": {**mine, "base_url": other["base_url"]}}, "Hi?")
            assert status == 401
            status, _ = await visit.chat(config, "Hi?")
            assert status == 200

        await in_a_turn(user, runner, keep)
        await in_a_turn(user, runner, work)


class TestTheEndOfTheTurn:
    async def test_ends_a_call_under_way_and_keeps_its_count(
        self, server: ApiServer, user: Client, runner: ScriptedRunner
    ) -> None:
        """A call that outlives its sandbox: its connection stays open, and is ended from this side."""
        asked, never = asyncio.Event(), asyncio.Event()
        endings: list[Json] = []
        calls: list[asyncio.Task[None]] = []

        async def hang() -> None:
            asked.set()
            await never.wait()

        async def stray(config: Json) -> None:
            headers = {"Authorization": f"Bearer {config['gateway']['token']}"}
            body = {"model": "scripted", "messages": [{"role": "user", "content": "Hi?"}], "stream": True}
            url = f"{config['gateway']['base_url']}/chat/completions"
            async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=headers) as response:
                endings.append((await response.read()).decode())

        async def work(visit: Visit, config: Json) -> None:
            await visit.chat(config, "First.")
            calls.append(asyncio.create_task(stray(config)))
            await asked.wait()

        server.scripts.say("One.")
        server.scripts.say("Half", Until(hang))
        answer = await in_a_turn(user, runner, work)
        assert answer["turn"]["usage"]["input_tokens"] == 10
        async with asyncio.timeout(20):
            await calls[0]
        assert "Half" in endings[0]
        assert '"code":"unauthorized"' in endings[0]
        assert "[DONE]" not in endings[0]

    async def test_a_client_that_leaves_stops_the_model(
        self, server: ApiServer, user: Client, runner: ScriptedRunner
    ) -> None:
        asked, stopped = asyncio.Event(), asyncio.Event()

        async def hang() -> None:
            asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        async def work(visit: Visit, config: Json) -> None:
            call = asyncio.create_task(visit.chat(config, "Hi?"))
            await asked.wait()
            call.cancel()
            async with asyncio.timeout(20):
                await stopped.wait()

        server.scripts.say(Until(hang))
        answer = await in_a_turn(user, runner, work)
        assert answer["turn"]["status"] == "succeeded"
        assert answer["turn"]["usage"]["input_tokens"] == 0
