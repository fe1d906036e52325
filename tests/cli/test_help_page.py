"""The first page of help, and completion."""

import subprocess
import sys
from pathlib import Path

import pytest

from turnkeep.cli.main import COMMANDS, main

NAMED_SHELL = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
"""Typer's own switch: the options then take the name of a shell, and do not look for the one that runs us."""

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
            (
                "turnkeep agents ",
                [
                    "list",
                    "show",
                    "create",
                    "update",
                    "delete",
                    "rotate-tool-secret",
                    "add-skill",
                    "remove-skill",
                    "run",
                    "connections",
                    "disconnect",
                ],
            ),
        ],
    )
    def test_completes_commands_and_options(self, line: str, found: list[str]) -> None:
        place = str(len(line.split(" ")) - 1)
        done = run(_TURNKEEP_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=place)
        assert done.stdout.split() == found

    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_is_shown_by_the_option_too(self, shell: str) -> None:
        shown = run("--show-completion", shell, **NAMED_SHELL)
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout.strip() == run("completion", shell).stdout.strip()

    @pytest.mark.parametrize(
        "shell,script,startup",
        [
            ("bash", ".bash_completions/turnkeep.sh", ".bashrc"),
            ("zsh", ".zfunc/_turnkeep", ".zshrc"),
            ("fish", ".config/fish/completions/turnkeep.fish", None),
        ],
    )
    def test_is_installed_where_the_shell_looks(
        self, tmp_path: Path, shell: str, script: str, startup: str | None
    ) -> None:
        for _ in range(2):
            done = run("--install-completion", shell, HOME=str(tmp_path), **NAMED_SHELL)
            assert done.returncode == 0, done.stderr
        assert "_TURNKEEP_COMPLETE" in (tmp_path / script).read_text()
        if startup is not None:
            lines = (tmp_path / startup).read_text().splitlines()
            assert sum(script.partition("/")[0] in line for line in lines) == 1, "once, however often"

    def test_for_an_unknown_shell_is_a_usage_error(self, tmp_path: Path) -> None:
        assert run("--install-completion", "vintage", HOME=str(tmp_path), **NAMED_SHELL).returncode == 2
        assert list(tmp_path.iterdir()) == []

    def test_is_installed_for_the_shell_that_asks_and_works_in_it(self, tmp_path: Path) -> None:
        program = tmp_path / "bin" / "turnkeep"
        program.parent.mkdir()
        program.write_text(f"#!{sys.executable}\nfrom turnkeep.cli.main import main; main()\n")
        program.chmod(0o755)
        script = (
            "turnkeep --show-completion > shown\n"
            "turnkeep --install-completion > said\n"
            "source ~/.bashrc\n"
            "COMP_WORDS=(turnkeep conv) COMP_CWORD=1\n"
            "_turnkeep_completion turnkeep\n"
            'echo "${COMPREPLY[@]}"\n'
        )
        environ = {"PATH": f"{program.parent}:/usr/bin:/bin", "HOME": str(tmp_path)}
        done = subprocess.run(
            ["bash", "-c", script],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env=environ,
            cwd=tmp_path,
        )
        assert done.stdout.split() == ["conversations"], done.stderr
        assert "bash completion installed" in (tmp_path / "said").read_text()
        assert (tmp_path / "shown").read_text().strip() == run("completion", "bash").stdout.strip()

    def test_the_script_works_in_a_real_shell(self) -> None:
        script = (
            f'turnkeep() {{ {sys.executable} -c "from turnkeep.cli.main import main; main()" "$@"; }}\n'
            "export -f turnkeep\n"
            'eval "$(turnkeep completion bash)"\n'
            "complete -p turnkeep\n"
        )
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=60)
        assert "_turnkeep_completion" in done.stdout, done.stderr
