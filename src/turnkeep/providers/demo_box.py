"""What the demo model does in a sandbox: write a file, run a command, read one, when it is asked to in plain words.

Each request is turned into a plan, one call after the other, so that a turn shows its steps as a real agent's does.
"""

import re
from collections.abc import Sequence

from msgspec import Struct

from turnkeep.providers.ports import ToolOffer
from turnkeep_client.wire.blocks import JsonObject

BOX_TOOLS = frozenset({"shell", "write_file", "read_file", "list_files"})
ASSETS = "assets"

_FILE = r"(?P<file>[\w./-]*\w\.[A-Za-z][A-Za-z0-9]{0,7})"
_RULES = (
    (
        "write",
        rf"\b(?:write|create|make|save)\b[^.\n]*?[`\"“']?\b{_FILE}[`\"”']?"
        r"(?:\s*(?:with|saying|containing|that says|:)(?:\s+the\s+(?:text|words|content))?:?\s*"
        r"(?:[`\"“'](?P<quoted>[^`\"”']*)[`\"”']|(?P<plain>[^\n;]+?))(?=[,.;]?\s+(?:and|then)\b|[;\n]|[,.]?\s*$))?",
    ),
    (
        "run",
        r"\b(?:run|execute)\b(?:\s+(?:the|this|a|shell|command|program))*\s*:?\s*"
        r"(?:`(?P<quoted>[^`]+)`|(?P<plain>[^\n;]+?)(?=[,.]?\s+(?:and then|then)\b|[\n]|[.]?\s*$))",
    ),
    (
        "read",
        r"\b(?:read|open|print|summari[sz]e|look (?:at|into)|what(?:'s| is| does)(?: in)?)\b[^.\n]*?[`\"“']?"
        rf"(?:\b{_FILE}|(?P<attached>\b(?:attachments?|attached files?|files? (?:that )?I (?:have )?attached)\b))",
    ),
    ("list", r"\b(?:list|show|which)\b(?:\s+\w+){0,3}?\s+files\b"),
)


class Action(Struct, frozen=True):
    """One call, and what is said before it."""

    words: str
    tool: str
    input: JsonObject


def plan(asked: str, offers: Sequence[ToolOffer]) -> list[Action]:
    """What to do in the box, in the order in which it was asked for; nothing where there is no box."""
    if not {offer.name for offer in offers} >= BOX_TOOLS:
        return []
    found: list[tuple[int, Action]] = []
    taken: list[tuple[int, int]] = []
    for verb, rule in _RULES:
        for match in re.finditer(rule, asked, re.IGNORECASE):
            if any(match.start() < end and start < match.end() for start, end in taken):
                continue  # "write a file with `run ls`" asks for one thing
            taken.append(match.span())
            found.append((match.start(), _action(verb, match)))
    return [action for _, action in sorted(found, key=lambda each: each[0])]


def _action(verb: str, match: re.Match[str]) -> Action:
    match verb:
        case "write":
            path = _path(match["file"])
            content = (match["quoted"] or match["plain"] or f"Written by the demo model: {match['file']}").strip()
            return Action(f"I write `{path}`.", "write_file", {"path": path, "content": f"{content}\n"})
        case "run":
            command = (match["quoted"] or match["plain"] or "").strip()
            return Action(f"I run `{command}`.", "shell", {"command": command})
        case "read" if match["file"]:
            path = _path(match["file"])
            return Action(f"I read `{path}`.", "read_file", {"path": path})
        case "read":
            command = f"head -c 2000 {ASSETS}/*"
            return Action("I look at what is attached.", "shell", {"command": command})
        case _:
            return Action("I look what there is.", "list_files", {"path": "."})


def _path(name: str) -> str:
    """Where the user's files are, and whence they come back, unless a folder is named."""
    return name if "/" in name else f"{ASSETS}/{name}"
