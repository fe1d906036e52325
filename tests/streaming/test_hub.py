"""The hub of one process: shared logs, positions instead of queues, and bounded memory."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.streaming.turns import ListSource, Worker
from turnkeep.errors import Unavailable
from turnkeep.streaming import hub as log_module
from turnkeep.streaming.frames import DeltaFrame, EventFrame, Frame
from turnkeep.streaming.hub import TAIL_BYTES, TAIL_EVENTS, TAIL_PIECES, LocalHub, LocalSubscription, TurnLog


@pytest.fixture
def worker(source: ListSource) -> Worker:
    return Worker(source)


@pytest.fixture
async def hub() -> AsyncIterator[LocalHub]:
    hub = LocalHub()
    yield hub
    await hub.close()


def texts(frames: object) -> list[str]:
    assert isinstance(frames, list | tuple)
    return [frame.text for frame in frames if isinstance(frame, DeltaFrame)]


def seqs(frames: object) -> list[int]:
    assert isinstance(frames, list | tuple)
    return [frame.seq for frame in frames if isinstance(frame, EventFrame)]


async def heard(subscription: LocalSubscription, seconds: float = 0.01) -> bool:
    return await subscription.wait(asyncio.get_running_loop().time() + seconds)


class TestSubscriptions:
    async def test_a_reader_gets_events_and_previews(self, hub: LocalHub, worker: Worker) -> None:
        async with hub.subscribe(worker.turn_id) as subscription:
            hub.publish(worker.turn_id, [worker.begin()])
            hub.preview(worker.say("Hello "))
            hub.preview(worker.say("world"))
            assert await heard(subscription)
            frames = subscription.frames(0, 0)
            assert (seqs(frames), texts(frames)) == ([1], ["Hello world"])
            assert subscription.frames(1, 11) == ()

    async def test_a_wait_ends_with_news_or_at_its_deadline(self, hub: LocalHub, worker: Worker) -> None:
        async with hub.subscribe(worker.turn_id) as subscription:
            assert not await heard(subscription, 0.02)
            waiting = asyncio.ensure_future(subscription.wait(asyncio.get_running_loop().time() + 30))
            hub.publish(worker.turn_id, [worker.begin()])
            assert await asyncio.wait_for(waiting, 20)

    async def test_a_wait_that_is_followed_by_a_shorter_one_does_not_delay_it(
        self, hub: LocalHub, worker: Worker
    ) -> None:
        loop = asyncio.get_running_loop()
        async with hub.subscribe(worker.turn_id) as subscription:
            long = asyncio.ensure_future(subscription.wait(loop.time() + 30))
            hub.publish(worker.turn_id, [worker.begin()])
            assert await long
            subscription.frames(0, 0)
            began = loop.time()
            assert not await heard(subscription, 0.02)
            assert loop.time() - began < 5

    async def test_news_between_two_waits_is_not_missed(self, hub: LocalHub, worker: Worker) -> None:
        async with hub.subscribe(worker.turn_id) as subscription:
            subscription.frames(0, 0)
            hub.publish(worker.turn_id, [worker.begin()])
            assert await heard(subscription, 60)
            subscription.frames(0, 0)
            assert not await heard(subscription, 0)

    async def test_readers_of_other_turns_are_not_woken(
        self, hub: LocalHub, worker: Worker, source: ListSource
    ) -> None:
        other = Worker(source)
        async with hub.subscribe(other.turn_id) as subscription:
            hub.publish(worker.turn_id, [worker.begin()])
            hub.preview(worker.say("Hello"))
            assert not await heard(subscription, 0)
            assert subscription.frames(0, 0) == ()


class TestPositions:
    async def test_a_reader_in_the_middle_of_a_piece_gets_the_rest_of_it(self, hub: LocalHub, worker: Worker) -> None:
        worker.begin()
        async with hub.subscribe(worker.turn_id) as subscription:
            for text in ("Hel", "lo ", "wörld"):
                hub.preview(worker.say(text))
            assert texts(subscription.frames(1, 4)) == ["o wörld"]
            assert texts(subscription.frames(1, 7)) == ["örld"]

    async def test_a_reader_far_behind_gets_what_it_lacks_in_one_frame_for_each_kind(
        self, hub: LocalHub, worker: Worker
    ) -> None:
        worker.begin()
        async with hub.subscribe(worker.turn_id) as subscription:
            for number in range(150):
                hub.preview(worker.say(f"{number} ", "reasoning"))
            for number in range(150):
                hub.preview(worker.say(f"{number} "))
            frames = subscription.frames(1, 7)
            assert [frame.kind for frame in frames if isinstance(frame, DeltaFrame)] == ["reasoning", "text"]
            assert "".join(texts(frames)) == worker.spoken[1][7:]
            assert [frame.offset for frame in frames][-1] == len(worker.spoken[1])

    async def test_every_position_gives_exactly_the_text_after_it(self, hub: LocalHub, worker: Worker) -> None:
        worker.begin()
        async with hub.subscribe(worker.turn_id) as subscription:
            for number in range(2 * TAIL_PIECES + 10):
                hub.preview(worker.say(f"{number % 7}" * (1 + number % 3)))
            whole = worker.spoken[1]
            for offset in range(len(whole) + 1):
                frames = subscription.frames(1, offset)
                assert "".join(texts(frames)) == whole[offset:]
                place = offset
                for frame in frames:
                    assert isinstance(frame, DeltaFrame)
                    assert frame.start == place
                    place = frame.offset

    async def test_a_reader_behind_the_tail_must_read_the_store(self, hub: LocalHub, worker: Worker) -> None:
        async with hub.subscribe(worker.turn_id) as subscription:
            hub.publish(worker.turn_id, [worker.begin()])
            for _ in range(TAIL_EVENTS):
                hub.publish(worker.turn_id, [worker.step()])
            assert subscription.frames(0, 0) == ()
            assert subscription.head == TAIL_EVENTS + 1
            assert seqs(subscription.frames(TAIL_EVENTS - 1, 0)) == [TAIL_EVENTS, TAIL_EVENTS + 1]

    async def test_a_preview_is_dropped_once_an_event_follows_it(self, hub: LocalHub, worker: Worker) -> None:
        async with hub.subscribe(worker.turn_id) as subscription:
            hub.publish(worker.turn_id, [worker.begin()])
            late = worker.say("Hello")
            hub.preview(late)
            hub.publish(worker.turn_id, [worker.take_over()])
            hub.preview(late)
            frames = subscription.frames(1, 0)
            assert (seqs(frames), texts(frames)) == ([2], [])

    async def test_a_reader_that_was_behind_gets_the_rest_of_the_text_before_the_event(
        self, hub: LocalHub, worker: Worker
    ) -> None:
        hub.publish(worker.turn_id, [worker.begin()])
        async with hub.subscribe(worker.turn_id) as subscription:
            hub.publish(worker.turn_id, [worker.step()])
            for text in ("Hel", "lo ", "world"):
                hub.preview(worker.say(text))
            hub.publish(worker.turn_id, [worker.call_tool(), worker.step()])
            for seq, offset, rest in ((2, 4, ["o world"]), (2, 11, []), (1, 0, ["Hello world"])):
                frames = subscription.frames(seq, offset)
                assert texts(frames) == rest
                assert seqs(frames) == list(range(seq + 1, 5))
                assert [frame.seq for frame in frames] == sorted(frame.seq for frame in frames)
            hub.preview(worker.say("Next"))
            assert texts(subscription.frames(2, 4)) == ["Next"], "memory holds one answer, not two"

    async def test_text_that_was_dropped_is_not_shown_any_more(self, hub: LocalHub, worker: Worker) -> None:
        hub.publish(worker.turn_id, [worker.begin()])
        async with hub.subscribe(worker.turn_id) as subscription:
            hub.preview(worker.say("Hello"))
            hub.publish(worker.turn_id, [worker.start_again()])
            assert texts(subscription.frames(1, 2)) == []

    async def test_a_preview_announces_the_event_that_it_follows(self, hub: LocalHub, worker: Worker) -> None:
        async with hub.subscribe(worker.turn_id) as subscription:
            worker.begin()
            hub.preview(worker.say("Hello"))
            assert subscription.head == 1
            assert subscription.frames(0, 0) == ()

    async def test_another_attempt_on_the_same_event_is_not_mixed_in(self, hub: LocalHub, worker: Worker) -> None:
        worker.begin()
        async with hub.subscribe(worker.turn_id) as subscription:
            hub.preview(worker.say("Hello"))
            hub.preview(worker.say_late(1, 7, " there"))
            assert texts(subscription.frames(1, 0)) == ["Hello"]


class TestSharing:
    async def test_all_readers_are_given_the_same_frames(self, hub: LocalHub, worker: Worker) -> None:
        async with hub.subscribe(worker.turn_id) as ann, hub.subscribe(worker.turn_id) as bob:
            hub.publish(worker.turn_id, [worker.begin()])
            hub.preview(worker.say("Hello"))
            pairs = zip(ann.frames(0, 0), bob.frames(0, 0), strict=True)
            assert [one is other for one, other in pairs] == [True, True]

    async def test_readers_who_need_the_same_page_share_one_read(
        self, hub: LocalHub, worker: Worker, source: ListSource
    ) -> None:
        worker.begin()
        async with hub.subscribe(worker.turn_id) as ann, hub.subscribe(worker.turn_id) as bob:
            found = await asyncio.gather(
                *(subscription.read(source, after=0, limit=9) for subscription in (ann, bob, ann))
            )
            assert [seqs(frames) for frames in found] == [[1], [1], [1]]
            assert source.reads == 1
            assert seqs(bob.frames(0, 0)) == [1]

    async def test_a_reader_who_leaves_does_not_cancel_the_read(
        self, hub: LocalHub, worker: Worker, source: ListSource
    ) -> None:
        worker.begin()
        async with hub.subscribe(worker.turn_id) as ann, hub.subscribe(worker.turn_id) as bob:
            reads = [asyncio.ensure_future(subscription.read(source, after=0, limit=9)) for subscription in (ann, bob)]
            await asyncio.sleep(0)
            reads[0].cancel()
            assert seqs(await reads[1]) == [1]

    async def test_a_failed_read_raises_for_all_and_is_not_remembered(
        self, hub: LocalHub, worker: Worker, source: ListSource
    ) -> None:
        worker.begin()
        source.is_away = True
        async with hub.subscribe(worker.turn_id) as subscription:
            failed = await asyncio.gather(
                *(subscription.read(source, after=0, limit=9) for _ in "ab"), return_exceptions=True
            )
            assert [type(one) for one in failed] == [Unavailable, Unavailable]
            source.is_away = False
            assert seqs(await subscription.read(source, after=0, limit=9)) == [1]


class TestMemory:
    async def test_a_log_holds_the_text_once_and_a_short_tail(self) -> None:
        worker, log = Worker(ListSource()), TurnLog()
        worker.begin()
        for number in range(5_000):
            log.add_preview(worker.say(f"word {number} "))
            assert log.preview is not None
            kept = [*log.preview._joined, *log.preview._pieces]
            assert len(kept) <= 2 * TAIL_PIECES + number / TAIL_PIECES
            assert sum(len(frame.text) for frame in kept) == len(worker.spoken[1])

    async def test_large_events_do_not_stay(self) -> None:
        worker, log = Worker(ListSource()), TurnLog()
        log.add(log_module.frames_of([worker.begin()]))
        for _ in range(20):
            worker.say("x" * 10_000)
            log.add(log_module.frames_of([worker.call_tool()]))
            kept: list[Frame] = list(log._events)
            assert sum(len(frame.native or b"") for frame in kept) <= TAIL_BYTES
        assert log.head == 21

    async def test_the_last_event_stays_however_large(self) -> None:
        worker, log = Worker(ListSource()), TurnLog()
        worker.begin()
        worker.say("x" * 2 * TAIL_BYTES)
        log.add(log_module.frames_of([worker.call_tool()]))
        assert [frame.seq for frame in log.frames(1, 0)] == [2]

    async def test_nothing_is_kept_of_a_turn_without_worker_and_readers(self, hub: LocalHub, worker: Worker) -> None:
        hub.publish(worker.turn_id, [worker.begin()])
        assert hub.turn_count == 1, "this process runs it"
        hub.forget(worker.turn_id)
        assert hub.turn_count == 0
        hub.preview(worker.say("Hello"))
        assert hub.turn_count == 1
        hub.forget(worker.turn_id)
        hub.publish(worker.turn_id, [worker.call_tool()])
        assert hub.turn_count == 0
        async with hub.subscribe(worker.turn_id):
            assert hub.turn_count == 1
        assert hub.turn_count == 0

    async def test_a_turn_that_ended_is_dropped(self, hub: LocalHub, worker: Worker) -> None:
        worker.begin()
        hub.preview(worker.say("Hello"))
        async with hub.subscribe(worker.turn_id) as subscription:
            hub.publish(worker.turn_id, [worker.answer()])
            assert seqs(subscription.frames(1, 5)) == [2]
        assert hub.turn_count == 0

    async def test_a_forgotten_preview_is_dropped_for_current_readers(self, hub: LocalHub, worker: Worker) -> None:
        worker.begin()
        hub.preview(worker.say("Hello"))
        async with hub.subscribe(worker.turn_id) as subscription:
            assert texts(subscription.frames(1, 0)) == ["Hello"]
            hub.forget(worker.turn_id)
            assert subscription.frames(1, 0) == ()


async def test_half_a_surrogate_pair_becomes_a_replacement_character(hub: LocalHub, worker: Worker) -> None:
    worker.begin()
    async with hub.subscribe(worker.turn_id) as subscription:
        hub.preview(worker.say("a\ud83d"))
        hub.preview(worker.say("b"))
        assert texts(subscription.frames(1, 0)) == ["a\ufffdb"]
