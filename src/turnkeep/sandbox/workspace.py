"""The workspace of one turn: what goes in before the loop, and what comes back after it.

All of it passes through `box_script.py`, which runs in the box: the runner never opens a path of a workspace. What
comes back was written by programs in the box, so it is parsed as strictly as any other untrusted input.
"""

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import IO

import msgspec
from msgspec import Struct

from turnkeep.errors import CallerError, WorldError
from turnkeep.files.zip_files import ZipReader, ZipRefused, safe_path
from turnkeep.sandbox.boxes.ports import MIB, WORKSPACE, Box, BoxCommand, BoxLimits, Ended
from turnkeep_client.wire.blocks import JsonObject, JsonValue

ASSETS = f"{WORKSPACE}/assets"
SKILLS = f"{WORKSPACE}/skills"

UNPACK_SECONDS = 300.0
COLLECT_SECONDS = 300.0

HEAD_BYTES = 16 * 1024
_SPOOL_BYTES = MIB


class BagRefused(CallerError):
    """The zip of the bag is broken or hostile. Nothing of it was unpacked."""

    code = "bag_refused"


class WorkspaceFailed(WorldError):
    """The box did not unpack or collect files as it was asked to."""

    code = "workspace_failed"


class WorkspaceFile(Struct, frozen=True, kw_only=True):
    """A file to put into the workspace."""

    path: str
    data: bytes
    is_executable: bool = False


class Asset(Struct, frozen=True, kw_only=True):
    """A file that came back. `file` is positioned at its beginning."""

    path: str
    size: int
    sha256: str
    file: IO[bytes]


class Collected(Struct, frozen=True, kw_only=True):
    """The files that are new or changed, and the paths of those that could not be read."""

    assets: tuple[Asset, ...]
    skipped: tuple[str, ...]


class BoxWorkspace:
    """Puts files into the workspace of one box, and collects them."""

    def __init__(self, box: Box, python: Sequence[str], limits: BoxLimits) -> None:
        self.script = BoxScript(box, python)
        self._limits = limits
        self._unpacked: dict[str, str] = {}
        """The sha256 of every file that came with the bag, by its path below assets."""

    async def put(self, folder: str, new: Iterable[WorkspaceFile]) -> None:
        """Write these files below a folder. Raises WorkspaceFailed."""

        async def feed() -> AsyncIterator[bytes]:
            for file in new:
                yield _head(file.path, len(file.data), is_executable=file.is_executable)
                yield file.data

        await self._unpack(folder, feed())

    async def unpack(self, bag: IO[bytes]) -> int:
        """Unpack the zip into assets; return how many files there were. Raises BagRefused, WorkspaceFailed."""
        limits = self._limits
        try:
            archive = await asyncio.to_thread(ZipReader, bag, max_bytes=limits.disk_bytes, max_files=limits.files)
        except ZipRefused as exc:
            raise BagRefused(f"The bag was refused. {exc.detail}") from exc
        broken: list[ZipRefused] = []

        async def feed() -> AsyncIterator[bytes]:
            for entry in archive.entries:
                yield _head(entry.path, entry.size)
                digest = hashlib.sha256()
                pieces = archive.pieces(entry)
                try:
                    while piece := await asyncio.to_thread(next, pieces, b""):
                        digest.update(piece)
                        yield piece
                except ZipRefused as exc:
                    broken.append(exc)
                    return
                self._unpacked[entry.path] = digest.hexdigest()

        try:
            await self._unpack(ASSETS, feed())
        finally:
            if broken:
                raise BagRefused(f"The bag was refused. {broken[0].detail}") from broken[0]
        return len(archive.entries)

    async def collect(self) -> Collected:
        """The files of assets that are new or changed since `unpack`. Nothing may run in the box meanwhile."""
        reader = CollectReader()
        ended = await self.script.run(
            _request("collect", folder=ASSETS),
            seconds=COLLECT_SECONDS,
            output_bytes=self._limits.disk_bytes + self._limits.files * HEAD_BYTES,
            on_output=reader.feed,
        )
        if ended.stopped_by is not None or not reader.is_complete:
            reader.close()
            raise WorkspaceFailed("The files of the workspace could not be read back.")
        changed = []
        for asset in reader.assets:
            if self._unpacked.get(asset.path) == asset.sha256:
                asset.file.close()
            else:
                changed.append(asset)
        return Collected(assets=tuple(changed), skipped=tuple(reader.skipped))

    async def _unpack(self, folder: str, entries: AsyncIterator[bytes]) -> None:
        async def feed() -> AsyncIterator[bytes]:
            yield _request("unpack", folder=folder)
            async for piece in entries:
                yield piece

        ended = await self.script.run(feed(), seconds=UNPACK_SECONDS, output_bytes=MIB)
        try:
            read_answer(ended)
        except ScriptRefused as exc:
            raise WorkspaceFailed(f"The workspace could not be filled: {exc}") from exc


