"""What is written: one exchange with one tool call, in sizes that chats have. The same for every contender.

user 200 characters; assistant text 200 and tool input 300; tool result 2,000; final answer 800.
"""

import random
from dataclasses import dataclass
from itertools import cycle

USER, SAID, ASKED, RESULT, FINAL = 200, 200, 300, 2_000, 800


@dataclass(frozen=True)
class Exchange:
    """The words of one turn."""

    user: str
    said: str
    tool: str
    asked: str
    result: str
    final: str


def exchanges(count: int = 256) -> "cycle[Exchange]":
    """Endless exchanges of natural-looking words, the same in every run."""
    chance = random.Random(20)
    vocabulary = ["".join(chance.choices("etaoinshrdlu", k=chance.randint(2, 9))) for _ in range(2_000)]
    weights = [1 / (rank + 3) for rank in range(len(vocabulary))]

    def words(length: int) -> str:
        text = " ".join(chance.choices(vocabulary, weights, k=length // 2))
        return text[:length].ljust(length, ".")

    return cycle(
        [
            Exchange(words(USER), words(SAID), "search_orders", words(ASKED), words(RESULT), words(FINAL))
            for _ in range(count)
        ]
    )
