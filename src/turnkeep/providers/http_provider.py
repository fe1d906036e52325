"""What the providers that are reached over HTTP have in common: send a request, read the stream, retry while allowed.

A request is repeated only before the first token of the answer: later, readers have seen a part of it. The timeout is
to the next token. Pings and comments of the stream are no tokens.

Decision: docs/decisions/0306
"""

import asyncio
import base64
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import cached_property
from typing import Any, Literal, TypeVar

import aiohttp
import msgspec
from msgspec import Raw, Struct
from yarl import URL

from turnkeep.providers.drafts import Draft
from turnkeep.providers.failures import (
    BROKEN_CONNECTION,
    FAILURES,
    ErrorResponse,
    FailedAttempt,
    NotAsked,
    StreamFailed,
    failed_attempt,
)
from turnkeep.providers.lessons import Lesson, Lessons
from turnkeep.providers.ports import (
    Abilities,
    Delta,
    ModelRequest,
    ProviderEvent,
    ProviderFailed,
    Restarted,
    Target,
    ToolOffer,
    check_full_name,
)
from turnkeep.providers.retry import RetryPolicy, RetryState
from turnkeep.providers.wire import (
    MAX_ERROR_BYTES,
    MAX_JSON_BYTES,
    Account,
    EventSplitter,
    ProviderSession,
    read_body,
    unread,
)
from turnkeep_client.wire.blocks import JsonObject

Effort = Literal["auto", "off", "low", "medium", "high"]
"""How much a model should reason before it answers. `auto` leaves it to the model, `off` asks for no reasoning."""

LIST_SECONDS = 5.0
"""Timeout of requests about models, for which a user waits."""

DRAIN_SECONDS = 0.1
"""How long the end of the stream is awaited after the end of the reply. Then the connection can be used again."""

OFFERS_REMEMBERED = 256
"""Sets of tools whose JSON is kept."""

NO_KEY = "none"
"""Sent as the key to a self-hosted server that needs none. Many of them refuse requests without any."""

_NOT_JSON = (ValueError, TypeError, RecursionError)

Shape = TypeVar("Shape", bound=Struct)


class ListedModel(Struct):
    id: str


class ModelList(Struct):
    """The list of models, as both vendors return it."""

    data: list[ListedModel]


