"""What a user writes is never dropped: messages that are not sent, refused messages, drafts with files, forms."""

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import Dialog, Page, Route, expect

from tests.api.harness import settings_for
from tests.browser.harness import ChatPage, Harness, png, wait_until
from tests.browser.stored_conversations import long_conversation
from tests.browser.test_attachments import attach_file
from turnkeep.config import Settings
from turnkeep.providers.scripted import Pause


class TestAMessageThatIsNotSent:
    async def test_is_in_the_composer_again_with_its_files(self, harness: Harness) -> None:
        harness.scripts.say("First ", Pause(60), "answer.")
        harness.scripts.say("Second answer.")
        chat = await ChatPage.open(harness)
        await chat.send("One")
        await expect(chat.answers.get_by_text("First")).to_be_visible()
        await attach_file(chat.page, "notes.txt", "text/plain", b"Some notes.")
        await expect(chat.page.locator(".uploads [data-state=done]")).to_have_count(1)
        await chat.send("Two, with notes")
        await expect(chat.page.get_by_text("Queued")).to_be_visible()
        await chat.message_box.fill("Begun since")
        await chat.page.get_by_role("button", name="Do not send").click()
        await expect(chat.questions).to_have_count(1)
        await expect(chat.message_box).to_have_value("Two, with notes\n\nBegun since")
        await expect(chat.page.locator(".uploads .chip-name")).to_have_text("notes.txt")
        await chat.page.get_by_role("button", name="Stop the answer").click()
        await chat.wait_settled()
        await chat.message_box.press("Enter")
        await expect(chat.answers.get_by_text("Second answer.")).to_be_visible()
        await expect(chat.questions.last.locator(".chip-name")).to_have_text("notes.txt")
        assert "Some notes." in str(harness.scripts.requests[-1].messages)


class TestARefusedMessage:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        return settings_for(tmp_path, max_body_bytes=2_000)

    async def test_stays_in_its_conversation(self, harness: Harness) -> None:
        first, second = await long_conversation(harness, 1), await long_conversation(harness, 1)
        chat = await ChatPage.open(harness, f"/c/{first}")
        await chat.send("long " * 1_000)
        refusal = chat.questions.get_by_role("alert")
        await expect(refusal).to_contain_text("This message was not sent. The body is over")
        await chat.page.goto(f"{harness.server.url}/c/{second}")
        await expect(chat.answers).to_have_count(1)
        await expect(refusal).to_have_count(0)
        await chat.page.close()
        later = await ChatPage.open(harness, f"/c/{first}")
        await expect(later.questions.get_by_role("alert")).to_contain_text("This message was not sent.")
        await later.page.get_by_role("button", name="Do not send").click()
        await expect(later.message_box).to_have_value(("long " * 1_000).strip())
        await later.message_box.fill("shorter")
        await later.message_box.press("Enter")
        await later.wait_settled(2)
        await later.page.reload()
        await later.wait_settled(2)
        await expect(later.questions.get_by_role("alert")).to_have_count(0)


class TestADraft:
    async def test_keeps_its_text_and_files_over_a_reload(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness)
        done = chat.page.locator(".uploads [data-state=done]")
        await attach_file(chat.page, "notes.txt", "text/plain", b"Some notes.")
        await attach_file(chat.page, "chart.png", "image/png", png())
        await expect(done).to_have_count(2)
        await chat.message_box.fill("Look at these")
        await chat.page.reload()
        await expect(chat.message_box).to_have_value("Look at these")
        await expect(done.locator(".chip-name")).to_have_text(["notes.txt", "chart.png"])
        await expect(done.locator("img")).to_have_js_property("naturalWidth", 64)
        await chat.message_box.press("Enter")
        await chat.wait_settled()
        await expect(chat.questions.locator(".chip-name")).to_have_text(["notes.txt", "chart.png"])
        await chat.page.reload()
        await chat.wait_settled()
        await expect(done).to_have_count(0)

    async def test_forgets_a_file_that_was_deleted_elsewhere(self, harness: Harness) -> None:
        conversation_id = await long_conversation(harness, 1)
        chat = await ChatPage.open(harness, f"/c/{conversation_id}")
        done = chat.page.locator(".uploads [data-state=done]")
        for name in ("stays.txt", "goes.txt"):
            await attach_file(chat.page, name, "text/plain", b"Some notes.")
        await expect(done).to_have_count(2)
        client = await harness.api()
        files = {file.name: file.id for file in await harness.server.runtime.store.all_files()}
        await client.delete(f"/v1/files/{files['goes.txt']}")
        await chat.page.reload()
        await expect(done.locator(".chip-name")).to_have_text(["stays.txt"])


