"""`search_files` and `read_file`: the files of this conversation and the workspace's Files, by their text."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from turnkeep.errors import InvalidRequest
from turnkeep.ids import OrgId
from turnkeep.knowledge.file_texts import FileTexts, kind_of, unit_of
from turnkeep.knowledge.tool_base import SNIPPET_CHARS, KnowledgeTool, Search, cut, fitted, nothing, room_for
from turnkeep.model.files import File
from turnkeep.model.knowledge import FileText
from turnkeep.store.ports import FileStore, KnowledgeStore
from turnkeep.tools.ports import CallContext, Outcome, Passage, Tool
from turnkeep_client.wire.events import Source

AT_ONCE = 5
FILES_SEARCHED = 1_000
PREPARED_SECONDS = 20.0
"""How long a search waits for files that were never read before."""
NAMED = 8


class Read(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    file: Annotated[str, Meta(min_length=1, max_length=300, description="The file's name or id")]
    offset: Annotated[int, Meta(ge=0, description="Begin at this character: for the next part")] = 0


class VisibleFiles:
    """The files that a turn may read: the bag of its conversation first, then the workspace's Files."""

    def __init__(self, store: FileStore) -> None:
        self._store = store

    async def of(self, context: CallContext) -> list[File]:
        files = {file.id: file for file in await self._store.files(context.principal, context.conversation_id)}
        cursor: str | None = None
        while len(files) < FILES_SEARCHED:
            page = await self._store.saved_files(context.principal, limit=100, cursor=cursor)
            files |= {file.id: file for file in page.data}
            cursor = page.next_cursor
            if cursor is None:
                break
        return [file for file in files.values() if file.status == "ready" and file.sha256]


def search_files(store: KnowledgeStore, visible: VisibleFiles, texts: FileTexts) -> Tool:
    async def run(asked: Search, context: CallContext) -> Outcome:
        org_id = context.principal.org_id
        files = [file for file in await visible.of(context) if kind_of(file) is not None]
        if not files:
            return Outcome(result="There are no files with text in this conversation or in the workspace's Files.")
        known, notes = await _prepared(texts, org_id, files)
        by_sha = {file.sha256 or "": file for file in reversed(files)}
        readable = [sha256 for sha256 in by_sha if sha256 in known and known[sha256].problem is None]
        found = await store.search_file_texts(
            org_id, readable, asked.query, limit=AT_ONCE, offset=asked.offset, chars=room_for(context, AT_ONCE)
        )
        passages = [
            Passage(source=_source(by_sha[hit.sha256], hit.place, hit.excerpt), text=hit.excerpt) for hit in found.hits
        ]
        if not passages:
            return nothing(asked.query, notes)
        return fitted(passages, context, offset=asked.offset, next_offset=found.next_offset, notes=notes)

    return KnowledgeTool(
        "search_files",
        """Search the text of the files of this conversation and of the workspace's Files (text, Markdown, CSV, PDF,
        Word, Excel, PowerPoint) by words.""",
        Search,
        run,
    )


def read_file(visible: VisibleFiles, texts: FileTexts) -> Tool:
    async def run(asked: Read, context: CallContext) -> Outcome:
        file = _named(await visible.of(context), asked.file)
        text = (await texts.of(context.principal.org_id, [file]))[file.sha256 or ""]
        if text.problem is not None:
            raise InvalidRequest(f"{file.name} cannot be read: {text.problem}.")
        return _part(file, text.text, asked.offset, context)

    return KnowledgeTool(
        "read_file",
        """Read the text of a file of this conversation or of the workspace's Files, part by part.""",
        Read,
        run,
    )


def _part(file: File, text: str, offset: int, context: CallContext) -> Outcome:
    """The text from `offset` on, up to the last end of a paragraph, line or word within the limit."""
    if offset >= len(text):
        raise InvalidRequest(f"{file.name} has {len(text):,} characters; offset {offset:,} is behind its end.")
    end = min(len(text), offset + room_for(context, 1))
    if end < len(text):
        end = next(
            (cut_at for mark in ("\n\n", "\n", " ") if (cut_at := text.rfind(mark, offset + 1, end)) > offset), end
        )
    shown = text[offset:end]
    where = f"Characters {offset:,} to {end:,} of {len(text):,}"
    more = f" For the next part call again with offset {end}." if end < len(text) else ""
    place = f"{unit_of(file)} {text.count(chr(12), 0, offset) + 1}" if "\f" in text else None
    passage = Passage(source=_source(file, place, shown), text=shown.replace("\f", "\n"))
    return Outcome(result=f"{where}.{more} Cite it by its number, as [1].", passages=(passage,))


async def _prepared(texts: FileTexts, org_id: OrgId, files: Sequence[File]) -> tuple[dict[str, FileText], list[str]]:
    """The texts that are ready in time, and notes about the files that are left out."""
    known: dict[str, FileText] = {}
    late: list[str] = []
    try:
        async with asyncio.timeout(PREPARED_SECONDS):
            for file in files:
                known |= await texts.of(org_id, [file])
    except TimeoutError:
        late = [file.name for file in files if file.sha256 not in known]
    skipped = [
        f"{file.name} ({text.problem})" for file in files if (text := known.get(file.sha256 or "")) and text.problem
    ]
    notes = [f"Passed over: {_listed(skipped)}."] if skipped else []
    return known, notes + ([f"Not read yet, search again later: {_listed(late)}."] if late else [])


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(cut(name, 120) for name in names[:NAMED]) + more


def _named(files: Sequence[File], name: str) -> File:
    folded = name.strip().casefold()
    for file in files:
        if file.id == name or file.name.casefold() == folded:
            return file
    known = _listed([file.name for file in files]) or "none"
    raise InvalidRequest(f"There is no file {name[:60]!r} here. There are: {known}.")


def _source(file: File, place: str | None, text: str) -> Source:
    return Source(title=file.name, snippet=cut(text, SNIPPET_CHARS), file_id=file.id, place=place)
