"""Spans for OpenTelemetry, when it is installed (`turnkeep[otel]`) and an exporter is configured.

Configured means `OTEL_EXPORTER_OTLP_ENDPOINT` or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`, as for any other program.

A request is a span. The turn that it asks for is another one below it (`invoke_agent`), with a span for each call of a
model (`chat`) and of a tool (`execute_tool`) below that. Names and attributes are those of OpenTelemetry's conventions
for generative AI. The parent of each span is found in the origin of the running task (`trace_context.py`), or stored
with the turn. So a worker that takes a turn over continues its trace, and what a sandbox asks for belongs to it too.

What people and models say is left out, unless the operator asks for it.
"""

import time
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from turnkeep.engine.observer import ObservedModelCall, ObservedToolCall
from turnkeep.errors import InvalidRequest, TurnkeepError
from turnkeep.ids import TurnId
from turnkeep.model.turns import Turn
from turnkeep.trace_context import current_origin
from turnkeep_client.wire.blocks import Block, Reasoning, Text, ToolUse
from turnkeep_client.wire.events import Step

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, SpanKind

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
CONTENT_CHARS = 100_000
"""Maximum length of one attribute that holds what was said."""

Attributes = dict[str, str | int | float | bool | tuple[str, ...]]


class Tracing:
    """One tracer for requests, turns, model calls and tool calls. With `has_content`, spans hold what was said."""

    def __init__(self, provider: "TracerProvider", *, has_content: bool = False) -> None:
        from opentelemetry import trace

        self._provider = provider
        self._tracer = provider.get_tracer("turnkeep")
        self._api = trace
        self._has_content = has_content
        self._turns: dict[tuple[TurnId, int], Span] = {}
        self._steps: dict[tuple[TurnId, str], Span] = {}
        """The steps of sandboxes that have begun."""

    def begin_request(self, method: str, traceparent: str | None) -> "tuple[Span, str]":
        """The span of a request, in the caller's trace if the request names one, and its own `traceparent`. The route
        is known only later."""
        span = self._span(method, self._api.SpanKind.SERVER, traceparent, {"http.request.method": method})
        return span, traceparent_of(span)

    def turn_taken(self, turn: Turn) -> str:
        """Begin the span of a turn on this worker; return its `traceparent`."""
        agent, snapshot = turn.snapshot.agent, turn.snapshot
        attributes = self._about(turn, "invoke_agent")
        attributes |= {"turnkeep.attempt": turn.attempt, "turnkeep.source": turn.source}
        if snapshot.request_id is not None:
            attributes["turnkeep.request_id"] = snapshot.request_id
        name = "invoke_agent" if agent is None else f"invoke_agent {agent.name}"
        span = self._span(name, self._api.SpanKind.INTERNAL, snapshot.traceparent, attributes)
        self._turns[turn.id, turn.attempt] = span
        return traceparent_of(span)

    def turn_left(self, turn: Turn, settled: Turn | None) -> None:
        """End that span, and those of steps that a sandbox has left open."""
        for key in [key for key in self._steps if key[0] == turn.id]:
            self._steps.pop(key).end()
        span = self._turns.pop((turn.id, turn.attempt), None)
        if span is None:
            return
        if settled is None:
            span.set_attribute("turnkeep.status", "let_go")
        else:
            span.set_attribute("turnkeep.status", settled.status)
            span.set_attributes(_usage_of(settled.usage))
            if settled.error is not None and settled.status == "failed":
                self._fail(span, settled.error.code, settled.error.message)
        span.end()

    def model_call_began(self, call: ObservedModelCall) -> None:
        provider, model = _names_of(call.request.model)
        attributes = self._about(call.turn, "chat")
        attributes |= {"gen_ai.provider.name": provider, "gen_ai.request.model": model}
        call.span = self._span(f"chat {model}", self._api.SpanKind.CLIENT, current_origin().traceparent, attributes)

    def model_called(self, call: ObservedModelCall) -> None:
        span: Span | None = call.span
        if span is None:
            return
        if call.first_at is not None:
            span.set_attribute("gen_ai.response.time_to_first_chunk", call.first_at - call.began)
        if call.reply is not None:
            span.set_attributes(_usage_of(call.reply.usage))
            span.set_attribute("gen_ai.response.finish_reasons", (_finish_of(call),))
        elif call.error is not None:
            self._fail(span, _kind_of(call.error), str(call.error))
        if self._has_content and span.is_recording():
            span.set_attributes(_content_of(call))
        span.end()

    def tool_call_began(self, call: ObservedToolCall) -> None:
        if call.in_sandbox:
            return  # the sandbox reports the step, and the request of the sandbox is a span
        attributes = self._about(call.turn, "execute_tool")
        attributes |= {"gen_ai.tool.name": call.use.name, "gen_ai.tool.call.id": call.use.id}
        if self._has_content:
            attributes["gen_ai.tool.call.arguments"] = _json(call.use.input)
        call.span = self._span(
            f"execute_tool {call.use.name}", self._api.SpanKind.INTERNAL, call.traceparent, attributes
        )
        call.traceparent = traceparent_of(call.span)

    def tool_called(self, call: ObservedToolCall) -> None:
        span: Span | None = call.span
        if span is None:
            return
        if call.outcome is None:
            self._fail(span, "cancelled", "The call was stopped.")
        elif call.outcome.error is not None:
            self._fail(span, "tool_error", call.outcome.error)
        elif self._has_content:
            span.set_attribute("gen_ai.tool.call.result", _json(call.outcome.result))
        span.end()

    def sandbox_step(self, turn: Turn, step: Step) -> None:
        key = (turn.id, step.id)
        span = self._steps.pop(key, None)
        if span is None:
            attributes = self._about(turn, "execute_tool")
            attributes |= {"gen_ai.tool.name": step.name, "gen_ai.tool.call.id": step.id}
            name, now = f"execute_tool {step.name}", time.time_ns()
            began = now - int((step.duration_ms or 0) * 1_000_000)
            parent = current_origin().traceparent
            span = self._span(name, self._api.SpanKind.INTERNAL, parent, attributes, began=began)
        if step.status == "running":
            self._steps[key] = span
            return
        if step.status == "failed":
            self._fail(span, "tool_error", str(step.error))
        span.end()

    def close(self) -> None:
        """Export the remaining spans."""
        self._provider.shutdown()

    def _span(
        self, name: str, kind: "SpanKind", traceparent: str | None, attributes: Attributes, *, began: int | None = None
    ) -> "Span":
        parent = self._context_of(traceparent)
        return self._tracer.start_span(name, context=parent, kind=kind, attributes=attributes, start_time=began)

    def _context_of(self, traceparent: str | None) -> "Context":
        """The parent of a span, however it was started: not the span that happens to be current in this task."""
        from opentelemetry.context import Context

        if traceparent is None:
            return Context()
        _, trace_id, span_id, flags = traceparent.split("-")
        parent = self._api.SpanContext(
            int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=self._api.TraceFlags(int(flags, 16))
        )
        return self._api.set_span_in_context(self._api.NonRecordingSpan(parent), Context())

    def _about(self, turn: Turn, operation: str) -> Attributes:
        """What every span of a turn says. `session.id` and `user.id` are for Langfuse."""
        snapshot = turn.snapshot
        provider, model = _names_of(turn.model or snapshot.model or "")
        attributes: Attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": provider,
            "gen_ai.request.model": model,
            "gen_ai.conversation.id": turn.conversation_id,
            "session.id": turn.conversation_id,
            "turnkeep.turn_id": turn.id,
        }
        if turn.user_id is not None:
            attributes["user.id"] = turn.user_id
        if snapshot.agent_id is not None:
            attributes["gen_ai.agent.id"] = snapshot.agent_id
        if snapshot.agent is not None:
            attributes["gen_ai.agent.name"] = snapshot.agent.name
        return attributes

    def _fail(self, span: "Span", kind: str, words: str) -> None:
        """Words of a provider or a tool may quote what was said, so they are content too."""
        span.set_attribute("error.type", kind)
        span.set_status(self._api.StatusCode.ERROR, words[:CONTENT_CHARS] if self._has_content else kind)


