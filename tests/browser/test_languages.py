"""The page in other languages: that of the browser, or one that was chosen; also from right to left."""

import re

import pytest
from playwright.async_api import Locator, Page, expect

from tests.browser.harness import Harness
from tests.browser.test_accessibility import check_with_axe
from turnkeep.api.identity.service_keys import SigninLinks


class TestLanguage:
    async def test_is_that_of_the_browser(self, harness: Harness) -> None:
        page = await speaking(harness, "de-AT", "fr")
        await expect(page.locator("html")).to_have_attribute("lang", "de")
        await expect(page.get_by_role("link", name="Neue Unterhaltung").first).to_be_visible()
        await expect(page.get_by_role("link", name="Einstellungen")).to_be_visible()

    async def test_that_the_page_does_not_speak_is_english(self, harness: Harness) -> None:
        page = await speaking(harness, "nl", "fi")
        await expect(page.locator("html")).to_have_attribute("lang", "en")
        await expect(page.get_by_role("link", name="Settings")).to_be_visible()

    async def test_can_be_chosen_and_stays_chosen(self, harness: Harness) -> None:
        page = await speaking(harness, "en")
        await page.goto(f"{harness.server.url}/settings/account")
        await page.get_by_label("Language").select_option("fr")
        await expect(page.locator("html")).to_have_attribute("lang", "fr")
        await page.goto(harness.server.url)
        await expect(page.get_by_role("link", name="Paramètres")).to_be_visible()
        await page.goto(f"{harness.server.url}/settings/account")
        await page.get_by_label("Langue").select_option("")
        await expect(page.locator("html")).to_have_attribute("lang", "en")

    async def test_whose_texts_cannot_be_loaded_is_english(self, harness: Harness) -> None:
        page = await speaking(harness, "es", without=re.compile(r"/assets/spanish"))
        await expect(page.get_by_role("link", name="Settings")).to_be_visible()
        await expect(page.locator("html")).to_have_attribute("lang", "en")

    async def test_is_asked_for_by_the_address_of_an_embedded_chat(self, harness: Harness) -> None:
        page = await harness.context.new_page()
        await page.goto(f"{harness.server.url}/embed?language=es")
        await expect(page.locator("html")).to_have_attribute("lang", "es")


class TestAConversation:
    @pytest.mark.parametrize("language", ["de", "fr", "es", "zh", "ar"])
    async def test_is_had_in_each_language(self, harness: Harness, language: str) -> None:
        """A question, an answer, a reload, and the settings: axe finds nothing serious anywhere."""
        page = await speaking(harness, language)
        await expect(page.locator("html")).to_have_attribute("dir", "rtl" if language == "ar" else "ltr")
        harness.scripts.say("Well.")
        await page.locator("#message").fill("Hello")
        await page.keyboard.press("Enter")
        await expect(page.locator(".message.is-assistant")).to_contain_text("Well.")
        await page.reload()
        await expect(page.locator(".message.is-assistant")).to_contain_text("Well.")
        await check_with_axe(page)
        await page.goto(f"{harness.server.url}/settings/usage")
        await expect(page.locator(".settings h1")).to_be_visible()
        await check_with_axe(page)

    async def test_stands_on_the_right_in_arabic(self, harness: Harness) -> None:
        page = await speaking(harness, "ar")
        side, main = await left_of(page.locator(".side")), await left_of(page.locator("main"))
        assert side > main, "the list is on the right"
        await page.set_viewport_size({"width": 390, "height": 800})
        await expect(page.locator(".side")).not_to_be_in_viewport()
        await page.locator("main .only-narrow").first.click()
        await expect(page.locator(".side")).to_be_in_viewport(ratio=1)
        box = await page.locator(".side").bounding_box()
        assert box is not None
        assert box["x"] + box["width"] == pytest.approx(390, abs=1)


async def speaking(harness: Harness, *languages: str, without: re.Pattern[str] | None = None) -> Page:
    """The page in a browser that prefers these languages, and perhaps gets no such files."""
    preferred = f"Object.defineProperty(navigator, 'languages', {{ get: () => {list(languages)} }})"
    await harness.context.add_init_script(preferred)
    signin = SigninLinks.of(harness.server.runtime.settings).make()
    await harness.context.request.get(f"{harness.server.url}/signin?token={signin}", max_redirects=0)
    page = await harness.context.new_page()
    if without is not None:
        await page.route(without, lambda route: route.abort())
    await page.goto(harness.server.url)
    return page


async def left_of(place: Locator) -> float:
    await expect(place).to_be_visible()
    box = await place.bounding_box()
    assert box is not None
    return box["x"]
