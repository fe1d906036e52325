"""`turnkeep chat`: a conversation on a terminal, and one question for a script."""

import asyncio
import json
import threading
from collections.abc import Iterator

import pytest

from tests.cli.conftest import Shell
from tests.client.site import rounds_of
from turnkeep.providers.ports import ModelRequest, ProviderFailed
from turnkeep.providers.scripted import Call, Fail, Line, OutOfTokens, Restart, Script, Until


class Gate:
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
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


def with_a_tool(request: ModelRequest) -> Script:
    if not rounds_of(request):
        return ["Let me look.", Call("lookup", {"city": "Bern"})]
    return ["It is **sunny**."]


class TestOneQuestion:
    def test_prints_the_answer_and_nothing_else_on_standard_output(self, shell: Shell) -> None:
        shell.model(with_a_tool)
        done = shell.run("chat", "Weather?")
        assert done.stdout == "Let me look.\n\nIt is **sunny**.\n"
        assert "✓ `lookup` (city: Bern)" in done.stderr

    def test_is_read_from_standard_input_and_goes_on_with_the_last_conversation(self, shell: Shell) -> None:
        first = shell.json("chat", "Hello?")
        second = shell.json("chat", "-c", "last", input="And this?")
        assert second["conversation_id"] == first["conversation_id"]
        assert (first["status"], first["text"]) == ("succeeded", "Hello there.")

    def test_prints_its_events_as_json_lines(self, shell: Shell) -> None:
        lines = [json.loads(line) for line in shell.ok("chat", "Hello?", "--events").splitlines()]
        assert [(line["event"], line["id"]) for line in lines if line["event"] != "delta"] == [
            ("turn", "1"),
            ("result", "2"),
        ]
        assert {line["id"] for line in lines if line["event"] == "delta"} <= {"1.6", "1.12"}
        assert lines[-1]["data"]["message"] == "Hello there."

    def test_takes_files_a_model_and_an_agent(self, shell: Shell) -> None:
        note = shell.folder / "note.txt"
        note.write_text("buy milk")
        agent = shell.json("agents", "create", "-", input='{"name": "Clerk", "instructions": "Be brief."}')
        answer = shell.json("chat", "What is it?", "--attach", note, "--model", "demo", "--agent", "clerk")
        assert "buy milk" in answer["text"]
        conversation = shell.lines("conversations", "list", "-n", "1")[0]
        assert (conversation["agent_id"], conversation["model"]) == (agent["id"], "demo")

    @pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
    def test_that_fails_is_one_line_and_exit_code_1(self, shell: Shell, as_json: bool) -> None:
        shell.model(lambda request: ["I was just ", Fail(ProviderFailed("The provider fell over."))])
        done = shell.run("chat", "Hello?", *(["--json"] if as_json else []))
        assert done.returncode == 1
        assert done.stderr.strip().endswith("failed: The provider fell over.")
        assert "Traceback" not in done.stderr
        if as_json:
            assert json.loads(done.stdout)["error"]["code"] == "provider_error"
        else:
            assert done.stdout.strip() == "I was just"

    def test_whose_answer_is_not_complete_says_so(self, shell: Shell) -> None:
        shell.model(lambda request: ["Half of a sen", OutOfTokens()])
        done = shell.run("chat", "Hello?")
        assert done.stdout.strip() == "Half of a sen"
        assert "The model reached its token limit" in done.stderr

    @pytest.mark.parametrize(
        "arguments,code,words",
        [
            (("chat", ""), 2, "There is no message"),
            (("chat", "Hi", "--model", "no/such"), 2, "No provider serves the model"),
            (("chat", "Hi", "--agent", "Nobody"), 1, "No agent is called"),
            (("chat", "Hi", "-c", "conv_00000000000000000000000000000000"), 1, "conversation"),
            (("chat", "Hi", "--attach", "missing.txt"), 1, "There is no file missing.txt"),
            (("chat", "Hi", "--key", "wrong"), 1, "key"),
            (("chat", "Hi", "--url", "nowhere"), 2, "is no address"),
            (("chat", "Hi", "--url", "http://127.0.0.1:9", "--key", "k"), 1, "turnkeep serve"),
        ],
    )
    def test_that_cannot_be_asked_says_why_in_one_line(
        self, shell: Shell, arguments: tuple[str, ...], code: int, words: str
    ) -> None:
        done = shell.here(*arguments)
        assert done.returncode == code, done.stderr
        assert words in done.stderr.splitlines()[-1]
        assert done.stderr.splitlines()[-1].startswith("turnkeep: ")

    def test_without_any_server_says_how_to_start_one(self, shell: Shell) -> None:
        done = shell.run("chat", "Hi", TURNKEEP_DATA_DIR=str(shell.folder / "elsewhere"))
        assert done.returncode == 1
        assert "turnkeep serve" in done.stderr

    def test_on_a_terminal_is_drawn(self, shell: Shell) -> None:
        shell.model(with_a_tool)
        with shell.terminal("chat", "Weather?") as terminal:
            assert terminal.leave() == 0
            assert "✓ lookup (city: Bern)" in terminal.text
            assert "It is sunny." in terminal.text


