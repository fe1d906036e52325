"""An answer goes on where it was after a reload, a lost connection, or a killed server."""

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Browser, expect

from tests.browser.harness import TIMEOUT_MS, ChatPage, Harness
from tests.faults.processes import clean_environment
from turnkeep.providers.scripted import Until


class TestReload:
    async def test_in_the_middle_of_an_answer_continues_it(self, harness: Harness) -> None:
        go_on = asyncio.Event()
        harness.scripts.say("Before the reload, ", Until(go_on.wait), "and after it.")
        chat = await ChatPage.open(harness)
        await chat.send("Go")
        await expect(chat.answers.get_by_text("Before the reload,")).to_be_visible()
        await chat.page.reload()
        await expect(chat.page.locator(".is-growing")).to_have_text("Before the reload,")
        go_on.set()
        await chat.wait_settled()
        await expect(chat.answers.locator(".prose")).to_have_text("Before the reload, and after it.")
        await expect(chat.questions).to_have_count(1)

    async def test_another_conversation_in_between_continues_it_too(self, harness: Harness) -> None:
        go_on = asyncio.Event()
        harness.scripts.say("One half, ", Until(go_on.wait), "the other half.")
        chat = await ChatPage.open(harness)
        await chat.send("Go")
        await expect(chat.answers.get_by_text("One half,")).to_be_visible()
        await chat.conversations.get_by_role("link", name="New conversation").click()
        await expect(chat.answers).to_have_count(0)
        await expect(chat.conversations.get_by_label("an answer is being written")).to_be_visible()
        await chat.conversations.get_by_role("link", name="Go", exact=False).first.click()
        await expect(chat.page.locator(".is-growing")).to_have_text("One half,")
        go_on.set()
        await chat.wait_settled()
        await expect(chat.answers.locator(".prose")).to_have_text("One half, the other half.")


class TestTwoTabs:
    async def test_on_one_conversation_see_the_same_answer(self, harness: Harness) -> None:
        go_on = asyncio.Event()
        harness.scripts.say("Hello.")
        harness.scripts.say("For both ", Until(go_on.wait), "of you.")
        left = await ChatPage.open(harness)
        await left.send("Hi")
        await left.wait_settled()
        right = ChatPage(await harness.context.new_page())
        await right.page.goto(left.page.url)
        await right.wait_settled()
        await left.send("And now?")
        await expect(right.questions.get_by_text("And now?")).to_be_visible()
        await expect(right.answers.get_by_text("For both")).to_be_visible()
        await expect(left.answers.get_by_text("For both")).to_be_visible()
        go_on.set()
        await left.wait_settled(2)
        await right.wait_settled(2)
        assert await right.drawn_html() == await left.drawn_html()

    async def test_a_message_from_another_device_appears(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness)
        await chat.send("Hi")
        await chat.wait_settled()
        client = await harness.api()
        harness.scripts.say("From elsewhere.")
        await client.ask("Asked elsewhere", conversation_id=chat.page.url.rpartition("/")[2])
        await expect(chat.answers.get_by_text("From elsewhere.")).to_be_visible()
        await chat.wait_settled(2)


class TestQueuedMessages:
    async def test_are_shown_after_a_reload_and_in_another_tab_also_those_of_other_clients(
        self, harness: Harness
    ) -> None:
        go_on = asyncio.Event()
        harness.scripts.say("First ", Until(go_on.wait), "answer.")
        harness.scripts.say("Second answer.")
        chat = await ChatPage.open(harness)
        await chat.send("One")
        await expect(chat.answers.get_by_text("First")).to_be_visible()
        other_client = await harness.api()
        conversation_id = chat.page.url.rpartition("/")[2]
        for text in ("Two", "Three"):
            await other_client.ask(text, conversation_id=conversation_id, if_busy="enqueue", background=True)
        await chat.page.reload()
        other_tab = ChatPage(await harness.context.new_page())
        await other_tab.page.goto(chat.page.url)
        for each in (chat, other_tab):
            await expect(each.questions.locator(".bubble")).to_have_text(["One", "Two", "Three"])
            await expect(each.page.get_by_text("Queued", exact=True)).to_have_count(2)
        await chat.page.get_by_role("button", name="Do not send").last.click()
        for each in (chat, other_tab):
            await expect(each.questions.locator(".bubble")).to_have_text(["One", "Two"])
        go_on.set()
        for each in (chat, other_tab):
            await expect(each.answers.get_by_text("Second answer.")).to_be_visible()
            await each.wait_settled(2)
            await expect(each.page.get_by_text("Queued", exact=True)).to_have_count(0)
            await expect(each.questions.locator(".bubble")).to_have_text(["One", "Two"])


