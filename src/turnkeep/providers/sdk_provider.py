"""Speaking: what the providers on official SDKs have in common. One call: ask, listen, ask again while that is allowed.

Asked again is only before the first token of the answer: later the reader has seen some of it. The timeout between
bytes is the HTTP client's; that between tokens is the engine's, which also counts what the SDKs swallow (pings).
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import cache
from typing import Any, Literal

from turnkeep.providers.drafts import Draft
from turnkeep.providers.failures import GARBLED, Sdk, Setback, Trouble, root_error, setback_of
from turnkeep.providers.lessons import Lesson, Lessons
from turnkeep.providers.ports import (
    Abilities,
    Delta,
    ModelRequest,
    ProviderFailed,
    Spoken,
    Target,
    ToolOffer,
    check_full_name,
)
from turnkeep.providers.retry import Patience, Retrying
from turnkeep_client.wire.blocks import JsonObject

Effort = Literal["auto", "off", "low", "medium", "high"]
"""How much a model should think before it answers. `auto` leaves it to the model, `off` asks for none."""

CONNECT_SECONDS = 10.0
LIST_SECONDS = 5.0
"""For questions about models, which somebody waits for."""

KEYLESS = "none"
"""Sent as the key to a server of one's own that wants none; the SDKs insist on having one."""


class SdkProvider(ABC):
    """A provider whose SDK is imported, and whose client is made, when it is first needed."""

    name: str
    target: Target

    def __init__(
        self, *, api_key: str | None, base_url: str | None, patience: Patience, lessons: tuple[Lesson, ...]
    ) -> None:
        self._api_key = api_key
        self._base_url = base_url
        self._patience = patience
        self._lessons = Lessons(lessons)
        self._client: Any = None
        self._connecting = asyncio.Lock()

    def check_name(self, model: str) -> None:
        check_full_name(model)

    @abstractmethod
    async def abilities(self, model: str) -> Abilities: ...

    @abstractmethod
    async def models(self) -> list[str]: ...

    @property
    @abstractmethod
    def _sdk(self) -> Sdk:
        """The SDK's module."""

    @abstractmethod
    def _connect(self) -> Any:
        """The SDK's client, with its own retries off, and what it imports late already imported."""

    @abstractmethod
    async def _body(self, request: ModelRequest) -> JsonObject:
        """The request as it goes over the wire."""

    @abstractmethod
    async def _open(self, body: JsonObject, timeout: Any) -> Any:
        """The SDK's stream of events."""

    @abstractmethod
    def _draft(self) -> Draft: ...

    async def client(self) -> Any:
        """The SDK's client. Importing an SDK takes a second or two, so that happens beside the event loop."""
        if self._client is None:
            async with self._connecting:
                if self._client is None:
                    self._client = await asyncio.to_thread(self._connect)
        return self._client

    async def speak(self, request: ModelRequest) -> AsyncGenerator[Spoken, None]:
        if not own_name(request.model):
            raise ProviderFailed(f"Name a model after the slash, as in {self.name}/…; GET /v1/models lists them.")
        retrying = Retrying(self._patience, timeout_seconds=request.timeout_seconds)
        timeout = _timeout(request.timeout_seconds)
        body = self._lessons.apply(request.model, await self._body(request))
        while True:
            draft = self._draft()
            try:
                async with aclosing(self._listen(body, timeout, draft)) as pieces:
                    async for piece in pieces:
                        yield piece
                yield draft.reply()
                return
            except self._failures as exc:
                setback = self._setback(exc, request.timeout_seconds)
                if draft.has_begun:
                    raise setback.error from exc
                other = self._lessons.learn(request.model, setback, body)
                if other is None:
                    await retrying.wait(setback)
                else:
                    body = other

    async def _listen(self, body: JsonObject, timeout: Any, draft: Draft) -> AsyncGenerator[Delta, None]:
        """Feed the draft and pass on what it shows. A connection that breaks after the last word harms nothing."""
        try:
            async with await self._open(body, timeout) as stream:
                async for event in stream:
                    piece = draft.add(event)
                    if piece is not None:
                        if type(piece.text) is not str:  # the SDKs do not check what they are sent
                            raise TypeError(f"a text is expected, not {piece.text!r:.100}")
                        yield piece
        except self._broken_lines:
            if not draft.is_whole:
                raise

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    @property
    def _failures(self) -> tuple[type[Exception], ...]:
        import httpx2

        return (root_error(self._sdk), httpx2.HTTPError, TimeoutError, Trouble, *GARBLED)

    @property
    def _broken_lines(self) -> tuple[type[Exception], ...]:
        import httpx2

        return (self._sdk.APIConnectionError, httpx2.HTTPError)

    def _setback(self, exc: Exception, timeout_seconds: float) -> Setback:
        known = [self._api_key, *(getattr(self._client, name, None) for name in ("api_key", "auth_token"))]
        secrets = [secret for secret in known if isinstance(secret, str) and secret != KEYLESS]
        return setback_of(exc, self._sdk, provider=self.name, secrets=secrets, timeout_seconds=timeout_seconds)

    async def _asked(self, question: Callable[[Any], Awaitable[Any]]) -> Any:
        """The answer to a question about models. Raises ProviderFailed, in the provider's words."""
        try:
            client = await self.client()  # the first time this imports an SDK, which is not the provider's delay
            async with asyncio.timeout(LIST_SECONDS):
                return await question(client)
        except self._failures as exc:
            raise self._setback(exc, LIST_SECONDS).error from exc


def own_name(model: str) -> str:
    """The provider's own name of a model: what follows the first slash."""
    return model.partition("/")[2]


@cache
def http_options() -> dict[str, Any]:
    """For the HTTP clients under the SDKs: as many streams as there are turns, and one set of trusted certificates,
    which takes 26 ms to read."""
    import httpx2

    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=100)
    return {"limits": limits, "verify": httpx2.create_ssl_context()}


def object_schema(offer: ToolOffer) -> JsonObject:
    """The schema of a tool's arguments as vendors take it: an object, with no choice at the top."""
    schema = {name: value for name, value in offer.input_schema.items() if name not in _NOT_AT_THE_TOP}
    return {"properties": {}, **schema, "type": "object"}


_NOT_AT_THE_TOP = frozenset({"oneOf", "anyOf", "allOf", "not", "enum"})


def _timeout(seconds: float) -> Any:
    import httpx2

    return httpx2.Timeout(seconds, connect=min(CONNECT_SECONDS, seconds))
