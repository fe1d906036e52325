"""Ratings of answers: given with a thumb, with a comment, kept over a reload, and read by admins."""

import csv
import json
from pathlib import Path

import pytest
from playwright.async_api import Locator, expect

from tests.browser.harness import ChatPage, Harness
from tests.browser.test_accessibility import check_with_axe


async def an_answer(harness: Harness) -> ChatPage:
    harness.scripts.say("It rains.")
    chat = await ChatPage.open(harness)
    await chat.send("Weather?")
    await chat.wait_settled()
    return chat


def thumb(chat: ChatPage, name: str) -> Locator:
    return chat.answers.get_by_role("button", name=name)


class TestARating:
    async def test_is_given_with_a_comment_kept_changed_and_taken_back(self, harness: Harness) -> None:
        chat = await an_answer(harness)
        await thumb(chat, "Bad answer").click()
        await expect(thumb(chat, "Bad answer")).to_have_attribute("aria-pressed", "true")
        box = chat.page.get_by_label("What was good or bad about it?")
        await expect(box).to_be_focused()
        await box.fill("It was sunny.")
        await chat.page.get_by_role("button", name="Send the comment").click()
        await expect(box).to_have_count(0)
        await expect(chat.page.get_by_text("Your comment is stored.")).to_be_visible()
        await chat.page.reload()
        await expect(thumb(chat, "Bad answer")).to_have_attribute("aria-pressed", "true")
        await chat.page.get_by_role("button", name="Edit your comment").click()
        await expect(box).to_have_value("It was sunny.")
        await chat.page.keyboard.press("Escape")
        await thumb(chat, "Good answer").click()
        await expect(thumb(chat, "Bad answer")).to_have_attribute("aria-pressed", "false")
        await chat.page.get_by_role("button", name="No comment").click()
        service = await harness.server.operator()
        [stored] = (await service.read("/v1/feedback"))["data"]
        assert (stored["rating"], stored["comment"]) == ("up", "It was sunny.")
        await thumb(chat, "Good answer").click()
        await expect(thumb(chat, "Good answer")).to_have_attribute("aria-pressed", "false")
        await chat.page.reload()
        await expect(thumb(chat, "Good answer")).to_have_attribute("aria-pressed", "false")
        assert (await service.read("/v1/feedback"))["data"] == []

    async def test_that_is_refused_is_taken_back(self, harness: Harness) -> None:
        chat = await an_answer(harness)
        await chat.page.route("**/feedback", lambda route: route.abort())
        await thumb(chat, "Good answer").click()
        await expect(chat.page.get_by_role("alert")).to_be_visible()
        await expect(thumb(chat, "Good answer")).to_have_attribute("aria-pressed", "false")


class TestTheSection:
    async def test_shows_and_exports_all_ratings(self, harness: Harness, tmp_path: Path) -> None:
        chat = await an_answer(harness)
        await thumb(chat, "Bad answer").click()
        await chat.page.get_by_label("What was good or bad about it?").fill("It was sunny.")
        await chat.page.get_by_role("button", name="Send the comment").click()
        await expect(chat.page.get_by_text("Your comment is stored.")).to_be_visible()
        await chat.page.goto(f"{harness.server.url}/settings/feedback")
        items = chat.page.get_by_role("list", name="Feedback").get_by_role("listitem")
        await expect(items).to_contain_text(["It was sunny."])
        await items.get_by_role("link", name="What happened").click()
        await expect(chat.page.get_by_role("heading", name="What happened")).to_be_visible()
        await chat.page.go_back()
        await chat.page.get_by_label("Show").select_option("up")
        await expect(chat.page.get_by_text("There is no feedback yet.")).to_be_visible()
        texts = {}
        for label in ("Export as CSV", "Export as JSON lines"):
            async with chat.page.expect_download() as downloading:
                await chat.page.get_by_role("link", name=label).click()
            download = await downloading.value
            await download.save_as(tmp_path / "file")
            texts[download.suggested_filename] = (tmp_path / "file").read_text(encoding="utf-8")
        assert [row["comment"] for row in csv.DictReader(texts["feedback.csv"].splitlines())] == ["It was sunny."]
        assert json.loads(texts["feedback.jsonl"])["rating"] == "down"

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    async def test_axe_finds_nothing_serious(self, harness: Harness, scheme: str) -> None:
        chat = await an_answer(harness)
        await chat.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
        await thumb(chat, "Bad answer").click()
        await expect(chat.page.get_by_label("What was good or bad about it?")).to_be_visible()
        await check_with_axe(chat.page)
        await chat.page.goto(f"{harness.server.url}/settings/feedback")
        await expect(chat.page.get_by_text("Without a comment")).to_be_visible()
        await check_with_axe(chat.page)
