"""Signed values: a few facts about a user that nobody else can make or change. Knows no requests and no store.

`{prefix}{base64url(JSON)}.{base64url(HMAC-SHA256)}`; the prefix is signed too, so that a value made for one purpose
is worth nothing for another. The first secret signs, all verify, so that secrets can be replaced without an outage.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from typing import Final, Literal

import msgspec
from msgspec import Struct

from turnkeep.clock import Clock, system_clock
from turnkeep.errors import Unauthorized
from turnkeep.ids import KeyId, OrgId, UserId, WorkspaceId

Prefix = Literal["tku_", "tkp_"]

USER_TOKEN: Final = "tku_"
PAGE_COOKIE: Final = "tkp_"

MAX_CHARS = 2_000


class Claims(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """That user, in that workspace, until then. `key` made it: its limits go on to count."""

    org: OrgId
    ws: WorkspaceId
    user: UserId
    role: Literal["member", "admin"]
    exp: int
    key: KeyId | None = None
    rpm: int | None = None


class Signer:
    """Signs and verifies with one set of secrets."""

    def __init__(self, secrets: Sequence[str], *, clock: Clock = system_clock) -> None:
        if not secrets:
            raise ValueError("A signer needs at least one secret.")
        self._keys = [hashlib.sha256(b"turnkeep user tokens\0" + secret.encode()).digest() for secret in secrets]
        self._clock = clock

    def sign(self, prefix: Prefix, claims: Claims) -> str:
        signed = prefix + _text(msgspec.json.encode(claims))
        return f"{signed}.{_text(_mac(self._keys[0], signed))}"

    def verify(self, prefix: Prefix, token: str) -> Claims:
        """What was signed. Raises Unauthorized for anything else, without saying what is wrong with a forgery."""
        if len(token) > MAX_CHARS or not token.startswith(prefix) or not token.isascii():
            raise Unauthorized("This token is not valid.")
        signed, _, signature = token.rpartition(".")
        given = _bytes(signature)
        # All keys are tried, so that the time taken does not tell which one matched.
        matches = [hmac.compare_digest(_mac(key, signed), given) for key in self._keys]
        if not any(matches):
            raise Unauthorized("This token is not valid.")
        try:
            claims = msgspec.json.decode(_bytes(signed.removeprefix(prefix)), type=Claims)
        except msgspec.MsgspecError as exc:
            raise Unauthorized("This token was made by another release. Ask for a new one.") from exc
        if claims.exp <= self._clock():
            raise Unauthorized("This token has expired. Ask for a new one.")
        return claims


def _mac(key: bytes, signed: str) -> bytes:
    return hmac.digest(key, signed.encode(), "sha256")


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return b""
    # Several texts decode to the same bytes when the last character has spare bits; only one of them is ours.
    return raw if _text(raw) == text else b""
