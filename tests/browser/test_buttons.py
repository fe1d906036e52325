"""Every button can be read, in light and dark: at rest, under the pointer, with the focus, and while it is pressed."""

from pathlib import Path

import pytest
from playwright.async_api import Page, expect
from tests.browser.contrast import AT_REST, STATES, Hands, inks, unclear
from tests.browser.harness import House, Talk
from tests.browser.stored_conversations import long_conversation
from tests.browser.test_accessibility import answer, failure, searching, writing
from tests.browser.test_attachments import choose

from tests.api.harness import settings_for
from turnkeep.config import Settings


async def sign_in(house: House) -> Page:
    page = await house.context.new_page()
    await page.goto(house.server.url)
    await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    return page


class TestAStateThatIsHeld:
    async def test_looks_as_it_does_under_a_mouse_and_a_keyboard(self, house: House) -> None:
        page = await sign_in(house)
        await page.emulate_media(reduced_motion="reduce")
        held = {}
        async with Hands.on(page) as hands:
            for state in STATES:
                await hands.hold(state)
                held[state] = await inks(page)
        assert [one.control for one in held[AT_REST]] == ["Sign in"]
        assert await inks(page) == held[AT_REST]
        await page.get_by_role("button").hover()
        assert await inks(page) == held["under the pointer"] != held[AT_REST]
        await page.mouse.down()
        assert await inks(page) == held["pressed"]
        await page.mouse.move(0, 0)
        await page.mouse.up()
        await page.get_by_label("Or paste the link here").press("Tab")
        await expect(page.get_by_role("button")).to_be_focused()
        assert await inks(page) == held["with the focus"]


