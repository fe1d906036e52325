"""The assembly of what a model is sent: the history before the turn, its own rows, its files and its tools.

The history is read from its newest turn until the budget is full, or until the turn with which the last request began,
which every turn reports. It is compiled once, and then kept as bytes: for the other requests of the turn, and in a
cache of the worker for the next turn of the conversation. The id of the last settled turn names a history. Messages
can be removed from a conversation, which takes an ordinal: a history is used only by the turn with the next ordinal, so
an entry of the cache is never out of date. The last turn itself is encoded when the next one
begins: many conversations have no next one.

Attachments are read from the bag, and the texts of documents by `knowledge`. A file never changes, so its content is
cached, up to a total size. Whether the file still exists is checked every time.

Decision: docs/decisions/0301
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
    Unread,
    budget_for,
    compile,
    compile_after,
    encode_turns,
    reasoning_family,
    safe_name,
    wanted,
)
from turnkeep.compiler.utterances import ContentKind
from turnkeep.compiler.window import Measure
from turnkeep.config import EngineSettings
from turnkeep.errors import InvalidRequest, NotFound, QueueFull, Unavailable
from turnkeep.fair_queue import Owner
from turnkeep.files.ports import Missing
from turnkeep.ids import ConversationId, FileId, TurnId
from turnkeep.model.agents import AgentSpec
from turnkeep.model.files import File
from turnkeep.model.messages import Message
from turnkeep.model.principals import Principal
from turnkeep.model.sampling import OutputFormat, Sampling
from turnkeep.model.turns import Turn, TurnReport, WindowCut
from turnkeep.providers.ports import Abilities, ModelRequest, Provider, Reply, ToolOffer
from turnkeep.store.ports import FileStore, TurnStore
from turnkeep.tools.ports import Toolbox
from turnkeep_client.wire.blocks import Block, Finish, Reading, Text, ToolResult, ToolUse

if TYPE_CHECKING:
    from turnkeep.files.bag import Bag
    from turnkeep.files.images import ImageConverter
    from turnkeep.knowledge.file_texts import FileTexts

TEXT_CHARS = 1_000_000
"""Maximum length of the text of a file. The texts of documents have the same limit."""
CACHED_CHARS = 32 * 1024 * 1024
CACHED_BYTES = 32 * 1024 * 1024
ROW_BYTES = 500
"""What a row takes in memory beside its texts."""
READ_AT_ONCE = 4
ROWS_AT_ONCE = 10
"""Rows of a history whose files are read together."""
FIRST_TURNS = 30
"""How many turns of a history are read at first. Most conversations are shorter, so they take one statement."""
LEAST_TURNS, MOST_TURNS = 10, 1_000
"""How many further turns are read at once, at least and at most."""

_NO_AGENT = AgentSpec(name="")
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


class FilesUnavailable(Unavailable):
    """The files that a model shall be shown cannot be read just now."""


class FileReader(Protocol):
    """Reads what the files of a history hold, for the compiler. A file that is gone is reported as gone.

    Raises FilesUnavailable while the bucket is away: an answer without the attachments would look like one that had
    read them.
    """

    async def contents(self, rows: Sequence[Message], principal: Principal, *, sees_images: bool) -> Contents: ...

    async def present(self, file_ids: Sequence[FileId], principal: Principal) -> set[FileId]:
        """Those of the files that exist in the principal's workspace."""

    async def forget_erased(self) -> None:
        """Drop what is kept of files that are not in the store any more."""


class ReadTurns(Struct, frozen=True, kw_only=True):
    """Rows of the turns before a turn, oldest first; with `is_cut` there are others before them."""

    rows: Sequence[Message]
    is_cut: bool = False


class PastTurns:
    """The turns before one turn, as rows and encoded. They are read when they are needed."""

    def __init__(
        self, read: Callable[[Budget], Awaitable[ReadTurns]], *, encoded: EncodedHistory | None = None
    ) -> None:
        self.encoded = encoded
        self.refused: Encoding | None = None
        """An encoding that is not possible for these turns."""
        self._read = read
        self._found: tuple[Budget, ReadTurns] | None = None

    async def turns(self, budget: Budget) -> ReadTurns:
        """What a request within this budget can show of them, and perhaps more."""
        if self._found is None or self._found[0] != budget:
            self._found = budget, await self._read(budget)
        return self._found[1]


