"""The user sends a message and reads the answer while it is written."""

import asyncio
from functools import partial
from pathlib import Path

import pytest
from playwright.async_api import Locator, Response, Route, expect

from tests.api.harness import settings_for
from tests.browser.harness import ChatPage, Harness, expect_copied
from turnkeep.config import Settings
from turnkeep.providers.ports import ProviderFailed
from turnkeep.providers.scripted import Call, Fail, Line, OutOfTokens, Pause, Think, Until

WATCH_COLOURS = """() => {
  window.pale = 0;
  const look = () => { if (!document.querySelector(".code .hljs-keyword")) window.pale += 1; };
  new MutationObserver(look).observe(document.querySelector(".thread"), { subtree: true, childList: true, characterData: true });
}"""  # noqa: E501


class TestSend:
    async def test_a_message_is_shown_answered_and_listed(self, harness: Harness) -> None:
        harness.scripts.say("It is ", Pause(0.05), "**sunny** in Bern.")
        chat = await ChatPage.open(harness)
        await chat.send("How is the weather?")
        await expect(chat.questions.get_by_text("How is the weather?")).to_be_visible()
        await chat.wait_settled()
        await expect(chat.answers.locator("strong")).to_have_text("sunny")
        await expect(chat.conversations.get_by_role("link", name="How is the weather?")).to_be_visible()
        assert "/c/conv_" in chat.page.url

    async def test_the_answer_is_drawn_as_it_streams_with_a_cursor(self, harness: Harness) -> None:
        go_on = asyncio.Event()
        harness.scripts.say("The first half, ", Until(go_on.wait), "and the second.")
        chat = await ChatPage.open(harness)
        await chat.send("Slowly, please.")
        await expect(chat.page.locator(".prose.is-growing")).to_have_text("The first half,")
        await expect(chat.page.get_by_role("button", name="Stop the answer")).to_be_visible()
        go_on.set()
        await chat.wait_settled()
        await expect(chat.answers.locator(".prose")).to_have_text("The first half, and the second.")
        await expect(chat.page.locator(".is-growing")).to_have_count(0)

    async def test_shift_enter_makes_a_new_line(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness)
        await chat.message_box.fill("one")
        await chat.message_box.press("Shift+Enter")
        await chat.message_box.press_sequentially("two")
        await chat.message_box.press("Enter")
        await chat.wait_settled()
        assert await chat.questions.locator(".bubble").inner_text() == "one\ntwo"

    async def test_a_draft_stays_with_its_conversation_also_when_it_was_new(self, harness: Harness) -> None:
        is_typed = asyncio.Event()

        async def hold(route: Route) -> None:
            await is_typed.wait()
            await route.continue_()

        chat = await ChatPage.open(harness)
        await chat.page.route("**/v1/turns", hold)
        await chat.send("First")
        await expect(chat.page.get_by_text("Sending…")).to_be_visible()
        await chat.message_box.fill("not yet sent")
        is_typed.set()
        await chat.wait_settled()
        await expect(chat.message_box).to_have_value("not yet sent")
        first = chat.page.url
        await chat.conversations.get_by_role("link", name="New conversation").click()
        await expect(chat.message_box).to_have_value("")
        await chat.message_box.fill("another draft")
        await chat.page.wait_for_timeout(300)
        await chat.page.goto(first)
        await expect(chat.message_box).to_have_value("not yet sent")
        await chat.page.goto(harness.server.url)
        await expect(chat.message_box).to_have_value("another draft")


