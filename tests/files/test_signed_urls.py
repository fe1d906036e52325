"""Signed addresses: good for one thing, one tenant, a while; invalid when a single byte differs."""

import pytest

from turnkeep.clock import FakeClock
from turnkeep.errors import Unauthorized
from turnkeep.files.signed_urls import UrlSigner
from turnkeep.ids import OrgId, new_org_id

PATH = "/v1/sandbox/turn_1/bag.zip"


def signed(signer: UrlSigner, clock: FakeClock, org: OrgId | None = None, seconds: int = 300) -> tuple[str, bytes]:
    address = signer.sign(
        "GET", PATH, org_id=org or new_org_id(), expires_at=clock() + seconds * 1000, facts={"attempt": 2}
    )
    path, _, query = address.partition("?")
    return path, query.encode()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def signer(clock: FakeClock) -> UrlSigner:
    return UrlSigner(["current"], clock=clock)


class TestGood:
    def test_it_says_what_was_signed(self, signer: UrlSigner, clock: FakeClock) -> None:
        org = new_org_id()
        grant = signer.verify("GET", *signed(signer, clock, org))
        assert (grant.org_id, grant.facts) == (org, {"attempt": "2"})

    def test_until_it_expires(self, signer: UrlSigner, clock: FakeClock) -> None:
        address = signed(signer, clock)
        clock.advance(seconds=299.999)
        signer.verify("GET", *address)
        clock.advance(seconds=0.001)
        with pytest.raises(Unauthorized):
            signer.verify("GET", *address)
        clock.advance(seconds=1)
        with pytest.raises(Unauthorized):
            signer.verify("GET", *address)

    def test_with_a_secret_that_no_longer_signs(self, signer: UrlSigner, clock: FakeClock) -> None:
        address = signed(signer, clock)
        rotated = UrlSigner(["next", "current"], clock=clock)
        rotated.verify("GET", *address)
        assert b"kid=" in address[1]
        assert signed(rotated, clock)[1].split(b"kid=")[1][:12] != address[1].split(b"kid=")[1][:12]


class TestWorthNothing:
    def test_signed_with_a_retired_secret(self, signer: UrlSigner, clock: FakeClock) -> None:
        with pytest.raises(Unauthorized):
            UrlSigner(["next"], clock=clock).verify("GET", *signed(signer, clock))

    def test_with_any_byte_flipped(self, signer: UrlSigner, clock: FakeClock) -> None:
        path, query = signed(signer, clock)
        for place in range(len(query)):
            for bit in (1, 2, 32):
                forged = bytearray(query)
                forged[place] ^= bit
                with pytest.raises(Unauthorized):
                    signer.verify("GET", path, bytes(forged))

    def test_for_another_path_or_method(self, signer: UrlSigner, clock: FakeClock) -> None:
        path, query = signed(signer, clock)
        for method, other in (("GET", path.replace("turn_1", "turn_2")), ("PUT", path), ("GET", path + "/")):
            with pytest.raises(Unauthorized):
                signer.verify(method, other, query)

    def test_for_another_tenant_or_a_later_moment(self, signer: UrlSigner, clock: FakeClock) -> None:
        org = new_org_id()
        path, query = signed(signer, clock, org)
        later = str(clock() + 300_000)
        for forged in (
            query.replace(org.encode(), new_org_id().encode()),
            query.replace(later.encode(), str(int(later) + 1).encode()),
        ):
            assert forged != query
            with pytest.raises(Unauthorized):
                signer.verify("GET", path, forged)

    def test_with_parameters_repeated_added_reordered_or_left_out(self, signer: UrlSigner, clock: FakeClock) -> None:
        path, query = signed(signer, clock)
        first, *rest = query.split(b"&")
        signature = rest[-1]
        for forged in (
            first + b"&" + query,
            query + b"&" + first,
            query + b"&" + signature,
            query + b"&extra=1",
            b"extra=1&" + query,
            b"&".join([*rest[:-1], first, signature]),
            b"&".join(rest),
            query.rpartition(b"&")[0],
            query.replace(b"attempt", b"%61ttempt"),
            b"",
            b"signature=",
            b"&signature=",
            b"x" * 100_000,
        ):
            with pytest.raises(Unauthorized):
                signer.verify("GET", path, forged)

    def test_it_does_not_say_what_is_wrong(self, signer: UrlSigner, clock: FakeClock) -> None:
        path, query = signed(signer, clock)
        said = set()
        clock.advance(seconds=301)
        for forged in (query, query[:-1], b"", query.replace(b"kid=", b"kid=0")):
            with pytest.raises(Unauthorized) as refused:
                signer.verify("GET", path, forged)
            said.add(refused.value.detail)
        assert len(said) == 1


def test_a_signer_needs_a_secret() -> None:
    with pytest.raises(ValueError, match="secret"):
        UrlSigner([])
