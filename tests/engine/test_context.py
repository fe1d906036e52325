"""What a turn's model is shown: as much of the past, and of the turn itself, as the settings say."""

import msgspec
import pytest
from msgspec import structs

from tests.engine.harness import QUICK, Cluster
from turnkeep.engine import EngineSettings
from turnkeep.providers.ports import ModelRequest
from turnkeep.providers.scripted import Call, Script, ScriptedProvider
from turnkeep.tools.functions import tool

LONG = 900
"""Two of them fit into 2,000 characters, with what is said beside them; three do not."""


@tool
def letters(letter: str) -> str:
    """One letter, many times."""
    return letter * LONG


def shown(request: ModelRequest) -> str:
    return msgspec.json.encode(request.messages).decode()


async def questions_shown(cluster: Cluster, settings: EngineSettings, *, turns: int) -> list[int]:
    """Ask so many questions in one conversation; those that the model of the last turn was shown."""
    provider = ScriptedProvider([[f"Answer {n}."] for n in range(turns)])
    engine = await cluster.enter(provider, settings=settings)
    conversation_id = (await cluster.answer(engine, "Question 0.")).conversation_id
    for n in range(1, turns):
        await cluster.answer(engine, f"Question {n}.", conversation_id=conversation_id)
    return [n for n in range(turns) if f"Question {n}." in shown(provider.requests[-1])]


class TestThePast:
    async def test_ends_at_the_number_of_turns(self, cluster: Cluster) -> None:
        found = await questions_shown(cluster, structs.replace(QUICK, replay_turns=3), turns=8)
        assert found == list(range(found[0], 8)), "the newest, without a gap"
        assert 2 <= len(found) - 1 <= 3

    async def test_goes_further_back_than_usual_where_the_operator_says_so(self, cluster: Cluster) -> None:
        turns = QUICK.replay_turns + 4
        found = await questions_shown(cluster, structs.replace(QUICK, replay_turns=turns), turns=turns)
        assert found == list(range(turns))

    @pytest.mark.parametrize("chars, is_shown", [(2_000, False), (4_000, True)])
    async def test_ends_at_the_number_of_characters(self, cluster: Cluster, chars: int, is_shown: bool) -> None:
        provider = ScriptedProvider([["x" * 3_000], ["Short."], ["Here."]])
        engine = await cluster.enter(provider, settings=structs.replace(QUICK, context_chars=chars))
        conversation_id = (await cluster.answer(engine, "First?")).conversation_id
        await cluster.answer(engine, "Second?", conversation_id=conversation_id)
        await cluster.answer(engine, "Third?", conversation_id=conversation_id)
        last = shown(provider.requests[-1])
        assert ("First?" in last) is ("x" * 3_000 in last) is is_shown, "a turn is shown whole or not at all"
        assert "Second?" in last
        assert "Third?" in last


class TestTheTurnItself:
    async def test_is_cut_anew_after_every_tool_round(self, cluster: Cluster) -> None:
        provider = ScriptedProvider([[Call("letters", {"letter": letter})] for letter in "abc"] + [["Done."]])
        engine = await cluster.enter(provider, tools=[letters], settings=structs.replace(QUICK, context_chars=2_000))
        assert (await cluster.answer(engine, "Three, please")).status == "succeeded"
        whole = [[letter for letter in "abc" if letter * LONG in shown(request)] for request in provider.requests]
        assert whole == [[], ["a"], ["a", "b"], ["b", "c"]]
        last = shown(provider.requests[-1])
        assert f"[{LONG} characters of this result were left out to fit the context.]" in last
        assert "Three, please" in last

    async def test_loses_the_turns_before_it_when_its_own_results_need_the_room(self, cluster: Cluster) -> None:
        scripts: list[Script] = [["x" * LONG], *([Call("letters", {"letter": letter})] for letter in "ab"), ["Done."]]
        provider = ScriptedProvider(scripts)
        engine = await cluster.enter(provider, tools=[letters], settings=structs.replace(QUICK, context_chars=2_000))
        first = await cluster.answer(engine, "First?")
        await cluster.answer(engine, "Two, please", conversation_id=first.conversation_id)
        assert ["First?" in shown(request) for request in provider.requests[1:]] == [True, True, False]
        assert "b" * LONG in shown(provider.requests[-1])