class TestContent:
    async def test_tables_code_maths_and_lists(self, harness: Harness) -> None:
        painted = asyncio.Event()
        harness.scripts.say(
            "| a | b |\n|---|--:|\n| 1 | 2 |\n\n```python\ndef f():\n",
            Until(painted.wait),
            "    return 1\n```\n\n",
            "$$\\frac{1}{2}$$\n\n- x\n- [x] y\n",
        )
        chat = await ChatPage.open(harness)
        await chat.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await chat.send("Show me")
        await expect(chat.answers.locator(".hljs-keyword")).to_have_text("def")
        await chat.page.evaluate(WATCH_COLOURS)
        painted.set()
        await chat.wait_settled()
        await expect(chat.answers.get_by_role("cell")).to_have_text(["1", "2"])
        await expect(chat.answers.locator(".hljs-keyword")).to_have_text(["def", "return"])
        assert await chat.page.evaluate("window.pale") == 0
        await expect(chat.answers.locator(".katex-mathml").first).to_be_attached()
        await expect(chat.answers.locator("li")).to_have_count(2)
        await chat.page.get_by_role("button", name="Copy the code").click()
        await expect_copied(chat.page, "def f():\n    return 1")

    async def test_steps_are_updated_in_place_and_sources_are_cited(self, harness: Harness) -> None:
        harness.scripts.say(
            Think("I should look."),
            "Let me look.",
            Call("lookup", {"place": "Bern"}),
            Call("broken", {"place": "Basel"}),
        )
        harness.scripts.say("It rains [1].")
        chat = await ChatPage.open(harness)
        await chat.send("Weather?")
        step = chat.page.locator(".step").first
        await expect(step).to_contain_text("lookup")
        await expect(step).to_contain_text("running")
        # The step says what happens. The model does not think meanwhile.
        await expect(chat.answers.get_by_text("Thinking…")).to_have_count(0)
        harness.lookup_allowed.set()
        await chat.wait_settled()
        await expect(chat.page.locator(".step")).to_have_count(2)
        await expect(chat.page.locator(".step.is-succeeded .step-time")).to_contain_text("s")
        await expect(chat.page.locator(".step.is-failed")).to_contain_text("broken")
        await step.locator("summary").click()
        await expect(step.get_by_role("region", name="Arguments")).to_contain_text('"place": "Bern"')
        await expect(step.get_by_role("region", name="Result")).to_contain_text("rain")
        await expect(chat.answers.get_by_text("I should look.")).to_be_hidden()
        # With the keyboard: the step that was opened above may still move it away from the pointer.
        await chat.answers.locator("summary", has_text="Thoughts").press("Enter")
        await expect(chat.answers.get_by_text("I should look.")).to_be_visible()
        await chat.page.get_by_role("link", name="Source 1").click()
        await expect(chat.page.locator(".sources li").first).to_be_focused()
        await expect(chat.page.get_by_role("link", name="Almanac")).to_have_attribute(
            "rel", "noopener noreferrer nofollow"
        )

    async def test_a_reload_draws_exactly_the_same(self, harness: Harness) -> None:
        harness.lookup_allowed.set()
        harness.scripts.say(Think("Hm."), "Let me look.", Call("lookup", {"place": "Bern"}), Call("broken", {}))
        harness.scripts.say("# Rain\n\nIt rains [1] in `Bern`.\n\n1. one\n2. two\n\n```js\nlet x = 1\n```\n")
        chat = await ChatPage.open(harness)
        # Until the reload the page has only the stream.
        await chat.page.route("**/messages?*", lambda route: route.abort())
        await chat.send("Weather?")
        await chat.wait_settled()
        await expect(chat.answers.locator(".hljs-keyword")).to_be_visible()
        live = await chat.drawn_html()
        await chat.page.unroute("**/messages?*")
        await chat.page.reload()
        await chat.wait_settled()
        await expect(chat.answers.locator(".hljs-keyword")).to_be_visible()
        assert await chat.drawn_html() == live

    async def test_thoughts_are_drawn_as_markdown(self, harness: Harness) -> None:
        harness.scripts.say(Think("Two ways:\n\n- the **short** one\n- the `long` one\n"), "Short.")
        chat = await ChatPage.open(harness)
        await chat.send("Which way?")
        await chat.wait_settled()
        await chat.answers.locator("summary", has_text="Thoughts").click()
        thoughts = chat.answers.locator(".reasoning-text")
        await expect(thoughts.get_by_role("listitem")).to_have_text(["the short one", "the long one"])
        await expect(thoughts.locator("strong")).to_have_text("short")
        await expect(thoughts.locator("code")).to_have_text("long")

    async def test_each_block_is_written_from_its_own_side(self, harness: Harness) -> None:
        harness.scripts.say(
            Think("הם שואלים בעברית."),
            "`code` ثم نص عربي.\n\n- واحد\n- two\n\n> اقتباس\n\n| اسم | value |\n|---|---|\n| أ | b |\n\n"
            "In English.\n\n- one\n\n```python\n# تعليق\n```\n",
        )
        chat = await ChatPage.open(harness)
        assert await self.direction(chat.message_box) == "ltr"
        await chat.message_box.fill("ما هي عاصمة منغوليا؟")
        assert await self.direction(chat.message_box) == "rtl"
        await chat.message_box.press("Enter")
        await chat.wait_settled()
        assert await self.direction(chat.questions.locator(".bubble")) == "rtl"
        assert await self.direction(chat.page.get_by_role("heading", level=1)) == "rtl"
        assert await self.direction(chat.conversations.locator(".entry-title")) == "rtl"
        blocks = chat.answers.locator(":is(.prose > :is(p, ul, blockquote), table, pre)")
        found = [f"{await each.evaluate('e => e.tagName')} {await self.direction(each)}" for each in await blocks.all()]
        assert found == ["P rtl", "P rtl", "UL rtl", "BLOCKQUOTE rtl", "TABLE rtl", "P ltr", "UL ltr", "PRE ltr"]
        assert await self.direction(chat.answers.locator(".prose p > code")) == "ltr"
        await chat.page.get_by_role("button", name="Edit the message").click()
        assert await self.direction(chat.page.get_by_label("Your message")) == "rtl"

    async def direction(self, element: Locator) -> str:
        found: str = await element.first.evaluate("element => getComputedStyle(element).direction")
        return found


