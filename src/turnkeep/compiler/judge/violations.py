"""Violations, the checks that every provider makes alike, and each rule explained in plain words."""

import json
import re
from typing import Any

from msgspec import Struct

Json = dict[str, Any]

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
    """Find half surrogate pairs, such as an emoji that was cut in two: servers do not read them as JSON."""
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
    """Arguments must be a text (OpenAI itself insists on it) and a JSON object (compatible servers insist on it)."""
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


EXPLANATIONS: dict[str, str] = {
    "messages_required": "There is no message at all.",
    "input_required": "There is no input at all.",
    "surrogate": "A text holds half of a character, usually an emoji that was cut in two.",
    "role_unknown": "A message has a role that the provider does not know.",
    "roles_alternate": "The same side speaks twice in a row.",
    "first_is_user": "The conversation does not begin with the user.",
    "last_is_user": "The conversation does not end with the user, so there is nothing to answer.",
    "content_type": "A message's content is of the wrong kind.",
    "content_null": "A message says nothing and calls nothing.",
    "content_empty": "A message is empty.",
    "text_empty": "A text is empty.",
    "text_blank": "A text holds only blanks.",
    "block_role": "A message holds something that its side cannot say.",
    "part_type": "A message holds a part that is not known, or not allowed in its place.",
    "image_source": "A picture comes without its content and without an address.",
    "image_type": "A picture is in a format that is not accepted.",
    "image_data": "A picture's content is damaged.",
    "image_size": "A picture is too large.",
    "image_url": "A picture's address cannot be used.",
    "tool_input": "A tool call's input is not an object.",
    "arguments_type": "A tool call's arguments are not a text.",
    "arguments_json": "A tool call's arguments are not a JSON object: the model was cut off while it wrote them.",
    "call_type": "A tool call is incomplete.",
    "calls_empty": "A message announces tool calls and holds none.",
    "id_required": "A tool call or its result has no id.",
    "id_pattern": "An id holds characters that are not allowed, as happens when a provider is changed.",
    "id_length": "An id is too long, as happens when a provider is changed.",
    "id_unique": "Two tool calls share one id.",
    "item_id": "An item carries the id of another kind of item.",
    "item_type": "An item is of a kind that is not known.",
    "item_not_stored": "Reasoning is named by an id alone, and the server does not keep it.",
    "tool_name_pattern": "A tool's name holds characters that are not allowed.",
    "tool_name_length": "A tool's name is too long.",
    "tools_required": "Tools were used, but the request declares none.",
    "tool_unanswered": "A tool call has no result: it was interrupted, and the thread stays refused until it has one.",
    "results_first": "Something stands between a tool call and its result.",
    "result_unexpected": "A tool result belongs to no call just before it: the call was cut off or is elsewhere.",
    "result_repeated": "A tool call was answered twice.",
    "error_empty": "A failed tool result says nothing.",
    "output_type": "A tool result has no output.",
    "signature": "A thinking block has lost its signature.",
    "thinking_first": "Thinking stands after other content of its message.",
    "thinking_last": "A message ends with thinking: it was cut off.",
    "thinking_expected": "Thinking is on, but the tool loop under way began without it.",
    "thinking_disabled": "Thinking is off, but the last answer holds thinking.",
    "reasoning_alone": "Reasoning is not followed by what it led to.",
    "summary": "Reasoning has no summary field.",
    "markers": "There are more than four cache markers.",
    "marker_place": "A cache marker stands where none is allowed.",
}


def explain(rule: str) -> str:
    return EXPLANATIONS[rule]
