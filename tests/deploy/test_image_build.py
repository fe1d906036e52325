"""The steps of the Containerfile, on a base system instead of its base image: no container engine is needed."""

import json
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bare_machine import SECONDS, BareMachine

CONTAINERFILE = Path(__file__).parents[2] / "deploy" / "Containerfile"

pytestmark = [pytest.mark.nightly, pytest.mark.alone]


def instructions() -> list[tuple[str, str]]:
    """Each instruction with its words, continued lines joined."""
    text = re.sub(r"\\\n", " ", CONTAINERFILE.read_text("utf-8"))
    lines = [line.split(None, 1) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line[0], line[1].strip()) for line in lines]


class Image:
    """What a build leaves: the machine, the variables, the user and the command."""

    def __init__(self, machine: BareMachine) -> None:
        self.machine = machine
        self.env: dict[str, str] = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/bin"}
        self.user = 0
        self.folder = "/"
        self.command: list[str] = []
        self.health: list[str] = []

    def build(self) -> None:
        # The base image has pip; the base system has it only in virtual environments.
        self.machine.run("python3", "-m", "venv", "/usr/local/python")
        script = self.machine.root / "usr/local/bin/python"
        script.write_text('#!/bin/sh\nexec /usr/local/python/bin/python "$@"\n')
        script.chmod(0o755)
        for name, words in instructions():
            match name:
                case "WORKDIR":
                    self.folder = words
                    self.machine.run("mkdir", "-p", words)
                case "COPY" if words == ". .":
                    made = self.machine.put_checkout("/copied", owner=0)
                    self._leave_out(self.machine.root / made.relative_to("/"))
                    self.machine.run("cp", "-a", f"{made}/.", self.folder)
                case "COPY" if not words.startswith("--from"):
                    source, target = words.split()
                    self.machine.run("mkdir", "-p", f"{self.folder}/{target}")
                    (self.machine.root / self.folder[1:] / source).write_bytes(
                        (CONTAINERFILE.parents[1] / source).read_bytes()
                    )
                case "COPY" if "--chown" in words:
                    owner = re.search(r"--chown=(\S+)", words)
                    assert owner is not None
                    self.machine.run("chown", "-R", owner[1], words.split()[-1])
                case "RUN":
                    self.machine.run("sh", "-c", f"cd {self.folder} && {words}", env=self.env)
                case "ENV":
                    self.env |= dict(one.split("=", 1) for one in shlex.split(words))
                case "USER":
                    self.user = int(words.split(":")[0])
                case "HEALTHCHECK":
                    self.health = json.loads(words[words.index("[") :])
                case "ENTRYPOINT" | "CMD":
                    self.command += json.loads(words)

    def _leave_out(self, folder: Path) -> None:
        """Remove what `.dockerignore` names."""
        lines = (CONTAINERFILE.parents[1] / ".dockerignore").read_text("utf-8").splitlines()
        for pattern in lines:
            for path in [] if pattern.startswith("#") else list(folder.glob(pattern)):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    machine = BareMachine(tmp_path_factory.mktemp("images") / "image")
    try:
        made = Image(machine)
        made.build()
        yield made
    finally:
        machine.remove()


def test_the_server_runs_and_is_healthy_with_its_page(image: Image) -> None:
    env = image.env | {"TURNKEEP_PORT": "0", "HOME": "/"}
    shell = f"cd {image.folder} && exec {shlex.join(image.command)}"
    with subprocess.Popen(
        image.machine.command("sh", "-c", shell, user=image.user, env=env), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            printed = ""
            for line in process.stdout:
                printed += line
                if "Ctrl-C" in line:
                    break
            found = re.search(r"running at http://\S+?:(\d+)", printed)
            assert found is not None, printed
            health = image.machine.command(
                *image.health, user=image.user, env=image.env | {"TURNKEEP_PORT": found[1]}, beside=process.pid
            )
            began = time.monotonic()
            assert subprocess.run(health, timeout=SECONDS, check=False).returncode == 0, time.monotonic() - began
            page = image.machine.command("curl", "-s", f"http://127.0.0.1:{found[1]}/", beside=process.pid)
            assert "<!doctype html>" in subprocess.run(page, capture_output=True, text=True, check=True).stdout.lower()
        finally:
            image.machine.end(process)


def test_the_image_is_small_and_has_no_pip(image: Image) -> None:
    size = int(image.machine.run("du", "-sm", "/opt/turnkeep").split()[0])
    assert size < 250
    assert "pip" not in image.machine.run("ls", "/opt/turnkeep/bin").split()
