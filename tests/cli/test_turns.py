"""Turns that wait, on the command line: `turnkeep turns`, and a chat that asks, runs local tools and is steered."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Shell
from tests.client.site import rounds_of
from turnkeep.cli.keyboard import TypeAhead
from turnkeep.providers.ports import ModelRequest
from turnkeep.providers.scripted import Call, Line, Script, Until

LOOKUP = {"type": "native", "name": "lookup", "approval": "always"}


def asks_for(*calls: Line, then: str = "It is done.") -> Callable[[ModelRequest], Script]:
    def speak(request: ModelRequest) -> Script:
        return [then] if rounds_of(request) else list(calls)

    return speak


class Opening:
    """Opened by the test, waited for by the model in the server's loop."""

    def __init__(self) -> None:
        self._opened = threading.Event()

    def open(self) -> None:
        self._opened.set()

    def wait(self) -> Line:
        async def opened() -> None:
            while not self._opened.is_set():  # noqa: ASYNC110 - the two live in different loops
                await asyncio.sleep(0.01)

        return Until(opened)


@pytest.fixture
def opening() -> Iterator[Opening]:
    opening = Opening()
    yield opening
    opening.open()


@pytest.fixture(scope="module")
def agent(server: Shell) -> str:
    """An agent whose tool `lookup` needs an approval."""
    spec = {"name": "Asker", "tools": [LOOKUP]}
    return str(server.json("agents", "create", "-", input=json.dumps(spec))["id"])


def waiting(shell: Shell, agent: str, *calls: Line, **options: Any) -> dict[str, Any]:
    """A turn of the operator that waits, as `turns show` says it."""
    shell.model(asks_for(*(calls or (Call("lookup", {"city": "Bern"}),))))

    async def start() -> str:
        async with shell.site.client(user="local") as client:
            return (await client.turns.start("Look it up.", agent_id=agent, **options)).turn_id

    turn_id = shell.on_server(start)
    return until(shell, turn_id, "waiting")


def until(shell: Shell, turn_id: str, status: str) -> dict[str, Any]:
    ending = time.monotonic() + 60
    while (turn := shell.json("turns", "show", turn_id))["status"] != status:
        assert time.monotonic() < ending, turn
        time.sleep(0.05)
    return dict(turn)


def trace_of(shell: Shell, turn_id: str) -> str:
    async def read() -> str:
        async with shell.site.client() as client:
            return repr(await client.turns.trace(turn_id))

    return shell.on_server(read)


