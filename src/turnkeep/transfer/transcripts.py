"""Transcripts: lists of messages from other systems → rows, and back into the form they came in.

These forms are known: Anthropic messages, OpenAI chat messages, OpenAI Responses items, messages of the AI SDK
(`parts`), rows of a database (`content_blocks`), and plain `{role, content, ts}`. A list may stand alone, inside a
request body, or be wrapped line by line (`message`). `chatgpt.py` reads ChatGPT's export.

Reading is strict about form, so that nothing is lost silently. An item that is not a message is an InvalidRequest that
names it. A part that has no equivalent here (a provider's own tools, audio) becomes a line of text, and is listed in
`remarks`. Whether calls and results fit together is not checked here; the compiler does that.

A transcript is read for one of two purposes. `read_transcript` reads it to be repaired and written back: leading system
messages stay as they are, and empty messages are accepted. `read_history` reads it to be stored as a conversation:
leading instructions become rows too, and an empty message is refused. Messages of the AI SDK and rows of a database can
only be stored.

**Turns.** A user's message starts a turn, and everything up to the next one belongs to it: iterations, tool
calls and results, the answer. Consecutive messages of the user are one question. Instructions at the start of
the list are a turn of their own, so that the first question can be asked again without repeating them. Any other row
before the first user's message belongs to no question, and is a turn of its own. Rows of a database say themselves
which turn they belong to.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Literal

from msgspec import Struct, structs

from turnkeep.errors import InvalidRequest
from turnkeep.ids import ConversationId, TurnId, new_message_id, new_turn_id
from turnkeep.model.messages import Message
from turnkeep.transfer.message_formats import (
    Item,
    Remarks,
    is_empty,
    read_anthropic,
    read_chat,
    read_responses,
    read_row,
    read_ui_message,
)
from turnkeep_client.wire.blocks import Block, JsonObject, JsonValue, Text, ToolResult

Form = Literal["anthropic", "openai_chat", "openai_responses", "ai_sdk", "rows", "plain"]

Reader = Callable[[JsonObject, int, Remarks], list[Item]]
"""Reads one message at its place in the list."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_ITEM_TYPES = {"function_call", "function_call_output", "reasoning", "item_reference"}
_ANTHROPIC_TYPES = {"tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use", "document"}
_RESPONSES_PARTS = {"input_text", "output_text", "input_image", "input_file"}


class Transcript(Struct, frozen=True, kw_only=True):
    """A conversation from another system.

    `preamble` holds the leading system messages, verbatim, if they are not among the rows. `body` is the request that
    contained the messages, if any, and `key` the field in which they were. `parents` says after which turn each one
    comes, and `head` which turn is the last in view, if the conversation has branches.
    """

    form: Form
    rows: tuple[Message, ...]
    preamble: tuple[JsonObject, ...] = ()
    remarks: tuple[str, ...] = ()
    body: JsonObject | None = None
    key: str = "messages"
    title: str | None = None
    parents: Mapping[TurnId, TurnId | None] | None = None
    head: TurnId | None = None

    @property
    def open_turn(self) -> TurnId | None:
        """The last turn, if it still waits for an answer: it ends with a question or with tool results."""
        return self.rows[-1].turn_id if self.rows and self.rows[-1].role != "assistant" else None


def read_transcript(
    document: JsonValue,
    *,
    form: Form | None = None,
    conversation_id: ConversationId = ConversationId(""),  # noqa: B008 - a plain string
    created_at: int = 0,
) -> Transcript:
    """The transcript in `document`, in the given or the detected form. `created_at` is for rows without `ts`."""
    body, key, raw = _unwrapped(without_surrogates(document))
    found = form or detect(raw, body)
    if found in {"ai_sdk", "rows"}:
        raise InvalidRequest("Messages of the AI SDK and rows of a database are imported, and not repaired.")
    leading = _count_leading(raw) if found in {"openai_chat", "openai_responses"} else 0
    remarks = Remarks()
    items = _read(found, raw, remarks, start=leading)
    return Transcript(
        form=found,
        rows=_rows(_joined(found, items), conversation_id, created_at, _provider(found, body)),
        preamble=tuple(raw[:leading]),
        remarks=tuple(remarks.said),
        body=body,
        key=key,
    )


def read_history(document: JsonValue, *, form: Form | None = None, created_at: int = 0) -> Transcript:
    """The same, with all leading instructions among the rows. Raises InvalidRequest for a message without content.

    Anthropic and Responses keep instructions beside the messages; those come first.
    """
    body, key, raw = _unwrapped(without_surrogates(document))
    found = form or detect(raw, body)
    remarks = Remarks()
    items = _read(found, raw, remarks)
    for item in items:
        if is_empty(item):
            raise InvalidRequest(
                f"Item {item.index}: the message of the {raw[item.index].get('role')} has no content. Remove it from "
                "the list or give it a text, and import again."
            )
    items = [*_beside(body or {}), *items]
    return Transcript(
        form=found,
        rows=_rows(_joined(found, items), ConversationId(""), created_at, _provider(found, body)),
        remarks=tuple(remarks.said),
        body=body,
        key=key,
    )


