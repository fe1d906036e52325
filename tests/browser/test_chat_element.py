"""`<turnkeep-chat>` of `embed.js` on a page of another origin, whose policy is strict, in a real browser."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web
from playwright.async_api import Locator, Page, expect

from tests.api.harness import settings_for
from tests.browser.harness import Harness
from tests.browser.host_page import example
from tests.browser.test_waits import make_agent
from tests.ports import free_ports
from turnkeep.config import Settings
from turnkeep.providers.scripted import Call, Pause

DOCUMENT = """<!doctype html><html lang="en"><link rel="icon" href="data:,"><link rel="stylesheet" href="host.css">
<script src="embed.js"></script><script src="host.js" defer></script>
<turnkeep-chat base-url="{server}" theme="{theme}" agent="{agent}"></turnkeep-chat></html>"""
STYLE = "turnkeep-chat { height: 600px; --tk-accent: rgb(200, 0, 100); } button { font-size: 99px; }"
SCRIPT = """document.querySelector("turnkeep-chat").token = async () => (await fetch("/token")).text();"""


class Host:
    """An application with a page of its own, which gives tokens to its user."""

    def __init__(self, harness: Harness, built_page: Path, port: int) -> None:
        self.harness, self.port = harness, port
        self.tokens: list[str] = []
        """Tokens to give before a good one."""
        self.given = 0
        self.user = "ann"
        """Who is signed in to the application."""
        self.agent = ""
        self._embed = (built_page / "embed.js").read_text("utf-8")

    async def document(self, request: web.Request) -> web.Response:
        server = self.harness.server.url
        policy = f"default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self' {server}"
        text = DOCUMENT.format(server=server, theme=request.query.get("theme", "auto"), agent=self.agent)
        return web.Response(text=text, content_type="text/html", headers={"content-security-policy": policy})

    async def manual(self, request: web.Request) -> web.Response:
        """The page of the manual, whose script comes from the server."""
        server = self.harness.server.url
        text = example("In your page").replace("https://chat.example.com", server).replace("agent_0123", self.agent)
        policy = f"default-src 'none'; script-src 'unsafe-inline' {server}; img-src data:; connect-src 'self' {server}"
        text = f'<!doctype html><html lang="en"><link rel="icon" href="data:,">{text}</html>'
        return web.Response(text=text, content_type="text/html", headers={"content-security-policy": policy})

    async def file(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        text = {"embed.js": self._embed, "host.js": SCRIPT, "host.css": STYLE}[name]
        kind = "text/css" if name.endswith("css") else "text/javascript"
        return web.Response(text=text, content_type=kind)

    async def token(self, request: web.Request) -> web.Response:
        self.given += 1
        token = self.tokens.pop(0) if self.tokens else await self._new_token()
        return web.Response(text=token) if request.method == "GET" else web.json_response({"token": token})

    async def _new_token(self) -> str:
        operator = await self.harness.server.operator()
        made = (await operator.post("/v1/tokens", json={"user": self.user})).json()
        return str(made["token"])

    async def start(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/", self.document)
        app.router.add_get("/manual", self.manual)
        app.router.add_get("/token", self.token)
        app.router.add_post("/chat-token", self.token)
        app.router.add_get("/{name}", self.file)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        return runner

    async def open(self, path: str = "") -> Page:
        self.harness.known_servers.append(f"http://127.0.0.1:{self.port}")
        page = await self.harness.context.new_page()
        await page.goto(f"http://127.0.0.1:{self.port}/{path}")
        return page


@pytest.fixture
def ports() -> list[int]:
    return free_ports(2)


@pytest.fixture
def settings(tmp_path: Path, ports: list[int]) -> Settings:
    return settings_for(tmp_path, allowed_origins=(f"http://127.0.0.1:{ports[0]}",))


@pytest_asyncio.fixture(loop_scope="session")
async def host(harness: Harness, built_page: Path, ports: list[int]) -> AsyncIterator[Host]:
    host = Host(harness, built_page, ports[0])
    runner = await host.start()
    yield host
    await runner.cleanup()


async def send(page: Page, text: str) -> None:
    box = page.get_by_label("Write a message")
    await box.fill(text)
    await box.press("Enter")


def answers(page: Page) -> Locator:
    return page.get_by_role("article", name="Assistant")


class TestTheElement:
    async def test_shows_an_answer_as_it_comes(self, harness: Harness, host: Host) -> None:
        harness.scripts.say("Let me **look**. ", Call("lookup", {"place": "Bern"}))
        harness.scripts.say("It snows ", Pause(0.5), "in Bern.")
        page = await host.open()
        await send(page, "How is the weather?")
        await expect(answers(page).locator("strong")).to_have_text("look")
        harness.lookup_allowed.set()
        await expect(answers(page)).to_contain_text("It snows in Bern.")
        await expect(answers(page).locator(".tk-step")).to_contain_text("lookup")
        await expect(page.locator("[aria-busy=true]")).to_have_count(0)
        await expect(answers(page)).to_have_count(1)

    async def test_shows_the_conversation_again_after_a_reload(self, harness: Harness, host: Host) -> None:
        harness.scripts.say("First.")
        page = await host.open()
        await send(page, "One")
        await expect(answers(page)).to_contain_text("First.")
        harness.scripts.say("Second ", Pause(2), "part.")
        await send(page, "Two")
        await expect(answers(page).last).to_contain_text("Second")
        await page.reload()
        await expect(answers(page).last).to_contain_text("Second part.")
        await expect(answers(page)).to_have_count(2)
        await expect(page.get_by_role("article", name="You")).to_have_text(["One", "Two"])

    async def test_has_the_theme_and_the_variables_of_the_page_but_not_its_styles(
        self, harness: Harness, host: Host
    ) -> None:
        page = await host.open("?theme=dark")
        button = page.get_by_role("button", name="Send")
        style = "element => [getComputedStyle(element).backgroundColor, getComputedStyle(element).fontSize]"
        assert await button.evaluate(style) == ["rgb(200, 0, 100)", "16px"]
        section = page.locator(".tk-chat")
        assert (await section.evaluate(style))[0] == "rgb(13, 17, 23)"
        await page.locator("turnkeep-chat").evaluate("element => element.setAttribute('theme', 'light')")
        await expect(section).to_have_attribute("data-theme", "light")
        assert (await section.evaluate(style))[0] == "rgb(255, 255, 255)"

    async def test_uploads_files(self, harness: Harness, host: Host) -> None:
        harness.scripts.say("Read.")
        page = await host.open()
        await page.locator("input[type=file]").set_input_files(
            {"name": "list.txt", "mimeType": "text/plain", "buffer": b"buy milk"}
        )
        await send(page, "Read it.")
        await expect(answers(page)).to_contain_text("Read.")
        question = page.get_by_role("article", name="You")
        await expect(question.get_by_role("button", name="list.txt")).to_be_visible()
        async with page.expect_download() as download:
            await question.get_by_role("button", name="list.txt").click()
        assert (await (await download.value).path()).read_bytes() == b"buy milk"

    async def test_asks_for_a_token_again_when_it_is_too_old(self, harness: Harness, host: Host) -> None:
        host.tokens = ["too old"]
        harness.scripts.say("Hello.")
        page = await host.open()
        await send(page, "Hi")
        await expect(answers(page)).to_contain_text("Hello.")
        assert host.given == 2

    async def test_stops_an_answer(self, harness: Harness, host: Host) -> None:
        harness.scripts.say("One ", Pause(60), "two.")
        page = await host.open()
        await send(page, "Count")
        await expect(answers(page)).to_contain_text("One")
        await page.get_by_role("button", name="Stop").click()
        await expect(page.get_by_text("Stopped.")).to_be_visible()


class TestTheScriptOfTheServer:
    async def test_is_all_that_a_page_of_another_origin_needs(self, harness: Harness, host: Host) -> None:
        host.agent = await make_agent(harness)
        harness.scripts.say("Hello ", Pause(0.5), "there.")
        page = await host.open("manual")
        await send(page, "Hi")
        await expect(answers(page)).to_contain_text("Hello there.")
        await page.reload()
        await expect(answers(page)).to_contain_text("Hello there.")
        await expect(answers(page)).to_have_count(1)
        operator = await harness.server.operator()
        [conversation] = (await operator.read("/v1/conversations?user=ann"))["data"]
        assert conversation["agent_id"] == host.agent


class TestAnApproval:
    @pytest.mark.parametrize(
        "button, result", [("Allow", "paid 5"), ("Deny", "Denied by ann")], ids=["allowed", "denied"]
    )
    async def test_is_given_or_denied_on_a_card(self, harness: Harness, host: Host, button: str, result: str) -> None:
        host.agent = await make_agent(harness)
        harness.scripts.say("I pay. ", Call("pay", {"amount": 5}))
        harness.scripts.say("That is all.")
        page = await host.open()
        await send(page, "Pay five.")
        card = page.get_by_role("region", name="May this be done?")
        await expect(card).to_contain_text("pay")
        await expect(card.locator("pre")).to_contain_text('"amount": 5')
        await card.get_by_role("button", name=button).click()
        await expect(answers(page)).to_contain_text("That is all.")
        await expect(card).to_have_count(0)
        operator = await harness.server.operator()
        [conversation] = (await operator.read("/v1/conversations?user=ann"))["data"]
        shown = (await operator.read(f"/v1/conversations/{conversation['id']}/messages"))["data"]
        [step] = [part for each in shown for part in each["content"] if part["type"] == "step"]
        assert result in str(step.get("result", step.get("error")))


class TestAConversationThatIsGone:
    """The tab remembers its conversation. It must not be stuck with one that it cannot have."""

    async def test_is_replaced_when_another_user_comes(self, harness: Harness, host: Host) -> None:
        harness.scripts.say("Hello Ann.")
        page = await host.open()
        await send(page, "I am Ann.")
        await expect(answers(page)).to_contain_text("Hello Ann.")
        host.user = "bob"
        await page.reload()
        harness.scripts.say("Hello Bob.")
        await send(page, "I am Bob.")
        await expect(answers(page)).to_contain_text("Hello Bob.")
        await page.reload()
        await expect(answers(page)).to_contain_text("Hello Bob.")
        await expect(page.get_by_role("article", name="You")).to_have_text(["I am Bob."])

    @pytest.mark.parametrize("is_reloaded", [True, False])
    async def test_is_replaced_when_it_was_deleted(self, harness: Harness, host: Host, *, is_reloaded: bool) -> None:
        harness.scripts.say("First.")
        page = await host.open()
        await send(page, "One")
        await expect(answers(page)).to_contain_text("First.")
        await expect(page.locator("[aria-busy=true]")).to_have_count(0)
        operator = await harness.server.operator()
        ann = await harness.server.client(operator.key, turnkeep_user="ann")
        [conversation] = (await ann.read("/v1/conversations"))["data"]
        assert (await ann.delete(f"/v1/conversations/{conversation['id']}")).is_success
        if is_reloaded:
            await page.reload()
        harness.scripts.say("Second.")
        await send(page, "Two")
        await expect(answers(page)).to_have_text(["Second."])
        await expect(page.get_by_role("article", name="You")).to_have_text(["Two"])
        [another] = (await ann.read("/v1/conversations"))["data"]
        assert another["id"] != conversation["id"]


async def test_a_page_that_is_not_allowed_is_refused(harness: Harness, built_page: Path, ports: list[int]) -> None:
    host = Host(harness, built_page, ports[1])
    runner = await host.start()
    try:
        page = await host.open()
        await send(page, "Hello")
        await expect(page.get_by_role("alert")).to_contain_text("The server cannot be reached.")
        # The browser says why on its console.
        assert any("CORS" in line for line in harness.console_errors)
        harness.console_errors.clear()
    finally:
        await runner.cleanup()
