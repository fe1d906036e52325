"""No command prints control characters from titles, names and answers to a terminal."""

import io
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from tests.cli.conftest import Shell
from tests.cli.test_reference import ALL
from tests.client.site import rounds_of
from turnkeep.cli.output import clean_json, clean_line, clean_text
from turnkeep.cli.screen import LiveView, Screen, markdown
from turnkeep.ids import ConversationId, FileId, MessageId
from turnkeep.providers.ports import ModelRequest, ProviderFailed
from turnkeep.providers.scripted import Call, Fail, Script
from turnkeep_client import wire
from turnkeep_client.stream import TurnView
from turnkeep_client.wire.blocks import TextPart, Usage
from turnkeep_client.wire.events import Delta, Files, Result, Step, ToolCalls, TurnEvent

EVIL = "\x1b]0;pwn\x07\x1b[31m\x9b31m\u202e"
HARMLESS = "]0;pwn[31m31m"
"""What is left of it: letters."""

OBEYED = {
    *map(chr, range(0x20)),
    *map(chr, range(0x7F, 0xA0)),
    *map(chr, range(0x202A, 0x202F)),
    *map(chr, range(0x2066, 0x206A)),
    *"\u061c\u200e\u200f\u2028\u2029",
}
MARKUP = "[red]x[/red] [link=http://evil.example]y[/link] [/nope]"


def obeyed(text: str) -> list[str]:
    """What a terminal would obey in a text, newlines and tabs aside."""
    return sorted(OBEYED.intersection(text) - {"\n", "\t"})


class TestATextForATerminal:
    @pytest.mark.parametrize("character", sorted(OBEYED - {"\n", "\t"}), ids=ascii)
    def test_has_no_control_characters(self, character: str) -> None:
        assert clean_text(f"a{character}b") == "ab"

    def test_keeps_newlines_tabs_and_every_other_character(self) -> None:
        others = "".join(map(chr, {*range(0xD800), *range(0xE000, 0x20000)} - {*map(ord, OBEYED)}))
        assert clean_text("a\tb\nc") == "a\tb\nc"
        assert clean_text(others) == others

    def test_is_the_same_in_pieces_as_whole(self) -> None:
        text = f"a\r\nb{EVIL}c"
        assert "".join(map(clean_text, text)) == clean_text(text) == f"a\nb{HARMLESS}c"

    def test_shows_bytes_of_a_file_name_that_are_no_text(self) -> None:
        assert clean_text(b"a\x9b31m".decode("utf-8", "surrogateescape")) == "a\ufffd31m"

    @pytest.mark.parametrize("ending", ["\n", "\r\n", "\r", "\v", "\f", "\x85", "\u2028", "\u2029"], ids=ascii)
    def test_on_one_line_has_a_space_for_a_line_break(self, ending: str) -> None:
        assert clean_line(f"One{ending}Two\tThree") == "One Two\tThree"

    def test_as_json_says_the_same(self) -> None:
        document = json.dumps({EVIL: ["\x7f\u2028", "é"]}, ensure_ascii=False)
        assert obeyed(clean_json(document)) == []
        assert json.loads(clean_json(document)) == json.loads(document)
        assert "é" in clean_json(document)


class TestTheScreen:
    def drawn(self, *drawn: Any) -> str:
        out = io.StringIO()
        Screen(file=out, width=100, force_terminal=True, color_system=None).print(*drawn)
        return out.getvalue()

    def test_is_clean_for_every_renderable(self) -> None:
        assert self.drawn(Text(f"a{EVIL}")) == f"a{HARMLESS}\n"
        assert obeyed(self.drawn(markdown(f"# a{EVIL}\n\n- b{EVIL}\n\n```\nc{EVIL}\n```\n\n`d{EVIL}`"))) == []

    def test_is_clean_of_characters_that_markdown_spells(self) -> None:
        drawn = self.drawn(markdown("a&#x202e;b&rlm;c&#x2028;d&#13;e&#27;f&#x9b;g"))
        assert obeyed(drawn) == []
        assert drawn.startswith("abcd")

    def test_shows_where_a_link_leads(self) -> None:
        drawn = self.drawn(markdown("[the bank](https://evil.example/) ![a cat](https://evil.example/cat.png)"))
        assert "the bank (https://evil.example/)" in drawn
        assert "\x1b]8;" not in drawn

    def test_keeps_its_own_colours(self) -> None:
        out = io.StringIO()
        Screen(file=out, force_terminal=True, color_system="standard", no_color=False).print(Text("a", style="red"))
        assert out.getvalue() == "\x1b[31ma\x1b[0m\n"


