"""Every screen works with a keyboard, a screen reader, a phone and the dark theme."""

from collections.abc import Awaitable, Callable
from itertools import product

import pytest
from playwright.async_api import Frame, Page, Route, expect

from tests.browser.contrast import AT_REST, ForcedStates
from tests.browser.harness import ROOT, ChatPage, Harness, png
from tests.knowledge.test_file_tools import a_pdf
from turnkeep.providers.ports import ProviderFailed
from turnkeep.providers.scripted import Call, Fail, OutOfTokens, Pause, Think

AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
SERIOUS = """async () => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"], iframes: false });
  return violations.filter(({ impact }) => impact === "serious" || impact === "critical")
    .map(({ id, nodes }) => id + ": " + nodes.map((node) => node.html + " " + node.failureSummary).join("\\n"));
}"""


async def check_with_axe(page: Page | Frame) -> None:
    # Evaluated, because the content security policy refuses a script element.
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(AXE.read_text(encoding="utf-8"))
    assert await page.evaluate(SERIOUS) == []


async def greeting(harness: Harness, chat: ChatPage) -> None:
    await expect(chat.page.get_by_role("heading", name="What shall we work on?")).to_be_visible()


async def answer(harness: Harness, chat: ChatPage) -> None:
    harness.lookup_allowed.set()
    harness.scripts.say(Think("Hm."), "Let me look.", Call("lookup", {"place": "Bern"}), Call("broken", {}))
    harness.scripts.say(
        "# Rain\n\nIt rains [1].\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nprint(1)\n```\n\n$x^2$"
    )
    await chat.send("Weather?")
    await chat.wait_settled()
    await chat.page.locator(".step summary").first.click()
    await expect(chat.page.locator(".katex").first).to_be_attached()


async def previews(harness: Harness, chat: ChatPage) -> None:
    """A diagram, a page that is drawn, a table with its buttons, and an answer that can be continued."""
    drawn = "```mermaid\ngraph TD\n  A --> B\n```\n\n```html\n<h1>Hello</h1>\n```\n\n"
    harness.scripts.say(drawn, "| a | b |\n|---|---|\n| 1 | 2 |\n\nand so", OutOfTokens())
    await chat.send("Draw")
    await chat.wait_settled()
    for button in await chat.page.get_by_role("button", name="Preview").all():
        await button.click()
    await expect(chat.page.locator(".preview iframe[data-state=drawn]")).to_have_count(2)
    await expect(chat.page.get_by_role("button", name="Continue")).to_be_visible()


async def files(harness: Harness, chat: ChatPage) -> None:
    """Chips that say what the model reads, and the list of all files beside them."""
    client = await harness.api()
    conversation_id = (await client.post("/v1/conversations", json={"title": "Files"})).json()["id"]
    ids = []
    for name, data, kind in (("notes.txt", b"x", "text/plain"), ("chart.png", png(), "image/png")):
        form = {"file": (name, data, kind)}
        made = await client.post(f"/v1/conversations/{conversation_id}/files", files=form)
        ids.append(made.json()["data"][0]["id"])
    await client.ask("Look", conversation_id=conversation_id, attachment_ids=ids)
    await chat.page.goto(f"{harness.server.url}/c/{conversation_id}/files")
    await expect(chat.page.locator(".panel .item")).to_have_count(2)
    await check_with_axe(chat.page)
    await chat.page.goto(f"{harness.server.url}/c/{conversation_id}")
    await expect(chat.page.locator(".chip-reading")).to_have_count(2)


async def pdf(harness: Harness, chat: ChatPage) -> None:
    """The pages of a file, in their frame, and the buttons above them."""
    client = await harness.api()
    conversation_id = (await client.post("/v1/conversations", json={})).json()["id"]
    form = {"file": ("tides.pdf", a_pdf("Twice a day.", "And once more."), "application/pdf")}
    made = await client.post(f"/v1/conversations/{conversation_id}/files", files=form)
    await chat.page.goto(f"{harness.server.url}/c/{conversation_id}/files/{made.json()['data'][0]['id']}")
    for scheme in ("dark", "light"):
        await chat.page.emulate_media(color_scheme=scheme)
        await chat.page.reload()
        drawn = chat.page.frame_locator(".is-pdf iframe[data-state=drawn]")
        await expect(drawn.get_by_text("Twice a day.")).to_be_visible()
        [frame] = [frame for frame in chat.page.frames if frame.url.endswith("/preview")]
        await check_with_axe(frame)


