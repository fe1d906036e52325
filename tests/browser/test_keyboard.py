"""What the keys do: show themselves, stop an answer, edit the last message, and move in the list."""

import asyncio

from playwright.async_api import expect

from tests.browser.harness import ChatPage, Harness
from tests.browser.stored_conversations import long_conversation
from tests.browser.test_accessibility import check_with_axe
from turnkeep.providers.scripted import Pause, Until


class TestKeyList:
    async def test_a_question_mark_outside_of_a_field_shows_the_keys(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness)
        keys = chat.page.get_by_role("dialog", name="Keys")
        await chat.message_box.press("?")
        await expect(chat.message_box).to_have_value("?")
        await expect(keys).to_have_count(0)
        await chat.message_box.press("Control+/")
        await expect(keys).to_contain_text("Search")
        for scheme in ("light", "dark"):
            await chat.page.emulate_media(color_scheme=scheme)
            await check_with_axe(chat.page)
        await chat.page.keyboard.press("Escape")
        await expect(keys).to_have_count(0)
        await expect(chat.message_box).to_be_focused()
        await chat.conversations.get_by_role("link", name="New conversation").focus()
        await chat.page.keyboard.press("?")
        await keys.get_by_role("button", name="Close").click()
        await expect(keys).to_have_count(0)


class TestEscape:
    async def test_stops_the_answer_from_the_message_box(self, harness: Harness) -> None:
        harness.scripts.say("Half an answer", Pause(60))
        chat = await ChatPage.open(harness)
        await chat.send("Slowly")
        await expect(chat.answers.get_by_text("Half an answer")).to_be_visible()
        await chat.message_box.fill("The next one")
        await chat.message_box.press("Escape")
        await expect(chat.page.get_by_text("You stopped this answer.")).to_be_visible()
        await expect(chat.message_box).to_have_value("The next one")

    async def test_closes_what_is_open_and_does_not_stop_the_answer(self, harness: Harness) -> None:
        go_on = asyncio.Event()
        harness.scripts.say("Half an answer", Until(go_on.wait), ", and the rest.")
        chat = await ChatPage.open(harness)
        await chat.send("Slowly")
        await expect(chat.answers.get_by_text("Half an answer")).to_be_visible()
        await chat.page.locator("summary[aria-label='Conversation menu']").click()
        await chat.page.keyboard.press("Escape")
        await expect(chat.page.get_by_role("button", name="Export as JSON")).to_be_hidden()
        await chat.page.get_by_role("searchbox").fill("slow")
        await chat.page.keyboard.press("Escape")
        await expect(chat.page.get_by_role("searchbox")).to_have_value("")
        await chat.page.get_by_role("button", name="Edit the message").click()
        await chat.page.keyboard.press("Escape")
        await expect(chat.page.get_by_label("Your message")).to_have_count(0)
        await chat.message_box.press("Control+/")
        await chat.page.keyboard.press("Escape")
        await expect(chat.page.get_by_role("dialog")).to_have_count(0)
        go_on.set()
        await chat.wait_settled()
        await expect(chat.answers).to_contain_text("Half an answer, and the rest.")


class TestArrowUp:
    async def test_in_an_empty_message_box_edits_the_last_message(self, harness: Harness) -> None:
        conversation = await long_conversation(harness, 30)
        chat = await ChatPage.open(harness, f"/c/{conversation}")
        await expect(chat.page.get_by_text("Question 29")).to_be_in_viewport()
        await chat.message_box.fill("one")
        await chat.message_box.press("ArrowUp")
        await expect(chat.message_box).to_be_focused()
        await chat.message_box.fill("")
        # Also from far above it.
        await chat.page.locator(".thread-list").evaluate("list => list.scrollTo(0, 0)")
        await expect(chat.page.get_by_role("button", name="Go to the newest message")).to_be_visible()
        await chat.message_box.press("ArrowUp")
        editor = chat.page.get_by_label("Your message")
        await expect(editor).to_be_focused()
        await expect(editor).to_have_value("Question 29")
        await chat.page.keyboard.press("Escape")
        await expect(editor).to_have_count(0)


class TestList:
    async def test_arrows_move_through_the_hits_and_enter_opens_one(self, harness: Harness) -> None:
        client = await harness.api()
        for text in ("Tides one", "Nothing", "Tides two"):
            await client.ask(text)
        chat = await ChatPage.open(harness)
        page, search = chat.page, chat.page.get_by_role("searchbox")
        await page.keyboard.press("Control+k")
        await page.keyboard.type("tides")
        await expect(page.locator(".entry mark")).to_have_count(2)
        await page.keyboard.press("ArrowDown")
        await expect(page.locator(".entry > a").first).to_be_focused()
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("ArrowDown")
        await expect(page.locator(".entry > a").last).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(chat.questions).to_have_text("Tides one")
        await page.locator(".entry > a").first.focus()
        await page.keyboard.press("ArrowUp")
        await expect(search).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(chat.questions).to_have_text("Tides two")
