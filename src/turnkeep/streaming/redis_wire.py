"""What workers tell each other through Redis, and what waits to be told. No I/O.

Three messages: an event is durable (`Woke`), words were spoken (`Said`), and somebody wants to hear a turn from some
place on (`Asked`). None of them is a fact that the store lacks, so each may be lost.
"""

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from turnkeep.ids import TurnId
from turnkeep.streaming.hub import LocalHub
from turnkeep.streaming.ports import PreviewPiece

MOST_WAKE_UPS = 10_000
"""Wake-ups kept while Redis is away, one per turn; the oldest are dropped, as their readers poll the store."""

PLACES_IN_ONE = 500


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