def changes(field: str, response: Response) -> bool:
    """Whether it answers a change of this field of a conversation."""
    return response.request.method == "PATCH" and field in (response.request.post_data or "")


class TestChoice:
    """Which agent and model answer."""

    async def test_no_agent_and_the_default_model_can_be_chosen_again(self, harness: Harness) -> None:
        client = await harness.api()
        agent = (await client.post("/v1/agents", json={"name": "Guide", "instructions": "Guide."})).json()
        chat = await ChatPage.open(harness)
        agents, models = chat.page.get_by_label("Agent", exact=True), chat.page.get_by_label("Model")
        await agents.select_option(label="Guide")
        await models.select_option("scripted")
        await chat.send("Hello")
        await chat.wait_settled()
        conversation = f"/v1/conversations/{chat.page.url.rpartition('/')[2]}"
        chosen = await client.read(conversation)
        assert (chosen["agent_id"], chosen["model"]) == (agent["id"], "scripted")
        choices = ((agents, "No agent", "agent_id"), (models, "Default (scripted)", "model"))
        for label, choice, field in choices:
            # Another PATCH says that the answer was seen.
            is_change = partial(changes, field)
            async with chat.page.expect_response(is_change):
                await label.select_option(label=choice)
        chosen = await client.read(conversation)
        assert (chosen["agent_id"], chosen["model"]) == (None, None)
        await chat.page.reload()
        await expect(agents).to_have_value("")
        await expect(models).to_have_value("")

    async def test_a_suggestion_is_of_the_agent_and_is_answered_as_chosen(self, harness: Harness) -> None:
        client = await harness.api()
        body = {"name": "Library", "instructions": "You know books.", "starters": ["When are you open?", "متى تفتح؟"]}
        agent = (await client.post("/v1/agents", json=body)).json()
        chat = await ChatPage.open(harness)
        ideas = chat.page.locator(".ideas").get_by_role("button")
        await expect(chat.page.get_by_label("Agent", exact=True)).to_be_visible()
        await expect(ideas).to_have_count(0)
        await chat.page.get_by_label("Agent", exact=True).select_option(label="Library")
        await expect(ideas).to_have_text(["When are you open?", "متى تفتح؟"])
        await chat.page.get_by_label("Model").select_option("scripted")
        await ideas.first.click()
        await chat.wait_settled()
        conversation = await client.read(f"/v1/conversations/{chat.page.url.rpartition('/')[2]}")
        assert (conversation["agent_id"], conversation["model"]) == (agent["id"], "scripted")
        await expect(chat.questions).to_have_text("When are you open?")


