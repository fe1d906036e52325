"""Whole requests, byte for byte. `python -m tests.compiler.test_golden` writes them anew after a wanted change."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.compiler.histories import answered, asked, called, row, said
from turnkeep.compiler import Compiled, Contents, Gone, PictureContent, Target, TextContent, compile
from turnkeep.ids import CallId, FileId, TurnId
from turnkeep.model.messages import Legacy, Message
from turnkeep_client.wire.blocks import FileRef, Image, Reasoning, Text, ToolResult, ToolUse

GOLDEN = Path(__file__).with_name("golden")
TARGETS: tuple[Target, ...] = ("anthropic", "openai_chat", "openai_responses", "sandbox")
CLAUDE, GPT = "anthropic/claude-x", "openai/gpt-x"

NOTES = FileRef(file_id=FileId("file_notes"), name="notes.txt", mime_type="text/plain", size=21)
PHOTO = FileRef(file_id=FileId("file_photo"), name="photo.png", mime_type="image/png", size=5)
SHEET = FileRef(file_id=FileId("file_sheet"), name="sheet.xlsx", mime_type="application/vnd.ms-excel", size=48_000)
LOST = FileRef(file_id=FileId("file_lost"), name="lost.csv", mime_type="text/csv", size=9)
CONTENTS: Contents = {
    NOTES.file_id: TextContent("Buy milk.\nCall Ada."),
    PHOTO.file_id: PictureContent("image/png", "aGVsbG8="),
    LOST.file_id: Gone(),
}


def tool_turn() -> list[Message]:
    """Two questions answered, the second with parallel tools, and a third that waits for its answer."""
    thought = Reasoning(text="Two lookups.", provider="anthropic", signature="sig_1")
    return [
        asked("turn_1", "Hello!", ts=1),
        said("turn_1", 1, "Hi, how can I help?", provider=CLAUDE),
        asked("turn_2", "Weather in Paris and Oslo?", ts=2),
        row(
            "turn_2",
            1,
            "assistant",
            thought,
            Text(text="Let me look."),
            ToolUse(id=CallId("call_p"), name="weather", input={"city": "Paris"}),
            ToolUse(id=CallId("call_o"), name="weather", input={"city": "Oslo"}),
            provider=CLAUDE,
            ts=2,
        ),
        row("turn_2", 2, "user", ToolResult(call_id=CallId("call_o"), content="-3 °C"), ts=2),
        row("turn_2", 3, "user", ToolResult(call_id=CallId("call_p"), content="timeout", is_error=True), ts=2),
        row("turn_2", 4, "assistant", Text(text="Oslo: -3 °C. Paris did not answer."), provider=CLAUDE, ts=2),
        asked("turn_3", "Thanks. And Rome?", ts=3),
    ]


def crashed_turns() -> list[Message]:
    """A turn that failed before any answer, one that crashed among its tools, one that was stopped in mid-sentence."""
    return [
        asked("turn_1", "Are you there?", ts=1),
        asked("turn_2", "Book the room.", ts=2),
        called("turn_2", 1, "call_1", text="Booking it.", provider=CLAUDE),
        asked("turn_3", "Tell me a story.", ts=3),
        said("turn_3", 1, "Once upon a", provider=CLAUDE),
        asked("turn_4", "So, is the room booked?", ts=4),
    ]


def provider_switch() -> list[Message]:
    """A conversation that began with one provider and goes on with another, with ids that only the first accepts."""
    sealed = Reasoning(text="Search first.", provider="openai", data="cipher", item_id="rs_1")
    long = "call_" + "x" * 70
    return [
        asked("turn_1", "Find it.", ts=1),
        row(
            "turn_1",
            1,
            "assistant",
            sealed,
            ToolUse(id=CallId(long), name="files.search", input={"q": "it"}),
            provider=GPT,
            ts=1,
        ),
        row("turn_1", 2, "user", ToolResult(call_id=CallId(long), content=""), ts=1),
        said("turn_1", 3, "Found nothing.", provider=GPT),
        asked("turn_2", "Look again.", ts=2),
        row(
            "turn_2",
            1,
            "assistant",
            Reasoning(text="Again.", provider="anthropic", signature="sig_2"),
            ToolUse(id=CallId(long), name="files.search", input={"q": "it", "deep": True}),
            provider=CLAUDE,
            ts=2,
        ),
        row("turn_2", 2, "user", ToolResult(call_id=CallId(long), content="it.txt"), ts=2),
    ]


def attachments() -> list[Message]:
    """A message with every kind of file, and a picture pasted into the text."""
    pasted = Image(media_type="image/jpeg", url="https://example.com/cat.jpg")
    files = (NOTES, PHOTO, SHEET, LOST)
    return [row("turn_1", 0, "user", Text(text="What is in these?"), pasted, attachments=files, ts=1)]


def imported() -> list[Message]:
    """Rows from before there were turns: an instruction, plain content, legacy tool calls, an empty answer."""
    call = {"id": "call_1", "type": "function", "function": {"name": "sum", "arguments": '{"of":[1,2]}'}}
    return [
        row("", 0, "system", Text(text="Answer in French."), ts=1),
        row("", 0, "user", legacy=Legacy(content="1 + 2?"), ts=2),
        row("", 0, "assistant", legacy=Legacy(content=None, tool_calls=[call]), ts=3),
        row("", 0, "user", *answered("", 0, "call_1").blocks, ts=4),
        row("", 0, "assistant", legacy=Legacy(content=[{"type": "text", "text": "Trois."}]), ts=5),
        row("", 0, "assistant", legacy=Legacy(content=""), ts=6),
        asked("turn_now", "Merci.", ts=7),
    ]


SCENARIOS: dict[str, Callable[[], list[Message]]] = {
    "tool_turn": tool_turn,
    "crashed_turns": crashed_turns,
    "provider_switch": provider_switch,
    "attachments": attachments,
    "imported": imported,
}


def compiled(name: str, target: Target) -> Compiled:
    rows = SCENARIOS[name]()
    return compile(
        rows,
        target=target,
        open_turn=TurnId(rows[-1].turn_id),
        system="You are a helpful assistant.",
        contents=CONTENTS,
        thinking="adaptive",
    )


def golden(name: str) -> dict[str, Any]:
    """What the scenario comes to, for every target."""
    requests = {target: compiled(name, target) for target in TARGETS}
    return {
        "what": (SCENARIOS[name].__doc__ or "").strip(),
        "repairs": [repair.kind for repair in requests["anthropic"].repairs],
        **{target: {"system": one.system, "messages": one.messages} for target, one in requests.items()},
    }


@pytest.mark.parametrize("name", SCENARIOS)
class TestTheRequests:
    def test_are_what_they_were(self, name: str) -> None:
        assert golden(name) == json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))


if __name__ == "__main__":
    for scenario in SCENARIOS:
        text = json.dumps(golden(scenario), ensure_ascii=False, indent=2)
        (GOLDEN / f"{scenario}.json").write_text(text + "\n", "utf-8")
