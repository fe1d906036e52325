"""What OpenAI's APIs refuse: Chat Completions and Responses."""

from typing import Any

from turnkeep.compiler.judge.violations import NAME, Findings, Json, Violation, check_arguments, find_surrogates

# Chat Completions

_CHAT_ROLES = {"system", "developer", "user", "assistant", "tool"}
_CHAT_PARTS = {
    "user": {"text", "image_url", "input_audio", "file"},
    "assistant": {"text", "refusal"},
    "tool": {"text"},
    "system": {"text"},
    "developer": {"text"},
}
_CHAT_MAX_ID = 40


def judge_openai_chat(request: Json) -> list[Violation]:
    """Every reason for which `POST /v1/chat/completions` would answer 400."""
    findings = Findings()
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        text = (
            "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead."
        )
        findings.add("messages_required", "messages", text)
        return findings.violations
    find_surrogates(request, "$", findings)
    for index, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if role not in _CHAT_ROLES:
            text = (
                f"Invalid value: '{role}'. Supported values are: "
                "'system', 'assistant', 'user', 'function', 'tool', and 'developer'."
            )
            findings.add("role_unknown", f"messages.[{index}].role", text)
            continue
        _chat_content(message, role, index, findings)
        if role == "assistant" and "tool_calls" in message:
            _chat_calls(message["tool_calls"], index, findings)
    _chat_pairs([m if isinstance(m, dict) else {} for m in messages], findings)
    return findings.violations


def _chat_content(message: Json, role: str, index: int, findings: Findings) -> None:
    content, path = message.get("content"), f"messages.[{index}].content"
    if content is None:
        if role != "assistant" or not message.get("tool_calls"):
            findings.add("content_null", path, "Invalid value for 'content': expected a string, got null.")
    elif isinstance(content, list):
        if not content:
            text = f"Invalid '{path}': empty array. Expected an array with minimum length 1."
            findings.add("content_empty", path, text)
        for place, part in enumerate(content):
            _chat_part(part, role, f"{path}[{place}]", findings)
    elif not isinstance(content, str):
        text = f"Invalid type for '{path}': expected one of a string or array of objects."
        findings.add("content_type", path, text)


def _chat_part(part: Any, role: str, path: str, findings: Findings) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in _CHAT_PARTS[role]:
        allowed = "' and '".join(sorted(_CHAT_PARTS[role]))
        findings.add("part_type", path, f"Invalid value: '{kind}'. Supported values are: '{allowed}'.")
    elif kind == "text" and not isinstance(part.get("text"), str):
        findings.add("part_type", path, f"Missing required parameter: '{path}.text'.")
    elif kind == "image_url":
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, dict) else None
        if not isinstance(url, str) or not url.startswith(("http://", "https://", "data:image/")):
            text = f"Invalid '{path}.image_url.url'. Expected a valid URL, but got a value with an invalid format."
            findings.add("image_url", path, text)


def _chat_calls(calls: Any, index: int, findings: Findings) -> None:
    path = f"messages.[{index}].tool_calls"
    if not isinstance(calls, list) or not calls:
        text = (
            f"Invalid '{path}': empty array. Expected an array with minimum length 1, but got an empty array instead."
        )
        findings.add("calls_empty", path, text)
        return
    for place, call in enumerate(calls):
        here = f"messages[{index}].tool_calls[{place}]"
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or call.get("type") != "function":
            findings.add("call_type", here, f"Missing required parameter: '{here}.function'.")
            continue
        _chat_id(call.get("id"), f"{here}.id", findings)
        name = function.get("name")
        if not isinstance(name, str) or not NAME.fullmatch(name) or len(name) > 64:
            text = (
                f"Invalid '{here}.function.name': string does not match pattern. "
                "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
            )
            findings.add("tool_name_pattern", here, text)
        check_arguments(function.get("arguments"), f"{here}.function.arguments", findings)


