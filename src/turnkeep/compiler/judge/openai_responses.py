"""What OpenAI's Responses API refuses."""

from typing import Any

from turnkeep.compiler.judge.violations import NAME, Findings, Violation, check_arguments, find_surrogates

Json = dict[str, Any]

_PARTS_OF = {
    "user": ("input_text", "input_image", "input_file"),
    "system": ("input_text",),
    "developer": ("input_text",),
    "assistant": ("output_text", "refusal"),
}
_ID_PREFIX = {"message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fc"}
_MAX_ID = 64


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
    _pairs(known, findings)
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
    allowed = _PARTS_OF.get(str(role))
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
    elif len(call) > _MAX_ID:
        text = (
            f"Invalid '{path}.call_id': string too long. Expected a string with maximum length {_MAX_ID}, "
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


def _pairs(items: list[Json], findings: Findings) -> None:
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
