"""No text of a model, a tool, a title or a file name runs as a script or causes a request to another server."""

import re

from playwright.async_api import Frame, Page, expect

from tests.browser.harness import ChatPage, Harness
from tests.browser.test_attachments import attach_file
from tests.browser.xss_payloads import ELSEWHERE, PAYLOADS
from turnkeep.providers.scripted import Call, Think

WATCH = """() => {
  window.__asked = [];
  addEventListener("securitypolicyviolation", ({ violatedDirective, blockedURI }) =>
    window.__asked.push(violatedDirective + " " + blockedURI));
}"""


async def touch_everything(page: Page | Frame) -> None:
    """Hover and click every element, except real links to other servers, and the page's own link that leaves the
    conversation."""
    await page.evaluate(
        """() => {
          for (const each of document.querySelectorAll('main *')) {
            each.dispatchEvent(new MouseEvent('mouseover', { bubbles: true }));
            if (each instanceof HTMLDetailsElement) each.open = true;
            const isLink = each instanceof HTMLAnchorElement && /^(https?:|mailto:)/.test(each.getAttribute('href'));
            const isOwn = each.matches('.head-new');
            if (each instanceof HTMLAnchorElement && !isLink && !isOwn && !each.download) each.click();
          }
        }"""
    )


async def check_unharmed(harness: Harness, page: Page | Frame) -> None:
    """No script ran, no request left, and the content security policy had nothing to block."""
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
    assert harness.foreign_requests == []


class TestPayloads:
    def test_are_at_least_a_hundred(self) -> None:
        assert len(set(PAYLOADS)) >= 100

    async def test_do_nothing_in_answers_thoughts_and_step_results(self, harness: Harness) -> None:
        harness.lookup_allowed.set()
        await harness.context.add_init_script(f"({WATCH})()")
        chat = await ChatPage.open(harness)
        chunks = [PAYLOADS[at : at + 20] for at in range(0, len(PAYLOADS), 20)]
        await chat.page.set_viewport_size({"width": 1280, "height": 20_000})  # so that all of it is drawn
        for number, chunk in enumerate(chunks, start=1):
            text = "\n\n".join(chunk)
            harness.scripts.say(Think(text), text, Call("lookup", {"place": text}))
            harness.scripts.say(*[f"{payload}\n\n" for payload in chunk])
            await chat.send("Go on")
            await chat.wait_settled(number)
            await touch_everything(chat.page)
            await check_unharmed(harness, chat.page)
        await chat.page.reload()
        await chat.wait_settled(len(chunks))
        await touch_everything(chat.page)
        await check_unharmed(harness, chat.page)
        links = await chat.page.locator("main a").evaluate_all("all => all.map(each => each.href)")
        assert all(re.match(r"(https?:|mailto:)", link) for link in links)
        assert any(link.startswith(ELSEWHERE) for link in links), "real links stay links"

    async def test_do_nothing_in_titles_messages_and_search_results(self, harness: Harness) -> None:
        await harness.context.add_init_script(f"({WATCH})()")
        client = await harness.api()
        for payload in PAYLOADS[::4]:
            title = payload.replace("\x00", "")[:200]
            response = await client.post("/v1/conversations", json={"title": title})
            assert response.status_code == 201, response.text
        harness.scripts.say("findme " + PAYLOADS[3])
        await client.ask("findme " + PAYLOADS[0])
        chat = await ChatPage.open(harness)
        await expect(chat.page.locator(".entry").nth(20)).to_be_attached()
        await touch_everything(chat.page)
        await chat.page.get_by_role("searchbox").fill("findme")
        await expect(chat.page.locator(".entry mark").first).to_be_visible()
        await chat.page.locator(".entry a").first.click()
        await expect(chat.questions.locator(".bubble")).to_have_text("findme " + PAYLOADS[0])
        await chat.page.locator(".entry").first.hover()
        await check_unharmed(harness, chat.page)

    async def test_do_nothing_in_file_names(self, harness: Harness) -> None:
        await harness.context.add_init_script(f"({WATCH})()")
        chat = await ChatPage.open(harness)
        names = [re.sub(r"[/\\\x00-\x1f]", "_", payload)[:120] + ".txt" for payload in PAYLOADS[:60:6]]
        for name in names:
            await attach_file(chat.page, name, "text/plain", b"words")
        await expect(chat.page.locator("[data-state=done]")).to_have_count(len(names))
        await check_unharmed(harness, chat.page)
        await chat.send("Look")
        await chat.wait_settled()
        await touch_everything(chat.page)
        await check_unharmed(harness, chat.page)
