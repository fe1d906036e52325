"""What Anthropic's Messages API refuses, with its rules for thinking blocks."""

import re
from typing import Any

from turnkeep.compiler.judge.violations import NAME, Findings, Json, Violation, find_surrogates, is_blank

THINKING = {"thinking", "redacted_thinking"}


_BLOCKS_OF = {
    "user": {"text", "image", "document", "tool_result", "search_result"},
    "assistant": {"text", "tool_use", "thinking", "redacted_thinking"},
}
_MEDIA = {"image/jpeg", "image/png", "image/gif", "image/webp"}
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_MAX_IMAGE = 5_242_880


def judge_anthropic(request: Json) -> list[Violation]:
    """Every reason for which `POST /v1/messages` would answer 400."""
    findings = Findings()
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        findings.add("messages_required", "messages", "messages: at least one message is required")
        return findings.violations
    find_surrogates(request, "$", findings)
    contents = [_content(message, index, findings) for index, message in enumerate(messages)]
    _roles(messages, findings)
    for index, blocks in enumerate(contents):
        _shape(messages[index], blocks, index, findings)
    _ids(contents, findings)
    _pairs(contents, findings)
    judge_thinking(request, contents, findings)
    _markers(request, contents, findings)
    kinds = {block.get("type") for blocks in contents for block in blocks}
    if kinds & {"tool_use", "tool_result"} and not request.get("tools"):
        message = "Requests which include `tool_use` or `tool_result` blocks must define tools"
        findings.add("tools_required", "tools", message)
    return findings.violations


def _content(message: Any, index: int, findings: Findings) -> list[Json]:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if isinstance(content, list) and all(isinstance(block, dict) for block in content):
        return content
    findings.add("content_type", f"messages.{index}.content", f"messages.{index}.content: Input should be a valid list")
    return []


def _roles(messages: list[Json], findings: Findings) -> None:
    roles = [message.get("role") for message in messages]
    for index, role in enumerate(roles):
        if role == "system":
            message = (
                'messages: Unexpected role "system". The Messages API accepts a top-level `system` parameter, '
                'not "system" as an input message role.'
            )
            findings.add("role_unknown", f"messages.{index}.role", message)
        elif role not in {"user", "assistant"}:
            text = f"messages.{index}.role: Input should be 'user' or 'assistant'"
            findings.add("role_unknown", f"messages.{index}.role", text)
        if index and role == roles[index - 1]:
            text = (
                'messages: roles must alternate between "user" and "assistant", '
                f'but found multiple "{role}" roles in a row'
            )
            findings.add("roles_alternate", f"messages.{index}", text)
    if roles[0] != "user":
        findings.add("first_is_user", "messages.0", 'messages: first message must use the "user" role')
    if roles[-1] != "user":
        text = "This model does not support assistant message prefill. The conversation must end with a user message."
        findings.add("last_is_user", f"messages.{len(roles) - 1}", text)


def _shape(message: Json, blocks: list[Json], index: int, findings: Findings) -> None:
    """What one message may hold."""
    role = str(message.get("role"))
    if not blocks and message.get("content") == []:
        text = "all messages must have non-empty content except for the optional final assistant message"
        findings.add("content_empty", f"messages.{index}", f"messages.{index}: {text}")
    for place, block in enumerate(blocks):
        path = f"messages.{index}.content.{place}"
        kind = block.get("type")
        if kind not in _BLOCKS_OF.get(role, _BLOCKS_OF["user"] | _BLOCKS_OF["assistant"]):
            text = f"{path}: `{kind}` blocks are not permitted in `{role}` messages"
            findings.add("block_role", path, text)
        elif kind == "text":
            _text(block, path, findings)
        elif kind == "image":
            _image(block.get("source"), path, findings)
        elif kind == "tool_use":
            _tool_use(block, path, findings)
        elif kind == "tool_result":
            _tool_result(block, path, findings)
        elif kind == "thinking" and not (block.get("signature") and isinstance(block.get("thinking"), str)):
            findings.add("signature", path, f"{path}.thinking.signature: Field required")
        elif kind == "redacted_thinking" and not block.get("data"):
            findings.add("signature", path, f"{path}.redacted_thinking.data: Field required")


