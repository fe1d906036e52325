"""The list of conversations: groups, search, rename, delete, undo, and loading more."""

import asyncio

from playwright.async_api import Route, expect

from tests.browser.harness import TIMEOUT_MS, ChatPage, Harness, wait_until
from tests.browser.stored_conversations import append_turn, long_conversation
from turnkeep.api.identity.service_keys import SigninLinks
from turnkeep.providers.scripted import Until
from turnkeep_client.wire.blocks import TextPart

MARKED = "[...(CSS.highlights.get('cited') ?? [])].map(String)"
"""The words that are marked on the page."""


class TestList:
    async def test_is_grouped_by_date_and_the_newest_is_first(self, harness: Harness) -> None:
        client = await harness.api()
        for text in ("Older question", "Newer question"):
            await client.ask(text)
        # The page's clock stands still, so that midnight does not change the group.
        newest = (await client.read("/v1/conversations"))["data"][0]
        await harness.context.clock.set_fixed_time(newest["updated_at"] / 1000)
        chat = await ChatPage.open(harness)
        today = chat.conversations.get_by_role("region", name="Today")
        await expect(today.locator(".entry-title")).to_have_text(["Newer question", "Older question"])

    async def test_loads_more_while_the_user_scrolls(self, harness: Harness) -> None:
        client = await harness.api()
        made = [client.post("/v1/conversations", json={"title": f"Conversation {n:03}"}) for n in range(75)]
        for response in await asyncio.gather(*made):
            assert response.status_code == 201
        chat = await ChatPage.open(harness)
        entries = chat.page.locator(".entry")
        await expect(entries.first).to_be_visible()
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            while await entries.count() < 75:
                await chat.page.locator(".conversations-list").evaluate("list => list.scrollTo(0, list.scrollHeight)")
                await chat.page.wait_for_timeout(100)
        await expect(entries).to_have_count(75)

    async def test_a_search_finds_words_in_messages_and_marks_them(self, harness: Harness) -> None:
        client = await harness.api()
        harness.scripts.say("The capital of Mongolia is Ulaanbaatar.")
        await client.ask("A question about a city")
        await client.ask("Something else")
        chat = await ChatPage.open(harness)
        await chat.page.keyboard.press("Control+k")
        await expect(chat.page.get_by_role("searchbox")).to_be_focused()
        await chat.page.keyboard.type("ulaan")
        await expect(chat.page.locator(".entry")).to_have_count(1)
        await expect(chat.page.locator(".entry mark")).to_have_text("Ulaanbaatar")
        await chat.page.locator(".entry a").click()
        await expect(chat.answers.get_by_text("Ulaanbaatar")).to_be_visible()
        await chat.page.get_by_role("searchbox").fill("nothing has this word")
        await expect(chat.conversations.get_by_text("Nothing found for")).to_be_visible()
        await chat.page.get_by_role("button", name="Clear the search").click()
        await expect(chat.page.locator(".entry")).to_have_count(2)

    async def test_a_hit_opens_at_the_words_that_were_found_and_marks_them(self, harness: Harness) -> None:
        conversation = await long_conversation(harness, 60)
        hidden = (TextPart(text="A paragraph.\n\nThe **capital** of Mongolia is *Ulaanbaatar*, says the atlas."),)
        await append_turn(harness, conversation, "Where?", hidden)
        for number in range(60):
            await append_turn(
                harness, conversation, f"Later {number}", (TextPart(text=f"Nothing about it, {number}."),)
            )
        chat = await ChatPage.open(harness)
        await chat.page.get_by_role("searchbox").fill("ulaan")
        await chat.page.locator(".entry a", has=chat.page.locator("mark")).click()
        hit = chat.answers.get_by_text("says the atlas")
        for _ in range(2):
            await expect(hit).to_be_in_viewport()
            await expect(hit).to_have_attribute("data-cited", "")
            assert await chat.page.evaluate(MARKED) == ["Ulaanbaatar"]
            # A hit that is opened again is shown again.
            await chat.page.get_by_role("button", name="Go to the newest message").click()
            await expect(hit).not_to_be_in_viewport()
            await chat.page.locator(".entry a").click()
        await expect(hit).to_be_in_viewport()
        await chat.page.reload()
        await expect(hit).to_be_in_viewport()

    async def test_a_hit_in_a_message_that_is_longer_than_the_window_stays_in_view(self, harness: Harness) -> None:
        conversation = await long_conversation(harness, 20)
        text = "The capital of Mongolia.\n\n" + "A paragraph.\n\n" * 120
        await append_turn(harness, conversation, "Where?", (TextPart(text=text),))
        chat = await ChatPage.open(harness)
        await chat.page.get_by_role("searchbox").fill("mongolia")
        await chat.page.locator(".entry a", has=chat.page.locator("mark")).click()
        hit = chat.answers.get_by_text("The capital of Mongolia.")
        await expect(hit).to_be_in_viewport()
        # The list measures its rows, and moves, for some frames more.
        await chat.page.wait_for_timeout(1_000)
        await expect(hit).to_be_in_viewport()

    async def test_a_hit_stays_marked_when_the_code_that_draws_answers_arrives_later(self, harness: Harness) -> None:
        client = await harness.api()
        harness.scripts.say("Bern is the **capital** of Switzerland.")
        await client.ask("Tell me a fact")
        chat = await ChatPage.open(harness)
        is_opened = asyncio.Event()

        async def hold(route: Route) -> None:
            await is_opened.wait()
            await route.continue_()

        await chat.page.route("**/assets/Markdown-*.js", hold)
        await chat.page.reload()
        await chat.page.get_by_role("searchbox").fill("capital")
        await chat.page.locator(".entry a", has=chat.page.locator("mark")).click()
        await expect(chat.answers.get_by_text("**capital**")).to_be_visible()
        assert await chat.page.evaluate(MARKED) == ["capital"]
        is_opened.set()
        drawn = chat.answers.get_by_text("of Switzerland")
        await expect(drawn).to_have_attribute("data-cited", "")
        await expect(drawn).to_be_focused()
        assert await chat.page.evaluate(MARKED) == ["capital"]

    async def test_a_hit_in_a_title_opens_the_conversation(self, harness: Harness) -> None:
        client = await harness.api()
        conversation = (await client.ask("Hello"))["conversation_id"]
        await client.patch(f"/v1/conversations/{conversation}", json={"title": "Plans for Ulaanbaatar"})
        chat = await ChatPage.open(harness)
        await chat.page.get_by_role("searchbox").fill("ulaan")
        await chat.page.locator(".entry a", has=chat.page.locator("mark")).click()
        await chat.wait_settled()
        assert chat.page.url == f"{harness.server.url}/c/{conversation}"

    async def test_the_results_of_a_search_begin_at_their_top(self, harness: Harness) -> None:
        client = await harness.api()
        made = [client.post("/v1/conversations", json={"title": f"Conversation {n:03}"}) for n in range(40)]
        for response in await asyncio.gather(*made):
            assert response.status_code == 201
        chat = await ChatPage.open(harness)
        entries, listed = chat.page.locator(".entry"), chat.page.locator(".conversations-list")
        await expect(entries.first).to_be_visible()
        await listed.evaluate("list => list.scrollTo(0, list.scrollHeight)")
        assert await listed.evaluate("list => list.scrollTop") > 0
        await chat.page.get_by_role("searchbox").fill("conversation")
        await expect(chat.page.locator(".entry mark").first).to_be_in_viewport()
        assert await listed.evaluate("list => list.scrollTop") == 0

    async def test_the_dot_ends_with_the_answer_also_out_of_view(self, harness: Harness) -> None:
        go_on = [asyncio.Event(), asyncio.Event()]
        chat = await ChatPage.open(harness)
        dot = chat.page.get_by_role("img", name="an answer is being written")
        # Neither the refresh after an answer nor the regular one may be needed for what is in view.
        await chat.page.route("**/v1/conversations?*", lambda route: route.abort())
        await chat.page.route("**/v1/conversations/*", lambda route: route.abort())
        harness.scripts.say("Once ", Until(go_on[0].wait), "more.")
        await chat.send("In view")
        await expect(dot).to_have_count(1)
        go_on[0].set()
        await chat.wait_settled()
        await expect(dot).to_have_count(0)
        await chat.page.unroute_all()
        harness.scripts.say("Once ", Until(go_on[1].wait), "more.")
        await chat.send("And out of view")
        await expect(chat.answers.get_by_text("Once").last).to_be_visible()
        await chat.conversations.get_by_role("link", name="New conversation").click()
        await expect(dot).to_have_count(1)
        go_on[1].set()
        # Well before the list is read regularly.
        await expect(dot).to_have_count(0, timeout=15_000)