class TestStop:
    async def test_a_tool_that_ran_is_shown_as_stopped_and_not_as_failed(self, harness: Harness) -> None:
        harness.scripts.say("Let me look.", Call("lookup", {"place": "Bern"}))
        chat = await ChatPage.open(harness)
        await chat.send("Weather?")
        step = chat.page.locator(".step")
        await expect(step).to_contain_text("running")
        await chat.page.get_by_role("button", name="Stop the answer").click()
        await chat.wait_settled()
        for _ in range(2):
            await expect(step.locator(".step-end")).to_contain_text("stopped")
            await expect(chat.page.locator(".step.is-stopped")).to_have_count(1)
            await expect(chat.page.locator(".step.is-failed, .step.is-running, .spinner")).to_have_count(0)
            await chat.page.reload()

    async def test_keeps_the_text_so_far_and_says_that_the_answer_was_stopped(self, harness: Harness) -> None:
        harness.scripts.say("The beginning ", Pause(60), "and the end.")
        chat = await ChatPage.open(harness)
        await chat.send("ChatPage for long")
        await expect(chat.answers.get_by_text("The beginning")).to_be_visible()
        await chat.message_box.fill("a draft")
        await chat.page.get_by_role("button", name="Stop the answer").click()
        await expect(chat.page.get_by_text("You stopped this answer.")).to_be_visible()
        await expect(chat.message_box).to_be_focused()
        await chat.wait_settled()
        live = await chat.drawn_html()
        await chat.page.reload()
        await expect(chat.page.get_by_text("You stopped this answer.")).to_be_visible()
        assert await chat.drawn_html() == live

    async def test_before_the_first_word_offers_to_try_again(self, harness: Harness) -> None:
        harness.scripts.say(Pause(60))
        harness.scripts.say("Now it works.")
        chat = await ChatPage.open(harness)
        await chat.send("Hello?")
        await expect(chat.answers.get_by_text("Thinking…")).to_be_visible()
        await chat.page.get_by_role("button", name="Stop the answer").click()
        await chat.page.get_by_role("button", name="Try again").click()
        await expect(chat.answers.get_by_text("Now it works.")).to_be_visible()


class TestFailure:
    async def test_a_reload_of_failed_turns_needs_no_further_request(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness)
        for count in (1, 2):
            harness.scripts.say(Fail(ProviderFailed("The model is out of order.")))
            await chat.send("Try")
            await chat.wait_settled(count)
        paths: list[str] = []
        chat.page.on("request", lambda request: paths.append(request.url))
        await chat.page.reload()
        await expect(chat.page.get_by_text("The model is out of order.")).to_have_count(2)
        assert [path for path in paths if "/v1/turns/" in path] == []

    @pytest.mark.parametrize(
        "script, note",
        [
            (("Half of a sen", OutOfTokens()), "Cut at the limit"),
            ((), "The model gave an empty answer."),
        ],
        ids=["cut off", "empty"],
    )
    async def test_an_answer_that_is_not_complete_says_so(
        self, harness: Harness, script: tuple[Line, ...], note: str
    ) -> None:
        harness.scripts.say(*script)
        chat = await ChatPage.open(harness)
        await chat.send("Go on")
        await chat.wait_settled()
        for _ in range(2):
            await expect(chat.answers.last).to_contain_text(note)
            await chat.page.reload()

    async def test_an_answer_that_was_cut_can_be_shown_whole(self, harness: Harness) -> None:
        harness.lookup_allowed.set()
        calls = [Call("lookup", {"place": str(n).zfill(2) + "x" * 15_000 + "end"}) for n in range(60)]
        harness.scripts.say(*calls)
        harness.scripts.say("Done.")
        chat = await ChatPage.open(harness)
        await chat.send("Look everywhere")
        await chat.wait_settled()
        step = chat.page.locator(".step").first
        await step.locator("summary").click()
        await expect(step).to_contain_text("characters in all")
        await chat.answers.last.locator(".cut-note").last.get_by_role("button", name="Show all").click()
        await expect(step).not_to_contain_text("characters in all")
        await expect(step).to_contain_text("xend")
        await expect(chat.answers.last).to_contain_text("Done.")
        await expect(chat.page.locator(".cut-note")).to_have_count(0)

    async def test_a_failed_answer_says_why_and_can_be_tried_again(self, harness: Harness) -> None:
        harness.scripts.say("Half an ", Fail(ProviderFailed("The model is out of order.")))
        harness.scripts.say("A whole answer.")
        chat = await ChatPage.open(harness)
        await chat.send("Try")
        await expect(chat.page.get_by_role("note")).to_contain_text("The model is out of order.")
        await chat.page.reload()
        await expect(chat.page.get_by_role("note")).to_contain_text("The model is out of order.")
        await chat.page.get_by_role("button", name="Try again").click()
        await expect(chat.answers.get_by_text("A whole answer.")).to_be_visible()

    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        return settings_for(tmp_path, max_body_bytes=2_000)

    async def test_a_refused_message_stays_and_says_why(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness)
        await chat.send("long " * 1_000)
        await expect(chat.questions.get_by_role("alert")).to_contain_text("This message was not sent. The body is over")
        await chat.page.get_by_role("button", name="Do not send").click()
        await expect(chat.questions).to_have_count(0)


