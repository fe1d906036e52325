"""Names of files as people give them, made fit for every system that may see them.

A name is kept as it is but for Unicode form, control characters and characters that some system reads as part of a
path. What looks like an attempt to leave the folder, to name a device or to hide an extension is refused, with a
sentence that says why. When two names are the same is the store's to say.
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
"""Part of words in some scripts, and of many emoji."""


def clean_name(name: str) -> str:
    """The name under which the file is kept. Raises InvalidRequest for one that cannot be made fit."""
    _check_characters(name)
    name = unicodedata.normalize("NFC", name)
    _check_path(name)
    name = "".join(character for character in name if not _is_control(character))
    name = _PATH_CHARACTERS.sub("_", name).strip().rstrip(". ")
    if not name.strip("._ "):
        raise InvalidRequest("The file has no name. Give it one.")
    # The name that a system with other rules would see: full-width letters, for example, are folded.
    stem = unicodedata.normalize("NFKC", name).partition(".")[0].strip()
    if _RESERVED.fullmatch(stem):
        raise InvalidRequest(f"{name!r} names a device on some systems. Rename the file.")
    if len(name.encode()) > NAME_BYTES:
        raise InvalidRequest(f"The name of the file has over {NAME_BYTES} bytes. Shorten it.")
    return name


def extension_of(name: str) -> str:
    """`pdf` for `Report.PDF`; empty where there is none."""
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