def write_transcript(transcript: Transcript, messages: Sequence[JsonObject]) -> JsonValue:
    """The document with these messages in place of its own, after its system messages, inside its request body."""
    written = [*transcript.preamble, *messages]
    return written if transcript.body is None else {**transcript.body, transcript.key: written}


def detect(raw: Sequence[JsonObject], body: JsonObject | None = None) -> Form:
    """The form, by fields that only this form has. Plain texts are OpenAI chat, or `plain` if they have `ts`."""
    if body is not None and "input" in body:
        return "openai_responses"
    if any("content_blocks" in item for item in raw):
        return "rows"
    if any(isinstance(item.get("parts"), list) or "toolInvocations" in item for item in raw):
        return "ai_sdk"
    parts = [part for item in raw if isinstance(item.get("content"), list) for part in item["content"]]
    kinds = {str(part.get("type")) for part in parts if isinstance(part, dict)}
    if any(item.get("type") in _ITEM_TYPES for item in raw) or kinds & _RESPONSES_PARTS:
        return "openai_responses"
    has_times = any("ts" in item for item in raw)
    chat_roles = {"tool", "function"} if has_times else {"tool", "function", "developer"}
    if any(item.get("role") in chat_roles or "tool_calls" in item for item in raw):
        return "openai_chat"
    if kinds & _ANTHROPIC_TYPES or "image" in kinds or _is_anthropic_body(body):
        return "anthropic"
    # Both may write a user's text as a list. Only Anthropic writes an assistant's text so.
    if any(item.get("role") == "assistant" and isinstance(item.get("content"), list) for item in raw):
        return "anthropic"
    return "plain" if has_times else "openai_chat"


def _is_anthropic_body(body: JsonObject | None) -> bool:
    return body is not None and ("system" in body or "anthropic_version" in body or "thinking" in body)


def _unwrapped(document: JsonValue) -> tuple[JsonObject | None, str, list[JsonObject]]:
    body: JsonObject | None = None
    key = "messages"
    if isinstance(document, dict):
        key = next((name for name in ("messages", "input", "conversation") if name in document), "")
        if not key:
            raise InvalidRequest("The transcript is an object without `messages`, `input` or `conversation`.")
        body, document = document, document[key]
    if isinstance(document, str) and key == "input":
        document = [{"role": "user", "content": document}]
    if not isinstance(document, list):
        raise InvalidRequest("A transcript is a list of messages, or an object that holds one.")
    raw: list[JsonObject] = []
    for index, item in enumerate(document):
        if not isinstance(item, dict):
            raise InvalidRequest(f"Item {index}: a message is an object, not {type(item).__name__}.")
        inner = item.get("message")
        message = inner if isinstance(inner, dict) and "role" in inner else item
        for field in ("role", "type"):
            if not isinstance(message.get(field), str | None):
                raise InvalidRequest(f"Item {index}: `{field}` must be a text, not {type(message[field]).__name__}.")
        raw.append(message)
    return body, key, raw


def _count_leading(raw: Sequence[JsonObject]) -> int:
    return next((place for place, item in enumerate(raw) if not _is_system(item)), len(raw))


def _beside(body: JsonObject) -> list[Item]:
    """Instructions beside the messages: `system` of Anthropic, `instructions` of Responses."""
    found: list[Item] = []
    for name in ("system", "instructions"):
        value = body.get(name)
        parts = [{"text": value}] if isinstance(value, str) else value or []
        if not isinstance(parts, list) or not all(isinstance(_text_in(part), str) for part in parts):
            raise InvalidRequest(f"`{name}` beside the messages must be a text or a list of text parts.")
        item = Item(role="system", blocks=tuple(Text(text=_text_in(part)) for part in parts))
        if not is_empty(item):
            found.append(item)
    return found


def _text_in(part: JsonValue) -> JsonValue:
    return part.get("text") if isinstance(part, dict) else None


def _read(form: Form, raw: list[JsonObject], remarks: Remarks, *, start: int = 0) -> list[Item]:
    read = _READERS[form]
    return [
        structs.replace(item, index=index)
        for index, message in enumerate(raw[start:], start=start)
        for item in read(message, index, remarks)
    ]


def _joined(form: Form, items: list[Item]) -> list[Item]:
    return _with_answers_joined(items) if form == "openai_responses" else items


def _with_answers_joined(items: list[Item]) -> list[Item]:
    """Responses lists reasoning, texts and calls of one answer as separate items; here they are one message."""
    joined: list[Item] = []
    for role, group in groupby(items, key=lambda item: item.role):
        those = list(group)
        if role == "assistant" and len(those) > 1:
            joined.append(Item(role=role, blocks=tuple(block for item in those for block in item.blocks)))
        else:
            joined += those
    return joined


