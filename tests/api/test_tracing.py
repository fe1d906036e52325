"""Traces: nested spans by the conventions of OpenTelemetry, across takeovers, tools, MCP servers and sandboxes. A real
receiver of OTLP reads them."""

import asyncio
import io
import json
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.api.harness import ApiServer, Client, settings_for
from tests.api.test_logs import written_to
from tests.otlp_receiver import OtlpReceiver, ReceivedSpan, otlp_receiver
from tests.sandbox.scripted_runner import ScriptedRunner, Visit, result, running, scripted_runner, succeeded
from tests.sandbox.test_bundled import serving
from tests.tools.test_mcp import a_http_server
from tests.tools.web_server import WebServer, web_server
from turnkeep.api.telemetry.logs import configure_logging
from turnkeep.api.telemetry.tracing import open_tracing
from turnkeep.config import Settings
from turnkeep.providers.ports import ProviderFailed
from turnkeep.providers.scripted import Call, Fail, Until
from turnkeep.trace_context import valid_traceparent

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    with otlp_receiver() as running:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", running.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        yield running


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_for(tmp_path, allow_private_addresses=True)


@pytest.fixture
async def web() -> AsyncIterator[WebServer]:
    async with web_server() as running:
        yield running


@asynccontextmanager
async def traced(settings: Settings, **options: Any) -> AsyncIterator[ApiServer]:
    """A server whose spans are all exported when it has ended."""
    tracing = open_tracing(os.environ, has_content=settings.trace_content)
    assert tracing is not None
    try:
        async with ApiServer.start(settings, tracing=tracing, **options) as server:
            yield server
    finally:
        await asyncio.to_thread(tracing.close)


async def an_agent(client: Client, **fields: Any) -> str:
    made = await client.post("/v1/agents", json={"name": "Weather", **fields})
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


async def ended(client: Client, turn_id: str) -> Any:
    """The turn, once it has an answer."""
    async with asyncio.timeout(60), client.stream("GET", f"/v1/turns/{turn_id}/events") as response:
        await response.aread()
    turn = await client.read(f"/v1/turns/{turn_id}")
    assert turn["status"] == "succeeded", turn
    return turn


def http_tool(web: WebServer) -> dict[str, Any]:
    return {"type": "http", "name": "forecast", "url": f"{web.url}/", "description": "?", "input_schema": {}}


def named(spans: list[ReceivedSpan], name: str) -> ReceivedSpan:
    [found] = [span for span in spans if span.name == name]
    return found