class HttpProvider(ABC):
    """A provider with a streaming HTTP API. Without a session it opens one of its own."""

    name: str
    target: Target
    official_url: str
    """The address when the account has none."""

    def __init__(
        self,
        account: Account,
        *,
        path: str,
        lessons: tuple[Lesson, ...],
        retry_policy: RetryPolicy,
        session: ProviderSession | None,
    ) -> None:
        self._account = account
        self._path = path
        self._lessons = Lessons(lessons)
        self._retry_policy = retry_policy
        self._session = session or ProviderSession()
        self._owns_session = session is None

        self._offers = EncodedOffers()

    def check_name(self, model: str) -> None:
        check_full_name(model)

    @abstractmethod
    async def abilities(self, model: str) -> Abilities: ...

    @abstractmethod
    async def models(self) -> list[str]: ...

    @abstractmethod
    def _headers(self) -> dict[str, str]:
        """The headers that say who asks."""

    @abstractmethod
    async def _body(self, request: ModelRequest) -> JsonObject:
        """The request as it goes over the wire."""

    @abstractmethod
    def _draft(self) -> Draft[Any]: ...

    async def close(self) -> None:
        if self._owns_session:
            await self._session.close()

    async def speak(self, request: ModelRequest) -> AsyncGenerator[ProviderEvent, None]:
        if not own_name(request.model):
            raise ProviderFailed(f"Name a model after the slash, as in {self.name}/…; GET /v1/models lists them.")
        retry = RetryState(self._retry_policy, timeout_seconds=request.timeout_seconds)
        try:
            body = self._lessons.apply(request.model, await self._body(request))
        except _NOT_JSON as exc:
            raise self._not_json(exc) from exc
        encoded = self._encoded(body)
        while True:
            draft = self._draft()
            try:
                stream = await self._open(encoded, draft, request.timeout_seconds)
                try:
                    while pieces := await stream.pieces():
                        for piece in pieces:
                            yield piece
                    await stream.drain()
                finally:
                    stream.close()
                yield draft.reply()
                return
            except FAILURES as exc:
                attempt = self._failed_attempt(exc, request.timeout_seconds)
                if draft.has_begun:
                    raise attempt.error from exc
                other = self._lessons.learn(request.model, attempt, body)
                if other is None:
                    await retry.wait(attempt)
                    yield Restarted(reason=attempt.error.detail)
                else:
                    body, encoded = other, self._encoded(other)

    def _encoded(self, body: JsonObject) -> bytes:
        """The request as bytes. All attempts send the same ones."""
        try:
            return msgspec.json.encode(body)
        except _NOT_JSON as exc:
            raise self._not_json(exc) from exc

    def _not_json(self, exc: Exception) -> ProviderFailed:
        return ProviderFailed(f"{self.name} cannot be asked: the request is not JSON ({exc}).")

    async def _open(self, body: bytes, draft: Draft[Any], seconds: float) -> "ReplyStream":
        """Send the request. Returns the stream of its response. Close it."""
        response = await self._session.request("POST", self._url, headers=self._all_headers, body=body, seconds=seconds)
        try:
            first = await _first_bytes(response, seconds)
        except BaseException:
            response.close()
            raise
        return ReplyStream(response, draft, first=first, seconds=seconds)

    async def _query(self, path: str, query: Mapping[str, str], kind: type[Shape]) -> Shape:
        """The response to a request about models. Raises ProviderFailed with the provider's message."""
        try:
            async with asyncio.timeout(LIST_SECONDS):
                url = self._address(path).update_query(query)
                response = await self._session.request("GET", url, headers=self._all_headers, seconds=LIST_SECONDS)
                try:
                    return msgspec.json.decode(await read_body(response, MAX_JSON_BYTES), type=kind)
                finally:
                    response.close()
        except FAILURES as exc:
            raise self._failed_attempt(exc, LIST_SECONDS).error from exc

    @cached_property
    def _base(self) -> URL:
        """Raises NotAsked for what is not an address."""
        try:
            base = URL(self._account.base_url or self.official_url)
            if base.scheme in {"http", "https"} and base.host:
                return base
        except ValueError:
            pass
        raise NotAsked("its address must be one like http://127.0.0.1:8000/v1")

    @cached_property
    def _url(self) -> URL:
        return self._address(self._path)

    @cached_property
    def _all_headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "Content-Type": "application/json", "User-Agent": "turnkeep"}
        headers |= self._headers()
        if self._base.user is not None:
            pair = f"{self._base.user}:{self._base.password or ''}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        given = {name.lower() for name in self._account.headers}
        return {name: value for name, value in headers.items() if name.lower() not in given} | self._account.headers

    def _address(self, path: str) -> URL:
        """The address of an endpoint. A query of the base address (`?api-version=…`) stays."""
        base = self._base.with_user(None)
        return base.with_path(base.raw_path.rstrip("/") + path, encoded=True, keep_query=True)

    @property
    def _password(self) -> str | None:
        """The password in the address."""
        try:
            return self._base.password
        except NotAsked:
            return None

    def _failed_attempt(self, exc: Exception, timeout_seconds: float) -> FailedAttempt:
        known = [self._account.api_key, self._account.auth_token, self._password]
        known += [value for name, value in self._account.headers.items() if not name.lower().startswith("openai-")]
        secrets = [secret for secret in known if secret and secret != NO_KEY]
        return failed_attempt(exc, provider=self.name, secrets=secrets, timeout_seconds=timeout_seconds)


