"""OpenAI's Responses API as it is on the wire: named events with sequence numbers, items that open and close."""

from itertools import count
from typing import Any

from tests.providers.wire.openai_chat import error, models, schema_refusal
from tests.providers.wire.script import Brain, Call, ErrorEvent, Json, Raw, Refuse, Say, Script, Stop, Think, pieces_of
from tests.providers.wire.server import Frame, Plain, Request, Streamed, compact
from turnkeep.compiler.judge import Violation, judge_openai_responses

USAGE = {
    "input_tokens": 142,
    "input_tokens_details": {"cached_tokens": 100, "cache_write_tokens": 30},
    "output_tokens": 42,
    "output_tokens_details": {"reasoning_tokens": 10},
    "total_tokens": 184,
}
NAMES = ["gpt-5-test", "gpt-4o-test", "text-embedding-3-small", "whisper-1"]


class OpenAIResponsesWire:
    """As strict as OpenAI: a model that does not reason takes no fields about reasoning."""

    ping = b": keep-alive\n\n"

    def __init__(self, *, may_summarise: bool = True) -> None:
        self.may_summarise = may_summarise
        self.violations: list[Violation] = []
        self.refused: list[str] = []
        self.known_proofs: set[str] | None = None
        """When set: only these ciphertexts can be decrypted."""

    def answer(self, request: Request, think: Brain) -> Plain | Streamed:
        if request.headers.get("authorization") != "Bearer sk-test-key":
            return error(Refuse(401, "Incorrect API key provided: sk-wrong-key-123", code="invalid_api_key"))
        if request.path == "/v1/models":
            return models(NAMES)
        if request.path != "/v1/responses":
            return error(Refuse(404, f"Invalid URL (POST {request.path})"))
        if refusal := self._refusal(request.body):
            self.refused.append(refusal.message)
            return error(refusal)
        script = think(request.body)
        if script and isinstance(script[0], Refuse):
            return error(script[0])
        return _Stream(request.body).frames(script)

    def _refusal(self, body: Json) -> Refuse | None:
        found = judge_openai_responses(body)
        self.violations += found
        if found:
            return Refuse(400, found[0].message)
        if not body["model"].startswith("gpt-5"):
            if "reasoning" in body:
                return Refuse(400, "Unsupported parameter: 'reasoning' is not supported with this model.")
            if "include" in body:
                return Refuse(400, "Encrypted content is not supported with this model.")
        if not self.may_summarise and "summary" in body.get("reasoning", {}):
            return Refuse(400, "Your organization must be verified to generate reasoning summaries.")
        for item in body["input"]:
            proof = item.get("encrypted_content")
            if proof is not None and self.known_proofs is not None and proof not in self.known_proofs:
                words = f"The encrypted content for item {item.get('id')} could not be verified."
                return Refuse(400, words, code="invalid_encrypted_content")
        for tool in body.get("tools", ()):
            if message := schema_refusal(tool):
                return Refuse(400, message)
        return None if body.get("stream") is True else Refuse(400, "stream: expected true")


