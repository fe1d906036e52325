"""Requests that may be sent twice: the key that their sender gave them, and a hash that tells one from another."""

import hashlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from turnkeep.api.http.endpoints import Call
from turnkeep.api.identity.authentication import header_text

_canonical = msgspec.json.Encoder(order="sorted")


def idempotency_key(call: Call[Any, Any]) -> str | None:
    """The caller's `Idempotency-Key`, whole. Raises InvalidRequest for one that is empty or over 255 characters."""
    key = call.headers.get("idempotency-key")
    return None if key is None else header_text(key)


def request_hash(call: Call[Any, Any]) -> str:
    """Stands for route and body, however the JSON was spelled."""
    return hash_of(call.target, msgspec.to_builtins(call.body))


def hash_of(target: str, body: dict[str, Any]) -> str:
    """What is null says nothing. So a field that a later version adds changes no hash of a request that is repeated
    across the upgrade."""
    said = {name: value for name, value in body.items() if value is not None}
    return hashlib.sha256(target.encode() + b"\n" + _canonical.encode(said)).hexdigest()


class StreamHash:
    """The same for a body that is read as it arrives. `settings` are what else decides how it is understood."""

    def __init__(self, call: Call[Any, Any], *settings: str | None) -> None:
        self._hash = hashlib.sha256(call.target.encode() + b"\n" + _canonical.encode(settings) + b"\n")

    async def passing(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same bytes."""
        async for chunk in chunks:
            self._hash.update(chunk)
            yield chunk

    def hexdigest(self) -> str:
        """True once all of it has passed."""
        return self._hash.hexdigest()
