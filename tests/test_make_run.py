"""`make run` on a machine that lacks things: it installs what it may, and starts the server in any case."""

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

    @property
    def installed(self) -> list[str]:
        lines = self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []
        return [line.split()[-1] for line in lines if " install " in line]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


class TestBubblewrap:
    def test_is_installed_once_where_root_has_apt(self, machine: Machine) -> None:
        machine.has("id", "echo 0")
        machine.has_apt()
        assert "Without bubblewrap" not in machine.make_run().stderr
        assert machine.installed == ["bubblewrap"]
        machine.make_run()
        assert machine.installed == ["bubblewrap"]

    def test_is_asked_for_where_it_may_not_be_installed(self, machine: Machine) -> None:
        machine.has("id", "echo 1000")
        machine.has_apt()
        told = machine.make_run().stderr
        assert "sudo apt-get install bubblewrap" in told
        assert "Without bubblewrap the server runs, but has no sandbox." in told
        assert machine.installed == []

    @pytest.mark.parametrize("has_apt", [True, False])
    def test_is_done_without_where_it_cannot_be_had(self, machine: Machine, has_apt: bool) -> None:
        machine.has("id", "echo 0")
        if has_apt:
            machine.has_apt(works=False)
        assert "Without bubblewrap the server runs, but has no sandbox." in machine.make_run().stderr


def test_git_ignores_the_data_of_the_server() -> None:
    """It holds a service key and secrets."""
    assert "/.turnkeep/" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
