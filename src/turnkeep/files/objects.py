"""Objects on a local disk and in an S3-compatible bucket, both through obstore."""

import asyncio
import os
import re
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import LocalStore, S3Store

from turnkeep.errors import InvalidRequest, StorageFull, TurnkeepError, Unavailable
from turnkeep.files.ports import BLOCK, Missing, Objects, StoredObject

PART_BYTES = 5 * BLOCK
"""S3 takes no smaller parts."""
LISTED_AT_ONCE = 1_000
DELETED_AT_ONCE = 8
CONNECT_SECONDS = 3
SILENT_SECONDS = 15
RETRY_SECONDS = 4

_STAGED = re.compile(r".+#\d+")
"""How obstore names a file that is being written; a listing never shows it."""

_FULL = re.compile(
    r"\(os error (?:28|122|27)\)"  # no space, quota, file size limit
    r"|XMinioStorageFull|QuotaExceeded|InsufficientStorage|no free volumes|no writable volumes|status code: 507",
    re.IGNORECASE,
)


def open_objects(files_url: str, *, folder: Path) -> Objects:
    """The place that `files_url` names; `folder` is what a `file:` address means on this machine."""
    parts = urlsplit(files_url)
    if parts.scheme == "file":
        return LocalObjects(folder)
    if parts.scheme != "s3" or not parts.netloc:
        raise InvalidRequest("TURNKEEP_FILES_URL must be file:///path or s3://bucket/prefix.")
    return BucketObjects(parts.netloc, prefix=parts.path.strip("/"))


class _Objects:
    """What both have in common."""

    def __init__(self, store: LocalStore | S3Store, *, part_bytes: int, parts_at_once: int) -> None:
        self._store = store
        self._part_bytes = part_bytes
        self._parts_at_once = parts_at_once

    async def put(self, key: str, blocks: AsyncIterable[bytes]) -> None:
        source = aiter(blocks)
        first: list[bytes] = []
        size = 0
        async for block in source:
            first.append(block)
            size += len(block)
            if size >= self._part_bytes:
                break
        if size < self._part_bytes:  # small: one request, and nothing that could be left half-done
            with translated():
                await obstore.put_async(self._store, key, b"".join(first), use_multipart=False)
            return
        with translated():
            await obstore.put_async(
                self._store,
                key,
                _chained(first, source),
                use_multipart=True,
                chunk_size=self._part_bytes,
                max_concurrency=self._parts_at_once,
            )

    async def size(self, key: str) -> int | None:
        try:
            with translated():
                return (await obstore.head_async(self._store, key))["size"]
        except Missing:
            return None

    async def copy(self, source: str, target: str) -> None:
        with translated():
            await obstore.copy_async(self._store, source, target)

    async def delete(self, keys: Sequence[str]) -> None:
        deleting = asyncio.Semaphore(DELETED_AT_ONCE)

        async def delete(key: str) -> None:
            async with deleting:
                with suppress(Missing), translated():
                    await obstore.delete_async(self._store, key)

        await asyncio.gather(*map(delete, keys))

    async def list(self, prefix: str) -> AsyncIterator[Sequence[StoredObject]]:
        with translated():
            async for page in obstore.list(self._store, prefix, chunk_size=LISTED_AT_ONCE):
                yield [
                    StoredObject(
                        key=meta["path"],
                        size=meta["size"],
                        modified_at=int(meta["last_modified"].timestamp() * 1000),
                    )
                    for meta in page
                ]


