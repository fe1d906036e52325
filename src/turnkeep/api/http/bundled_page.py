"""The bundled page: files that were built into the package, served from memory under a strict policy.

This module knows paths and headers, and nothing of what the page does. Every address of the page is answered with the
same document; the script of the page decides what to show there. So is an address that does not exist, with status 404,
if a person opens it with a browser. `/embed` is a second document, which pages of other origins may show in a frame,
and `/embed.js` is a script for their own documents.

`/preview` is a third document, in which the page draws what a model or a file has written as HTML, SVG or Mermaid. It
is sandboxed: it has an origin of its own that equals no other, no cookie, no network, and runs no scripts but those
with the nonce of its response.

What the operator sets about the page goes into the documents as elements without script: the brand, and who may embed
the chat.
"""

import gzip
import hashlib
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path

from msgspec import Struct
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from turnkeep.config import PICTURE_TYPES, Settings
from turnkeep.errors import WorldError

FOLDER = Path(__file__).parents[2] / "web"
"""Where `scripts/web build` puts the page, and where the wheel has it."""

MISSING = "none: this installation was built without it. Run `scripts/web build` in the checkout, and install again."
"""What a server says that has no page. pip packs a checkout without its page, and shows nothing of it."""

DOCUMENT = "/index.html"
SHARE = "/share"
"""What a share link shows. No browser keeps it, and no search engine lists it."""
PATHS = frozenset({"/", "/settings", "/invite", "/trash", SHARE})
ADDRESSES = ("/c/", "/settings/", "/turns/", "/agents/")
"""Paths that the script of the page handles, and how others begin."""
EMBED = "/embed"
EMBED_DOCUMENT = "/embed.html"
EMBED_SCRIPT = "/embed.js"
PREVIEW = "/preview"
PREVIEW_DOCUMENT = "/preview.html"
BRAND_STYLE = "/brand.css"
BRAND_LOGO = "/brand/logo"
ASSETS = "/assets/"
DEFAULT_SHARE_DAYS = 90
"""How long the script of the page takes a share link to last at most, unless the document says otherwise."""
PREVIEW_ASSETS = (f"{ASSETS}preview-", f"{ASSETS}mermaid.", f"{ASSETS}pdf.")
"""The scripts of the preview. Its document has no origin, so they count as those of another one."""

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "media-src 'self' blob:",
        "font-src 'self'",
        "connect-src 'self'{uploads}",
        "frame-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors {ancestors}",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""`{uploads}` is the origin of the bucket, if browsers upload files to one. `{ancestors}` are the origins whose pages
