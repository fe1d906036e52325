"""Signed addresses: each allows one action on one thing for a limited time. Knows no requests and no store.

    {path}?org=…&expires=…&kid=…&signature=…

The signature is an HMAC-SHA256 over method, path and every byte of the query before it, so nothing in an address can
be changed, added, repeated or spelled differently. `kid` names the secret: the first one signs, all verify, and an
address whose secret was removed is invalid.
"""

import re
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl, urlencode

from msgspec import Struct

from turnkeep.clock import Clock, system_clock
from turnkeep.errors import Unauthorized
from turnkeep.ids import OrgId
from turnkeep.signed_values import SigningKeys

_KEY_ID = re.compile(rb"(?:^|&)kid=([0-9a-f]{12})(?:&|$)")
_MARK = b"&signature="
MAX_BYTES = 2_000


class Grant(Struct, frozen=True, kw_only=True):
    """What a valid address says: whose it is, and the facts that were signed with it."""

    org_id: OrgId
    facts: Mapping[str, str]


class UrlSigner:
    """Signs and verifies addresses with one set of secrets."""

    def __init__(self, secrets: Sequence[str], *, clock: Clock = system_clock) -> None:
        self._keys = SigningKeys(secrets, purpose="addresses")
        self._clock = clock

    def sign(
        self, method: str, path: str, *, org_id: OrgId, expires_at: int, facts: Mapping[str, str | int] | None = None
    ) -> str:
        """The path with its signed query. `expires_at` is in Unix epoch milliseconds."""
        said = {"org": org_id, **(facts or {}), "expires": expires_at, "kid": self._keys.key_id}
        query = urlencode(said)
        signature = self._keys.sign(_signed(method, path, query.encode("ascii")))
        return f"{path}?{query}{_MARK.decode()}{signature}"

    def verify(self, method: str, path: str, query_string: bytes) -> Grant:
        """What was signed. Raises Unauthorized for anything else, without telling what is wrong with a forgery."""
        refusal = Unauthorized("This address is not valid, or no longer. Ask for a new one.")
        query, _, signature = query_string.rpartition(_MARK)
        named = _KEY_ID.search(query)
        if len(query_string) > MAX_BYTES or named is None:
            raise refusal
        signed, key_id = _signed(method, path, query), named[1].decode("ascii")
        if not self._keys.is_signed(signed, signature.decode("latin-1"), key_id=key_id):
            raise refusal
        # From here on every byte of the query is our own.
        said = dict(parse_qsl(query.decode("ascii"), keep_blank_values=True, strict_parsing=True))
        if int(said.pop("expires")) <= self._clock():
            raise refusal
        del said["kid"]
        return Grant(org_id=OrgId(said.pop("org")), facts=said)


def _signed(method: str, path: str, query: bytes) -> bytes:
    return b"\n".join((method.encode(), path.encode(), query))
