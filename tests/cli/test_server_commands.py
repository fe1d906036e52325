"""The commands that talk to a server: conversations, export, import, agents, models, usage."""

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Shell
from tests.cli.test_reference import ALL
from tests.client.site import rounds_of
from tests.server_process import SECONDS, environment
from turnkeep.client import Turnkeep
from turnkeep.providers.ports import ModelRequest
from turnkeep.providers.scripted import Call, Script

AGENT = """
name = "Support"
instructions = "Answer briefly."
model = "scripted"
"""


def with_a_tool(request: ModelRequest) -> Script:
    if not rounds_of(request):
        return ["Let me look.", Call("lookup", {"city": "Bern"})]
    return ["It is **sunny**."]


class TestConversations:
    def test_are_listed_found_shown_renamed_deleted_and_restored(self, shell: Shell) -> None:
        shell.model(with_a_tool)
        made = shell.json("chat", "Will the umbrella be needed?")["conversation_id"]
        assert made in shell.ok("conversations", "list")
        assert [one["id"] for one in shell.lines("conversations", "list", "umbrella")] == [made]
        shown = shell.ok("conversations", "show", made)
        assert "## You" in shown
        assert "- ✓ `lookup` (city: Bern)" in shown
        assert [one["role"] for one in shell.lines("conversations", "show", made, "-n", "1")] == ["assistant"]
        assert "Rain" in shell.ok("conversations", "rename", made, "Rain")
        assert "Weather" in shell.ok("conversations", "move", made, "Weather")
        assert "Weather" in shell.ok("conversations", "folders")
        assert shell.lines("conversations", "folders", "--rename", "Weather", "Sky") == [
            {"name": "Sky", "conversations": 1}
        ]
        assert shell.json("conversations", "pin", made)["is_pinned"]
        assert [one["id"] for one in shell.lines("conversations", "list", "--folder", "Sky", "--pinned")] == [made]
        assert "not pinned" in shell.ok("conversations", "pin", made, "--undo")
        assert "no folder" in shell.ok("conversations", "move", made)
        assert "restore" in shell.ok("conversations", "delete", made)
        assert shell.here("conversations", "show", made).returncode == 1
        assert made in shell.ok("conversations", "list", "--deleted")
        assert shell.json("conversations", "restore", made)["title"] == "Rain"
        assert made not in shell.ok("conversations", "list", "--deleted")
        assert shell.json("conversations", "erase", made, "--yes")["erased"]
        assert shell.here("conversations", "restore", made).returncode == 1

    def test_are_shared_and_unshared(self, shell: Shell) -> None:
        made = shell.json("chat", "Shall we share this?")["conversation_id"]
        done = shell.here("conversations", "share", made, "--days", "7")
        assert re.fullmatch(r"http://\S+/share#tks_[\w-]{43}\n", done.stdout)
        assert "until" in done.stderr
        [listed] = shell.lines("conversations", "shares", made)
        assert (listed["conversation_id"], listed["title"]) == (made, "Shall we share this?")
        assert listed["id"] in shell.ok("conversations", "shares")
        assert "has ended" in shell.ok("conversations", "unshare", listed["id"])
        assert "There are no share links." in shell.here("conversations", "shares", made).stderr

    def test_answers_are_rated_and_the_ratings_exported(self, shell: Shell) -> None:
        turn = shell.json("chat", "Is this any good?")["turn_id"]
        assert "rated down" in shell.ok("turns", "rate", turn, "down", "--comment", "No.")
        [rated] = [one for one in map(json.loads, shell.ok("turns", "feedback").splitlines()) if one["turn_id"] == turn]
        assert (rated["rating"], rated["comment"]) == ("down", "No.")
        assert f"{turn}," in shell.ok("turns", "feedback", "--format", "csv")
        assert turn not in shell.ok("turns", "feedback", "--rating", "up")
        assert "not rated" in shell.ok("turns", "rate", turn, "none")
        assert turn not in shell.ok("turns", "feedback")

    def test_an_empty_result_is_noted_on_standard_error(self, shell: Shell) -> None:
        done = shell.here("conversations", "list", "xyzzyplugh")
        assert (done.returncode, done.stdout) == (0, "")
        assert "No conversation has these words." in done.stderr


