"""Files are attached with the button, by drag and drop, or by paste; within limits, with progress and previews."""

import base64
from pathlib import Path

import pytest
from playwright.async_api import FilePayload, Locator, Page, expect

from tests.api.harness import settings_for
from tests.browser.harness import ChatPage, Harness, png
from tests.browser.stored_conversations import append_turn, long_conversation
from tests.knowledge.test_file_tools import zipped
from turnkeep.config import Settings
from turnkeep_client.wire.blocks import FilePart, TextPart

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


async def send_file_event(page: Page, script: str, target: Locator, name: str, mime_type: str, body: bytes) -> None:
    handle = await target.element_handle()
    await page.evaluate(script, [handle, name, mime_type, base64.b64encode(body).decode()])


async def attach_file(page: Page, name: str, mime_type: str, body: bytes) -> None:
    async with page.expect_file_chooser() as choosing:
        await page.get_by_role("button", name="Attach files").click()
    chooser = await choosing.value
    payload: FilePayload = {"name": name, "mimeType": mime_type, "buffer": body}
    await chooser.set_files([payload])


class TestAttach:
    async def test_with_the_button_drop_and_paste_in_a_new_and_an_existing_conversation(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness)
        done = chat.page.locator(".uploads [data-state=done]")
        await attach_file(chat.page, "notes.txt", "text/plain", b"Some notes.")
        await expect(done).to_have_count(1)
        await send_file_event(chat.page, DROP, chat.page.locator("main"), "chart.png", "image/png", png())
        await expect(done).to_have_count(2)
        await send_file_event(chat.page, PASTE, chat.message_box, "pasted.png", "image/png", png(colour=(200, 80, 60)))
        await expect(done).to_have_count(3)
        await chat.send("Look at these")
        await chat.wait_settled()
        chips = chat.questions.get_by_role("list", name="Attached files")
        await expect(chips.locator(".chip-name")).to_have_text(["notes.txt", "chart.png", "pasted.png"])
        await expect(done).to_have_count(0)
        for preview in await chips.locator("img").all():
            await expect(preview).to_have_js_property("naturalWidth", 64)
        await expect(chips.locator(".chip-reading")).to_have_count(3)
        live = await chat.drawn_html()
        await chat.page.reload()
        await chat.wait_settled()
        assert await chat.drawn_html() == live
        await attach_file(chat.page, "more.txt", "text/plain", b"More.")
        await expect(done).to_have_count(1)
        await chat.send("And this")
        await chat.wait_settled(2)
        async with chat.page.expect_download() as downloading:
            await chat.questions.get_by_role("link", name="Download more.txt").click()
        download = await downloading.value
        assert Path(await download.path()).read_bytes() == b"More."

    async def test_a_file_that_was_dropped_elsewhere_or_removed_is_not_sent(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness)
        # Otherwise the browser would leave the page and open the file.
        assert await chat.page.locator("aside").evaluate(IS_DROP_REFUSED)
        await attach_file(chat.page, "wrong.txt", "text/plain", b"Not this one.")
        await expect(chat.page.locator("[data-state=done]")).to_have_count(1)
        await chat.page.get_by_role("button", name="Remove wrong.txt").click()
        await expect(chat.page.locator(".uploads")).to_have_count(0)
        await chat.send("Without a file")
        await chat.wait_settled()
        await expect(chat.questions.locator(".chip")).to_have_count(0)

    async def test_a_file_that_the_model_did_not_read_says_so(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness)
        done = chat.page.locator(".uploads [data-state=done]")
        await attach_file(chat.page, "all-of-march.zip", "application/zip", zipped({"a.txt": b"a"}))
        await attach_file(chat.page, "long.txt", "text/plain", b"x" * 500_000)
        await attach_file(chat.page, "notes.txt", "text/plain", b"Short.")
        await expect(done).to_have_count(3)
        await chat.send("Look at these")
        await chat.wait_settled()
        chips = chat.questions.locator(".chip")
        for _ in range(2):
            await expect(chips.nth(0)).to_contain_text("The model got only the name")
            await expect(chips.nth(1)).to_contain_text("Too long: the model got the beginning")
            await expect(chips.nth(2)).to_contain_text("The model reads it")
            cut = (
                "(names) => names.filter((name) => name.scrollWidth > name.clientWidth).map((name) => name.textContent)"
            )
            assert await chips.locator(".chip-name").evaluate_all(cut) == [], "the note takes no place from the name"
            await chat.page.reload()


class TestAssistantFiles:
    async def test_can_be_downloaded_from_the_answer(self, harness: Harness) -> None:
        conversation_id = await long_conversation(harness, 1)
        client = await harness.api()
        form = {"file": ("report.txt", b"All is well.", "text/plain")}
        made = (await client.post(f"/v1/conversations/{conversation_id}/files", files=form)).json()["data"][0]
        file = FilePart(file_id=made["id"], name=made["name"], mime_type=made["mime_type"], size=made["size"])
        parts = (TextPart(text="Here is the report."), file)
        await append_turn(harness, conversation_id, "Write a report", parts)
        chat = await ChatPage.open(harness, f"/c/{conversation_id}")
        async with chat.page.expect_download() as downloading:
            await chat.answers.last.get_by_role("link", name="Download report.txt").click()
        assert Path(await (await downloading.value).path()).read_bytes() == b"All is well."


class TestLimits:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        return settings_for(tmp_path, max_file_bytes=10_000, max_files_per_message=2)

    async def test_are_checked_and_explained_before_the_upload(self, harness: Harness) -> None:
        requests: list[str] = []
        harness.context.on("request", lambda request: requests.append(request.url))
        chat = await ChatPage.open(harness)
        await expect(chat.page.get_by_role("button", name="Up to 2 files of 9.8 kB each")).to_be_visible()
        await attach_file(chat.page, "big.bin", "application/zip", b"x" * 10_001)
        refusal = "big.bin is 9.8 kB. The limit for one file is 9.8 kB."
        await expect(chat.page.get_by_role("alert")).to_contain_text(refusal)
        for name in ("a.txt", "b.txt", "c.txt"):
            await attach_file(chat.page, name, "text/plain", b"small")
        await expect(chat.page.get_by_text("A message can have up to 2 files.")).to_be_visible()
        await expect(chat.page.locator(".uploads .chip")).to_have_count(2)
        assert sum(url.endswith("/v1/files") for url in requests) == 2

    async def test_a_refusal_by_the_server_is_shown_at_the_file(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness)
        await attach_file(chat.page, "tool.exe", "application/x-msdownload", b"MZ" + bytes(400))
        refused = chat.page.locator(".uploads [data-state=failed]")
        await expect(refused.get_by_role("alert")).to_contain_text("'tool.exe' is not accepted")
