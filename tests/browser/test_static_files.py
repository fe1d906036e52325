"""How the server delivers the page: content security policy, caching, size, and the text instead of an unbuilt page."""

import functools
import gzip
import re
from pathlib import Path

import httpx
import pytest

from tests.api.harness import ApiServer, code_of, settings_for
from turnkeep.api.http.bundled_page import BundledPage

FIRST_LOAD_BYTES = 150_000


class TestBuiltPage:
    async def test_has_a_strict_policy_and_is_revalidated(self, built_page: Path, tmp_path: Path) -> None:
        async with (
            ApiServer.start(settings_for(tmp_path)) as server,
            httpx.AsyncClient(trust_env=False, timeout=120) as client,
        ):
            answer = await client.get(server.url)
            for path in ("/", "/c/conv_1", "/settings", "/settings/keys", "/turns/turn_1", "/invite"):
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

    async def test_a_browser_gets_the_page_for_an_address_that_does_not_exist(
        self, built_page: Path, tmp_path: Path
    ) -> None:
        async with (
            ApiServer.start(settings_for(tmp_path)) as server,
            httpx.AsyncClient(trust_env=False, timeout=120) as client,
        ):
            document = (await client.get(server.url)).text
            for path in ("/nothing", "/v1/nothing", "/v1//me", "/signin/nothing"):
                for accept, kind in (("text/html,*/*;q=0.8", "text/html"), ("application/json", "application/problem")):
                    answer = await client.get(server.url + path, headers={"accept": accept})
                    assert answer.status_code == 404
                    assert answer.headers["content-type"].startswith(kind)
                    assert (answer.text == document) is (kind == "text/html")
                answer = await client.post(server.url + path, headers={"accept": "text/html"})
                assert answer.status_code == 404
                assert answer.headers["content-type"].startswith("application/problem")

    def test_loads_at_most_150_kilobytes_of_script(self, built_page: Path) -> None:
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


def policy_of(answer: httpx.Response) -> dict[str, str]:
    return dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))


class TestPreviewFrame:
    async def test_is_sandboxed_without_a_network_and_runs_its_own_scripts_alone(
        self, built_page: Path, tmp_path: Path
    ) -> None:
        async with (
            ApiServer.start(settings_for(tmp_path, frame_ancestors=("https://app.example",))) as server,
            httpx.AsyncClient(trust_env=False, timeout=120, base_url=server.url) as client,
        ):
            first, second = await client.get("/preview"), await client.get("/preview")
            policy = policy_of(first)
            assert policy["default-src"] == "'none'"
            assert policy["sandbox"] == "allow-scripts"
            assert policy["img-src"] == policy["font-src"] == policy["media-src"] == "data:"
            assert policy["frame-ancestors"] == "'self' https://app.example"
            assert policy["worker-src"] == "blob:"
            assert "connect-src" not in policy
            assert "unsafe-eval" not in policy["script-src"]
            nonce = re.fullmatch(r"'nonce-([\w-]{20,})'", policy["script-src"])
            assert nonce is not None
            assert policy["script-src"] != policy_of(second)["script-src"]
            assert first.headers["cache-control"] == "no-store"
            assert "etag" not in first.headers
            assert "set-cookie" not in first.headers
            assert "x-frame-options" not in first.headers
            [script] = re.findall(r"<script([^>]*)>", first.text)
            assert f'nonce="{nonce[1]}"' in script
            address = re.search(r'src="(/assets/preview-[^"]+)"', script)
            assert address is not None
            [library] = (built_page / "assets").glob("pdf.*.mjs")
            for script_address in (address[1], f"/assets/{library.name}"):
                asset = await client.get(script_address, headers={"origin": "null"})
                assert asset.headers["access-control-allow-origin"] == "*"
                assert asset.headers["cross-origin-resource-policy"] == "cross-origin"
                assert asset.headers["content-type"].startswith("text/javascript")
                assert asset.headers["content-encoding"] == "gzip"
            # The page can show frames of this server alone, and makes no type policy and no worker.
            page = policy_of(await client.get("/"))
            assert (page["frame-src"], page["trusted-types"]) == ("'self'", "'none'")
            assert "worker-src" not in page

    def test_has_its_script_in_one_file(self, built_page: Path) -> None:
        """Its policy lets no other run. Large scripts of other makers are loaded by it, with its nonce."""
        [script] = (built_page / "assets").glob("preview-*.js")
        assert not re.search(r"\bimport\b", script.read_text(encoding="utf-8"))


