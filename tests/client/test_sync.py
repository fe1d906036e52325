"""The sync face: the same verbs and the same answers, without a loop."""

import asyncio
import inspect
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.api.harness import OPERATOR_KEY
from tests.client.site import Site, rounds_of
from turnkeep.client import AsyncTurnkeep, Delta, Result, Stream, Turnkeep, TurnStopped
from turnkeep.errors import NotFound
from turnkeep.providers.scripted import Call, Script, Until
from turnkeep_client.stream import Event


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A server in a loop and a thread of its own, so that the test may block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    site = Site(tmp_path)
    asyncio.run_coroutine_threadsafe(site.start(), loop).result()
    try:
        yield site
    finally:
        asyncio.run_coroutine_threadsafe(site.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def turnkeep(site: Site) -> Iterator[Turnkeep]:
    with Turnkeep(site.url, OPERATOR_KEY) as client:
        yield client


class TestTheSyncFace:
    def test_asks_and_lists(self, turnkeep: Turnkeep) -> None:
        answer = turnkeep.ask("Hello?")
        assert answer.text == "Hello there."
        assert [one.id for one in turnkeep.conversations.list()] == [answer.conversation_id]
        assert turnkeep.turns.get(answer.turn_id).status == "succeeded"
        with pytest.raises(NotFound):
            turnkeep.conversations.get("conv_" + "0" * 32)

    def test_streams_events_and_words(self, turnkeep: Turnkeep) -> None:
        with turnkeep.stream("Hello?") as stream:
            events = list(stream)
            assert stream.text == stream.result().text == "Hello there."
        assert isinstance(events[-1], Result)
        assert "Hello there.".startswith("".join(turnkeep.stream("Hello?").words()))
        assert turnkeep.turns.follow(stream.turn_id or "").settled().text == "Hello there."

    def test_stops_a_turn_in_the_middle_of_its_events(self, site: Site, turnkeep: Turnkeep) -> None:
        site.model = lambda request: ["Well, ", Until(asyncio.Event().wait)]
        with turnkeep.stream("Really?") as stream:
            for event in stream:
                if isinstance(event, Delta):
                    stream.cancel()
            with pytest.raises(TurnStopped):
                stream.result()

    def test_a_step_that_was_interrupted_is_not_lost(self, site: Site, turnkeep: Turnkeep) -> None:
        gate = threading.Event()
        site.model = lambda request: ["One ", Until(lambda: asyncio.to_thread(gate.wait)), "two."]
        with turnkeep.stream("Count!") as stream:
            while not stream.text:
                next(stream)
            items = stream._items
            assert items is not None
            items._pending = items._loop.submit(anext_of(items._source))  # what Ctrl-C leaves behind
            gate.set()
            assert [type(event) for event in stream if not isinstance(event, Delta)] == [Result]
            assert stream.text == "One two."

    def test_a_reader_in_another_thread_can_be_ended(self, site: Site, turnkeep: Turnkeep) -> None:
        """Again and again, because a stream that is closed between two of its events is opened again."""
        site.model = lambda request: ["Well, ", Until(asyncio.Event().wait)]
        with turnkeep.stream("Really?", background=True) as stream:
            turn_id = stream.started()
        for _ in range(20):
            other, has_begun = turnkeep.turns.follow(turn_id), threading.Event()

            def read(other: Stream = other, has_begun: threading.Event = has_begun) -> None:
                with suppress(CancelledError):
                    for _ in other:
                        has_begun.set()

            reading = threading.Thread(target=read)
            reading.start()
            has_begun.wait(40)
            until = time.monotonic() + 40
            while reading.is_alive():
                assert time.monotonic() < until
                with suppress(RuntimeError):  # it is just being opened
                    other.close()
                reading.join(0.1)
        turnkeep.turns.cancel(turn_id)

    def test_ctrl_c_reaches_the_caller_at_once_and_loses_nothing(self, site: Site, turnkeep: Turnkeep) -> None:
        """A real signal, while the caller waits for the next event, and again while it waits for an answer."""
        gate, said = threading.Event(), list[str]()
        first: Script = ["One.", Until(lambda: asyncio.to_thread(gate.wait)), Call("lookup", {"city": "Bern"})]
        site.model = lambda request: ["Two."] if rounds_of(request) else first
        with turnkeep.stream("Count!", background=True) as stream:
            while not stream.text:
                next(stream)
            with interrupted(), pytest.raises(KeyboardInterrupt):
                next(stream)
            with interrupted(), pytest.raises(KeyboardInterrupt):
                turnkeep.turns.wait(stream.turn_id or "")
            gate.set()
            said += [type(event).__name__ for event in stream if not isinstance(event, Delta)]
            assert stream.result().text == "Two."
        assert said == ["ToolCalls", "Step", "Step", "Result"], "each event once"
        assert turnkeep.ask("Still there?").text == "Two."

    def test_has_every_verb_of_the_async_one(self, site: Site, turnkeep: Turnkeep) -> None:
        asynchronous = AsyncTurnkeep(site.url, OPERATOR_KEY)
        groups = [name for name, value in vars(asynchronous).items() if not name.startswith("_")]
        for group in groups:
            theirs, ours = getattr(asynchronous, group), getattr(turnkeep, group)
            verbs = [name for name, value in inspect.getmembers(theirs, callable) if not name.startswith("_")]
            assert [verb for verb in verbs if not callable(getattr(ours, verb, None))] == [], group
        asyncio.run(asynchronous.close())


@contextmanager
def interrupted() -> Iterator[None]:
    """Ctrl-C, a moment from now, in the thread that waits; also where the tests themselves do not hear it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.3, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    timer.start()
    try:
        yield
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)


async def anext_of(source: AsyncIterator[Event]) -> Event:
    return await anext(source)
