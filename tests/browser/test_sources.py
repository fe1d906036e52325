"""Sources of an answer: each opens the cited place, beside the answer, at an address of its own."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, expect
from tests.browser.harness import House, Talk
from tests.browser.stored_conversations import append_turn, long_conversation
from tests.browser.test_accessibility import check_with_axe

from tests.api.harness import ApiServer, Client
from tests.knowledge.test_file_tools import a_pdf
from turnkeep.config import Settings
from turnkeep.providers.scripted import Call
from turnkeep_client.wire.parts import TextPart

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
"""The words that are painted over."""


class Desk:
    """An agent with the native tools, what it finds, and the page in front of it."""

    def __init__(self, house: House, client: Client, talk: Talk, agent_id: str) -> None:
        self.house = house
        self.client = client
        self.talk = talk
        self.page = talk.page
        self.agent_id = agent_id
        self.reading = talk.page.get_by_role("complementary", name="Source")

    @classmethod
    async def open(cls, house: House) -> Self:
        client = await house.api()
        agent = (await client.post("/v1/agents", json={"name": "Librarian", "tools": TOOLS})).json()
        return cls(house, client, await Talk.begin(house), agent["id"])

    async def make(self, path: str, body: dict[str, Any]) -> str:
        made = await self.client.post(path, json=body)
        assert made.status_code == 201, made.text
        return str(made.json().get("id", ""))

    async def a_table(self, rows: int) -> str:
        columns = [{"name": "Name", "type": "text"}, {"name": "Moons", "type": "number"}]
        table = await self.make("/v1/tables", {"name": "Planets", "columns": columns})
        made = [{"Name": f"Planet {number}", "Moons": number} for number in range(1, rows + 1)]
        await self.make(f"/v1/tables/{table}/rows", {"rows": made})
        return table

    async def ask(self, tool: str, args: dict[str, Any], answer: str, **turn: Any) -> str:
        """A turn that calls the tool and cites what it found; the page shows its conversation."""
        self.house.scripts.say(Call(tool, args))
        self.house.scripts.say(answer)
        body = {"message": "Tell me.", "agent_id": self.agent_id, **turn}
        told = (await self.client.post("/v1/turns", json=body)).json()
        assert told["turn"]["status"] == "succeeded", told
        conversation: str = told["conversation_id"]
        await self.page.goto(f"{self.house.server.url}/c/{conversation}")
        await self.talk.settled()
        return conversation

    def source(self, title: str) -> Locator:
        return self.talk.answers.get_by_role("region", name="Sources").get_by_role("link", name=title)

    async def at(self, path: str) -> None:
        await expect(self.page).to_have_url(re.compile(f"^{re.escape(self.house.server.url + path)}(#.*)?$"))


@pytest_asyncio.fixture(loop_scope="session")
async def desk(built_page: Path, browser: Browser, settings: Settings) -> AsyncIterator[Desk]:
    """With the tools that every server has."""
    async with ApiServer.start(settings) as server:
        context = await browser.new_context(viewport={"width": 1400, "height": 820})
        house = House(server, context, asyncio.Event())
        try:
            yield await Desk.open(house)
            house.check()
        finally:
            await context.close()


async def refunds(desk: Desk) -> tuple[str, str]:
    """A long page, and an answer that cites a passage in the middle of it."""
    page_id = await desk.make("/v1/pages", {"title": "Handbook", "content": HANDBOOK})
    return page_id, await desk.ask("search_pages", {"query": "money back thirty days"}, "Within thirty days [1].")


async def planets(desk: Desk) -> tuple[str, str]:
    """A table of 300 rows, and an answer that cites one of them."""
    table_id = await desk.a_table(300)
    return table_id, await desk.ask("search_user_tables", {"query": "planet 207", "table": "Planets"}, "It is [1].")


class TestAPage:
    async def test_opens_at_the_cited_passage_and_again_after_a_reload(self, desk: Desk) -> None:
        page_id, conversation = await refunds(desk)
        await expect(desk.talk.answers.locator(".sources")).to_contain_text("Page · Refunds")
        await desk.source("Handbook").click()
        for _ in range(2):
            await desk.at(f"/c/{conversation}/pages/{page_id}")
            await expect(desk.reading.get_by_role("heading", name="Handbook", level=2)).to_be_visible()
            await expect(desk.reading.locator("p[data-cited]")).to_be_in_viewport()
            await expect(desk.reading.locator("[data-cited]").first).to_be_focused()
            marked = await desk.page.evaluate(MARKED)
            assert "money back within thirty days of the purchase" in re.sub(r"\s+", " ", marked)
            await expect(desk.talk.answers.locator(".prose")).to_be_visible()
            await desk.page.reload()

    async def test_is_closed_with_a_button_with_escape_and_by_going_back(self, desk: Desk) -> None:
        page_id, conversation = await refunds(desk)
        link = desk.source("Handbook")
        for leave in (
            lambda: desk.reading.get_by_role("button", name="Close the source").click(),
            lambda: desk.page.keyboard.press("Escape"),
            desk.page.go_back,
        ):
            await link.click()
            await expect(desk.reading.locator("[data-cited]").first).to_be_focused()
            await leave()
            await desk.at(f"/c/{conversation}")
            await expect(desk.reading).to_have_count(0)
            await expect(link).to_be_focused()
        await desk.page.go_forward()
        await desk.at(f"/c/{conversation}/pages/{page_id}")
        await expect(desk.reading).to_be_visible()

    async def test_leads_to_the_section_when_the_passage_is_gone(self, desk: Desk) -> None:
        page_id, _ = await refunds(desk)
        changed = HANDBOOK.replace("We give **money back** within", "Nobody gets anything, not even after")
        changed = (
            changed.replace("thirty days", "years").replace("of the purchase", "of waiting").replace("receipt", "x")
        )
        await desk.client.patch(f"/v1/pages/{page_id}", json={"content": changed})
        await desk.source("Handbook").click()
        await expect(desk.reading.get_by_role("status")).to_contain_text("This is the section that it stood in.")
        await expect(desk.reading.get_by_role("heading", name="Refunds")).to_be_in_viewport()
        await desk.client.patch(f"/v1/pages/{page_id}", json={"content": "Short."})
        await desk.page.reload()
        await expect(desk.reading.get_by_role("status")).to_contain_text("The cited passage is not here any more")
        await expect(desk.reading.get_by_text("Short.")).to_be_visible()

    async def test_says_so_when_it_was_deleted(self, desk: Desk) -> None:
        page_id, conversation = await refunds(desk)
        await desk.client.delete(f"/v1/pages/{page_id}")
        await desk.source("Handbook").click()
        await expect(desk.reading.get_by_role("status")).to_contain_text("This page is not there.")
        await desk.reading.get_by_role("button", name="Close the source").click()
        await desk.at(f"/c/{conversation}")


class TestANumberInTheAnswer:
    async def test_shows_its_source_and_opens_it(self, desk: Desk) -> None:
        page_id, conversation = await refunds(desk)
        number = desk.talk.answers.get_by_role("link", name="Source 1")
        await number.hover()
        card = desk.page.locator(".cite-card")
        await expect(card).to_contain_text("Handbook")
        await expect(card).to_contain_text("Page · Refunds")
        await card.hover()
        await expect(card).to_be_visible()
        await desk.page.mouse.move(5, 5)
        await expect(card).to_have_count(0)
        await number.click()
        await desk.at(f"/c/{conversation}/pages/{page_id}")
        await expect(desk.reading.locator("p[data-cited]")).to_be_in_viewport()

    async def test_is_the_number_that_the_source_was_given(self, desk: Desk) -> None:
        for number in range(3):
            await desk.make("/v1/pages", {"title": f"Tide {number}", "content": f"The tide number {number} is high."})
        await desk.ask("search_pages", {"query": "tide"}, "High [3], and nothing [9].")
        cited = await desk.talk.answers.locator(".sources li").nth(2).get_by_role("link").inner_text()
        await expect(desk.talk.answers.get_by_role("link", name="Source 9")).to_have_count(0)
        await desk.talk.answers.get_by_role("link", name="Source 3").click()
        await expect(desk.reading.get_by_role("heading", name=cited, level=2)).to_be_visible()


class TestARow:
    async def test_opens_its_table_at_the_row_and_again_after_a_reload(self, desk: Desk) -> None:
        table_id, conversation = await planets(desk)
        await expect(desk.talk.answers.locator(".sources")).to_contain_text("Table · row 207")
        await desk.source("Planets").first.click()
        row = desk.reading.locator("tr[data-cited]")
        for _ in range(2):
            await desk.at(f"/c/{conversation}/tables/{table_id}/207")
            await expect(row).to_be_in_viewport()
            await expect(row.get_by_role("cell")).to_have_text(["Planet 207", "207"])
            await expect(row).to_be_focused()
            await desk.page.reload()
        await expect(row).to_be_visible()
        numbers = desk.reading.get_by_role("rowheader")
        await expect(numbers.first).to_have_text("197")
        await desk.reading.get_by_role("button", name="Earlier rows").click()
        await expect(numbers.first).to_have_text("147")
        await desk.reading.get_by_role("button", name="More rows").click()
        await expect(numbers.last).to_have_text("296")
        assert await numbers.all_inner_texts() == [str(number) for number in range(147, 297)]

    async def test_that_was_deleted_is_missed_among_its_neighbours(self, desk: Desk) -> None:
        table_id, _ = await planets(desk)
        for number in range(100, 208):
            await desk.client.delete(f"/v1/tables/{table_id}/rows/{number}")
        await desk.source("Planets").first.click()
        await expect(desk.reading.get_by_role("status")).to_contain_text("Row 207 is not there any more.")
        numbers = desk.reading.get_by_role("rowheader")
        await expect(numbers.first).to_have_text("208")
        await desk.reading.get_by_role("button", name="Earlier rows").click()
        await expect(numbers.first).to_have_text("97")
        await expect(numbers.nth(2)).to_have_text("99")
        await expect(numbers.nth(3)).to_have_text("208")
        await desk.client.delete(f"/v1/tables/{table_id}")
        await desk.page.reload()
        await expect(desk.reading.get_by_role("status")).to_contain_text("This table is not there.")


class TestAConversation:
    async def test_opens_at_the_cited_message_however_far_back_it_is(self, desk: Desk) -> None:
        told = await long_conversation(desk.house, 3)
        answer = TextPart(text="Sail at dawn, for the **lighthouse keeper** of Brest sleeps until nine.")
        await append_turn(desk.house, told, "When do we leave?", (answer,))
        for number in range(120):
            await append_turn(desk.house, told, f"Later {number}", (TextPart(text=f"Yes, {number}."),))
        await desk.ask("search_conversations", {"query": "lighthouse keeper"}, "At dawn [1].")
        await expect(desk.talk.answers.locator(".sources")).to_contain_text("Conversation")
        await desk.source("A long one").click()
        for _ in range(2):
            await desk.at(f"/c/{told}")
            cited = desk.page.locator("p[data-cited]")
            await expect(cited).to_contain_text("Sail at dawn")
            await expect(cited).to_be_in_viewport()
            assert "lighthouse keeper of Brest" in re.sub(r"\s+", " ", await desk.page.evaluate(MARKED))
            await desk.page.reload()
        await desk.page.go_back()
        await expect(desk.source("A long one")).to_be_visible()

    async def test_says_so_when_the_message_is_not_there_any_more(self, desk: Desk) -> None:
        told = await long_conversation(desk.house, 3)
        await desk.page.goto(f"{desk.house.server.url}/c/{told}#quote=the+lighthouse+keeper+of+Brest+sleeps")
        await expect(desk.page.get_by_text("The cited message is not in this conversation any more.")).to_be_visible()
        await expect(desk.talk.answers.last).to_be_in_viewport()


class TestAFile:
    async def test_is_shown_as_its_text_at_the_cited_place(self, desk: Desk) -> None:
        conversation = (await desk.client.post("/v1/conversations", json={})).json()["id"]
        pages = [
            *(f"Page {number} is about nothing at all." for number in range(1, 7)),
            "The sill dries at coefficient ninety.",
        ]
        sent = {"file": ("almanac.pdf", a_pdf(*pages), "application/pdf")}
        file = (await desk.client.post(f"/v1/conversations/{conversation}/files", files=sent)).json()["data"][0]
        await desk.ask("search_files", {"query": "sill dries"}, "At ninety [1].", conversation_id=conversation)
        await expect(desk.talk.answers.locator(".sources")).to_contain_text("File · page 7")
        await desk.source("almanac.pdf").click()
        for _ in range(2):
            await desk.at(f"/c/{conversation}/files/{file['id']}")
            await expect(desk.reading.locator(".reading-kind")).to_contain_text("page 7")
            await expect(desk.reading.get_by_role("heading", name="Page 7")).to_be_visible()
            await expect(desk.reading.locator("pre[data-cited]")).to_be_in_viewport()
            assert "sill dries at coefficient ninety" in await desk.page.evaluate(MARKED)
            await desk.page.reload()
        async with desk.page.expect_download() as download:
            await desk.reading.get_by_role("link", name="Download").click()
        assert (await download.value).suggested_filename == "almanac.pdf"
        await desk.client.delete(f"/v1/files/{file['id']}")
        await desk.page.reload()
        await expect(desk.reading.get_by_role("status")).to_contain_text("This file is not there.")


class TestTheKeyboard:
    async def test_opens_reads_and_closes_a_source(self, desk: Desk) -> None:
        await refunds(desk)
        number = desk.talk.answers.get_by_role("link", name="Source 1")
        await desk.talk.answers.locator(".sources li").first.focus()
        await desk.page.keyboard.press("Shift+Tab")
        await expect(number).to_be_focused()
        await expect(desk.page.locator(".cite-card")).to_be_visible()
        await desk.page.keyboard.press("Escape")
        await expect(desk.page.locator(".cite-card")).to_have_count(0)
        await desk.page.keyboard.press("Enter")
        await expect(desk.reading.locator("[data-cited]").first).to_be_focused()
        await desk.page.keyboard.press("Escape")
        await expect(number).to_be_focused()


class TestEveryScreen:
    @pytest.mark.parametrize("wide", [True, False], ids=["wide", "narrow"])
    async def test_axe_finds_nothing_serious_and_nothing_is_too_wide(self, desk: Desk, wide: bool) -> None:
        if not wide:
            await desk.page.set_viewport_size({"width": 360, "height": 740})
        await refunds(desk)
        await desk.source("Handbook").click()
        await expect(desk.reading.locator("[data-cited]").first).to_be_visible()
        await self.look(desk.page)
        await planets(desk)
        await desk.source("Planets").first.click()
        await expect(desk.reading.locator("tr[data-cited]")).to_be_visible()
        await self.look(desk.page)
        for section, name in (("pages", "Handbook"), ("tables", "Planets")):
            await desk.page.goto(f"{desk.house.server.url}/settings/{section}")
            await desk.page.get_by_role("link", name=name).click()
            await expect(desk.page.get_by_role("heading", name=name, level=2)).to_be_visible()
            await self.look(desk.page)

    async def look(self, page: Page) -> None:
        wide = await page.evaluate(
            """() => [...document.querySelectorAll('body, .room, main, .reading, .settings-body')]
                 .filter((each) => each.scrollWidth > each.clientWidth + 1).map((each) => each.className)"""
        )
        assert wide == []
        for scheme in ("light", "dark"):
            await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            await page.wait_for_timeout(200)
            await check_with_axe(page)

    async def test_on_a_phone_the_source_takes_the_place_of_the_thread(self, desk: Desk) -> None:
        await desk.page.set_viewport_size({"width": 360, "height": 740})
        await refunds(desk)
        await desk.source("Handbook").click()
        await expect(desk.reading.locator("p[data-cited]")).to_be_in_viewport()
        await expect(desk.talk.message).to_be_hidden()
        await desk.reading.get_by_role("button", name="Close the source").click()
        await expect(desk.source("Handbook")).to_be_focused()
        await expect(desk.talk.message).to_be_visible()
