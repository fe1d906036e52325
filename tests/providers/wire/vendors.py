"""The three protocols side by side, so that one test can run for each."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct

from tests.providers.wire.anthropic import AnthropicWire
from tests.providers.wire.openai_chat import OpenAIChatWire
from tests.providers.wire.openai_responses import OpenAIResponsesWire
from tests.providers.wire.script import Brain
from tests.providers.wire.server import WireServer
from turnkeep.providers.anthropic import AnthropicProvider
from turnkeep.providers.http_provider import HttpProvider
from turnkeep.providers.openai import OpenAIProvider
from turnkeep.providers.retry import RetryPolicy
from turnkeep.providers.wire import Account

QUICK_RETRIES = RetryPolicy(first_seconds=0.001, most_seconds=0.002)


class Vendor(Struct, frozen=True):
    """A protocol, our provider for it, and the words that the protocol has for common things."""

    name: str
    model: str
    wire: Callable[..., Any]
    provider: Callable[..., HttpProvider]
    cut_off: str
    overloaded: int


def _anthropic(url: str, key: str = "sk-ant-test-key", **options: Any) -> HttpProvider:
    return AnthropicProvider(Account(api_key=key, base_url=url), **options)


def _chat(url: str, key: str = "sk-test-key", **options: Any) -> HttpProvider:
    return OpenAIProvider(Account(api_key=key, base_url=f"{url}/v1"), **options)


def _responses(url: str, key: str = "sk-test-key", **options: Any) -> HttpProvider:
    return OpenAIProvider(Account(api_key=key, base_url=f"{url}/v1"), api="responses", **options)


ANTHROPIC = Vendor("anthropic", "anthropic/claude-adaptive", AnthropicWire, _anthropic, "max_tokens", 529)
CHAT = Vendor("openai_chat", "openai/local-model", OpenAIChatWire, _chat, "length", 503)
RESPONSES = Vendor("openai_responses", "openai/gpt-5-test", OpenAIResponsesWire, _responses, "max_output_tokens", 503)
VENDORS = (ANTHROPIC, CHAT, RESPONSES)


class Line(Struct, frozen=True):
    """A provider and the server at its other end."""

    vendor: Vendor
    server: WireServer
    provider: HttpProvider
    wire: Any


@asynccontextmanager
async def connected(
    vendor: Vendor, *, brain: Brain | None = None, wire: Any = None, seed: int | None = 1, **options: Any
) -> AsyncIterator[Line]:
    wire = wire or vendor.wire()
    options.setdefault("retry_policy", QUICK_RETRIES)
    async with WireServer(wire, brain=brain, seed=seed) as server:
        provider = vendor.provider(server.url, **options)
        try:
            yield Line(vendor, server, provider, wire)
        finally:
            await provider.close()
