"""Somebody reads, opens and selects while an answer is written: nothing moves under their hands."""

import asyncio

from playwright.async_api import Locator, expect
from tests.browser.harness import House, Talk

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


async def select(talk: Talk, place: Locator, words: str) -> None:
    await talk.page.evaluate(SELECT, [await place.element_handle(), words])


async def selected(talk: Talk) -> str:
    text: str = await talk.page.evaluate("() => getSelection().toString()")
    return text


class TestWhileItIsWritten:
    async def test_what_is_open_selected_and_focused_stays_so_to_the_end(self, house: House) -> None:
        more, last = asyncio.Event(), asyncio.Event()
        rain = "It rains in Bern, and it will go on like this for as long as anybody here can tell"
        house.gate.set()
        house.scripts.say("Let me look.", Call("lookup", {"place": "Bern"}))
        house.scripts.say(rain, Until(more.wait), " and in Thun", Until(last.wait), ", all day.")
        talk = await Talk.begin(house)
        await talk.say("Weather?")
        growing = talk.page.locator(".prose.is-growing")
        await expect(growing).to_have_text(rain)
        summary = talk.page.locator(".step summary")
        await summary.press("Enter")
        await expect(talk.page.get_by_role("region", name="Result")).to_be_visible()
        await select(talk, growing, "rains in Bern")
        more.set()
        await expect(growing).to_have_text(rain + " and in Thun")
        last.set()
        await talk.settled()
        await expect(talk.answers.locator(".prose").last).to_have_text(rain + " and in Thun, all day.")
        await expect(talk.page.get_by_role("region", name="Result")).to_be_visible()
        assert await selected(talk) == "rains in Bern"
        await expect(summary).to_be_focused()

    async def test_the_reader_turns_back_by_a_little_and_is_left_in_peace(self, house: House) -> None:
        more = asyncio.Event()
        house.scripts.say(PARAGRAPHS, Until(more.wait), "\n\nThe very last one. " + "More of it. " * 200)
        talk = await Talk.begin(house)
        await talk.say("Tell me a lot")
        await expect(talk.page.get_by_text("Paragraph 11.")).to_be_in_viewport()
        end = await talk.page.evaluate(OFFSET)
        await talk.page.get_by_role("log").hover()
        await talk.page.mouse.wheel(0, -20)
        await talk.page.wait_for_function(f"end => ({OFFSET})() < end", arg=end)
        more.set()
        await talk.settled()
        await expect(talk.page.get_by_role("button", name="Go to the newest message")).to_be_visible()
        assert await talk.page.evaluate(OFFSET) < end
        await talk.page.get_by_role("button", name="Go to the newest message").click()
        await expect(talk.page.locator(".when").last).to_be_in_viewport()

    async def test_what_is_selected_is_not_scrolled_away_and_does_not_go_with_its_row(self, house: House) -> None:
        more = asyncio.Event()
        house.scripts.say("The question was short.")
        house.scripts.say("Yes. ", Until(more.wait), PARAGRAPHS + PARAGRAPHS)
        talk = await Talk.begin(house)
        await talk.say("Hello?")
        await talk.settled()
        await talk.say("And now?")
        await expect(talk.answers.get_by_text("Yes.")).to_be_visible()
        await select(talk, talk.answers.first, "question was")
        more.set()
        await talk.settled(2)
        await expect(talk.answers.first).to_be_in_viewport()
        await talk.page.get_by_role("log").hover()
        await talk.page.mouse.wheel(0, 20_000)
        await expect(talk.page.get_by_text("Paragraph 11.").last).to_be_in_viewport()
        assert await selected(talk) == "question was"

    async def test_what_was_opened_stays_in_view_and_is_open_after_scrolling_away(self, house: House) -> None:
        house.gate.set()
        house.scripts.say(PARAGRAPHS, Call("lookup", {"place": "Bern " * 200}), Call("broken", {}))
        house.scripts.say("Done.")
        house.scripts.say(PARAGRAPHS + PARAGRAPHS)
        talk = await Talk.begin(house)
        await talk.say("Look")
        await talk.settled()
        step = talk.page.locator(".step").first
        await step.locator("summary").click()
        await expect(step.get_by_role("region", name="Result")).to_be_visible()
        await expect(step.locator("summary")).to_be_in_viewport()
        await talk.say("Go on")
        await expect(talk.page.get_by_text("Paragraph 11.").last).to_be_in_viewport()
        await expect(step).to_have_count(0)
        await talk.page.get_by_role("log").hover()
        await talk.page.mouse.wheel(0, -4_000)
        await expect(step.get_by_role("region", name="Result")).to_be_visible()
