"""Texts of files: extracted once for the same bytes and kind, in a confined process, and kept in the store.

The tenants of an org share these texts. So a text says nothing about the file that it was read from, and a file with
the wrong extension does not change what others read.

Decision: docs/decisions/0801
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import BinaryIO, Literal, Protocol

import msgspec

from turnkeep.errors import NotFound
from turnkeep.fair_queue import FairQueue, Shares, owner_of
from turnkeep.ids import FileId, OrgId
from turnkeep.knowledge import extraction
from turnkeep.model.files import File
from turnkeep.model.knowledge import FileText
from turnkeep.model.principals import Principal
from turnkeep.store.ports import KnowledgeStore

Unit = Literal["page", "sheet", "slide"]
"""The name of the parts of a text, which form feeds separate."""

EXTRACTION_SECONDS = 60.0
AT_ONCE = 2
"""Extractions at the same time on one worker, one for each org. They are heavy, and turns need the machine too."""
WAITING = 200
FAILED_SECONDS = 600.0
"""A file that could not be read is tried again after this time."""
FAILED_FILES = 1_000
"""Failures that are remembered."""
MAX_BYTES = 64 * 1024 * 1024
ANSWER_BYTES = 8 * 1024 * 1024

_OFFICE = "application/vnd.openxmlformats-officedocument."
_KINDS = {
    "application/pdf": "pdf",
    f"{_OFFICE}wordprocessingml.document": "docx",
    f"{_OFFICE}spreadsheetml.sheet": "xlsx",
    f"{_OFFICE}presentationml.presentation": "pptx",
    "text/html": "html",
}
_TEXTUAL = frozenset(
    {
        "application/json",
        "application/x-ndjson",
        "application/xml",
        "application/yaml",
        "application/x-yaml",
        "application/toml",
        "application/sql",
        "application/javascript",
        "application/x-subrip",
        "image/svg+xml",
        "message/rfc822",
    }
)
_UNITS: dict[str, Unit] = {"pptx": "slide", "xlsx": "sheet"}


def kind_of(file: File) -> str | None:
    """How the text of the file is read; None for a file without text."""
    mime_type = file.mime_type.partition(";")[0].strip().lower()
    if kind := _KINDS.get(mime_type):
        return kind
    if mime_type.startswith("text/") or mime_type in _TEXTUAL:
        return "text"
    extension = file.name.rpartition(".")[2].lower()
    return extension if extension in extraction.PARSERS else None


def text_key(file: File) -> str | None:
    """What names the text of the file: its bytes, and how they are read. None for a file without text."""
    kind = kind_of(file)
    return f"{file.sha256}.{kind}" if file.sha256 and kind else None


def unit_of(file: File) -> Unit:
    return _UNITS.get(kind_of(file) or "", "page")


class FileBytes(Protocol):
    """What this module needs of the bag: the bytes of a file."""

    def content(self, file: File, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """The bytes in pieces. Raises NotFound if they are gone, Unavailable if they cannot be reached."""


class FileTexts:
    """The text of each file, from the store or else from its bytes."""

    def __init__(self, store: KnowledgeStore, files: FileBytes) -> None:
        self._store = store
        self._files = files
        self._places = FairQueue(Shares.of(AT_ONCE, waiting=WAITING))
        self._running: dict[tuple[OrgId, str], asyncio.Task[FileText]] = {}
        self._failed: dict[tuple[OrgId, str], tuple[float, FileText]] = {}

    async def close(self) -> None:
        """Cancel running extractions. The next request for such a text starts over."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def of(self, principal: Principal, files: Sequence[File]) -> dict[FileId, FileText]:
        """The texts of these files. A file that cannot be read has a `problem`, and is tried again after a while.

        Raises QueueFull if too many files wait to be read.
        """
        org_id = principal.org_id
        keys = {file.id: text_key(file) for file in files}
        known = await self._store.file_texts(org_id, list({key for key in keys.values() if key}))
        found: dict[FileId, FileText] = {}
        for file in files:
            key = keys[file.id]
            if key is None:
                found[file.id] = FileText(key="", text="", problem=f"files of type {file.mime_type} hold no text")
                continue
            if key not in known or known[key].problem:
                known[key] = self._failure((org_id, key)) or await self._start_or_join(principal, file, key)
            found[file.id] = known[key]
        return found

    async def _start_or_join(self, principal: Principal, file: File, key: str) -> FileText:
        """Start the extraction, or join a running one. It goes on when this caller is cancelled, for the next one."""
        place = (principal.org_id, key)
        task = self._running.get(place)
        if task is None:
            task = self._running[place] = asyncio.create_task(self._extract(principal, file, key))
            task.add_done_callback(lambda _: self._running.pop(place, None))
        return await asyncio.shield(task)

    async def _extract(self, principal: Principal, file: File, key: str) -> FileText:
        if file.size > MAX_BYTES:
            return FileText(key=key, text="", problem="it is too large to be read")
        try:
            async with self._places.place(owner_of(principal)):
                answer = await self._extracted(kind_of(file) or "", file)
        except NotFound:
            return FileText(key=key, text="", problem="its bytes are gone")
        text = FileText(key=key, text=answer.get("text", ""), problem=answer.get("problem"))
        if text.problem is None:
            await self._store.save_file_text(principal.org_id, text, unit=unit_of(file))
        elif "extra" not in answer:  # else the file is read once the extra is installed
            self._remember((principal.org_id, key), text)
        return text

    def _failure(self, place: tuple[OrgId, str]) -> FileText | None:
        """How reading this failed not long ago."""
        until, text = self._failed.get(place, (0.0, None))
        return text if time.monotonic() < until else None

    def _remember(self, place: tuple[OrgId, str], text: FileText) -> None:
        self._failed.pop(place, None)
        self._failed[place] = (time.monotonic() + FAILED_SECONDS, text)
        while len(self._failed) > FAILED_FILES:
            del self._failed[next(iter(self._failed))]

    async def _extracted(self, kind: str, file: File) -> dict[str, str]:
        with tempfile.TemporaryFile() as bytes_:
            async for chunk in self._files.content(file):
                await asyncio.to_thread(bytes_.write, chunk)
            bytes_.seek(0)
            return await run_worker(kind, bytes_)


async def run_worker(kind: str, file: BinaryIO, *, seconds: float = EXTRACTION_SECONDS) -> dict[str, str]:
    """The answer of the extraction process; a `problem` if it was killed or did not answer in time."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-m",
        extraction.__name__,
        kind,
        stdin=file,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
        cwd="/",
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(seconds):
            raw = await _read(process.stdout)
            await process.wait()
    except TimeoutError:
        return {"problem": f"reading it took over {seconds:g} seconds"}
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    try:
        return msgspec.json.decode(raw, type=dict[str, str])
    except msgspec.DecodeError:
        return {"problem": "reading it takes too much memory or time"}


async def _read(stream: asyncio.StreamReader) -> bytes:
    """The whole output, or nothing if it is over the limit."""
    pieces: list[bytes] = []
    size = 0
    while piece := await stream.read(65_536):
        size += len(piece)
        if size > ANSWER_BYTES:
            return b""
        pieces.append(piece)
    return b"".join(pieces)
