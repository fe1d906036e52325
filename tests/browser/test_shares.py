"""Share links on the page: made and ended in a dialog, and read by everybody who has one."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, BrowserContext, Page, expect

from tests.api.harness import ApiServer, Client, settings_for
from tests.browser.harness import ChatPage, Harness, expect_copied, png
from tests.browser.test_accessibility import check_with_axe
from tests.browser.test_attachments import attach_file
from turnkeep.providers.scripted import Call, Think


async def a_conversation(harness: Harness, chat: ChatPage) -> None:
    harness.lookup_allowed.set()
    harness.scripts.say(Think("A secret thought."), Call("lookup", {"place": "Secret place"}))
    harness.scripts.say("# Rain\n\nIt rains in **Bern** [1].")
    await chat.send("Weather?")
    await chat.wait_settled()


async def open_dialog(chat: ChatPage) -> None:
    await chat.page.get_by_label("Conversation menu").click()
    await chat.page.get_by_role("button", name="Share", exact=True).click()
    await expect(chat.page.get_by_role("dialog", name="Share this conversation")).to_be_visible()


async def make_link(chat: ChatPage, *, with_files: bool = False) -> str:
    await open_dialog(chat)
    if with_files:
        await chat.page.get_by_label("Show the files, too").check()
    await chat.page.get_by_role("button", name="Make a link").click()
    return await chat.page.locator("dialog .secret code").inner_text()


async def a_stranger(harness: Harness) -> BrowserContext:
    browser = harness.context.browser
    assert browser is not None
    return await browser.new_context(viewport={"width": 1280, "height": 820})


async def open_link(harness: Harness, url: str) -> Page:
    """The link in a browser in which nobody is signed in."""
    other = Harness(harness.server, await a_stranger(harness))
    page = await other.context.new_page()
    await page.goto(url)
    return page


class TestALink:
    async def test_is_made_copied_read_and_ended(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness)
        await a_conversation(harness, chat)
        await harness.context.grant_permissions(["clipboard-read", "clipboard-write"])
        url = await make_link(chat)
        await chat.page.get_by_role("button", name="Copy the link").click()
        await expect_copied(chat.page, url)
        reader = await open_link(harness, url)
        await expect(reader.get_by_role("heading", name="Weather?")).to_be_visible()
        await expect(reader.get_by_role("article", name="Question")).to_have_text("Weather?")
        answer = reader.get_by_role("article", name="Assistant")
        await expect(answer.locator("strong")).to_have_text("Bern")
        await expect(answer.locator(".step")).to_contain_text("lookup")
        await expect(answer.get_by_role("link", name="Almanac")).to_be_visible()
        text = await reader.locator("body").inner_text()
        assert "secret" not in text.lower()
        await expect(reader.get_by_label("Message", exact=True)).to_have_count(0)
        await chat.page.get_by_role("button", name="End the link").click()
        await chat.page.get_by_role("button", name="Yes").click()
        await expect(chat.page.get_by_text("Links that can be opened")).to_have_count(0)
        await reader.reload()
        await expect(reader.get_by_role("heading", name="This link cannot be opened")).to_be_visible()
        await reader.context.close()

    async def test_shows_what_was_there_when_it_was_made(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness)
        await a_conversation(harness, chat)
        url = await make_link(chat)
        await chat.page.get_by_role("button", name="Close").click()
        await chat.send("Something private")
        await chat.wait_settled(2)
        reader = await open_link(harness, url)
        await expect(reader.get_by_role("article")).to_have_count(2)
        assert "private" not in await reader.locator("body").inner_text()
        await reader.context.close()

    async def test_asks_the_server_for_nothing_else(self, harness: Harness) -> None:
        """Not even of the user who is signed in with the same browser, and without the token in any address."""
        chat = await ChatPage.open(harness)
        await a_conversation(harness, chat)
        url = await make_link(chat)
        page = await harness.context.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        response = await page.goto(url)
        assert response is not None
        assert response.headers["cache-control"] == "no-store"
        assert response.headers["x-robots-tag"] == "noindex, nofollow"
        assert response.headers["referrer-policy"] == "no-referrer"
        await expect(page.get_by_role("article")).to_have_count(2)
        paths = [urlsplit(one).path for one in asked if not urlsplit(one).path.startswith("/assets/")]
        assert sorted(set(paths) - {"/icon.svg", "/favicon.ico"}) == ["/share", "/v1/shared"]
        token = urlsplit(url).fragment
        assert not any(token in one.partition("#")[0] for one in asked)
        assert token not in await page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")

    async def test_shows_files_if_they_were_chosen(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness)
        await attach_file(chat.page, "plan.png", "image/png", png())
        await expect(chat.page.locator("[data-state=done]")).to_have_count(1)
        await chat.send("Look")
        await chat.wait_settled()
        bare = await make_link(chat)
        await chat.page.get_by_role("button", name="Close").click()
        full = await make_link(chat, with_files=True)
        reader = await open_link(harness, bare)
        await expect(reader.get_by_text("1 file is not shared")).to_be_visible()
        assert "plan.png" not in await reader.locator("body").inner_text()
        await reader.context.close()
        reader = await open_link(harness, full)
        picture = reader.get_by_role("img", name="Preview of plan.png")
        await expect(picture).to_be_visible()
        await expect(picture).to_have_js_property("naturalWidth", 64)
        async with reader.expect_download() as saved:
            await reader.get_by_role("link", name="plan.png").click()
        assert (await saved.value).suggested_filename == "plan.png"
        await reader.context.close()

    @pytest.mark.parametrize("path", ["/share", "/share#", "/share#tks_x", "/share#tks_" + "x" * 43])
    async def test_that_is_wrong_says_so(self, harness: Harness, path: str) -> None:
        reader = await open_link(harness, harness.server.url + path)
        await expect(reader.get_by_role("heading", name="This link cannot be opened")).to_be_visible()
        await check_with_axe(reader)
        await reader.context.close()

    async def test_of_a_long_conversation_is_read_page_by_page(self, harness: Harness) -> None:
        client = await harness.api()
        conversation_id = await long_conversation(client, 60)
        made = (await client.post(f"/v1/conversations/{conversation_id}/shares", json={})).json()
        reader = await open_link(harness, made["url"])
        await expect(reader.get_by_role("article")).to_have_count(100)
        await reader.get_by_role("button", name="Show later messages").click()
        await expect(reader.get_by_role("article")).to_have_count(120)
        await expect(reader.get_by_role("button", name="Show later messages")).to_have_count(0)
        await reader.context.close()


async def long_conversation(client: Client, turns: int) -> str:
    messages = [{"role": role, "content": f"{role} {n}"} for n in range(turns) for role in ("user", "assistant")]
    response = await client.post("/v1/import", json=messages)
    assert response.status_code == 201, response.text
    return str(response.json()["conversation"]["id"])


class TestTheList:
    async def test_admins_see_links_of_others_without_titles(self, harness: Harness) -> None:
        service = await harness.server.operator()
        bob = await harness.server.user(service, "bob")
        answer = await bob.ask("A private question")
        await bob.post(f"/v1/conversations/{answer['conversation_id']}/shares", json={})
        chat = await ChatPage.open(harness)
        await a_conversation(harness, chat)
        await make_link(chat)
        await chat.page.goto(f"{harness.server.url}/settings/shares")
        await expect(chat.page.get_by_text("Conversation of bob")).to_be_visible()
        await expect(chat.page.get_by_role("main").get_by_role("link", name="Weather?")).to_be_visible()
        assert "private" not in await chat.page.get_by_role("main").inner_text()
        bobs = chat.page.get_by_role("listitem").filter(has_text="of bob")
        await bobs.get_by_role("button", name="End the link").click()
        await chat.page.get_by_role("button", name="Yes").click()
        await expect(bobs).to_have_count(0)
        assert (await bob.read("/v1/shares"))["data"] == []


class TestAccessibility:
    @pytest.mark.parametrize("scheme", ["light", "dark"])
    async def test_axe_finds_nothing_serious(self, harness: Harness, scheme: str) -> None:
        chat = await ChatPage.open(harness)
        await chat.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
        await a_conversation(harness, chat)
        await open_dialog(chat)
        await check_with_axe(chat.page)
        await chat.page.get_by_role("button", name="Make a link").click()
        url = await chat.page.locator("dialog .secret code").inner_text()
        await check_with_axe(chat.page)
        reader = await open_link(harness, url)
        await reader.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
        await expect(reader.get_by_role("article")).to_have_count(2)
        await check_with_axe(reader)
        await reader.context.close()
        await chat.page.goto(f"{harness.server.url}/settings/shares")
        await expect(chat.page.get_by_role("button", name="End the link")).to_be_visible()
        await check_with_axe(chat.page)

    async def test_the_dialog_is_left_with_escape_and_the_focus_returns(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness)
        await a_conversation(harness, chat)
        await open_dialog(chat)
        await chat.page.keyboard.press("Escape")
        await expect(chat.page.get_by_role("dialog")).to_have_count(0)


class TestTheSetting:
    async def test_a_server_without_links_offers_none(self, built_page: Path, browser: Browser, tmp_path: Path) -> None:
        async with ApiServer.start(settings_for(tmp_path, share_link_days=0.0)) as server:
            context = await browser.new_context()
            harness = Harness(server, context)
            chat = await ChatPage.open(harness)
            await chat.send("Hello")
            await chat.wait_settled()
            await chat.page.get_by_label("Conversation menu").click()
            await expect(chat.page.get_by_role("button", name="Rename", exact=True)).to_be_visible()
            await expect(chat.page.get_by_role("button", name="Share", exact=True)).to_have_count(0)
            await context.close()