class TestChanges:
    async def test_a_new_title_does_not_move_a_conversation(self, harness: Harness) -> None:
        client = await harness.api()
        for text in ("Older", "Newer"):
            await client.ask(text)
        chat = await ChatPage.open(harness)
        titles = chat.conversations.locator(".entry-title")
        await expect(titles).to_have_text(["Newer", "Older"])
        await chat.conversations.get_by_text("Older").hover()
        await chat.page.get_by_role("button", name="Rename “Older”").click()
        await chat.page.get_by_label("New title").fill("Renamed")
        async with chat.page.expect_response(lambda response: response.request.method == "PATCH"):
            await chat.page.keyboard.press("Enter")
        await expect(titles).to_have_text(["Newer", "Renamed"])
        await chat.page.reload()
        await expect(titles).to_have_text(["Newer", "Renamed"])

    async def test_its_buttons_do_not_cover_a_title_that_begins_on_the_right(self, harness: Harness) -> None:
        client = await harness.api()
        await client.ask("ما هو الطقس اليوم؟")
        chat = await ChatPage.open(harness)
        entry = chat.page.locator(".entry")
        gap = """entry => {
          const text = document.createRange();
          text.selectNodeContents(entry.querySelector(".entry-title"));
          return entry.querySelector(".entry-tools").getBoundingClientRect().left - text.getBoundingClientRect().right;
        }"""
        await entry.hover()
        assert await entry.evaluate(gap) >= 0
        await chat.page.set_viewport_size({"width": 390, "height": 844})
        await chat.page.get_by_role("button", name="Open the list of conversations").click()
        await expect(chat.conversations).to_be_in_viewport()
        assert await entry.evaluate(gap) >= 0

    async def test_rename_delete_and_undo(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness)
        await chat.send("A first thought")
        await chat.wait_settled()
        address = chat.page.url
        await chat.conversations.get_by_text("A first thought").hover()
        await chat.page.get_by_role("button", name="Rename “A first thought”").click()
        await chat.page.get_by_label("New title").fill("A better title")
        await chat.page.keyboard.press("Enter")
        await expect(chat.conversations.locator(".entry-title")).to_have_text("A better title")
        await expect(chat.page.get_by_role("heading", level=1)).to_have_text("A better title")
        await chat.page.reload()
        await expect(chat.conversations.locator(".entry-title")).to_have_text("A better title")
        await chat.conversations.get_by_text("A better title").hover()
        await chat.page.get_by_role("button", name="Delete “A better title”").click()
        await expect(chat.page.locator(".entry")).to_have_count(0)
        await expect(chat.page.get_by_role("heading", name="What shall we work on?")).to_be_visible()
        await chat.page.get_by_role("button", name="Undo").click()
        await expect(chat.conversations.locator(".entry-title")).to_have_text("A better title")
        await expect(chat.answers).to_have_count(1)
        assert chat.page.url == address

    async def test_escape_keeps_the_old_title(self, harness: Harness) -> None:
        client = await harness.api()
        await client.ask("Keep me")
        chat = await ChatPage.open(harness)
        await chat.conversations.get_by_text("Keep me").hover()
        await chat.page.get_by_role("button", name="Rename “Keep me”").click()
        await chat.page.get_by_label("New title").fill("Not this")
        await chat.page.keyboard.press("Escape")
        await expect(chat.conversations.locator(".entry-title")).to_have_text("Keep me")
        await expect(chat.conversations.get_by_role("link", name="Keep me")).to_be_focused()

    async def test_a_change_that_the_server_refuses_is_undone(self, harness: Harness) -> None:
        client = await harness.api()
        conversation_id = (await client.ask("Here to stay"))["conversation_id"]
        chat = await ChatPage.open(harness)
        await expect(chat.conversations.get_by_text("Here to stay")).to_be_visible()
        await chat.page.route(f"**/v1/conversations/{conversation_id}", lambda route: route.abort())
        await chat.conversations.get_by_text("Here to stay").hover()
        await chat.page.get_by_role("button", name="Delete “Here to stay”").click()
        await expect(chat.page.get_by_role("alert")).to_contain_text("The server cannot be reached.")
        await expect(chat.conversations.locator(".entry-title")).to_have_text("Here to stay")


