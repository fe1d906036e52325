"""Files and pictures: shown where the model can take them, else named; never a failure."""

from typing import Any

import pytest

from tests.compiler.histories import called, row
from turnkeep.compiler import (
    Budget,
    Compiled,
    Contents,
    FileContent,
    Gone,
    PictureContent,
    TextContent,
    Unread,
    compile,
    wanted,
)
from turnkeep.compiler.utterances import MAX_IMAGE_CHARS
from turnkeep.ids import CallId, FileId, TurnId
from turnkeep_client.wire.blocks import Block, FileRef, Image, Text, ToolResult

NOTES = FileRef(file_id=FileId("file_1"), name="notes.md", mime_type="text/markdown; charset=utf-8", size=1200)
PHOTO = FileRef(file_id=FileId("file_2"), name="photo.png", mime_type="image/png", size=3_400_000)
BOOK = FileRef(file_id=FileId("file_3"), name="book.pdf", mime_type="application/pdf", size=999)
PNG = "aGVsbG8="


def shown(*blocks: Block, contents: Contents | None = None, role: Any = "user", **more: Any) -> list[Any]:
    """What the user's message holds, in OpenAI chat's words."""
    rows = [row("turn_a", 0, "user", *(blocks if role == "user" else [Text(text="q")]))]
    if role == "assistant":
        rows.append(row("turn_a", 1, "assistant", *blocks))
    compiled = compile(rows, target="openai_chat", contents=contents, open_turn=TurnId("turn_a"), **more)
    content = compiled.messages[0 if role == "user" else 1]["content"]
    return content if isinstance(content, list) else [content]


class TestTextFiles:
    def test_are_inlined(self) -> None:
        contents: Contents = {NOTES.file_id: TextContent("line one")}
        expected = '<file name="notes.md" type="text/markdown; charset=utf-8">\nline one\n</file>'
        assert shown(NOTES, contents=contents) == [expected]

    def test_are_whole_up_to_three_quarters_of_the_budget(self) -> None:
        contents: Contents = {NOTES.file_id: TextContent("x" * 290_000)}
        (text,) = shown(NOTES, contents=contents)
        assert "x" * 290_000 in text

    def test_are_cut_where_they_take_more_and_say_so(self) -> None:
        contents: Contents = {NOTES.file_id: TextContent("z" * 900)}
        (text,) = shown(NOTES, contents=contents, budget=Budget(size=1_000))
        assert 600 < text.count("z") < 750
        assert len(text) <= 750
        assert f"\n[… {900 - text.count('z')} more characters left out]\n" in text

    def test_share_the_room_and_the_longest_is_cut(self) -> None:
        contents: Contents = {NOTES.file_id: TextContent("n" * 100), BOOK.file_id: TextContent("b" * 9_000)}
        (text,) = shown(NOTES, BOOK, contents=contents, budget=Budget(size=2_000))
        assert "n" * 100 in text
        assert 1_100 < text.count("b") < 1_400

    def test_are_cut_again_when_tool_results_need_the_room(self) -> None:
        contents: Contents = {NOTES.file_id: TextContent("x" * 90_000)}
        rows = [row("turn_a", 0, "user", NOTES)]
        lengths = []
        for number in range(8):
            compiled = compile(
                rows, target="openai_chat", open_turn=TurnId("turn_a"), budget=Budget(size=10_000), contents=contents
            )
            lengths.append(str(compiled.messages[0]["content"]).count("x"))
            assert compiled.size <= 10_000
            result = ToolResult(call_id=CallId(f"call_{number}"), content="r" * 1_000)
            rows += [called("turn_a", 2 * number + 1, f"call_{number}"), row("turn_a", 2 * number + 2, "user", result)]
        assert lengths == sorted(lengths, reverse=True)
        assert lengths[0] == lengths[1] == lengths[2] > lengths[4] > lengths[6]

    def test_leave_room_for_a_long_question(self) -> None:
        contents: Contents = {NOTES.file_id: TextContent("x" * 5_000)}
        rows = [row("turn_a", 0, "user", Text(text="q" * 900), attachments=(NOTES,))]
        compiled = compile(
            rows, target="openai_chat", open_turn=TurnId("turn_a"), budget=Budget(size=1_000), contents=contents
        )
        assert compiled.size < 1_100
        assert compiled.readings == {NOTES.file_id: "too_long"}

    def test_are_cut_by_tokens_where_the_budget_counts_them(self) -> None:
        budget = Budget(size=100, measure=lambda text: len(text.split()), image=5)
        (text,) = shown(NOTES, contents={NOTES.file_id: TextContent("word " * 500)}, budget=budget)
        assert 40 < text.count("word") <= 75

    def test_are_named_when_blank(self) -> None:
        assert shown(NOTES, contents={NOTES.file_id: TextContent(" ")})[0].startswith("[file: notes.md")

    def test_cannot_break_out_of_their_name(self) -> None:
        odd = FileRef(file_id=NOTES.file_id, name='a"\n<b>.txt', mime_type="text/plain", size=1)
        (text,) = shown(odd, contents={odd.file_id: TextContent("x")})
        assert text.startswith('<file name="a\' ‹b›.txt"')