async def workspace_files(harness: Harness, chat: ChatPage) -> None:
    client = await harness.api()
    conversation_id = (await client.post("/v1/conversations", json={})).json()["id"]
    form = {"file": ("people.csv", b"name,city\nAnn,Bern\n", "text/csv")}
    made = await client.post(f"/v1/conversations/{conversation_id}/files", files=form)
    saved = (await client.post(f"/v1/files/{made.json()['data'][0]['id']}/save")).json()
    await chat.page.goto(f"{harness.server.url}/settings/files")
    await expect(chat.page.get_by_role("link", name="people.csv", exact=True)).to_be_visible()
    await check_with_axe(chat.page)
    await chat.page.goto(f"{harness.server.url}/settings/files/{saved['id']}")
    await expect(chat.page.get_by_role("columnheader", name="city")).to_be_visible()


async def streaming_answer(harness: Harness, chat: ChatPage) -> None:
    harness.scripts.say(Think("Well"), "Half an answer", Pause(60))
    await chat.send("Slowly")
    await expect(chat.answers.get_by_text("Half an answer")).to_be_visible()
    await chat.send("The next one")
    await expect(chat.page.get_by_text("Queued")).to_be_visible()
    await chat.message_box.fill("And another")


async def failure(harness: Harness, chat: ChatPage) -> None:
    harness.scripts.say("Half ", Fail(ProviderFailed("Out of order.")))
    await chat.send("Try")
    await expect(chat.page.get_by_role("note")).to_be_visible()


async def search(harness: Harness, chat: ChatPage) -> None:
    await chat.send("Something to find")
    await chat.wait_settled()
    await chat.page.get_by_role("searchbox").fill("find")
    await expect(chat.page.locator(".entry mark").first).to_be_visible()
    await chat.page.get_by_role("button", name="Delete “Something to find”").click()
    await expect(chat.page.get_by_role("button", name="Undo")).to_be_visible()


def settings(section: str) -> Callable[[Harness, ChatPage], Awaitable[None]]:
    async def open_section(harness: Harness, chat: ChatPage) -> None:
        client = await harness.api()
        await client.post("/v1/agents", json={"name": "Librarian", "instructions": "You know books."})
        admin = await harness.server.user(client, "boss", role="admin")
        await admin.post("/v1/keys", json={"name": "backend"})
        await chat.page.goto(f"{harness.server.url}/settings/{section}")
        if section == "agents":
            await chat.page.get_by_role("button", name="Edit Librarian").click()
            await chat.page.get_by_role("button", name="Add an HTTP tool").click()
            await chat.page.get_by_role("button", name="Add an MCP server").click()
        await expect(chat.page.locator(".card").first).to_be_visible()

    return open_section


async def pages(harness: Harness, chat: ChatPage) -> None:
    client = await harness.api()
    await client.post("/v1/pages", json={"title": "Harbour", "content": "# Tides\n\nTwice a day."})
    await chat.page.goto(f"{harness.server.url}/settings/pages")
    await expect(chat.page.get_by_text("Harbour")).to_be_visible()
    await check_with_axe(chat.page)
    await chat.page.get_by_role("button", name="Edit Harbour").click()
    await expect(chat.page.locator(".card").first).to_be_visible()


async def tables(harness: Harness, chat: ChatPage) -> None:
    client = await harness.api()
    await client.post("/v1/tables", json={"name": "Boats", "columns": [{"name": "Length", "type": "number"}]})
    await chat.page.goto(f"{harness.server.url}/settings/tables")
    await expect(chat.page.get_by_text("Boats")).to_be_visible()


async def people(harness: Harness, chat: ChatPage) -> None:
    """An open invite, a disabled user, and the sessions of a user."""
    client = await harness.api()
    await client.post("/v1/invites", json={"user": "ann@example.com", "name": "Ann"})
    await harness.server.user(client, "bob")
    await client.patch("/v1/users/bob", json={"is_disabled": True})
    await chat.page.goto(f"{harness.server.url}/settings/people")
    await chat.page.get_by_role("button", name="Sessions of Operator").click()
    await expect(chat.page.get_by_text("this browser")).to_be_visible()