class TestExportAndImport:
    @pytest.fixture
    def talk(self, shell: Shell) -> str:
        shell.model(with_a_tool)
        return str(shell.json("chat", "Weather for export?")["conversation_id"])

    def test_without_loss(self, shell: Shell, talk: str, tmp_path: Path) -> None:
        file = tmp_path / "talk.json"
        shell.ok("export", talk, "-o", file)
        imported = shell.ok("import", file).split()[0]
        assert imported != talk
        assert essence(shell.lines("conversations", "show", imported)) == essence(
            shell.lines("conversations", "show", talk)
        )
        again = json.loads(shell.here("export", imported).stdout)["exported"]
        first = json.loads(file.read_text())["exported"]
        assert [len(trace["events"]) for trace in again["turns"]] == [len(trace["events"]) for trace in first["turns"]]

    def test_all_of_them_line_by_line(self, shell: Shell, talk: str, tmp_path: Path) -> None:
        shell.json("chat", "And another one?")
        file = tmp_path / "all.jsonl"
        done = shell.here("export", "--all", "-o", file)
        lines = file.read_text().splitlines()
        assert f"{len(lines)} conversations written" in done.stderr
        assert len(lines) == len(shell.lines("conversations", "list", "-n", "1000"))
        assert len(shell.lines("import", file)) == len(lines)

    def test_as_markdown_for_reading(self, shell: Shell, talk: str, tmp_path: Path) -> None:
        shell.here("export", talk, "-o", tmp_path / "talk.md")
        text = (tmp_path / "talk.md").read_text()
        assert text.startswith("# Weather for export?")
        assert "It is **sunny**." in text
        assert shell.here("export", talk, "--format", "markdown").stdout.startswith("# Weather")

    @pytest.mark.parametrize(
        "document",
        [
            [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}],
            {"system": "Be kind.", "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
            {"input": [{"role": "user", "content": "Hi"}]},
            [{"role": "user", "content": "Hi", "ts": 1_700_000_000_000}],
        ],
        ids=["openai_chat", "anthropic", "openai_responses", "plain"],
    )
    def test_histories_from_elsewhere(self, shell: Shell, document: Any, tmp_path: Path) -> None:
        file = tmp_path / "history.json"
        file.write_text(json.dumps(document))
        made = shell.json("import", file, "--title", "From elsewhere")
        assert made["title"] == "From elsewhere"
        assert shell.json("chat", "And now?", "-c", made["id"])["status"] == "succeeded"

    def test_an_export_of_chatgpt_is_imported_conversation_by_conversation(self, shell: Shell, tmp_path: Path) -> None:
        said = {"author": {"role": "user"}, "content": {"content_type": "text", "parts": ["Hello \ud83d"]}}
        empty: dict[str, Any] = {"mapping": {"root": {"message": None}}, "title": "Nothing"}
        talks = [{"title": f"Talk {n}", "mapping": {"a": {"message": said}}} for n in range(2)]
        file = tmp_path / "export.zip"
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("conversations.json", json.dumps([*talks, empty]))
        assert [one["title"] for one in shell.lines("import", str(file))] == ["Talk 0", "Talk 1"]
        listed = tmp_path / "conversations.json"
        listed.write_text(json.dumps(talks))
        assert len(shell.lines("import", str(listed))) == 2

    def test_json_lines_from_standard_input_with_remarks(self, shell: Shell) -> None:
        audio = {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}
        done = shell.here("import", "-", input="\n".join(map(json.dumps, [audio, {"role": "user", "content": "Hi"}])))
        assert done.returncode == 0
        assert "'input_audio' has no equal here" in done.stderr

    @pytest.mark.parametrize(
        "content,words",
        [
            ("", "is empty"),
            ("{not json", "neither JSON nor JSON lines (line 1)"),
            ('[{"role": "robot"}]', "'robot' is not a role"),
            ('[{"role": "user", "content": ""}]', "conversation 1: Item 0: the message of the user has no content."),
            ('{"turnkeep_export": 99}', "Upgrade Turnkeep"),
            ('{"turnkeep_export": 1}\n{"role": "user", "content": "Hi"}', "mixes exports with other lines"),
        ],
    )
    def test_an_import_that_is_refused_is_one_clear_line(
        self, shell: Shell, content: str, words: str, tmp_path: Path
    ) -> None:
        file = tmp_path / "history.json"
        file.write_text(content)
        done = shell.here("import", file)
        assert done.returncode == 2
        assert words in done.stderr
        assert done.stderr.count("\n") == 1

    @pytest.mark.parametrize(
        "arguments,code,words",
        [
            ((), 2, "Name conversations, or say --all."),
            (("conv_00000000000000000000000000000000",), 1, "conversation"),
            (("--all", "-o", "no/such/folder.json"), 1, "cannot be written"),
        ],
    )
    def test_an_export_that_is_refused_is_one_clear_line(
        self, shell: Shell, arguments: tuple[str, ...], code: int, words: str
    ) -> None:
        done = shell.here("export", *arguments)
        assert (done.returncode, done.stdout) == (code, "")
        assert words in done.stderr

    def test_a_file_appears_whole_or_not_at_all(self, shell: Shell, tmp_path: Path) -> None:
        missing = "conv_00000000000000000000000000000000"
        assert shell.here("export", missing, "-o", tmp_path / "x.json").returncode == 1
        assert list(tmp_path.iterdir()) == []


