"""Agents that teach: tools with what they do, MCP servers that are connected, a trial, and cards to begin with."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest
import pytest_asyncio
from playwright.async_api import Browser, FilePayload, Page, expect

from tests.api.harness import ApiServer, settings_for
from tests.browser.harness import ChatPage, Harness, png
from tests.browser.test_accessibility import check_with_axe
from tests.tools.oauth_server import OAuthServer
from turnkeep.config import Settings
from turnkeep.providers.scripted import Call

THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
PHONE = {"width": 390, "height": 844}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_for(tmp_path, allow_private_addresses=True)


@pytest_asyncio.fixture(loop_scope="session")
async def real(built_page: Path, browser: Browser, settings: Settings) -> AsyncIterator[Harness]:
    """A server with the tools that every server has."""
    async with ApiServer.start(settings) as server:
        context = await browser.new_context(viewport={"width": 1280, "height": 820})
        harness = Harness(server, context)
        try:
            yield harness
            harness.check_no_problems()
        finally:
            await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def tickets() -> AsyncIterator[OAuthServer]:
    async with OAuthServer.start() as running:
        yield running


async def new_agent(harness: Harness, name: str = "Clerk") -> Page:
    """The form of a new agent."""
    page = await harness.open_page("/settings/agents")
    await page.get_by_role("button", name="New agent").click()
    await page.get_by_label("Name", exact=True).fill(name)
    return page


async def check_both_themes(page: Page) -> None:
    for theme in THEMES:
        # Without motion: a colour in a transition is neither the one nor the other.
        await page.emulate_media(color_scheme=theme, reduced_motion="reduce")
        await check_with_axe(page)


async def add_server(page: Page, url: str) -> None:
    await page.get_by_role("button", name="Add an MCP server").click()
    group = page.get_by_role("group", name="MCP servers")
    await group.get_by_label("Name", exact=True).fill("tickets")
    await group.get_by_label("Address").fill(url)
    await group.get_by_role("button", name="Connect").click()


class TestTools:
    async def test_are_chosen_from_a_list_with_an_approval_for_each(self, harness: Harness) -> None:
        page = await new_agent(harness)
        tools = page.get_by_role("group", name="Built-in tools")
        await expect(tools.get_by_role("checkbox", name="Ask a person before pay runs")).to_have_count(0)
        await tools.get_by_role("checkbox", name="lookup", exact=True).check()
        await tools.get_by_role("checkbox", name="pay", exact=True).check()
        await tools.get_by_role("checkbox", name="Ask a person before pay runs").check()
        await page.get_by_role("switch", name="Runs code in a sandbox").check()
        await page.get_by_role("checkbox", name="Ask a person before shell runs").check()
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("link", name="Chat with Clerk")).to_be_visible()
        made = (await (await harness.api()).read("/v1/agents"))["data"][0]
        assert made["tools"] == [
            "lookup",
            {"type": "native", "name": "pay", "approval": "always"},
            {"type": "sandbox", "name": "shell", "approval": "always"},
        ]
        await page.get_by_role("button", name="Edit Clerk").click()
        await expect(page.get_by_role("checkbox", name="pay", exact=True)).to_be_checked()
        await page.get_by_role("checkbox", name="lookup", exact=True).uncheck()
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("link", name="Chat with Clerk")).to_be_visible()
        made = (await (await harness.api()).read("/v1/agents"))["data"][0]
        assert [tool["name"] for tool in made["tools"]] == ["pay", "shell"]

    async def test_say_what_they_do(self, real: Harness) -> None:
        page = await new_agent(real)
        search = page.get_by_role("checkbox", name="search_pages", exact=True)
        await expect(search).to_have_accessible_description(re.compile("search", re.IGNORECASE))


class TestAnMcpServer:
    async def test_is_connected_where_it_asks_for_authorization_and_its_tools_are_chosen(
        self, real: Harness, tickets: OAuthServer
    ) -> None:
        real.known_servers.append(tickets.origin)
        page = await new_agent(real)
        await add_server(page, tickets.url)
        host = tickets.origin.removeprefix("http://")
        await expect(page.get_by_text(f"This server wants you to agree at {host}")).to_be_visible()
        await check_both_themes(page)
        await page.get_by_role("button", name="Sign in to this server").click()
        async with page.context.expect_page() as opened:
            await page.get_by_role("link", name=f"Continue at {host}").click()
        other = await opened.value
        await other.get_by_role("link", name="Agree").click()
        await expect(other.get_by_role("heading", name="Connected")).to_be_visible()
        await other.close()
        await expect(page.get_by_text("Connected. The server has 3 tools.")).to_be_visible()
        await expect(page.get_by_text("Search the tickets of your team.")).to_be_visible()
        await page.get_by_role("switch", name="Use all tools of this server").uncheck()
        await page.get_by_role("checkbox", name="leak_token", exact=True).uncheck()
        await page.get_by_role("checkbox", name="Ask a person before close_ticket runs").check()
        await check_both_themes(page)
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("link", name="Chat with Clerk")).to_be_visible()
        made = (await (await real.api()).read("/v1/agents"))["data"][0]
        [server] = made["mcp_servers"]
        assert (server["auth"], server["tools"]) == ("oauth", ["search_tickets", "close_ticket"])
        assert server["approval"] == {"close_ticket": "always"}
        await page.get_by_role("link", name="Chat with Clerk").click()
        chat = ChatPage(page)
        real.scripts.say(Call("tickets__search_tickets", {"query": "rain"}))
        real.scripts.say("There are three.")
        await chat.send("Any tickets about rain?")
        await chat.wait_settled()
        await expect(chat.answers).to_contain_text("There are three.")
        assert "3 tickets about rain" in str(real.scripts.requests[-1])

    async def test_is_disconnected(self, real: Harness, tickets: OAuthServer) -> None:
        real.known_servers.append(tickets.origin)
        page = await new_agent(real)
        await add_server(page, tickets.url)
        await page.get_by_role("button", name="Sign in to this server").click()
        async with page.context.expect_page() as opened:
            await page.get_by_role("link", name="Continue at").click()
        other = await opened.value
        await other.get_by_role("link", name="Agree").click()
        await expect(other.get_by_role("heading", name="Connected")).to_be_visible()
        await page.get_by_role("button", name="Disconnect").click()
        await expect(page.get_by_role("button", name="Sign in to this server")).to_be_visible()
        assert len(tickets.revoked) == 1

    async def test_says_on_a_page_why_it_is_not_connected(self, real: Harness, tickets: OAuthServer) -> None:
        real.known_servers.append(tickets.origin)
        page = await new_agent(real)
        await add_server(page, tickets.url)
        await page.get_by_role("button", name="Sign in to this server").click()
        async with page.context.expect_page() as opened:
            await page.get_by_role("link", name="Continue at").click()
        other = await opened.value
        await other.get_by_role("link", name="Deny").click()
        await expect(other.get_by_role("heading", name="The server is not connected")).to_be_visible()
        await expect(other.get_by_text("You did not agree")).to_be_visible()
        await check_both_themes(other)
        await other.close()
        tickets.can_register = False
        await page.get_by_role("button", name="List the tools again").click()
        await expect(page.get_by_text(f"{real.server.url}/mcp/callback")).to_be_visible()
        await expect(page.get_by_label("Client id")).to_be_visible()

    async def test_that_cannot_be_reached_is_explained(self, real: Harness) -> None:
        page = await new_agent(real)
        await add_server(page, "http://127.0.0.1:9/mcp")
        await expect(page.get_by_role("alert")).to_contain_text("cannot be used now")


class TestATrial:
    async def test_answers_with_the_settings_in_the_form_and_leaves_nothing(self, harness: Harness) -> None:
        harness.lookup_allowed.set()
        page = await new_agent(harness)
        await page.get_by_label("Instructions", exact=True).fill("You answer in rhymes.")
        await page.get_by_label("Questions to begin with").fill("Rhyme with cat")
        await page.get_by_role("checkbox", name="lookup", exact=True).check()
        await page.get_by_role("button", name="Try it").click()
        trial = page.get_by_role("complementary", name="Try it")
        harness.scripts.say(Call("lookup", {"place": "Bern"}))
        harness.scripts.say("A hat!")
        await trial.get_by_role("button", name="Rhyme with cat").click()
        await expect(trial.get_by_role("article", name="Assistant")).to_contain_text("A hat!")
        assert "You answer in rhymes." in str(harness.scripts.requests[-1])
        await page.get_by_label("Instructions", exact=True).fill("You answer in prose.")
        harness.scripts.say("No rhyme.")
        await trial.get_by_label("Message to try").fill("And with dog?")
        await trial.get_by_label("Message to try").press("Enter")
        await expect(trial.get_by_role("article", name="Assistant")).to_have_count(2)
        await expect(trial.get_by_role("article", name="Assistant").last).to_contain_text("No rhyme.")
        assert "You answer in prose." in str(harness.scripts.requests[-1])
        harness.scripts.say("Again.")
        await trial.get_by_role("button", name="Answer again").last.click()
        await expect(trial.get_by_role("article", name="Assistant").last).to_contain_text("Again.")
        assert "You answer in prose." in str(harness.scripts.requests[-1])
        await check_both_themes(page)
        client = await harness.api()
        assert (await client.read("/v1/conversations"))["data"] == []
        assert (await client.read("/v1/agents"))["data"] == []
        async with page.expect_response(lambda answer: answer.request.method == "DELETE") as deleted:
            await trial.get_by_role("button", name="Close the trial").click()
        assert (await deleted.value).ok
        await expect(page.locator(".entry")).to_have_count(0)

    async def test_says_what_is_wrong_in_the_form(self, harness: Harness) -> None:
        page = await new_agent(harness)
        await page.get_by_role("button", name="Add an MCP server").click()
        servers = page.get_by_role("group", name="MCP servers")
        await servers.get_by_label("Headers").fill("no pair")
        await page.get_by_role("button", name="Try it").click()
        trial = page.get_by_role("complementary", name="Try it")
        await trial.get_by_label("Message to try").fill("Hello")
        await trial.get_by_role("button", name="Send").click()
        await expect(trial.get_by_role("alert")).to_contain_text("no pair")


class TestNames:
    async def test_are_given_once(self, harness: Harness) -> None:
        client = await harness.api()
        await client.post("/v1/agents", json={"name": "Clerk"})
        page = await new_agent(harness, "clerk")
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("alert")).to_contain_text("There is an agent called 'clerk'")
        await page.get_by_label("Name", exact=True).fill("Another clerk")
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("link", name="Chat with Another clerk")).to_be_visible()


class TestCards:
    async def test_on_the_empty_page_choose_an_agent(self, harness: Harness) -> None:
        client = await harness.api()
        picture: FilePayload = {"name": "me.png", "mimeType": "image/png", "buffer": png(300, 200)}
        page = await new_agent(harness, "Librarian")
        await page.locator("[data-kind=avatar]").set_input_files([picture])
        await page.get_by_label("Description", exact=True).first.fill("Knows every book.")
        await page.get_by_label("Questions to begin with").fill("What is new?")
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("link", name="Chat with Librarian")).to_be_visible()
        made = await client.post(
            "/v1/agents", json={"name": "Pilot", "avatar": "🛩️", "description": "Flies you anywhere."}
        )
        assert made.status_code == 201, made.text
        await page.goto(harness.server.url)
        cards = page.get_by_role("region", name="Agents")
        await expect(cards.get_by_role("link")).to_have_count(2)
        await expect(cards.get_by_text("🛩️")).to_be_visible()
        loaded = "img => img.decode().then(() => [img.naturalWidth, img.naturalHeight])"
        assert await cards.locator("img").evaluate(loaded) == [96, 96]
        await check_both_themes(page)
        await cards.get_by_role("link", name="Librarian").click()
        await expect(page.get_by_role("heading", name="Librarian")).to_be_visible()
        await expect(page.get_by_text("Knows every book.")).to_be_visible()
        await page.get_by_role("button", name="What is new?").click()
        chat = ChatPage(page)
        await chat.wait_settled()
        saved = next(one for one in (await client.read("/v1/agents"))["data"] if one["name"] == "Librarian")
        [conversation] = (await client.read("/v1/conversations"))["data"]
        assert conversation["agent_id"] == saved["id"]
        assert len(saved["avatar"]) < 10_000

    async def test_an_address_leads_to_a_chat_with_an_agent(self, harness: Harness) -> None:
        client = await harness.api()
        agent = (await client.post("/v1/agents", json={"name": "Pilot"})).json()
        page = await harness.open_page(f"/agents/{agent['id']}")
        await expect(page.get_by_role("heading", name="Pilot")).to_be_visible()
        await expect(page.get_by_label("Agent", exact=True)).to_have_value(agent["id"])
        await page.get_by_label("Agent", exact=True).select_option("")
        await expect(page.get_by_role("heading", name="What shall we work on?")).to_be_visible()

    async def test_fit_on_a_phone(self, harness: Harness) -> None:
        client = await harness.api()
        for n in range(8):
            await client.post("/v1/agents", json={"name": f"Agent {n}", "description": "Does many things. " * 9})
        page = await harness.open_page()
        await page.set_viewport_size({"width": 390, "height": 844})
        await expect(page.get_by_role("link", name="All 8 agents")).to_be_visible()
        width = "() => document.documentElement.scrollWidth"
        assert await page.evaluate(width) <= PHONE["width"]
        await check_with_axe(page)
