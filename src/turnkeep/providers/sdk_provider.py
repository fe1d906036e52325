"""What the providers on official SDKs have in common: send a request, read the stream, retry while that is allowed.

A request is repeated only before the first token of the answer: later, readers have seen a part of it. The timeout
between bytes is the HTTP client's. The timeout between tokens is the engine's; pings, which the SDKs hide, do not count
for it.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import cache
from typing import Any, Literal

from turnkeep.providers.drafts import Draft
from turnkeep.providers.failures import PROTOCOL_ERRORS, FailedAttempt, Sdk, StreamFailed, failed_attempt, root_error
from turnkeep.providers.lessons import Lesson, Lessons
from turnkeep.providers.ports import (
    Abilities,
    Delta,
    ModelRequest,
    ProviderEvent,
    ProviderFailed,
    Target,
    ToolOffer,
    check_full_name,
)
from turnkeep.providers.retry import RetryPolicy, RetryState
from turnkeep_client.wire.blocks import JsonObject

Effort = Literal["auto", "off", "low", "medium", "high"]
"""How much a model should reason before it answers. `auto` leaves it to the model, `off` asks for no reasoning."""

CONNECT_SECONDS = 10.0
LIST_SECONDS = 5.0
"""Timeout of requests about models, for which a user waits."""

NO_KEY = "none"
"""Sent as the key to a self-hosted server that needs none; the SDKs require one."""


class SdkProvider(ABC):
    """A provider whose SDK is imported, and whose client is created, when it is first needed."""

    name: str
    target: Target

    def __init__(
        self, *, api_key: str | None, base_url: str | None, retry_policy: RetryPolicy, lessons: tuple[Lesson, ...]
    ) -> None:
        self._api_key = api_key
        self._base_url = base_url
        self._retry_policy = retry_policy
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
        """The SDK's client, without its own retries, and with its lazy imports done."""

    @abstractmethod
    async def _body(self, request: ModelRequest) -> JsonObject:
        """The request as it goes over the wire."""

    @abstractmethod
    async def _open(self, body: JsonObject, timeout: Any) -> Any:
        """The SDK's stream of events."""

    @abstractmethod
    def _draft(self) -> Draft: ...

    async def client(self) -> Any:
        """The SDK's client. Importing an SDK takes a second or two, so it is done in a thread."""
        if self._client is None:
            async with self._connecting:
                if self._client is None:
                    self._client = await asyncio.to_thread(self._connect)
        return self._client

    async def speak(self, request: ModelRequest) -> AsyncGenerator[ProviderEvent, None]:
        if not own_name(request.model):
            raise ProviderFailed(f"Name a model after the slash, as in {self.name}/…; GET /v1/models lists them.")
        request = request.decoded()
        retry = RetryState(self._retry_policy, timeout_seconds=request.timeout_seconds)
        timeout = _timeout(request.timeout_seconds)
        body = self._lessons.apply(request.model, await self._body(request))
        while True:
            draft = self._draft()
            try:
                async with aclosing(self._events(body, timeout, draft)) as pieces:
                    async for piece in pieces:
                        yield piece
                yield draft.reply()
                return
            except self._failures as exc:
                attempt = self._failed_attempt(exc, request.timeout_seconds)
                if draft.has_begun:
                    raise attempt.error from exc
                other = self._lessons.learn(request.model, attempt, body)
                if other is None:
                    await retry.wait(attempt)
                else:
                    body = other

    async def _events(self, body: JsonObject, timeout: Any, draft: Draft) -> AsyncGenerator[Delta, None]:
        """Feed the draft and yield what readers may see. An error after the end of the reply is ignored."""
        try:
            async with await self._open(body, timeout) as stream:
                async for event in stream:
                    piece = draft.add(event)
                    if piece is not None:
                        if type(piece.text) is not str:  # the SDKs do not validate responses
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

        return (root_error(self._sdk), httpx2.HTTPError, TimeoutError, StreamFailed, *PROTOCOL_ERRORS)

    @property
    def _broken_lines(self) -> tuple[type[Exception], ...]:
        import httpx2

        return (self._sdk.APIConnectionError, httpx2.HTTPError)

    def _failed_attempt(self, exc: Exception, timeout_seconds: float) -> FailedAttempt:
        known = [self._api_key, *(getattr(self._client, name, None) for name in ("api_key", "auth_token"))]
        secrets = [secret for secret in known if isinstance(secret, str) and secret != NO_KEY]
        return failed_attempt(exc, self._sdk, provider=self.name, secrets=secrets, timeout_seconds=timeout_seconds)

    async def _query(self, question: Callable[[Any], Awaitable[Any]]) -> Any:
        """The response to a request about models. Raises ProviderFailed with the provider's message."""
        try:
            client = await self.client()  # the first call imports the SDK, which must not count as the provider's delay
            async with asyncio.timeout(LIST_SECONDS):
                return await question(client)
        except self._failures as exc:
            raise self._failed_attempt(exc, LIST_SECONDS).error from exc


def own_name(model: str) -> str:
    """The provider's own name of a model: what follows the first slash."""
    return model.partition("/")[2]


@cache
def http_options() -> dict[str, Any]:
    """Options of the SDKs' HTTP clients: no limit of connections, and one shared set of trusted certificates, which
    takes 26 ms to read."""
    import httpx2

    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=100)
    return {"limits": limits, "verify": httpx2.create_ssl_context()}


def object_schema(offer: ToolOffer) -> JsonObject:
    """The schema of a tool's arguments as vendors accept it: an object, without alternatives at the top level."""
    schema = {name: value for name, value in offer.input_schema.items() if name not in _NOT_AT_THE_TOP}
    return {"properties": {}, **schema, "type": "object"}


_NOT_AT_THE_TOP = frozenset({"oneOf", "anyOf", "allOf", "not", "enum"})


def _timeout(seconds: float) -> Any:
    import httpx2

    return httpx2.Timeout(seconds, connect=min(CONNECT_SECONDS, seconds))
