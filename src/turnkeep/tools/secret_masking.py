"""Secret masking: a tool's own secrets are replaced in its results and errors. Servers often repeat a key they refuse.

The result of a tool goes to the model, to readers and into the trace, so its secrets are masked first.
"""

from collections.abc import Callable, Iterable

import msgspec

from turnkeep.config import masked
from turnkeep.tools.call_identity import PLACEHOLDER
from turnkeep.tools.ports import CallContext, Outcome, Tool
from turnkeep.tools.vault import SecretUnreadable
from turnkeep_client.wire.blocks import JsonObject, JsonValue

MIN_SECRET_CHARS = 6
"""Shorter values are not masked: they occur in ordinary words. Keys of vendors are long (`config.masking`); the secrets
of tools are chosen by users, and a password may be short."""

OpenSecrets = Callable[[], Iterable[str]]


class MaskedTool:
    """A tool whose secrets are masked in its outcome."""

    def __init__(self, tool: Tool, open_secrets: OpenSecrets) -> None:
        self.spec = tool.spec
        self._tool = tool
        self._mask = SecretMask(open_secrets)

    async def call(self, args: JsonObject, context: CallContext) -> Outcome:
        try:
            outcome = await self._tool.call(args, context)
        except Exception as exc:  # the engine would report it too, but with the secret
            outcome = Outcome(error=f"{type(exc).__name__}: {exc}")
        error = None if outcome.error is None else self._mask.text(outcome.error)
        return msgspec.structs.replace(outcome, result=self._mask.value(outcome.result), error=error)


class SecretMask:
    """Masks secrets, and the words they consist of (as in `Bearer …`), in texts and JSON values. Of a secret with a
    placeholder, what stands around the placeholder is masked."""

    def __init__(self, open_secrets: OpenSecrets) -> None:
        self._open_secrets = open_secrets

    def text(self, text: str) -> str:
        return _masked(text, self._words())

    def value(self, value: JsonValue) -> JsonValue:
        words = self._words()
        if not words:
            return value
        try:
            return _masked_value(value, words)
        except RecursionError:
            return _masked(msgspec.json.encode(value).decode(), words)

    def _words(self) -> set[str]:
        try:
            secrets = list(self._open_secrets())
        except SecretUnreadable:
            return set()  # then no secret was sent either
        words = {word for secret in secrets for word in _words(secret) if len(word) >= MIN_SECRET_CHARS}
        return words - {"Bearer", "bearer"}


def _words(secret: str) -> list[str]:
    """The secret itself, and its words."""
    if PLACEHOLDER.search(secret):
        return PLACEHOLDER.sub(" ", secret).split()
    return [secret, *secret.split()]


def _masked_value(value: JsonValue, words: set[str]) -> JsonValue:
    match value:
        case str():
            return _masked(value, words)
        case list():
            return [_masked_value(item, words) for item in value]
        case dict():
            return {_masked(name, words): _masked_value(item, words) for name, item in value.items()}
        case _:
            return value


def _masked(text: str, words: set[str]) -> str:
    return masked(text, words, shortest=MIN_SECRET_CHARS)
