"""Texts of files: extracted once for the same bytes, in a process with limits, and kept in the store."""

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
from turnkeep.model.files import File
from turnkeep.model.knowledge import FileText
from turnkeep.store.ports import KnowledgeStore

Unit = Literal["page", "sheet", "slide"]
"""What the parts of a text are called that form feeds divide."""

EXTRACTION_SECONDS = 60.0
AT_ONCE = 1
"""Extractions of one server. They are heavy, and turns have the machine too."""
MAX_BYTES = 64 * 1024 * 1024
ANSWER_BYTES = 8 * 1024 * 1024

_OFFICE = "application/vnd.openxmlformats-officedocument."
_KINDS = {
    "application/pdf": "pdf",
    f"{_OFFICE}wordprocessingml.document": "docx",
    f"{_OFFICE}spreadsheetml.sheet": "xlsx",
    f"{_OFFICE}presentationml.presentation": "pptx",
}
_EXTENSIONS = {"pdf": "pdf", "docx": "docx", "xlsx": "xlsx", "pptx": "pptx"}
_TEXTUAL = frozenset({"application/json", "application/xml", "application/yaml", "application/x-ndjson"})
_UNITS: dict[str, Unit] = {"pptx": "slide", "xlsx": "sheet"}


def kind_of(file: File) -> str | None:
    """How its text is read; None for what has none."""
    if kind := _KINDS.get(file.mime_type):
        return kind
    if file.mime_type.startswith("text/") or file.mime_type in _TEXTUAL:
        return "text"
    return _EXTENSIONS.get(file.name.rpartition(".")[2].lower())


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
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._under_way: dict[tuple[OrgId, str], asyncio.Task[FileText]] = {}

    async def close(self) -> None:
        """End what is under way. It is begun again when somebody asks."""
        for task in self._under_way.values():
            task.cancel()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    async def of(self, org_id: OrgId, files: Sequence[File]) -> dict[str, FileText]:
        """The texts by sha256. Of each that cannot be read it says why; that is kept too, and not tried again."""
        known = await self._store.file_texts(org_id, [file.sha256 for file in files if file.sha256])
        for file in files:
            if file.sha256 and file.sha256 not in known:
                known[file.sha256] = await self._begun(org_id, file, file.sha256)
        return known

    async def _begun(self, org_id: OrgId, file: File, sha256: str) -> FileText:
        """The extraction goes on when its caller loses patience, so that the next one finds its text."""
        key = (org_id, sha256)
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = asyncio.create_task(self._extract(org_id, file, sha256))
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        return await asyncio.shield(task)

    async def _extract(self, org_id: OrgId, file: File, sha256: str) -> FileText:
        kind = kind_of(file)
        if kind is None:
            return FileText(sha256=sha256, text="", problem=f"files of type {file.mime_type} hold no text")
        if file.size > MAX_BYTES:
            return FileText(sha256=sha256, text="", problem="it is too large to be read")
        try:
            async with self._turn:
                answer = await self._extracted(kind, file)
        except NotFound:
            return FileText(sha256=sha256, text="", problem="its bytes are gone")
        text = FileText(sha256=sha256, text=answer.get("text", ""), problem=answer.get("problem"))
        if "extra" not in answer:  # once the extra is installed, the file is read
            await self._store.save_file_text(org_id, text, title=file.name, unit=unit_of(file))
        return text

    async def _extracted(self, kind: str, file: File) -> dict[str, str]:
        with tempfile.TemporaryFile() as bytes_:
            async for chunk in self._files.content(file):
                await asyncio.to_thread(bytes_.write, chunk)
            bytes_.seek(0)
            return await run_worker(kind, bytes_)


async def run_worker(kind: str, file: BinaryIO, *, seconds: float = EXTRACTION_SECONDS) -> dict[str, str]:
    """What the extraction answers, or what became of it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-m",
        "turnkeep.knowledge.extraction",
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
    """All of it, up to a limit beyond which it is no answer."""
    pieces: list[bytes] = []
    size = 0
    while piece := await stream.read(65_536):
        size += len(piece)
        if size > ANSWER_BYTES:
            return b""
        pieces.append(piece)
    return b"".join(pieces)
