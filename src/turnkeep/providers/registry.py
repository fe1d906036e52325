"""All providers of a server, by the part of a model's name before the slash."""

from collections.abc import Iterable

from turnkeep.errors import InvalidRequest, WorldError
from turnkeep.providers.ports import Provider


class ProviderRegistry:
    """`anthropic/claude-…` is served by the provider called `anthropic`, `demo` by the one called `demo`."""

    def __init__(self, providers: Iterable[Provider]) -> None:
        self._providers = {provider.name: provider for provider in providers}

    def named(self, model: str) -> Provider:
        """Raises InvalidRequest, with the names there are, when no provider serves that model."""
        provider = self._providers.get(model.partition("/")[0])
        if provider is None:
            names = ", ".join(sorted(self._providers))
            raise InvalidRequest(f"No provider serves the model {model!r}. This server has: {names}.")
        return provider

    async def models(self) -> list[str]:
        """What can be reached now; a provider that is away is left out."""
        found: list[str] = []
        for provider in self._providers.values():
            try:
                found += await provider.models()
            except WorldError:
                continue
        return sorted(found)
