"""A machine that has nothing but a base system: a Debian made by debootstrap, in namespaces of its own.

It needs root, Debian and the package registries, so only nightly tests use it. The base system is made once, in
`.bare-machine/`, and each machine is a copy of it. It reaches packages as this machine does: it has the settings of
pip, the certificates and the folders that the settings name. It shares the network of this machine.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BASE = ROOT / ".bare-machine"
PACKAGES = ("ca-certificates", "curl", "make", "python3-venv")
"""What the README asks for, and what its examples with curl need."""
SECONDS = 1_800
USER = 1000
KEPT = ("PIP_", "NODE_EXTRA_CA_CERTS", "SSL_CERT", "REQUESTS_CA_BUNDLE", "http_proxy", "https_proxy", "no_proxy")
ENTER = """
root=$1; shift
mount --bind "$root" "$root"
while [ "$1" != -- ]; do
  if [ -d "$1" ]; then mkdir -p "$root$1"; else mkdir -p "$(dirname "$root$1")"; touch "$root$1"; fi
  mount --bind -o ro "$1" "$root$1"
  shift
done
shift
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmp "$root/tmp"
cd "$root"
mkdir -p old
pivot_root . old
umount -l old
exec "$@"
"""
"""Unlike chroot, pivot_root allows user namespaces inside, which sandboxes are made of."""


class BareMachine:
    """One machine. Programs are run in it as root, or as the user `reader`."""

    def __init__(self, folder: Path) -> None:
        """Make it in that folder, which must not exist."""
        self.root = folder
        subprocess.run(["cp", "-a", base_system(), folder], check=True, timeout=SECONDS)
        self.run("useradd", "--create-home", "--uid", str(USER), "reader")

    def put_checkout(self, home: str, *, owner: int) -> Path:
        """The files of this checkout that git knows, in `turnkeep` below a home; its path inside."""
        inside = Path(home) / "turnkeep"
        target = self.root / inside.relative_to("/")
        target.mkdir(parents=True)
        named = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        names = [name for name in named.split(b"\0") if name and (ROOT / os.fsdecode(name)).exists()]
        subprocess.run(
            ["xargs", "-0", "cp", "--parents", "-t", target], input=b"\0".join(names), cwd=ROOT, check=True, timeout=120
        )
        subprocess.run(["chown", "-R", f"{owner}:{owner}", target], check=True, timeout=120)
        return inside

    def command(
        self, *words: str, user: int = 0, env: Mapping[str, str] | None = None, beside: int | None = None
    ) -> list[str]:
        """The whole command line that runs these words in the machine; with `beside`, where they see the processes of
        another such command, whose pid it is."""
        home = "/root" if user == 0 else "/home/reader"
        kept = {name: value for name, value in os.environ.items() if name.startswith(KEPT)}
        given = kept | {"HOME": home, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"} | dict(env or {})
        if beside is None:
            entered = [
                *("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"),
                *("sh", "-ec", ENTER, "enter", str(self.root), *shared_paths(), "--"),
            ]
        else:
            first = str(self._first_process(beside))
            entered = ["nsenter", "--target", first, "--mount", "--pid", "--root", "--wd=/", "--"]
        return [
            *entered,
            *("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"),
            *("env", "-i", *(f"{name}={value}" for name, value in given.items()), *words),
        ]

    def end(self, command: "subprocess.Popen[str]") -> None:
        """End a command that runs in the machine, and with it all that it has started. Its first process must be killed
        itself: one that changes its user does not hear of the death of its parent any more."""
        if command.poll() is None:
            os.kill(self._first_process(command.pid), signal.SIGKILL)
        command.communicate(timeout=60)

    def _first_process(self, command: int) -> int:
        """The process in the machine that this command, whose pid it is, has started there."""
        return int(Path(f"/proc/{command}/task/{command}/children").read_text("ascii"))

    def run(self, *words: str, user: int = 0, env: Mapping[str, str] | None = None) -> str:
        """What a command prints. It must succeed."""
        done = subprocess.run(
            self.command(*words, user=user, env=env), capture_output=True, text=True, timeout=SECONDS, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def remove(self) -> None:
        shutil.rmtree(self.root)


def base_system() -> Path:
    """Made once. A build that breaks off leaves no base system."""
    made = BASE / "base"
    if made.exists():
        return made
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        pytest.fail("A bare machine needs root and debootstrap: run `scripts/system debootstrap` as root.")
    building = BASE / f"building-{os.getpid()}-{time.monotonic_ns()}"
    building.parent.mkdir(exist_ok=True)
    suite, site = apt_source()
    subprocess.run(
        ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", suite, building, site],
        check=True,
        timeout=SECONDS,
        stdout=subprocess.DEVNULL,
    )
    if made.exists():
        shutil.rmtree(building)
    else:
        building.rename(made)
    return made


def apt_source() -> Sequence[str]:
    """The suite and the address from which apt takes the base system of this machine."""
    release = dict(
        line.split("=", 1) for line in Path("/etc/os-release").read_text("utf-8").splitlines() if "=" in line
    )
    suite = release["VERSION_CODENAME"].strip('"')
    targets = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)"], capture_output=True, text=True, check=True
    ).stdout
    return next(line.split(" ", 1) for line in targets.splitlines() if line.startswith(f"{suite} "))


def shared_paths() -> list[str]:
    """What a machine sees of this one: how to reach the network and the registries."""
    paths = ["/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/ssl/certs"]
    settings = subprocess.run(
        [ROOT / ".venv/bin/python", "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    for word in settings.replace("'", " ").replace("=", " ").split():
        folder = Path(word.removeprefix("file://").removesuffix("/simple"))
        if folder.is_absolute() and folder.is_dir():
            paths.append(str(folder))
    return [path for path in dict.fromkeys(paths) if Path(path).exists()]
