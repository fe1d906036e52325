"""Texts of files: extracted once per content (sha256), in a confined process, and kept in the store.

Decision: docs/decisions/0801
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import BinaryIO, Literal, Protocol

import msgspec

from turnkeep.errors import NotFound
from turnkeep.ids import OrgId
from turnkeep.knowledge import extraction
from turnkeep.model.files import File
from turnkeep.model.knowledge import FileText
from turnkeep.store.ports import KnowledgeStore

Unit = Literal["page", "sheet", "slide"]
"""The name of the parts of a text, which form feeds separate."""

EXTRACTION_SECONDS = 60.0
AT_ONCE = 1
"""Extractions at the same time on one worker. They are heavy, and turns need the machine too."""
MAX_BYTES = 64 * 1024 * 1024
ANSWER_BYTES = 8 * 1024 * 1024

_OFFICE = "application/vnd.openxmlformats-officedocument."
_KINDS = {
    "application/pdf": "pdf",
    f"{_OFFICE}wordprocessingml.document": "docx",
    f"{_OFFICE}spreadsheetml.sheet": "xlsx",
    f"{_OFFICE}presentationml.presentation": "pptx",
}
_TEXTUAL = frozenset({"application/json", "application/xml", "application/yaml", "application/x-ndjson"})
_UNITS: dict[str, Unit] = {"pptx": "slide", "xlsx": "sheet"}


def kind_of(file: File) -> str | None:
    """How the text of the file is read; None for a file without text."""
    if kind := _KINDS.get(file.mime_type):
        return kind
    if file.mime_type.startswith("text/") or file.mime_type in _TEXTUAL:
        return "text"
    extension = file.name.rpartition(".")[2].lower()
    return extension if extension in extraction.PARSERS else None


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
        self._limit = asyncio.Semaphore(AT_ONCE)
        self._running: dict[tuple[OrgId, str], asyncio.Task[FileText]] = {}

    async def close(self) -> None:
        """Cancel running extractions. The next request for such a text starts over."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def of(self, org_id: OrgId, files: Sequence[File]) -> dict[str, FileText]:
        """The texts by sha256. A file that cannot be read has a `problem`. It is kept too, and not tried again."""
        known = await self._store.file_texts(org_id, [file.sha256 for file in files if file.sha256])
        for file in files:
            if file.sha256 and file.sha256 not in known:
                known[file.sha256] = await self._start_or_join(org_id, file, file.sha256)
        return known

    async def _start_or_join(self, org_id: OrgId, file: File, sha256: str) -> FileText:
        """Start the extraction, or join a running one. It goes on when this caller is cancelled, for the next one."""
        key = (org_id, sha256)
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.create_task(self._extract(org_id, file, sha256))
            task.add_done_callback(lambda _: self._running.pop(key, None))
        return await asyncio.shield(task)

    async def _extract(self, org_id: OrgId, file: File, sha256: str) -> FileText:
        kind = kind_of(file)
        if kind is None:
            return FileText(sha256=sha256, text="", problem=f"files of type {file.mime_type} hold no text")
        if file.size > MAX_BYTES:
            return FileText(sha256=sha256, text="", problem="it is too large to be read")
        try:
            async with self._limit:
                answer = await self._extracted(kind, file)
        except NotFound:
            return FileText(sha256=sha256, text="", problem="its bytes are gone")
        text = FileText(sha256=sha256, text=answer.get("text", ""), problem=answer.get("problem"))
        if "extra" not in answer:  # not kept: the file is read once the extra is installed
            await self._store.save_file_text(org_id, text, title=file.name, unit=unit_of(file))
        return text

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
