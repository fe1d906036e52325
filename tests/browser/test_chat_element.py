"""`<turnkeep-chat>` of `embed.js` on a page of another origin, whose policy is strict, in a real browser."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web
from playwright.async_api import FilePayload, Locator, Page, expect

from tests.api.harness import settings_for
from tests.browser.harness import Harness
from tests.browser.host_page import example
from tests.browser.test_accessibility import check_with_axe
from tests.browser.test_waits import make_agent
from tests.ports import free_ports
from turnkeep.config import Settings
from turnkeep.providers.ports import ProviderFailed
from turnkeep.providers.scripted import Call, Fail, Pause, Think, Until

DOCUMENT = """<!doctype html><html lang="en"><title>A product</title>
<link rel="icon" href="data:,"><link rel="stylesheet" href="host.css">
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


def questions(page: Page) -> Locator:
    return page.get_by_role("article", name="You")


async def settled(page: Page, count: int) -> None:
    """So many answers are there, and none is being written."""
    await expect(page.get_by_role("button", name="Answer again")).to_have_count(count)
    await expect(page.locator("[aria-busy=true]")).to_have_count(0)


def text_file(name: str) -> FilePayload:
    return {"name": name, "mimeType": "text/plain", "buffer": name.encode()}


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


class TestAnEdit:
    async def test_makes_another_version_and_both_can_be_shown(self, harness: Harness, host: Host) -> None:
        for text in ("About cats.", "More about cats.", "About dogs."):
            harness.scripts.say(text)
        page = await host.open()
        await send(page, "Cats?")
        await settled(page, 1)
        await send(page, "More?")
        await settled(page, 2)
        await page.get_by_role("button", name="Edit the message").first.click()
        editor = page.get_by_label("Your message")
        await expect(editor).to_be_focused()
        await expect(editor).to_have_value("Cats?")
        await editor.fill("Dogs?")
        await page.get_by_role("button", name="Send the edit").click()
        await expect(answers(page)).to_contain_text(["About dogs."])
        await settled(page, 1)
        await expect(page.get_by_label("Write a message")).to_be_focused()
        await expect(questions(page)).to_have_text(["Dogs?"])
        await page.get_by_role("button", name="Previous version").click()
        await expect(questions(page)).to_have_text(["Cats?", "More?"])
        await page.reload()
        await expect(questions(page)).to_have_text(["Cats?", "More?"])
        await page.get_by_role("button", name="Next version").click()
        await expect(questions(page)).to_have_text(["Dogs?"])
        await page.get_by_role("button", name="Previous version").click()
        await expect(questions(page)).to_have_text(["Cats?", "More?"])

    async def test_is_made_with_the_keyboard_alone(self, harness: Harness, host: Host) -> None:
        harness.scripts.say("One.")
        harness.scripts.say("Two.")
        page = await host.open()
        await send(page, "First")
        await settled(page, 1)
        box = page.get_by_label("Write a message")
        await box.press("ArrowUp")
        editor = page.get_by_label("Your message")
        await expect(editor).to_be_focused()
        await editor.press("Escape")
        await expect(page.get_by_role("button", name="Edit the message")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(editor).to_be_focused()
        await editor.press("End")
        await page.keyboard.type(", again")
        await page.keyboard.press("Enter")
        await expect(answers(page)).to_contain_text(["Two."])
        await settled(page, 1)
        await expect(questions(page)).to_have_text(["First, again"])
        await expect(page.get_by_label("Version 2 of 2")).to_be_visible()
        await page.get_by_role("button", name="Previous version").focus()
        await page.keyboard.press("Enter")
        await expect(questions(page)).to_have_text(["First"])
        # There is no version before this one, so the focus is at the button that leads back.
        await expect(page.get_by_role("button", name="Next version")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(questions(page)).to_have_text(["First, again"])
        await expect(page.get_by_role("button", name="Previous version")).to_be_focused()

    async def test_keeps_removes_and_adds_files(self, harness: Harness, host: Host) -> None:
        page = await host.open()
        await page.locator("input[type=file]").set_input_files([text_file("keep.txt"), text_file("drop.txt")])
        await send(page, "Read these.")
        await settled(page, 1)
        await page.get_by_role("button", name="Edit the message").click()
        editor = page.locator(".tk-editor")
        await editor.get_by_role("button", name="Remove drop.txt").click()
        await editor.locator("input[type=file]").set_input_files([text_file("new.txt")])
        await editor.get_by_label("Your message").press("Enter")
        await expect(page.get_by_label("Version 2 of 2")).to_be_visible()
        for _ in range(2):
            await expect(questions(page).locator(".tk-file")).to_have_text(["keep.txt", "new.txt"])
            await page.reload()

    async def test_interrupts_the_answer_that_is_written(self, harness: Harness, host: Host) -> None:
        harness.scripts.say("About cats ", Pause(60), "and more.")
        harness.scripts.say("About dogs.")
        page = await host.open()
        await send(page, "Cats?")
        await expect(answers(page)).to_contain_text("About cats")
        await page.get_by_role("button", name="Edit the message").click()
        await page.get_by_label("Your message").fill("Dogs?")
        await page.get_by_role("button", name="Interrupt").click()
        await expect(answers(page)).to_contain_text(["About dogs."])
        await settled(page, 1)
        await expect(questions(page)).to_have_text(["Dogs?"])

    async def test_that_is_refused_stays_open_and_says_why(self, harness: Harness, host: Host) -> None:
        page = await host.open()
        await send(page, "Cats?")
        await settled(page, 1)
        await page.get_by_role("button", name="Edit the message").click()
        refusal = {"code": "quota_exceeded", "detail": "No more messages this month."}
        headers = {"access-control-allow-origin": "*", "access-control-allow-headers": "*"}
        await page.route("**/edit", lambda route: route.fulfill(status=429, json=refusal, headers=headers))
        await page.get_by_label("Your message").fill("Dogs?")
        await page.get_by_label("Your message").press("Enter")
        await expect(page.get_by_role("alert")).to_have_text("No more messages this month.")
        await expect(page.get_by_label("Your message")).to_have_value("Dogs?")
        await page.unroute("**/edit")
        await page.get_by_label("Your message").press("Enter")
        await expect(questions(page)).to_have_text(["Dogs?"])
        await expect(page.get_by_role("alert")).to_have_count(0)
        harness.console_errors.clear()


class TestAnswerAgain:
    async def test_makes_another_version_of_the_answer(self, harness: Harness, host: Host) -> None:
        harness.scripts.say("The first answer.")
        harness.scripts.say("The second answer.")
        page = await host.open()
        await send(page, "Tell me")
        await settled(page, 1)
        await expect(page.get_by_role("button", name="Previous version")).to_have_count(0)
        await page.get_by_role("button", name="Answer again").click()
        await expect(answers(page)).to_contain_text(["The second answer."])
        await settled(page, 1)
        await expect(page.get_by_label("Write a message")).to_be_focused()
        await expect(page.get_by_label("Version 2 of 2")).to_be_visible()
        await page.get_by_role("button", name="Previous version").click()
        await expect(answers(page)).to_contain_text(["The first answer."])

    async def test_is_offered_where_an_answer_failed(self, harness: Harness, host: Host) -> None:
        harness.scripts.say(Fail(ProviderFailed("Out of order.")))
        harness.scripts.say("Now it works.")
        page = await host.open()
        await send(page, "Try")
        await expect(page.get_by_text("Out of order.")).to_be_visible()
        await page.get_by_role("button", name="Answer again").click()
        await expect(answers(page)).to_contain_text(["Now it works."])
        await settled(page, 1)
        await expect(questions(page)).to_have_text(["Try"])

    async def test_waits_while_another_answer_is_written(self, harness: Harness, host: Host) -> None:
        go_on = asyncio.Event()
        harness.scripts.say("The first answer.")
        harness.scripts.say("The second ", Until(go_on.wait), "answer.")
        harness.scripts.say("The first answer, again.")
        page = await host.open()
        await send(page, "One")
        await settled(page, 1)
        await send(page, "Two")
        await expect(answers(page).last).to_contain_text("The second")
        await page.get_by_role("button", name="Answer again").click()
        await expect(page.get_by_text("Is answered again after the answer before it.")).to_be_visible()
        go_on.set()
        await expect(answers(page)).to_contain_text(["The first answer, again."])
        await settled(page, 1)
        await expect(questions(page)).to_have_text(["One"])


class TestWordsWhileAnAnswerIsWritten:
    async def writing(self, harness: Harness, host: Host) -> Page:
        """An answer whose tool runs until `lookup_allowed` is set."""
        harness.scripts.say("Let me look.", Call("lookup", {"place": "Bern"}))
        page = await host.open()
        await send(page, "How is the weather?")
        await expect(page.locator(".tk-step.is-running")).to_be_visible()
        return page

    @pytest.mark.parametrize("way", ["button", "keyboard"])
    async def test_steer_it_and_stand_at_their_place(self, harness: Harness, host: Host, way: str) -> None:
        page = await self.writing(harness, host)
        harness.scripts.say("Il pleut.")
        box = page.get_by_label("Write a message")
        await box.fill("In French, please.")
        if way == "button":
            await page.get_by_role("button", name="Steer").click()
        else:
            await box.press("Alt+Enter")
        await expect(page.get_by_text("Is read before the next step of this answer.")).to_be_visible()
        await expect(box).to_have_value("")
        await expect(box).to_be_focused()
        harness.lookup_allowed.set()
        await expect(answers(page)).to_contain_text(["Il pleut."])
        await settled(page, 1)
        steered = answers(page).get_by_role("group", name="You, while the answer was written")
        order = "article => [...article.children].map((each) => each.className.split(' ')[0])"
        await expect(steered).to_have_text("In French, please.")
        before = await answers(page).evaluate(order)
        assert before.index("tk-step") < before.index("tk-steered") < len(before) - 1
        await expect(questions(page)).to_have_text(["How is the weather?"])
        await page.reload()
        await expect(steered).to_have_text("In French, please.")
        assert await answers(page).evaluate(order) == before
        assert "In French, please." in repr(harness.scripts.requests[-1].all_messages)

    async def test_are_the_next_message_if_the_answer_ends_before(self, harness: Harness, host: Host) -> None:
        go_on = asyncio.Event()
        harness.scripts.say("All that ", Until(go_on.wait), "there is.")
        harness.scripts.say("En français.")
        page = await host.open()
        await send(page, "Tell me.")
        await expect(answers(page)).to_contain_text("All that")
        await page.get_by_label("Write a message").fill("In French, please.")
        await page.get_by_label("Write a message").press("Alt+Enter")
        await expect(page.get_by_text("Is read before the next step of this answer.")).to_be_visible()
        go_on.set()
        await expect(answers(page)).to_contain_text(["All that there is.", "En français."])
        await settled(page, 2)
        await expect(questions(page)).to_have_text(["Tell me.", "In French, please."])

    async def test_that_wait_can_be_taken_back(self, harness: Harness, host: Host) -> None:
        page = await self.writing(harness, host)
        harness.scripts.say("It rains.")
        await send(page, "Thank you.")
        await expect(page.get_by_text("Waits for the answer before it.")).to_be_visible()
        await page.get_by_role("button", name="Do not send").click()
        await expect(page.get_by_label("Write a message")).to_have_value("Thank you.")
        await expect(questions(page)).to_have_text(["How is the weather?"])
        harness.lookup_allowed.set()
        await settled(page, 1)

    async def test_cannot_steer_with_files(self, harness: Harness, host: Host) -> None:
        page = await self.writing(harness, host)
        await page.get_by_label("Write a message").fill("Look at this.")
        await expect(page.get_by_role("button", name="Steer")).to_be_visible()
        await page.locator(".tk-composer input[type=file]").set_input_files([text_file("list.txt")])
        await expect(page.get_by_role("button", name="Steer")).to_have_count(0)


class TestAReader:
    """Somebody who does not see the page, or not well."""

    @pytest.mark.parametrize("theme, accent", [("light", "#0f766e"), ("dark", "#5eead4")])
    async def test_finds_no_barrier(self, harness: Harness, host: Host, theme: str, accent: str) -> None:
        harness.lookup_allowed.set()
        harness.scripts.say(Think("Hm."), "Let me look.", Call("lookup", {"place": "Bern"}))
        harness.scripts.say("It rains.")
        harness.scripts.say("It snows ", Pause(60))
        page = await host.open(f"?theme={theme}")
        # The colour of the chat itself, not that of the page.
        await page.evaluate(
            "color => document.querySelector('turnkeep-chat').style.setProperty('--tk-accent', color)", accent
        )
        await send(page, "Weather?")
        await settled(page, 1)
        await page.get_by_role("button", name="Answer again").click()
        await expect(answers(page)).to_contain_text("It snows")
        await page.get_by_role("button", name="Stop").click()
        await expect(page.get_by_text("Stopped.")).to_be_visible()
        await expect(page.get_by_label("Version 2 of 2")).to_be_visible()
        await check_with_axe(page)
        await page.get_by_role("button", name="Edit the message").click()
        await page.get_by_label("Write a message").fill("More")
        await check_with_axe(page)

    async def test_reads_the_words_of_the_application(self, harness: Harness, host: Host) -> None:
        page = await host.open()
        words = "{ edit: 'Bearbeiten', regenerate: 'Neue Antwort', version: (at, of) => `${at} von ${of}` }"
        await page.locator("turnkeep-chat").evaluate(f"element => {{ element.words = {words}; }}")
        await send(page, "Hallo")
        await expect(page.get_by_role("button", name="Bearbeiten")).to_be_visible()
        await page.get_by_role("button", name="Neue Antwort").click()
        await expect(page.get_by_label("2 von 2")).to_be_visible()


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