class TestEveryButtonCanBeRead:
    async def test_on_the_sign_in_page_also_after_a_wrong_link(self, house: House) -> None:
        page = await sign_in(house)
        assert await unclear(page, "Sign in") == []
        await page.get_by_role("button").click()
        await expect(page.get_by_role("alert")).to_be_visible()
        assert await unclear(page, "Sign in") == []

    async def test_in_a_thread_with_steps_sources_versions_a_menu_and_an_edit(self, house: House) -> None:
        talk = await Talk.begin(house)
        await answer(house, talk)
        await talk.page.get_by_role("button", name="Answer again").click()
        await expect(talk.page.get_by_label("Version 2 of 2")).to_be_visible()
        await talk.settled()
        await talk.page.get_by_role("button", name="Previous version").click()
        await expect(talk.page.get_by_label("Version 1 of 2")).to_be_visible()
        await talk.page.locator("summary[aria-label='Conversation menu']").click()
        assert await unclear(talk.page, "Export as JSON", "Copy the code", "Source 1", "Next version") == []
        await talk.page.get_by_role("button", name="Edit the message").click()
        assert await unclear(talk.page, "Cancel", "Send", "Delete “Weather?”") == []

    async def test_in_a_thread_while_an_answer_is_written(self, house: House) -> None:
        house.scripts.say("At once.")
        talk = await Talk.begin(house)
        await talk.say("One")
        await talk.settled()
        await writing(house, talk)
        assert await unclear(talk.page, "Stop the answer", "Interrupt this answer and send now", "Do not send") == []
        await talk.message.fill("")
        await talk.page.get_by_role("button", name="Answer again").click()
        await talk.page.get_by_role("button", name="Edit the message").last.click()
        assert await unclear(talk.page, "Stop the answer", "Queue", "Interrupt", "Cancel") == []

    async def test_in_a_thread_where_something_failed(self, house: House) -> None:
        talk = await Talk.begin(house)
        await failure(house, talk)
        await talk.page.route("**/v1/turns", lambda route: route.fulfill(status=413, json={}))
        await talk.say("Too long")
        await expect(talk.questions.get_by_role("alert")).to_be_visible()
        assert await unclear(talk.page, "Try again", "Remove") == []
        await talk.page.route("**/v1/conversations/*", lambda route: route.abort())
        # A notice would go away after some seconds.
        await talk.page.evaluate("window.setTimeout = () => 0")
        await talk.page.get_by_role("button", name="Delete “Try”").click()
        await expect(talk.page.get_by_role("button", name="Dismiss")).to_be_visible()
        assert await unclear(talk.page, "Dismiss") == []

    async def test_in_a_long_thread_and_beside_it_in_what_a_source_opens(self, house: House) -> None:
        client = await house.api()
        conversation = await long_conversation(house, 8)
        table = (await client.post("/v1/tables", json={"name": "Planets", "columns": [{"name": "Name"}]})).json()["id"]
        rows = [{"Name": f"Planet {number}"} for number in range(200)]
        await client.post(f"/v1/tables/{table}/rows", json={"rows": rows})
        sent = {"file": ("notes.txt", b"Some notes.", "text/plain")}
        file = (await client.post(f"/v1/conversations/{conversation}/files", files=sent)).json()["data"][0]["id"]
        page = await house.enter(f"/c/{conversation}")
        await expect(page.get_by_text("Question 7")).to_be_in_viewport()
        await page.get_by_role("log").hover()
        await page.mouse.wheel(0, -800)
        await expect(page.get_by_role("button", name="Go to the newest message")).to_be_visible()
        assert await unclear(page, "Go to the newest message", "Copy the code") == []
        await page.goto(f"{house.server.url}/c/{conversation}/tables/{table}/100")
        await expect(page.locator("tr[data-cited]")).to_be_visible()
        assert await unclear(page, "Close the source", "Earlier rows", "More rows") == []
        await page.goto(f"{house.server.url}/c/{conversation}/files/{file}")
        await expect(page.get_by_text("Some notes.")).to_be_visible()
        assert await unclear(page, "Close the source", "Download") == []

    async def test_in_the_list_that_is_searched_and_changed(self, house: House) -> None:
        client = await house.api()
        await client.ask("Something else to find")
        talk = await Talk.begin(house)
        await searching(house, talk)
        assert await unclear(talk.page, "Clear the search", "Rename “Something else to find”", "Undo") == []

    async def test_on_a_phone(self, house: House) -> None:
        talk = await Talk.begin(house)
        await talk.page.set_viewport_size({"width": 360, "height": 740})
        await talk.say("Hello")
        await talk.settled()
        assert await unclear(talk.page, "Open the list of conversations", "Copy the answer") == []
        await talk.page.get_by_role("button", name="Open the list of conversations").click()
        assert await unclear(talk.page, "Close the list of conversations", "Rename “Hello”") == []

    async def test_in_the_settings_of_usage_and_keys(self, house: House) -> None:
        page = await house.enter("/settings/usage")
        await expect(page.get_by_role("button", name="Save")).to_be_visible()
        assert await unclear(page, "Save", "API keys") == []
        await page.get_by_role("link", name="API keys").click()
        await page.get_by_label("Name").fill("backend")
        await page.get_by_role("button", name="New key").click()
        await page.get_by_role("button", name="Revoke the key backend").click()
        assert await unclear(page, "Copy the key", "Done", "Yes", "No") == []
        await page.get_by_role("button", name="Done").click()
        await page.get_by_label("Name").fill("another")
        assert await unclear(page, "New key") == []

    async def test_in_the_settings_of_agents(self, house: House) -> None:
        client = await house.api()
        await client.post("/v1/agents", json={"name": "Librarian"})
        page = await house.enter("/settings/agents")
        await page.get_by_role("button", name="Delete the agent Librarian").click()
        assert await unclear(page, "New agent", "Edit Librarian", "Yes", "No") == []
        await page.get_by_role("button", name="Edit Librarian").click()
        await page.get_by_role("button", name="Add an HTTP tool").click()
        await page.get_by_role("button", name="Add an MCP server").click()
        assert await unclear(page, "Add an HTTP tool", "Add a zip file", "Cancel", "Save") == []

    async def test_in_the_settings_of_pages_and_tables(self, house: House) -> None:
        client = await house.api()
        await client.post("/v1/pages", json={"title": "Harbour", "content": "Tides come twice a day."})
        await client.post("/v1/tables", json={"name": "Boats", "columns": [{"name": "Name"}]})
        page = await house.enter("/settings/pages")
        await page.get_by_role("button", name="Delete the page Harbour").click()
        assert await unclear(page, "New page", "Edit Harbour", "Yes", "No") == []
        await page.get_by_role("button", name="Edit Harbour").click()
        assert await unclear(page, "Cancel", "Save") == []
        await page.get_by_role("button", name="Cancel").click()
        await page.get_by_role("link", name="Harbour").click()
        await expect(page.get_by_text("twice a day")).to_be_visible()
        assert await unclear(page, "Back", "Edit") == []
        await page.get_by_role("link", name="Tables").click()
        await page.get_by_role("button", name="Delete the table Boats").click()
        assert await unclear(page, "New table from a CSV file", "Boats", "Yes", "No") == []


class TestEveryButtonOfTheDemoCanBeRead:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        return settings_for(tmp_path, model="demo")

    async def test_in_the_greeting_with_its_ideas_and_beside_a_message_with_a_file(self, house: House) -> None:
        talk = await Talk.begin(house)
        await talk.message.fill("Hello")
        await choose(talk.page, "notes.txt", "text/plain", b"Some notes.")
        await expect(talk.page.locator("[data-state=done]")).to_be_visible()
        assert await unclear(talk.page, "Show me a table", "Remove notes.txt", "Send", "Settings") == []
