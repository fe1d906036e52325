"""Hooks of MkDocs: which pages the site of the manual has, in which order, and those that are made from code.

- The navigation follows the folders of `docs/`. Within a folder, pages come in the order in which `docs/README.md`
  names them, then the others by name. So a new page needs no entry anywhere.
- Pages of the project outside of `docs/` (CONTRIBUTING, CHANGELOG and so on) are added, and links to them are changed.
- The OpenAPI document with its examples and the Python client become pages of the reference.
- Mermaid, which draws the diagrams, is copied from `web/node_modules`. The site loads nothing from other servers.
"""

import inspect
import json
import posixpath
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
MERMAID = ROOT / "web/node_modules/@mermaid-js/tiny/dist/mermaid.tiny.js"

SECTIONS = {
    "tutorials": "Tutorial",
    "howto": "How to",
    "reference": "Reference",
    "explanation": "Explanation",
    "decisions": "Decisions",
    "project": "Project",
}
"""Folders of `docs/` and their titles, in order. Another folder follows them under its own name."""

OUTSIDE = {
    "README.md": "project/readme.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security-policy.md",
    "bench/README.md": "project/benchmark.md",
    "clients/python/README.md": "project/python-package.md",
}
"""Pages of the project outside of `docs/`, and where they are on the site."""

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+?)(#[^()\s]*)?\)")
_IMAGE = re.compile(r'(<img\b[^>]*\bsrc=")([^"]+)(")')
_FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, target in OUTSIDE.items():
        path = ROOT / source
        if path.is_file():
            text = moved(path.read_text(encoding="utf-8"), source, target)
            files.append(File.generated(config, target, content=text))
    files.append(File.generated(config, "reference/openapi.md", content=openapi_page()))
    files.append(File.generated(config, "reference/openapi.json", content=json.dumps(openapi(), indent=1)))
    files.append(File.generated(config, "reference/python-api.md", content=client_page()))
    config.nav = navigation(files)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    source = page.file.src_uri
    if source in OUTSIDE.values():
        return markdown
    return moved(markdown, f"docs/{source}", source)


def on_post_build(config: MkDocsConfig) -> None:
    if not MERMAID.is_file():
        raise PluginError("Mermaid is not installed. Run `scripts/docs`, or `scripts/web modules` first.")
    target = Path(config.site_dir) / "assets" / MERMAID.name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(MERMAID, target)


# Navigation


def navigation(files: Files) -> list[Any]:
    pages = [file.src_uri for file in files.documentation_pages()]
    listed = named_in_order((ROOT / "docs/README.md").read_text(encoding="utf-8"))
    place = {uri: n for n, uri in enumerate(listed)}
    nav: list[Any] = [{"Manual": "README.md"}]
    folders: dict[str, list[str]] = {}
    for uri in sorted(pages, key=lambda uri: (place.get(uri, len(place)), uri)):
        if "/" in uri:
            folders.setdefault(uri.partition("/")[0], []).append(uri)
        elif uri != "README.md":
            folders.setdefault("reference", []).append(uri)
    for name in (*SECTIONS, *sorted(set(folders) - set(SECTIONS))):
        if name in folders:
            index = [uri for uri in folders[name] if posixpath.basename(uri) in {"README.md", "index.md"}]
            nav.append(
                {SECTIONS.get(name, name.capitalize()): [*index, *(uri for uri in folders[name] if uri not in index)]}
            )
    return nav


def named_in_order(markdown: str) -> list[str]:
    return list(dict.fromkeys(found[3] for found in _LINK.finditer(markdown) if found[3].endswith(".md")))


# Links


def moved(markdown: str, source: str, target: str) -> str:
    """The text of `source` (a path of the repository) with links as they must be at `target` (a path of the site).

    A link to a file that is no page, such as a test, becomes its text.
    """

    def link(found: re.Match[str]) -> str:
        bang, text, address, anchor = found[1], found[2], found[3], found[4] or ""
        if re.match(r"[a-z]+:", address) or address.startswith(("#", "/")):
            return found[0]
        to = posixpath.normpath(posixpath.join(posixpath.dirname(source), address))
        on_site = place_on_site(to)
        if on_site is None:
            return text if bang == "" else ""
        return f"{bang}[{text}]({posixpath.relpath(on_site, posixpath.dirname(target) or '.')}{anchor})"

    def image(found: re.Match[str]) -> str:
        to = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[2]))
        on_site = place_on_site(to)
        if on_site is None:
            return found[0]
        # HTML is not changed by MkDocs, and pages are files of the same depth as their sources.
        return f"{found[1]}{posixpath.relpath(on_site, posixpath.dirname(target) or '.')}{found[3]}"

    kept = [found.span() for found in _FENCE.finditer(markdown)]
    parts, at = [], 0
    for begin, end in kept:
        parts += [_IMAGE.sub(image, _LINK.sub(link, markdown[at:begin])), markdown[begin:end]]
        at = end
    return "".join([*parts, _IMAGE.sub(image, _LINK.sub(link, markdown[at:]))])