class TestTheOperator:
    """What the operator asks in the terminal belongs to the user whom the sign-in link signs in."""

    def owner(self, shell: Shell, conversation_id: str) -> str | None:
        async def read() -> str | None:
            async with shell.site.client() as client:
                user = (await client.conversations.get(conversation_id)).user
            return None if user is None else user.external_id

        return shell.on_server(read)

    def test_a_chat_with_the_local_key_is_theirs(self, shell: Shell) -> None:
        asked = shell.json("chat", "Hello?")
        assert self.owner(shell, asked["conversation_id"]) == "local"
        again = shell.json("chat", "-c", asked["conversation_id"], "And now?")
        assert again["conversation_id"] == asked["conversation_id"]
        last = shell.json("chat", "-c", "last", "And then?")
        assert last["conversation_id"] == asked["conversation_id"]

    def test_a_conversation_of_a_key_or_of_another_user_stays_theirs(self, shell: Shell) -> None:
        async def ask(user: str | None) -> str:
            async with shell.site.client(user=user) as client:
                return (await client.ask("Hello?")).conversation_id

        for user in (None, "kim"):
            conversation_id = shell.on_server(lambda user=user: ask(user))  # type: ignore[misc]
            again = shell.json("chat", "-c", conversation_id, "And now?")
            assert again["conversation_id"] == conversation_id
            assert self.owner(shell, conversation_id) == user

    def test_with_another_key_or_user_the_chat_is_not_theirs(self, shell: Shell) -> None:
        named = shell.json("chat", "--user", "kim", "Hello?")
        assert self.owner(shell, named["conversation_id"]) == "kim"
        key = shell.json("keys", "create", "backend")["key"]
        asked = shell.json("chat", "--url", shell.site.url, "--key", key, "Hello?")
        assert self.owner(shell, asked["conversation_id"]) is None

    def test_an_import_is_theirs_too(self, shell: Shell) -> None:
        file = shell.folder / "messages.json"
        file.write_text('[{"role": "user", "content": "From elsewhere"}]', encoding="utf-8")
        [made] = shell.lines("import", file)
        assert made["user"]["external_id"] == "local"