def _chat_id(value: Any, path: str, findings: Findings) -> None:
    if not isinstance(value, str) or not value:
        findings.add("id_required", path, f"Missing required parameter: '{path}'.")
    elif len(value) > _CHAT_MAX_ID:
        text = (
            f"Invalid '{path}': string too long. Expected a string with maximum length {_CHAT_MAX_ID}, "
            f"but got a string with length {len(value)} instead."
        )
        findings.add("id_length", path, text)


def _chat_pairs(messages: list[Json], findings: Findings) -> None:
    """The tool messages directly after a message of calls answer each of them, once."""
    waiting: list[str] = []
    asked: set[str] = set()
    caller = -1
    for index, message in enumerate([*messages, {"role": "end"}]):
        if message.get("role") == "tool":
            call = str(message.get("tool_call_id"))
            if call in waiting:
                waiting.remove(call)
            elif call in asked:
                text = f"Duplicate value for 'tool_call_id' of '{call}'"
                findings.add("result_repeated", f"messages.[{index}].tool_call_id", text)
            else:
                text = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
                findings.add("result_unexpected", f"messages.[{index}].role", text)
            continue
        if waiting:
            text = (
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                "'tool_call_id'. The following tool_call_ids did not have response messages: "
                f"{', '.join(waiting)}"
            )
            findings.add("tool_unanswered", f"messages.[{caller}]", text)
        calls = message.get("tool_calls") if message.get("role") == "assistant" else None
        waiting = [str(call.get("id")) for call in calls or [] if isinstance(call, dict)]
        if len(set(waiting)) != len(waiting):
            findings.add("id_unique", f"messages.[{index}].tool_calls", "Duplicate value for 'tool_call_id'")
        asked, caller = set(waiting), index


# Responses

_RESPONSES_PARTS = {
    "user": ("input_text", "input_image", "input_file"),
    "system": ("input_text",),
    "developer": ("input_text",),
    "assistant": ("output_text", "refusal"),
}
_ID_PREFIX = {"message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fc"}
_RESPONSES_MAX_ID = 64


def judge_openai_responses(request: Json) -> list[Violation]:
    """Every reason for which `POST /v1/responses` would answer 400 (or 404, for an item that is not stored)."""
    findings = Findings()
    items = request.get("input")
    if isinstance(items, str) and items:
        return []
    if not isinstance(items, list) or not items:
        findings.add("input_required", "input", "Missing required parameter: 'input'.")
        return findings.violations
    find_surrogates(request, "$", findings)
    known: list[Json] = []
    for index, item in enumerate(items):
        entry = item if isinstance(item, dict) else {}
        known.append(entry)
        _item(entry, index, bool(request.get("store", True)), findings)
    _response_pairs(known, findings)
    _reasoning_leads(known, findings)
    return findings.violations


def _kind(item: Json) -> str:
    return str(item.get("type") or ("message" if "role" in item else None))


def _item(item: Json, index: int, stored: bool, findings: Findings) -> None:
    path, kind = f"input[{index}]", _kind(item)
    prefix = _ID_PREFIX.get(kind)
    if prefix is None:
        findings.add("item_type", path, f"Invalid value: '{kind}'. Supported values are: 'message', …")
        return
    if "id" in item and not str(item["id"]).startswith(prefix):
        text = f"Invalid '{path}.id': '{item['id']}'. Expected an ID that begins with '{prefix}'."
        findings.add("item_id", f"{path}.id", text)
    if kind == "message":
        _message(item, path, findings)
    elif kind == "reasoning":
        _reasoning(item, path, stored, findings)
    else:
        _call_or_output(item, kind, path, findings)