class ReplyStream:
    """A response while it is read: its bytes become events, and the events go into a draft.

    It breaks off when no token came for `seconds`. There is one timer for the whole stream. It is set again when it
    ends, not with each token. Time counts only while `pieces` waits, not while readers are given a piece.
    """

    def __init__(self, response: aiohttp.ClientResponse, draft: Draft[Any], *, first: bytes, seconds: float) -> None:
        self._response = response
        self._content = response.content
        self._draft = draft
        self._first = first
        self._splitter = EventSplitter()
        self._failure: Exception | None = None
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._waits_since: float | None = None
        self._timer = self._loop.call_later(seconds, self._check_time)
        connection = response.connection
        self._closed = None if connection is None or connection.protocol is None else connection.protocol.closed
        if self._closed is not None:
            self._closed.add_done_callback(self._on_closed)

    async def pieces(self) -> list[Delta]:
        """What readers may see of the next bytes that say something; empty at the end of the reply.

        Raises what failed, after everything that came before it was returned. A connection that breaks after the end
        of the reply is no failure.
        """
        self._waits_since = self._loop.time()
        while self._failure is None and not self._draft.is_done:
            try:
                chunk, self._first = self._first or await self._content.readany(), b""
            except BROKEN_CONNECTION as exc:
                chunk, self._failure = unread(self._content), exc
            self._add(chunk)
            if pieces := self._draft.pieces():
                self._waits_since = None
                return pieces
            if not chunk:
                break
        if self._failure is None or (self._draft.is_whole and isinstance(self._failure, BROKEN_CONNECTION)):
            return []
        raise self._failure

    async def drain(self) -> None:
        """Read to the end of the body, if it comes at once. Then the connection can be used again."""
        try:
            if not self._content.at_eof():
                async with asyncio.timeout(DRAIN_SECONDS):
                    while await self._content.readany():
                        pass
        except BROKEN_CONNECTION:
            pass  # the reply is whole

    def close(self) -> None:
        """Close the connection at once, unless the body was read to its end."""
        self._timer.cancel()
        if self._closed is not None:
            self._closed.remove_done_callback(self._on_closed)
        self._response.close()

    def _on_closed(self, _: object) -> None:
        """aiohttp closes the connection when it cannot parse the body, and does not tell those who read it."""
        if not self._content.is_eof() and self._content.exception() is None:
            self._content.set_exception(aiohttp.ClientPayloadError("the body is not valid HTTP"))

    def _add(self, chunk: bytes) -> None:
        """Add these bytes to the draft. A failure is kept for later."""
        draft = self._draft
        try:
            for name, data in self._splitter.split(chunk):
                draft.add(name, data)
                if draft.is_done:
                    break
        except FAILURES as exc:
            self._failure = exc

    def _check_time(self) -> None:
        since = self._waits_since
        left = self._seconds if since is None else since + self._seconds - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._check_time)
        else:
            self._content.set_exception(TimeoutError())


async def _first_bytes(response: aiohttp.ClientResponse, seconds: float) -> bytes:
    """Nothing, if the response says that it is a stream. Otherwise its first bytes, which show what it is.

    Raises the error in a response that is JSON or a page: a server that does not stream, or an error with status 200.
    """
    if response.content_type == "text/event-stream":
        return b""
    async with asyncio.timeout(seconds):
        first = await response.content.readany()
        if not first.lstrip().startswith((b"{", b"[", b"<")):
            return first
        text = (first + await read_body(response, MAX_ERROR_BYTES)).decode("utf-8", "replace")
    error = ErrorResponse(text)
    if isinstance(error.body, dict) and error.body.get("error"):
        raise error
    raise StreamFailed(f"it answered with {response.content_type}, not with a stream of events: {text[:200]}")


class EncodedOffers:
    """The tools of requests as JSON, encoded once: the turns of an agent offer the same ones until it is changed."""

    def __init__(self) -> None:
        self._encoded: OrderedDict[tuple[str, ...], tuple[tuple[ToolOffer, ...], Raw]] = OrderedDict()

    def encode(self, offers: tuple[ToolOffer, ...], write: Callable[[ToolOffer], JsonObject]) -> Raw:
        """The list of these tools, each as `write` writes it."""
        names = tuple([offer.name for offer in offers])
        known = self._encoded.get(names)
        if known is not None and known[0] == offers:
            self._encoded.move_to_end(names)
            return known[1]
        encoded = Raw(msgspec.json.encode([write(offer) for offer in offers]))
        self._encoded[names] = (offers, encoded)
        if len(self._encoded) > OFFERS_REMEMBERED:
            self._encoded.popitem(last=False)
        return encoded


def own_name(model: str) -> str:
    """The provider's own name of a model: what follows the first slash."""
    return model.partition("/")[2]


def object_schema(offer: ToolOffer) -> JsonObject:
    """The schema of a tool's arguments as vendors accept it: an object, without alternatives at the top level."""
    schema = {name: value for name, value in offer.input_schema.items() if name not in _NOT_AT_THE_TOP}
    return {"properties": {}, **schema, "type": "object"}


_NOT_AT_THE_TOP = frozenset({"oneOf", "anyOf", "allOf", "not", "enum"})
