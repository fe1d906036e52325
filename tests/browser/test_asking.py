"""Somebody asks, and reads the answer as it is written."""

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import Route, expect
from tests.browser.harness import House, Talk

from tests.api.harness import settings_for
from turnkeep.config import Settings
from turnkeep.providers.ports import ProviderFailed
from turnkeep.providers.scripted import Call, Fail, Pause, Think, Until

WATCH_COLOURS = """() => {
  window.pale = 0;
  const look = () => { if (!document.querySelector(".code .hljs-keyword")) window.pale += 1; };
  new MutationObserver(look).observe(document.querySelector(".thread"), { subtree: true, childList: true, characterData: true });
}"""  # noqa: E501


class TestTheFirstMessage:
    async def test_is_shown_answered_and_listed(self, house: House) -> None:
        house.scripts.say("It is ", Pause(0.05), "**sunny** in Bern.")
        talk = await Talk.begin(house)
        await talk.say("How is the weather?")
        await expect(talk.questions.get_by_text("How is the weather?")).to_be_visible()
        await talk.settled()
        await expect(talk.answers.locator("strong")).to_have_text("sunny")
        await expect(talk.history.get_by_role("link", name="How is the weather?")).to_be_visible()
        assert "/c/conv_" in talk.page.url

    async def test_is_drawn_word_by_word_with_a_cursor(self, house: House) -> None:
        go_on = asyncio.Event()
        house.scripts.say("The first half, ", Until(go_on.wait), "and the second.")
        talk = await Talk.begin(house)
        await talk.say("Slowly, please.")
        await expect(talk.page.locator(".prose.is-growing")).to_have_text("The first half,")
        await expect(talk.page.get_by_role("button", name="Stop the answer")).to_be_visible()
        go_on.set()
        await talk.settled()
        await expect(talk.answers.locator(".prose")).to_have_text("The first half, and the second.")
        await expect(talk.page.locator(".is-growing")).to_have_count(0)

    async def test_shift_and_enter_make_a_new_line(self, house: House) -> None:
        talk = await Talk.begin(house)
        await talk.message.fill("one")
        await talk.message.press("Shift+Enter")
        await talk.message.press_sequentially("two")
        await talk.message.press("Enter")
        await talk.settled()
        assert await talk.questions.locator(".bubble").inner_text() == "one\ntwo"

    async def test_a_draft_waits_in_its_conversation_also_one_from_before_it_had_an_id(self, house: House) -> None:
        is_typed = asyncio.Event()

        async def hold(route: Route) -> None:
            await is_typed.wait()
            await route.continue_()

        talk = await Talk.begin(house)
        await talk.page.route("**/v1/turns", hold)
        await talk.say("First")
        await expect(talk.page.get_by_text("Sending…")).to_be_visible()
        await talk.message.fill("not yet sent")
        is_typed.set()
        await talk.settled()
        await expect(talk.message).to_have_value("not yet sent")
        first = talk.page.url
        await talk.history.get_by_role("link", name="New conversation").click()
        await expect(talk.message).to_have_value("")
        await talk.message.fill("another draft")
        await talk.page.wait_for_timeout(300)
        await talk.page.goto(first)
        await expect(talk.message).to_have_value("not yet sent")
        await talk.page.goto(house.server.url)
        await expect(talk.message).to_have_value("another draft")


