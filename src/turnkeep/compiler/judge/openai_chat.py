"""What OpenAI's Chat Completions API refuses."""

from typing import Any

from turnkeep.compiler.judge.violations import NAME, Findings, Violation, check_arguments, find_surrogates

Json = dict[str, Any]

_ROLES = {"system", "developer", "user", "assistant", "tool"}
_PARTS_OF = {
    "user": {"text", "image_url", "input_audio", "file"},
    "assistant": {"text", "refusal"},
    "tool": {"text"},
    "system": {"text"},
    "developer": {"text"},
}
_MAX_ID = 40


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
        if role not in _ROLES:
            text = (
                f"Invalid value: '{role}'. Supported values are: "
                "'system', 'assistant', 'user', 'function', 'tool', and 'developer'."
            )
            findings.add("role_unknown", f"messages.[{index}].role", text)
            continue
        _content(message, role, index, findings)
        if role == "assistant" and "tool_calls" in message:
            _calls(message["tool_calls"], index, findings)
    _pairs([m if isinstance(m, dict) else {} for m in messages], findings)
    return findings.violations


def _content(message: Json, role: str, index: int, findings: Findings) -> None:
    content, path = message.get("content"), f"messages.[{index}].content"
    if content is None:
        if role != "assistant" or not message.get("tool_calls"):
            findings.add("content_null", path, "Invalid value for 'content': expected a string, got null.")
    elif isinstance(content, list):
        if not content:
            text = f"Invalid '{path}': empty array. Expected an array with minimum length 1."
            findings.add("content_empty", path, text)
        for place, part in enumerate(content):
            _part(part, role, f"{path}[{place}]", findings)
    elif not isinstance(content, str):
        text = f"Invalid type for '{path}': expected one of a string or array of objects."
        findings.add("content_type", path, text)


def _part(part: Any, role: str, path: str, findings: Findings) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in _PARTS_OF[role]:
        allowed = "' and '".join(sorted(_PARTS_OF[role]))
        findings.add("part_type", path, f"Invalid value: '{kind}'. Supported values are: '{allowed}'.")
    elif kind == "text" and not isinstance(part.get("text"), str):
        findings.add("part_type", path, f"Missing required parameter: '{path}.text'.")
    elif kind == "image_url":
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, dict) else None
        if not isinstance(url, str) or not url.startswith(("http://", "https://", "data:image/")):
            text = f"Invalid '{path}.image_url.url'. Expected a valid URL, but got a value with an invalid format."
            findings.add("image_url", path, text)


def _calls(calls: Any, index: int, findings: Findings) -> None:
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
        _id(call.get("id"), f"{here}.id", findings)
        name = function.get("name")
        if not isinstance(name, str) or not NAME.fullmatch(name) or len(name) > 64:
            text = (
                f"Invalid '{here}.function.name': string does not match pattern. "
                "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
            )
            findings.add("tool_name_pattern", here, text)
        check_arguments(function.get("arguments"), f"{here}.function.arguments", findings)


def _id(value: Any, path: str, findings: Findings) -> None:
    if not isinstance(value, str) or not value:
        findings.add("id_required", path, f"Missing required parameter: '{path}'.")
    elif len(value) > _MAX_ID:
        text = (
            f"Invalid '{path}': string too long. Expected a string with maximum length {_MAX_ID}, "
            f"but got a string with length {len(value)} instead."
        )
        findings.add("id_length", path, text)


def _pairs(messages: list[Json], findings: Findings) -> None:
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
