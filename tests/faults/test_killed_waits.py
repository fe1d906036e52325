"""`kill -9` while a turn waits, is decided and goes on: a tool runs once after an allow, and never after a deny."""

import asyncio
import signal
from contextlib import suppress
from typing import Any

import httpx
import pytest

from tests.faults.processes import WorkerProcess
from tests.faults.script import question
from tests.faults.sites import SERVICE_KEY, Site
from tests.faults.worker_protocol import Fault

BEFORE = ("iteration_recorded", "waiting", "waited")
"""Places that a turn reaches before anyone can decide."""
DECIDED = ("answered", "adopted", "settling", "settled")
ALLOWED = ("tool_starting", "tool_running", "tool_ended", "result_recorded")
"""Places that only an allowed call reaches."""
SECONDS = 90.0


def client_of(server: WorkerProcess) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {SERVICE_KEY}", "turnkeep-user": "ann"}
    url = f"http://127.0.0.1:{server.port}"
    return httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=60)


async def begin(server: WorkerProcess) -> str:
    """Ask for a payment that a person must allow; return the turn."""
    async with client_of(server) as client:
        rule = {"type": "native", "name": "pay", "approval": "always"}
        made = await client.post("/v1/agents", json={"name": "Payer", "tools": [rule]})
        assert made.status_code == 201, made.text
        body = {"message": question("q0", "pay"), "agent_id": made.json()["id"], "background": True}
        answer = await client.post("/v1/turns", json=body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["turn_id"])


async def state_of(server: WorkerProcess, turn_id: str, *wanted: str) -> Any:
    """The turn, once it has one of these states."""
    async with client_of(server) as client, asyncio.timeout(SECONDS):
        while True:
            turn = (await client.get(f"/v1/turns/{turn_id}")).json()
            if turn["status"] in wanted:
                return turn
            await asyncio.sleep(0.05)


async def decide(server: WorkerProcess, turn: Any, decision: str) -> None:
    [call] = turn["waiting_for"]["calls"]
    body = {"decisions": [{"call_id": call["id"], "decision": decision}]}
    async with client_of(server) as client:
        answer = await client.post(f"/v1/turns/{turn['id']}/approvals", json=body)
        assert answer.status_code == 200, answer.text


async def lines_of(server: WorkerProcess, turn_id: str) -> list[Any]:
    headers = {"authorization": f"Bearer {SERVICE_KEY}"}
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{server.port}", headers=headers, trust_env=False
    ) as client:
        lines = (await client.get(f"/v1/turns/{turn_id}/trace")).text.splitlines()
        return [httpx.Response(200, text=line).json() for line in lines]


class TestAServerThatIsKilled:
    @pytest.mark.parametrize(
        "place, decision",
        [
            *((place, decision) for place in (*BEFORE, *DECIDED) for decision in ("allow", "deny")),
            *((place, "allow") for place in ALLOWED),
        ],
    )
    async def test_leaves_a_call_that_runs_once_or_never(self, site: Site, place: str, decision: str) -> None:
        victim = await site.serve(fault=Fault("SIGKILL", place, 1))
        turn_id = await begin(victim)
        with suppress(httpx.TransportError):
            await decide(victim, await state_of(victim, turn_id, "waiting"), decision)
        assert await victim.died() == -signal.SIGKILL
        heir = await site.serve()
        turn = await state_of(heir, turn_id, "waiting", "succeeded")
        if turn["status"] == "waiting":
            await decide(heir, turn, decision)
        ended = await state_of(heir, turn_id, "succeeded", "failed", "cancelled")
        assert ended["status"] == "succeeded"
        began = [entry for entry in site.journal.read() if entry.moment == "began"]
        if decision == "deny":
            assert began == []
        else:
            assert len(began) == (0 if place == "tool_starting" else 1)
        lines = await lines_of(heir, turn_id)
        assert [line["seq"] for line in lines if "seq" in line] == list(range(1, 1 + len(lines)))
        kinds = [line["type"] for line in lines]
        assert kinds.count("approval") == 1
        assert kinds.count("result") == 1
        closed = [line for line in lines if line["type"] == "step" and line["status"] != "running"]
        assert len(closed) == 1
        await heir.leave()

    @pytest.mark.parametrize("place", ["waited", "result_recorded", "steered", "settling"])
    async def test_leaves_words_that_reach_the_model_once(self, site: Site, place: str) -> None:
        victim = await site.serve(fault=Fault("SIGKILL", place, 1))
        turn_id = await begin(victim)

        async def steer(server: WorkerProcess) -> None:
            async with client_of(server) as client:
                path, key = f"/v1/turns/{turn_id}/steer", {"idempotency-key": f"steer {turn_id}"}
                answer = await client.post(path, json={"message": question("q1")}, headers=key)
                assert answer.status_code == 202, answer.text

        with suppress(httpx.TransportError):
            turn = await state_of(victim, turn_id, "waiting")
            await steer(victim)
            await decide(victim, turn, "allow")
        assert await victim.died() == -signal.SIGKILL
        heir = await site.serve()
        turn = await state_of(heir, turn_id, "waiting", "succeeded", "running")
        await steer(heir)
        if turn["status"] == "waiting":
            await decide(heir, turn, "allow")
        ended = await state_of(heir, turn_id, "succeeded", "failed", "cancelled")
        assert ended["status"] == "succeeded"
        told = [line for line in await lines_of(heir, turn_id) if line["type"] == "steered"]
        assert [line["message"] for line in told] == [question("q1")]
        await heir.leave()
