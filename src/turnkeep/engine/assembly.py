"""The assembly of what a model is sent: the history before the turn, its own rows, its files and its tools.

The history is read and compiled once, and then kept as bytes: for the other requests of the turn, and in a cache of the
worker for the next turn of the conversation. The id of the last settled turn names a history, and a history never
changes, so an entry of the cache is never out of date. The last turn itself is encoded when the next one begins: many
conversations have no next one.

Attachments are read from the bag. A file never changes, so its content is cached, up to a total size. Whether the file
still exists is checked every time.
"""

import asyncio
import base64
import codecs
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct

from turnkeep.compiler import (
    Budget,
    Compiled,
    Contents,
    EncodedHistory,
    Encoding,
    FileContent,
    Gone,
    PictureContent,
    TextContent,
    budget_for,
    compile,
    compile_after,
    encode_turns,
    reasoning_family,
    safe_name,
    wanted,
)
from turnkeep.compiler.utterances import INLINE_CHARS, ContentKind
from turnkeep.config import EngineSettings
from turnkeep.errors import Unavailable
from turnkeep.fair_queue import Owner
from turnkeep.files.ports import Missing
from turnkeep.ids import FileId, TurnId
from turnkeep.model.agents import AgentSpec
from turnkeep.model.files import File
from turnkeep.model.messages import Message
from turnkeep.model.turns import Turn
from turnkeep.providers.ports import Abilities, ModelRequest, Provider, Reply, ToolOffer
from turnkeep.store.commands import ROW_LIMIT
from turnkeep.store.ports import FileStore, TurnStore
from turnkeep.tools.ports import Toolbox
from turnkeep_client.wire.blocks import Block, ToolUse

if TYPE_CHECKING:
    from turnkeep.files.bag import Bag
    from turnkeep.files.images import ImageConverter

TEXT_BYTES = 4 * INLINE_CHARS
"""Enough bytes for INLINE_CHARS characters of any kind."""
CACHED_CHARS = 32 * 1024 * 1024
CACHED_BYTES = 32 * 1024 * 1024
ROW_BYTES = 500
"""What a row takes in memory beside its texts."""
READ_AT_ONCE = 4

_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


class FilesUnavailable(Unavailable):
    """The files that a model shall be shown cannot be read just now."""


class FileReader(Protocol):
    """Reads what the files of a history hold, for the compiler. A file that is gone is reported as gone.

    Raises FilesUnavailable while the bucket is away: an answer without the attachments would look like one that had
    read them.
    """

    async def contents(self, rows: Sequence[Message], *, sees_images: bool) -> Contents: ...

    async def forget_erased(self) -> None:
        """Drop what is kept of files that are not in the store any more."""


class PastTurns:
    """The turns before one turn: encoded if that is possible, else as rows. They are read when they are needed."""

    def __init__(
        self, read: Callable[[], Awaitable[Sequence[Message]]], *, encoded: EncodedHistory | None = None
    ) -> None:
        self.encoded = encoded
        self._read = read
        self._rows: Sequence[Message] | None = None

    async def rows(self) -> Sequence[Message]:
        if self._rows is None:
            self._rows = await self._read()
        return self._rows

    async def encoded_for(self, encoding: Encoding) -> EncodedHistory | None:
        """The turns in this encoding, if each of them can be encoded."""
        if self.encoded is None or self.encoded.encoding != encoding:
            self.encoded = encode_turns(await self.rows(), encoding)
        return self.encoded


def past_of(rows: Sequence[Message]) -> PastTurns:
    """The turns of these rows."""

    async def read() -> Sequence[Message]:
        return rows

    return PastTurns(read)


class GrownHistory(Struct, frozen=True, kw_only=True):
    """The history after a turn: the turns before it, encoded, and the rows of the turn itself."""

    past: EncodedHistory
    rows: tuple[Message, ...]
    budget: Budget

    def encoded(self) -> EncodedHistory | None:
        """All of it, without turns that a request within the budget never shows. None if that is not possible."""
        return self.past.then(self.rows, budget=self.budget, row_limit=ROW_LIMIT)

    @property
    def byte_count(self) -> int:
        """What it takes in memory. The words of a row are there twice: for the model, and for readers."""
        return self.past.byte_count + ROW_BYTES * len(self.rows) + len(msgspec.json.encode(self.rows))


