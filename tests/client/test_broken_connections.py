"""A reader loses nothing but time: whatever happens to the connection, the same text and the same events."""

import asyncio
import random
from pathlib import Path

import pytest

from tests.client.proxy import Budget, CuttingProxy
from tests.client.site import Site, rounds_of, running, words
from turnkeep.client import AsyncTurnkeep, ConnectionLost, Delta, Reset, Result, Trouble, TurnBegan
from turnkeep.errors import NotFound, Unavailable
from turnkeep.providers.ports import ModelRequest
from turnkeep.providers.scripted import Call, Pause, Script, Think, Until
from turnkeep_client.stream import Event

PATIENCE_SECONDS = 30.0
WORDS = 25


def chatty(request: ModelRequest) -> Script:
    """Thinks, calls a tool in two rounds, and says a lot, a word at a time."""
    paced = [line for word in words(WORDS) for line in (word, Pause(0.01))]
    if (done := rounds_of(request)) < 2:
        return [Think("hmm, "), *paced, Call("lookup", {"city": f"Bern {done}"}), Call("lookup", {"city": "Thun"})]
    return [Think("so "), *paced, *paced, "done."]


async def durable(client: AsyncTurnkeep, turn_id: str) -> list[Event]:
    """What a reader has who comes when all is over and is not disturbed."""
    return [event async for event in client.turns.follow(turn_id) if not isinstance(event, Delta)]


def anywhere(chance: random.Random) -> Budget:
    """A cut in the headers, in one of the first frames, or later: now and then a long frame must fit."""
    return lambda nth: chance.choice(
        [
            chance.randrange(300),
            chance.randrange(300, 2_000),
            chance.randrange(300, 2_000),
            chance.randrange(300, 20_000),
        ]
    )


async def read_in_pieces(site: Site, chance: random.Random) -> tuple[list[Event], str, CuttingProxy]:
    """A turn, asked and read through a proxy that cuts every connection after some random bytes."""
    async with (
        CuttingProxy(site.port, anywhere(chance)) as proxy,
        site.client(proxy.url, patience_seconds=PATIENCE_SECONDS) as client,
        client.stream("Weather?") as stream,
    ):
        events: list[Event] = []
        seen = ""
        async for event in stream:
            events.append(event)
            seen = shown(seen, event)
            if isinstance(event, Delta):
                assert stream.text == seen or event.kind == "reasoning"
        assert stream.turn_id is not None
        return events, stream.turn_id, proxy


def shown(before: str, event: Event) -> str:
    """The preview's text after this event, as a plain reader would keep it."""
    if isinstance(event, Delta):
        return before + event.text if event.kind == "text" else before
    return ""


async def cut(site: Site, *, cuts: int, seed: int, readers: int = 8) -> None:
    chance = random.Random(seed)
    made = turns = 0
    async with site.client() as undisturbed:
        while made < cuts:
            pieces = await asyncio.gather(
                *(read_in_pieces(site, random.Random(chance.random())) for _ in range(readers))
            )
            for events, turn_id, proxy in pieces:
                made += proxy.cuts
                turns += 1
                whole = await durable(undisturbed, turn_id)
                assert [event for event in events if not isinstance(event, Delta)] == whole
                assert isinstance(whole[-1], Result)
                assert whole[-1].message == "".join(words(WORDS)) * 2 + "done."
        assert len([one async for one in undisturbed.conversations.list()]) == turns, "no question was doubled"


class TestAReaderThatIsCut:
    async def test_at_200_random_bytes_has_the_same_as_an_unbroken_one(self, site: Site) -> None:
        site.model = chatty
        await cut(site, cuts=200, seed=1)

    @pytest.mark.nightly
    @pytest.mark.parametrize("seed", range(5))
    async def test_at_a_thousand_random_bytes_too(self, site: Site, seed: int) -> None:
        site.model = chatty
        await cut(site, cuts=1_000, seed=seed, readers=10)

    async def test_previews_are_contiguous_across_cuts(self, site: Site) -> None:
        site.model = chatty
        events, _, _ = await read_in_pieces(site, random.Random(7))
        spoken: dict[int, str] = {}
        for event in events:
            if isinstance(event, Delta) and event.kind == "text":
                spoken[event.iteration] = spoken.get(event.iteration, "") + event.text
        # A piece may be missing only at the end of an iteration, where the event that completes it came instead.
        assert all(("".join(words(WORDS)) * 2).startswith(text.removesuffix("done.")) for text in spoken.values())
        assert sum(map(len, spoken.values())) > 50

    async def test_in_the_background_is_cut_as_well(self, site: Site, proxy: CuttingProxy) -> None:
        site.model = chatty
        chance = random.Random(3)
        proxy.budget = anywhere(chance)
        async with site.client(proxy.url, patience_seconds=PATIENCE_SECONDS) as client:
            answer = await client.ask("Weather?", background=True)
        assert answer.text.endswith("done.")
        assert proxy.cuts >= 2


