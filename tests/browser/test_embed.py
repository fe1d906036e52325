"""The chat inside of pages of other origins, in a real browser: a page that may embed it, and one that may not."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import FilePayload, Page, Request, expect

from tests.api.harness import settings_for
from tests.browser.harness import Harness, png, wait_until
from tests.browser.host_page import HostSite, chat_frame, chat_of, user_token
from tests.browser.test_untrusted_content import WATCH, check_unharmed, touch_everything
from tests.browser.xss_payloads import PAYLOADS
from tests.ports import free_ports
from turnkeep.config import Settings
from turnkeep.providers.scripted import Call, Pause, Think

HOSTILE_NAME = """A"><img src=x onerror="window.__ran=1"></title><script>window.__ran=1</script>"""


@pytest.fixture
def ports() -> list[int]:
    return free_ports(2)


@pytest.fixture
def origin(ports: list[int]) -> str:
    """Another site than the server's, not only another port: browsers share no cookie and no storage with it."""
    return f"http://localhost:{ports[0]}"


@pytest.fixture
def settings(tmp_path: Path, origin: str) -> Settings:
    return settings_for(tmp_path, frame_ancestors=(origin,), allowed_origins=(origin,))


@pytest_asyncio.fixture(loop_scope="session")
async def host(harness: Harness, origin: str) -> AsyncIterator[HostSite]:
    async with HostSite.start(origin, lambda: user_token(harness)) as site:
        yield site


@pytest_asyncio.fixture(loop_scope="session")
async def stranger(harness: Harness, ports: list[int]) -> AsyncIterator[HostSite]:
    """A site that may not embed the chat."""
    async with HostSite.start(f"http://localhost:{ports[1]}", lambda: user_token(harness)) as site:
        yield site


