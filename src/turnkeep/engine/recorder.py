"""The recorder: the only writer of one turn while this worker holds it.

It numbers rows and events, keeps one write in flight, and publishes what is durable. Previews go out at once and are
kept only as the text of the current iteration.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal, Protocol, TypeVar

from msgspec import structs

from turnkeep.ids import ConversationId, TurnId
from turnkeep.model.messages import Message
from turnkeep.model.turns import Held
from turnkeep.model.waits import Wait
from turnkeep.store.commands import Receipt, Settled, Settlement, Taken
from turnkeep.streaming.ports import PreviewPiece, Publisher
from turnkeep_client.wire.display import Display, fold
from turnkeep_client.wire.events import LogLine, Recorded, TurnEvent

Written = TypeVar("Written")


class Journal(Protocol):
    """Where a recorder writes: the verbs of the store that it needs, with the same promises."""

    async def record(
        self,
        held: Held,
        *,
        after: int,
        rows: Sequence[Message] = (),
        events: Sequence[TurnEvent] = (),
        logs: Sequence[LogLine] = (),
    ) -> Receipt: ...

    async def settle(self, held: Held, *, after: int, settlement: Settlement) -> Settled: ...

    async def take_steers(self, held: Held, *, after: int, sequence: int) -> Taken: ...

    async def wait(self, held: Held, *, after: int, events: Sequence[TurnEvent], wait: Wait) -> bool: ...

    async def trusted_tools(self, conversation_id: ConversationId) -> frozenset[str]: ...


class Recorder:
    """Writes under one attempt. After LeaseLost or TurnSettled it must not be used any more."""

    def __init__(
        self,
        *,
        store: Journal,
        hub: Publisher,
        held: Held,
        events: Sequence[Recorded],
        rows: Sequence[Message],
        on_cancel_requested: Callable[[], None],
    ) -> None:
        self.held = held
        self.rows = list(rows)
        self.settled: Settled | None = None
        """How the turn ended, once that is durable; set also when the caller of `settle` was cancelled."""
        self.is_waiting = False
        """Whether the turn waits for answers. Then it is not held any more."""
        self.files_written = 0
        """How many files the turn's sandbox had written back at the time of the last write."""
        self.steers = 0
        """How many messages had been sent to steer the turn at the time of the last write."""
        self._store = store
        self._hub = hub
        self._events: list[TurnEvent] = [recorded.event for recorded in events]
        self._last_seq = events[-1].seq if events else 0
        self._next_sequence = rows[-1].turn_sequence + 1 if rows else 0
        self._on_cancel_requested = on_cancel_requested
        self._writing = asyncio.Lock()
        self._in_flight: asyncio.Task[Any] | None = None
        self._spoken: list[tuple[Literal["text", "reasoning"], str]] = []
        self._offset = 0

    @property
    def turn_id(self) -> TurnId:
        return self.held.turn_id

    @property
    def events(self) -> Sequence[TurnEvent]:
        return self._events

    @property
    def previewed_chars(self) -> int:
        return self._offset

    def display(self) -> Display:
        return fold(self._events)

    def preview(self, iteration: int, kind: Literal["text", "reasoning"], text: str) -> None:
        """Show these characters at once; they are not durable yet."""
        piece = PreviewPiece(
            turn_id=self.held.turn_id,
            attempt=self.held.attempt,
            base_seq=self._last_seq,
            offset=self._offset,
            iteration=iteration,
            kind=kind,
            text=text,
        )
        self._spoken.append((kind, text))
        self._offset += len(text)
        self._hub.preview(piece)

    def spoken(self, kind: Literal["text", "reasoning"]) -> str:
        """What was previewed since the last event."""
        return "".join(text for each, text in self._spoken if each == kind)

    async def record(
        self, *, rows: Sequence[Message] = (), events: Sequence[TurnEvent] = (), logs: Sequence[LogLine] = ()
    ) -> None:
        """Durable, then visible. A write that has begun is finished even if the caller is cancelled."""

        async def write() -> None:
            numbered = self._numbered(rows)
            receipt: Receipt = await self._store.record(
                self.held, after=self._last_seq, rows=numbered, events=events, logs=logs
            )
            self._recorded(numbered, events)
            self.files_written = receipt.files_written
            self.steers = receipt.steers
            if receipt.cancel_requested:
                self._on_cancel_requested()

        await self._finish(write)

    async def settle(self, settlement: Settlement) -> Settled:
        """End the turn, once."""

        async def write() -> Settled:
            rows = self._numbered(settlement.rows)
            final = settlement.final
            if final is not None:
                final = structs.replace(final, turn_sequence=self._next_sequence + len(rows))
            numbered = structs.replace(settlement, rows=tuple(rows), final=final)
            settled = await self._store.settle(self.held, after=self._last_seq, settlement=numbered)
            self.settled = settled
            self._recorded([*rows, *([final] if final else [])], (*settlement.events, settlement.terminal))
            return settled

        return await self._finish(write)

    async def wait(self, wait: Wait, events: Sequence[TurnEvent]) -> None:
        """Let the turn wait, unless a stop was requested. It is not held any more then, unless the wait says so."""

        async def write() -> None:
            if await self._store.wait(self.held, after=self._last_seq, events=events, wait=wait):
                self.is_waiting = wait.held_by is None
                self._recorded((), events)
            else:
                self._on_cancel_requested()

        await self._finish(write)

    async def take_steers(self) -> None:
        """Take the words that were sent to steer the turn into it."""

        async def write() -> None:
            taken = await self._store.take_steers(self.held, after=self._last_seq, sequence=self._next_sequence)
            self._recorded(taken.rows, taken.events)
            for turn_id, ending in taken.ended:
                self._hub.publish(turn_id, [ending])

        await self._finish(write)

    async def trusted_tools(self) -> frozenset[str]:
        """The tools whose calls need no decision in this conversation."""
        return await self._store.trusted_tools(self.held.conversation_id)

    async def quiesce(self) -> None:
        """Wait until no write is under way: each that was begun has succeeded or failed."""
        async with self._writing:
            pass

    async def _finish(self, write: Callable[[], Coroutine[Any, Any, Written]]) -> Written:
        async def one_at_a_time() -> Written:
            async with self._writing:
                return await write()

        self._in_flight = task = asyncio.create_task(one_at_a_time())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # The write goes on, and the settlement waits for it in `quiesce`. Its outcome is read here, so that asyncio
            # does not report a failure as never retrieved.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise

    def _numbered(self, rows: Sequence[Message]) -> list[Message]:
        return [structs.replace(row, turn_sequence=self._next_sequence + place) for place, row in enumerate(rows)]

    def _recorded(self, rows: Sequence[Message], events: Sequence[TurnEvent]) -> None:
        self.rows.extend(rows)
        self._next_sequence += len(rows)
        if not events:
            return
        recorded = [Recorded(seq=self._last_seq + place, event=event) for place, event in enumerate(events, start=1)]
        self._events.extend(events)
        self._last_seq += len(events)
        self._spoken.clear()
        self._offset = 0
        self._hub.publish(self.held.turn_id, recorded)