class TestAQuestionWhoseAnswerWasLost:
    @pytest.mark.parametrize("budget", [0, 1, 40, 150])
    async def test_is_attached_to_its_turn_and_never_doubled(
        self, site: Site, proxy: CuttingProxy, budget: int
    ) -> None:
        proxy.budget = lambda nth: budget if nth <= 3 else None
        async with site.client(proxy.url) as client:
            answer = await client.ask("Hello?")
            assert answer.text == "Hello there."
            assert proxy.cuts >= 1
            conversations = [one async for one in client.conversations.list()]
            assert [one.id for one in conversations] == [answer.conversation_id]
            assert conversations[0].turn_count == 1

    async def test_in_the_background_is_not_doubled(self, site: Site, proxy: CuttingProxy) -> None:
        proxy.budget = lambda nth: 10 if nth == 1 else None
        async with site.client(proxy.url) as client:
            accepted = await client.turns.start("Hello?")
            assert (await client.turns.wait(accepted.turn_id)).text == "Hello there."
            assert len([one async for one in client.conversations.list()]) == 1

    async def test_that_cannot_be_repeated_safely_is_told_to_the_caller(self, site: Site, proxy: CuttingProxy) -> None:
        proxy.budget = lambda nth: 10
        async with site.client(proxy.url) as client:
            with pytest.raises(ConnectionLost, match="Look whether it was done"):
                await client.conversations.create(title="once")
        async with site.client() as client:
            assert [one.title async for one in client.conversations.list()] == ["once"]

    async def test_a_lost_answer_to_a_delete_is_asked_for_again(self, site: Site, proxy: CuttingProxy) -> None:
        async with site.client() as client:
            made = await client.conversations.create(title="gone")
        proxy.budget = lambda nth: 10 if nth == 1 else None
        async with site.client(proxy.url) as client:
            await client.conversations.delete(made.id)
            with pytest.raises(NotFound):
                await client.conversations.get(made.id)