class TestCommands:
    def test_waiting_turns_are_listed_and_shown(self, shell: Shell, agent: str) -> None:
        turn = waiting(shell, agent)
        listed = shell.lines("turns", "list", "--waiting")
        assert turn in listed
        assert "approval of lookup" in shell.here("turns", "list", "--waiting").stdout
        shown = shell.here("turns", "show", turn["id"]).stdout
        assert "city: Bern" in shown
        assert turn["waiting_for"]["calls"][0]["id"] in shown
        assert shell.json("turns", "cancel", turn["id"])["status"] == "cancelled"
        assert turn["id"] not in [each["id"] for each in shell.lines("turns", "list", "--waiting")]

    def test_an_approval_lets_the_call_run(self, shell: Shell, agent: str) -> None:
        turn = waiting(shell, agent)
        decided = shell.json("turns", "approve", turn["id"])
        assert decided["status"] == "running"
        assert until(shell, turn["id"], "succeeded")["response"] == "It is done."
        other = shell.here("turns", "deny", turn["id"], turn["waiting_for"]["calls"][0]["id"])
        assert other.returncode == 1
        assert "allow" in other.stderr
        gone = shell.here("turns", "approve", turn["id"])
        assert (gone.returncode, "does not wait for an approval" in gone.stderr) == (2, True)

    def test_a_denial_has_a_reason(self, shell: Shell, agent: str) -> None:
        turn = waiting(shell, agent)
        said = shell.here("turns", "deny", turn["id"], "--reason", "Not today.")
        assert said.stdout == f"{turn['id']} is running.\n"
        until(shell, turn["id"], "succeeded")
        assert "Not today." in trace_of(shell, turn["id"])

    def test_arguments_can_be_changed(self, shell: Shell, agent: str) -> None:
        turn = waiting(shell, agent)
        wrong = shell.here("turns", "approve", turn["id"], "--args", "{")
        assert (wrong.returncode, "--args is not JSON" in wrong.stderr) == (2, True)
        wrong = shell.here("turns", "approve", turn["id"], "--args", "[1]")
        assert (wrong.returncode, "must be a JSON object" in wrong.stderr) == (2, True)
        shell.json("turns", "approve", turn["id"], "--args", '{"city": "Basel"}')
        until(shell, turn["id"], "succeeded")
        assert "Basel" in trace_of(shell, turn["id"])

    def test_of_several_calls_one_is_named_or_all(self, shell: Shell, agent: str) -> None:
        turn = waiting(shell, agent, Call("lookup", {"city": "Bern"}), Call("lookup", {"city": "Basel"}))
        unclear = shell.here("turns", "approve", turn["id"])
        assert (unclear.returncode, "waits for 2 calls. Name one of them" in unclear.stderr) == (2, True)
        first = turn["waiting_for"]["calls"][0]["id"]
        left = shell.json("turns", "approve", turn["id"], first)
        assert len(left["waiting_for"]["calls"]) == 1
        shell.json("turns", "approve", turn["id"], "--all", "--always")
        until(shell, turn["id"], "succeeded")

    def test_results_of_client_tools_are_sent(self, shell: Shell, agent: str) -> None:
        battery = {"type": "client", "name": "battery", "description": "", "input_schema": {}}
        turn = waiting(shell, agent, Call("battery", {}), tools=[battery])
        assert turn["waiting_for"]["type"] == "client_tools"
        both = shell.here("turns", "results", turn["id"], "--result", "1", "--error", "x")
        assert (both.returncode, "either --result or --error" in both.stderr) == (2, True)
        assert shell.here("turns", "results", turn["id"], "--result", "eighty").returncode == 2
        done = shell.here("turns", "results", turn["id"], "--result", "-", "--json", input='{"charge": 80}')
        assert json.loads(done.stdout)["status"] == "running"
        until(shell, turn["id"], "succeeded")
        assert "'charge': 80" in trace_of(shell, turn["id"])

    def test_words_steer_a_turn(self, shell: Shell, agent: str) -> None:
        turn = waiting(shell, agent)
        steering = shell.json("turns", "steer", turn["id"], "In French, please.")
        assert steering["turn_id"] == turn["id"]
        assert shell.here("turns", "steer", turn["id"], "-", input=" ").returncode == 2
        shell.model(lambda request: ["Il pleut."])
        shell.json("turns", "approve", turn["id"])
        until(shell, turn["id"], "succeeded")
        assert "In French, please." in trace_of(shell, turn["id"])

    def test_what_is_hidden_is_written_out(self, shell: Shell, agent: str) -> None:
        turn = waiting(shell, agent, Call("lookup", {"city": "\x1b[31mBern\u202e"}))
        shown = shell.here("turns", "show", turn["id"]).stdout
        assert "\\x1b[31mBern\\u202e" in shown
        assert "\x1b" not in shown
        shell.json("turns", "cancel", turn["id"])


