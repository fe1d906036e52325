"""What a turn's model is shown: as much of the past, and of the turn itself, as the settings say."""

import gc
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from typing import Any, get_args

import msgspec
import pytest
from msgspec import structs

from tests.compiler.histories import asked, said
from tests.engine.harness import QUICK, Cluster, FailOnDefect, Latch
from tests.store.factories import elsewhere
from turnkeep.compiler import Budget, Encoding, encode_turns
from turnkeep.compiler.exchange import BEGAN_EARLIER
from turnkeep.engine import EngineSettings, Options
from turnkeep.engine import engine as engine_module
from turnkeep.engine.assembly import GrownHistory, HistoryCache
from turnkeep.engine.loop import LocalTurn
from turnkeep.errors import InvalidRequest, NotFound
from turnkeep.ids import ConversationId, TurnId
from turnkeep.model.agents import AgentSpec
from turnkeep.model.conversations import Conversation
from turnkeep.model.principals import Principal
from turnkeep.model.sampling import Sampling
from turnkeep.providers.ports import Abilities, ModelRequest, Target
from turnkeep.providers.scripted import Call, Script, ScriptedProvider, Until
from turnkeep.store.commands import Claim, Claimed, ConversationChange, NewConversation, RemovedBlocks, Window
from turnkeep.tools.functions import tool
from turnkeep_client.wire.account import Scopes

LONG = 900
"""Two of them fit into 2,000 characters, with what is said beside them; three do not."""


@tool
def letters(letter: str) -> str:
    """One letter, many times."""
    return letter * LONG


def shown(request: ModelRequest) -> str:
    return msgspec.json.encode(request.messages).decode()


async def appended(cluster: Cluster, turns: int) -> ConversationId:
    """A conversation of so many turns that another system had."""
    conversation = await cluster.store.create_conversation(cluster.ann, NewConversation())
    for n in range(turns):
        turn = elsewhere(conversation.id, f"Question {n}.", f"Answer {n}.")
        await cluster.store.append(cluster.ann, conversation.id, turn)
    return conversation.id


async def questions_shown(cluster: Cluster, settings: EngineSettings, *, turns: int) -> list[int]:
    """Ask so many questions in one conversation; those that the model of the last turn was shown."""
    provider = ScriptedProvider([[f"Answer {n}."] for n in range(turns)])
    engine = await cluster.enter(provider, settings=settings)
    conversation_id = (await cluster.answer(engine, "Question 0.")).conversation_id
    for n in range(1, turns):
        await cluster.answer(engine, f"Question {n}.", conversation_id=conversation_id)
    return [n for n in range(turns) if f"Question {n}." in shown(provider.requests[-1])]