class TestAgents:
    def test_from_a_file_to_the_end(self, shell: Shell, tmp_path: Path) -> None:
        file = tmp_path / "support.toml"
        file.write_text(AGENT)
        assert "is saved as “Support”.\ntool secret: tksec_" in shell.ok("agents", "create", file)
        assert "Support" in shell.ok("agents", "list")
        shown = shell.json("agents", "show", "support")
        assert shown["instructions"] == "Answer briefly."
        copy = shell.json("agents", "create", "-", "--name", "Copy", input=json.dumps(shown))
        assert (copy["name"], copy["instructions"]) == ("Copy", "Answer briefly.")
        changed = shell.json("agents", "update", "Support", "-", input='{"instructions": "Be kind."}')
        assert (changed["instructions"], changed["model"]) == ("Be kind.", "scripted")
        secrets = {copy["tool_secret"], shell.ok("agents", "rotate-tool-secret", "Copy").strip()}
        assert len({*secrets, shell.json("agents", "rotate-tool-secret", "Copy")["tool_secret"]}) == 3
        again = shell.json("agents", "create", "-", "--name", "Again", input=json.dumps(copy))
        shell.ok("agents", "delete", again["id"])
        shell.ok("agents", "delete", copy["id"])
        shell.json("agents", "delete", "Support")
        assert not {one["name"] for one in shell.lines("agents", "list")} & {"Support", "Copy"}

    def test_a_member_sees_the_name_and_the_model(self, shell: Shell) -> None:
        made = shell.json("agents", "create", "-", input='{"name": "Seen", "model": "scripted", "tools": []}')
        with Turnkeep(data_dir=shell.site.data_dir) as turnkeep:
            token = turnkeep.tokens.create("ann").token
        told = shell.ok("agents", "list", TURNKEEP_URL=shell.site.url, TURNKEEP_KEY=token)
        assert f"{made['id']}\tSeen\tscripted\t\t\n" in told
        shell.json("agents", "delete", made["id"])

    @pytest.mark.parametrize(
        "name,content,code,words",
        [
            ("a.json", "{", 2, "is not JSON"),
            ("a.toml", "name = ", 2, "is not TOML"),
            ("a.json", "[]", 2, "holds no object"),
            ("a.json", "{}", 2, "gives no `name`"),
            ("a.json", '{"name": "A", "colour": "red"}', 2, "colour"),
            ("a.json", '{"name": "A", "model": "no/such"}', 2, "No provider serves the model"),
            (None, "", 2, "There is no file"),
        ],
    )
    def test_a_file_without_an_agent_is_one_clear_line(
        self, shell: Shell, name: str | None, content: str, code: int, words: str, tmp_path: Path
    ) -> None:
        file = tmp_path / (name or "missing.json")
        if name is not None:
            file.write_text(content)
        done = shell.here("agents", "create", file)
        assert (done.returncode, words in done.stderr) == (code, True), done.stderr
        assert done.stderr.count("\n") == 1


