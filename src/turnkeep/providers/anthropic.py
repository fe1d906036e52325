"""`anthropic/…`: Claude through the official SDK, or any server that speaks Anthropic's Messages API.

What a model can do (reason, see images, its output limit) is read from the Models API once and remembered. A server
without that API gets requests that every model accepts.
"""

import asyncio
from typing import Any, cast

from msgspec import Struct

from turnkeep.providers.drafts import ALIVE, Arguments, Calls, Draft, tokens, whole
from turnkeep.providers.failures import Sdk, StreamFailed
from turnkeep.providers.lessons import ANTHROPIC
from turnkeep.providers.ports import Abilities, Delta, ModelRequest, ProviderFailed, Reply, Target, Thinking, ToolOffer
from turnkeep.providers.retry import RetryPolicy
from turnkeep.providers.sdk_provider import LIST_SECONDS, Effort, SdkProvider, http_options, object_schema, own_name
from turnkeep_client.wire.blocks import JsonObject, Reasoning, Text, Usage

MAX_TOKENS = 32_000
UNKNOWN_MAX_TOKENS = 8_192
BUDGETS: dict[Effort, int] = {"auto": 4_096, "low": 2_048, "medium": 8_192, "high": 16_000}
"""For models that take a budget of reasoning tokens."""

KNOWN_SECONDS = 3_600.0
UNKNOWN_SECONDS = 60.0
MAX_MODELS = 1_000

CUT_OFF = frozenset({"max_tokens", "model_context_window_exceeded"})


class ModelInfo(Struct, frozen=True, kw_only=True):
    """What is known of one model. `until` is when to fetch it again, by the clock of the retry policy."""

    until: float
    thinking: Thinking = "off"
    can_switch_off: bool = False
    takes_effort: bool = False
    sees_images: bool = True
    max_tokens: int = UNKNOWN_MAX_TOKENS