class TestPinsAndFolders:
    async def test_pinned_conversations_come_first(self, harness: Harness) -> None:
        client = await harness.api()
        for text in ("First thought", "Second thought", "Third thought"):
            await client.ask(text)
        chat = await ChatPage.open(harness)
        titles = chat.conversations.locator(".entry-title")
        await expect(titles).to_have_text(["Third thought", "Second thought", "First thought"])
        await chat.conversations.get_by_text("First thought").hover()
        await chat.page.get_by_role("button", name="Pin “First thought”").click()
        pinned = chat.conversations.get_by_role("region", name="Pinned")
        await expect(pinned.locator(".entry-title")).to_have_text(["First thought"])
        await expect(titles).to_have_text(["First thought", "Third thought", "Second thought"])
        await chat.page.reload()
        await expect(titles).to_have_text(["First thought", "Third thought", "Second thought"])
        # With the keyboard, on the conversation itself.
        await pinned.get_by_role("link", name="First thought").focus()
        await chat.page.keyboard.press("p")
        await expect(pinned).to_have_count(0)
        await expect(titles).to_have_text(["Third thought", "Second thought", "First thought"])
        listed = (await client.read("/v1/conversations", params={"is_pinned": "true"}))["data"]
        assert listed == []

    async def test_a_conversation_is_moved_by_the_menu_and_by_the_keyboard(self, harness: Harness) -> None:
        client = await harness.api()
        for text in ("Bern", "Basel", "Berlin"):
            await client.ask(text)
        chat = await ChatPage.open(harness)
        await chat.conversations.get_by_text("Bern").click()
        await chat.wait_settled()
        await chat.page.get_by_label("Conversation menu").click()
        await chat.page.get_by_role("button", name="Move to a folder", exact=True).click()
        dialog = chat.page.get_by_role("dialog", name="Move to a folder")
        await dialog.get_by_label("New folder").fill(" Switzerland ")
        await dialog.get_by_role("button", name="Move", exact=True).click()
        await expect(dialog).to_have_count(0)
        toggle = chat.conversations.get_by_role("button", name="Switzerland", exact=True)
        await expect(toggle).to_have_attribute("aria-expanded", "false")
        titles = chat.conversations.locator(".entry-title:visible")
        await expect(titles).to_have_text(["Berlin", "Basel"])
        # Arrows lead from the folder to the conversations.
        await toggle.focus()
        await chat.page.keyboard.press("Enter")
        await expect(titles).to_have_text(["Bern", "Berlin", "Basel"])
        await chat.conversations.get_by_role("link", name="Basel").focus()
        await chat.page.keyboard.press("m")
        await dialog.get_by_role("button", name="Switzerland").click()
        folder = chat.conversations.get_by_role("region", name="Folder Switzerland")
        await expect(folder.locator(".entry-title")).to_have_text(["Basel", "Bern"])
        await chat.page.reload()
        await expect(folder.locator(".entry-title")).to_have_text(["Basel", "Bern"])
        await expect(titles).to_have_text(["Basel", "Bern", "Berlin"])
        await chat.conversations.get_by_role("link", name="Basel").focus()
        await chat.page.keyboard.press("m")
        await dialog.get_by_role("button", name="No folder").click()
        await expect(folder.locator(".entry-title")).to_have_text(["Bern"])
        await expect(titles).to_have_text(["Bern", "Berlin", "Basel"])

    async def test_a_folder_is_renamed_and_removed_and_its_conversations_stay(self, harness: Harness) -> None:
        client = await harness.api()
        for text in ("Bern", "Basel"):
            await client.patch(f"/v1/conversations/{(await client.ask(text))['conversation_id']}", json={"folder": "A"})
        chat = await ChatPage.open(harness)
        await chat.conversations.get_by_role("button", name="A", exact=True).click()
        await chat.page.get_by_role("button", name="Rename the folder “A”").click()
        await chat.page.get_by_label("Name of the folder").fill("Cities")
        await chat.page.keyboard.press("Enter")
        folder = chat.conversations.get_by_role("region", name="Folder Cities")
        await expect(folder.locator(".entry-title")).to_have_text(["Basel", "Bern"])
        assert [one["name"] for one in (await client.read("/v1/folders"))["data"]] == ["Cities"]
        chat.page.on("dialog", lambda dialog: dialog.accept())
        await folder.get_by_role("button", name="Cities", exact=True).hover()
        await chat.page.get_by_role("button", name="Remove the folder “Cities”").click()
        await expect(folder).to_have_count(0)
        await expect(chat.conversations.locator(".entry-title")).to_have_text(["Basel", "Bern"])

    async def test_a_search_finds_what_is_in_a_folder(self, harness: Harness) -> None:
        client = await harness.api()
        made = (await client.ask("A needle"))["conversation_id"]
        await client.patch(f"/v1/conversations/{made}", json={"folder": "A", "is_pinned": True})
        chat = await ChatPage.open(harness)
        await expect(chat.conversations.get_by_role("region", name="Pinned")).to_be_visible()
        await chat.page.get_by_role("searchbox").fill("needle")
        await expect(chat.page.locator(".entry mark")).to_have_text("needle")
        await expect(chat.page.locator(".entry")).to_have_count(1)


