"""While an answer is written, what the user reads, opened or selected stays where it is."""

import asyncio

from playwright.async_api import Locator, expect

from tests.browser.harness import ChatPage, Harness
from turnkeep.providers.scripted import Call, Until

PARAGRAPHS = "\n\n".join(f"Paragraph {number}. " + "Some words to read. " * 20 for number in range(12))
OFFSET = "() => document.querySelector('.thread-list').scrollTop"
SELECT = """([element, words]) => {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const at = walker.currentNode.data.indexOf(words);
    if (at < 0) continue;
    getSelection().setBaseAndExtent(walker.currentNode, at, walker.currentNode, at + words.length);
    return;
  }
}"""


async def select(chat: ChatPage, place: Locator, words: str) -> None:
    await chat.page.evaluate(SELECT, [await place.element_handle(), words])


async def selected(chat: ChatPage) -> str:
    text: str = await chat.page.evaluate("() => getSelection().toString()")
    return text


class TestWhileAnAnswerIsWritten:
    async def test_open_steps_selection_and_focus_stay(self, harness: Harness) -> None:
        more, last = asyncio.Event(), asyncio.Event()
        rain = "It rains in Bern, and it will go on like this for as long as anybody here can tell"
        harness.lookup_allowed.set()
        harness.scripts.say("Let me look.", Call("lookup", {"place": "Bern"}))
        harness.scripts.say(rain, Until(more.wait), " and in Thun", Until(last.wait), ", all day.")
        chat = await ChatPage.open(harness)
        await chat.send("Weather?")
        growing = chat.page.locator(".prose.is-growing")
        await expect(growing).to_have_text(rain)
        summary = chat.page.locator(".step summary")
        await summary.press("Enter")
        await expect(chat.page.get_by_role("region", name="Result")).to_be_visible()
        await select(chat, growing, "rains in Bern")
        more.set()
        await expect(growing).to_have_text(rain + " and in Thun")
        last.set()
        await chat.wait_settled()
        await expect(chat.answers.locator(".prose").last).to_have_text(rain + " and in Thun, all day.")
        await expect(chat.page.get_by_role("region", name="Result")).to_be_visible()
        assert await selected(chat) == "rains in Bern"
        await expect(summary).to_be_focused()

    async def test_the_list_stops_following_after_a_small_scroll_back(self, harness: Harness) -> None:
        more = asyncio.Event()
        harness.scripts.say(PARAGRAPHS, Until(more.wait), "\n\nThe very last one. " + "More of it. " * 200)
        chat = await ChatPage.open(harness)
        await chat.send("Tell me a lot")
        await expect(chat.page.get_by_text("Paragraph 11.")).to_be_in_viewport()
        end = await chat.page.evaluate(OFFSET)
        await chat.page.get_by_role("log").hover()
        await chat.page.mouse.wheel(0, -20)
        await chat.page.wait_for_function(f"end => ({OFFSET})() < end", arg=end)
        more.set()
        await chat.wait_settled()
        await expect(chat.page.get_by_role("button", name="Go to the newest message")).to_be_visible()
        assert await chat.page.evaluate(OFFSET) < end
        await chat.page.get_by_role("button", name="Go to the newest message").click()
        await expect(chat.page.locator(".when").last).to_be_in_viewport()

    async def test_a_selection_stays_in_view_and_survives_scrolling(self, harness: Harness) -> None:
        more = asyncio.Event()
        harness.scripts.say("The question was short.")
        harness.scripts.say("Yes. ", Until(more.wait), PARAGRAPHS + PARAGRAPHS)
        chat = await ChatPage.open(harness)
        await chat.send("Hello?")
        await chat.wait_settled()
        await chat.send("And now?")
        await expect(chat.answers.get_by_text("Yes.")).to_be_visible()
        await select(chat, chat.answers.first, "question was")
        more.set()
        await chat.wait_settled(2)
        await expect(chat.answers.first).to_be_in_viewport()
        await chat.page.get_by_role("log").hover()
        await chat.page.mouse.wheel(0, 20_000)
        await expect(chat.page.get_by_text("Paragraph 11.").last).to_be_in_viewport()
        assert await selected(chat) == "question was"

    async def test_an_opened_step_stays_in_view_and_open_after_scrolling_away(self, harness: Harness) -> None:
        harness.lookup_allowed.set()
        harness.scripts.say(PARAGRAPHS, Call("lookup", {"place": "Bern " * 200}), Call("broken", {}))
        harness.scripts.say("Done.")
        harness.scripts.say(PARAGRAPHS + PARAGRAPHS)
        chat = await ChatPage.open(harness)
        await chat.send("Look")
        await chat.wait_settled()
        step = chat.page.locator(".step").first
        await step.locator("summary").click()
        await expect(step.get_by_role("region", name="Result")).to_be_visible()
        await expect(step.locator("summary")).to_be_in_viewport()
        await chat.send("Go on")
        await expect(chat.page.get_by_text("Paragraph 11.").last).to_be_in_viewport()
        await expect(step).to_have_count(0)
        await chat.page.get_by_role("log").hover()
        await chat.page.mouse.wheel(0, -4_000)
        await expect(step.get_by_role("region", name="Result")).to_be_visible()
