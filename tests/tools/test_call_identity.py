"""For whom tools work: placeholders, signed headers, and MCP sessions that users do not share."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import structs

from tests.tools.test_mcp import a_http_server
from tests.tools.tool_calls import CALL_ID, ORG, VAULT, a_registry, an_agent, call_for
from tests.tools.web_server import WebServer, web_server
from turnkeep.errors import InvalidRequest, Unauthorized
from turnkeep.ids import ConversationId, UserId, WorkspaceId
from turnkeep.model.agents import AgentSpec
from turnkeep.model.principals import Principal, UserRef
from turnkeep.tools.addresses import AddressGuard
from turnkeep.tools.call_identity import Placeholders, check_placeholders, check_url_placeholders
from turnkeep.tools.functions import tool
from turnkeep.tools.mcp import McpDefinition, McpPool
from turnkeep.tools.mcp_session import OpenCalls
from turnkeep.tools.ports import CallContext, Outcome
from turnkeep_client.tool_calls import ToolCaller, signature_of, verify_tool_call

SECRET = "tksec_of-the-agent"
ANN = UserRef(id="user_1", external_id="ann@example.com")
BOB = UserRef(id="user_2", external_id="bob")


def as_user(user: UserRef | None) -> Principal:
    return Principal(
        org_id=ORG,
        workspace_id=WorkspaceId("ws_1"),
        user_id=None if user is None else UserId(user.id),
        role="member" if user else "service",
        user=user,
    )


def signed(agent: AgentSpec) -> AgentSpec:
    return structs.replace(agent, tool_secret=VAULT.seal(ORG, SECRET))


@pytest.fixture
async def server() -> AsyncIterator[WebServer]:
    async with web_server() as running:
        yield running


async def called(server: WebServer, user: UserRef | None = ANN, args: Any = None, **fields: Any) -> Outcome:
    """What one call of a tool for that user comes to."""
    declared = {"type": "http", "name": "t", "url": f"{server.url}/", **fields}
    async with a_registry() as tools:
        toolbox = await tools.toolbox(signed(an_agent(declared)), as_user(user))
        return await call_for(as_user(user), toolbox, "t", args)


def caller_of(request: dict[str, Any], *, secret: str = SECRET, **options: Any) -> ToolCaller:
    return verify_tool_call(secret, request["headers"], request["body"].encode(), **options)


class TestAnHttpTool:
    @pytest.mark.parametrize("method", ["POST", "GET"])
    async def test_is_told_for_whom_it_works_under_a_signature(self, server: WebServer, method: str) -> None:
        await called(server, args={"a": 1}, method=method)
        [request] = server.requests
        assert caller_of(request) == ToolCaller(
            user="ann@example.com",
            workspace_id="ws_1",
            conversation_id="conv_1",
            turn_id="turn_1",
            call_id=CALL_ID,
        )
        sent = dict(item.split("=") for item in request["headers"]["Turnkeep-Signature"].split(","))
        body = request["body"].encode()
        assert sent["v1"] == signature_of(SECRET, int(sent["t"]), CALL_ID, "ann@example.com", body)

    @pytest.mark.parametrize("name", ["Zoë 🦊", "a b", "ñ"])
    async def test_may_work_for_a_user_with_any_name(self, server: WebServer, name: str) -> None:
        await called(server, UserRef(id="user_3", external_id=name))
        assert caller_of(server.requests[0]).user == name

    async def test_that_works_for_no_user_gets_no_name(self, server: WebServer) -> None:
        await called(server, None)
        assert "Turnkeep-User" not in server.requests[0]["headers"]
        assert caller_of(server.requests[0]).user is None

    async def test_without_a_secret_is_called_unsigned(self, server: WebServer) -> None:
        declared = {"type": "http", "name": "t", "url": server.url}
        async with a_registry() as tools:
            await call_for(as_user(ANN), await tools.toolbox(an_agent(declared), as_user(ANN)), "t")
        assert server.requests[0]["headers"]["Turnkeep-User"] == "ann@example.com"
        assert "Turnkeep-Signature" not in server.requests[0]["headers"]

    async def test_is_not_called_for_a_user_whose_name_breaks_the_header(self, server: WebServer) -> None:
        outcome = await called(server, UserRef(id="user_3", external_id="a\r\nX-Admin: 1"))
        assert outcome.error
        assert "control character" in outcome.error
        assert server.hits == 0

    async def test_that_redirects_elsewhere_does_not_pass_the_user_on(self, server: WebServer) -> None:
        async with web_server() as other:
            server.redirects["/"] = (307, f"{other.url}/back")
            other.redirects["/back"] = (307, f"{server.url}/again")
            await called(server)
            assert not [name for name in other.requests[0]["headers"] if name.startswith("Turnkeep")]
            assert not [name for name in server.requests[1]["headers"] if name.startswith("Turnkeep")]

    async def test_that_redirects_to_itself_gets_a_signature_that_fits(self, server: WebServer) -> None:
        server.redirects["/"] = (303, "/elsewhere")
        await called(server, args={"a": 1})
        first, second = server.requests
        assert (second["method"], second["body"]) == ("GET", "")
        assert caller_of(first) == caller_of(second)

    @pytest.mark.parametrize("method", ["GET", "DELETE"])
    async def test_works_for_the_user_of_its_address_whatever_the_model_says(
        self, server: WebServer, method: str
    ) -> None:
        url = f"{server.url}/orders?customer={{{{user.external_id}}}}&limit=5"
        await called(server, args={"customer": "bob", "limit": 9}, url=url, method=method)
        assert server.requests[0]["path"] == "/orders?customer=ann%40example.com&limit=9"
        declared = {"type": "http", "name": "t", "url": url, "method": method}
        schema = {"type": "object", "properties": {"customer": {}, "limit": {}}, "required": ["customer"]}
        async with a_registry() as tools:
            toolbox = await tools.toolbox(an_agent({**declared, "input_schema": schema}), as_user(ANN))
            [spec] = toolbox.specs()
        assert spec.input_schema == {"type": "object", "properties": {"limit": {}}, "required": []}

    async def test_has_its_placeholders_filled_in(self, server: WebServer) -> None:
        outcome = await called(
            server,
            args={"text": "hello", "owner": "chosen by the model"},
            url=f"{server.url}/of/{{{{user.external_id}}}}/{{{{conversation.id}}}}?w={{{{ workspace.id }}}}",
            headers={"X-Who": "id {{user.id}}"},
            arguments={"owner": "{{user.external_id}}", "deep": [{"ws": "{{workspace.id}}"}], "n": 1},
        )
        assert outcome.error is None
        [request] = server.requests
        assert request["path"] == "/of/ann%40example.com/conv_1?w=ws_1"
        assert request["headers"]["X-Who"] == "id user_1"
        assert json.loads(request["body"]) == {
            "text": "hello",
            "owner": "ann@example.com",
            "deep": [{"ws": "ws_1"}],
            "n": 1,
        }

    @pytest.mark.parametrize("name, path", [("a/../b?x=1#y", "/of/a%2F..%2Fb%3Fx%3D1%23y"), ("%2e", "/of/%252e")])
    async def test_has_values_escaped_in_its_address(self, server: WebServer, name: str, path: str) -> None:
        await called(server, UserRef(id="user_3", external_id=name), url=f"{server.url}/of/{{{{user.external_id}}}}")
        assert server.requests[0]["path"] == path

    async def test_is_not_called_with_dots_in_its_path(self, server: WebServer) -> None:
        outcome = await called(
            server, UserRef(id="user_3", external_id=".."), url=f"{server.url}/of/{{{{user.external_id}}}}"
        )
        assert outcome.error
        assert server.hits == 0

    async def test_that_needs_a_user_is_not_called_without_one(self, server: WebServer) -> None:
        outcome = await called(server, None, headers={"X-Who": "{{user.id}}"})
        assert outcome.error
        assert "{{user.id}}" in outcome.error
        assert server.hits == 0

    async def test_hides_its_constant_arguments_from_the_model(self, server: WebServer) -> None:
        schema = {"properties": {"q": {"type": "string"}, "owner": {"type": "string"}}, "required": ["q", "owner"]}
        declared = {
            "type": "http",
            "name": "t",
            "url": server.url,
            "input_schema": schema,
            "arguments": {"owner": "{{user.id}}"},
        }
        async with a_registry() as tools:
            [spec] = (await tools.toolbox(an_agent(declared), as_user(ANN))).specs()
        assert spec.input_schema == {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}


class TestANativeTool:
    async def test_has_the_user_in_its_context(self) -> None:
        @tool
        async def whoami(context: CallContext) -> str:
            """Who asks."""
            assert context.user is not None
            return f"{context.user.id} {context.user.external_id}"

        async with a_registry(whoami) as tools:
            toolbox = await tools.toolbox(None, as_user(ANN))
            assert (await call_for(as_user(ANN), toolbox, "whoami")).result == "user_1 ann@example.com"


class TestAnMcpServer:
    async def test_over_http_gets_headers_for_each_call_in_a_session_that_users_share(self) -> None:
        async with a_http_server() as (port, _), a_registry() as tools:
            agent = signed(an_agent(mcp_servers=({"name": "web", "url": f"http://127.0.0.1:{port}/mcp"},)))
            for user in (ANN, BOB):
                toolbox = await tools.toolbox(agent, as_user(user), ConversationId("conv_1"))
                seen: Any = (await call_for(as_user(user), toolbox, "web__request")).result
                headers = {name: value[::-1] for name, value in seen["headers"].items()}
                caller = verify_tool_call(SECRET, headers, seen["body"].encode())
                assert (caller.user, caller.call_id) == (user.external_id, CALL_ID)
                assert seen["context"] == {
                    "user": user.external_id,
                    "workspace": "ws_1",
                    "conversation": "conv_1",
                    "turn": "turn_1",
                    "call": CALL_ID,
                }

    def test_gets_the_headers_of_its_own_turn_even_if_two_calls_have_the_same_id(self) -> None:
        calls = OpenCalls()

        def body(turn: str) -> bytes:
            context = {"turnkeep/context": {"turn": turn, "call": "call_1"}}
            return json.dumps({"method": "tools/call", "params": {"_meta": context}}).encode()

        with calls.signed("turn_a", "call_1", lambda _: {"Turnkeep-User": "ann"}):
            with calls.signed("turn_b", "call_1", lambda _: {"Turnkeep-User": "bob"}):
                assert calls.headers_for(body("turn_a")) == {"Turnkeep-User": "ann"}
                assert calls.headers_for(body("turn_b")) == {"Turnkeep-User": "bob"}
            assert calls.headers_for(body("turn_a")) == {"Turnkeep-User": "ann"}
            assert calls.headers_for(body("turn_b")) == {}

    async def test_has_a_session_for_each_user_that_its_address_or_headers_name(self) -> None:
        async with a_http_server() as (port, _), a_registry() as tools:
            address = f"http://127.0.0.1:{port}/mcp"
            by_address = {"name": "web", "url": f"{address}?user_id={{{{user.external_id}}}}"}
            by_header = {"name": "web", "url": address, "headers": {"X-User": "{{user.external_id}}"}}
            shared = {"name": "web", "url": address, "headers": {"X-Team": "{{workspace.id}}"}}
            for user in (ANN, BOB, ANN):
                toolbox = await tools.toolbox(an_agent(mcp_servers=(by_address,)), as_user(user))
                seen: Any = (await call_for(as_user(user), toolbox, "web__request")).result
                assert seen["query"] == f"user_id={user.external_id.replace('@', '%40')}"
                toolbox = await tools.toolbox(an_agent(mcp_servers=(by_header,)), as_user(user))
                seen = (await call_for(as_user(user), toolbox, "web__request")).result
                assert seen["headers"]["x-user"][::-1] == user.external_id
        async with McpPool(vault=VAULT, guard=AddressGuard(allow_private=True)) as pool:
            for server, count in ((by_address, 2), (by_header, 2), (shared, 1)):
                [sealed] = an_agent(mcp_servers=(server,)).mcp_servers
                definition = McpDefinition(**sealed)
                found = {pool.server(ORG, definition, Placeholders.of(as_user(user), None)) for user in (ANN, BOB, ANN)}
                assert len(found) == count

    async def test_masks_what_stands_around_a_placeholder_in_a_header(self) -> None:
        async with a_http_server() as (port, _), a_registry() as tools:
            headers = {"X-Key": "a-long-secret-{{user.id}}"}
            server = {"name": "web", "url": f"http://127.0.0.1:{port}/mcp", "headers": headers}
            toolbox = await tools.toolbox(an_agent(mcp_servers=(server,)), as_user(ANN))
            said = await call_for(as_user(ANN), toolbox, "web__say", {"text": "a-long-secret-user_1 is wrong"})
            assert said.result == "***user_1 is wrong"

    async def test_that_needs_a_user_is_left_out_without_one(self) -> None:
        server = {"name": "web", "url": "http://127.0.0.1:9/{{user.id}}"}
        async with a_registry() as tools:
            toolbox = await tools.toolbox(an_agent(mcp_servers=(server,)), as_user(None))
        assert toolbox.specs() == ()
        assert "{{user.id}}" in toolbox.notes[0]

    async def test_has_constant_arguments_for_the_tools_that_know_them(self) -> None:
        async with a_http_server() as (port, _), a_registry() as tools:
            server = {
                "name": "web",
                "url": f"http://127.0.0.1:{port}/mcp",
                "arguments": {"text": "for {{user.external_id}}"},
            }
            toolbox = await tools.toolbox(an_agent(mcp_servers=(server,)), as_user(ANN))
            schemas = {spec.name: spec.input_schema for spec in toolbox.specs()}
            assert (schemas["web__say"]["properties"], schemas["web__say"]["required"]) == ({}, [])
            said = await call_for(as_user(ANN), toolbox, "web__say", {"text": "chosen by the model"})
            assert said.result == "for ann@example.com"
            assert (await call_for(as_user(ANN), toolbox, "web__add", {"a": 1, "b": 2})).result == {"result": 3}


class TestASignature:
    def _request(self, **changes: str) -> dict[str, Any]:
        at = 1_750_000_000
        headers = {
            "Turnkeep-User": "ann",
            "Turnkeep-Call": "call_1",
            "Turnkeep-Signature": f"t={at},v1={signature_of(SECRET, at, 'call_1', 'ann', b'{}')}",
        }
        return {"headers": headers | changes, "body": "{}"}

    def test_that_fits_names_the_caller(self) -> None:
        assert caller_of(self._request(), now=1_750_000_010).user == "ann"

    @pytest.mark.parametrize(
        "changes, options",
        [
            ({"Turnkeep-User": "bob"}, {}),
            ({"Turnkeep-Call": "call_2"}, {}),
            ({"Turnkeep-Signature": ""}, {}),
            ({"Turnkeep-Signature": "t=x,v1=y"}, {}),
            ({"Turnkeep-Signature": "t=1750000000,v1="}, {}),
            ({}, {"now": 1_750_000_400}),
            ({}, {"secret": "another"}),
        ],
    )
    def test_that_does_not_fit_is_refused(self, changes: dict[str, str], options: dict[str, Any]) -> None:
        with pytest.raises(Unauthorized):
            caller_of(self._request(**changes), **{"now": 1_750_000_000, **options})

    def test_of_another_body_is_refused(self) -> None:
        with pytest.raises(Unauthorized):
            caller_of({**self._request(), "body": "{ }"}, now=1_750_000_000)


class TestPlaceholders:
    @pytest.mark.parametrize("text", ["{{user.email}}", "{{}}", "a {{ secret }} b", "{{user.external_id.x}}"])
    def test_that_are_unknown_are_refused(self, text: str) -> None:
        with pytest.raises(InvalidRequest, match="unknown placeholder"):
            check_placeholders("tools.t", [text])

    @pytest.mark.parametrize(
        "url", ["https://{{user.id}}.example.com/", "{{user.id}}://x", "https://{{user.id}}", "//{{user.id}}/x"]
    )
    def test_in_the_host_are_refused(self, url: str) -> None:
        with pytest.raises(InvalidRequest, match="host"):
            check_url_placeholders("tools.t", url)

    def test_in_path_and_query_are_fine(self) -> None:
        check_url_placeholders("tools.t", "https://a.example/{{user.id}}?u={{user.external_id}}")

    def test_of_a_value_are_not_filled_in_again(self) -> None:
        user = UserRef(id="user_1", external_id="{{workspace.id}}")
        filled = Placeholders.of(as_user(user), None).in_text("{{user.external_id}}")
        assert filled == "{{workspace.id}}"