class TestSkills:
    def test_are_added_as_folders_or_zips_and_taken_away(self, shell: Shell, tmp_path: Path) -> None:
        agent = shell.json("agents", "create", "-", input='{"name": "Skilled"}')["id"]
        folder = tmp_path / "charts"
        (folder / "recipes" / ".cache").mkdir(parents=True)
        (folder / "SKILL.md").write_text("# Charts")
        (folder / "recipes" / "draw.sh").write_text("echo drawn")
        (folder / "recipes" / ".cache" / "x").write_bytes(b"\xff")
        assert "now has these skills: charts." in shell.ok("agents", "add-skill", "Skilled", folder)
        with zipfile.ZipFile(tmp_path / "tables.zip", "w") as archive:
            archive.writestr("SKILL.md", "# Tables")
        changed = shell.json("agents", "add-skill", agent, tmp_path / "tables.zip")
        assert changed["skills"] == [
            {"name": "charts", "files": {"SKILL.md": "# Charts", "recipes/draw.sh": "echo drawn"}},
            {"name": "tables", "files": {"SKILL.md": "# Tables"}},
        ]
        left = shell.json("agents", "remove-skill", "Skilled", "charts")["skills"]
        assert [skill["name"] for skill in left] == ["tables"]
        shell.ok("agents", "delete", agent)

    def test_that_are_invalid_are_one_clear_line(self, shell: Shell, tmp_path: Path) -> None:
        agent = shell.json("agents", "create", "-", input='{"name": "Unskilled"}')["id"]
        (tmp_path / "empty").mkdir()
        (tmp_path / "linked").mkdir()
        (tmp_path / "linked" / "SKILL.md").write_text("x")
        (tmp_path / "linked" / "passwd").symlink_to("/etc/passwd")
        (tmp_path / "large").mkdir()
        (tmp_path / "large" / "SKILL.md").write_bytes(bytes(3 << 20))
        (tmp_path / "notes.txt").write_text("no zip")
        for name, words in (
            ("empty", "has no SKILL.md"),
            ("linked", "is a link"),
            ("large", "too much for a skill"),
            ("notes.txt", "is no zip archive"),
            ("missing", "There is no"),
        ):
            done = shell.here("agents", "add-skill", agent, tmp_path / name)
            assert done.returncode in {1, 2}, name
            assert words in done.stderr, name
            assert done.stderr.count("\n") == 1, done.stderr
        done = shell.here("agents", "remove-skill", agent, "charts")
        assert (done.returncode, "no skill called" in done.stderr) == (1, True), done.stderr
        assert shell.json("agents", "show", agent)["skills"] == []
        shell.ok("agents", "delete", agent)


