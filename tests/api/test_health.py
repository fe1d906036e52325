"""What operators ask: alive, ready, numbers, routes, the front page."""

import msgspec
import pytest

from tests.api.harness import ApiServer, Client, code_of
from tests.api.test_matrix import ENDPOINTS
from turnkeep.errors import Unavailable


class TestHealth:
    async def test_alive_and_ready(self, server: ApiServer) -> None:
        anybody = await server.client(None)
        assert (await anybody.read("/healthz")) == {"status": "ok"}
        assert (await anybody.read("/readyz")) == {"status": "ready"}

    async def test_not_ready_without_its_database_but_alive(
        self, server: ApiServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def away(*_: object, **__: object) -> None:
            raise Unavailable("The database is away.")

        monkeypatch.setattr(type(server.runtime.store), "workspace", away)
        anybody = await server.client(None)
        assert code_of(await anybody.get("/readyz")) == (503, "unavailable")
        assert (await anybody.get("/healthz")).status_code == 200

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
        assert "application/problem+json" in turns["responses"]["409"]["content"]

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