class TestANewConversation:
    async def test_is_in_the_list_at_once(self, harness: Harness) -> None:
        """Whatever the page asks after the message was accepted: the list does not wait for it."""
        harness.scripts.say("Well, ", Pause(60), "yes.")
        await long_conversation(harness, 1)
        chat = await ChatPage.open(harness)
        await expect(chat.conversations.get_by_text("A long one")).to_be_visible()
        answered = asyncio.Event()

        async def hold(route: Route) -> None:
            await answered.wait()
            await route.continue_()

        await chat.page.route("**/v1/conversations*", hold)
        await chat.page.route("**/v1/conversations/conv_*", hold)
        await chat.send("Is it there?\nReally?")
        await expect(chat.answers.get_by_text("Well,")).to_be_visible()
        await expect(chat.conversations.get_by_text("Is it there?")).to_be_visible()
        answered.set()
        await chat.page.unroute_all(behavior="wait")
        await chat.page.reload()
        await expect(chat.conversations.get_by_text("Is it there?")).to_have_count(1)


class TestAFormThatIsNotSaved:
    async def test_asks_before_it_goes(self, harness: Harness) -> None:
        await long_conversation(harness, 1)
        page = await harness.open_page()
        questions = answer_dialogs(page, [False, False, False, False, True])
        await page.get_by_role("link", name="Settings").click()
        await page.get_by_role("link", name="Agents").click()
        await page.get_by_role("button", name="New agent").click()
        await page.get_by_label("Name", exact=True).fill("Librarian")
        name = page.get_by_label("Name", exact=True)
        for leave in (
            page.get_by_text("A long one"),
            page.get_by_role("link", name="API keys"),
            page.get_by_role("button", name="Cancel"),
        ):
            await leave.click()
            await expect(name).to_have_value("Librarian")
        await page.evaluate("history.back()")
        await wait_until(lambda: len(questions) == 4)
        await expect(name).to_have_value("Librarian")
        assert page.url.endswith("/settings/agents")
        assert questions == ["Your changes are not saved. Leave without saving?"] * 4
        await page.get_by_text("A long one").click()
        await expect(page.get_by_role("article", name="Assistant")).to_have_count(1)
        assert len(questions) == 5

    async def test_asks_before_the_tab_is_closed_or_reloaded(self, harness: Harness) -> None:
        page = await harness.open_page("/settings/pages")
        await page.get_by_role("button", name="New page").click()
        await page.get_by_label("Title").press_sequentially("Almanac")
        asked: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def stay(dialog: Dialog) -> None:
            asked.set_result(dialog.type)
            await dialog.dismiss()

        page.once("dialog", stay)
        await page.close(run_before_unload=True)
        assert await asyncio.wait_for(asked, 60) == "beforeunload"
        await expect(page.get_by_label("Title")).to_have_value("Almanac")

    async def test_that_is_saved_or_unchanged_asks_nothing(self, harness: Harness) -> None:
        await long_conversation(harness, 1)
        page = await harness.open_page("/settings/pages")
        questions = answer_dialogs(page, [])
        await page.get_by_role("button", name="New page").click()
        await page.get_by_role("button", name="Cancel").click()
        await page.get_by_role("button", name="New page").click()
        await page.get_by_label("Title").fill("Almanac")
        await page.get_by_role("button", name="Save").click()
        await expect(page.locator(".item")).to_contain_text("Almanac")
        await page.get_by_role("link", name="Usage and limits").click()
        name = page.get_by_label("Name", exact=True)
        await name.fill("Ours")
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_text("Saved.")).to_be_visible()
        await page.get_by_text("A long one").click()
        await expect(page.get_by_role("article", name="Assistant")).to_have_count(1)
        assert questions == []


def answer_dialogs(page: Page, answers: list[bool]) -> list[str]:
    """Answer the questions of the page in this order. The list that is returned has those that were asked."""
    asked: list[str] = []

    async def answer(dialog: Dialog) -> None:
        asked.append(dialog.message)
        await (dialog.accept() if answers[len(asked) - 1] else dialog.dismiss())

    page.on("dialog", answer)
    return asked
