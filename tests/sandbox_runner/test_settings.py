"""The settings of a runner: read once, refused with a clear message, all of them documented."""

import re
from pathlib import Path

import pytest

from turnkeep.errors import InvalidRequest
from turnkeep.sandbox.boxes.ports import MIB
from turnkeep.sandbox.settings import RUNNER_VARIABLES, RunnerSettings, read_runner_settings

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "sandbox.md"


class TestReading:
    def test_a_flag_wins_over_the_environment_and_that_over_the_default(self) -> None:
        environ = {"TURNKEEP_SANDBOX_PORT": "1", "TURNKEEP_SANDBOX_DISK_MIB": "8", "TURNKEEP_SANDBOX_HOST": ""}
        settings = read_runner_settings(environ, {"port": "2", "turns": None})
        assert (settings.port, settings.disk_mib, settings.host, settings.turns) == (2, 8, "127.0.0.1", 20)
        assert settings.limits.disk_bytes == 8 * MIB

    @pytest.mark.parametrize(
        "name, value",
        [
            ("PORT", "high"),
            ("PORT", "70000"),
            ("DRIVER", "none"),
            ("TURNS", "0"),
            ("STEP_SECONDS", "nan"),
            ("SERVER", "example.com"),
            ("PROCESSES", "-1"),
        ],
    )
    def test_an_invalid_value_is_refused_with_what_is_allowed(self, name: str, value: str) -> None:
        with pytest.raises(InvalidRequest, match=f"TURNKEEP_SANDBOX_{name} must be .*{re.escape(value)}"):
            read_runner_settings({f"TURNKEEP_SANDBOX_{name}": value})


class TestWhoseTurnsARunnerRuns:
    def test_the_server_must_be_named(self) -> None:
        with pytest.raises(InvalidRequest, match="TURNKEEP_SANDBOX_SERVER"):
            read_runner_settings({}).check()
        read_runner_settings({}, {"server": "http://127.0.0.1:8787"}).check()

    def test_where_other_machines_reach_it_there_must_be_a_secret(self) -> None:
        flags = {"server": "https://chat.example.com", "host": "0.0.0.0"}
        with pytest.raises(InvalidRequest, match="TURNKEEP_SANDBOX_SECRET"):
            read_runner_settings({}, flags).check()
        settings = read_runner_settings({"TURNKEEP_SANDBOX_SECRET": "s" * 32}, flags)
        settings.check()
        assert "ssss" not in repr(settings)
        with pytest.raises(InvalidRequest, match="at least 32"):
            read_runner_settings({"TURNKEEP_SANDBOX_SECRET": "short"})


def test_every_setting_is_in_the_table_and_in_the_reference() -> None:
    assert [variable.field for variable in RUNNER_VARIABLES] == list(RunnerSettings.__struct_fields__)
    page = REFERENCE.read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(TURNKEEP_SANDBOX_\w+)` \| ([^|]*) \|", page, re.MULTILINE))
    assert rows.keys() == {variable.name for variable in RUNNER_VARIABLES}
    defaults = RunnerSettings()
    for variable in RUNNER_VARIABLES:
        shown = variable.default or str(getattr(defaults, variable.field))
        assert rows[variable.name].strip().strip("`") == shown.removesuffix(".0"), variable.name
