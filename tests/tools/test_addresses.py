"""The address guard: addresses that must not be reached, in every spelling, and names that change their address."""

import ipaddress
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import aiohttp
import httpx2
import pytest
from msgspec import Struct

from tests.tools.certificates import make_certificate
from tests.tools.web_server import web_server
from turnkeep.tls import trusted_tls
from turnkeep.tools.addresses import AddressGuard, AddressRefused, NameUnknown, is_public
from turnkeep.tools.http_tools import open_session
from turnkeep.tools.mcp_session import open_client

REFUSED = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "100.100.100.200",  # metadata at Alibaba
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",  # the host agent at Azure
    "169.254.0.1",
    "169.254.169.254",  # metadata at AWS, GCP, Azure
    "169.254.170.2",  # credentials of containers at AWS
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",  # metadata at Oracle
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",  # IPv4-compatible
    "::ffff:127.0.0.1",  # IPv4-mapped
    "::ffff:8.8.8.8",
    "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1",  # NAT64
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",  # Teredo
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:2::1",
    "2001:10::1",
    "2001:db8::1",
    "2002:7f00:1::",  # 6to4 of 127.0.0.1
    "2002:a9fe:a9fe::1",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",  # metadata at AWS
    "fe80::1",
    "fec0::1",
    "ff02::1",
]
PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "100.128.0.1",
    "172.32.0.1",
    "192.0.1.1",
    "2606:4700::1111",
    "2a00:1450::1",
    "64:ff9b::808:808",
]

SPELLINGS = [
    "http://127.0.0.1/",
    "http://127.0.0.1:8080/x?y#z",
    "http://127.1/",
    "http://127.0.1/",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0x7f.0.0.1/",
    "http://0x7f.1/",
    "http://0177.0.0.1/",
    "http://017700000001/",
    "http://127.0.0.1./",
    "http://00000127.0.0.1/",
    "http://0/",
    "http://127。0。0。1/",
    "http://１２７.0.0.1/",
    "http://①②⑦.⓪.⓪.①/",
    "http://[::1]/",
    "http://[::ffff:7f00:1]/",
    "http://[0:0:0:0:0:ffff:127.0.0.1]/",
    "http://[::ffff:169.254.169.254]/",
    "http://[fe80::1%25eth0]/",
    "http://[::1%251]/",
    "http://localhost/",
    "http://LOCALHOST/",
    "http://localhost./",
    "http://anything.localhost/",
    "http://256.256.256.256/",
    "http://1.2.3.4.5/",
    "http://134744072/",  # 8.8.8.8, but who reads it so?
]
NO_ADDRESSES = [
    "",
    "example.com",
    "//example.com/",
    "ftp://example.com/",
    "file:///etc/passwd",
    "gopher://example.com/",
    "unix:///run/docker.sock",
    "http:///path",
    "http://user@example.com/",
    "http://user:password@example.com/",
    "http://example.com@127.0.0.1/",
    "http://exa mple.com/",
    "http://exa%20mple.com/",
    "http://127.0.0.1%2f@example.com/",
    "http://example.com:0/",
    "http://example.com:99999/",
    "http://exam\nple.com/",
    "http://[::1/",
    "http://127.0.0.1\\.example.com/",
    "http://exa<mple.com/",
    "http://example.com/" + "x" * 70_000,
    "http://example.com/\ud800",
]


class Fetched(Struct, frozen=True):
    """A response, whichever client read it."""

    status: int
    headers: Mapping[str, str]
    body: bytes


Get = Callable[[str], Awaitable[Fetched]]
Connect = Callable[[AddressGuard], AbstractAsyncContextManager[Get]]
CONNECT_ERRORS = (aiohttp.ClientConnectorError, httpx2.ConnectError)


@asynccontextmanager
async def with_aiohttp(guard: AddressGuard) -> AsyncIterator[Get]:
    async with open_session(guard) as session:

        async def get(url: str) -> Fetched:
            async with session.get(url, allow_redirects=False) as response:
                return Fetched(response.status, response.headers, await response.read())

        yield get


@asynccontextmanager
async def with_httpx(guard: AddressGuard) -> AsyncIterator[Get]:
    async with open_client(guard) as client:

        async def get(url: str) -> Fetched:
            response = await client.get(url)
            return Fetched(response.status_code, response.headers, response.content)

        yield get


