"""What the browser tests share: a server that serves the page, a browser profile, and the actions of a user."""

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from playwright.async_api import BrowserContext, Frame, Page, Request, expect

from tests.api.harness import ApiServer, Client, Scripts
from turnkeep.api.identity.authentication import COOKIE, hash_key
from turnkeep.api.identity.service_keys import SigninLinks
from turnkeep.api.native.signin import new_cookie
from turnkeep.ids import UserId
from turnkeep.model.sessions import NewSession
from turnkeep.tools.functions import tool
from turnkeep.tools.ports import Outcome
from turnkeep.tools.registry import ToolRegistry
from turnkeep_client.wire.events import Source

ROOT = Path(__file__).parents[2]
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TIMEOUT_MS = 60_000
"""Ten times longer than any test needs, for a busy machine."""

expect.set_options(timeout=TIMEOUT_MS)


def find_chromium() -> str:
    """Chromium for programs, which takes half of the processor time, or else the one for desktops."""
    found = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    assert found is not None, "Chromium is not installed; run scripts/system chromium"
    return found


class Harness:
    """One server and one browser profile. It records problems: console errors, and requests to other servers."""

    def __init__(self, server: ApiServer, context: BrowserContext, lookup_allowed: asyncio.Event | None = None) -> None:
        self.server = server
        self.context = context
        self.lookup_allowed = lookup_allowed or asyncio.Event()
        """The tool `lookup` waits for this event."""
        self.console_errors: list[str] = []
        self.known_servers = [server.url]
        if server.runtime.settings.files_url.startswith("s3:"):
            self.known_servers.append(os.environ["AWS_ENDPOINT_URL"])  # the page uploads to the bucket
        self.foreign_requests: list[str] = []
        """Requests to any server but the known ones."""
        context.on("request", self._check_request)
        context.on("weberror", lambda error: self.console_errors.append(str(error.error)))
        context.on("console", self._check_console)
        context.set_default_timeout(TIMEOUT_MS)

    @property
    def scripts(self) -> Scripts:
        return self.server.scripts

    async def open_page(self, path: str = "/") -> Page:
        """A new tab, signed in with a link like that of `turnkeep serve`."""
        page = await self.context.new_page()
        token = SigninLinks.of(self.server.runtime.settings).make()
        signin = f"{self.server.url}/signin?token={token}"
        if path == "/":
            await page.goto(signin)
            await expect(page.get_by_label("Message", exact=True)).to_be_visible()
        else:
            # Only the cookie is needed. To load `/` first would double the time of these tests' first step.
            await self.context.request.get(signin, max_redirects=0)
            await page.goto(f"{self.server.url}{path}")
        return page

    async def sign_in(self, user_id: UserId) -> str:
        """Give the browser a session of this user of the operator's org, and return the cookie."""
        runtime, cookie = self.server.runtime, new_cookie()
        session = NewSession(secret_hash=hash_key(cookie), method="link", browser="A test", seconds=600)
        await runtime.store.add_session(runtime.home_org, user_id, session)
        await self.context.add_cookies([{"name": COOKIE, "value": cookie, "url": self.server.url}])
        return cookie

    async def api(self) -> Client:
        """The API, as the same user."""
        operator = await self.server.operator()
        return await self.server.client(operator.key, turnkeep_user="local")

    def _check_request(self, request: Request) -> None:
        is_known = request.url.startswith((*self.known_servers, "blob:", "data:"))
        # What the page of another known server asks for is its own matter.
        if not is_known and request.frame.url.startswith((self.server.url, "about:")):
            self.foreign_requests.append(request.url)

    def _check_console(self, message: Any) -> None:
        if message.type in {"error", "warning"} and "Failed to load resource" not in message.text:
            self.console_errors.append(f"{message.type}: {message.text}")

    def check_no_problems(self) -> None:
        """The page wrote no error to the console and sent no request to another server."""
        assert self.console_errors == []
        assert self.foreign_requests == []


class Chat:
    """The page object of a chat, in a page or in a frame: its parts by the names that a user sees."""

    def __init__(self, document: Page | Frame) -> None:
        self.document = document
        self.message_box = document.get_by_label("Message", exact=True)
        self.answers = document.get_by_role("article", name="Assistant")
        self.questions = document.get_by_role("article", name="You")
        self.conversations = document.get_by_role("navigation", name="Conversations")

    async def send(self, text: str) -> None:
        await self.message_box.fill(text)
        await self.message_box.press("Enter")

    async def wait_settled(self, count: int = 1) -> None:
        """Wait until the thread has `count` answers and none is being written."""
        await expect(self.answers).to_have_count(count)
        await expect(self.document.locator("[aria-busy=true]")).to_have_count(0)

    async def drawn_html(self) -> str:
        """The HTML of the messages, without the time of day."""
        html: str = await self.document.get_by_role("log").evaluate(
            """log => {
              const copy = log.cloneNode(true);
              for (const each of copy.querySelectorAll('.when')) each.remove();
              return [...copy.querySelectorAll('article')].map((each) => each.outerHTML).join('\\n');
            }"""
        )
        return html


class ChatPage(Chat):
    """A chat on the page of the server."""

    def __init__(self, page: Page) -> None:
        super().__init__(page)
        self.page = page

    @classmethod
    async def open(cls, harness: Harness, path: str = "/") -> Self:
        return cls(await harness.open_page(path))


async def wait_until(condition: Callable[[], bool], *, seconds: float = 60) -> None:
    """Poll until the condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the browser sends no event for it
            await asyncio.sleep(0.02)


async def expect_copied(page: Page, text: str) -> None:
    """The clipboard has this text soon: browsers write it after the click."""
    copied = ""
    try:
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            while (copied := await page.evaluate("navigator.clipboard.readText()")) != text:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.05)
    except TimeoutError:
        assert copied == text  # says how they differ


ALMANAC = Source(title="Almanac", snippet="Rain in the morning.", url="https://example.org/almanac")


def make_tools(lookup_allowed: asyncio.Event) -> ToolRegistry:
    """Two tools that every agent has: `lookup` waits for the event and cites a source, `broken` fails. An agent may
    also name `pay` and `run_command`, which say what they were called with."""

    @tool
    async def lookup(place: str) -> Outcome:
        await lookup_allowed.wait()
        return Outcome(result={"sky": "rain", "place": place}, sources=(ALMANAC,))

    @tool
    async def broken(place: str = "") -> Outcome:
        return Outcome(error="The station does not answer.")

    @tool
    async def pay(amount: int, to: str = "ann") -> str:
        return f"paid {amount} to {to}"

    @tool
    async def run_command(command: str) -> str:
        return f"ran {command}"

    return ToolRegistry([lookup, broken, pay, run_command], offered_to_all=["lookup", "broken"])


def png(width: int = 64, height: int = 48, colour: tuple[int, int, int] = (47, 111, 94)) -> bytes:
    """A PNG of one colour."""
    from io import BytesIO

    from PIL import Image

    made = BytesIO()
    Image.new("RGB", (width, height), colour).save(made, "PNG")
    return made.getvalue()
