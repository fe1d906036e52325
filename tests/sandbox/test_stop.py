"""However a turn in a sandbox is stopped: its box is closed, its steps are kept, and it has exactly one ending."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.api.harness import STREAM, ApiServer, Client, code_of, data_of, fake_id, names, read_events, settings_for
from tests.ports import free_ports
from tests.sandbox.conftest import both
from tests.sandbox.scripted_runner import ScriptedRunner, Visit, delta, result, running, succeeded
from turnkeep.config import Settings

Json = Any


async def hang(visit: Visit) -> None:
    """One step done, one under way, half a sentence said, and then nothing."""
    await visit.write(succeeded("s1", result="kept"), running("s2"), delta("Half of"))
    await asyncio.Event().wait()


async def begun(client: Client, runner: ScriptedRunner, **body: Json) -> Json:
    """A turn that runs in the background and whose first lines are recorded."""
    accepted = await client.ask("Go.", kind="sandbox", background=True, **body)
    async with asyncio.timeout(30):
        while (await client.read(f"/v1/turns/{accepted['turn_id']}"))["status"] == "queued":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        async with client.stream("GET", accepted["events_url"]) as response:
            await read_events(response, until="delta")
    return accepted


async def told(client: Client, turn_id: str) -> list[Any]:
    async with asyncio.timeout(30), client.stream("GET", f"/v1/turns/{turn_id}/events", headers=STREAM) as response:
        return await read_events(response)


async def kept_everything(client: Client, turn_id: str, code: str, *, words: str = "Half of") -> None:
    """Both steps, the open one closed, and the words that were only shown, unless their server died with them."""
    events = await told(client, turn_id)
    spoken = ["tool_calls"] if words else []
    assert [name for name in names(events) if name != "reset"] == ["turn", *["step"] * 3, *spoken, "error"]
    assert data_of(events[-1])["code"] == code
    turn = await client.read(f"/v1/turns/{turn_id}")
    page = await client.read(f"/v1/conversations/{turn['conversation_id']}/messages")
    content = page["data"][-1]["content"]
    assert [(part["type"], part.get("status")) for part in content[:2]] == [("step", "succeeded"), ("step", "failed")]
    assert "".join(part["text"] for part in content[2:]) == words


class TestCancelling:
    @both
    async def test_closes_the_request_and_keeps_the_text_so_far(self, user: Client, runner: ScriptedRunner) -> None:
        runner.plays(hang)
        turn_id = (await begun(user, runner))["turn_id"]
        cancelled = (await user.post(f"/v1/turns/{turn_id}/cancel")).json()
        assert cancelled["status"] == "cancelled"
        async with asyncio.timeout(30):
            await runner.visits[0].left.wait()
        await kept_everything(user, turn_id, "cancelled")

    @pytest.mark.parametrize("settings", ["postgres"], indirect=True)
    async def test_works_from_another_worker(
        self, settings: Settings, server: ApiServer, user: Client, runner: ScriptedRunner
    ) -> None:
        runner.plays(hang)
        turn_id = (await begun(user, runner))["turn_id"]
        async with ApiServer.start(settings, runner_url=runner.url) as other:
            elsewhere = await other.client(user.key)
            cancelled = (await elsewhere.post(f"/v1/turns/{turn_id}/cancel")).json()
            assert cancelled["status"] == "cancelled"
            async with asyncio.timeout(30):
                await runner.visits[0].left.wait()
            await kept_everything(elsewhere, turn_id, "cancelled")

    async def test_nothing_is_written_back_afterwards(self, user: Client, runner: ScriptedRunner) -> None:
        runner.plays(hang)
        accepted = await begun(user, runner)
        await user.post(f"/v1/turns/{accepted['turn_id']}/cancel")
        assert (await runner.visits[0].hand_back(late__txt=b"late"))[0] == 401
        files = await user.read(f"/v1/conversations/{accepted['conversation_id']}/files")
        assert files["data"] == []

    async def test_the_last_reader_who_leaves_stops_it(self, tmp_path: Path, runner: ScriptedRunner) -> None:
        settings = settings_for(tmp_path, disconnect_grace_seconds=0.0)
        async with ApiServer.start(settings, runner_url=runner.url) as server:
            user = await server.user(await server.tenant())
            runner.plays(hang)
            body = {"message": "Go.", "kind": "sandbox"}
            async with user.stream("POST", "/v1/turns", json=body, headers=STREAM) as response:
                turn_id = response.headers["turnkeep-turn"]
                await read_events(response, until="delta")
            async with asyncio.timeout(30):
                await runner.visits[0].left.wait()
            await kept_everything(user, turn_id, "cancelled")

    async def test_the_time_limit_of_the_agent_ends_it(
        self, service: Client, user: Client, runner: ScriptedRunner
    ) -> None:
        made = await service.post("/v1/agents", json={"name": fake_id("agent"), "limits": {"turn_timeout_seconds": 1}})
        runner.plays(hang)
        answer = await user.ask("Go.", kind="sandbox", agent_id=made.json()["id"])
        assert answer["turn"]["error"]["code"] == "turn_timeout"
        async with asyncio.timeout(30):
            await runner.visits[0].left.wait()


class TestWhatIsLost:
    @both
    async def test_a_runner_that_dies_leaves_its_steps(self, user: Client, runner: ScriptedRunner) -> None:
        async def part(visit: Visit) -> None:
            await visit.write(succeeded("s1", result="kept"), running("s2"), delta("Half of"))
            await visit.break_off()

        runner.plays(part)
        answer = await user.ask("Go.", kind="sandbox")
        assert answer["turn"]["status"] == "failed"
        await kept_everything(user, answer["turn"]["id"], "sandbox_lost")
        assert len(runner.visits) == 1

    @pytest.mark.parametrize("settings", ["postgres"], indirect=True)
    async def test_a_turn_of_a_silent_server_is_not_run_again(
        self, settings: Settings, server: ApiServer, user: Client, runner: ScriptedRunner
    ) -> None:
        runner.plays(hang)
        turn_id = (await begun(user, runner))["turn_id"]
        held = server.runtime.engine._worker._holds[turn_id].held
        async with ApiServer.start(settings, runner_url=runner.url) as other:
            elsewhere = await other.client(user.key)
            async with asyncio.timeout(30):
                while (await elsewhere.read(f"/v1/turns/{turn_id}"))["attempt"] == 1:  # renewals come in between
                    await server.runtime.store.hand_over([held])
                    await other.runtime.engine._worker.adopt(limit=1, turn_id=turn_id)
            await kept_everything(elsewhere, turn_id, "sandbox_lost", words="")
        assert len(runner.visits) == 1
        async with asyncio.timeout(30):
            await runner.visits[0].left.wait()

    async def test_a_turn_of_a_server_that_shuts_down_fails_with_that_reason(
        self, settings: Settings, runner: ScriptedRunner
    ) -> None:
        runner.plays(hang)
        async with ApiServer.start(settings, runner_url=runner.url) as server:
            user = await server.user(await server.tenant())
            turn_id, key = (await begun(user, runner))["turn_id"], user.key
        async with ApiServer.start(settings, runner_url=runner.url) as again:
            await kept_everything(await again.client(key), turn_id, "sandbox_lost")
        assert len(runner.visits) == 1

    async def test_a_turn_may_end_while_its_server_shuts_down(self, settings: Settings, runner: ScriptedRunner) -> None:
        is_leaving = asyncio.Event()

        async def part(visit: Visit) -> None:
            await visit.write(running("s1"), delta("One moment."))
            await is_leaving.wait()
            await visit.write(succeeded("s1"), result("In time."))

        runner.plays(part)
        patient = structs.replace(settings, drain_seconds=60.0)
        async with ApiServer.start(patient, runner_url=runner.url) as server:
            user = await server.user(await server.tenant())
            turn_id, key = (await begun(user, runner))["turn_id"], user.key
            server.server.stop()
            await server.runtime.engine.draining.wait()
            is_leaving.set()
        async with ApiServer.start(settings, runner_url=runner.url) as again:
            turn = await (await again.client(key)).read(f"/v1/turns/{turn_id}")
            assert (turn["status"], turn["response"]) == ("succeeded", "In time.")

    async def test_a_waiting_turn_of_a_server_that_was_shut_down_runs_on_the_next(
        self, settings: Settings, runner: ScriptedRunner
    ) -> None:
        runner.plays(hang)
        async with ApiServer.start(settings, runner_url=runner.url) as server:
            user = await server.user(await server.tenant())
            first = await begun(user, runner)
            body = {"conversation_id": first["conversation_id"], "if_busy": "enqueue", "background": True}
            waiting, key = await user.ask("And then?", **body), user.key
        runner.says(result("Then this."))
        async with ApiServer.start(settings, runner_url=runner.url) as again:
            client = await again.client(key)
            events = await told(client, waiting["turn_id"])
            assert data_of(events[-1])["message"] == "Then this."

    async def test_a_runner_that_never_closes_the_stream_does_not_hold_the_turn(
        self, user: Client, runner: ScriptedRunner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("turnkeep.engine.sandbox.remote_turn.CLOSING_SECONDS", 0.3)

        async def part(visit: Visit) -> None:
            await visit.write(result("That is all."))
            await asyncio.Event().wait()

        runner.plays(part)
        answer = await user.ask("Go.", kind="sandbox")
        assert answer["turn"]["response"] == "That is all."


class TestWithoutARunner:
    async def test_it_is_refused_before_anything_is_stored(self, settings: Settings) -> None:
        async with ApiServer.start(settings) as server:
            service = await server.tenant()
            user = await server.user(service)
            made = await service.post("/v1/agents", json={"name": fake_id("agent"), "sandbox": True})
            agent = made.json()["id"]
            for body in ({"kind": "sandbox"}, {"agent_id": agent}):
                refused = await user.post("/v1/turns", json={"message": "Go.", **body})
                assert code_of(refused) == (503, "sandbox_unavailable")
            assert code_of(await user.post(f"/v1/agents/{agent}/runs", json={"prompt": "Go."}))[0] == 503
            assert (await user.read("/v1/conversations"))["data"] == []
            assert (await user.read("/v1/usage"))["messages"] == 0

    async def test_it_is_refused_when_the_runner_does_not_respond(self, settings: Settings) -> None:
        [port] = free_ports(1)
        async with ApiServer.start(settings, runner_url=f"http://127.0.0.1:{port}") as server:
            user = await server.user(await server.tenant())
            refused = await user.post("/v1/turns", json={"message": "Go.", "kind": "sandbox"})
            assert code_of(refused) == (503, "sandbox_unavailable")
            assert (await user.read("/v1/usage"))["messages"] == 0

    @pytest.mark.parametrize("status", [429, 500, 503])
    async def test_a_busy_runner_fails_the_turn_with_its_own_message(
        self, user: Client, runner: ScriptedRunner, status: int
    ) -> None:
        runner.refusal = (status, "no place free")
        answer = await user.ask("Go.", kind="sandbox")
        assert answer["turn"]["error"]["code"] == "sandbox_unavailable"
        assert "no place free" in answer["turn"]["error"]["message"]

    async def test_a_server_that_is_not_a_runner_fails_the_turn(self, user: Client, runner: ScriptedRunner) -> None:
        runner.refusal = (404, "not found")
        answer = await user.ask("Go.", kind="sandbox")
        assert answer["turn"]["error"]["code"] == "sandbox_protocol"

    async def test_a_repeated_request_returns_its_turn(
        self, user: Client, runner: ScriptedRunner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        headers = {"idempotency-key": "once"}
        first = await user.ask("Go.", kind="sandbox", headers=headers)

        async def nobody(self: Any) -> bool:
            return False

        monkeypatch.setattr("turnkeep.engine.sandbox.runner_client.RunnerClient.answers", nobody)
        again = await user.ask("Go.", kind="sandbox", headers=headers)
        assert again["turn"]["id"] == first["turn"]["id"]
        other = await user.post(
            "/v1/turns", json={"message": "Go.", "kind": "sandbox"}, headers={"idempotency-key": "2"}
        )
        assert code_of(other) == (503, "sandbox_unavailable")


class TestConcurrency:
    async def test_twenty_turns_each_get_their_own_lines(self, user: Client, runner: ScriptedRunner) -> None:
        async def part(visit: Visit) -> None:
            word = visit.envelope["prompt"]
            for n in range(20):
                await visit.write(running(f"{word}-{n}"), succeeded(f"{word}-{n}", result=word))
                await asyncio.sleep(0)
            await visit.write(result(f"{word} done"))

        for _ in range(20):
            runner.plays(part)
        answers = await asyncio.gather(*(user.ask(f"word{n}", kind="sandbox") for n in range(20)))
        for n, answer in enumerate(answers):
            assert answer["turn"]["response"] == f"word{n} done"
            steps = [step for step in answer["message"]["content"] if step["type"] == "step"]
            assert [step["result"] for step in steps] == [f"word{n}"] * 20
