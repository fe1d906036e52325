"""`anthropic/…`: Claude through the official SDK, or any server that speaks Anthropic's Messages API.

What a model can do (think, see, how much it may say) is asked of the Models API once and remembered. A server that
cannot tell is given requests that every model takes.
"""

import asyncio
from typing import Any, cast

from msgspec import Struct

from turnkeep.providers.anthropic_draft import AnthropicDraft
from turnkeep.providers.drafts import Draft
from turnkeep.providers.failures import Sdk
from turnkeep.providers.lessons import ANTHROPIC
from turnkeep.providers.ports import Abilities, ModelRequest, ProviderFailed, Target, Thinking, ToolOffer
from turnkeep.providers.retrying import Patience
from turnkeep.providers.speaking import LIST_SECONDS, Effort, SdkProvider, http_options, object_schema, own_name
from turnkeep_client.wire.blocks import JsonObject

MAX_TOKENS = 32_000
UNKNOWN_MAX_TOKENS = 8_192
BUDGETS: dict[Effort, int] = {"auto": 4_096, "low": 2_048, "medium": 8_192, "high": 16_000}
"""For models that take a budget of thinking."""

KNOWN_SECONDS = 3_600.0
UNKNOWN_SECONDS = 60.0
MAX_CARDS = 1_000


class Card(Struct, frozen=True, kw_only=True):
    """What is known of one model. `until` is when to ask again, by the patience's clock."""

    until: float
    thinking: Thinking = "off"
    can_switch_off: bool = False
    takes_effort: bool = False
    sees_images: bool = True
    max_tokens: int = UNKNOWN_MAX_TOKENS


class AnthropicProvider(SdkProvider):
    """Without a key and an address the SDK reads its usual environment variables."""

    name = "anthropic"
    target: Target = "anthropic"

    def __init__(
        self,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        effort: Effort = "auto",
        patience: Patience = Patience(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__(api_key=api_key, base_url=base_url, patience=patience, lessons=ANTHROPIC)
        self._effort = effort
        self._cards: dict[str, Card] = {}
        self._asking: dict[str, asyncio.Lock] = {}

    async def abilities(self, model: str) -> Abilities:
        card = await self._card(model)
        is_off = self._effort == "off" or self._lessons.has(model, "thinking")
        return Abilities(
            thinking="off" if is_off else card.thinking,
            sees_images=card.sees_images and not self._lessons.has(model, "pictures"),
        )

    async def models(self) -> list[str]:
        page = await self._asked(lambda client: client.models.list(limit=1000, timeout=LIST_SECONDS))
        return [f"{self.name}/{model.id}" for model in page.data]

    async def _card(self, model: str) -> Card:
        now = self._patience.monotonic
        card = self._cards.get(model)
        if card is not None and card.until > now():
            return card
        async with self._asking.setdefault(
            model, asyncio.Lock()
        ):  # many turns begin at once after a start; one of them asks
            card = self._cards.get(model)
            if card is None or card.until <= now():
                if len(self._cards) >= MAX_CARDS:
                    self._cards.clear()
                    self._asking.clear()
                card = self._cards[model] = await self._ask_for_card(model)
        return card

    async def _ask_for_card(self, model: str) -> Card:
        now = self._patience.monotonic
        try:
            info = await self._asked(lambda client: client.models.retrieve(own_name(model), timeout=LIST_SECONDS))
            return _card_of(info, until=now() + KNOWN_SECONDS)
        except (ProviderFailed, AttributeError, TypeError, ValueError):
            return Card(until=now() + UNKNOWN_SECONDS)

    async def _body(self, request: ModelRequest) -> JsonObject:
        card = await self._card(request.model)
        body: JsonObject = {
            "model": own_name(request.model),
            "max_tokens": card.max_tokens,
            "messages": request.messages,
        }
        if request.system:
            body["system"] = request.system
        if request.tools:
            body["tools"] = [_tool(offer) for offer in request.tools]
            if not request.may_call:
                body["tool_choice"] = {"type": "none"}
        return body | _thinking(card, self._effort, may_think=request.may_think)

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

        # Servers that speak like Anthropic look for the key where it was before it became a bearer token.
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


def _card_of(info: Any, *, until: float) -> Card:
    limit = min(MAX_TOKENS, info.max_tokens or UNKNOWN_MAX_TOKENS)
    can = info.capabilities
    if can is None:
        return Card(until=until, max_tokens=limit)
    types = can.thinking.types
    thinking: Thinking = "off"
    if can.thinking.supported:
        thinking = "adaptive" if types.adaptive.supported else "enabled" if types.enabled.supported else "off"
    return Card(
        until=until,
        thinking=thinking,
        can_switch_off=bool(types.disabled.supported),
        takes_effort=bool(can.effort.supported),
        sees_images=bool(can.image_input.supported),
        max_tokens=limit,
    )


def _thinking(card: Card, effort: Effort, *, may_think: bool) -> JsonObject:
    """The fields that switch thinking on, in the way this model knows, or off."""
    if not may_think:
        is_told = card.thinking != "off" and card.can_switch_off
        return {"thinking": {"type": "disabled"}} if is_told else {}
    if card.thinking == "enabled":
        budget = min(BUDGETS[effort], card.max_tokens // 2)
        return {"thinking": {"type": "enabled", "budget_tokens": max(1_024, budget)}}
    fields: JsonObject = {"thinking": {"type": "adaptive", "display": "summarized"}}
    if effort != "auto" and card.takes_effort:
        fields["output_config"] = {"effort": effort}
    return fields


def _tool(offer: ToolOffer) -> JsonObject:
    return {"name": offer.name, "description": offer.description, "input_schema": object_schema(offer)}
