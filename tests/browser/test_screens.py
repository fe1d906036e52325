"""Every screen: for keyboards and screen readers, on a phone, in the dark."""

from collections.abc import Awaitable, Callable

import pytest
from playwright.async_api import Page, expect
from tests.browser.harness import ROOT, House, Talk

from turnkeep.providers.ports import ProviderFailed
from turnkeep.providers.scripted import Call, Fail, Pause, Think

AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
SERIOUS = """async () => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"] });
  return violations.filter(({ impact }) => impact === "serious" || impact === "critical")
    .map(({ id, nodes }) => id + ": " + nodes.map((node) => node.html + " " + node.failureSummary).join("\\n"));
}"""


async def check_with_axe(page: Page) -> None:
    # Evaluated in the page's own world: the policy would refuse a script element with this text.
    await page.evaluate(AXE.read_text(encoding="utf-8"))
    assert await page.evaluate(SERIOUS) == []


async def greeting(house: House, talk: Talk) -> None:
    await expect(talk.page.get_by_role("heading", name="What shall we work on?")).to_be_visible()


async def answer(house: House, talk: Talk) -> None:
    house.gate.set()
    house.scripts.say(Think("Hm."), "Let me look.", Call("lookup", {"place": "Bern"}), Call("broken", {}))
    house.scripts.say("# Rain\n\nIt rains [1].\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nprint(1)\n```\n\n$x^2$")
    await talk.say("Weather?")
    await talk.settled()
    await talk.page.locator(".step summary").first.click()
    await expect(talk.page.locator(".katex").first).to_be_attached()


async def writing(house: House, talk: Talk) -> None:
    house.scripts.say(Think("Well"), "Half an answer", Pause(60))
    await talk.say("Slowly")
    await expect(talk.answers.get_by_text("Half an answer")).to_be_visible()
    await talk.say("The next one")
    await expect(talk.page.get_by_text("Queued")).to_be_visible()
    await talk.message.fill("And another")


async def failure(house: House, talk: Talk) -> None:
    house.scripts.say("Half ", Fail(ProviderFailed("Out of order.")))
    await talk.say("Try")
    await expect(talk.page.get_by_role("note")).to_be_visible()


async def searching(house: House, talk: Talk) -> None:
    await talk.say("Something to find")
    await talk.settled()
    await talk.page.get_by_role("searchbox").fill("find")
    await expect(talk.page.locator(".entry mark").first).to_be_visible()
    await talk.page.get_by_role("button", name="Delete “Something to find”").click()
    await expect(talk.page.get_by_role("button", name="Undo")).to_be_visible()


def settings(section: str) -> Callable[[House, Talk], Awaitable[None]]:
    async def open_section(house: House, talk: Talk) -> None:
        client = await house.api()
        await client.post("/v1/agents", json={"name": "Librarian", "instructions": "You know books."})
        admin = await house.server.user(client, "boss", role="admin")
        await admin.post("/v1/keys", json={"name": "backend"})
        await talk.page.goto(f"{house.server.url}/settings/{section}")
        if section == "agents":
            await talk.page.get_by_role("button", name="Edit Librarian").click()
            await talk.page.get_by_role("button", name="Add an HTTP tool").click()
            await talk.page.get_by_role("button", name="Add an MCP server").click()
        await expect(talk.page.locator(".card").first).to_be_visible()

    return open_section


async def pages(house: House, talk: Talk) -> None:
    client = await house.api()
    await client.post("/v1/pages", json={"title": "Harbour", "content": "# Tides\n\nTwice a day."})
    await talk.page.goto(f"{house.server.url}/settings/pages")
    await expect(talk.page.get_by_text("Harbour")).to_be_visible()
    await check_with_axe(talk.page)
    await talk.page.get_by_role("button", name="Edit Harbour").click()
    await expect(talk.page.locator(".card").first).to_be_visible()


async def tables(house: House, talk: Talk) -> None:
    client = await house.api()
    await client.post("/v1/tables", json={"name": "Boats", "columns": [{"name": "Length", "type": "number"}]})
    await talk.page.goto(f"{house.server.url}/settings/tables")
    await expect(talk.page.get_by_text("Boats")).to_be_visible()


SCREENS: dict[str, Callable[[House, Talk], Awaitable[None]]] = {
    "greeting": greeting,
    "answer": answer,
    "writing": writing,
    "failure": failure,
    "searching": searching,
    "usage": settings("usage"),
    "agents": settings("agents"),
    "keys": settings("keys"),
    "pages": pages,
    "tables": tables,
}


