"""How the server delivers the page: content security policy, caching, size, and the text instead of an unbuilt page."""

import gzip
import re
from pathlib import Path

import httpx
import pytest

from tests.api.harness import ApiServer, settings_for
from turnkeep.api.http.bundled_page import BundledPage

FIRST_LOAD_BYTES = 250_000


class TestBuiltPage:
    async def test_has_a_strict_policy_and_is_revalidated(self, built_page: Path, tmp_path: Path) -> None:
        async with (
            ApiServer.start(settings_for(tmp_path)) as server,
            httpx.AsyncClient(trust_env=False, timeout=120) as client,
        ):
            answer = await client.get(server.url)
            for path in ("/", "/c/conv_1", "/settings", "/settings/keys", "/invite"):
                answer = await client.get(server.url + path)
                assert answer.status_code == 200
                assert answer.headers["content-type"] == "text/html; charset=utf-8"
                assert answer.headers["cache-control"] == "no-cache"
            policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
            assert policy["default-src"] == "'none'"
            assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
            assert "unsafe" not in answer.headers["content-security-policy"]
            assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=", answer.text)
            head = await client.head(server.url)
            assert (head.status_code, head.content) == (200, b"")
            again = await client.get(server.url, headers={"if-none-match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
            assert "content-length" not in again.headers

    async def test_assets_are_cached_for_a_year_and_compressed(self, built_page: Path, tmp_path: Path) -> None:
        async with (
            ApiServer.start(settings_for(tmp_path)) as server,
            httpx.AsyncClient(trust_env=False, timeout=120) as client,
        ):
            document = (await client.get(server.url)).text
            script = re.search(r'src="(/assets/[^"]+\.js)"', document)
            assert script is not None
            asset = await client.get(server.url + script[1])
            assert asset.headers["cache-control"] == "public, max-age=31536000, immutable"
            assert asset.headers["content-encoding"] == "gzip"
            assert asset.headers["content-type"].startswith("text/javascript")
            assert (await client.get(f"{server.url}/assets/none.js")).status_code == 404
            for path in ("/nothing", "/assets/../../pyproject.toml", "/v1/nothing"):
                assert (await client.get(server.url + path)).status_code == 404
            assert (await client.post(server.url)).status_code in {404, 405}

    def test_loads_at_most_a_quarter_of_a_megabyte_of_script(self, built_page: Path) -> None:
        document = (built_page / "index.html").read_text(encoding="utf-8")
        first = set(re.findall(r'(?:src|href)="/assets/([^"]+\.js)"', document))
        todo, loaded = set(first), set[str]()
        while todo:
            name = todo.pop()
            loaded.add(name)
            text = (built_page / "assets" / name).read_text(encoding="utf-8")
            todo |= set(re.findall(r'(?:^|[;}])import(?:[^"(]*from)?"\./([^"]+\.js)"', text)) - loaded
        assert (
            sum(len(gzip.compress((built_page / "assets" / name).read_bytes())) for name in loaded) <= FIRST_LOAD_BYTES
        )

    def test_loads_nothing_from_another_origin(self, built_page: Path) -> None:
        for file in built_page.rglob("*.css"):
            assert not re.search(r"url\(\s*['\"]?(?:https?:)?//", file.read_text(encoding="utf-8")), file.name


class TestUnbuiltPage:
    async def test_is_replaced_by_a_text_that_says_how_to_build_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("turnkeep.api.app.BundledPage", lambda origin: BundledPage(origin, tmp_path))
        async with (
            ApiServer.start(settings_for(tmp_path)) as server,
            httpx.AsyncClient(trust_env=False, timeout=120) as client,
        ):
            answer = await client.get(server.url)
            assert answer.status_code == 200
            assert "scripts/web build" in answer.text
            assert (await client.get(f"{server.url}/c/conv_1")).status_code == 404
