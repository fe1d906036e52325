"""A turn from the question to its answer, when nothing breaks."""

from collections.abc import Sequence

from msgspec import structs

from tests.engine.harness import QUICK, Cluster, Latch, kinds
from turnkeep.providers.scripted import Call, Script, ScriptedProvider, Think, Until
from turnkeep.streaming.frames import DeltaFrame, Frame
from turnkeep.tools.functions import tool
from turnkeep.tools.ports import Outcome
from turnkeep_client.wire.blocks import ReasoningPart, StepPart, TextPart, ToolResult, ToolUse, Usage, text_of
from turnkeep_client.wire.events import Failure, Result, Sources, Step, ToolCalls
from turnkeep_client.wire.events import Source as Cited


@tool
def weather(city: str) -> dict[str, str]:
    """The weather in a city."""
    return {"city": city, "sky": "clear"}


class TestAnAnswer:
    async def test_is_settled_with_one_result(self, cluster: Cluster) -> None:
        engine = await cluster.enter([["Good ", "morning."]])
        turn = await cluster.answer(engine)
        assert turn.status == "succeeded"
        events = await cluster.events(turn.id)
        assert kinds(events) == ["turn", "result"]
        result = events[-1]
        assert isinstance(result, Result)
        assert result.message == "Good morning."
        assert result.content == (TextPart(text="Good morning."),)

    async def test_leaves_a_user_row_and_a_final_row(self, cluster: Cluster) -> None:
        engine = await cluster.enter([["Hi."]])
        turn = await cluster.answer(engine, "Hello there")
        user, final = await cluster.rows(turn.id)
        assert (user.role, user.turn_sequence, user.internal, user.iteration) == ("user", 0, False, None)
        assert (final.role, final.turn_sequence, final.internal) == ("assistant", 1, False)
        assert final.usage == turn.usage == Usage(input_tokens=10, output_tokens=5)

    async def test_is_what_the_transcript_shows(self, cluster: Cluster) -> None:
        engine = await cluster.enter([[Think("Hmm."), "Hi."]])
        turn = await cluster.answer(engine)
        page = await cluster.store.transcript(cluster.ann, turn.conversation_id)
        result = (await cluster.events(turn.id))[-1]
        assert isinstance(result, Result)
        assert page.data[-1].content == result.content == (ReasoningPart(text="Hmm."), TextPart(text="Hi."))

    async def test_sees_the_turns_before_it(self, cluster: Cluster) -> None:
        provider = ScriptedProvider([["First."], ["Second."]])
        engine = await cluster.enter(provider)
        first = await cluster.answer(engine, "One")
        await cluster.answer(engine, "Two", conversation_id=first.conversation_id)
        roles = [message["role"] for message in provider.requests[-1].messages]
        assert roles == ["user", "assistant", "user"]


class TestAToolRound:
    async def test_is_recorded_row_by_row_and_event_by_event(self, cluster: Cluster) -> None:
        engine = await cluster.enter([["Let me look.", Call("weather", {"city": "Bern"})], ["Clear."]], tools=[weather])
        turn = await cluster.answer(engine)
        assert kinds(await cluster.events(turn.id)) == [
            "turn",
            "tool_calls",
            "step running",
            "step succeeded",
            "result",
        ]
        rows = await cluster.rows(turn.id)
        assert [(row.role, row.internal, row.iteration) for row in rows] == [
            ("user", False, None),
            ("assistant", True, 0),
            ("user", True, 0),
            ("assistant", False, 1),
        ]
        call = rows[1].blocks[-1]
        result = rows[2].blocks[0]
        assert isinstance(call, ToolUse)
        assert isinstance(result, ToolResult)
        assert result.call_id == call.id
        assert result.content == '{"city":"Bern","sky":"clear"}'

    async def test_shows_text_and_steps_in_the_order_of_happening(self, cluster: Cluster) -> None:
        engine = await cluster.enter([["Let me look.", Call("weather", {"city": "Bern"})], ["Clear."]], tools=[weather])
        turn = await cluster.answer(engine)
        result = (await cluster.events(turn.id))[-1]
        assert isinstance(result, Result)
        said, step, answered = result.content
        assert (said, answered) == (TextPart(text="Let me look."), TextPart(text="Clear."))
        assert isinstance(step, StepPart)
        assert (step.name, step.status, step.args) == ("weather", "succeeded", {"city": "Bern"})
        assert result.message == "Clear."

    async def test_adds_up_what_every_call_cost(self, cluster: Cluster) -> None:
        engine = await cluster.enter([[Call("weather", {"city": "Bern"})], ["Clear."]], tools=[weather])
        turn = await cluster.answer(engine)
        assert turn.usage == Usage(input_tokens=20, output_tokens=10)

    async def test_runs_parallel_calls_side_by_side_and_keeps_each_result_as_it_arrives(self, cluster: Cluster) -> None:
        latch = Latch()

        @tool
        async def slow() -> str:
            await latch.pass_through()
            return "slow"

        @tool
        async def quick() -> str:
            await latch.reached.wait()
            return "quick"

        engine = await cluster.enter([[Call("slow"), Call("quick")], ["Done."]], tools=[slow, quick])
        claimed = await cluster.ask(engine)

        async def quick_is_kept() -> bool:
            return kinds(await cluster.events(claimed.turn.id))[-1] == "step succeeded"

        await cluster.until(quick_is_kept)
        latch.open()
        turn = await engine.wait(claimed.turn.id)
        steps = [event for event in await cluster.events(turn.id) if isinstance(event, Step)]
        assert [(step.name, step.status) for step in steps] == [
            ("slow", "running"),
            ("quick", "running"),
            ("quick", "succeeded"),
            ("slow", "succeeded"),
        ]

    async def test_sends_the_sources_of_a_tool_and_keeps_them_on_the_message(self, cluster: Cluster) -> None:
        cited = Cited(title="Whales", snippet="big", url="https://example.org/whales")

        @tool
        def search() -> Outcome:
            return Outcome(result="found", sources=(cited,))

        engine = await cluster.enter([[Call("search")], ["See [1]."]], tools=[search])
        turn = await cluster.answer(engine)
        numbered = structs.replace(cited, number=1)
        assert Sources(sources=(numbered,)) in await cluster.events(turn.id)
        page = await cluster.store.transcript(cluster.ann, turn.conversation_id)
        assert page.data[-1].sources == (numbered,)


