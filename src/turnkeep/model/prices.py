"""Prices of models, and what the tokens of a turn cost."""

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from turnkeep_client.wire.blocks import Usage

PER_TOKENS = 1_000_000


class Price(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices of a million tokens, in any currency. Tokens of a cache cost as much as others where it is not said."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None


class Prices(Struct, frozen=True):
    """The prices by the names of the models."""

    by_model: Mapping[str, Price] = {}

    def cost(self, model: str | None, usage: Usage) -> float | None:
        """What these tokens cost; None for a model without a price. Tokens of the cache are part of the input."""
        price = None if model is None else self.by_model.get(model)
        if price is None:
            return None
        read, written = usage.cache_read_tokens, usage.cache_write_tokens
        total = (
            max(0, usage.input_tokens - read - written) * price.input
            + read * (price.input if price.cache_read is None else price.cache_read)
            + written * (price.input if price.cache_write is None else price.cache_write)
            + usage.output_tokens * price.output
        )
        return total / PER_TOKENS


def read_prices(text: bytes) -> Prices:
    """The prices of a JSON file: an object of prices by model. Raises msgspec.MsgspecError."""
    return Prices(msgspec.json.decode(text, type=dict[str, Price]))
