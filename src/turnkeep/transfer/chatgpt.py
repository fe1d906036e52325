"""ChatGPT's export: `conversations.json`, in which each conversation is a tree of messages.

A path through the tree is a list of messages, and its turns are made as those of any transcript. Where the tree forks,
branches are kept. Two questions after the same answer are two turns side by side. Two answers to one question are two
turns side by side, each with the question, as if it had been answered again here.

What ChatGPT did with its own tools is kept as tool calls and results. Pictures, files and sound are not part of the
JSON: a line of text stands for each, and the remarks count them. So do empty messages, which ChatGPT writes between
others.
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

import msgspec
from msgspec import Struct, structs

from turnkeep.errors import InvalidRequest
from turnkeep.ids import CallId, TurnId, new_turn_id
from turnkeep.model.messages import Message
from turnkeep.transfer.message_formats import Item, is_empty
from turnkeep.transfer.transcripts import Transcript, rows_of_turn, without_surrogates
from turnkeep_client.wire.blocks import Block, JsonObject, JsonValue, Reasoning, Role, Text, ToolResult, ToolUse

CHARS_PER_BYTE = 4
REPEATED_CHARS = 8_000_000
ROW_CHARS = 100
"""What a row takes beside its text."""
TITLE_CHARS = 80
"""A remark names its conversation by this much of the title."""
_FILE = re.compile(r"(?:.*/)?conversations(?:-\d+)?\.json")
_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system", "tool": "user"}


class _Author(Struct, frozen=True, kw_only=True):
    role: str
    name: str | None = None


class _ChatGPTMessage(Struct, frozen=True, kw_only=True):
    author: _Author
    content: JsonObject
    create_time: float | None = None
    recipient: str | None = "all"
    metadata: JsonObject | None = None


class _Node(Struct, frozen=True, kw_only=True):
    message: _ChatGPTMessage | None = None
    parent: str | None = None
    children: list[str] = []


class _ChatGPTConversation(Struct, frozen=True, kw_only=True):
    mapping: dict[str, _Node]
    title: str | None = None
    create_time: float | None = None
    current_node: str | None = None


def is_conversation_file(path: str) -> bool:
    """Whether a file of the zip holds conversations. Large exports have several: `conversations-000.json`, …"""
    return _FILE.fullmatch(path) is not None


def is_chatgpt_export(document: JsonValue) -> bool:
    """Whether this is `conversations.json`, or one conversation of it."""
    first = document[0] if isinstance(document, list) and document else document
    return isinstance(first, dict) and isinstance(first.get("mapping"), dict)


class BranchLimit:
    """How much an import may write, over all of its conversations.

    Branches repeat what stands before the fork within their turn. Without a limit, a small file with a long question
    and many answers could become gigabytes.
    """

    def __init__(self, json_bytes: int = 0) -> None:
        """`json_bytes` is the size of all documents of the import."""
        self._left = CHARS_PER_BYTE * json_bytes + REPEATED_CHARS

    def count(self, chars: int, *, label: str) -> None:
        """Raises InvalidRequest once it is too much."""
        self._left -= chars
        if self._left < 0:
            raise InvalidRequest(
                f"{label} has too many branches: with all that they repeat, the import would be several times as large "
                "as the file. Remove some branches from the file, or import fewer conversations at a time."
            )


def read_chatgpt_export(
    document: JsonValue, *, created_at: int = 0, limit: BranchLimit | None = None
) -> list[Transcript]:
    """Every conversation, with all its branches. Conversations in which nothing was said are left out.

    Raises InvalidRequest, with its place, for anything that is not such an export, and for branches over the limit.
    """
    document = without_surrogates(document)
    listed = document if isinstance(document, list) else [document]
    try:
        conversations = msgspec.convert(listed, list[_ChatGPTConversation])
    except msgspec.ValidationError as exc:
        raise InvalidRequest(f"This is not ChatGPT's `conversations.json`: {exc}.") from exc
    limit = limit or BranchLimit()
    read = [_Tree(each, place, created_at, limit).transcript() for place, each in enumerate(conversations)]
    return [transcript for transcript in read if transcript.rows]


class _OpenTurn:
    """The items of a turn so far. Branches after the same items share it, until one of them adds an item."""

    def __init__(self, parent: TurnId | None) -> None:
        self.parent = parent
        self.items: list[Item] = []
        self.chars = 0
        """The size of the rows that it will have."""
        self.open_call: CallId | None = None
        """The call to which the next result belongs."""
        self.is_shared = False
        self.id: TurnId | None = None
        """Its id, once it is written."""

    def plus(self, item: Item) -> "_OpenTurn":
        turn = self._copy() if self.is_shared else self
        turn.items.append(item)
        turn.chars += ROW_CHARS + len(msgspec.json.encode(item.blocks))
        if item.role == "assistant":
            last = item.blocks[-1]
            turn.open_call = last.id if isinstance(last, ToolUse) else None
        return turn

    def _copy(self) -> "_OpenTurn":
        copy = _OpenTurn(self.parent)
        copy.items, copy.chars, copy.open_call = list(self.items), self.chars, self.open_call
        return copy


class _Tree:
    """One conversation: walks its tree from the root, and writes the turns of every path."""

    def __init__(self, conversation: _ChatGPTConversation, place: int, created_at: int, limit: BranchLimit) -> None:
        self._conversation = conversation
        self._mapping = conversation.mapping
        self._limit = limit
        title = (conversation.title or "")[:TITLE_CHARS]
        self._label = f"Conversation {place}" + (f" ({title!r})" if title else "")
        self._created_at = _milliseconds(conversation.create_time) or created_at
        self._left_out: Counter[str] = Counter()
        self._rows: list[Message] = []
        self._parents: dict[TurnId, TurnId | None] = {}
        self._ends: dict[str, TurnId | None] = {}
        """The last turn of each path, by the node in which the path ends."""

    def transcript(self) -> Transcript:
        self._walk()
        return Transcript(
            form="openai_chat",
            rows=tuple(self._rows),
            remarks=tuple(f"{self._label}: {count} × {kind}." for kind, count in sorted(self._left_out.items())),
            title=self._conversation.title,
            parents=self._parents,
            head=self._head(),
        )

    def _walk(self) -> None:
        roots = [own for own, node in self._mapping.items() if node.parent not in self._mapping]
        waiting = [(own, _OpenTurn(None)) for own in reversed(roots)]
        seen: set[str] = set()
        while waiting:
            own, turn = waiting.pop()
            if own in seen:
                raise InvalidRequest(f"{self._label}: the message {own[:80]!r} stands in two places of the tree.")
            seen.add(own)
            node = self._mapping[own]
            turn = self._with_message(own, node.message, turn)
            children = [child for child in node.children if child in self._mapping]
            turn.is_shared = turn.is_shared or len(children) > 1
            if not children:
                self._ends[own] = self._write(turn)
            waiting.extend((child, turn) for child in reversed(children))

    def _with_message(self, own: str, message: _ChatGPTMessage | None, turn: _OpenTurn) -> _OpenTurn:
        """The turn with this message in it, or the next turn if the message asks something new."""
        item = None if message is None else self._item(own, message, turn.open_call)
        if item is None:
            return turn
        if turn.items and _begins_turn(item, turn.items[-1]):
            return _OpenTurn(self._write(turn)).plus(item)
        return turn.plus(item)

    def _write(self, turn: _OpenTurn) -> TurnId | None:
        """Its id. It is written only once, whatever number of branches come after it."""
        if turn.id is None:
            if not turn.items:
                return turn.parent
            self._limit.count(turn.chars, label=self._label)
            turn.id = new_turn_id()
            self._parents[turn.id] = turn.parent
            self._rows += rows_of_turn(_with_results_joined(turn.items), turn_id=turn.id, created_at=self._created_at)
        return turn.id

    def _head(self) -> TurnId | None:
        """The last turn of the path in view: the one with `current_node`, or else the one that was written last. Nodes
        that no root leads to may form a ring."""
        own = self._conversation.current_node
        seen: set[str] = set()
        while own in self._mapping and own not in self._ends and own not in seen:
            seen.add(own)
            own = next((child for child in reversed(self._mapping[own].children) if child in self._mapping), None)
        return self._ends.get(own or "") or next(reversed(self._parents), None)

    def _item(self, own: str, message: _ChatGPTMessage, open_call: CallId | None) -> Item | None:
        """The message; None if it says nothing. The calls of ChatGPT's tools have the id of their node."""
        role = _ROLES.get(message.author.role)
        if role is None:
            raise InvalidRequest(f"{self._label}, message {own[:80]!r}: {message.author.role!r} is not a role.")
        blocks = tuple(self._blocks(message))
        item = Item(role=role, blocks=blocks, ts=_milliseconds(message.create_time), provider=_model(message))
        if is_empty(item):
            self._left_out["empty message or note of ChatGPT, left out"] += 1
            return None
        if message.content.get("content_type") == "user_editable_context":
            return structs.replace(item, role="system")
        if message.author.role == "tool":
            return structs.replace(item, blocks=(_result(blocks, message, open_call),))
        recipient = message.recipient or "all"
        if role == "assistant" and recipient not in {"all", "assistant", "user"}:
            call = ToolUse(id=CallId(own), name=recipient, input=_arguments(_words(blocks)))
            thoughts = tuple(block for block in blocks if isinstance(block, Reasoning))
            return structs.replace(item, blocks=(*thoughts, call))
        return item

    def _blocks(self, message: _ChatGPTMessage) -> list[Block]:
        content = message.content
        blocks: list[Block] = []
        match content.get("content_type"):
            case "text" | "multimodal_text":
                parts = content.get("parts")
                blocks += [self._part(part) for part in parts] if isinstance(parts, list) else []
            case "thoughts":
                thoughts = content.get("thoughts")
                told = [_first(each, "content", "summary") for each in thoughts] if isinstance(thoughts, list) else []
                blocks.append(Reasoning(text="\n\n".join(filter(None, told))))
            case "user_editable_context":
                fields = (content.get("user_profile"), content.get("user_instructions"))
                blocks.append(Text(text="\n\n".join(text for text in fields if isinstance(text, str))))
            case "reasoning_recap" | "model_editable_context":
                pass  # "Thought for 5 seconds", and what ChatGPT keeps of it for itself
            case kind:
                text = _first(content, "text", "result", "content", "summary")
                blocks.append(self._stand_in(str(kind)) if text is None else Text(text=text))
        attached = (message.metadata or {}).get("attachments")
        for file in attached if isinstance(attached, list) else []:
            blocks.append(self._stand_in("file", _first(file, "name")))
        return blocks

    def _part(self, part: JsonValue) -> Block:
        if isinstance(part, str):
            return Text(text=part)
        text = _first(part, "text")
        kind = part.get("content_type") if isinstance(part, dict) else type(part).__name__
        return self._stand_in(str(kind)) if text is None else Text(text=text)

    def _stand_in(self, kind: str, name: str | None = None) -> Text:
        self._left_out[f"{kind}, left out; a line of text stands for it"] += 1
        return Text(text=f"[{name or kind}: left out]")


