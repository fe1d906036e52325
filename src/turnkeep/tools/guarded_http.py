"""The HTTP client for the HTTP tools that agents declare: aiohttp, restricted by the address guard.

The guard resolves each name, and the socket is opened to an address that the guard has accepted. `Host` and the server
name in the TLS handshake stay those of the URL. That holds for every connection, so also after a redirect and for a
reconnection. No proxy and no password is taken from the environment, and no cookie is kept.

The MCP SDK insists on an httpx client; `mcp_transports.py` applies the same guard to that one.

Decision: docs/decisions/0601
"""

import errno
import os
import socket
import ssl
from functools import cache
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from turnkeep.errors import WorldError
from turnkeep.tools.addresses import AddressGuard, AddressRefused

MAX_CONNECTIONS: Final = 200
KEEPALIVE_SECONDS: Final = 30.0
MAX_HEADER_BYTES: Final = 64 * 1024
"""Maximum length of one header line of a response."""

_CA_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where Linux distributions keep their authorities, for a Python whose OpenSSL was built to look elsewhere."""


def open_session(guard: AddressGuard) -> aiohttp.ClientSession:
    """A client that connects only to addresses that the guard accepts. Close it.

    Send requests with `allow_redirects=False`: a redirect must be checked as a new address. Bodies come as the server
    sent them, still compressed if they are. Cookies are dropped: what a server told one tenant must not reach it again
    with a call of another.
    """
    connector = aiohttp.TCPConnector(
        resolver=GuardedResolver(guard),
        use_dns_cache=False,  # every connection is judged by its own answer of the name server
        socket_factory=_GuardedSocketFactory(guard),
        ssl=trusted_tls(),
        limit=MAX_CONNECTIONS,
        keepalive_timeout=KEEPALIVE_SECONDS,
    )
    return aiohttp.ClientSession(
        connector=connector,
        headers={"User-Agent": "turnkeep", "Accept-Encoding": "identity"},
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        max_line_size=MAX_HEADER_BYTES,
        max_field_size=MAX_HEADER_BYTES,
        middlewares=(_send_once,),
    )


class GuardedResolver(AbstractResolver):
    """Resolves names through the guard. aiohttp connects to what this returns and does not resolve the name again."""

    def __init__(self, guard: AddressGuard) -> None:
        self._guard = guard

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Raises AddressRefused as it is; a name that cannot be resolved becomes the OSError that aiohttp expects."""
        try:
            addresses = await self._guard.addresses(host, port)
        except WorldError as exc:
            raise socket.gaierror(socket.EAI_NONAME, exc.detail) from exc
        return [_result(host, address, port) for address in addresses]

    async def close(self) -> None:
        pass


def _result(host: str, address: str, port: int) -> ResolveResult:
    return ResolveResult(
        hostname=host,
        host=address,
        port=port,
        family=socket.AF_INET6 if ":" in address else socket.AF_INET,
        proto=0,
        flags=socket.AI_NUMERICHOST,
    )


class _GuardedSocketFactory:
    """Makes sockets only for accepted addresses. aiohttp asks no resolver for a host that is an IP address already."""

    def __init__(self, guard: AddressGuard) -> None:
        self._guard = guard

    def __call__(self, address_info: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, address = address_info
        try:
            self._guard.check_ip(str(address[0]))
        except AddressRefused as exc:
            raise PermissionError(errno.EACCES, exc.detail) from exc
        return socket.socket(family, kind, protocol)


async def _send_once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Stop aiohttp from repeating GET, PUT and DELETE when the connection breaks.

    Whether a call of a tool may be repeated is for the engine to decide. aiohttp repeats only after these two errors.
    """
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as exc:
        raise aiohttp.ClientConnectionError(str(exc)) from exc


@cache
def trusted_tls() -> ssl.SSLContext:
    """The trusted authorities: those of `SSL_CERT_FILE` or `SSL_CERT_DIR`, else the system's. Read once: it is slow."""
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if file:
        return ssl.create_default_context(cafile=file)
    if folder:
        return ssl.create_default_context(capath=folder)
    context = ssl.create_default_context()
    if not context.cert_store_stats()["x509_ca"] and ssl.get_default_verify_paths().capath is None:
        found = next(filter(os.path.isfile, _CA_FILES), None)
        if found is not None:
            context.load_verify_locations(found)
    return context