class TestTheAccount:
    def test_models_and_usage(self, shell: Shell) -> None:
        assert shell.ok("models").splitlines() == ["demo", "scripted"]
        assert {model["id"] for model in shell.lines("models")} == {"demo", "scripted"}
        shell.json("chat", "Hello?", "--user", "zoe")
        assert shell.json("usage", "--user", "zoe")["messages"] == 1
        assert "no limit" in shell.ok("usage")
        refused = shell.here("usage", "--month", "November")
        assert refused.returncode == 2

    def test_usage_by_group_as_csv_and_turn_by_turn(self, shell: Shell) -> None:
        asked = shell.json("chat", "Hello?", "--user", "yann")
        [row] = shell.json("usage", "--user", "yann", "--by", "model")["rows"]
        assert (row["group"], row["messages"]) == ("scripted", 1)
        shown = shell.here("usage", "--user", "yann", "--by", "model").stdout
        assert "scripted" in shown
        assert "input tokens" in shown
        lines = shell.here("usage", "--user", "yann", "--by", "day", "--csv").stdout.splitlines()
        assert (lines[0].split(",")[:2], len(lines)) == (["month", "day"], 2)
        [turn] = shell.lines("usage", "--user", "yann", "--turns")
        assert (turn["id"], turn["status"], turn["user"]["external_id"]) == (asked["turn_id"], "succeeded", "yann")
        listed = shell.here("usage", "--user", "yann", "--turns", "--day", lines[1].split(",")[1]).stdout
        assert turn["id"] in listed
        assert shell.here("usage", "--csv").returncode != 0
        assert shell.here("usage", "--day", "2026-11-01").returncode != 0
        told = shell.here("turns", "timeline", turn["id"]).stdout
        assert "model" in told
        assert "scripted" in told
        assert shell.json("turns", "timeline", turn["id"])["spans"][0]["kind"] == "model"

    def test_tools(self, shell: Shell) -> None:
        names = {tool["name"] for tool in shell.lines("tools")}
        assert names
        assert all(name in shell.ok("tools") for name in names)

    def test_an_invite_is_a_link_for_one_person(self, shell: Shell) -> None:
        done = shell.run("users", "invite", "guest@example.com", "--name", "A guest", "--role", "admin", "--hours", "2")
        assert re.fullmatch(rf"{shell.site.url}/invite#tki_\S+\n", done.stdout), "only the link, for a pipe"
        assert "A guest in, once" in done.stderr
        assert "Only this machine can open it" in done.stderr
        [guest] = shell.lines("users", "list", "guest@")
        assert (guest["name"], guest["role"]) == ("A guest", "admin")
        made = shell.json("users", "invite", "guest@example.com")
        assert made["user"] == {"id": guest["id"], "external_id": "guest@example.com", "name": "A guest"}

    def test_workspaces_from_making_to_deleting(self, shell: Shell) -> None:
        made = shell.json("workspaces", "create", "Team", "--monthly-message-limit", "7", "--model", "demo")
        assert (made["monthly_message_limit"], made["model"]) == (7, "demo")
        assert made["id"] in {one["id"] for one in shell.lines("workspaces", "list")}
        assert "Team" in shell.ok("workspaces", "list")
        changed = shell.json(
            *("workspaces", "update", made["id"], "--name", "Crew", "--model", "none"),
            *("--monthly-message-limit", "none", "--user-monthly-message-limit", "3"),
        )
        assert (changed["name"], changed["model"]) == ("Crew", None)
        assert (changed["monthly_message_limit"], changed["user_monthly_message_limit"]) == (None, 3)
        assert "Crew" in shell.ok("workspaces", "show", made["id"])
        assert shell.json("workspaces", "delete", made["id"])["deleted"]
        refused = shell.here("workspaces", "update", made["id"])
        assert (refused.returncode, "Say what to change" in refused.stderr) == (2, True)

    def test_webhooks_from_making_to_deleting(self, shell: Shell) -> None:
        url = "https://hook.invalid/turnkeep"
        secret = shell.ok("webhooks", "create", url, "--event", "turn.succeeded").strip()
        assert secret.startswith("whsec_")
        [webhook] = shell.lines("webhooks", "list")
        assert (webhook["url"], webhook["events"]) == (url, ["turn.succeeded"])
        assert url in shell.ok("webhooks", "list")
        shell.json("chat", "Hello?")
        [delivery] = shell.lines("webhooks", "deliveries", webhook["id"])
        assert (delivery["type"], delivery["status"]) == ("turn.succeeded", "pending")
        assert "turn.succeeded" in shell.ok("webhooks", "deliveries", webhook["id"])
        again = shell.json("webhooks", "redeliver", webhook["id"], delivery["id"])
        assert (again["id"], again["status"]) == (delivery["id"], "pending")
        changed = shell.json(
            *("webhooks", "update", webhook["id"], "--disable", "--event", "file.created", "--event", "turn.failed"),
            *("--address", url + "/2"),
        )
        assert (changed["is_enabled"], changed["events"]) == (False, ["file.created", "turn.failed"])
        assert "disabled" in shell.ok("webhooks", "show", webhook["id"])
        refused = shell.here("webhooks", "update", webhook["id"])
        assert (refused.returncode, "Say what to change" in refused.stderr) == (2, True)
        assert shell.json("webhooks", "delete", webhook["id"])["deleted"]
        assert shell.lines("webhooks", "list") == []

    def test_a_token_is_for_one_user_within_its_scopes(self, shell: Shell) -> None:
        made = shell.json("tokens", "create", "lee@example.com", "--ttl-seconds", "60", "--feature", "files")
        assert made["user"]["external_id"] == "lee@example.com"
        as_lee = ("--url", shell.site.url, "--key", made["token"])
        shell.json("chat", "Hello?", *as_lee)
        assert len(shell.lines("conversations", "list", *as_lee)) == 1
        refused = shell.here("pages", "list", *as_lee)
        assert (refused.returncode, "knowledge" in refused.stderr) == (1, True)
        assert made["token"][:4] in shell.ok("tokens", "create", "lee@example.com")

    def test_users_from_the_first_message_to_the_last(self, shell: Shell) -> None:
        shell.ok("chat", "--user", "kim@example.com", "--model", "demo", "Hello")
        [kim] = shell.lines("users", "list", "kim")
        assert kim["external_id"] in shell.ok("users", "list")
        changed = shell.json(
            "users", "update", "kim@example.com", "--name", "Kim", "--monthly-token-limit", "5", "--disable"
        )
        assert (changed["id"], changed["name"], changed["is_disabled"]) == (kim["id"], "Kim", True)
        limits = ("--stored-byte-limit", "123456", "--parallel-turn-limit", "3")
        changed = shell.json("users", "update", "kim@example.com", *limits)
        assert (changed["stored_byte_limit"], changed["parallel_turn_limit"]) == (123_456, 3)
        shown = shell.ok("users", "show", kim["id"])
        assert "disabled" in shown
        assert "123,456" in shown
        assert re.search(r"turns at a time\W+3\b", shown)
        refused = shell.here("chat", "--user", "kim@example.com", "--model", "demo", "Hello")
        assert refused.returncode == 1
        assert "disabled" in refused.stderr
        changed = shell.json("users", "update", kim["id"], "--name", "", "--monthly-token-limit", "none", "--enable")
        assert (changed["name"], changed["monthly_token_limit"], changed["is_disabled"]) == (None, None, False)

    @pytest.mark.parametrize(
        "arguments, words",
        [
            (["update", "kim"], "Say what to change"),
            (["update", "kim", "--monthly-token-limit", "much"], "neither a number"),
            (["update", "kim", "--monthly-token-limit", "1.5"], "no whole number"),
            (["show", "somebody-else"], "No such user"),
        ],
    )
    def test_a_user_that_cannot_be_shown_or_changed_is_one_clear_line(
        self, shell: Shell, arguments: list[str], words: str
    ) -> None:
        done = shell.here("users", *arguments)
        assert done.returncode != 0
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1


