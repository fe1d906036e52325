"""`kill -9` while a turn waits, is decided and goes on: a tool runs once after an allow, and never after a deny."""

import asyncio
import signal
from contextlib import suppress
from secrets import token_hex
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
TOOLS: dict[str, Any] = {
    "shell": {"type": "sandbox", "name": "shell", "approval": "always"},
    "pay": {"type": "native", "name": "pay", "approval": "always"},
}
"""A command in the box, and a tool that the server runs for a loop in a box or for its own."""


def client_of(server: WorkerProcess) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {SERVICE_KEY}", "turnkeep-user": "ann"}
    url = f"http://127.0.0.1:{server.port}"
    return httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=60)


async def begin(server: WorkerProcess, tool: str = "pay", *, sandbox: bool = False) -> str:
    """Ask for a call that a person must allow; return the turn."""
    async with client_of(server) as client:
        made = await client.post(
            "/v1/agents", json={"name": f"Payer {token_hex(4)}", "tools": [TOOLS[tool]], "sandbox": sandbox}
        )
        assert made.status_code == 201, made.text
        body = {"message": question("q0", tool), "agent_id": made.json()["id"], "background": True}
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


async def refuse_late(server: WorkerProcess, turn: Any, lines: list[Any]) -> None:
    """A decision about a call whose box is gone changes nothing, unless it is the one that holds."""
    calls = [call for line in lines if line["type"] == "approval" for call in line["calls"]]
    decided = {made["call_id"] for line in lines if line["type"] == "decided" for made in line["decisions"]}
    async with client_of(server) as client:
        for call in calls:
            body = {"decisions": [{"call_id": call["id"], "decision": "allow"}]}
            answer = await client.post(f"/v1/turns/{turn['id']}/approvals", json=body)
            assert answer.status_code == 409 or call["id"] in decided, answer.text


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


def sandbox_of(runner: WorkerProcess) -> dict[str, str]:
    """The settings of a server whose sandboxes this runner runs."""
    return {"TURNKEEP_SANDBOX_URL": f"http://127.0.0.1:{runner.port}"}


def check_sandbox_turn(site: Site, turn: Any, lines: list[Any], decision: str) -> None:
    """Nothing ran twice, nothing ran that was not allowed, and the turn says honestly what became of the call."""
    began = [entry for entry in site.journal.read() if entry.moment == "began"]
    if decision == "deny":
        assert began == []
    elif turn["status"] == "succeeded":
        assert len(began) == 1
    else:
        assert len(began) <= 1
    assert [line["seq"] for line in lines if "seq" in line] == list(range(1, 1 + len([x for x in lines if "seq" in x])))
    kinds = [line["type"] for line in lines]
    assert kinds.count("result") + kinds.count("error") == 1
    assert kinds.count("decided") <= 1
    assert kinds.count("approval") <= 1
    if "approval" not in kinds:
        return
    [call] = next(line for line in lines if line["type"] == "approval")["calls"]
    [step] = [
        line for line in lines if line["type"] == "step" and line["status"] != "running" and line["id"] == call["id"]
    ]
    if turn["status"] == "succeeded":
        assert (step["status"] == "succeeded") == (decision == "allow")
        return
    assert turn["error"]["code"] == "sandbox_lost", turn
    if began and step["status"] == "failed":
        assert "outcome_unknown" in str(step["error"]), "it may have run, and no reader may be told that it did not"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.nightly)])
def box_site(request: pytest.FixtureRequest) -> Site:
    """A site for tests with boxes, which take longer."""
    found: Site = request.getfixturevalue(f"{request.param}_site")
    return found


