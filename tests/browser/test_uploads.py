"""Uploads go straight to the bucket where there is one, are tried again, and leave nothing behind if they fail."""

import asyncio
import secrets
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Route, expect

from tests import buckets
from tests.api.harness import settings_for
from tests.browser.harness import ChatPage, Harness, png
from tests.browser.test_attachments import attach_file
from turnkeep.config import Settings

DATA = b"Some notes. " * 100_000


class TestABucket:
    @pytest.fixture
    def origin(self, monkeypatch: pytest.MonkeyPatch) -> str:
        environ = buckets.shared_environ()
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        return environ["AWS_ENDPOINT_URL"]

    @pytest.fixture
    def settings(self, tmp_path: Path, origin: str) -> Settings:
        assert origin
        return settings_for(tmp_path, files_url=f"s3://{buckets.BUCKET}/{secrets.token_hex(8)}")

    async def test_gets_the_bytes_straight_from_the_page(self, harness: Harness, origin: str) -> None:
        chat = await ChatPage.open(harness)
        sent: list[tuple[str, str]] = []
        chat.page.on("request", lambda request: sent.append((request.method, request.url)))
        done = chat.page.locator(".uploads [data-state=done]")
        await attach_file(chat.page, "notes.txt", "text/plain", DATA)
        await attach_file(chat.page, "chart.png", "image/png", png())
        await expect(done).to_have_count(2)
        puts = [url for method, url in sent if method == "PUT"]
        assert len(puts) == 2
        assert all(url.startswith(f"{origin}/") for url in puts)
        await chat.send("Look at these")
        await chat.wait_settled()
        await expect(chat.questions.locator("img")).to_have_js_property("naturalWidth", 64)
        async with chat.page.expect_download() as downloading:
            await chat.questions.get_by_role("link", name="Download notes.txt").click()
        assert Path(await (await downloading.value).path()).read_bytes() == DATA

    async def test_is_named_by_the_policy_of_the_document_and_of_nothing_else(
        self, harness: Harness, origin: str
    ) -> None:
        async with httpx.AsyncClient(base_url=harness.server.url, trust_env=False) as client:
            policy = (await client.get("/c/conv_1")).headers["content-security-policy"]
        assert f"connect-src 'self' {origin};" in policy
        assert policy.count(origin) == 1

    async def test_that_cannot_be_reached_from_the_page_is_reached_through_the_server(
        self, harness: Harness, origin: str
    ) -> None:
        chat = await ChatPage.open(harness)
        await chat.page.route(f"{origin}/**", lambda route: route.abort())
        await attach_file(chat.page, "notes.txt", "text/plain", DATA)
        await expect(chat.page.locator(".uploads [data-state=done]")).to_have_count(1)
        [file] = await harness.server.runtime.store.all_files()
        assert (file.status, file.size) == ("ready", len(DATA))


class TestAServer:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        """Without a bucket."""
        return settings_for(tmp_path)

    async def test_has_no_bucket_in_its_policy(self, harness: Harness) -> None:
        async with httpx.AsyncClient(base_url=harness.server.url, trust_env=False) as client:
            assert "connect-src 'self';" in (await client.get("/")).headers["content-security-policy"]

    async def test_an_upload_whose_connection_breaks_is_tried_again(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness)
        failures = [None, None]

        async def fail_at_first(route: Route) -> None:
            if failures:
                failures.pop()
                await route.abort()
            else:
                await route.continue_()

        await chat.page.route("**/v1/files/*/content?*", fail_at_first)
        await attach_file(chat.page, "notes.txt", "text/plain", DATA)
        await expect(chat.page.locator(".uploads [data-state=done]")).to_have_count(1)
        assert failures == []

    async def test_an_upload_that_failed_can_be_tried_again_and_leaves_nothing(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness)
        await chat.page.route("**/v1/files/*/content?*", lambda route: route.abort())
        await attach_file(chat.page, "notes.txt", "text/plain", DATA)
        failed = chat.page.locator(".uploads [data-state=failed]")
        await expect(failed.get_by_role("alert")).to_contain_text("The connection broke during the upload.")
        await expect_no_files(harness)
        await chat.page.unroute_all()
        await chat.page.get_by_role("button", name="Upload notes.txt again").click()
        await expect(chat.page.locator(".uploads [data-state=done]")).to_have_count(1)
        await chat.send("Look")
        await chat.wait_settled()
        await expect(chat.questions.locator(".chip-name")).to_have_text("notes.txt")

    async def test_an_upload_that_is_removed_or_refused_leaves_nothing(self, harness: Harness) -> None:
        chat = await ChatPage.open(harness)
        await attach_file(chat.page, "tool.exe", "application/x-msdownload", b"MZ" + bytes(400))
        await expect(chat.page.locator(".uploads [data-state=failed]")).to_have_count(1)
        await expect_no_files(harness)
        await chat.page.get_by_role("button", name="Remove tool.exe").click()
        await chat.page.route("**/v1/files/*/content?*", lambda _: None)  # it never ends
        await attach_file(chat.page, "notes.txt", "text/plain", DATA)
        await expect(chat.page.locator(".uploads [data-state=uploading]")).to_have_count(1)
        await chat.page.get_by_role("button", name="Remove notes.txt").click()
        await expect(chat.page.locator(".uploads")).to_have_count(0)
        await expect_no_files(harness)


async def expect_no_files(harness: Harness) -> None:
    """The server has no row of a file any more, or will have none in a moment."""
    async with asyncio.timeout(60):
        while await harness.server.runtime.store.all_files():  # noqa: ASYNC110 - the page deletes it beside
            await asyncio.sleep(0.05)