class TestChat:
    def test_asks_before_a_call_runs(self, shell: Shell, agent: str) -> None:
        shell.model(asks_for("Let me look.", Call("lookup", {"city": "Bern"})))
        with shell.terminal("chat", "--agent", "Asker") as terminal:
            terminal.expect("›")
            terminal.line("Weather?")
            terminal.expect("The assistant wants to call lookup")
            terminal.expect("city: Bern")
            terminal.expect("Allow it?")
            terminal.line("what")
            terminal.expect("Type y, n, e, a or l.")
            terminal.line("y")
            terminal.expect("✓ lookup (city: Bern)")
            terminal.expect("It is done.")
            terminal.expect("›")
            terminal.line("/quit")
            assert terminal.leave() == 0

    def test_denies_with_a_reason_and_edits(self, shell: Shell, agent: str) -> None:
        shell.model(asks_for(Call("lookup", {"city": "Bern"}), Call("lookup", {"city": "Basel"})))
        with shell.terminal("chat", "--agent", "Asker") as terminal:
            terminal.expect("›")
            terminal.line("Weather?")
            terminal.expect("Allow it?")
            terminal.line("n")
            terminal.expect("Why not?")
            terminal.line("It always rains.")
            terminal.expect("Basel")
            terminal.expect("Allow it?")
            terminal.line("e")
            terminal.expect('{"city":"Basel"}')
            terminal.line(",")
            terminal.expect("These are not the arguments as a JSON object")
            terminal.expect('{"city":"Basel"},')  # the line to edit: before it, the terminal itself reads the key
            terminal.send("\x15")
            terminal.line('{"city": "Chur"}')
            terminal.expect("It always rains.")
            terminal.expect("✓ lookup (city: Chur)")
            terminal.expect("It is done.")

    def test_hidden_characters_can_be_edited(self, shell: Shell, agent: str) -> None:
        """The text to edit is the arguments, also if nothing in it is changed."""
        shell.model(asks_for(Call("lookup", {"city": "Ba\u00adsel \U000e0001\u200b"})))
        with shell.terminal("chat", "--agent", "Asker") as terminal:
            terminal.expect("›")
            terminal.line("Weather?")
            terminal.expect("Allow it?")
            terminal.line("e")
            terminal.expect("Arguments, as JSON")
            terminal.line("")
            terminal.expect("✓ lookup")
            terminal.expect("It is done.")

    def test_always_asks_only_once(self, shell: Shell, agent: str) -> None:
        def speak(request: ModelRequest) -> Script:
            return ["Both are known."] if rounds_of(request) > 1 else [Call("lookup", {"city": "Bern"})]

        shell.model(speak)
        with shell.terminal("chat", "--agent", "Asker") as terminal:
            terminal.expect("›")
            terminal.line("Weather?")
            terminal.expect("Allow it?")
            terminal.line("a")
            assert "Allow it?" not in terminal.expect("Both are known.")

    def test_a_question_can_be_left_for_later(self, shell: Shell, agent: str) -> None:
        shell.model(asks_for(Call("lookup", {"city": "Bern"})))
        with shell.terminal("chat", "--agent", "Asker") as terminal:
            terminal.expect("›")
            terminal.line("Weather?")
            terminal.expect("Allow it?")
            terminal.line("l")
            terminal.expect("The turn waits. /decide asks again")
            terminal.expect("›")
            terminal.line("/decide")
            terminal.expect("Allow it?")
            terminal.line("y")
            terminal.expect("It is done.")
            terminal.expect("›")
            terminal.line("/decide")
            terminal.expect("No turn waits here.")

    def test_ctrl_c_stops_a_turn_that_waits(self, shell: Shell, agent: str) -> None:
        shell.model(asks_for(Call("lookup", {"city": "Bern"})))
        with shell.terminal("chat", "--agent", "Asker") as terminal:
            terminal.expect("›")
            terminal.line("Weather?")
            terminal.expect("Allow it?")
            terminal.interrupt_until("Stopped. What was said is kept.")
            terminal.expect("›")

    def test_a_question_is_withdrawn_when_another_device_decides(self, shell: Shell, agent: str) -> None:
        shell.model(asks_for(Call("lookup", {"city": "Bern"}), Call("lookup", {"city": "Basel"})))
        with shell.terminal("chat", "--agent", "Asker") as terminal:
            terminal.expect("›")
            terminal.line("Weather?")
            terminal.expect("city: Bern")
            terminal.expect("Allow it?")
            [turn] = shell.lines("turns", "list", "--waiting", "-n", "1")
            first, second = [call["id"] for call in shell.json("turns", "show", turn["id"])["waiting_for"]["calls"]]
            shell.json("turns", "deny", turn["id"], first, "--reason", "It always rains.")
            terminal.expect("Denied by ")
            terminal.expect(": It always rains.")
            terminal.expect("city: Basel")
            terminal.expect("Allow it?")
            terminal.line("n")
            terminal.expect("Why not?")
            shell.json("turns", "approve", turn["id"], second, "--args", '{"city": "Chur"}')
            terminal.expect("Allowed by ")
            terminal.expect("""with other arguments: {"city":"Chur"}""")
            terminal.expect("✓ lookup (city: Chur)")
            terminal.expect("It is done.")
            terminal.expect("›")
            terminal.line("/quit")
            assert terminal.leave() == 0

    def test_a_question_is_withdrawn_when_the_turn_is_stopped(self, shell: Shell, agent: str) -> None:
        shell.model(asks_for(Call("lookup", {"city": "Bern"})))
        with shell.terminal("chat", "--agent", "Asker") as terminal:
            terminal.expect("›")
            terminal.line("Weather?")
            terminal.expect("Allow it?")
            [turn] = shell.lines("turns", "list", "--waiting", "-n", "1")
            shell.json("turns", "cancel", turn["id"])
            terminal.expect("This needs no decision any more")
            terminal.expect("Stopped. What was said is kept.")
            terminal.expect("›")

    def test_a_conversation_that_waits_asks_when_it_is_opened(self, shell: Shell, agent: str) -> None:
        turn = waiting(shell, agent)
        with shell.terminal("chat", "-c", turn["conversation_id"]) as terminal:
            terminal.expect("Allow it?")
            terminal.line("y")
            terminal.expect("It is done.")

    def test_a_pipe_says_how_to_decide(self, shell: Shell, agent: str) -> None:
        shell.model(asks_for(Call("lookup", {"city": "Bern"})))
        done = shell.run("chat", "Weather?", "--agent", "Asker", "--json")
        assert done.returncode == 1
        turn = json.loads(done.stdout)
        assert turn["status"] == "waiting"
        assert f"turnkeep turns show {turn['id']}" in done.stderr
        shell.json("turns", "cancel", turn["id"])

    def test_one_question_on_a_terminal_asks_too(self, shell: Shell, agent: str) -> None:
        shell.model(asks_for(Call("lookup", {"city": "Bern"})))
        with shell.terminal("chat", "Weather?", "--agent", "Asker") as terminal:
            terminal.expect("Allow it?")
            terminal.line("y")
            terminal.expect("It is done.")
            assert terminal.leave() == 0