class TestAnAnswerAsItIsDrawn:
    def test_is_clean_even_where_a_sequence_comes_in_pieces(self) -> None:
        said = f"One{EVIL}\n\nTwo{EVIL}\n\nThree &#x202e;"
        events: list[TurnEvent | Delta] = [
            *(Delta(iteration=0, kind="text", text=character) for character in said),
            ToolCalls(iteration=0, text=said, calls=()),
            Step(id="a", name=f"look\n{EVIL}", status="running", args={f"x{EVIL}": EVIL}),
            Step(id="a", name=f"look\n{EVIL}", status="failed", error=f"no{EVIL}"),
            Files(files=(a_file(f"f\r\n{EVIL}.txt"),)),
            Result(message_id=MessageId("msg_1"), message=said, content=(TextPart(text=said),), usage=Usage()),
        ]
        out = io.StringIO()
        view = TurnView()
        with LiveView(Screen(file=out, width=100, force_terminal=False)) as live_view:
            for event in events:
                view.add(event)
                live_view.show(view)
        drawn = out.getvalue()
        assert obeyed(drawn) == []
        assert [drawn.count(f"{word}{HARMLESS}") for word in ("One", "Two")] == [1, 1], "and no word comes twice"
        assert f"look {HARMLESS}" in drawn
        assert f"f {HARMLESS}.txt" in drawn


def a_file(name: str) -> wire.File:
    return wire.File(
        id=FileId("file_1"),
        name=name,
        mime_type="text/plain",
        size=1,
        conversation_id=ConversationId("conv_1"),
        message_id=None,
        sha256=None,
        source="sandbox",
        created_at=0,
    )


EVIL_ADDRESS = "https://shop.example.com/hook?a=\u202e\u2066"
"""As evil as an address may be."""


class House:
    """A server on which everything has an evil name."""

    def __init__(self, shell: Shell, folder: Path) -> None:
        self._shell = shell
        self._numbers = itertools.count()
        self.folder = folder
        self.org = str(shell.json("orgs", "create", self.name())["id"])
        self.talk = self.conversation()
        self.agent(), self.page(), self.table(), self.key(), self.user()

    def name(self) -> str:
        """Another one at each call."""
        return f"Name {next(self._numbers)}{EVIL}"

    def file(self, content: Any, ending: str) -> Path:
        path = self.folder / f"{self.name()}.{ending}"
        path.write_text(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False))
        return path

    def conversation(self) -> str:
        self._shell.model(evil_model)
        made = str(self._shell.json("chat", f"Hello{EVIL}?")["conversation_id"])
        self._shell.json("conversations", "rename", made, self.name())
        return made

    def turn(self) -> str:
        self._shell.model(evil_model)
        return str(self._shell.json("chat", f"Hello{EVIL}?")["turn_id"])

    def share(self) -> str:
        return str(self._shell.json("conversations", "share", self.talk)["id"])

    def deleted(self) -> str:
        made = self.conversation()
        self._shell.json("conversations", "delete", made)
        return made

    def agent(self) -> str:
        spec = {"name": self.name(), "instructions": EVIL, "skills": [{"name": "s", "files": {"SKILL.md": EVIL}}]}
        return str(self._shell.json("agents", "create", "-", input=json.dumps(spec))["id"])

    def skill(self) -> Path:
        folder = self.folder / "charts"
        folder.mkdir(exist_ok=True)
        (folder / "SKILL.md").write_text(EVIL)
        return folder

    def page(self) -> str:
        return str(self._shell.json("pages", "write", self.file(f"Text{EVIL}", "md"), "--title", self.name())["id"])

    def csv(self) -> Path:
        return self.file(f"Name{EVIL},Price\nSalt{EVIL},2\n", "csv")

    def table(self) -> str:
        return str(self._shell.json("tables", "import", self.csv(), "--name", self.name())["id"])

    def key(self) -> str:
        return str(self._shell.json("keys", "create", self.name(), "--org", self.org)["id"])

    def user(self) -> str:
        self._shell.model(evil_model)
        self._shell.json("chat", "Hello?", "--user", "ann@example.com")
        return str(self._shell.json("users", "update", "ann@example.com", "--name", self.name())["id"])

    def plain_file(self) -> Path:
        """A file that is as evil as the server accepts: neither its name nor its text may have control characters."""
        path = self.folder / "plain.txt"
        path.write_text("Text\u202e\u2066")
        return path

    def upload(self) -> str:
        path = self.plain_file()
        return str(self._shell.json("files", "upload", path, "-c", self.talk)["id"])

    def workspace(self) -> str:
        return str(self._shell.json("workspaces", "create", self.name())["id"])

    def webhook(self) -> str:
        return str(self._shell.json("webhooks", "create", EVIL_ADDRESS, "--event", "turn.failed")["id"])

    def waiting_turn(self, *, tool: str = "lookup") -> str:
        """A turn that waits for an approval of `lookup`, or for the result of a client tool of this name."""
        native = {"type": "native", "name": "lookup", "approval": "always"}
        client = {"type": "client", "name": "battery", "input_schema": {}}
        spec = {"name": self.name(), "tools": [native, client]}
        agent = str(self._shell.json("agents", "create", "-", input=json.dumps(spec))["id"])
        self._shell.model(lambda request: evil_model(request) if rounds_of(request) else [evil_call(tool)])
        done = self._shell.here("chat", f"Hello{EVIL}?", "--agent", agent, "--json")
        turn = json.loads(done.stdout)
        assert turn["status"] == "waiting", done.stderr
        return str(turn["id"])

    def transcript(self) -> Path:
        audio = {"role": "user", "content": [{"type": f"audio{EVIL}"}]}
        return self.file([{"role": "user", "content": f"Hi{EVIL}"}, audio], "json")


