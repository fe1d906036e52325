"""On paper a conversation is whole: all its messages, without the list, the composer and the buttons."""

from io import BytesIO

from playwright.async_api import Page, expect
from pypdf import PdfReader

from tests.browser.harness import ChatPage, Harness
from tests.browser.stored_conversations import long_conversation

TURNS = 90
COUNT_PRINTS = """() => {
  const { dataset } = document.documentElement;
  window.print = () => { dataset.printed = Number(dataset.printed ?? 0) + 1; };
}"""


async def printed(page: Page) -> str:
    """The words on the pages, as the browser prints them."""
    return " ".join(each.extract_text() for each in PdfReader(BytesIO(await page.pdf())).pages)


def missing(text: str) -> list[int]:
    words = text.replace("\n", " ")
    return [number for number in range(TURNS) if f"Answer {number}:" not in words]


class TestPrint:
    async def test_ctrl_p_and_the_menu_load_all_messages_first(self, harness: Harness) -> None:
        conversation = await long_conversation(harness, TURNS)
        chat = await ChatPage.open(harness, f"/c/{conversation}")
        page = chat.page
        await page.evaluate(COUNT_PRINTS)
        await expect(page.get_by_text(f"Question {TURNS - 1}")).to_be_in_viewport()
        in_part = await printed(page)
        assert "Earlier messages are left out." in in_part
        assert missing(in_part)
        await page.keyboard.press("Control+p")
        await expect(page.locator("html[data-printed='1']")).to_be_attached()
        whole = await printed(page)
        assert missing(whole) == []
        assert "A long one" in whole
        for left_out in ("Earlier messages", "New conversation", "Write a message", "Settings", "Default"):
            assert left_out not in whole
        # The page is as it was.
        await expect(page.locator(".printed")).to_have_count(0)
        await expect(page.get_by_text(f"Question {TURNS - 1}")).to_be_in_viewport()
        await page.locator("summary[aria-label='Conversation menu']").click()
        await page.get_by_role("button", name="Print").click()
        await expect(page.locator("html[data-printed='2']")).to_be_attached()

    async def test_is_in_light_colours_also_in_the_dark_theme(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness)
        await chat.send("Hello")
        await chat.wait_settled()
        await chat.page.get_by_label("Appearance").select_option("dark")
        colour = "getComputedStyle(document.querySelector('h1')).color"
        dark = await chat.page.evaluate(colour)
        await chat.page.emulate_media(media="print")
        light = await chat.page.evaluate(colour)
        assert dark != light == "rgb(32, 38, 31)"
