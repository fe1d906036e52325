"""`turnkeep.testing` as a user's own test suite uses it: only public names, sync and async."""

import subprocess
import sys
from pathlib import Path

import pytest

from turnkeep.client import TurnFailed
from turnkeep.testing import Call, Fail, ModelRequest, ProviderFailed, Script, TurnkeepServer, tool


@tool(idempotent=True)
async def lookup(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


class TestTheFixture:
    def test_the_model_says_what_the_test_planned(self, turnkeep_server: TurnkeepServer) -> None:
        turnkeep_server.say("We are open ", "from 9 to 17.")
        with turnkeep_server.client() as turnkeep:
            assert turnkeep.ask("When are you open?").text == "We are open from 9 to 17."
            assert turnkeep.ask("Hello?").text == "Hello there."
        assert turnkeep_server.requests[0].messages[-1]["content"] == "When are you open?"

    async def test_async_code_reaches_it_too(self, turnkeep_server: TurnkeepServer) -> None:
        turnkeep_server.say("Yes.")
        async with turnkeep_server.async_client() as turnkeep, turnkeep.stream("Really?") as stream:
            assert (await stream.result()).text == "Yes."

    def test_a_function_may_reply(self, turnkeep_server: TurnkeepServer) -> None:
        def echo(request: ModelRequest) -> Script:
            return [str(request.messages[-1]["content"]).upper()]

        turnkeep_server.answer_with(echo)
        with turnkeep_server.client(user="ada") as turnkeep:
            assert turnkeep.ask("quiet").text == "QUIET"

    def test_a_model_that_fails_fails_the_turn(self, turnkeep_server: TurnkeepServer) -> None:
        turnkeep_server.say("I beg", Fail(ProviderFailed("The model is away.")))
        with turnkeep_server.client() as turnkeep, pytest.raises(TurnFailed):
            turnkeep.ask("Hello?")


class TestTheServer:
    def test_it_calls_the_tools_of_the_test(self, tmp_path: Path) -> None:
        with TurnkeepServer(tmp_path, tools=[lookup]) as server, server.client() as turnkeep:
            server.say(Call("lookup", {"city": "Bern"}))
            server.say("It is sunny.")
            assert turnkeep.ask("Weather?").text == "It is sunny."
        assert "sunny in Bern" in str(server.requests[1].messages)

    def test_it_starts_again_on_the_same_data(self, tmp_path: Path) -> None:
        server = TurnkeepServer(tmp_path)
        with server, server.client() as turnkeep:
            conversation = turnkeep.ask("Hello?").conversation_id
        with server, server.client() as turnkeep:
            assert turnkeep.conversations.get(conversation).turn_count == 1

    def test_what_keeps_it_from_starting_is_raised(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("no folder", encoding="utf-8")
        with pytest.raises(Exception, match="file"):
            TurnkeepServer(tmp_path / "file").start()


def test_pytest_is_needed_for_the_fixture_alone() -> None:
    program = """
import sys
sys.modules["pytest"] = None
import turnkeep.testing
assert turnkeep.testing.TurnkeepServer
try:
    turnkeep.testing.turnkeep_server
except ImportError:
    print("as it should be")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "as it should be\n"
