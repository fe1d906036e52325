"""The native tools over knowledge: pages, tables, conversations and files.

`knowledge_tools` lists them. They share checked arguments, whole hits within the limit of a result, and sources with
numbers that a model can cite. The tools over files see the files of this conversation and the workspace's Files, by
their text.

Decision: docs/decisions/0803
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta, Struct, structs

from turnkeep.errors import CallerError, InvalidRequest
from turnkeep.ids import FileId
from turnkeep.knowledge.file_texts import FileTexts, kind_of, unit_of
from turnkeep.knowledge.table_rows import Condition, cells_of, row_query, values_of
from turnkeep.model.conversations import Conversation, Hit
from turnkeep.model.files import File
from turnkeep.model.knowledge import FileText, Found, KnowledgeTable, RowHit, RowQuery
from turnkeep.model.principals import Principal
from turnkeep.model.text_search import loosened, parse_query, tokens_of
from turnkeep.store.ports import ConversationStore, FileStore, KnowledgeStore, Store
from turnkeep.tools.ports import CallContext, Outcome, Passage, Tool, ToolSpec
from turnkeep_client.wire.blocks import JsonObject, JsonValue
from turnkeep_client.wire.events import Source

HITS_AT_ONCE = 5
CONVERSATIONS_LOOKED_AT = 100
WIDEST_NUMBER = 9_999
SNIPPET_CHARS = 300
LEAST_CHARS = 200

ROWS_AT_ONCE = 10
TABLES_LOOKED_AT = 1_000
SAVED_AT_ONCE = 100
CELL_CHARS = 300

FILES_SEARCHED = 1_000
PREPARED_SECONDS = 20.0
"""How long a search waits for files that were never read before."""
NAMED = 8

Arguments = TypeVar("Arguments", bound=Struct)
Words = Annotated[str, Meta(min_length=1, max_length=500, description="Words to look for")]
Offset = Annotated[int, Meta(ge=0, le=10_000, description="Number of results to skip")]
TableName = Annotated[str, Meta(max_length=200, description="The table's name or id")]


def knowledge_tools(store: Store, texts: FileTexts) -> list[Tool]:
    """All knowledge tools, for the runtime to register."""
    visible = VisibleFiles(store)
    return [
        search_pages(store),
        search_user_tables(store),
        save_to_table(store),
        search_conversations(store),
        search_files(store, visible, texts),
        read_file(visible, texts),
    ]


def search_pages(store: KnowledgeStore) -> Tool:
    async def run(asked: WordSearch, context: CallContext) -> Outcome:
        found = await store.search_pages(
            context.principal,
            asked.query,
            limit=HITS_AT_ONCE,
            offset=asked.offset,
            chars=room_for(context, HITS_AT_ONCE),
        )
        passages = [
            Passage(
                source=Source(
                    title=hit.title, snippet=cut(hit.excerpt, SNIPPET_CHARS), page_id=hit.page_id, place=hit.place
                ),
                text=hit.excerpt,
            )
            for hit in found.hits
        ]
        if not passages:
            return nothing(asked.query)
        return fitted(passages, context, offset=asked.offset, next_offset=found.next_offset)

    return KnowledgeTool(
        "search_pages",
        """Search the pages (documents) of this workspace by words. Returns excerpts, best first, each with a number
        to cite it by.""",
        WordSearch,
        run,
    )


def search_conversations(store: ConversationStore) -> Tool:
    async def run(asked: WordSearch, context: CallContext) -> Outcome:
        here = await store.conversation(context.principal, context.conversation_id)
        hits = await _earlier(store, context.principal, here, asked.query)
        shown = hits[asked.offset : asked.offset + HITS_AT_ONCE]
        if not shown:
            return nothing(asked.query)
        end = asked.offset + len(shown)
        passages = [_conversation_passage(hit, room_for(context, HITS_AT_ONCE)) for hit in shown]
        return fitted(passages, context, offset=asked.offset, next_offset=end if end < len(hits) else None)

    return KnowledgeTool(
        "search_conversations",
        """Search this user's earlier conversations by words: what was asked and answered before. Newest first.""",
        WordSearch,
        run,
    )


async def _earlier(store: ConversationStore, principal: Principal, here: Conversation, query: str) -> list[Hit]:
    """Other conversations of the same user that match.

    A service key without a user may read the conversations of all users. A model that answers one user must not.
    """
    if here.user_id is not None:
        principal = structs.replace(principal, user_id=here.user_id)
    for words in dict.fromkeys((query, _without_common(query))):
        found = await store.conversations(principal, query=words, limit=CONVERSATIONS_LOOKED_AT)
        hits = [
            hit for hit in found.data if hit.conversation.user_id == here.user_id and hit.conversation.id != here.id
        ]
        if hits:
            return hits
    return []