may frame the document."""
PREVIEW_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'nonce-{nonce}'",
        "worker-src blob:",
        "style-src 'unsafe-inline'",
        "img-src data:",
        "font-src data:",
        "media-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors {ancestors}",
        "sandbox allow-scripts",
    )
)
"""`{nonce}` is new in each response. `{ancestors}` are this origin, and those that may frame the embedded chat. The
worker that reads a PDF comes from the page as bytes: a document without an origin can load none from an address. This
policy holds for the worker too."""
LOGO_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'"
"""A logo is a picture in a page. If it is an SVG that is opened by itself, none of its scripts runs."""
_ORIGIN = re.compile(r"https?://[A-Za-z0-9.\-]+(?::\d+)?|https?://\[[0-9a-fA-F:]+\](?::\d+)?")
_GUARD = {
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "x-dns-prefetch-control": "off",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
_UNLISTED = {"cache-control": "no-store", "x-robots-tag": "noindex, nofollow"}
_EMBED_GUARD = {
    **{name: value for name, value in _GUARD.items() if name != "x-frame-options"},
    # A host page that is isolated (`Cross-Origin-Embedder-Policy`) shows only frames that say both.
    "cross-origin-resource-policy": "cross-origin",
    "cross-origin-embedder-policy": "require-corp",
}
_PREVIEW_GUARD = {name: value for name, value in _EMBED_GUARD.items() if name != "cross-origin-opener-policy"}
_SCRIPT_GUARD = {
    "access-control-allow-origin": "*",
    "cross-origin-resource-policy": "cross-origin",
    "cache-control": "public, max-age=300",
}
"""The script is the same for everybody, and any page may load it. What it may do is decided by CORS and tokens."""
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
_COMPRESSIBLE = frozenset({".css", ".html", ".js", ".mjs", ".svg"})


KEPT_BYTES = 1_000_000
"""Larger files are needed seldom, and read whenever they are asked for. All others are in memory, and stay those of
this release while another one is installed."""


class _PageFile(Struct, frozen=True, kw_only=True):
    """One file of the page, and whether it is worth compressing. A large one is its path."""

    source: bytes | Path
    is_compressible: bool
    media_type: str
    etag: str

    @property
    def body(self) -> bytes:
        return self.source if isinstance(self.source, bytes) else self.source.read_bytes()


def is_installed() -> bool:
    """Whether this installation has the page."""
    return (FOLDER / DOCUMENT.removeprefix("/")).exists()


class BundledPage:
    """The files of the page, as an ASGI app. Without a build it answers nothing, and `GET /` says so instead.

    `upload_origin` finds the origin to which browsers upload files besides this server.
    """

    def __init__(
        self, upload_origin: Callable[[], Awaitable[str | None]], settings: Settings, folder: Path = FOLDER
    ) -> None:
        self._files = _branded(_read(folder), settings)
        self._upload_origin = upload_origin
        self._uploads: str | None = None
        self._ancestors = " ".join(settings.frame_ancestors) or "'none'"

    @property
    def is_built(self) -> bool:
        return DOCUMENT in self._files

    def route(self, method: str, path: str) -> str | None:
        """The name of this path in logs and metrics; None if the page does not answer it."""
        if method not in {"GET", "HEAD"} or not self.is_built:
            return None
        if path in PATHS or path.startswith(ADDRESSES):
            return "/"
        if _is_embed(path):
            return EMBED
        if path == PREVIEW and PREVIEW_DOCUMENT in self._files:
            return PREVIEW
        if path.startswith(ASSETS):
            return ASSETS
        if path in {EMBED_SCRIPT, BRAND_STYLE, BRAND_LOGO} and path in self._files:
            return path
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = {name: value for name, value in scope["headers"] if name in {b"accept-encoding", b"if-none-match"}}
        path: str = scope["path"]
        if path.startswith(ASSETS):
            # The names of assets carry a hash of their content.
            guard = _SCRIPT_GUARD if path.startswith(PREVIEW_ASSETS) else _GUARD
            fields = guard | {"cache-control": "public, max-age=31536000, immutable"}
            policy = POLICY.format(uploads="", ancestors="'none'")
        elif path == EMBED_SCRIPT:
            fields, policy = _SCRIPT_GUARD, POLICY.format(uploads="", ancestors="'none'")
        elif path == PREVIEW:
            await self._preview()(scope, receive, send)
            return
        elif path in {BRAND_STYLE, BRAND_LOGO}:
            fields, policy = _GUARD | {"cache-control": "no-cache"}, LOGO_POLICY
        elif _is_embed(path):
            path, is_framed = EMBED_DOCUMENT, self._ancestors != "'none'"
            fields = (_EMBED_GUARD if is_framed else _GUARD) | {"cache-control": "no-cache"}
            policy = POLICY.format(uploads=await self._find_uploads(), ancestors=self._ancestors)
        else:
            response = await self._document(given)
            if path == SHARE:
                response.headers.update(_UNLISTED)
            await response(scope, receive, send)
            return
        response = self._response(path, given, fields | {"content-security-policy": policy})
        await response(scope, receive, send)

    def is_wanted(self, method: str, headers: Headers) -> bool:
        """Whether a person opens this address with a browser, and not a program."""
        return self.is_built and method in {"GET", "HEAD"} and "text/html" in headers.get("accept", "")

    async def answer_unknown_path(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Show the page, which says that there is nothing at this address."""
        response = await self._document({})
        response.status_code = 404
        await response(scope, receive, send)

    async def _document(self, given: Mapping[bytes, bytes]) -> Response:
        """The document of the page, which no other page may frame."""
        policy = POLICY.format(uploads=await self._find_uploads(), ancestors="'none'")
        fields = _GUARD | {"cache-control": "no-cache", "content-security-policy": policy}
        return self._response(DOCUMENT, given, fields)

    def _preview(self) -> Response:
        """The document of a preview, which only the page and the embedded chat may frame."""
        nonce = secrets.token_urlsafe(16)
        ancestors = "'self'" if self._ancestors == "'none'" else f"'self' {self._ancestors}"
        document = self._files[PREVIEW_DOCUMENT].body.decode().replace("<script ", f'<script nonce="{nonce}" ')
        policy = PREVIEW_POLICY.format(nonce=nonce, ancestors=ancestors)
        fields = _PREVIEW_GUARD | {"cache-control": "no-store", "content-security-policy": policy}
        return Response(document, 200, fields, _TYPES[".html"])

    async def _find_uploads(self) -> str:
        """The origin of the bucket, as the policy lists it. While the bucket cannot be asked, the policy names none;
        uploads then go through the server."""
        if self._uploads is None:
            try:
                origin = await self._upload_origin()
            except WorldError:
                return ""
            is_safe = origin is not None and _ORIGIN.fullmatch(origin) is not None
            self._uploads = f" {origin}" if is_safe else ""
        return self._uploads

    def _response(self, path: str, given: Mapping[bytes, bytes], fields: Mapping[str, str]) -> Response:
        file = self._files.get(path)
        if file is None:
            body = b"This file is of another release of the page. Load the page again.\n"
            return Response(body, 404, {"cache-control": "no-store"}, "text/plain; charset=utf-8")
        headers = {"etag": file.etag, "vary": "accept-encoding", **fields}
        if given.get(b"if-none-match") == file.etag.encode():
            return Response(status_code=304, headers=headers)
        if file.is_compressible and b"gzip" in given.get(b"accept-encoding", b""):
            headers["content-encoding"] = "gzip"
            return Response(_compressed(file.source), 200, headers, file.media_type)
        return Response(file.body, 200, headers, file.media_type)