def skill_files(skills: Mapping[str, Mapping[str, str]]) -> list[WorkspaceFile]:
    """The files of skills below their folder. All but the description may be run. Raises ZipRefused."""
    return [
        WorkspaceFile(
            path=safe_path(f"{skill}/{path}"),
            data=text.encode("utf-8", "replace"),
            is_executable=path != "SKILL.md",
        )
        for skill, contents in skills.items()
        for path, text in contents.items()
    ]


def _request(verb: str, **request: JsonValue) -> bytes:
    return msgspec.json.encode({"verb": verb, **request}) + b"\n"


def _head(path: str, size: int, *, is_executable: bool = False) -> bytes:
    return msgspec.json.encode({"path": path, "size": size, "executable": is_executable}) + b"\n"


class BoxScript:
    """Runs `box_script.py` in the box, one verb at a time."""

    def __init__(self, box: Box, python: Sequence[str]) -> None:
        self._box = box
        self._python = python

    async def ask(self, verb: str, request: JsonObject, *, data: bytes = b"", seconds: float = 30.0) -> JsonValue:
        """The result of the verb. Raises ScriptRefused, with a message for the model."""
        feed = msgspec.json.encode({"verb": verb, **request}) + b"\n" + data
        ended = await self.run(feed, seconds=seconds, output_bytes=8 * MIB)
        return read_answer(ended)

    async def run(
        self,
        feed: bytes | AsyncIterator[bytes],
        *,
        seconds: float,
        output_bytes: int,
        on_output: Callable[[bytes], None] | None = None,
    ) -> Ended:
        return await self._box.run(
            BoxCommand(
                argv=[*self._python, "-c", _helper()],
                feed=feed,
                seconds=seconds,
                with_errors=False,
                output_bytes=output_bytes,
                on_output=on_output,
            )
        )


class ScriptRefused(Exception):
    """The verb cannot be done. The message is for the model."""


class _Answer(Struct, frozen=True):
    result: JsonValue = None
    error: str | None = None


def read_answer(ended: Ended) -> JsonValue:
    if ended.stopped_by is not None:
        raise ScriptRefused(f"Stopped at the {ended.stopped_by} limit.")
    try:
        answer = msgspec.json.decode(ended.output, type=_Answer)
    except msgspec.DecodeError as exc:
        words = ended.errors.decode("utf-8", "replace").strip().splitlines()
        raise ScriptRefused(words[-1] if words else f"The box gave no answer (exit code {ended.exit_code}).") from exc
    if answer.error is not None:
        raise ScriptRefused(answer.error)
    return answer.result


@cache
def _helper() -> str:
    return files("turnkeep.sandbox").joinpath("box_script.py").read_text("utf-8")


class _Head(Struct, frozen=True):
    path: str | None = None
    size: int = 0
    skipped: bool = False
    result: JsonValue = None
    error: str | None = None


class CollectReader:
    """Parses the output of the verb `collect`: lines of JSON, each followed by the bytes of a file."""

    def __init__(self) -> None:
        self.assets: list[Asset] = []
        self.skipped: list[str] = []
        self.is_complete = False
        self._is_broken = False
        self._line = b""
        self._current: _IncomingFile | None = None

    def feed(self, piece: bytes) -> None:
        view = memoryview(piece)
        while view and not self._is_broken:
            view = self._body(view) if self._current is not None else self._header(view)

    def _header(self, view: memoryview) -> memoryview:
        head, feed, rest = bytes(view).partition(b"\n")
        self._line += head
        if not feed:
            self._is_broken = len(self._line) > HEAD_BYTES
            return view[len(view) :]
        line, self._line = self._line, b""
        try:
            self._begin(msgspec.json.decode(line, type=_Head))
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._is_broken = True
        return memoryview(rest)

    def close(self) -> None:
        """Close the files that have arrived."""
        for asset in self.assets:
            asset.file.close()
        if self._current is not None:
            self._current.close()

    def _begin(self, head: _Head) -> None:
        if head.path is None:
            self.is_complete = head.error is None
        elif head.skipped:
            self.skipped.append(head.path)
        else:
            self._current = _IncomingFile(head.path, max(0, head.size))
            self._end_if_whole()

    def _body(self, view: memoryview) -> memoryview:
        assert self._current is not None
        taken = self._current.take(view)
        self._end_if_whole()
        return view[taken:]

    def _end_if_whole(self) -> None:
        current = self._current
        if current is None or current.left:
            return
        self._current = None
        try:
            safe_path(current.path)
        except ZipRefused:  # no system could open a file of that name
            current.close()
            self.skipped.append(ascii(current.path))
        else:
            self.assets.append(current.asset())


class _IncomingFile:
    """A file while it arrives: in memory while it is small, else in a temporary file."""

    def __init__(self, path: str, size: int) -> None:
        self.left = size
        self.path = path
        self._size = size
        self._digest = hashlib.sha256()
        self._file = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES)  # noqa: SIM115 - closed after the upload

    def take(self, view: memoryview) -> int:
        piece = view[: self.left]
        self._digest.update(piece)
        self._file.write(piece)
        self.left -= len(piece)
        return len(piece)

    def close(self) -> None:
        self._file.close()

    def asset(self) -> Asset:
        self._file.seek(0)
        return Asset(path=self.path, size=self._size, sha256=self._digest.hexdigest(), file=self._file)
