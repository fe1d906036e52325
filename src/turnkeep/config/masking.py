"""Secrets in words that somebody else wrote: found as they are, and masked."""

from collections.abc import Iterable

from turnkeep.config.parsing import MASK

SHORTEST = 8
"""A shorter value is no key, and would be found in innocent words."""


def masked(text: str, secrets: Iterable[str], *, shortest: int = SHORTEST) -> str:
    """The text without these secrets. The longest go first, so that no half of one is left over."""
    for secret in sorted(set(secrets), key=len, reverse=True):
        if len(secret) >= shortest:
            text = text.replace(secret, MASK)
    return text
