"""Idempotency: the key that a client gives to a request, and a hash that tells one request from another.

Decision: docs/decisions/0503
"""

import hashlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from turnkeep.api.http.endpoints import ApiCall
from turnkeep.api.identity.authentication import header_text

_canonical = msgspec.json.Encoder(order="sorted")


def idempotency_key(call: ApiCall[Any, Any]) -> str | None:
    """The client's `Idempotency-Key`. Raises InvalidRequest if it is empty or over 255 characters."""
    key = call.headers.get("idempotency-key")
    return None if key is None else header_text(key)


def request_hash(call: ApiCall[Any, Any]) -> str:
    """A hash of route and body. It does not depend on the spelling of the JSON."""
    return hash_of(call.target, msgspec.to_builtins(call.body))


def hash_of(target: str, body: dict[str, Any]) -> str:
    """Fields that are null are left out. So a field that a later version adds does not change the hash of a request
    that is repeated after the upgrade."""
    given = {name: value for name, value in body.items() if value is not None}
    return hashlib.sha256(target.encode() + b"\n" + _canonical.encode(given)).hexdigest()


class StreamHash:
    """The same hash for a body that is read as it arrives. `settings` are the other values that decide its meaning."""

    def __init__(self, call: ApiCall[Any, Any], *settings: str | None) -> None:
        self._hash = hashlib.sha256(call.target.encode() + b"\n" + _canonical.encode(settings) + b"\n")

    async def passing(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same chunks, hashed on their way."""
        async for chunk in chunks:
            self._hash.update(chunk)
            yield chunk

    def hexdigest(self) -> str:
        """The hash of everything that has passed so far."""
        return self._hash.hexdigest()
