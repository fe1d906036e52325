"""Whatever happens to the page, the network or the server, the answer goes on where it was."""

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Browser, expect
from tests.browser.harness import PATIENCE_MS, House, Talk

from tests.faults.processes import clean_environment
from turnkeep.providers.scripted import Until


class TestAReload:
    async def test_in_the_middle_of_an_answer_continues_it(self, house: House) -> None:
        go_on = asyncio.Event()
        house.scripts.say("Before the reload, ", Until(go_on.wait), "and after it.")
        talk = await Talk.begin(house)
        await talk.say("Go")
        await expect(talk.answers.get_by_text("Before the reload,")).to_be_visible()
        await talk.page.reload()
        await expect(talk.page.locator(".is-growing")).to_have_text("Before the reload,")
        go_on.set()
        await talk.settled()
        await expect(talk.answers.locator(".prose")).to_have_text("Before the reload, and after it.")
        await expect(talk.questions).to_have_count(1)

    async def test_leaving_for_another_conversation_and_coming_back(self, house: House) -> None:
        go_on = asyncio.Event()
        house.scripts.say("One half, ", Until(go_on.wait), "the other half.")
        talk = await Talk.begin(house)
        await talk.say("Go")
        await expect(talk.answers.get_by_text("One half,")).to_be_visible()
        await talk.history.get_by_role("link", name="New conversation").click()
        await expect(talk.answers).to_have_count(0)
        await expect(talk.history.get_by_label("an answer is being written")).to_be_visible()
        await talk.history.get_by_role("link", name="Go", exact=False).first.click()
        await expect(talk.page.locator(".is-growing")).to_have_text("One half,")
        go_on.set()
        await talk.settled()
        await expect(talk.answers.locator(".prose")).to_have_text("One half, the other half.")


class TestTwoTabs:
    async def test_on_one_conversation_see_the_same_answer(self, house: House) -> None:
        go_on = asyncio.Event()
        house.scripts.say("Hello.")
        house.scripts.say("For both ", Until(go_on.wait), "of you.")
        left = await Talk.begin(house)
        await left.say("Hi")
        await left.settled()
        right = Talk(await house.context.new_page())
        await right.page.goto(left.page.url)
        await right.settled()
        await left.say("And now?")
        await expect(right.questions.get_by_text("And now?")).to_be_visible()
        await expect(right.answers.get_by_text("For both")).to_be_visible()
        await expect(left.answers.get_by_text("For both")).to_be_visible()
        go_on.set()
        await left.settled(2)
        await right.settled(2)
        assert await right.shown() == await left.shown()

    async def test_what_another_device_asks_appears_too(self, house: House) -> None:
        talk = await Talk.begin(house)
        await talk.say("Hi")
        await talk.settled()
        client = await house.api()
        house.scripts.say("From elsewhere.")
        await client.ask("Asked elsewhere", conversation_id=talk.page.url.rpartition("/")[2])
        await expect(talk.answers.get_by_text("From elsewhere.")).to_be_visible()
        await talk.settled(2)


class TestWhatWaits:
    async def test_is_shown_after_a_reload_and_in_another_tab_whoever_sent_it(self, house: House) -> None:
        go_on = asyncio.Event()
        house.scripts.say("First ", Until(go_on.wait), "answer.")
        house.scripts.say("Second answer.")
        talk = await Talk.begin(house)
        await talk.say("One")
        await expect(talk.answers.get_by_text("First")).to_be_visible()
        elsewhere = await house.api()
        conversation_id = talk.page.url.rpartition("/")[2]
        for text in ("Two", "Three"):
            await elsewhere.ask(text, conversation_id=conversation_id, if_busy="enqueue", background=True)
        await talk.page.reload()
        beside = Talk(await house.context.new_page())
        await beside.page.goto(talk.page.url)
        for each in (talk, beside):
            await expect(each.questions.locator(".bubble")).to_have_text(["One", "Two", "Three"])
            await expect(each.page.get_by_text("Queued", exact=True)).to_have_count(2)
        await talk.page.get_by_role("button", name="Do not send").last.click()
        for each in (talk, beside):
            await expect(each.questions.locator(".bubble")).to_have_text(["One", "Two"])
        go_on.set()
        for each in (talk, beside):
            await expect(each.answers.get_by_text("Second answer.")).to_be_visible()
            await each.settled(2)
            await expect(each.page.get_by_text("Queued", exact=True)).to_have_count(0)
            await expect(each.questions.locator(".bubble")).to_have_text(["One", "Two"])


