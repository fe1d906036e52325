"""The address guard: outgoing HTTP of tools may go to public addresses only, unless the operator allows all.

The address of a tool is written by a user, and the server stands in a network that this user may not reach. So every
name is resolved here, every address is checked, and the connection is made to the address that was checked
(`http_tools.py`). If the name were resolved again later, its address could change in between.
"""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Final
from urllib.parse import SplitResult, quote, urlsplit

from yarl import URL

from turnkeep.errors import InvalidRequest, WorldError

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

RESOLVE_SECONDS = 5.0
MAX_PARSED_CHARS = 65_536

PORTS: Final = {"http": 80, "https": 443}

_REFUSED_V4 = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8",  # this host
            "10.0.0.0/8",
            "100.64.0.0/10",  # carrier-grade NAT; metadata at Alibaba
            "127.0.0.0/8",
            "168.63.129.16/32",  # the host agent at Azure
            "169.254.0.0/16",  # link-local; metadata at most clouds
            "172.16.0.0/12",
            "192.0.0.0/24",  # protocol assignments; metadata at Oracle
            "192.0.2.0/24",
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, broadcast
        ),
    )
)
_GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
"""The only part of IPv6 that is routed; loopback, unique local, link-local, mapped and multicast are outside."""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_REFUSED_V6 = tuple(
    map(
        ipaddress.IPv6Network,
        (
            "2001::/23",  # protocol assignments, with Teredo (which embeds an IPv4 address)
            "2001:db8::/32",
            "2002::/16",  # 6to4: embeds an IPv4 address
            "3fff::/20",
        ),
    )
)

_HOST = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_STRAY_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_KEPT = "%/?:@!$&'()*+,;=[]~-._"
"""Characters of a path or a query that are sent as they are, beside letters and digits."""
_NUMERIC = re.compile(r"(^|\.)(\d+|0[xX][0-9a-fA-F]*)\.?$")
"""The last label of a name is never a number, so this is an IPv4 address in some spelling."""


class AddressRefused(InvalidRequest):
    """This address may not be called. Use a public one, or let the operator set TURNKEEP_ALLOW_PRIVATE_ADDRESSES."""


class NameUnknown(WorldError):
    """The name cannot be resolved now."""

    code = "name_unknown"


def is_public(address: IpAddress) -> bool:
    """Whether the address belongs to the public Internet. An IPv4 address inside an IPv6 one is checked too."""
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _REFUSED_V4)
    if address in _NAT64:
        return is_public(ipaddress.IPv4Address(address.packed[-4:]))
    return address in _GLOBAL_V6 and not any(address in network for network in _REFUSED_V6)


