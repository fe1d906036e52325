"""The specification of Open Responses, as a check of the events and objects that the OpenAI wire sends."""

from typing import Any

import openresponses_types
from pydantic import BaseModel

SPECIFIED = {"function_call", "function_call_output", "message", "reasoning"}
"""Items that the specification knows. Tools of the server (`mcp_call` and so on) are OpenAI's own."""

CITATION = "url_citation"
"""The annotation that the specification knows. Those that name a file are OpenAI's own."""


def _events() -> dict[str, type[BaseModel]]:
    found: dict[str, type[BaseModel]] = {}
    for name in dir(openresponses_types):
        kind = getattr(openresponses_types, name)
        if name.endswith("StreamingEvent") and isinstance(kind, type) and issubclass(kind, BaseModel):
            words: Any = kind.model_fields["type"].annotation
            found[next(iter(words)).value] = kind
    return found


class OpenResponses:
    """Checks by the models of the specification. They raise a ValidationError."""

    events = _events()

    @classmethod
    def check_event(cls, event: dict[str, Any]) -> None:
        kind = cls.events.get(event["type"])
        item = event.get("item")
        if kind is None or (item is not None and item["type"] not in SPECIFIED):
            return
        if event.get("annotation", {"type": CITATION})["type"] != CITATION:
            return
        event = _with_citations_only(event)
        if "response" in event:
            event = {**event, "response": _specified(event["response"])}
        kind.model_validate(event)

    @classmethod
    def check_response(cls, response: dict[str, Any]) -> None:
        openresponses_types.ResponseResource.model_validate(_with_citations_only(_specified(response)))


def _with_citations_only(value: Any) -> Any:
    """The value without the annotations that the specification does not know."""
    if isinstance(value, list):
        return [_with_citations_only(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    known = {name: _with_citations_only(inner) for name, inner in value.items()}
    if "annotations" in known:
        known["annotations"] = [each for each in known["annotations"] if each["type"] == CITATION]
    return known


def _specified(response: dict[str, Any]) -> dict[str, Any]:
    output = [item for item in response["output"] if item["type"] in SPECIFIED]
    return {**response, "output": output}
