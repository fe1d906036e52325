"""Names of files in a bag: when two names are the same, and what the second one becomes."""

import unicodedata
from collections.abc import Iterator


def name_key(name: str) -> str:
    """The name as it collides: names that differ only in case or Unicode form are the same file to somebody."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFKC", name).casefold())


def candidates(name: str) -> Iterator[str]:
    """`report.pdf`, `report-1.pdf`, `report-2.pdf`, …"""
    yield name
    stem, dot, extension = name.rpartition(".")
    if not stem:
        stem, dot, extension = name, "", ""
    number = 1
    while True:
        yield f"{stem}-{number}{dot}{extension}"
        number += 1
