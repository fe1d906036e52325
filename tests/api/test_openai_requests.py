"""Requests at /openai/v1 with a wrong value somewhere: they are answered or refused, and never a defect."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from tests.api.harness import ApiServer, Client

WRONG: list[Any] = [[], {"type": []}, 7, "x"]
MORE: list[Any] = [None, {}, [[]], -1.5, True, "data:,", [{"type": "text"}], 10**30]

FUNCTION: Any = {"name": "look", "description": "Look", "parameters": {"type": "object"}, "strict": False}
PARTS: Any = [
    {"type": "input_text", "text": "Look."},
    {"type": "input_file", "filename": "a.txt", "file_data": "aGk="},
    {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"},
]
HISTORY: Any = [
    {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "Be kind."}]},
    {"type": "message", "role": "user", "content": PARTS[:2]},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]},
    {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "one"}]},
    {"type": "mcp_call", "id": "mcp_1", "name": "count", "arguments": "{}", "output": "2", "server_label": "x"},
    {"type": "mcp_approval_request", "id": "mcpr_call_2", "name": "pay", "arguments": "{}", "server_label": "x"},
    {"type": "mcp_approval_response", "approval_request_id": "mcpr_call_2", "approve": True},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi.", "annotations": []}]},
    {"role": "user", "content": "And?"},
]
MESSAGES: Any = [
    {"role": "developer", "content": "Be kind."},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "file", "file": {"file_data": "aGk="}}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "one"}]},
    {"role": "user", "content": "And?"},
]
SAMPLING: Any = {"model": "scripted", "temperature": 1, "top_p": 1, "parallel_tool_calls": True, "metadata": {"a": "b"}}
SCHEMA: Any = {"name": "n", "schema": {"type": "object"}, "strict": True}
BODIES: dict[str, Any] = {
    "responses": {
        **SAMPLING,
        "input": HISTORY,
        "instructions": "Be brief.",
        "max_output_tokens": 100,
        "stream": False,
        "store": True,
        "background": False,
        "text": {"format": {"type": "json_object"}},
        "tools": [{"type": "function", **FUNCTION}],
        "tool_choice": {"type": "function", "name": "look"},
        "reasoning": {"effort": None},
        "include": [],
        "conversation": None,
        "previous_response_id": None,
    },
    "chat/completions": {
        **SAMPLING,
        "messages": MESSAGES,
        "max_tokens": 100,
        "stop": ["END"],
        "seed": 1,
        "stream": False,
        "stream_options": {"include_usage": True},
        "response_format": {"type": "json_schema", "json_schema": SCHEMA},
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
    },
    "conversations": {"items": HISTORY[1:-1], "metadata": {"a": "b"}},
}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each value inside of this one."""
    inner: list[Any] = list(value.items()) if isinstance(value, dict) else []
    inner = list(enumerate(value)) if isinstance(value, list) else inner
    for key, each in inner:
        yield (*path, key)
        yield from places(each, (*path, key))


def with_value(body: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = place = deepcopy(body)
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed


async def defects(user: Client, route: str, values: list[Any]) -> list[str]:
    """The places where one of these values leads to an error of the server. A model that answers in another form than
    was asked for is none."""
    found: list[str] = []
    for path in places(BODIES[route]):
        for value in values:
            answer = await user.post(f"/openai/v1/{route}", json=with_value(BODIES[route], path, value))
            if answer.status_code >= 500 and answer.json()["error"]["code"] != "provider_error":
                found.append(f"{path} = {value!r}: {answer.status_code} {answer.text[:300]}")
    return found


class TestBodies:
    @pytest.mark.parametrize("route", BODIES)
    async def test_a_wrong_value_anywhere_is_no_defect(self, user: Client, route: str) -> None:
        assert await defects(user, route, WRONG) == []

    @pytest.mark.nightly
    @pytest.mark.parametrize("route", BODIES)
    async def test_nor_are_others(self, user: Client, route: str) -> None:
        assert await defects(user, route, MORE) == []

    @pytest.mark.parametrize("route", BODIES)
    async def test_the_bodies_are_accepted_as_they_are(self, server: ApiServer, user: Client, route: str) -> None:
        server.scripts.say("{}")
        answer = await user.post(f"/openai/v1/{route}", json=BODIES[route])
        assert answer.status_code == 200, answer.text
