"""A reply of Anthropic's Messages API while it is being streamed."""

from typing import Any

from turnkeep.providers.drafts import ALIVE, Arguments, Calls, tokens, whole
from turnkeep.providers.failures import Trouble
from turnkeep.providers.ports import Delta, Reply
from turnkeep_client.wire.blocks import Reasoning, Text
from turnkeep_client.wire.usage import Usage

CUT_OFF = frozenset({"max_tokens", "model_context_window_exceeded"})


class AnthropicDraft:
    """Blocks by their index; a block is text, thinking with its signature, redacted thinking, or a call."""

    def __init__(self) -> None:
        self.has_begun = False
        self._blocks: dict[int, _Spoken | Arguments] = {}
        self.is_whole = False
        self._stop_reason: str | None = None
        self._stop_details: Any = None
        self._counts: dict[str, int] = {}

    def add(self, event: Any) -> Delta | None:
        match event.type:
            case "content_block_delta":
                return self._add_delta(event.index, event.delta)
            case "content_block_start":
                return self._begin_block(event.index, event.content_block)
            case "message_start":
                self._count(event.message.usage)
            case "message_delta":
                self._stop_reason = event.delta.stop_reason or self._stop_reason
                self._stop_details = event.delta.stop_details
                self._count(event.usage)
            case "message_stop":
                self.is_whole = True
            case _:
                pass  # content_block_stop says nothing new, and later versions may add events
        return None

    def reply(self) -> Reply:
        if not self.is_whole:
            raise Trouble("the stream ended in the middle of the answer", is_transient=True)
        if self._stop_reason == "refusal":
            why = getattr(self._stop_details, "explanation", None) or "no reason was given"
            raise Trouble(f"the model declined to answer (refusal): {why}")
        is_cut_off = self._stop_reason in CUT_OFF
        calls = Calls(is_cut_off=is_cut_off)
        for _, block in sorted(self._blocks.items()):
            if isinstance(block, Arguments):
                calls.add(block.name, block.text)
            elif (spoken := block.block()) is not None:
                calls.blocks.append(spoken)
        return Reply(blocks=whole(calls, is_cut_off=is_cut_off), usage=self._usage(), malformed=calls.malformed)

    def _add_delta(self, index: int, delta: Any) -> Delta | None:
        block = self._blocks.get(index)
        match delta.type:
            case "text_delta" if isinstance(block, _Spoken):
                self.has_begun = True
                block.pieces.append(delta.text)
                return Delta(text=delta.text)
            case "thinking_delta" if isinstance(block, _Spoken):
                self.has_begun = True
                block.pieces.append(delta.thinking)
                return Delta(text=delta.thinking, kind="reasoning")
            case "input_json_delta" if isinstance(block, Arguments):
                self.has_begun = True
                block.add(delta.partial_json)
                return ALIVE
            case "signature_delta" if isinstance(block, _Spoken):
                block.signature += delta.signature
                return ALIVE
            case _:
                return None

    def _begin_block(self, index: int, block: Any) -> Delta | None:
        match block.type:
            case "text":
                self._blocks[index] = _Spoken("text")
                return self._add_first(index, block.text, "text")
            case "thinking":
                self._blocks[index] = spoken = _Spoken("reasoning")
                spoken.signature = getattr(block, "signature", None) or ""
                return self._add_first(index, block.thinking, "reasoning")
            case "redacted_thinking":
                self._blocks[index] = _Spoken("reasoning", data=block.data)
            case "tool_use":
                self._blocks[index] = Arguments(block.name, _given(block.input))
            case _:
                pass  # what Anthropic runs itself, which we do not ask for
        return ALIVE

    def _add_first(self, index: int, text: str | None, kind: Any) -> Delta:
        """A block usually begins empty; compatible servers may put words into its start."""
        block = self._blocks[index]
        if not text or not isinstance(block, _Spoken):
            return ALIVE
        self.has_begun = True
        block.pieces.append(text)
        return Delta(text=text, kind=kind)

    def _count(self, usage: Any) -> None:
        """Counts are totals so far; a later one replaces an earlier one."""
        for name in ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
            value = getattr(usage, name, None)
            if value is not None:
                self._counts[name] = tokens(value)

    def _usage(self) -> Usage:
        count = self._counts.get
        read, written = count("cache_read_input_tokens", 0), count("cache_creation_input_tokens", 0)
        return Usage(
            input_tokens=count("input_tokens", 0) + read + written,
            output_tokens=count("output_tokens", 0),
            cache_read_tokens=read,
            cache_write_tokens=written,
        )


class _Spoken:
    __slots__ = ("data", "kind", "pieces", "signature")

    def __init__(self, kind: str, data: str | None = None) -> None:
        self.kind = kind
        self.pieces: list[str] = []
        self.signature = ""
        self.data = data

    def block(self) -> Text | Reasoning | None:
        text = "".join(self.pieces)
        if self.kind == "text":
            return Text(text=text) if text else None
        if not text and not self.signature and not self.data:
            return None
        return Reasoning(text=text, provider="anthropic", signature=self.signature or None, data=self.data)


def _given(value: Any) -> str:
    """Arguments that came with the start of a call, as some compatible servers send them."""
    import json

    return json.dumps(value) if isinstance(value, dict) and value else ""