class HistoryCache:
    """Histories by the last turn in them, up to a total size. The one that was not used for longest goes first.

    A history replaces that of the turn before, because a conversation nearly always goes on from its last turn.
    """

    def __init__(self, limit: int = CACHED_BYTES) -> None:
        self._limit = limit
        self._histories: OrderedDict[TurnId, tuple[int, GrownHistory]] = OrderedDict()
        self._bytes = 0

    def take(self, turn_id: TurnId) -> GrownHistory | None:
        """The history that ends with this turn. It is not kept any longer: the turn that takes it will keep its own."""
        size, history = self._histories.pop(turn_id, (0, None))
        self._bytes -= size
        return history

    def keep(self, turn_id: TurnId, history: GrownHistory) -> None:
        self.take(turn_id)
        size = history.byte_count
        self._histories[turn_id] = (size, history)
        self._bytes += size
        while self._bytes > self._limit:
            self.take(next(iter(self._histories)))

    async def forget_erased(self, store: TurnStore) -> None:
        """Drop the histories of turns that are not in the store any more."""
        held = list(self._histories)
        there = await store.last_seqs(held)
        for turn_id in held:
            if turn_id not in there:
                self.take(turn_id)


class Assembly(Struct, frozen=True, kw_only=True):
    """What the requests of one turn are made of."""

    provider: Provider
    toolbox: Toolbox
    past: PastTurns
    files: FileReader | None = None

    async def request(
        self, turn: Turn, rows: Sequence[Message], settings: EngineSettings, *, may_call: bool
    ) -> ModelRequest:
        """The request of the next iteration; `rows` are those of the turn so far."""
        agent = turn.snapshot.agent or AgentSpec(name="")
        model = turn.model or settings.model
        can = await self.provider.abilities(model)
        budget = _budget(agent, settings)
        compiled = await self._compile_encoded(turn.id, rows, budget, agent.instructions, can)
        if compiled is None:
            rows = (*await self.past.rows(), *rows)
            compiled = compile(
                rows,
                target=self.provider.target,
                open_turn=turn.id,
                budget=budget,
                system=agent.instructions,
                contents=await self._contents(rows, can),
                sees_images=can.sees_images,
                thinking=can.thinking,
            )
        return ModelRequest(
            model=model,
            messages=compiled.messages,
            settled=compiled.settled,
            system=compiled.system,
            may_think=compiled.thinking,
            tools=self._offers(compiled.tool_names),
            may_call=may_call,
            timeout_seconds=settings.provider_timeout_seconds,
        )

    async def _compile_encoded(
        self, turn_id: TurnId, rows: Sequence[Message], budget: Budget, instructions: str, can: Abilities
    ) -> Compiled | None:
        target = self.provider.target
        encoding = Encoding(
            target=target,
            reasoning_of=reasoning_family(target, can.thinking),
            sees_images=can.sees_images,
            measure=budget.measure,
            image=budget.image,
        )
        history = await self.past.encoded_for(encoding)
        if history is None:
            return None
        return compile_after(
            history,
            rows,
            open_turn=turn_id,
            budget=budget,
            system=instructions,
            contents=await self._contents(rows, can),
            thinking=can.thinking,
        )

    def history_with(self, turn: Turn, rows: Sequence[Message], settings: EngineSettings) -> GrownHistory | None:
        """The history for the next turn: the past, and this turn with all of its rows. None if the past cannot be
        encoded, or if no model was asked in this turn. `settings` are those of the server, which are at least as wide
        as those of any agent."""
        if self.past.encoded is None:
            return None
        budget = _budget(turn.snapshot.agent or AgentSpec(name=""), settings)
        return GrownHistory(past=self.past.encoded, rows=tuple(rows), budget=budget)

    async def _contents(self, rows: Sequence[Message], can: Abilities) -> Contents:
        return {} if self.files is None else await self.files.contents(rows, sees_images=can.sees_images)

    def with_own_names(self, reply: Reply) -> Reply:
        """The reply with its calls under the names by which the toolbox knows its tools."""
        if not any(isinstance(block, ToolUse) for block in reply.blocks):
            return reply
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


def _budget(agent: AgentSpec, settings: EngineSettings) -> Budget:
    return budget_for(agent.tokenizer, turns=settings.window_turns, chars=settings.context_chars)


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
        """The contents that the model can use."""
        kinds = wanted(rows, sees_images=sees_images)
        if not kinds:
            return {}
        there = {file.id: file for file in await self._store.files_by_id(list(kinds))}
        found = await asyncio.gather(*(self._content(there.get(file_id), kind) for file_id, kind in kinds.items()))
        return {file_id: content for file_id, content in zip(kinds, found, strict=True) if content is not None}

    async def forget_erased(self) -> None:
        held = {file_id for file_id, _ in self._cache}
        gone = held - {file.id for file in await self._store.files_by_id(sorted(held))}
        for place in [place for place in self._cache if place[0] in gone]:
            self._chars -= _weight(self._cache.pop(place))

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
            except Unavailable as exc:
                raise FilesUnavailable("The files of this conversation cannot be read just now.") from exc
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
