"""`kill -9` at every step of an erasure: another server ends it, and nothing is left."""

import asyncio
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import apsw
import asyncpg
import httpx
import pytest

from tests.faults.processes import WorkerProcess
from tests.faults.sites import SERVICE_KEY, Site
from tests.faults.worker_protocol import Fault
from tests.servers import dump_of
from turnkeep.engine.observer import ErasureStep

CANARY = "canaryofthekillederasure"
DONE_SECONDS = 120.0


def client_of(server: WorkerProcess, user: str | None = None) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {SERVICE_KEY}"} | ({} if user is None else {"turnkeep-user": user})
    url = f"http://127.0.0.1:{server.port}"
    return httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=120)


async def leave_words(server: WorkerProcess, user: str) -> None:
    async with client_of(server, user) as client:
        for n in range(3):
            answer = await client.post("/v1/turns", json={"message": f"w5-{n} {CANARY}"})
            assert answer.status_code == 200, answer.text
            files = f"/v1/conversations/{answer.json()['conversation_id']}/files"
            sent = await client.post(files, files={"file": (f"{CANARY}.txt", CANARY.encode() * 100)})
            assert sent.status_code == 201, sent.text


async def erasure_of(site: Site) -> str:
    """The id of the only erasure. The answer of a server that was killed may be lost."""
    if not site.url.startswith("postgres"):
        connection = apsw.Connection(site.url.removeprefix("sqlite:///"))
        [(erasure_id,)] = connection.execute("SELECT id FROM erasures").fetchall()
        connection.close()
        return str(erasure_id)
    database = await asyncpg.connect(site.url)
    try:
        return str(await database.fetchval("SELECT id FROM turnkeep.erasures"))
    finally:
        await database.close()


async def done(server: WorkerProcess, erasure_id: str) -> Any:
    async with client_of(server) as client, asyncio.timeout(DONE_SECONDS):
        while True:
            erasure = (await client.get(f"/v1/erasures/{erasure_id}")).json()
            if erasure["status"] == "done":
                return erasure
            await asyncio.sleep(0.1)


def findings(site: Site, directory: Path) -> list[str]:
    found = [str(path) for path in directory.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
    if site.url.startswith("postgres") and CANARY.encode() in dump_of(site.url):
        found.append("the dump of the database")
    return found


class TestAnErasureThatIsKilled:
    @pytest.mark.parametrize("step", get_args(ErasureStep))
    async def test_is_ended_by_the_next_server(self, site: Site, tmp_path: Path, step: ErasureStep) -> None:
        victim = await site.serve(fault=Fault("SIGKILL", step, 1))
        await leave_words(victim, "ann")
        await leave_words(victim, "bob")
        assert findings(site, tmp_path)
        async with client_of(victim) as client:
            with suppress(httpx.TransportError):
                await client.post("/v1/users/ann/erase")
        assert await victim.died() == -signal.SIGKILL
        erasure_id = await erasure_of(site)
        heir = await site.serve()
        erasure = await done(heir, erasure_id)
        counts = erasure["counts"]
        assert (counts["conversations"], counts["turns"], counts["files"]) == (3, 3, 3), "each is counted once"
        async with client_of(heir) as client:
            assert (await client.get("/v1/users/ann")).status_code == 404
            begun = (await client.post("/v1/users/bob/erase")).json()["erasure_id"]
        await done(heir, begun)
        assert findings(site, tmp_path) == []