class TestClientTools:
    def script(self, folder: Path, text: str) -> Path:
        path = folder / "tool.sh"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    def test_a_local_command_gets_the_arguments_and_gives_the_result(self, shell: Shell) -> None:
        shell.model(asks_for(Call("battery", {"unit": "percent"})))
        tool = self.script(shell.folder, "printf '{\"asked\": '; cat; printf '}'")
        done = shell.run("chat", "Charged?", "--client-tool", f"battery={tool}")
        assert done.returncode == 0, done.stderr
        assert done.stdout == "It is done.\n"
        conversation = shell.lines("conversations", "list", "-n", "1")[0]
        trace = trace_of(shell, conversation["head_turn_id"])
        assert "'asked': {'unit': 'percent'}" in trace

    def test_a_command_that_fails_is_told_to_the_model(self, shell: Shell) -> None:
        shell.model(asks_for(Call("battery", {})))
        tool = self.script(shell.folder, "echo 'no battery' >&2; exit 3")
        done = shell.run("chat", "Charged?", "--client-tool", f"battery={tool}")
        assert done.returncode == 0, done.stderr
        assert "battery failed: no battery" in done.stderr

    def test_a_file_describes_a_tool(self, shell: Shell) -> None:
        shell.model(asks_for(Call("battery", {})))
        spec = shell.folder / "battery.json"
        spec.write_text(json.dumps({"name": "battery", "command": ["echo", "80"], "description": "The charge."}))
        with shell.terminal("chat", "--client-tool", str(spec)) as terminal:
            terminal.expect("›")
            terminal.line("Charged?")
            terminal.expect("running battery: echo 80")
            terminal.expect("It is done.")

    @pytest.mark.parametrize(
        "given,words",
        [
            ("battery", "neither NAME=COMMAND nor a JSON file"),
            ("battery=", "Say which command battery runs"),
            ("battery='", "cannot be read"),
            ("missing.json", "There is no file missing.json"),
        ],
    )
    def test_what_is_no_tool_is_refused(self, shell: Shell, given: str, words: str) -> None:
        done = shell.here("chat", "Hi", "--client-tool", given)
        assert done.returncode in {1, 2}
        assert words in done.stderr

    def test_a_tool_of_another_app_is_named(self, shell: Shell, agent: str) -> None:
        other = {"type": "client", "name": "camera", "description": "", "input_schema": {}}
        turn = waiting(shell, agent, Call("camera", {}), tools=[other])
        with shell.terminal("chat", "-c", turn["conversation_id"]) as terminal:
            terminal.expect("waits for another app, which runs camera")
            shell.json("turns", "results", turn["id"], "--result", '"a picture"')
            terminal.expect("It is done.")