class TestATurn:
    async def test_is_a_span_below_its_request_with_its_calls_below_it(
        self, settings: Settings, receiver: OtlpReceiver, web: WebServer
    ) -> None:
        async with traced(settings) as server:
            service = await server.operator()
            user = await server.user(service)
            agent = await an_agent(service, tools=[http_tool(web)])
            server.scripts.say(Call("forecast", {"city": "Bern"}, id="call_1"))
            server.scripts.say("It ", "rains.")
            answer = await user.ask(headers=CALLER, agent_id=agent)
        spans = receiver.spans
        request = named(spans, "POST /v1/turns")
        turn = named(spans, "invoke_agent Weather")
        tool = named(spans, "execute_tool forecast")
        chats = [span for span in spans if span.name == "chat scripted"]
        assert {request.trace_id, turn.trace_id, tool.trace_id, *(chat.trace_id for chat in chats)} == {TRACE}
        assert request.parent_id == "b7ad6b7169203331"
        assert turn.parent_id == request.span_id
        assert {tool.parent_id, *(chat.parent_id for chat in chats)} == {turn.span_id}
        assert [request.kind, turn.kind, tool.kind, *(chat.kind for chat in chats)] == [
            *("SERVER", "INTERNAL", "INTERNAL", "CLIENT", "CLIENT")
        ]
        assert web.requests[0]["headers"]["Traceparent"] == f"{tool.traceparent}-01"
        about = {
            "gen_ai.conversation.id": answer["conversation_id"],
            "session.id": answer["conversation_id"],
            "turnkeep.turn_id": answer["turn"]["id"],
            "gen_ai.agent.id": agent,
            "gen_ai.agent.name": "Weather",
            "gen_ai.provider.name": "scripted",
        }
        for span in (turn, tool, *chats):
            assert about.items() <= span.attributes.items()
            assert span.attributes["user.id"].startswith("user_")
            assert not span.is_error
        assert turn.attributes["gen_ai.operation.name"] == "invoke_agent"
        assert turn.attributes["turnkeep.status"] == "succeeded"
        assert turn.attributes["gen_ai.usage.input_tokens"] == 20
        assert tool.attributes["gen_ai.operation.name"] == "execute_tool"
        assert (tool.attributes["gen_ai.tool.name"], tool.attributes["gen_ai.tool.call.id"]) == ("forecast", "call_1")
        assert [chat.attributes["gen_ai.operation.name"] for chat in chats] == ["chat", "chat"]
        assert [chat.attributes["gen_ai.usage.output_tokens"] for chat in chats] == [5, 5]
        assert [chat.attributes["gen_ai.usage.cache_read.input_tokens"] for chat in chats] == [0, 0]
        assert [chat.attributes["gen_ai.response.finish_reasons"] for chat in chats] == [["tool_calls"], ["stop"]]
        assert ["gen_ai.response.time_to_first_chunk" in chat.attributes for chat in chats] == [False, True]
        assert 0 <= chats[1].attributes["gen_ai.response.time_to_first_chunk"] < 60
        assert {span.service for span in spans} == {"turnkeep"}

    async def test_says_nothing_of_what_was_said(
        self, settings: Settings, receiver: OtlpReceiver, web: WebServer
    ) -> None:
        async with traced(settings) as server:
            client = await server.operator()
            agent = await an_agent(client, tools=[http_tool(web)], instructions="private instructions")
            server.scripts.say(Call("forecast", {"city": "private city"}))
            server.scripts.say(Fail(ProviderFailed("private refusal")))
            await client.ask("private question", agent_id=agent)
        failed = [span for span in receiver.spans if span.is_error]
        assert [span.attributes["error.type"] for span in failed] == ["provider_error", "provider_error"]
        assert "private" not in repr(receiver.spans)

    async def test_says_it_where_the_operator_asks_for_it(
        self, tmp_path: Path, receiver: OtlpReceiver, web: WebServer
    ) -> None:
        settings = settings_for(tmp_path, allow_private_addresses=True, trace_content=True)
        async with traced(settings) as server:
            client = await server.operator()
            agent = await an_agent(client, tools=[http_tool(web)], instructions="Be brief.")
            server.scripts.say(Call("forecast", {"city": "Bern"}, id="call_1"))
            server.scripts.say("It rains.")
            await client.ask("How is it?", agent_id=agent)
        first, last = (span.attributes for span in receiver.spans if span.name.startswith("chat"))
        asked = json.loads(last["gen_ai.input.messages"])
        assert {"role": "user", "parts": [{"type": "text", "content": "How is it?"}]} in asked
        assert [part["type"] for message in asked for part in message["parts"]][-2:] == [
            "tool_call",
            "tool_call_response",
        ]
        assert json.loads(last["gen_ai.output.messages"]) == [
            {"role": "assistant", "parts": [{"type": "text", "content": "It rains."}], "finish_reason": "stop"}
        ]
        assert "Be brief." in first.get("gen_ai.system_instructions", "") + first["gen_ai.input.messages"]
        tool = named(receiver.spans, "execute_tool forecast").attributes
        assert json.loads(tool["gen_ai.tool.call.arguments"]) == {"city": "Bern"}
        assert "you_said" in tool["gen_ai.tool.call.result"]

    async def test_that_fails_is_an_error(self, settings: Settings, receiver: OtlpReceiver) -> None:
        async with traced(settings) as server:
            client = await server.operator()
            server.scripts.say(Fail(ProviderFailed("no")))
            await client.ask()
        turn = named(receiver.spans, "invoke_agent")
        assert (turn.is_error, turn.attributes["error.type"]) == (True, "provider_error")
        assert turn.attributes["turnkeep.status"] == "failed"

    async def test_of_an_unsampled_trace_is_not_exported(self, settings: Settings, receiver: OtlpReceiver) -> None:
        async with traced(settings) as server:
            client = await server.operator()
            await client.ask(headers={"traceparent": f"00-{TRACE}-b7ad6b7169203331-00"})
        assert [span.name for span in receiver.spans if span.trace_id == TRACE] == []

    async def test_that_another_worker_takes_over_stays_in_its_trace(
        self, settings: Settings, receiver: OtlpReceiver
    ) -> None:
        never = asyncio.Event()
        async with traced(settings) as server:
            client = await server.operator()
            server.scripts.say("The beginning", Until(never.wait))
            turn_id = (await client.ask(headers=CALLER, background=True))["turn_id"]
            async with client.stream("GET", f"/v1/turns/{turn_id}/events") as response:
                async for text in response.aiter_text():
                    if "beginning" in text:
                        break
        async with traced(settings) as server:
            client = await server.operator()
            server.scripts.say("The end.")
            turn = await ended(client, turn_id)
        first, second = (span for span in receiver.spans if span.name == "invoke_agent")
        assert (first.trace_id, first.parent_id) == (second.trace_id, second.parent_id)
        assert second.trace_id == TRACE
        assert [each.attributes["turnkeep.attempt"] for each in (first, second)] == [1, turn["attempt"]]
        assert [each.attributes["turnkeep.status"] for each in (first, second)] == ["let_go", "succeeded"]
        [chat] = [span for span in receiver.spans if span.parent_id == second.span_id]
        assert chat.name.startswith("chat")


