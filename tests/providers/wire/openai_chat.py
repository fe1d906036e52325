"""OpenAI's Chat Completions as it is on the wire: unnamed chunks, a last one with usage and no choices, `[DONE]`."""

from typing import Any

from tests.providers.wire.script import Brain, Call, ErrorEvent, Json, Raw, Refuse, Say, Script, Stop, Think, pieces_of
from tests.providers.wire.server import Frame, Plain, Request, Streamed, compact
from turnkeep.compiler.judge import Violation, judge_openai_chat

USAGE = {
    "prompt_tokens": 142,
    "completion_tokens": 42,
    "total_tokens": 184,
    "prompt_tokens_details": {"cached_tokens": 100, "audio_tokens": 0, "cache_write_tokens": 30},
    "completion_tokens_details": {"reasoning_tokens": 0},
}


class OpenAIChatWire:
    """A server like vLLM or Ollama, as strict as OpenAI. `thinks_as` is the field in which reasoning comes."""

    ping = b": keep-alive\n\n"

    def __init__(
        self, *, thinks_as: str = "reasoning_content", key: str = "sk-test-key", lists_models: bool = True
    ) -> None:
        self.thinks_as = thinks_as
        self.key = key
        self.lists_models = lists_models
        self.violations: list[Violation] = []
        self.refused: list[str] = []

    def answer(self, request: Request, think: Brain) -> Plain | Streamed:
        if request.headers.get("authorization") != f"Bearer {self.key}":
            given = request.headers.get("authorization", "")
            return error(Refuse(401, f"Incorrect API key provided: {given}", code="invalid_api_key"))
        if request.path == "/v1/models":
            return models(["local-model", "blind-model", "org/with-a-slash"]) if self.lists_models else _away()
        if request.path != "/v1/chat/completions":
            return error(Refuse(404, f"Invalid URL (POST {request.path})"))
        if message := self._refusal(request.body):
            self.refused.append(message)
            return error(Refuse(400, message))
        script = think(request.body)
        if script and isinstance(script[0], Refuse):
            return error(script[0])
        return self._frames(request.body, script)

    def _refusal(self, body: Json) -> str | None:
        found = judge_openai_chat(body)
        self.violations += found
        if found:
            return found[0].message
        if "tool_choice" in body and not body.get("tools"):
            return "'tool_choice' is only allowed when 'tools' are specified."
        has_pictures = any(
            isinstance(message["content"], list) and any(part["type"] == "image_url" for part in message["content"])
            for message in body["messages"]
        )
        if body["model"] == "blind-model" and has_pictures:
            return "blind-model is not a multimodal model"
        for tool in body.get("tools", ()):
            if message := schema_refusal(tool["function"]):
                return message
        return None if body.get("stream") is True else "stream: expected true"

    def _frames(self, body: Json, script: Script) -> list[Frame]:
        first = chunk(body, {"role": "assistant", "content": "", "refusal": None})
        frames: list[Frame] = [first] if not script or isinstance(script[0], Say | Think | Call | Stop) else []
        calls = 0
        stop = Stop("tool_calls" if any(isinstance(item, Call) for item in script) else "stop")
        for item in script:
            match item:
                case Say():
                    field = "refusal" if item.is_refusal else "content"
                    frames += [chunk(body, {field: piece}) for piece in pieces_of(item.text, item.pieces)]
                case Think():
                    frames += [chunk(body, {self.thinks_as: piece}) for piece in pieces_of(item.text, 3)]
                case Call():
                    frames += _call(body, calls, item)
                    calls += 1
                case Stop():
                    stop = item
                case Raw():
                    frames.append(item.content)
                case ErrorEvent():
                    content = compact({"error": {"message": item.message, "type": item.kind, "code": None}})
                    return [*frames, b"data: %b\n\n" % content]
                case Refuse():
                    raise AssertionError("a refusal stands alone")
                case _:
                    frames.append(item)
        frames.append(chunk(body, {}, finish_reason=stop.reason))
        if body.get("stream_options", {}).get("include_usage"):
            frames.append(chunk(body, None, usage=USAGE))
        return [*frames, b"data: [DONE]\n\n"]


def chunk(body: Json, delta: Json | None, *, finish_reason: str | None = None, usage: Json | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    value = {
        "id": "chatcmpl-B9MHDbslfkBeAs8l4bebGdFOJ6PeG",
        "object": "chat.completion.chunk",
        "created": 1741570283,
        "model": body["model"],
        "service_tier": "default",
        "system_fingerprint": "fp_fc9f1d7035",
        "choices": [] if delta is None else [choice],
        "usage": usage,
        "obfuscation": "tFnzVNRgEKiiSI"[: len(str(delta)) % 14],
    }
    return b"data: %b\n\n" % compact(value)


def _call(body: Json, index: int, item: Call) -> list[bytes]:
    def piece(**fields: Any) -> bytes:
        return chunk(body, {"tool_calls": [{"index": index, **fields}]})

    name = {"name": item.name, "arguments": ""}
    first = piece(id=f"call_DdmO9pD3xa9XTPNJ32zg2hc{index}", type="function", function=name)
    return [first, *(piece(function={"arguments": text}) for text in pieces_of(item.text, 4))]


def schema_refusal(function: Json) -> str | None:
    schema = function["parameters"]
    if schema.get("type") != "object" or "properties" not in schema or "oneOf" in schema:
        return f"Invalid schema for function '{function['name']}': In context=(), object schema missing properties."
    if len(function["description"]) > 1_024:
        return "Invalid 'tools[0].description': string too long. Expected a string with maximum length 1024."
    return None


def error(refusal: Refuse) -> Plain:
    fields = {"message": refusal.message, "type": refusal.kind, "param": None, "code": refusal.code}
    content = compact({"error": fields}) if refusal.body is None else refusal.body.encode()
    kind = "application/json" if refusal.body is None else "text/html"
    return Plain(refusal.status, content, {"x-request-id": "req_1", **refusal.headers}, kind)


def models(names: list[str]) -> Plain:
    data = [{"id": name, "object": "model", "created": 1741570283, "owned_by": "test"} for name in names]
    return Plain(200, compact({"object": "list", "data": data}))


def _away() -> Plain:
    return error(Refuse(503, "The server is starting up", "server_error"))
