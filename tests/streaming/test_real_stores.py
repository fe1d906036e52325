"""Streams over the real databases: the same bytes from the hub, from the store, and a week later."""

import asyncio
from contextlib import aclosing

import pytest

from tests.store.databases import Database
from tests.store.factories import Tenant, a_conversation, begin, elsewhere, finish_tool_turn, stopped
from tests.streaming.turns import polled
from turnkeep.errors import InvalidRequest
from turnkeep.ids import TurnId
from turnkeep.streaming.follow import is_over
from turnkeep.streaming.formats import NativeEncoder
from turnkeep.streaming.frames import START, Cursor, parse_cursor
from turnkeep.streaming.hub import LocalHub
from turnkeep.streaming.ports import PreviewPiece
from turnkeep_client.wire.sse import ServerSentEvent, SseParser


async def read(
    database: Database,
    hub: LocalHub,
    turn_id: TurnId,
    cursor: Cursor = START,
    *,
    frames: list[ServerSentEvent] | None = None,
) -> list[ServerSentEvent]:
    """All to the end; `frames` shows meanwhile how far it has come."""
    encoder, parser, frames = NativeEncoder(), SseParser(), [] if frames is None else frames
    async with asyncio.timeout(30):
        async with aclosing(polled(database.store, hub, turn_id, cursor, seconds=0.05)) as batches:  # type: ignore[type-var]
            async for batch in batches:
                frames += parser.feed(b"".join(encoder.encode(frame) for frame in batch))
    return frames


def kinds(frames: list[ServerSentEvent]) -> list[str]:
    return [frame.event for frame in frames]


async def until_shown(frames: list[ServerSentEvent], *expected: str) -> None:
    async with asyncio.timeout(30):
        while kinds(frames) != [*expected]:  # noqa: ASYNC110 - nobody sets an event here
            await asyncio.sleep(0.005)


class TestARealTurn:
    async def test_live_by_polling_and_replayed_it_reads_the_same(self, database: Database, tenant: Tenant) -> None:
        hub = LocalHub()
        held = await begin(database.store, tenant.ann)
        shown: list[ServerSentEvent] = []
        live = asyncio.create_task(read(database, hub, held.turn_id, frames=shown))
        deaf = asyncio.create_task(read(database, LocalHub(), held.turn_id))
        await until_shown(shown, "turn")
        piece = PreviewPiece(
            turn_id=held.turn_id, attempt=1, base_seq=1, offset=0, iteration=1, kind="text", text="Let me look."
        )
        hub.preview(piece)
        await until_shown(shown, "turn", "delta")
        await finish_tool_turn(database.store, held)
        hub.publish(held.turn_id, await database.store.events(held.turn_id, after=1))
        with_preview, without = await live, await deaf
        assert kinds(with_preview) == ["turn", "delta", "tool_calls", "step", "step", "result"]
        durable = [frame for frame in with_preview if frame.event != "delta"]
        assert durable == without
        assert await read(database, LocalHub(), held.turn_id) == without
        for place, frame in enumerate(without):
            assert await read(database, LocalHub(), held.turn_id, parse_cursor(frame.id)) == without[place + 1 :]

    async def test_a_cursor_in_the_future_is_refused_and_the_end_is_known(
        self, database: Database, tenant: Tenant
    ) -> None:
        held = await begin(database.store, tenant.ann)
        with pytest.raises(InvalidRequest):
            await is_over(database.store, LocalHub(), held.turn_id, Cursor(2))
        assert not await is_over(database.store, LocalHub(), held.turn_id, Cursor(1))
        await database.store.settle(held, after=1, settlement=stopped(held))
        assert await is_over(database.store, LocalHub(), held.turn_id, Cursor(2))

    async def test_a_takeover_is_seen_by_readers_of_another_worker(self, database: Database, tenant: Tenant) -> None:
        held = await begin(database.store, tenant.ann)
        reading = asyncio.create_task(read(database, LocalHub(), held.turn_id))
        await database.store.hand_over([held])
        (adopted,) = await database.store.adopt("worker-2", lease_seconds=30, turn_id=held.turn_id)
        await database.store.settle(adopted.held, after=2, settlement=stopped(adopted.held))
        assert kinds(await reading) == ["turn", "reset", "error"]

    async def test_a_turn_of_another_worker_is_followed(self, database: Database, tenant: Tenant) -> None:
        conversation = await a_conversation(database.store, tenant.ann)
        turn = elsewhere(conversation.id, "Hello", "thinking", "Hi!")
        await database.store.append(tenant.service, conversation.id, turn)
        frames = await read(database, LocalHub(), turn.turn_id)
        assert kinds(frames)[0] == "turn"
        assert kinds(frames)[-1] == "result"
        assert await read(database, LocalHub(), turn.turn_id, parse_cursor("1")) == frames[1:]