class TestAChat:
    def test_streams_shows_steps_and_goes_on(self, shell: Shell, gate: Gate) -> None:
        def model(request: ModelRequest) -> Script:
            if not rounds_of(request):
                return ["Let me look.", Call("lookup", {"city": "Bern"})]
            return ["It is **sun", gate.wait(), "ny**."]

        shell.model(model)
        with shell.terminal("chat") as terminal:
            terminal.expect("/help lists the commands")
            terminal.expect("›")
            terminal.line("Weather?")
            terminal.expect("✓ lookup (city: Bern)")
            terminal.expect("It is **sun")
            gate.open()
            terminal.expect("It is sunny.")
            terminal.expect("›")
            shell.model(lambda request: [f"You asked {sum(m['role'] == 'user' for m in request.messages)} times."])
            terminal.line("And now?")
            terminal.expect("You asked 2 times.")
            terminal.expect("›")
            terminal.send("\x04")
            assert "turnkeep chat -c conv_" in terminal.expect("conv_")
            assert terminal.leave() == 0

    def test_ctrl_c_stops_the_turn_and_keeps_what_was_said(self, shell: Shell, gate: Gate) -> None:
        shell.model(lambda request: ["One two ", gate.wait(), "three."])
        with shell.terminal("chat") as terminal:
            terminal.expect("›")
            terminal.line("Count!")
            terminal.expect("One two")
            terminal.interrupt()
            terminal.expect("Stopped. What was said is kept.")
            shell.model(lambda request: ["Still here."])
            terminal.expect("›")
            terminal.line("Are you there?")
            terminal.expect("Still here.")
            terminal.expect("›")
            terminal.line("/quit")
            assert terminal.leave() == 0
        conversation = shell.lines("conversations", "list", "-n", "1")[0]
        messages = shell.lines("conversations", "show", conversation["id"])
        assert [message["status"] for message in messages] == ["cancelled", "cancelled", "succeeded", "succeeded"]
        assert messages[1]["content"] == [{"type": "text", "text": "One two "}]

    def test_ctrl_c_twice_at_the_prompt_leaves(self, shell: Shell) -> None:
        with shell.terminal("chat") as terminal:
            terminal.expect("›")
            terminal.interrupt_until("Ctrl-C again leaves")
            terminal.expect("›")
            terminal.interrupt()
            terminal.send("\x04")
            assert terminal.leave() in {0, 130}

    def test_a_lost_connection_is_shown_and_resumed(self, shell: Shell, gate: Gate) -> None:
        shell.model(lambda request: ["First words. ", gate.wait(), "Last words."])
        with shell.terminal("chat") as terminal:
            terminal.expect("›")
            terminal.line("Tell me!")
            terminal.expect("First words.")
            shell.on_server(shell.site.stop)
            terminal.expect("The connection is lost. Trying again")
            shell.on_server(shell.site.start)
            gate.open()
            terminal.expect("connected again; nothing was lost")
            terminal.expect("First words. Last words.")
            terminal.expect("›")

    def test_a_model_that_starts_again_is_noted(self, shell: Shell, gate: Gate) -> None:
        again: list[Line] = [Restart("overloaded"), "A new block.\n\n", "The end."]
        shell.model(lambda request: ["A block.\n\nAnother ", gate.wait(), *again])
        with shell.terminal("chat") as terminal:
            terminal.expect("›")
            terminal.line("Go!")
            terminal.expect("A block.")
            gate.open()
            terminal.expect("the model starts again")
            terminal.expect("The end.")

    def test_commands(self, shell: Shell) -> None:
        (shell.folder / "milk and bread.txt").write_text("buy milk")
        shell.json("agents", "create", "-", input='{"name": "Baker", "model": "scripted"}')
        with shell.terminal("chat") as terminal:
            terminal.expect("›")
            terminal.line(f"/attach {shell.folder / 'milk and bread.txt'}")
            terminal.expect("attached milk and bread.txt (8 bytes)")
            terminal.expect("+1 ›")
            terminal.line("/model de")
            terminal.expect("From here on demo answers.")
            terminal.line("What is in it, dear clerk?")
            terminal.expect("buy milk")
            terminal.expect("demo ›")
            terminal.line("/retry")
            terminal.expect("buy milk")
            terminal.expect("demo ›")
            terminal.line("/model scripted")
            terminal.expect("scripted ›")
            terminal.line("/agent baker")
            terminal.expect("A new conversation with Baker.")
            terminal.line("Hello?")
            terminal.expect("Hello there.")
            terminal.expect("scripted ›")
            terminal.line("/history clerk")
            listed = terminal.expect("/open NUMBER")
            assert "  1  " in listed
            terminal.line("/open 1")
            terminal.expect("What is in it, dear clerk?")
            terminal.expect("buy milk")
            terminal.expect("scripted ›")
            terminal.line("/new")
            terminal.expect("A new conversation.")
            terminal.line("/nonsense")
            terminal.expect("There is no command /nonsense.")
            terminal.line("/help")
            for name in ("/attach", "/model", "/agent", "/history", "/open", "/retry", "/new", "/quit"):
                terminal.expect(f"{name}")
            terminal.line("/attach missing.txt")
            terminal.expect("There is no file missing.txt.")
            terminal.send("/hel\t\r")
            terminal.expect("/attach FILE")
            terminal.line("/quit")
            assert terminal.leave() == 0

    def test_download_fetches_a_file_that_an_answer_shows(self, shell: Shell) -> None:
        async def upload() -> str:
            async with shell.site.client(user="local") as client:
                return (await client.files.upload(b"a,b\n1,2\n", name="table.csv")).id

        file_id = shell.on_server(upload)
        target = shell.folder / "fetched files"
        target.mkdir()
        with shell.terminal("chat") as terminal:
            terminal.expect("›")
            terminal.line("/download")
            terminal.expect("Which file? /download file_")
            terminal.line("/download table.csv")
            terminal.expect("Which file? /download file_")
            terminal.line(f"/download {file_id} {target}")
            terminal.expect("written to")
            assert (target / "table.csv").read_bytes() == b"a,b\n1,2\n"
            terminal.line(f"/download {file_id} {target / 'other.csv'}")
            terminal.expect("other.csv")
            terminal.expect("written to")
            terminal.line(f"/download file_{'0' * 32} {target}")
            terminal.expect("No such file")
            terminal.line("/quit")
            assert terminal.leave() == 0
        assert sorted(path.name for path in target.iterdir()) == ["other.csv", "table.csv"], "and nothing half-written"

    def test_goes_on_with_a_conversation_whose_turn_still_runs(self, shell: Shell, gate: Gate) -> None:
        shell.model(lambda request: ["Slowly ", gate.wait(), "done."])

        async def start() -> str:
            async with shell.site.client() as client:
                return (await client.turns.start("Take your time.")).conversation_id

        conversation_id = shell.on_server(start)
        with shell.terminal("chat", "-c", conversation_id) as terminal:
            terminal.expect("Take your time.")
            terminal.expect("Slowly")
            gate.open()
            terminal.expect("Slowly done.")
            terminal.expect("›")
