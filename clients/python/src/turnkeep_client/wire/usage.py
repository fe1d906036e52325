"""Usage: tokens of a turn, and what a month has consumed against its limits."""

from typing import Literal

from msgspec import Struct

Source = Literal["ui", "api"]
"""Where a turn was asked from: the bundled page, or the API."""

Scope = Literal["workspace", "user", "key"]
"""What a monthly limit is set on."""


class Usage(Struct, frozen=True, kw_only=True):
    """Tokens, summed over every model call of a turn.

    `input_tokens` is all that the models read. What came from a cache, and what was written into one, is part of it.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
        )


class Messages(Struct, frozen=True, kw_only=True):
    """POSTs, by where they came from."""

    ui: int = 0
    api: int = 0


class KeyUsage(Struct, frozen=True, kw_only=True):
    """What one service key has used in one month, in whatever workspaces, and what it may."""

    messages: int
    limit: int | None


class MonthlyUsage(Struct, frozen=True, kw_only=True):
    """What one scope has used in one month. `messages` counts POSTs, never rows."""

    month: str
    messages: int
    by_source: Messages
    input_tokens: int
    output_tokens: int
    limit: int | None = None
    key: KeyUsage | None = None
    """The service key that asks; None for everybody else, and for the operator's own keys, which have no limit."""
