"""Every control has enough contrast, light and dark: at rest, under the pointer, with the focus, pressed, disabled."""

from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.api.harness import settings_for
from tests.browser.contrast import AT_REST, STATES, ForcedStates, foregrounds, low_contrast
from tests.browser.harness import ChatPage, Harness
from tests.browser.stored_conversations import long_conversation
from tests.browser.test_accessibility import answer, failure, hit, search, stopped_tool, streaming_answer, unknown
from tests.browser.test_attachments import attach_file
from turnkeep.config import Settings


async def sign_in(harness: Harness) -> Page:
    page = await harness.context.new_page()
    await page.goto(harness.server.url)
    await expect(page.get_by_label("Or paste the link here")).to_be_visible()
    return page


class TestForcedStates:
    async def test_a_forced_state_looks_like_the_real_one(self, harness: Harness) -> None:
        page = await sign_in(harness)
        await page.emulate_media(reduced_motion="reduce")
        held = {}
        async with ForcedStates.on(page) as states:
            for state in STATES:
                await states.force(state)
                held[state] = await foregrounds(page)
        assert [one.control for one in held[AT_REST]] == ["Sign in"]
        assert [one.kind for one in held[AT_REST]] == ["text"]
        assert await foregrounds(page) == held[AT_REST]
        await page.get_by_role("button").hover()
        assert await foregrounds(page) == held["under the pointer"] != held[AT_REST]
        await page.mouse.down()
        assert await foregrounds(page) == held["pressed"]
        await page.mouse.move(0, 0)
        await page.mouse.up()
        await page.get_by_label("Or paste the link here").press("Tab")
        await expect(page.get_by_role("button")).to_be_focused()
        assert await foregrounds(page) == held["with the focus"]


