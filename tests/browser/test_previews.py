"""Answers that render: previews of Mermaid, SVG and HTML, copies for other programs, versions, and readable steps."""

import asyncio
import csv
import io
from pathlib import Path

from playwright.async_api import FrameLocator, expect

from tests.browser.harness import ChatPage, Harness, expect_copied
from turnkeep.providers.scripted import Call, OutOfTokens, Until

MERMAID = "graph TD\n  A[Question] --> B{Known?}\n  B -->|yes| C[Answer]\n  B -->|no| D[Search]"
SVG = '<svg width="120" height="60" viewBox="0 0 120 60"><rect width="120" height="60" fill="teal"/></svg>'
HTML = (
    "<!doctype html><title>Prices</title><style>h1 { color: rgb(200, 30, 30) }</style><h1>Prices</h1>"
    "<a href='https://evil.example/'>more</a><script>document.body.textContent = 'ran'</script>"
)


def block(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```\n\n"


async def opened_preview(chat: ChatPage, at: int = 0) -> FrameLocator:
    figure = chat.answers.locator("figure.code").nth(at)
    await figure.get_by_role("button", name="Preview").click()
    await expect(figure.locator("pre")).to_be_hidden()
    return figure.frame_locator(".preview iframe")


CONFIRMED = """() => new Promise((resolve) =>
  new MutationObserver(() => document.querySelector("button[aria-label=Copied]") && resolve(true))
    .observe(document.body, { subtree: true, attributes: true }))"""
"""Waits until a button says that something was copied, which it does for a moment."""


class TestPreviews:
    async def test_draw_a_diagram_a_picture_and_a_page(self, harness: Harness) -> None:
        harness.scripts.say(block("mermaid", MERMAID) + block("svg", SVG) + block("html", HTML) + block("css", "a {}"))
        chat = await ChatPage.open(harness)
        await chat.send("Draw")
        await chat.wait_settled()
        await expect(chat.answers.get_by_role("button", name="Preview")).to_have_count(3)
        await expect(chat.page.locator("iframe")).to_have_count(0)
        diagram = await opened_preview(chat, 0)
        await expect(diagram.locator("svg").get_by_text("Known?")).to_be_visible()
        picture = await opened_preview(chat, 1)
        await expect(picture.locator("img")).to_have_js_property("naturalWidth", 120)
        page = (await opened_preview(chat, 2)).frame_locator("iframe")
        await expect(page.locator("h1")).to_have_css("color", "rgb(200, 30, 30)")
        await expect(page.get_by_text("more")).not_to_have_attribute("href", "https://evil.example/")
        await expect(chat.answers.get_by_text("Scripts do not run here")).to_be_visible()
        await chat.answers.get_by_role("button", name="Preview").first.click()
        await expect(chat.answers.locator("pre").first).to_be_visible()
        await expect(chat.page.locator(".preview")).to_have_count(2)

    async def test_a_frame_is_as_tall_as_its_drawing(self, harness: Harness) -> None:
        harness.scripts.say(block("svg", SVG.replace('height="60"', 'height="300"')))
        chat = await ChatPage.open(harness)
        await chat.send("Draw")
        await chat.wait_settled()
        await opened_preview(chat)
        await expect(chat.page.locator(".preview")).to_have_css("height", "332px")

    async def test_what_cannot_be_drawn_says_why(self, harness: Harness) -> None:
        harness.scripts.say(block("mermaid", "graph TD\n  A --") + block("svg", "<svg><broken"))
        chat = await ChatPage.open(harness)
        await chat.send("Draw")
        await chat.wait_settled()
        for button in await chat.answers.get_by_role("button", name="Preview").all():
            await button.click()
        notes = chat.answers.get_by_text("This cannot be drawn.")
        await expect(notes).to_have_count(2)
        await expect(notes.first).to_contain_text("Parse error")

    async def test_nothing_is_drawn_while_the_block_is_written(self, harness: Harness) -> None:
        go_on = asyncio.Event()
        first, rest = MERMAID.split("\n", 1)
        harness.scripts.say(f"- In a list:\n  ```mermaid\n  {first}\n", Until(go_on.wait), f"  {rest}\n  ```\n\nDone.")
        chat = await ChatPage.open(harness)
        await chat.send("Draw")
        await expect(chat.answers.locator("figure.code")).to_contain_text(first)
        await expect(chat.answers.get_by_role("button", name="Preview")).to_have_count(0)
        await expect(chat.answers.get_by_role("button", name="Wrap long lines")).to_have_count(0)
        go_on.set()
        await chat.wait_settled()
        await expect(chat.answers.get_by_role("button", name="Preview")).to_have_count(1)

    async def test_the_frame_has_no_origin_and_no_network(self, harness: Harness) -> None:
        harness.scripts.say(block("mermaid", MERMAID))
        chat = await ChatPage.open(harness)
        await chat.send("Draw")
        await chat.wait_settled()
        await expect((await opened_preview(chat)).locator("svg").first).to_be_visible()
        [frame] = [frame for frame in chat.page.frames if frame.url.endswith("/preview")]
        assert await frame.evaluate("self.origin") == "null"
        assert "SecurityError" in await frame.evaluate(
            "() => { try { return parent.document.title } catch (e) { return e.name } }"
        )
        assert "SecurityError" in await frame.evaluate(
            "() => { try { return document.cookie } catch (e) { return e.name } }"
        )
        refused = "(address) => fetch(address).then(() => 'loaded', () => 'refused')"
        for address in (f"{harness.server.url}/v1/me", "https://evil.example/"):
            assert await frame.evaluate(refused, address) == "refused"
        harness.console_errors.clear()  # the policy says what it has refused


class TestCode:
    async def test_long_lines_are_wrapped_on_request(self, harness: Harness) -> None:
        harness.scripts.say(block("text", "word " * 100))
        chat = await ChatPage.open(harness)
        await chat.send("Long")
        await chat.wait_settled()
        wrap = chat.answers.get_by_role("button", name="Wrap long lines")
        is_wide = "pre => pre.scrollWidth > pre.clientWidth"
        code = chat.answers.locator("figure.code pre")
        assert await code.evaluate(is_wide)
        await wrap.click()
        await expect(wrap).to_have_attribute("aria-pressed", "true")
        assert not await code.evaluate(is_wide)


class TestCopies:
    async def test_an_answer_is_copied_as_markdown_and_with_its_formatting(self, harness: Harness) -> None:
        text = "# Rain\n\nIt has **two** words, [here](https://example.com/).\n\n"
        text += "| a | b |\n|---|---|\n| 1 | $x^2$ |\n\n```python\nprint(1)\n```"
        harness.scripts.say(text)
        chat = await ChatPage.open(harness)
        await harness.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await chat.send("Copy")
        await chat.wait_settled()
        await expect(chat.answers.locator(".katex").first).to_be_attached()
        confirmed = asyncio.ensure_future(chat.page.evaluate(CONFIRMED))
        await chat.page.get_by_role("button", name="Copy the answer").click()
        await expect_copied(chat.page, text)
        assert await confirmed
        html = await chat.page.evaluate(
            """async () => {
              const [item] = await navigator.clipboard.read();
              return await (await item.getType("text/html")).text();
            }"""
        )
        assert "<strong>two</strong>" in html
        assert 'href="https://example.com/"' in html
        assert "<td>$x^2$</td>" in html
        assert "<pre><code>print(1)</code></pre>" in html
        assert "<button" not in html
        assert "class=" not in html

    async def test_a_table_is_given_to_spreadsheets_without_formulas(self, harness: Harness, tmp_path: Path) -> None:
        harness.scripts.say('| name | sum |\n|---|---|\n| A "big", one | -5 |\n| =HYPERLINK(1) | 1 |')
        chat = await ChatPage.open(harness)
        await harness.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await chat.send("Table")
        await chat.wait_settled()
        rows = [["name", "sum"], ['A "big", one', "-5"], ["'=HYPERLINK(1)", "1"]]
        await chat.page.get_by_role("button", name="Copy the table as CSV").click()
        written = io.StringIO()
        csv.writer(written).writerows(rows)
        await expect_copied(chat.page, written.getvalue().removesuffix("\r\n"))
        async with chat.page.expect_download() as downloading:
            await chat.page.get_by_role("button", name="Download the table as CSV").click()
        download = await downloading.value
        assert download.suggested_filename == "table.csv"
        saved = Path(await download.path()).read_text(encoding="utf-8-sig")
        assert list(csv.reader(io.StringIO(saved))) == rows


class TestEndings:
    async def test_an_answer_that_was_cut_at_the_limit_is_continued(self, harness: Harness) -> None:
        harness.scripts.say("Half of a sen", OutOfTokens())
        harness.scripts.say("tence.")
        chat = await ChatPage.open(harness)
        await chat.send("Go")
        await chat.wait_settled()
        await expect(chat.page.get_by_role("note")).to_contain_text("Cut at the limit")
        await chat.page.get_by_role("button", name="Continue").click()
        await chat.wait_settled(2)
        await expect(chat.answers.last).to_contain_text("tence.")
        await expect(chat.questions.last).to_contain_text("Continue exactly where you stopped.")
        await expect(chat.page.get_by_role("button", name="Continue")).to_have_count(0)


class TestVersions:
    async def test_of_questions_and_answers_are_counted_apart(self, harness: Harness) -> None:
        for text in ("Cats one.", "Cats two.", "Dogs one.", "Dogs two."):
            harness.scripts.say(text)
        chat = await ChatPage.open(harness)
        again = chat.page.get_by_role("button", name="Answer again")
        await chat.send("Cats?")
        await chat.wait_settled()
        await again.click()
        await expect(chat.answers).to_contain_text("Cats two.")
        await chat.wait_settled()
        await expect(chat.answers.get_by_label("Answer: version 2 of 2")).to_be_visible()
        await expect(chat.questions.get_by_label("Question: version")).to_have_count(0)
        await chat.page.get_by_role("button", name="Edit the message").click()
        await chat.page.get_by_label("Your message").fill("Dogs?")
        await chat.page.get_by_role("button", name="Send", exact=True).first.click()
        await expect(chat.answers).to_contain_text("Dogs one.")
        await chat.wait_settled()
        await expect(chat.answers.get_by_label("Answer: version")).to_have_count(0)
        await again.click()
        await expect(chat.answers).to_contain_text("Dogs two.")
        await chat.wait_settled()
        for _ in range(2):
            await expect(chat.questions.get_by_label("Question: version 2 of 2")).to_be_visible()
            await expect(chat.answers.get_by_label("Answer: version 2 of 2")).to_be_visible()
            await chat.page.reload()
        await chat.page.get_by_role("button", name="Previous version of the answer").click()
        await expect(chat.answers).to_contain_text("Dogs one.")
        await chat.page.get_by_role("button", name="Previous version of the question").click()
        await expect(chat.answers).to_contain_text("Cats two.")
        await expect(chat.answers.get_by_label("Answer: version 2 of 2")).to_be_visible()

    async def test_say_which_model_wrote_how_many_tokens_and_how_long_it_took(self, harness: Harness) -> None:
        harness.scripts.say("One.")
        chat = await ChatPage.open(harness)
        await chat.send("Go")
        await chat.wait_settled()
        await chat.page.reload()
        facts = chat.answers.locator(".when")
        client = await harness.api()
        conversation_id = chat.page.url.rsplit("/", 1)[1]
        page = (await client.get(f"/v1/conversations/{conversation_id}/messages")).json()
        answer = page["data"][1]
        assert answer["role"] == "assistant"
        await expect(facts).to_contain_text(answer["model"].split("/", 1)[-1])
        await expect(facts).to_contain_text(f"{answer['usage']['output_tokens']} token")


class TestSteps:
    async def test_a_command_is_shown_as_it_was_typed_and_copied_whole(self, harness: Harness) -> None:
        client = await harness.api()
        agent = (
            await client.post("/v1/agents", json={"name": "Shell", "instructions": "x", "tools": ["run_command"]})
        ).json()
        command = "cat <<EOF\nhello\nEOF\n" + "x" * 30_000
        harness.scripts.say(Call("run_command", {"command": command}))
        harness.scripts.say("Done.")
        conversation_id = (await client.ask("Run it", agent_id=agent["id"]))["conversation_id"]
        chat = await ChatPage.open(harness, f"/c/{conversation_id}")
        await harness.context.grant_permissions(["clipboard-read", "clipboard-write"])
        step = chat.page.locator(".step")
        await expect(step.locator(".step-gist")).to_contain_text("$ cat <<EOF ⏎ hello")
        await step.locator("summary").click()
        shown = step.get_by_role("region", name="Command")
        await expect(shown).to_contain_text("cat <<EOF\nhello\nEOF")
        await expect(shown).not_to_contain_text("\\n")
        assert len(await shown.inner_text()) < 25_000
        await step.get_by_role("button", name="Show all").first.click()
        assert len(await shown.inner_text()) > 30_000
        await step.get_by_role("button", name="Copy: Command").click()
        await expect_copied(chat.page, command)

    async def test_a_step_that_runs_shows_how_long_it_has_been(self, harness: Harness) -> None:
        harness.scripts.say(Call("lookup", {"place": "Bern"}))
        harness.scripts.say("Rain.")
        chat = await ChatPage.open(harness)
        await chat.send("Weather?")
        await expect(chat.page.locator(".step-time")).to_have_text(" 2 s", use_inner_text=False)
        harness.lookup_allowed.set()
        await chat.wait_settled()
        await expect(chat.page.locator(".step-time")).to_contain_text("s")
