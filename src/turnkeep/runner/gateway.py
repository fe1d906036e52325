"""The model, as a turn in a sandbox reaches it: through the server's gateway, which speaks Chat Completions.

No provider's key ever leaves the server. What a model thought comes in the field `reasoning_details` of a delta, as
opaque objects; they are sent back unchanged with the calls that followed them, so that signatures survive.
"""

from typing import Any

from turnkeep.ids import CallId
from turnkeep.providers.drafts import ALIVE, Draft
from turnkeep.providers.openai import OpenAIProvider
from turnkeep.providers.openai_chat_draft import OpenAIChatDraft
from turnkeep.providers.ports import Delta, ModelRequest, Reply
from turnkeep.runner.envelope import GatewayAccess
from turnkeep_client.wire.blocks import JsonObject, JsonValue, ToolUse

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