def _without_common(query: str) -> str:
    wanted = loosened(parse_query(query))
    return " ".join((*wanted.words, *wanted.prefixes))


def _conversation_passage(hit: Hit, chars: int) -> Passage:
    conversation = hit.conversation
    snippet = (hit.snippet or conversation.preview or "").replace("**", "")
    title = conversation.title or cut(conversation.preview or "A conversation", 80)
    source = Source(title=title, snippet=cut(snippet, SNIPPET_CHARS), conversation_id=conversation.id)
    return Passage(source=source, text=cut(snippet, chars))


# Tables


class TableSearch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    query: Annotated[str, Meta(max_length=500, description="Words to look for in any column; may be empty")] = ""
    table: TableName | None = None
    filters: Annotated[list[Condition], Meta(max_length=10, description="Conditions; all of them hold")] = []
    sort: Annotated[str, Meta(max_length=201, description="A column to sort by; -Column: greatest first")] | None = None
    offset: Offset = 0


class RowsToSave(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    table: TableName
    rows: Annotated[
        list[dict[str, JsonValue]],
        Meta(min_length=1, max_length=SAVED_AT_ONCE, description="Each row as an object: column name to value"),
    ]


def search_user_tables(store: KnowledgeStore) -> Tool:
    async def run(asked: TableSearch, context: CallContext) -> Outcome:
        if not asked.query.strip() and asked.table is None:
            tables = await _tables(store, context.principal)
            return Outcome(result=_described(tables, context.result_chars, asked.offset))
        found = await _found_rows(store, context.principal, asked)
        if not found.hits:
            return nothing(asked.query or "these filters")
        chars = room_for(context, 1)
        passages = [_row_passage(hit, chars) for hit in found.hits]
        return fitted(passages, context, offset=asked.offset, next_offset=found.next_offset)

    return KnowledgeTool(
        "search_user_tables",
        """Search the rows of this workspace's tables: by words, by filters on columns, in the order of a column.
        Numbers and dates compare as such; dates are written 2026-11-15. Call it without arguments to see which tables
        and columns there are.""",
        TableSearch,
        run,
    )


def save_to_table(store: KnowledgeStore) -> Tool:
    async def run(asked: RowsToSave, context: CallContext) -> Outcome:
        table = await _table(store, context.principal, asked.table)
        rows = [cells_of(table, row) for row in asked.rows]
        numbers = await store.add_rows(context.principal, table.id, rows, batch=context.call_id)
        which = f"row {numbers[0]}" if len(numbers) == 1 else f"rows {numbers[0]} to {numbers[-1]}"
        return Outcome(result=f"Saved to the table {table.name!r} as {which}.")

    return KnowledgeTool(
        "save_to_table",
        """Add rows to a table of this workspace. It cannot change or remove rows. See the tables and their columns
        with search_user_tables.""",
        RowsToSave,
        run,
    )


async def _found_rows(store: KnowledgeStore, principal: Principal, asked: TableSearch) -> Found[RowHit]:
    table: KnowledgeTable | None = None
    if asked.table is not None:
        table = await _table(store, principal, asked.table)
    elif asked.filters or asked.sort:
        tables = await _tables(store, principal)
        if len(tables) != 1:
            raise InvalidRequest(f"Filters and sorting need a `table`. There are: {_table_names(tables)}.")
        table = tables[0]
    query = RowQuery(text=asked.query)
    if table is not None:
        query = row_query(table, text=asked.query, filters=asked.filters, sort=asked.sort)
    return await store.find_rows(principal, query, table=table, limit=ROWS_AT_ONCE, offset=asked.offset)


async def _table(store: KnowledgeStore, principal: Principal, name: str) -> KnowledgeTable:
    tables = await _tables(store, principal)
    folded = name.strip().casefold()
    for table in tables:
        if table.id == name or table.name.casefold() == folded:
            return table
    raise InvalidRequest(f"There is no table {name[:60]!r}. There are: {_table_names(tables)}.")


async def _tables(store: KnowledgeStore, principal: Principal) -> list[KnowledgeTable]:
    tables: list[KnowledgeTable] = []
    cursor: str | None = None
    while len(tables) < TABLES_LOOKED_AT:
        page = await store.tables(principal, limit=100, cursor=cursor)
        tables.extend(page.data)
        cursor = page.next_cursor
        if cursor is None:
            break
    return tables


def _table_names(tables: list[KnowledgeTable]) -> str:
    return cut(", ".join(table.name for table in tables) or "none", 1_000)


def _described(tables: list[KnowledgeTable], chars: int, offset: int) -> str:
    """Tables with their columns, from `offset` on, as many whole lines as fit, and how to get the rest."""
    if not tables:
        return "This workspace has no tables."
    shown: list[str] = []
    left = chars - 200
    for table in tables[offset:]:
        columns = ", ".join(f"{column.name} ({column.type})" for column in table.columns)
        about = f" {table.description}" if table.description else ""
        line = cut(f"- {table.name}: {table.row_count} rows; {columns}.{about}", 1_000)
        left -= len(line) + 1
        if left < 0 and shown:
            break
        shown.append(line)
    if not shown:
        raise InvalidRequest(f"This workspace has {len(tables)} tables; offset {offset} is behind the last one.")
    end = offset + len(shown)
    more = f" For the next ones call again with offset {end}." if end < len(tables) else ""
    return "\n".join([f"Tables {offset + 1} to {end} of the {len(tables)} of this workspace.{more}", *shown])


def _row_passage(hit: RowHit, chars: int) -> Passage:
    text = _row_text(hit, chars)
    source = Source(
        title=hit.table.name,
        snippet=cut(text, SNIPPET_CHARS),
        table_id=hit.table.id,
        row=hit.row.number,
        place=f"row {hit.row.number}",
    )
    return Passage(source=source, text=text)


def _row_text(hit: RowHit, chars: int) -> str:
    """`Name: Saffron; Price: 9.5`, without empty cells. Only whole cells, and the number of columns left out."""
    parts: list[str] = []
    size = 0
    values = {name: value for name, value in values_of(hit.table, hit.row.cells).items() if value is not None}
    for name, value in values.items():
        said = str(value).lower() if isinstance(value, bool) else str(value)
        part = f"{name}: {cut(said, CELL_CHARS)}"
        size += len(part) + 2
        if size > chars - 40 and parts:
            parts.append(f"({len(values) - len(parts)} more columns)")
            break
        parts.append(part)
    return "; ".join(parts) or "(empty)"


# Files


class FileRead(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    file: Annotated[str, Meta(min_length=1, max_length=300, description="The file's name or id")]
    offset: Annotated[int, Meta(ge=0, description="The character at which to begin")] = 0


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
    async def run(asked: WordSearch, context: CallContext) -> Outcome:
        files = [file for file in await visible.of(context) if kind_of(file) is not None]
        if not files:
            return Outcome(result="There are no files with text in this conversation or in the workspace's Files.")
        known, notes = await _prepared_texts(texts, context.principal, files)
        readable = [file for file in files if file.id in known and known[file.id].problem is None]
        by_key = {known[file.id].key: file for file in reversed(readable)}
        found = await store.search_file_texts(
            context.principal.org_id,
            list(by_key),
            asked.query,
            limit=HITS_AT_ONCE,
            offset=asked.offset,
            chars=room_for(context, HITS_AT_ONCE),
        )
        passages = [
            Passage(source=_file_source(by_key[hit.key], hit.place, hit.excerpt), text=hit.excerpt)
            for hit in found.hits
        ]
        if not passages and not asked.offset:
            # Texts are shared, and names are not: each reader finds files by the names of their own.
            passages = _beginnings(_files_called(readable, asked.query)[:HITS_AT_ONCE], known, context)
        if not passages:
            return nothing(asked.query, notes)
        return fitted(passages, context, offset=asked.offset, next_offset=found.next_offset, notes=notes)

    return KnowledgeTool(
        "search_files",
        """Search the text of the files of this conversation and of the workspace's Files (text, Markdown, CSV, PDF,
        Word, Excel, PowerPoint) by words.""",
        WordSearch,
        run,
    )


def read_file(visible: VisibleFiles, texts: FileTexts) -> Tool:
    async def run(asked: FileRead, context: CallContext) -> Outcome:
        file = _file_named(await visible.of(context), asked.file)
        text = (await texts.of(context.principal, [file]))[file.id]
        if text.problem is not None:
            raise InvalidRequest(f"{file.name} cannot be read: {text.problem}.")
        return _file_part(file, text.text, asked.offset, context)

    return KnowledgeTool(
        "read_file",
        """Read the text of a file of this conversation or of the workspace's Files, part by part.""",
        FileRead,
        run,
    )


def _file_part(file: File, text: str, offset: int, context: CallContext) -> Outcome:
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
    passage = Passage(source=_file_source(file, place, shown), text=shown.replace("\f", "\n"))
    return Outcome(result=f"{where}.{more} Cite it by its number, as [1].", passages=(passage,))


async def _prepared_texts(
    texts: FileTexts, principal: Principal, files: Sequence[File]
) -> tuple[dict[FileId, FileText], list[str]]:
    """The texts that are ready in time, and notes about the files that are left out."""
    known: dict[FileId, FileText] = {}
    late: list[str] = []
    try:
        async with asyncio.timeout(PREPARED_SECONDS):
            for file in files:
                known |= await texts.of(principal, [file])
    except TimeoutError:
        late = [file.name for file in files if file.id not in known]
    skipped = [f"{file.name} ({text.problem})" for file in files if (text := known.get(file.id)) and text.problem]
    notes = [f"Passed over: {_listed(skipped)}."] if skipped else []
    return known, notes + ([f"Not read yet, search again later: {_listed(late)}."] if late else [])


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(cut(name, 120) for name in names[:NAMED]) + more


def _file_named(files: Sequence[File], name: str) -> File:
    folded = name.strip().casefold()
    for file in files:
        if file.id == name or file.name.casefold() == folded:
            return file
    known = _listed([file.name for file in files]) or "none"
    raise InvalidRequest(f"There is no file {name[:60]!r} here. There are: {known}.")


def _files_called(files: Sequence[File], query: str) -> list[File]:
    """The files in whose names all words of the query occur."""
    wanted = parse_query(query)
    if wanted.is_empty:
        return []

    def is_called(tokens: list[str]) -> bool:
        begun = all(any(token.startswith(prefix) for token in tokens) for prefix in wanted.prefixes)
        return begun and all(word in tokens for word in wanted.words)

    return [file for file in files if is_called(tokens_of(file.name))]


def _beginnings(files: Sequence[File], known: Mapping[FileId, FileText], context: CallContext) -> list[Passage]:
    chars = room_for(context, HITS_AT_ONCE)
    shown = [(file, cut(known[file.id].text[: 2 * chars], chars)) for file in files]
    return [Passage(source=_file_source(file, None, text), text=text) for file, text in shown]


def _file_source(file: File, place: str | None, text: str) -> Source:
    return Source(title=file.name, snippet=cut(text, SNIPPET_CHARS), file_id=file.id, place=place)


# What all tools share


class WordSearch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    query: Words
    offset: Offset = 0


class KnowledgeTool(Generic[Arguments]):
    """A tool made of a name, a type of arguments and a function. An error that the model can fix becomes its result."""

    def __init__(
        self,
        name: str,
        description: str,
        arguments: type[Arguments],
        run: Callable[[Arguments, CallContext], Awaitable[Outcome]],
    ) -> None:
        self.spec = ToolSpec(
            name=name, description=" ".join(description.split()), input_schema=_schema(arguments), is_idempotent=True
        )
        self._arguments = arguments
        self._run = run

    async def call(self, args: JsonObject, context: CallContext) -> Outcome:
        try:
            arguments = msgspec.convert(args, self._arguments)
        except msgspec.ValidationError as exc:
            return Outcome(error=f"The arguments do not fit {self.spec.name}: {exc}.")
        try:
            return await self._run(arguments, context)
        except CallerError as exc:
            return Outcome(error=exc.detail)


def fitted(
    passages: Sequence[Passage],
    context: CallContext,
    *,
    offset: int,
    next_offset: int | None,
    notes: Sequence[str] = (),
) -> Outcome:
    """As many whole passages as fit the limit, at least one, and how to get the next ones."""
    heading = _heading(offset, len(passages), notes, following=offset + len(passages))
    left = context.result_chars - len(heading)
    shown: list[Passage] = []
    for passage in passages:
        left -= len(passage.rendered(WIDEST_NUMBER)) + 2
        if left < 0 and shown:
            break
        shown.append(passage)
    following = offset + len(shown) if len(shown) < len(passages) else next_offset
    return Outcome(result=_heading(offset, len(shown), notes, following=following), passages=tuple(shown))


def room_for(context: CallContext, hits: int) -> int:
    """The number of characters for each hit, without its title."""
    return max(LEAST_CHARS, (context.result_chars - 400) // hits - 120)


def nothing(query: str, notes: Sequence[str] = ()) -> Outcome:
    return Outcome(result="\n".join([f"Nothing was found for {query!r}. Try other or fewer words.", *notes]))


def cut(text: str, chars: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= chars else text[: chars - 1] + "…"


def _heading(offset: int, count: int, notes: Sequence[str], *, following: int | None) -> str:
    which = f"Result {offset + 1}" if count == 1 else f"Results {offset + 1} to {offset + count}"
    more = "There are no more." if following is None else f"For the next ones call again with offset {following}."
    return "\n".join([f"{which}. {more} Cite what you use by its number, as [1].", *notes])


def _schema(arguments: type[Struct]) -> JsonObject:
    (top,), components = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    schema: dict[str, Any] = components.pop(top["$ref"].rpartition("/")[2])
    schema.pop("title", None)
    schema.pop("description", None)
    return {**schema, "$defs": components} if components else schema
