"""The bundled page: files that were built into the package, served from memory under a strict policy.

This module knows paths and headers, and nothing of what the page does. Every address of the page is answered with the
same document; the script of the page decides what to show there.
"""

import gzip
import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from pathlib import Path

from msgspec import Struct
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from turnkeep.errors import WorldError

FOLDER = Path(__file__).parents[2] / "web"
"""Where `scripts/web build` puts the page, and where the wheel has it."""

DOCUMENT = "/index.html"
PATHS = frozenset({"/", "/settings", "/invite"})
ADDRESSES = ("/c/", "/settings/")
"""Paths that the script of the page handles, and how others begin."""
ASSETS = "/assets/"

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "media-src 'self' blob:",
        "font-src 'self'",
        "connect-src 'self'{uploads}",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""`{uploads}` is the origin of the bucket, if browsers upload files to one."""
_ORIGIN = re.compile(r"https?://[A-Za-z0-9.\-]+(?::\d+)?|https?://\[[0-9a-fA-F:]+\](?::\d+)?")
_GUARD = {
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
_COMPRESSIBLE = frozenset({".css", ".html", ".js", ".svg"})


class _PageFile(Struct, frozen=True, kw_only=True):
    """One file of the page, and whether it is worth compressing."""

    body: bytes
    is_compressible: bool
    media_type: str
    etag: str


class BundledPage:
    """The files of the page, as an ASGI app. Without a build it answers nothing, and `GET /` says so instead.

    `upload_origin` finds the origin to which browsers upload files besides this server.
    """

    def __init__(self, upload_origin: Callable[[], Awaitable[str | None]], folder: Path = FOLDER) -> None:
        self._files = _read(folder)
        self._upload_origin = upload_origin
        self._policy: str | None = None

    @property
    def is_built(self) -> bool:
        return DOCUMENT in self._files

    def route(self, method: str, path: str) -> str | None:
        """The name of this path in logs and metrics; None if the page does not answer it."""
        if method not in {"GET", "HEAD"} or not self.is_built:
            return None
        if path in PATHS or path.startswith(ADDRESSES):
            return "/"
        if path.startswith(ASSETS):
            return ASSETS
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name: value for name, value in scope["headers"] if name in {b"accept-encoding", b"if-none-match"}}
        path = scope["path"] if scope["path"].startswith(ASSETS) else DOCUMENT
        policy = await self._find_policy() if path == DOCUMENT else POLICY.format(uploads="")
        await self._response(path, headers, policy)(scope, receive, send)

    async def _find_policy(self) -> str:
        """The policy of the document. While the bucket cannot be asked, it names no bucket; uploads then go through the
        server."""
        if self._policy is None:
            try:
                origin = await self._upload_origin()
            except WorldError:
                return POLICY.format(uploads="")
            is_safe = origin is not None and _ORIGIN.fullmatch(origin) is not None
            self._policy = POLICY.format(uploads=f" {origin}" if is_safe else "")
        return self._policy

    def _response(self, path: str, headers: Mapping[bytes, bytes], policy: str) -> Response:
        file = self._files.get(path)
        if file is None:
            body = b"This file is of another release of the page. Load the page again.\n"
            return Response(body, 404, {"cache-control": "no-store"}, "text/plain; charset=utf-8")
        fields = {
            "etag": file.etag,
            "vary": "accept-encoding",
            # Assets carry a hash of their content in their names; the document names them and must be current.
            "cache-control": "public, max-age=31536000, immutable" if path.startswith(ASSETS) else "no-cache",
            "content-security-policy": policy,
            **_GUARD,
        }
        if headers.get(b"if-none-match") == file.etag.encode():
            return Response(status_code=304, headers=fields)
        if file.is_compressible and b"gzip" in headers.get(b"accept-encoding", b""):
            fields["content-encoding"] = "gzip"
            return Response(_compressed(file.body), 200, fields, file.media_type)
        return Response(file.body, 200, fields, file.media_type)


def _read(folder: Path) -> dict[str, _PageFile]:
    """Every file of the page by its path. Names that begin with a dot belong to the build."""
    found: dict[str, _PageFile] = {}
    for file in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if file.is_file() and not file.name.startswith("."):
            found[f"/{file.relative_to(folder).as_posix()}"] = _load(file)
    return found


def _load(file: Path) -> _PageFile:
    body = file.read_bytes()
    return _PageFile(
        body=body,
        is_compressible=file.suffix in _COMPRESSIBLE,
        media_type=_TYPES.get(file.suffix, "application/octet-stream"),
        etag=f'"{hashlib.sha256(body).hexdigest()[:32]}"',
    )


@cache
def _compressed(body: bytes) -> bytes:
    """Compressed at the first request for it: most processes never serve the page."""
    return gzip.compress(body, mtime=0)