class TestAFrame:
    async def test_streams_and_shows_the_same_after_a_reload(self, harness: Harness, host: HostSite) -> None:
        host.embed(harness)
        page = await host.open(harness)
        chat = await chat_of(page)
        harness.lookup_allowed.set()
        harness.scripts.say("Let me look. ", Call("lookup", {"place": "Bern"}))
        harness.scripts.say("It rains", Pause(1.0), " in **Bern**.")
        await chat.send("Weather?")
        await expect(chat.answers.first).to_contain_text("It rains")
        await chat.wait_settled()
        await expect(chat.answers.first).to_contain_text("It rains in Bern.")
        drawn, given = await chat.drawn_html(), len(host.given)
        await page.reload()
        chat = await chat_of(page)
        await chat.wait_settled()
        assert await chat.drawn_html() == drawn
        assert len(host.given) > given, "a token for each load of the page"
        found = (await (await harness.server.operator(turnkeep_user="ann")).read("/v1/conversations"))["data"]
        assert [one["message_count"] for one in found] == [2]

    async def test_draws_previews_in_a_frame_of_its_own(self, harness: Harness, host: HostSite) -> None:
        host.embed(harness)
        chat = await chat_of(await host.open(harness))
        harness.scripts.say("```mermaid\ngraph TD\n  A[Here] --> B\n```\n")
        await chat.send("Draw")
        await chat.wait_settled()
        await chat.document.get_by_role("button", name="Preview").click()
        drawing = chat.document.frame_locator(".preview iframe")
        await expect(drawing.locator("svg").get_by_text("Here")).to_be_visible()

    async def test_has_no_list_no_settings_and_no_choice_of_models(self, harness: Harness, host: HostSite) -> None:
        host.embed(harness)
        chat = await chat_of(await host.open(harness))
        await expect(chat.message_box).to_be_visible()
        await expect(chat.conversations).to_have_count(0)
        await expect(chat.document.get_by_role("link", name="Settings")).to_have_count(0)
        await expect(chat.document.get_by_role("combobox")).to_have_count(0)

    async def test_begins_another_conversation_and_tells_the_host_page(self, harness: Harness, host: HostSite) -> None:
        heard = """<script>window.heard = [];
          addEventListener("message", (event) => window.heard.push(event.data));</script>"""
        host.embed(harness, html=heard)
        page = await host.open(harness)
        chat = await chat_of(page)
        await chat.send("One")
        await chat.wait_settled()
        await chat.document.get_by_role("button", name="New conversation").click()
        await expect(chat.answers).to_have_count(0)
        await chat.send("Two")
        await chat.wait_settled()
        heard_data = await page.evaluate("window.heard.filter((one) => one.type === 'turnkeep:conversation')")
        ids = [one["conversation_id"] for one in heard_data if one["conversation_id"] is not None]
        assert len(set(ids)) == 2

    async def test_is_answered_by_the_agent_of_its_address(self, harness: Harness, host: HostSite) -> None:
        operator = await harness.server.operator()
        body = {"name": "Guide", "instructions": "Speak of mountains.", "model": "scripted"}
        agent = (await operator.post("/v1/agents", json=body)).json()["id"]
        host.embed(harness, f"?agent={agent}")
        chat = await chat_of(await host.open(harness))
        await chat.send("Hello")
        await chat.wait_settled()
        [conversation] = (await (await harness.server.operator(turnkeep_user="ann")).read("/v1/conversations"))["data"]
        assert conversation["agent_id"] == agent
        assert "mountains" in str(harness.scripts.requests[-1])

    @pytest.mark.parametrize("theme", ["light", "dark"])
    async def test_has_the_theme_and_the_conversation_of_its_address(
        self, harness: Harness, host: HostSite, theme: str
    ) -> None:
        harness.scripts.say("It rains.")
        user = await harness.server.operator(turnkeep_user="ann")
        conversation = (await user.ask("Weather?"))["conversation_id"]
        host.embed(harness, f"/c/{conversation}?theme={theme}")
        page = await host.open(harness)
        await page.emulate_media(color_scheme="dark" if theme == "light" else "light")
        chat = await chat_of(page)
        await expect(chat.answers).to_contain_text("It rains.")
        await expect(chat.document.locator("html")).to_have_css("color-scheme", theme)

    async def test_offers_the_questions_of_its_agent(self, harness: Harness, host: HostSite) -> None:
        operator = await harness.server.operator()
        body = {"name": "Guide", "model": "scripted", "starters": ["Which mountain?"]}
        agent = (await operator.post("/v1/agents", json=body)).json()["id"]
        host.embed(harness, f"?agent={agent}")
        chat = await chat_of(await host.open(harness))
        await chat.document.get_by_role("button", name="Which mountain?").click()
        await chat.wait_settled()
        [conversation] = (await (await harness.server.operator(turnkeep_user="ann")).read("/v1/conversations"))["data"]
        assert conversation["agent_id"] == agent

    async def test_shows_notices_below_the_chat(self, harness: Harness, host: HostSite) -> None:
        host.embed(harness, html="<style>iframe { width: 1100px !important; }</style>")
        page = await host.open(harness)
        chat = await chat_of(page)
        await chat.send("One")
        await chat.wait_settled()
        await page.route("**/v1/conversations/*", lambda route: route.fulfill(status=403, json={"title": "No"}))
        await chat.document.get_by_label("Conversation menu").click()
        await chat.document.get_by_role("button", name="Delete").click()
        notice = chat.document.get_by_role("alert")
        await expect(notice).to_be_visible()
        widths = await notice.evaluate("one => [one.parentElement.offsetWidth, innerWidth]")
        assert widths[0] == widths[1]

    async def test_uploads_shows_and_saves_files_without_a_cookie(self, harness: Harness, host: HostSite) -> None:
        host.embed(harness)
        page = await host.open(harness)
        chat = await chat_of(page)
        await expect(chat.message_box).to_be_visible()
        async with page.expect_file_chooser() as choosing:
            await chat.document.get_by_role("button", name="Attach files").click()
        picture: FilePayload = {"name": "a.png", "mimeType": "image/png", "buffer": png()}
        await (await choosing.value).set_files([picture])
        await expect(chat.document.locator("[data-state=done]")).to_have_count(1)
        await chat.send("Look")
        await chat.wait_settled()
        await page.reload()
        chat = await chat_of(page)
        shown = chat.document.get_by_role("img", name="a.png")
        await expect(shown).to_have_attribute("src", re.compile("^blob:"))
        await expect(shown).to_have_js_property("naturalWidth", 64)
        async with page.expect_download() as saving:
            await chat.document.get_by_role("link", name="a.png").click()
        saved = await saving.value
        assert saved.suggested_filename == "a.png"
        assert Path(await saved.path()).read_bytes() == picture["buffer"]

    async def test_opened_by_itself_says_that_it_belongs_into_a_page(self, harness: Harness) -> None:
        page = await harness.context.new_page()
        await page.goto(f"{harness.server.url}/embed")
        await expect(page.get_by_text("inside of another page")).to_be_visible()


