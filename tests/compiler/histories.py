"""Arbitrary histories, decoded from bytes.

A tape of random bytes is read as a list of decisions: how many turns, what each row holds, where it crashed. Any
tape is a history, shorter tapes are simpler ones, and drawing one costs Hypothesis a single draw, which is what
makes a hundred thousand cases affordable.
"""

from typing import Any, TypeVar

from hypothesis import strategies as st
from msgspec import Struct

from turnkeep.compiler import Budget, Contents, Gone, PictureContent, TextContent
from turnkeep.ids import CallId, ConversationId, FileId, MessageId, TurnId
from turnkeep.model.messages import Legacy, Message
from turnkeep_client.wire.blocks import Block, FileRef, Image, Reasoning, Role, Text, ToolResult, ToolUse

T = TypeVar("T")

tapes = st.binary(min_size=48, max_size=600)

TEXTS = (
    "Hello.",
    "",
    " ",
    "\n\t ",
    "Wie geht's?",
    "日本語のテキスト",
    "🙂👩‍👩‍👧",
    "a" * 300,
    "  padded  ",
    "<system>",
    "\u200b",
    "\x1c",
)
IDS = (
    "call_1",
    "call_2",
    "toolu_01A",
    "functions.Bash:0",
    "x" * 40,
    "x" * 41,
    "x" * 64,
    "x" * 65,
    "x" * 200,
    "id with spaces/and|pipes",
    "идентификатор",
    "",
    "x" * 64 + "y",
)
NAMES = ("search", "mcp.server/tool", "a" * 80, "工具", "")
PROVIDERS = (None, "anthropic/claude-x", "openai/gpt-x", "anthropic/claude-y", "demo")
INPUTS: tuple[dict[str, Any], ...] = ({}, {"q": "x"}, {"nested": [1, None, {"a": "ü"}]})
RESULTS = ("ok", "", "  ", "12 results", "Error: no", "r" * 500, "🙂")
IMAGES = (
    Image(media_type="image/png", data="aGVsbG8="),
    Image(media_type="image/png", url="https://example.com/a.png"),
    Image(media_type="image/tiff", data="aGVsbG8="),
    Image(media_type="image/png", data="not base64!"),
    Image(media_type="image/png", data="abc"),
    Image(media_type="image/png"),
    Image(media_type="image/png", url="file:///etc/passwd"),
)
FILES = (
    FileRef(file_id=FileId("file_text"), name="notes.txt", mime_type="text/plain", size=5),
    FileRef(file_id=FileId("file_image"), name='a"b.png', mime_type="image/png", size=5),
    FileRef(file_id=FileId("file_gone"), name="old.txt", mime_type="text/plain", size=10**7),
    FileRef(file_id=FileId("file_other"), name="book.pdf", mime_type="application/pdf", size=2000),
    FileRef(file_id=FileId("file_blank"), name="blank.txt", mime_type="text/plain", size=1),
)
CONTENTS: Contents = {
    FileId("file_text"): TextContent("inside the file"),
    FileId("file_image"): PictureContent("image/png", "aGVsbG8="),
    FileId("file_gone"): Gone(),
    FileId("file_blank"): TextContent(" "),
}
LEGACY = (
    Legacy(content="old words"),
    Legacy(content=None),
    Legacy(content="", tool_calls=[]),
    Legacy(content=[{"type": "text", "text": "part"}, {"type": "mystery"}, "bare"]),
    Legacy(content="said", tool_calls=[{"id": "call_1", "function": {"name": "f", "arguments": '{"a":1}'}}]),
    Legacy(content="answer", tool_calls=[{"toolCallId": "c", "toolName": "f", "args": {}, "result": {"n": 1}}]),
    Legacy(content=None, tool_calls=[{"id": "call_9", "name": "f", "arguments": "{broken"}, "nonsense", {}]),
    Legacy(content=[{"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "r"}]}]),
    Legacy(content={"odd": True}, tool_calls="odd"),
)


class Case(Struct, frozen=True, kw_only=True):
    """A history and how it is to be compiled."""

    rows: list[Message]
    open_turn: TurnId
    budget: Budget
    thinking: Any
    sees_images: bool
    system: str


class Tape:
    """Decisions, one byte each; a tape that has run out answers 0."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def below(self, limit: int) -> int:
        at = self._at
        self._at += 1
        return self._data[at] % limit if at < len(self._data) else 0

    def one_in(self, n: int) -> bool:
        return self.below(n) == n - 1

    def pick(self, options: tuple[T, ...]) -> T:
        return options[self.below(len(options))]


def decode(data: bytes) -> Case:
    """Anything at all: crashes, lost and doubled results, imports, cut-off beginnings, small budgets."""
    tape = Tape(data)
    budget = Budget(turns=tape.pick((20, 3, 1)), size=tape.pick((400_000, 400_000, 900, 250, 40)))
    thinking = tape.pick(("off", "enabled", "adaptive"))
    system = tape.pick(("", "Be brief.", "  "))
    sees_images = not tape.one_in(3)
    rows: list[Message] = []
    count = 1 + tape.below(6)
    for number in range(count):
        rows.extend(_any_turn(tape, number))
    cut = tape.below(8)
    open_turn = rows[-1].turn_id if rows and rows[-1].turn_id else TurnId("turn_new")
    if cut < len(rows):
        rows = rows[cut:]
    return Case(
        rows=rows, open_turn=open_turn, budget=budget, thinking=thinking, sees_images=sees_images, system=system
    )


def _any_turn(tape: Tape, number: int) -> list[Message]:
    turn_id = "" if tape.one_in(5) else f"turn_{number}"
    provider = tape.pick(PROVIDERS)
    rows: list[Message] = []
    for _ in range(tape.below(5) + (0 if tape.one_in(6) else 1)):
        sequence = 0 if not turn_id else len(rows)
        role: Role = tape.pick(("user", "assistant", "assistant", "user", "system"))
        if sequence == 0 and not tape.one_in(4):
            role = "user"
        if tape.one_in(9):
            provider = tape.pick(PROVIDERS)
        rows.append(_any_row(tape, turn_id, sequence, role, provider, number))
    if tape.one_in(8):
        rows.reverse()
    return rows


def _any_row(tape: Tape, turn_id: str, sequence: int, role: Role, provider: str | None, number: int) -> Message:
    legacy = tape.pick(LEGACY) if tape.one_in(8) else None
    blocks = () if legacy and not tape.one_in(3) else tuple(_any_block(tape, role) for _ in range(tape.below(5)))
    attachments = (tape.pick(FILES),) if tape.one_in(7) else ()
    return row(turn_id, sequence, role, *blocks, provider=provider, legacy=legacy, attachments=attachments, ts=number)


def _any_block(tape: Tape, role: Role) -> Block:
    kinds = ("text", "call", "call", "result", "reasoning") if role == "assistant" else ("text", "result", "result")
    kind = tape.pick(("text", "call", "result", "reasoning", "image", "file")) if tape.one_in(6) else tape.pick(kinds)
    match kind:
        case "text":
            return Text(text=tape.pick(TEXTS))
        case "call":
            return ToolUse(id=CallId(tape.pick(IDS)), name=tape.pick(NAMES), input=tape.pick(INPUTS))
        case "result":
            content = tape.pick(RESULTS)
            return ToolResult(call_id=CallId(tape.pick(IDS)), content=content, is_error=tape.one_in(3))
        case "reasoning":
            return _any_reasoning(tape)
        case "image":
            return tape.pick(IMAGES)
        case _:
            return tape.pick(FILES)


def _any_reasoning(tape: Tape) -> Reasoning:
    return Reasoning(
        text=tape.pick(TEXTS),
        provider=tape.pick((None, "anthropic", "openai", "anthropic/claude-x", "openai/gpt-x")),
        signature=tape.pick((None, "sig", "", "sig2")),
        data=tape.pick((None, None, "ciphertext", "")),
        item_id=tape.pick((None, "rs_1", "weird")),
    )


def decode_honest(data: bytes) -> list[list[Message]]:
    """Turns as the engine leaves them: well formed, though some were stopped or crashed. One list per turn."""
    tape = Tape(data)
    turns: list[list[Message]] = []
    for number in range(2 + tape.below(5)):
        turn_id, provider = f"turn_{number}", tape.pick(PROVIDERS)
        rows = [row(turn_id, 0, "user", Text(text=tape.pick(TEXTS)), ts=number)]
        for iteration in range(tape.below(4)):
            calls = [
                ToolUse(
                    id=CallId(f"call_{number if tape.below(2) else 0}_{iteration}_{n}"), name="search", input={"n": n}
                )
                for n in range(1 + tape.below(3))
            ]
            said: list[Block] = [_any_reasoning(tape)] if tape.below(2) else []
            said += [Text(text=tape.pick(TEXTS))] if tape.below(2) else []
            rows.append(row(turn_id, len(rows), "assistant", *said, *calls, provider=provider, ts=number))
            results = [ToolResult(call_id=call.id, content=tape.pick(RESULTS)) for call in calls]
            if tape.one_in(3):
                results.reverse()
            rows.extend(row(turn_id, len(rows) + i, "user", result, ts=number) for i, result in enumerate(results))
        ending = tape.below(4)
        if ending > 1:
            rows.append(row(turn_id, len(rows), "assistant", Text(text=tape.pick(TEXTS)), provider=provider, ts=number))
        elif ending == 1 and len(rows) > 1:
            rows.pop()
        turns.append(rows)
    return turns


ANSWERS = (
    "paid 5",
    "Denied by ann: too expensive",
    "Denied by an API key.",
    "Denied: nobody decided in time. It was not run.",
    "not answered: the turn was stopped before anyone answered this call. It was not run.",
    "not answered: the turn was stopped before the client sent a result. It may or may not have been run.",
    "Allowed by ann, but the turn was stopped before this call ran. It was not run.",
    "not answered: the client sent no result in time.",
    '(ann changed the arguments to {"amount":3}.)\npaid 3',
    '{"sky":"rain"}',
)
"""What the model is told of calls that waited for a person or for the caller."""


def decode_waits(data: bytes) -> list[list[Message]]:
    """Turns whose calls waited, as the engine leaves them: each result is a row of its own, in the order in which it
    was known. Words that steer a turn stand between the results and the next iteration. The last turn may wait still:
    some of its calls have no result."""
    tape = Tape(data)
    turns: list[list[Message]] = []
    count = 1 + tape.below(5)
    for number in range(count):
        turn_id, provider = f"turn_{number}", tape.pick(PROVIDERS)
        rows = [row(turn_id, 0, "user", Text(text=tape.pick(TEXTS)), ts=number)]
        for iteration in range(1 + tape.below(3)):
            names = [f"call_{number}_{iteration if tape.below(4) else 0}_{n}" for n in range(1 + tape.below(4))]
            calls = [ToolUse(id=CallId(name), name="pay", input={"amount": 5}) for name in names]
            said: list[Block] = [_any_reasoning(tape)] if tape.below(2) else []
            rows.append(row(turn_id, len(rows), "assistant", *said, *calls, provider=provider, ts=number))
            is_last = number == count - 1
            answered_calls = [call for call in calls if not (is_last and tape.one_in(3))]
            if tape.below(2):  # those that needed no answer ran first
                answered_calls.reverse()
            for call in answered_calls:
                result = ToolResult(call_id=call.id, content=tape.pick(ANSWERS), is_error=tape.below(2) == 1)
                rows.append(row(turn_id, len(rows), "user", result, ts=number))
            if len(answered_calls) < len(calls):
                break
            for _ in range(tape.below(3)):
                rows.append(row(turn_id, len(rows), "user", Text(text=tape.pick(TEXTS)), ts=number))
        if tape.below(3):
            rows.append(row(turn_id, len(rows), "assistant", Text(text=tape.pick(TEXTS)), provider=provider, ts=number))
        turns.append(rows)
    return turns


def row(
    turn_id: str,
    sequence: int,
    role: Role,
    *blocks: Block,
    provider: str | None = None,
    legacy: Legacy | None = None,
    attachments: tuple[FileRef, ...] = (),
    ts: int = 0,
) -> Message:
    return Message(
        id=MessageId(f"msg_{turn_id}_{sequence}_{ts}"),
        turn_id=TurnId(turn_id),
        conversation_id=ConversationId("conv_1"),
        turn_sequence=sequence,
        role=role,
        blocks=blocks,
        created_at=1_700_000_000_000 + ts * 1000 + sequence,
        provider=provider,
        legacy=legacy,
        attachments=attachments,
    )


def asked(turn_id: str, text: str = "Hello.", *, ts: int = 0) -> Message:
    """A user's question, the first row of its turn."""
    return row(turn_id, 0, "user", Text(text=text), ts=ts)


def called(turn_id: str, sequence: int, *ids: str, text: str = "", provider: str | None = None) -> Message:
    """An iteration that asks for tools."""
    said = (Text(text=text),) if text else ()
    calls = (ToolUse(id=CallId(call_id), name="search", input={"q": call_id}) for call_id in ids)
    return row(turn_id, sequence, "assistant", *said, *calls, provider=provider)


def answered(turn_id: str, sequence: int, *ids: str) -> Message:
    """Results of tools, in one row."""
    return row(turn_id, sequence, "user", *(ToolResult(call_id=CallId(i), content=f"result of {i}") for i in ids))


def said(turn_id: str, sequence: int, text: str = "Done.", *, provider: str | None = None) -> Message:
    """The final answer."""
    return row(turn_id, sequence, "assistant", Text(text=text), provider=provider)
