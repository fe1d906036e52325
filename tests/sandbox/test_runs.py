"""Runs of an agent: the lines as they come, one last line, and nothing of it in the history."""

import asyncio
from typing import Any

import httpx
import msgspec

from tests.api.harness import ApiServer, Client, code_of, fake_id
from tests.sandbox.conftest import both
from tests.sandbox.scripted_runner import (
    ScriptedRunner,
    Visit,
    delta,
    error,
    log,
    result,
    running,
    succeeded,
)

Json = Any

LINES = [
    log("Loaded 3 skills"),
    delta("Looking."),
    running("s1", args={"command": "ls"}),
    log("more", "debug"),
    succeeded("s1", result=["a"], durationMs=3),
    delta("Two files."),
]


async def an_agent(service: Client, **spec: Json) -> str:
    response = await service.post("/v1/agents", json={"name": fake_id("agent"), "sandbox": True, **spec})
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


async def run(client: Client, agent_id: str, **body: Json) -> tuple[httpx.Response, list[Json]]:
    response = await client.post(f"/v1/agents/{agent_id}/runs", json={"prompt": "Go.", **body})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    return response, [msgspec.json.decode(line) for line in response.content.splitlines()]


class TestTheLines:
    @both
    async def test_are_forwarded_as_they_were_written_logs_included(
        self, service: Client, user: Client, runner: ScriptedRunner
    ) -> None:
        runner.says(*LINES, result("Two files."))
        agent = await an_agent(service)
        _, lines = await run(user, agent)
        assert lines == [*LINES, result("Two files.")]
        for last in (result("Done."), error("tired", "No more.")):
            timed = [line | {"ts": 1_700_000_000_000 + place} for place, line in enumerate([*LINES, last])]
            runner.says(*timed)
            assert (await run(user, agent))[1] == timed

    async def test_come_while_the_run_goes_on(self, service: Client, user: Client, runner: ScriptedRunner) -> None:
        seen = asyncio.Event()

        async def part(visit: Visit) -> None:
            await visit.write(log("first"))
            await seen.wait()
            await visit.write(result("Done."))

        runner.plays(part)
        path = f"/v1/agents/{await an_agent(service)}/runs"
        async with user.stream("POST", path, json={"prompt": "Go."}) as response:
            lines = response.aiter_lines()
            assert msgspec.json.decode(await anext(lines)) == log("first")
            seen.set()
            assert msgspec.json.decode(await anext(lines)) == result("Done.")

    async def test_end_with_one_error_after_any_failure(
        self, service: Client, user: Client, runner: ScriptedRunner
    ) -> None:
        agent = await an_agent(service)
        runner.says(log("x"), error("tired", "No more."))
        assert (await run(user, agent))[1][-1] == error("tired", "No more.")
        runner.says(log("x"), b"garbage\n", result("late"))
        _, lines = await run(user, agent)
        assert [line["type"] for line in lines] == ["log", "error"]
        assert lines[-1]["code"] == "sandbox_protocol"


