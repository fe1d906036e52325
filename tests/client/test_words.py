"""The words of an answer: each of them once, also when the model says the same text again."""

import asyncio

import pytest

from tests.client.site import Site, rounds_of
from turnkeep.client import AsyncTurnkeep, Delta, Reset, Restarted, Result
from turnkeep.providers.ports import ModelRequest
from turnkeep.providers.scripted import Call, Restart, Script, Until
from turnkeep_client.stream import Event, WordStream
from turnkeep_client.wire.blocks import Usage
from turnkeep_client.wire.events import ToolCalls


def delta(text: str, kind: str = "text") -> Delta:
    return Delta(iteration=0, kind=kind, text=text)


def reset() -> Reset:
    return Reset(attempt=2, reason="taken over")


def calls(text: str) -> ToolCalls:
    return ToolCalls(iteration=0, text=text, calls=())


def result(text: str) -> Result:
    return Result(message_id="msg_1", message=text, content=(), usage=Usage())  # type: ignore[arg-type]


def words(*events: Event, given: str = "", is_cut: bool = False) -> list[str]:
    stream = WordStream(given, is_cut=is_cut)
    return [word for event in events for word in stream.add(event)]


def shown(pieces: list[str]) -> str:
    """What a page shows that drops what a restart makes void."""
    text = ""
    for piece in pieces:
        text = text[: len(text) - piece.dropped] if isinstance(piece, Restarted) else text + piece
    return text


class TestWords:
    def test_are_the_text_without_the_reasoning(self) -> None:
        assert words(delta("Hm", "reasoning"), delta("It "), delta("is."), result("It is.")) == ["It ", "is."]

    def test_that_were_missed_come_with_the_event_that_has_them(self) -> None:
        said = words(delta("Let "), calls("Let me look. "), delta("It "), result("It is sunny."))
        assert said == ["Let ", "me look. ", "It ", "is sunny."]

    def test_said_again_are_not_repeated(self) -> None:
        said = words(delta("One two"), reset(), delta("One "), delta("two th"), delta("ree"), result("One two three"))
        assert said == ["One two", " th", "ree"]
        assert not any(isinstance(word, Restarted) for word in said)

    def test_that_differ_are_said_to_begin_anew(self) -> None:
        said = words(delta("One two"), reset(), delta("One "), delta("and"), result("One and two"))
        assert said == ["One two", "", "One and", " two"]
        assert isinstance(said[1], Restarted)
        assert said[1].dropped == len("One two")
        assert repr(said[1]) == "Restarted(dropped=7)"
        assert shown(said) == "One and two"

    def test_of_a_new_text_that_is_shorter_are_known_at_its_end(self) -> None:
        assert shown(words(delta("One two"), reset(), delta("One"), result("One"))) == "One"
        assert shown(words(delta("One two"), reset(), result("Nothing."))) == "Nothing."

    def test_of_the_iterations_before_stay(self) -> None:
        said = words(calls("First. "), delta("Old"), reset(), delta("New"), result("New"))
        assert shown(said) == "First. New"

    def test_after_a_second_reset_are_compared_with_what_was_given(self) -> None:
        said = words(delta("One two"), reset(), delta("One"), reset(), delta("One two three"), result("One two three"))
        assert said == ["One two", " three"]

    def test_of_a_stream_that_begins_inside_of_a_text_are_what_follows(self) -> None:
        assert words(delta("two"), result("One two"), is_cut=True) == ["two"]
        assert words(delta(" two"), result("One two"), given="One") == [" two"]


class TestARealTurn:
    @pytest.mark.parametrize("second", [["Paris is ", "big."], ["Rome is ", "big."]])
    async def test_whose_model_starts_again(self, site: Site, turnkeep: AsyncTurnkeep, second: list[str]) -> None:
        heard = asyncio.Event()
        site.model = lambda request: ["Paris is ", Until(heard.wait), Restart(), *second]
        said: list[str] = []
        async with turnkeep.stream("Tell me!") as stream:
            async for word in stream.words():
                said.append(word)
                heard.set()
        assert shown(said) == "".join(second) == stream.text
        assert said[0] == "Paris is "
        restarts = [word.dropped for word in said if isinstance(word, Restarted)]
        assert restarts == ([] if second[0] == said[0] else [len("Paris is ")])

    async def test_that_another_worker_takes_over_repeats_nothing(self, site: Site) -> None:
        heard, tries, said = asyncio.Event(), list[ModelRequest](), list[str]()

        def model(request: ModelRequest) -> Script:
            tries.append(request)
            return ["One ", "two ", *([Until(asyncio.Event().wait)] if len(tries) == 1 else ["three."])]

        site.model = model
        async with site.client() as client, client.stream("Count!", background=True) as stream:

            async def read() -> None:
                async for word in stream.words():
                    said.append(word)
                    if "two" in "".join(said):
                        heard.set()

            reading = asyncio.create_task(read())
            await heard.wait()
            await site.restart()
            await reading
        assert len(tries) == 2
        assert "".join(said) == "One two three."
        assert not any(isinstance(word, Restarted) for word in said)

    async def test_with_tools_has_the_words_of_every_round(self, site: Site, turnkeep: AsyncTurnkeep) -> None:
        def model(request: ModelRequest) -> Script:
            return ["It is sunny."] if rounds_of(request) else ["Let me look. ", Call("lookup", {"city": "Bern"})]

        site.model = model
        async with turnkeep.stream("Weather?") as stream:
            assert "".join([word async for word in stream.words()]) == "Let me look. It is sunny."

    async def test_can_be_followed_from_inside_of_a_text(self, site: Site, turnkeep: AsyncTurnkeep) -> None:
        gate = asyncio.Event()
        site.model = lambda request: ["One ", Until(gate.wait), "two."]
        async with turnkeep.stream("Count!", background=True) as stream:
            async for event in stream:
                if isinstance(event, Delta):
                    break
            assert "." in stream.cursor
            gate.set()
            async with turnkeep.turns.follow(stream.turn_id or "", after=stream.cursor) as rest:
                assert "One " not in "".join([word async for word in rest.words()])

    async def test_can_be_read_as_events_first_and_then_as_words(self, turnkeep: AsyncTurnkeep) -> None:
        async with turnkeep.stream("Hello?") as stream:
            read = ""
            async for event in stream:
                if isinstance(event, Delta):
                    read = event.text
                    break
            assert read + "".join([word async for word in stream.words()]) == "Hello there."
