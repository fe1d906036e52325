"""Nothing that a model, a tool, a title or a file name says is ever run, or asks anybody else for anything."""

import re

from playwright.async_api import Page, expect
from tests.browser.harness import House, Talk
from tests.browser.test_attachments import choose
from tests.browser.xss_payloads import ELSEWHERE, PAYLOADS

from turnkeep.providers.scripted import Call, Think

WATCH = """() => {
  window.__asked = [];
  addEventListener("securitypolicyviolation", ({ violatedDirective, blockedURI }) =>
    window.__asked.push(violatedDirective + " " + blockedURI));
}"""


async def poke(page: Page) -> None:
    """Touch whatever the payloads have left: hover, focus and click it, except real links to elsewhere."""
    await page.evaluate(
        """() => {
          for (const each of document.querySelectorAll('main *')) {
            each.dispatchEvent(new MouseEvent('mouseover', { bubbles: true }));
            if (each instanceof HTMLDetailsElement) each.open = true;
            const isLink = each instanceof HTMLAnchorElement && /^(https?:|mailto:)/.test(each.getAttribute('href'));
            if (each instanceof HTMLAnchorElement && !isLink && !each.download) each.click();
          }
        }"""
    )


async def unharmed(house: House, page: Page) -> None:
    """Nothing ran, nothing was asked elsewhere, nothing even had to be stopped by the policy."""
    assert await page.evaluate("window.__ran ?? 0") == 0
    assert await page.evaluate("window.__asked ?? []") == []
    assert (
        await page.locator("main :is(script, iframe, object, embed, base, meta, link, style, form[action])").count()
        == 0
    )
    handlers = await page.evaluate(
        """() => [...document.querySelectorAll('*')].flatMap((each) => [...each.attributes])
             .filter((one) => one.name.startsWith('on') || /^\\s*(javascript|vbscript|data):/i.test(one.value))
             .map((one) => one.name + '=' + one.value)"""
    )
    assert handlers == []
    assert house.strangers == []


class TestWhatAModelSays:
    def test_there_are_enough_payloads(self) -> None:
        assert len(set(PAYLOADS)) >= 100

    async def test_in_answers_and_thoughts_and_step_results(self, house: House) -> None:
        house.gate.set()
        await house.context.add_init_script(f"({WATCH})()")
        talk = await Talk.begin(house)
        chunks = [PAYLOADS[at : at + 20] for at in range(0, len(PAYLOADS), 20)]
        await talk.page.set_viewport_size({"width": 1280, "height": 20_000})  # so that all of it is drawn
        for number, chunk in enumerate(chunks, start=1):
            text = "\n\n".join(chunk)
            house.scripts.say(Think(text), text, Call("lookup", {"place": text}))
            house.scripts.say(*[f"{payload}\n\n" for payload in chunk])
            await talk.say("Go on")
            await talk.settled(number)
            await poke(talk.page)
            await unharmed(house, talk.page)
        await talk.page.reload()
        await talk.settled(len(chunks))
        await poke(talk.page)
        await unharmed(house, talk.page)
        links = await talk.page.locator("main a").evaluate_all("all => all.map(each => each.href)")
        assert all(re.match(r"(https?:|mailto:)", link) for link in links)
        assert any(link.startswith(ELSEWHERE) for link in links), "real links stay links"

    async def test_in_titles_messages_and_search_hits(self, house: House) -> None:
        await house.context.add_init_script(f"({WATCH})()")
        client = await house.api()
        for payload in PAYLOADS[::4]:
            title = payload.replace("\x00", "")[:200]
            response = await client.post("/v1/conversations", json={"title": title})
            assert response.status_code == 201, response.text
        house.scripts.say("findme " + PAYLOADS[3])
        await client.ask("findme " + PAYLOADS[0])
        talk = await Talk.begin(house)
        await expect(talk.page.locator(".entry").nth(20)).to_be_attached()
        await poke(talk.page)
        await talk.page.get_by_role("searchbox").fill("findme")
        await expect(talk.page.locator(".entry mark").first).to_be_visible()
        await talk.page.locator(".entry a").first.click()
        await expect(talk.questions.locator(".bubble")).to_have_text("findme " + PAYLOADS[0])
        await talk.page.locator(".entry").first.hover()
        await unharmed(house, talk.page)

    async def test_in_names_of_files(self, house: House) -> None:
        await house.context.add_init_script(f"({WATCH})()")
        talk = await Talk.begin(house)
        names = [re.sub(r"[/\\\x00-\x1f]", "_", payload)[:120] + ".txt" for payload in PAYLOADS[:60:6]]
        for name in names:
            await choose(talk.page, name, "text/plain", b"words")
        await expect(talk.page.locator("[data-state=done]")).to_have_count(len(names))
        await unharmed(house, talk.page)
        await talk.say("Look")
        await talk.settled()
        await poke(talk.page)
        await unharmed(house, talk.page)