class TestTokens:
    async def test_are_asked_for_again_when_the_server_refuses_one(self, harness: Harness, host: HostSite) -> None:
        operator = await harness.server.operator()
        key = (await operator.post("/v1/keys", json={"name": "of the host"})).json()

        async def first() -> str:
            service = await harness.server.client(key["key"])
            return str((await service.post("/v1/tokens", json={"user": "ann"})).json()["token"])

        usual, host.tokens = host.tokens, first
        reasons = """<script>window.reasons = [];
          addEventListener("message", ({ data }) => data.reason && window.reasons.push(data.reason));</script>"""
        host.embed(harness, html=reasons)
        page = await host.open(harness)
        chat = await chat_of(page)
        await chat.send("One")
        await chat.wait_settled()
        host.tokens, given = usual, len(host.given)
        # A token ends with the key that made it.
        assert (await operator.delete(f"/v1/keys/{key['id']}")).status_code == 204
        await chat.send("Two")
        await chat.wait_settled(2)
        await expect(chat.questions).to_have_count(2)
        assert len(host.given) > given
        assert list(dict.fromkeys(await page.evaluate("window.reasons"))) == ["start", "expired"]

    async def test_that_do_not_come_keep_what_was_typed(self, harness: Harness, host: HostSite) -> None:
        operator = await harness.server.operator()
        key = (await operator.post("/v1/keys", json={"name": "of the host"})).json()
        is_asked, may_answer = asyncio.Event(), asyncio.Event()

        async def tokens() -> str:
            if host.given:
                is_asked.set()
                await may_answer.wait()
                return await user_token(harness)
            service = await harness.server.client(key["key"])
            return str((await service.post("/v1/tokens", json={"user": "ann"})).json()["token"])

        host.tokens = tokens
        host.embed(harness)
        page = await host.open(harness)
        chat = await chat_of(page)
        await chat.send("One")
        await chat.wait_settled()
        await operator.delete(f"/v1/keys/{key['id']}")
        await chat.message_box.fill("Not sent yet")
        await chat.document.get_by_role("button", name="New conversation").click()
        await chat.send("Two")
        async with asyncio.timeout(60):
            await is_asked.wait()
        await expect(chat.document.get_by_role("dialog")).to_contain_text("Your session has ended")
        may_answer.set()
        await expect(chat.document.get_by_role("dialog")).to_have_count(0)
        await chat.wait_settled()
        await expect(chat.questions).to_contain_text("Two")

    async def test_of_other_frames_and_service_keys_are_ignored(
        self, harness: Harness, host: HostSite, stranger: HostSite
    ) -> None:
        """A stranger inside of the host page must not make the user type into the stranger's account."""
        foreign = await user_token(harness, "mallory")
        sent: list[str] = []

        def note(request: Request) -> None:
            if request.url.startswith(f"{harness.server.url}/v1/"):
                sent.append(request.headers.get("authorization", ""))

        harness.context.on("request", note)
        stranger.html = f"""<script>
          setInterval(() => parent.frames[0]?.postMessage({{ type: "turnkeep:token", token: {foreign!r} }}, "*"), 20);
        </script>"""
        operator = await harness.server.operator()
        host.embed(harness, html=f'<iframe id="other" src="{stranger.origin}/"></iframe>')
        harness.known_servers.append(stranger.origin)
        given = asyncio.Event()
        usual = host.tokens

        async def late() -> str:
            await given.wait()
            return await usual()

        host.tokens = late
        page = await host.open(harness)
        await expect(page.frame_locator("#other").locator("title")).to_have_count(1)
        send = f"chat.contentWindow.postMessage({{ type: 'turnkeep:token', token: {operator.key!r} }}, server)"
        await page.evaluate(send)
        await wait_until(lambda: any("service key" in each for each in harness.console_errors))
        harness.console_errors.clear()
        assert sent == []
        given.set()
        chat = await chat_of(page)
        await chat.send("Hello")
        await chat.wait_settled()
        assert set(sent) <= {f"Bearer {token}" for token in host.given}

    async def test_are_the_only_credentials_also_where_the_page_has_a_cookie(
        self, harness: Harness, host: HostSite, ports: list[int]
    ) -> None:
        """On one site the browser would send the cookie of the page, which belongs to an admin here."""
        admin = await harness.open_page()
        await admin.get_by_label("Message", exact=True).fill("A draft of the admin")
        requests: list[Request] = []
        harness.context.on("request", lambda request: requests.append(request) if "/v1/" in request.url else None)
        await admin.goto("about:blank")
        requests.clear()
        host.embed(harness)
        chat = await chat_of(await host.open(harness))
        await expect(chat.message_box).to_be_empty()
        await chat.send("Hello")
        await chat.wait_settled()
        cookies = [(await request.all_headers()).get("cookie") for request in requests]
        assert cookies
        assert set(cookies) == {None}
        found = await (await harness.server.operator(turnkeep_user="ann")).read("/v1/conversations")
        assert len(found["data"]) == 1
        await admin.goto(harness.server.url)
        await expect(admin.get_by_label("Message", exact=True)).to_have_value("A draft of the admin")

    async def test_null_forgets_the_user(self, harness: Harness, host: HostSite) -> None:
        host.embed(harness)
        page = await host.open(harness)
        chat = await chat_of(page)
        await chat.send("My secret")
        await chat.wait_settled()
        given = len(host.given)
        host.tokens = lambda: user_token(harness, "bob")
        await page.evaluate("chat.contentWindow.postMessage({ type: 'turnkeep:token', token: null }, server)")
        await wait_until(lambda: len(host.given) > given)
        frame = await chat_frame(page)
        await expect(frame.get_by_text("My secret")).to_have_count(0)