class TestAServerThatGoesAway:
    async def test_and_comes_back_goes_on_with_the_answer(self, site: Site) -> None:
        spoken, gate = asyncio.Event(), asyncio.Event()

        def model(request: ModelRequest) -> Script:
            return ["One ", "two ", Until(lambda: _wait(spoken, gate)), "three."]

        site.model = model
        troubles: list[Trouble] = []
        async with (
            site.client(patience_seconds=PATIENCE_SECONDS, on_trouble=troubles.append) as client,
            client.stream("Count!") as stream,
        ):
            events: list[Event] = []
            async for event in stream:
                events.append(event)
                if spoken.is_set() and not gate.is_set():
                    await site.restart()
                    gate.set()
            answer = await stream.settled()
        assert answer.text == "One two three."
        assert any(isinstance(event, Reset) for event in events)
        assert sum(isinstance(event, TurnBegan) for event in events) == 1
        assert isinstance(events[-1], Result)
        assert troubles

    async def test_before_the_question_is_waited_for(self, site: Site) -> None:
        async with site.client(patience_seconds=PATIENCE_SECONDS) as client:
            assert (await client.ask("Hello?")).status == "succeeded"
            await site.stop()
            asking = asyncio.create_task(client.ask("Hello again?"))
            await asyncio.sleep(0.3)
            await site.start()
            assert (await asking).text == "Hello there."
            assert len([one async for one in client.conversations.list()]) == 2

    async def test_for_good_is_told_with_where_to_go_on(self, site: Site) -> None:
        gate = asyncio.Event()
        site.model = lambda request: ["One ", Until(gate.wait), "two."]
        async with site.client(patience_seconds=0.5) as client, client.stream("Count!", background=True) as stream:
            while not stream.text:
                await anext(stream)
            await site.stop()
            gate.set()
            with pytest.raises(ConnectionLost) as lost:
                await stream.result()
            assert lost.value.turn_id == stream.turn_id
            assert lost.value.cursor == stream.cursor
            await site.start()
            assert (await client.turns.follow(lost.value.turn_id or "", after=lost.value.cursor).result()).text

    async def test_that_was_never_there_is_told_at_once(self, tmp_path: Path) -> None:
        site = Site(tmp_path)
        async with site.client() as client:
            began = asyncio.get_running_loop().time()
            with pytest.raises(ConnectionLost, match="turnkeep serve"):
                await client.ask("Hello?")
            assert asyncio.get_running_loop().time() - began < 15

    async def test_that_drains_is_asked_again(self, tmp_path: Path) -> None:
        async with running(tmp_path, drain_seconds=1.0) as site:
            gate = asyncio.Event()
            site.model = lambda request: [Until(gate.wait), "Late."]
            async with site.client(patience_seconds=PATIENCE_SECONDS) as client:
                slow = asyncio.create_task(client.ask("First?"))
                await _until_running(client)
                leaving = asyncio.create_task(site.restart())
                assert site.runtime is not None
                await site.runtime.engine.draining.wait()
                asking = asyncio.create_task(client.ask("Second?"))
                await leaving
                gate.set()
                assert [(await slow).text, (await asking).text] == ["Late.", "Late."]

    async def test_whose_network_falls_silent_is_left_and_found_again(self, site: Site, proxy: CuttingProxy) -> None:
        gate = asyncio.Event()
        site.model = lambda request: ["One ", Until(gate.wait), "two."]
        async with (
            site.client(proxy.url, silence_seconds=2.0, patience_seconds=PATIENCE_SECONDS) as client,
            client.stream("Count!") as stream,
        ):
            async for event in stream:
                if isinstance(event, Delta) and not gate.is_set():
                    proxy.fall_silent()
                    gate.set()
            assert stream.text == "One two."
        assert proxy.connections == 2

    async def test_a_refusal_that_lasts_is_the_servers_own(self, site: Site) -> None:
        async with site.client(patience_seconds=0.3) as client:
            await client.ask("Hello?")
            assert site.runtime is not None
            site.runtime.engine.draining.set()
            with pytest.raises(Unavailable):
                await client.ask("Hello?")


class TestASlowProvider:
    async def test_costs_time_alone_also_when_the_connection_breaks_after_it(
        self, site: Site, proxy: CuttingProxy
    ) -> None:
        assert site.runtime is not None
        # Long before the pause ends, some heartbeats have come.
        site.runtime.streams.heartbeat_seconds = 0.1
        gate = asyncio.Event()
        site.model = lambda request: ["Let me ", Until(gate.wait), "think."]
        async with site.client(proxy.url, patience_seconds=3.0) as client:
            asking = asyncio.create_task(client.ask("Why?"))
            await asyncio.sleep(3.6)
            proxy.cut_all()
            gate.set()
            assert (await asking).text == "Let me think."
        assert proxy.connections == 2


class TestAModelSwitch:
    async def test_in_mid_conversation_is_invisible_to_the_reader(self, site: Site, proxy: CuttingProxy) -> None:
        site.model = chatty
        chance = random.Random(5)
        proxy.budget = anywhere(chance)
        async with site.client(proxy.url, patience_seconds=PATIENCE_SECONDS) as client:
            first = await client.ask("Weather?", model="scripted")
            second = await client.ask("write 30 words", conversation_id=first.conversation_id, model="demo")
            third = await client.ask("And now?", conversation_id=first.conversation_id)
            assert len(second.text.split()) == 30
            assert [answer.text[-5:] for answer in (first, third)] == ["done.", "done."]
            messages = [one async for one in client.conversations.messages(first.conversation_id)]
        assert [message.role for message in messages] == ["user", "assistant"] * 3
        assert [tuple(message.content) for message in messages[1::2]] == [
            tuple(answer.content) for answer in (first, second, third)
        ]


async def _wait(spoken: asyncio.Event, gate: asyncio.Event) -> None:
    spoken.set()
    await gate.wait()


async def _until_running(client: AsyncTurnkeep) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not [one async for one in client.conversations.list() if one.running_turn]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
