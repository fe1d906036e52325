"""Transcripts: lists of messages from other systems → rows, and back into the form they came in.

Four forms are known: Anthropic messages, OpenAI chat messages, OpenAI Responses items, and plain
`{role, content, ts}`. A list may stand alone, inside a request body, or be wrapped line by line (`message`).

Reading is strict about form, so that nothing is lost silently. An item that is not a message is an InvalidRequest that
names it. A part that has no equivalent here (a provider's own tools, audio) becomes a line of text, and is listed in
`remarks`. Whether calls and results fit together is not checked here; the compiler does that.

A transcript is read for one of two purposes. `read_transcript` reads it to be repaired and written back: leading system
messages stay as they are, and empty messages are accepted. `read_history` reads it to be stored as a conversation:
leading instructions become rows too, and an empty message is refused.

**Turns.** A user's message starts a turn, and everything up to the next one belongs to it: iterations, tool
calls and results, the answer. Consecutive messages of the user are one question. Instructions at the start of
the list are a turn of their own, so that the first question can be asked again without repeating them. Any other row
before the first user's message belongs to no question, and is a turn of its own.
"""

from collections.abc import Sequence
from typing import Literal, assert_never

from msgspec import DecodeError, Struct, json

from turnkeep.errors import InvalidRequest
from turnkeep.ids import CallId, ConversationId, TurnId, new_message_id, new_turn_id
from turnkeep.model.messages import Message
from turnkeep_client.wire.blocks import Block, Image, JsonObject, JsonValue, Reasoning, Role, Text, ToolResult, ToolUse

Form = Literal["anthropic", "openai_chat", "openai_responses", "plain"]

_ROLES: dict[JsonValue, Role] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}
_ITEM_TYPES = {"function_call", "function_call_output", "reasoning", "item_reference"}
_ANTHROPIC_TYPES = {"tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use", "document"}
_RESPONSES_PARTS = {"input_text", "output_text", "input_image", "input_file"}


class Transcript(Struct, frozen=True, kw_only=True):
    """A conversation from another system.

    `preamble` holds the leading system messages, verbatim, if they are not among the rows. `body` is the request that
    contained the messages, if any, and `key` the field in which they were.
    """

    form: Form
    rows: tuple[Message, ...]
    preamble: tuple[JsonObject, ...] = ()
    remarks: tuple[str, ...] = ()
    body: JsonObject | None = None
    key: str = "messages"

    @property
    def open_turn(self) -> TurnId | None:
        """The last turn, if it still waits for an answer: it ends with a question or with tool results."""
        return self.rows[-1].turn_id if self.rows and self.rows[-1].role != "assistant" else None


class Item(Struct, frozen=True, kw_only=True):
    """One message: its role, its blocks, and its time if it has one."""

    role: Role
    blocks: tuple[Block, ...]
    ts: int | None = None


def is_empty(item: Item) -> bool:
    """Whether the message has no blocks, or only blank texts. A tool result without text is not empty."""
    return all(isinstance(block, Text) and not block.text.strip() for block in item.blocks)


class Remarks:
    """Notes for the person who imports: parts that have no equivalent here."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def left_out(self, index: int, kind: JsonValue) -> Text:
        """A line of text in place of a part that cannot be kept."""
        self.said.append(f"Item {index}: a piece of type {kind!r} has no equal here; a line of text stands for it.")
        return Text(text=f"[{kind}: left out]")

    def add(self, index: int, remark: str) -> None:
        self.said.append(f"Item {index}: {remark}")


def read_transcript(
    document: JsonValue,
    *,
    form: Form | None = None,
    conversation_id: ConversationId = ConversationId(""),  # noqa: B008 - a plain string
    created_at: int = 0,
) -> Transcript:
    """The transcript in `document`, in the given or the detected form. `created_at` is for rows without `ts`."""
    body, key, raw = _unwrapped(_without_surrogates(document))
    found = form or detect(raw, body)
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
    body, key, raw = _unwrapped(_without_surrogates(document))
    found = form or detect(raw, body)
    remarks = Remarks()
    items = _read(found, raw, remarks)
    for index, item in enumerate(items):
        if is_empty(item):
            raise InvalidRequest(
                f"Item {index}: the message of the {raw[index].get('role')} has no content. Remove it from the list or "
                "give it a text, and import again."
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
    parts = [part for item in raw if isinstance(item.get("content"), list) for part in item["content"]]
    kinds = {part.get("type") for part in parts if isinstance(part, dict)}
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
        raw.append(inner if isinstance(inner, dict) and "role" in inner else item)
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
    indexed = list(enumerate(raw))[start:]
    match form:
        case "anthropic":
            return [read_anthropic(item, index, remarks) for index, item in indexed]
        case "openai_chat":
            return [read_chat(item, index, remarks) for index, item in indexed]
        case "openai_responses":
            return [read_responses(item, index, remarks) for index, item in indexed]
        case "plain":
            return [_read_plain(item, index) for index, item in indexed]
        case _:
            assert_never(form)


def _joined(form: Form, items: list[Item]) -> list[Item]:
    return _with_answers_joined(items) if form == "openai_responses" else items


def _with_answers_joined(items: list[Item]) -> list[Item]:
    """Responses lists reasoning, texts and calls of one answer as separate items; here they are one message."""
    joined: list[Item] = []
    for item in items:
        if joined and item.role == "assistant" == joined[-1].role:
            joined[-1] = Item(role="assistant", blocks=joined[-1].blocks + item.blocks)
        else:
            joined.append(item)
    return joined


def _is_system(item: JsonObject) -> bool:
    return item.get("role") in {"system", "developer"}


def _read_plain(item: JsonObject, index: int) -> Item:
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


def _provider(form: Form, body: JsonObject | None) -> str | None:
    family = {"anthropic": "anthropic", "openai_chat": "openai", "openai_responses": "openai"}.get(form)
    model = body.get("model") if body else None
    return f"{family}/{model}" if family and isinstance(model, str) else family


def _rows(
    items: list[Item], conversation_id: ConversationId, created_at: int, provider: str | None
) -> tuple[Message, ...]:
    rows: list[Message] = []
    for turn in _turns(items):
        turn_id, iteration = new_turn_id(), -1
        spoken = [index for index, item in enumerate(turn) if item.role == "assistant"]
        for sequence, item in enumerate(turn):
            is_result = _is_only_results(item.blocks)
            iteration += item.role == "assistant"
            rows.append(
                Message(
                    id=new_message_id(),
                    turn_id=turn_id,
                    conversation_id=conversation_id,
                    turn_sequence=sequence,
                    role=item.role,
                    blocks=item.blocks,
                    created_at=created_at if item.ts is None else item.ts,
                    iteration=max(iteration, 0) if item.role == "assistant" or is_result else None,
                    internal=is_result or (item.role == "assistant" and sequence != spoken[-1]),
                    provider=provider if item.role == "assistant" else None,
                )
            )
    return tuple(rows)


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


def _without_surrogates(value: JsonValue) -> JsonValue:
    """A lone surrogate cannot be stored or sent. A replacement character takes its place."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_without_surrogates(inner) for inner in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(inner) for key, inner in value.items()}
    return value


