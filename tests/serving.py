"""A whole `turnkeep serve`, as a process of its own."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

TURNKEEP = (sys.executable, "-c", "from turnkeep.cli.main import main; main()")
SECONDS = 60


@contextmanager
def serving(folder: Path, environment: Mapping[str, str], *flags: str) -> Iterator[str]:
    """Start it in that folder on a free port, and stop it at the end of the block; its address. The log is `log`."""
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            [*TURNKEEP, "serve", "--port", "0", *flags],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        printed = ""
        for line in process.stdout:
            printed += line
            if "Ctrl-C" in line:
                break
        found = re.search(r"running at (http://\S+)", printed)
        assert found is not None, (folder / "log").read_text()
        try:
            yield found[1]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(SECONDS)
