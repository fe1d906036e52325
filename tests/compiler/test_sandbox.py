"""The sandbox's history reads as a person would read it."""

from typing import Any

from tests.compiler.histories import answered, asked, called, row, said
from turnkeep.compiler import Budget, TextContent, compile
from turnkeep.ids import FileId, TurnId
from turnkeep.model.messages import Message
from turnkeep_client.wire.blocks import FileRef, Text


def entries(rows: list[Message], **more: Any) -> list[tuple[str, str]]:
    compiled = compile(rows, target="sandbox", **more)
    return [(entry["role"], entry["content"]) for entry in compiled.messages]


class TestTheHistory:
    def test_holds_questions_and_answers_with_their_times(self) -> None:
        rows = [asked("turn_a", "q", ts=1), said("turn_a", 1, "a")]
        assert compile(rows, target="sandbox").messages == [
            {"role": "user", "content": "q", "ts": rows[0].created_at},
            {"role": "assistant", "content": "a", "ts": rows[1].created_at},
        ]

    def test_leaves_tools_out_and_joins_what_was_said_around_them(self) -> None:
        tools = [called("turn_a", 1, "c", text="Looking."), answered("turn_a", 2, "c"), said("turn_a", 3, "Found.")]
        assert entries([asked("turn_a", "q"), *tools]) == [("user", "q"), ("assistant", "Looking.\n\nFound.")]

    def test_shows_failed_and_cancelled_turns_as_they_read(self) -> None:
        rows = [asked("turn_a", "q"), asked("turn_b", "r"), said("turn_b", 1, "half an ans"), asked("turn_c", "s")]
        assert entries(rows) == [("user", "q"), ("user", "r"), ("assistant", "half an ans"), ("user", "s")]

    def test_ends_before_the_open_turn(self) -> None:
        rows = [asked("turn_a", "q"), said("turn_a", 1, "a"), asked("turn_b", "now")]
        assert entries(rows, open_turn=TurnId("turn_b")) == [("user", "q"), ("assistant", "a")]
        assert compile(rows, target="sandbox", open_turn=TurnId("turn_b")).turns_dropped == 0

    def test_keeps_to_whole_turns_within_the_budget(self) -> None:
        rows = [asked("turn_a", "q" * 90), said("turn_a", 1, "a" * 20), asked("turn_b", "r"), said("turn_b", 1, "b")]
        assert entries(rows, budget=Budget(size=100)) == [("user", "r"), ("assistant", "b")]

    def test_names_files_and_leaves_instructions_out(self) -> None:
        file = FileRef(file_id=FileId("file_1"), name="a.txt", mime_type="text/plain", size=3)
        rows = [row("turn_a", 0, "system", Text(text="x")), row("turn_a", 1, "user", file)]
        shown = entries(rows, contents={file.file_id: TextContent("secret")})
        assert shown == [("user", "[file: a.txt, text/plain, 3 bytes]")]

    def test_blank_messages_leave_no_entry(self) -> None:
        assert entries([asked("turn_a", " "), said("turn_a", 1, "\n")]) == []