class TestWhatIsDrawn:
    async def test_tables_code_maths_and_lists(self, house: House) -> None:
        painted = asyncio.Event()
        house.scripts.say(
            "| a | b |\n|---|--:|\n| 1 | 2 |\n\n```python\ndef f():\n",
            Until(painted.wait),
            "    return 1\n```\n\n",
            "$$\\frac{1}{2}$$\n\n- x\n- [x] y\n",
        )
        talk = await Talk.begin(house)
        await talk.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await talk.say("Show me")
        await expect(talk.answers.locator(".hljs-keyword")).to_have_text("def")
        await talk.page.evaluate(WATCH_COLOURS)
        painted.set()
        await talk.settled()
        await expect(talk.answers.get_by_role("cell")).to_have_text(["1", "2"])
        await expect(talk.answers.locator(".hljs-keyword")).to_have_text(["def", "return"])
        assert await talk.page.evaluate("window.pale") == 0
        await expect(talk.answers.locator(".katex-mathml").first).to_be_attached()
        await expect(talk.answers.locator("li")).to_have_count(2)
        await talk.page.get_by_role("button", name="Copy the code").click()
        copied = await talk.page.evaluate("navigator.clipboard.readText()")
        assert copied == "def f():\n    return 1"

    async def test_steps_are_updated_in_place_and_sources_are_cited(self, house: House) -> None:
        house.scripts.say(
            Think("I should look."),
            "Let me look.",
            Call("lookup", {"place": "Bern"}),
            Call("broken", {"place": "Basel"}),
        )
        house.scripts.say("It rains [1].")
        talk = await Talk.begin(house)
        await talk.say("Weather?")
        step = talk.page.locator(".step").first
        await expect(step).to_contain_text("lookup")
        await expect(step).to_contain_text("running")
        await expect(talk.answers.get_by_text("Thinking…")).to_be_visible()
        house.gate.set()
        await talk.settled()
        await expect(talk.page.locator(".step")).to_have_count(2)
        await expect(talk.page.locator(".step.is-succeeded .step-time")).to_contain_text("s")
        await expect(talk.page.locator(".step.is-failed")).to_contain_text("broken")
        await step.locator("summary").click()
        await expect(step.get_by_role("region", name="Arguments")).to_contain_text('"place": "Bern"')
        await expect(step.get_by_role("region", name="Result")).to_contain_text("rain")
        await expect(talk.answers.get_by_text("I should look.")).to_be_hidden()
        # By keyboard: what was opened above may still be pushing it away from under the pointer.
        await talk.answers.locator("summary", has_text="Thoughts").press("Enter")
        await expect(talk.answers.get_by_text("I should look.")).to_be_visible()
        await talk.page.get_by_role("link", name="Source 1").click()
        await expect(talk.page.locator(".sources li").first).to_be_focused()
        await expect(talk.page.get_by_role("link", name="Almanac")).to_have_attribute(
            "rel", "noopener noreferrer nofollow"
        )

    async def test_a_reload_afterwards_draws_exactly_the_same(self, house: House) -> None:
        house.gate.set()
        house.scripts.say(Think("Hm."), "Let me look.", Call("lookup", {"place": "Bern"}), Call("broken", {}))
        house.scripts.say("# Rain\n\nIt rains [1] in `Bern`.\n\n1. one\n2. two\n\n```js\nlet x = 1\n```\n")
        talk = await Talk.begin(house)
        # Nothing but the stream is heard until the reload.
        await talk.page.route("**/messages?*", lambda route: route.abort())
        await talk.say("Weather?")
        await talk.settled()
        await expect(talk.answers.locator(".hljs-keyword")).to_be_visible()
        live = await talk.shown()
        await talk.page.unroute("**/messages?*")
        await talk.page.reload()
        await talk.settled()
        await expect(talk.answers.locator(".hljs-keyword")).to_be_visible()
        assert await talk.shown() == live


class TestStopping:
    async def test_keeps_what_was_said_and_says_that_it_was_stopped(self, house: House) -> None:
        house.scripts.say("The beginning ", Pause(60), "and the end.")
        talk = await Talk.begin(house)
        await talk.say("Talk for long")
        await expect(talk.answers.get_by_text("The beginning")).to_be_visible()
        await talk.message.fill("a draft")
        await talk.page.get_by_role("button", name="Stop the answer").click()
        await expect(talk.page.get_by_text("You stopped this answer.")).to_be_visible()
        await expect(talk.message).to_be_focused()
        await talk.settled()
        live = await talk.shown()
        await talk.page.reload()
        await expect(talk.page.get_by_text("You stopped this answer.")).to_be_visible()
        assert await talk.shown() == live

    async def test_before_the_first_word_leaves_a_way_on(self, house: House) -> None:
        house.scripts.say(Pause(60))
        house.scripts.say("Now it works.")
        talk = await Talk.begin(house)
        await talk.say("Hello?")
        await expect(talk.answers.get_by_text("Thinking…")).to_be_visible()
        await talk.page.get_by_role("button", name="Stop the answer").click()
        await talk.page.get_by_role("button", name="Try again").click()
        await expect(talk.answers.get_by_text("Now it works.")).to_be_visible()


