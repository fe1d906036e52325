"""The settings of a sandbox runner: each is declared here once, with its default, its parser and its meaning.

The environment variables begin with `TURNKEEP_SANDBOX_`; the flags of `turnkeep sandbox` do not repeat that.
"""

from typing import Annotated, Literal, get_args

from msgspec import Struct

from turnkeep.config.variables import Setting, count, http_url, one_of, seconds, variables_of

DriverName = Literal["bubblewrap", "docker"]


class RunnerSection(Struct, frozen=True, kw_only=True):
    """Everything that an operator may set about a runner. Times are in seconds; sizes are in the unit of their name."""

    host: Annotated[
        str,
        Setting(
            parse=str,
            allowed="an address or name to listen on",
            meaning="The address to listen on. Every client that reaches it can run code in boxes: keep it private.",
        ),
    ] = "127.0.0.1"
    port: Annotated[int, Setting(**count(0, 65_535), meaning="The port to listen on; 0 takes a free one.")] = 8788
    driver: Annotated[
        DriverName,
        Setting(
            **one_of(*get_args(DriverName)),
            meaning="What boxes are made of. There is no way to run without one.",
        ),
    ] = "bubblewrap"
    docker_image: Annotated[
        str,
        Setting(
            parse=str,
            allowed="the name of an image",
            meaning="docker only: the image of boxes. It needs bash and Python 3, and must have been pulled.",
        ),
    ] = "python:3.13-slim"
    docker_runtime: Annotated[
        str,
        Setting(
            parse=str,
            allowed="the name of a runtime",
            meaning="docker only: another runtime than the default, such as `runsc` (gVisor).",
            default="the default runtime",
        ),
    ] = ""
    server: Annotated[
        str,
        Setting(
            parse=http_url,
            allowed="http://… or https://…",
            meaning="Run only turns of this server: the beginning of their `agent_url`.",
            default="any server",
        ),
    ] = ""
    turns: Annotated[int, Setting(**count(1, 1_000), meaning="Maximum number of turns that run at once.")] = 20
    queue: Annotated[
        int,
        Setting(**count(0, 10_000), meaning="Maximum number of turns that wait; further turns are refused (503)."),
    ] = 100
    queue_seconds: Annotated[
        float, Setting(**seconds(0, 86_400), meaning="How long a turn may wait for its place.")
    ] = 300.0
    turn_seconds: Annotated[float, Setting(**seconds(1, 604_800), meaning="How long one turn may take.")] = 3_600.0
    step_seconds: Annotated[float, Setting(**seconds(0.1, 86_400), meaning="How long one step may take.")] = 300.0
    tool_rounds: Annotated[
        int,
        Setting(
            **count(0, 1_000), meaning="Maximum number of tool rounds in one turn, unless the server sends its own."
        ),
    ] = 50
    memory_mib: Annotated[int, Setting(**count(32, 1 << 20), meaning="Memory of one box.")] = 1_024
    disk_mib: Annotated[
        int,
        Setting(
            **count(1, 1 << 20),
            meaning="The workspace and /tmp of one box together. With bubblewrap they lie in memory.",
        ),
    ] = 512
    files: Annotated[
        int, Setting(**count(100, 10_000_000), meaning="Maximum number of files and folders in one box.")
    ] = 10_000
    processes: Annotated[
        int, Setting(**count(16, 32_768), meaning="Maximum number of processes and threads of one box.")
    ] = 256
    output_kib: Annotated[
        int,
        Setting(**count(1, 65_536), meaning="Maximum output of one step; a step that prints more is stopped."),
    ] = 1_024
    assets: Annotated[
        int, Setting(**count(0, 10_000), meaning="Maximum number of files that are sent back after one turn.")
    ] = 100


RUNNER_VARIABLES = variables_of(RunnerSection, prefix="TURNKEEP_SANDBOX_")