def _text(block: Json, path: str, findings: Findings) -> None:
    text = block.get("text")
    if not isinstance(text, str):
        findings.add("content_type", path, f"{path}.text.text: Field required")
    elif not text:
        findings.add("text_empty", path, "messages: text content blocks must be non-empty")
    elif is_blank(text):
        findings.add("text_blank", path, "messages: text content blocks must contain non-whitespace text")


def _image(source: Any, path: str, findings: Findings) -> None:
    kind = source.get("type") if isinstance(source, dict) else None
    if kind == "url" and str(source.get("url", "")).startswith(("http://", "https://")):
        return
    if kind != "base64":
        findings.add("image_source", path, f"{path}.image.source: Input should be 'base64' or 'url'")
        return
    data = source.get("data")
    if source.get("media_type") not in _MEDIA:
        text = "Input should be 'image/jpeg', 'image/png', 'image/gif' or 'image/webp'"
        findings.add("image_type", path, f"{path}.image.source.base64.media_type: {text}")
    if not isinstance(data, str) or not data or not _BASE64.fullmatch(data):
        findings.add("image_data", path, f"{path}.image.source.base64: invalid base64 data")
    elif len(data) > _MAX_IMAGE:
        text = f"image exceeds 5 MB maximum: {len(data)} bytes > {_MAX_IMAGE} bytes"
        findings.add("image_size", path, f"{path}.image.source.base64: {text}")


def _tool_use(block: Json, path: str, findings: Findings) -> None:
    if not isinstance(block.get("input"), dict):
        findings.add("tool_input", path, f"{path}.tool_use.input: Input should be a valid dictionary")
    _named(block.get("id"), 64, "id", f"{path}.tool_use.id", findings)
    _named(block.get("name"), 128, "tool_name", f"{path}.tool_use.name", findings)


def _tool_result(block: Json, path: str, findings: Findings) -> None:
    _named(block.get("tool_use_id"), 64, "id", f"{path}.tool_result.tool_use_id", findings)
    content = block.get("content")
    if block.get("is_error") and (not content or (isinstance(content, str) and is_blank(content))):
        text = f"{path}.tool_result: content cannot be empty if `is_error` is true"
        findings.add("error_empty", path, text)
    for part in content if isinstance(content, list) else []:
        if isinstance(part, dict) and part.get("type") == "text":
            _text(part, f"{path}.content", findings)


def _named(name: Any, limit: int, rule: str, path: str, findings: Findings) -> None:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        findings.add(f"{rule}_pattern", path, f"{path}: String should match pattern '^[a-zA-Z0-9_-]+$'")
    elif len(name) > limit:
        findings.add(f"{rule}_length", path, f"{path}: String should have at most {limit} characters")


def _ids(contents: list[list[Json]], findings: Findings) -> None:
    seen: set[str] = set()
    for index, blocks in enumerate(contents):
        for place, block in enumerate(blocks):
            if block.get("type") == "tool_use":
                if block.get("id") in seen:
                    path = f"messages.{index}.content.{place}"
                    findings.add("id_unique", path, f"{path}: `tool_use` ids must be unique")
                seen.add(str(block.get("id")))


def _pairs(contents: list[list[Json]], findings: Findings) -> None:
    """The next message must begin with exactly one result for every call, and results for no other calls."""
    for index, blocks in enumerate(contents):
        calls = [str(b.get("id")) for b in blocks if b.get("type") == "tool_use"]
        after = contents[index + 1] if index + 1 < len(contents) else []
        answered = [str(b.get("tool_use_id")) for b in after if b.get("type") == "tool_result"]
        missing = [call for call in calls if call not in answered]
        if missing:
            text = (
                f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block "
                "in the next message."
            )
            findings.add("tool_unanswered", f"messages.{index}", text)
        leading = [b.get("type") for b in after[: len(answered)]]
        if calls and not missing and leading.count("tool_result") != len(leading):
            text = (
                f"messages.{index + 1}: Did not find {len(calls)} `tool_result` block(s) at the beginning of "
                "this message. Messages following `tool_use` blocks must begin with a matching number of "
                "`tool_result` blocks."
            )
            findings.add("results_first", f"messages.{index + 1}", text)
        before = contents[index - 1] if index else []
        asked = {str(b.get("id")) for b in before if b.get("type") == "tool_use"}
        _answers(blocks, asked, index, findings)


