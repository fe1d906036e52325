"""User tokens: signed facts about one user. Knows no requests and no store.

`{prefix}{base64url(JSON)}.{base64url(HMAC-SHA256)}`. The prefix is signed too, so that a value made for one purpose is
not valid for another.

Decision: docs/decisions/0502
"""

import base64
import binascii
from collections.abc import Sequence
from typing import Final, Literal

import msgspec
from msgspec import Struct

from turnkeep.clock import Clock, system_clock
from turnkeep.errors import InvalidRequest, Unauthorized
from turnkeep.ids import KeyId, OrgId, UserId, WorkspaceId
from turnkeep.model.principals import Scopes
from turnkeep.signed_values import SigningKeys, base64url
from turnkeep_client.wire.account import TurnSource

USER_TOKEN: Final = "tku_"

MAX_CHARS = 8_000


class Claims(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One user in one workspace until `exp`. The limits of `key`, which made the token, also hold for the token, and
    the token ends with it. `rpm` is found only in tokens of earlier releases: the key knows it."""

    org: OrgId
    ws: WorkspaceId
    user: UserId
    role: Literal["member", "admin"]
    exp: int
    key: KeyId | None = None
    rpm: int | None = None
    scopes: Scopes | None = None
    src: TurnSource = "ui"


class UserTokens:
    """Makes and verifies tokens with one set of secrets."""

    def __init__(self, secrets: Sequence[str], *, clock: Clock = system_clock) -> None:
        self._keys = SigningKeys(secrets, purpose="user tokens")
        self._clock = clock

    def sign(self, claims: Claims) -> str:
        """Raises InvalidRequest for scopes that make the token too long for a header."""
        signed = USER_TOKEN + base64url(msgspec.json.encode(claims))
        token = f"{signed}.{self._keys.sign(signed.encode())}"
        if len(token) > MAX_CHARS:
            raise InvalidRequest(f"These scopes make a token of more than {MAX_CHARS:,} characters. Name fewer things.")
        return token

    def verify(self, token: str) -> Claims:
        """The claims of a valid token. Raises Unauthorized otherwise, and does not say what is wrong with a forgery."""
        if len(token) > MAX_CHARS or not token.startswith(USER_TOKEN) or not token.isascii():
            raise Unauthorized("This token is not valid.")
        signed, _, signature = token.rpartition(".")
        if not self._keys.is_signed(signed.encode(), signature):
            raise Unauthorized("This token is not valid.")
        try:
            claims = msgspec.json.decode(_bytes(signed.removeprefix(USER_TOKEN)), type=Claims)
        except msgspec.MsgspecError as exc:
            raise Unauthorized("This token was made by another release. Ask for a new one.") from exc
        if claims.exp <= self._clock():
            raise Unauthorized("This token has expired. Ask for a new one.")
        return claims


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return b""