NOTIFICATIONS = """
window.shown = [];
window.Notification = class extends EventTarget {
  static permission = "default";
  static async requestPermission() { return (this.permission = window.mayNotify === false ? "denied" : "granted"); }
  constructor(title, options) { super(); window.shown.push([title, options.body]); window.last = this; }
  close() {}
};
"""


class TestUnread:
    async def test_an_answer_that_ended_out_of_view_is_marked_until_it_is_opened(self, harness: Harness) -> None:
        go_on = asyncio.Event()
        harness.scripts.say("Once ", Until(go_on.wait), "more.")
        chat = await ChatPage.open(harness)
        await chat.send("In the background")
        await expect(chat.answers.get_by_text("Once")).to_be_visible()
        mark = chat.page.get_by_role("img", name="an answer that you have not seen")
        await chat.conversations.get_by_role("link", name="New conversation").click()
        go_on.set()
        await expect(mark).to_have_count(1)
        await expect(chat.page).to_have_title("(1) Turnkeep")
        await chat.page.reload()
        await expect(mark).to_have_count(1)
        read = chat.page.expect_response(lambda response: response.request.method == "PATCH")
        async with read:
            await chat.conversations.get_by_role("link", name="In the background").click()
        await chat.wait_settled()
        await expect(mark).to_have_count(0)
        await expect(chat.page).to_have_title("In the background · Turnkeep")
        await chat.conversations.get_by_role("link", name="New conversation").click()
        await chat.page.reload()
        await expect(chat.page.locator(".entry")).to_have_count(1)
        await expect(mark).to_have_count(0)

    async def test_an_answer_in_view_stays_read_when_the_list_is_read_before_the_server_knows(
        self, harness: Harness
    ) -> None:
        chat = await ChatPage.open(harness)
        late = 0

        async def tell_it_late(route: Route) -> None:
            nonlocal late
            response = await route.fetch()
            found = await response.json()
            if "/c/" in chat.page.url:
                found["data"] = [{**one, "is_unread": True} for one in found["data"]]
                late += len(found["data"])
            await route.fulfill(response=response, json=found)

        await chat.page.route("**/v1/conversations?*", tell_it_late)
        await chat.send("In view")
        await chat.wait_settled()
        await wait_until(lambda: late > 0)
        await expect(chat.page).to_have_title("In view · Turnkeep")
        await chat.page.unroute_all(behavior="wait")
        await chat.conversations.get_by_role("link", name="New conversation").click()
        await expect(chat.page).to_have_title("Turnkeep")
        await expect(chat.page.get_by_role("img", name="an answer that you have not seen")).to_have_count(0)

    async def test_an_answer_in_view_is_read(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness)
        async with chat.page.expect_response(lambda response: response.request.method == "PATCH"):
            await chat.send("In view")
        await chat.wait_settled()
        await chat.conversations.get_by_role("link", name="New conversation").click()
        await chat.page.reload()
        await expect(chat.page.locator(".entry")).to_have_count(1)
        await expect(chat.page.locator(".entry.is-unread")).to_have_count(0)

    async def test_a_notification_tells_of_it_once_the_user_has_turned_them_on(self, harness: Harness) -> None:
        await harness.context.add_init_script(NOTIFICATIONS)
        go_on = [asyncio.Event(), asyncio.Event()]
        for event in go_on:
            harness.scripts.say("Once ", Until(event.wait), "more.")
        chat = await ChatPage.open(harness)
        await chat.send("Before")
        await expect(chat.answers.get_by_text("Once")).to_be_visible()
        await chat.conversations.get_by_role("link", name="New conversation").click()
        go_on[0].set()
        await expect(chat.page.locator(".entry.is-unread")).to_have_count(1)
        assert await chat.page.evaluate("shown") == []
        await chat.page.get_by_role("link", name="Operator").click()
        switch = chat.page.get_by_role("switch", name="Tell me when an answer is ready")
        await expect(switch).not_to_be_checked()
        await chat.page.evaluate("window.mayNotify = false")
        await switch.click()
        await expect(chat.page.get_by_role("alert")).to_contain_text("The browser does not allow notifications")
        await expect(switch).not_to_be_checked()
        await chat.page.evaluate("window.mayNotify = true")
        await switch.click()
        await expect(switch).to_be_checked()
        await chat.conversations.get_by_role("link", name="New conversation").click()
        await chat.send("After")
        await expect(chat.answers.get_by_text("Once")).to_be_visible()
        await chat.conversations.get_by_role("link", name="New conversation").click()
        go_on[1].set()
        await expect(chat.page.locator(".entry.is-unread")).to_have_count(2)
        assert await chat.page.evaluate("shown") == [["An answer is ready", "After"]]
        await chat.page.evaluate("last.dispatchEvent(new Event('click'))")
        await expect(chat.questions.get_by_text("After")).to_be_visible()