class TestOnTheSameSite:
    """Ports do not separate sites: cookies and storage are shared with the page of the server."""

    @pytest.fixture
    def origin(self, ports: list[int]) -> str:
        return f"http://127.0.0.1:{ports[0]}"

    test_the_cookie_is_not_sent = TestTokens.test_are_the_only_credentials_also_where_the_page_has_a_cookie


class TestAStranger:
    async def test_cannot_frame_the_chat_or_the_page(self, harness: Harness, stranger: HostSite) -> None:
        for path in ("/embed", "/"):
            stranger.html = f'<iframe id="chat" src="{harness.server.url}{path}"></iframe>'
            page = await stranger.open(harness)
            await wait_until(lambda: any("frame-ancestors" in each for each in harness.console_errors))
            harness.console_errors.clear()
            frame = await chat_frame(page)
            assert not frame.url.startswith(harness.server.url)

    async def test_cannot_call_the_api(self, harness: Harness, stranger: HostSite) -> None:
        token = await user_token(harness)
        page = await stranger.open(harness)
        for method, path in (("GET", "/v1/me"), ("POST", "/v1/turns"), ("POST", "/ai-sdk/chat")):
            call = [harness.server.url + path, token, method]
            assert await page.evaluate(CALL, call) == "TypeError"
        await wait_until(lambda: len(harness.console_errors) >= 3)
        assert all("CORS policy" in each for each in harness.console_errors)
        harness.console_errors.clear()


