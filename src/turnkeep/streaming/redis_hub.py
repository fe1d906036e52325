"""The hub of several workers: the local one, joined to the others by Redis.

A worker always says which events are durable. It publishes the words of a turn only while somebody elsewhere asks for
them, and listens only to turns that have readers here. Whoever begins to listen, finds a gap or has just reconnected
asks for what it lacks, and the worker that speaks sends it from there on. So Redis may be killed, paused or flushed:
readers then follow the store, at the pace of their polling, and nothing that they finally have is different.

Publishing never waits. The engine leaves marks in an outbox, and one task of this hub carries them out.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import msgspec
import redis.asyncio as redis_client
from msgspec import Struct
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from turnkeep.ids import TurnId
from turnkeep.streaming.hub import Ear, LocalHub
from turnkeep.streaming.ports import PreviewPiece
from turnkeep_client.wire.events import Failure, Recorded, Result

ANSWER_SECONDS = 2.0
"""Redis answers within this time, or the connection is given up."""
SILENCE_SECONDS = 5.0
"""A connection on which nothing came for so long is asked for a sign of life."""
ASK_SECONDS = 10.0
"""Listeners say again what they listen to …"""
REMEMBER_SECONDS = 30.0
"""… and are forgotten if they have not."""
GAP_SECONDS = 0.25
"""A gap is asked about no more often than this."""
FIRST_DELAY = 0.05
SETTLED_SECONDS = 10.0

_AWAY = (RedisError, OSError, TimeoutError)

_logger = logging.getLogger(__name__)

MOST_WAKE_UPS = 10_000
"""Wake-ups kept while Redis is away, one per turn; the oldest are dropped, as their readers poll the store."""

PLACES_IN_ONE = 500


class RedisHub:
    """Made by `open`, ended by `close`. Redis need not be there, at the start or later."""

    def __init__(self, url: str, *, prefix: str = "turnkeep") -> None:
        self.name = secrets.token_hex(6)
        self._local = LocalHub()
        self._redis = redis_client.Redis.from_url(
            url,
            socket_timeout=ANSWER_SECONDS,
            socket_connect_timeout=ANSWER_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
        self._prefix = f"{prefix}:turn:"
        self._ask_channel = f"{prefix}:ask"
        self._own_channel = f"{prefix}:hub:{self.name}"
        self._outbox = Outbox(self.name, self._local)
        self._has_mail = asyncio.Event()
        self._wanted: dict[TurnId, int] = {}
        """Turns with readers here, and how many."""
        self._wants_changed = False
        self._listened: dict[TurnId, float] = {}
        """Turns that other workers asked for, and until when that holds."""
        self._gaps: dict[TurnId, float] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(cls, url: str, *, prefix: str = "turnkeep") -> Self:
        """A hub that already listens to what other workers ask. Does not wait for Redis."""
        hub = cls(url, prefix=prefix)
        hub._start()
        return hub

    # What the engine calls

    def publish(self, turn_id: TurnId, recorded: Sequence[Recorded]) -> None:
        self._local.publish(turn_id, recorded)
        if not recorded:
            return
        self._outbox.wake(turn_id, recorded[-1].seq)
        if isinstance(recorded[-1].event, Result | Failure):
            self._outbox.forget(turn_id)
        self._has_mail.set()

    def preview(self, piece: PreviewPiece) -> None:
        self._local.preview(piece)
        if piece.turn_id in self._listened:
            self._outbox.speak(piece.turn_id)
            self._has_mail.set()

    def forget(self, turn_id: TurnId) -> None:
        self._local.forget(turn_id)
        self._outbox.forget(turn_id)

    # What readers call

    def spoken(self, turn_id: TurnId, seq: int) -> int | None:
        return self._local.spoken(turn_id, seq)

    def subscribe(self, turn_id: TurnId) -> "_SharedEar":
        return _SharedEar(self, self._local.subscribe(turn_id))

    def want(self, turn_id: TurnId) -> None:
        self._wanted[turn_id] = self._wanted.get(turn_id, 0) + 1
        if self._wanted[turn_id] == 1:
            self._wants_changed = True
            self._has_mail.set()

    def unwant(self, turn_id: TurnId) -> None:
        left = self._wanted.pop(turn_id) - 1
        if left:
            self._wanted[turn_id] = left
        else:
            self._gaps.pop(turn_id, None)
            self._wants_changed = True
            self._has_mail.set()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await self._local.close()
        with suppress(*_AWAY):
            await self._redis.aclose()

    @property
    def turn_count(self) -> int:
        return self._local.turn_count

    # The two tasks

    def _start(self) -> None:
        works = (self._listen, self._send)
        self._tasks = [asyncio.create_task(self._again_and_again(work)) for work in works]

    async def _again_and_again(self, work: Callable[[], Awaitable[None]]) -> None:
        """Redis may go and come back; meanwhile the store is enough. Nothing ends this but `close`."""
        now = asyncio.get_running_loop().time
        delay, is_known = FIRST_DELAY, False
        while _is_wanted():
            began = now()
            try:
                await work()
            except _AWAY as error:
                if not is_known:
                    _logger.warning("Redis is away; readers on other workers follow more slowly: %r", error)
                is_known = True
            except Exception:
                _logger.exception("The hub stumbled and goes on")
            if now() - began > SETTLED_SECONDS:
                delay, is_known = FIRST_DELAY, False
            await asyncio.sleep(delay)
            delay = min(2 * delay, 1.0)

    async def _send(self) -> None:
        while _is_wanted():
            await self._has_mail.wait()
            self._has_mail.clear()
            batch = self._outbox.take()
            try:
                async with self._redis.pipeline(transaction=False) as pipeline:
                    if self._wants_changed:
                        _ = pipeline.publish(self._own_channel, b"")
                    for turn_id, message in batch.messages(self.name):
                        channel = self._ask_channel if turn_id is None else self._prefix + turn_id
                        _ = pipeline.publish(channel, encode(message))
                    await pipeline.execute()
            except BaseException:
                self._outbox.untake(batch)
                self._has_mail.set()
                raise

    async def _listen(self) -> None:
        """Listen to the turns that have readers here, and to no other.

        Only this task uses its connection, as the client library allows no two. To be woken when readers come and go,
        it sends itself a message.
        """
        now = asyncio.get_running_loop().time
        async with self._redis.pubsub() as pubsub:
            await pubsub.subscribe(self._ask_channel, self._own_channel)
            subscribed: set[TurnId] = set()
            self._wants_changed = True
            is_silent, ask_at = False, now() + ASK_SECONDS
            while _is_wanted():
                if self._wants_changed:
                    subscribed = await self._change_wants(pubsub, subscribed)
                    continue
                message = await pubsub.get_message(timeout=SILENCE_SECONDS)
                if message is not None:
                    self._hear(message)
                elif is_silent:
                    raise TimeoutError("Redis gave no sign of life.")
                else:
                    await pubsub.ping()
                is_silent = message is None
                if now() >= ask_at:
                    ask_at = now() + ASK_SECONDS
                    for turn_id in self._wanted:
                        self._ask(turn_id)

    async def _change_wants(self, pubsub: PubSub, subscribed: set[TurnId]) -> set[TurnId]:
        self._wants_changed = False
        wanted = set(self._wanted)
        if new := wanted - subscribed:
            await pubsub.subscribe(*(self._prefix + turn_id for turn_id in new))
        if old := subscribed - wanted:
            await pubsub.unsubscribe(*(self._prefix + turn_id for turn_id in old))
        return wanted

    # What other workers say

    def _hear(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "message":
                self._take_in(message["data"])
            case "subscribe":
                turn_id = TurnId(message["channel"].decode().removeprefix(self._prefix))
                if turn_id in self._wanted:
                    self._ask(turn_id)
                    self._local.doubt(turn_id)
            case _:
                pass

    def _take_in(self, data: bytes) -> None:
        message = decode(data)
        if message is None or message.hub == self.name:
            return
        match message:
            case Woke():
                self._local.hear(message.turn_id, message.seq)
            case Said():
                if not self._local.overhear(message.piece):
                    self._ask_about_gap(message.piece.turn_id)
            case Asked():
                self._remember(message.places)

    def _ask(self, turn_id: TurnId) -> None:
        log = self._local.log_of(turn_id)
        if log is None or log.speech is None:
            self._outbox.ask(Place(turn_id, 0 if log is None else log.head, 0))
        else:
            self._outbox.ask(Place(turn_id, log.speech.base, log.speech.end))
        self._has_mail.set()

    def _ask_about_gap(self, turn_id: TurnId) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._gaps.get(turn_id, 0.0) >= GAP_SECONDS:
            self._gaps[turn_id] = now
            self._ask(turn_id)

    def _remember(self, places: "Sequence[Place]") -> None:
        now = asyncio.get_running_loop().time()
        for place in places:
            self._listened.pop(place.turn_id, None)
            self._listened[place.turn_id] = now + REMEMBER_SECONDS
            log = self._local.log_of(place.turn_id, spoken_here=True)
            if log is not None:
                self._outbox.repeat(place)
                self._outbox.wake(place.turn_id, log.head)
        for turn_id, until in tuple(self._listened.items()):
            if until > now:
                break
            del self._listened[turn_id]
        self._has_mail.set()


class _SharedEar:
    """A local subscription which the other workers know of."""

    def __init__(self, hub: RedisHub, ear: Ear) -> None:
        self._hub = hub
        self._ear = ear

    async def __aenter__(self) -> Ear:
        ear = await self._ear.__aenter__()
        self._hub.want(ear.turn_id)
        return ear

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hub.unwant(self._ear.turn_id)
        await self._ear.__aexit__(kind, error, trace)


def _is_wanted() -> bool:
    """Whether nobody has cancelled this task.

    A client library that meets a broken connection at the same moment may swallow the cancellation.
    """
    task = asyncio.current_task()
    return task is None or not task.cancelling()


class Woke(Struct, frozen=True, array_like=True, tag=True):
    hub: str
    turn_id: TurnId
    seq: int


class Said(Struct, frozen=True, array_like=True, tag=True):
    hub: str
    piece: PreviewPiece


class Place(Struct, frozen=True, array_like=True):
    """How far a listener has come."""

    turn_id: TurnId
    base: int
    offset: int


class Asked(Struct, frozen=True, array_like=True, tag=True):
    """Workers remember this for a while and publish what they speak of these turns."""

    hub: str
    places: tuple[Place, ...]


Message = Woke | Said | Asked

encode = msgspec.msgpack.Encoder().encode
_decoder: "msgspec.msgpack.Decoder[Message]" = msgspec.msgpack.Decoder(Message)


def decode(data: bytes) -> Message | None:
    """The message, or None for what another release or another program may have sent."""
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError:
        return None


class Batch(Struct):
    """One round of messages."""

    events: dict[TurnId, int]
    sent_before: list[Place]
    places: tuple[Place, ...]
    said: list[Said]

    def messages(self, hub: str) -> Iterator[tuple[TurnId | None, Message]]:
        """Each with the turn whose listeners should hear it, or None for everybody."""
        for turn_id, seq in self.events.items():
            yield turn_id, Woke(hub, turn_id, seq)
        for said in self.said:
            yield said.piece.turn_id, said
        for start in range(0, len(self.places), PLACES_IN_ONE):
            yield None, Asked(hub, self.places[start : start + PLACES_IN_ONE])


class Outbox:
    """What other workers should hear, as marks and not as messages: it cannot grow, whatever Redis does.

    Of each turn only the highest event counts; and the words need not be copied, as the log has them. So words that
    could not be sent in time leave later, together, in one message.
    """

    def __init__(self, hub: str, local: LocalHub) -> None:
        self._hub = hub
        self._local = local
        self._events: dict[TurnId, int] = {}
        self._spoken: dict[TurnId, None] = {}
        self._sent: dict[TurnId, Place] = {}
        self._places: dict[TurnId, Place] = {}

    def wake(self, turn_id: TurnId, seq: int) -> None:
        seq = max(seq, self._events.pop(turn_id, 0))
        self._events[turn_id] = seq
        if len(self._events) > MOST_WAKE_UPS:
            del self._events[next(iter(self._events))]

    def speak(self, turn_id: TurnId) -> None:
        """There are new words."""
        self._spoken[turn_id] = None

    def repeat(self, place: Place) -> None:
        """Somebody has the words only up to here."""
        sent = self._sent.get(place.turn_id)
        if sent is None or sent.base != place.base or sent.offset > place.offset:
            self._sent[place.turn_id] = place
        self._spoken[place.turn_id] = None

    def ask(self, place: Place) -> None:
        self._places[place.turn_id] = place

    def forget(self, turn_id: TurnId) -> None:
        self._spoken.pop(turn_id, None)
        self._sent.pop(turn_id, None)

    def take(self) -> Batch:
        """All that waits. Give it back with `untake` if it could not be sent."""
        batch = Batch(events=self._events, sent_before=[], places=tuple(self._places.values()), said=[])
        for turn_id in self._spoken:
            self._take_words(turn_id, batch)
        self._events, self._spoken, self._places = {}, {}, {}
        return batch

    def untake(self, batch: Batch) -> None:
        for turn_id, seq in batch.events.items():
            self.wake(turn_id, seq)
        for place in batch.sent_before:
            self.repeat(place)
        for place in batch.places:
            self._places.setdefault(place.turn_id, place)

    def _take_words(self, turn_id: TurnId, batch: Batch) -> None:
        log = self._local.log_of(turn_id, spoken_here=True)
        speech = None if log is None else log.speech
        if speech is None:
            return
        before = self._sent.get(turn_id)
        offset = before.offset if before is not None and before.base == speech.base else 0
        for frame in speech.joined(offset):
            piece = PreviewPiece(
                turn_id=turn_id,
                attempt=speech.attempt,
                base_seq=frame.seq,
                offset=frame.start,
                iteration=frame.iteration,
                kind=frame.kind,
                text=frame.text,
            )
            batch.said.append(Said(hub=self._hub, piece=piece))
        batch.sent_before.append(Place(turn_id, speech.base, offset))
        self._sent[turn_id] = Place(turn_id, speech.base, speech.end)
