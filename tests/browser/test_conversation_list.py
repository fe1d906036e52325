"""The list of conversations: groups, search, rename, delete, undo, and loading more."""

import asyncio

from playwright.async_api import expect

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
