"""Sources of an answer: each opens the cited passage beside the answer, under its own address."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, expect

from tests.api.harness import ApiServer, Client
from tests.browser.harness import ChatPage, Harness
from tests.browser.stored_conversations import append_turn, long_conversation
from tests.browser.test_accessibility import check_with_axe
from tests.knowledge.test_file_tools import a_pdf
from turnkeep.config import Settings
from turnkeep.providers.scripted import Call
from turnkeep_client.wire.blocks import TextPart

TOOLS = ["search_pages", "search_user_tables", "search_conversations", "search_files", "read_file"]
FILLER = "\n\n".join(
    f"## Section {number}\n\nNothing of *interest* stands in [this part](https://example.org/{number})."
    for number in range(40)
)
HANDBOOK = (
    f"# Handbook\n\nAll of it.\n\n{FILLER}\n\n## Refunds\n\nWe give **money back** within [thirty days]"
    f"(https://example.org/law) of the purchase.\n\n- Keep the receipt.\n\n{FILLER}\n"
)
MARKED = "[...CSS.highlights.get('cited') ?? []].map(String).join('|')"
"""The highlighted text."""


class SourcesPage:
    """The page of an answer with sources, from an agent with the native tools."""

    def __init__(self, harness: Harness, client: Client, chat: ChatPage, agent_id: str) -> None:
        self.harness = harness
        self.client = client
        self.chat = chat
        self.page = chat.page
        self.agent_id = agent_id
        self.panel = chat.page.get_by_role("complementary", name="Source")

    @classmethod
    async def open(cls, harness: Harness) -> Self:
        client = await harness.api()
        agent = (await client.post("/v1/agents", json={"name": "Librarian", "tools": TOOLS})).json()
        return cls(harness, client, await ChatPage.open(harness), agent["id"])

    async def create(self, path: str, body: dict[str, Any]) -> str:
        made = await self.client.post(path, json=body)
        assert made.status_code == 201, made.text
        return str(made.json().get("id", ""))

    async def a_table(self, rows: int) -> str:
        columns = [{"name": "Name", "type": "text"}, {"name": "Moons", "type": "number"}]
        table = await self.create("/v1/tables", {"name": "Planets", "columns": columns})
        made = [{"Name": f"Planet {number}", "Moons": number} for number in range(1, rows + 1)]
        await self.create(f"/v1/tables/{table}/rows", {"rows": made})
        return table

    async def ask(self, tool: str, args: dict[str, Any], answer: str, **turn: Any) -> str:
        """A turn that calls the tool and cites what it found; the page shows its conversation."""
        self.harness.scripts.say(Call(tool, args))
        self.harness.scripts.say(answer)
        body = {"message": "Tell me.", "agent_id": self.agent_id, **turn}
        turn_result = (await self.client.post("/v1/turns", json=body)).json()
        assert turn_result["turn"]["status"] == "succeeded", turn_result
        conversation: str = turn_result["conversation_id"]
        await self.page.goto(f"{self.harness.server.url}/c/{conversation}")
        await self.chat.wait_settled()
        return conversation

    def source(self, title: str) -> Locator:
        return self.chat.answers.get_by_role("region", name="Sources").get_by_role("link", name=title)

    async def expect_path(self, path: str) -> None:
        await expect(self.page).to_have_url(re.compile(f"^{re.escape(self.harness.server.url + path)}(#.*)?$"))


@pytest_asyncio.fixture(loop_scope="session")
async def sources(built_page: Path, browser: Browser, settings: Settings) -> AsyncIterator[SourcesPage]:
    """A server with the native tools only."""
    async with ApiServer.start(settings) as server:
        context = await browser.new_context(viewport={"width": 1400, "height": 820})
        harness = Harness(server, context, asyncio.Event())
        try:
            yield await SourcesPage.open(harness)
            harness.check_no_problems()
        finally:
            await context.close()


async def cite_page(sources: SourcesPage) -> tuple[str, str]:
    """A long page, and an answer that cites a passage in the middle of it."""
    page_id = await sources.create("/v1/pages", {"title": "Handbook", "content": HANDBOOK})
    return page_id, await sources.ask("search_pages", {"query": "money back thirty days"}, "Within thirty days [1].")


async def cite_row(sources: SourcesPage) -> tuple[str, str]:
    """A table of 300 rows, and an answer that cites one of them."""
    table_id = await sources.a_table(300)
    return table_id, await sources.ask("search_user_tables", {"query": "planet 207", "table": "Planets"}, "It is [1].")


class TestPageSource:
    async def test_opens_at_the_cited_passage_and_again_after_a_reload(self, sources: SourcesPage) -> None:
        page_id, conversation = await cite_page(sources)
        await expect(sources.chat.answers.locator(".sources")).to_contain_text("Page · Refunds")
        await sources.source("Handbook").click()
        for _ in range(2):
            await sources.expect_path(f"/c/{conversation}/pages/{page_id}")
            await expect(sources.panel.get_by_role("heading", name="Handbook", level=2)).to_be_visible()
            await expect(sources.panel.locator("p[data-cited]")).to_be_in_viewport()
            await expect(sources.panel.locator("[data-cited]").first).to_be_focused()
            marked = await sources.page.evaluate(MARKED)
            assert "money back within thirty days of the purchase" in re.sub(r"\s+", " ", marked)
            await expect(sources.chat.answers.locator(".prose")).to_be_visible()
            await sources.page.reload()

    async def test_is_closed_with_a_button_with_escape_and_by_going_back(self, sources: SourcesPage) -> None:
        page_id, conversation = await cite_page(sources)
        link = sources.source("Handbook")
        for leave in (
            lambda: sources.panel.get_by_role("button", name="Close the source").click(),
            lambda: sources.page.keyboard.press("Escape"),
            sources.page.go_back,
        ):
            await link.click()
            await expect(sources.panel.locator("[data-cited]").first).to_be_focused()
            await leave()
            await sources.expect_path(f"/c/{conversation}")
            await expect(sources.panel).to_have_count(0)
            await expect(link).to_be_focused()
        await sources.page.go_forward()
        await sources.expect_path(f"/c/{conversation}/pages/{page_id}")
        await expect(sources.panel).to_be_visible()

    async def test_opens_at_the_section_when_the_passage_is_gone(self, sources: SourcesPage) -> None:
        page_id, _ = await cite_page(sources)
        changed = HANDBOOK.replace("We give **money back** within", "Nobody gets anything, not even after")
        changed = (
            changed.replace("thirty days", "years").replace("of the purchase", "of waiting").replace("receipt", "x")
        )
        await sources.client.patch(f"/v1/pages/{page_id}", json={"content": changed})
        await sources.source("Handbook").click()
        await expect(sources.panel.get_by_role("status")).to_contain_text("This is the section that contained it.")
        await expect(sources.panel.get_by_role("heading", name="Refunds")).to_be_in_viewport()
        await sources.client.patch(f"/v1/pages/{page_id}", json={"content": "Short."})
        await sources.page.reload()
        await expect(sources.panel.get_by_role("status")).to_contain_text("The cited passage was not found")
        await expect(sources.panel.get_by_text("Short.")).to_be_visible()

    async def test_says_that_the_page_was_deleted(self, sources: SourcesPage) -> None:
        page_id, conversation = await cite_page(sources)
        await sources.client.delete(f"/v1/pages/{page_id}")
        await sources.source("Handbook").click()
        await expect(sources.panel.get_by_role("status")).to_contain_text("This page does not exist any more")
        await sources.panel.get_by_role("button", name="Close the source").click()
        await sources.expect_path(f"/c/{conversation}")


class TestCitation:
    async def test_shows_its_source_and_opens_it(self, sources: SourcesPage) -> None:
        page_id, conversation = await cite_page(sources)
        number = sources.chat.answers.get_by_role("link", name="Source 1")
        await number.hover()
        card = sources.page.locator(".cite-card")
        await expect(card).to_contain_text("Handbook")
        await expect(card).to_contain_text("Page · Refunds")
        await card.hover()
        await expect(card).to_be_visible()
        await sources.page.mouse.move(5, 5)
        await expect(card).to_have_count(0)
        await number.click()
        await sources.expect_path(f"/c/{conversation}/pages/{page_id}")
        await expect(sources.panel.locator("p[data-cited]")).to_be_in_viewport()

    async def test_has_the_number_of_its_source(self, sources: SourcesPage) -> None:
        for number in range(3):
            await sources.create(
                "/v1/pages", {"title": f"Tide {number}", "content": f"The tide number {number} is high."}
            )
        await sources.ask("search_pages", {"query": "tide"}, "High [3], and nothing [9].")
        cited = await sources.chat.answers.locator(".sources li").nth(2).get_by_role("link").inner_text()
        await expect(sources.chat.answers.get_by_role("link", name="Source 9")).to_have_count(0)
        await sources.chat.answers.get_by_role("link", name="Source 3").click()
        await expect(sources.panel.get_by_role("heading", name=cited, level=2)).to_be_visible()


class TestRowSource:
    async def test_opens_its_table_at_the_row_and_again_after_a_reload(self, sources: SourcesPage) -> None:
        table_id, conversation = await cite_row(sources)
        await expect(sources.chat.answers.locator(".sources")).to_contain_text("Table · row 207")
        await sources.source("Planets").first.click()
        row = sources.panel.locator("tr[data-cited]")
        for _ in range(2):
            await sources.expect_path(f"/c/{conversation}/tables/{table_id}/207")
            await expect(row).to_be_in_viewport()
            await expect(row.get_by_role("cell")).to_have_text(["Planet 207", "207"])
            await expect(row).to_be_focused()
            await sources.page.reload()
        await expect(row).to_be_visible()
        numbers = sources.panel.get_by_role("rowheader")
        await expect(numbers.first).to_have_text("197")
        await sources.panel.get_by_role("button", name="Earlier rows").click()
        await expect(numbers.first).to_have_text("147")
        await sources.panel.get_by_role("button", name="More rows").click()
        await expect(numbers.last).to_have_text("296")
        assert await numbers.all_inner_texts() == [str(number) for number in range(147, 297)]

    async def test_shows_the_rows_around_a_deleted_row(self, sources: SourcesPage) -> None:
        table_id, _ = await cite_row(sources)
        for number in range(100, 208):
            await sources.client.delete(f"/v1/tables/{table_id}/rows/{number}")
        await sources.source("Planets").first.click()
        await expect(sources.panel.get_by_role("status")).to_contain_text("Row 207 does not exist any more.")
        numbers = sources.panel.get_by_role("rowheader")
        await expect(numbers.first).to_have_text("208")
        await sources.panel.get_by_role("button", name="Earlier rows").click()
        await expect(numbers.first).to_have_text("97")
        await expect(numbers.nth(2)).to_have_text("99")
        await expect(numbers.nth(3)).to_have_text("208")
        await sources.client.delete(f"/v1/tables/{table_id}")
        await sources.page.reload()
        await expect(sources.panel.get_by_role("status")).to_contain_text("This table does not exist any more")


class TestConversationSource:
    async def test_opens_at_the_cited_message_however_far_back_it_is(self, sources: SourcesPage) -> None:
        conversation = await long_conversation(sources.harness, 3)
        answer = TextPart(text="Sail at dawn, for the **lighthouse keeper** of Brest sleeps until nine.")
        await append_turn(sources.harness, conversation, "When do we leave?", (answer,))
        for number in range(120):
            await append_turn(sources.harness, conversation, f"Later {number}", (TextPart(text=f"Yes, {number}."),))
        await sources.ask("search_conversations", {"query": "lighthouse keeper"}, "At dawn [1].")
        await expect(sources.chat.answers.locator(".sources")).to_contain_text("Conversation")
        await sources.source("A long one").click()
        for _ in range(2):
            await sources.expect_path(f"/c/{conversation}")
            cited = sources.page.locator("p[data-cited]")
            await expect(cited).to_contain_text("Sail at dawn")
            await expect(cited).to_be_in_viewport()
            assert "lighthouse keeper of Brest" in re.sub(r"\s+", " ", await sources.page.evaluate(MARKED))
            await sources.page.reload()
        await sources.page.go_back()
        await expect(sources.source("A long one")).to_be_visible()

    async def test_says_that_the_cited_message_does_not_exist(self, sources: SourcesPage) -> None:
        conversation = await long_conversation(sources.harness, 3)
        await sources.page.goto(
            f"{sources.harness.server.url}/c/{conversation}#quote=the+lighthouse+keeper+of+Brest+sleeps"
        )
        await expect(sources.page.get_by_text("The cited message was not found in this conversation.")).to_be_visible()
        await expect(sources.chat.answers.last).to_be_in_viewport()


class TestFileSource:
    async def test_shows_the_text_of_the_file_at_the_cited_passage(self, sources: SourcesPage) -> None:
        conversation = (await sources.client.post("/v1/conversations", json={})).json()["id"]
        pages = [
            *(f"Page {number} is about nothing at all." for number in range(1, 7)),
            "The sill dries at coefficient ninety.",
        ]
        sent = {"file": ("almanac.pdf", a_pdf(*pages), "application/pdf")}
        file = (await sources.client.post(f"/v1/conversations/{conversation}/files", files=sent)).json()["data"][0]
        await sources.ask("search_files", {"query": "sill dries"}, "At ninety [1].", conversation_id=conversation)
        await expect(sources.chat.answers.locator(".sources")).to_contain_text("File · page 7")
        await sources.source("almanac.pdf").click()
        for _ in range(2):
            await sources.expect_path(f"/c/{conversation}/files/{file['id']}")
            await expect(sources.panel.locator(".panel-kind")).to_contain_text("page 7")
            await expect(sources.panel.get_by_role("heading", name="Page 7")).to_be_visible()
            await expect(sources.panel.locator("pre[data-cited]")).to_be_in_viewport()
            assert "sill dries at coefficient ninety" in await sources.page.evaluate(MARKED)
            await sources.page.reload()
        async with sources.page.expect_download() as download:
            await sources.panel.get_by_role("link", name="Download").click()
        assert (await download.value).suggested_filename == "almanac.pdf"
        await sources.client.delete(f"/v1/files/{file['id']}")
        await sources.page.reload()
        await expect(sources.panel.get_by_role("status")).to_contain_text("This file does not exist any more")


class TestKeyboard:
    async def test_opens_reads_and_closes_a_source(self, sources: SourcesPage) -> None:
        await cite_page(sources)
        number = sources.chat.answers.get_by_role("link", name="Source 1")
        await sources.chat.answers.locator(".sources li").first.focus()
        await sources.page.keyboard.press("Shift+Tab")
        await expect(number).to_be_focused()
        await expect(sources.page.locator(".cite-card")).to_be_visible()
        await sources.page.keyboard.press("Escape")
        await expect(sources.page.locator(".cite-card")).to_have_count(0)
        await sources.page.keyboard.press("Enter")
        await expect(sources.panel.locator("[data-cited]").first).to_be_focused()
        await sources.page.keyboard.press("Escape")
        await expect(number).to_be_focused()


class TestScreens:
    @pytest.mark.parametrize("wide", [True, False], ids=["wide", "narrow"])
    async def test_axe_finds_nothing_serious_and_nothing_is_too_wide(self, sources: SourcesPage, wide: bool) -> None:
        if not wide:
            await sources.page.set_viewport_size({"width": 360, "height": 740})
        await cite_page(sources)
        await sources.source("Handbook").click()
        await expect(sources.panel.locator("[data-cited]").first).to_be_visible()
        await self.check_screen(sources.page)
        await cite_row(sources)
        await sources.source("Planets").first.click()
        await expect(sources.panel.locator("tr[data-cited]")).to_be_visible()
        await self.check_screen(sources.page)
        for section, name in (("pages", "Handbook"), ("tables", "Planets")):
            await sources.page.goto(f"{sources.harness.server.url}/settings/{section}")
            await sources.page.get_by_role("link", name=name).click()
            await expect(sources.page.get_by_role("heading", name=name, level=2)).to_be_visible()
            await self.check_screen(sources.page)

    async def check_screen(self, page: Page) -> None:
        wide = await page.evaluate(
            """() => [...document.querySelectorAll('body, .layout, main, .panel, .settings-body')]
                 .filter((each) => each.scrollWidth > each.clientWidth + 1).map((each) => each.className)"""
        )
        assert wide == []
        for scheme in ("light", "dark"):
            await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            await page.wait_for_timeout(200)
            await check_with_axe(page)

    async def test_on_a_phone_the_source_replaces_the_thread(self, sources: SourcesPage) -> None:
        await sources.page.set_viewport_size({"width": 360, "height": 740})
        await cite_page(sources)
        await sources.source("Handbook").click()
        await expect(sources.panel.locator("p[data-cited]")).to_be_in_viewport()
        await expect(sources.chat.message_box).to_be_hidden()
        await sources.panel.get_by_role("button", name="Close the source").click()
        await expect(sources.source("Handbook")).to_be_focused()
        await expect(sources.chat.message_box).to_be_visible()