def evil_model(request: ModelRequest) -> Script:
    if not rounds_of(request):
        return [f"Let me look.{EVIL}", Call("lookup", {"city": f"Bern{EVIL}"})]
    return [*f"It is sunny.{EVIL}", " &#x202e;"]


def evil_call(tool: str) -> Call:
    return Call(tool, {"city": f"Bern{EVIL}", f"x{EVIL}": [EVIL]} if tool == "battery" else {"city": f"Bern{EVIL}"})


@pytest.fixture(scope="module")
def house(server: Shell, tmp_path_factory: pytest.TempPathFactory) -> House:
    return House(server, tmp_path_factory.mktemp("evil"))


Use = Callable[[House], tuple[str | Path, ...]]

WORKING: dict[str, Use] = {
    "chat": lambda house: ("chat", "Hello?"),
    "conversations list": lambda house: ("conversations", "list"),
    "conversations show": lambda house: ("conversations", "show", house.talk),
    "conversations rename": lambda house: ("conversations", "rename", house.conversation(), house.name()),
    "conversations delete": lambda house: ("conversations", "delete", house.conversation()),
    "conversations pin": lambda house: ("conversations", "pin", house.conversation()),
    "conversations move": lambda house: ("conversations", "move", house.conversation(), "Folder\u202e"),
    "conversations folders": lambda house: ("conversations", "folders"),
    "conversations share": lambda house: ("conversations", "share", house.talk),
    "conversations shares": lambda house: ("conversations", "shares"),
    "conversations unshare": lambda house: ("conversations", "unshare", house.share()),
    "conversations erase": lambda house: ("conversations", "erase", house.conversation(), "--yes"),
    "conversations restore": lambda house: ("conversations", "restore", house.deleted()),
    "export": lambda house: ("export", house.talk, "--format", "markdown"),
    "import": lambda house: ("import", house.transcript(), "--title", house.name()),
    "agents list": lambda house: ("agents", "list"),
    "agents show": lambda house: ("agents", "show", house.agent()),
    "agents create": lambda house: ("agents", "create", house.file({"name": house.name()}, "json")),
    "agents update": lambda house: ("agents", "update", house.agent(), house.file({"name": house.name()}, "json")),
    "agents delete": lambda house: ("agents", "delete", house.agent()),
    "agents rotate-tool-secret": lambda house: ("agents", "rotate-tool-secret", house.agent()),
    "agents add-skill": lambda house: ("agents", "add-skill", house.agent(), house.skill()),
    "agents remove-skill": lambda house: ("agents", "remove-skill", house.agent(), "s"),
    "pages list": lambda house: ("pages", "list", "Text"),
    "pages write": lambda house: ("pages", "write", house.file("Text", "md")),
    "pages delete": lambda house: ("pages", "delete", house.page()),
    "tables list": lambda house: ("tables", "list"),
    "tables rows": lambda house: ("tables", "rows", house.table()),
    "tables import": lambda house: ("tables", "import", house.csv(), "--name", house.name()),
    "tables delete": lambda house: ("tables", "delete", house.table()),
    "users list": lambda house: ("users", "list", "Name"),
    "users show": lambda house: ("users", "show", house.user()),
    "users update": lambda house: ("users", "update", house.user(), "--name", house.name()),
    "users invite": lambda house: ("users", "invite", "guest", "--name", house.name()),
    "files list": lambda house: ("files", "list", "-c", house.talk),
    "files upload": lambda house: ("files", "upload", house.plain_file(), "-c", house.talk),
    "files download": lambda house: ("files", "download", house.upload(), house.folder / f"{house.name()}.txt"),
    "files save": lambda house: ("files", "save", house.upload()),
    "workspaces list": lambda house: ("workspaces", "list"),
    "workspaces show": lambda house: ("workspaces", "show", house.workspace()),
    "workspaces create": lambda house: ("workspaces", "create", house.name()),
    "workspaces update": lambda house: ("workspaces", "update", house.workspace(), "--name", house.name()),
    "tokens create": lambda house: ("tokens", "create", f"user{HARMLESS}"),
    "images list": lambda house: ("images", "list"),
    "turns list": lambda house: (house.waiting_turn(), "turns", "list")[1:],
    "turns show": lambda house: ("turns", "show", house.waiting_turn(tool="battery")),
    "turns approve": lambda house: ("turns", "approve", house.waiting_turn(), "--always"),
    "turns deny": lambda house: ("turns", "deny", house.waiting_turn(), "--reason", EVIL),
    "turns results": lambda house: ("turns", "results", house.waiting_turn(tool="battery"), "--error", EVIL),
    "turns steer": lambda house: ("turns", "steer", house.waiting_turn(), f"Words{EVIL}"),
    "turns cancel": lambda house: ("turns", "cancel", house.waiting_turn()),
    "turns rate": lambda house: ("turns", "rate", house.turn(), "down", "--comment", "Bad\u202e"),
    "turns feedback": lambda house: ("turns", "feedback"),
    "agents connections": lambda house: ("agents", "connections"),
    "turns timeline": lambda house: ("turns", "timeline", house.waiting_turn()),
    "usage": lambda house: ("usage", "--by", "model"),
    "webhooks list": lambda house: ("webhooks", "list"),
    "webhooks show": lambda house: ("webhooks", "show", house.webhook()),
    "webhooks create": lambda house: ("webhooks", "create", EVIL_ADDRESS, "--event", "turn.failed"),
    "webhooks update": lambda house: ("webhooks", "update", house.webhook(), "--disable"),
    "webhooks delete": lambda house: ("webhooks", "delete", house.webhook()),
    "webhooks deliveries": lambda house: ("webhooks", "deliveries", house.webhook()),
    "doctor": lambda house: ("doctor", house.transcript()),
    "orgs create": lambda house: ("orgs", "create", house.name()),
    "orgs list": lambda house: ("orgs", "list"),
    "keys create": lambda house: ("keys", "create", house.name(), "--org", house.org),
    "keys list": lambda house: ("keys", "list", "--org", house.org),
    "status": lambda house: ("status", "--data-dir", house.folder / f"data{EVIL}"),
    "migrate": lambda house: ("migrate", "--data-dir", house.folder / f"data{EVIL}"),
}
"""A use of each command that shows something from outside."""

