"""Edit and regenerate create branches; the user switches between them. Copy and export."""

import asyncio
import json
from pathlib import Path

from playwright.async_api import expect

from tests.browser.harness import ChatPage, Harness, expect_copied, png
from tests.browser.test_attachments import DROP, attach_file, send_file_event
from turnkeep.providers.scripted import Pause, Until


class TestBranches:
    async def test_an_answer_is_regenerated_and_both_versions_stay(self, harness: Harness) -> None:
        harness.scripts.say("The first answer.")
        harness.scripts.say("The second answer.")
        chat = await ChatPage.open(harness)
        await chat.send("Tell me")
        await chat.wait_settled()
        await chat.page.get_by_role("button", name="Answer again").click()
        await expect(chat.answers.get_by_text("The second answer.")).to_be_visible()
        await chat.wait_settled()
        await expect(chat.page.get_by_label("Version 2 of 2")).to_be_visible()
        await chat.page.get_by_role("button", name="Previous version").click()
        await expect(chat.answers.get_by_text("The first answer.")).to_be_visible()
        await expect(chat.page.get_by_label("Version 1 of 2")).to_be_visible()
        await chat.page.reload()
        await expect(chat.answers.get_by_text("The first answer.")).to_be_visible()
        await chat.page.get_by_role("button", name="Next version").click()
        await expect(chat.answers.get_by_text("The second answer.")).to_be_visible()

    async def test_an_edit_starts_a_branch_and_the_old_branch_keeps_its_newest_turn(self, harness: Harness) -> None:
        for text in ("About cats.", "More about cats.", "About dogs."):
            harness.scripts.say(text)
        chat = await ChatPage.open(harness)
        await chat.send("Cats?")
        await chat.wait_settled()
        await chat.send("More?")
        await chat.wait_settled(2)
        await chat.questions.first.hover()
        await chat.page.get_by_role("button", name="Edit the message").first.click()
        await chat.page.get_by_label("Your message").fill("Dogs?")
        await chat.page.get_by_role("button", name="Send", exact=True).first.click()
        await expect(chat.answers.get_by_text("About dogs.")).to_be_visible()
        await chat.wait_settled()
        assert await chat.questions.locator(".bubble").all_inner_texts() == ["Dogs?"]
        await chat.page.get_by_role("button", name="Previous version").click()
        await expect(chat.questions.locator(".bubble")).to_have_text(["Cats?", "More?"])
        await expect(chat.answers.get_by_text("More about cats.")).to_be_visible()


class TestFilesOfAnEdit:
    async def test_are_kept_removed_and_added(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness)
        done = chat.page.locator(".uploads [data-state=done]")
        for name in ("keep.txt", "drop.txt"):
            await attach_file(chat.page, name, "text/plain", name.encode())
        await expect(done).to_have_count(2)
        await chat.send("Look at these")
        await chat.wait_settled()
        edit = chat.page.get_by_role("button", name="Edit the message")
        await edit.click()
        await chat.page.get_by_label("Your message").press("Escape")
        await expect(edit).to_be_focused()
        await edit.click()
        editor = chat.page.locator("form.editor")
        await expect(editor.locator(".chip-name")).to_have_text(["keep.txt", "drop.txt"])
        await editor.get_by_role("button", name="Remove drop.txt").click()
        await send_file_event(chat.page, DROP, editor, "new.png", "image/png", png())
        await expect(editor.locator("[data-state=done]")).to_have_count(1)
        await expect(chat.page.locator(".composer .uploads")).to_have_count(0)
        await editor.get_by_label("Your message").fill("Look at those")
        await editor.get_by_role("button", name="Send", exact=True).click()
        await expect(chat.page.get_by_label("Version 2 of 2")).to_be_visible()
        await chat.wait_settled()
        await expect(chat.message_box).to_be_focused()
        for _ in range(2):
            await expect(chat.questions.locator(".bubble")).to_have_text("Look at those")
            await expect(chat.questions.locator(".chip-name")).to_have_text(["keep.txt", "new.png"])
            await chat.page.reload()
        await chat.page.get_by_role("button", name="Previous version").click()
        await expect(chat.questions.locator(".chip-name")).to_have_text(["keep.txt", "drop.txt"])


class TestWhileAnAnswerIsWritten:
    async def test_an_edit_can_interrupt_it(self, harness: Harness) -> None:
        harness.scripts.say("About cats ", Pause(60), "and more.")
        harness.scripts.say("About dogs.")
        chat = await ChatPage.open(harness)
        await chat.send("Cats?")
        await expect(chat.answers.get_by_text("About cats")).to_be_visible()
        await chat.page.get_by_role("button", name="Edit the message").click()
        await chat.page.get_by_label("Your message").fill("Dogs?")
        await chat.page.get_by_role("button", name="Interrupt", exact=True).click()
        await expect(chat.answers.get_by_text("About dogs.")).to_be_visible()
        await chat.wait_settled()
        await expect(chat.questions.locator(".bubble")).to_have_text(["Dogs?"])
        await expect(chat.page.get_by_label("Version 2 of 2")).to_be_visible()

    async def test_a_regeneration_waits_in_the_queue_also_after_a_reload(self, harness: Harness) -> None:
        go_on = asyncio.Event()
        harness.scripts.say("The first answer.")
        harness.scripts.say("The second ", Until(go_on.wait), "answer.")
        harness.scripts.say("The first answer, again.")
        chat = await ChatPage.open(harness)
        await chat.send("One")
        await chat.wait_settled()
        await chat.send("Two")
        await expect(chat.answers.get_by_text("The second")).to_be_visible()
        await chat.answers.first.hover()
        await chat.page.get_by_role("button", name="Answer again").click()
        await chat.page.get_by_role("button", name="Queue", exact=True).click()
        for _ in range(2):
            await expect(chat.page.get_by_text("Queued, to be answered again")).to_be_visible()
            await chat.page.reload()
        go_on.set()
        await expect(chat.answers.get_by_text("The first answer, again.")).to_be_visible()
        await chat.wait_settled()
        await expect(chat.questions.locator(".bubble")).to_have_text(["One"])
        await chat.page.get_by_role("button", name="Previous version").click()
        await expect(chat.answers.get_by_text("The second answer.")).to_be_visible()


class TestCopyAndExport:
    async def test_give_the_text_of_the_conversation(self, harness: Harness, tmp_path: Path) -> None:
        harness.scripts.say("It has **two** words.")
        chat = await ChatPage.open(harness)
        await harness.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await chat.send("What is it?")
        await chat.wait_settled()
        await chat.page.get_by_role("button", name="Copy the answer").click()
        await expect_copied(chat.page, "It has **two** words.")
        texts = {}
        for label in ("Export as Markdown", "Export as JSON"):
            await chat.page.locator("summary[aria-label='Conversation menu']").click()
            async with chat.page.expect_download() as downloading:
                await chat.page.get_by_role("button", name=label).click()
            download = await downloading.value
            await download.save_as(tmp_path / "export")
            texts[download.suggested_filename] = (tmp_path / "export").read_text(encoding="utf-8")
        assert (
            texts["What-is-it.md"]
            == "# What is it?\n\n## You\n\nWhat is it?\n\n## Assistant\n\nIt has **two** words.\n"
        )
        exported = json.loads(texts["What-is-it.json"])
        assert [message["role"] for message in exported["messages"]] == ["user", "assistant"]
