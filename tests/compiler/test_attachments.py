"""Files and pictures: shown where the model can take them, else named; never a failure."""

from typing import Any

import pytest

from tests.compiler.histories import row
from turnkeep.compiler import Compiled, Contents, Gone, PictureContent, TextContent, compile, wanted
from turnkeep.compiler.utterances import MAX_IMAGE_CHARS
from turnkeep.ids import FileId, TurnId
from turnkeep_client.wire.blocks import Block, FileRef, Image, Text

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

    def test_are_cut_at_the_limit_and_say_so(self) -> None:
        contents: Contents = {NOTES.file_id: TextContent("x" * 100)}
        (text,) = shown(NOTES, contents=contents, inline_chars=30)
        assert "\n" + "x" * 30 + "\n[… 70 more characters left out]\n" in text

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
        assert shown(PHOTO, contents=contents, sees_images=False) == ["[file: photo.png, image/png, 3.4 MB]"]
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
        assert shown(BOOK) == ["[file: book.pdf, application/pdf, 999 bytes]"]
        assert shown(NOTES) == ["[file: notes.md, text/markdown; charset=utf-8, 1.2 kB]"]

    def test_that_are_gone_become_a_note_and_are_reported(self) -> None:
        rows = [row("turn_a", 0, "user", Text(text="see"), attachments=(BOOK,))]
        compiled: Compiled = compile(
            rows, target="anthropic", open_turn=TurnId("turn_a"), contents={BOOK.file_id: Gone()}
        )
        note, words = compiled.messages[0]["content"]
        assert note["text"] == "[file: book.pdf, application/pdf, 999 bytes; no longer available]"
        assert words["text"] == "see"
        assert [repair.kind for repair in compiled.repairs] == ["file_missing"]


class TestWhatIsWorthLoading:
    def test_texts_and_pictures_that_can_be_shown(self) -> None:
        rows = [row("t", 0, "user", NOTES, attachments=(PHOTO, BOOK))]
        assert wanted(rows, sees_images=True) == {NOTES.file_id: "text", PHOTO.file_id: "picture"}

    def test_no_picture_for_the_blind_and_none_that_is_too_large(self) -> None:
        large = FileRef(file_id=FileId("file_9"), name="x.png", mime_type="image/png", size=4_000_000)
        rows = [row("t", 0, "user", attachments=(PHOTO, large))]
        assert wanted(rows, sees_images=False) == {}
        assert wanted(rows, sees_images=True) == {PHOTO.file_id: "picture"}