REFUSED: dict[str, Use] = {
    "chat": lambda house: ("chat", "Hello?", "--attach", EVIL),
    "agents create": lambda house: ("agents", "create", house.file({"name": "A", EVIL: 1}, "json")),
    "agents disconnect": lambda house: ("agents", "disconnect", EVIL),
    "agents run": lambda house: ("agents", "run", house.agent(), "Hi", "--attach", EVIL),
    "keys revoke": lambda house: ("keys", "revoke", EVIL),
    "usage": lambda house: ("usage", "--url", "http://127.0.0.1:9/\x9b31m\u202e", "--key", "k"),
    "models": lambda house: ("models", "--url", "http://127.0.0.1:9/\x9b31m\u202e", "--key", "k"),
    "tools": lambda house: ("tools", "--url", "http://127.0.0.1:9/\x9b31m\u202e", "--key", "k"),
    "users show": lambda house: ("users", "show", f"nobody{EVIL}"),
    "users update": lambda house: ("users", "update", house.user(), "--monthly-token-limit", EVIL),
    "files upload": lambda house: ("files", "upload", house.folder / f"missing{EVIL}"),
    "files text": lambda house: ("files", "text", f"file_{EVIL}"),
    "files delete": lambda house: ("files", "delete", f"file_{EVIL}"),
    "workspaces update": lambda house: ("workspaces", "update", "ws_1", "--monthly-message-limit", EVIL),
    "workspaces delete": lambda house: ("workspaces", "delete", f"ws_{EVIL}"),
    "webhooks create": lambda house: ("webhooks", "create", EVIL_ADDRESS, "--event", EVIL),
    "webhooks redeliver": lambda house: ("webhooks", "redeliver", house.webhook(), f"evt_{EVIL}"),
    "pages show": lambda house: ("pages", "show", EVIL),
    "turns show": lambda house: ("turns", "show", EVIL),
    "turns approve": lambda house: ("turns", "approve", house.waiting_turn(), "--args", EVIL),
    "turns results": lambda house: ("turns", "results", house.waiting_turn(tool="battery"), "--result", EVIL),
    "tables export": lambda house: ("tables", "export", house.table(), house.folder / EVIL / "out.csv"),
    "import": lambda house: ("import", house.folder / f"missing{EVIL}"),
    "doctor": lambda house: ("doctor", "chat.json", EVIL),
    "serve": lambda house: ("serve", "--model", EVIL),
    "sandbox": lambda house: ("sandbox", "--driver", EVIL),
    "images prepare": lambda house: ("images", "prepare", EVIL),
    "images remove": lambda house: ("images", "remove", EVIL),
    "completion": lambda house: ("completion", EVIL),
}
"""A use that is refused, with something from outside in the error."""