class TestAccessibility:
    @pytest.mark.parametrize("screen", SCREENS)
    async def test_axe_finds_nothing_serious_in_light_or_dark(self, house: House, screen: str) -> None:
        talk = await Talk.begin(house)
        await SCREENS[screen](house, talk)
        for scheme in ("light", "dark"):
            await talk.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            await talk.page.wait_for_timeout(200)
            await check_with_axe(talk.page)

    async def test_the_sign_in_screen_too(self, house: House) -> None:
        page = await house.context.new_page()
        await page.goto(house.server.url)
        await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        await check_with_axe(page)

    async def test_everything_can_be_done_with_the_keyboard(self, house: House) -> None:
        house.scripts.say("First answer.")
        talk = await Talk.begin(house)
        page = talk.page
        await expect(talk.message).to_be_focused()
        await page.keyboard.type("Hello")
        await page.keyboard.press("Enter")
        await talk.settled()
        await expect(page.get_by_role("status").filter(has_text="The answer is complete.")).to_be_attached()
        house.scripts.say("Second answer.")
        await self.reach(page, "Answer again")
        await page.keyboard.press("Enter")
        await expect(talk.answers.get_by_text("Second answer.")).to_be_visible()
        await talk.settled()
        await self.reach(page, "Rename “Hello”")
        await page.keyboard.press("Enter")
        await page.keyboard.type("Greetings")
        await page.keyboard.press("Enter")
        await expect(talk.history.locator(".entry-title")).to_have_text("Greetings")
        await self.reach(page, "Delete “Greetings”")
        await page.keyboard.press("Enter")
        await self.reach(page, "Undo")
        await page.keyboard.press("Enter")
        await expect(talk.history.locator(".entry-title")).to_have_text("Greetings")
        await page.keyboard.press("Control+Shift+o")
        await expect(talk.message).to_be_focused()

    async def reach(self, page: Page, name: str) -> None:
        """Press Tab until the control of that name has the focus."""
        for _ in range(60):
            await page.keyboard.press("Tab")
            focused = "document.activeElement?.getAttribute('aria-label') ?? document.activeElement?.textContent"
            if await page.evaluate(focused) == name:
                return
        raise AssertionError(f"Tab does not reach {name!r}")


class TestAPhone:
    async def test_has_the_list_behind_a_button_and_nothing_is_too_wide(self, house: House) -> None:
        talk = await Talk.begin(house)
        await talk.page.set_viewport_size({"width": 360, "height": 740})
        house.scripts.say(
            "| "
            + " | ".join("abcdefghij")
            + " |\n|"
            + "---|" * 10
            + "\n\n"
            + "W" * 300
            + "\n\n```\n"
            + "x" * 300
            + "\n```"
        )
        await talk.say("Something very wide: " + "M" * 200)
        await talk.settled()
        await self.fits(talk.page)
        await expect(talk.history).not_to_be_in_viewport()
        await talk.message.focus()
        await talk.page.keyboard.press("Control+k")
        await expect(talk.page.get_by_label("Search")).to_be_focused()
        await talk.page.keyboard.press("Escape")
        await expect(talk.history).not_to_be_in_viewport()
        await expect(talk.message).to_be_focused()
        await talk.page.get_by_role("button", name="Open the list of conversations").click()
        await expect(talk.history).to_be_in_viewport()
        await expect(talk.page.get_by_role("button", name="Close the list of conversations")).to_be_focused()
        await talk.history.get_by_role("link", name="New conversation").click()
        await expect(talk.history).not_to_be_in_viewport()
        await self.fits(talk.page)
        await talk.page.goto(f"{house.server.url}/settings/agents")
        await talk.page.get_by_role("button", name="New agent").click()
        await self.fits(talk.page)
        await talk.page.goto(f"{house.server.url}/settings/tables")
        await expect(talk.page.get_by_role("button", name="New table from a CSV file")).to_be_visible()
        await self.fits(talk.page)

    async def fits(self, page: Page) -> None:
        """Nothing of the page itself has to be scrolled sideways."""
        wide = await page.evaluate(
            """() => [...document.querySelectorAll('body, .room, main, .thread-list, .composer, .settings-body')]
                 .filter((each) => each.scrollWidth > each.clientWidth + 1)
                 .map((each) => each.className || each.tagName)"""
        )
        assert wide == []


class TestTheDark:
    async def test_follows_the_system_and_can_be_chosen(self, house: House) -> None:
        talk = await Talk.begin(house)
        colour = "getComputedStyle(document.body).backgroundColor"
        light = await talk.page.evaluate(colour)
        await talk.page.emulate_media(color_scheme="dark")
        dark = await talk.page.evaluate(colour)
        assert dark != light
        await talk.page.get_by_label("Appearance").select_option("light")
        assert await talk.page.evaluate(colour) == light
        await talk.page.reload()
        await expect(talk.message).to_be_visible()
        assert await talk.page.evaluate(colour) == light