@pytest.fixture(params=[with_aiohttp, with_httpx])
def connect(request: pytest.FixtureRequest) -> Connect:
    found: Connect = request.param
    return found


class TestAnAddress:
    @pytest.mark.parametrize("text", REFUSED)
    def test_of_this_machine_or_its_network_is_refused(self, text: str) -> None:
        assert not is_public(ipaddress.ip_address(text))

    @pytest.mark.parametrize("text", PUBLIC)
    def test_of_the_internet_is_accepted(self, text: str) -> None:
        assert is_public(ipaddress.ip_address(text))

    def test_around_the_edges_of_what_is_refused(self) -> None:
        for edge in ("9.255.255.255", "11.0.0.0", "126.255.255.255", "128.0.0.0", "169.253.255.255", "172.15.255.255"):
            assert is_public(ipaddress.ip_address(edge)), edge


class TestASpelling:
    @pytest.mark.parametrize("url", SPELLINGS + NO_ADDRESSES)
    def test_that_means_a_private_address_or_none_is_refused(self, url: str) -> None:
        with pytest.raises(AddressRefused) as refusal:
            AddressGuard().check_url(url)
        assert refusal.value.detail

    @pytest.mark.parametrize(
        "url", ["https://api.example.com/v1?x=1", "http://8.8.8.8:8080/", "https://[2606:4700::1]/"]
    )
    def test_of_a_public_address_is_accepted(self, url: str) -> None:
        assert str(AddressGuard().check_url(url)) == url

    @pytest.mark.parametrize(
        "url", ["http://127.0.0.1:8080/", "http://localhost/", "http://[::1]/", "http://10.0.0.1/"]
    )
    def test_of_a_private_one_is_accepted_if_the_operator_allows_it(self, url: str) -> None:
        assert str(AddressGuard(allow_private=True).check_url(url)) == url

    @pytest.mark.parametrize(
        "url",
        [
            "https://bucket.example/a%2Fb/c+d?sig=a%2Fb%2B%3d&empty=&x=%20",
            "https://example.com/~me/[1]/(2)?q=a:b@c/d?e",
        ],
    )
    def test_of_a_path_and_a_query_is_not_changed(self, url: str) -> None:
        """A signature over them must stay valid."""
        assert str(AddressGuard().check_url(url)) == url

    @pytest.mark.parametrize(
        "url, sent",
        [
            ("HTTPS://Example.COM:443/Ünï?q=ü b", "https://example.com/%C3%9Cn%C3%AF?q=%C3%BC%20b"),
            ("http://bücher.example/100%", "http://xn--bcher-kva.example/100%25"),
            ("http://example.com", "http://example.com/"),
        ],
    )
    def test_that_cannot_be_sent_as_it_is_is_escaped(self, url: str, sent: str) -> None:
        assert str(AddressGuard().check_url(url)) == sent

    def test_with_a_password_is_refused_even_then(self) -> None:
        with pytest.raises(AddressRefused, match="header"):
            AddressGuard(allow_private=True).check_url("http://user:password@127.0.0.1/")


class TestAName:
    @pytest.mark.parametrize("address", [*REFUSED, "fe80::1%eth0"])
    async def test_is_checked_by_the_addresses_it_resolves_to(self, address: str) -> None:
        with pytest.raises(AddressRefused):
            await AddressGuard(resolve=Names(["8.8.8.8", address])).addresses("innocent.example", 80)

    async def test_is_refused_as_a_whole_when_one_of_its_addresses_is(self) -> None:
        names = Names(["8.8.8.8", "2606:4700::1", "10.0.0.1"])
        with pytest.raises(AddressRefused, match="TURNKEEP_ALLOW_PRIVATE_ADDRESSES"):
            await AddressGuard(resolve=names).addresses("innocent.example", 80)

    async def test_without_an_address_is_unknown(self) -> None:
        with pytest.raises(NameUnknown, match=r"nowhere\.example"):
            await AddressGuard(resolve=Names([])).addresses("nowhere.example", 80)

    async def test_of_this_machine_is_found_by_the_system(self) -> None:
        assert "127.0.0.1" in await AddressGuard(allow_private=True).addresses("localhost", 80)