class TestEveryCommand:
    def test_is_covered_below(self) -> None:
        assert {*WORKING, *REFUSED} == set(ALL)

    @pytest.mark.parametrize("on_terminal", [False, True], ids=["in a pipe", "on a terminal"])
    @pytest.mark.parametrize("name", WORKING)
    def test_shows_only_letters_of_what_comes_from_outside(
        self, shell: Shell, house: House, name: str, on_terminal: bool
    ) -> None:
        shell.model(evil_model)
        done = shell.here(*WORKING[name](house), on_terminal=on_terminal)
        assert done.returncode == 0, done.stderr
        assert obeyed(done.stdout + done.stderr) == []

    @pytest.mark.parametrize("on_terminal", [False, True], ids=["in a pipe", "on a terminal"])
    @pytest.mark.parametrize("name", REFUSED)
    def test_shows_only_letters_of_it_in_an_error(
        self, shell: Shell, house: House, name: str, on_terminal: bool
    ) -> None:
        done = shell.here(*REFUSED[name](house), on_terminal=on_terminal)
        assert done.returncode in {1, 2}
        assert done.stderr
        assert obeyed(done.stdout + done.stderr) == []

    @pytest.mark.parametrize("on_terminal", [False, True], ids=["in a pipe", "on a terminal"])
    def test_shows_only_letters_of_a_failed_answer(self, shell: Shell, on_terminal: bool) -> None:
        shell.model(lambda request: [f"I was{EVIL}", Fail(ProviderFailed(f"It fell over.{EVIL}"))])
        done = shell.here("chat", "Hello?", on_terminal=on_terminal)
        assert done.returncode == 1
        assert f"It fell over.{HARMLESS}" in done.stderr
        assert obeyed(done.stdout + done.stderr) == []

    @pytest.mark.parametrize("on_terminal", [False, True], ids=["in a pipe", "on a terminal"])
    def test_keeps_a_name_with_line_breaks_on_its_line(self, shell: Shell, on_terminal: bool) -> None:
        spec = json.dumps({"name": "Clerk\r\nturnkeep: all is well\rReally"})
        agent = shell.json("agents", "create", "-", input=spec)["id"]
        listed = shell.here("agents", "list", on_terminal=on_terminal)
        assert "Clerk turnkeep: all is well Really" in listed.stdout
        done = shell.here("agents", "delete", agent, on_terminal=on_terminal)
        assert done.stdout == f"{agent} (“Clerk turnkeep: all is well Really”) is deleted.\n"

    def test_shows_markup_as_it_is_written(self, shell: Shell, house: House) -> None:
        made = shell.json("chat", "Hello?")["conversation_id"]
        shell.json("conversations", "rename", made, MARKUP)
        assert MARKUP in shell.here("conversations", "list", on_terminal=True).stdout
        table = shell.json("tables", "import", house.file(f"{MARKUP},b\n{MARKUP},2\n", "csv"))["id"]
        shown = shell.here("tables", "rows", table, on_terminal=True)
        assert shown.stdout.count(MARKUP) == 2, shown.stdout + shown.stderr