class TestNetwork:
    async def test_a_message_that_was_sent_offline_is_sent_when_the_network_is_back(self, harness: Harness) -> None:
        go_on = asyncio.Event()
        harness.scripts.say("Before, ", Until(go_on.wait), "after.")
        harness.scripts.say("The next answer.")
        chat = await ChatPage.open(harness)
        await chat.send("Go")
        await expect(chat.answers.get_by_text("Before,")).to_be_visible()
        await harness.context.set_offline(True)
        await expect(chat.page.get_by_text("You are offline.")).to_be_visible()
        await chat.send("Sent while offline")
        await expect(chat.page.get_by_text("Sending…")).to_be_visible()
        go_on.set()
        await harness.context.set_offline(False)
        await expect(chat.answers.get_by_text("The next answer.")).to_be_visible()
        await chat.wait_settled(2)
        await expect(chat.page.get_by_text("You are offline.")).to_have_count(0)
        assert await chat.answers.locator(".prose").all_inner_texts() == ["Before, after.", "The next answer."]
        client = await harness.api()
        conversation = await client.read(f"/v1/conversations/{chat.page.url.rpartition('/')[2]}")
        assert conversation["turn_count"] == 2

    async def test_a_broken_stream_is_resumed_without_repeated_words(self, harness: Harness) -> None:
        cut, go_on = asyncio.Event(), asyncio.Event()
        harness.scripts.say("Before the cut, ", Until(cut.wait), "in between, ", Until(go_on.wait), "after the cut.")
        chat = await ChatPage.open(harness)
        await chat.send("Go")
        growing = chat.page.locator(".is-growing")
        await expect(growing).to_have_text("Before the cut,")
        for stream in list(harness.server.server.server_state.connections):
            stream.transport.abort()
        cut.set()
        await expect(growing).to_have_text("Before the cut, in between,")
        go_on.set()
        await chat.wait_settled()
        await expect(chat.answers.locator(".prose")).to_have_text("Before the cut, in between, after the cut.")


@asynccontextmanager
async def run_server(folder: Path, port: int) -> AsyncIterator[tuple[asyncio.subprocess.Process, int, str]]:
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
        output = b""
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            while not (found := re.search(rb"(http://[^:]+:(\d+)/signin\S+)", output)):
                line = await process.stdout.readline()
                assert line, output
                output += line
        yield process, int(found[2]), found[1].decode()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class TestKilledServer:
    async def test_finishes_the_answer_after_its_restart(
        self, built_page: Path, browser: Browser, tmp_path: Path
    ) -> None:
        context = await browser.new_context()
        page = await context.new_page()
        chat = ChatPage(page)
        async with run_server(tmp_path, 0) as (process, port, link):
            await page.goto(link)
            await chat.send("Say 250 words, please.")
            await expect(chat.page.locator(".is-growing")).to_contain_text("stream goes on", timeout=TIMEOUT_MS)
            process.send_signal(signal.SIGKILL)
            await process.wait()
        await expect(page.get_by_text("Reconnecting…")).to_be_visible(timeout=TIMEOUT_MS)
        async with run_server(tmp_path, port):
            await expect(chat.answers).to_have_count(1, timeout=TIMEOUT_MS)
            await expect(page.locator("[aria-busy=true]")).to_have_count(0, timeout=2 * TIMEOUT_MS)
            text = await chat.answers.locator(".prose").inner_text()
            assert len(text.split()) == 250
            await page.reload()
            await expect(chat.answers.locator(".prose")).to_have_text(text, timeout=TIMEOUT_MS)
        await context.close()
