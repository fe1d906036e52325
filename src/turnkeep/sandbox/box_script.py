"""The script by which the runner reads and writes files in a box. It is never imported: the box's Python runs its text.

A request is one line of JSON on standard input, followed by bytes if the verb takes some. The response is JSON on
standard output; for `collect` it is lines of JSON, each followed by the bytes of a file. The script uses only the
standard library and runs on Python 3.9 and later. Since it runs in the box, a link that leads out of the workspace
reaches nothing that the box could not read anyway.
"""

import fnmatch
import json
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from typing import IO, Any, Optional

WORKSPACE = "/workspace"
PIECE = 256 * 1024
READ_BYTES = 1024 * 1024
SKIPPED_FOLDERS = {".git", "node_modules", "__pycache__"}


class RequestRefused(Exception):
    """The verb cannot be done. The message is for the model."""


def main() -> None:
    request = json.loads(sys.stdin.buffer.readline())
    verb = VERBS[request.pop("verb")]
    try:
        answer = {"result": verb(**request)}
    except RequestRefused as exc:
        answer = {"error": str(exc)}
    except OSError as exc:
        answer = {"error": f"{exc.filename}: {exc.strerror}" if exc.filename else str(exc.strerror)}
    tell(answer)


def tell(value: Any) -> None:
    # Names that are not UTF-8 come as half surrogate pairs, which JSON parsers refuse.
    line = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    sys.stdout.buffer.write(line.encode() + b"\n")
    sys.stdout.buffer.flush()


def place(path: str) -> str:
    return os.path.join(WORKSPACE, path or ".")


def read(path: str, first_line: int, lines: int) -> str:
    with open(place(path), "rb") as file:
        data = file.read(READ_BYTES + 1)
    if b"\0" in data[:8192]:
        raise RequestRefused(f"{path} is not a text file ({os.path.getsize(place(path))} bytes).")
    cut = len(data) > READ_BYTES
    text = data[:READ_BYTES].decode("utf-8", "replace").splitlines(keepends=True)
    shown = text[first_line - 1 : first_line - 1 + lines]
    if not shown and text:
        raise RequestRefused(f"{path} has {len(text)} lines.")
    rest = len(text) - (first_line - 1) - len(shown)
    beyond = ", and more beyond 1 MiB" if cut else ""
    return "".join(shown) + (f"\n[{rest} more lines{beyond}]" if rest > 0 or cut else "")


def write(path: str, size: int, executable: bool = False) -> str:
    data = sys.stdin.buffer.read(size)
    put(place(path), [data], 0o755 if executable else None)
    return f"Wrote {len(data)} bytes to {path}."


def put(path: str, pieces: Iterable[bytes], mode: Optional[int] = None) -> None:  # noqa: UP045 - for Python 3.9
    folder = os.path.dirname(path)
    if folder:
        os.makedirs(folder, exist_ok=True)
    try:
        with open(path, "wb") as file:
            file.writelines(pieces)
    except OSError as exc:
        exc.filename = exc.filename or path
        raise
    if mode is not None:
        os.chmod(path, mode)


def edit(path: str, old: str, new: str, everywhere: bool) -> str:
    with open(place(path), encoding="utf-8", newline="") as file:
        try:
            text = file.read()
        except UnicodeDecodeError:
            raise RequestRefused(f"{path} is not a text file.") from None
    count = text.count(old)
    if not old or count == 0:
        raise RequestRefused(
            f"The old text does not occur in {path}. It must match exactly, with its spaces and line ends."
        )
    if count > 1 and not everywhere:
        raise RequestRefused(f"The old text occurs {count} times in {path}. Give more of it, or set everywhere.")
    put(place(path), [text.replace(old, new).encode("utf-8", "surrogatepass")])
    return f"Replaced {count} occurrence{'s' if count > 1 else ''} in {path}."


def list_(path: str, depth: int, most: int) -> str:
    top = place(path)
    if not os.path.isdir(top):
        raise RequestRefused(f"{path} is not a folder.")
    lines: list[str] = []
    for folder, folders, names in os.walk(top):
        inner = os.path.relpath(folder, top)
        level = 0 if inner == "." else inner.count(os.sep) + 1
        lines.extend(shown(top, folder, name) for name in sorted(folders))
        lines.extend(shown(top, folder, name) for name in sorted(names))
        folders[:] = sorted(set(folders) - SKIPPED_FOLDERS) if level < depth - 1 else []
        if len(lines) > most:
            return "\n".join(lines[:most]) + "\n[cut: there are more]"
    return "\n".join(lines) or "(empty)"


