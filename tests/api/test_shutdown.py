"""Shutdown: no new requests, streams end with a hint to reconnect, waiting requests get 202, turns go on elsewhere."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.api.harness import STREAM, ApiServer, Scripts, code_of, names, read_events, settings_for
from tests.api.test_turns import ModelPause
from turnkeep.config import Settings
from turnkeep.providers.scripted import Until
from turnkeep.streaming.connection import DRAIN_TICK_SECONDS


@pytest.fixture
def settings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("leaving")
    if getattr(request, "param", "sqlite") == "postgres":
        return settings_for(folder, drain_seconds=0.5, database_url=request.getfixturevalue("api_database"))
    return settings_for(folder, drain_seconds=0.5)


class TestDraining:
    @pytest.mark.parametrize("settings", ["sqlite", "postgres"], indirect=True)
    async def test_a_turn_survives_its_server(self, settings: Settings) -> None:
        pause = ModelPause()
        scripts = Scripts()
        scripts.say("Half of ", Until(pause.wait))
        async with ApiServer.start(settings, scripts=scripts) as server:
            service = await server.tenant()
            user = await server.user(service)
            waiting = asyncio.create_task(user.post("/v1/turns", json={"message": "Wait"}))
            await pause.reached.wait()
            turn_id = (await user.read("/v1/conversations"))["data"][0]["running_turn"]["id"]
            async with user.stream("GET", f"/v1/turns/{turn_id}/events") as reading:
                stream = asyncio.create_task(reading.aread())
                server.server.stop()
                body = await stream
            assert b"retry: " in body
            assert b"event: result" not in body
            answer = await waiting
            assert answer.status_code == 202
            assert answer.json()["turn_id"] == turn_id
            assert answer.json()["events_url"] == f"/v1/turns/{turn_id}/events"
            key = user.key
        async with ApiServer.start(settings) as server:
            again = await server.client(key)
            async with again.stream("GET", f"/v1/turns/{turn_id}/events") as response:
                events = await read_events(response)
            assert names(events) == ["turn", "reset", "result"]
            turn = await again.read(f"/v1/turns/{turn_id}")
            assert (turn["status"], turn["response"], turn["attempt"]) == ("succeeded", "Hello there.", 2)

    async def test_a_call_that_is_under_way_may_end_and_its_readers_stay(self, tmp_path: Path) -> None:
        pause = ModelPause()
        scripts = Scripts()
        scripts.say("Half and ", Until(pause.wait), "half.")
        async with ApiServer.start(settings_for(tmp_path, drain_seconds=60.0), scripts=scripts) as server:
            user = await server.user(await server.tenant())
            waiting = asyncio.create_task(user.post("/v1/turns", json={"message": "Wait"}))
            await pause.reached.wait()
            turn_id = (await user.read("/v1/conversations"))["data"][0]["running_turn"]["id"]
            async with user.stream("GET", f"/v1/turns/{turn_id}/events") as reading:
                stream = asyncio.create_task(read_events(reading))
                server.server.stop()
                await server.runtime.engine.draining.wait()
                refused = await user.post("/v1/turns", json={"message": "?"})
                assert code_of(refused) == (503, "unavailable")
                await asyncio.sleep(3 * DRAIN_TICK_SECONDS)
                pause.opened.set()
                assert names(await stream)[-1] == "result"
            assert (await waiting).json()["turn"]["status"] == "succeeded"

    async def test_readers_of_turns_elsewhere_are_sent_there_at_once(self, tmp_path: Path, api_database: str) -> None:
        pause = ModelPause()
        scripts = Scripts()
        scripts.say(Until(pause.wait), "Done.")
        shared: dict[str, Any] = {"database_url": api_database, "secret_keys": ("a secret that both servers share",)}
        first = settings_for(tmp_path / "1", **shared)
        second = settings_for(tmp_path / "2", **shared, drain_seconds=60.0)
        async with ApiServer.start(first, scripts=scripts) as runs, ApiServer.start(second) as leaves:
            user = await runs.user(await runs.tenant())
            turn_id = (await user.ask(background=True))["turn_id"]
            await pause.reached.wait()
            reader = await leaves.client(user.key)
            async with reader.stream("GET", f"/v1/turns/{turn_id}/events") as reading:
                stream = asyncio.create_task(reading.aread())
                leaves.server.stop()
                assert b"retry: " in await stream
            pause.opened.set()

    async def test_intake_stops_first_and_says_so(self, settings: Settings) -> None:
        async with ApiServer.start(settings) as server:
            client = await server.operator()
            await client.ask()
            server.runtime.engine.draining.set()
            refused = await client.post("/v1/turns", json={"message": "?"}, headers=STREAM)
            assert code_of(refused) == (503, "unavailable")
            assert refused.headers["retry-after"] == "1"
            assert refused.headers["connection"] == "close"
            assert code_of(await client.get("/readyz")) == (503, "unavailable")
            assert (await client.get("/v1/conversations")).status_code == 200
