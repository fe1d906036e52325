"""`anthropic/…`: Claude, or any server that speaks Anthropic's Messages API.

What a model can do (reason, see images, its output limit) is read from the Models API once and remembered. A server
without that API gets requests that every model accepts.
"""

import asyncio
import json
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from turnkeep.providers.drafts import Arguments, Calls, Draft, Kind, tokens
from turnkeep.providers.failures import ErrorResponse, StreamFailed
from turnkeep.providers.http_provider import Effort, HttpProvider, ModelList, object_schema, own_name
from turnkeep.providers.lessons import ANTHROPIC
from turnkeep.providers.ports import Abilities, ModelRequest, ProviderFailed, Reply, Target, Thinking, ToolOffer
from turnkeep.providers.retry import RetryPolicy
from turnkeep.providers.wire import Account, ProviderSession
from turnkeep_client.wire.blocks import JsonObject, Reasoning, Text, Usage

API_VERSION = "2026-10-21"
MAX_TOKENS = 32_000
UNKNOWN_MAX_TOKENS = 8_192
BUDGETS: dict[Effort, int] = {"auto": 4_096, "low": 2_048, "medium": 8_192, "high": 16_000}
"""For models that take a budget of reasoning tokens."""

KNOWN_SECONDS = 3_600.0
UNKNOWN_SECONDS = 60.0
MAX_MODELS = 1_000

OPTIONS = frozenset({"max_tokens", "stop", "tool_choice", "tool", "parallel_tool_calls"})
"""The Messages API has no parameters for the other options."""

CUT_OFF = frozenset({"max_tokens", "model_context_window_exceeded"})


class ModelInfo(Struct, frozen=True, kw_only=True):
    """What is known of one model. `until` is when to fetch it again, by the clock of the retry policy."""

    until: float
    thinking: Thinking = "off"
    can_switch_off: bool = False
    takes_effort: bool = False
    sees_images: bool = True
    max_tokens: int = UNKNOWN_MAX_TOKENS


class AnthropicProvider(HttpProvider):
    """Claude, or a compatible server at the address of the account."""

    name = "anthropic"
    target: Target = "anthropic"
    official_url = "https://api.anthropic.com"

    def __init__(
        self,
        account: Account,
        *,
        effort: Effort = "auto",
        retry_policy: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
        session: ProviderSession | None = None,
    ) -> None:
        super().__init__(account, path="/v1/messages", lessons=ANTHROPIC, retry_policy=retry_policy, session=session)
        self._effort = effort
        self._models: dict[str, ModelInfo] = {}
        self._fetching: dict[str, asyncio.Lock] = {}

    def _headers(self) -> dict[str, str]:
        key = self._account.api_key
        headers = {"anthropic-version": API_VERSION, "Authorization": f"Bearer {key or self._account.auth_token}"}
        if key and self._account.base_url:
            # Compatible servers expect the key in the header that Anthropic used before bearer tokens.
            headers["x-api-key"] = key
        return headers

    async def abilities(self, model: str) -> Abilities:
        info = await self._model_info(model)
        is_off = self._effort == "off" or self._lessons.has(model, "thinking")
        return Abilities(
            thinking="off" if is_off else info.thinking,
            sees_images=info.sees_images and not self._lessons.has(model, "pictures"),
            options=OPTIONS,
        )

    async def models(self) -> list[str]:
        listed = await self._query("/v1/models", {"limit": "1000"}, ModelList)
        return [f"{self.name}/{model.id}" for model in listed.data]

    async def _model_info(self, model: str) -> ModelInfo:
        now = self._retry_policy.monotonic
        info = self._models.get(model)
        if info is not None and info.until > now():
            return info
        async with self._fetching.setdefault(
            model, asyncio.Lock()
        ):  # many turns begin at once after a start; one of them asks
            info = self._models.get(model)
            if info is None or info.until <= now():
                if len(self._models) >= MAX_MODELS:
                    self._models.clear()
                    self._fetching.clear()
                info = self._models[model] = await self._fetch_model_info(model)
        return info

    async def _fetch_model_info(self, model: str) -> ModelInfo:
        now = self._retry_policy.monotonic
        try:
            info = await self._query(f"/v1/models/{quote(own_name(model), safe='')}", {}, _ModelCard)
        except ProviderFailed:
            return ModelInfo(until=now() + UNKNOWN_SECONDS)
        return _model_info_of(info, until=now() + KNOWN_SECONDS)

    async def _body(self, request: ModelRequest) -> JsonObject:
        info = await self._model_info(request.model)
        sampling = request.sampling
        body: JsonObject = {
            "model": own_name(request.model),
            "max_tokens": min(info.max_tokens, sampling.max_tokens or info.max_tokens),
            "messages": request.all_messages,
            "stream": True,
        }
        if request.system:
            body["system"] = request.system
        if request.tools:
            body["tools"] = self._offers.encode(request.tools, _tool)
            if choice := _tool_choice(request):
                body["tool_choice"] = choice
        if sampling.stop is not None:
            body["stop_sequences"] = sampling.stop
        return body | _thinking(info, self._effort, may_think=request.may_think)

    def _draft(self) -> Draft[Any]:
        return AnthropicDraft()