async def webhooks(harness: Harness, chat: ChatPage) -> None:
    """A webhook with a delivery, one that is disabled, and the form for another one."""
    client = await harness.api()
    for events, is_enabled in ((["conversation.created"], True), (["turn.failed"], False)):
        hook = {"url": "https://example.com/hook", "events": events, "is_enabled": is_enabled}
        assert (await client.post("/v1/webhooks", json=hook)).status_code == 201
    await client.post("/v1/conversations", json={})
    await chat.page.goto(f"{harness.server.url}/settings/webhooks")
    await chat.page.get_by_role("button", name="Deliveries to").last.click()
    await expect(chat.page.get_by_role("button", name="Send conversation.created")).to_be_visible()


async def hit(harness: Harness, chat: ChatPage) -> None:
    """A message that a search has found, with its marks, and an error."""
    client = await harness.api()
    harness.scripts.say("Bern is the **capital** of Switzerland.")
    await client.ask("Tell me a fact")
    await chat.page.get_by_role("searchbox").fill("capital")
    await chat.page.locator(".entry a", has=chat.page.locator("mark")).click()
    await expect(chat.page.locator("[data-cited]")).to_be_visible()
    await chat.page.route("**/v1/conversations/*", lambda route: route.abort())
    await chat.page.get_by_label("Model").select_option("scripted")
    await expect(chat.page.get_by_role("region", name="Notices").get_by_role("alert")).to_be_visible()


async def stopped_tool(harness: Harness, chat: ChatPage) -> None:
    harness.scripts.say(Think("- One\n- Two"), "نص عربي", Call("lookup", {"place": "Bern"}))
    await chat.send("Weather?")
    await expect(chat.page.locator(".spinner")).to_be_visible()
    await chat.page.get_by_role("button", name="Stop the answer").click()
    await chat.wait_settled()
    await chat.page.locator(".step summary").click()
    await chat.page.locator(".reasoning summary").click()


async def trash(harness: Harness, chat: ChatPage) -> None:
    """A conversation that was deleted, and the question whether to erase it."""
    client = await harness.api()
    for text in ("First thought", "Second thought"):
        await client.delete(f"/v1/conversations/{(await client.ask(text))['conversation_id']}")
    await chat.page.goto(f"{harness.server.url}/trash")
    await chat.page.get_by_role("button", name="Delete for ever: “First thought”").click()
    await expect(chat.page.get_by_role("button", name="Yes", exact=True)).to_be_visible()


async def folders(harness: Harness, chat: ChatPage) -> None:
    """A pinned conversation, an open folder, and the choice of a folder for a conversation."""
    client = await harness.api()
    for text, changes in (("Pinned thought", {"is_pinned": True}), ("Filed", {"folder": "Travel"}), ("Free", {})):
        await client.patch(f"/v1/conversations/{(await client.ask(text))['conversation_id']}", json=changes)
    await chat.page.reload()
    await chat.conversations.get_by_role("button", name="Travel", exact=True).click()
    await expect(chat.conversations.get_by_text("Filed")).to_be_visible()
    await check_with_axe(chat.page)
    await chat.conversations.get_by_role("link", name="Free").focus()
    await chat.page.keyboard.press("m")
    await expect(chat.page.get_by_role("dialog", name="Move to a folder")).to_be_visible()


async def timeline(harness: Harness, chat: ChatPage) -> None:
    """A timeline with an opened tool that failed, and an opened model call with what it was sent."""
    harness.lookup_allowed.set()
    harness.scripts.say(Think("Hm."), "Let me look.", Call("lookup", {"place": "Bern"}), Call("broken", {}))
    await chat.send("Weather?")
    await chat.wait_settled()
    await chat.page.get_by_role("link", name="What happened").click()
    await chat.page.get_by_role("button", name="Tool broken").click()
    await expect(chat.page.get_by_role("region", name="Error")).to_be_visible()
    await chat.page.get_by_role("button", name="Model call").first.click()
    await chat.page.get_by_text("What the model was sent").click()
    await expect(chat.page.get_by_role("region", name="Messages")).to_be_visible()


async def used(harness: Harness, chat: ChatPage) -> None:
    """The dashboard of usage, with a limit."""
    client = await harness.api()
    await client.ask("One")
    workspace = (await client.read("/v1/workspaces"))["data"][0]
    await client.patch(f"/v1/workspaces/{workspace['id']}", json={"monthly_token_limit": 100})
    await chat.page.goto(f"{harness.server.url}/settings/usage")
    await expect(chat.page.get_by_role("heading", name="Limits")).to_be_visible()
    await chat.page.get_by_text("As a table").click()
    await expect(chat.page.get_by_role("region", name="Turns").get_by_role("link")).to_be_visible()