class TestFiles:
    def test_from_sending_to_deleting(self, shell: Shell, tmp_path: Path) -> None:
        talk = shell.json("chat", "Hello?")["conversation_id"]
        (tmp_path / "list.txt").write_text("buy milk")
        (tmp_path / "more.txt").write_text("and bread")
        sent = shell.lines("files", "upload", tmp_path / "list.txt", tmp_path / "more.txt", "-c", talk)
        assert [file["name"] for file in sent] == ["list.txt", "more.txt"]
        assert [file["id"] for file in shell.lines("files", "list", "-c", talk)] == [file["id"] for file in sent]
        assert "list.txt" in shell.ok("files", "list", "-c", talk)
        assert shell.ok("files", "text", sent[0]["id"]) == "buy milk\n"
        shell.ok("files", "download", sent[0]["id"], tmp_path / "copy.txt")
        assert (tmp_path / "copy.txt").read_text() == "buy milk"
        saved = shell.json("files", "save", sent[0]["id"])
        assert saved["id"] in {file["id"] for file in shell.lines("files", "list")}
        assert shell.json("files", "delete", saved["id"])["deleted"]
        assert shell.here("files", "text", saved["id"]).returncode == 1


LISTS = [
    ("conversations", "list"),
    ("agents", "list"),
    ("pages", "list"),
    ("tables", "list"),
    ("models",),
    ("tools",),
    ("users", "list"),
    ("webhooks", "list"),
    ("files", "list"),
    ("images", "list"),
    ("turns", "list"),
    ("workspaces", "list"),
    ("orgs", "list"),
    ("keys", "list"),
]


