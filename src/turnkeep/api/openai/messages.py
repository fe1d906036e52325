"""The messages and options of a request of OpenAI's APIs, as a question for the engine.

A client may send the whole history with each request. Then the turns before the last question become turns of a new
conversation that no list shows, and what followed the last question (calls of tools that the client has run) is the
opening of the new turn. Options that cannot be honoured are refused, and never passed over.

Files are named by their ids, or come with the request. Both become attachments, in the question and in the history.

Decision: docs/decisions/1011
"""

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import groupby
from typing import Any, Literal, TypeVar, cast

import msgspec
from msgspec import Struct, structs
from msgspec.structs import replace

from turnkeep.api.http.endpoints import ApiCall
from turnkeep.api.http.idempotency import hash_of, idempotency_key
from turnkeep.api.http.problem_details import InvalidField
from turnkeep.api.http.requests import known_id
from turnkeep.api.native.turns import ANY_IMAGE, check_attachments, image_of
from turnkeep.api.wires import MAX_MESSAGES, SentFile, apart, decoded_body, form_of
from turnkeep.clock import system_clock
from turnkeep.config import Settings
from turnkeep.engine import Question
from turnkeep.errors import InvalidRequest, TooManyFiles, TurnkeepError, UnsupportedOption
from turnkeep.fair_queue import owner_of
from turnkeep.ids import ConversationId, FileId, MessageId
from turnkeep.model.agents import OpeningRow
from turnkeep.model.conversations import Conversation
from turnkeep.model.files import File
from turnkeep.model.messages import Message
from turnkeep.model.sampling import OutputFormat, Sampling
from turnkeep.model.turns import Turn
from turnkeep.store.commands import NewConversation
from turnkeep.store.exports import exported_from_rows
from turnkeep.tools.schemas import check_all_declared
from turnkeep.transfer.transcripts import read_history
from turnkeep_client import wire
from turnkeep_client.wire.agents import ClientTool
from turnkeep_client.wire.blocks import Block, Image, JsonObject, JsonValue, Text, ToolResult, ToolUse

FEW = 200
"""Messages and parts that take no time to read."""
MAX_TOOLS = 100
MAX_FILES = 100
"""Files in one request, with its history."""
FILE_PARTS = frozenset({"file", "input_file", "input_image"})
"""Parts that can name a file."""
PARTS = FILE_PARTS | {"image_url", "input_text", "output_text", "refusal", "text"}
"""Parts of a message of the user that can be kept."""
MAX_STOPS = 4
DEFAULTS: dict[str, float | bool] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "parallel_tool_calls": True,
}
"""Values that a response shows for options that were not given."""
OWN_ROW: JsonObject = {"openai": True}
"""Metadata of rows that a caller sent on this wire. The caller may read all of them again, also calls and results."""
APPROVAL_REQUEST = "mcp_approval_request"
DECISION = "mcp_approval_response"
ITEMS = frozenset({"message", "function_call", "function_call_output", "reasoning", APPROVAL_REQUEST, DECISION})
"""Items that are kept as they are."""
INSTRUCTIONS = frozenset({"system", "developer"})
"""Roles of messages that instruct the model."""
ATTACHED = "(The files are attached.)"

Form = Literal["openai_chat", "openai_responses"]
Read = TypeVar("Read")


GivenFile = FileId | SentFile
"""A file of a message: its id, or the file itself."""


class GivenRows(Struct, frozen=True, kw_only=True):
    """Rows of messages, in turns, and the files that some of them name."""

    rows: tuple[Message, ...] = ()
    files: Mapping[MessageId, tuple[GivenFile, ...]] = {}


class AskedQuestion(Struct, frozen=True, kw_only=True):
    """What a list of messages asks. `past` are the turns before the question. `results` answer calls that are not in
    the list: those of a turn that waits."""

    told: tuple[tuple[str, str], ...] = ()
    """The messages that instruct the model: role and text of each."""
    past: GivenRows = GivenRows()
    question: tuple[Block, ...] = ()
    sizes: tuple[int, ...] = ()
    """How many blocks each message of the question has."""
    opening: tuple[OpeningRow, ...] = ()
    results: tuple[ToolResult, ...] = ()
    files: tuple[GivenFile, ...] = ()

    @property
    def instructions(self) -> str:
        return "\n\n".join(text for _, text in self.told)