async def find(harness: Harness, chat: ChatPage) -> None:
    """Words that were found in a conversation, and then the dialog of its instructions."""
    harness.scripts.say("Rain in the morning, rain in the evening.")
    await chat.send("Weather?")
    await chat.wait_settled()
    await chat.page.keyboard.press("Control+f")
    await chat.page.get_by_role("searchbox", name="Find in this conversation").fill("rain")
    await expect(chat.page.get_by_text("2 of 2")).to_be_visible()
    await check_with_axe(chat.page)
    await chat.page.get_by_label("Conversation menu").click()
    await chat.page.get_by_role("button", name="Instructions and temperature").click()
    await expect(chat.page.get_by_role("dialog", name="This conversation")).to_be_visible()


async def unknown(harness: Harness, chat: ChatPage) -> None:
    await chat.page.goto(f"{harness.server.url}/nothing")
    await expect(chat.page.get_by_role("link", name="Start a conversation")).to_be_visible()


SCREENS: dict[str, Callable[[Harness, ChatPage], Awaitable[None]]] = {
    "previews": previews,
    "files": files,
    "pdf": pdf,
    "workspace files": workspace_files,
    "greeting": greeting,
    "answer": answer,
    "writing": streaming_answer,
    "failure": failure,
    "search": search,
    "hit": hit,
    "stopped tool": stopped_tool,
    "unknown address": unknown,
    "trash": trash,
    "folders": folders,
    "timeline": timeline,
    "usage": used,
    "find": find,
    "agents": settings("agents"),
    "keys": settings("keys"),
    "pages": pages,
    "tables": tables,
    "people": people,
    "webhooks": webhooks,
    "account": settings("account"),
}


class TestAccessibility:
    @pytest.mark.parametrize("screen", SCREENS)
    async def test_axe_finds_nothing_serious_in_light_or_dark(self, harness: Harness, screen: str) -> None:
        chat = await ChatPage.open(harness)
        await SCREENS[screen](harness, chat)
        async with ForcedStates.on(chat.page) as states:
            for state, scheme in product((AT_REST, "under the pointer"), ("light", "dark")):
                await states.force(state)
                await chat.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
                await chat.page.wait_for_timeout(200)
                await check_with_axe(chat.page)

    async def test_axe_finds_nothing_serious_on_the_sign_in_page(self, harness: Harness) -> None:
        page = await harness.context.new_page()
        await page.goto(harness.server.url)
        await expect(page.get_by_label("Or paste the link here")).to_be_visible()
        await check_with_axe(page)

    async def test_axe_finds_nothing_serious_where_a_session_has_ended(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness)
        operator = await harness.server.operator()
        await operator.delete("/v1/users/local/sessions")
        await expect(chat.page.get_by_role("dialog", name="Your session has ended")).to_be_visible()
        await check_with_axe(chat.page)

    async def test_axe_finds_nothing_serious_on_an_invite(self, harness: Harness) -> None:
        client = await harness.api()
        page = await harness.context.new_page()
        await page.goto((await client.post("/v1/invites", json={"user": "ann"})).json()["url"])
        await expect(page.get_by_role("button", name="Accept and sign in")).to_be_visible()
        await check_with_axe(page)

    async def test_everything_can_be_done_with_the_keyboard(self, harness: Harness) -> None:
        harness.scripts.say("First answer.")
        chat = await ChatPage.open(harness)
        page = chat.page
        await expect(chat.message_box).to_be_focused()
        await page.keyboard.type("Hello")
        await page.keyboard.press("Enter")
        await chat.wait_settled()
        await expect(page.get_by_role("status").filter(has_text="The answer is complete.")).to_be_attached()
        harness.scripts.say("Second answer.")
        await self.reach(page, "Answer again")
        await page.keyboard.press("Enter")
        await expect(chat.answers.get_by_text("Second answer.")).to_be_visible()
        await chat.wait_settled()
        await self.reach(page, "Rename “Hello”")
        await page.keyboard.press("Enter")
        await page.keyboard.type("Greetings")
        await page.keyboard.press("Enter")
        await expect(chat.conversations.locator(".entry-title")).to_have_text("Greetings")
        await self.reach(page, "Delete “Greetings”")
        await page.keyboard.press("Enter")
        await self.reach(page, "Undo")
        await page.keyboard.press("Enter")
        await expect(chat.conversations.locator(".entry-title")).to_have_text("Greetings")
        await page.keyboard.press("Control+Shift+o")
        await expect(chat.message_box).to_be_focused()

    async def reach(self, page: Page, name: str) -> None:
        """Press Tab until the control of that name has the focus."""
        for _ in range(60):
            await page.keyboard.press("Tab")
            focused = "document.activeElement?.getAttribute('aria-label') ?? document.activeElement?.textContent"
            if await page.evaluate(focused) == name:
                return
        raise AssertionError(f"Tab does not reach {name!r}")