class AnthropicProvider(SdkProvider):
    """Claude, or a compatible server. Without a key and an address the SDK reads its usual environment variables."""

    name = "anthropic"
    target: Target = "anthropic"

    def __init__(
        self,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        effort: Effort = "auto",
        retry_policy: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__(api_key=api_key, base_url=base_url, retry_policy=retry_policy, lessons=ANTHROPIC)
        self._effort = effort
        self._models: dict[str, ModelInfo] = {}
        self._fetching: dict[str, asyncio.Lock] = {}

    async def abilities(self, model: str) -> Abilities:
        info = await self._model_info(model)
        is_off = self._effort == "off" or self._lessons.has(model, "thinking")
        return Abilities(
            thinking="off" if is_off else info.thinking,
            sees_images=info.sees_images and not self._lessons.has(model, "pictures"),
        )

    async def models(self) -> list[str]:
        page = await self._query(lambda client: client.models.list(limit=1000, timeout=LIST_SECONDS))
        return [f"{self.name}/{model.id}" for model in page.data]

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
            info = await self._query(lambda client: client.models.retrieve(own_name(model), timeout=LIST_SECONDS))
            return _model_info_of(info, until=now() + KNOWN_SECONDS)
        except (ProviderFailed, AttributeError, TypeError, ValueError):
            return ModelInfo(until=now() + UNKNOWN_SECONDS)

    async def _body(self, request: ModelRequest) -> JsonObject:
        info = await self._model_info(request.model)
        body: JsonObject = {
            "model": own_name(request.model),
            "max_tokens": info.max_tokens,
            "messages": request.messages,
        }
        if request.system:
            body["system"] = request.system
        if request.tools:
            body["tools"] = [_tool(offer) for offer in request.tools]
            if not request.may_call:
                body["tool_choice"] = {"type": "none"}
        return body | _thinking(info, self._effort, may_think=request.may_think)

    async def _open(self, body: JsonObject, timeout: Any) -> Any:
        client = await self.client()
        return await client.messages.create(**body, stream=True, timeout=timeout)

    def _draft(self) -> Draft:
        return AnthropicDraft()

    @property
    def _sdk(self) -> Sdk:
        import anthropic

        return cast("Sdk", anthropic)

    def _connect(self) -> Any:
        import anthropic

        # Compatible servers expect the key in the header that Anthropic used before bearer tokens.
        headers = {"x-api-key": self._api_key} if self._api_key and self._base_url else None
        client = anthropic.AsyncAnthropic(
            api_key=self._api_key,
            base_url=self._base_url,
            default_headers=headers,
            max_retries=0,
            open_telemetry=False,
            http_client=anthropic.DefaultAsyncHttpxClient(**http_options()),
        )
        _ = client.messages, client.models  # imported with their first use
        return client


def _model_info_of(info: Any, *, until: float) -> ModelInfo:
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


def _tool(offer: ToolOffer) -> JsonObject:
    return {"name": offer.name, "description": offer.description, "input_schema": object_schema(offer)}


class AnthropicDraft:
    """Blocks by their index; a block is text, thinking with its signature, redacted thinking, or a call."""

    def __init__(self) -> None:
        self.has_begun = False
        self._blocks: dict[int, _BlockDraft | Arguments] = {}
        self.is_whole = False
        self._stop_reason: str | None = None
        self._stop_details: Any = None
        self._counts: dict[str, int] = {}

    def add(self, event: Any) -> Delta | None:
        match event.type:
            case "content_block_delta":
                return self._add_delta(event.index, event.delta)
            case "content_block_start":
                return self._begin_block(event.index, event.content_block)
            case "message_start":
                self._count(event.message.usage)
            case "message_delta":
                self._stop_reason = event.delta.stop_reason or self._stop_reason
                self._stop_details = event.delta.stop_details
                self._count(event.usage)
            case "message_stop":
                self.is_whole = True
            case _:
                pass  # content_block_stop says nothing new, and later versions may add events
        return None

    def reply(self) -> Reply:
        if not self.is_whole:
            raise StreamFailed("the stream ended in the middle of the answer", is_transient=True)
        if self._stop_reason == "refusal":
            why = getattr(self._stop_details, "explanation", None) or "no reason was given"
            raise StreamFailed(f"the model declined to answer (refusal): {why}")
        is_cut_off = self._stop_reason in CUT_OFF
        calls = Calls(is_cut_off=is_cut_off)
        for _, block in sorted(self._blocks.items()):
            if isinstance(block, Arguments):
                calls.add(block.name, block.text)
            elif (spoken := block.block()) is not None:
                calls.blocks.append(spoken)
        return Reply(blocks=whole(calls, is_cut_off=is_cut_off), usage=self._usage(), malformed=calls.malformed)

    def _add_delta(self, index: int, delta: Any) -> Delta | None:
        block = self._blocks.get(index)
        match delta.type:
            case "text_delta" if isinstance(block, _BlockDraft):
                self.has_begun = True
                block.pieces.append(delta.text)
                return Delta(text=delta.text)
            case "thinking_delta" if isinstance(block, _BlockDraft):
                self.has_begun = True
                block.pieces.append(delta.thinking)
                return Delta(text=delta.thinking, kind="reasoning")
            case "input_json_delta" if isinstance(block, Arguments):
                self.has_begun = True
                block.add(delta.partial_json)
                return ALIVE
            case "signature_delta" if isinstance(block, _BlockDraft):
                block.signature += delta.signature
                return ALIVE
            case _:
                return None

    def _begin_block(self, index: int, block: Any) -> Delta | None:
        match block.type:
            case "text":
                self._blocks[index] = _BlockDraft("text")
                return self._add_first(index, block.text, "text")
            case "thinking":
                self._blocks[index] = spoken = _BlockDraft("reasoning")
                spoken.signature = getattr(block, "signature", None) or ""
                return self._add_first(index, block.thinking, "reasoning")
            case "redacted_thinking":
                self._blocks[index] = _BlockDraft("reasoning", data=block.data)
            case "tool_use":
                self._blocks[index] = Arguments(block.name, _given(block.input))
            case _:
                pass  # tools that Anthropic runs itself, which we do not use
        return ALIVE

    def _add_first(self, index: int, text: str | None, kind: Any) -> Delta:
        """A block usually begins empty; compatible servers may put text into its start."""
        block = self._blocks[index]
        if not text or not isinstance(block, _BlockDraft):
            return ALIVE
        self.has_begun = True
        block.pieces.append(text)
        return Delta(text=text, kind=kind)

    def _count(self, usage: Any) -> None:
        """Counts are totals so far; a later one replaces an earlier one."""
        for name in ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
            value = getattr(usage, name, None)
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
    import json

    return json.dumps(value) if isinstance(value, dict) and value else ""
