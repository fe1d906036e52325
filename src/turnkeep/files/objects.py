"""Objects on a local disk, and the choice between a disk and a bucket (`bucket.py`)."""

import asyncio
import os
import re
import secrets
import shutil
import stat
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from turnkeep.errors import InvalidRequest, StorageFull, TurnkeepError, Unavailable
from turnkeep.files.ports import BLOCK, Missing, Objects, StoredObject

LISTED_AT_ONCE = 1_000

_DRAFT = re.compile(r".+#\d+")
"""The name of a file that is being written. A listing never shows it."""
_FULL = re.compile(
    r"\(os error (?:28|122|27)\)"  # no space, quota, file size limit
    r"|XMinioStorageFull|QuotaExceeded|InsufficientStorage|no free volumes|no writable volumes|status code: 507",
    re.IGNORECASE,
)

Made = TypeVar("Made")


def open_objects(files_url: str, *, folder: Path) -> Objects:
    """The object store that `files_url` names; `folder` is where a `file:` address keeps its files on this machine.

    Raises InvalidRequest for any other address, and for a bucket where the extra `turnkeep[s3]` is not installed.
    """
    parts = urlsplit(files_url)
    if parts.scheme == "file":
        return LocalObjects(folder)
    if parts.scheme != "s3" or not parts.netloc:
        raise InvalidRequest("TURNKEEP_FILES_URL must be file:///path or s3://bucket/prefix.")
    try:
        from turnkeep.files.bucket import BucketObjects
    except ImportError as exc:
        raise InvalidRequest("TURNKEEP_FILES_URL names a bucket: install `turnkeep[s3]`, or use file:///path.") from exc
    return BucketObjects(parts.netloc, prefix=parts.path.strip("/"))


class LocalObjects:
    """Files below one folder. A stored object is flushed to the disk, together with the folders that lead to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        with translated():
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    async def put(self, key: str, blocks: AsyncIterable[bytes]) -> None:
        draft = _Draft(self._folder / key)
        writing: asyncio.Future[None] | None = None
        try:
            async for block in blocks:
                with translated():
                    if writing is not None:
                        await writing
                    writing = _in_thread(draft.write, block)  # while one block is written, the next one arrives
            with translated():
                if writing is not None:
                    await writing
                await _in_thread(draft.publish)
        except BaseException:
            with suppress(OSError):  # a draft that cannot be removed now is found by `discard_unfinished`
                await asyncio.shield(_in_thread(draft.discard))
            raise
        await self._flush(key)

    async def read(self, key: str, *, start: int, end: int) -> AsyncIterator[bytes]:
        ahead: asyncio.Future[bytes] | None = None
        try:
            for place in range(start, end, BLOCK):
                following = min(place + BLOCK, end)
                with translated():
                    block = await (ahead or self._fetch(key, place, following))
                if len(block) != following - place:
                    raise too_short()
                # The next block is read while the caller sends this one.
                ahead = self._fetch(key, following, min(following + BLOCK, end)) if following < end else None
                yield block
        finally:
            if ahead is not None:
                ahead.cancel()

    async def size(self, key: str) -> int | None:
        try:
            with translated():
                found = await asyncio.to_thread((self._folder / key).stat)
        except Missing:
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    async def copy(self, source: str, target: str) -> None:
        with translated():
            await asyncio.to_thread(_copy, self._folder / source, self._folder / target)
        await self._flush(target)

    async def delete(self, keys: Sequence[str]) -> None:
        def delete() -> None:
            for key in keys:
                (self._folder / key).unlink(missing_ok=True)

        with translated():
            await asyncio.to_thread(delete)

    async def list(self, prefix: str) -> AsyncIterator[Sequence[StoredObject]]:
        found = self._walk(prefix)
        with translated():
            while page := await asyncio.to_thread(lambda: tuple(islice(found, LISTED_AT_ONCE))):
                yield page

    async def discard_unfinished(self, *, before: int) -> int:
        with translated():
            return await asyncio.to_thread(self._discard, before / 1000)

    async def upload_url(self, key: str, *, size: int, seconds: int) -> str | None:
        return None

    async def upload_origin(self) -> str | None:
        return None

    def _fetch(self, key: str, start: int, end: int) -> "asyncio.Future[bytes]":
        return _in_thread(_piece, self._folder / key, start, end)

    async def _flush(self, key: str) -> None:
        with translated():
            await asyncio.to_thread(self._flush_path, self._folder / key)

    def _flush_path(self, path: Path) -> None:
        """Flush the file, then every folder between it and ours: a new entry is lost if its folder is not flushed."""
        _fsync(path)
        while path != self._folder:
            path = path.parent
            _fsync(path)

    def _walk(self, prefix: str) -> Iterator[StoredObject]:
        for folder, _, names in os.walk(self._folder / prefix, followlinks=True):
            for name in names:
                path = Path(folder, name)
                with suppress(FileNotFoundError):  # deleted since
                    if not _DRAFT.fullmatch(name):
                        about = path.stat()
                        key = path.relative_to(self._folder).as_posix()
                        yield StoredObject(key=key, size=about.st_size, modified_at=int(about.st_mtime * 1000))

    def _discard(self, before: float) -> int:
        found = 0
        for folder, _, names in os.walk(self._folder):
            for name in names:
                path = Path(folder, name)
                with suppress(FileNotFoundError):
                    if _DRAFT.fullmatch(name) and path.stat().st_mtime < before:
                        path.unlink()
                        found += 1
        return found


class _Draft:
    """A file that is being written beside its final place. Each verb runs in a thread, one at a time.

    A cancelled `put` does not wait for the thread that writes, so `discard` may be called while a block is written. It
    then waits for that block, and later writes do nothing.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self._path = _draft_of(target)
        self._file: FileIO | None = None
        self._is_discarded = False
        self._lock = threading.Lock()

    def write(self, block: bytes) -> None:
        with self._lock:
            if self._is_discarded:
                return
            file = self._opened()
            left = memoryview(block)
            while left:
                left = left[file.write(left) :]

    def publish(self) -> None:
        """Give the file its name, in the place of any other that has it."""
        with self._lock:
            if not self._is_discarded:
                self._opened().close()
                self._path.replace(self._target)

    def discard(self) -> None:
        with self._lock:
            self._is_discarded = True
            if self._file is not None:
                self._file.close()
                self._path.unlink(missing_ok=True)

    def _opened(self) -> FileIO:
        if self._file is None:
            self._target.parent.mkdir(parents=True, exist_ok=True)
            self._file = FileIO(self._path, "xb")
        return self._file