def _is_embed(path: str) -> bool:
    return path == EMBED or path.startswith(f"{EMBED}/")


def _read(folder: Path) -> dict[str, _PageFile]:
    """Every file of the page by its path. Names that begin with a dot belong to the build."""
    found: dict[str, _PageFile] = {}
    for file in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if file.is_file() and not file.name.startswith("."):
            is_kept = file.stat().st_size <= KEPT_BYTES
            found[f"/{file.relative_to(folder).as_posix()}"] = _page_file(
                file.read_bytes() if is_kept else file, file.suffix
            )
    return found


def _page_file(source: bytes | Path, suffix: str) -> _PageFile:
    # The build names large files by what is in them.
    known_by = source if isinstance(source, bytes) else source.name.encode()
    return _PageFile(
        source=source,
        is_compressible=suffix in _COMPRESSIBLE,
        media_type=_TYPES.get(suffix) or PICTURE_TYPES.get(suffix, "application/octet-stream"),
        etag=f'"{hashlib.sha256(known_by).hexdigest()[:32]}"',
    )


def _branded(files: dict[str, _PageFile], settings: Settings) -> dict[str, _PageFile]:
    """The files with the name, the logo and the colours of the operator."""
    if settings.brand_logo is not None:
        logo = settings.brand_logo
        files[BRAND_LOGO] = _page_file(logo.read_bytes(), logo.suffix.lower())
    if settings.brand_colors:
        files[BRAND_STYLE] = _page_file(brand_style(settings.brand_colors).encode(), ".css")
    for path, hosts in ((DOCUMENT, ()), (EMBED_DOCUMENT, settings.frame_ancestors)):
        if path in files:
            document = _branded_document(files[path].body.decode(), settings, hosts)
            files[path] = _page_file(document.encode(), ".html")
    return files


def _branded_document(document: str, settings: Settings, hosts: Sequence[str]) -> str:
    """The document with what is set, as elements of its head that the script of the page reads."""
    head: list[str] = []
    if settings.brand_name is not None:
        name = escape(settings.brand_name)
        document = re.sub(r"<title>.*?</title>", lambda _: f"<title>{name}</title>", document, count=1)
        head.append(f'<meta name="application-name" content="{name}">')
    if settings.brand_logo is not None:
        document = re.sub(r'<link rel="icon"[^>]*>', f'<link rel="icon" href="{BRAND_LOGO}">', document, count=1)
        head.append(f'<meta name="turnkeep-logo" content="{BRAND_LOGO}">')
    if settings.brand_colors:
        # After the style sheets of the page, because it sets the same variables.
        head.append(f'<link rel="stylesheet" href="{BRAND_STYLE}">')
    if settings.share_link_days != DEFAULT_SHARE_DAYS:
        head.append(f'<meta name="turnkeep-share-days" content="{settings.share_link_days:g}">')
    if hosts:
        head.append(f'<meta name="turnkeep-hosts" content="{escape(" ".join(hosts))}">')
    return document.replace("</head>", "".join([*head, "</head>"]), 1)


def brand_style(colors: Sequence[str]) -> str:
    """The style sheet of the brand's colours. A colour is made darker on light ground and lighter on dark ground, as
    far as words in it need it."""
    light, dark = colors[0], colors[-1]
    on_light, on_dark = f"oklch(from {light} min(l, 0.47) c h)", f"oklch(from {dark} max(l, 0.77) c h)"
    return f""":root {{
  --green: light-dark({on_light}, {on_dark});
  --green-strong: light-dark(oklch(from {light} min(l - 0.06, 0.41) c h), oklch(from {dark} max(l + 0.06, 0.83) c h));
  --green-ink: light-dark(#ffffff, #101312);
  --green-wash: light-dark(color-mix(in oklab, {light} 9%, #ffffff), color-mix(in oklab, {dark} 18%, #161a18));
}}
.mark {{ background: light-dark({on_light}, oklch(from {dark} min(l, 0.55) c h)); }}
"""


@cache
def _compressed(source: bytes | Path) -> bytes:
    """Compressed at the first request for it: most processes never serve the page."""
    return gzip.compress(source if isinstance(source, bytes) else source.read_bytes(), mtime=0)
