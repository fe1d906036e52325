"""Files go into a message in three ways, with progress and limits, and come out again as chips and previews."""

import base64
from pathlib import Path

import pytest
from playwright.async_api import FilePayload, Locator, Page, expect
from tests.browser.harness import House, Talk, picture
from tests.browser.stored_conversations import append_turn, long_conversation

from tests.api.harness import settings_for
from turnkeep.config import Settings
from turnkeep_client.wire.parts import FilePart, TextPart

DROP = """([target, name, type, base64]) => {
  const bytes = Uint8Array.from(atob(base64), (each) => each.charCodeAt(0));
  const carried = new DataTransfer();
  carried.items.add(new File([bytes], name, { type }));
  for (const kind of ["dragenter", "dragover", "drop"])
    target.dispatchEvent(new DragEvent(kind, { bubbles: true, cancelable: true, dataTransfer: carried }));
}"""
PASTE = """([target, name, type, base64]) => {
  const bytes = Uint8Array.from(atob(base64), (each) => each.charCodeAt(0));
  const carried = new DataTransfer();
  carried.items.add(new File([bytes], name, { type }));
  target.dispatchEvent(new ClipboardEvent("paste", { bubbles: true, cancelable: true, clipboardData: carried }));
}"""

IS_DROP_REFUSED = """target => {
  const carried = new DataTransfer();
  carried.items.add(new File(["x"], "x.txt"));
  const dropped = new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer: carried });
  return !target.dispatchEvent(dropped);
}"""


async def give(page: Page, script: str, target: Locator, name: str, mime_type: str, body: bytes) -> None:
    handle = await target.element_handle()
    await page.evaluate(script, [handle, name, mime_type, base64.b64encode(body).decode()])


async def choose(page: Page, name: str, mime_type: str, body: bytes) -> None:
    async with page.expect_file_chooser() as choosing:
        await page.get_by_role("button", name="Attach files").click()
    chooser = await choosing.value
    payload: FilePayload = {"name": name, "mimeType": mime_type, "buffer": body}
    await chooser.set_files([payload])


class TestThreeWays:
    async def test_paperclip_drop_and_paste_in_a_new_conversation_and_in_an_old_one(self, house: House) -> None:
        talk = await Talk.begin(house)
        done = talk.page.locator(".attaching [data-state=done]")
        await choose(talk.page, "notes.txt", "text/plain", b"Some notes.")
        await expect(done).to_have_count(1)
        await give(talk.page, DROP, talk.page.locator("main"), "chart.png", "image/png", picture())
        await expect(done).to_have_count(2)
        await give(talk.page, PASTE, talk.message, "pasted.png", "image/png", picture(colour=(200, 80, 60)))
        await expect(done).to_have_count(3)
        await talk.say("Look at these")
        await talk.settled()
        chips = talk.questions.get_by_role("list", name="Attached files")
        await expect(chips.locator(".chip-name")).to_have_text(["notes.txt", "chart.png", "pasted.png"])
        await expect(done).to_have_count(0)
        for preview in await chips.locator("img").all():
            await expect(preview).to_have_js_property("naturalWidth", 64)
        live = await talk.shown()
        await talk.page.reload()
        await talk.settled()
        assert await talk.shown() == live
        await choose(talk.page, "more.txt", "text/plain", b"More.")
        await expect(done).to_have_count(1)
        await talk.say("And this")
        await talk.settled(2)
        async with talk.page.expect_download() as downloading:
            await talk.questions.get_by_text("more.txt").click()
        download = await downloading.value
        assert Path(await download.path()).read_bytes() == b"More."

    async def test_one_that_is_dropped_beside_the_place_or_taken_out_again_is_not_sent(self, house: House) -> None:
        talk = await Talk.begin(house)
        # A browser would open it in place of the page.
        assert await talk.page.locator("aside").evaluate(IS_DROP_REFUSED)
        await choose(talk.page, "wrong.txt", "text/plain", b"Not this one.")
        await expect(talk.page.locator("[data-state=done]")).to_have_count(1)
        await talk.page.get_by_role("button", name="Remove wrong.txt").click()
        await expect(talk.page.locator(".attaching")).to_have_count(0)
        await talk.say("Without a file")
        await talk.settled()
        await expect(talk.questions.locator(".chip")).to_have_count(0)


class TestFilesOfTheAssistant:
    async def test_are_offered_to_download_where_they_were_made(self, house: House) -> None:
        conversation_id = await long_conversation(house, 1)
        client = await house.api()
        form = {"file": ("report.txt", b"All is well.", "text/plain")}
        made = (await client.post(f"/v1/conversations/{conversation_id}/files", files=form)).json()["data"][0]
        file = FilePart(file_id=made["id"], name=made["name"], mime_type=made["mime_type"], size=made["size"])
        parts = (TextPart(text="Here is the report."), file)
        await append_turn(house, conversation_id, "Write a report", parts)
        talk = await Talk.begin(house, f"/c/{conversation_id}")
        async with talk.page.expect_download() as downloading:
            await talk.answers.last.get_by_role("list", name="Files").get_by_text("report.txt").click()
        assert Path(await (await downloading.value).path()).read_bytes() == b"All is well."


class TestLimits:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        return settings_for(tmp_path, max_file_bytes=10_000, max_files_per_message=2)

    async def test_are_explained_before_anything_is_uploaded(self, house: House) -> None:
        asked: list[str] = []
        house.context.on("request", lambda request: asked.append(request.url))
        talk = await Talk.begin(house)
        await expect(talk.page.get_by_role("button", name="Up to 2 files of 9.8 kB each")).to_be_visible()
        await choose(talk.page, "big.bin", "application/zip", b"x" * 10_001)
        await expect(talk.page.get_by_role("alert")).to_contain_text("big.bin is 9.8 kB. Files may have up to 9.8 kB.")
        for name in ("a.txt", "b.txt", "c.txt"):
            await choose(talk.page, name, "text/plain", b"small")
        await expect(talk.page.get_by_text("A message takes up to 2 files.")).to_be_visible()
        await expect(talk.page.locator(".attaching .chip")).to_have_count(2)
        assert sum(url.endswith("/v1/files") for url in asked) == 2

    async def test_what_the_server_refuses_is_said_at_the_file(self, house: House) -> None:
        talk = await Talk.begin(house)
        await choose(talk.page, "tool.exe", "application/x-msdownload", b"MZ" + bytes(400))
        refused = talk.page.locator(".attaching [data-state=failed]")
        await expect(refused.get_by_role("alert")).to_contain_text("'tool.exe' is not accepted")
