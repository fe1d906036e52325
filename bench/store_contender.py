"""What a contender of the store bench must offer. To add one, write it in one file and list it in `store_field.py`.

A *thread* is the contender's own handle of one conversation; a *payload* is one exchange in its own values. Making
either is not measured. Everything that the contender needs to make a turn durable is.
"""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from bench.harness import Place
from bench.store_payloads import Exchange

Database = Literal["sqlite", "postgres"]
Role = Literal["ours", "limit", "floor", "peer"]


class Contender(Protocol):
    """One way to keep conversations."""

    name: str
    database: Database
    role: Role

    async def open(self, place: Place) -> None:
        """Connect, and create the tables in a file or database of its own."""

    async def prepare(self, history: Sequence[Exchange]) -> Any:
        """A new thread that holds these exchanges already, built in whatever way is quick."""

    def shape(self, thread: Any, exchange: Exchange) -> Any:
        """The payload of one exchange."""

    async def append(self, thread: Any, payload: Any) -> None:
        """One whole turn, durable on return."""

    async def load(self, thread: Any, turns: int) -> Sequence[Any]:
        """The messages of the newest turns as values, oldest first; fewer if the thread is shorter."""

    async def close(self) -> None: ...


@runtime_checkable
class Transcribing(Protocol):
    """A contender that can serve a page of what a reader sees."""

    async def transcript(self, thread: Any, messages: int) -> Sequence[Any]:
        """The newest visible messages, newest first."""


@runtime_checkable
class Live(Protocol):
    """A contender that can write a turn while it happens: four commits instead of one."""

    def shape_live(self, thread: Any, exchange: Exchange) -> Any: ...

    async def live(self, thread: Any, payload: Any) -> None:
        """Question, iteration, tool result and answer, each durable before the next begins."""


@runtime_checkable
class CountsCommits(Protocol):
    """A contender that knows how many commits it has made."""

    def commits(self) -> int: ...
