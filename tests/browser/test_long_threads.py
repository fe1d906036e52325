"""Long threads and fast answers. Tests of speed run nightly; tests that only rows in view are drawn run always."""

import asyncio
import json

import pytest
from playwright.async_api import Locator, Page, Route, expect

from tests.browser.harness import TIMEOUT_MS, ChatPage, Harness
from tests.browser.stored_conversations import append_turn, long_conversation
from turnkeep.providers.scripted import Line, Pause
from turnkeep_client.wire.blocks import TextPart

LONGEST_FRAME_MS = 50
OPEN_MS = 1_000

WATCH = """() => {
  window.__frames = [];
  new PerformanceObserver((list) => window.__frames.push(...list.getEntries().map((each) => Math.round(each.duration))))
    .observe({ type: "long-animation-frame", buffered: false });
}"""

SCROLL = """async () => {
  const list = document.querySelector(".thread-list");
  const times = [];
  for (let frame = 0; frame < 180; frame++) {
    list.scrollBy(0, -60);
    times.push(await new Promise((resolve) => requestAnimationFrame(resolve)));
  }
  const gaps = times.slice(1).map((time, at) => time - times[at]).sort((a, b) => a - b);
  return 1000 / gaps[gaps.length >> 1];
}"""
"""Scroll up for 180 frames, over messages that are drawn and loaded on the way. The median of frames per second."""

OPEN_TWO_THOUSAND_MS = 300
FRAMES_PER_SECOND = 50
LONGEST_TASK_MS = 100
TRACED = ["toplevel", "devtools.timeline", "disabled-by-default-devtools.timeline"]


def longest_task_ms(trace: bytes) -> float:
    """The longest task of the page, by the processor time that it took: other programs on the machine do not count."""
    events = json.loads(trace)["traceEvents"]
    main = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    tasks = [event for event in events if event["name"].endswith("RunTask") and (event["pid"], event["tid"]) in main]
    longest: float = max(event.get("tdur", 0) for event in tasks)
    return longest / 1_000


async def opening_ms(page: Page, title: str) -> float:
    """The time from the click on a conversation until its last message is drawn."""
    await page.get_by_role("navigation", name="Conversations").get_by_text(title).wait_for()
    return float(
        await page.evaluate(
            """async (title) => {
              const link = [...document.querySelectorAll('.entry a')].find((each) => each.textContent.includes(title));
              if (document.querySelector('article')) throw new Error('a conversation is open already');
              const began = performance.now();
              link.click();
              while (!document.querySelector('article[aria-label=Assistant]'))
                await new Promise((resolve) => requestAnimationFrame(resolve));
              return performance.now() - began;
            }""",
            title,
        )
    )


FOUND = """() => ["found", "found-current"].map((name) =>
  [...(CSS.highlights.get(name) ?? [])].map(String))"""
"""The words that are marked: those that were found, and the one of them that is shown."""


LATE_SCROLL_EVENTS = """
const add = EventTarget.prototype.addEventListener;
EventTarget.prototype.addEventListener = function (type, listener, options) {
  const late = (event) => setTimeout(() => listener.call(this, event), 100);
  return add.call(this, type, type === "scroll" ? late : listener, options);
};
"""
"""The list hears late that it has scrolled, as on a machine that has much to do."""


async def open_find_bar(chat: ChatPage) -> Locator:
    await chat.page.keyboard.press("Control+f")
    bar = chat.page.get_by_role("search", name="Find in this conversation")
    await expect(bar.get_by_role("searchbox")).to_be_focused()
    return bar