def shown(top: str, folder: str, name: str) -> str:
    full = os.path.join(folder, name)
    path = os.path.relpath(full, top)
    try:
        seen = os.lstat(full)
    except OSError:
        return path
    if stat.S_ISLNK(seen.st_mode):
        return f"{path} -> {os.readlink(full)}"
    return f"{path}/" if stat.S_ISDIR(seen.st_mode) else f"{path}  {seen.st_size} bytes"


def grep(pattern: str, path: str, names: str, ignore_case: bool, most: int) -> str:
    try:
        wanted = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    except re.error as exc:
        raise RequestRefused(f"The pattern is not a regular expression: {exc}.") from None
    top = place(path)
    if not os.path.exists(top):
        raise RequestRefused(f"{path} does not exist.")
    found: list[str] = []
    for full in files_below(top):
        if names and not fnmatch.fnmatch(os.path.basename(full), names):
            continue
        for number, line in text_lines(full):
            if wanted.search(line):
                found.append(f"{os.path.relpath(full, WORKSPACE)}:{number}:{line[:500]}")
                if len(found) >= most:
                    return "\n".join(found) + "\n[cut: there may be more]"
    return "\n".join(found) or "Nothing matches."


def files_below(top: str) -> Iterator[str]:
    if os.path.isfile(top):
        yield top
        return
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(set(folders) - SKIPPED_FOLDERS)
        for name in sorted(names):
            full = os.path.join(folder, name)
            if stat.S_ISREG(os.lstat(full).st_mode):
                yield full


def text_lines(path: str) -> Iterator[tuple[int, str]]:
    try:
        with open(path, "rb") as file:
            if b"\0" in file.read(8192):
                return
            file.seek(0)
            for number, line in enumerate(file, start=1):
                yield number, line.decode("utf-8", "replace").rstrip("\r\n")
    except OSError:
        return


def unpack(folder: str) -> int:
    """Write the files on standard input, each after a line of JSON. The runner has checked their names."""
    count = 0
    while True:
        head = sys.stdin.buffer.readline()
        if not head:
            return count
        entry = json.loads(head)
        put(os.path.join(folder, entry["path"]), taken(entry["size"]), 0o755 if entry["executable"] else None)
        count += 1


def taken(size: int) -> Iterator[bytes]:
    while size:
        piece = sys.stdin.buffer.read(min(PIECE, size))
        if not piece:
            raise RequestRefused("The files ended too soon.")
        size -= len(piece)
        yield piece


def collect(folder: str) -> None:
    """Send every regular file of the folder, and the names of everything else. Links are not followed."""
    if os.path.islink(folder):
        tell({"path": os.path.basename(folder), "skipped": True})
        return
    for top, folders, names in os.walk(folder):
        folders.sort()
        links = [name for name in folders if os.path.islink(os.path.join(top, name))]
        for name in sorted(names) + links:
            full = os.path.join(top, name)
            path = os.path.relpath(full, folder)
            try:
                opened = os.open(full, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError:
                tell({"path": path, "skipped": True})
                continue
            with open(opened, "rb") as file:
                seen = os.fstat(opened)
                if stat.S_ISREG(seen.st_mode) and is_text(path):
                    send(path, seen.st_size, file)
                else:
                    tell({"path": path, "skipped": True})


def is_text(name: str) -> bool:
    return os.fsencode(name).decode("utf-8", "replace") == name


def send(path: str, size: int, file: IO[bytes]) -> None:
    tell({"path": path, "size": size})
    while size:
        piece = file.read(min(PIECE, size)) or bytes(min(PIECE, size))
        sys.stdout.buffer.write(piece)
        size -= len(piece)


VERBS: dict[str, Any] = {
    "read": read,
    "write": write,
    "edit": edit,
    "list": list_,
    "grep": grep,
    "unpack": unpack,
    "collect": collect,
}

if __name__ == "__main__":
    main()