class TestWithoutAnExporter:
    async def test_a_tool_gets_the_trace_of_the_caller(self, settings: Settings, web: WebServer) -> None:
        async with ApiServer.start(settings) as server:
            client = await server.operator()
            agent = await an_agent(client, tools=[http_tool(web)])
            server.scripts.say(Call("forecast", {}))
            server.scripts.say("Done.")
            await client.ask(headers=CALLER, agent_id=agent)
            server.scripts.say(Call("forecast", {}))
            server.scripts.say("Done.")
            await client.ask(headers={"traceparent": "nonsense"}, agent_id=agent)
        assert [each["headers"].get("Traceparent") for each in web.requests] == [CALLER["traceparent"], None]

    async def test_a_tool_that_redirects_elsewhere_does_not_pass_it_on(
        self, settings: Settings, web: WebServer
    ) -> None:
        async with web_server() as other, ApiServer.start(settings) as server:
            client = await server.operator()
            web.redirects["/"] = (307, f"{other.url}/there")
            agent = await an_agent(client, tools=[http_tool(web)])
            server.scripts.say(Call("forecast", {}))
            server.scripts.say("Done.")
            await client.ask(headers=CALLER, agent_id=agent)
        assert "Traceparent" in web.requests[0]["headers"]
        assert "Traceparent" not in other.requests[0]["headers"]


class TestAnMcpServer:
    async def test_is_told_the_span_of_its_call(self, settings: Settings, receiver: OtlpReceiver) -> None:
        async with a_http_server() as (port, _), traced(settings) as server:
            client = await server.operator()
            server_of_tools = {"name": "peer", "url": f"http://127.0.0.1:{port}/mcp"}
            agent = await an_agent(client, mcp_servers=[server_of_tools])
            server.scripts.say(Call("peer__request", {}))
            server.scripts.say("Done.")
            answer = await client.ask(agent_id=agent)
            trace = (await client.get(f"/v1/turns/{answer['turn']['id']}/trace")).text.splitlines()
        lines = [json.loads(line) for line in trace]
        [told] = [line["result"] for line in lines if line["type"] == "step" and line["status"] == "succeeded"]
        span = named(receiver.spans, "execute_tool peer__request")
        header = told["headers"]["traceparent"][::-1]
        assert header.startswith(f"{span.traceparent}-")
        assert json.loads(told["body"])["params"]["_meta"]["traceparent"] == header