class TestTheLimitOfRounds:
    async def test_ends_with_one_last_call_that_may_not_use_tools(self, cluster: Cluster) -> None:
        calling = [[Call("weather", {"city": "Bern"})] for _ in range(5)]
        provider = ScriptedProvider([*calling, ["Enough."]])
        engine = await cluster.enter(provider, tools=[weather])
        turn = await cluster.answer(engine)
        assert turn.status == "succeeded"
        assert [request.may_call for request in provider.requests] == [True] * 5 + [False]
        assert provider.requests[-1].tools, "the messages mention tools, so they stay declared"

    async def test_fails_with_its_own_code_when_the_model_still_says_nothing(self, cluster: Cluster) -> None:
        calling = [[Call("weather", {"city": "Bern"})] for _ in range(6)]
        engine = await cluster.enter(calling, tools=[weather])
        turn = await cluster.answer(engine)
        assert turn.status == "failed"
        assert turn.error is not None
        assert turn.error.code == "tool_rounds"
        failure = (await cluster.events(turn.id))[-1]
        assert isinstance(failure, Failure)


def spoken(frames: Sequence[Frame]) -> str:
    return "".join(frame.text for frame in frames if isinstance(frame, DeltaFrame))


class TestPreviews:
    async def test_are_heard_before_anything_is_recorded(self, cluster: Cluster) -> None:
        latch = Latch()
        hub = cluster.new_hub()
        engine = await cluster.enter([["Once ", "upon", Until(latch.pass_through), " a time."]], hub=hub)
        claimed = await cluster.ask(engine)
        async with hub.subscribe(claimed.turn.id) as subscription:
            await latch.reached.wait()
            assert spoken(subscription.frames(1, 0)) == "Once upon"
            assert spoken(subscription.frames(1, 5)) == "upon"
            assert kinds(await cluster.events(claimed.turn.id)) == ["turn"]
        latch.open()
        await engine.wait(claimed.turn.id)

    async def test_start_anew_after_each_recorded_iteration(self, cluster: Cluster) -> None:
        latch = Latch()
        hub = cluster.new_hub()
        scripts: list[Script] = [
            ["Look.", Call("weather", {"city": "Bern"})],
            ["Cle", Until(latch.pass_through), "ar."],
        ]
        engine = await cluster.enter(scripts, tools=[weather], hub=hub)
        claimed = await cluster.ask(engine)
        async with hub.subscribe(claimed.turn.id) as subscription:
            await latch.reached.wait()
            events = await cluster.events(claimed.turn.id)
            assert isinstance(events[1], ToolCalls)
            assert events[1].text == "Look."
            frames = subscription.frames(len(events), 0)
            assert [(frame.iteration, frame.text) for frame in frames if isinstance(frame, DeltaFrame)] == [(1, "Cle")]
        latch.open()
        await engine.wait(claimed.turn.id)


class TestTheModelOfATurn:
    async def test_follows_turn_then_conversation_then_agent_then_workspace_then_server(self, cluster: Cluster) -> None:
        engine = await cluster.enter(lambda request: ["I am " + request.model])
        spoken = []
        for fields in ({}, {"model": "scripted/turn"}):
            turn = await cluster.answer(engine, **fields)
            spoken.append(text_of((await cluster.rows(turn.id))[-1].blocks))
        assert spoken == [f"I am {QUICK.model}", "I am scripted/turn"]