def _message(item: Json, path: str, findings: Findings) -> None:
    role, content = item.get("role"), item.get("content")
    allowed = _RESPONSES_PARTS.get(str(role))
    if allowed is None:
        text = f"Invalid value: '{role}'. Supported values are: 'assistant', 'system', 'developer', and 'user'."
        findings.add("role_unknown", f"{path}.role", text)
        return
    if isinstance(content, str):
        return
    if not isinstance(content, list) or not content:
        findings.add("content_empty", f"{path}.content", f"Missing required parameter: '{path}.content'.")
        return
    for place, part in enumerate(content):
        here = f"{path}.content[{place}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in allowed:
            supported = "' and '".join(allowed)
            findings.add("part_type", here, f"Invalid value: '{kind}'. Supported values are: '{supported}'.")
        elif kind in {"input_text", "output_text"} and not isinstance(part.get("text"), str):
            findings.add("part_type", here, f"Missing required parameter: '{here}.text'.")
        elif kind == "input_image" and "file_id" not in part:
            url = part.get("image_url")
            if not isinstance(url, str) or not url.startswith(("http://", "https://", "data:image/")):
                text = f"Invalid '{here}.image_url'. Expected a valid URL, but got a value with an invalid format."
                findings.add("image_url", here, text)


def _reasoning(item: Json, path: str, stored: bool, findings: Findings) -> None:
    if not isinstance(item.get("summary"), list):
        findings.add("summary", path, f"Missing required parameter: '{path}.summary'.")
    if not stored and not item.get("encrypted_content"):
        text = (
            f"Item with id '{item.get('id')}' not found. Items are not persisted when `store` is set to false. "
            "Try again with `store` set to true, or remove this item from your input."
        )
        findings.add("item_not_stored", path, text)


def _call_or_output(item: Json, kind: str, path: str, findings: Findings) -> None:
    call = item.get("call_id")
    if not isinstance(call, str) or not call:
        findings.add("id_required", f"{path}.call_id", f"Missing required parameter: '{path}.call_id'.")
    elif len(call) > _RESPONSES_MAX_ID:
        text = (
            f"Invalid '{path}.call_id': string too long. Expected a string with maximum length {_RESPONSES_MAX_ID}, "
            f"but got a string with length {len(call)} instead."
        )
        findings.add("id_length", f"{path}.call_id", text)
    if kind == "function_call_output":
        if not isinstance(item.get("output"), str | list):
            findings.add("output_type", path, f"Missing required parameter: '{path}.output'.")
        return
    name = item.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name) or len(name) > 128:
        text = f"Invalid '{path}.name': string does not match pattern '^[a-zA-Z0-9_-]+$'."
        findings.add("tool_name_pattern", path, text)
    check_arguments(item.get("arguments"), f"{path}.arguments", findings)


def _response_pairs(items: list[Json], findings: Findings) -> None:
    """Every call has one output further on, and every output a call before it."""
    calls: dict[str, int] = {}
    answered: set[str] = set()
    for index, item in enumerate(items):
        call = str(item.get("call_id"))
        if _kind(item) == "function_call":
            if call in calls:
                findings.add("id_unique", f"input[{index}].call_id", f"Duplicate function call with call_id {call}.")
            calls[call] = index
        elif _kind(item) == "function_call_output":
            if call not in calls:
                text = f"No tool call found for function call output with call_id {call}."
                findings.add("result_unexpected", f"input[{index}]", text)
            elif call in answered:
                text = f"Duplicate function call output with call_id {call}."
                findings.add("result_repeated", f"input[{index}]", text)
            answered.add(call)
    for call, index in calls.items():
        if call not in answered:
            text = f"No tool output found for function call {call}."
            findings.add("tool_unanswered", f"input[{index}]", text)


def _reasoning_leads(items: list[Json], findings: Findings) -> None:
    for index, item in enumerate(items):
        if _kind(item) != "reasoning":
            continue
        rest = iter(items[index + 1 :])
        after = next((other for other in rest if _kind(other) != "reasoning"), {})
        spoken = _kind(after) == "message" and after.get("role") == "assistant"
        if not spoken and _kind(after) != "function_call":
            text = f"Item '{item.get('id')}' of type 'reasoning' was provided without its required following item."
            findings.add("reasoning_alone", f"input[{index}]", text)
