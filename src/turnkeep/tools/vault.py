"""The vault: credentials of agents are encrypted (sealed) before they are stored, and decrypted (opened) when used.

A sealed text is `tks1.` and base64url of nonce and AES-256-GCM ciphertext, bound to its org. The keys are derived from
TURNKEEP_SECRET_KEYS: the first seals, all open, so that secrets can be replaced without an outage.

Decision: docs/decisions/0602
"""

import base64
import binascii
import contextlib
import os
from collections.abc import Mapping, Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from turnkeep.errors import WorldError
from turnkeep.ids import OrgId
from turnkeep.model.agents import AgentSpec, with_secrets

PREFIX = "tks1."
NONCE_BYTES = 12


class SecretUnreadable(WorldError):
    """None of the secret keys opens this credential. Bring the old key back, or save the credential again."""

    code = "secret_unreadable"


class Vault:
    """Seals and opens texts with one set of secrets."""

    def __init__(self, secrets: Sequence[str]) -> None:
        if not secrets:
            raise ValueError("A vault needs at least one secret.")
        self._ciphers = [AESGCM(_key(secret)) for secret in secrets]

    def seal(self, org_id: OrgId, text: str) -> str:
        """The encrypted text, different each time, also for the same secret."""
        nonce = os.urandom(NONCE_BYTES)
        sealed = self._ciphers[0].encrypt(nonce, text.encode("utf-8", "surrogatepass"), org_id.encode())
        return PREFIX + base64.urlsafe_b64encode(nonce + sealed).decode()

    def open(self, org_id: OrgId, text: str) -> str:
        """The decrypted text. A text that is not sealed is returned as it is. Raises SecretUnreadable."""
        if not is_sealed(text):
            return text
        try:
            raw = base64.urlsafe_b64decode(text.removeprefix(PREFIX))
        except (binascii.Error, ValueError) as exc:
            raise SecretUnreadable(_UNREADABLE) from exc
        for cipher in self._ciphers:
            try:
                opened = cipher.decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], org_id.encode())
            except (InvalidTag, ValueError):
                continue
            return opened.decode("utf-8", "surrogatepass")
        raise SecretUnreadable(_UNREADABLE)

    def renew(self, org_id: OrgId, text: str) -> str:
        """The same secret, sealed with the first key. It is encrypted again only if it was not sealed with that key."""
        first = self._ciphers[0]
        opened = self.open(org_id, text)
        if is_sealed(text):
            raw = base64.urlsafe_b64decode(text.removeprefix(PREFIX))
            with contextlib.suppress(InvalidTag):
                first.decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], org_id.encode())
                return text
        return self.seal(org_id, opened)

    def open_all(self, org_id: OrgId, texts: Mapping[str, str]) -> dict[str, str]:
        return {name: self.open(org_id, text) for name, text in texts.items()}

    def open_spec(self, org_id: OrgId, spec: AgentSpec) -> AgentSpec:
        return with_secrets(spec, lambda _, text: self.open(org_id, text))


def is_sealed(text: str) -> bool:
    return text.startswith(PREFIX)


_UNREADABLE = (
    "A stored credential cannot be opened with TURNKEEP_SECRET_KEYS. Bring the old key back behind the new one, "
    "or save the credential again."
)


def _key(secret: str) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=b"turnkeep agent credentials").derive(secret.encode())