class TestSteering:
    def test_a_line_that_is_typed_meanwhile_reaches_the_model(self, shell: Shell, opening: Opening) -> None:
        def speak(request: ModelRequest) -> Script:
            if not rounds_of(request):
                return ["Let me look.\n\nSlowly. ", opening.wait(), Call("lookup", {"city": "Bern"})]
            return ["Il pleut." if "In French" in repr(request.all_messages) else "It rains."]

        shell.model(speak)
        with shell.terminal("chat") as terminal:
            terminal.expect("›")
            terminal.line("Weather?")
            terminal.expect("Let me look.")
            terminal.send("In Frenchh\x7f, please.")
            terminal.expect("› In French, please.")
            terminal.send("\r")
            terminal.expect("↳ In French, please. (before the next step of the model)")
            opening.open()
            terminal.expect("› In French, please.")
            terminal.expect("Il pleut.")
            terminal.expect("›")
            terminal.line("/quit")
            assert terminal.leave() == 0

    def test_a_line_that_comes_too_late_is_the_next_turn(self, shell: Shell, opening: Opening) -> None:
        def speak(request: ModelRequest) -> Script:
            if "In French" in repr(request.all_messages):
                return ["Il pleut."]
            return ["Let me say.\n\nIt ", opening.wait(), "rains."]

        shell.model(speak)
        with shell.terminal("chat") as terminal:
            terminal.expect("›")
            terminal.line("Weather?")
            terminal.expect("Let me say.")
            terminal.line("In French, please.")
            terminal.expect("↳ In French, please.")
            terminal.line("/help")
            terminal.expect("/help: after this answer")
            terminal.send("half a li")
            terminal.expect("› half a li")
            opening.open()
            terminal.expect("It rains.")
            terminal.expect("Il pleut.")
            terminal.expect("/attach FILE")
            terminal.expect("half a li")
            terminal.line("ne")
            terminal.expect("Il pleut.")
        conversation = shell.lines("conversations", "list", "-n", "1")[0]
        asked = [each for each in shell.lines("conversations", "show", conversation["id"]) if each["role"] == "user"]
        assert [each["content"][0]["text"] for each in asked] == ["Weather?", "In French, please.", "half a line"]


class TestTypeAhead:
    def test_keys_make_lines(self) -> None:
        lines: list[str] = []
        typed = TypeAhead(lines.append)
        typed.feed("Grüße".encode()[:3])
        typed.feed("Grüße".encode()[3:])
        typed.feed(b" \x1b[A\x1bOBto\x7fx\rone two \x17")
        assert (lines, typed.text) == (["Grüße tx"], "one")
        typed.feed(b"\x15\x04\tabc\n")
        assert lines[-1] == "abc"
        typed.feed(b"rest")
        assert (typed.take(), typed.text) == ("rest", "")
