"""Anthropic's Messages API as it is on the wire: named events, pings, padding inside the JSON, usage in two places."""

import re
from typing import Any

from tests.providers.wire.script import (
    Brain,
    Call,
    ErrorEvent,
    Json,
    Raw,
    Refuse,
    Say,
    Script,
    Stop,
    Think,
    pieces_of,
)
from tests.providers.wire.server import Frame, Plain, Request, Streamed, compact
from turnkeep.compiler.judge import Violation, judge_anthropic

THINKING_TYPES = {
    "claude-adaptive": {"adaptive", "disabled"},
    "claude-budget": {"enabled", "disabled"},
    "claude-plain": {"disabled"},
    "claude-blind": {"disabled"},
}
MAX_TOKENS = {"claude-plain": 4_096}
USAGE = {"input_tokens": 12, "cache_creation_input_tokens": 30, "cache_read_input_tokens": 100}


class AnthropicWire:
    """A bearer token, `anthropic-version`, and a judge for every request."""

    ping = b'event: ping\ndata: {"type": "ping"}\n\n'

    def __init__(self, *, lists_models: bool = True) -> None:
        self.lists_models = lists_models
        self.violations: list[Violation] = []
        self.refused: list[str] = []

    def answer(self, request: Request, think: Brain) -> Plain | Streamed:
        given = request.headers.get("authorization", "")
        if given != "Bearer sk-ant-test-key" or "anthropic-version" not in request.headers:
            return _error(Refuse(401, f"invalid bearer token {given}", "authentication_error"))
        path = request.path.partition("?")[0]
        if path.startswith("/v1/models"):
            return self._models(path.removeprefix("/v1/models").strip("/"))
        if path != "/v1/messages":
            return _error(Refuse(404, "Not found", "not_found_error"))
        if message := self._refusal(request.body):
            self.refused.append(message)
            return _error(Refuse(400, message))
        script = think(request.body)
        if script and isinstance(script[0], Refuse):
            return _error(script[0])
        return _frames(request.body, script)

    def _refusal(self, body: Json) -> str | None:
        """What the API answers 400 to: the rules of replay, and the fields that a model does not take."""
        found = judge_anthropic(body)
        self.violations += found
        if found:
            return found[0].message
        types = THINKING_TYPES.get(body["model"], set())
        thinking = body.get("thinking", {"type": "disabled"})
        if thinking["type"] not in types:
            return f"thinking: type `{thinking['type']}` is not supported on this model"
        limit = MAX_TOKENS.get(body["model"], 64_000)
        if body["max_tokens"] > limit:
            return f"max_tokens: {body['max_tokens']} > {limit}, which is the maximum allowed number of output tokens"
        if thinking["type"] == "enabled" and not 1_024 <= thinking["budget_tokens"] < body["max_tokens"]:
            return "`max_tokens` must be greater than `thinking.budget_tokens`"
        if body["model"] == "claude-blind" and "image" in _kinds(body):
            return "claude-blind does not support image input"
        if body.get("stream") is not True:
            return "stream: expected true"
        names = [tool["name"] for tool in body.get("tools", ())]
        if len(set(names)) < len(names) or not all(re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", name) for name in names):
            return "tools: names must be unique and match '^[a-zA-Z0-9_-]{1,128}$'"
        if any(
            tool["input_schema"].get("type") != "object" or "oneOf" in tool["input_schema"]
            for tool in body.get("tools", ())
        ):
            return "tools.0.custom.input_schema: must be of type object, without oneOf, allOf or anyOf at the top level"
        return None

    def _models(self, name: str) -> Plain:
        if not self.lists_models:
            return _error(Refuse(404, "Not found", "not_found_error"))
        if name and name not in THINKING_TYPES:
            return _error(Refuse(404, f"model: {name}", "not_found_error"))
        cards = [_model_info(each) for each in ([name] if name else THINKING_TYPES)]
        page = {"data": cards, "has_more": False, "first_id": cards[0]["id"], "last_id": cards[-1]["id"]}
        return Plain(200, compact(cards[0] if name else page))


def _kinds(body: Json) -> set[str]:
    return {part["type"] for message in body["messages"] for part in message["content"]}


def _model_info(name: str) -> Json:
    types = THINKING_TYPES[name]
    can = {"supported": True}
    cannot = {"supported": False}
    known = ("adaptive", "between_tools", "disabled", "enabled")
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": "2026-01-01T00:00:00Z",
        "lifecycle": "active",
        "max_tokens": MAX_TOKENS.get(name, 64_000),
        "capabilities": {
            "batch": can,
            "effort": {"supported": name == "claude-adaptive", "low": can, "medium": can, "high": can, "max": can},
            "image_input": can if name != "claude-blind" else cannot,
            "thinking": {
                "supported": bool(types - {"disabled"}),
                "types": {each: {"supported": each in types} for each in known},
            },
        },
    }