def open_tracing(environ: Mapping[str, str], *, has_content: bool = False) -> Tracing | None:
    """Tracing as the environment asks for it, or None."""
    if not any(environ.get(name) for name in _ENDPOINTS):
        return None
    try:
        exporter = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter").OTLPSpanExporter()
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as exc:
        raise InvalidRequest(f"{_ENDPOINTS[0]} is set: install `turnkeep[otel]`, or unset it.") from exc
    resource = Resource.create({"service.name": environ.get("OTEL_SERVICE_NAME", "turnkeep")})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider, has_content=has_content)


def traceparent_of(span: "Span") -> str:
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def _names_of(model: str) -> tuple[str, str]:
    """The provider and its own name of the model. A provider with one model, such as `demo`, names it alike."""
    provider, _, own = model.partition("/")
    return provider, own or provider


def _usage_of(usage: Any) -> Attributes:
    return {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
    }


def _finish_of(call: ObservedModelCall) -> str:
    reply = call.reply
    if reply is not None and any(isinstance(block, ToolUse) for block in reply.blocks):
        return "tool_calls"
    return "length" if reply is not None and reply.finish == "length" else "stop"


def _kind_of(error: BaseException) -> str:
    return error.code if isinstance(error, TurnkeepError) else type(error).__name__