def _is_system(item: JsonObject) -> bool:
    return item.get("role") in {"system", "developer"}


def _read_plain(item: JsonObject, index: int, remarks: Remarks) -> Item:
    role, content, ts = item.get("role"), item.get("content"), item.get("ts")
    if role == "developer":
        role = "system"
    if role not in {"user", "assistant", "system"} or not isinstance(content, str):
        raise InvalidRequest(
            f"Item {index}: a plain message has a role (user, assistant, system, developer) and a text as content."
        )
    if ts is not None and (not isinstance(ts, int) or isinstance(ts, bool)):
        raise InvalidRequest(f"Item {index}: `ts` is a number of milliseconds, not {ts!r}.")
    return Item(role=role, blocks=(Text(text=content),), ts=ts)


def _alone(read: Callable[[JsonObject, int, Remarks], Item]) -> Reader:
    return lambda message, index, remarks: [read(message, index, remarks)]


_READERS: dict[Form, Reader] = {
    "anthropic": _alone(read_anthropic),
    "openai_chat": _alone(read_chat),
    "openai_responses": _alone(read_responses),
    "ai_sdk": read_ui_message,
    "rows": read_row,
    "plain": _alone(_read_plain),
}


def _provider(form: Form, body: JsonObject | None) -> str | None:
    family = {"anthropic": "anthropic", "openai_chat": "openai", "openai_responses": "openai"}.get(form)
    model = body.get("model") if body else None
    return f"{family}/{model}" if family and isinstance(model, str) else family


def _rows(
    items: list[Item], conversation_id: ConversationId, created_at: int, provider: str | None
) -> tuple[Message, ...]:
    turns = _named_turns(items) if any(item.turn is not None for item in items) else _turns(items)
    return tuple(
        structs.replace(row, conversation_id=conversation_id)
        for turn in turns
        for row in rows_of_turn(turn, created_at=created_at, provider=provider)
    )


def rows_of_turn(
    items: Sequence[Item], *, turn_id: TurnId | None = None, created_at: int, provider: str | None = None
) -> list[Message]:
    """The rows of one turn. Readers see what the user said and the last answer; the rest is internal."""
    turn_id, iteration = turn_id or new_turn_id(), -1
    last_spoken = max((place for place, item in enumerate(items) if item.role == "assistant"), default=-1)
    rows: list[Message] = []
    for sequence, item in enumerate(items):
        is_result = _is_only_results(item.blocks)
        is_step = is_result or (item.role == "assistant" and sequence != last_spoken)
        iteration += item.role == "assistant"
        rows.append(
            Message(
                id=new_message_id(),
                turn_id=turn_id,
                conversation_id=ConversationId(""),
                turn_sequence=sequence,
                role=item.role,
                blocks=item.blocks,
                created_at=created_at if item.ts is None else item.ts,
                iteration=max(iteration, 0) if item.role == "assistant" or is_result else None,
                internal=is_step if item.is_internal is None else item.is_internal,
                sources=item.sources,
                provider=(item.provider or provider) if item.role == "assistant" else None,
            )
        )
    return rows


def _named_turns(items: list[Item]) -> list[list[Item]]:
    """Items under the names of their turns, in the order in which the turns begin."""
    turns: dict[str, list[Item]] = {}
    for item in items:
        turns.setdefault(item.turn or "", []).append(item)
    return [sorted(turn, key=lambda item: item.sequence) for turn in turns.values()]


def _turns(items: list[Item]) -> list[list[Item]]:
    leading = next((place for place, item in enumerate(items) if item.role != "system"), len(items))
    turns: list[list[Item]] = [items[:leading]] if leading else []
    is_asking = has_asked = False
    for item in items[leading:]:
        asks = item.role != "assistant" and not _is_only_results(item.blocks)
        if (asks and not is_asking) or not (asks or has_asked):
            turns.append([])
        turns[-1].append(item)
        is_asking = asks
        has_asked = has_asked or asks
    return turns


def _is_only_results(blocks: tuple[Block, ...]) -> bool:
    return bool(blocks) and all(isinstance(block, ToolResult) for block in blocks)


def without_surrogates(value: JsonValue) -> JsonValue:
    """A lone surrogate cannot be stored or sent. A replacement character takes its place. A value without one is
    returned as it is, and not copied: a history may take much memory."""
    return _without_surrogates(value) if _has_surrogates(value) else value


def _without_surrogates(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_without_surrogates(inner) for inner in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(inner) for key, inner in value.items()}
    return value


def _has_surrogates(value: JsonValue) -> bool:
    if isinstance(value, str):
        return not value.isascii() and _SURROGATE.search(value) is not None
    if isinstance(value, list):
        return any(map(_has_surrogates, value))
    if isinstance(value, dict):
        return any(map(_has_surrogates, value)) or any(map(_has_surrogates, value.values()))
    return False