def _error(refusal: Refuse) -> Plain:
    body = {"type": "error", "error": {"type": refusal.kind, "message": refusal.message}, "request_id": "req_1"}
    content = compact(body) if refusal.body is None else refusal.body.encode()
    kind = "application/json" if refusal.body is None else "text/html"
    return Plain(refusal.status, content, {"request-id": "req_1", **refusal.headers}, kind)


def event(kind: str, **fields: Any) -> bytes:
    """One event. The real service pads its JSON with blanks, so that sizes tell nothing."""
    content = compact({"type": kind, **fields})
    return b"event: %b\ndata: %b%b}\n\n" % (kind.encode(), content[:-1], b" " * (len(content) % 11))


def _frames(body: Json, script: Script) -> list[Frame]:
    message = {
        "model": body["model"],
        "id": "msg_01XFDUDYJgAACzvnptvVoYEL",
        "type": "message",
        "role": "assistant",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**USAGE, "output_tokens": 1, "service_tier": "standard"},
    }
    frames: list[Frame] = [event("message_start", message=message)]
    if not script or isinstance(script[0], Say | Think | Call):
        frames.append(AnthropicWire.ping)
    elif not isinstance(script[0], Stop):
        frames = []
    index = 0
    stop = Stop("tool_use" if any(isinstance(item, Call) for item in script) else "end_turn")
    for item in script:
        match item:
            case Say() | Think() | Call():
                frames += _block(index, item)
                index += 1
            case Stop():
                stop = item
            case Raw():
                frames.append(item.content)
            case ErrorEvent():
                error = {"type": item.kind, "message": item.message}
                return [*frames, event("error", error=error)]
            case Refuse():
                raise AssertionError("a refusal stands alone")
            case _:
                frames.append(item)
    details = {"type": "refusal", "category": None, "explanation": stop.explanation} if stop.explanation else None
    delta = {"stop_reason": stop.reason, "stop_sequence": None, "stop_details": details}
    return [*frames, event("message_delta", delta=delta, usage={"output_tokens": 42}), event("message_stop")]


def _block(index: int, item: Say | Think | Call) -> list[bytes]:
    def delta(kind: str, **fields: str) -> bytes:
        return event("content_block_delta", index=index, delta={"type": kind, **fields})

    start: Json
    deltas: list[bytes]
    match item:
        case Say():
            start = {"type": "text", "text": ""}
            deltas = [delta("text_delta", text=piece) for piece in pieces_of(item.text, item.pieces)]
        case Think():
            start = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [delta("thinking_delta", thinking=piece) for piece in pieces_of(item.text, 3)]
            deltas.append(delta("signature_delta", signature=item.proof))
            if not item.text:
                start, deltas = {"type": "redacted_thinking", "data": item.proof}, []
        case _:
            start = {"type": "tool_use", "id": f"toolu_01A09q90qw90lq91780{index}", "name": item.name, "input": {}}
            deltas = [delta("input_json_delta", partial_json="")]
            deltas += [delta("input_json_delta", partial_json=piece) for piece in pieces_of(item.text, 4)]
    first = event("content_block_start", index=index, content_block=start)
    return [first, *deltas, event("content_block_stop", index=index)]
