"""What an operator may set about a runner: one frozen value, read once from flags and environment."""

from collections.abc import Mapping
from typing import Literal, get_args

from msgspec import Struct

from turnkeep.config.parsing import count, one_of, public_url, seconds
from turnkeep.config.variables import Variable, read_variables
from turnkeep.sandbox.boxes.ports import MIB, Limits

DriverName = Literal["bubblewrap", "docker"]


class RunnerSettings(Struct, frozen=True, kw_only=True):
    """Times in seconds, sizes in MiB where the name says so."""

    host: str = "127.0.0.1"
    port: int = 8788
    driver: DriverName = "bubblewrap"
    docker_image: str = "python:3.13-slim"
    docker_runtime: str = ""
    server: str = ""
    turns: int = 20
    queue: int = 100
    queue_seconds: float = 300.0
    turn_seconds: float = 3_600.0
    step_seconds: float = 300.0
    tool_rounds: int = 50
    memory_mib: int = 1_024
    disk_mib: int = 512
    files: int = 10_000
    processes: int = 256
    output_kib: int = 1_024
    assets: int = 100
    """So many files are handed back after one turn."""

    @property
    def limits(self) -> Limits:
        return Limits(
            memory_bytes=self.memory_mib * MIB,
            disk_bytes=self.disk_mib * MIB,
            file_bytes=self.disk_mib * MIB,
            files=self.files,
            processes=self.processes,
            output_bytes=self.output_kib * 1024,
            cpu_seconds=max(1, round(self.step_seconds) * 2),
        )


class RunnerVariable(Variable, frozen=True, kw_only=True):
    """A row of the table. The environment variable says that it is about the sandbox; the flag need not."""

    @property
    def name(self) -> str:
        return f"TURNKEEP_SANDBOX_{self.field.upper()}"


def read_runner_settings(environ: Mapping[str, str], flags: Mapping[str, str | None] | None = None) -> RunnerSettings:
    """Settings from `flags` over `environ`. Raises InvalidRequest with the name, what is allowed and what was given."""
    return RunnerSettings(**read_variables(RUNNER_VARIABLES, environ, flags))


RUNNER_VARIABLES: tuple[RunnerVariable, ...] = (
    RunnerVariable(
        field="host",
        parse=str,
        allowed="an address or name to listen on",
        meaning="The address to listen on. Whoever reaches it can run code in boxes: keep it private.",
    ),
    RunnerVariable(field="port", **count(0, 65_535), meaning="The port to listen on; 0 takes a free one."),
    RunnerVariable(
        field="driver",
        **one_of(*get_args(DriverName)),
        meaning="What boxes are made of. There is no way to run without one.",
    ),
    RunnerVariable(
        field="docker_image",
        parse=str,
        allowed="the name of an image",
        meaning="docker only: the image of boxes. It needs bash and Python 3, and must have been pulled.",
    ),
    RunnerVariable(
        field="docker_runtime",
        parse=str,
        allowed="the name of a runtime",
        meaning="docker only: another runtime than the default, such as `runsc` (gVisor).",
        default="the default runtime",
    ),
    RunnerVariable(
        field="server",
        parse=public_url,
        allowed="http://… or https://…",
        meaning="Run only turns of this server: the beginning of their `agent_url`.",
        default="any server",
    ),
    RunnerVariable(field="turns", **count(1, 1_000), meaning="So many turns run at once."),
    RunnerVariable(field="queue", **count(0, 10_000), meaning="So many more may wait; others are refused (503)."),
    RunnerVariable(field="queue_seconds", **seconds(0, 86_400), meaning="How long a turn may wait for its place."),
    RunnerVariable(field="turn_seconds", **seconds(1, 604_800), meaning="How long one turn may take."),
    RunnerVariable(field="step_seconds", **seconds(0.1, 86_400), meaning="How long one step may take."),
    RunnerVariable(
        field="tool_rounds",
        **count(0, 1_000),
        meaning="So often one turn may call tools, unless the server says otherwise.",
    ),
    RunnerVariable(field="memory_mib", **count(32, 1 << 20), meaning="Memory of one box."),
    RunnerVariable(
        field="disk_mib",
        **count(1, 1 << 20),
        meaning="The workspace and /tmp of one box together. With bubblewrap they lie in memory.",
    ),
    RunnerVariable(field="files", **count(100, 10_000_000), meaning="Files and folders in them."),
    RunnerVariable(field="processes", **count(16, 32_768), meaning="Processes and threads of one box."),
    RunnerVariable(field="output_kib", **count(1, 65_536), meaning="So much may one step print; then it is stopped."),
    RunnerVariable(field="assets", **count(0, 10_000), meaning="So many files may one turn hand back."),
)
