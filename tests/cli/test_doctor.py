"""`turnkeep doctor`: says what is wrong with a transcript and writes one that a provider accepts."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from turnkeep.cli.main import COMMANDS, main

ASK = {"role": "user", "content": "Weather?"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
}
BROKEN = [ASK, CALL, {"role": "user", "content": "Hello?"}]
SOUND = [ASK, {"role": "assistant", "content": "Sunny."}]


@pytest.fixture
def transcript(tmp_path: Path) -> Path:
    return written(tmp_path / "chat.json", BROKEN)


def written(path: Path, document: Any) -> Path:
    path.write_text(json.dumps(document), "utf-8")
    return path


def run(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    code = left.value.code
    return code if isinstance(code, int) else 0


class TestABrokenTranscript:
    def test_is_explained_in_plain_words_and_in_the_providers(
        self, transcript: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("doctor", transcript) == 0
        told = capsys.readouterr().out
        assert "chat.json: OpenAI chat messages, 3 messages in 2 turns" in told
        assert "A tool call has no result" in told
        assert "must be followed by tool messages responding to each 'tool_call_id'" in told
        assert "the model is told that the outcome is unknown" in told

    def test_is_repaired_into_a_file_beside_it(self, transcript: Path) -> None:
        run("doctor", transcript)
        repaired = json.loads(transcript.with_name("chat.repaired.json").read_text("utf-8"))
        assert [message["role"] for message in repaired] == ["user", "assistant", "tool", "assistant", "user"]
        assert json.loads(transcript.read_text("utf-8")) == BROKEN

    def test_is_repaired_into_a_named_file(self, transcript: Path, tmp_path: Path) -> None:
        assert run("doctor", transcript, "--output", tmp_path / "fixed.json") == 0
        assert (tmp_path / "fixed.json").exists()
        assert not transcript.with_name("chat.repaired.json").exists()

    def test_is_never_overwritten(self, transcript: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("doctor", transcript, "-o", transcript) == 2
        assert "is the transcript itself" in capsys.readouterr().err
        assert json.loads(transcript.read_text("utf-8")) == BROKEN

    def test_only_checked_leaves_with_1_and_writes_nothing(self, transcript: Path, tmp_path: Path) -> None:
        assert run("doctor", "--check", transcript) == 1
        assert list(tmp_path.iterdir()) == [transcript]

    def test_is_sound_after_the_repair(self, transcript: Path) -> None:
        run("doctor", transcript)
        assert run("doctor", "--check", transcript.with_name("chat.repaired.json")) == 0

    def test_is_reported_as_json_for_scripts(self, transcript: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run("doctor", transcript, "--json")
        report = json.loads(capsys.readouterr().out)
        assert report["is_broken"] is True
        assert report["form"] == "openai_chat"
        assert [violation["rule"] for violation in report["violations"]] == ["tool_unanswered"]
        assert [repair["kind"] for repair in report["repairs"]] == ["result_missing", "answer_missing"]
        assert report["output"] == str(transcript.with_name("chat.repaired.json"))


class TestASoundTranscript:
    def test_is_reported_as_sound_and_not_changed(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = written(tmp_path / "chat.json", SOUND)
        assert run("doctor", file) == 0
        assert "Nothing is wrong with it" in capsys.readouterr().out
        assert list(tmp_path.iterdir()) == [file]

    def test_with_parts_without_equivalent_has_remarks(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        audio = {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}
        assert run("doctor", written(tmp_path / "chat.json", [audio])) == 0
        assert "'input_audio' has no equal here" in capsys.readouterr().out

    def test_of_plain_messages_passes(self, tmp_path: Path) -> None:
        plain = [{"role": "user", "content": "a", "ts": 1}, {"role": "assistant", "content": "b", "ts": 2}]
        assert run("doctor", "--check", written(tmp_path / "chat.json", plain)) == 0

    def test_that_is_empty_passes(self, tmp_path: Path) -> None:
        assert run("doctor", "--check", written(tmp_path / "chat.json", [])) == 0


class TestFiles:
    def test_json_lines_are_read_too(self, tmp_path: Path) -> None:
        file = tmp_path / "session.jsonl"
        file.write_text("\n".join(json.dumps({"message": message}) for message in BROKEN), "utf-8")
        assert run("doctor", file) == 0
        assert (tmp_path / "session.repaired.json").exists()

    def test_the_form_may_be_named(self, tmp_path: Path) -> None:
        twice = written(tmp_path / "chat.json", [ASK, ASK])
        assert run("doctor", "--check", twice) == 0
        assert run("doctor", "--check", "--form", "anthropic", twice) == 1

    @pytest.mark.parametrize(
        "content,words",
        [
            (None, "There is no file"),
            (b"{not json", "is not JSON"),
            (b"\xff\xfe\xff", "cannot be read as text"),
            (b'[{"role": "robot"}]', "Item 0: 'robot' is not a role"),
            (b'{"data": 1}', "without `messages`"),
        ],
    )
    def test_an_unreadable_file_is_one_clear_line(
        self, content: bytes | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "chat.json"
        if content is not None:
            file.write_bytes(content)
        assert run("doctor", file) == 2
        told = capsys.readouterr().err
        assert told.startswith("turnkeep: ")
        assert words in told
        assert told.count("\n") == 1

    def test_an_unknown_form_is_refused_with_the_known_ones(
        self, transcript: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("doctor", transcript, "--form", "fax") == 2
        assert "anthropic, openai_chat, openai_responses, plain" in capsys.readouterr().err

    def test_an_output_that_cannot_be_written_is_one_clear_line(
        self, transcript: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("doctor", transcript, "-o", tmp_path / "nowhere" / "x.json") == 2
        assert "cannot be written" in capsys.readouterr().err


class TestTheCommandLine:
    def test_help_lists_every_command(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("--help") == 0
        told = capsys.readouterr().out
        assert all(command.name in told for command in COMMANDS)

    def test_help_does_not_load_the_commands(self) -> None:
        script = (
            "import sys\n"
            "from turnkeep.cli.main import main\n"
            "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
            "print([name for name in sys.modules if name.startswith(('msgspec', 'turnkeep.compiler', 'asyncpg'))])"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]"

    def test_every_command_can_be_loaded(self) -> None:
        for command in COMMANDS:
            assert run(command.name, "--help") == 0

    def test_the_version_is_printed(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("--version") == 0
        assert capsys.readouterr().out.startswith("turnkeep ")

    def test_without_a_command_there_is_help(self) -> None:
        assert run() == 2
