"""A reply of OpenAI's Responses API while it is being streamed."""

from typing import Any

from turnkeep.providers.drafts import ALIVE, MAX_ARGUMENT_CHARS, Calls, tokens, whole
from turnkeep.providers.failures import Trouble
from turnkeep.providers.ports import Delta, Reply
from turnkeep_client.wire.blocks import Reasoning, Text
from turnkeep_client.wire.usage import Usage


class OpenAIResponsesDraft:
    """Shows deltas as they come; the reply is made of the finished items, which alone carry the ciphertext."""

    def __init__(self) -> None:
        self.has_begun = False
        self._items: dict[int, Any] = {}
        self._argument_chars = 0
        self._response: Any = None
        self._ended_as: str | None = None

    @property
    def is_whole(self) -> bool:
        return self._ended_as is not None

    def add(self, event: Any) -> Delta | None:
        match event.type:
            case "response.output_text.delta" | "response.refusal.delta":
                self.has_begun = True
                return Delta(text=event.delta)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self.has_begun = True
                return Delta(text=event.delta, kind="reasoning")
            case "response.function_call_arguments.delta":
                self.has_begun = True
                self._argument_chars += len(event.delta)
                if self._argument_chars > MAX_ARGUMENT_CHARS:
                    raise Trouble(f"the arguments of a call did not end after {MAX_ARGUMENT_CHARS:,} characters")
                return ALIVE
            case "response.reasoning_summary_part.added":
                return Delta(text="\n\n", kind="reasoning") if event.summary_index else ALIVE
            case "response.output_item.done":
                self._items[event.output_index] = event.item
                return ALIVE
            case "response.output_item.added" | "response.content_part.added":
                return ALIVE
            case "response.completed" | "response.incomplete":
                self._ended_as, self._response = event.type.removeprefix("response."), event.response
            case "response.failed":
                raise _trouble(event.response.error)
            case "error":
                raise _trouble(event)
            case _:
                pass  # progress and parts that the finished items hold as well
        return None

    def reply(self) -> Reply:
        if not self.is_whole:
            raise Trouble("the stream ended in the middle of the answer", is_transient=True)
        why = getattr(self._response.incomplete_details, "reason", None) if self._ended_as == "incomplete" else None
        if why == "content_filter":
            raise Trouble("the answer was stopped by the provider's content filter")
        is_cut_off = self._ended_as == "incomplete"
        calls = Calls(is_cut_off=is_cut_off)
        for _, item in sorted(self._items.items()) or enumerate(self._response.output or ()):
            _add_item(item, calls)
        usage = _usage_of(self._response.usage)
        return Reply(blocks=whole(calls, is_cut_off=is_cut_off), usage=usage, malformed=calls.malformed)


def _add_item(item: Any, calls: Calls) -> None:
    match item.type:
        case "message":
            text = "".join(
                (part.text if part.type == "output_text" else getattr(part, "refusal", None)) or ""
                for part in item.content
            )
            if text:
                calls.blocks.append(Text(text=text))
        case "function_call":
            calls.add(item.name, item.arguments or "")
        case "reasoning":
            parts = item.summary or getattr(item, "content", None) or ()
            text = "\n\n".join(part.text for part in parts)
            data = item.encrypted_content
            if text or data:
                calls.blocks.append(Reasoning(text=text, provider="openai", data=data, item_id=item.id))
        case _:
            pass  # what OpenAI runs itself, which we do not ask for


def _trouble(error: Any) -> Trouble:
    code = getattr(error, "code", None)
    words = getattr(error, "message", None) or code or "it failed without a reason"
    return Trouble(str(words), kind=None if code is None else str(code))


def _usage_of(usage: Any) -> Usage:
    details = getattr(usage, "input_tokens_details", None)
    return Usage(
        input_tokens=tokens(getattr(usage, "input_tokens", None)),
        output_tokens=tokens(getattr(usage, "output_tokens", None)),
        cache_read_tokens=tokens(getattr(details, "cached_tokens", None)),
        cache_write_tokens=tokens(getattr(details, "cache_write_tokens", None)),
    )
