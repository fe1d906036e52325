"""Files open beside the conversation, drawn as what they are; a conversation and a workspace list theirs."""

from pathlib import Path
from typing import Any

from playwright.async_api import FilePayload, Route, expect

from tests.browser.harness import ChatPage, Harness, png
from tests.browser.stored_conversations import long_conversation
from tests.browser.test_untrusted_content import TRIES, counting_server
from tests.browser.xss_payloads import ELSEWHERE, HTML, SVG

CSV = 'name;city\r\n"Ann; of Bern";Bern\r\nBob;"Ba""sel"\r\n'


async def conversation_with(harness: Harness, *files: tuple[str, bytes, str]) -> tuple[str, dict[str, str]]:
    """A conversation with these files; the ids of the files by name."""
    conversation_id = await long_conversation(harness, 1)
    client = await harness.api()
    ids = {}
    for name, data, kind in files:
        response = await client.post(f"/v1/conversations/{conversation_id}/files", files={"file": (name, data, kind)})
        assert response.status_code == 201, response.text
        ids[name] = response.json()["data"][0]["id"]
    return conversation_id, ids


def panel_of(chat: ChatPage) -> Any:
    return chat.page.get_by_role("complementary", name="Source")


class TestPanel:
    async def test_draws_markdown_tables_pages_pictures_and_text(self, harness: Harness) -> None:
        conversation_id, ids = await conversation_with(
            harness,
            ("notes.md", b"# Tides\n\nTwice a **day**.", "text/markdown"),
            ("people.csv", CSV.encode(), "text/csv"),
            ("page.html", b"<h1>Hello</h1><script>document.body.innerHTML = 'ran'</script>", "text/html"),
            ("chart.png", png(), "image/png"),
            ("plain.txt", b"Just words.", "text/plain"),
        )
        chat = await ChatPage.open(harness, f"/c/{conversation_id}/files/{ids['notes.md']}")
        panel = panel_of(chat)
        await expect(panel.get_by_role("heading", name="Tides")).to_be_visible()
        await panel.get_by_role("button", name="Text").click()
        await expect(panel.locator("pre")).to_contain_text("# Tides")
        await chat.page.goto(f"{harness.server.url}/c/{conversation_id}/files/{ids['people.csv']}")
        await expect(panel.get_by_role("columnheader")).to_have_text(["name", "city"])
        await expect(panel.get_by_role("cell")).to_have_text(["Ann; of Bern", "Bern", "Bob", 'Ba"sel'])
        await chat.page.goto(f"{harness.server.url}/c/{conversation_id}/files/{ids['page.html']}")
        drawn = panel.frame_locator(".preview iframe").frame_locator("iframe")
        await expect(drawn.get_by_role("heading", name="Hello")).to_be_visible()
        await chat.page.goto(f"{harness.server.url}/c/{conversation_id}/files/{ids['chart.png']}")
        await expect(panel.locator("img")).to_have_js_property("naturalWidth", 64)
        await chat.page.goto(f"{harness.server.url}/c/{conversation_id}/files/{ids['plain.txt']}")
        await expect(panel.get_by_text("Just words.")).to_be_visible()
        await expect(panel.get_by_role("button", name="Text")).to_have_count(0)

    async def test_hostile_files_run_nothing_and_reach_no_server(self, harness: Harness) -> None:
        async with counting_server() as (elsewhere, connections):
            page = "\n".join([*[one for one in HTML if "\x00" not in one and "frameset" not in one], TRIES])
            svg = SVG[4]
            markdown = "\n\n".join([*HTML[:20], f"![x]({ELSEWHERE}/pixel.png)", f"```html\n{TRIES}\n```"])
            conversation_id, ids = await conversation_with(
                harness,
                ("page.html", page.replace(ELSEWHERE, elsewhere).encode(), "text/html"),
                ("notes.md", markdown.replace(ELSEWHERE, elsewhere).encode(), "text/markdown"),
                ("rows.csv", f"a,b\n<img src={elsewhere}>,<script>window.__ran=1</script>\n".encode(), "text/csv"),
            )
            client = await harness.api()
            made = await client.post(
                f"/v1/conversations/{conversation_id}/files",
                files={"file": ("x.svg", svg.replace(ELSEWHERE, elsewhere).encode(), "image/svg+xml")},
            )
            if made.status_code == 201:
                ids["x.svg"] = made.json()["data"][0]["id"]
            chat = await ChatPage.open(harness, f"/c/{conversation_id}")
            for name, file_id in ids.items():
                await chat.page.goto(f"{harness.server.url}/c/{conversation_id}/files/{file_id}")
                await expect(panel_of(chat).get_by_role("heading", name=name, level=2)).to_be_visible()
                drawn = ".preview iframe[data-state=drawn], .preview-failed, .panel-text, .table.is-rows"
                await expect(panel_of(chat).locator(drawn).first).to_be_visible()
                await chat.page.wait_for_timeout(500)
                for frame in chat.page.frames:
                    assert frame.url.startswith((f"{harness.server.url}/", "about:srcdoc")), frame.url
                    assert await frame.evaluate("window.__ran ?? 0") == 0
            assert connections == []
        harness.foreign_requests.clear()  # browsers announce requests that the policy refuses
        harness.console_errors.clear()


