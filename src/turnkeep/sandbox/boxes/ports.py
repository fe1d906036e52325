"""The port of a box: start it, run commands in it, close it. There are two drivers, and one test suite tests both.

With any driver a box has no network, a read-only system, an unprivileged user without capabilities, and one fresh
workspace, visible at `/workspace` and at `/root/workspace`. The runner itself never opens a path inside a box: all that
goes in or comes out passes through the input and output of a command.
"""

from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from turnkeep.errors import SandboxUnavailable

WORKSPACE = "/workspace"

MIB = 1024 * 1024


class BoxUnavailable(SandboxUnavailable):
    """No box can be started on this machine. The message says what to install or to set."""


class BoxLimits(Struct, frozen=True, kw_only=True):
    """What one box may use. The workspace and /tmp share `disk_bytes` and `files`."""

    memory_bytes: int = 1024 * MIB
    processes: int = 256
    """Including threads."""
    disk_bytes: int = 512 * MIB
    files: int = 10_000
    file_bytes: int = 256 * MIB
    open_files: int = 1_024
    output_bytes: int = MIB
    """Of one command, which is stopped at the next byte."""
    cpu_seconds: int = 600
    """Of one process."""


StopReason = Literal["time", "memory", "processes", "output"]
"""Which limit ended a command. Space and the number of files show as errors of the command itself (ENOSPC)."""

Feed = bytes | AsyncIterable[bytes]


class BoxCommand(Struct, frozen=True, kw_only=True):
    """What to run. `environment` is all that the process gets beside PATH, HOME and the like."""

    argv: Sequence[str]
    environment: Mapping[str, str] = {}
    feed: Feed = b""
    """Goes to its standard input, which then ends."""
    seconds: float = 120.0
    directory: str = WORKSPACE
    with_errors: bool = True
    """Standard error comes with the output, as in a terminal; else it is kept apart."""
    output_bytes: int | None = None
    """Instead of the box's own limit."""
    on_output: Callable[[bytes], None] | None = None
    """Called with each piece of the output as it comes; `Ended.output` is then empty. Must return quickly."""


class Ended(Struct, frozen=True, kw_only=True):
    """How a command ended. Every process that it left behind is dead."""

    exit_code: int
    """As a shell counts: 128 and the signal's number for a process that was killed."""
    output: bytes
    errors: bytes = b""
    seconds: float
    stopped_by: StopReason | None = None


class Box(Protocol):
    """One box. Commands may run side by side; each one's processes end with it."""

    async def run(self, command: BoxCommand) -> Ended:
        """Run it to its end or to a limit. Cancelling kills every process of it before the call returns."""

    async def close(self) -> None:
        """Kill all processes and erase all files. May be called twice."""


class Driver(Protocol):
    """Makes boxes."""

    name: str

    async def check(self) -> None:
        """Start a box and run a command in it. Raises BoxUnavailable, which says what to install or to set."""

    async def start(self, limits: BoxLimits, *, image: str | None = None) -> Box:
        """A box with that image. Raises BoxUnavailable if this machine does not have the image."""

    @property
    def python(self) -> Sequence[str]:
        """The command line of a Python inside the box that reads no settings and no site packages."""
