"""Providers that misbehave: the turn ends with a code and keeps what was said."""

import asyncio
from typing import Any

from msgspec import structs

from tests.engine.harness import QUICK, Cluster, kinds
from turnkeep.engine.held_turn import MAX_REPLY_CHARS
from turnkeep.model.turns import Turn
from turnkeep.providers.ports import Abilities, Delta, ModelRequest, ProviderFailed
from turnkeep.providers.scripted import Call, Fail, Pause, Restart, Script, Until
from turnkeep.tools.functions import tool
from turnkeep_client.wire.blocks import TextPart
from turnkeep_client.wire.events import Failure, Reset


async def failing_turn(cluster: Cluster, scripts: Any, **fields: Any) -> tuple[Turn, Failure]:
    engine = await cluster.enter(scripts, **fields)
    turn = await cluster.answer(engine)
    assert turn.status == "failed"
    assert turn.error is not None
    failure = (await cluster.events(turn.id))[-1]
    assert isinstance(failure, Failure)
    assert failure.code == turn.error.code
    return turn, failure


class TestAProviderThatFails:
    async def test_in_its_own_words_after_it_spoke(self, cluster: Cluster) -> None:
        turn, failure = await failing_turn(cluster, [["It was ", Fail(ProviderFailed("overloaded, try later"))]])
        assert (failure.code, failure.message) == ("provider_error", "overloaded, try later")
        page = await cluster.store.transcript(cluster.ann, turn.conversation_id)
        assert page.data[-1].content == (TextPart(text="It was "),)
        assert page.data[-1].id == failure.message_id
        assert page.data[-1].status == "failed"

    async def test_before_it_said_anything_leaves_only_the_question(self, cluster: Cluster) -> None:
        turn, failure = await failing_turn(cluster, [[Fail(ProviderFailed("no credit"))]])
        page = await cluster.store.transcript(cluster.ann, turn.conversation_id)
        assert [message.role for message in page.data] == ["user"]
        assert not isinstance(failure.message_id, str)

    async def test_by_saying_nothing_for_too_long(self, cluster: Cluster) -> None:
        settings = structs.replace(QUICK, provider_timeout_seconds=0.1)
        scripts = [["Wait", Until(asyncio.Event().wait)]]
        _, failure = await failing_turn(cluster, scripts, settings=settings)
        assert failure.code == "model_timeout"
        assert "0.1 seconds" in failure.message

    async def test_but_not_by_speaking_slowly(self, cluster: Cluster) -> None:
        settings = structs.replace(QUICK, provider_timeout_seconds=1.0)
        engine = await cluster.enter([[line for n in range(12) for line in (f"{n} ", Pause(0.15))]], settings=settings)
        turn = await engine.wait((await cluster.ask(engine)).turn.id)
        assert turn.status == "succeeded", "each piece starts the limit again; together they took longer"

    async def test_by_ending_without_a_reply(self, cluster: Cluster) -> None:
        class Truncated:
            name = "scripted"
            target = "openai_chat"

            async def speak(self, request: ModelRequest) -> Any:
                yield Delta(text="Half of")

            async def abilities(self, model: str) -> Abilities:
                return Abilities()

            async def models(self) -> list[str]:
                return []

            async def close(self) -> None:
                pass

        turn, failure = await failing_turn(cluster, Truncated())
        assert failure.code == "provider_error"
        page = await cluster.store.transcript(cluster.ann, turn.conversation_id)
        assert page.data[-1].content == (TextPart(text="Half of"),)

    async def test_by_a_bug_of_its_own(self, cluster: Cluster) -> None:
        engine = await cluster.enter([["Well", Fail(KeyError("choices"))]])
        turn = await cluster.answer(engine)
        assert turn.error is not None
        assert turn.error.code == "internal"
        assert "choices" not in turn.error.message

    async def test_by_never_stopping(self, cluster: Cluster) -> None:
        def endless(request: ModelRequest) -> Any:
            return ("word " * 1_000 for _ in range(100_000))

        _, failure = await failing_turn(cluster, endless)
        assert failure.code == "provider_error"
        assert f"{MAX_REPLY_CHARS:,}" in failure.message

    async def test_and_the_conversation_goes_on_afterwards(self, cluster: Cluster) -> None:
        @tool
        def known() -> str:
            return "here"

        scripts: list[Script] = [[Call("known")], ["So ", Fail(ProviderFailed("gone"))], ["Better now."]]
        engine = await cluster.enter(scripts, tools=[known])
        failed = await cluster.answer(engine)
        turn = await cluster.answer(engine, "Again", conversation_id=failed.conversation_id)
        assert turn.status == "succeeded"

    async def test_with_text_that_no_database_can_keep(self, cluster: Cluster) -> None:
        engine = await cluster.enter([["nul \0 half \ud83d end"]])
        turn = await cluster.answer(engine)
        assert turn.status == "succeeded"
        page = await cluster.store.transcript(cluster.ann, turn.conversation_id)
        assert page.data[-1].content == (TextPart(text="nul \ufffd half \ufffd end"),)


class TestAProviderThatStartsAgain:
    async def test_tells_readers_to_drop_what_they_saw(self, cluster: Cluster) -> None:
        engine = await cluster.enter([["Wrong sta", Restart("overloaded"), "Right start."]])
        turn = await cluster.answer(engine)
        events = await cluster.events(turn.id)
        assert kinds(events) == ["turn", "reset", "result"]
        assert isinstance(events[1], Reset)
        assert (events[1].attempt, events[1].reason) == (1, "overloaded")
        page = await cluster.store.transcript(cluster.ann, turn.conversation_id)
        assert page.data[-1].content == (TextPart(text="Right start."),)

    async def test_says_nothing_when_nobody_saw_anything(self, cluster: Cluster) -> None:
        engine = await cluster.enter([[Restart(), "Right start."]])
        turn = await cluster.answer(engine)
        assert kinds(await cluster.events(turn.id)) == ["turn", "result"]
