"""The workspace of one turn: what goes in before the loop, and what comes back after it.

All of it passes through `inside.py`, which runs in the box: the runner opens no path of a workspace, ever. What comes
back was written by whoever had the box, so it is read as strictly as anything from outside.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import IO

import msgspec
from msgspec import Struct

from turnkeep.errors import CallerError, WorldError
from turnkeep.filebag.unzipping import ZipReader, ZipRefused, safe_path
from turnkeep.runner.boxes.ports import MIB, WORKSPACE, Box, Command, Ended, Limits
from turnkeep.runner.collecting import HEAD_BYTES, Asset, CollectReader
from turnkeep_client.wire.blocks import JsonObject, JsonValue

ASSETS = f"{WORKSPACE}/assets"
SKILLS = f"{WORKSPACE}/skills"

UNPACK_SECONDS = 300.0
COLLECT_SECONDS = 300.0


class BagRefused(CallerError):
    """The zip of the bag is broken or hostile; nothing of it was unpacked."""

    code = "bag_refused"


class WorkspaceFailed(WorldError):
    """The box did not do what it was asked to before or after the loop."""

    code = "workspace_failed"


class Inside:
    """Asks `inside.py`, in the box, one verb at a time."""

    def __init__(self, box: Box, python: Sequence[str]) -> None:
        self._box = box
        self._python = python

    async def ask(self, verb: str, request: JsonObject, *, data: bytes = b"", seconds: float = 30.0) -> JsonValue:
        """The answer. Raises Refusal in words for the model."""
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
            Command(
                argv=[*self._python, "-c", _helper()],
                feed=feed,
                seconds=seconds,
                with_errors=False,
                output_bytes=output_bytes,
                on_output=on_output,
            )
        )


class Refusal(Exception):
    """What was asked cannot be done; the words are for the model."""


class _Answer(Struct, frozen=True):
    result: JsonValue = None
    error: str | None = None


def read_answer(ended: Ended) -> JsonValue:
    if ended.stopped_by is not None:
        raise Refusal(f"Stopped at the {ended.stopped_by} limit.")
    try:
        answer = msgspec.json.decode(ended.output, type=_Answer)
    except msgspec.DecodeError as exc:
        words = ended.errors.decode("utf-8", "replace").strip().splitlines()
        raise Refusal(words[-1] if words else f"The box gave no answer (exit code {ended.exit_code}).") from exc
    if answer.error is not None:
        raise Refusal(answer.error)
    return answer.result


class NewFile(Struct, frozen=True, kw_only=True):
    """A file to put into the workspace."""

    path: str
    data: bytes
    is_executable: bool = False


class Collected(Struct, frozen=True, kw_only=True):
    """The files that are new or changed, and the paths of what could not be taken."""

    assets: tuple[Asset, ...]
    skipped: tuple[str, ...]


class Workspace:
    """Fills the workspace of one box, and empties it."""

    def __init__(self, box: Box, python: Sequence[str], limits: Limits) -> None:
        self.inside = Inside(box, python)
        self._limits = limits
        self._unpacked: dict[str, str] = {}
        """The sha256 of every file that came with the bag, by its path below assets."""

    async def put(self, folder: str, new: Iterable[NewFile]) -> None:
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
        ended = await self.inside.run(
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

        ended = await self.inside.run(feed(), seconds=UNPACK_SECONDS, output_bytes=MIB)
        try:
            read_answer(ended)
        except Refusal as exc:
            raise WorkspaceFailed(f"The workspace could not be filled: {exc}") from exc


def skill_files(skills: Mapping[str, Mapping[str, str]]) -> list[NewFile]:
    """The files of skills below their folder. All but the description may be run. Raises ZipRefused."""
    return [
        NewFile(
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


@cache
def _helper() -> str:
    return files("turnkeep.runner").joinpath("inside.py").read_text("utf-8")
