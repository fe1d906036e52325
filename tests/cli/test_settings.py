"""Settings as an operator gives them to the commands: flags, environment, and a file."""

import json
import os
import socket
from pathlib import Path

import pytest

from tests.server_process import clean_environment, run_turnkeep, serving
from turnkeep.cli.database import ask_server
from turnkeep.cli.serve import _with_file, runner_environment
from turnkeep.cli.server_options import local_environment
from turnkeep.config import RUNNER_VARIABLES, VARIABLES, Settings, find_config_file
from turnkeep.errors import InvalidRequest
from turnkeep_client.discovery import find_server


def environment(**own: str) -> dict[str, str]:
    return clean_environment(NO_PROXY="127.0.0.1", COLUMNS="200", **own)


class TestHelp:
    @pytest.mark.parametrize("command, table", [("serve", VARIABLES), ("sandbox", RUNNER_VARIABLES)])
    def test_shows_every_setting_with_its_default(self, command: str, table: tuple[object, ...]) -> None:
        done = run_turnkeep(command, "--help", env=environment())
        shown = " ".join(done.stdout.replace("│", " ").split())
        assert len(table) > 15
        for variable in VARIABLES if command == "serve" else RUNNER_VARIABLES:
            assert variable.flag in shown
            assert f"[default: {variable.shown_default}]" in shown, variable.name


class TestAFileInTheFolder:
    def test_starts_the_server_and_leads_the_commands_to_it(self, tmp_path: Path) -> None:
        (tmp_path / "turnkeep.toml").write_text('data_dir = "kept/here"\nsandbox_url = "off"\nmodel = "demo"\n')
        with serving(tmp_path, environment()) as server:
            assert (tmp_path / "kept" / "here" / "turnkeep.db").exists()
            assert not (tmp_path / ".turnkeep").exists()
            asked = run_turnkeep("chat", "hello", "--json", env=environment(), cwd=tmp_path)
            assert json.loads(asked.stdout)["status"] == "succeeded", asked.stderr
            status = run_turnkeep("status", "--json", env=environment(), cwd=tmp_path)
            assert json.loads(status.stdout)["server"] == server.url
            elsewhere = run_turnkeep("models", env=environment(TURNKEEP_DATA_DIR="other"), cwd=tmp_path)
            assert elsewhere.returncode == 1, "the environment overrides the file"

    def test_does_not_say_where_the_key_of_a_command_is_sent(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The folder may be somebody else's."""
        text = 'host = "192.0.2.1"\nport = 1\nbootstrap_key = "tk_theirs"\ndata_dir = "kept"\n'
        (tmp_path / "turnkeep.toml").write_text(text)
        done = run_turnkeep("models", env=environment(), cwd=tmp_path)
        assert (done.returncode, "No server of yours runs here" in done.stderr) == (1, True), done.stderr
        monkeypatch.chdir(tmp_path)
        for name, value in {"TURNKEEP_KEY": "tk_mine", "TURNKEEP_PORT": "9000"}.items():
            monkeypatch.setenv(name, value)
        place = find_server(environ=local_environment())
        assert (place.url, place.key) == ("http://127.0.0.1:9000", "tk_mine")

    def test_of_somebody_else_gets_no_command_to_send_a_key_to_another_machine(self, tmp_path: Path) -> None:
        (tmp_path / "theirs").mkdir()
        (tmp_path / "theirs" / "server.json").write_text(f'{{"url": "http://192.0.2.1:1", "pid": {os.getpid()}}}')
        (tmp_path / "theirs" / "local.key").write_text("tk_" + "a" * 43)
        (tmp_path / "turnkeep.toml").write_text('data_dir = "theirs"\n')
        done = run_turnkeep("models", env=environment(TURNKEEP_KEY="tk_mine"), cwd=tmp_path)
        assert (done.returncode, "No key is sent there." in done.stderr) == (2, True), done.stderr
        with pytest.raises(
            InvalidRequest, match="No key is sent there"
        ):  # as the commands of the operator ask a server
            ask_server(Settings(data_dir=tmp_path / "theirs"), "GET", "/v1/orgs")

    def test_with_secrets_that_others_can_read_has_a_warning(self, tmp_path: Path) -> None:
        path = tmp_path / "turnkeep.toml"
        path.write_text('sandbox_url = "off"\nbootstrap_key = "tk_some_key_of_mine"\n')
        path.chmod(0o644)
        with serving(tmp_path, environment()) as server:
            assert "Others can read bootstrap_key in turnkeep.toml. Run `chmod 600 turnkeep.toml`." in server.printed
        found = self.config_check(tmp_path)
        assert (found["state"], found["todo"]) == ("warn", "`chmod 600 turnkeep.toml`")
        assert "bootstrap_key" in found["says"]
        path.chmod(0o600)
        with serving(tmp_path, environment()) as server:
            assert "can read" not in server.printed
        assert self.config_check(tmp_path)["state"] == "ok"

    def config_check(self, folder: Path) -> dict[str, str]:
        report = json.loads(run_turnkeep("doctor", "--json", env=environment(), cwd=folder).stdout)
        return next(check for check in report["checks"] if check["name"] == "config")

    def test_may_have_another_name(self, tmp_path: Path) -> None:
        (tmp_path / "mine.toml").write_text('data_dir = "mine"\nsandbox_url = "off"\n')
        with serving(tmp_path, environment(), "--config", "mine.toml"):
            found = run_turnkeep("models", env=environment(TURNKEEP_CONFIG="mine.toml"), cwd=tmp_path)
        assert found.stdout.split() == ["demo"]

    def test_reaches_the_bundled_runner_without_the_settings_of_the_server(self, tmp_path: Path) -> None:
        path = tmp_path / "turnkeep.toml"
        path.write_text('bootstrap_key = "secret"\n[sandbox]\nturns = 3\nqueue = 5\n')
        environ = {"PATH": "/bin", "TURNKEEP_SANDBOX_QUEUE": "7", "TURNKEEP_SANDBOX_TURNS": ""}
        own = runner_environment(_with_file(environ, find_config_file({}, str(path))))
        assert own == {
            "PATH": "/bin",
            "TURNKEEP_SANDBOX_TURNS": "3",
            "TURNKEEP_SANDBOX_QUEUE": "7",
            "TURNKEEP_CONFIG": str(path),
        }


class TestWhatIsNoSetting:
    @pytest.mark.parametrize("command", [("serve",), ("status",), ("keys", "list"), ("sandbox",)], ids=" ".join)
    def test_stops_a_command_with_one_line(self, tmp_path: Path, command: tuple[str, ...]) -> None:
        done = run_turnkeep(*command, env=environment(TURNKEEP_MODLE="demo"), cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr == "turnkeep: TURNKEEP_MODLE is no setting. Did you mean TURNKEEP_MODEL? Unset it.\n"

    def test_in_a_file_stops_the_server_with_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "turnkeep.toml").write_text("prot = 1")
        done = run_turnkeep("serve", env=environment(), cwd=tmp_path)
        assert (done.returncode, done.stderr) == (
            2,
            "turnkeep: `prot` in turnkeep.toml is no setting. Did you mean port?\n",
        )

    def test_does_not_stop_a_command_that_only_talks_to_a_server(self, tmp_path: Path) -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{closed.getsockname()[1]}"
            done = run_turnkeep("models", "--url", url, "--key", "k", env=environment(TURNKEEP_X="1"), cwd=tmp_path)
        assert "No server answers" in done.stderr
