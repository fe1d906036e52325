"""`make run` and `scripts/system` on a machine that lacks things. `test_bare_machine.py` tries a whole one."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAMS = ("bash", "cat", "chmod", "dirname", "echo", "env", "flock", "id", "make", "printf", "sed", "sh", "touch")
"""What a bare machine has."""


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


class Machine:
    """A checkout with the real Makefile and scripts/system, on a machine without bubblewrap.

    Set-up and build are left out, and the server only says that it was started.
    """

    def __init__(self, folder: Path) -> None:
        self.checkout, self.bin, self.log = folder / "checkout", folder / "bin", folder / "apt.log"
        self.bin.mkdir()
        for program in PROGRAMS:
            found = shutil.which(program)
            assert found is not None, program
            (self.bin / program).symlink_to(found)
        for name in ("setup", "web"):
            script(self.checkout / "scripts" / name, "exit 0")
        shutil.copy(ROOT / "Makefile", self.checkout)
        shutil.copy(ROOT / "scripts" / "system", self.checkout / "scripts")
        script(self.checkout / ".venv" / "bin" / "turnkeep", 'echo "started: $*"')

    def has(self, name: str, text: str) -> None:
        (self.bin / name).unlink(missing_ok=True)
        script(self.bin / name, text)

    def has_apt(self, *, works: bool = True) -> None:
        installs = f'touch "{self.bin}/bwrap"; chmod 755 "{self.bin}/bwrap"' if works else "exit 100"
        self.has("apt-get", f'echo "$*" >> "{self.log}"\ncase "$*" in *" install "*) ;; *) exit 1;; esac\n{installs}')

    def make_run(self) -> subprocess.CompletedProcess[str]:
        env = {"PATH": str(self.bin), "TMPDIR": str(self.checkout), "HOME": os.environ.get("HOME", "/")}
        done = subprocess.run(
            ["make", "run"], cwd=self.checkout, env=env, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "started: serve" in done.stdout
        return done

    def system(self, *programs: str) -> "subprocess.CompletedProcess[str]":
        env = {"PATH": str(self.bin), "TMPDIR": str(self.checkout)}
        command = [str(self.checkout / "scripts" / "system"), *programs]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)

    @property
    def installed(self) -> list[str]:
        lines = self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []
        return [line.split()[-1] for line in lines if " install " in line]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


class TestTheSystem:
    def test_is_left_as_it_is(self, machine: Machine) -> None:
        """The sandbox comes with `requirements/run.txt`: `make run` installs nothing with apt, though it may."""
        machine.has("id", "echo 0")
        machine.has_apt()
        machine.make_run()
        assert machine.installed == []

    @pytest.mark.parametrize("works", [True, False])
    def test_gets_programs_for_the_tests_where_root_has_apt(self, machine: Machine, works: bool) -> None:
        machine.has("id", "echo 0")
        machine.has_apt(works=works)
        assert (machine.system("bubblewrap").returncode == 0) is works
        assert machine.installed == ["bubblewrap"]

    def test_is_asked_for_programs_where_they_may_not_be_installed(self, machine: Machine) -> None:
        machine.has("id", "echo 1000")
        machine.has_apt()
        assert "sudo apt-get install bubblewrap" in machine.system("bubblewrap").stderr
        assert machine.installed == []


def test_git_ignores_the_data_of_the_server() -> None:
    """It holds a service key and secrets."""
    assert "/.turnkeep/" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