class TestFind:
    async def test_words_that_are_typed_at_once_are_found_and_shown_in_a_long_message(self, harness: Harness) -> None:
        conversation_id = await long_conversation(harness, 3)
        text = "The first harbour.\n\n" + "A paragraph.\n\n" * 120 + "The last harbour."
        await append_turn(harness, conversation_id, "Where?", (TextPart(text=text),))
        chat = await ChatPage.open(harness, f"/c/{conversation_id}")
        await expect(chat.answers.get_by_text("The last harbour.")).to_be_in_viewport()
        is_typed = asyncio.Event()

        async def hold(route: Route) -> None:
            await is_typed.wait()
            await route.continue_()

        await chat.page.route("**/assets/FindBar-*.js", hold)
        await chat.message_box.focus()
        await chat.page.keyboard.press("Control+f")
        await chat.page.keyboard.type("harb")
        is_typed.set()
        bar = chat.page.get_by_role("search", name="Find in this conversation")
        await expect(bar.get_by_role("status")).to_have_text("2 of 2")
        await chat.page.keyboard.type("our")
        await expect(bar.get_by_role("searchbox")).to_have_value("harbour")
        await expect(chat.message_box).to_have_value("")
        await expect(chat.answers.get_by_text("The last harbour.")).to_be_in_viewport()
        await chat.page.keyboard.press("Enter")
        await expect(bar.get_by_role("status")).to_have_text("1 of 2")
        await expect(chat.answers.get_by_text("The first harbour.")).to_be_in_viewport()

    async def test_offers_no_way_to_the_end_where_the_end_is_in_view(self, harness: Harness) -> None:
        conversation_id = await long_conversation(harness, 1)
        chat = await ChatPage.open(harness, f"/c/{conversation_id}")
        await expect(chat.questions.get_by_text("Question 0", exact=True)).to_be_in_viewport()
        bar = await open_find_bar(chat)
        await chat.page.keyboard.type("Question 0")
        await expect(bar.get_by_role("status")).to_have_text("1 of 1")
        to_end = chat.page.get_by_role("button", name="Go to the newest message")
        await expect(to_end).to_be_hidden()
        await append_turn(harness, conversation_id, "Long?", (TextPart(text="A paragraph.\n\n" * 120),))
        await chat.page.reload()
        await expect(chat.answers.get_by_text("A paragraph.").last).to_be_in_viewport()
        await open_find_bar(chat)
        await chat.page.keyboard.type("Question 0")
        await expect(bar.get_by_role("status")).to_have_text("1 of 1")
        await expect(to_end).to_be_visible()

    async def test_shows_what_was_found_when_the_list_hears_late_that_it_has_scrolled(self, harness: Harness) -> None:
        conversation_id = await long_conversation(harness, 150)
        chat = await ChatPage.open(harness, "/")
        await chat.page.add_init_script(LATE_SCROLL_EVENTS)
        await chat.page.goto(f"{harness.server.url}/c/{conversation_id}")
        await expect(chat.questions.get_by_text("Question 149", exact=True)).to_be_in_viewport()
        bar = await open_find_bar(chat)
        await chat.page.keyboard.type("QUESTION 3")
        await expect(bar.get_by_role("status")).to_have_text("11 of 11")
        await expect(chat.questions.get_by_text("Question 39", exact=True)).to_be_in_viewport()

    async def test_looks_in_the_whole_conversation_and_goes_on_and_back(self, harness: Harness) -> None:
        conversation_id = await long_conversation(harness, 150)
        chat = await ChatPage.open(harness, f"/c/{conversation_id}")
        await expect(chat.questions.get_by_text("Question 149", exact=True)).to_be_in_viewport()
        bar = await open_find_bar(chat)
        field = bar.get_by_role("searchbox")
        # The messages with these words are far above, and not loaded yet.
        await chat.page.keyboard.type("QUESTION 3")
        await expect(bar.get_by_role("status")).to_have_text("11 of 11")
        await expect(chat.questions.get_by_text("Question 39", exact=True)).to_be_in_viewport()
        await expect(field).to_be_focused()
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            while (await chat.page.evaluate(FOUND))[1] != ["Question 3"]:
                await chat.page.wait_for_timeout(50)
        await chat.page.keyboard.press("Enter")
        await expect(bar.get_by_role("status")).to_have_text("1 of 11")
        await expect(chat.questions.get_by_text("Question 3", exact=True)).to_be_in_viewport()
        await chat.page.keyboard.press("Shift+Enter")
        await expect(bar.get_by_role("status")).to_have_text("11 of 11")
        await bar.get_by_role("button", name="Previous match").click()
        await expect(bar.get_by_role("status")).to_have_text("10 of 11")
        await expect(chat.questions.get_by_text("Question 38", exact=True)).to_be_in_viewport()
        await field.fill("no such words")
        await expect(bar.get_by_role("status")).to_have_text("Not found")
        await field.press("Escape")
        await expect(bar).to_have_count(0)
        await expect(chat.message_box).to_be_focused()
        assert await chat.page.evaluate(FOUND) == [[], []]

    async def test_begins_in_the_menu_and_finds_words_with_accents_and_across_marks(self, harness: Harness) -> None:
        harness.scripts.say("The **Café** in Zürich is *open*.")
        chat = await ChatPage.open(harness)
        await chat.send("Where?")
        await chat.wait_settled()
        await chat.page.get_by_label("Conversation menu").click()
        await chat.page.get_by_role("button", name="Find in this conversation").click()
        bar = chat.page.get_by_role("search", name="Find in this conversation")
        await bar.get_by_role("searchbox").fill("zurich is")
        await expect(bar.get_by_role("status")).to_have_text("1 of 1")
        assert (await chat.page.evaluate(FOUND))[1] == ["Zürich is"]
        await chat.conversations.get_by_role("link", name="New conversation").click()
        await expect(bar).to_have_count(0)


