"""Networks that drop packets without a word: between the workers and their database or bucket."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.api.harness import ApiServer, Client, settings_for
from tests.api.test_files import a_conversation, upload
from tests.buckets import BUCKET, shared_environ
from tests.faults.engines import ask, running_engine
from tests.faults.script import question
from tests.faults.sites import Site
from tests.faults.stores import open_store
from tests.servers import PostgresServer
from tests.silent_proxy import SilentProxy
from tests.store.postgres.test_silence import address, socket_of
from turnkeep.engine import Engine, loop
from turnkeep.engine.assembly import FilesUnavailable
from turnkeep.files import bucket
from turnkeep.ids import TurnId
from turnkeep_client.wire.events import Reset

TURNS = 12
ROUNDS = ("look+pay", "left+right", "look")
LEASE_SECONDS = 10.0


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server.start()


class TestADatabaseThatFallsSilent:
    async def test_and_whose_standby_is_promoted_fails_no_turn(self, primary: PostgresServer, tmp_path: Path) -> None:
        site = await Site.open(primary.uri(), tmp_path)
        async with AsyncExitStack() as stack:
            near = await stack.enter_async_context(SilentProxy(socket_of(primary.uri())))
            server = stack.enter_context(PostgresServer())
            standby = await asyncio.to_thread(server.follow, primary)
            far = await stack.enter_async_context(SilentProxy(socket_of(standby.uri())))
            site.url = address(primary.uri(), near, far)
            engines = [await an_engine(stack, site, name) for name in ("worker-1", "worker-2")]
            for n in range(TURNS):
                claimed = await ask(engines[n % 2], site.tenant.ann, question(f"q{n}", *ROUNDS))
                site.acknowledged.append(claimed.turn.id)
            near.fall_silent()
            await asyncio.to_thread(standby.promote)
            async with asyncio.timeout(60):
                late = await ask(engines[0], site.tenant.ann, question("late"))
                site.acknowledged.append(late.turn.id)
            async with asyncio.timeout(60):
                await asyncio.gather(*(engines[0].wait(turn_id) for turn_id in site.acknowledged))
            site.url = standby.uri()
            examined = await site.examine()
        assert examined.violations == ()
        assert [turn.error for turn in examined.turns if turn.status != "succeeded"] == []
        assert len(examined.turns) == TURNS + 1

    async def test_for_longer_than_a_lease_has_its_turns_adopted_as_soon_as_it_is_back(
        self, postgres_site: Site
    ) -> None:
        site = postgres_site
        async with AsyncExitStack() as stack:
            proxy = await stack.enter_async_context(SilentProxy(socket_of(site.url)))
            site.url = address(direct := site.url, proxy)
            engine = await an_engine(stack, site, "worker-1", retry_seconds=2.0)
            for n in range(TURNS):
                claimed = await ask(engine, site.tenant.ann, question(f"q{n}", *ROUNDS))
                site.acknowledged.append(claimed.turn.id)
            proxy.fall_silent()
            async with asyncio.timeout(60):
                while engine.running:  # noqa: ASYNC110 - nobody tells when the last turn was let go
                    await asyncio.sleep(0.1)
            proxy.speak_again()
            async with asyncio.timeout(60):
                await asyncio.gather(*(engine.wait(turn_id) for turn_id in site.acknowledged))
            site.url = direct
            examined = await site.examine()
        assert examined.violations == ()
        assert {turn.status for turn in examined.turns} == {"succeeded"}
        resets = [each.event for trace in examined.traces for each in trace.events if isinstance(each.event, Reset)]
        assert {reset.reason for reset in resets} == {"handover"}, "no lease had to end"


async def an_engine(stack: AsyncExitStack, site: Site, name: str, *, retry_seconds: float = 10.0) -> Engine:
    store = await open_store(site.url, retry_seconds=retry_seconds)
    stack.push_async_callback(store.close)
    return await stack.enter_async_context(
        running_engine(store, site.journal, name=name, pace=0.1, lease_seconds=LEASE_SECONDS)
    )


@pytest.fixture
async def network(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SilentProxy]:
    """Between the server of a test and the bucket."""
    environ = shared_environ()
    port = urlsplit(environ["AWS_ENDPOINT_URL"]).port
    assert port is not None
    async with SilentProxy(port) as proxy:
        for name, value in (environ | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}"}).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(bucket, "SILENT_SECONDS", 1)
        yield proxy


@pytest.fixture
async def server(network: SilentProxy, tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with ApiServer.start(settings_for(tmp_path, files_url=f"s3://{BUCKET}/{tmp_path.name}")) as server:
        yield server


@pytest.fixture
async def user(server: ApiServer) -> Client:
    return await server.user(await server.tenant())


class TestABucketThatFallsSilent:
    async def test_keeps_a_turn_waiting_without_an_event_for_each_try(
        self, network: SilentProxy, server: ApiServer, user: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(loop, "LONGEST_PAUSE_SECONDS", 1.0)
        turn_id = await self.ask_about_a_file(network, user)
        tries = network.accepted
        async with asyncio.timeout(60):
            while network.accepted < tries + 3:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        turn = await user.read(f"/v1/turns/{turn_id}")
        assert (turn["status"], turn["attempt"], server.scripts.requests) == ("running", 1, [])
        network.speak_again()
        ended = await server.runtime.engine.wait(turn_id)
        assert (ended.status, ended.attempt, ended.last_seq) == ("succeeded", 1, 2)
        assert "what it says" in str(server.scripts.requests[0].messages)

    async def test_is_asked_less_and_less_often_for_ten_minutes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pauses: list[float] = []

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)

        async def away(*_: object, **__: object) -> None:
            raise FilesUnavailable("The bucket is away.")

        async def held() -> None:
            pass

        monkeypatch.setattr(loop, "asyncio", SimpleNamespace(sleep=sleep))
        monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: sum(pauses)))
        turn: Any = SimpleNamespace(
            turn=None,
            recorder=SimpleNamespace(rows=()),
            settings=None,
            _assembly=SimpleNamespace(request=away),
            _lease=SimpleNamespace(begin_call=held),
        )
        with pytest.raises(FilesUnavailable):
            await loop.LocalTurn._request(turn, may_call=True)
        assert pauses[:8] == [0.5, 1, 2, 4, 8, 16, 30, 30]
        assert 570 < sum(pauses) <= 600

    async def test_and_stays_so_fails_the_turn_and_the_conversation_goes_on(
        self, network: SilentProxy, server: ApiServer, user: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(loop, "FILES_SECONDS", 2.0)
        turn_id = await self.ask_about_a_file(network, user)
        ended = await server.runtime.engine.wait(turn_id)
        assert ended.error is not None
        assert (ended.status, ended.error.code, ended.last_seq) == ("failed", "unavailable", 2)
        network.speak_again()
        again = await user.ask("And now?", conversation_id=ended.conversation_id)
        assert again["turn"]["status"] == "succeeded"

    async def ask_about_a_file(self, network: SilentProxy, user: Client) -> TurnId:
        """Ask in the background, just when the bucket falls silent."""
        conversation = await a_conversation(user)
        file = await upload(user, conversation, "a.txt", b"what it says")
        network.fall_silent()
        asked = await user.ask("Read.", conversation_id=conversation, attachment_ids=[file["id"]], background=True)
        return TurnId(asked["turn_id"])
