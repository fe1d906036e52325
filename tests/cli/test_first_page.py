"""The first page of help, and completion."""

import subprocess
import sys

import pytest

from turnkeep.cli.main import COMMANDS, main

HEAVY = ("typer", "rich", "httpx", "msgspec", "asyncio", "pydantic", "importlib.metadata")


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    script = "from turnkeep.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **environment},
        check=False,
        timeout=60,
    )


class TestTheFirstPage:
    def test_lists_every_command_with_its_summary_and_shows_what_to_type(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit):
            main(["--help"])
        told = capsys.readouterr().out
        assert all(f"  {command.name} " in told and command.summary in told for command in COMMANDS)
        assert "Try this first" in told

    def test_loads_nothing_that_is_slow(self) -> None:
        script = (
            "import sys\nfrom turnkeep.cli.main import main\n"
            "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
            f"print([name for name in {HEAVY!r} if name in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]"

    def test_an_unknown_command_or_option_is_a_usage_error(self) -> None:
        assert run("dance").returncode == 2
        assert run("models", "--colour").returncode == 2


class TestCompletion:
    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_is_printed_for_each_shell(self, shell: str) -> None:
        done = run("completion", shell)
        assert done.returncode == 0, done.stderr
        assert f"_TURNKEEP_COMPLETE=complete_{shell}" in done.stdout

    @pytest.mark.parametrize(
        "line,found",
        [
            ("turnkeep conv", ["conversations"]),
            ("turnkeep chat --mo", ["--model"]),
            ("turnkeep agents ", ["list", "show", "create", "update", "delete", "run"]),
        ],
    )
    def test_completes_commands_and_options(self, line: str, found: list[str]) -> None:
        place = str(len(line.split(" ")) - 1)
        done = run(_TURNKEEP_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=place)
        assert done.stdout.split() == found

    def test_the_script_works_in_a_real_shell(self) -> None:
        script = (
            f'turnkeep() {{ {sys.executable} -c "from turnkeep.cli.main import main; main()" "$@"; }}\n'
            "export -f turnkeep\n"
            'eval "$(turnkeep completion bash)"\n'
            "complete -p turnkeep\n"
        )
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=60)
        assert "_turnkeep_completion" in done.stdout, done.stderr