class TestSkipLink:
    async def test_leads_to_the_message_box_or_else_to_the_content(self, harness: Harness) -> None:
        page = await harness.open_page("/settings/usage")
        for path, name, focused in (
            ("/", "Skip to the message box", "#message"),
            ("/settings/usage", "Skip to the content", "main"),
            ("/nothing", "Skip to the content", "main"),
        ):
            await page.goto(harness.server.url + path)
            link = page.get_by_role("link", name=name)
            await expect(link).not_to_be_in_viewport()
            await link.focus()
            await expect(link).to_be_in_viewport()
            await page.keyboard.press("Enter")
            await expect(page.locator(focused)).to_be_focused()
            assert page.url == harness.server.url + path


class TestReducedMotion:
    async def test_nothing_moves(self, harness: Harness) -> None:
        running = "document.getAnimations().map((each) => each.animationName ?? each.transitionProperty)"
        chat = await ChatPage.open(harness)
        harness.scripts.say(Think("Hm"), "Let me look", Call("lookup", {"place": "Bern"}))
        await chat.send("Slowly")
        await expect(chat.page.locator(".spinner")).to_be_visible()
        assert "spin" in await chat.page.evaluate(running)
        await chat.page.emulate_media(reduced_motion="reduce")
        await expect(chat.page.locator(".spinner")).to_be_visible()
        assert await chat.page.evaluate(running) == []
        await chat.conversations.get_by_role("link", name="New conversation").hover()
        assert await chat.page.evaluate(running) == []


class TestNotices:
    OVERLAPS = """() => {
      const boxes = [...document.querySelectorAll(".notice")].map((each) => each.getBoundingClientRect());
      const others = document.querySelectorAll("aside, main, .composer, .thread-list, .panel");
      return [...others].map((each) => [each, each.getBoundingClientRect()]).filter(([each, box]) =>
        boxes.some((notice) => notice.top < box.bottom && box.top < notice.bottom
          && notice.left < box.right && box.left < notice.right)).map(([each]) => each.className);
    }"""

    @pytest.mark.parametrize("width, height", [(1280, 820), (360, 740)])
    async def test_an_error_covers_nothing_and_stays_until_it_is_dismissed(
        self, harness: Harness, width: int, height: int
    ) -> None:
        harness.scripts.say("A line.\n\n" * 60 + "The last line.")
        await harness.context.clock.install()
        chat = await ChatPage.open(harness)
        await chat.page.set_viewport_size({"width": width, "height": height})
        await chat.send("Much")
        await chat.wait_settled()
        end = chat.answers.locator(".when")
        await expect(end).to_be_in_viewport(ratio=1)
        await chat.page.route("**/v1/conversations/*", self.refuse_changes)
        await chat.page.get_by_label("Model").select_option("scripted")
        alert = chat.page.get_by_role("region", name="Notices").get_by_role("alert")
        await expect(alert).to_contain_text("The server cannot be reached.")
        # The thread is shorter now, and still shows its end.
        await expect(end).to_be_in_viewport(ratio=1)
        await harness.context.clock.fast_forward("05:00")
        await expect(alert).to_be_in_viewport()
        assert await chat.page.evaluate(self.OVERLAPS) == []
        await chat.page.get_by_role("button", name="Dismiss").click()
        await expect(alert).to_have_count(0)

    async def refuse_changes(self, route: Route) -> None:
        if route.request.method == "PATCH":
            await route.abort()
        else:
            await route.continue_()


