"""The list of conversations: grouped, searched, renamed, deleted, restored, and endless."""

import asyncio

from playwright.async_api import expect

from tests.browser.house import PATIENCE_MS, House, Talk, eventually
from turnkeep.api.identity.service_keys import SigninLinks


class TestTheList:
    async def test_is_grouped_by_date_and_the_newest_is_first(self, house: House) -> None:
        client = await house.api()
        for text in ("Older question", "Newer question"):
            await client.ask(text)
        # For this page it stays the day of the questions, also when midnight has come meanwhile.
        newest = (await client.read("/v1/conversations"))["data"][0]
        await house.context.clock.set_fixed_time(newest["updated_at"] / 1000)
        talk = await Talk.begin(house)
        today = talk.history.get_by_role("region", name="Today")
        await expect(today.locator(".entry-title")).to_have_text(["Newer question", "Older question"])

    async def test_goes_on_as_far_as_one_scrolls(self, house: House) -> None:
        client = await house.api()
        made = [client.post("/v1/conversations", json={"title": f"Conversation {n:03}"}) for n in range(75)]
        for response in await asyncio.gather(*made):
            assert response.status_code == 201
        talk = await Talk.begin(house)
        entries = talk.page.locator(".entry")
        await expect(entries.first).to_be_visible()
        async with asyncio.timeout(PATIENCE_MS / 1000):
            while await entries.count() < 75:
                await talk.page.locator(".history-list").evaluate("list => list.scrollTo(0, list.scrollHeight)")
                await talk.page.wait_for_timeout(100)
        await expect(entries).to_have_count(75)

    async def test_a_search_finds_words_in_messages_and_marks_them(self, house: House) -> None:
        client = await house.api()
        house.scripts.say("The capital of Mongolia is Ulaanbaatar.")
        await client.ask("A question about a city")
        await client.ask("Something else")
        talk = await Talk.begin(house)
        await talk.page.keyboard.press("Control+k")
        await expect(talk.page.get_by_role("searchbox")).to_be_focused()
        await talk.page.keyboard.type("ulaan")
        await expect(talk.page.locator(".entry")).to_have_count(1)
        await expect(talk.page.locator(".entry mark")).to_have_text("Ulaanbaatar")
        await talk.page.locator(".entry a").click()
        await expect(talk.answers.get_by_text("Ulaanbaatar")).to_be_visible()
        await talk.page.get_by_role("searchbox").fill("nothing has this word")
        await expect(talk.history.get_by_text("Nothing found for")).to_be_visible()
        await talk.page.get_by_role("button", name="Clear the search").click()
        await expect(talk.page.locator(".entry")).to_have_count(2)


class TestChangingIt:
    async def test_rename_delete_and_undo(self, house: House) -> None:
        talk = await Talk.begin(house)
        await talk.say("A first thought")
        await talk.settled()
        address = talk.page.url
        await talk.history.get_by_text("A first thought").hover()
        await talk.page.get_by_role("button", name="Rename “A first thought”").click()
        await talk.page.get_by_label("New title").fill("A better title")
        await talk.page.keyboard.press("Enter")
        await expect(talk.history.locator(".entry-title")).to_have_text("A better title")
        await expect(talk.page.get_by_role("heading", level=1)).to_have_text("A better title")
        await talk.page.reload()
        await expect(talk.history.locator(".entry-title")).to_have_text("A better title")
        await talk.history.get_by_text("A better title").hover()
        await talk.page.get_by_role("button", name="Delete “A better title”").click()
        await expect(talk.page.locator(".entry")).to_have_count(0)
        await expect(talk.page.get_by_role("heading", name="What shall we work on?")).to_be_visible()
        await talk.page.get_by_role("button", name="Undo").click()
        await expect(talk.history.locator(".entry-title")).to_have_text("A better title")
        await expect(talk.answers).to_have_count(1)
        assert talk.page.url == address

    async def test_escape_keeps_the_old_title(self, house: House) -> None:
        client = await house.api()
        await client.ask("Keep me")
        talk = await Talk.begin(house)
        await talk.history.get_by_text("Keep me").hover()
        await talk.page.get_by_role("button", name="Rename “Keep me”").click()
        await talk.page.get_by_label("New title").fill("Not this")
        await talk.page.keyboard.press("Escape")
        await expect(talk.history.locator(".entry-title")).to_have_text("Keep me")
        await expect(talk.history.get_by_role("link", name="Keep me")).to_be_focused()

    async def test_a_change_that_the_server_refuses_is_taken_back(self, house: House) -> None:
        client = await house.api()
        conversation_id = (await client.ask("Here to stay"))["conversation_id"]
        talk = await Talk.begin(house)
        await expect(talk.history.get_by_text("Here to stay")).to_be_visible()
        await talk.page.route(f"**/v1/conversations/{conversation_id}", lambda route: route.abort())
        await talk.history.get_by_text("Here to stay").hover()
        await talk.page.get_by_role("button", name="Delete “Here to stay”").click()
        await expect(talk.page.get_by_role("alert")).to_contain_text("The server cannot be reached.")
        await expect(talk.history.locator(".entry-title")).to_have_text("Here to stay")


class TestALongConversation:
    async def test_opens_at_its_end_and_is_paged_upwards(self, house: House) -> None:
        client = await house.api()
        conversation_id = (await client.ask("Message 0"))["conversation_id"]
        for number in range(1, 60):
            await client.ask(f"Message {number}", conversation_id=conversation_id)
        talk = await Talk.begin(house, f"/c/{conversation_id}")
        await expect(talk.questions.get_by_text("Message 59", exact=True)).to_be_in_viewport()
        assert await talk.page.locator("article").count() < 60
        scroller = talk.page.locator(".thread-list")
        oldest = talk.questions.get_by_text("Message 0", exact=True)
        async with asyncio.timeout(PATIENCE_MS / 1000):
            while not await oldest.is_visible():
                await scroller.evaluate("list => list.scrollTo(0, 0)")
                await talk.page.wait_for_timeout(100)
        await expect(oldest).to_be_in_viewport()
        await talk.page.get_by_role("button", name="Go to the newest message").click()
        await expect(talk.questions.get_by_text("Message 59", exact=True)).to_be_in_viewport()


class TestMissing:
    async def test_a_conversation_that_is_not_there_says_so(self, house: House) -> None:
        talk = await Talk.begin(house, "/c/conv_" + "0" * 32)
        await expect(talk.page.get_by_text("There is no such conversation.")).to_be_visible()

    async def test_whoever_is_not_signed_in_is_told_how(self, house: House) -> None:
        page = await house.context.new_page()
        await page.goto(house.server.url)
        await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        token = SigninLinks(house.server.runtime.settings.data_dir).make()
        await page.get_by_label("Or paste the link here").fill(f"{house.server.url}/signin?token={token}")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_label("Message", exact=True)).to_be_visible()
        await eventually(lambda: page.url == f"{house.server.url}/")
