"""Names of files, made safe for every operating system.

A name is kept, except for its Unicode normal form, control characters, and characters that some system reads as part of
a path. A name that leads out of its folder, names a device or hides its extension is refused with the reason. The store
decides when two names are equal.
"""

import re
import unicodedata

from turnkeep.errors import InvalidRequest
from turnkeep.model.files import NAME_BYTES

_RESERVED = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|com[0-9]|lpt[0-9])", re.IGNORECASE)
_ABSOLUTE = re.compile(r"[/\\]|~[^/\\]*[/\\]|[A-Za-z]:[/\\]")
_PATH_CHARACTERS = re.compile(r'[/\\:*?"<>|]')
_BIDIRECTIONAL = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_JOINERS = frozenset("\u200c\u200d")
"""These belong to words in some scripts, and to many emoji."""


def clean_name(name: str) -> str:
    """The name under which the file is stored. Raises InvalidRequest for a name that cannot be made safe."""
    _check_characters(name)
    name = unicodedata.normalize("NFC", name)
    _check_path(name)
    name = "".join(character for character in name if not _is_control(character))
    name = _PATH_CHARACTERS.sub("_", name).strip().rstrip(". ")
    if not name.strip("._ "):
        raise InvalidRequest("The file has no name. Give it one.")
    # Some systems fold compatibility characters, such as full-width letters.
    stem = unicodedata.normalize("NFKC", name).partition(".")[0].strip()
    if _RESERVED.fullmatch(stem):
        raise InvalidRequest(f"{name!r} names a device on some systems. Rename the file.")
    if len(name.encode()) > NAME_BYTES:
        raise InvalidRequest(f"The name of the file has over {NAME_BYTES} bytes. Shorten it.")
    return name


def extension_of(name: str) -> str:
    """`pdf` for `Report.PDF`; empty if there is none."""
    stem, _, extension = name.rpartition(".")
    return extension.lower() if stem else ""


def _check_characters(name: str) -> None:
    if "\0" in name:
        raise InvalidRequest("The name of the file holds a NUL character. Rename the file.")
    if any("\ud800" <= character <= "\udfff" for character in name):
        raise InvalidRequest("The name of the file is not valid Unicode. Rename the file.")
    if not _BIDIRECTIONAL.isdisjoint(name):
        raise InvalidRequest(
            "The name of the file holds characters that change the direction of writing, which can hide what it ends "
            "with. Rename the file."
        )


def _check_path(name: str) -> None:
    # Compatibility forms first: some systems turn a full-width slash or two-dot leader into the plain one.
    plain = unicodedata.normalize("NFKC", name).strip()
    if _ABSOLUTE.match(plain):
        raise InvalidRequest("The name of the file is a path. Send the name alone.")
    if ".." in re.split(r"[/\\]", plain) or plain in {".", ".."}:
        raise InvalidRequest("The name of the file leads out of its folder. Send the name alone.")


def _is_control(character: str) -> bool:
    category = unicodedata.category(character)
    return category in {"Cc", "Zl", "Zp"} or (category == "Cf" and character not in _JOINERS)
