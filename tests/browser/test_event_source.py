"""The example of the manual for pages of your own, run in a real browser: its `EventSource` reads a turn."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from playwright.async_api import Page, Route

from tests.api.harness import settings_for
from tests.browser.harness import ROOT, Harness
from tests.ports import free_ports
from turnkeep.config import Settings
from turnkeep.providers.ports import ProviderFailed
from turnkeep.providers.scripted import Call, Fail, Pause, Restart


@pytest.fixture
def host_port() -> int:
    [port] = free_ports(1)
    return port


@pytest.fixture
def settings(tmp_path: Path, host_port: int) -> Settings:
    return settings_for(tmp_path, allowed_origins=(f"http://127.0.0.1:{host_port}",))


@pytest_asyncio.fixture(loop_scope="session")
async def page(harness: Harness, host_port: int) -> AsyncIterator[Page]:
    """A page of another origin than the server's. Browsers let it call this machine only if it comes from there."""

    async def empty_page(request: web.Request) -> web.Response:
        return web.Response(text="<!doctype html><link rel=icon href=data:,>", content_type="text/html")

    app = web.Application()
    app.router.add_get("/", empty_page)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", host_port).start()
    page = await harness.context.new_page()
    await page.goto(f"http://127.0.0.1:{host_port}/")
    harness.foreign_requests.clear()
    yield page
    await runner.cleanup()


def example() -> str:
    page = (ROOT / "docs" / "reference" / "streams.md").read_text("utf-8")
    [program] = re.findall(r"^```js\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return str(program)


async def ask(harness: Harness, page: Page, message: str) -> dict[str, Any]:
    """What the function of the manual shows and returns, or the words of its error."""
    operator = await harness.server.operator()
    token = (await operator.post("/v1/tokens", json={"user": "ann"})).json()["token"]
    program = f"""async ([server, token, message]) => {{
        {example()}
        const shown = [];
        try {{
          return {{ shown, answer: await ask(server, token, message, (text) => shown.push(text)) }};
        }} catch (error) {{
          return {{ shown, error: error.message }};
        }}
    }}"""
    found: dict[str, Any] = await page.evaluate(program, [harness.server.url, token, message])
    return found


class TestAPageOfYourOwn:
    async def test_shows_the_words_as_they_come(self, harness: Harness, page: Page) -> None:
        harness.scripts.say("One ", Pause(0.3), "two.")
        found = await ask(harness, page, "Count!")
        assert found["answer"] == "One two."
        assert found["shown"][0] == "One "
        assert found["shown"][-1] == "One two."

    async def test_follows_tools_and_a_model_that_starts_again(self, harness: Harness, page: Page) -> None:
        harness.lookup_allowed.set()
        harness.scripts.say("Let me look.", Call("lookup", {"city": "Bern"}))
        harness.scripts.say("Rain", Pause(0.3), Restart(), "It is sunny.")
        found = await ask(harness, page, "Weather?")
        assert found["answer"] == "It is sunny."
        assert "Let me look.It is sunny." not in found["shown"]

    async def test_is_told_why_a_turn_failed(self, harness: Harness, page: Page) -> None:
        harness.scripts.say("I ", Fail(ProviderFailed("It fell over.")))
        assert "It fell over." in (await ask(harness, page, "Hello?"))["error"]

    async def test_asks_for_another_address_when_the_first_has_expired(self, harness: Harness, page: Page) -> None:
        opened: list[str] = []

        async def expire_first(route: Route) -> None:
            opened.append(route.request.url)
            await (route.fulfill(status=401) if len(opened) == 1 else route.continue_())

        await page.route(re.compile(r"/v1/turns/.*/stream\?"), expire_first)
        harness.scripts.say("Hello.")
        assert (await ask(harness, page, "Hello?"))["answer"] == "Hello."
        assert len(opened) == 2
