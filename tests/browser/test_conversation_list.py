"""The list of conversations: groups, search, rename, delete, undo, and loading more."""

import asyncio

from playwright.async_api import expect

from tests.browser.harness import TIMEOUT_MS, ChatPage, Harness, wait_until
from turnkeep.api.identity.service_keys import SigninLinks


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


class TestChanges:
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

    async def test_a_user_who_is_not_signed_in_sees_how_to_sign_in(self, harness: Harness) -> None:
        page = await harness.context.new_page()
        await page.goto(harness.server.url)
        await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        token = SigninLinks.of(harness.server.runtime.settings).make()
        await page.get_by_label("Or paste the link here").fill(f"{harness.server.url}/signin?token={token}")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_label("Message", exact=True)).to_be_visible()
        await wait_until(lambda: page.url == f"{harness.server.url}/")
