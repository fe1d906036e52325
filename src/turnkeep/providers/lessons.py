"""Lessons: what an error of a server teaches about it, so that the request can be repeated without the refused part.

Servers with the same protocol differ, and none says beforehand what it does not accept: an image, a summary of the
reasoning, a field that asks for usage. A conversation must not be stuck on that for ever. Each lesson recognises one
error by its words and removes from the request what was refused. What is true of the model is remembered; what was
wrong with one request is not.

Decision: docs/decisions/0305
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from turnkeep.providers.failures import FailedAttempt
from turnkeep_client.wire.blocks import JsonObject

TEACHING_STATUS = frozenset({400, 413, 415, 422, 500, 501})

NOT_SHOWN = "[image: not shown, as the provider did not take it]"

Change = Callable[[JsonObject], bool]
"""Removes something from a request; returns whether there was anything to remove.

The request is a copy, its fields are not: a change replaces a field, or opens it (`_opened`) before it looks inside.
"""


class Lesson(Struct, frozen=True, kw_only=True):
    """One known error.

    `words` and the status recognise it. `lasts`: it is true of the model, not only of this request.
    """

    name: str
    words: re.Pattern[str]
    change: Change
    lasts: bool = True
    statuses: frozenset[int] = TEACHING_STATUS


class Lessons:
    """What was learned about each model, for the lifetime of the process."""

    def __init__(self, known: Sequence[Lesson]) -> None:
        self._known = known
        self._learned: dict[str, dict[str, Lesson]] = {}

    def has(self, model: str, name: str) -> bool:
        return name in self._learned.get(model, {})

    def apply(self, model: str, body: JsonObject) -> JsonObject:
        """The request without what this model is known to refuse."""
        if not (learned := self._learned.get(model)):
            return body
        body = dict(body)
        for lesson in learned.values():
            lesson.change(body)
        return body

    def learn(self, model: str, attempt: FailedAttempt, body: JsonObject) -> JsonObject | None:
        """A changed request in place of the refused one, or None.

        Each lesson removes something, so this comes to an end.
        """
        for lesson in self._known:
            if attempt.status not in lesson.statuses or not lesson.words.search(attempt.words):
                continue
            changed = dict(body)
            if lesson.change(changed):
                if lesson.lasts:
                    self._learned.setdefault(model, {})[lesson.name] = lesson
                return changed
        return None


def _words(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.DOTALL)


def _drop(*names: str) -> Change:
    def change(body: JsonObject) -> bool:
        return len([body.pop(name) for name in names if name in body]) > 0

    return change


def _opened(body: JsonObject, field: str, marker: bytes = b"") -> Any:
    """A field that may be changed: a copy of it, without parts that are encoded already.

    A field without the marker is not copied; then there is nothing to look at.
    """
    if field not in body:
        return ()
    encoded = msgspec.json.encode(body[field])
    if marker not in encoded:
        return ()
    body[field] = msgspec.json.decode(encoded)
    return body[field]


def _shorten_descriptions(body: JsonObject) -> bool:
    found = False
    for tool in _opened(body, "tools"):
        function = tool.get("function", tool)
        if len(function.get("description", "")) > DESCRIPTION_CHARS:
            function["description"] = function["description"][: DESCRIPTION_CHARS - 1] + "…"
            found = True
    return found


def _drop_pictures(body: JsonObject) -> bool:
    found = False
    for message in (*_opened(body, "messages", b"image"), *_opened(body, "input", b"image")):
        content = message.get("content")
        if not isinstance(content, list):
            continue
        for place, part in enumerate(content):
            if part.get("type") in {"image", "image_url", "input_image"}:
                kind = "input_text" if part["type"] == "input_image" else "text"
                content[place] = {"type": kind, "text": NOT_SHOWN}
                found = True
    return found


def _drop_thinking(body: JsonObject) -> bool:
    """For Anthropic: switch reasoning off, and remove the reasoning of earlier answers."""
    found = _drop("thinking", "output_config")(body)
    for message in _opened(body, "messages", b"thinking"):
        if message["role"] == "assistant":
            spoken = [part for part in message["content"] if part["type"] not in {"thinking", "redacted_thinking"}]
            found = found or len(spoken) < len(message["content"])
            message["content"] = spoken
    return found


def _drop_reasoning_items(body: JsonObject) -> bool:
    items = _opened(body, "input", b"reasoning")
    kept = [item for item in items if item.get("type") != "reasoning"]
    if len(kept) < len(items):
        body["input"] = kept
    return len(kept) < len(items)


def _drop_summary(body: JsonObject) -> bool:
    reasoning = dict(body.get("reasoning", {}))
    found = reasoning.pop("summary", None) is not None
    if found and reasoning:
        body["reasoning"] = reasoning
    elif found:
        del body["reasoning"]
    return found


def _lower_limit(body: JsonObject) -> bool:
    """To the output limit that every model has. It has no room for reasoning beside an answer."""
    if body["max_tokens"] <= SMALLEST_LIMIT:
        return False
    body["max_tokens"] = SMALLEST_LIMIT
    _drop("thinking")(body)
    return True


SMALLEST_LIMIT = 4_096
DESCRIPTION_CHARS = 1_024

_PICTURE = r"\bimages?\b|image_url|picture|multi-?modal|vision|mmproj"
PICTURES = (
    Lesson(
        name="pictures",
        words=_words(
            rf"(?:{_PICTURE}).*(?:support|allow|at most 0)|(?:support|at most 0|not a).*(?:{_PICTURE})|mmproj"
        ),
        change=_drop_pictures,
    ),
    Lesson(name="picture", words=_words(_PICTURE), change=_drop_pictures, lasts=False),
)
ANTHROPIC = (
    Lesson(name="signatures", words=_words(r"signature|cannot be modified"), change=_drop_thinking, lasts=False),
    Lesson(name="thinking", words=_words(r"thinking|budget_tokens|adaptive|effort"), change=_drop_thinking),
    Lesson(name="max_tokens", words=_words(r"max_tokens"), change=_lower_limit),
    *PICTURES,
)
_DESCRIPTIONS = Lesson(
    name="descriptions", words=_words(r"description.*(?:too long|maximum length)"), change=_shorten_descriptions
)
OPENAI_CHAT = (
    _DESCRIPTIONS,
    Lesson(name="usage", words=_words(r"stream_options|include_usage"), change=_drop("stream_options")),
    Lesson(name="effort", words=_words(r"reasoning_effort|reasoning effort"), change=_drop("reasoning_effort")),
    *PICTURES,
)
OPENAI_RESPONSES = (
    _DESCRIPTIONS,
    Lesson(
        name="ciphertext",
        words=_words(r"encrypted.content.*(?:verif|decrypt|parse|invalid)|item (?:with id )?'rs_|of type 'reasoning'"),
        change=_drop_reasoning_items,
        lasts=False,
        statuses=frozenset({400, 404}),
    ),
    Lesson(name="summary", words=_words(r"summar"), change=_drop_summary),
    Lesson(name="encrypted", words=_words(r"encrypted.content"), change=_drop("include")),
    Lesson(name="reasoning", words=_words(r"reasoning"), change=_drop("reasoning", "include")),
    *PICTURES,
)
