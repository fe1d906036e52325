"""HTTP endpoints as tools, against a real server that misbehaves."""

import json
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from tests.tools.test_addresses import Names
from tests.tools.tool_calls import CALL_ID, a_principal, a_registry, a_toolbox, an_agent, call
from tests.tools.web_server import WebServer, web_server
from turnkeep.tools.addresses import AddressGuard
from turnkeep.tools.http_tools import MAX_RESPONSE_BYTES
from turnkeep.tools.ports import Outcome

SECRET = "Bearer a-secret-of-the-agent"


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


@pytest.fixture
async def server() -> AsyncIterator[WebServer]:
    async with web_server() as running:
        yield running


async def called(
    server: WebServer, path: str = "/", args: Any = None, *, seconds: float = 20.0, **fields: Any
) -> Outcome:
    """What one call of a tool at that path comes to."""
    tool = {"type": "http", "name": "t", "url": f"{server.url}{path}", **fields}
    async with a_toolbox(an_agent(tool)) as toolbox:
        return await call(toolbox, "t", args, seconds=seconds)


class TestACall:
    async def test_sends_its_arguments_as_the_body(self, server: WebServer) -> None:
        outcome = await called(server, args={"city": "Zürich", "days": 3})
        assert json.loads(server.requests[0]["body"]) == {"city": "Zürich", "days": 3}
        assert server.requests[0]["headers"]["Content-Type"] == "application/json"
        assert json.loads(outcome.result["you_said"])["days"] == 3

    @pytest.mark.parametrize("method", ["PUT", "PATCH"])
    async def test_uses_the_method_of_the_tool(self, server: WebServer, method: str) -> None:
        await called(server, args={"a": 1}, method=method)
        assert (server.requests[0]["method"], server.requests[0]["body"]) == (method, '{"a":1}')

    @pytest.mark.parametrize("method", ["GET", "DELETE"])
    async def test_without_a_body_sends_its_arguments_in_the_query(self, server: WebServer, method: str) -> None:
        args = {"q": "a b&c", "n": 1, "yes": True, "tags": ["x", "y"], "deep": {"z": 1}, "none": None}
        await called(server, "/find?fixed=1", args, method=method)
        asked = server.requests[0]
        assert (asked["method"], asked["body"]) == (method, "")
        assert asked["path"] == "/find?fixed=1&q=a+b%26c&n=1&yes=true&tags=x&tags=y&deep=%7B%22z%22%3A1%7D"

    async def test_sends_an_idempotency_key(self, server: WebServer) -> None:
        await called(server)
        assert server.requests[0]["headers"]["Idempotency-Key"] == CALL_ID

    async def test_sends_the_headers_of_the_agent(self, server: WebServer) -> None:
        await called(server, headers={"Authorization": SECRET, "X-Team": "blue"})
        sent = server.requests[0]["headers"]
        assert (sent["Authorization"], sent["X-Team"]) == (SECRET, "blue")

    async def test_whose_arguments_are_too_long_for_a_url_is_refused(self, server: WebServer) -> None:
        outcome = await called(server, args={"q": "x" * 10_000}, method="GET")
        assert outcome.error
        assert "8,000 characters" in outcome.error
        assert server.hits == 0

    async def test_replaces_a_parameter_of_the_same_name_in_the_query(self, server: WebServer) -> None:
        await called(server, "/find?q=old&sig=a%2Fb", {"q": "new", "none": None}, method="GET")
        assert server.requests[0]["path"] == "/find?q=new&sig=a%2Fb"

    async def test_may_send_a_long_body(self, server: WebServer) -> None:
        outcome = await called(server, args={"text": "x" * 1_000_000})
        assert outcome.error is None
        assert len(server.requests[0]["body"]) > 1_000_000

    @pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST"])
    async def test_whose_connection_breaks_is_not_repeated(self, server: WebServer, method: str) -> None:
        outcome = await called(server, "/drop", method=method)
        assert outcome.error
        assert server.hits == 1

    @pytest.mark.parametrize("value", ["a\r\nX: y", "ü", "a\0b"])
    async def test_whose_headers_cannot_be_sent_is_an_error_that_does_not_quote_them(
        self, server: WebServer, value: str
    ) -> None:
        outcome = await called(server, headers={"X-Key": value})
        assert outcome.error == "The tool's headers cannot be sent. They must be plain ASCII without line breaks."
        assert server.hits == 0

    async def test_may_replace_the_headers_that_are_sent_by_default(self, server: WebServer) -> None:
        await called(server, headers={"accept": "text/csv", "content-type": "application/vnd.api+json"})
        sent = server.requests[0]["headers"]
        assert (sent["Accept"], sent["Content-Type"]) == ("text/csv", "application/vnd.api+json")

    async def test_whose_credentials_cannot_be_opened_is_an_error_that_says_what_to_do(self, server: WebServer) -> None:
        tool = {"type": "http", "name": "t", "url": server.url, "headers": {"Authorization": SECRET}}
        async with a_registry() as tools:
            toolbox = await tools.toolbox(an_agent(tool), a_principal(org="org_2"))
            outcome = await call(toolbox, "t")
        assert outcome.error
        assert "TURNKEEP_SECRET_KEYS" in outcome.error
        assert server.hits == 0