def _answers(blocks: list[Json], asked: set[str], index: int, findings: Findings) -> None:
    seen: set[str] = set()
    for place, block in enumerate(blocks):
        if block.get("type") != "tool_result":
            continue
        path, call = f"messages.{index}.content.{place}", str(block.get("tool_use_id"))
        if call not in asked:
            text = (
                f"{path}: unexpected `tool_use_id` found in `tool_result` blocks: {call}. Each `tool_result` "
                "block must have a corresponding `tool_use` block in the previous message."
            )
            findings.add("result_unexpected", path, text)
        elif call in seen:
            text = f"each tool_use must have a single result. Found multiple `tool_result` blocks with id: {call}"
            findings.add("result_repeated", path, f"{path}: {text}")
        seen.add(call)


def _markers(request: Json, contents: list[list[Json]], findings: Findings) -> None:
    system, tools = request.get("system"), request.get("tools")
    places: list[tuple[str, Json]] = []
    for name, blocks in (("system", system), ("tools", tools)):
        places += [(f"{name}.{i}", b) for i, b in enumerate(blocks if isinstance(blocks, list) else [])]
    for index, found in enumerate(contents):
        places += [(f"messages.{index}.content.{place}", block) for place, block in enumerate(found)]
    marked = [(path, block) for path, block in places if "cache_control" in block]
    if len(marked) > 4:
        text = f"A maximum of 4 blocks with cache_control may be provided. Found {len(marked)}."
        findings.add("markers", marked[4][0], text)
    for path, block in marked:
        if block.get("type") in THINKING:
            text = f"{path}.{block['type']}.cache_control: Extra inputs are not permitted"
            findings.add("marker_place", path, text)
        elif block.get("type") == "text" and not block.get("text"):
            findings.add("marker_place", path, f"{path}: cache_control cannot be set for empty text blocks")
    for path, block in places:
        if path.startswith("system") and block.get("type") == "text" and is_blank(str(block.get("text", ""))):
            findings.add("text_empty", path, "system: text content blocks must be non-empty")


def judge_thinking(request: Json, contents: list[list[Json]], findings: Findings) -> None:
    """Where thinking may stand, with thinking switched on, off, or left to the model."""
    messages = request["messages"]
    for index, blocks in enumerate(contents):
        kinds = [str(block.get("type")) for block in blocks]
        if messages[index].get("role") != "assistant" or not THINKING & set(kinds):
            continue
        if kinds[0] not in THINKING:
            text = (
                f"messages.{index}.content.0: If an assistant message contains any thinking blocks, the first "
                f"block must be `thinking` or `redacted_thinking`. Found `{kinds[0]}`."
            )
            findings.add("thinking_first", f"messages.{index}.content.0", text)
        if kinds[-1] in THINKING:
            text = f"messages.{index}: The final block in an assistant message cannot be `{kinds[-1]}`."
            findings.add("thinking_last", f"messages.{index}", text)
    setting = request.get("thinking")
    mode = setting.get("type", "disabled") if isinstance(setting, dict) else "disabled"
    assistants = [i for i, message in enumerate(messages) if message.get("role") == "assistant"]
    if mode == "disabled" and assistants:
        _no_thinking(assistants[-1], contents, findings)
    if mode == "enabled":
        _loop_began_with_thinking(messages, contents, findings)


def _no_thinking(last: int, contents: list[list[Json]], findings: Findings) -> None:
    for place, block in enumerate(contents[last]):
        if block.get("type") in THINKING:
            path = f"messages.{last}.content.{place}"
            text = (
                f"{path}: When thinking is disabled, an `assistant` message in the final position cannot contain "
                "`thinking`. To use thinking blocks, enable `thinking` in your request."
            )
            findings.add("thinking_disabled", path, text)


def _loop_began_with_thinking(messages: list[Json], contents: list[list[Json]], findings: Findings) -> None:
    """The assistant's part of the unfinished turn: back over every message of results alone."""
    first = None
    for index in range(len(messages) - 1, 0, -2):
        if messages[index].get("role") != "user" or not contents[index]:
            break
        if any(block.get("type") != "tool_result" for block in contents[index]):
            break
        first = index - 1
    if first is None or not contents[first]:
        return
    found = contents[first][0].get("type")
    if found not in THINKING:
        text = (
            f"messages.{first}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{found}`. "
            "When `thinking` is enabled, a final `assistant` message must start with a thinking block "
            "(preceeding the lastmost set of `tool_use` and `tool_result` blocks)."
        )
        findings.add("thinking_expected", f"messages.{first}.content.0", text)
