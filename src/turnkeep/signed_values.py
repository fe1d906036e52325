"""The one place that computes and checks HMAC signatures: for user tokens, gateway tokens and signed addresses.

Each purpose has keys of its own, derived from the server's secrets, so that a signature made for one purpose is not
valid for another. The first secret signs and all verify, so that secrets can be replaced without an outage.
"""

import base64
import hashlib
import hmac
from collections.abc import Callable, Sequence


def base64url(raw: bytes) -> str:
    """URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


class SigningKeys:
    """HMAC-SHA256 keys of one purpose. `encode` is how a signature is written."""

    def __init__(self, secrets: Sequence[str], *, purpose: str, encode: Callable[[bytes], str] = base64url) -> None:
        if not secrets:
            raise ValueError("A signer needs at least one secret.")
        keys = [hashlib.sha256(f"turnkeep {purpose}\0{secret}".encode()).digest() for secret in secrets]
        self._keys = {hashlib.sha256(b"name of\0" + key).hexdigest()[:12]: key for key in keys}
        self._encode = encode
        self.key_id = next(iter(self._keys))
        """Names the key that signs."""

    def sign(self, message: bytes) -> str:
        return self._signature(self._keys[self.key_id], message)

    def is_signed(self, message: bytes, signature: str, *, key_id: str | None = None) -> bool:
        """Whether one of the keys, or the key of that id, made this signature.

        The written forms are compared, because several texts can decode to the same bytes. All keys are tried, so that
        the time taken does not tell which one matched.
        """
        keys = list(self._keys.values()) if key_id is None else [self._keys[key_id]] if key_id in self._keys else []
        given = signature.encode("utf-8", "replace")
        matches = [hmac.compare_digest(self._signature(key, message).encode(), given) for key in keys]
        return any(matches)

    def _signature(self, key: bytes, message: bytes) -> str:
        return self._encode(hmac.digest(key, message, "sha256"))