class TestVirtualList:
    async def test_draws_only_the_rows_in_view_of_two_thousand_messages(self, harness: Harness) -> None:
        conversation_id = await long_conversation(harness, 1_000)
        chat = await ChatPage.open(harness, f"/c/{conversation_id}")
        await expect(chat.questions.get_by_text("Question 999", exact=True)).to_be_in_viewport()
        assert await chat.page.locator("article").count() < 40
        for _ in range(5):
            await chat.page.locator(".thread-list").evaluate("list => list.scrollTo(0, 0)")
            await chat.page.wait_for_timeout(100)
        assert await chat.page.locator("article").count() < 60

    async def test_buttons_can_be_clicked_while_the_list_scrolls(self, harness: Harness) -> None:
        conversation_id = await long_conversation(harness, 30)
        chat = await ChatPage.open(harness, f"/c/{conversation_id}")
        await expect(chat.questions.get_by_text("Question 29", exact=True)).to_be_in_viewport()
        hit = await chat.page.evaluate(
            """async () => {
              const list = document.querySelector('.thread-list');
              const scrolled = new Promise((resolve) => list.addEventListener('scroll', resolve, { once: true }));
              list.scrollBy(0, -200);
              await scrolled;
              // The list has handled the event and drawn itself again.
              for (const _ of [1, 2]) await new Promise((resolve) => requestAnimationFrame(resolve));
              const edge = list.getBoundingClientRect().top;
              const places = [...list.querySelectorAll('button')].map((each) => [each, each.getBoundingClientRect()]);
              const [button, { x, y, width, height }] = places.find(([, place]) => place.top > edge);
              return button.contains(document.elementFromPoint(x + width / 2, y + height / 2));
            }"""
        )
        assert hit

    async def test_stays_where_the_reader_scrolled_to(self, harness: Harness) -> None:
        conversation_id = await long_conversation(harness, 30)
        chat = await ChatPage.open(harness, f"/c/{conversation_id}")
        await expect(chat.questions.get_by_text("Question 29", exact=True)).to_be_in_viewport()
        lines: list[Line] = [each for n in range(60) for each in (f"word {n}\n\n", Pause(0.02))]
        harness.scripts.say(*lines)
        await chat.send("Go on")
        await expect(chat.answers.get_by_text("word 3", exact=True)).to_be_attached()
        scroller = chat.page.locator(".thread-list")
        await scroller.hover()
        await chat.page.mouse.wheel(0, -900)
        await expect(chat.page.get_by_role("button", name="Go to the newest message")).to_be_visible()
        place = await self.settled_offset(scroller)
        await expect(chat.page.locator("[aria-busy=true]")).to_have_count(0)
        assert abs(await scroller.evaluate("list => list.scrollTop") - place) < 5
        await chat.page.get_by_role("button", name="Go to the newest message").click()
        await expect(chat.answers.get_by_text("word 59", exact=True)).to_be_in_viewport()

    async def settled_offset(self, scroller: Locator) -> float:
        """The scroll offset once the wheel event has had its full effect."""
        places: list[float] = []
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            while len(places) < 5 or len(set(places[-5:])) > 1:
                places.append(await scroller.evaluate("list => list.scrollTop"))
                await asyncio.sleep(0.05)
        return places[-1]