class TestAServerThatIsKilledWhileABoxWaits:
    """The box dies with the server that holds its turn. So an allowed call runs once, or the turn ends as
    `sandbox_lost`; it is never run a second time by the server that comes after."""

    @pytest.mark.parametrize(
        "tool, place, decision",
        [
            *(("shell", place, "allow") for place in ("waiting", "waited", "answered", "settling", "settled")),
            *(("shell", place, "deny") for place in ("answered", "settling")),
            *(("pay", place, "allow") for place in ("answered", "tool_starting", "tool_running", "settling")),
            ("pay", "answered", "deny"),
        ],
    )
    async def test_leaves_a_call_that_ran_once_or_never(
        self, box_site: Site, tool: str, place: str, decision: str
    ) -> None:
        site = box_site
        runner = await site.run_boxes()
        victim = await site.serve(fault=Fault("SIGKILL", place, 1), more=sandbox_of(runner))
        turn_id = await begin(victim, tool, sandbox=True)
        with suppress(httpx.TransportError):
            await decide(victim, await state_of(victim, turn_id, "waiting"), decision)
        assert await victim.died() == -signal.SIGKILL
        heir = await site.serve(more=sandbox_of(runner))
        turn = await state_of(heir, turn_id, "succeeded", "failed", "cancelled")
        assert (turn["status"] == "succeeded") == (place == "settled"), turn
        check_sandbox_turn(site, turn, await lines_of(heir, turn_id), decision)
        if place != "settled":
            await refuse_late(heir, turn, await lines_of(heir, turn_id))
        await heir.leave()

    async def test_another_server_that_is_killed_in_the_middle_of_the_call(self, postgres_site: Site) -> None:
        """The box reaches its tools through another server than the one that holds its turn."""
        runner = await postgres_site.run_boxes()
        victim = await postgres_site.serve(fault=Fault("SIGKILL", "tool_running", 1), more=sandbox_of(runner))
        through = {"TURNKEEP_PUBLIC_URL": f"http://127.0.0.1:{victim.port}"}
        holder = await postgres_site.serve(more={**sandbox_of(runner), **through})
        turn_id = await begin(holder, "pay", sandbox=True)
        await decide(holder, await state_of(holder, turn_id, "waiting"), "allow")
        assert await victim.died() == -signal.SIGKILL
        turn = await state_of(holder, turn_id, "succeeded", "failed")
        began = [entry for entry in postgres_site.journal.read() if entry.moment == "began"]
        assert (turn["status"], len(began)) == ("failed", 1)


class TestARunnerThatIsKilled:
    @pytest.mark.parametrize(
        "tool, moment, decision",
        [
            ("shell", "waiting", "allow"),
            *((tool, "decided", decision) for tool in TOOLS for decision in ("allow", "deny")),
        ],
    )
    async def test_before_it_hears_the_decision_runs_nothing(
        self, box_site: Site, tool: str, moment: str, decision: str
    ) -> None:
        site = box_site
        runner = await site.run_boxes()
        server = await site.serve(more=sandbox_of(runner))
        turn_id = await begin(server, tool, sandbox=True)
        waiting = await state_of(server, turn_id, "waiting")
        runner.send(signal.SIGSTOP)
        await runner.stopped()
        if moment == "decided":
            await decide(server, waiting, decision)
        runner.send(signal.SIGKILL)
        turn = await state_of(server, turn_id, "succeeded", "failed")
        assert (turn["status"], turn["error"]["code"]) == ("failed", "sandbox_lost")
        assert site.journal.read() == []
        lines = await lines_of(server, turn_id)
        check_sandbox_turn(site, turn, lines, decision)
        assert [line["type"] for line in lines].count("decided") == (1 if moment == "decided" else 0)
        if moment == "waiting":
            await refuse_late(server, turn, lines)
        await server.leave()

    @pytest.mark.parametrize("place, ran", [("box_starting", 0), ("box_running", 1), ("box_ended", 1)])
    async def test_while_it_runs_the_command_runs_it_at_most_once(
        self, sqlite_site: Site, place: str, ran: int
    ) -> None:
        site = sqlite_site
        runner = await site.run_boxes(fault=Fault("SIGKILL", place, 1))
        server = await site.serve(more=sandbox_of(runner))
        turn_id = await begin(server, "shell", sandbox=True)
        await decide(server, await state_of(server, turn_id, "waiting"), "allow")
        assert await runner.died() == -signal.SIGKILL
        turn = await state_of(server, turn_id, "succeeded", "failed")
        assert (turn["status"], turn["error"]["code"]) == ("failed", "sandbox_lost")
        assert len([entry for entry in site.journal.read() if entry.moment == "began"]) == ran
        check_sandbox_turn(site, turn, await lines_of(server, turn_id), "allow")
        await server.leave()

    async def test_nothing_is_lost_without_a_kill(self, sqlite_site: Site) -> None:
        site = sqlite_site
        runner = await site.run_boxes()
        server = await site.serve(more=sandbox_of(runner))
        for tool in TOOLS:
            turn_id = await begin(server, tool, sandbox=True)
            await decide(server, await state_of(server, turn_id, "waiting"), "allow")
            turn = await state_of(server, turn_id, "succeeded", "failed")
            assert turn["status"] == "succeeded", turn
            assert [entry.tool for entry in site.journal.read() if entry.moment == "began"][-1] == tool
        await server.leave()
