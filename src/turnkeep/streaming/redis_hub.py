"""The hub of several workers: a local hub in each, connected by Redis.

Workers exchange four messages: an event is durable (`EventNotice`), a turn has new preview text (`PreviewNotice`), a
worker wants the preview of a turn from some position on (`ReplayRequest`), and a worker has begun to listen
(`StartNotice`). None of them is a fact that the store lacks, so each may be lost.

A worker announces every durable event. It publishes the preview of a turn only while another worker asks for it, and
it subscribes only to turns that have readers here and run elsewhere. A worker that begins to listen, finds a gap or has
reconnected asks for what it lacks, and the worker that runs the turn sends the preview from there on. A worker that has
just started does not know what the others asked for before, so they repeat it for that worker, which may take turns
over at once. Redis may be killed, paused or flushed: readers then poll the store, and end with the same text and
events.

Publishing never waits. The engine leaves marks in an outbox, and one task of this hub sends them: at once, and then
again after a short pause, so that under load one message to a worker carries the text of many turns. An event waits a
little longer if no other worker has asked about its turn.

Decision: docs/decisions/0403
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec
from msgspec import Struct
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import ConnectionError as NotConnected
from redis.exceptions import RedisError

from turnkeep.ids import TurnId
from turnkeep.streaming.hub import LocalHub, LocalSubscription
from turnkeep.streaming.ports import PreviewPiece
from turnkeep.streaming.redis_servers import RedisServers
from turnkeep_client.wire.events import Failure, Recorded, Reset, Result

ANSWER_SECONDS = 2.0
"""Redis must answer within this time, else the connection is closed."""
SILENCE_SECONDS = 5.0
"""A connection that was silent for this long is checked with a ping."""
ASK_SECONDS = 10.0
"""Workers repeat their replay requests this often …"""
REMEMBER_SECONDS = 30.0
"""… and a request that was not repeated expires after this time."""
GAP_SECONDS = 0.25
"""Shortest time between two requests about the same gap."""
ROUND_SECONDS = 0.005
"""Pause between two rounds of sending. What comes meanwhile is sent together."""
UNREQUESTED_SECONDS = 0.05
"""Events of turns that no other worker asked about are announced this much later, many at once."""
PIECES_PER_MESSAGE = 200
FIRST_DELAY = 0.05
STABLE_SECONDS = 10.0
"""After a connection has lasted this long, the delay before a reconnection starts again at its shortest."""
MAX_LAST_WORDS = 1_000
MAX_EVENT_NOTICES = 10_000
"""Event notices kept while Redis is away, one per turn. The oldest are dropped; their readers poll the store."""
POSITIONS_PER_MESSAGE = 500

_UNAVAILABLE = (RedisError, OSError, TimeoutError)

_logger = logging.getLogger(__name__)


class RedisHub:
    """Create it with `open`, end it with `close`. It works without Redis too, at the start and later."""

    def __init__(self, url: str, *, prefix: str = "turnkeep") -> None:
        self.name = secrets.token_hex(6)
        self._local = LocalHub()
        self._servers = RedisServers(url, seconds=ANSWER_SECONDS, prefix=prefix)
        prefix = self._servers.prefix
        self._prefix = f"{prefix}:turn:"
        self._ask_channel = f"{prefix}:ask"
        self._own_channel = f"{prefix}:hub:{self.name}"
        self._outbox = Outbox(self.name, self._local, self._own_channel)
        self._has_messages = asyncio.Event()
        self._later: asyncio.TimerHandle | None = None
        """Sets `_has_messages`."""
        self._readers: dict[TurnId, int] = {}
        """Turns with readers on this worker, and how many."""
        self._subscribed: set[TurnId] = set()
        """Turns with readers here whose messages this worker receives."""
        self._readers_changed = False
        self._must_greet = False
        """This worker has begun to listen, and the others must be told."""
        self._requested: dict[TurnId, dict[str, float]] = {}
        """Turns whose preview other workers requested: the channel on which each wants it, and when that expires."""
        self._gaps: dict[TurnId, float] = {}
        self._is_connected = False
        """Whether Redis has answered lately."""
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(cls, url: str, *, prefix: str = "turnkeep") -> Self:
        """A hub that already handles requests of other workers. Does not wait for Redis."""
        hub = cls(url, prefix=prefix)
        hub._start()
        return hub

    # Called by the engine

    def publish(self, turn_id: TurnId, recorded: Sequence[Recorded]) -> None:
        if recorded:
            self._outbox.end_preview(turn_id)
        self._local.publish(turn_id, recorded)
        if not recorded:
            return
        last = recorded[-1]
        is_takeover = isinstance(last.event, Reset)
        self._outbox.mark_event(turn_id, last.seq, is_takeover=is_takeover)
        if isinstance(last.event, Result | Failure):
            self._outbox.forget(turn_id)
        if is_takeover or turn_id in self._requested:
            self._has_messages.set()
        elif self._later is None:
            self._later = asyncio.get_running_loop().call_later(UNREQUESTED_SECONDS, self._send_now)

    def _send_now(self) -> None:
        self._later = None
        self._has_messages.set()

    def preview(self, piece: PreviewPiece) -> None:
        self._local.preview(piece)
        if piece.turn_id in self._requested:
            self._outbox.mark_preview(piece.turn_id)
            self._has_messages.set()

    def forget(self, turn_id: TurnId) -> None:
        self._local.forget(turn_id)
        self._outbox.forget(turn_id)
        if turn_id in self._readers:
            self._change_subscriptions()

    # Called for readers

    def preview_length(self, turn_id: TurnId, seq: int) -> int | None:
        return self._local.preview_length(turn_id, seq)

    def followed_turns(self) -> list[TurnId]:
        return self._local.followed_turns()

    def note_event(self, turn_id: TurnId, seq: int) -> None:
        self._local.note_event(turn_id, seq)

    def note_gone(self, turn_id: TurnId) -> None:
        self._local.note_gone(turn_id)

    def subscribe(self, turn_id: TurnId) -> "_SharedSubscription":
        return _SharedSubscription(self, self._local.subscribe(turn_id))

    def add_reader(self, turn_id: TurnId) -> None:
        self._readers[turn_id] = self._readers.get(turn_id, 0) + 1
        if self._readers[turn_id] == 1 and not self._local.is_live(turn_id):
            self._change_subscriptions()

    def remove_reader(self, turn_id: TurnId) -> None:
        left = self._readers.pop(turn_id) - 1
        if left:
            self._readers[turn_id] = left
        else:
            self._gaps.pop(turn_id, None)
            if turn_id in self._subscribed:
                self._change_subscriptions()

    async def close(self) -> None:
        if self._later is not None:
            self._later.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await self._local.close()
        await self._servers.close()

    @property
    def is_connected(self) -> bool:
        return self._is_connected

    @property
    def turn_count(self) -> int:
        return self._local.turn_count

    # The two tasks

    def _start(self) -> None:
        loops = (self._listen, self._send)
        self._tasks = [asyncio.create_task(self._keep_running(work)) for work in loops]

    async def _keep_running(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run until `close`. While Redis is away, readers poll the store."""
        now = asyncio.get_running_loop().time
        delay, is_known = FIRST_DELAY, False
        while _is_running():
            began = now()
            try:
                await work()
            except _UNAVAILABLE as error:
                if not is_known:
                    _logger.warning("Redis is away; readers on other workers follow more slowly: %r", error)
                is_known = True
            except Exception:
                _logger.exception("The hub hit an error and goes on")
            if now() - began > STABLE_SECONDS:
                delay, is_known = FIRST_DELAY, False
            await asyncio.sleep(delay)
            delay = min(2 * delay, 1.0)

    async def _send(self) -> None:
        async with self._servers.connected() as client:
            while _is_running():
                await self._has_messages.wait()
                self._has_messages.clear()
                await self._send_round(client)
                await asyncio.sleep(ROUND_SECONDS)

    async def _send_round(self, client: Redis) -> None:
        batch = self._outbox.take()
        try:
            is_greeting = self._must_greet
            async with client.pipeline(transaction=False) as pipeline:
                if is_greeting:
                    self._servers.publish(pipeline, self._ask_channel, encode(StartNotice(self.name)))
                if self._readers_changed:
                    self._servers.publish(pipeline, self._own_channel, b"")
                for channel, message in self._addressed(batch):
                    self._servers.publish(pipeline, channel, encode(message))
                await pipeline.execute()
            if is_greeting:
                self._must_greet = False
        except BaseException:
            self._outbox.put_back(batch)
            self._has_messages.set()
            raise

    def _addressed(self, batch: "OutgoingBatch") -> "Iterator[tuple[str, Message]]":
        """Each message with its channel. All text for one worker is one message, before the events that follow it."""
        pieces: dict[str, list[PreviewPiece]] = {}
        for notice in batch.previews:
            for channel in self._requested.get(notice.piece.turn_id, ()):
                pieces.setdefault(channel, []).append(notice.piece)
        for channel, texts in pieces.items():
            if channel.startswith(self._prefix):
                for piece in texts:
                    yield channel, PreviewNotice(self.name, piece)
                continue
            for start in range(0, len(texts), PIECES_PER_MESSAGE):
                yield channel, PreviewNotices(self.name, tuple(texts[start : start + PIECES_PER_MESSAGE]))
        for turn_id, message in batch.notices(self.name):
            yield self._ask_channel if turn_id is None else self._prefix + turn_id, message

    async def _listen(self) -> None:
        try:
            await self._receive()
        finally:
            self._is_connected = False

    async def _receive(self) -> None:
        """Receive the messages about turns that have readers here.

        Only this task uses its connection: the client library does not allow two tasks on one. So when readers come and
        go, `_send` wakes it with a message.
        """
        now = asyncio.get_running_loop().time
        async with self._servers.connected() as client, client.pubsub() as pubsub:
            await self._servers.subscribe(pubsub, self._ask_channel, self._own_channel)
            self._subscribed = set()
            self._readers_changed = True
            is_silent, ask_at = False, now() + ASK_SECONDS
            self._is_connected = True
            while _is_running():
                if self._readers_changed:
                    await self._update_subscriptions(pubsub)
                    continue
                message = await pubsub.get_message(timeout=SILENCE_SECONDS)
                if message is not None:
                    self._handle(message)
                elif is_silent:
                    raise TimeoutError("Redis gave no sign of life.")
                else:
                    await pubsub.ping()
                is_silent = message is None
                if now() >= ask_at:
                    ask_at = now() + ASK_SECONDS
                    for turn_id in self._subscribed:
                        self._ask(turn_id)

    def _change_subscriptions(self) -> None:
        self._readers_changed = True
        self._has_messages.set()

    async def _update_subscriptions(self, pubsub: PubSub) -> None:
        """Subscribe to the turns that have readers here. No other worker sends text of a turn that runs here."""
        self._readers_changed = False
        subscribed = self._subscribed
        wanted = {turn_id for turn_id in self._readers if not self._local.is_live(turn_id)}
        self._subscribed = wanted
        if new := wanted - subscribed:
            await self._servers.subscribe(pubsub, *(self._prefix + turn_id for turn_id in new))
        if old := subscribed - wanted:
            await self._servers.unsubscribe(pubsub, *(self._prefix + turn_id for turn_id in old))

    # Messages of other workers

    def _handle(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "message" | "smessage":
                self._handle_message(message["data"])
            case "subscribe" | "ssubscribe":
                channel = message["channel"].decode()
                turn_id = TurnId(channel.removeprefix(self._prefix))
                if channel == self._ask_channel:
                    self._must_greet = True
                    self._has_messages.set()
                elif turn_id in self._readers:
                    self._ask(turn_id)
                    self._local.require_read(turn_id)
            case "sunsubscribe" if message["channel"].decode() == self._ask_channel:
                raise NotConnected("The cluster has moved the channels to another node.")
            case _:
                pass

    def _handle_message(self, data: bytes) -> None:
        message = decode(data)
        if message is None or message.hub == self.name:
            return
        match message:
            case EventNotice():
                self._local.note_event(message.turn_id, message.seq)
            case PreviewNotice():
                self._add_preview(message.piece)
            case PreviewNotices():
                for piece in message.pieces:
                    self._add_preview(piece)
            case ReplayRequest():
                self._remember(message)
            case StartNotice():
                for turn_id in self._subscribed:
                    self._ask(turn_id)

    def _add_preview(self, piece: PreviewPiece) -> None:
        if not self._local.add_remote_preview(piece):
            self._ask_about_gap(piece.turn_id)

    def _ask(self, turn_id: TurnId) -> None:
        log = self._local.log_of(turn_id)
        if log is None or log.preview is None:
            self._outbox.ask(PreviewPosition(turn_id, 0 if log is None else log.head, 0))
        else:
            self._outbox.ask(PreviewPosition(turn_id, log.preview.base, log.preview.end))
        self._has_messages.set()

    def _ask_about_gap(self, turn_id: TurnId) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._gaps.get(turn_id, 0.0) >= GAP_SECONDS:
            self._gaps[turn_id] = now
            self._ask(turn_id)

    def _remember(self, request: "ReplayRequest") -> None:
        now = asyncio.get_running_loop().time()
        for position in request.positions:
            channels = self._requested.pop(position.turn_id, {})
            channels[request.channel or self._prefix + position.turn_id] = now + REMEMBER_SECONDS
            self._requested[position.turn_id] = {name: until for name, until in channels.items() if until > now}
            log = self._local.log_of(position.turn_id, live_only=True)
            if log is not None:
                self._outbox.repeat(position)
                self._outbox.mark_event(position.turn_id, log.head)
        for turn_id, channels in tuple(self._requested.items()):
            if max(channels.values()) > now:
                break
            del self._requested[turn_id]
        self._has_messages.set()


class _SharedSubscription:
    """A local subscription that is announced to the other workers."""

    def __init__(self, hub: RedisHub, subscription: LocalSubscription) -> None:
        self._hub = hub
        self._subscription = subscription

    async def __aenter__(self) -> LocalSubscription:
        subscription = await self._subscription.__aenter__()
        self._hub.add_reader(subscription.turn_id)
        return subscription

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hub.remove_reader(self._subscription.turn_id)
        await self._subscription.__aexit__(kind, error, trace)


def _is_running() -> bool:
    """Whether this task was not cancelled.

    If a connection breaks at the same moment, the client library may swallow the cancellation.
    """
    task = asyncio.current_task()
    return task is None or not task.cancelling()


class EventNotice(Struct, frozen=True, array_like=True, tag="Woke"):
    """Event `seq` of the turn is durable. (The tags are those of earlier releases, which may run beside this one.)"""

    hub: str
    turn_id: TurnId
    seq: int


class PreviewNotice(Struct, frozen=True, array_like=True, tag="Said"):
    """New preview text of a turn."""

    hub: str
    piece: PreviewPiece


class PreviewNotices(Struct, frozen=True, array_like=True, tag="SaidAll"):
    """New preview text of many turns, for one worker."""

    hub: str
    pieces: tuple[PreviewPiece, ...]


class PreviewPosition(Struct, frozen=True, array_like=True):
    """How much of a preview a worker has."""

    turn_id: TurnId
    base: int
    offset: int


class ReplayRequest(Struct, frozen=True, array_like=True, tag="Asked"):
    """A worker wants the previews of these turns. The others remember that for a while.

    It gets them on `channel`, many in one message. Workers of earlier releases name none, and get them one by one on
    the channels of the turns.
    """

    hub: str
    positions: tuple[PreviewPosition, ...]
    channel: str = ""


class StartNotice(Struct, frozen=True, array_like=True, tag="Started"):
    """A worker has begun to listen. The others repeat for it what they want. Earlier releases do not know this one."""

    hub: str


Message = EventNotice | PreviewNotice | PreviewNotices | ReplayRequest | StartNotice

encode = msgspec.msgpack.Encoder().encode
_decoder: "msgspec.msgpack.Decoder[Message]" = msgspec.msgpack.Decoder(Message)


def decode(data: bytes) -> Message | None:
    """The message, or None for bytes that another release or another program sent."""
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError:
        return None


class OutgoingBatch(Struct):
    """The messages of one round. `channel` is where this worker wants to get previews."""

    channel: str
    events: dict[TurnId, int]
    takeovers: set[TurnId]
    sent_before: list[PreviewPosition]
    positions: tuple[PreviewPosition, ...]
    previews: list[PreviewNotice]

    def notices(self, hub: str) -> Iterator[tuple[TurnId | None, Message]]:
        """The messages without text: with the turn whose channel it goes to, or None for the channel of all workers."""
        for turn_id, seq in self.events.items():
            yield turn_id, EventNotice(hub, turn_id, seq)
            if turn_id in self.takeovers:
                # The worker that ran the turn before may not know it yet, and does not listen to turns that it runs.
                yield None, EventNotice(hub, turn_id, seq)
        for start in range(0, len(self.positions), POSITIONS_PER_MESSAGE):
            positions = self.positions[start : start + POSITIONS_PER_MESSAGE]
            yield None, ReplayRequest(hub, positions, self.channel)


class Outbox:
    """What other workers must be sent, kept as marks and not as messages, so that it cannot grow while Redis is away.

    Of each turn only the highest event counts, and preview text is not copied, as the log has it. Text that could not
    be sent in time is sent later, together, in one message.
    """

    def __init__(self, hub: str, local: LocalHub, channel: str = "") -> None:
        self._hub = hub
        self._local = local
        self._channel = channel
        self._events: dict[TurnId, int] = {}
        self._takeovers: set[TurnId] = set()
        self._previewed: dict[TurnId, None] = {}
        self._sent: dict[TurnId, PreviewPosition] = {}
        self._positions: dict[TurnId, PreviewPosition] = {}
        self._last_words: list[PreviewNotice] = []
        """Text that was still to be sent when its event came. The log drops it; while Redis is away, so does this."""

    def mark_event(self, turn_id: TurnId, seq: int, *, is_takeover: bool = False) -> None:
        seq = max(seq, self._events.pop(turn_id, 0))
        self._events[turn_id] = seq
        if is_takeover:
            self._takeovers.add(turn_id)
        if len(self._events) > MAX_EVENT_NOTICES:
            oldest = next(iter(self._events))
            del self._events[oldest]
            self._takeovers.discard(oldest)

    def mark_preview(self, turn_id: TurnId) -> None:
        """The turn has new preview text."""
        self._previewed[turn_id] = None

    def end_preview(self, turn_id: TurnId) -> None:
        """An event follows the preview: keep what was not sent yet, for the next round."""
        if turn_id in self._previewed and len(self._last_words) < MAX_LAST_WORDS:
            del self._previewed[turn_id]
            self._last_words += self._unsent(turn_id)

    def repeat(self, position: PreviewPosition) -> None:
        """Send the preview again from this position on: a worker lacks the rest."""
        sent = self._sent.get(position.turn_id)
        if sent is None or sent.base != position.base or sent.offset > position.offset:
            self._sent[position.turn_id] = position
        self._previewed[position.turn_id] = None

    def ask(self, position: PreviewPosition) -> None:
        self._positions[position.turn_id] = position

    def forget(self, turn_id: TurnId) -> None:
        self._previewed.pop(turn_id, None)
        self._sent.pop(turn_id, None)

    def take(self) -> OutgoingBatch:
        """Take all that must be sent. Call `put_back` if it could not be sent."""
        batch = OutgoingBatch(
            channel=self._channel,
            events=self._events,
            takeovers=self._takeovers,
            sent_before=[],
            positions=tuple(self._positions.values()),
            previews=self._last_words,
        )
        for turn_id in self._previewed:
            batch.sent_before.append(self._sent.get(turn_id) or PreviewPosition(turn_id, 0, 0))
            batch.previews += self._unsent(turn_id)
        self._events, self._previewed, self._positions, self._last_words = {}, {}, {}, []
        self._takeovers = set()
        return batch

    def put_back(self, batch: OutgoingBatch) -> None:
        for turn_id, seq in batch.events.items():
            self.mark_event(turn_id, seq, is_takeover=turn_id in batch.takeovers)
        for position in batch.sent_before:
            if self._local.is_live(position.turn_id):
                self.repeat(position)
        for position in batch.positions:
            self._positions.setdefault(position.turn_id, position)

    def _unsent(self, turn_id: TurnId) -> list[PreviewNotice]:
        """The part of the preview that was not sent yet. It counts as sent now."""
        log = self._local.log_of(turn_id, live_only=True)
        preview = None if log is None else log.preview
        if preview is None:
            return []
        before = self._sent.get(turn_id)
        offset = before.offset if before is not None and before.base == preview.base else 0
        self._sent[turn_id] = PreviewPosition(turn_id, preview.base, preview.end)
        return [
            PreviewNotice(
                hub=self._hub,
                piece=PreviewPiece(
                    turn_id=turn_id,
                    attempt=preview.attempt,
                    base_seq=frame.seq,
                    offset=frame.start,
                    iteration=frame.iteration,
                    kind=frame.kind,
                    text=frame.text,
                ),
            )
            for frame in preview.after(offset)
        ]