# Anthropic


def read_anthropic(item: JsonObject, index: int, remarks: Remarks) -> Item:
    role = item.get("role")
    if role not in {"user", "assistant", "system"}:
        raise InvalidRequest(f"Item {index}: `role` must be user or assistant, not {role!r}.")
    blocks = tuple(_anthropic_block(part, index, remarks) for part in parts_of(item.get("content"), index))
    return Item(role=role, blocks=blocks)


def _anthropic_block(part: JsonObject, index: int, remarks: Remarks) -> Block:
    match part.get("type"):
        case "text":
            return Text(text=text_of(part, index))
        case "tool_use":
            return ToolUse(
                id=call_id(part.get("id"), index, "id"),
                name=tool_name(part.get("name"), index),
                input=arguments(part.get("input"), index, remarks),
            )
        case "tool_result":
            return ToolResult(
                call_id=call_id(part.get("tool_use_id"), index, "tool_use_id"),
                content=words_of(part.get("content"), index, remarks),
                is_error=part.get("is_error") is True,
            )
        case "thinking":
            signature = part.get("signature")
            return Reasoning(
                text=text_of(part, index, "thinking"),
                provider="anthropic",
                signature=signature if isinstance(signature, str) else None,
            )
        case "redacted_thinking":
            return Reasoning(provider="anthropic", data=text_of(part, index, "data"))
        case "image":
            return _anthropic_image(part.get("source"), index)
        case kind:
            return remarks.left_out(index, kind)


def _anthropic_image(source: JsonValue, index: int) -> Image:
    kind = source.get("type") if isinstance(source, dict) else None
    if kind == "base64":
        return Image(media_type=str(source.get("media_type")), data=text_of(source, index, "data"))
    if kind == "url":
        return Image(media_type="image/*", url=text_of(source, index, "url"))
    raise InvalidRequest(f"Item {index}: a picture needs a source of type base64 or url.")


# OpenAI


def read_chat(item: JsonObject, index: int, remarks: Remarks) -> Item:
    if item.get("role") in {"tool", "function"}:
        return Item(role="user", blocks=(_tool_message(item, index, remarks),))
    role = _openai_role(item, index)
    blocks: list[Block] = [_openai_part(part, index, remarks) for part in parts_of(item.get("content"), index)]
    if isinstance(item.get("refusal"), str) and item["refusal"]:
        blocks.append(Text(text=item["refusal"]))
    if item.get("audio") is not None:
        blocks.append(remarks.left_out(index, "audio"))
    calls = item.get("tool_calls") or []
    if not isinstance(calls, list):
        raise InvalidRequest(f"Item {index}: `tool_calls` must be a list.")
    blocks += [_call(call, index, remarks) for call in calls]
    if isinstance(item.get("function_call"), dict):
        blocks.append(_function(item["function_call"], "function", index, remarks))
    return Item(role=role, blocks=tuple(blocks))