# What was said, in the form that the conventions give to messages


def _content_of(call: ObservedModelCall) -> Attributes:
    request = call.request.decoded()
    content: Attributes = {"gen_ai.input.messages": _json([_message_of(message) for message in request.messages])}
    if request.system:
        content["gen_ai.system_instructions"] = _json(list(_parts_of(request.system)))
    if call.reply is not None:
        parts = [part for block in call.reply.blocks if (part := _part_of_block(block)) is not None]
        said = {"role": "assistant", "parts": parts, "finish_reason": _finish_of(call)}
        content["gen_ai.output.messages"] = _json([said])
    return content


def _message_of(message: Any) -> Any:
    """A message of any of the vendors' formats."""
    kind = message.get("type")
    if kind in {"function_call", "function_call_output", "reasoning"}:  # items of OpenAI's Responses
        role = "tool" if kind == "function_call_output" else "assistant"
        return {"role": role, "parts": list(_parts_of([message]))}
    if message.get("role") == "tool":
        part = {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": message.get("content")}
        return {"role": "tool", "parts": [part]}
    parts = list(_parts_of(message.get("content") or ()))
    parts += [
        {
            "type": "tool_call",
            "id": call.get("id"),
            "name": call["function"]["name"],
            "arguments": call["function"]["arguments"],
        }
        for call in message.get("tool_calls") or ()
    ]
    return {"role": message.get("role", "user"), "parts": parts}


def _parts_of(content: Any) -> Iterable[Any]:
    if isinstance(content, str):
        yield {"type": "text", "content": content}
        return
    for part in content:
        match part.get("type"):
            case "text" | "input_text" | "output_text":
                yield {"type": "text", "content": part.get("text", "")}
            case "thinking":
                yield {"type": "reasoning", "content": part.get("thinking", "")}
            case "tool_use":
                yield {"type": "tool_call", "id": part["id"], "name": part["name"], "arguments": part["input"]}
            case "tool_result":
                yield {"type": "tool_call_response", "id": part["tool_use_id"], "response": part.get("content")}
            case "function_call":
                yield {
                    "type": "tool_call",
                    "id": part.get("call_id"),
                    "name": part.get("name"),
                    "arguments": part.get("arguments"),
                }
            case "function_call_output":
                yield {"type": "tool_call_response", "id": part.get("call_id"), "response": part.get("output")}
            case kind:  # pictures and files; their bytes are left out
                yield {"type": str(kind)}


def _part_of_block(block: Block) -> Any:
    match block:
        case Text():
            return {"type": "text", "content": block.text}
        case Reasoning():
            return {"type": "reasoning", "content": block.text}
        case ToolUse():
            return {"type": "tool_call", "id": block.id, "name": block.name, "arguments": block.input}
        case _:
            return None


def _json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode("utf-8", "replace")[:CONTENT_CHARS]
