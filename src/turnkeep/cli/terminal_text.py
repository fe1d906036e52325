"""Text from outside, made safe for a terminal.

Titles, names, answers, file names and error details come from other people, from models and from servers. A terminal
acts on some characters in them: control characters (C0, C1), and characters that change the direction of writing. Each
of them is removed. So an escape sequence that arrives in two pieces is as harmless as a whole one, and the rest of it
(`[31m`) is shown as text.

They are not replaced by a visible mark. They have no shape of their own, and direction marks are common in names that
were copied from a phone and in Hebrew and Arabic texts, which read the same without them.
"""

import re

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""All characters that a terminal acts on, except newline and tab. A carriage return would overwrite its line."""

_SURROGATES = re.compile("[\ud800-\udfff]")
"""Python's stand-ins for bytes of a file name that are not UTF-8. Standard output cannot encode them."""


def clean_text(text: str) -> str:
    """A text of many lines: newlines and tabs stay."""
    return _SURROGATES.sub("\ufffd", _CONTROLS.sub("", text))


def clean_line(text: str) -> str:
    """A text for one line, such as a title: a line break becomes a space."""
    return clean_text(" ".join(text.splitlines()))


def clean_json(text: str) -> str:
    """The same JSON, with escapes (`\\u009b`) in place of characters that a terminal acts on."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def is_clean_line(text: str) -> bool:
    return text == clean_line(text)