class TestAConnection:
    """Both clients keep these rules: aiohttp for HTTP tools, and the httpx client that the MCP SDK is given."""

    async def test_goes_to_the_checked_address_with_the_host_name_of_the_url(self, connect: Connect) -> None:
        names = Names(["127.0.0.1"])
        async with web_server() as server, connect(AddressGuard(allow_private=True, resolve=names)) as get:
            answer = await get(f"http://innocent.example:{server.port}/headers")
            assert json.loads(answer.body)["host"] == f"innocent.example:{server.port}"
        assert names.asked == ["innocent.example"]

    async def test_shows_and_checks_the_name_in_tls_too(
        self, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tls, authority = make_certificate(tmp_path, "innocent.example")
        shown: list[str | None] = []
        tls.sni_callback = lambda _socket, name, _context: shown.append(name)
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        trusted_tls.cache_clear()
        guard = AddressGuard(allow_private=True, resolve=Names(["127.0.0.1"]))
        try:
            async with web_server(tls=tls) as server, connect(guard) as get:
                assert (await get(f"https://innocent.example:{server.port}/")).status == 200
                with pytest.raises(CONNECT_ERRORS, match=r"(?i)certificate"):
                    await get(f"https://another.example:{server.port}/")
        finally:
            trusted_tls.cache_clear()
        assert shown == ["innocent.example", "another.example"]

    async def test_resolves_a_name_once_so_that_its_address_cannot_change_in_between(self, connect: Connect) -> None:
        """The first address is accepted. A second resolution would return the other one."""
        names = Names(["127.0.0.1"], ["127.0.0.2"])
        async with web_server() as public, web_server("127.0.0.2", port=public.port) as private:
            async with connect(_first_only(names)) as get:
                assert (await get(f"http://two-faced.example:{public.port}/")).status == 200
            assert (public.hits, private.hits) == (1, 0)

    async def test_that_is_opened_again_is_checked_again(self, connect: Connect) -> None:
        names = Names(["127.0.0.1"], ["127.0.0.2"])
        async with web_server() as public, web_server("127.0.0.2", port=public.port) as private:
            url = f"http://two-faced.example:{public.port}/close"
            async with connect(_first_only(names)) as get:
                await get(url)
                with pytest.raises(AddressRefused):
                    await get(url)
            assert (public.hits, private.hits) == (1, 0)

    async def test_to_a_private_ip_address_is_not_made(self, connect: Connect) -> None:
        """Not even for a URL that was never checked."""
        async with web_server("127.0.0.2") as private:
            async with connect(_first_only(Names([]))) as get:
                with pytest.raises((AddressRefused, *CONNECT_ERRORS), match="not public"):
                    await get(private.url)
            assert private.hits == 0

    async def test_tries_the_next_address_when_one_does_not_answer(self, connect: Connect) -> None:
        names = Names(["127.0.0.3", "127.0.0.1"])
        async with web_server() as server, connect(AddressGuard(allow_private=True, resolve=names)) as get:
            assert (await get(f"http://two.example:{server.port}/")).status == 200

    async def test_uses_no_proxy_of_the_environment(self, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
        async with web_server() as server, web_server() as proxy:
            for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
                monkeypatch.setenv(name, proxy.url)
            async with connect(AddressGuard(allow_private=True)) as get:
                await get(server.url)
            assert (server.hits, proxy.hits) == (1, 0)

    async def test_keeps_no_cookie_for_the_next_caller(self, connect: Connect) -> None:
        async with web_server() as server, connect(AddressGuard(allow_private=True)) as get:
            assert (await get(f"{server.url}/cookie")).headers["set-cookie"]
            assert "cookie" not in json.loads((await get(f"{server.url}/headers")).body)

    async def test_to_an_unknown_name_is_an_error_message(self, connect: Connect) -> None:
        async with connect(AddressGuard(resolve=Names([]))) as get:
            with pytest.raises(CONNECT_ERRORS, match="has no address"):
                await get("http://nowhere.example/")


class Names:
    """A name server that gives its answers one after the other, the last one for ever."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def _first_only(names: Names) -> AddressGuard:
    """127.0.0.1 plays the Internet, 127.0.0.2 the network behind the server."""
    return AddressGuard(resolve=names, is_public=lambda address: str(address) == "127.0.0.1")