class _Support(Struct, frozen=True):
    supported: bool | None = None


class _ThinkingTypes(Struct):
    adaptive: _Support = _Support()
    enabled: _Support = _Support()
    disabled: _Support = _Support()


class _ThinkingSupport(Struct):
    types: _ThinkingTypes
    supported: bool | None = None


class _Capabilities(Struct):
    thinking: _ThinkingSupport
    effort: _Support
    image_input: _Support


class _ModelCard(Struct):
    """A model as the Models API describes it."""

    max_tokens: int | None = None
    capabilities: _Capabilities | None = None


def _model_info_of(info: _ModelCard, *, until: float) -> ModelInfo:
    limit = min(MAX_TOKENS, info.max_tokens or UNKNOWN_MAX_TOKENS)
    can = info.capabilities
    if can is None:
        return ModelInfo(until=until, max_tokens=limit)
    types = can.thinking.types
    thinking: Thinking = "off"
    if can.thinking.supported:
        thinking = "adaptive" if types.adaptive.supported else "enabled" if types.enabled.supported else "off"
    return ModelInfo(
        until=until,
        thinking=thinking,
        can_switch_off=bool(types.disabled.supported),
        takes_effort=bool(can.effort.supported),
        sees_images=bool(can.image_input.supported),
        max_tokens=limit,
    )


