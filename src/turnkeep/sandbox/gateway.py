"""The server's gateway, through which a turn in a sandbox reaches its model and the tools that the server calls.

No key of a provider and no credential of a tool ever leaves the server. The model is reached by Chat Completions. Its
reasoning comes in the field `reasoning_details` of a delta, as opaque objects; they are sent back unchanged with the
calls that followed them, so that signatures stay valid.
"""

from typing import Any

import aiohttp
import msgspec
from msgspec import Struct

from turnkeep.ids import CallId
from turnkeep.providers.drafts import ALIVE, Draft
from turnkeep.providers.openai import OpenAIChatDraft, OpenAIProvider
from turnkeep.providers.ports import Delta, ModelRequest, Reply
from turnkeep.tools.ports import CallContext, Outcome, Passage, ToolSpec
from turnkeep_client.wire.blocks import JsonObject, JsonValue, ToolUse
from turnkeep_client.wire.events import Source
from turnkeep_client.wire.sandbox import SandboxGateway, SandboxTool

DETAILS = "reasoning_details"
GRACE_SECONDS = 15.0
"""The server limits the time of a call. The runner waits this much longer for the server's response."""
ANSWER_BYTES = 8 * 1024 * 1024

_UNKNOWN = "outcome_unknown: the call may or may not have taken effect; check before you repeat it."


class GatewayProvider(OpenAIProvider):
    """The model of one turn. It remembers the reasoning that came before each call."""

    name = "gateway"

    def __init__(self, access: SandboxGateway) -> None:
        super().__init__(api_key=access.token, base_url=access.base_url, api="chat")
        self._reasoning_by_call: dict[CallId, list[JsonValue]] = {}

    async def _body(self, request: ModelRequest) -> JsonObject:
        body = await super()._body(request)
        return body | {"messages": [self._with_reasoning(message) for message in request.messages]}

    def _with_reasoning(self, message: JsonObject) -> JsonObject:
        calls = message.get("tool_calls")
        reasoning = self._reasoning_by_call.get(calls[0]["id"]) if calls else None
        return message if reasoning is None else message | {DETAILS: reasoning}

    def _draft(self) -> Draft:
        return _GatewayDraft(self._reasoning_by_call)


class _GatewayDraft(OpenAIChatDraft):
    def __init__(self, reasoning: dict[CallId, list[JsonValue]]) -> None:
        super().__init__()
        self._reasoning_by_call = reasoning
        self._details: list[JsonValue] = []

    def add(self, event: Any) -> Delta | None:
        delta = event.choices[0].delta if event.choices else None
        if delta is not None and (details := (delta.model_extra or {}).get(DETAILS)):
            self._details.extend(details)
        # The gateway sends an empty chunk while the model works on something that is not shown.
        return super().add(event) or ALIVE

    def reply(self) -> Reply:
        reply = super().reply()
        calls = [block for block in reply.blocks if isinstance(block, ToolUse)]
        if calls and self._details:
            self._reasoning_by_call[calls[0].id] = self._details
        return reply


class ServerTool:
    """One tool that the server calls for this turn."""

    def __init__(self, offered: SandboxTool, access: SandboxGateway, session: aiohttp.ClientSession) -> None:
        self.spec = ToolSpec(
            name=offered.name,
            description=offered.description,
            input_schema=offered.input_schema,
            timeout_seconds=offered.timeout_seconds + 2 * GRACE_SECONDS,
        )
        self._access = access
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=offered.timeout_seconds + GRACE_SECONDS, connect=10)

    async def call(self, args: JsonObject, context: CallContext) -> Outcome:
        """Ask the server to call the tool. If its response is lost, the call is not repeated."""
        body = {"call_id": context.call_id, "name": self.spec.name, "arguments": args}
        try:
            async with self._session.post(
                f"{self._access.base_url}/tools",
                data=msgspec.json.encode(body),
                headers={"Authorization": f"Bearer {self._access.token}", "Content-Type": "application/json"},
                allow_redirects=False,
                timeout=self._timeout,
            ) as response:
                return await _outcome(response)
        except aiohttp.ClientConnectorError:
            return Outcome(error="The server that calls this tool cannot be reached now.")
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError):
            return Outcome(error=_UNKNOWN)


class _ToolResponse(Struct, frozen=True):
    result: JsonValue = None
    error: str | None = None
    sources: tuple[Source, ...] = ()
    passages: tuple[Passage, ...] = ()
    detail: str = ""


async def _outcome(response: Any) -> Outcome:
    data = bytearray()
    async for piece in response.content.iter_chunked(64 * 1024):
        data += piece
        if len(data) > ANSWER_BYTES:
            return Outcome(error=f"The answer is longer than {ANSWER_BYTES:,} bytes.")
    answer = msgspec.json.decode(data, type=_ToolResponse)
    if response.status == 200:
        return Outcome(result=answer.result, error=answer.error, sources=answer.sources, passages=answer.passages)
    return Outcome(error=f"The server did not call the tool (status {response.status}). {answer.detail}".rstrip())