@pytest.mark.nightly
@pytest.mark.alone
class TestSpeed:
    async def test_ten_thousand_messages_open_in_under_a_second(self, harness: Harness) -> None:
        await long_conversation(harness, 5_000)
        chat = await ChatPage.open(harness)
        times = []
        for _ in range(5):
            times.append(await opening_ms(chat.page, "A long one"))
            await chat.page.goto(harness.server.url)
        assert sorted(times)[2] < OPEN_MS, times

    async def test_two_thousand_messages_open_in_300_ms_and_scroll_with_50_frames_a_second(
        self, harness: Harness
    ) -> None:
        await long_conversation(harness, 1_000)
        chat = await ChatPage.open(harness)
        times, rates = [], []
        for _ in range(5):
            times.append(await opening_ms(chat.page, "A long one"))
            rates.append(await chat.page.evaluate(SCROLL))
            await chat.page.goto(harness.server.url)
        assert sorted(times)[2] < OPEN_TWO_THOUSAND_MS, times
        assert sorted(rates)[2] >= FRAMES_PER_SECOND, rates

    async def test_typing_stays_smooth_while_two_hundred_previews_arrive_each_second(self, harness: Harness) -> None:
        conversation_id = await long_conversation(harness, 250)
        chat = await ChatPage.open(harness, f"/c/{conversation_id}")
        await expect(chat.questions.get_by_text("Question 249", exact=True)).to_be_in_viewport()
        await chat.page.evaluate(WATCH)
        # Other programs on the machine make frames longer, so the best of three runs counts.
        seen = [await self.long_frames(harness, chat) for _ in range(3)]
        assert [] in seen, seen

    async def test_two_hundred_kilobytes_with_code_tables_and_drawings_stay_smooth(self, harness: Harness) -> None:
        seen = [await self.longest_task(harness) for _ in range(3)]
        assert min(seen) < LONGEST_TASK_MS, seen

    async def longest_task(self, harness: Harness) -> float:
        chat = await ChatPage.open(harness)
        browser = harness.context.browser
        assert browser is not None
        piece = "A paragraph of *words* that goes on for a while. " * 8 + "\n\n"
        drawing = "```mermaid\ngraph TD\n" + "".join(f"  A{n} --> B{n}\n" for n in range(40)) + "```\n\n"
        page = "```html\n" + "<p>A line of a page.</p>\n" * 60 + "```\n\n"
        table = "| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * 30 + "\n"
        text = (piece * 3 + drawing + page + table) * 56
        assert len(text) > 200_000
        lines: list[Line] = [each for at in range(0, len(text), 400) for each in (text[at : at + 400], Pause(0.01))]
        harness.scripts.say(*lines)
        await browser.start_tracing(page=chat.page, categories=TRACED)
        await chat.send("A long answer")
        await expect(chat.page.locator(".is-growing")).to_contain_text("A paragraph")
        await chat.wait_settled()
        trace = await browser.stop_tracing()
        assert await chat.page.locator("iframe").count() == 0, "nothing is drawn while it is written"
        await chat.page.close()
        return longest_task_ms(trace)

    async def long_frames(self, harness: Harness, chat: ChatPage) -> list[int]:
        lines: list[Line] = []
        for number in range(900):
            lines += [f"word{number} " + ("\n\n" if number % 40 == 39 else ""), Pause(0.005)]
        harness.scripts.say(*lines)
        await chat.send("Quickly")
        await expect(chat.page.locator(".is-growing")).to_contain_text("word50")
        await chat.page.evaluate("window.__frames.length = 0")
        await chat.message_box.focus()
        for _ in range(40):
            await chat.page.keyboard.type("abcd ")
            await asyncio.sleep(0.05)
        frames: list[int] = await chat.page.evaluate("window.__frames")
        await expect(chat.page.locator("[aria-busy=true]")).to_have_count(0)
        assert await chat.message_box.input_value() == "abcd " * 40
        await chat.message_box.fill("")
        return [each for each in frames if each > LONGEST_FRAME_MS]
