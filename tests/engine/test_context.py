"""What a turn's model is shown: as much of the past, and of the turn itself, as the settings say."""

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec import structs

from tests.compiler.histories import asked, said
from tests.engine.harness import QUICK, Cluster, FailOnDefect, Latch
from turnkeep.compiler import Budget, EncodedHistory, Encoding
from turnkeep.engine import EngineSettings, Options
from turnkeep.engine.assembly import GrownHistory, HistoryCache
from turnkeep.engine.loop import LocalTurn
from turnkeep.errors import NotFound
from turnkeep.ids import ConversationId, TurnId
from turnkeep.providers.ports import ModelRequest, Target
from turnkeep.providers.scripted import Call, Script, ScriptedProvider, Until
from turnkeep.store.commands import Claim, Claimed, Window
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


def count_windows(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The conversations whose past is read from the store, from now on."""
    read: list[str] = []
    real = cluster.store.window

    async def window(conversation_id: ConversationId, **fields: Any) -> Window:
        read.append(conversation_id)
        return await real(conversation_id, **fields)

    monkeypatch.setattr(cluster.store, "window", window)
    return read


class TestThePastInMemory:
    """A worker keeps what it compiled. Its requests are the same as those of a worker that reads everything."""

    @pytest.mark.parametrize("target", ["anthropic", "openai_chat", "openai_responses"])
    async def test_spares_the_store_and_changes_nothing(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, target: Target
    ) -> None:
        read = count_windows(cluster, monkeypatch)
        scripts: list[Script] = [["One."], [Call("letters", {"letter": "a"})], ["Two."], ["Three."]]
        provider = ScriptedProvider(scripts, target=target)
        engine = await cluster.enter(provider, tools=[letters])
        conversation_id = (await cluster.answer(engine, "First?")).conversation_id
        for question in ("Second?", "Third?"):
            await cluster.answer(engine, question, conversation_id=conversation_id)
        assert read == []
        turn_id = (await cluster.store.conversation(cluster.ann, conversation_id)).head_turn_id
        assert turn_id is not None
        other = ScriptedProvider([["Three again."]], target=target)
        engine = await cluster.enter(other, tools=[letters])
        await engine.wait((await engine.regenerate(cluster.ann, turn_id, Options())).turn.id)
        assert read == [conversation_id]
        assert other.requests[-1] == provider.requests[-1]

    async def test_is_read_after_a_turn_of_another_worker(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        provider = ScriptedProvider([["One."], ["Three."]])
        engine = await cluster.enter(provider)
        conversation_id = (await cluster.answer(engine, "First?")).conversation_id
        await cluster.answer(await cluster.enter([["Two."]]), "Second?", conversation_id=conversation_id)
        read = count_windows(cluster, monkeypatch)
        await cluster.answer(engine, "Third?", conversation_id=conversation_id)
        assert read == [conversation_id]
        assert [message["content"] for message in provider.requests[-1].messages] == [
            *("First?", "One."),
            *("Second?", "Two."),
            "Third?",
        ]

    async def test_ends_where_a_question_is_asked_again(self, cluster: Cluster) -> None:
        provider = ScriptedProvider([["One."], ["Two."], ["Two again."], ["Three."]])
        engine = await cluster.enter(provider)
        conversation_id = (await cluster.answer(engine, "First?")).conversation_id
        second = await cluster.answer(engine, "Second?", conversation_id=conversation_id)
        await engine.wait((await engine.regenerate(cluster.ann, second.id, Options())).turn.id)
        await cluster.answer(engine, "Third?", conversation_id=conversation_id)
        shown_in_turn = [[message["content"] for message in request.messages] for request in provider.requests]
        assert shown_in_turn[2] == ["First?", "One.", "Second?"]
        assert shown_in_turn[3] == ["First?", "One.", "Second?", "Two again.", "Third?"]

    def test_is_bounded(self) -> None:
        cache = HistoryCache(limit=30_000)
        for n in range(9):
            cache.keep(TurnId(f"turn_{n}"), grown(n, words="x" * 5_000))
        kept = [n for n in range(9) if cache.take(TurnId(f"turn_{n}")) is not None]
        assert kept == [5, 6, 7, 8]
        assert cache.take(TurnId("turn_8")) is None, "its turn keeps a longer one"

    @pytest.mark.parametrize("chars", [10, 1_000, 50_000])
    def test_is_measured_by_what_it_takes_in_memory(self, chars: int) -> None:
        def taken(make: Callable[[int], Any]) -> tuple[float, list[Any]]:
            gc.collect()
            tracemalloc.start()
            made = [make(n) for n in range(50)]
            size, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            return size / len(made), made

        for make in (
            lambda n: grown(n, words=f"{n}".ljust(chars, "x")),
            lambda n: grown(n, words=f"{n}".ljust(chars, "x")).encoded(),
        ):
            size, made = taken(make)
            assert 0.5 * size <= made[0].byte_count <= 2 * size


def grown(n: int, *, words: str) -> GrownHistory:
    """A history of one turn."""
    past = EncodedHistory(
        encoding=Encoding(target="openai_chat", reasoning_of=None, sees_images=True, measure=len, image=1), turns=()
    )
    rows = (asked(f"turn_{n}", words), said(f"turn_{n}", 1))
    return GrownHistory(past=past, rows=rows, budget=Budget())


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


class TestAHistoryThatCannotBeKept:
    async def test_is_reported_and_delays_no_turn_that_waits(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*args: object) -> None:
            raise ValueError("no such tokenizer")

        monkeypatch.setattr(LocalTurn, "history", fail)
        latch, observer = Latch(), FailOnDefect()
        # With so long a pause between sweeps the second turn runs only if the end of the first one starts it.
        settings = structs.replace(QUICK, sweep_seconds=600.0, lease_seconds=2_400.0)
        engine = await cluster.enter(
            [[Until(latch.pass_through), "One."], ["Two."]], settings=settings, observer=observer
        )
        first = await cluster.ask(engine)
        await latch.reached.wait()
        second = await cluster.ask(engine, conversation_id=first.turn.conversation_id, if_busy="enqueue")
        latch.open()
        assert (await engine.wait(second.turn.id)).status == "succeeded"
        assert [str(defect) for defect in observer.defects][:1] == ["no such tokenizer"]


class TestQuestionsAboutAKey:
    async def test_do_not_wait_for_each_other(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        """The store makes claims for one conversation one after the other."""
        asked: list[ConversationId | None] = []

        async def claim(probe: Claim) -> Claimed:
            asked.append(probe.conversation_id)
            raise NotFound("there is no such conversation")

        engine = await cluster.enter([])
        monkeypatch.setattr(cluster.store, "claim", claim)
        for _ in range(3):
            assert not await engine.is_repeat(cluster.ann, Options(idempotency_key="k", request_hash="h"))
        assert len(set(asked)) == 3