def _thinking(info: ModelInfo, effort: Effort, *, may_think: bool) -> JsonObject:
    """The fields that switch reasoning on, in the way this model supports, or off."""
    if not may_think:
        is_told = info.thinking != "off" and info.can_switch_off
        return {"thinking": {"type": "disabled"}} if is_told else {}
    if info.thinking == "enabled":
        budget = min(BUDGETS[effort], info.max_tokens // 2)
        return {"thinking": {"type": "enabled", "budget_tokens": max(1_024, budget)}}
    fields: JsonObject = {"thinking": {"type": "adaptive", "display": "summarized"}}
    if effort != "auto" and info.takes_effort:
        fields["output_config"] = {"effort": effort}
    return fields


def _tool_choice(request: ModelRequest) -> JsonObject:
    sampling = request.sampling
    if not request.may_call or sampling.tool_choice == "none":
        return {"type": "none"}
    alone = {"disable_parallel_tool_use": True} if sampling.parallel_tool_calls is False else {}
    if sampling.tool is not None:
        return {"type": "tool", "name": sampling.tool, **alone}
    if sampling.tool_choice == "required":
        return {"type": "any", **alone}
    return {"type": "auto", **alone} if alone or sampling.tool_choice else {}


def _tool(offer: ToolOffer) -> JsonObject:
    return {"name": offer.name, "description": offer.description, "input_schema": object_schema(offer)}


class _ContentDelta(Struct, gc=False):
    """The change of a block, or of the whole message."""

    type: str = ""
    text: str = ""
    thinking: str = ""
    partial_json: str = ""
    signature: str = ""
    stop_reason: Any = None
    stop_details: Any = None


class _StreamEvent(Struct, gc=False):
    """Any event of a stream, with the fields that are used."""

    type: str = ""
    index: int = 0
    delta: _ContentDelta | None = None
    content_block: Any = None
    message: Any = None
    usage: Any = None
    error: Any = None


class AnthropicDraft(Draft[_StreamEvent]):
    """Blocks by their index; a block is text, thinking with its signature, redacted thinking, or a call."""

    decoder = msgspec.json.Decoder(_StreamEvent)
    known_types = frozenset(
        {"content_block_delta", "content_block_start", "message_start", "message_delta", "message_stop"}
    )

    def __init__(self) -> None:
        super().__init__()
        self._blocks: dict[int, _BlockDraft | Arguments] = {}
        self._stop_reason: str | None = None
        self._stop_details: Any = None
        self._counts: dict[str, int] = {}

    @property
    def is_whole(self) -> bool:
        return self.is_done

    def take(self, event: _StreamEvent) -> None:
        match event.type:
            case "content_block_delta":
                self._add_delta(event.index, event.delta)
            case "content_block_start":
                self._begin_block(event.index, event.content_block)
            case "message_start":
                self._count(_field(event.message, "usage"))
            case "message_delta":
                if event.delta is not None:
                    self._stop_reason = event.delta.stop_reason or self._stop_reason
                    self._stop_details = event.delta.stop_details
                self._count(event.usage)
            case "message_stop":
                self.is_done = True
            case "error":
                raise ErrorResponse(event.error)
            case _:
                pass  # content_block_stop says nothing new, and later versions may add events

    def reply(self) -> Reply:
        if not self.is_whole:
            raise StreamFailed("the stream ended in the middle of the answer", is_transient=True)
        if self._stop_reason == "refusal":
            why = _field(self._stop_details, "explanation") or "no reason was given"
            raise StreamFailed(f"the model declined to answer (refusal): {why}")
        is_cut_off = self._stop_reason in CUT_OFF
        calls = Calls(is_cut_off=is_cut_off)
        for _, block in sorted(self._blocks.items()):
            if isinstance(block, Arguments):
                calls.add(block.name, block.text)
            elif (spoken := block.block()) is not None:
                calls.blocks.append(spoken)
        return calls.reply(self._usage())

    def _add_delta(self, index: int, delta: _ContentDelta | None) -> None:
        if delta is None:
            raise TypeError("a delta is expected, not null")
        block = self._blocks.get(index)
        match delta.type:
            case "text_delta" if isinstance(block, _BlockDraft):
                block.pieces.append(delta.text)
                self.show(delta.text, "text")
            case "thinking_delta" if isinstance(block, _BlockDraft):
                block.pieces.append(delta.thinking)
                self.think(delta.thinking)
            case "input_json_delta" if isinstance(block, Arguments):
                self.has_begun = True
                self.is_alive = True
                block.add(delta.partial_json)
            case "signature_delta" if isinstance(block, _BlockDraft):
                self.is_alive = True
                block.signature += delta.signature
            case _:
                pass

    def _begin_block(self, index: int, block: Any) -> None:
        self.is_alive = True
        match block.get("type"):
            case "text":
                self._blocks[index] = _BlockDraft("text")
                self._add_first(index, block.get("text"), "text")
            case "thinking":
                self._blocks[index] = spoken = _BlockDraft("reasoning")
                spoken.signature = block.get("signature") or ""
                self.begin_thought()
                self._add_first(index, block.get("thinking"), "reasoning")
            case "redacted_thinking":
                self._blocks[index] = _BlockDraft("reasoning", data=block["data"])
            case "tool_use":
                self._blocks[index] = Arguments(block["name"], _given(block.get("input")))
            case _:
                pass  # tools that Anthropic runs itself, which we do not use

    def _add_first(self, index: int, text: Any, kind: Kind) -> None:
        """A block usually begins empty; compatible servers may put text into its start."""
        block = self._blocks[index]
        if text and isinstance(block, _BlockDraft):
            if kind == "reasoning":
                self.think(text)
            else:
                self.show(text, kind)
            block.pieces.append(text)

    def _count(self, usage: Any) -> None:
        """Counts are totals so far; a later one replaces an earlier one."""
        for name in ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
            value = _field(usage, name)
            if value is not None:
                self._counts[name] = tokens(value)

    def _usage(self) -> Usage:
        count = self._counts.get
        read, written = count("cache_read_input_tokens", 0), count("cache_creation_input_tokens", 0)
        return Usage(
            input_tokens=count("input_tokens", 0) + read + written,
            output_tokens=count("output_tokens", 0),
            cache_read_tokens=read,
            cache_write_tokens=written,
        )


class _BlockDraft:
    __slots__ = ("data", "kind", "pieces", "signature")

    def __init__(self, kind: str, data: str | None = None) -> None:
        self.kind = kind
        self.pieces: list[str] = []
        self.signature = ""
        self.data = data

    def block(self) -> Text | Reasoning | None:
        text = "".join(self.pieces)
        if self.kind == "text":
            return Text(text=text) if text else None
        if not text and not self.signature and not self.data:
            return None
        return Reasoning(text=text, provider="anthropic", signature=self.signature or None, data=self.data)


def _given(value: Any) -> str:
    """Arguments that came with the start of a call, as some compatible servers send them."""
    return json.dumps(value) if isinstance(value, dict) and value else ""


def _field(value: Any, name: str) -> Any:
    """A field of what should be an object; None where it is not one."""
    return value.get(name) if isinstance(value, dict) else None
