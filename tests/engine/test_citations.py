"""Citations: one number for each source of a turn, in the order of record, the same after a reload."""

import asyncio

from tests.engine.harness import Cluster
from turnkeep.engine.outcomes import Citations
from turnkeep.providers.scripted import Call, Script
from turnkeep.tools.functions import tool
from turnkeep.tools.ports import Outcome, Passage
from turnkeep_client.wire.blocks import ToolResult
from turnkeep_client.wire.events import Source, Sources


def a_source(title: str, **fields: str) -> Source:
    return Source(title=title, snippet=f"about {title}", **fields)  # type: ignore[arg-type]


def passages(*titles: str) -> Outcome:
    return Outcome(result="Found.", passages=tuple(Passage(source=a_source(t), text=f"text of {t}") for t in titles))


class TestNumbering:
    def test_counts_on_from_what_was_recorded_and_knows_a_place_again(self) -> None:
        first = Citations()
        one = first.numbered(passages("A", "B"))
        assert one.result == "Found.\n\n[1] A\ntext of A\n\n[2] B\ntext of B"
        taken_over = Citations(one.sources)
        two = taken_over.numbered(passages("B", "C"))
        assert [(source.title, source.number) for source in two.sources] == [("B", 2), ("C", 3)]
        assert str(two.result).endswith("[3] C\ntext of C")

    def test_a_place_is_named_unless_it_is_called_like_the_whole(self) -> None:
        sources = [a_source("Returns", place=place) for place in ("Returns", "How long", "")]
        found = Outcome(passages=tuple(Passage(source=source, text="30 days") for source in sources))
        told = str(Citations().numbered(found).result)
        assert told == "[1] Returns\n30 days\n\n[2] Returns, How long\n30 days\n\n[3] Returns\n30 days"

    def test_an_outcome_without_sources_stays_as_it_is(self) -> None:
        outcome = Outcome(result={"rain": True})
        assert Citations().numbered(outcome) is outcome

    def test_sources_of_a_plain_result_are_numbered_and_the_result_is_left_alone(self) -> None:
        outcome = Citations().numbered(Outcome(result={"rain": True}, sources=(a_source("A"),)))
        assert outcome.result == {"rain": True}
        assert [source.number for source in outcome.sources] == [1]

    def test_what_cannot_be_stored_is_cleaned(self) -> None:
        outcome = Citations().numbered(passages("A\0\ud800"))
        outcome.sources[0].title.encode()
        assert "\0" not in outcome.sources[0].title + str(outcome.result)


class TestATurn:
    async def test_numbers_stand_in_the_results_in_the_events_and_on_the_message(self, cluster: Cluster) -> None:
        slow_may_end = asyncio.Event()

        @tool
        async def slow() -> Outcome:
            await slow_may_end.wait()
            return passages("S1", "S2")

        @tool
        async def quick() -> Outcome:
            asyncio.get_running_loop().call_later(0.05, slow_may_end.set)
            return passages("Q1")

        scripts: list[Script] = [[Call("slow"), Call("quick")], [Call("quick")], ["As [1] and [3] say."]]
        engine = await cluster.enter(scripts, tools=[slow, quick])
        turn = await cluster.answer(engine)
        assert turn.status == "succeeded", turn.error
        [_, answer] = (await cluster.store.transcript(cluster.ann, turn.conversation_id)).data
        assert [(source.number, source.title) for source in answer.sources] == [(1, "Q1"), (2, "S1"), (3, "S2")]
        told = [
            block.content
            for row in await cluster.rows(turn.id)
            for block in row.blocks
            if isinstance(block, ToolResult)
        ]
        assert sum("[1] Q1" in text for text in told) == 2
        assert any("[2] S1\ntext of S1\n\n[3] S2" in text for text in told)
        events = [event for event in await cluster.events(turn.id) if isinstance(event, Sources)]
        assert [[source.number for source in event.sources] for event in events] == [[1], [2, 3], [1]]