class TestInstructionsAndTemperature:
    async def test_are_changed_in_the_menu_of_the_conversation(self, harness: Harness) -> None:
        client = await harness.api()
        made = (await client.ask("Hello"))["conversation_id"]
        chat = await ChatPage.open(harness, f"/c/{made}")
        await chat.wait_settled()
        await chat.page.get_by_label("Conversation menu").click()
        await chat.page.get_by_role("button", name="Instructions and temperature").click()
        dialog = chat.page.get_by_role("dialog", name="This conversation")
        await dialog.get_by_label("Instructions").fill("Be brief.")
        await dialog.get_by_label("Temperature").fill("0.3")
        await dialog.get_by_role("button", name="Save").click()
        await expect(dialog).to_have_count(0)
        shown = await client.read(f"/v1/conversations/{made}")
        assert (shown["instructions"], shown["temperature"]) == ("Be brief.", 0.3)
        await chat.page.reload()
        await chat.wait_settled()
        await chat.page.get_by_label("Conversation menu").click()
        await chat.page.get_by_role("button", name="Instructions and temperature").click()
        await expect(dialog.get_by_label("Instructions")).to_have_value("Be brief.")
        await expect(dialog.get_by_label("Temperature")).to_have_value("0.3")
        await dialog.get_by_label("Temperature").fill("")
        await dialog.get_by_label("Instructions").fill("")
        await dialog.get_by_role("button", name="Save").click()
        await expect(dialog).to_have_count(0)
        assert not {"instructions", "temperature"} & (await client.read(f"/v1/conversations/{made}")).keys()

    async def test_of_a_new_conversation_hold_for_its_first_answer(self, harness: Harness) -> None:
        client = await harness.api()
        chat = await ChatPage.open(harness)
        dialog = chat.page.get_by_role("dialog", name="This conversation")
        await chat.page.get_by_role("button", name="Instructions and temperature", exact=True).click()
        await dialog.get_by_label("Instructions").fill("x" * 10_001)
        await dialog.get_by_role("button", name="Save").click()
        await expect(dialog.get_by_role("alert")).to_have_text("Instructions have at most 10,000 characters.")
        await dialog.get_by_label("Instructions").fill("Be brief.")
        await dialog.get_by_label("Temperature").fill("0.3")
        await dialog.get_by_role("button", name="Save").click()
        await expect(dialog).to_have_count(0)
        chosen = chat.page.get_by_role("button", name="Instructions and temperature (chosen)")
        await expect(chosen).to_be_focused()
        assert (await client.read("/v1/conversations"))["data"] == [], "nothing is created before the first message"

        await chat.page.reload()
        await expect(chosen).to_be_visible()
        await chat.send("Hello")
        await chat.wait_settled()
        [listed] = (await client.read("/v1/conversations"))["data"]
        shown = await client.read(f"/v1/conversations/{listed['id']}")
        assert (shown["instructions"], shown["temperature"]) == ("Be brief.", 0.3)
        [request] = harness.scripts.requests
        assert "Be brief." in str(request.messages)
        assert request.sampling.temperature == 0.3

        await chat.page.get_by_label("Conversation menu").click()
        await chat.page.get_by_role("button", name="Instructions and temperature").click()
        await expect(dialog.get_by_label("Instructions")).to_have_value("Be brief.")
        await dialog.get_by_role("button", name="Cancel").click()
        await chat.conversations.get_by_role("link", name="New conversation").click()
        await expect(chat.page.get_by_role("button", name="Instructions and temperature", exact=True)).to_be_visible()


