"""The observer: what the engine reports to metrics, logs and traces, and to tests that stop it at a given point."""

import logging
from collections.abc import Callable
from typing import Literal, ParamSpec

from turnkeep.errors import TurnkeepError
from turnkeep.ids import ErasureId, TurnId
from turnkeep.model.turns import Turn
from turnkeep_client.wire.blocks import Usage

P = ParamSpec("P")

_logger = logging.getLogger("turnkeep.turns")

Boundary = Literal[
    "claimed",
    "adopted",
    "previewed",
    "iteration_recorded",
    "tool_starting",
    "tool_ended",
    "result_recorded",
    "waiting",
    "waited",
    "answered",
    "steered",
    "settling",
    "settled",
]
"""The points of a turn between which a crash leaves different things behind."""


ErasureStep = Literal["erasure_begun", "hidden", "bytes_erased", "rows_erased", "closed", "scrubbed"]
"""The same for an erasure."""


class Observer:
    """Does nothing; override what you need. Must be quick, and must not raise."""

    def reached(self, boundary: Boundary, turn_id: TurnId) -> None:
        """The turn has reached this point."""

    def erasure_reached(self, step: ErasureStep, erasure_id: ErasureId) -> None:
        """The erasure has reached this point."""

    def erasure_delayed(self, erasure_id: ErasureId, problem: str) -> None:
        """The erasure cannot go on now, and is tried again later."""

    def turn_began(self, turn: Turn) -> None: ...

    def turn_ended(self, turn: Turn) -> None: ...

    def turn_let_go(self, turn_id: TurnId, reason: TurnkeepError) -> None:
        """This worker stopped working on the turn without settling it."""

    def model_called(self, model: str, *, seconds: float, usage: Usage | None) -> None:
        """`usage` is None when the call failed."""

    def tool_called(self, name: str, *, seconds: float, failed: bool) -> None: ...

    def defect(self, turn_id: TurnId | None, error: BaseException) -> None:
        """An unexpected exception was caught: a bug here, or an outside failure that the code does not know."""


class SafeObserver(Observer):
    """Wraps another observer, so that its failures harm no turn. The first failure of each kind is logged."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._failed: set[str] = set()
        if getattr(observer.reached, "__func__", None) is Observer.reached:
            # The loop calls it for every piece of text. What does nothing cannot fail, so it is called directly.
            self.reached = observer.reached  # type: ignore[method-assign]

    def reached(self, boundary: Boundary, turn_id: TurnId) -> None:
        self._tell(self._observer.reached, boundary, turn_id)

    def erasure_reached(self, step: ErasureStep, erasure_id: ErasureId) -> None:
        self._tell(self._observer.erasure_reached, step, erasure_id)

    def erasure_delayed(self, erasure_id: ErasureId, problem: str) -> None:
        self._tell(self._observer.erasure_delayed, erasure_id, problem)

    def turn_began(self, turn: Turn) -> None:
        self._tell(self._observer.turn_began, turn)

    def turn_ended(self, turn: Turn) -> None:
        self._tell(self._observer.turn_ended, turn)

    def turn_let_go(self, turn_id: TurnId, reason: TurnkeepError) -> None:
        self._tell(self._observer.turn_let_go, turn_id, reason)

    def model_called(self, model: str, *, seconds: float, usage: Usage | None) -> None:
        self._tell(self._observer.model_called, model, seconds=seconds, usage=usage)

    def tool_called(self, name: str, *, seconds: float, failed: bool) -> None:
        self._tell(self._observer.tool_called, name, seconds=seconds, failed=failed)

    def defect(self, turn_id: TurnId | None, error: BaseException) -> None:
        self._tell(self._observer.defect, turn_id, error)

    def _tell(self, tell: Callable[P, None], *args: P.args, **fields: P.kwargs) -> None:
        try:
            tell(*args, **fields)
        except Exception:
            if tell.__name__ not in self._failed:
                self._failed.add(tell.__name__)
                _logger.exception("the observer failed at %s; this is logged only once", tell.__name__)
