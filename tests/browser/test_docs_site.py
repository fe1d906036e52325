"""The site of the manual: built offline and strictly, every page reachable, nothing loaded from elsewhere, search and
drawings work in a browser."""

import functools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from filelock import FileLock
from playwright.async_api import Browser, Request, expect

from tests.browser.harness import ROOT, TIMEOUT_MS

HOOKS = ROOT / "scripts/docs_pages.py"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once for all workers, in a process that can reach no proxy and no index."""
    shared = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        shared = shared.parent
    target = shared / "docs-site"
    with FileLock(str(target) + ".lock"):
        if not (target / "index.html").is_file():
            subprocess.run([ROOT / "scripts/web", "modules"], check=True, stdout=subprocess.DEVNULL)
            command = [str(Path(sys.executable).with_name("mkdocs")), "build", "--strict", "--site-dir", str(target)]
            nowhere = "http://127.0.0.1:9"
            env = {**os.environ, "http_proxy": nowhere, "https_proxy": nowhere, "NO_MKDOCS_2_WARNING": "1"}
            built = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600, check=False)
            assert built.returncode == 0, built.stderr
    return target


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Links(HTMLParser):
    """What a page links to, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")
        elif tag == "link" and given.get("rel") in {"stylesheet", "icon", "preload", "modulepreload", "preconnect"}:
            self.loads.append(given.get("href") or "")
        elif tag in {"script", "img", "iframe", "video", "source"} and given.get("src"):
            self.loads.append(given["src"] or "")


def pages(site: Path) -> dict[Path, Links]:
    return {path: Links(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


def target_of(page: Path, link: str, site: Path) -> Path | None:
    """The file that a link leads to; None if it leads elsewhere."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc or not parts.path:
        return None
    start = site if parts.path.startswith("/") else page.parent
    return (start / unquote(parts.path).lstrip("/")).resolve()


class TestPages:
    def test_every_page_of_the_manual_is_on_the_site_and_can_be_reached(self, site: Path) -> None:
        made = pages(site)
        wanted = {site / path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
        wanted = {path.with_name("index.html") if path.name == "README.html" else path for path in wanted}
        assert wanted - set(made) == set()
        reached, ahead = set[Path](), [site / "index.html"]
        while ahead:
            page = ahead.pop()
            if page in reached or page not in made:
                continue
            reached.add(page)
            ahead += [found for link in made[page].links if (found := target_of(page, link, site)) is not None]
        assert set(made) - reached - {site / "404.html"} == set()

    def test_no_link_is_dead(self, site: Path) -> None:
        dead = [
            f"{page.relative_to(site)}: {link}"
            for page, links in pages(site).items()
            if page.name != "404.html"
            for link in [*links.links, *links.loads]
            if (found := target_of(page, link, site)) is not None and not found.exists()
        ]
        assert dead == []

    def test_nothing_is_loaded_from_another_server(self, site: Path) -> None:
        loaded = {load for links in pages(site).values() for load in links.loads}
        assert {load for load in loaded if urlsplit(load).netloc} == set()

    def test_a_new_page_is_in_the_navigation_without_an_entry(self, tmp_path: Path) -> None:
        code = (
            "import runpy, sys\n"
            "class Files:\n"
            "    def documentation_pages(self):\n"
            "        class One:\n"
            "            def __init__(self, uri): self.src_uri = uri\n"
            "        return [One(uri) for uri in sys.argv[2:]]\n"
            "import json; print(json.dumps(runpy.run_path(sys.argv[1])['navigation'](Files())))\n"
        )
        uris = ["README.md", "howto/a-new-page.md", "howto/deploy.md", "newer/one.md", "decisions/README.md"]
        ran = subprocess.run(
            [sys.executable, "-c", code, str(HOOKS), *uris], capture_output=True, text=True, check=True, timeout=60
        )
        assert json.loads(ran.stdout) == [
            {"Manual": "README.md"},
            {"How to": ["howto/deploy.md", "howto/a-new-page.md"]},
            {"Decisions": ["decisions/README.md"]},
            {"Newer": ["newer/one.md"]},
        ]


class TestReference:
    def test_the_search_index_has_every_page_and_what_is_made_from_the_code(self, site: Path) -> None:
        index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))["docs"]
        found = {entry["location"].partition("#")[0] for entry in index}
        made = {str(path.relative_to(site)) for path in pages(site)} - {"404.html"}
        assert made - found - {"index.html"} == set()
        titles = " ".join(entry["title"] for entry in index)
        assert any("TURNKEEP_ADMIN_PORT" in entry["text"] for entry in index)
        assert "POST /v1/turns" in titles
        assert "client.conversations" in titles

    def test_the_openapi_document_can_be_downloaded(self, site: Path) -> None:
        document = json.loads((site / "reference/openapi.json").read_text(encoding="utf-8"))
        assert "/v1/turns" in document["paths"]


class TestInABrowser:
    async def test_search_finds_and_drawings_are_drawn_without_another_server(
        self, browser: Browser, address: str
    ) -> None:
        context = await browser.new_context()
        context.set_default_timeout(TIMEOUT_MS)
        foreign: list[str] = []

        def check(request: Request) -> None:
            if not request.url.startswith((address, "data:", "blob:")):
                foreign.append(request.url)

        context.on("request", check)
        try:
            page = await context.new_page()
            await page.goto(f"{address}/explanation/architecture.html")
            # Material puts the drawing in place of the text, inside a closed shadow root.
            await expect(page.locator("pre.mermaid")).to_have_count(0)
            drawing = page.locator("div.mermaid").first
            await expect(drawing).to_be_visible()
            box = await drawing.bounding_box()
            assert box is not None
            assert box["height"] > 100
            await page.locator("input.md-search__input").click()
            # The page begins to search once its index is loaded, and listens to keys.
            await page.locator("input.md-search__input").press_sequentially("admin port", delay=20)
            # It shows what it finds for the first keys, before the others are typed.
            found = page.locator(".md-search-result__item a")
            await expect(found.first).to_be_visible()
            wanted = page.locator('a[href*="watch-it-in-production"], a[href*="settings"]')
            await expect(found.and_(wanted).first).to_be_attached()
            assert foreign == []
        finally:
            await context.close()
