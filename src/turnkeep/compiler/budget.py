"""Budgets: how much of a conversation a model is shown, in turns and in size.

Size is counted in characters, or in tokens if an agent names a tokenizer. The rest of the compiler calls
`Budget.measure` and does not know which of the two it is. The budget does not include the system prompt and the answer:
the caller leaves room for them.
"""

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import assert_never

import msgspec
from msgspec import Struct

from turnkeep.compiler.exchange import Exchange
from turnkeep.config import EngineSettings
from turnkeep.errors import InvalidRequest, Unavailable
from turnkeep.model.blocks import Block, FileRef, Image, JsonObject, Reasoning, Text, ToolResult, ToolUse

Measure = Callable[[str], int]

REPLAY_TURNS = EngineSettings().replay_turns
CONTEXT_CHARS = EngineSettings().context_chars
CHARS_PER_TOKEN = 4
IMAGE_TOKENS = 1_600
"""What a picture costs after providers have scaled it down. Its base64 length does not say that."""


class Budget(Struct, frozen=True, kw_only=True):
    """At most `turns` turns with a total of at most `size`, as `measure` counts it; `image` is the size of a
    picture."""

    turns: int = REPLAY_TURNS
    size: int = CONTEXT_CHARS
    measure: Measure = len
    image: int = IMAGE_TOKENS * CHARS_PER_TOKEN


UNLIMITED = Budget(turns=2**31, size=2**62)


def budget_for(tokenizer: str | None = None, *, turns: int = REPLAY_TURNS, chars: int = CONTEXT_CHARS) -> Budget:
    """The budget in characters, or the equivalent in tokens of the named tokenizer."""
    if tokenizer is None:
        return Budget(turns=turns, size=chars)
    size = max(1, chars // CHARS_PER_TOKEN)
    return Budget(turns=turns, size=size, measure=measure_for(tokenizer), image=IMAGE_TOKENS)


@lru_cache(maxsize=16)
def measure_for(tokenizer: str) -> Measure:
    """A counter of tokens, by the name of an encoding (`o200k_base`) or of a model that tiktoken knows."""
    try:
        tiktoken = import_module("tiktoken")
    except ImportError as exc:
        raise InvalidRequest(
            f"The agent counts tokens with {tokenizer!r}, which needs the package tiktoken. "
            "Install it, or leave the tokenizer out to count characters."
        ) from exc
    try:
        known = tokenizer in tiktoken.list_encoding_names()
        encoding = tiktoken.get_encoding(tokenizer) if known else tiktoken.encoding_for_model(tokenizer)
    except KeyError as exc:
        raise InvalidRequest(f"{tokenizer!r} is not a tokenizer that tiktoken knows.") from exc
    except OSError as exc:
        raise Unavailable(f"The vocabulary of tokenizer {tokenizer!r} could not be loaded: {exc}") from exc

    # A tool round measures the same texts again; counting tokens costs about a hundred times more than the lookup.
    @lru_cache(maxsize=4096)
    def count(text: str) -> int:
        return len(encoding.encode(text, disallowed_special=()))

    return count


def size_of(exchange: Exchange, budget: Budget) -> int:
    """What the exchange takes of the budget."""
    measure, image = budget.measure, budget.image
    return sum(
        block_size(block, measure=measure, image=image)
        for utterance in exchange.utterances
        for block in utterance.blocks
    )


def block_size(block: Block, *, measure: Measure, image: int) -> int:
    match block:
        case Text():
            return measure(block.text)
        case ToolResult():
            return measure(block.content)
        case ToolUse():
            return measure(block.name) + measure(arguments_of(block.input))
        case Reasoning():
            return measure(block.text) + len(block.data or "")
        case Image():
            return image
        case FileRef():
            return measure(block.name)
        case _:
            assert_never(block)


def arguments_of(value: JsonObject) -> str:
    """A call's arguments as compact JSON, keys in the order in which the model wrote them."""
    return msgspec.json.encode(value).decode()
