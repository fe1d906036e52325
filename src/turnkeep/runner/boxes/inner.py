"""What a box made by bubblewrap looks like from inside: which parts of the system are shown, under which names.

Only what programs need to run: `/usr` and what points into it, and a handful of files of `/etc`. No home, no data
directory, no socket, no device but the harmless ones.
"""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

BOX_PATH = "/usr/local/bin:/usr/bin:/bin"
OUTER_ROOT = "/tmp"
"""Where the holder mounts the box's own file system; only its namespace sees it there."""

_TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC = ("alternatives", "fonts", "ImageMagick-6", "ImageMagick-7", "ld.so.cache", "localtime", "mime.types")
_HIDDEN_IN_PROC = ("config.gz", "kallsyms", "kcore", "key-users", "keys", "kmsg", "sched_debug", "timer_list")
USER_ID = 1000
PASSWD = f"box:x:{USER_ID}:{USER_ID}::/tmp:/bin/sh\nroot:x:0:0::/root:/bin/sh\n".encode()
GROUP = f"box:x:{USER_ID}:\nroot:x:0:\n".encode()


def find_python() -> Path:
    """A Python that can be seen in the box: the system's, or this one, which is then shown read-only."""
    found = shutil.which("python3", path=BOX_PATH)
    return Path(found) if found else Path(sys.base_prefix).resolve() / "bin" / "python3"


def box_environment(python: Path, given: Mapping[str, str]) -> dict[str, str]:
    """All that a process in the box gets: four variables that every program expects, and those given."""
    path = BOX_PATH if str(python.parent) in BOX_PATH.split(":") else f"{python.parent}:{BOX_PATH}"
    return {"PATH": path, "HOME": "/tmp", "LANG": "C.UTF-8", "USER": "box", **given}


def view_arguments(python: Path, *, passwd_fd: int, group_fd: int, root: Path = Path("/")) -> list[str]:
    """The file system, as arguments for bwrap. The last ones make whatever is not the box's own read-only."""
    arguments = ["--ro-bind", "/usr", "/usr", *_top_folders(root), *_etc(root)]
    if not python.is_relative_to("/usr"):
        prefix = str(python.parent.parent)
        arguments += ["--ro-bind", prefix, prefix]
    arguments += ["--ro-bind-data", str(passwd_fd), "/etc/passwd", "--ro-bind-data", str(group_fd), "/etc/group"]
    arguments += ["--proc", "/proc", "--dev", "/dev"]
    for name in _HIDDEN_IN_PROC:
        if (root / "proc" / name).exists():
            arguments += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    for inside, place in (
        ("/tmp", "tmp"),
        ("/dev/shm", "shm"),
        ("/workspace", "workspace"),
        ("/root/workspace", "workspace"),
    ):
        arguments += ["--bind", f"{OUTER_ROOT}/{place}", inside]
    # bwrap's own / and /dev are file systems in memory that the box's user owns: room to write without a limit.
    return [*arguments, "--remount-ro", "/dev", "--remount-ro", "/"]


def setenv_arguments(environment: Mapping[str, str]) -> Iterator[str]:
    for name, value in environment.items():
        yield from ("--setenv", name, value)


def packed(arguments: Iterable[str]) -> bytes:
    """As `bwrap --args` reads them. So nothing of it, secrets among the variables, shows in a list of processes."""
    return b"".join(os.fsencode(argument) + b"\0" for argument in arguments)


def _top_folders(root: Path) -> Iterator[str]:
    for name in _TOP:
        folder = root / name
        if folder.is_symlink():
            yield from ("--symlink", os.readlink(folder), f"/{name}")
        elif folder.is_dir():
            yield from ("--ro-bind", f"/{name}", f"/{name}")


def _etc(root: Path) -> Iterator[str]:
    for name in _ETC:
        if (root / "etc" / name).exists():
            yield from ("--ro-bind", f"/etc/{name}", f"/etc/{name}")