def place_on_site(path: str) -> str | None:
    """Where a file of the repository is on the site; None if it is not there."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    if path == "docs":
        return "README.md"
    if path.startswith("docs/"):
        inside = path.removeprefix("docs/")
        return f"{inside}/README.md" if (ROOT / path / "README.md").is_file() else inside
    return None


# Pages that are made from the code


def openapi() -> dict[str, Any]:
    from turnkeep.api.app import all_endpoints
    from turnkeep.api.identity.service_keys import SigninLinks
    from turnkeep.api.identity.tokens import UserTokens
    from turnkeep.api.openapi import document
    from turnkeep.api.telemetry.metrics import Metrics

    links = SigninLinks.__new__(SigninLinks)  # routes are declared with it, and not called
    made: dict[str, Any] = json.loads(document(all_endpoints(UserTokens(["x" * 32]), links, Metrics())))
    return made


def openapi_page() -> str:
    whole = openapi()
    lines = [
        "# OpenAPI",
        "",
        "This page is made from the declarations of the routes. A server has the document at `/openapi.json`; that of",
        f"release {whole['info']['version']} is [here](openapi.json). [HTTP API](http.md) has the rules that hold for",
        "all routes.",
        "",
    ]
    by_tag: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
    for path, item in whole["paths"].items():
        for method, operation in item.items():
            if method in {"get", "post", "put", "patch", "delete"}:
                by_tag.setdefault((operation.get("tags") or ["other"])[0], []).append((method.upper(), path, operation))
    for tag in sorted(by_tag):
        lines += [f"## {tag.capitalize()}", ""]
        for method, path, operation in by_tag[tag]:
            lines += [f"### `{method} {path}`", "", operation.get("summary") or operation.get("description", ""), ""]
            lines += list(operation_lines(operation, whole))
    return "\n".join(lines) + "\n"


def operation_lines(operation: Mapping[str, Any], whole: Mapping[str, Any]) -> Iterator[str]:
    parameters = [resolved(each, whole) for each in operation.get("parameters", ())]
    if parameters:
        yield from ("| parameter | in | meaning |", "|---|---|---|")
        for each in parameters:
            meaning = " ".join(str(each.get("description", "")).split()).replace("|", "\\|")
            yield f"| `{each['name']}`{' (needed)' if each.get('required') else ''} | {each['in']} | {meaning} |"
        yield ""
    body = resolved(operation.get("requestBody", {}), whole).get("content", {})
    yield from example_lines("Request", body, whole)
    for status, response in operation.get("responses", {}).items():
        answer = resolved(response, whole)
        if status.startswith("2"):
            yield from example_lines(f"{status}: {answer.get('description', '')}", answer.get("content", {}), whole)
    errors = [status for status in operation.get("responses", {}) if not status.startswith("2")]
    if errors:
        yield from (f"Errors: {', '.join(errors)}. [Each code is explained](errors.md).", "")


def example_lines(title: str, content: Mapping[str, Any], whole: Mapping[str, Any]) -> Iterator[str]:
    for kind, media in content.items():
        example = media.get("example")
        if example is None and media.get("examples"):
            example = resolved(next(iter(media["examples"].values())), whole).get("value")
        yield from (f"{title} (`{kind}`)" if example is not None else f"{title} (`{kind}`).", "")
        if example is not None:
            is_text = isinstance(example, str)
            yield f"```{'text' if is_text else 'json'}"
            yield example.rstrip("\n") if is_text else json.dumps(example, indent=2, ensure_ascii=False)
            yield from ("```", "")
    if not content:
        yield from (f"{title}.", "") if title != "Request" else ()


def resolved(value: Any, whole: Mapping[str, Any]) -> Any:
    while isinstance(value, Mapping) and "$ref" in value:
        found: Any = whole
        for name in value["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        value = found
    return value


def client_page() -> str:
    """The methods of the client, and the values that it returns, from signatures and docstrings."""
    import turnkeep_client

    client = turnkeep_client.AsyncTurnkeep("http://127.0.0.1:1", key="of no server")
    lines = [
        "# Python client: every method",
        "",
        "This page is made from signatures and docstrings of `turnkeep_client`. [Python client](client.md) explains",
        "how to use it. `Turnkeep` has the same methods as `AsyncTurnkeep`, without `await`.",
        "",
        "## AsyncTurnkeep",
        "",
        own_words(type(client)),
        "",
        *method_lines("client", type(client)),
    ]
    for name, part in sorted(vars(client).items()):
        if not name.startswith("_") and type(part).__module__.startswith("turnkeep_client"):
            lines += [f"## client.{name}", "", own_words(type(part)), "", *method_lines(f"client.{name}", type(part))]
    lines += ["## Values", ""]
    for name in sorted(turnkeep_client.__all__):
        thing = getattr(turnkeep_client, name)
        if inspect.isclass(thing) and thing not in {turnkeep_client.AsyncTurnkeep, turnkeep_client.Turnkeep}:
            fields = ", ".join(f"`{field}`" for field in getattr(thing, "__struct_fields__", ()))
            lines += [f"### {name}", "", own_words(thing), "", *([f"Fields: {fields}.", ""] if fields else [])]
            lines += [] if fields or issubclass(thing, str) else method_lines(name, thing)
    return "\n".join(lines) + "\n"


def method_lines(owner: str, thing: type) -> Iterator[str]:
    for name, function in inspect.getmembers(thing, inspect.isfunction):
        if name.startswith("_") or not function.__module__.startswith("turnkeep_client"):
            continue
        signature = re.sub(r"^\(self(, )?", "(", str(inspect.signature(function)))
        signature = signature.replace("turnkeep_client.wire.", "").replace("turnkeep_client.", "")
        yield from (
            f"### {owner}.{name}",
            "",
            "```python",
            f"{owner}.{name}{signature}",
            "```",
            "",
            own_words(function),
            "",
        )


def own_words(thing: Any) -> str:
    words = inspect.cleandoc(thing.__doc__ or "")
    return re.sub(r"[<>]", lambda found: {"<": "&lt;", ">": "&gt;"}[found[0]], words)


if __name__ == "__main__":
    sys.exit("These are hooks of MkDocs. Run scripts/docs.")
