"""Following a turn: subscribe, replay, then follow, relying on event numbers only."""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import aclosing

import pytest

from tests.streaming.turns import ListSource, Worker, polled
from turnkeep.errors import InvalidRequest, NotFound
from turnkeep.ids import TurnId, new_turn_id
from turnkeep.streaming.follow import PAGE, POLL_SECONDS, follow, is_over, poll
from turnkeep.streaming.frames import START, Cursor, DeltaFrame, EventFrame, Frame
from turnkeep.streaming.hub import LocalHub
from turnkeep_client.wire.events import Failure, Result

SOON = 0.01
PATIENCE_SECONDS = 30.0
"""For what takes a moment, unless it hangs or the machine is very busy."""


class Reading:
    """A reader in the background."""

    def __init__(
        self, source: ListSource, hub: LocalHub, worker: Worker, cursor: Cursor = START, poll: float = 60
    ) -> None:
        self.frames: list[Frame] = []
        self._batches = polled(source, hub, worker.turn_id, cursor, seconds=poll)
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with aclosing(self._batches) as batches:  # type: ignore[type-var]
            async for batch in batches:
                self.frames += batch

    def shown(self) -> list[int | str]:
        return [frame.text if isinstance(frame, DeltaFrame) else frame.seq for frame in self.frames]

    async def until(self, *shown: int | str) -> None:
        await eventually(lambda: self.shown() == [*shown])

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def eventually(claim: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not claim():  # noqa: ASYNC110 - nobody sets an event here
            await asyncio.sleep(0.001)


def ended(frames: Sequence[Frame]) -> bool:
    return isinstance(frames[-1], EventFrame) and frames[-1].is_terminal


class TestASettledTurn:
    async def test_it_is_replayed_from_the_store_and_ends(self, source: ListSource, worker: Worker) -> None:
        worker.answer()
        reading = Reading(source, LocalHub(), worker)
        await asyncio.wait_for(reading.task, PATIENCE_SECONDS)
        assert reading.shown() == [1, 2]
        assert ended(reading.frames)

    async def test_a_long_one_is_read_page_by_page_without_waiting(self, source: ListSource, worker: Worker) -> None:
        for _ in range(3 * PAGE):
            worker.step()
        worker.answer()
        reading = Reading(source, LocalHub(), worker, poll=60)
        await asyncio.wait_for(reading.task, PATIENCE_SECONDS)
        assert reading.shown() == list(range(1, 3 * PAGE + 3))
        assert source.reads == 4

    async def test_nothing_follows_its_terminal_event(self, source: ListSource, worker: Worker) -> None:
        worker.answer()
        assert await is_over(source, LocalHub(), worker.turn_id, Cursor(2))
        reading = Reading(source, LocalHub(), worker, Cursor(2))
        await asyncio.wait_for(reading.task, PATIENCE_SECONDS)
        assert reading.frames == []

    async def test_a_cursor_before_its_end_gets_the_rest(self, source: ListSource, worker: Worker) -> None:
        worker.step()
        worker.answer()
        assert not await is_over(source, LocalHub(), worker.turn_id, Cursor(2, 17))
        reading = Reading(source, LocalHub(), worker, Cursor(2, 17))
        await asyncio.wait_for(reading.task, PATIENCE_SECONDS)
        assert reading.shown() == [3]


class TestImpossibleCursors:
    @pytest.mark.parametrize("cursor", [Cursor(2), Cursor(2, 5), Cursor(999_999_999)])
    async def test_a_cursor_that_the_turn_has_not_reached(
        self, source: ListSource, worker: Worker, cursor: Cursor
    ) -> None:
        with pytest.raises(InvalidRequest):
            await is_over(source, LocalHub(), worker.turn_id, cursor)
        with pytest.raises(InvalidRequest):
            await anext(follow(source, LocalHub(), worker.turn_id, cursor))

    async def test_a_preview_after_the_end(self, source: ListSource, worker: Worker) -> None:
        worker.answer()
        with pytest.raises(InvalidRequest):
            await is_over(source, LocalHub(), worker.turn_id, Cursor(2, 1))

    async def test_a_preview_that_this_worker_has_not_published_yet(self, source: ListSource, worker: Worker) -> None:
        hub = LocalHub()
        hub.preview(worker.say("Hello"))
        for offset in (1, 5):
            assert not await is_over(source, hub, worker.turn_id, Cursor(1, offset))
        with pytest.raises(InvalidRequest, match="its text is still shorter"):
            await is_over(source, hub, worker.turn_id, Cursor(1, 6))
        hub.preview(worker.say("!"))
        assert not await is_over(source, hub, worker.turn_id, Cursor(1, 6))

    async def test_a_preview_that_another_worker_may_have_published_is_waited_for(
        self, source: ListSource, worker: Worker
    ) -> None:
        ahead = Cursor(1, 100)
        assert not await is_over(source, LocalHub(), worker.turn_id, ahead), "nothing is said here"
        listening, speaking = LocalHub(), LocalHub()
        speaking.preview(worker.say("Hello"))
        async with listening.subscribe(worker.turn_id):
            listening.add_remote_preview(worker.say(" there"))
            assert not await is_over(source, listening, worker.turn_id, ahead), "it is only overheard"
        speaking.forget(worker.turn_id)
        assert not await is_over(source, speaking, worker.turn_id, ahead), "it runs elsewhere now"

    async def test_a_preview_of_the_worker_that_took_over_is_waited_for(
        self, source: ListSource, worker: Worker
    ) -> None:
        hub = LocalHub()
        hub.preview(worker.say("Hello"))
        worker.take_over()
        hub.add_remote_preview(worker.say("Hel"))  # this worker does not know yet that the turn is no longer its own
        assert not await is_over(source, hub, worker.turn_id, Cursor(2, 5))

    async def test_a_turn_without_events(self, source: ListSource) -> None:
        with pytest.raises(NotFound):
            await is_over(source, LocalHub(), new_turn_id(), START)
        with pytest.raises(NotFound):
            await anext(follow(source, LocalHub(), new_turn_id()))


class TestALiveTurn:
    async def test_what_is_published_arrives_at_once_and_without_the_store(
        self, source: ListSource, worker: Worker
    ) -> None:
        hub = LocalHub()
        reading = Reading(source, hub, worker)
        await reading.until(1)
        reads = source.reads
        hub.preview(worker.say("Hel"))
        hub.preview(worker.say("lo"))
        await reading.until(1, "Hello")
        hub.publish(worker.turn_id, [worker.answer()])
        await asyncio.wait_for(reading.task, PATIENCE_SECONDS)
        assert reading.shown() == [1, "Hello", 2]
        assert source.reads == reads

    async def test_a_reader_that_finds_all_in_the_hub_does_not_ask_the_store(
        self, source: ListSource, worker: Worker
    ) -> None:
        hub = LocalHub()
        hub.preview(worker.say("Hello"))
        first = Reading(source, hub, worker)
        await first.until(1, "Hello")
        reads = source.reads
        second = Reading(source, hub, worker)
        await second.until(1, "Hello")
        assert source.reads == reads
        await first.stop()
        await second.stop()

    async def test_a_reader_in_the_middle_of_a_preview_gets_the_rest(self, source: ListSource, worker: Worker) -> None:
        hub = LocalHub()
        for text in ("Hel", "lo ", "world"):
            hub.preview(worker.say(text))
        reading = Reading(source, hub, worker, Cursor(1, 4))
        await reading.until("o world")
        await reading.stop()

    async def test_the_next_notice_makes_up_for_a_lost_one(self, source: ListSource, worker: Worker) -> None:
        hub = LocalHub()
        reading = Reading(source, hub, worker)
        await reading.until(1)
        worker.step()
        hub.publish(worker.turn_id, [worker.step()])
        await reading.until(1, 2, 3)
        await reading.stop()

    async def test_a_preview_after_an_unannounced_event_makes_the_reader_read_the_store(
        self, source: ListSource, worker: Worker
    ) -> None:
        hub = LocalHub()
        reading = Reading(source, hub, worker)
        await reading.until(1)
        worker.step()
        hub.preview(worker.say("Hello"))
        await reading.until(1, 2, "Hello")
        await reading.stop()

    async def test_a_reader_who_has_read_the_store_gets_the_preview_that_was_there_before(
        self, source: ListSource, worker: Worker
    ) -> None:
        """The hub has only the last event: the turn was adopted while another reader waited for it."""
        hub = LocalHub()
        async with hub.subscribe(worker.turn_id):
            hub.publish(worker.turn_id, [worker.step()])
            hub.preview(worker.say("Hello"))
            reading = Reading(source, hub, worker)
            await reading.until(1, 2, "Hello")
            await reading.stop()

    async def test_without_notices_the_store_is_polled(self, source: ListSource, worker: Worker) -> None:
        reading = Reading(source, LocalHub(), worker, poll=SOON)
        await reading.until(1)
        worker.step()
        await reading.until(1, 2)
        worker.answer()
        await asyncio.wait_for(reading.task, PATIENCE_SECONDS)
        assert reading.shown() == [1, 2, 3]

    async def test_after_lost_notices_readers_read_the_store(self, source: ListSource, worker: Worker) -> None:
        hub = LocalHub()
        reading = Reading(source, hub, worker)
        await reading.until(1)
        worker.step()
        hub.require_read(worker.turn_id)
        await reading.until(1, 2)
        reads = source.reads
        hub.preview(worker.say("Hello"))
        await reading.until(1, 2, "Hello")
        assert source.reads == reads
        await reading.stop()

    async def test_readers_read_the_store_while_a_worker_that_lost_the_turn_publishes(
        self, source: ListSource, worker: Worker
    ) -> None:
        hub = LocalHub()
        reading = Reading(source, hub, worker, poll=SOON)
        await reading.until(1)
        worker.take_over()
        worker.answer()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not reading.task.done():
                hub.preview(worker.say_late(1, 1, "x"))
                await asyncio.sleep(0)
        assert [one for one in reading.shown() if one != "x"] == [1, 2, 3]

    async def test_readers_read_the_store_when_they_are_always_behind(self, source: ListSource, worker: Worker) -> None:
        hub, seqs = LocalHub(), []

        async def talk() -> None:
            while True:
                hub.preview(worker.say_late(1, 1, "x"))
                await asyncio.sleep(0)

        following = polled(source, hub, worker.turn_id, seconds=SOON)
        async with asyncio.timeout(PATIENCE_SECONDS), aclosing(following) as batches:  # type: ignore[type-var]
            talking = asyncio.create_task(talk())
            async for batch in batches:
                seqs += [frame.seq for frame in batch if isinstance(frame, EventFrame)]
                if len(seqs) == 1 and worker.seq == 1:
                    worker.take_over()
                    worker.answer()
                await asyncio.sleep(2 * SOON)
        talking.cancel()
        assert seqs == [1, 2, 3]

    async def test_an_announced_event_that_is_missing_is_read_less_and_less_often(
        self, source: ListSource, worker: Worker
    ) -> None:
        hub = LocalHub()
        reading = Reading(source, hub, worker, poll=60)
        await reading.until(1)
        before, now = source.reads, asyncio.get_running_loop().time
        began = now()
        for _ in range(200):
            hub.note_event(worker.turn_id, 7)
            await asyncio.sleep(0.0005)
        # At once, and then after 50 ms, 100 ms, 200 ms …: each pause is twice the one before.
        most = 2 + math.log2(1 + (now() - began) / 0.05)
        assert 1 <= source.reads - before <= most
        worker.answer()
        await asyncio.wait_for(reading.task, PATIENCE_SECONDS)
        assert reading.shown() == [1, 2]

    async def test_the_store_is_polled_every_two_seconds(self) -> None:
        assert POLL_SECONDS == 2.0


class TestAnErasedTurn:
    async def test_ends_its_readers_with_an_error(self, source: ListSource, worker: Worker) -> None:
        hub = LocalHub()
        reading = Reading(source, hub, worker, poll=SOON)
        await reading.until(1)
        del source.turns[worker.turn_id]
        await asyncio.wait_for(reading.task, PATIENCE_SECONDS)
        assert reading.shown() == [1, 2]
        [*_, last] = reading.frames
        assert isinstance(last, EventFrame)
        assert isinstance(last.recorded.event, Failure)
        assert last.recorded.event.code == "not_found"
        assert hub.turn_count == 0

    async def test_ends_readers_who_wait_for_an_event_that_was_announced(
        self, source: ListSource, worker: Worker
    ) -> None:
        hub = LocalHub()
        reading = Reading(source, hub, worker, poll=SOON)
        await reading.until(1)
        del source.turns[worker.turn_id]
        hub.note_event(worker.turn_id, 5)
        await asyncio.wait_for(reading.task, PATIENCE_SECONDS)
        assert reading.shown() == [1, 2]
        assert ended(reading.frames)

    async def test_gives_its_readers_what_the_hub_still_has(self, source: ListSource, worker: Worker) -> None:
        hub = LocalHub()
        reading = Reading(source, hub, worker, poll=SOON)
        await reading.until(1)
        terminal = worker.answer()
        del source.turns[worker.turn_id]
        hub.publish(worker.turn_id, [terminal])
        await asyncio.wait_for(reading.task, PATIENCE_SECONDS)
        assert reading.shown() == [1, 2]
        [*_, last] = reading.frames
        assert isinstance(last, EventFrame)
        assert isinstance(last.recorded.event, Result)


class TestIdleReaders:
    async def test_cost_the_store_one_statement_for_all_of_them(self, source: ListSource) -> None:
        hub, workers = LocalHub(), [Worker(source) for _ in range(20)]
        for worker in workers:
            worker.begin()
        readings = [Reading(source, hub, worker) for worker in workers for _ in range(3)]
        for reading in readings:
            await reading.until(1)
        reads = source.reads
        polling = asyncio.create_task(poll(source, hub, seconds=SOON))
        await eventually(lambda: source.polls >= 10)
        assert source.reads == reads, "nothing was recorded, so no reader reads"
        for worker in workers:
            worker.step()
        for reading in readings:
            await reading.until(1, 2)
        assert source.reads == reads + len(workers), "readers of one turn share a read"
        polling.cancel()
        for reading in readings:
            await reading.stop()

    async def test_leave_out_turns_that_this_worker_holds(self, source: ListSource, worker: Worker) -> None:
        hub, is_held = LocalHub(), True
        reading = Reading(source, hub, worker)
        await reading.until(1)
        polling = asyncio.create_task(poll(source, hub, holds=lambda _: is_held, seconds=0.001))
        await asyncio.sleep(0.05)
        assert source.polls == 0
        is_held = False  # another worker has taken it over
        worker.step()
        await reading.until(1, 2)
        assert source.polls
        polling.cancel()
        await reading.stop()

    async def test_do_not_exist_without_a_statement(self, source: ListSource) -> None:
        polling = asyncio.create_task(poll(source, LocalHub(), seconds=0.001))
        await asyncio.sleep(0.05)
        polling.cancel()
        assert source.polls == 0

    async def test_a_poll_that_fails_is_followed_by_the_next_one(
        self, source: ListSource, worker: Worker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def broken(*_: object) -> dict[TurnId, int]:
            raise RuntimeError("a bug")

        reading = Reading(source, LocalHub(), worker, poll=SOON)
        await reading.until(1)
        with monkeypatch.context() as patched:
            patched.setattr(source, "last_seqs", broken)
            await asyncio.sleep(3 * SOON)
        worker.step()
        await reading.until(1, 2)
        await reading.stop()


class TestAReaderThatTakesAtOnce:
    """`take` is how a stream writes preview text without waking its task."""

    async def test_is_given_text_at_the_moment_it_is_published(self, source: ListSource, worker: Worker) -> None:
        hub, taken = LocalHub(), []

        def take(frame: DeltaFrame) -> bool:
            taken.append(frame.text)
            return True

        frames: list[Frame] = []

        async def read() -> None:
            async for batch in follow(source, hub, worker.turn_id, take=take):
                frames.extend(batch)

        reading = asyncio.create_task(read())
        await eventually(lambda: len(frames) == 1)
        await asyncio.sleep(0)
        hub.preview(worker.say("Hel"))
        assert taken == ["Hel"], "no other task had to run"
        for text in ("lo ", "wor", "ld"):
            hub.preview(worker.say(text))
        assert taken == ["Hel"], "one write in each round of the event loop"
        await eventually(lambda: taken == ["Hel", "lo world"])
        hub.publish(worker.turn_id, [worker.answer()])
        await asyncio.wait_for(reading, PATIENCE_SECONDS)
        assert [frame.seq for frame in frames] == [1, 2], "what was taken is in no batch"

    @pytest.mark.parametrize("accepted", [0, 1, 5])
    async def test_gets_in_batches_what_it_does_not_take(
        self, source: ListSource, worker: Worker, accepted: int
    ) -> None:
        hub = LocalHub()
        words: list[str] = []

        def take(frame: DeltaFrame) -> bool:
            if len(words) >= accepted:
                if accepted == 5:
                    raise RuntimeError("a bug in the reader must not reach the engine")
                return False
            words.append(frame.text)
            return True

        async def read() -> None:
            async for batch in follow(source, hub, worker.turn_id, take=take):
                words.extend(frame.text for frame in batch if isinstance(frame, DeltaFrame))

        reading = asyncio.create_task(read())
        for number in range(20):
            hub.preview(worker.say(f"{number} "))
            await asyncio.sleep(0.001)
        await eventually(lambda: "".join(words) == worker.spoken[1])
        hub.publish(worker.turn_id, [worker.answer()])
        await asyncio.wait_for(reading, PATIENCE_SECONDS)
        assert "".join(words) == worker.spoken[1]


class TestAStoreThatIsAway:
    async def test_the_reader_waits_and_goes_on(
        self, source: ListSource, worker: Worker, caplog: pytest.LogCaptureFixture
    ) -> None:
        reading = Reading(source, LocalHub(), worker, poll=SOON)
        await reading.until(1)
        source.is_away = True
        worker.answer()
        with caplog.at_level(logging.WARNING):
            await eventually(lambda: "cannot say" in caplog.text)
        assert not reading.task.done()
        source.is_away = False
        await asyncio.wait_for(reading.task, PATIENCE_SECONDS)
        assert reading.shown() == [1, 2]

    async def test_an_announced_event_is_read_less_and_less_often(self, source: ListSource, worker: Worker) -> None:
        hub = LocalHub()
        reading = Reading(source, hub, worker)
        await reading.until(1)
        source.is_away = True
        reads, now = source.reads, asyncio.get_running_loop().time
        began = now()
        worker.answer()
        hub.note_event(worker.turn_id, 2)
        await asyncio.sleep(0.2)
        assert 1 <= source.reads - reads <= 2 + math.log2(1 + (now() - began) / 0.04)
        source.is_away = False
        await asyncio.wait_for(reading.task, PATIENCE_SECONDS)
        assert reading.shown() == [1, 2]

    async def test_a_reader_whose_store_lags_gets_the_rest_when_it_comes(
        self, source: ListSource, worker: Worker
    ) -> None:
        """The store has event 2 before event 3, which was announced already."""
        hub = LocalHub()
        reading = Reading(source, hub, worker)
        await reading.until(1)
        source.is_away = True
        worker.call_tool()
        reads = source.reads
        hub.note_event(worker.turn_id, 3)
        await eventually(lambda: source.reads > reads)
        source.is_away = False
        await reading.until(1, 2)
        worker.answer()
        await asyncio.wait_for(reading.task, PATIENCE_SECONDS)
        assert reading.shown() == [1, 2, 3]

    async def test_a_new_reader_waits_too(self, source: ListSource, worker: Worker) -> None:
        source.is_away = True
        reading = Reading(source, LocalHub(), worker, poll=SOON)
        await eventually(lambda: source.reads >= 2)
        assert reading.frames == []
        source.is_away = False
        await reading.until(1)
        await reading.stop()


async def test_a_reader_who_leaves_leaves_nothing_behind(source: ListSource, worker: Worker) -> None:
    hub = LocalHub()
    reading = Reading(source, hub, worker)
    await reading.until(1)
    assert hub.turn_count == 1
    await reading.stop()
    assert hub.turn_count == 0
