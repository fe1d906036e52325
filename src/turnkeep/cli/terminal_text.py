"""Text from outside, made safe for a terminal.

Titles, names, answers, file names and error details come from other people, from models and from servers. A terminal
obeys some characters in them: control characters (C0, C1), and characters that change the direction of writing. They
are dropped, one by one. So a sequence that arrives in two pieces is as harmless as a whole one, and the rest of it
(`[31m`) is shown as the letters that it is.

Nothing is put in their place. They have no shape of their own, and marks of direction are common in names that were
copied from a phone and in Hebrew and Arabic texts, which read the same without them.
"""

import re

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""All that a terminal obeys but newline and tab. A carriage return is among them: it would write over its line."""

_HALVES = re.compile("[\ud800-\udfff]")
"""What Python makes of bytes in a file name that are not UTF-8. Standard output cannot take them, or passes them on."""


def clean_text(text: str) -> str:
    """A text of many lines: newlines and tabs stay."""
    return _HALVES.sub("\ufffd", _OBEYED.sub("", text))


def clean_line(text: str) -> str:
    """A text that stands on one line, such as a title: a line break becomes a space."""
    return clean_text(" ".join(text.splitlines()))


def clean_json(text: str) -> str:
    """The same JSON, with escapes (`\\u009b`) in the place of what a terminal obeys."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def is_clean_line(text: str) -> bool:
    return text == clean_line(text)
