"""One turn as its reader follows it: typed events, once each and in order, whatever happens to the connection.

A stream remembers its cursor. When the connection breaks, the server restarts or leaves, another worker takes the turn
over, or not even a heartbeat comes any more, it reconnects and continues after the last event that it returned.
A question whose answer was lost is asked again under the same idempotency key, so it is never asked twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, assert_never

import msgspec
from msgspec import Struct, structs

from turnkeep_client.errors import ConnectionLost, WaitTimeout, failed
from turnkeep_client.retry import OnTrouble, Retry
from turnkeep_client.transport import Refusal, Transport
from turnkeep_client.wire import Accepted, File, Source, Turn, TurnFailure
from turnkeep_client.wire.base import without_unset
from turnkeep_client.wire.blocks import JsonObject, Part, TextPart, Usage
from turnkeep_client.wire.display import Display, fold
from turnkeep_client.wire.errors import Defect
from turnkeep_client.wire.events import (
    Approval,
    ClientCalls,
    Decided,
    Delta,
    Failure,
    Files,
    Reset,
    Result,
    Sources,
    Steered,
    Step,
    ToolCalls,
    TurnBegan,
    TurnEvent,
)
from turnkeep_client.wire.sse import ServerSentEvent, SseParser

if TYPE_CHECKING:
    import httpx


__all__ = [
    "TURN_HEADER",
    "Answer",
    "Approval",
    "ClientCalls",
    "Decided",
    "Delta",
    "Event",
    "Failure",
    "Files",
    "Reset",
    "Restarted",
    "Result",
    "Sources",
    "Steered",
    "Step",
    "ToolCalls",
    "TurnBegan",
    "TurnRequest",
    "TurnStream",
    "TurnView",
    "Unknown",
    "decode_event",
    "is_terminal",
]


EVENTS = {"accept": "text/event-stream"}
TURN_HEADER = "turnkeep-turn"


class Unknown(Struct, frozen=True, kw_only=True):
    """An event of a newer server that this release does not know. It is returned, and changes nothing."""

    event: str
    data: JsonObject


Event = TurnEvent | Delta | Unknown

_KINDS: dict[str, Any] = {
    "turn": TurnBegan,
    "delta": Delta,
    "tool_calls": ToolCalls,
    "step": Step,
    "sources": Sources,
    "files": Files,
    "reset": Reset,
    "approval": Approval,
    "client_calls": ClientCalls,
    "decided": Decided,
    "steered": Steered,
    "result": Result,
    "error": Failure,
}
_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {name: msgspec.json.Decoder(kind) for name, kind in _KINDS.items()}


def decode_event(frame: ServerSentEvent) -> Event:
    """The event of a frame. Raises Defect if a known event has an unknown shape."""
    decoder = _DECODERS.get(frame.event)
    try:
        if decoder is None:
            return Unknown(event=frame.event, data=msgspec.json.decode(frame.data, type=dict))
        event: Event = decoder.decode(frame.data)
        return event
    except msgspec.MsgspecError as exc:
        raise Defect(
            f"The server sent an event `{frame.event}` that this client cannot read: {exc}. Is one of them older?"
        ) from exc


def is_terminal(event: Event) -> bool:
    return isinstance(event, Result | Failure)


class Answer(Struct, frozen=True, kw_only=True):
    """The result of a turn. `text` is the last text of the turn; `content` is everything a reader sees, in order.
    `finish` says how an answer ended: `complete`, `length` (at the model's token limit) or `empty`; None if there is no
    answer, or if only the turn was read."""

    conversation_id: str
    turn_id: str
    message_id: str | None
    status: str
    text: str
    content: Sequence[Part]
    sources: Sequence[Source] = ()
    files: Sequence[File] = ()
    usage: Usage = Usage()
    error: TurnFailure | None = None
    finish: str | None = None

    def __str__(self) -> str:
        return self.text


class TurnView:
    """Add events in order; read at any time.

    Text of a preview is shown until an event confirms it (`tool_calls`, `result`) or drops it (`reset`).
    """

    def __init__(self) -> None:
        self.began: TurnBegan | None = None
        self.ending: Result | Failure | None = None
        self.files: list[File] = []
        self._events: list[TurnEvent] = []
        self._display: Display | None = Display()
        self._said = ""
        self._preview: dict[str, list[str]] = {"text": [], "reasoning": []}

    def add(self, event: Event) -> None:
        """Take the next event of the turn."""
        match event:
            case Delta():
                self._preview.setdefault(event.kind, []).append(event.text)
                return
            case Unknown():
                return
            case TurnBegan():
                self.began = event
            case ToolCalls():
                self._said = event.text or self._said
                self._forget_preview()
            case Reset():
                self._forget_preview()
            case Result() | Failure():
                self.ending = event
                self._forget_preview()
            case Files():
                self.files += event.files
            case Step() | Sources() | Approval() | ClientCalls() | Decided() | Steered():
                pass
            case _:
                assert_never(event)
        self._events.append(event)
        self._display = None

    @property
    def text(self) -> str:
        """The text that is being streamed, or the last one; at the end the text of the answer."""
        if isinstance(self.ending, Result):
            return self.ending.message
        return self.preview or self._said

    @property
    def preview(self) -> str:
        """The text that no event has confirmed yet."""
        return "".join(self._preview["text"])

    @property
    def has_events(self) -> bool:
        """Whether there was anything but previews."""
        return bool(self._events)

    @property
    def is_speaking(self) -> bool:
        """Whether there is text that no event has confirmed yet."""
        return any(self._preview.values())

    @property
    def content(self) -> tuple[Part, ...]:
        """Everything that a reader sees, in order; once the turn has ended this is what history shows."""
        return self.display.then_said(text=self.preview, reasoning="".join(self._preview["reasoning"])).content

    @property
    def display(self) -> Display:
        """The same without the text that is being streamed."""
        if self._display is None:
            self._display = fold(self._events)
            without_unset(self._display)
        return self._display

    def answer(self, *, turn_id: str, conversation_id: str) -> Answer:
        """The result of the turn, after its terminal event."""
        ending = self.ending
        assert ending is not None, "the turn has not ended"
        status, error, usage, finish = "succeeded", None, Usage(), None
        if isinstance(ending, Result):
            usage, finish = ending.usage, ending.finish or "complete"
        else:
            error = TurnFailure(code=ending.code, message=ending.message)
            status = "cancelled" if ending.code == "cancelled" else "failed"
        return Answer(
            conversation_id=conversation_id,
            turn_id=turn_id,
            message_id=ending.message_id,
            status=status,
            text=self.text,
            content=self.content,
            sources=self.display.sources,
            files=tuple(self.files),
            usage=usage,
            error=error,
            finish=finish,
        )

    def _forget_preview(self) -> None:
        self._preview = {"text": [], "reasoning": []}


class Restarted(str):
    """In `words()`: the model begins this text anew, with other words. Drop the last `dropped` characters.

    As text it is empty, so a program that only joins words needs no case for it.
    """

    dropped: int

    def __new__(cls, dropped: int) -> Self:
        restarted = super().__new__(cls)
        restarted.dropped = dropped
        return restarted

    def __repr__(self) -> str:
        return f"Restarted(dropped={self.dropped})"


class WordStream:
    """Turns events into words, each of them once, also where the model says the same text again.

    The words of an iteration are previews until its event has the whole text. After a reset the model speaks again.
    As long as the new text is the beginning of what was given, nothing is given.
    """

    def __init__(self, given: str = "", *, is_cut: bool = False) -> None:
        """`given` was read before. `is_cut`: the stream begins inside of a text whose beginning is not known."""
        self._given = given
        self._said: str | None = None
        """The new text after a reset, until it is longer than the old one or differs."""
        self._is_cut = is_cut

    def add(self, event: Event) -> list[str]:
        """The words that this event adds."""
        match event:
            case Delta() if event.kind == "text":
                return self._speak(event.text)
            case Reset():
                self._said, self._is_cut = "", False
            case ToolCalls():
                return self._complete(event.text)
            case Result():
                return self._complete(event.message)
        return []

    def _speak(self, text: str) -> list[str]:
        if self._said is None:
            self._given += text
            return [text]
        self._said += text
        if self._given.startswith(self._said):
            return []
        words = self._after(self._given, self._said)
        self._given, self._said = self._said, None
        return words

    def _complete(self, text: str) -> list[str]:
        """The whole text of the iteration: what of it was not given yet."""
        words = [] if self._is_cut else self._after(self._given, text)
        self._given, self._said, self._is_cut = "", None, False
        return words

    @staticmethod
    def _after(given: str, text: str) -> list[str]:
        if not text.startswith(given):
            return [Restarted(len(given)), *([text] if text else [])]
        return [text[len(given) :]] if len(text) > len(given) else []


class TurnRequest(Struct, frozen=True, kw_only=True):
    """A request that opens a turn; the key makes it the same turn however often it is sent."""

    path: str
    body: JsonObject
    key: str


class TurnStream:
    """Follow one turn. Iterate for its events, or await `result()`; it can be stopped and continued at any time.

    Use it as an async context manager, or iterate to the end: either closes the connection. A turn without a
    reader is stopped by the server after a grace period, unless it was asked with `background=True`.
    """

    def __init__(
        self,
        transport: Transport,
        asking: TurnRequest | None = None,
        *,
        turn_id: str | None = None,
        after: str = "",
        on_trouble: OnTrouble | None = None,
    ) -> None:
        self._transport = transport
        self._asking = asking
        self._turn_id = turn_id
        self._begins_after = after
        self._cursor = after
        self._on_trouble = on_trouble
        self._conversation_id: str | None = None
        self._view = TurnView()
        self._open: AsyncGenerator[Event, None] | None = None
        self._unread: list[Event] = []
        self._reading = asyncio.Lock()
        """One event is read at a time, also when one task stops the turn while another waits for its first word."""

    def __repr__(self) -> str:
        state = "over" if self.is_over else f"cursor={self._cursor!r}"
        return f"{type(self).__name__}({self._turn_id or 'not asked yet'}, {state})"

    # --- what is known

    @property
    def turn_id(self) -> str | None:
        """Known as soon as the server has taken the question."""
        return self._turn_id

    @property
    def conversation_id(self) -> str | None:
        """Known with the first event."""
        return self._conversation_id

    @property
    def cursor(self) -> str:
        """After the last event that was returned; `turns.follow(turn_id, after=cursor)` continues there."""
        return self._cursor

    @property
    def text(self) -> str:
        """The text that is being streamed, or the last one; at the end the text of the answer."""
        return self._view.text

    @property
    def content(self) -> tuple[Part, ...]:
        """Everything that a reader sees of the turn so far: words, steps and files in order."""
        return self._view.content

    @property
    def view(self) -> TurnView:
        """What a reader sees of the turn so far, in detail."""
        return self._view

    @property
    def is_over(self) -> bool:
        """Whether the last event has been read."""
        return self._view.ending is not None

    # --- reading

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """The next event. After any exception, also a cancellation, the next call continues at the same place."""
        async with self._reading:
            return self._unread.pop(0) if self._unread else await self._next()

    async def words(self) -> AsyncGenerator[str, None]:
        """The text of the answer, as it is streamed, without the reasoning: every word once.

        When another worker takes the turn over, the model speaks again. Words that were given are not repeated. If the
        new text differs, a `Restarted` comes first: it is an empty text, and says how many characters are void.
        """
        words = WordStream(self._view.preview, is_cut="." in self._begins_after and not self._view.has_events)
        async for event in self:
            for word in words.add(event):
                yield word

    async def result(self, *, timeout_seconds: float | None = None) -> Answer:
        """Read to the end and return the answer. Raises TurnFailed, or TurnStopped, which hold what was kept.

        Raises WaitTimeout if the answer does not come in time. The stream can then be read on.
        """
        answer = await self.settled(timeout_seconds=timeout_seconds)
        if answer.status != "succeeded":
            raise failed(answer)
        return answer

    async def settled(self, *, timeout_seconds: float | None = None) -> Answer:
        """Read to the end and return the result of the turn, also when it failed or was stopped."""
        limit = asyncio.timeout(timeout_seconds)
        try:
            async with limit:
                return await self._settled()
        except TimeoutError as exc:
            if timeout_seconds is None or not limit.expired():
                raise
            raise WaitTimeout(timeout_seconds, turn_id=self._turn_id, cursor=self._cursor) from exc

    async def _settled(self) -> Answer:
        async for _ in self:
            pass
        assert self._turn_id is not None, "a stream that has ended knows its turn"
        if self.is_over and self._conversation_id is not None:
            return self._view.answer(turn_id=self._turn_id, conversation_id=self._conversation_id)
        # Only of a stream that began in the middle.
        turn = await self._transport.call("GET", f"/v1/turns/{self._turn_id}", Turn)
        if self.is_over:
            return self._view.answer(turn_id=turn.id, conversation_id=turn.conversation_id)
        return _answer_of(turn)

    async def cancel(self) -> Turn:
        """Stop the turn; what was said is kept. Returns once it is settled, and changes nothing if it already is."""
        if self._turn_id is None:
            await self.started()
        return await self._transport.call("POST", f"/v1/turns/{self._turn_id}/cancel", Turn, is_safe=True)

    async def started(self) -> str:
        """Wait until the server has taken the question; the id of its turn."""
        async with self._reading:
            # Another read, in this task or another one, may have learnt it.
            if self._turn_id is None:
                self._unread.append(await self._next())
        assert self._turn_id is not None, "an event names its turn"
        return self._turn_id

    async def close(self) -> None:
        """Close the connection. The stream can be iterated again, and continues where it was."""
        events, self._open = self._open, None
        if events is not None:
            await events.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # --- following

    async def _next(self) -> Event:
        if self._open is None:
            self._open = self._follow()
        try:
            return await anext(self._open)
        except BaseException:
            self._open = None
            raise

    async def _follow(self) -> AsyncGenerator[Event, None]:
        retry = self._transport.retry(self._on_trouble)
        while not self.is_over:
            parser = SseParser(self._cursor)
            try:
                async with self._connected() as response:
                    async for event in self._read(response, parser, retry):
                        yield event
                if self._view.ending is not None or response.status_code == 204:
                    return
                if response.status_code == 202:
                    continue
            except Refusal as refusal:
                await self._transport.after_refusal(refusal.error, refusal.headers, retry)
                continue
            except self._transport.transport_errors as exc:
                await self._after(exc, retry)
                continue
            await self._after_leaving(parser, retry)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[httpx.Response]:
        """The response that continues at the cursor; the response to the question itself, until its turn is known."""
        if self._turn_id is None:
            assert self._asking is not None, "a stream follows a turn or asks for one"
            headers = EVENTS | {"idempotency-key": self._asking.key}
            opening = self._transport.stream("POST", self._asking.path, body=self._asking.body, headers=headers)
        else:
            headers = EVENTS | ({"last-event-id": self._cursor} if self._cursor else {})
            opening = self._transport.stream("GET", f"/v1/turns/{self._turn_id}/events", headers=headers)
        async with opening as response:
            self._turn_id = self._turn_id or response.headers.get(TURN_HEADER)
            if response.status_code == 202:
                self._learn(await response.aread())
            yield response

    async def _read(self, response: httpx.Response, parser: SseParser, retry: Retry) -> AsyncGenerator[Event, None]:
        if response.status_code != 200:
            return
        async for chunk in response.aiter_raw():
            frames = parser.feed(chunk)
            if frames or chunk.startswith(b":"):
                retry.progress()
            retry.heard()
            for frame in frames:
                event = decode_event(frame)
                if isinstance(event, TurnBegan):
                    self._turn_id, self._conversation_id = event.turn_id, event.conversation_id
                self._view.add(event)
                self._cursor = frame.id
                yield _shown(event)
                if is_terminal(event):
                    return

    def _learn(self, body: bytes) -> None:
        accepted = msgspec.json.decode(body, type=Accepted)
        self._turn_id, self._conversation_id = accepted.turn_id, accepted.conversation_id

    async def _after(self, exc: Exception, retry: Retry) -> None:
        try:
            # Safe: a question is repeated under its key, and following changes nothing.
            await self._transport.after(exc, retry, is_safe=True)
        except ConnectionLost as lost:
            lost.turn_id, lost.cursor = self._turn_id, self._cursor
            raise

    async def _after_leaving(self, parser: SseParser, retry: Retry) -> None:
        """The server shut down and ended the stream before the turn ended. Another server continues the turn."""
        lost = ConnectionLost(
            "The server ended the stream before the turn had ended.", turn_id=self._turn_id, cursor=self._cursor
        )
        await retry.wait(lost, at_least=(parser.retry_milliseconds or 0) / 1000)


def _shown(event: Event) -> Event:
    """The event for the caller. The view keeps its steps as they came, since a null replaces what was said before."""
    if isinstance(event, Step):
        event = structs.replace(event)
    if not isinstance(event, Delta):
        without_unset(event)
    return event


def _answer_of(turn: Turn) -> Answer:
    text = turn.response or ""
    return Answer(
        conversation_id=turn.conversation_id,
        turn_id=turn.id,
        message_id=None,
        status=turn.status,
        text=text,
        content=(TextPart(text=text),) if text else (),
        files=turn.files,
        usage=turn.usage,
        error=turn.error,
    )
