"""A stand-in for the docker client, to test what the driver sends to an engine and how it handles the responses.

It runs the commands of containers as plain processes: it isolates nothing. Whether Docker does is for the escape
suite, where an engine answers.
"""

import sys
from pathlib import Path

IMAGE = "img"

_CLIENT = r"""#!PYTHON
import os, signal, subprocess, sys
from pathlib import Path

state = Path(STATE)
args = sys.argv[1:]
with (state / "asked").open("a") as log:
    log.write(" ".join(args).replace("\n", " ") + "\n")

def option(name):
    return args[args.index(name) + 1] if name in args else None

match args[0]:
    case "version" | "image":
        print("1.0")
    case "volume":
        folder = state / "volumes" / args[-1]
        if args[1] == "create":
            folder.mkdir(parents=True)
        elif args[1] == "ls":
            print("\n".join(path.name for path in (state / "volumes").glob("*")))
        elif args[1] == "rm":
            folder.rmdir()
    case "ps":
        box = option("--filter").partition(".box=")[2]
        print("\n".join(path.name for path in (state / "containers").glob(f"{box}*")))
    case "rm":
        missing = False
        for name in args[2:]:
            record = state / "containers" / name
            try:
                pid = int(record.read_text())
                record.unlink()
            except FileNotFoundError:
                missing = True
                continue
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        sys.exit(1 if missing else 0)
    case "run":
        command = args[args.index("img") + 1:]
        (state / "containers").mkdir(exist_ok=True)
        record = state / "containers" / option("--name")
        given = Path(option("--env-file")).read_text() if option("--env-file") else ""
        environment = dict(line.split("=", 1) for line in given.splitlines()) | {"PATH": os.environ["PATH"]}
        environment |= dict(args[at + 1].split("=", 1) for at, word in enumerate(args) if word == "--env")
        detached = "--detach" in args
        if detached:
            command = ["sleep", "1000"]
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        child = subprocess.Popen(
            command, env=environment, cwd=str(state), start_new_session=True, **(streams if detached else {})
        )
        record.write_text(str(child.pid))
        if not detached:
            code = child.wait()
            record.unlink(missing_ok=True)
            sys.exit(code if code >= 0 else 128 - code)
    case other:
        sys.exit(f"unknown: {other}")
"""


class FakeDocker:
    def __init__(self, folder: Path) -> None:
        self._state = folder
        self.program = folder / "docker"
        self.program.write_text(_CLIENT.replace("PYTHON", sys.executable, 1).replace("STATE", repr(str(folder)), 1))
        self.program.chmod(0o755)

    @property
    def asked(self) -> list[str]:
        log = self._state / "asked"
        return log.read_text().splitlines() if log.exists() else []

    @property
    def left(self) -> list[str]:
        """Containers and volumes that were not removed."""
        return [path.name for kind in ("containers", "volumes") for path in (self._state / kind).glob("*")]

    def leave(self) -> None:
        """What a runner that was killed leaves behind."""
        for kind in ("containers", "volumes"):
            (self._state / kind).mkdir(exist_ok=True)
        (self._state / "containers" / "turnkeep-box-old").write_text("999999999")
        (self._state / "volumes" / "turnkeep-box-old").mkdir()
