"""`python -m tests.browser.screenshots [FOLDER]` takes the screenshots of the page for the README (docs/images)."""

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.async_api import Browser, Page, async_playwright, expect

from tests.api.harness import ApiServer, settings_for
from tests.browser.harness import FLAGS, ROOT, ChatPage, Harness, find_chromium
from turnkeep.providers.scripted import Call, Pause, Script, Think
from turnkeep.tools.functions import tool
from turnkeep.tools.ports import Outcome
from turnkeep.tools.registry import ToolRegistry
from turnkeep_client.wire.events import Source

EARLIER = (
    "Draft a release note for version 2.4",
    "Why does the nightly backup take four hours?",
    "Names for a small bakery in Bern",
    "Explain row-level security to a new colleague",
    "Plan a team day in the mountains",
)
TIDES = Source(
    title="Tide tables, Saint-Malo", snippet="High water 08:12, coefficient 104.", url="https://example.org/t"
)
HARBOUR = Source(title="Harbour notes", snippet="The sill dries at coefficient 90 and above.", page_id="page_1")
ANSWER = r"""## Leave on the morning tide

High water is at **08:12** with a coefficient of 104 [1], so the sill is open from about 06:40 to 09:45 [2].

| crossing | depart | arrive | current |
|---|---|---|---:|
| to Jersey | 07:00 | 11:20 | +1.8 kn |
| to Guernsey | 07:00 | 13:40 | +0.9 kn |

The time gained is $t = \frac{d}{v + c}$, which for Jersey is worth **40 minutes**:

```python
def hours(distance: float, speed: float, current: float) -> float:
    return distance / (speed + current)

print(round(hours(34, 6, 1.8), 1))  # 4.4
```
"""


@tool(name="tide_table", idempotent=True)
async def tide_table(harbour: str) -> Outcome:
    """High and low water of a harbour."""
    await asyncio.sleep(0.4)
    return Outcome(result={"high_water": "08:12", "coefficient": 104}, sources=(TIDES, HARBOUR))


@tool(name="wind_forecast")
async def wind_forecast(place: str) -> Outcome:
    """Wind for the next day."""
    return Outcome(error="The station does not answer.")


def answer_script() -> list[Script]:
    return [
        [
            Think("They want to cross on a day with a big tide. The sill decides."),
            "Let me look at the tides first.",
            Call("tide_table", {"harbour": "Saint-Malo"}),
            Call("wind_forecast", {"place": "Saint-Malo"}),
        ],
        [ANSWER],
    ]


async def take_screenshots(browser: Browser, folder: Path) -> None:
    async def take(name: str, act: Callable[[Harness, ChatPage], Awaitable[None]], **options: object) -> None:
        with tempfile.TemporaryDirectory() as data:
            tools = ToolRegistry([tide_table, wind_forecast], offered_to_all=["tide_table", "wind_forecast"])
            async with ApiServer.start(settings_for(Path(data)), tools=tools) as server:
                size = {"width": 390, "height": 844} if "is_mobile" in options else {"width": 1280, "height": 860}
                context = await browser.new_context(viewport=size, device_scale_factor=1.5, **options)  # type: ignore[arg-type]
                harness = Harness(server, context)
                client = await harness.api()
                for text in EARLIER:
                    harness.scripts.say("Gladly.")
                    await client.ask(text)
                chat = await ChatPage.open(harness)
                await act(harness, chat)
                await _wait_still(chat.page)
                _save(await chat.page.screenshot(), folder / f"{name}.png")
                await context.close()

    async def answer(harness: Harness, chat: ChatPage) -> None:
        for script in answer_script():
            harness.scripts.say(*script)
        await chat.send("When should we leave Saint-Malo tomorrow?")
        await chat.wait_settled()
        await expect(chat.page.locator(".katex").first).to_be_visible()
        await expect(chat.page.locator(".hljs-keyword").first).to_be_visible()

    async def steps(harness: Harness, chat: ChatPage) -> None:
        await answer(harness, chat)
        await chat.page.locator(".step summary").first.click()
        await chat.page.get_by_role("log").locator(".thread-list").evaluate("list => list.scrollTo(0, 0)")

    async def streaming_answer(harness: Harness, chat: ChatPage) -> None:
        words = ANSWER.split(" ")
        harness.scripts.say(*[line for word in words[:70] for line in (word + " ", Pause(0.01))], Pause(30))
        await chat.send("When should we leave Saint-Malo tomorrow?")
        await expect(chat.answers.get_by_text("to Guernsey")).to_be_visible()
        await chat.message_box.fill("And what if the wind is from the north?")

    async def greeting(harness: Harness, chat: ChatPage) -> None:
        await chat.page.mouse.move(900, 300)

    async def agents(harness: Harness, chat: ChatPage) -> None:
        await chat.page.get_by_role("link", name="Settings").click()
        await chat.page.get_by_role("link", name="Agents").click()
        await chat.page.get_by_role("button", name="New agent").click()
        await chat.page.get_by_label("Name", exact=True).fill("Harbour master")
        await chat.page.get_by_label("Instructions", exact=True).fill("Answer questions about tides, with sources.")
        await chat.page.get_by_role("button", name="Add an MCP server").click()

    await take("answer", answer)
    await take("steps-dark", steps, color_scheme="dark")
    await take("writing", streaming_answer)
    await take("greeting", greeting)
    await take("agents", agents)
    await take("phone", steps, is_mobile=True, has_touch=True)


def _save(taken: bytes, file: Path) -> None:
    """Saved in 256 colours, which halves the size without a visible difference."""
    picture = Image.open(BytesIO(taken)).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    picture.save(file, optimize=True)


async def _wait_still(page: Page) -> None:
    """Wait until the fonts are loaded and nothing moves."""
    await page.evaluate("document.fonts.ready")
    await page.wait_for_timeout(400)


async def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        try:
            await take_screenshots(browser, folder)
        finally:
            await browser.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images"))
