"""All providers of a server, by the part of a model's name before the slash; and which ones are configured."""

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping

from turnkeep.errors import InvalidRequest, WorldError
from turnkeep.providers.anthropic import AnthropicProvider
from turnkeep.providers.demo import DemoProvider
from turnkeep.providers.http_provider import NO_KEY, Effort
from turnkeep.providers.openai import Api, OpenAIProvider, is_official
from turnkeep.providers.ports import NamesModels, Provider, check_full_name
from turnkeep.providers.wire import Account, ProviderSession

ANTHROPIC_UNSET = (
    "Set ANTHROPIC_API_KEY to a key of yours, or ANTHROPIC_BASE_URL to a server of your own that speaks Anthropic's "
    "Messages API, and start the server again."
)
OPENAI_UNSET = (
    "Set OPENAI_API_KEY to a key of yours, or OPENAI_BASE_URL to any OpenAI-compatible server (vLLM, Ollama, "
    "llama.cpp …), and start the server again."
)
PROFILE_UNREAD = (
    "ANTHROPIC_PROFILE is set, but profiles of Anthropic's own tools are not read. Set ANTHROPIC_API_KEY or "
    "ANTHROPIC_AUTH_TOKEN, or unset ANTHROPIC_PROFILE."
)

KEPT_SECONDS = 60.0
AWAY_SECONDS = 10.0
"""After a failure, a provider is not asked for its models again for this long."""


class NotSetUp(InvalidRequest):
    """This release has the provider, but it is not configured. The message says what to set."""


class ProviderRegistry:
    """`anthropic/claude-…` is served by the provider called `anthropic`, `demo` by the one called `demo`.

    `unset` names providers that are not configured, with what to do about it. `session` is what the providers share;
    it is closed with them.
    """

    def __init__(
        self,
        providers: Iterable[Provider],
        *,
        unset: Mapping[str, str] | None = None,
        session: ProviderSession | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._providers = {provider.name: provider for provider in providers}
        # Whether a class fits a protocol takes 10 µs to find out, and each turn asks for its provider twice.
        self._name_checks = {
            name: each.check_name for name, each in self._providers.items() if isinstance(each, NamesModels)
        }
        self._unset = dict(unset or {})
        self._session = session
        self._monotonic = monotonic
        self._listed: dict[str, tuple[float, list[str]]] = {}
        self._listing: dict[str, asyncio.Lock] = {name: asyncio.Lock() for name in self._providers}

    def named(self, model: str) -> Provider:
        """The provider of that model. Raises InvalidRequest, which lists the providers, if there is none.

        Checks the form of the name, not whether the provider has a model of that name.
        """
        name, slash, _ = model.partition("/")
        provider = self._providers.get(name)
        if provider is None and name not in self._unset:
            names = ", ".join(sorted(self._providers))
            raise InvalidRequest(f"No provider serves the model {model!r}. This server has: {names}.")
        if slash or provider is None:
            check_full_name(model)
        if provider is None:
            raise NotSetUp(f"The model {model!r} cannot be used yet. {self._unset[name]}")
        if name in self._name_checks:
            self._name_checks[name](model)
        return provider

    async def models(self) -> list[str]:
        """The models that can be reached now, sorted, without those of a provider that is away.

        Lists are kept for a minute.
        """
        found = await asyncio.gather(*(self._models_of(provider) for provider in self._providers.values()))
        return sorted({name for names in found for name in names})

    async def close(self) -> None:
        for provider in self._providers.values():
            await provider.close()
        if self._session is not None:
            await self._session.close()

    async def _models_of(self, provider: Provider) -> list[str]:
        async with self._listing[provider.name]:
            until, names = self._listed.get(provider.name, (0.0, []))
            if until > self._monotonic():
                return names
            try:
                names, kept = await provider.models(), KEPT_SECONDS
            except WorldError:
                names, kept = [], AWAY_SECONDS
            self._listed[provider.name] = (self._monotonic() + kept, names)
            return names


def configured_providers(
    environ: Mapping[str, str], *, effort: Effort = "auto", openai_api: Api = "auto"
) -> ProviderRegistry:
    """The providers of this environment: `demo` always, the others if a key or an address is set.

    A self-hosted server may need no key. Then a placeholder is sent. Raises InvalidRequest for credentials that cannot
    be used.
    """

    def setting(name: str) -> str | None:
        return environ.get(name, "").strip() or None

    session = ProviderSession()
    providers: list[Provider] = [DemoProvider()]
    unset: dict[str, str] = {}
    key, url, token = setting("ANTHROPIC_API_KEY"), setting("ANTHROPIC_BASE_URL"), setting("ANTHROPIC_AUTH_TOKEN")
    if not (key or token) and setting("ANTHROPIC_PROFILE"):
        raise InvalidRequest(PROFILE_UNREAD)
    if key or token or url:
        key = key or (None if token else NO_KEY)
        headers = custom_headers("ANTHROPIC_CUSTOM_HEADERS", environ)
        account = Account(api_key=key, auth_token=token, base_url=url, headers=headers)
        providers.append(AnthropicProvider(account, effort=effort, session=session))
    else:
        unset["anthropic"] = ANTHROPIC_UNSET
    key, url = setting("OPENAI_API_KEY"), setting("OPENAI_BASE_URL")
    if key or not is_official(url):
        sent = {"OpenAI-Organization": setting("OPENAI_ORG_ID"), "OpenAI-Project": setting("OPENAI_PROJECT_ID")}
        headers = {name: value for name, value in sent.items() if value}
        headers |= custom_headers("OPENAI_CUSTOM_HEADERS", environ)
        account = Account(api_key=key or NO_KEY, base_url=url, headers=headers)
        providers.append(OpenAIProvider(account, api=openai_api, effort=effort, session=session))
    else:
        unset["openai"] = OPENAI_UNSET
    return ProviderRegistry(providers, unset=unset, session=session)


def custom_headers(variable: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The headers of a variable with one `name: value` on each line. Raises InvalidRequest for one that cannot be."""
    headers: dict[str, str] = {}
    for line in environ.get(variable, "").splitlines():
        name, colon, value = line.partition(":")
        if not line.strip():
            continue
        if not colon or not _HEADER_NAME.fullmatch(name.strip()):
            raise InvalidRequest(f"{variable} must have one header on each line, as in `X-Team: search`.")
        headers[name.strip()] = value.strip()
    return headers


_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
