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


def test_every_setting_is_in_the_table_and_in_the_reference() -> None:
    assert [variable.field for variable in RUNNER_VARIABLES] == list(RunnerSettings.__struct_fields__)
    page = REFERENCE.read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(TURNKEEP_SANDBOX_\w+)` \| ([^|]*) \|", page, re.MULTILINE))
    assert rows.keys() == {variable.name for variable in RUNNER_VARIABLES}
    defaults = RunnerSettings()
    for variable in RUNNER_VARIABLES:
        shown = variable.default or str(getattr(defaults, variable.field))
        assert rows[variable.name].strip().strip("`") == shown.removesuffix(".0"), variable.name