class TestAResult:
    @pytest.mark.parametrize(
        "response, result",
        [
            (web.json_response({"a": [1, None]}), {"a": [1, None]}),
            (web.json_response("text"), "text"),
            (web.Response(body=b'{"a":1}', content_type="application/vnd.api+json"), {"a": 1}),
            (web.Response(body=b"{broken", content_type="application/json"), "{broken"),
            (web.Response(text="plain ü"), "plain ü"),
            (web.Response(body="ü".encode("latin-1"), headers={"content-type": "text/html; charset=latin-1"}), "ü"),
            (web.Response(body=b"\xff", headers={"content-type": "text/plain; charset=idna"}), "\ufffd"),
            (web.Response(body=b"[" * 100_000, content_type="application/json"), "[" * 100_000),
            *[
                (web.Response(text=deep, content_type="application/json"), deep)
                for deep in map(nested, (101, 600, 950))
            ],
            (web.Response(body=b'{"name":"M\xfcller"}', content_type="application/json"), '{"name":"M\ufffdller"}'),
            (
                web.Response(
                    body=b'{"name":"M\xfcller"}', headers={"content-type": "application/json; charset=latin-1"}
                ),
                '{"name":"Müller"}',
            ),
            (web.Response(status=204), "(HTTP 204, no body)"),
            (
                web.Response(body=b"\x89PNG\xff\x00", content_type="image/png"),
                "(HTTP 200, 6 bytes of image/png, not shown)",
            ),
        ],
    )
    async def test_is_the_body_of_the_response(self, response: web.Response, result: Any) -> None:
        async with web_server() as server:
            server.answer = response
            assert await called(server) == Outcome(result=result)

    @pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
    async def test_of_a_status_from_400_is_an_error_with_the_body(self, server: WebServer, status: int) -> None:
        server.answer = web.json_response({"why": "because"}, status=status)
        outcome = await called(server)
        assert outcome.error
        assert outcome.error.startswith(f"HTTP {status} ")
        assert '{"why":"because"}' in outcome.error

    async def test_of_a_hundred_megabytes_is_cut(self, server: WebServer) -> None:
        tracemalloc.start()
        try:
            outcome = await called(server, "/flood")
            assert tracemalloc.get_traced_memory()[1] < 30 * MAX_RESPONSE_BYTES
        finally:
            tracemalloc.stop()
        assert isinstance(outcome.result, str)
        assert len(outcome.result) < MAX_RESPONSE_BYTES + 1_000
        assert "[cut:" in outcome.result[-100:]
        assert server.sent_bytes < 50 * MAX_RESPONSE_BYTES

    async def test_that_unpacks_to_a_hundred_megabytes_is_cut(self, server: WebServer) -> None:
        outcome = await called(server, "/bomb")
        assert isinstance(outcome.result, str)
        assert len(outcome.result) < MAX_RESPONSE_BYTES + 1_000

    async def test_that_is_compressed_without_request_is_unpacked(self, server: WebServer) -> None:
        assert await called(server, "/gzip") == Outcome(result={"packed": True})
        assert server.requests[0]["headers"]["Accept-Encoding"] == "identity"


class TestASecretInAResponse:
    async def test_is_masked_in_results_and_errors(self, server: WebServer) -> None:
        headers = {"Authorization": SECRET, "X-Team": "blue"}
        outcome = await called(server, "/headers", headers=headers)
        seen: Any = outcome.result
        assert (seen["authorization"], seen["x-team"]) == ("***", "blue")
        server.answer = web.json_response({"why": ["no such key", {SECRET.split()[1]: SECRET}]}, status=401)
        refused = await called(server, headers=headers)
        assert refused.error == 'HTTP 401 Unauthorized: {"why":["no such key",{"***":"***"}]}'


