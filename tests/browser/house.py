"""A server with the page on it, and a browser in front: what the stories of this folder need."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from playwright.async_api import BrowserContext, Page, expect

from tests.api.harness import ApiServer, Client, Scripts
from turnkeep.api.identity.service_keys import SigninLinks
from turnkeep.model.events import Source
from turnkeep.tools.functions import tool
from turnkeep.tools.ports import Outcome
from turnkeep.tools.registry import ToolRegistry

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_MS = 60_000
"""Nothing here takes a tenth of it, unless it hangs or the machine is very busy."""

expect.set_options(timeout=PATIENCE_MS)


class House:
    """One server and one browser profile, and what a person does in it."""

    def __init__(self, server: ApiServer, context: BrowserContext, gate: asyncio.Event | None = None) -> None:
        self.server = server
        self.context = context
        self.gate = gate or asyncio.Event()
        """The tool `lookup` answers once it is open."""
        self.complaints: list[str] = []
        self.strangers: list[str] = []
        """Requests to anything but the server itself."""
        context.on("request", lambda request: self._look(request.url))
        context.on("weberror", lambda error: self.complaints.append(str(error.error)))
        context.on("console", self._hear)
        context.set_default_timeout(PATIENCE_MS)

    @property
    def scripts(self) -> Scripts:
        return self.server.scripts

    async def enter(self, path: str = "/") -> Page:
        """A tab in which somebody has signed in."""
        page = await self.context.new_page()
        links = SigninLinks(self.server.runtime.settings.data_dir)
        await page.goto(f"{self.server.url}/signin?token={links.make()}")
        await expect(page.get_by_label("Message", exact=True)).to_be_visible()
        if path != "/":
            await page.goto(f"{self.server.url}{path}")
        return page

    async def api(self) -> Client:
        """The API, as the same person."""
        operator = await self.server.operator()
        return await self.server.client(operator.key, turnkeep_user="local")

    def _look(self, url: str) -> None:
        if not url.startswith((self.server.url, "blob:", "data:")):
            self.strangers.append(url)

    def _hear(self, message: Any) -> None:
        if message.type in {"error", "warning"} and "Failed to load resource" not in message.text:
            self.complaints.append(f"{message.type}: {message.text}")

    def check(self) -> None:
        """Nothing was written to the console, and nobody else was asked for anything."""
        assert self.complaints == []
        assert self.strangers == []


class Talk:
    """The page as its user sees it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.message = page.get_by_label("Message", exact=True)
        self.answers = page.get_by_role("article", name="Assistant")
        self.questions = page.get_by_role("article", name="You")
        self.history = page.get_by_role("navigation", name="Conversations")

    @classmethod
    async def begin(cls, house: House, path: str = "/") -> Self:
        return cls(await house.enter(path))

    async def say(self, text: str) -> None:
        await self.message.fill(text)
        await self.message.press("Enter")

    async def settled(self, count: int = 1) -> None:
        """So many answers are there, and none is being written."""
        await expect(self.answers).to_have_count(count)
        await expect(self.page.locator("[aria-busy=true]")).to_have_count(0)

    async def shown(self) -> str:
        """What the thread draws, but for the time of day."""
        html: str = await self.page.get_by_role("log").evaluate(
            """log => {
              const copy = log.cloneNode(true);
              for (const each of copy.querySelectorAll('.when')) each.remove();
              return [...copy.querySelectorAll('article')].map((each) => each.outerHTML).join('\\n');
            }"""
        )
        return html


async def eventually(holds: Callable[[], bool], *, seconds: float = 60) -> None:
    """Wait until it holds."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - browsers tell nobody
            await asyncio.sleep(0.02)


ALMANAC = Source(title="Almanac", snippet="Rain in the morning.", url="https://example.org/almanac")


def workshop(gate: asyncio.Event) -> ToolRegistry:
    """Two tools for everybody: one that waits for the gate and cites a source, and one that fails."""

    @tool
    async def lookup(place: str) -> Outcome:
        await gate.wait()
        return Outcome(result={"sky": "rain", "place": place}, sources=(ALMANAC,))

    @tool
    async def broken(place: str = "") -> Outcome:
        return Outcome(error="The station does not answer.")

    return ToolRegistry([lookup, broken], offered_to_all=["lookup", "broken"])


def picture(width: int = 64, height: int = 48, colour: tuple[int, int, int] = (47, 111, 94)) -> bytes:
    """A PNG of one colour."""
    from io import BytesIO

    from PIL import Image

    made = BytesIO()
    Image.new("RGB", (width, height), colour).save(made, "PNG")
    return made.getvalue()


ROOT = Path(__file__).parents[2]