class TestASandbox:
    @pytest.fixture
    async def runner(self) -> AsyncIterator[ScriptedRunner]:
        async with scripted_runner() as running:
            yield running

    async def test_is_told_the_span_of_its_turn_and_reports_steps(
        self, settings: Settings, receiver: OtlpReceiver, runner: ScriptedRunner
    ) -> None:
        told: dict[str, str | None] = {}

        async def part(visit: Visit) -> None:
            told.update({name: visit.header(name) for name in ("traceparent", "x-request-id")})
            await visit.write(running("s1"), succeeded("s1", duration_ms=20), result("Done."))

        runner.plays(part)
        async with traced(settings, runner_url=runner.url) as server:
            client = await server.operator()
            await client.ask(kind="sandbox", headers={**CALLER, "x-request-id": "req-of-the-caller"})
        turn = named(receiver.spans, "invoke_agent")
        step = named(receiver.spans, "execute_tool shell")
        assert told == {"traceparent": f"{turn.traceparent}-01", "x-request-id": "req-of-the-caller"}
        assert (step.parent_id, step.attributes["gen_ai.tool.call.id"]) == (turn.span_id, "s1")

    async def test_calls_models_and_runs_programs_in_the_trace_of_its_turn(
        self, tmp_path: Path, receiver: OtlpReceiver
    ) -> None:
        """The whole command, with its own runner and a real box."""
        variables = {name: value for name, value in os.environ.items() if name.startswith("OTEL_")}
        async with serving(tmp_path, **variables) as server, server.client() as client:
            answer = await client.ask("run `echo $TRACEPARENT`", kind="sandbox", headers=CALLER)
            assert answer["turn"]["status"] == "succeeded", answer
        gateway = "POST /v1/sandbox/{turn_id}/chat/completions"
        spans = await asyncio.to_thread(
            receiver.wait_for, "invoke_agent", "execute_tool shell", gateway, gateway, "chat demo", "chat demo"
        )
        turn = named(spans, "invoke_agent")
        assert turn.trace_id == TRACE
        assert turn.traceparent in answer["turn"]["response"]
        asked = [span for span in spans if span.name == gateway]
        assert {span.parent_id for span in asked} == {turn.span_id}
        chats = [span for span in spans if span.name == "chat demo"]
        assert {span.parent_id for span in chats} == {span.span_id for span in asked}
        assert named(spans, "execute_tool shell").parent_id == turn.span_id


class TestLogLines:
    @pytest.fixture
    def log(self) -> Iterator[io.StringIO]:
        root = logging.getLogger()
        handlers, level = root.handlers, root.level
        stream = io.StringIO()
        configure_logging("info", stream=stream)
        yield stream
        root.handlers = handlers
        root.setLevel(level)

    async def test_name_the_request_that_asked_also_on_another_worker(
        self, settings: Settings, log: io.StringIO
    ) -> None:
        never, wrote = asyncio.Event(), asyncio.Event()
        async with ApiServer.start(settings) as server:
            client = await server.operator()

            async def note() -> None:
                logging.getLogger("turnkeep.tools").warning("written by a provider")
                wrote.set()
                await never.wait()

            server.scripts.say("The beginning", Until(note))
            headers = {"x-request-id": "req-of-the-caller"}
            turn_id = (await client.ask(headers=headers, background=True))["turn_id"]
            async with asyncio.timeout(60):
                await wrote.wait()
        async with ApiServer.start(settings) as server:
            client = await server.operator()
            await ended(client, turn_id)
        lines = [json.loads(line) for line in written_to(log).splitlines()]
        about = [line for line in lines if line.get("turn_id") == turn_id and line["logger"] != "turnkeep.audit"]
        by_worker = [line for line in about if line["logger"] != "turnkeep.http"]
        assert {"turn began", "written by a provider", "turn let go", "turn ended"} <= {
            line["message"] for line in by_worker
        }
        assert {line["request_id"] for line in by_worker} == {"req-of-the-caller"}


class TestTraceparent:
    @pytest.mark.parametrize(
        "text, valid",
        [
            (f"00-{TRACE}-b7ad6b7169203331-01", f"00-{TRACE}-b7ad6b7169203331-01"),
            (f"cc-{TRACE}-b7ad6b7169203331-01-later", f"00-{TRACE}-b7ad6b7169203331-01"),
            (f"00-{TRACE}-b7ad6b7169203331-01-later", None),
            (f"ff-{TRACE}-b7ad6b7169203331-01", None),
            (f"00-{TRACE.upper()}-b7ad6b7169203331-01", None),
            (f"00-{'0' * 32}-b7ad6b7169203331-01", None),
            (f"00-{TRACE}-{'0' * 16}-01", None),
            ("", None),
        ],
    )
    def test_is_taken_only_in_its_form(self, text: str, valid: str | None) -> None:
        assert valid_traceparent(text) == valid