class TestPhone:
    SMALL = """() => [...document.querySelectorAll("a[href], button, select, summary, input, textarea, [role=button]")]
      .filter((each) => each.checkVisibility({ visibilityProperty: true, opacityProperty: true }))
      .filter((each) => !each.closest(".visually-hidden, .skip") && !each.matches("p a, p .link, .prose a, .raw a"))
      .map((each) => [each, each.getBoundingClientRect()])
      .filter(([, { width, height }]) => Math.min(width, height) < 43.9)
      .map(([each, { width, height }]) => `${each.className || each.tagName} ${each.textContent.slice(0, 30)}: ${width} x ${height}`)"""  # noqa: E501
    """Targets that are smaller than 44 pixels. Links inside of a text are as tall as its lines."""

    @pytest.mark.parametrize("screen", SCREENS)
    async def test_every_target_has_44_pixels(self, harness: Harness, screen: str) -> None:
        chat = await ChatPage.open(harness)
        await SCREENS[screen](harness, chat)
        await chat.page.set_viewport_size({"width": 390, "height": 844})
        await chat.page.emulate_media(reduced_motion="reduce")
        assert await chat.page.evaluate(self.SMALL) == []
        await chat.page.keyboard.press("Escape")  # some screens have a dialog, which is in the way
        await chat.page.get_by_role("button", name="Open the list of conversations").click()
        await expect(chat.conversations).to_be_in_viewport()
        assert await chat.page.evaluate(self.SMALL) == []

    async def test_a_new_conversation_begins_from_the_head_of_any_page(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness)
        begin = chat.page.locator(".head").get_by_role("link", name="New conversation")
        await chat.send("Hello")
        await chat.wait_settled()
        await expect(begin).to_be_hidden()
        await chat.page.set_viewport_size({"width": 360, "height": 740})
        for path in (None, "/settings/usage", "/nothing"):
            if path:
                await chat.page.goto(harness.server.url + path)
            await begin.click()
            await expect(chat.page.get_by_role("heading", name="What shall we work on?")).to_be_visible()
            await expect(begin).to_have_count(0)

    async def test_the_list_is_behind_a_button_and_nothing_is_too_wide(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness)
        await chat.page.set_viewport_size({"width": 360, "height": 740})
        harness.scripts.say(
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
        await chat.send("Something very wide: " + "M" * 200)
        await chat.wait_settled()
        await self.check_width(chat.page)
        await expect(chat.conversations).not_to_be_in_viewport()
        await chat.message_box.focus()
        await chat.page.keyboard.press("Control+k")
        await expect(chat.page.get_by_label("Search")).to_be_focused()
        await chat.page.keyboard.press("Escape")
        await expect(chat.conversations).not_to_be_in_viewport()
        await expect(chat.message_box).to_be_focused()
        await chat.page.get_by_role("button", name="Open the list of conversations").click()
        await expect(chat.conversations).to_be_in_viewport()
        await expect(chat.page.get_by_role("button", name="Close the list of conversations")).to_be_focused()
        await chat.conversations.get_by_role("link", name="New conversation").click()
        await expect(chat.conversations).not_to_be_in_viewport()
        await self.check_width(chat.page)
        await chat.page.goto(f"{harness.server.url}/settings/agents")
        await chat.page.get_by_role("button", name="New agent").click()
        await self.check_width(chat.page)
        await chat.page.goto(f"{harness.server.url}/settings/tables")
        await expect(chat.page.get_by_role("button", name="New table from a CSV file")).to_be_visible()
        await self.check_width(chat.page)

    async def check_width(self, page: Page) -> None:
        """No part of the page has to be scrolled sideways."""
        wide = await page.evaluate(
            """() => [...document.querySelectorAll('body, .layout, main, .thread-list, .composer, .settings-body')]
                 .filter((each) => each.scrollWidth > each.clientWidth + 1)
                 .map((each) => each.className || each.tagName)"""
        )
        assert wide == []


class TestTheme:
    async def test_the_dark_theme_follows_the_system_and_can_be_chosen(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness)
        colour = "getComputedStyle(document.body).backgroundColor"
        light = await chat.page.evaluate(colour)
        await chat.page.emulate_media(color_scheme="dark")
        dark = await chat.page.evaluate(colour)
        assert dark != light
        await expect(chat.page.get_by_label("Appearance").locator("option:checked")).to_have_text("Appearance: system")
        await chat.page.get_by_label("Appearance").select_option("light")
        assert await chat.page.evaluate(colour) == light
        await chat.page.reload()
        await expect(chat.message_box).to_be_visible()
        assert await chat.page.evaluate(colour) == light