class AddressGuard:
    """Checks addresses. `resolve` is called once per connection; `is_public` decides about each address it returns."""

    def __init__(
        self,
        *,
        allow_private: bool = False,
        resolve: Resolve | None = None,
        is_public: Callable[[IpAddress], bool] = is_public,
    ) -> None:
        self._allow_private = allow_private
        self._resolve = resolve or _system_resolve
        self._is_public = is_public

    @property
    def allows_private(self) -> bool:
        return self._allow_private

    def check_url(self, text: str) -> URL:
        """The parsed URL. Raises AddressRefused for a private address, and for a spelling that programs read
        differently.

        Does not resolve the name. Path and query stay as they were written, so that a signed URL stays valid.
        """
        try:
            parts = urlsplit(_printable(text))
            if parts.scheme not in PORTS:
                raise AddressRefused("The address must begin with http:// or https://.")
            server = URL(f"{parts.scheme}://{parts.netloc}")
            user, host, port = server.raw_user or server.raw_password, server.raw_host, server.explicit_port
            target = _quoted(parts)
        except ValueError as exc:
            raise AddressRefused(f"The address is not valid: {exc}.") from exc
        if user:
            raise AddressRefused("The address must not hold a user name or password. Send them in a header.")
        if not host:
            raise AddressRefused("The address names no host.")
        if port is not None and not 0 < port < 65_536:
            raise AddressRefused(f"There is no port {port}.")
        self._check_host(host)
        is_default = port is None or port == PORTS[parts.scheme]
        authority = server.host_subcomponent if is_default else f"{server.host_subcomponent}:{port}"
        return URL(f"{parts.scheme}://{authority}{target}", encoded=True)

    def check_ip(self, text: str) -> None:
        """Raises AddressRefused if the guard does not accept this IP address."""
        self._check_ip(text, _parse_ip(text))

    async def addresses(self, host: str, port: int) -> tuple[str, ...]:
        """All addresses of the host, each checked; if one is refused, all are. Raises AddressRefused, NameUnknown."""
        literal = self._check_host(host)
        if literal is not None:
            return (str(literal),)
        try:
            async with asyncio.timeout(RESOLVE_SECONDS):
                found = await self._resolve(host, port)
        except (OSError, UnicodeError) as exc:  # TimeoutError is an OSError
            raise NameUnknown(f"The name {host!r} cannot be resolved.") from exc
        if not found:
            raise NameUnknown(f"The name {host!r} has no address.")
        checked = dict.fromkeys(_parse_ip(each) for each in found)
        for address in checked:
            self._check_ip(host, address)
        return tuple(map(str, checked))

    async def check_reachable(self, url: URL) -> None:
        """Raises AddressRefused if the name resolves to a refused address now, NameUnknown if it does not resolve."""
        await self.addresses(url.raw_host or "", url.port or PORTS[url.scheme])

    def _check_host(self, host: str) -> IpAddress | None:
        """The IP address if the host is one, None for a name. Spellings that programs read differently are refused."""
        if not _HOST.fullmatch(host):
            raise AddressRefused(f"The host {host!r} is not valid.")
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            if _NUMERIC.search(host) or ":" in host:
                raise AddressRefused(f"The host {host!r} is an address in an unusual spelling. Write it out.") from None
            self._check_name(host)
            return None
        self._check_ip(host, address)
        return address

    def _check_name(self, host: str) -> None:
        name = host.rstrip(".").lower()
        if not self._allow_private and (name == "localhost" or name.endswith(".localhost")):
            raise AddressRefused(_refusal(host, "the server itself"))

    def _check_ip(self, host: str, address: IpAddress) -> None:
        if not self._allow_private and not self._is_public(address):
            raise AddressRefused(_refusal(host, "an address that is not public"))


def _printable(text: str) -> str:
    """The text. Raises ValueError for what parsers silently drop, or read at a great cost."""
    if len(text) > MAX_PARSED_CHARS:
        raise ValueError(f"it has more than {MAX_PARSED_CHARS:,} characters")
    if _CONTROL.search(text):
        raise ValueError("it has a control character in it")
    return text


def _quoted(parts: SplitResult) -> str:
    """Path, query and fragment, escaped only where they must be. Raises ValueError for half a surrogate pair."""
    target = parts.path or "/"
    if parts.query:
        target += f"?{parts.query}"
    if parts.fragment:
        target += f"#{parts.fragment}"
    return quote(_STRAY_PERCENT.sub("%25", target), safe=_KEPT + "#")


def _refusal(host: str, what: str) -> str:
    return (
        f"{host!r} is {what}, which may not be called. The operator can allow it with "
        "TURNKEEP_ALLOW_PRIVATE_ADDRESSES=1."
    )


def _parse_ip(text: str) -> IpAddress:
    """An address from the resolver. A link-local one may have a zone, which does not matter here."""
    return ipaddress.ip_address(text.partition("%")[0])


async def _system_resolve(host: str, port: int) -> Sequence[str]:
    loop = asyncio.get_running_loop()
    ask = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for _, _, _, _, address in await loop.run_in_executor(_threads(), ask)]


@cache
def _threads() -> ThreadPoolExecutor:
    """Threads for name resolution only: a name that hangs must not block the threads of the rest of the server."""
    return ThreadPoolExecutor(max_workers=16, thread_name_prefix="resolve")
