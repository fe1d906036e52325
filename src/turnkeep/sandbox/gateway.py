"""The model, as a turn in a sandbox reaches it: through the server's gateway, which speaks Chat Completions.

No provider's key ever leaves the server. What a model thought comes in the field `reasoning_details` of a delta, as
opaque objects; they are sent back unchanged with the calls that followed them, so that signatures survive.
"""

from typing import Any

import aiohttp
import msgspec
from msgspec import Struct

from turnkeep.ids import CallId
from turnkeep.providers.drafts import ALIVE, Draft
from turnkeep.providers.openai import OpenAIChatDraft, OpenAIProvider
from turnkeep.providers.ports import Delta, ModelRequest, Reply
from turnkeep.sandbox.envelope import GatewayAccess, OfferedTool
from turnkeep.tools.ports import CallContext, Outcome, Passage, ToolSpec
from turnkeep_client.wire.blocks import JsonObject, JsonValue, ToolUse
from turnkeep_client.wire.events import Source

DETAILS = "reasoning_details"


class GatewayProvider(OpenAIProvider):
    """One turn's model. It remembers what was thought before each call of the turn."""

    name = "gateway"

    def __init__(self, access: GatewayAccess) -> None:
        super().__init__(api_key=access.token, base_url=access.base_url, api="chat")
        self._thoughts: dict[CallId, list[JsonValue]] = {}

    async def _body(self, request: ModelRequest) -> JsonObject:
        body = await super()._body(request)
        return body | {"messages": [self._with_thoughts(message) for message in request.messages]}

    def _with_thoughts(self, message: JsonObject) -> JsonObject:
        calls = message.get("tool_calls")
        thoughts = self._thoughts.get(calls[0]["id"]) if calls else None
        return message if thoughts is None else message | {DETAILS: thoughts}

    def _draft(self) -> Draft:
        return _GatewayDraft(self._thoughts)


class _GatewayDraft(OpenAIChatDraft):
    def __init__(self, thoughts: dict[CallId, list[JsonValue]]) -> None:
        super().__init__()
        self._thoughts = thoughts
        self._details: list[JsonValue] = []

    def add(self, event: Any) -> Delta | None:
        delta = event.choices[0].delta if event.choices else None
        if delta is not None and (details := (delta.model_extra or {}).get(DETAILS)):
            self._details.extend(details)
        # The gateway sends a chunk without words while the model works on something that is not shown.
        return super().add(event) or ALIVE

    def reply(self) -> Reply:
        reply = super().reply()
        calls = [block for block in reply.blocks if isinstance(block, ToolUse)]
        if calls and self._details:
            self._thoughts[calls[0].id] = self._details
        return reply


GRACE_SECONDS = 15.0
"""The server keeps the time of a call; so much longer do we wait for what it says about it."""
ANSWER_BYTES = 8 * 1024 * 1024
_UNKNOWN = "outcome_unknown: the call may or may not have taken effect; check before you repeat it."


class ServerTool:
    """One tool, called through the gateway."""

    def __init__(self, offered: OfferedTool, access: GatewayAccess, session: aiohttp.ClientSession) -> None:
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
        """What the server says that it came to. A call whose answer was lost is not repeated."""
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


class _Answer(Struct, frozen=True):
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
    answer = msgspec.json.decode(data, type=_Answer)
    if response.status == 200:
        return Outcome(result=answer.result, error=answer.error, sources=answer.sources, passages=answer.passages)
    return Outcome(error=f"The server did not call the tool (status {response.status}). {answer.detail}".rstrip())