def _result(blocks: Sequence[Block], message: _ChatGPTMessage, open_call: CallId | None) -> Block:
    """The result of the last call. What a tool says without a call is a text of its own."""
    if open_call is not None:
        return ToolResult(call_id=open_call, content=_words(blocks))
    return Text(text=f"[{message.author.name or 'tool'}]\n{_words(blocks)}")


def _begins_turn(item: Item, last: Item) -> bool:
    """A question after an answer begins a turn. So does whatever follows leading instructions."""
    is_result = any(isinstance(block, ToolResult) for block in item.blocks)
    if last.role == "system" and item.role != "system":
        return True
    answered = last.role == "assistant" or any(isinstance(block, ToolResult) for block in last.blocks)
    return item.role != "assistant" and not is_result and answered


def _with_results_joined(items: Sequence[Item]) -> list[Item]:
    """The items. Results of the same call that follow each other are one result."""
    joined: list[Item] = []
    for call, group in groupby(items, key=_answered_call):
        those = list(group)
        if call is None or len(those) == 1:
            joined += those
        else:
            told = [block.content for item in those for block in item.blocks if isinstance(block, ToolResult)]
            joined.append(structs.replace(those[0], blocks=(ToolResult(call_id=call, content="\n".join(told)),)))
    return joined


def _answered_call(item: Item) -> CallId | None:
    last = item.blocks[-1]
    return last.call_id if isinstance(last, ToolResult) else None


def _milliseconds(seconds: float | None) -> int | None:
    return int(seconds * 1000) if seconds is not None and 0 <= seconds < 1e11 else None


def _model(message: _ChatGPTMessage) -> str | None:
    slug = (message.metadata or {}).get("model_slug")
    return f"openai/{slug}" if isinstance(slug, str) else "openai"


def _words(blocks: Sequence[Block]) -> str:
    return "\n".join(block.text for block in blocks if isinstance(block, Text))


def _first(value: JsonValue, *names: str) -> str | None:
    """The first of these fields that is a text."""
    if not isinstance(value, dict):
        return None
    return next((value[name] for name in names if isinstance(value.get(name), str) and value[name]), None)


def _arguments(text: str) -> JsonObject:
    try:
        decoded = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {"input": text}
    return decoded if isinstance(decoded, dict) else {"input": text}
