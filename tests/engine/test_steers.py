"""Words that are sent to a turn while it runs."""

from typing import Any

import pytest
from msgspec import structs

from tests.engine.harness import DYING, Cluster, Latch, kinds
from turnkeep.engine import Engine, Options
from turnkeep.errors import IdempotencyConflict
from turnkeep.ids import TurnId
from turnkeep.providers.ports import ModelRequest
from turnkeep.providers.scripted import Call, Script, Until
from turnkeep.store.commands import Claimed
from turnkeep.tools.functions import tool
from turnkeep_client.wire.blocks import Text, text_of
from turnkeep_client.wire.events import Failure, Steered


async def steer(cluster: Cluster, engine: Engine, turn_id: TurnId, text: str, **options: Any) -> Claimed:
    _, claimed = await engine.steer(cluster.ann, turn_id, (Text(text=text),), Options(**options))
    return claimed


class TestSteering:
    async def test_the_words_reach_the_model_before_its_next_call(self, cluster: Cluster) -> None:
        latch, requests = Latch(), []

        @tool
        async def look() -> str:
            await latch.pass_through()
            return "seen"

        def speak(request: ModelRequest) -> Script:
            requests.append(request)
            return [Call("look")] if len(requests) == 1 else ["In French: oui."]

        engine = await cluster.enter(speak, tools=[look])
        claimed = await cluster.ask(engine, "What is it?")
        await latch.reached.wait()
        first = await steer(cluster, engine, claimed.turn.id, "Answer in French.")
        await steer(cluster, engine, claimed.turn.id, "And be short.")
        latch.open()
        turn = await engine.wait(claimed.turn.id)
        assert turn.status == "succeeded"
        assert len(requests) == 2
        sent = repr(requests[1].all_messages)
        assert sent.index("seen") < sent.index("Answer in French.") < sent.index("And be short.")
        events = await cluster.events(turn.id)
        assert kinds(events) == [
            "turn", "tool_calls", "step running", "step succeeded", "steered", "steered", "result",
        ]  # fmt: skip
        told = [event for event in events if isinstance(event, Steered)]
        assert [event.message for event in told] == ["Answer in French.", "And be short."]
        assert told[0].message_id == first.user_message_id
        page = await cluster.store.transcript(cluster.ann, turn.conversation_id)
        assert [message.role for message in page.data] == ["user", "user", "user", "assistant"]
        conversation = await cluster.store.conversation(cluster.ann, turn.conversation_id)
        assert conversation.message_count == 4
        ending = (await cluster.events(first.turn.id))[-1]
        assert isinstance(ending, Failure)
        assert ending.code == "steered"

    async def test_words_that_come_too_late_are_the_next_turn(self, cluster: Cluster) -> None:
        latch = Latch()
        engine = await cluster.enter([["One ", Until(latch.pass_through), "two."], ["In French."], ["Later."]])
        claimed = await cluster.ask(engine)
        await latch.reached.wait()
        queued = await cluster.ask(engine, conversation_id=claimed.turn.conversation_id, if_busy="enqueue")
        steered = await steer(cluster, engine, claimed.turn.id, "Answer in French.")
        latch.open()
        turn = await engine.wait(steered.turn.id)
        assert turn.status == "succeeded"
        rows = await cluster.rows(turn.id)
        assert text_of(rows[-1].blocks) == "In French."
        assert (await engine.wait(queued.turn.id)).status == "succeeded"
        assert not any(isinstance(event, Steered) for event in await cluster.events(claimed.turn.id))

    async def test_a_repeat_with_the_same_key_adds_nothing(self, cluster: Cluster) -> None:
        latch = Latch()

        @tool
        async def look() -> str:
            await latch.pass_through()
            return "seen"

        engine = await cluster.enter([[Call("look")], ["Done."], ["Again."]], tools=[look])
        claimed = await cluster.ask(engine)
        await latch.reached.wait()
        key = {"idempotency_key": "k", "request_hash": "h"}
        first = await steer(cluster, engine, claimed.turn.id, "Shorter.", **key)
        again = await steer(cluster, engine, claimed.turn.id, "Shorter.", **key)
        assert first.turn.id == again.turn.id
        latch.open()
        await engine.wait(claimed.turn.id)
        late = await steer(cluster, engine, claimed.turn.id, "Shorter.", **key)
        assert late.turn.id == first.turn.id
        with pytest.raises(IdempotencyConflict):
            await steer(cluster, engine, claimed.turn.id, "Longer.", idempotency_key="k", request_hash="other")
        told = [event for event in await cluster.events(claimed.turn.id) if isinstance(event, Steered)]
        assert len(told) == 1

    async def test_an_ended_turn_makes_them_a_turn_of_their_own(self, cluster: Cluster) -> None:
        engine = await cluster.enter([["One."], ["Two."]])
        turn = await cluster.answer(engine)
        steered = await steer(cluster, engine, turn.id, "And now?")
        assert (await engine.wait(steered.turn.id)).status == "succeeded"

    async def test_a_worker_that_adopts_the_turn_finds_them(self, cluster: Cluster) -> None:
        """The first worker dies after its tool ended, before it could ask the model again."""
        requests: list[ModelRequest] = []
        gate = Latch()

        def speak(request: ModelRequest) -> Script:
            requests.append(request)
            return ["Done."]

        dying = await cluster.enter([["Half", Until(gate.pass_through)]], start=False, settings=DYING)
        claimed = await cluster.ask(dying)
        await gate.reached.wait()
        await steer(cluster, dying, claimed.turn.id, "Answer in French.")
        other = await cluster.enter(speak, settings=structs.replace(DYING, lease_seconds=20.0))
        assert (await other.wait(claimed.turn.id)).status == "succeeded"
        assert "Answer in French." in repr(requests[0].all_messages)
        told = [event for event in await cluster.events(claimed.turn.id) if isinstance(event, Steered)]
        assert len(told) == 1