class TestFailing:
    async def test_an_answer_that_fails_says_why_and_can_be_tried_again(self, house: House) -> None:
        house.scripts.say("Half an ", Fail(ProviderFailed("The model is out of order.")))
        house.scripts.say("A whole answer.")
        talk = await Talk.begin(house)
        await talk.say("Try")
        await expect(talk.page.get_by_role("note")).to_contain_text("The model is out of order.")
        await talk.page.reload()
        await expect(talk.page.get_by_role("note")).to_contain_text("The model is out of order.")
        await talk.page.get_by_role("button", name="Try again").click()
        await expect(talk.answers.get_by_text("A whole answer.")).to_be_visible()

    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        return settings_for(tmp_path, max_body_bytes=2_000)

    async def test_a_message_that_is_refused_stays_and_says_why(self, house: House) -> None:
        talk = await Talk.begin(house)
        await talk.say("long " * 1_000)
        await expect(talk.questions.get_by_role("alert")).to_contain_text("This message was not sent. The body is over")
        await talk.page.get_by_role("button", name="Remove", exact=True).click()
        await expect(talk.questions).to_have_count(0)


class TestBusy:
    async def test_a_second_message_waits_and_is_answered_next(self, house: House) -> None:
        go_on = asyncio.Event()
        house.scripts.say("First ", Until(go_on.wait), "answer.")
        house.scripts.say("Second answer.")
        talk = await Talk.begin(house)
        await talk.say("One")
        await expect(talk.answers.get_by_text("First")).to_be_visible()
        await talk.say("Two")
        await expect(talk.page.get_by_text("Queued")).to_be_visible()
        await talk.page.reload()
        await expect(talk.page.get_by_text("Queued")).to_be_visible()
        go_on.set()
        await expect(talk.answers.get_by_text("Second answer.")).to_be_visible()
        await talk.settled(2)
        assert await talk.questions.locator(".bubble").all_inner_texts() == ["One", "Two"]

    async def test_an_interrupting_message_ends_the_answer(self, house: House) -> None:
        house.scripts.say("First ", Pause(60), "answer.")
        house.scripts.say("Second answer.")
        talk = await Talk.begin(house)
        await talk.say("One")
        await expect(talk.answers.get_by_text("First")).to_be_visible()
        await talk.message.fill("Two")
        await talk.page.get_by_role("button", name="Interrupt this answer and send now").click()
        await expect(talk.answers.get_by_text("Second answer.")).to_be_visible()
        await expect(talk.page.get_by_text("You stopped this answer.")).to_be_visible()

    async def test_what_waits_stays_behind_an_interrupting_message(self, house: House) -> None:
        go_on = asyncio.Event()
        house.scripts.say("First ", Pause(60), "answer.")
        house.scripts.say("Urgent ", Until(go_on.wait), "answer.")
        house.scripts.say("Last answer.")
        talk = await Talk.begin(house)
        await talk.say("One")
        await expect(talk.answers.get_by_text("First")).to_be_visible()
        await talk.say("Two")
        await expect(talk.page.get_by_text("Queued")).to_be_visible()
        await talk.message.fill("Now")
        await talk.page.get_by_role("button", name="Interrupt this answer and send now").click()
        await expect(talk.answers.get_by_text("Urgent")).to_be_visible()
        await expect(talk.page.get_by_text("Queued")).to_be_visible()
        go_on.set()
        await expect(talk.answers.get_by_text("Last answer.")).to_be_visible()
        await talk.settled(3)
        assert await talk.questions.locator(".bubble").all_inner_texts() == ["One", "Now", "Two"]

    async def test_a_queued_message_can_be_taken_back(self, house: House) -> None:
        house.scripts.say("First ", Pause(60), "answer.")
        talk = await Talk.begin(house)
        await talk.say("One")
        await expect(talk.answers.get_by_text("First")).to_be_visible()
        await talk.say("Two")
        await talk.page.get_by_role("button", name="Do not send").click()
        await expect(talk.questions).to_have_count(1)
        await talk.page.get_by_role("button", name="Stop the answer").click()
        await talk.settled()
