"""Edit and regenerate make branches; people switch between them, copy, and take everything home."""

import asyncio
import json
from pathlib import Path

from playwright.async_api import expect
from tests.browser.harness import House, Talk, picture
from tests.browser.test_attachments import DROP, choose, give

from turnkeep.providers.scripted import Pause, Until


class TestBranches:
    async def test_an_answer_can_be_given_again_and_the_first_one_comes_back(self, house: House) -> None:
        house.scripts.say("The first answer.")
        house.scripts.say("The second answer.")
        talk = await Talk.begin(house)
        await talk.say("Tell me")
        await talk.settled()
        await talk.page.get_by_role("button", name="Answer again").click()
        await expect(talk.answers.get_by_text("The second answer.")).to_be_visible()
        await talk.settled()
        await expect(talk.page.get_by_label("Version 2 of 2")).to_be_visible()
        await talk.page.get_by_role("button", name="Previous version").click()
        await expect(talk.answers.get_by_text("The first answer.")).to_be_visible()
        await expect(talk.page.get_by_label("Version 1 of 2")).to_be_visible()
        await talk.page.reload()
        await expect(talk.answers.get_by_text("The first answer.")).to_be_visible()
        await talk.page.get_by_role("button", name="Next version").click()
        await expect(talk.answers.get_by_text("The second answer.")).to_be_visible()

    async def test_an_edited_message_begins_another_branch_and_the_old_one_is_where_it_was_left(
        self, house: House
    ) -> None:
        for text in ("About cats.", "More about cats.", "About dogs."):
            house.scripts.say(text)
        talk = await Talk.begin(house)
        await talk.say("Cats?")
        await talk.settled()
        await talk.say("More?")
        await talk.settled(2)
        await talk.questions.first.hover()
        await talk.page.get_by_role("button", name="Edit the message").first.click()
        await talk.page.get_by_label("Your message").fill("Dogs?")
        await talk.page.get_by_role("button", name="Send", exact=True).first.click()
        await expect(talk.answers.get_by_text("About dogs.")).to_be_visible()
        await talk.settled()
        assert await talk.questions.locator(".bubble").all_inner_texts() == ["Dogs?"]
        await talk.page.get_by_role("button", name="Previous version").click()
        await expect(talk.questions.locator(".bubble")).to_have_text(["Cats?", "More?"])
        await expect(talk.answers.get_by_text("More about cats.")).to_be_visible()


class TestTheFilesOfAnEdit:
    async def test_stay_go_and_come(self, house: House) -> None:
        talk = await Talk.begin(house)
        done = talk.page.locator(".attaching [data-state=done]")
        for name in ("keep.txt", "drop.txt"):
            await choose(talk.page, name, "text/plain", name.encode())
        await expect(done).to_have_count(2)
        await talk.say("Look at these")
        await talk.settled()
        edit = talk.page.get_by_role("button", name="Edit the message")
        await edit.click()
        await talk.page.get_by_label("Your message").press("Escape")
        await expect(edit).to_be_focused()
        await edit.click()
        editor = talk.page.locator("form.editor")
        await expect(editor.locator(".chip-name")).to_have_text(["keep.txt", "drop.txt"])
        await editor.get_by_role("button", name="Remove drop.txt").click()
        await give(talk.page, DROP, editor, "new.png", "image/png", picture())
        await expect(editor.locator("[data-state=done]")).to_have_count(1)
        await expect(talk.page.locator(".composer .attaching")).to_have_count(0)
        await editor.get_by_label("Your message").fill("Look at those")
        await editor.get_by_role("button", name="Send", exact=True).click()
        await expect(talk.page.get_by_label("Version 2 of 2")).to_be_visible()
        await talk.settled()
        await expect(talk.message).to_be_focused()
        for _ in range(2):
            await expect(talk.questions.locator(".bubble")).to_have_text("Look at those")
            await expect(talk.questions.locator(".chip-name")).to_have_text(["keep.txt", "new.png"])
            await talk.page.reload()
        await talk.page.get_by_role("button", name="Previous version").click()
        await expect(talk.questions.locator(".chip-name")).to_have_text(["keep.txt", "drop.txt"])


class TestWhileAnAnswerIsWritten:
    async def test_an_edit_may_interrupt_it(self, house: House) -> None:
        house.scripts.say("About cats ", Pause(60), "and more.")
        house.scripts.say("About dogs.")
        talk = await Talk.begin(house)
        await talk.say("Cats?")
        await expect(talk.answers.get_by_text("About cats")).to_be_visible()
        await talk.page.get_by_role("button", name="Edit the message").click()
        await talk.page.get_by_label("Your message").fill("Dogs?")
        await talk.page.get_by_role("button", name="Interrupt", exact=True).click()
        await expect(talk.answers.get_by_text("About dogs.")).to_be_visible()
        await talk.settled()
        await expect(talk.questions.locator(".bubble")).to_have_text(["Dogs?"])
        await expect(talk.page.get_by_label("Version 2 of 2")).to_be_visible()

    async def test_an_answer_that_is_to_be_given_again_waits_for_it_also_after_a_reload(self, house: House) -> None:
        go_on = asyncio.Event()
        house.scripts.say("The first answer.")
        house.scripts.say("The second ", Until(go_on.wait), "answer.")
        house.scripts.say("The first answer, again.")
        talk = await Talk.begin(house)
        await talk.say("One")
        await talk.settled()
        await talk.say("Two")
        await expect(talk.answers.get_by_text("The second")).to_be_visible()
        await talk.answers.first.hover()
        await talk.page.get_by_role("button", name="Answer again").click()
        await talk.page.get_by_role("button", name="Queue", exact=True).click()
        for _ in range(2):
            await expect(talk.page.get_by_text("Queued, to be answered again")).to_be_visible()
            await talk.page.reload()
        go_on.set()
        await expect(talk.answers.get_by_text("The first answer, again.")).to_be_visible()
        await talk.settled()
        await expect(talk.questions.locator(".bubble")).to_have_text(["One"])
        await talk.page.get_by_role("button", name="Previous version").click()
        await expect(talk.answers.get_by_text("The second answer.")).to_be_visible()


class TestTakingItHome:
    async def test_copy_and_export(self, house: House, tmp_path: Path) -> None:
        house.scripts.say("It has **two** words.")
        talk = await Talk.begin(house)
        await house.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await talk.say("What is it?")
        await talk.settled()
        await talk.page.get_by_role("button", name="Copy the answer").click()
        assert await talk.page.evaluate("navigator.clipboard.readText()") == "It has **two** words."
        texts = {}
        for label in ("Export as Markdown", "Export as JSON"):
            await talk.page.locator("summary[aria-label='Conversation menu']").click()
            async with talk.page.expect_download() as downloading:
                await talk.page.get_by_role("button", name=label).click()
            download = await downloading.value
            await download.save_as(tmp_path / "export")
            texts[download.suggested_filename] = (tmp_path / "export").read_text(encoding="utf-8")
        assert (
            texts["What-is-it.md"]
            == "# What is it?\n\n## You\n\nWhat is it?\n\n## Assistant\n\nIt has **two** words.\n"
        )
        exported = json.loads(texts["What-is-it.json"])
        assert [message["role"] for message in exported["messages"]] == ["user", "assistant"]