class TestQueue:
    async def test_a_second_message_waits_and_is_answered_next(self, harness: Harness) -> None:
        go_on = asyncio.Event()
        harness.scripts.say("First ", Until(go_on.wait), "answer.")
        harness.scripts.say("Second answer.")
        chat = await ChatPage.open(harness)
        await chat.send("One")
        await expect(chat.answers.get_by_text("First")).to_be_visible()
        await chat.send("Two")
        await expect(chat.page.get_by_text("Queued")).to_be_visible()
        await chat.page.reload()
        await expect(chat.page.get_by_text("Queued")).to_be_visible()
        go_on.set()
        await expect(chat.answers.get_by_text("Second answer.")).to_be_visible()
        await chat.wait_settled(2)
        assert await chat.questions.locator(".bubble").all_inner_texts() == ["One", "Two"]

    async def test_an_interrupting_message_ends_the_answer(self, harness: Harness) -> None:
        harness.scripts.say("First ", Pause(60), "answer.")
        harness.scripts.say("Second answer.")
        chat = await ChatPage.open(harness)
        await chat.send("One")
        await expect(chat.answers.get_by_text("First")).to_be_visible()
        await chat.message_box.fill("Two")
        await chat.page.get_by_role("button", name="Interrupt this answer and send now").click()
        await expect(chat.answers.get_by_text("Second answer.")).to_be_visible()
        await expect(chat.page.get_by_text("You stopped this answer.")).to_be_visible()

    async def test_queued_messages_stay_behind_an_interrupting_message(self, harness: Harness) -> None:
        go_on = asyncio.Event()
        harness.scripts.say("First ", Pause(60), "answer.")
        harness.scripts.say("Urgent ", Until(go_on.wait), "answer.")
        harness.scripts.say("Last answer.")
        chat = await ChatPage.open(harness)
        await chat.send("One")
        await expect(chat.answers.get_by_text("First")).to_be_visible()
        await chat.send("Two")
        await expect(chat.page.get_by_text("Queued")).to_be_visible()
        await chat.message_box.fill("Now")
        await chat.page.get_by_role("button", name="Interrupt this answer and send now").click()
        await expect(chat.answers.get_by_text("Urgent")).to_be_visible()
        await expect(chat.page.get_by_text("Queued")).to_be_visible()
        go_on.set()
        await expect(chat.answers.get_by_text("Last answer.")).to_be_visible()
        await chat.wait_settled(3)
        assert await chat.questions.locator(".bubble").all_inner_texts() == ["One", "Now", "Two"]

    async def test_a_queued_message_can_be_cancelled(self, harness: Harness) -> None:
        harness.scripts.say("First ", Pause(60), "answer.")
        chat = await ChatPage.open(harness)
        await chat.send("One")
        await expect(chat.answers.get_by_text("First")).to_be_visible()
        await chat.send("Two")
        await chat.page.get_by_role("button", name="Do not send").click()
        await expect(chat.questions).to_have_count(1)
        await chat.page.get_by_role("button", name="Stop the answer").click()
        await chat.wait_settled()