class TestContrast:
    async def test_of_the_sign_in_page_also_after_a_wrong_link(self, harness: Harness) -> None:
        page = await sign_in(harness)
        assert await low_contrast(page, "Sign in") == []
        await page.get_by_role("button").click()
        await expect(page.get_by_role("alert")).to_be_visible()
        assert await low_contrast(page, "Sign in") == []

    async def test_in_a_thread_with_steps_sources_versions_a_menu_and_an_edit(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness)
        await answer(harness, chat)
        await chat.page.get_by_role("button", name="Answer again").click()
        await expect(chat.page.get_by_label("Version 2 of 2")).to_be_visible()
        await chat.wait_settled()
        await chat.page.get_by_role("button", name="Previous version").click()
        await expect(chat.page.get_by_label("Version 1 of 2")).to_be_visible()
        await chat.page.locator("summary[aria-label='Conversation menu']").click()
        assert (
            await low_contrast(chat.page, "Export as JSON", "Copy the code", "Source 1", "Next version of the answer")
            == []
        )
        await chat.page.keyboard.press("Escape")
        await chat.page.get_by_role("button", name="Edit the message").click()
        assert await low_contrast(chat.page, "Cancel", "Send", "Delete “Weather?”") == []

    async def test_in_a_thread_while_an_answer_is_written(self, harness: Harness) -> None:
        harness.scripts.say("At once.")
        chat = await ChatPage.open(harness)
        await chat.send("One")
        await chat.wait_settled()
        await streaming_answer(harness, chat)
        assert (
            await low_contrast(chat.page, "Stop the answer", "Interrupt this answer and send now", "Do not send") == []
        )
        await chat.message_box.fill("")
        await chat.page.get_by_role("button", name="Answer again").click()
        await chat.page.get_by_role("button", name="Edit the message").last.click()
        assert await low_contrast(chat.page, "Stop the answer", "Queue", "Interrupt", "Cancel") == []

    async def test_in_a_thread_where_something_failed(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness)
        await failure(harness, chat)
        await chat.page.route("**/v1/turns", lambda route: route.fulfill(status=413, json={}))
        await chat.send("Too long")
        await expect(chat.questions.get_by_role("alert")).to_be_visible()
        assert await low_contrast(chat.page, "Try again", "Do not send") == []
        await chat.page.route("**/v1/conversations/*", lambda route: route.abort())
        await chat.page.get_by_role("button", name="Delete “Try”").click()
        await expect(chat.page.get_by_role("button", name="Dismiss")).to_be_visible()
        assert await low_contrast(chat.page, "Dismiss") == []

    async def test_in_a_long_thread_and_in_the_source_panel(self, harness: Harness) -> None:
        client = await harness.api()
        conversation = await long_conversation(harness, 8)
        table = (await client.post("/v1/tables", json={"name": "Planets", "columns": [{"name": "Name"}]})).json()["id"]
        rows = [{"Name": f"Planet {number}"} for number in range(200)]
        await client.post(f"/v1/tables/{table}/rows", json={"rows": rows})
        sent = {"file": ("notes.txt", b"Some notes.", "text/plain")}
        file = (await client.post(f"/v1/conversations/{conversation}/files", files=sent)).json()["data"][0]["id"]
        page = await harness.open_page(f"/c/{conversation}")
        await expect(page.get_by_text("Question 7")).to_be_in_viewport()
        await page.get_by_role("log").hover()
        await page.mouse.wheel(0, -800)
        await expect(page.get_by_role("button", name="Go to the newest message")).to_be_visible()
        assert await low_contrast(page, "Go to the newest message", "Copy the code") == []
        await page.goto(f"{harness.server.url}/c/{conversation}/tables/{table}/100")
        await expect(page.locator("tr[data-cited]")).to_be_visible()
        assert await low_contrast(page, "Close the source", "Earlier rows", "More rows") == []
        await page.goto(f"{harness.server.url}/c/{conversation}/files/{file}")
        await expect(page.get_by_text("Some notes.")).to_be_visible()
        assert await low_contrast(page, "Close the source", "Download") == []

    async def test_of_a_hit_an_error_a_stopped_tool_and_an_unknown_address(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness)
        await hit(harness, chat)
        assert await low_contrast(chat.page, "Dismiss", "Rename “Tell me a fact”") == []
        await chat.page.unroute_all()
        await chat.conversations.get_by_role("link", name="New conversation").click()
        await stopped_tool(harness, chat)
        assert await low_contrast(chat.page, "Try again") == []
        await unknown(harness, chat)
        assert await low_contrast(chat.page, "Start a conversation") == []

    async def test_in_the_conversation_list_during_a_search(self, harness: Harness) -> None:
        client = await harness.api()
        await client.ask("Something else to find")
        chat = await ChatPage.open(harness)
        await search(harness, chat)
        assert await low_contrast(chat.page, "Clear the search", "Rename “Something else to find”", "Undo") == []

    async def test_on_a_phone(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness)
        await chat.page.set_viewport_size({"width": 360, "height": 740})
        await chat.send("Hello")
        await chat.wait_settled()
        assert await low_contrast(chat.page, "Open the list of conversations", "Copy the answer") == []
        await chat.page.get_by_role("button", name="Open the list of conversations").click()
        assert await low_contrast(chat.page, "Close the list of conversations", "Rename “Hello”") == []

    async def test_in_the_settings_of_usage_and_keys(self, harness: Harness) -> None:
        page = await harness.open_page("/settings/usage")
        await expect(page.get_by_role("button", name="Save")).to_be_visible()
        assert await low_contrast(page, "Save", "API keys") == []
        await page.get_by_role("link", name="API keys").click()
        await page.get_by_label("Name").fill("backend")
        await page.get_by_role("button", name="New key").click()
        await page.get_by_role("button", name="Revoke the key backend").click()
        assert await low_contrast(page, "Copy the key", "Done", "Yes", "No") == []
        await page.get_by_role("button", name="Done").click()
        await page.get_by_label("Name").fill("another")
        assert await low_contrast(page, "New key") == []

    async def test_in_the_settings_of_agents(self, harness: Harness) -> None:
        client = await harness.api()
        await client.post("/v1/agents", json={"name": "Librarian"})
        page = await harness.open_page("/settings/agents")
        await page.get_by_role("button", name="Delete the agent Librarian").click()
        assert await low_contrast(page, "New agent", "Edit Librarian", "Yes", "No") == []
        await page.get_by_role("button", name="Edit Librarian").click()
        await page.get_by_role("button", name="Add an HTTP tool").click()
        await page.get_by_role("button", name="Add an MCP server").click()
        assert await low_contrast(page, "Add an HTTP tool", "Add a zip file", "Cancel", "Save") == []

    async def test_in_the_settings_of_pages_and_tables(self, harness: Harness) -> None:
        client = await harness.api()
        await client.post("/v1/pages", json={"title": "Harbour", "content": "Tides come twice a day."})
        await client.post("/v1/tables", json={"name": "Boats", "columns": [{"name": "Name"}]})
        page = await harness.open_page("/settings/pages")
        await page.get_by_role("button", name="Delete the page Harbour").click()
        assert await low_contrast(page, "New page", "Edit Harbour", "Yes", "No") == []
        await page.get_by_role("button", name="Edit Harbour").click()
        assert await low_contrast(page, "Cancel", "Save") == []
        await page.get_by_role("button", name="Cancel").click()
        await page.get_by_role("link", name="Harbour").click()
        await expect(page.get_by_text("twice a day")).to_be_visible()
        assert await low_contrast(page, "Back", "Edit") == []
        await page.get_by_role("link", name="Tables").click()
        await page.get_by_role("button", name="Delete the table Boats").click()
        assert await low_contrast(page, "New table from a CSV file", "Boats", "Yes", "No") == []


class TestContrastWithTheDemoModel:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        return settings_for(tmp_path, model="demo")

    async def test_in_the_greeting_with_suggestions_and_an_attached_file(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness)
        await chat.message_box.fill("Hello")
        await attach_file(chat.page, "notes.txt", "text/plain", b"Some notes.")
        await expect(chat.page.locator("[data-state=done]")).to_be_visible()
        assert await low_contrast(chat.page, "Show me a table", "Remove notes.txt", "Send", "Settings") == []
