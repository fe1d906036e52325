"""A reply of OpenAI's Chat Completions while it is being streamed, from OpenAI or from a server that speaks like it.

Servers differ in small things: reasoning comes as `reasoning_content` or `reasoning`, if at all; parallel calls may
share one index; usage may be missing, or hold anything.
"""

from typing import Any

from turnkeep.providers.drafts import ALIVE, Arguments, Calls, tokens, whole
from turnkeep.providers.failures import Trouble
from turnkeep.providers.ports import Delta, Reply
from turnkeep_client.wire.blocks import Reasoning, Text
from turnkeep_client.wire.usage import Usage


class OpenAIChatDraft:
    """Text, reasoning and calls, each collected apart: the format does not say how they were interleaved."""

    def __init__(self) -> None:
        self.has_begun = False
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_Call] = []
        self._finish_reason: str | None = None
        self._usage = Usage()

    @property
    def is_whole(self) -> bool:
        return self._finish_reason is not None

    def add(self, event: Any) -> Delta | None:
        if event.usage is not None:
            self._usage = _usage_of(event.usage)
        if not event.choices:
            return None
        choice = event.choices[0]
        if choice.finish_reason is not None:
            self._finish_reason = choice.finish_reason
        delta = choice.delta
        if delta is None:
            return None
        text = delta.content or delta.refusal
        if text:
            self.has_begun = True
            self._text.append(text)
            return Delta(text=text)
        if extra := delta.model_extra:
            thought = extra.get("reasoning_content") or extra.get("reasoning")
            if isinstance(thought, str) and thought:
                self.has_begun = True
                self._reasoning.append(thought)
                return Delta(text=thought, kind="reasoning")
        if delta.tool_calls:
            self.has_begun = True
            for piece in delta.tool_calls:
                self._add_call(piece)
            return ALIVE
        return None

    def reply(self) -> Reply:
        if not self.is_whole:
            raise Trouble("the stream ended in the middle of the answer", is_transient=True)
        if self._finish_reason == "content_filter":
            raise Trouble("the answer was stopped by the provider's content filter")
        if self._finish_reason == "error":
            raise Trouble("the provider ended the answer with an error", is_transient=True)
        is_cut_off = self._finish_reason == "length"
        calls = Calls(is_cut_off=is_cut_off)
        if self._reasoning:
            calls.blocks.append(Reasoning(text="".join(self._reasoning), provider="openai"))
        if self._text:
            calls.blocks.append(Text(text="".join(self._text)))
        for call in self._calls:
            calls.add(call.arguments.name, call.arguments.text)
        return Reply(blocks=whole(calls, is_cut_off=is_cut_off), usage=self._usage, malformed=calls.malformed)

    def _add_call(self, piece: Any) -> None:
        """A piece belongs to the last call of its index, unless it brings another id: then it begins a new call."""
        function = piece.function
        name = (function.name if function else None) or ""
        text = (function.arguments if function else None) or ""
        call = next((each for each in reversed(self._calls) if each.index == piece.index), None)
        if call is None or (piece.id and call.id and piece.id != call.id):
            self._calls.append(_Call(piece.index, piece.id, Arguments(name, text)))
            return
        call.id = call.id or piece.id
        call.arguments.name = call.arguments.name or name
        if text:
            call.arguments.add(text)


class _Call:
    __slots__ = ("arguments", "id", "index")

    def __init__(self, index: int | None, call_id: str | None, arguments: Arguments) -> None:
        self.index = index
        self.id = call_id
        self.arguments = arguments


def _usage_of(usage: Any) -> Usage:
    details = getattr(usage, "prompt_tokens_details", None)
    return Usage(
        input_tokens=tokens(getattr(usage, "prompt_tokens", None)),
        output_tokens=tokens(getattr(usage, "completion_tokens", None)),
        cache_read_tokens=tokens(getattr(details, "cached_tokens", None)),
        cache_write_tokens=tokens(getattr(details, "cache_write_tokens", None)),
    )