class TestForScripts:
    @pytest.mark.parametrize("command", LISTS, ids=" ".join)
    def test_a_list_is_one_document_per_line(self, shell: Shell, command: tuple[str, ...]) -> None:
        shell.json("chat", "Hello?", "--user", "zoe")
        assert all(isinstance(document, dict) for document in shell.lines(*command))

    def test_every_list_is_tried_here(self) -> None:
        lists = {name for name, command in ALL.items() if name.endswith(" list") or name in {"models", "tools"}}
        assert lists == {" ".join(command) for command in LISTS}


class TestProgress:
    def test_is_drawn_on_a_terminal_and_leaves_the_result_alone(self, shell: Shell, tmp_path: Path) -> None:
        (tmp_path / "big.bin.txt").write_text("x" * 3_000_000)
        shell.json("chat", "Hello?")
        for arguments, doing in (
            (("files", "upload", tmp_path / "big.bin.txt"), "big.bin.txt"),
            (("chat", "Hello?", "--attach", tmp_path / "big.bin.txt", "--json"), "big.bin.txt"),
            (("export", "--all", "-o", tmp_path / "all.jsonl"), "exporting"),
            (("import", tmp_path / "all.jsonl"), "importing"),
        ):
            with shell.terminal(*arguments) as terminal:
                terminal.expect(doing)
                assert terminal.leave() == 0
                assert "100%" in terminal.text

    def test_is_silent_in_a_pipe(self, shell: Shell, tmp_path: Path) -> None:
        (tmp_path / "list.txt").write_text("buy milk")
        done = shell.run("files", "upload", tmp_path / "list.txt")
        assert (done.returncode, done.stderr) == (0, "")

    def test_nothing_that_is_slow_is_loaded_for_a_script(self, shell: Shell) -> None:
        """Rich draws for people. httpx would load it too, for a command line of its own."""
        program = (
            "import gc, sys; from turnkeep.cli.main import main\n"
            "try: main()\n"
            "finally: print(gc.isenabled(), sorted(sys.modules))"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, "models"],
            env=environment(shell.folder),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )
        loaded = done.stdout.splitlines()[-1]
        assert loaded.startswith("True"), "the collector of garbage pauses only while libraries are loaded"
        assert "'httpx'" in loaded
        for slow in ("rich", "pygments", "turnkeep.runtime", "turnkeep.store", "aiohttp", "starlette"):
            assert f"'{slow}'" not in loaded, slow


def essence(messages: list[dict[str, Any]]) -> list[Any]:
    return [(one["role"], one["content"], one["created_at"]) for one in messages]
