"""Marks of what was done once, to be kept where one-time tokens are."""

import hashlib

from turnkeep.ids import CallId, TurnId


def call_mark(turn_id: TurnId, call_id: CallId) -> bytes:
    """A model call of a turn that was counted. No token has this hash that anybody could spend."""
    return hashlib.sha256(f"model call\0{turn_id}\0{call_id}".encode()).digest()
