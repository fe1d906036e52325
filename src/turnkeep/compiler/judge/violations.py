"""Violations, and the few checks that every provider makes alike."""

import json
import re
from typing import Any

from msgspec import Struct

NAME = re.compile(r"[a-zA-Z0-9_-]+")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Violation(Struct, frozen=True, kw_only=True):
    """A broken rule: its name, where it is broken, and what the provider answers."""

    rule: str
    path: str
    message: str


class Findings:
    """Violations as they are found, in order."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []

    def add(self, rule: str, path: str, message: str) -> None:
        self.violations.append(Violation(rule=rule, path=path, message=message))


def find_surrogates(value: Any, path: str, findings: Findings) -> None:
    """Half an emoji, cut by characters of UTF-16, is no JSON that a server can read."""
    if isinstance(value, str):
        if _SURROGATE.search(value):
            findings.add("surrogate", path, "The request body is not valid JSON: no low surrogate in string")
    elif isinstance(value, dict):
        for key, inner in value.items():
            find_surrogates(inner, f"{path}.{key}", findings)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            find_surrogates(inner, f"{path}.{index}", findings)


def check_arguments(arguments: Any, path: str, findings: Findings) -> None:
    """A text, and that of a JSON object: OpenAI itself insists on the first, servers behind it on both."""
    if not isinstance(arguments, str):
        text = f"Invalid type for '{path}': expected a string, but got an object instead."
        findings.add("arguments_type", path, text)
        return
    try:
        given = json.loads(arguments)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        findings.add("arguments_json", path, f"{path}: arguments must be a valid JSON object string")


def is_blank(text: str) -> bool:
    return not text.strip()