def past_of(rows: Sequence[Message]) -> PastTurns:
    """The turns of these rows."""

    async def read(_: Budget) -> ReadTurns:
        return ReadTurns(rows=rows)

    return PastTurns(read)


class GrownHistory(Struct, frozen=True, kw_only=True):
    """The history after a turn: the turns before it, encoded, and the rows of the turn itself."""

    past: EncodedHistory
    rows: tuple[Message, ...]
    first_turn: TurnId | None
    """The turn with which the last request began."""
    contents: Contents = {}
    """Those of the files of the turn."""
    ordinal: int = 0
    """That of the turn."""

    def encoded(self) -> EncodedHistory | None:
        """All of it, from the first turn of the last request on. None if that is not possible."""
        return self.past.then(self.rows, first_turn=self.first_turn, contents=self.contents)

    @property
    def byte_count(self) -> int:
        """What it takes in memory. The words of a row are there twice: for the model, and for readers."""
        files = sum(map(_weight, self.contents.values()))
        return self.past.byte_count + ROW_BYTES * len(self.rows) + len(msgspec.json.encode(self.rows)) + files


async def read_window(
    store: TurnStore,
    conversation_id: ConversationId,
    budget: Budget,
    *,
    without: TurnId | None = None,
    before: int | None = None,
) -> ReadTurns:
    """What a request within the budget can show of a conversation, `without` one turn; with `before`, of the turns that
    have smaller ordinals.

    Turns are read from the newest on, until they exceed the budget or the last cut is reached. So the cost does not
    depend on the length of the conversation.
    """
    pages: list[Sequence[Message]] = []
    first: TurnId | None = None
    turns, size, count = FIRST_TURNS, 0, 0
    while True:
        page = await store.window(conversation_id, turns=turns, before=before)
        rows = [row for row in page.rows if row.turn_id != without]
        if page.is_cut:
            rows = [row for row in rows if row.turn_id != page.rows[0].turn_id]
        if not pages and page.cut is not None and page.cut.size == budget.size:
            first = page.cut.first
        start = next((place for place, row in enumerate(rows) if row.turn_id == first), None)
        pages.append(rows if start is None else rows[start:])
        size += _least_size(rows, budget.measure)
        count += turns
        is_last = page.first is None or (page.is_cut and not rows)
        if is_last or start is not None or size > budget.size:
            is_cut = page.first is not None or bool(start)
            return ReadTurns(rows=[row for found in reversed(pages) for row in found], is_cut=is_cut)
        assert page.first is not None
        before = page.first + 1 if page.is_cut else page.first
        average = size // count + 1
        turns = min(max(LEAST_TURNS, (budget.size - size) // average), MOST_TURNS)


def _least_size(rows: Sequence[Message], measure: Measure) -> int:
    """What these rows take of a budget at least: their texts and tool results, without files and reasoning."""
    size = 0
    for row in rows:
        for block in row.blocks:
            if isinstance(block, Text):
                size += measure(block.text)
            elif isinstance(block, ToolResult):
                size += measure(block.content)
    return size


async def read_turns_before(store: TurnStore, principal: Principal, turn: Turn, budget: Budget) -> Sequence[Message]:
    """The rows of the turns that a request of this turn could show, oldest first, also if the turn is on another branch
    than the visible one. Branches meet in a turn that is visible, and the turns before that are read together."""
    rows: list[Message] = []
    first, parent_id = turn, turn.parent_turn_id
    while not first.active and parent_id is not None and _least_size(rows, budget.measure) <= budget.size:
        first = await store.turn(principal, parent_id)
        rows = [*await store.turn_rows(first.id), *rows]
        parent_id = first.parent_turn_id
    if parent_id is None or not first.active:
        return rows
    return [*(await read_window(store, turn.conversation_id, budget, before=first.ordinal)).rows, *rows]


def rows_before_call(turn: Turn, rows: Sequence[Message], iteration: int | None) -> Sequence[Message]:
    """The rows of the turn that this call of the model was sent; of the last call, without an iteration.

    Raises InvalidRequest if the turn has no such call.
    """
    said = [row for row in rows if row.role == "assistant" and row.internal]
    calls = len(said) + (not turn.is_settled or any(row.role == "assistant" and not row.internal for row in rows))
    calls = max(calls, 1 + len(said) if turn.report.last_call is not None else 0)
    number = calls - 1 if iteration is None else iteration
    if not turn.snapshot.opening_rounds <= number < calls:
        raise InvalidRequest(f"This turn has called its model {calls - turn.snapshot.opening_rounds} times.")
    end = said[number].turn_sequence if number < len(said) else rows[-1].turn_sequence + 1
    return [row for row in rows if row.turn_sequence < end and (row.role != "assistant" or row.internal)]


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

    def take_before(self, turn: Turn) -> GrownHistory | None:
        """The history before this turn. None if something has come between: perhaps a message was removed."""
        history = None if turn.parent_turn_id is None else self.take(turn.parent_turn_id)
        return history if history is not None and history.ordinal + 1 == turn.ordinal else None

    def keep(self, turn_id: TurnId, history: GrownHistory) -> None:
        self.take(turn_id)
        size = history.byte_count
        self._histories[turn_id] = (size, history)
        self._bytes += size
        while self._bytes > self._limit:
            self.take(next(iter(self._histories)))

    def forget(self) -> None:
        """Drop all of them."""
        self._histories.clear()
        self._bytes = 0


class LastRequest(Struct, frozen=True, kw_only=True):
    """What the last request of a turn showed: from which turn on, whether there are turns before that one, and how the
    files of the turn were given to the model."""

    budget: Budget
    first_turn: TurnId | None
    is_cut: bool
    readings: dict[FileId, Reading]
    contents: Contents


class Assembly:
    """What the requests of one turn are made of."""

    def __init__(
        self, *, provider: Provider, toolbox: Toolbox, past: PastTurns, files: FileReader | None = None
    ) -> None:
        self.provider = provider
        self.toolbox = toolbox
        self._past = past
        self._files = files
        self._last: LastRequest | None = None

    async def request(
        self, turn: Turn, rows: Sequence[Message], settings: EngineSettings, *, may_call: bool
    ) -> ModelRequest:
        """The request of the next iteration; `rows` are those of the turn so far."""
        agent = turn.snapshot.agent or _NO_AGENT
        model = turn.model or settings.model
        can = await self.provider.abilities(model)
        sampling = sampling_of(turn, rows)
        if sampling.excludes_reasoning:
            can = msgspec.structs.replace(can, thinking="off")
        compiled = await self._compile(turn, rows, budget_of(agent, settings), can)
        return ModelRequest(
            model=model,
            messages=compiled.messages,
            settled=compiled.settled,
            system=compiled.system,
            may_think=compiled.thinking,
            tools=offers_of(self.toolbox, compiled.tool_names),
            may_call=may_call and sampling.tool_choice != "none",
            sampling=sampling if "output" in can.options else msgspec.structs.replace(sampling, output=None),
            timeout_seconds=settings.provider_timeout_seconds,
        )

    async def _compile(self, turn: Turn, rows: Sequence[Message], budget: Budget, can: Abilities) -> Compiled:
        contents = await self._contents(turn, rows, can)
        encoding = Encoding(
            target=self.provider.target,
            reasoning_of=reasoning_family(self.provider.target, can.thinking),
            sees_images=can.sees_images,
            budget=budget,
        )
        history = await self._encoded(turn, encoding, can)
        instructions = instructions_of(turn, is_bound_to_output="output" in can.options)
        compiled: Compiled | None = None
        is_cut = False
        if history is not None:
            is_cut = history.is_cut
            compiled = compile_after(
                history, rows, open_turn=turn.id, system=instructions, contents=contents, thinking=can.thinking
            )
        if compiled is None:
            past = await self._past.turns(budget)
            is_cut = past.is_cut
            all_contents = {**await self._past_contents(turn, past.rows, budget, can), **contents}
            compiled = compile(
                (*past.rows, *rows),
                target=self.provider.target,
                open_turn=turn.id,
                budget=budget,
                system=instructions,
                contents=all_contents,
                sees_images=can.sees_images,
                thinking=can.thinking,
            )
        self._last = LastRequest(
            budget=budget,
            first_turn=compiled.first_turn,
            is_cut=is_cut or compiled.turns_dropped > 0,
            readings=compiled.readings,
            contents=contents,
        )
        return compiled

    async def _encoded(self, turn: Turn, encoding: Encoding, can: Abilities) -> EncodedHistory | None:
        """The turns before this one in that encoding, if each of them can be encoded."""
        past = self._past
        if past.refused == encoding:
            return None
        if (
            past.encoded is None
            or past.encoded.encoding != encoding
            or not await self._has_files_of(turn, past.encoded)
        ):
            found = await past.turns(encoding.budget)
            contents = await self._past_contents(turn, found.rows, encoding.budget, can)
            past.encoded = encode_turns(found.rows, encoding, contents=contents, is_cut=found.is_cut)
            if past.encoded is None:
                past.refused = encoding
        return past.encoded

    async def _has_files_of(self, turn: Turn, history: EncodedHistory) -> bool:
        """Whether the same files exist as when the history was encoded."""
        principal = turn.snapshot.principal
        if not history.files or self._files is None or principal is None:
            return True
        present = await self._files.present(list(history.files), principal)
        return all((file_id in present) == was_there for file_id, was_there in history.files.items())

    def history_with(self, rows: Sequence[Message], ordinal: int) -> GrownHistory | None:
        """The history for the next turn: the past, and this turn with all of its rows. None if the past cannot be
        encoded, or if no model was asked in this turn."""
        last = self._last
        if self._past.encoded is None or last is None:
            return None
        return GrownHistory(
            past=self._past.encoded,
            rows=tuple(rows),
            first_turn=last.first_turn,
            contents=last.contents,
            ordinal=ordinal,
        )

    def report(self, finish: Finish) -> TurnReport:
        """What the turn reports of its last request."""
        last = self._last
        if last is None:
            return TurnReport(finish=finish)
        cut: WindowCut | None = None
        if last.is_cut and last.first_turn is not None:
            cut = WindowCut(first=last.first_turn, size=last.budget.size)
        return TurnReport(finish=finish, readings=last.readings, cut=cut)

    async def _past_contents(self, turn: Turn, rows: Sequence[Message], budget: Budget, can: Abilities) -> Contents:
        """The contents of the files of earlier turns, from the newest on. Once their texts exceed the budget, the turns
        before are not shown, and their files are not read."""
        found: dict[FileId, FileContent] = {}
        if not wanted(rows, sees_images=can.sees_images):
            return found
        size = 0
        with_files = [row for row in reversed(rows) if wanted([row], sees_images=can.sees_images)]
        for start in range(0, len(with_files), ROWS_AT_ONCE):
            batch = with_files[start : start + ROWS_AT_ONCE]
            found.update(await self._contents(turn, batch, can))
            for row in batch:
                contents = [found.get(file_id) for file_id in wanted([row], sees_images=can.sees_images)]
                texts = [content.text for content in contents if isinstance(content, TextContent)]
                size += min(budget.kept, sum(map(budget.measure, texts)))
            if size > budget.size:
                break
        return found

    async def _contents(self, turn: Turn, rows: Sequence[Message], can: Abilities) -> Contents:
        principal = turn.snapshot.principal
        if self._files is None or principal is None:
            return {}
        return await self._files.contents(rows, principal, sees_images=can.sees_images)

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


def offers_of(toolbox: Toolbox, mentioned: Sequence[str]) -> tuple[ToolOffer, ...]:
    """The toolbox, under names that every provider accepts. A tool that the history mentions stays declared, also when
    it is gone: providers refuse a request with calls of tools that it does not declare."""
    offers = {
        safe_name(spec.name): ToolOffer(
            name=safe_name(spec.name), description=spec.description, input_schema=spec.input_schema
        )
        for spec in toolbox.specs()
    }
    for name in mentioned:
        gone = ToolOffer(name=name, description="No longer available.", input_schema={"type": "object"})
        offers.setdefault(name, gone)
    return tuple(offers.values())


def sampling_of(turn: Turn, rows: Sequence[Message]) -> Sampling:
    """The options for the next call of the model. A tool that must be called is called first, and not again."""
    sampling = turn.snapshot.sampling
    if sampling.temperature is None and turn.snapshot.temperature is not None:
        sampling = msgspec.structs.replace(sampling, temperature=turn.snapshot.temperature)
    spoken = sum(row.role == "assistant" for row in rows)
    if not sampling.must_call or spoken <= turn.snapshot.opening_rounds:
        return sampling
    return msgspec.structs.replace(sampling, tool=None, tool_choice="auto")


def instructions_of(turn: Turn, *, is_bound_to_output: bool) -> str:
    """What stands before the conversation: the agent's instructions, then those of the conversation and of the
    caller, then the form of the output, if the provider cannot be bound to it."""
    snapshot = turn.snapshot
    told = [standing_instructions(snapshot.agent, snapshot.conversation_instructions), turn.instructions]
    if (output := snapshot.sampling.output) is not None and not is_bound_to_output:
        told.append(_told_format(output))
    return "\n\n".join(filter(None, told))


def standing_instructions(agent: AgentSpec | None, of_conversation: str | None) -> str:
    """The instructions that hold for every turn of a conversation: the agent's, then the conversation's own."""
    return "\n\n".join(filter(None, ["" if agent is None else agent.instructions, of_conversation]))


def _told_format(output: OutputFormat) -> str:
    if output.schema is None:
        return "Answer with one JSON object, and nothing else: no words before or after it, and no code fence."
    schema = msgspec.json.encode(output.schema).decode()
    return (
        "Answer with one JSON document that fits this JSON schema, and nothing else: no words before or after it, and "
        f"no code fence. The schema: {schema}"
    )


def budget_of(agent: AgentSpec, settings: EngineSettings) -> Budget:
    """The budget for the requests of a chat with this agent."""
    return budget_for(agent.tokenizer, chars=settings.context_chars)


class AttachmentReader:
    """Reads attachments from the bag, with a cache: the engine's `FileReader`."""

    def __init__(self, store: FileStore, bag: "Bag", texts: "FileTexts", pictures: "ImageConverter") -> None:
        self._store = store
        self._bag = bag
        self._texts = texts
        self._pictures = pictures
        self._reading = asyncio.Semaphore(READ_AT_ONCE)
        self._cache: OrderedDict[tuple[FileId, ContentKind], FileContent | None] = OrderedDict()
        self._chars = 0

    async def contents(self, rows: Sequence[Message], principal: Principal, *, sees_images: bool) -> Contents:
        """The contents that the model can use."""
        kinds = wanted(rows, sees_images=sees_images)
        if not kinds:
            return {}
        there = {file.id: file for file in await self._store.files_by_id(principal, list(kinds))}
        found = await asyncio.gather(
            *(self._content(there.get(file_id), kind, principal) for file_id, kind in kinds.items())
        )
        return {file_id: content for file_id, content in zip(kinds, found, strict=True) if content is not None}

    async def present(self, file_ids: Sequence[FileId], principal: Principal) -> set[FileId]:
        return {file.id for file in await self._store.files_by_id(principal, list(file_ids))}

    async def forget_erased(self) -> None:
        held = {file_id for file_id, _ in self._cache}
        gone = held - await self._store.ready_files(sorted(held))
        for place in [place for place in self._cache if place[0] in gone]:
            self._chars -= _weight(self._cache.pop(place))

    async def _content(self, file: File | None, kind: ContentKind, principal: Principal) -> FileContent | None:
        if file is None:
            return Gone()
        place = (file.id, kind)
        if place in self._cache:
            self._cache.move_to_end(place)
            return self._cache[place]
        async with self._reading:
            try:
                content = await (self._text(file, principal) if kind == "text" else self._picture(file))
            except (Missing, NotFound):
                return Gone()
            except (Unavailable, QueueFull) as exc:
                raise FilesUnavailable("The files of this conversation cannot be read just now.") from exc
        if kind == "picture" or not isinstance(content, Unread):  # a text may be read on another try
            self._keep(place, content)
        return content

    async def _text(self, file: File, principal: Principal) -> TextContent | Unread | None:
        from turnkeep.knowledge.file_texts import kind_of  # a sandbox runner reads no files here

        match kind_of(file):
            case None:
                return None
            case "text":
                raw = await self._bag.beginning(file, limit=4 * TEXT_CHARS)
                text = decoded(raw)
                return TextContent(text[:TEXT_CHARS], is_cut=len(text) > TEXT_CHARS or len(raw) < file.size)
            case _:
                text_of_file = (await self._texts.of(principal, [file]))[file.id]
                if text_of_file.problem is not None:
                    return Unread(text_of_file.problem)
                return TextContent(text_of_file.text, is_cut=len(text_of_file.text) >= TEXT_CHARS)

    async def _picture(self, file: File) -> PictureContent | Unread:
        from turnkeep.files.images import MAX_BYTES  # a sandbox runner reads no files here

        if file.size > MAX_BYTES:
            return Unread("it is too large")
        owner = Owner(file.workspace_id, file.conversation_id or "")
        picture = await self._pictures.for_model(await self._bag.beginning(file, limit=MAX_BYTES), owner)
        if picture is None:
            return Unread("it is broken, or has too many pixels")
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