class TestAServerThatHangs:
    @pytest.mark.parametrize("path", ["/hang", "/trickle"])
    async def test_is_ended_at_the_time_limit_of_the_tool(self, server: WebServer, path: str) -> None:
        outcome = await called(server, path, timeout_seconds=0.4)
        assert outcome == Outcome(error="The tool did not answer within 0.4 seconds.")

    async def test_is_ended_at_the_default_time_limit_if_the_tool_has_none(self, server: WebServer) -> None:
        assert await called(server, "/hang", seconds=0.3) == Outcome(
            error="The tool did not answer within 0.3 seconds."
        )

    async def test_that_is_not_there_is_an_error(self, server: WebServer) -> None:
        tool = {"type": "http", "name": "t", "url": "http://127.0.0.1:1/"}
        async with a_toolbox(an_agent(tool)) as toolbox:
            outcome = await call(toolbox, "t")
        assert outcome.error
        assert "cannot be reached" in outcome.error


class TestARedirect:
    @pytest.mark.parametrize("status", [307, 308])
    async def test_within_the_origin_is_followed_with_all_headers(self, server: WebServer, status: int) -> None:
        server.redirects["/old"] = (status, "/new")
        outcome = await called(server, "/old", {"a": 1}, headers={"Authorization": SECRET})
        assert outcome.result == {"you_said": '{"a":1}'}
        assert server.requests[1]["headers"]["Authorization"] == SECRET
        assert server.requests[1]["headers"]["Idempotency-Key"] == CALL_ID

    @pytest.mark.parametrize("status", [301, 302, 303])
    async def test_with_status_301_302_or_303_becomes_a_get(self, server: WebServer, status: int) -> None:
        server.redirects["/old"] = (status, "/new")
        await called(server, "/old", {"a": 1})
        assert (server.requests[1]["method"], server.requests[1]["body"]) == ("GET", "")

    async def test_to_another_origin_does_not_take_the_headers_along(self, server: WebServer) -> None:
        async with web_server() as other:
            server.redirects["/old"] = (307, f"{other.url}/new")
            other.redirects["/new"] = (307, f"{server.url}/back")
            await called(server, "/old", {"a": 1}, headers={"Authorization": SECRET, "X-Key": SECRET})
            strangers = [other.requests[0], server.requests[1]]
        assert all(SECRET not in str(request) for request in strangers)
        assert all(request["body"] == '{"a":1}' for request in strangers)

    async def test_that_never_ends_is_an_error(self, server: WebServer) -> None:
        server.redirects["/old"] = (302, "/old")
        outcome = await called(server, "/old")
        assert outcome.error
        assert "more than 5 times" in outcome.error

    @pytest.mark.parametrize(
        "location",
        [
            "http://127.0.0.2:{port}/private",
            "http://2130706434:{port}/private",
            "http://[::ffff:127.0.0.2]:{port}/private",
            "http://private.example:{port}/private",
            "http://user:pw@127.0.0.1:{port}/private",
            "file:///etc/passwd",
            "http://[",
        ],
    )
    async def test_to_a_private_address_is_not_followed(self, server: WebServer, location: str) -> None:
        """127.0.0.1 plays the Internet, 127.0.0.2 the network behind the server."""
        guard = AddressGuard(resolve=Names(["127.0.0.2"]), is_public=lambda address: str(address) == "127.0.0.1")
        async with web_server("127.0.0.2", port=server.port) as private:
            server.redirects["/old"] = (302, location.format(port=server.port))
            tool = {"type": "http", "name": "t", "url": f"{server.url}/old"}
            async with a_toolbox(an_agent(tool), guard=guard) as toolbox:
                outcome = await call(toolbox, "t")
            assert outcome.error
            assert (server.hits, private.hits) == (1, 0)


class TestAPrivateAddress:
    @pytest.mark.parametrize("url", ["http://127.0.0.1:{port}/", "http://localhost:{port}/", "http://127.1:{port}/"])
    async def test_is_not_called_unless_the_operator_allows_it(self, server: WebServer, url: str) -> None:
        tool = {"type": "http", "name": "t", "url": url.format(port=server.port)}
        async with a_toolbox(an_agent(tool), guard=AddressGuard()) as toolbox:
            outcome = await call(toolbox, "t")
        assert outcome.error
        assert server.hits == 0