class TestChips:
    async def test_open_a_file_in_the_panel_and_pictures_over_the_page(self, harness: Harness) -> None:
        conversation_id, ids = await conversation_with(
            harness,
            ("notes.txt", b"Some notes.", "text/plain"),
            ("one.png", png(), "image/png"),
            ("two.png", png(80, 60), "image/png"),
        )
        client = await harness.api()
        await client.ask("Look", conversation_id=conversation_id, attachment_ids=list(ids.values()))
        chat = await ChatPage.open(harness, f"/c/{conversation_id}")
        asked = chat.questions.last
        await expect(asked.locator(".chip-reading").first).to_have_text("The model reads it")
        await asked.get_by_role("link", name="notes.txt").first.click()
        await expect(panel_of(chat).get_by_text("Some notes.")).to_be_visible()
        await chat.page.keyboard.press("Escape")
        await asked.get_by_role("button", name="one.png").click()
        dialog = chat.page.get_by_role("dialog")
        await expect(dialog.locator("img")).to_have_js_property("naturalWidth", 64)
        await chat.page.keyboard.press("ArrowRight")
        await expect(dialog.locator("img")).to_have_js_property("naturalWidth", 80)
        await expect(dialog.get_by_role("button", name="Next picture")).to_be_disabled()
        await chat.page.keyboard.press("Escape")
        await expect(dialog).to_have_count(0)


class TestListOfAConversation:
    async def test_has_all_its_files_and_saves_one_for_the_workspace(self, harness: Harness) -> None:
        conversation_id, _ = await conversation_with(
            harness, ("notes.txt", b"Some notes.", "text/plain"), ("chart.png", png(), "image/png")
        )
        chat = await ChatPage.open(harness, f"/c/{conversation_id}")
        await chat.page.locator("summary[aria-label='Conversation menu']").click()
        await chat.page.get_by_role("link", name="Files", exact=True).click()
        panel = panel_of(chat)
        await expect(panel.locator(".item-text a")).to_have_text(["notes.txt", "chart.png"])
        await expect(panel).to_contain_text("2 files")
        await panel.get_by_role("button", name="Save notes.txt for the workspace").click()
        await expect(chat.page.get_by_text("Saved in the workspace’s Files.")).to_be_visible()
        await panel.get_by_role("link", name="notes.txt", exact=True).click()
        await expect(panel.get_by_text("Some notes.")).to_be_visible()
        await chat.page.go_back()
        await expect(panel.locator(".item-text a")).to_have_count(2)
        client = await harness.api()
        assert [file["name"] for file in (await client.read("/v1/files"))["data"]] == ["notes.txt"]


class TestWorkspaceFiles:
    async def test_are_uploaded_with_a_retry_opened_and_deleted(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness, "/settings/files")
        await expect(chat.page.get_by_text("There are no files yet.")).to_be_visible()
        announced, deleted, fails = list[str](), list[str](), [True]
        kept = {"POST": announced, "DELETE": deleted}
        chat.page.on(
            "request",
            lambda request: (
                kept[request.method].append(request.url)
                if request.method in kept and not request.url.endswith(("/save", "/complete"))
                else None
            ),
        )

        async def fail_once(route: Route) -> None:
            if fails:
                await route.abort()
            else:
                await route.continue_()

        await chat.page.route("**/v1/files/*/save", fail_once)
        async with chat.page.expect_file_chooser() as choosing:
            await chat.page.get_by_role("button", name="Upload files").click()
        payload: FilePayload = {"name": "plan.md", "mimeType": "text/markdown", "buffer": b"# Plan"}
        await (await choosing.value).set_files([payload])
        retry = chat.page.get_by_role("button", name="Upload plan.md again")
        await expect(retry).to_be_visible()
        fails.clear()
        await retry.click()
        await chat.page.get_by_role("link", name="plan.md", exact=True).click()
        await expect(chat.page.get_by_role("heading", name="Plan", exact=True)).to_be_visible()
        async with chat.page.expect_download() as downloading:
            await chat.page.get_by_role("link", name="Download").click()
        assert Path(await (await downloading.value).path()).read_bytes() == b"# Plan"
        await chat.page.get_by_role("link", name="Back", exact=True).click()
        await chat.page.get_by_role("button", name="Delete the file plan.md").click()
        await chat.page.get_by_role("button", name="Yes").click()
        await expect(chat.page.get_by_text("There are no files yet.")).to_be_visible()
        # Of the upload that failed, and of the one that was saved, nothing else was kept.
        assert (len(announced), len(deleted)) == (2, 3)