class TestTheNetwork:
    async def test_offline_and_back(self, house: House) -> None:
        go_on = asyncio.Event()
        house.scripts.say("Before, ", Until(go_on.wait), "after.")
        house.scripts.say("The next answer.")
        talk = await Talk.begin(house)
        await talk.say("Go")
        await expect(talk.answers.get_by_text("Before,")).to_be_visible()
        await house.context.set_offline(True)
        await expect(talk.page.get_by_text("You are offline.")).to_be_visible()
        await talk.say("Sent while offline")
        await expect(talk.page.get_by_text("Sending…")).to_be_visible()
        go_on.set()
        await house.context.set_offline(False)
        await expect(talk.answers.get_by_text("The next answer.")).to_be_visible()
        await talk.settled(2)
        await expect(talk.page.get_by_text("You are offline.")).to_have_count(0)
        assert await talk.answers.locator(".prose").all_inner_texts() == ["Before, after.", "The next answer."]
        client = await house.api()
        conversation = await client.read(f"/v1/conversations/{talk.page.url.rpartition('/')[2]}")
        assert conversation["turn_count"] == 2

    async def test_a_cut_connection_is_taken_up_again_without_a_word_twice(self, house: House) -> None:
        cut, go_on = asyncio.Event(), asyncio.Event()
        house.scripts.say("Before the cut, ", Until(cut.wait), "in between, ", Until(go_on.wait), "after the cut.")
        talk = await Talk.begin(house)
        await talk.say("Go")
        growing = talk.page.locator(".is-growing")
        await expect(growing).to_have_text("Before the cut,")
        for stream in list(house.server.server.server_state.connections):
            stream.transport.abort()
        cut.set()
        await expect(growing).to_have_text("Before the cut, in between,")
        go_on.set()
        await talk.settled()
        await expect(talk.answers.locator(".prose")).to_have_text("Before the cut, in between, after the cut.")


@asynccontextmanager
async def serving(folder: Path, port: int) -> AsyncIterator[tuple[asyncio.subprocess.Process, int, str]]:
    """`turnkeep serve` with the demo model: the process, its port and a sign-in link."""
    settings = {
        "TURNKEEP_DATA_DIR": str(folder),
        "TURNKEEP_PORT": str(port),
        "TURNKEEP_LEASE_SECONDS": "1",
        "TURNKEEP_DRAIN_SECONDS": "1",
    }
    process = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).with_name("turnkeep")), "serve"),
        env=clean_environment() | settings,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        said = b""
        async with asyncio.timeout(PATIENCE_MS / 1000):
            while not (found := re.search(rb"(http://[^:]+:(\d+)/signin\S+)", said)):
                line = await process.stdout.readline()
                assert line, said
                said += line
        yield process, int(found[2]), found[1].decode()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class TestAKilledServer:
    async def test_goes_on_with_the_answer_when_it_is_started_again(
        self, built_page: Path, browser: Browser, tmp_path: Path
    ) -> None:
        context = await browser.new_context()
        page = await context.new_page()
        talk = Talk(page)
        async with serving(tmp_path, 0) as (process, port, link):
            await page.goto(link)
            await talk.say("Say 250 words, please.")
            await expect(talk.page.locator(".is-growing")).to_contain_text("stream goes on", timeout=PATIENCE_MS)
            process.send_signal(signal.SIGKILL)
            await process.wait()
        await expect(page.get_by_text("Reconnecting…")).to_be_visible(timeout=PATIENCE_MS)
        async with serving(tmp_path, port):
            await expect(talk.answers).to_have_count(1, timeout=PATIENCE_MS)
            await expect(page.locator("[aria-busy=true]")).to_have_count(0, timeout=2 * PATIENCE_MS)
            text = await talk.answers.locator(".prose").inner_text()
            assert len(text.split()) == 250
            await page.reload()
            await expect(talk.answers.locator(".prose")).to_have_text(text, timeout=PATIENCE_MS)
        await context.close()
