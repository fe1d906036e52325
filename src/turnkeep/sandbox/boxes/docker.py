"""Boxes made by Docker, optionally with gVisor (`runtime` runsc). Needs an engine that answers and a pulled image.

They are built like the boxes of bubblewrap: a *holder* container keeps a volume in memory with a hard limit of bytes
and files. Each command runs in a container of its own that mounts the volume; all its processes die when that container
is removed. Everything is labelled, so that what a killed runner left behind is removed at the next start. Here /tmp
belongs to the command, not to the box.
"""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
from collections.abc import Mapping, Sequence

from turnkeep.sandbox.boxes.ports import BoxCommand, BoxLimits, BoxUnavailable, Ended
from turnkeep.sandbox.boxes.processes import kill_outright, supervise

LABEL = "turnkeep.sandbox"
IMAGE_PREFIX = "turnkeep-image-"
"""The image `science` of an agent is the image `turnkeep-image-science` of the engine."""
_FIRST_UID, _UIDS = 61_000, 184
"""User ids that Debian does not assign, and that rootless engines can map too."""
_ENGINE_SECONDS = 30.0
_START = "mkdir -p /workspace/assets && exec sleep infinity"


class Docker:
    """Starts boxes. Call `check` before the first one; it removes what an earlier runner left."""

    name = "docker"

    def __init__(self, *, image: str, runtime: str | None = None, program: str = "docker") -> None:
        self._image = image
        self._runtime = runtime
        self._program = program

    @property
    def python(self) -> Sequence[str]:
        return ("python3", "-I", "-S", "-B")

    async def check(self) -> None:
        if shutil.which(self._program) is None:
            raise BoxUnavailable(f"The docker driver needs the program {self._program}, which is not installed.")
        await self._engine("version", "--format", "{{.Server.Version}}", hint="Start the Docker engine.")
        hint = f"Pull it first: docker pull {self._image}."
        await self._engine("image", "inspect", "--format", "{{.Id}}", self._image, hint=hint)
        await self._remove_leftovers()
        box = await self.start(BoxLimits())
        try:
            ended = await box.run(BoxCommand(argv=[*self.python, "-c", "print(6 * 7)"], seconds=_ENGINE_SECONDS))
        finally:
            await box.close()
        if ended.output.strip() != b"42":
            words = ended.output.decode("utf-8", "replace").strip()[:400]
            raise BoxUnavailable(f"A box of the image {self._image} does not work; it needs bash and Python 3: {words}")

    async def start(self, limits: BoxLimits, *, image: str | None = None) -> "DockerBox":
        chosen = self._image
        if image is not None:
            chosen = f"{IMAGE_PREFIX}{image}"
            hint = f"This runner has no image {image!r}: build or pull {chosen} (docs/howto/run-a-sandbox.md#images)."
            await self._engine("image", "inspect", "--format", "{{.Id}}", chosen, hint=hint)
        name = f"turnkeep-box-{secrets.token_hex(8)}"
        box = DockerBox(self, name, limits, uid=_FIRST_UID + secrets.randbelow(_UIDS), image=chosen)
        try:
            await self._engine(*volume_arguments(name, limits))
            holding = self.run_arguments(name, f"{name}-holder", limits, uid=box.uid)
            await self._engine(*holding, "--detach", chosen, "sh", "-c", _START)
        except BaseException:
            await box.close()
            raise
        return box

    def run_arguments(self, volume: str, container: str, limits: BoxLimits, *, uid: int) -> list[str]:
        """`run` with every option that isolates a container of this box; the image and the command follow."""
        memory = str(limits.memory_bytes)
        return [
            *("run", "--rm", "--name", container, "--label", LABEL, "--label", f"{LABEL}.box={volume}"),
            *("--pull", "never"),
            *(["--runtime", self._runtime] if self._runtime else []),
            *("--network", "none", "--read-only", "--user", f"{uid}:{uid}", "--hostname", "box"),
            *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            *("--init", "--stop-timeout", "0", "--log-driver", "none"),
            *("--memory", memory, "--memory-swap", memory, "--pids-limit", str(limits.processes)),
            *("--oom-score-adj", "1000"),
            *("--ulimit", f"fsize={limits.file_bytes}", "--ulimit", f"nofile={limits.open_files}"),
            *("--ulimit", "core=0", "--ulimit", f"cpu={limits.cpu_seconds}"),
            *("--mount", f"type=volume,source={volume},target=/workspace,volume-nocopy"),
            *("--mount", f"type=volume,source={volume},target=/root/workspace,volume-nocopy"),
            *("--tmpfs", f"/tmp:size={limits.disk_bytes},nr_inodes={limits.files},mode=1777,nosuid,nodev,exec"),
        ]

    @property
    def program(self) -> str:
        return self._program

    async def _engine(self, *arguments: str, hint: str = "") -> str:
        """Run a command of the Docker client. Raises BoxUnavailable with its error message."""
        process = await asyncio.create_subprocess_exec(
            self._program, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(_ENGINE_SECONDS):
                said, errors = await process.communicate()
        except BaseException as exc:
            kill_outright(process)
            if isinstance(exc, TimeoutError):
                raise BoxUnavailable(f"The Docker engine does not answer. {hint}".strip()) from exc
            raise
        if process.returncode != 0:
            words = " ".join(errors.decode("utf-8", "replace").split())[:400]
            raise BoxUnavailable(f"No box can be started: {words} {hint}".strip())
        return said.decode("utf-8", "replace")

    async def _remove_leftovers(self) -> None:
        containers = (await self._engine("ps", "--all", "--quiet", "--filter", f"label={LABEL}")).split()
        if containers:
            await self._engine("rm", "--force", *containers)
        volumes = (await self._engine("volume", "ls", "--quiet", "--filter", f"label={LABEL}")).split()
        if volumes:
            await self._engine("volume", "rm", "--force", *volumes)

    async def remove(self, *containers: str) -> None:
        """Kill and remove containers. One that is gone already is no error."""
        with contextlib.suppress(BoxUnavailable):
            await self._engine("rm", "--force", *containers)

    async def remove_box(self, name: str) -> None:
        """Remove all containers and the volume of one box."""
        with contextlib.suppress(BoxUnavailable):
            mine = await self._engine("ps", "--all", "--quiet", "--filter", f"label={LABEL}.box={name}")
            await self.remove(*mine.split())
            await self._engine("volume", "rm", "--force", name)


class DockerBox:
    """One box: its volume, its holder, and a container for each command."""

    def __init__(self, driver: Docker, name: str, limits: BoxLimits, *, uid: int, image: str) -> None:
        self.uid = uid
        self._image = image
        self._driver = driver
        self._name = name
        self._limits = limits
        self._is_closed = False

    async def run(self, command: BoxCommand) -> Ended:
        if self._is_closed:
            raise BoxUnavailable("This box is closed.")
        container = f"{self._name}-{secrets.token_hex(4)}"
        environment = {"HOME": "/tmp", "LANG": "C.UTF-8", "USER": "box", **command.environment}
        with contextlib.ExitStack() as files:
            given, descriptors = environment_arguments(environment, files)
            process = await asyncio.create_subprocess_exec(
                self._driver.program,
                *self._driver.run_arguments(self._name, container, self._limits, uid=self.uid),
                *given,
                *("--interactive", "--workdir", command.directory, self._image),
                *command.argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT if command.with_errors else asyncio.subprocess.PIPE,
                pass_fds=descriptors,
                start_new_session=True,
            )

        async def kill() -> None:
            await self._driver.remove(container)
            kill_outright(process)
            await process.wait()
            if process.returncode == -signal.SIGKILL:
                await self._driver.remove(container)  # it may have been made in the meantime

        return await supervise(process, command, self._limits, kill=kill)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        await self._driver.remove_box(self._name)


def volume_arguments(name: str, limits: BoxLimits) -> list[str]:
    """`volume create` for the box's own file system, in memory."""
    options = f"size={limits.disk_bytes},nr_inodes={limits.files},mode=1777,nosuid,nodev"
    return [
        *("volume", "create", "--label", LABEL, "--driver", "local"),
        *("--opt", "type=tmpfs", "--opt", "device=tmpfs", "--opt", f"o={options}"),
        name,
    ]


def environment_arguments(environment: Mapping[str, str], files: contextlib.ExitStack) -> tuple[list[str], list[int]]:
    """The variables in a file without a name, so that no list of processes shows them.

    Such a file cannot hold line breaks; a value that has some goes on the command line. The environment of the client
    cannot be used: a variable called DOCKER_HOST or LD_PRELOAD would be obeyed by the client.
    """
    plain = {name: value for name, value in environment.items() if "\n" not in value and "\r" not in value}
    descriptor = os.memfd_create("environment")
    files.callback(os.close, descriptor)
    os.write(descriptor, "".join(f"{name}={value}\n" for name, value in plain.items()).encode("utf-8", "replace"))
    os.lseek(descriptor, 0, os.SEEK_SET)
    long = [part for name in environment.keys() - plain.keys() for part in ("--env", f"{name}={environment[name]}")]
    return ["--env-file", f"/proc/self/fd/{descriptor}", *long], [descriptor]
