"""Operation: liveness, readiness, metrics, OpenAPI, HEAD, the front page."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from tests.api.harness import OPERATOR_KEY, ApiServer, Client, code_of, fake_id, settings_for
from tests.api.test_access_matrix import ENDPOINTS
from tests.api.test_files import a_conversation, upload
from tests.api.test_turns import ModelPause
from tests.servers import create_database, drop_database, execute, of_this_worker, shared_postgres_uri
from turnkeep.api import app
from turnkeep.api.telemetry import metrics
from turnkeep.api.telemetry.metrics import EngineObserver, Metrics
from turnkeep.errors import LeaseLost, Unavailable
from turnkeep.ids import new_turn_id

OTHERS_ENDED = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@pytest.fixture
async def own_database() -> AsyncIterator[str]:
    """A database that the test may break."""
    name = of_this_worker("health")
    yield await create_database(shared_postgres_uri(), name)
    await drop_database(shared_postgres_uri(), name)


class TestHealth:
    async def test_alive_and_ready(self, server: ApiServer) -> None:
        anonymous = await server.client(None)
        assert (await anonymous.read("/healthz")) == {"status": "ok"}
        assert (await anonymous.read("/readyz")) == {"status": "ready"}

    async def test_not_ready_without_its_database_but_alive(
        self, server: ApiServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def away(*_: object, **__: object) -> None:
            raise Unavailable("The database is away.")

        monkeypatch.setattr(type(server.runtime.store), "check_ready", away)
        anonymous = await server.client(None)
        assert code_of(await anonymous.get("/readyz")) == (503, "unavailable")
        assert (await anonymous.get("/healthz")).status_code == 200

    async def test_not_ready_while_leases_cannot_be_renewed(
        self, server: ApiServer, user: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def away(*_: object, **__: object) -> None:
            raise Unavailable("The database is away.")

        pause = ModelPause()
        server.scripts.say(pause(), "Done.")
        await user.ask(background=True)
        await pause.reached.wait()
        monkeypatch.setattr(type(server.runtime.store), "renew", away)
        anonymous = await server.client(None)
        async with asyncio.timeout(60):
            while (refused := await anonymous.get("/readyz")).status_code == 200:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.1)
        assert code_of(refused) == (503, "unavailable")
        assert "renew the leases" in refused.json()["detail"]
        monkeypatch.undo()
        async with asyncio.timeout(60):
            while (await anonymous.get("/readyz")).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        pause.opened.set()

    @pytest.mark.parametrize(
        "change, said",
        [
            ("ALTER DATABASE {name} SET default_transaction_read_only = on", "takes no writes"),
            ("DELETE FROM turnkeep.schema_migrations WHERE version > 13", "too old: it is at migration 0013"),
            ("DROP TABLE turnkeep.schema_migrations", "too old"),
            ("DELETE FROM turnkeep.schema_migrations_of_functions", "lacks the functions of this release"),
            (
                "INSERT INTO turnkeep.schema_migrations VALUES (999, 'later', 'x'); "
                "UPDATE turnkeep.schema_migrations_of_functions SET oldest = 998",
                "too new: it is at migration 0999 and works with releases from 0998 on",
            ),
        ],
    )
    async def test_not_ready_on_a_database_that_takes_no_writes_or_has_another_schema(
        self, tmp_path: Path, own_database: str, change: str, said: str
    ) -> None:
        settings = settings_for(tmp_path, database_url=own_database, database_connections=1)
        async with ApiServer.start(settings) as server:
            anonymous = await server.client(None)
            assert (await anonymous.get("/readyz")).status_code == 200
            name = urlsplit(own_database).path.strip("/")
            await execute(own_database, change.format(name=name))
            await execute(own_database, OTHERS_ENDED)
            refused = await anonymous.get("/readyz")
            assert code_of(refused) == (503, "unavailable")
            assert said in refused.json()["detail"]
            assert (await anonymous.get("/healthz")).status_code == 200

    async def test_ready_on_the_schema_of_a_newer_release_that_works_with_this_one(
        self, tmp_path: Path, own_database: str
    ) -> None:
        async with ApiServer.start(settings_for(tmp_path, database_url=own_database)) as server:
            anonymous = await server.client(None)
            await execute(own_database, "INSERT INTO turnkeep.schema_migrations VALUES (999, 'later', 'x')")
            ready = await anonymous.read("/readyz")
            assert ready["status"] == "ready"
            assert "at migration 0999 of a newer release" in ready["detail"]

    async def test_the_numbers_are_prometheus_text(self, server: ApiServer, user: Client) -> None:
        await user.ask()
        await user.get("/v1/nothing")
        response = await (await server.client(None)).get("/metrics")
        assert response.headers["content-type"].startswith("text/plain")
        lines = response.text.splitlines()
        assert 'turnkeep_turns_ended_total{status="succeeded"} 1.0' in lines
        assert 'turnkeep_http_requests_total{method="POST",route="/v1/turns",status="200"} 1.0' in lines
        assert 'turnkeep_http_requests_total{method="GET",route="unknown",status="404"} 1.0' in lines
        assert "turnkeep_turns_running 0.0" in lines
        assert 'turnkeep_tokens_total{kind="output",provider="scripted"} 5.0' in lines

    async def test_the_numbers_and_the_document_are_not_made_for_every_request(
        self, server: ApiServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made: list[str] = []

        def make(source: object) -> bytes:
            made.append("made")
            return b"{}"

        monkeypatch.setattr(metrics, "generate_latest", make)
        monkeypatch.setattr(app, "document", make)
        anonymous = await server.client(None)
        for path in ("/metrics", "/openapi.json"):
            made.clear()
            for _ in range(20):
                assert (await anonymous.get(path)).status_code == 200
            assert len(made) < 20, path

    async def test_the_numbers_can_be_for_the_operator_alone(self, tmp_path: Path) -> None:
        async with ApiServer.start(settings_for(tmp_path / "key", metrics="key")) as server:
            assert code_of(await (await server.client(None)).get("/metrics")) == (401, "unauthorized")
            assert (await (await server.client(OPERATOR_KEY)).get("/metrics")).status_code == 200
        async with ApiServer.start(settings_for(tmp_path / "off", metrics="off")) as server:
            assert code_of(await (await server.client(OPERATOR_KEY)).get("/metrics")) == (404, "not_found")

    @pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/openapi.json"])
    async def test_head_is_answered_as_get_is_without_the_body(self, server: ApiServer, path: str) -> None:
        anonymous = await server.client(None)
        head, whole = await anonymous.head(path), await anonymous.get(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"] == whole.headers["content-type"]
        if path != "/metrics":  # whose numbers have moved on
            assert head.headers["content-length"] == str(len(whole.content))

    async def test_head_of_a_stream_ends_at_once_and_attaches_no_reader(
        self, server: ApiServer, user: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pause = ModelPause()
        server.scripts.say(pause(), "Done.")
        turn = (await user.ask(background=True))["turn_id"]
        attached: list[str] = []

        def attach(turn_id: str) -> AbstractContextManager[None]:
            attached.append(turn_id)
            return nullcontext()

        monkeypatch.setattr(server.runtime.engine, "attach", attach)
        head = await user.head(f"/v1/turns/{turn}/events")
        assert (head.status_code, head.content, attached) == (200, b"", [])
        assert head.headers["content-type"].startswith("text/event-stream")
        pause.opened.set()

    async def test_head_of_a_file_shows_its_size_only_to_who_may_see_it(self, server: ApiServer, user: Client) -> None:
        file = await upload(user, await a_conversation(user), "a.txt", b"hello")
        head = await user.head(f"/v1/files/{file['id']}/content")
        assert (head.status_code, head.headers["content-length"], head.content) == (200, "5", b"")
        assert (await (await server.client(None)).head(f"/v1/files/{file['id']}")).status_code == 401
        assert (await user.head(f"/v1/files/{fake_id('file')}")).status_code == 404

    async def test_head_is_refused_where_only_something_else_is_answered(self, user: Client) -> None:
        assert (await user.head("/v1/turns")).status_code == 405

    def test_a_turn_that_is_let_go_is_counted_by_code_however_many_words_there_are(self) -> None:
        metrics = Metrics()
        observer = EngineObserver(metrics)
        for _ in range(3):
            turn_id = new_turn_id()
            observer.turn_let_go(turn_id, LeaseLost(f"Turn {turn_id} was taken over by another worker."))
        counted = [
            line for line in metrics.text()[0].decode().splitlines() if line.startswith("turnkeep_turns_let_go_total{")
        ]
        assert counted == ['turnkeep_turns_let_go_total{reason="lease_lost"} 3.0']

    async def test_the_front_page_says_what_this_is(self, server: ApiServer) -> None:
        response = await (await server.client(None)).get("/")
        assert response.headers["content-type"].startswith("text/html")
        assert "/openapi.json" in response.text
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in response.headers["content-security-policy"]


class TestTheDocument:
    async def test_it_describes_every_route_and_every_answer(self, server: ApiServer) -> None:
        document = await (await server.client(None)).read("/openapi.json")
        assert document["openapi"] == "3.1.0"
        described = {(method.upper(), path) for path, operations in document["paths"].items() for method in operations}
        assert described == {(one.method, one.path) for one in ENDPOINTS if one.is_described}
        turns = document["paths"]["/v1/turns"]["post"]
        assert set(turns["responses"]) >= {"200", "202", "401", "403", "404", "409", "413", "422", "429", "503", "507"}
        stream = turns["responses"]["200"]["content"]["text/event-stream"]
        assert set(stream["x-events"]) >= {"turn", "delta", "tool_calls", "step", "result", "error", "reset"}
        conflict = turns["responses"]["409"]["$ref"].rpartition("/")[2]
        assert "application/problem+json" in document["components"]["responses"][conflict]["content"]

    async def test_every_reference_leads_somewhere(self, server: ApiServer) -> None:
        document = await (await server.client(None)).read("/openapi.json")

        def walk(node: object) -> None:
            if isinstance(node, dict):
                reference = node.get("$ref")
                if isinstance(reference, str):
                    target = document
                    for part in reference.removeprefix("#/").split("/"):
                        target = target[part]
                for value in node.values():
                    walk(value)
            elif isinstance(node, list):
                for value in node:
                    walk(value)

        walk(document)
        assert msgspec.json.encode(document)
