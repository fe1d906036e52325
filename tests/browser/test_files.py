"""Files open beside the conversation, drawn as what they are; a conversation and a workspace list theirs."""

from pathlib import Path
from typing import Any

from playwright.async_api import FilePayload, FrameLocator, Locator, Route, expect

from tests.browser.harness import ChatPage, Harness, png
from tests.browser.pdf_files import chinese_pdf, hostile_pdf, locked_pdf, scans_pdf
from tests.browser.stored_conversations import long_conversation
from tests.browser.test_untrusted_content import TRIES, counting_server
from tests.browser.xss_payloads import ELSEWHERE, HTML, SVG
from tests.knowledge.test_file_tools import a_pdf

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


PDF = "application/pdf"
TWELVE = a_pdf(*(f"Words of sheet {number}." for number in range(1, 13)))
INK = """canvas => {
  const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const dark = [];
  for (let at = 0; at < data.length; at += 4) if (data[at] + data[at + 1] + data[at + 2] < 200) dark.push(at / 4);
  const left = dark.reduce((so, at) => Math.min(so, at % width), width);
  const right = dark.reduce((so, at) => Math.max(so, at % width), 0);
  const scale = canvas.clientWidth / width;
  return dark.length && { left: left * scale, right: (right + 1) * scale, top: Math.floor(dark[0] / width) * scale,
    bottom: (Math.floor(dark.at(-1) / width) + 1) * scale };
}"""
"""Where a canvas is dark; 0 if it is blank."""


def pages_of(chat: ChatPage) -> FrameLocator:
    return panel_of(chat).frame_locator(".is-pdf iframe[data-state=drawn]")  # type: ignore[no-any-return]


def sheet(pages: FrameLocator, number: int) -> Locator:
    return pages.locator(".pdf section").nth(number - 1)


async def fits_in_width(chat: ChatPage) -> bool:
    """Whether nothing must be scrolled sideways."""
    fits = "all => all.every(one => one.scrollWidth <= one.clientWidth)"
    return bool(await chat.page.locator("html, .panel").evaluate_all(fits))