class TestEmbed:
    async def test_has_the_policy_of_the_page_but_for_those_who_may_frame_it(
        self, built_page: Path, tmp_path: Path
    ) -> None:
        ancestors = ("https://app.example", "'self'")
        async with (
            ApiServer.start(settings_for(tmp_path, frame_ancestors=ancestors)) as server,
            httpx.AsyncClient(trust_env=False, timeout=120, base_url=server.url) as client,
        ):
            page = await client.get("/")
            assert policy_of(page)["frame-ancestors"] == "'none'"
            assert page.headers["x-frame-options"] == "DENY"
            for path in ("/embed", "/embed/c/conv_1", "/embed?agent=agent_1&theme=dark"):
                embed = await client.get(path)
                assert embed.status_code == 200
                assert policy_of(embed) == policy_of(page) | {"frame-ancestors": "https://app.example 'self'"}
                assert "x-frame-options" not in embed.headers
                assert embed.headers["cross-origin-resource-policy"] == "cross-origin"
                assert embed.headers["cross-origin-embedder-policy"] == "require-corp"
                assert embed.headers["cache-control"] == "no-cache"
                assert "set-cookie" not in embed.headers
                assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=", embed.text)
            embed = await client.get("/embed")
            assert embed.text != page.text
            again = await client.get("/embed", headers={"if-none-match": embed.headers["etag"]})
            assert again.status_code == 304
            asset = re.search(r'src="(/assets/[^"]+\.js)"', embed.text)
            assert asset is not None
            assert (await client.get(asset[1])).headers["cross-origin-resource-policy"] == "same-origin"

    async def test_cannot_be_framed_unless_origins_are_listed(self, built_page: Path, tmp_path: Path) -> None:
        async with (
            ApiServer.start(settings_for(tmp_path)) as server,
            httpx.AsyncClient(trust_env=False, timeout=120, base_url=server.url) as client,
        ):
            embed, page = await client.get("/embed"), await client.get("/")
            assert policy_of(embed) == policy_of(page)
            assert embed.headers["x-frame-options"] == "DENY"
            assert (await client.get("/embedded")).status_code == 404

    async def test_refuses_a_token_in_its_address(self, built_page: Path, tmp_path: Path) -> None:
        async with (
            ApiServer.start(settings_for(tmp_path, frame_ancestors=("'self'",))) as server,
            httpx.AsyncClient(trust_env=False, timeout=120, base_url=server.url) as client,
        ):
            for query in ("token=tku_1", "access_token=x", "agent=tku_abc"):
                assert code_of(await client.get(f"/embed?{query}")) == (401, "unauthorized")

    async def test_a_script_for_other_pages_may_be_loaded_by_all(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "built"
        folder.mkdir()
        (folder / "index.html").write_text("<html><head></head></html>")
        script = "customElements.define('turnkeep-chat', class extends HTMLElement {});"
        (folder / "embed.js").write_text(script)
        monkeypatch.setattr("turnkeep.api.app.BundledPage", functools.partial(BundledPage, folder=folder))
        async with (
            ApiServer.start(settings_for(tmp_path)) as server,
            httpx.AsyncClient(trust_env=False, timeout=120, base_url=server.url) as client,
        ):
            answer = await client.get("/embed.js", headers={"origin": "https://any.example"})
            assert (answer.status_code, answer.text) == (200, script)
            assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
            assert answer.headers["cross-origin-resource-policy"] == "cross-origin"
            assert answer.headers["access-control-allow-origin"] == "*"
            assert "access-control-allow-credentials" not in answer.headers
            assert answer.headers["cache-control"] == "public, max-age=300"
            assert answer.headers["content-encoding"] == "gzip"
            again = await client.get("/embed.js", headers={"if-none-match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["access-control-allow-origin"] == "*"


class TestBrand:
    async def test_is_in_the_documents_as_text(self, built_page: Path, tmp_path: Path) -> None:
        logo = tmp_path / "logo.svg"
        logo.write_text('<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>')
        changed = settings_for(
            tmp_path, brand_name='</title><script>alert(1)</script>"', brand_logo=logo, brand_colors=("#7a1fa2",)
        )
        async with (
            ApiServer.start(changed) as server,
            httpx.AsyncClient(trust_env=False, timeout=120, base_url=server.url) as client,
        ):
            for path in ("/", "/embed"):
                document = (await client.get(path)).text
                escaped = "&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt;&quot;"
                assert f"<title>{escaped}</title>" in document
                assert f'content="{escaped}"' in document
                assert "<script>" not in document
                assert '<link rel="icon" href="/brand/logo">' in document
                assert document.index("/assets/") < document.index('href="/brand.css"')
            style = await client.get("/brand.css")
            assert style.headers["content-type"] == "text/css; charset=utf-8"
            assert "#7a1fa2" in style.text
            picture = await client.get("/brand/logo")
            assert picture.headers["content-type"] == "image/svg+xml"
            assert "sandbox" in picture.headers["content-security-policy"], "its scripts do not run if it is opened"
            assert "script-src" not in picture.headers["content-security-policy"]
            assert (
                await client.get("/brand/logo", headers={"if-none-match": picture.headers["etag"]})
            ).status_code == 304

    async def test_leaves_no_trace_where_there_is_none(self, built_page: Path, tmp_path: Path) -> None:
        async with (
            ApiServer.start(settings_for(tmp_path)) as server,
            httpx.AsyncClient(trust_env=False, timeout=120, base_url=server.url) as client,
        ):
            assert (await client.get("/")).text == (built_page / "index.html").read_text("utf-8")
            assert (await client.get("/brand.css")).status_code == 404
            assert (await client.get("/brand/logo")).status_code == 404


class TestUnbuiltPage:
    async def test_is_replaced_by_a_text_that_says_how_to_build_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("turnkeep.api.app.BundledPage", functools.partial(BundledPage, folder=tmp_path))
        async with (
            ApiServer.start(settings_for(tmp_path)) as server,
            httpx.AsyncClient(trust_env=False, timeout=120) as client,
        ):
            answer = await client.get(server.url)
            assert answer.status_code == 200
            assert "scripts/web build" in answer.text
            assert (await client.get(f"{server.url}/c/conv_1")).status_code == 404
