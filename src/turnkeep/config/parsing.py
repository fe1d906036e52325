"""Parsers: the text of a setting becomes its value. A parser raises ValueError for a text that it does not accept."""

import re
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

SECRET_CHARS = 32
"""Minimum number of characters of a secret that signs."""

Amount = TypeVar("Amount", int, float)


def _within(kind: Callable[[str], Amount], low: Amount, high: Amount) -> Callable[[str], Amount]:
    def parse(text: str) -> Amount:
        value = kind(text)
        if not low <= value <= high:  # false for NaN too
            raise ValueError(text)
        return value

    return parse


def url(*schemes: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        parts = urlsplit(text)
        if parts.scheme not in schemes or not (parts.netloc or parts.path.strip("/")):
            raise ValueError(text)
        return text

    return parse


def _origin(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ValueError(text)
    return f"{parts.scheme}://{parts.netloc}".lower()


def origins(text: str) -> tuple[str, ...]:
    return tuple(_origin(item.strip()) for item in text.split(",") if item.strip())


def http_url(text: str) -> str:
    return url("http", "https")(text).rstrip("/")


def http_url_or_off(text: str) -> str:
    return text.lower() if text.lower() == "off" else http_url(text)


def visible(text: str) -> str:
    """A text without spaces that can be sent in a header."""
    if not re.fullmatch(r"[\x21-\x7e]+", text):
        raise ValueError(text)
    return text


def words(text: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    if not words:
        raise ValueError(text)
    return words


def secret_words(text: str) -> tuple[str, ...]:
    """Secrets. The first must be long enough to sign; shorter ones may follow, to decrypt what they encrypted
    before."""
    secrets = words(text)
    if len(secrets[0]) < SECRET_CHARS:
        raise ValueError("too short")
    return secrets


def yes_or_no(text: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if text.lower() not in known:
        raise ValueError(text)
    return known[text.lower()]


def one_of(*choices: str) -> dict[str, Any]:
    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(text)
        return text.lower()

    return {"parse": parse, "allowed": f"one of {', '.join(choices)}"}


def count(low: int, high: int) -> dict[str, Any]:
    return {"parse": _within(int, low, high), "allowed": f"a whole number from {low} to {high}"}


def seconds(low: float, high: float, unit: str = "seconds") -> dict[str, Any]:
    return {"parse": _within(float, low, high), "allowed": f"a number of {unit} from {low:g} to {high:g}"}
