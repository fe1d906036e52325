"""The bundled page: files that were built into the package, served from memory under a strict policy.

Knows paths and headers, nothing of what the page does. Every address of the page is answered with the same document;
the page's own script finds out what to show there.
"""

import gzip
import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from msgspec import Struct
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

FOLDER = Path(__file__).parents[2] / "web"
"""Where `scripts/web build` puts the page, and where the wheel has it."""

DOCUMENT = "/index.html"
ADDRESSES = ("/c/", "/settings/")
"""Addresses that belong to the page's own script, beside `/` and `/settings`."""
ASSETS = "/assets/"

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "media-src 'self' blob:",
        "font-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_GUARD = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "x-dns-prefetch-control": "off",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
_PACKED = frozenset({".css", ".html", ".js", ".svg"})


class _Kept(Struct, frozen=True, kw_only=True):
    """One file, and whether packing it gains anything."""

    body: bytes
    is_packed: bool
    media_type: str
    etag: str


class BundledPage:
    """The files of the page, as an ASGI app. Without a build it answers nothing, and `GET /` says so instead."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._files = _read(folder)

    @property
    def is_built(self) -> bool:
        return DOCUMENT in self._files

    def route(self, method: str, path: str) -> str | None:
        """What logs and numbers call this path if the page answers it; None if it does not."""
        if method not in {"GET", "HEAD"} or not self.is_built:
            return None
        if path in {"/", "/settings"} or path.startswith(ADDRESSES):
            return "/"
        if path.startswith(ASSETS):
            return ASSETS
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name: value for name, value in scope["headers"] if name in {b"accept-encoding", b"if-none-match"}}
        path = scope["path"] if scope["path"].startswith(ASSETS) else DOCUMENT
        await self._response(path, headers)(scope, receive, send)

    def _response(self, path: str, headers: Mapping[bytes, bytes]) -> Response:
        kept = self._files.get(path)
        if kept is None:
            body = b"This file is of another release of the page. Load the page again.\n"
            return Response(body, 404, {"cache-control": "no-store"}, "text/plain; charset=utf-8")
        fields = {
            "etag": kept.etag,
            "vary": "accept-encoding",
            # Assets carry a hash of their content in their names; the document names them and must be current.
            "cache-control": "public, max-age=31536000, immutable" if path.startswith(ASSETS) else "no-cache",
            **_GUARD,
        }
        if headers.get(b"if-none-match") == kept.etag.encode():
            return Response(status_code=304, headers=fields)
        if kept.is_packed and b"gzip" in headers.get(b"accept-encoding", b""):
            fields["content-encoding"] = "gzip"
            return Response(_packed(kept.body), 200, fields, kept.media_type)
        return Response(kept.body, 200, fields, kept.media_type)


def _read(folder: Path) -> dict[str, _Kept]:
    """Every file of the page by its path. Names that begin with a dot are the build's own notes."""
    found: dict[str, _Kept] = {}
    for file in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if file.is_file() and not file.name.startswith("."):
            found[f"/{file.relative_to(folder).as_posix()}"] = _keep(file)
    return found


def _keep(file: Path) -> _Kept:
    body = file.read_bytes()
    return _Kept(
        body=body,
        is_packed=file.suffix in _PACKED,
        media_type=_TYPES.get(file.suffix, "application/octet-stream"),
        etag=f'"{hashlib.sha256(body).hexdigest()[:32]}"',
    )


@cache
def _packed(body: bytes) -> bytes:
    """When it is first asked for: most processes never serve the page."""
    return gzip.compress(body, mtime=0)