class TestThePageItself:
    async def test_cannot_be_framed_by_a_host_of_the_chat(self, harness: Harness, host: HostSite) -> None:
        host.html = f'<iframe id="chat" src="{harness.server.url}/"></iframe>'
        page = await host.open(harness)
        await wait_until(lambda: any("frame-ancestors" in each for each in harness.console_errors))
        harness.console_errors.clear()
        assert not (await chat_frame(page)).url.startswith(harness.server.url)


CALL = """async ([url, token, method]) => {
  try {
    const response = await fetch(url, { method, headers: { authorization: `Bearer ${token}` } });
    return response.status;
  } catch (error) {
    return error.name;
  }
}"""

UPLOAD = """async ([server, token]) => {
  const call = async (method, path, body, headers = {}) => {
    const response = await fetch(new URL(path, server), {
      method, body, headers: { authorization: `Bearer ${token}`, ...headers } });
    return response.status === 204 ? null : await response.json();
  };
  const json = { "content-type": "application/json" };
  const blob = new Blob(["words of a file"], { type: "text/plain" });
  const announced = await call("POST", "/v1/files",
    JSON.stringify({ name: "a.txt", size: blob.size, mime_type: "text/plain" }), json);
  const put = await fetch(announced.upload.url, {
    method: announced.upload.method, headers: announced.upload.headers, body: blob });
  const stored = await call("POST", `/v1/files/${announced.file.id}/complete`);
  const form = new FormData();
  form.append("file", blob, "b.txt");
  const { id } = await call("POST", "/v1/conversations", "{}", json);
  const second = await call("POST", `/v1/conversations/${id}/files`, form);
  const read = await fetch(new URL(`/v1/files/${stored.id}/content`, server), {
    headers: { authorization: `Bearer ${token}`, range: "bytes=0-4" } });
  return {
    put: put.status, name: stored.name, second: second.data[0].name, text: await read.text(),
    range: read.headers.get("content-range"), disposition: read.headers.get("content-disposition"),
  };
}"""

STREAM = """async ([server, token]) => {
  const headers = { authorization: `Bearer ${token}`, "content-type": "application/json", accept: "text/event-stream",
                    "idempotency-key": crypto.randomUUID() };
  const response = await fetch(new URL("/v1/turns", server), {
    method: "POST", headers, body: JSON.stringify({ message: "Hello" }) });
  const chunks = [];
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    chunks.push(value);
  }
  const text = chunks.join("");
  const cursor = /^id: (.*)$/m.exec(text)[1];
  const turn = /"turn_id":"(turn_[0-9a-f]+)"/.exec(text)[1];
  const rest = await fetch(new URL(`/v1/turns/${turn}/events`, server), {
    headers: { authorization: `Bearer ${token}`, accept: "text/event-stream", "last-event-id": cursor } });
  return { chunks: chunks.length, text, request: response.headers.get("x-request-id"), rest: await rest.text() };
}"""