def too_short() -> Unavailable:
    return Unavailable("This file has fewer bytes than it should. An operator must restore it from a backup.")


@contextmanager
def translated() -> Iterator[None]:
    """Raise our own error for each error of the operating system inside."""
    try:
        yield
    except FileNotFoundError as exc:
        raise missing() from exc
    except OSError as exc:
        raise storage_error(exc) from exc


def missing() -> Missing:
    return Missing("The bytes of this file are gone.")


def storage_error(exc: Exception) -> TurnkeepError:
    """The error that callers see. A bucket reports most of what went wrong only in the text of its error."""
    if _FULL.search(str(exc)) or getattr(exc, "errno", None) in {28, 122, 27}:
        return StorageFull("There is no room left for files. Reads go on; uploads work again once there is room.")
    return Unavailable("Files cannot be reached just now. Nothing was stored; try again.")


def _in_thread(work: Callable[..., Made], *arguments: object) -> "asyncio.Future[Made]":
    running = asyncio.get_running_loop().run_in_executor(None, lambda: work(*arguments))
    # A caller that stops early never awaits this. Its failure must not be logged as forgotten.
    running.add_done_callback(lambda done: done.cancelled() or done.exception())
    return running


def _draft_of(target: Path) -> Path:
    return target.with_name(f"{target.name}#{secrets.randbits(48)}")


def _copy(source: Path, target: Path) -> None:
    """A second name for the same bytes, since objects never change; real copies where the file system has no links."""
    draft = _draft_of(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        try:
            os.link(source, draft)
        except FileNotFoundError:
            raise
        except OSError:
            shutil.copyfile(source, draft)
        os.utime(draft)  # a copy is new: the orphan sweep must not take it for an old object that no row names
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)  # a rename between two names of the same file keeps both


def _piece(path: Path, start: int, end: int) -> bytes:
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        return file.read(end - start)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