def read_responses(item: JsonObject, index: int, remarks: Remarks) -> Item:
    match item.get("type", "message"):
        case "message":
            role = _openai_role(item, index)
            parts = parts_of(item.get("content"), index)
            return Item(role=role, blocks=tuple(_openai_part(part, index, remarks) for part in parts))
        case "function_call":
            own = call_id(item.get("call_id"), index, "call_id")
            return Item(role="assistant", blocks=(_function(item, own, index, remarks),))
        case "function_call_output":
            content = words_of(item.get("output"), index, remarks)
            own = call_id(item.get("call_id"), index, "call_id")
            return Item(role="user", blocks=(ToolResult(call_id=own, content=content),))
        case "reasoning":
            return Item(role="assistant", blocks=(_reasoning(item, index),))
        case kind:
            return Item(role="assistant", blocks=(remarks.left_out(index, kind),))


def _openai_role(item: JsonObject, index: int) -> Role:
    role = _ROLES.get(item.get("role"))
    if role is None:
        raise InvalidRequest(f"Item {index}: {item.get('role')!r} is not a role.")
    return role


def _tool_message(item: JsonObject, index: int, remarks: Remarks) -> ToolResult:
    own = "function" if item.get("role") == "function" else item.get("tool_call_id")
    return ToolResult(
        call_id=call_id(own, index, "tool_call_id"), content=words_of(item.get("content"), index, remarks)
    )


def _call(call: JsonValue, index: int, remarks: Remarks) -> ToolUse:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise InvalidRequest(f"Item {index}: a tool call needs a `function` with `name` and `arguments`.")
    return _function(function, call_id(call.get("id"), index, "id"), index, remarks)


def _function(function: JsonObject, own: str, index: int, remarks: Remarks) -> ToolUse:
    return ToolUse(
        id=call_id(own, index, "id"),
        name=tool_name(function.get("name"), index),
        input=arguments(function.get("arguments"), index, remarks),
    )


def _openai_part(part: JsonObject, index: int, remarks: Remarks) -> Block:
    match part.get("type"):
        case "text" | "input_text" | "output_text":
            return Text(text=text_of(part, index))
        case "refusal":
            return Text(text=text_of(part, index, "refusal"))
        case "image_url":
            image = part.get("image_url")
            return image_at(image.get("url") if isinstance(image, dict) else image, index)
        case "input_image" if part.get("image_url") is not None:
            return image_at(part.get("image_url"), index)
        case kind:
            return remarks.left_out(index, kind)


def _reasoning(item: JsonObject, index: int) -> Reasoning:
    summary = parts_of(item.get("summary"), index)
    data, own = item.get("encrypted_content"), item.get("id")
    return Reasoning(
        text="\n\n".join(text_of(part, index) for part in summary),
        provider="openai",
        data=data if isinstance(data, str) else None,
        item_id=own if isinstance(own, str) else None,
    )


# Checks that all forms share


def call_id(value: JsonValue, index: int, field: str) -> CallId:
    if not isinstance(value, str):
        raise InvalidRequest(f"Item {index}: `{field}` must be a text, not {value!r}.")
    return CallId(value)


def tool_name(value: JsonValue, index: int) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"Item {index}: the name of a tool must be a text, not {value!r}.")
    return value


def arguments(value: JsonValue, index: int, remarks: Remarks) -> JsonObject:
    """Arguments as an object. A text that is not JSON (the model was cut off) is kept as a text."""
    if isinstance(value, str):
        try:
            value = json.decode(value) if value.strip() else {}
        except DecodeError:
            remarks.add(index, "the arguments of a call are not JSON; they are kept as text under `arguments`.")
            return {"arguments": value}
    if value is None:
        return {}
    if not isinstance(value, dict):
        remarks.add(index, "the arguments of a call are not an object; they are kept under `arguments`.")
        return {"arguments": value}
    return value


def parts_of(content: JsonValue, index: int) -> list[JsonObject]:
    """Content as a list of parts. A text is one text part."""
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if isinstance(content, list):
        parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
        if all(isinstance(part, dict) for part in parts):
            return parts
    raise InvalidRequest(f"Item {index}: `content` must be a text or a list of parts.")


def text_of(part: JsonObject, index: int, field: str = "text") -> str:
    text = part.get(field)
    if not isinstance(text, str):
        raise InvalidRequest(f"Item {index}: a part of type {part.get('type')!r} needs a text in `{field}`.")
    return text


def image_at(url: JsonValue, index: int) -> Image:
    """An image from its address, which may contain the image itself (`data:`)."""
    if not isinstance(url, str):
        raise InvalidRequest(f"Item {index}: a picture needs an address.")
    if url.startswith("data:"):
        head, _, data = url.partition(",")
        return Image(media_type=head[5:].partition(";")[0], data=data)
    return Image(media_type="image/*", url=url)


def words_of(content: JsonValue, index: int, remarks: Remarks) -> str:
    """A tool result as text. Parts of other types are replaced by a line that names them."""
    if content is None:
        return ""
    if not isinstance(content, str | list):
        return json.encode(content).decode()
    words: list[str] = []
    for part in parts_of(content, index):
        text = part.get("text")
        words.append(text if isinstance(text, str) else remarks.left_out(index, part.get("type")).text)
    return "\n".join(words)