class TestThePast:
    async def test_is_not_limited_by_a_number_of_turns(self, cluster: Cluster) -> None:
        found = await questions_shown(cluster, structs.replace(QUICK, replay_turns=3), turns=8)
        assert found == list(range(8))

    async def test_is_read_only_as_far_as_the_budget_goes(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The number of rows that are read does not grow with the conversation."""
        settings = structs.replace(QUICK, context_chars=1_000)
        read, counts = count_rows(cluster, monkeypatch), []
        for turns in (150, 600):
            conversation_id = await appended(cluster, turns)
            read.clear()
            provider = ScriptedProvider([["Yes."], ["Yes."]])
            for _ in range(2):  # without a cut that is stored, and with one
                engine = await cluster.enter(provider, settings=settings)
                await cluster.answer(engine, "And now?", conversation_id=conversation_id)
            counts.append(list(read))
            assert f"Question {turns - 1}." in shown(provider.requests[-1])
        assert counts[0] == counts[1]
        assert all(sum(rows) < 200 for rows in counts)

    async def test_of_many_short_turns_is_shown_whole(self, cluster: Cluster) -> None:
        conversation_id = await appended(cluster, 1_300)
        provider = ScriptedProvider([["Yes."]])
        await cluster.answer(await cluster.enter(provider), "And now?", conversation_id=conversation_id)
        assert "Question 0." in shown(provider.requests[-1])
        assert len(provider.requests[-1].messages) == 2 * 1_300 + 1

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


def count_rows(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows are read of the past, from now on."""
    counts: list[int] = []
    real = cluster.store.window

    async def window(conversation_id: ConversationId, **fields: Any) -> Window:
        found = await real(conversation_id, **fields)
        counts.append(len(found.rows))
        return found

    monkeypatch.setattr(cluster.store, "window", window)
    return counts


class TestManyRows:
    async def test_of_long_turns_are_read_in_pages_of_whole_turns(self, cluster: Cluster) -> None:
        """One statement returns a limited number of rows, which may end in the middle of a turn."""
        conversation = await cluster.store.create_conversation(cluster.ann, NewConversation())
        for n in range(80):
            between = [f"thought {n}.{each}" for each in range(40)]
            turn = elsewhere(conversation.id, f"Question {n}.", *between, f"Answer {n}.")
            await cluster.store.append(cluster.ann, conversation.id, turn)
        provider = ScriptedProvider([["Yes."]])
        await cluster.answer(await cluster.enter(provider), "And now?", conversation_id=conversation.id)
        sent = shown(provider.requests[-1])
        assert [n for n in range(80) if f"Question {n}." in sent and f"thought {n}.39" in sent] == list(range(80))


class TestTheBeginningOfRequests:
    """A provider keeps what it has read. The next request is cheap if it begins with the same words."""

    SETTINGS = structs.replace(QUICK, context_chars=3_000)

    async def talk(self, cluster: Cluster, *, turns: int, is_restarted: bool) -> list[list[Any]]:
        """The messages of each request of a long conversation, perhaps with a new worker for every turn."""
        conversation_id: ConversationId | None = None
        provider = ScriptedProvider([[f"Answer {n}.".ljust(40, "!")] for n in range(turns)])
        engine = await cluster.enter(provider, settings=self.SETTINGS)
        for n in range(turns):
            if is_restarted and n:
                await engine.close()
                engine = await cluster.enter(provider, settings=self.SETTINGS)
            question = f"Question {n}.".ljust(60, "?")
            turn = await cluster.answer(engine, question, conversation_id=conversation_id)
            conversation_id = turn.conversation_id
        return [[message["content"] for message in request.messages] for request in provider.requests]

    async def test_is_the_same_for_many_turns(self, cluster: Cluster) -> None:
        requests = await self.talk(cluster, turns=70, is_restarted=False)
        runs = [1]
        for before, after in pairwise(requests):
            if after[: len(before)] == before:
                runs[-1] += 1
            else:
                runs.append(1)
                assert sum(map(len, after)) <= 2_250
            assert sum(map(len, after)) <= 3_000
        assert runs == [30, 9, 9, 9, 9, 4]

    async def test_does_not_depend_on_what_a_worker_has_in_memory(self, cluster: Cluster) -> None:
        whole = await self.talk(cluster, turns=45, is_restarted=False)
        assert await self.talk(cluster, turns=45, is_restarted=True) == whole

    async def test_moves_back_when_the_budget_becomes_larger(self, cluster: Cluster) -> None:
        provider = ScriptedProvider([["x" * 500] for _ in range(6)] + [["Yes."]])
        engine = await cluster.enter(provider, settings=structs.replace(QUICK, context_chars=1_000))
        turn = await cluster.answer(engine, "First?")
        for _ in range(5):
            turn = await cluster.answer(engine, "Next?", conversation_id=turn.conversation_id)
        assert turn.report.cut is not None
        assert "First?" not in shown(provider.requests[-1])
        wider = await cluster.enter(provider, settings=structs.replace(QUICK, context_chars=5_000))
        turn = await cluster.answer(wider, "Last?", conversation_id=turn.conversation_id)
        assert "First?" in shown(provider.requests[-1])
        assert turn.report.cut is None

    async def test_belongs_to_the_branch(self, cluster: Cluster) -> None:
        provider = ScriptedProvider([["x" * 300] for _ in range(7)])
        engine = await cluster.enter(provider, settings=structs.replace(QUICK, context_chars=1_000))
        first = await cluster.answer(engine, "First?")
        turns = [await cluster.answer(engine, f"{n}?", conversation_id=first.conversation_id) for n in range(5)]
        assert turns[-1].report.cut is not None
        again = await engine.regenerate(cluster.ann, turns[0].id, Options())
        assert (await engine.wait(again.turn.id)).report.cut is None
        assert "First?" in shown(provider.requests[-1])


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

    async def test_what_was_removed_since_is_not_sent(self, cluster: Cluster) -> None:
        provider = ScriptedProvider([["One."], ["Two."], ["Three."]])
        engine = await cluster.enter(provider)
        first = await cluster.answer(engine, "First?")
        await cluster.answer(engine, "Second?", conversation_id=first.conversation_id)
        removed = RemovedBlocks(turn_id=first.id, turn_sequence=0, removed="all")
        change = ConversationChange(removed=(removed,))
        await cluster.store.change_conversation(cluster.ann, first.conversation_id, change)
        await cluster.answer(engine, "Third?", conversation_id=first.conversation_id)
        shown = [message["content"] for message in provider.requests[-1].messages]
        assert shown == [BEGAN_EARLIER, "One.", "Second?", "Two.", "Third?"]

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
    past = encode_turns((), Encoding(target="openai_chat", reasoning_of=None, sees_images=True, budget=Budget()))
    assert past is not None
    rows = (asked(f"turn_{n}", words), said(f"turn_{n}", 1))
    return GrownHistory(past=past, rows=rows, first_turn=None)


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


class TestSettingsOfAConversation:
    async def test_reach_the_model_in_every_turn_and_change_from_the_next_one_on(self, cluster: Cluster) -> None:
        for target in get_args(Target):
            provider = ScriptedProvider(lambda _: ["Hi."], target=target)
            engine = await cluster.enter(provider)
            new = NewConversation(instructions="Be brief.", temperature=0.5)
            turn = await cluster.answer(engine, new=new, instructions="In French.")
            conversation_id = turn.conversation_id
            change = ConversationChange(instructions="Be long.", temperature=1.5)
            await cluster.store.change_conversation(cluster.ann, conversation_id, change)
            await cluster.answer(engine, conversation_id=conversation_id)
            await engine.wait((await engine.regenerate(cluster.ann, turn.id, Options())).turn.id)
            await cluster.answer(engine, conversation_id=conversation_id, sampling=Sampling(temperature=0.1))
            first, second, repeated, own = provider.requests
            told = str((first.system, first.messages))
            assert 0 < told.index("Be brief.") < told.index("In French.")
            for request in (second, repeated, own):
                assert "Be long." in str((request.system, request.messages))
                assert "Be brief." not in str((request.system, request.messages))
            assert [request.sampling.temperature for request in provider.requests] == [0.5, 1.5, 1.5, 0.1]
            await cluster.store.change_conversation(
                cluster.ann,
                conversation_id,
                ConversationChange(without=frozenset({"instructions", "temperature"})),
            )
            await cluster.answer(engine, conversation_id=conversation_id)
            assert provider.requests[-1].sampling.temperature is None
            assert "Be long." not in str((provider.requests[-1].system, provider.requests[-1].messages))

    async def test_are_read_once_by_a_worker_and_never_out_of_date(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A worker remembers them. Another one may change them at any time, which only the claim of a turn sees."""
        reads: list[ConversationId] = []
        read = cluster.store.conversation

        async def counted(principal: Principal, conversation_id: ConversationId) -> Conversation:
            reads.append(conversation_id)
            return await read(principal, conversation_id)

        provider = ScriptedProvider(lambda _: ["Hi."])
        engine, other = await cluster.enter(provider), await cluster.enter(provider)
        conversation_id = (await cluster.answer(engine)).conversation_id
        monkeypatch.setattr(cluster.store, "conversation", counted)
        for asked_at in (engine, engine, other, other, engine):
            await cluster.answer(asked_at, conversation_id=conversation_id)
        assert len(reads) == 1, "each worker, but for the one that made the conversation"
        for temperature in (0.5, 0.6):
            change = ConversationChange(temperature=temperature)
            await cluster.store.change_conversation(cluster.ann, conversation_id, change)
            for asked_at in (engine, engine, other):
                await cluster.answer(asked_at, conversation_id=conversation_id)
                assert provider.requests[-1].sampling.temperature == temperature
        assert len(reads) == 5

    async def test_are_not_remembered_with_words_of_a_user(self, cluster: Cluster) -> None:
        """An erasure would have to find these words in the memory of every worker."""
        engine = await cluster.enter(ScriptedProvider(lambda _: ["Hi."]))
        first = await cluster.answer(engine, new=NewConversation(instructions="Be brief."))
        await cluster.answer(engine, conversation_id=first.conversation_id)
        other = await cluster.answer(engine)
        await cluster.answer(engine, conversation_id=other.conversation_id)
        change = ConversationChange(instructions="Be long.")
        await cluster.store.change_conversation(cluster.ann, other.conversation_id, change)
        await cluster.answer(engine, conversation_id=other.conversation_id)
        assert not engine._claims._remembered

    async def test_are_remembered_of_a_limited_number(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(engine_module, "MOST_REMEMBERED", 2)
        engine = await cluster.enter(ScriptedProvider(lambda _: ["Hi."]))
        first, second = [(await cluster.answer(engine)).conversation_id for _ in range(2)]
        await cluster.answer(engine, conversation_id=first)
        third = (await cluster.answer(engine)).conversation_id
        remembered = [conversation_id for *_, conversation_id in engine._claims._remembered]
        assert remembered == [first, third], "the one that was not used for longest is forgotten"
        assert second not in remembered

    async def test_are_read_again_when_those_that_are_remembered_cannot_be_used(self, cluster: Cluster) -> None:
        service = cluster.tenant.service
        old, new = [await cluster.store.create_agent(service, AgentSpec(name=name)) for name in ("Old", "New")]
        engine = await cluster.enter(ScriptedProvider(lambda _: ["Hi."]))
        first = await cluster.answer(engine, new=NewConversation(agent_id=old.id))
        change = ConversationChange(agent_id=new.id)
        await cluster.store.change_conversation(cluster.ann, first.conversation_id, change)
        reaches_one = structs.replace(cluster.ann, scopes=Scopes(agents=(new.id,)))
        turn = await cluster.answer(engine, conversation_id=first.conversation_id, principal=reaches_one)
        assert turn.snapshot.agent_id == new.id

    async def test_of_a_deleted_conversation_are_of_no_use(self, cluster: Cluster) -> None:
        engine = await cluster.enter(ScriptedProvider(lambda _: ["Hi."]))
        conversation_id = (await cluster.answer(engine)).conversation_id
        await cluster.store.delete_conversation(cluster.ann, conversation_id)
        with pytest.raises(NotFound):
            await cluster.ask(engine, conversation_id=conversation_id)

    async def test_a_model_without_a_temperature_is_not_asked(self, cluster: Cluster) -> None:
        provider = ScriptedProvider([["Hi."]], abilities=Abilities())
        engine = await cluster.enter(provider)
        with pytest.raises(InvalidRequest, match="temperature of this conversation"):
            await cluster.ask(engine, new=NewConversation(temperature=0.5))
        assert provider.requests == []