class TestDocuments:
    @pytest.mark.parametrize("on_terminal", [False, True], ids=["in a pipe", "on a terminal"])
    def test_as_json_are_clean_and_say_the_same(self, shell: Shell, on_terminal: bool) -> None:
        made = shell.json("chat", "Hello?")["conversation_id"]
        shell.json("conversations", "rename", made, f"T{EVIL}")
        done = shell.here("conversations", "list", "-n", "1", "--json", on_terminal=on_terminal)
        assert obeyed(done.stdout) == []
        assert json.loads(done.stdout)["title"] == f"T{EVIL}"

    def test_of_events_are_clean_and_say_the_same(self, shell: Shell) -> None:
        shell.model(lambda request: [f"Hello{EVIL}"])
        done = shell.here("chat", "Hello?", "--events")
        assert obeyed(done.stdout) == []
        assert json.loads(done.stdout.splitlines()[-1])["data"]["message"] == f"Hello{EVIL}"

    @pytest.mark.parametrize("on_terminal", [False, True], ids=["in a pipe", "on a terminal"])
    def test_of_an_export_are_clean_and_say_the_same(self, shell: Shell, house: House, on_terminal: bool) -> None:
        done = shell.here("export", house.talk, on_terminal=on_terminal)
        assert obeyed(done.stdout) == []
        file = house.folder / "export.json"
        shell.here("export", house.talk, "-o", file)
        assert json.loads(done.stdout) == json.loads(file.read_text())
        assert EVIL in json.loads(done.stdout)["exported"]["conversation"]["title"]

    def test_that_become_files_are_exact_in_a_pipe_and_clean_on_a_terminal(self, shell: Shell, house: House) -> None:
        page, table = ("pages", "show", house.page()), ("tables", "export", house.table())
        assert shell.here(*page).stdout == f"Text{EVIL}\n"
        assert shell.here(*page, on_terminal=True).stdout == f"Text{HARMLESS}\n"
        assert f"Salt{EVIL},2" in shell.here(*table).stdout
        shown = shell.here(*table, on_terminal=True).stdout
        assert f"Salt{HARMLESS},2" in shown
        assert obeyed(shown) == []


class TestAChat:
    def test_shows_only_letters_of_what_comes_from_outside(self, shell: Shell, house: House) -> None:
        shell.model(evil_model)
        files = house.folder / "attachable"
        files.mkdir()
        (files / "notes.txt").write_text("x")
        (files / f"notes{EVIL}.txt").write_text("x")
        with shell.terminal("chat", "-c", house.talk) as terminal:
            terminal.expect("It is sunny.")
            terminal.expect("›")
            terminal.line("Again?")
            terminal.expect("It is sunny.")
            terminal.expect("›")
            terminal.line("/history")
            terminal.expect("/open NUMBER")
            terminal.line("/agent")
            terminal.expect(HARMLESS)
            terminal.expect("›")
            terminal.send(f"/attach {files}/no\t\r")
            terminal.expect("attached notes.txt")
            terminal.line("/quit")
            assert terminal.leave() == 0
            assert [part for part in ("\x1b]0;", "\x9b", "\u202e", "\x1b[31m") if part in terminal.raw] == []