class _Stream:
    def __init__(self, body: Json) -> None:
        self._body = body
        self._numbers = count()
        self._items: list[Json] = []

    def event(self, kind: str, **fields: Any) -> bytes:
        content = compact({"type": kind, "sequence_number": next(self._numbers), **fields})
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), content)

    def response(self, status: str, **fields: Any) -> Json:
        return {
            "id": "resp_67c9fdcecf488190bdd9a0409de3a1ec07b8b0ad4e5eb654",
            "object": "response",
            "created_at": 1741487325,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self._body["model"],
            "output": self._items if status != "in_progress" else [],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": None,
            **fields,
        }

    def frames(self, script: Script) -> list[Frame]:
        frames: list[Frame] = []
        if not script or isinstance(script[0], Say | Think | Call | Stop):
            frames += [self.event(f"response.{kind}", response=self.response("in_progress")) for kind in _OPENING]
        stop: Stop | None = None
        for item in script:
            match item:
                case Say() | Think() | Call():
                    frames += self._item(len(self._items), item)
                case Stop():
                    stop = item
                case Raw():
                    frames.append(item.content)
                case ErrorEvent() if item.kind == "response.failed":
                    failed = self.response("failed", error={"code": "server_error", "message": item.message})
                    return [*frames, self.event("response.failed", response=failed)]
                case ErrorEvent():
                    return [*frames, self.event("error", code=item.kind, message=item.message, param=None)]
                case Refuse():
                    raise AssertionError("a refusal stands alone")
                case _:
                    frames.append(item)
        if stop is not None:
            cut = self.response("incomplete", usage=USAGE, incomplete_details={"reason": stop.reason})
            return [*frames, self.event("response.incomplete", response=cut)]
        return [*frames, self.event("response.completed", response=self.response("completed", usage=USAGE))]

    def _item(self, index: int, item: Say | Think | Call) -> list[bytes]:
        match item:
            case Say():
                return self._message(index, item)
            case Think():
                return self._reasoning(index, item)
            case Call():
                return self._call(index, item)

    def _message(self, index: int, item: Say) -> list[bytes]:
        shell = {"id": f"msg_{index}", "type": "message", "status": "in_progress", "content": [], "role": "assistant"}
        place: Json = {"item_id": f"msg_{index}", "output_index": index, "content_index": 0}
        kind, field = ("refusal", "refusal") if item.is_refusal else ("output_text", "text")
        extra: Json = {} if item.is_refusal else {"logprobs": []}
        part = {"type": kind, field: item.text, **extra, **({"annotations": []} if extra else {})}
        done = {**shell, "status": "completed", "content": [part]}
        self._items.append(done)
        return [
            self.event("response.output_item.added", output_index=index, item=shell),
            self.event("response.content_part.added", **place, part={**part, field: ""}),
            *(
                self.event(f"response.{kind}.delta", **place, delta=piece, **extra, obfuscation="x")
                for piece in pieces_of(item.text, item.pieces)
            ),
            self.event(f"response.{kind}.done", **place, **{field: item.text}, **extra),
            self.event("response.content_part.done", **place, part=part),
            self.event("response.output_item.done", output_index=index, item=done),
        ]

    def _reasoning(self, index: int, item: Think) -> list[bytes]:
        shell: Json = {"id": f"rs_{index}", "type": "reasoning", "summary": []}
        place: Json = {"item_id": f"rs_{index}", "output_index": index, "summary_index": 0}
        part = {"type": "summary_text", "text": item.text}
        has_proof = "include" in self._body
        done = (
            shell | {"summary": [part] if item.text else []} | ({"encrypted_content": item.proof} if has_proof else {})
        )
        self._items.append(done)
        summary = [
            self.event("response.reasoning_summary_part.added", **place, part={**part, "text": ""}),
            *(
                self.event("response.reasoning_summary_text.delta", **place, delta=piece)
                for piece in pieces_of(item.text, 3)
            ),
            self.event("response.reasoning_summary_text.done", **place, text=item.text),
            self.event("response.reasoning_summary_part.done", **place, part=part),
        ]
        return [
            self.event("response.output_item.added", output_index=index, item=shell),
            *(summary if item.text else ()),
            self.event("response.output_item.done", output_index=index, item=done),
        ]

    def _call(self, index: int, item: Call) -> list[bytes]:
        shell: Json = {
            "id": f"fc_{index}",
            "type": "function_call",
            "status": "in_progress",
            "arguments": "",
            "call_id": f"call_DdmO9pD3xa9XTPNJ32zg2hc{index}",
            "name": item.name,
        }
        place: Json = {"item_id": f"fc_{index}", "output_index": index}
        done = {**shell, "status": "completed", "arguments": item.text}
        self._items.append(done)
        return [
            self.event("response.output_item.added", output_index=index, item=shell),
            *(
                self.event("response.function_call_arguments.delta", **place, delta=piece)
                for piece in pieces_of(item.text, 4)
            ),
            self.event("response.function_call_arguments.done", **place, arguments=item.text),
            self.event("response.output_item.done", output_index=index, item=done),
        ]


_OPENING = ("created", "in_progress")
