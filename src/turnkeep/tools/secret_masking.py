"""Secrets of a tool in what comes back from it: servers like to repeat a key that they refuse.

What a tool answers goes to the model, to readers and into the trace, so its secrets are masked there first.
"""

from collections.abc import Callable, Iterable

import msgspec

from turnkeep.config import masked
from turnkeep.tools.ports import CallContext, Outcome, Tool
from turnkeep.tools.vault import SecretUnreadable
from turnkeep_client.wire.blocks import JsonObject, JsonValue

SHORTEST = 6
"""A shorter value would be found in innocent words. Keys of vendors are long (`config.masking`); these here are chosen
by people, and a password may be short."""

OpenSecrets = Callable[[], Iterable[str]]


class DiscreetTool:
    """A tool that does not repeat its secrets."""

    def __init__(self, tool: Tool, open_secrets: OpenSecrets) -> None:
        self.spec = tool.spec
        self._tool = tool
        self._mask = Mask(open_secrets)

    async def call(self, args: JsonObject, context: CallContext) -> Outcome:
        try:
            outcome = await self._tool.call(args, context)
        except Exception as exc:  # the engine would tell it all the same, but with the secret
            outcome = Outcome(error=f"{type(exc).__name__}: {exc}")
        error = None if outcome.error is None else self._mask.text(outcome.error)
        return msgspec.structs.replace(outcome, result=self._mask.value(outcome.result), error=error)


class Mask:
    """Replaces these secrets, and the words of which they are made (`Bearer …`), wherever they stand."""

    def __init__(self, open_secrets: OpenSecrets) -> None:
        self._open_secrets = open_secrets

    def text(self, text: str) -> str:
        return _struck(text, self._words())

    def value(self, value: JsonValue) -> JsonValue:
        words = self._words()
        if not words:
            return value
        try:
            return _walked(value, words)
        except RecursionError:
            return _struck(msgspec.json.encode(value).decode(), words)

    def _words(self) -> set[str]:
        try:
            secrets = list(self._open_secrets())
        except SecretUnreadable:
            return set()  # then none was sent either
        words = {word for secret in secrets for word in (secret, *secret.split()) if len(word) >= SHORTEST}
        return words - {"Bearer", "bearer"}


def _walked(value: JsonValue, words: set[str]) -> JsonValue:
    match value:
        case str():
            return _struck(value, words)
        case list():
            return [_walked(item, words) for item in value]
        case dict():
            return {_struck(name, words): _walked(item, words) for name, item in value.items()}
        case _:
            return value


def _struck(text: str, words: set[str]) -> str:
    return masked(text, words, shortest=SHORTEST)
