"""The verbs of turns that wait, async and sync, against a real server."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.api.harness import OPERATOR_KEY, ApiServer, settings_for
from turnkeep.providers.scripted import Call
from turnkeep.tools.functions import tool
from turnkeep.tools.registry import ToolRegistry
from turnkeep_client import AsyncTurnkeep, Turnkeep
from turnkeep_client.errors import AlreadyDecided, ConversationBusy
from turnkeep_client.stream import Approval, ClientCalls, Steered
from turnkeep_client.wire.blocks import JsonObject

LOOKUP: JsonObject = {"type": "client", "name": "lookup", "description": "", "input_schema": {}}


@tool
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with ApiServer.start(settings_for(tmp_path), tools=ToolRegistry([pay])) as running:
        yield running


async def an_agent(turnkeep: AsyncTurnkeep) -> str:
    rule = {"type": "native", "name": "pay", "approval": "always"}
    return (await turnkeep.agents.create(name="Payer", tools=[rule])).id


class TestTheAsyncClient:
    async def test_approves_while_it_reads_the_stream(self, server: ApiServer) -> None:
        server.scripts.say(Call("pay", {"amount": 5}))
        async with AsyncTurnkeep(server.url, OPERATOR_KEY) as turnkeep:
            asked: list[Approval] = []
            async with turnkeep.stream("Pay.", agent_id=await an_agent(turnkeep)) as stream:
                async for event in stream:
                    if isinstance(event, Approval):
                        asked.append(event)
                        turn = await turnkeep.turns.get(await stream.started())
                        assert turn.waiting_for is not None
                        assert [call.id for call in turn.waiting_for.calls] == [event.calls[0].id]
                        with pytest.raises(ConversationBusy) as busy:
                            await turnkeep.ask("And?", conversation_id=turn.conversation_id)
                        assert busy.value.waiting_for == "approval"
                        await turnkeep.turns.steer(turn.id, "Be short.")
                        await turnkeep.turns.approve(turn.id, event.calls[0].id, args={"amount": 3})
                    elif isinstance(event, Steered):
                        assert event.message == "Be short."
                answer = await stream.result()
            assert answer.status == "succeeded"
            [call] = asked[0].calls
            with pytest.raises(AlreadyDecided) as late:
                await turnkeep.turns.deny(answer.turn_id, call.id)
            assert late.value.decision == "allow"

    async def test_sends_results_of_client_tools(self, server: ApiServer) -> None:
        server.scripts.say(Call("lookup", {"key": "a"}))
        async with (
            AsyncTurnkeep(server.url, OPERATOR_KEY) as turnkeep,
            turnkeep.stream("Look.", tools=[LOOKUP]) as stream,
        ):
            async for event in stream:
                if isinstance(event, ClientCalls):
                    results = [{"call_id": call.id, "result": {"found": 1}} for call in event.calls]
                    await turnkeep.turns.results(await stream.started(), results)
            assert (await stream.result()).text == "Hello there."


class TestTheSyncClient:
    async def test_denies(self, server: ApiServer) -> None:
        server.scripts.say(Call("pay", {"amount": 5}))

        def use() -> str:
            with Turnkeep(server.url, OPERATOR_KEY) as turnkeep:
                rule = {"type": "native", "name": "pay", "approval": "always"}
                agent = turnkeep.agents.create(name="Payer", tools=[rule])
                started = turnkeep.turns.start("Pay.", agent_id=agent.id)
                with turnkeep.turns.follow(started.turn_id) as stream:
                    for event in stream:
                        if isinstance(event, Approval):
                            turnkeep.turns.deny(started.turn_id, event.calls[0].id, reason="No.")
                return turnkeep.turns.wait(started.turn_id).status

        assert await asyncio.to_thread(use) == "succeeded"