class TestTheTurnOfARun:
    async def test_has_response_and_files_and_files_can_be_saved(
        self, service: Client, user: Client, runner: ScriptedRunner
    ) -> None:
        async def part(visit: Visit) -> None:
            await visit.hand_back(report__txt=b"all well")
            await visit.write(result("Written."))

        runner.plays(part)
        response, _ = await run(user, await an_agent(service))
        turn = await user.read(f"/v1/turns/{response.headers['turnkeep-turn']}")
        assert (turn["status"], turn["response"]) == ("succeeded", "Written.")
        [file] = turn["files"]
        assert file["name"] == "report.txt"
        saved = await user.post(f"/v1/files/{file['id']}/save")
        assert saved.status_code in {200, 201}, saved.text
        listed = await user.read("/v1/files", params={"scope": "workspace"})
        assert [one["name"] for one in listed["data"]] == ["report.txt"]

    async def test_its_files_can_be_attached_again(
        self, server: ApiServer, service: Client, user: Client, runner: ScriptedRunner
    ) -> None:
        async def part(visit: Visit) -> None:
            await visit.hand_back(report__txt=b"all well")
            await visit.write(result("Written."))

        runner.plays(part)
        response, _ = await run(user, await an_agent(service))
        [file] = (await user.read(f"/v1/turns/{response.headers['turnkeep-turn']}"))["files"]
        asked = await user.ask("What does it say?", attachment_ids=[file["id"]])
        [copy] = (await user.read(f"/v1/conversations/{asked['conversation_id']}/files"))["data"]
        assert (copy["name"], copy["sha256"]) == ("report.txt", file["sha256"])
        assert copy["id"] != file["id"]
        runner.plays(part)
        assert (await run(user, await an_agent(service), attachment_ids=[file["id"]]))[1][-1]["type"] == "result"

    async def test_is_in_no_history_counts_once_and_is_not_continued(
        self, service: Client, user: Client, runner: ScriptedRunner
    ) -> None:
        response, _ = await run(user, await an_agent(service))
        assert (await user.read("/v1/conversations"))["data"] == []
        assert (await user.read("/v1/usage"))["messages"] == 1
        turn = await user.read(f"/v1/turns/{response.headers['turnkeep-turn']}")
        more = await user.post("/v1/turns", json={"message": "More?", "conversation_id": turn["conversation_id"]})
        assert code_of(more) == (422, "invalid_request")

    async def test_takes_files_along(self, service: Client, user: Client, runner: ScriptedRunner) -> None:
        configs: list[Json] = []

        async def part(visit: Visit) -> None:
            configs.append(await visit.config())
            await visit.write(result("Read."))

        promised = await user.post("/v1/files", json={"name": "in.txt", "size": 3, "mime_type": "text/plain"})
        assert promised.status_code in {200, 201}, promised.text
        upload = promised.json()["upload"]
        async with httpx.AsyncClient(trust_env=False, timeout=120) as plain:
            url = httpx.URL(str(user.base_url)).join(upload["url"])
            put = await plain.request(upload["method"], url, content=b"abc", headers=upload["headers"])
        assert put.status_code < 300, put.text
        file_id = promised.json()["file"]["id"]
        assert (await user.post(f"/v1/files/{file_id}/complete")).status_code == 200
        runner.plays(part)
        await run(user, await an_agent(service), attachment_ids=[file_id])
        assert configs[0]["assets"] is not None


class TestLeaving:
    async def test_stops_the_run_at_once(
        self, server: ApiServer, service: Client, user: Client, runner: ScriptedRunner
    ) -> None:
        async def part(visit: Visit) -> None:
            await visit.write(running("s1"))
            await asyncio.Event().wait()

        runner.plays(part)
        path = f"/v1/agents/{await an_agent(service)}/runs"
        async with user.stream("POST", path, json={"prompt": "Go."}) as response:
            turn_id = response.headers["turnkeep-turn"]
            await anext(response.aiter_lines())
        async with asyncio.timeout(20):
            await runner.visits[0].left.wait()
            while (turn := await user.read(f"/v1/turns/{turn_id}"))["status"] == "running":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert (turn["status"], turn["error"]["code"]) == ("cancelled", "cancelled")

    async def test_a_client_that_reads_nothing_is_disconnected(
        self, service: Client, user: Client, runner: ScriptedRunner, monkeypatch: Any
    ) -> None:
        monkeypatch.setattr("turnkeep.api.native.agents.UNSENT_BYTES", 100_000)

        async def part(visit: Visit) -> None:
            for _ in range(200):
                await visit.write(log("x" * 100_000))
            await visit.write(result("Never read."))

        runner.plays(part)
        path = f"/v1/agents/{await an_agent(service)}/runs"
        async with user.stream("POST", path, json={"prompt": "Go."}) as response:
            turn_id = response.headers["turnkeep-turn"]
            async with asyncio.timeout(20):
                while (await user.read(f"/v1/turns/{turn_id}"))["status"] == "running":  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            turn = await user.read(f"/v1/turns/{turn_id}")
        assert turn["status"] == "cancelled"


class TestRefusals:
    async def test_before_anything_is_claimed(self, service: Client, user: Client, runner: ScriptedRunner) -> None:
        agent = await an_agent(service)
        boxless = await user.post(f"/v1/agents/{await an_agent(service, sandbox=False)}/runs", json={"prompt": "Go."})
        assert code_of(boxless) == (422, "invalid_request")
        assert "no sandbox" in boxless.json()["detail"]
        nobody = await user.post(f"/v1/agents/{fake_id('agent')}/runs", json={"prompt": "Go."})
        assert code_of(nobody) == (404, "not_found")
        empty = await user.post(f"/v1/agents/{agent}/runs", json={"prompt": "  "})
        assert code_of(empty) == (422, "invalid_request")
        unknown = await user.post(f"/v1/agents/{agent}/runs", json={"prompt": "x", "attachment_ids": [fake_id("file")]})
        assert code_of(unknown) == (404, "not_found")
        assert (await user.read("/v1/usage"))["messages"] == 0
        assert runner.visits == []
