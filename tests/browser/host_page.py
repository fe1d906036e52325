"""A site of another origin that embeds the chat: its pages, and its route that gives tokens to them."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

from aiohttp import web
from playwright.async_api import Frame, Page

from tests.browser.harness import ROOT, Chat, Harness

Tokens = Callable[[], Awaitable[str]]


def example(heading: str = "In a frame") -> str:
    """The HTML that the manual has under this heading."""
    text = (ROOT / "docs" / "howto" / "embed-the-chat.md").read_text("utf-8")
    [section] = [part for part in text.split("\n## ") if part.startswith(heading)]
    [html] = re.findall(r"^```html\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return str(html)


class HostSite:
    """A site whose pages a test writes. `tokens` makes the token that its route gives out; `given` has those."""

    def __init__(self, origin: str, tokens: Tokens) -> None:
        self.origin = origin
        self.html = ""
        self.tokens = tokens
        self.given: list[str] = []

    @classmethod
    @asynccontextmanager
    async def start(cls, origin: str, tokens: Tokens) -> AsyncIterator[Self]:
        """`origin` has a free port of this machine."""
        site = cls(origin, tokens)
        app = web.Application()
        app.router.add_get("/", site._page)
        app.router.add_post("/chat-token", site._token)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", int(origin.rpartition(":")[2])).start()
        try:
            yield site
        finally:
            await runner.cleanup()

    def embed(self, harness: Harness, query: str = "", html: str = "") -> None:
        """The page has the frame of the manual."""
        frame = example().replace(
            "https://chat.example.com/embed?agent=agent_0123", f"{harness.server.url}/embed{query}"
        )
        self.html = frame + html

    async def open(self, harness: Harness) -> Page:
        harness.known_servers.append(self.origin)
        page = await harness.context.new_page()
        await page.goto(f"{self.origin}/")
        return page

    async def _page(self, request: web.Request) -> web.Response:
        text = f"<!doctype html><link rel=icon href=data:,><title>Host</title>{self.html}"
        return web.Response(text=text, content_type="text/html")

    async def _token(self, request: web.Request) -> web.Response:
        self.given.append(await self.tokens())
        return web.json_response({"token": self.given[-1]})


async def chat_frame(page: Page) -> Frame:
    """The document inside of the frame of the chat."""
    element = await page.locator("#chat").element_handle()
    frame = await element.content_frame()
    assert frame is not None
    return frame


async def chat_of(page: Page) -> Chat:
    return Chat(await chat_frame(page))


async def user_token(harness: Harness, user: str = "ann", **body: Any) -> str:
    operator = await harness.server.operator()
    response = await operator.post("/v1/tokens", json={"user": user, **body})
    assert response.status_code == 201, response.text
    return str(response.json()["token"])