class TestCallsOfAnAllowedPage:
    async def test_stream_and_resume(self, harness: Harness, host: HostSite) -> None:
        page = await host.open(harness)
        harness.scripts.say("One ", Pause(0.5), "two.")
        found = await page.evaluate(STREAM, [harness.server.url, await user_token(harness)])
        assert found["chunks"] >= 2
        assert "event: result" in found["text"]
        assert found["request"]
        assert "event: result" in found["rest"]
        assert "event: turn\n" not in found["rest"]

    async def test_upload_and_read_files(self, harness: Harness, host: HostSite) -> None:
        page = await host.open(harness)
        found = await page.evaluate(UPLOAD, [harness.server.url, await user_token(harness)])
        assert (found["put"], found["name"], found["second"], found["text"]) == (204, "a.txt", "b.txt", "words")
        assert found["range"] == "bytes 0-4/15"
        assert "a.txt" in found["disposition"]


class TestBrand:
    @pytest.fixture
    def settings(self, tmp_path: Path, origin: str) -> Settings:
        logo = tmp_path / "logo.svg"
        logo.write_text(
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><script>window.__ran=1</script>'
            '<rect width="9" height="9" fill="#7a1fa2"/></svg>'
        )
        return settings_for(
            tmp_path,
            frame_ancestors=(origin,),
            brand_name=HOSTILE_NAME,
            brand_logo=logo,
            brand_colors=("#ffe600", "#2b0040"),
        )

    async def test_is_shown_on_the_page_and_in_the_frame(self, harness: Harness, host: HostSite) -> None:
        await harness.context.add_init_script(f"({WATCH})()")
        page = await harness.open_page()
        await self.check(page, page)
        assert await page.title() == HOSTILE_NAME
        host.embed(harness)
        page = await host.open(harness)
        await self.check(page, await chat_frame(page))

    async def check(self, page: Page, document: Any) -> None:
        await expect(document.locator(".brand-name")).to_have_text(HOSTILE_NAME)
        logo = document.locator("img.mark-picture").first
        await expect(logo).to_have_js_property("complete", True)
        assert await logo.evaluate("each => each.naturalWidth") > 0
        assert await document.evaluate("[window.__ran ?? 0, window.__asked]") == [0, []]
        for scheme in ("light", "dark"):
            await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            await document.get_by_label("Message", exact=True).fill("Hello")
            button = document.get_by_role("button", name="Send")
            assert await button.evaluate(CONTRAST) >= 4.5, scheme


CONTRAST = """element => {
  const pen = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const luminance = (colour) => {
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    const [red, green, blue] = [...pen.getImageData(0, 0, 1, 1).data].map((each) =>
      each / 255 <= 0.04045 ? each / 255 / 12.92 : ((each / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const { color, backgroundColor } = getComputedStyle(element);
  const [darker, lighter] = [luminance(color), luminance(backgroundColor)].sort((a, b) => a - b);
  return (lighter + 0.05) / (darker + 0.05);
}"""


class TestUntrustedContent:
    async def test_does_nothing_in_the_frame(self, harness: Harness, host: HostSite) -> None:
        harness.lookup_allowed.set()
        await harness.context.add_init_script(f"({WATCH})()")
        host.embed(harness, html="<style>#chat { height: 20000px; }</style>")
        page = await host.open(harness)
        await page.set_viewport_size({"width": 1280, "height": 20_000})  # so that all of it is drawn
        chat = await chat_of(page)
        chunks = [PAYLOADS[at : at + 40] for at in range(0, len(PAYLOADS), 40)]
        for number, chunk in enumerate(chunks, start=1):
            text = "\n\n".join(chunk)
            harness.scripts.say(Think(text), text, Call("lookup", {"place": text}))
            harness.scripts.say(*[f"{payload}\n\n" for payload in chunk])
            await chat.send("Go on")
            await chat.wait_settled(number)
            await touch_everything(chat.document)
            await check_unharmed(harness, chat.document)
        await page.reload()
        chat = await chat_of(page)
        await chat.wait_settled(len(chunks))
        await touch_everything(chat.document)
        await check_unharmed(harness, chat.document)
        assert await page.evaluate("window.__ran ?? 0") == 0
        assert page.url == f"{host.origin}/", "no link of an answer moves the host page"