async def read_json(call: ApiCall[Any, Any]) -> JsonObject:
    """The body as a JSON object. Raises TooLarge or InvalidRequest."""
    try:
        return await decoded_body(call, dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidRequest(f"The body is not a JSON object: {exc}.") from exc


def idempotency_of(call: ApiCall[Any, Any], body: JsonObject) -> dict[str, str | None]:
    """The fields of `Options` that recognise a repeated request."""
    key = idempotency_key(call)
    return {"idempotency_key": key, "request_hash": None if key is None else hash_of(call.target, body)}


async def read_messages(call: ApiCall[Any, Any], raw: Sequence[JsonValue], form: Form, field: str) -> AskedQuestion:
    """The question in a list of messages or items. Raises InvalidRequest, which names what cannot be understood."""
    _check_items(raw, field)
    told = [item for item in raw if item.get("role") in INSTRUCTIONS]
    spoken = _without_empty([item for item in raw if item.get("role") not in INSTRUCTIONS])
    if not spoken:
        raise InvalidField(f"`{field}` needs at least one message of the user.", field=field)
    words = [(str(item.get("role")), words_of_instruction(item, field)) for item in told]
    given = await read_rows(call, spoken, form, field)
    return structs.replace(_question_of(given, field), told=tuple((role, text) for role, text in words if text))


def _without_empty(items: Sequence[JsonObject]) -> list[JsonObject]:
    """The messages without those that say nothing: an answer may have been empty, and clients send it back. The last
    message of the user stays, because it asks."""
    last = max((place for place, item in enumerate(items) if item.get("role") == "user"), default=-1)
    return [item for place, item in enumerate(items) if place == last or not _is_empty(item)]


def _is_empty(item: JsonObject) -> bool:
    if item.get("role") not in {"user", "assistant"} or item.get("type") not in {None, "message"}:
        return False
    if any(item.get(name) for name in ("tool_calls", "function_call", "refusal", "audio")):
        return False
    content = item.get("content")
    parts = content if isinstance(content, list) else [content or ""]
    return all(isinstance(words := _text_in(part), str) and not words.strip() for part in parts)


def _text_in(part: JsonValue) -> JsonValue:
    return part.get("text") if _kind_of(part) in {"text", "input_text", "output_text"} else part


async def read_rows(call: ApiCall[Any, Any], raw: Sequence[JsonValue], form: Form, field: str) -> GivenRows:
    """The rows of these messages or items, in turns, and their files. Raises InvalidField."""
    _check_items(raw, field)
    given = await _read(call, raw, lambda: _given_rows(raw, call.runtime.settings, form, field))
    rows = [await _with_pictures(call, row, field) for row in given.rows]
    return structs.replace(given, rows=tuple(rows))


def plain_items(given: Sequence[JsonValue], field: str) -> list[JsonObject]:
    """Items of OpenAI's Responses, as the reader of transcripts knows them. Calls of server tools that come back with
    the history become calls with their results. Raises InvalidField, which names an item that cannot be kept."""
    _check_items(given, field)
    items: list[JsonObject] = []
    for place, item in enumerate(given):
        match item.get("type"):
            case None:
                items.append({**item, "type": "message"})
            case "item_reference":
                raise InvalidField(
                    f"`{field}`: references to items are not supported here. Send the item itself.",
                    field=field,
                )
            case "mcp_list_tools":
                pass
            case "mcp_call":
                call_id = str(item.get("id") or "")
                output = item.get("output") or item.get("error") or ""
                output = output if isinstance(output, str) else msgspec.json.encode(output).decode()
                called = {"type": "function_call", "call_id": call_id, "name": item.get("name")}
                items.append({**called, "arguments": item.get("arguments")})
                items.append({"type": "function_call_output", "call_id": call_id, "output": output})
            case kind if kind in ITEMS:
                items.append(item)
            case kind:
                raise InvalidField(
                    f"`{field}[{place}]`: an item of type {kind[:80]!r} is not supported. Leave it out.",
                    field=f"{field}[{place}]",
                )
    return items


def is_decision(item: JsonObject) -> bool:
    """Whether the item allows or denies a call."""
    return bool(item.get("type") == DECISION)


def without_approvals(items: Sequence[JsonObject]) -> list[JsonObject]:
    """The items without requests for approvals, and the decisions about them. Models are told of neither."""
    return [item for item in items if not is_decision(item) and item.get("type") != APPROVAL_REQUEST]


def _check_items(raw: Sequence[JsonValue], field: str) -> None:
    if len(raw) > MAX_MESSAGES:
        raise InvalidField(f"`{field}` has {len(raw):,} entries; at most {MAX_MESSAGES:,} are read.", field=field)
    if not all(isinstance(item, dict) for item in raw):
        raise InvalidField(f"`{field}` is a list of objects.", field=field)
    if not all(isinstance(item.get(name), str | None) for item in raw for name in ("role", "type")):
        raise InvalidField(f"`{field}`: `role` and `type` are texts.", field=field)


async def _read(call: ApiCall[Any, Any], raw: Sequence[JsonValue], work: Callable[[], Read]) -> Read:
    """What `work` returns; in a thread if there is much to read, as other requests must not wait for it."""
    contents = [item.get("content") for item in raw if isinstance(item, dict)]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    is_short = len(raw) + len(parts) <= FEW and not any(_kind_of(part) in FILE_PARTS for part in parts)
    return work() if is_short else await apart(call, work)


def _question_of(given: GivenRows, field: str) -> AskedQuestion:
    rows = given.rows
    if rows[-1].role != "user":
        raise InvalidField(
            f"The last entry of `{field}` is of the assistant. It must be of the user, or the result of a tool.",
            field=field,
        )
    turns = [list(group) for _, group in groupby(rows, key=lambda row: row.turn_id)]
    if all(map(_is_result, rows)):  # of one turn, whose calls are stored
        turns = [list(rows)]
    past = tuple(row for turn in turns[:-1] for row in turn)
    _check_past(past, field)
    question, opening, results = _open_turn(turns[-1], field)
    names = [row.id for row in turns[-1]]
    return AskedQuestion(
        past=GivenRows(rows=past, files={key: files for key, files in given.files.items() if key not in names}),
        question=question,
        sizes=tuple(len(row.blocks) for row in turns[-1] if row.role == "user" and not _is_result(row)),
        opening=opening,
        results=results,
        files=tuple(dict.fromkeys(file for name in names for file in given.files.get(name, ()))),
    )


def _given_rows(items: Sequence[JsonObject], settings: Settings, form: Form, field: str) -> GivenRows:
    cleaned, files = _without_files(items, settings, form, field)
    rows = _rows_of(cleaned, form, field)
    asking = (row.id for row in rows if row.role == "user")
    return GivenRows(rows=tuple(rows), files={name: those for name, those in zip(asking, files, strict=True) if those})


def _rows_of(items: Sequence[JsonObject], form: Form, field: str) -> list[Message]:
    try:
        transcript = read_history(list(items), form=form, created_at=system_clock())
    except InvalidRequest as exc:
        raise InvalidField(f"`{field}`: {exc.detail}", field=field) from exc
    return [structs.replace(row, metadata=OWN_ROW) for row in transcript.rows]


def _check_past(rows: Sequence[Message], field: str) -> None:
    """Raises InvalidField for a result in the history whose call is not there: it answers nothing."""
    calls: set[str] = set()
    for row in rows:
        calls |= {block.id for block in row.blocks if isinstance(block, ToolUse)}
        for block in row.blocks:
            if isinstance(block, ToolResult) and block.call_id not in calls:
                raise InvalidField(
                    f"No tool call found for function call output with call_id {block.call_id}.", field=field
                )


def _open_turn(
    rows: Sequence[Message], field: str
) -> tuple[tuple[Block, ...], tuple[OpeningRow, ...], tuple[ToolResult, ...]]:
    """The question of the last turn, what followed it, and results of calls that are not there."""
    asked = [row for row in rows if row.role == "user" and not _is_result(row)]
    rest = rows[len(asked) :]
    calls = {block.id for row in rest for block in row.blocks if isinstance(block, ToolUse)}
    answered = {block.call_id for row in rest for block in row.blocks if isinstance(block, ToolResult)}
    if missing := sorted(calls - answered):
        raise InvalidField(f"No tool output found for function call {missing[0]}.", field=field)
    blocks = tuple(block for row in asked for block in row.blocks)
    if asked and answered - calls:
        raise InvalidField(f"No tool call found for the result of {min(answered - calls)}.", field=field)
    if asked:
        role: dict[str, Literal["user", "assistant"]] = {"user": "user", "assistant": "assistant"}
        return blocks, tuple(OpeningRow(role=role[row.role], blocks=row.blocks) for row in rest), ()
    results = tuple(block for row in rest for block in row.blocks if isinstance(block, ToolResult))
    return (), (), tuple(result for result in results if result.call_id not in calls)


def _is_result(row: Message) -> bool:
    return bool(row.blocks) and all(isinstance(block, ToolResult) for block in row.blocks)


def words_of_instruction(item: JsonObject, field: str) -> str:
    """The text of a message that instructs the model. Raises InvalidField."""
    content = item.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    words = [part.get("text") for part in parts if isinstance(part, dict)]
    if not words or not all(isinstance(word, str) for word in words):
        raise InvalidField(f"`{field}`: the content of a {item.get('role')} message is text.", field=field)
    return "\n\n".join(map(str, words))


def _without_files(
    items: Sequence[JsonObject], settings: Settings, form: Form, field: str
) -> tuple[list[JsonObject], list[tuple[GivenFile, ...]]]:
    """The items without their files, and the files of each item that becomes a row of the user."""
    cleaned: list[JsonObject] = []
    files: list[tuple[GivenFile, ...]] = []
    count = 0
    for item in items:
        content = item.get("content")
        parts = content if isinstance(content, list) else []
        found = {place: file for place, part in enumerate(parts) if (file := _file_of(part, field)) is not None}
        if item.get("role") == "user" and (strange := [part for part in parts if _kind_of(part) not in PARTS]):
            raise InvalidField(
                f"`{field}`: a part of type {str(_kind_of(strange[0]))[:80]!r} is not supported. Send a text, or "
                "attach it as a file.",
                field=field,
            )
        if _is_of_user(item, form):
            files.append(tuple(dict.fromkeys(found.values())))
            count += len(files[-1])
            _check_count(len(files[-1]), count, settings, field)
        if found and item.get("role") != "user":
            raise InvalidField(f"`{field}`: only messages of the user can have files.", field=field)
        kept = [part for place, part in enumerate(parts) if place not in found]
        cleaned.append({**item, "content": kept or [{"type": "text", "text": ATTACHED}]} if found else item)
    return cleaned, files


def _is_of_user(item: JsonObject, form: Form) -> bool:
    """Whether the item becomes a row of the user, as a question or as the result of a tool."""
    if form == "openai_chat":
        return item.get("role") in {"user", "tool", "function"}
    kind = item.get("type") or "message"
    return bool(kind == "function_call_output" or (kind == "message" and item.get("role") == "user"))


def _check_count(here: int, count: int, settings: Settings, field: str) -> None:
    """Raises TooManyFiles for one message, and InvalidField for a whole request with too many files."""
    limit = settings.max_files_per_message
    if here > limit:
        raise TooManyFiles(f"A message may carry {limit} files, this one has {here}.")
    if count > MAX_FILES:
        raise InvalidField(f"`{field}` has over {MAX_FILES} files. Leave some out.", field=field)


def _kind_of(part: JsonValue) -> str | None:
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else None


def _file_of(part: JsonValue, field: str) -> GivenFile | None:
    """The file of a part; None for another part. Raises InvalidField for one that cannot be had."""
    kind = _kind_of(part)
    if kind not in FILE_PARTS:
        return None
    inner = part.get("file") if kind == "file" else part
    given: JsonObject = inner if isinstance(inner, dict) else {}
    if isinstance(given.get("file_id"), str):
        return FileId(known_id(given["file_id"], "file"))
    if isinstance(given.get("file_data"), str):
        return _sent_file(given, field)
    if kind == "input_image" and given.get("image_url") is not None:
        return None
    raise InvalidField(
        f"`{field}`: a file is named by its `file_id`, or comes as `file_data`. An address of a file is not read: "
        "upload the file with POST /openai/v1/files first.",
        field=field,
    )


def _sent_file(given: JsonObject, field: str) -> SentFile:
    """The file in `file_data`: base64, alone or as a data: address."""
    head, comma, data = given["file_data"].rpartition(",")
    media_type, _, coding = head.removeprefix("data:").partition(";")
    if comma and not (head.startswith("data:") and f";{coding}".endswith(";base64")):
        raise InvalidField(f"`{field}`: `file_data` is base64, alone or as a data: address of it.", field=field)
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise InvalidField(f"`{field}`: `file_data` is not valid base64.", field=field) from exc
    return SentFile.named(given.get("filename"), media_type or "application/octet-stream", raw)


@asynccontextmanager
async def stored_files(
    call: ApiCall[Any, Any], asked: AskedQuestion, conversation_id: ConversationId | None = None
) -> AsyncIterator[tuple[GivenRows, tuple[FileId, ...]]]:
    """The turns before the question, with their files as attachments that can join this conversation, and the files of
    the question. Of those that were stored or copied for it, what no conversation has taken in goes again.

    Raises NotFound for a file that the caller cannot read.
    """
    check_attachments([], call.runtime.settings, beside=len(asked.files))  # perhaps of several messages
    files = [*asked.files, *(file for those in asked.past.files.values() for file in those)]
    sent = list(dict.fromkeys(file for file in files if isinstance(file, SentFile)))
    bag, made = call.runtime.bag, list[FileId]()
    try:
        known: dict[GivenFile, File] = {}
        if sent:
            call.principal.check_feature("files")
            known |= dict(zip(sent, await bag.receive(call.principal, None, form_of(sent)), strict=True))
            made += [file.id for file in known.values()]
        known |= await _known_files(call, asked.past, conversation_id, made)
        rows = [_with_files(row, [known[file] for file in asked.past.files.get(row.id, ())]) for row in asked.past.rows]
        question = (known[file].id if file in known else file for file in asked.files)
        yield structs.replace(asked.past, rows=tuple(rows)), tuple(dict.fromkeys(cast(Iterable[FileId], question)))
    finally:
        if made:
            await asyncio.shield(bag.discard(made))


async def _known_files(
    call: ApiCall[Any, Any], past: GivenRows, conversation_id: ConversationId | None, made: list[FileId]
) -> dict[GivenFile, File]:
    """The files that the history names. Those that belong elsewhere are copied."""
    store, principal = call.runtime.store, call.principal
    named = dict.fromkeys(file for those in past.files.values() for file in those if isinstance(file, str))
    found = {file_id: await store.file(principal, file_id) for file_id in named}
    elsewhere = [
        file.id
        for file in found.values()
        if file.saved_at is not None or file.conversation_id not in {None, conversation_id}
    ]
    if elsewhere:
        copies = await call.runtime.bag.copy(principal, elsewhere)
        made += copies.values()
        found |= {file_id: await store.file(principal, copy) for file_id, copy in copies.items()}
    return cast(dict[GivenFile, File], found)


def _with_files(row: Message, files: Sequence[File]) -> Message:
    return structs.replace(row, attachments=tuple(file.ref() for file in files)) if files else row


def attached_in(rows: Iterable[Message]) -> tuple[FileId, ...]:
    """The files that these rows name."""
    return tuple(dict.fromkeys(ref.file_id for row in rows for ref in row.attachments))


async def _with_pictures(call: ApiCall[Any, Any], row: Message, field: str) -> Message:
    """The row with pictures that models accept, as a message of the native API would have them."""
    if not any(isinstance(block, Image) for block in row.blocks):
        return row
    blocks: list[Block] = []
    for block in row.blocks:
        if isinstance(block, Image):
            media_type = "image/png" if block.url is None else ANY_IMAGE
            given = wire.ImageBlock(media_type=media_type, data=block.data, url=block.url)
            blocks.append(await image_of(given, call.runtime, owner=owner_of(call.principal), place=field))
        else:
            blocks.append(block)
    return structs.replace(row, blocks=tuple(blocks))


async def conversation_of(call: ApiCall[Any, Any], rows: Sequence[Message], new: NewConversation) -> Conversation:
    """A new conversation with these rows, whose files join it."""
    exported = exported_from_rows(rows)
    conversation = exported.conversation
    seeded = structs.replace(
        exported,
        conversation=replace(
            conversation,
            workspace_id=call.principal.workspace_id,  # of another one the agent would be left out
            agent_id=new.agent_id,
            model=new.model,
            metadata=new.metadata,
            is_listed=new.is_listed,
            kind=new.kind,
        ),
    )
    return await call.runtime.store.import_conversation(call.principal, seeded, attached=attached_in(rows))


async def ask_alone(call: ApiCall[Any, Any], asked: AskedQuestion, question: Question) -> Turn:
    """A turn in a conversation of its own, with the turns before the question. If it is refused, or was asked before,
    what was stored for it goes again: no list shows it, so its user could not delete it."""
    engine, seed, is_new = call.runtime.engine, None, False
    if await engine.is_repeat(call.principal, question.options):
        return (await engine.ask(question)).turn
    async with stored_files(call, asked) as (past, files):
        try:
            if past.rows:
                seed = (await conversation_of(call, past.rows, question.new)).id
            claimed = await engine.ask(structs.replace(question, conversation_id=seed, attachment_ids=files))
            is_new = claimed.is_new
            return claimed.turn
        finally:
            if seed is not None and not is_new:
                with suppress(TurnkeepError):
                    await call.runtime.store.delete_conversation(call.principal, seed)


# Options


def number(body: JsonObject, name: str, low: float, high: float) -> float | None:
    """A number of the body within these limits; None if it is not given."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InvalidField(f"`{name}` must be a number from {low:g} to {high:g}.", field=name)
    return value


def whole_number(body: JsonObject, name: str, low: int = 1, high: int = 2**53) -> int | None:
    value = number(body, name, low, high)
    if value is not None and not isinstance(value, int):
        raise InvalidField(f"`{name}` must be a whole number.", field=name)
    return value


def flag(body: JsonObject, name: str) -> bool | None:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidField(f"`{name}` must be true or false.", field=name)
    return value


def stops(body: JsonObject) -> tuple[str, ...] | None:
    value = body.get("stop")
    found = [value] if isinstance(value, str) else value
    if found is None or found == []:
        return None
    if not isinstance(found, list) or len(found) > MAX_STOPS or not all(isinstance(one, str) and one for one in found):
        raise InvalidField(f"`stop` is a text, or a list of at most {MAX_STOPS} texts.", field="stop")
    return tuple(found)


def tool_choice(body: JsonObject) -> dict[str, Any]:
    """The fields of `Sampling` for the `tool_choice` of either API."""
    value = body.get("tool_choice")
    if value is None:
        return {}
    if isinstance(value, str) and value in {"auto", "none", "required"}:
        return {"tool_choice": value}
    if isinstance(value, dict) and value.get("type") == "function":
        inner = value.get("function") if isinstance(value.get("function"), dict) else value
        name = inner.get("name") if isinstance(inner, dict) else None
        if isinstance(name, str) and name:
            return {"tool": name}
    raise InvalidField(
        "`tool_choice` is auto, none, required, or an object of type function with a name.", field="tool_choice"
    )


def output_format(value: JsonValue, field: str) -> OutputFormat | None:
    """The form of the output: `response_format` of Chat Completions, or `text.format` of Responses."""
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    match kind:
        case "text":
            return None
        case "json_object":
            return OutputFormat()
        case "json_schema":
            inner = value.get("json_schema") if isinstance(value.get("json_schema"), dict) else value
            schema, name = inner.get("schema"), inner.get("name")
            if not isinstance(schema, dict) or not isinstance(name, str):
                raise InvalidField(f"`{field}` of type json_schema needs a `name` and a `schema`.", field=field)
            described = inner.get("description")
            return OutputFormat(
                name=name,
                schema=schema,
                description=described if isinstance(described, str) else None,
                is_strict=inner.get("strict") is True,
            )
        case _:
            raise InvalidField(f"`{field}` is of type text, json_object or json_schema.", field=field)


def sampling_of(body: JsonObject, *, max_tokens: int | None, output: OutputFormat | None) -> Sampling:
    """The options that both APIs share. Raises InvalidField."""
    return Sampling(
        temperature=number(body, "temperature", 0, 2),
        top_p=number(body, "top_p", 0, 1),
        frequency_penalty=number(body, "frequency_penalty", -2, 2) or None,
        presence_penalty=number(body, "presence_penalty", -2, 2) or None,
        max_tokens=max_tokens,
        stop=stops(body),
        seed=whole_number(body, "seed", low=-(2**53)),
        parallel_tool_calls=flag(body, "parallel_tool_calls") if body.get("tools") else _if_false(body),
        output=output,
        **(tool_choice(body) if body.get("tools") else _no_choice(body)),
    )


def _if_false(body: JsonObject) -> bool | None:
    """Without tools of the caller, one call at a time is a wish for those of the agent. Else nothing is asked."""
    return False if flag(body, "parallel_tool_calls") is False else None


def _no_choice(body: JsonObject) -> dict[str, Any]:
    """A choice without tools. The caller's own tools are meant; agents keep theirs unless it is `none`."""
    chosen = tool_choice(body)
    if chosen in ({}, {"tool_choice": "auto"}):
        return {}
    if chosen == {"tool_choice": "none"}:
        return chosen
    raise InvalidField("`tool_choice` names a tool, and `tools` has none.", field="tool_choice")


def check_kept(
    body: JsonObject, turn: Turn, sampling: Sampling, tools: Sequence[JsonObject], *, limit: str, output: str | None
) -> None:
    """Raises InvalidField for an option of the body that differs from the one with which the turn began: a turn that
    goes on keeps its options. `limit` and `output` name the fields with the limit and the form of the output; `output`
    is None if the body has none."""
    kept = turn.snapshot.sampling
    for name in (*DEFAULTS, "seed", "stop"):
        given, before = getattr(sampling, name), getattr(kept, name)
        default = DEFAULTS.get(name)
        if body.get(name) is not None and (default if given is None else given) != (
            default if before is None else before
        ):
            raise has_changed(name)
    if body.get(limit) is not None and sampling.max_tokens != kept.max_tokens:
        raise has_changed(limit)
    if output is not None and sampling.output != kept.output:
        raise has_changed(output)
    if body.get("tool_choice") is not None and not _keeps_choice(sampling, kept):
        raise has_changed("tool_choice")
    if tools and _sorted(tools) != _sorted(turn.snapshot.client_tools):
        raise has_changed("tools")


def has_changed(field: str) -> InvalidField:
    return InvalidField(
        f"`{field}` is not what it was when the turn began, and a turn keeps the options with which it began. Leave it "
        "out, or send the same value.",
        field=field,
    )


def _keeps_choice(given: Sampling, kept: Sampling) -> bool:
    """Whether the choice of tools is the same. A call that must come first has come, so `auto` is the same too."""
    same = (given.tool, given.tool_choice or "auto") == (kept.tool, kept.tool_choice or "auto")
    return same or (kept.must_call and given.tool is None and given.tool_choice == "auto")


def _sorted(tools: Sequence[JsonObject]) -> list[bytes]:
    return sorted(msgspec.json.encode(tool, order="sorted") for tool in tools)


def refuse_given(body: JsonObject, refused: Mapping[str, Iterable[JsonValue]], reason: str) -> None:
    """Raises UnsupportedOption for a field that has another value than one of those that change nothing."""
    for name, harmless in refused.items():
        if body.get(name) is not None and body[name] not in list(harmless):
            raise UnsupportedOption(f"`{name}` is not supported: {reason} Leave it out.", option=name)


async def client_tools(declared: Sequence[tuple[JsonObject, str]]) -> tuple[JsonObject, ...]:
    """The functions of the caller as client tools; each comes with the name of its field. Raises InvalidRequest."""
    if len(declared) > MAX_TOOLS:
        raise InvalidField(f"`tools` has {len(declared):,} entries; at most {MAX_TOOLS} are allowed.", field="tools")
    tools: list[ClientTool] = []
    for function, field in declared:
        name, parameters = function.get("name"), function.get("parameters")
        if not isinstance(name, str) or not name:
            raise InvalidField(f"`{field}`: a function needs a name.", field=field)
        if parameters is not None and not isinstance(parameters, dict):
            raise InvalidField(f"`{field}`: `parameters` is a JSON schema.", field=field)
        raw = {"type": "client", "name": name, "description": function.get("description") or ""}
        try:
            tools.append(
                msgspec.convert({**raw, "input_schema": parameters or {"type": "object", "properties": {}}}, ClientTool)
            )
        except msgspec.ValidationError as exc:
            raise InvalidField(f"`{field}`: {exc}.", field=field) from exc
    if tools:
        await asyncio.to_thread(check_all_declared, tools)
    return tuple(msgspec.to_builtins(tool) for tool in tools)


def metadata_of(body: JsonObject) -> JsonObject:
    value = body.get("metadata")
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise InvalidField("`metadata` is an object of texts.", field="metadata")
    return value


def text_block(text: str) -> tuple[Block, ...]:
    return (Text(text=text),)
