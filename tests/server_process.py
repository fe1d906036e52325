"""`turnkeep` as a process of its own: one command, or a whole `turnkeep serve`."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

TURNKEEP = (sys.executable, "-c", "from turnkeep.cli.main import main; main()")
SECONDS = 60


def clean_environment(**own: str) -> dict[str, str]:
    """Without what the caller has set for a Turnkeep, a provider or a bucket of theirs."""
    foreign = ("TURNKEEP_", "_TURNKEEP", "ANTHROPIC_", "OPENAI_", "AWS_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)} | own


def environment(folder: Path, **changes: str) -> dict[str, str]:
    """One for a Turnkeep that keeps everything in this folder, and a terminal that is wide enough."""
    own = {"TURNKEEP_DATA_DIR": str(folder / "data"), "XDG_STATE_HOME": str(folder / "state"), "COLUMNS": "200"}
    return clean_environment(**own | changes)


def run_turnkeep(
    *arguments: str | Path, env: Mapping[str, str], cwd: Path | None = None, input: str = ""
) -> "subprocess.CompletedProcess[str]":
    """One command to its end, however it ends."""
    command = [*TURNKEEP, *map(str, arguments)]
    return subprocess.run(
        command, cwd=cwd, env=env, input=input, capture_output=True, text=True, timeout=SECONDS, check=False
    )


class Serving:
    """A server that runs, and what it printed when it was ready."""

    def __init__(self, process: "subprocess.Popen[str]", url: str, printed: str) -> None:
        self.process = process
        self.url = url
        self.printed = printed

    def stop(self) -> int:
        """Let it leave in order; the code with which it ended."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(SECONDS)


@contextmanager
def serving(folder: Path, env: Mapping[str, str], *flags: str, stderr: int | None = None) -> Iterator[Serving]:
    """Start a server in that folder on a free port, and stop it at the end of the block. The log is `log`, unless
    another descriptor is given for it."""
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            [*TURNKEEP, "serve", "--port", "0", *flags],
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=log if stderr is None else stderr,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            printed = ""
            for line in process.stdout:
                printed += line
                if "Ctrl-C" in line:
                    break
            found = re.search(r"running at (http://\S+)", printed)
            assert found is not None, (folder / "log").read_text()
            yield Serving(process, found[1], printed)
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    raise
