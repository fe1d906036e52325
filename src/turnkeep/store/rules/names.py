"""Names of files in a bag: when two names are the same, and what the second one becomes."""

import unicodedata
from collections.abc import Iterator
from itertools import count

from turnkeep.model.files import NAME_BYTES

EXTENSION_BYTES = 200
"""What is longer is no extension: it would leave no room for the rest of the name."""


def name_key(name: str) -> str:
    """The name as it collides. On some systems, names that differ only in case or Unicode form are the same file."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFKC", name).casefold())


def candidates(name: str) -> Iterator[str]:
    """`report.pdf`, `report-1.pdf`, `report-2.pdf`, … Where the number would make it too long, the stem is cut."""
    yield name
    stem, dot, extension = name.rpartition(".")
    if not stem or len(extension.encode()) > EXTENSION_BYTES:
        stem, dot, extension = name, "", ""
    for number in count(1):
        ending = f"-{number}{dot}{extension}"
        yield _cut(stem, NAME_BYTES - len(ending.encode())) + ending


def _cut(text: str, limit: int) -> str:
    """The beginning of a text that fits into `limit` bytes, in whole characters."""
    return text.encode()[:limit].decode(errors="ignore")