class LocalObjects(_Objects):
    """Files below one folder. What was put is flushed to the disk, with the folders that lead to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        with translated():
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Two at once: while a block is written the next one arrives.
        super().__init__(LocalStore(self._folder), part_bytes=BLOCK, parts_at_once=2)

    async def put(self, key: str, blocks: AsyncIterable[bytes]) -> None:
        await super().put(key, blocks)
        await self._flush(key)

    async def read(self, key: str, *, start: int, end: int) -> AsyncIterator[bytes]:
        # Not through obstore: its stream reads a local file 8 KiB at a time, and its ranges copy every byte twice. The
        # next block is read while the last is on its way.
        ahead: asyncio.Future[bytes] | None = None
        try:
            for place in range(start, end, BLOCK):
                following = min(place + BLOCK, end)
                with translated():
                    block = await (ahead or self._fetch(key, place, following))
                if len(block) != following - place:
                    raise _too_short()
                ahead = self._fetch(key, following, min(following + BLOCK, end)) if following < end else None
                yield block
        finally:
            if ahead is not None:
                ahead.cancel()

    def _fetch(self, key: str, start: int, end: int) -> "asyncio.Future[bytes]":
        fetching = asyncio.get_running_loop().run_in_executor(None, _piece, self._folder / key, start, end)
        # Whoever stops reading does not ask for it any more; a failure that nobody sees is no news.
        fetching.add_done_callback(lambda done: done.cancelled() or done.exception())
        return fetching

    async def copy(self, source: str, target: str) -> None:
        await super().copy(source, target)
        await self._flush(target)

    async def discard_unfinished(self, *, before: int) -> int:
        with translated():
            return await asyncio.to_thread(self._discard, before / 1000)

    async def upload_url(self, key: str, *, seconds: int) -> str | None:
        return None

    async def _flush(self, key: str) -> None:
        with translated():
            await asyncio.to_thread(self._flush_path, self._folder / key)

    def _flush_path(self, path: Path) -> None:
        """The file, then every folder between it and ours: a new entry is lost with the folder that holds it."""
        _fsync(path)
        while path != self._folder:
            path = path.parent
            _fsync(path)

    def _discard(self, before: float) -> int:
        found = 0
        for folder, _, names in os.walk(self._folder):
            for name in names:
                path = Path(folder, name)
                with suppress(FileNotFoundError):
                    if _STAGED.fullmatch(name) and path.stat().st_mtime < before:
                        path.unlink()
                        found += 1
        return found


class BucketObjects(_Objects):
    """A bucket. Credentials, endpoint and region come from the usual `AWS_*` variables."""

    def __init__(self, bucket: str, *, prefix: str) -> None:
        store = S3Store(
            bucket,
            prefix=prefix or None,
            client_options={
                "allow_http": _is_plain_http(os.environ),
                "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
                # None for a whole request: a reader may be slow. A bucket that falls silent is noticed by the next.
                "timeout": timedelta(days=1),
                "read_timeout": timedelta(seconds=SILENT_SECONDS),
            },
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=RETRY_SECONDS)},
        )
        # One on its way while the next gathers: 10 MB for each upload, and no more.
        super().__init__(store, part_bytes=PART_BYTES, parts_at_once=1)

    async def read(self, key: str, *, start: int, end: int) -> AsyncIterator[bytes]:
        if start >= end:
            return
        with translated():
            found = await obstore.get_async(self._store, key, options={"range": (start, end)})
            if found.meta["size"] < end:
                raise _too_short()
            async for block in found.stream(min_chunk_size=BLOCK):
                yield bytes(block)

    async def discard_unfinished(self, *, before: int) -> int:
        """A killed multipart upload cannot be listed through obstore; a lifecycle rule of the bucket removes it."""
        return 0

    async def upload_url(self, key: str, *, seconds: int) -> str | None:
        assert isinstance(self._store, S3Store)
        with translated():
            return await obstore.sign_async(self._store, "PUT", key, timedelta(seconds=seconds))


async def _chained(first: list[bytes], rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    while first:  # one by one, so that these bytes are not in memory twice
        yield first.pop(0)
    async for block in rest:
        yield block


def _too_short() -> Unavailable:
    return Unavailable("This file has fewer bytes than it should. An operator must restore it from a backup.")


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


def _is_plain_http(environ: Mapping[str, str]) -> bool:
    """A bucket of one's own may be reached without TLS when its address says so."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    return any(environ.get(name, "").startswith("http://") for name in names)


@contextmanager
def translated() -> Iterator[None]:
    """Raise our own error for whatever storage raises inside."""
    try:
        yield
    except FileNotFoundError as exc:
        raise Missing("The bytes of this file are gone.") from exc
    except (BaseError, OSError) as exc:
        raise _ours(exc) from exc


def _ours(exc: Exception) -> TurnkeepError:
    words = str(exc)
    if _FULL.search(words) or getattr(exc, "errno", None) in {28, 122, 27}:
        return StorageFull("There is no room left for files. Reads go on; uploads work again once there is room.")
    if isinstance(exc, PermissionDeniedError | UnauthenticatedError):
        return Unavailable("The bucket refuses the server's credentials. An operator must look at them.")
    return Unavailable("Files cannot be reached just now. Nothing was stored; try again.")