class TestTrash:
    async def test_what_was_deleted_is_restored_or_deleted_for_ever(self, harness: Harness) -> None:
        client = await harness.api()
        first = (await client.ask("First thought"))["conversation_id"]
        await client.ask("Second thought")
        chat = await ChatPage.open(harness)
        for title in ("First thought", "Second thought"):
            await chat.conversations.get_by_text(title).hover()
            await chat.page.get_by_role("button", name=f"Delete “{title}”").click()
            await expect(chat.page.get_by_text(f"“{title}” is in the trash.")).to_be_visible()
        await expect(chat.page.locator(".entry")).to_have_count(0)
        await chat.page.get_by_role("link", name="Trash").click()
        await expect(chat.page.get_by_role("heading", name="Trash")).to_be_visible()
        titles = chat.page.locator(".item strong")
        await expect(titles).to_have_text(["Second thought", "First thought"])
        await chat.page.get_by_role("button", name="Restore “First thought”").click()
        await expect(titles).to_have_text(["Second thought"])
        await expect(chat.conversations.locator(".entry-title")).to_have_text("First thought")
        await chat.page.get_by_role("button", name="Delete for ever: “Second thought”").click()
        await chat.page.get_by_role("button", name="No", exact=True).click()
        await chat.page.get_by_role("button", name="Delete for ever: “Second thought”").click()
        await chat.page.get_by_role("button", name="Yes", exact=True).click()
        await expect(chat.page.get_by_text("The trash is empty.")).to_be_visible()
        assert (await client.read("/v1/conversations", params={"deleted": "true"}))["data"] == []
        await chat.page.reload()
        await expect(chat.page.get_by_text("The trash is empty.")).to_be_visible()
        await chat.conversations.get_by_text("First thought").click()
        await chat.wait_settled()
        assert chat.page.url == f"{harness.server.url}/c/{first}"


