"""Which providers this server has, from the environment that their SDKs read."""

from collections.abc import Mapping

from turnkeep.providers.anthropic import AnthropicProvider
from turnkeep.providers.demo import DemoProvider
from turnkeep.providers.openai import Api, OpenAIProvider, is_official
from turnkeep.providers.ports import Provider
from turnkeep.providers.registry import ProviderRegistry
from turnkeep.providers.speaking import KEYLESS, Effort

ANTHROPIC_UNSET = (
    "Set ANTHROPIC_API_KEY to a key of yours, or ANTHROPIC_BASE_URL to a server of your own that speaks Anthropic's "
    "Messages API, and start the server again."
)
OPENAI_UNSET = (
    "Set OPENAI_API_KEY to a key of yours, or OPENAI_BASE_URL to any OpenAI-compatible server (vLLM, Ollama, "
    "llama.cpp …), and start the server again."
)


def configured_providers(
    environ: Mapping[str, str], *, effort: Effort = "auto", openai_api: Api = "auto"
) -> ProviderRegistry:
    """`demo` always; the others when a key or an address is set. The rest is named with what to set.

    A server of one's own may want no key. The SDKs insist on one, so it is sent a word instead.
    """

    def setting(name: str) -> str | None:
        return environ.get(name, "").strip() or None

    providers: list[Provider] = [DemoProvider()]
    unset: dict[str, str] = {}
    key, url = setting("ANTHROPIC_API_KEY"), setting("ANTHROPIC_BASE_URL")
    has_other_credentials = setting("ANTHROPIC_AUTH_TOKEN") or setting("ANTHROPIC_PROFILE")
    if key or url or has_other_credentials:
        key = key or (None if has_other_credentials else KEYLESS)
        providers.append(AnthropicProvider(api_key=key, base_url=url, effort=effort))
    else:
        unset["anthropic"] = ANTHROPIC_UNSET
    key, url = setting("OPENAI_API_KEY"), setting("OPENAI_BASE_URL")
    if key or not is_official(url):
        providers.append(OpenAIProvider(api_key=key or KEYLESS, base_url=url, api=openai_api, effort=effort))
    else:
        unset["openai"] = OPENAI_UNSET
    return ProviderRegistry(providers, unset=unset)
