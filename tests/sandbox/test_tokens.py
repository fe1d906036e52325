"""The tokens of a sandbox: each is valid once, until it expires, for its own turn, and while the turn runs."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from tests.api.harness import ApiServer, Client, fake_id, settings_for
from tests.sandbox.conftest import both
from tests.sandbox.scripted_runner import ScriptedRunner, Visit, result
from turnkeep.clock import system_clock
from turnkeep.config import MASK

Json = Any

AGENT = {
    "name": "Builder",
    "instructions": "Build things.",
    "tools": [{"type": "http", "name": "weather", "url": "https://example.com/", "headers": {"x-key": "secret one"}}],
    "skills": [{"name": "charts", "files": {"SKILL.md": "# Charts", "recipes/bar.sh": "echo bar"}}],
    "environment": {"variables": {"API_KEY": "secret two", "PLAIN": "ü"}, "setup_script": "echo ready"},
    "sandbox": True,
    "limits": {"tool_rounds": 4, "turn_timeout_seconds": 100},
}


async def an_agent(service: Client, **changes: Json) -> str:
    response = await service.post("/v1/agents", json={**AGENT, "name": fake_id("agent"), **changes})
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


class TestTheEnvironment:
    @both
    async def test_has_the_agent_s_variables_opened_and_its_script(
        self, service: Client, user: Client, runner: ScriptedRunner
    ) -> None:
        found: list[Json] = []

        async def part(visit: Visit) -> None:
            found.append(await visit.env())
            await visit.write(result("ok"))

        runner.plays(part)
        await user.ask(agent_id=await an_agent(service))
        assert found == [{"variables": {"API_KEY": "secret two", "PLAIN": "ü"}, "setup_script": "echo ready"}]

    async def test_is_empty_without_an_agent(self, user: Client, runner: ScriptedRunner) -> None:
        found: list[Json] = []

        async def part(visit: Visit) -> None:
            found.append(await visit.env())
            await visit.write(result("ok"))

        runner.plays(part)
        await user.ask(kind="sandbox")
        assert found == [{"variables": {}, "setup_script": None}]


class TestTheConfiguration:
    @both
    async def test_describes_the_turn(
        self, server: ApiServer, service: Client, user: Client, runner: ScriptedRunner
    ) -> None:
        found: list[Json] = []

        async def part(visit: Visit) -> None:
            found.append(await visit.config())
            await visit.write(result("ok"))

        runner.plays(part)
        answer = await user.ask("Draw a bar.", agent_id=await an_agent(service))
        [config] = found
        turn_id = answer["turn"]["id"]
        assert config["prompt"] == runner.visits[0].envelope["prompt"] == "Draw a bar."
        assert config["chat_id"] == runner.visits[0].envelope["chat_id"] == answer["conversation_id"]
        assert (config["conversation"], config["assets"]) == ([], None)
        assert config["agent"]["instructions"] == "Build things."
        assert config["agent"]["model"] == "scripted"
        assert config["agent"]["skills"] == AGENT["skills"]
        assert config["gateway"]["base_url"] == f"{server.url}/v1/sandbox/{turn_id}"
        assert config["limits"]["tool_rounds"] == 4
        assert 0 < config["limits"]["turn_seconds"] <= 100
        assert "step_seconds" not in config["limits"]

    async def test_has_no_secret_of_the_agent_s_tools(
        self, service: Client, user: Client, runner: ScriptedRunner
    ) -> None:
        found: list[Json] = []

        async def part(visit: Visit) -> None:
            found.append(await visit.config())
            await visit.write(result("ok"))

        runner.plays(part)
        await user.ask(agent_id=await an_agent(service))
        assert found[0]["agent"]["tools"][0]["headers"] == {"x-key": MASK}
        assert b"secret" not in msgspec.json.encode(found)

    async def test_has_the_twenty_turns_before_this_one(self, user: Client, runner: ScriptedRunner) -> None:
        found: list[Json] = []

        async def part(visit: Visit) -> None:
            found.append(await visit.config())
            await visit.write(result("ok"))

        runner.says(result("Answer 0."))
        conversation = (await user.ask("Question 0", kind="sandbox"))["conversation_id"]
        for n in range(1, 22):
            runner.says(result(f"Answer {n}."))
            await user.ask(f"Question {n}", conversation_id=conversation)
        runner.plays(part)
        await user.ask("Now?", conversation_id=conversation)
        told = found[0]["conversation"]
        assert [one["content"] for one in told if one["role"] == "user"] == [f"Question {n}" for n in range(2, 22)]
        assert [one["content"] for one in told if one["role"] == "assistant"] == [f"Answer {n}." for n in range(2, 22)]
        assert all(isinstance(one["ts"], int) for one in told)

    async def test_has_as_much_history_as_the_setting_allows(self, tmp_path: Path, runner: ScriptedRunner) -> None:
        found: list[Json] = []

        async def part(visit: Visit) -> None:
            found.append(await visit.config())
            await visit.write(result("ok"))

        async with ApiServer.start(settings_for(tmp_path, context_chars=2_000), runner_url=runner.url) as server:
            user = await server.user(await server.tenant())
            runner.says(result("x" * 1_500))
            conversation = (await user.ask("Question 0", kind="sandbox"))["conversation_id"]
            runner.says(result("y" * 1_500))
            await user.ask("Question 1", conversation_id=conversation)
            runner.plays(part)
            await user.ask("Now?", conversation_id=conversation)
        [config] = found
        assert [one["content"] for one in config["conversation"]] == ["Question 1", "y" * 1_500]
        assert config["limits"]["context_chars"] == 2_000

    async def test_has_a_download_address_that_needs_no_token(self, user: Client, runner: ScriptedRunner) -> None:
        found: list[tuple[int, bytes]] = []

        async def part(visit: Visit) -> None:
            config = await visit.config()
            async with aiohttp.ClientSession() as session, session.get(config["assets"]["url"]) as response:
                found.append((response.status, await response.read()))
            await visit.write(result("ok"))

        conversation = (await user.post("/v1/conversations", json={"kind": "sandbox"})).json()["id"]
        sent = await user.post(f"/v1/conversations/{conversation}/files", files={"file": ("data.csv", b"a,b\n1,2\n")})
        assert sent.status_code == 201, sent.text
        file_id = sent.json()["data"][0]["id"]
        runner.plays(part)
        await user.ask("", conversation_id=conversation, attachment_ids=[file_id])
        [(status, body)] = found
        assert status == 200
        assert body.startswith(b"PK")
        assert b"data.csv" in body
        assert runner.visits[0].envelope["prompt"] == "(Attached: data.csv)"


class TestATokenIsRefused:
    """401, whatever is wrong with it, and nothing is told."""

    async def refused(self, visit: Visit, path: str, token: str) -> None:
        status, body = await visit.get(path, token)
        assert (status, body["code"]) == (401, "unauthorized")

    @both
    async def test_after_it_was_used(self, user: Client, runner: ScriptedRunner) -> None:
        async def part(visit: Visit) -> None:
            await visit.env()
            await self.refused(visit, "env", visit.envelope["otp_setup"])
            await visit.config()
            await self.refused(visit, "config", visit.envelope["otp_run"])
            await visit.write(result("refused"))

        runner.plays(part)
        assert (await user.ask(kind="sandbox"))["turn"]["response"] == "refused"

    async def test_for_another_purpose_and_stays_valid_for_its_own(self, user: Client, runner: ScriptedRunner) -> None:
        async def part(visit: Visit) -> None:
            await self.refused(visit, "config", visit.envelope["otp_setup"])
            await self.refused(visit, "env", visit.envelope["otp_run"])
            await self.refused(visit, "env", "")
            assert await visit.env()
            assert await visit.config()
            await visit.write(result("refused"))

        runner.plays(part)
        assert (await user.ask(kind="sandbox"))["turn"]["response"] == "refused"

    async def test_for_another_turn_and_stays_valid_for_its_own(self, user: Client, runner: ScriptedRunner) -> None:
        async def part(visit: Visit) -> None:
            stolen = visit.elsewhere(runner.visits[0].url)
            await self.refused(stolen, "env", visit.envelope["otp_setup"])
            assert await visit.env()
            await visit.write(result("refused"))

        runner.says(result("first"))
        await user.ask(kind="sandbox")
        runner.plays(part)
        assert (await user.ask(kind="sandbox"))["turn"]["response"] == "refused"

    @both
    async def test_once_the_turn_has_ended(self, user: Client, runner: ScriptedRunner) -> None:
        configs: list[Json] = []

        async def part(visit: Visit) -> None:
            configs.append(await visit.config())
            await visit.write(result("early"))

        runner.plays(part)
        await user.ask(kind="sandbox")
        visit = runner.visits[0]
        await self.refused(visit, "env", visit.envelope["otp_setup"])
        status, _ = await visit.hand_back(late__txt=b"late")
        assert status == 401
        status, body = await visit.chat(configs[0], "Still there?")
        assert (status, body["error"]["code"]) == (401, "unauthorized")
        files = await user.read(f"/v1/conversations/{visit.envelope['chat_id']}/files")
        assert files["data"] == []

    async def test_after_it_has_expired(self, server: ApiServer, user: Client, runner: ScriptedRunner) -> None:
        async def part(visit: Visit) -> None:
            await server.runtime.store.expire_tokens(visit.url.rpartition("/")[2])  # type: ignore[arg-type]
            await self.refused(visit, "env", visit.envelope["otp_setup"])
            await self.refused(visit, "config", visit.envelope["otp_run"])
            await visit.write(result("refused"))

        runner.plays(part)
        assert (await user.ask(kind="sandbox"))["turn"]["response"] == "refused"

    async def test_after_the_time_of_the_setting(self, tmp_path: Path, runner: ScriptedRunner) -> None:
        async def set_up_late(visit: Visit) -> None:
            await self.refused(visit, "env", visit.envelope["otp_setup"])
            await self.refused(visit, "config", visit.envelope["otp_run"])
            assert (await visit.hand_back(in_time__txt=b"in time"))[0] == 201
            await visit.write(result("refused"))

        async def hand_back_late(visit: Visit) -> None:
            assert await visit.config()
            assert (await visit.hand_back(late__txt=b"late"))[0] == 401
            await visit.write(result("refused"))

        for setting, part in (("setup_token_seconds", set_up_late), ("upload_token_seconds", hand_back_late)):
            settings = settings_for(tmp_path, **{setting: 0.001})
            async with ApiServer.start(settings, runner_url=runner.url) as server:
                user = await server.user(await server.tenant())
                runner.plays(part)
                assert (await user.ask(kind="sandbox"))["turn"]["response"] == "refused", setting

    async def test_and_so_is_an_expired_download_address(self, tmp_path: Path, runner: ScriptedRunner) -> None:
        answers: list[int] = []
        bounds: list[tuple[int, int, int]] = []

        async def part(visit: Visit) -> None:
            before = system_clock()
            assets = (await visit.config())["assets"]
            bounds.append((before + 1_000, assets["expires_at"], system_clock() + 1_000))
            async with asyncio.timeout(30), aiohttp.ClientSession() as session:
                while not answers or answers[-1] == 200:
                    async with session.get(assets["url"]) as response:
                        answers.append(response.status)
                    await asyncio.sleep(0.05)
            assert system_clock() >= assets["expires_at"]
            await visit.write(result("refused"))

        async with ApiServer.start(settings_for(tmp_path, bag_url_ttl_seconds=1), runner_url=runner.url) as server:
            user = await server.user(await server.tenant())
            conversation = (await user.post("/v1/conversations", json={"kind": "sandbox"})).json()["id"]
            sent = await user.post(f"/v1/conversations/{conversation}/files", files={"file": ("a.csv", b"a,b\n1,2\n")})
            runner.plays(part)
            file_id = sent.json()["data"][0]["id"]
            turn = (await user.ask("", conversation_id=conversation, attachment_ids=[file_id]))["turn"]
        assert turn["response"] == "refused", turn["error"]
        assert answers[-1] == 401
        [(earliest, expires_at, latest)] = bounds
        assert earliest <= expires_at <= latest


class TestFilesThatAreWrittenBack:
    @both
    async def test_are_announced_before_the_result_and_are_part_of_the_answer(
        self, user: Client, runner: ScriptedRunner
    ) -> None:
        async def part(visit: Visit) -> None:
            status, body = await visit.hand_back(chart__txt=b"a chart", data__csv=b"a,b\n")
            assert status == 201, body
            await visit.write(result("Here."))

        runner.plays(part)
        answer = await user.ask("Draw.", kind="sandbox")
        assert sorted(file["name"] for file in answer["turn"]["files"]) == ["chart.txt", "data.csv"]
        assert [part["type"] for part in answer["message"]["content"]] == ["file", "file", "text"]
        assert {file["source"] for file in answer["turn"]["files"]} == {"sandbox"}

    async def test_are_kept_when_the_turn_then_fails(self, user: Client, runner: ScriptedRunner) -> None:
        async def part(visit: Visit) -> None:
            await visit.hand_back(chart__txt=b"a chart")
            await visit.break_off()

        runner.plays(part)
        answer = await user.ask("Draw.", kind="sandbox")
        assert answer["turn"]["error"]["code"] == "sandbox_lost"
        assert [file["name"] for file in answer["turn"]["files"]] == ["chart.txt"]