class TestLongConversation:
    async def test_opens_at_its_end_and_loads_earlier_messages(self, harness: Harness) -> None:
        client = await harness.api()
        conversation_id = (await client.ask("Message 0"))["conversation_id"]
        for number in range(1, 60):
            await client.ask(f"Message {number}", conversation_id=conversation_id)
        chat = await ChatPage.open(harness, f"/c/{conversation_id}")
        await expect(chat.questions.get_by_text("Message 59", exact=True)).to_be_in_viewport()
        assert await chat.page.locator("article").count() < 60
        scroller = chat.page.locator(".thread-list")
        oldest = chat.questions.get_by_text("Message 0", exact=True)
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            while not await oldest.is_visible():
                await scroller.evaluate("list => list.scrollTo(0, 0)")
                await chat.page.wait_for_timeout(100)
        await expect(oldest).to_be_in_viewport()
        await chat.page.get_by_role("button", name="Go to the newest message").click()
        await expect(chat.questions.get_by_text("Message 59", exact=True)).to_be_in_viewport()


class TestNothingToShow:
    async def test_a_conversation_that_does_not_exist(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness, "/c/conv_" + "0" * 32)
        await expect(chat.page.get_by_text("There is no such conversation.")).to_be_visible()

    async def test_an_address_that_does_not_exist_is_a_page(self, harness: Harness) -> None:
        page = await harness.context.new_page()
        heading = page.get_by_role("heading", name="There is nothing at this address")
        for path in ("/nothing", "/nothing/here", "/c/nothing", "/settings/nothing", "/v1/nothing", "/signin/nothing"):
            await page.goto(harness.server.url + path)
            await expect(heading).to_be_visible()
        chat = await ChatPage.open(harness, "/nothing")
        await expect(chat.page.get_by_role("heading", name="There is nothing at this address")).to_be_visible()
        await expect(chat.conversations).to_be_visible()
        assert chat.page.url == f"{harness.server.url}/nothing"
        await chat.page.get_by_role("link", name="Start a conversation").click()
        await expect(chat.message_box).to_be_visible()
        assert chat.page.url == f"{harness.server.url}/"

    async def test_a_user_who_is_not_signed_in_sees_how_to_sign_in(self, harness: Harness) -> None:
        page = await harness.context.new_page()
        await page.goto(harness.server.url)
        await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        token = SigninLinks.of(harness.server.runtime.settings).make()
        await page.get_by_label("Or paste the link here").fill(f"{harness.server.url}/signin?token={token}")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_label("Message", exact=True)).to_be_visible()
        await wait_until(lambda: page.url == f"{harness.server.url}/")
