"""Cursors of pages: opaque to clients, a JSON list inside."""

import base64
import binascii
from typing import TypeVar

import msgspec

from turnkeep.errors import InvalidRequest

Key = TypeVar("Key")


def encode_cursor(*key: int | str) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).decode().rstrip("=")


def decode_cursor(cursor: str, key: type[Key]) -> Key:
    """The key that was encoded, as that type; InvalidRequest for anything that we never handed out."""
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(raw, type=key)
    except (binascii.Error, ValueError) as exc:  # msgspec's errors are ValueErrors
        raise InvalidRequest("This cursor is malformed. Use the next_cursor of the page before.") from exc