class TestPdf:
    async def test_is_drawn_page_by_page_with_words_to_select(self, harness: Harness) -> None:
        conversation_id, ids = await conversation_with(harness, ("tides.pdf", TWELVE, PDF))
        chat = await ChatPage.open(harness, f"/c/{conversation_id}/files/{ids['tides.pdf']}")
        pages = pages_of(chat)
        names = [f"Page {number} of 12" for number in range(1, 13)]
        await expect(pages.get_by_role("heading")).to_have_text(names)
        words = sheet(pages, 1).get_by_text("Words of sheet 1.")
        await expect(words).to_be_visible()
        canvas = sheet(pages, 1).locator("canvas")
        ink, box, place = await canvas.evaluate(INK), await words.bounding_box(), await canvas.bounding_box()
        assert ink
        assert box is not None
        assert place is not None
        assert abs(box["x"] - place["x"] - ink["left"]) < 4, "the words lie on the drawing"
        assert abs(box["x"] + box["width"] - place["x"] - ink["right"]) < 12
        assert box["y"] - place["y"] < ink["top"] < ink["bottom"] < box["y"] - place["y"] + box["height"] + 8
        selected = "one => { getSelection().selectAllChildren(one); return getSelection().toString(); }"
        assert await words.evaluate(selected) == "Words of sheet 1."
        # Pages that are far away are not drawn: neither those that nobody has seen, nor those that were left.
        await expect(pages.locator("section canvas")).not_to_have_count(12)
        await expect(sheet(pages, 12).locator("canvas")).to_have_count(0)
        await sheet(pages, 12).get_by_role("heading").scroll_into_view_if_needed()
        await expect(sheet(pages, 12).get_by_text("Words of sheet 12.")).to_be_visible()
        assert await sheet(pages, 12).locator("canvas").evaluate(INK)
        await expect(canvas).to_have_count(0)
        await expect(words).to_be_attached()
        await panel_of(chat).get_by_role("button", name="Text").click()
        await expect(panel_of(chat).get_by_role("heading", name="Page 12", exact=True)).to_be_visible()
        await expect(panel_of(chat).get_by_text("Words of sheet 12.")).to_be_visible()
        await expect(panel_of(chat).locator("iframe")).to_have_count(0)

    async def test_is_as_sharp_as_the_screen_and_as_wide_as_a_phone(self, harness: Harness) -> None:
        conversation_id, ids = await conversation_with(harness, ("tides.pdf", TWELVE, PDF))
        chat = await ChatPage.open(harness, f"/c/{conversation_id}/files/{ids['tides.pdf']}")
        devtools = await chat.page.context.new_cdp_session(chat.page)
        metrics = {"width": 390, "height": 844, "deviceScaleFactor": 3, "mobile": False}
        await devtools.send("Emulation.setDeviceMetricsOverride", metrics)
        await chat.page.reload()
        canvas = sheet(pages_of(chat), 1).locator("canvas")
        await expect(canvas).to_be_visible()
        size = await canvas.evaluate("one => [one.width, one.clientWidth * devicePixelRatio, devicePixelRatio]")
        assert size[2] == 3
        assert abs(size[0] - size[1]) <= 3
        assert await fits_in_width(chat)
        # Turned, the page is drawn again for the new width.
        await devtools.send("Emulation.setDeviceMetricsOverride", metrics | {"width": 844, "height": 390})
        await expect(canvas).not_to_have_js_property("width", size[0])
        assert await fits_in_width(chat)
        assert await canvas.evaluate(INK)

    async def test_draws_scans_and_characters_whose_font_is_missing(self, harness: Harness) -> None:
        conversation_id, ids = await conversation_with(
            harness, ("scans.pdf", scans_pdf(), PDF), ("chinese.pdf", chinese_pdf("你好世界"), PDF)
        )
        chat = await ChatPage.open(harness, f"/c/{conversation_id}/files/{ids['scans.pdf']}")
        for number, kind in enumerate(("JPEG 2000", "JBIG2"), start=1):
            canvas = sheet(pages_of(chat), number).locator("canvas")
            await expect(canvas).to_be_attached()
            ink, width = await canvas.evaluate(INK), await canvas.evaluate("one => one.clientWidth")
            assert ink, kind
            edges = [round(ink[side] / width, 1) for side in ("left", "right", "top", "bottom")]
            assert edges == [0.3, 0.7, 0.3, 0.7], kind
        await chat.page.goto(f"{harness.server.url}/c/{conversation_id}/files/{ids['chinese.pdf']}")
        await expect(pages_of(chat).get_by_text("你好世界")).to_be_visible()

    async def test_says_so_where_it_is_locked_or_broken(self, harness: Harness) -> None:
        broken = b"%PDF-1.7\n" + b"This is not what a PDF has in it.\n" * 9
        conversation_id, ids = await conversation_with(
            harness, ("locked.pdf", locked_pdf(), PDF), ("broken.pdf", broken, PDF)
        )
        chat = await ChatPage.open(harness, f"/c/{conversation_id}")
        for name, said in (("locked.pdf", "asks for a password"), ("broken.pdf", "cannot be drawn")):
            await chat.page.goto(f"{harness.server.url}/c/{conversation_id}/files/{ids[name]}")
            await expect(panel_of(chat).get_by_role("status")).to_contain_text(said)
            await expect(panel_of(chat).get_by_role("link", name="Download")).to_be_visible()
            await expect(panel_of(chat).get_by_role("button", name="Text")).to_be_enabled()

    async def test_that_is_hostile_runs_nothing_and_reaches_no_server(self, harness: Harness) -> None:
        async with counting_server() as (elsewhere, connections):
            conversation_id, ids = await conversation_with(harness, ("hostile.pdf", hostile_pdf(elsewhere), PDF))
            chat = await ChatPage.open(harness, f"/c/{conversation_id}")
            opened, asked = list[str](), list[str]()
            harness.context.on("page", lambda page: opened.append(page.url))
            chat.page.on("dialog", lambda dialog: asked.append(dialog.message))
            address = f"{harness.server.url}/c/{conversation_id}/files/{ids['hostile.pdf']}"
            await chat.page.goto(address)
            pages = pages_of(chat)
            for number, words in ((1, "In another font."), (2, "<img src=x onerror=window.__ran=1>")):
                await expect(sheet(pages, number).get_by_text(words)).to_be_attached()
                assert await sheet(pages, number).locator("canvas").evaluate(INK)
                # Links and buttons of the file cover its pages.
                await sheet(pages, number).locator(".sheet").click()
            live = "a, area, button, input, textarea, select, form, img, svg, iframe, object, embed, audio, video"
            await expect(pages.locator(live)).to_have_count(0)
            await expect(pages.locator("script, link")).to_have_count(2)  # that of the frame, and pdf.js
            await chat.page.wait_for_timeout(500)
            for frame in chat.page.frames:
                assert frame.url.startswith(f"{harness.server.url}/"), frame.url
                assert await frame.evaluate("window.__ran ?? 0") == 0
            assert chat.page.url == address
            assert (connections, opened, asked, harness.foreign_requests) == ([], [], [], [])


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
