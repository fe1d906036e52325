"""What Anthropic's Messages API refuses about thinking blocks."""

from typing import Any

from turnkeep.compiler.judge.violations import Findings

Json = dict[str, Any]

THINKING = {"thinking", "redacted_thinking"}


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
