"""What the engine tells those who watch it: metrics, logs, spans, and tests that pull the plug."""

from typing import Literal

from turnkeep.errors import TurnkeepError
from turnkeep.ids import TurnId
from turnkeep.model.turns import Turn
from turnkeep.model.usage import Usage

Boundary = Literal[
    "claimed",
    "adopted",
    "previewed",
    "iteration_recorded",
    "tool_starting",
    "tool_ended",
    "result_recorded",
    "settling",
    "settled",
]
"""The places in a turn where a crash would leave something different behind."""


class Observer:
    """Does nothing; override what you need. Must be quick, and must not raise."""

    def reached(self, boundary: Boundary, turn_id: TurnId) -> None:
        """The turn has come to this place."""

    def turn_began(self, turn: Turn) -> None: ...

    def turn_ended(self, turn: Turn) -> None: ...

    def turn_let_go(self, turn_id: TurnId, reason: TurnkeepError) -> None:
        """This worker stopped working on the turn without settling it."""

    def model_called(self, model: str, *, seconds: float, usage: Usage | None) -> None:
        """`usage` is None when the call failed."""

    def tool_called(self, name: str, *, seconds: float, failed: bool) -> None: ...

    def defect(self, turn_id: TurnId | None, error: BaseException) -> None:
        """Something unexpected was caught: a bug, or the world in a shape nobody thought of."""