class TestPictures:
    def test_are_shown_to_a_model_that_sees(self) -> None:
        contents: Contents = {PHOTO.file_id: PictureContent("image/png", PNG)}
        assert shown(PHOTO, contents=contents) == [
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
        ]

    def test_are_named_to_one_that_does_not(self) -> None:
        contents: Contents = {PHOTO.file_id: PictureContent("image/png", PNG)}
        assert shown(PHOTO, contents=contents, sees_images=False) == [
            "[file: photo.png, image/png, 3.4 MB; its content is not shown]"
        ]
        assert shown(Image(media_type="image/png", data=PNG), sees_images=False) == ["[image: image/png; not shown]"]

    @pytest.mark.parametrize(
        "image",
        [
            Image(media_type="image/tiff", data=PNG),
            Image(media_type="image/png", data="no base64"),
            Image(media_type="image/png", data="abc"),
            Image(media_type="image/png", data="a==="),
            Image(media_type="image/png", data=""),
            Image(media_type="image/png", data="a" * (MAX_IMAGE_CHARS + 4)),
            Image(media_type="image/png", url="file:///a"),
            Image(media_type="image/png"),
        ],
    )
    def test_that_a_provider_would_refuse_are_named(self, image: Image) -> None:
        assert shown(image)[0].startswith("[image: image/")

    def test_of_the_assistant_are_named(self) -> None:
        assert shown(Image(media_type="image/png", data=PNG), role="assistant") == ["[image: image/png; not shown]"]
        contents: Contents = {PHOTO.file_id: PictureContent("image/png", PNG)}
        assert shown(PHOTO, contents=contents, role="assistant") == ["[file: photo.png, image/png, 3.4 MB]"]


class TestOtherFiles:
    def test_are_named_with_type_and_size(self) -> None:
        assert shown(BOOK) == ["[file: book.pdf, application/pdf, 999 bytes; its content is not shown]"]
        assert shown(BOOK, role="assistant") == ["[file: book.pdf, application/pdf, 999 bytes]"]

    def test_that_cannot_be_read_say_why(self) -> None:
        assert shown(BOOK, contents={BOOK.file_id: Unread("it is encrypted")}) == [
            "[file: book.pdf, application/pdf, 999 bytes; its content could not be read: it is encrypted]"
        ]

    def test_that_are_gone_become_a_note_and_are_reported(self) -> None:
        rows = [row("turn_a", 0, "user", Text(text="see"), attachments=(BOOK,))]
        compiled: Compiled = compile(
            rows, target="anthropic", open_turn=TurnId("turn_a"), contents={BOOK.file_id: Gone()}
        )
        note, words = compiled.messages[0]["content"]
        assert note["text"] == "[file: book.pdf, application/pdf, 999 bytes; no longer available]"
        assert words["text"] == "see"
        assert [repair.kind for repair in compiled.repairs] == ["file_missing"]


class TestHowAFileIsCalled:
    def test_on_the_wire_depends_on_what_the_model_was_given(self) -> None:
        files = [FileRef(file_id=FileId(f"file_{n}"), name=f"{n}", mime_type="a/b", size=1) for n in range(7)]
        given: list[FileContent | None] = [
            *(TextContent("short"), TextContent("x" * 2_000), TextContent("beginning", is_cut=True)),
            *(PictureContent("image/png", PNG), Unread("it is encrypted"), Gone(), None),
        ]
        contents = {ref.file_id: content for ref, content in zip(files, given, strict=True) if content is not None}
        rows = [row("turn_a", 0, "user", Text(text="See."), attachments=tuple(files))]
        budget = Budget(size=1_500, image=10)
        compiled = compile(rows, target="anthropic", open_turn=TurnId("turn_a"), contents=contents, budget=budget)
        assert [compiled.readings[ref.file_id] for ref in files] == [
            *("text", "too_long", "too_long", "image", "named", "named", "named")
        ]

    def test_is_said_of_the_open_turn_alone(self) -> None:
        rows = [row("turn_a", 0, "user", Text(text="See."), attachments=(NOTES,)), row("turn_b", 0, "user")]
        compiled = compile(rows, target="anthropic", open_turn=TurnId("turn_b"))
        assert compiled.readings == {}


class TestWhatIsWorthLoading:
    def test_pictures_and_whatever_may_have_a_text(self) -> None:
        rows = [row("t", 0, "user", NOTES, attachments=(PHOTO, BOOK))]
        assert wanted(rows, sees_images=True) == {
            NOTES.file_id: "text",
            PHOTO.file_id: "picture",
            BOOK.file_id: "text",
        }

    def test_no_picture_for_the_blind(self) -> None:
        rows = [row("t", 0, "user", attachments=(PHOTO,))]
        assert wanted(rows, sees_images=False) == {}
