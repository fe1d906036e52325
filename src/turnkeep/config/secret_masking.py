"""Secrets in texts and addresses, replaced by a mask before anyone reads them."""

from collections.abc import Iterable
from urllib.parse import urlsplit, urlunsplit

MASK = "***"

SHORTEST = 8
"""A shorter value is no key, and would be found in innocent words."""


def masked(text: str, secrets: Iterable[str], *, shortest: int = SHORTEST) -> str:
    """The text without these secrets. The longest are replaced first, so that no part of a longer one is left over."""
    for secret in sorted(set(secrets), key=len, reverse=True):
        if len(secret) >= shortest:
            text = text.replace(secret, MASK)
    return text


def mask_url(text: str) -> str:
    """An address without the password inside it. Other texts stay as they are."""
    try:
        parts = urlsplit(text)
        password = parts.password
    except ValueError:
        return text
    if not parts.scheme or not password:
        return text
    user, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}:{MASK}@{host}"))
