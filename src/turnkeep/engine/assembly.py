"""The assembly of what a model is sent: the history before the turn, its own rows, its files and its tools.

Attachments are read from the bag. A file never changes, so its content is cached, up to a total size. Whether the file
still exists is checked every time.
"""

import asyncio
import base64
import codecs
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct

from turnkeep.compiler import (
    Contents,
    FileContent,
    Gone,
    PictureContent,
    TextContent,
    budget_for,
    compile,
    safe_name,
    wanted,
)
from turnkeep.compiler.utterances import INLINE_CHARS, ContentKind
from turnkeep.config import EngineSettings
from turnkeep.fair_queue import Owner
from turnkeep.files.ports import Missing
from turnkeep.ids import FileId
from turnkeep.model.agents import AgentSpec
from turnkeep.model.files import File
from turnkeep.model.messages import Message
from turnkeep.model.turns import Turn
from turnkeep.providers.ports import ModelRequest, Provider, Reply, ToolOffer
from turnkeep.store.ports import FileStore
from turnkeep.tools.ports import Toolbox
from turnkeep_client.wire.blocks import Block, ToolUse

if TYPE_CHECKING:
    from turnkeep.files.bag import Bag
    from turnkeep.files.images import ImageConverter

TEXT_BYTES = 4 * INLINE_CHARS
"""Enough bytes for INLINE_CHARS characters of any kind."""
CACHED_CHARS = 32 * 1024 * 1024
READ_AT_ONCE = 4

_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


class FileReader(Protocol):
    """Reads what the files of a history hold, for the compiler. A file that is gone is reported as gone."""

    async def contents(self, rows: Sequence[Message], *, sees_images: bool) -> Contents: ...


class Assembly(Struct, frozen=True, kw_only=True):
    """What the requests of one turn are made of. `history` is the window before the turn."""

    provider: Provider
    toolbox: Toolbox
    history: Sequence[Message] = ()
    files: FileReader | None = None

    async def request(
        self, turn: Turn, rows: Sequence[Message], settings: EngineSettings, *, may_call: bool
    ) -> ModelRequest:
        """The request of the next iteration; `rows` are those of the turn so far."""
        agent = turn.snapshot.agent or AgentSpec(name="")
        model = turn.model or settings.model
        can = await self.provider.abilities(model)
        rows = (*self.history, *rows)
        contents = await self.files.contents(rows, sees_images=can.sees_images) if self.files else {}
        compiled = compile(
            rows,
            target=self.provider.target,
            open_turn=turn.id,
            budget=budget_for(agent.tokenizer, turns=settings.window_turns, chars=settings.context_chars),
            system=agent.instructions,
            contents=contents,
            sees_images=can.sees_images,
            thinking=can.thinking,
        )
        return ModelRequest(
            model=model,
            messages=compiled.messages,
            system=compiled.system,
            may_think=compiled.thinking,
            tools=self._offers(compiled.tool_names),
            may_call=may_call,
            timeout_seconds=settings.provider_timeout_seconds,
        )

    def with_own_names(self, reply: Reply) -> Reply:
        """The reply with its calls under the names by which the toolbox knows its tools."""
        own = {safe_name(spec.name): spec.name for spec in self.toolbox.specs()}
        blocks: tuple[Block, ...] = tuple(
            msgspec.structs.replace(block, name=own.get(block.name, block.name))
            if isinstance(block, ToolUse)
            else block
            for block in reply.blocks
        )
        return msgspec.structs.replace(reply, blocks=blocks)

    def _offers(self, mentioned: Sequence[str]) -> tuple[ToolOffer, ...]:
        """The toolbox, under names that every provider accepts. A tool that the history mentions stays declared, also
        when it is gone: providers refuse a request with calls of tools that it does not declare."""
        offers = {
            safe_name(spec.name): ToolOffer(
                name=safe_name(spec.name), description=spec.description, input_schema=spec.input_schema
            )
            for spec in self.toolbox.specs()
        }
        for name in mentioned:
            gone = ToolOffer(name=name, description="No longer available.", input_schema={"type": "object"})
            offers.setdefault(name, gone)
        return tuple(offers.values())


class AttachmentReader:
    """Reads attachments from the bag, with a cache: the engine's `FileReader`."""

    def __init__(self, store: FileStore, bag: "Bag", pictures: "ImageConverter") -> None:
        self._store = store
        self._bag = bag
        self._pictures = pictures
        self._reading = asyncio.Semaphore(READ_AT_ONCE)
        self._cache: OrderedDict[tuple[FileId, ContentKind], FileContent | None] = OrderedDict()
        self._chars = 0

    async def contents(self, rows: Sequence[Message], *, sees_images: bool) -> Contents:
        """The contents that the model can use. Raises Unavailable while the bucket is away: the turn is then tried
        again, because an answer without the attachments would look like one that had read them."""
        kinds = wanted(rows, sees_images=sees_images)
        if not kinds:
            return {}
        there = {file.id: file for file in await self._store.files_by_id(list(kinds))}
        found = await asyncio.gather(*(self._content(there.get(file_id), kind) for file_id, kind in kinds.items()))
        return {file_id: content for file_id, content in zip(kinds, found, strict=True) if content is not None}

    async def _content(self, file: File | None, kind: ContentKind) -> FileContent | None:
        if file is None:
            return Gone()
        place = (file.id, kind)
        if place in self._cache:
            self._cache.move_to_end(place)
            return self._cache[place]
        async with self._reading:
            try:
                content = await (self._text(file) if kind == "text" else self._picture(file))
            except Missing:
                return Gone()
        self._keep(place, content)
        return content

    async def _text(self, file: File) -> TextContent:
        raw = await self._bag.beginning(file, limit=TEXT_BYTES)
        return TextContent(decoded(raw), is_cut=len(raw) < file.size)

    async def _picture(self, file: File) -> PictureContent | None:
        from turnkeep.files.images import MAX_BYTES  # loads Pillow, which a sandbox runner does not need

        if file.size > MAX_BYTES:
            return None
        owner = Owner(file.workspace_id, file.conversation_id or "")
        picture = await self._pictures.for_model(await self._bag.beginning(file, limit=MAX_BYTES), owner)
        if picture is None:
            return None
        return PictureContent(picture.media_type, base64.b64encode(picture.data).decode())

    def _keep(self, place: tuple[FileId, ContentKind], content: FileContent | None) -> None:
        if place not in self._cache:
            self._cache[place] = content
            self._chars += _weight(content)
        while self._chars > CACHED_CHARS:
            _, oldest = self._cache.popitem(last=False)
            self._chars -= _weight(oldest)


def decoded(raw: bytes) -> str:
    """The text of a file, whose end may be cut off in the middle of a character."""
    for mark, encoding in _MARKS:
        if raw.startswith(mark):
            return raw.decode(encoding, "ignore")
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(raw)
    except UnicodeDecodeError:
        return raw.decode("cp1252", "replace")


def _weight(content: FileContent | None) -> int:
    match content:
        case TextContent():
            return len(content.text) + 100
        case PictureContent():
            return len(content.data) + 100
        case _:
            return 100
