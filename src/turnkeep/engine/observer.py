"""The observer: what the engine reports to metrics, logs and traces, and to tests that stop it at a given point."""

import logging
import time
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, TypeVar

from turnkeep.errors import TurnkeepError
from turnkeep.ids import ErasureId, TurnId
from turnkeep.model.turns import ModelCallTimes, ModelRetry, Turn
from turnkeep.providers.ports import ModelRequest, Reply
from turnkeep.tools.ports import Outcome
from turnkeep.trace_context import current_origin
from turnkeep_client.wire.blocks import ToolUse
from turnkeep_client.wire.events import Step

P = ParamSpec("P")
R = TypeVar("R")

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


ResetCause = Literal["takeover", "provider"]
"""Why readers had to drop the text that they were shown."""


class ObservedModelCall:
    """One call of a model, from its beginning to its end. The last two are None while it is under way."""

    __slots__ = ("began", "error", "first_at", "is_first", "reply", "request", "retries", "seconds", "span", "turn")

    def __init__(self, turn: Turn, request: ModelRequest, *, is_first: bool = False) -> None:
        """`is_first`: the turn has called no model before."""
        self.turn = turn
        self.request = request
        self.is_first = is_first
        self.began = time.monotonic()
        self.first_at: float | None = None
        """When the first piece of the reply came."""
        self.retries: list[ModelRetry] = []
        self.span: Any = None
        """For the observer alone."""
        self.seconds = 0.0
        self.reply: Reply | None = None
        self.error: BaseException | None = None

    def end(self) -> None:
        self.seconds = time.monotonic() - self.began

    def times(self, *, now: int) -> ModelCallTimes:
        """When it took place. It has just ended, `now`.

        Durations are cut to whole milliseconds, as the clock cuts its times. If they were rounded, a call could begin
        before the step that came before it.
        """
        ms = int(self.seconds * 1000)
        first_ms = None if self.first_at is None else int((self.first_at - self.began) * 1000)
        # Cut times may still put the beginning a millisecond after the first retry.
        began_at = min([now - ms, *[retry.at for retry in self.retries]])
        return ModelCallTimes(began_at=began_at, ms=ms, first_ms=first_ms, retries=tuple(self.retries))


class ObservedToolCall:
    """One call of a tool, from its beginning to its end. `outcome` is None while it is under way, and for a call that
    was stopped."""

    __slots__ = ("began", "in_sandbox", "outcome", "seconds", "span", "traceparent", "turn", "use")

    def __init__(self, turn: Turn, use: ToolUse, *, in_sandbox: bool = False) -> None:
        """`in_sandbox`: the loop of the turn runs in a sandbox, which reports the step too."""
        self.turn = turn
        self.use = use
        self.in_sandbox = in_sandbox
        self.began = time.monotonic()
        self.traceparent = current_origin().traceparent
        """What the tool is told. An observer that traces puts its own span here."""
        self.span: Any = None
        """For the observer alone."""
        self.seconds = 0.0
        self.outcome: Outcome | None = None

    def end(self) -> None:
        self.seconds = time.monotonic() - self.began


class Observer:
    """Does nothing; override what you need. Must be quick, and must not raise."""

    def reached(self, boundary: Boundary, turn_id: TurnId) -> None:
        """The turn has reached this point."""

    def erasure_reached(self, step: ErasureStep, erasure_id: ErasureId) -> None:
        """The erasure has reached this point."""

    def erasure_delayed(self, erasure_id: ErasureId, problem: str) -> None:
        """The erasure cannot go on now, and is tried again later."""

    def turn_taken(self, turn: Turn) -> str | None:
        """This worker begins to work on the turn. Returns the `traceparent` of that work, if it is traced."""

    def turn_adopted(self, turn: Turn, *, is_first_start: bool) -> None:
        """This worker has taken the turn over, or (`is_first_start`) out of the queue."""

    def turn_began(self, turn: Turn) -> None: ...

    def turn_ended(self, turn: Turn) -> None: ...

    def turn_let_go(self, turn_id: TurnId, reason: TurnkeepError) -> None:
        """This worker stopped working on the turn without settling it."""

    def turn_left(self, turn: Turn, settled: Turn | None) -> None:
        """This worker has done what it can for the turn that it has taken. `settled` is the turn as it ended; None if
        it waits, or goes on elsewhere."""

    def was_reset(self, turn_id: TurnId, cause: ResetCause) -> None:
        """Readers of the turn were told to drop the text that they were shown."""

    def model_call_began(self, call: ObservedModelCall) -> None: ...

    def model_called(self, call: ObservedModelCall) -> None:
        """The call has ended: with a reply, or with an error."""

    def tool_call_began(self, call: ObservedToolCall) -> None: ...

    def tool_called(self, call: ObservedToolCall) -> None:
        """The call has ended, or was stopped."""

    def sandbox_step(self, turn: Turn, step: Step) -> None:
        """The sandbox of the turn has reported this step: its beginning or its end."""

    def defect(self, turn_id: TurnId | None, error: BaseException) -> None:
        """An unexpected exception was caught: a bug here, or an outside failure that the code does not know."""


class SafeObserver(Observer):
    """Wraps another observer, so that its failures harm no turn. The first failure of each kind is logged."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._failed: set[str] = set()
        # What does nothing cannot fail, so it is called directly: the loop calls `reached` for every piece of text.
        for name, idle in vars(Observer).items():
            if getattr(getattr(observer, name), "__func__", None) is idle:
                setattr(self, name, getattr(observer, name))

    def reached(self, boundary: Boundary, turn_id: TurnId) -> None:
        self._tell(self._observer.reached, boundary, turn_id)

    def erasure_reached(self, step: ErasureStep, erasure_id: ErasureId) -> None:
        self._tell(self._observer.erasure_reached, step, erasure_id)

    def erasure_delayed(self, erasure_id: ErasureId, problem: str) -> None:
        self._tell(self._observer.erasure_delayed, erasure_id, problem)

    def turn_taken(self, turn: Turn) -> str | None:
        return self._tell(self._observer.turn_taken, turn)

    def turn_adopted(self, turn: Turn, *, is_first_start: bool) -> None:
        self._tell(self._observer.turn_adopted, turn, is_first_start=is_first_start)

    def turn_began(self, turn: Turn) -> None:
        self._tell(self._observer.turn_began, turn)

    def turn_ended(self, turn: Turn) -> None:
        self._tell(self._observer.turn_ended, turn)

    def turn_let_go(self, turn_id: TurnId, reason: TurnkeepError) -> None:
        self._tell(self._observer.turn_let_go, turn_id, reason)

    def turn_left(self, turn: Turn, settled: Turn | None) -> None:
        self._tell(self._observer.turn_left, turn, settled)

    def was_reset(self, turn_id: TurnId, cause: ResetCause) -> None:
        self._tell(self._observer.was_reset, turn_id, cause)

    def model_call_began(self, call: ObservedModelCall) -> None:
        self._tell(self._observer.model_call_began, call)

    def model_called(self, call: ObservedModelCall) -> None:
        self._tell(self._observer.model_called, call)

    def tool_call_began(self, call: ObservedToolCall) -> None:
        self._tell(self._observer.tool_call_began, call)

    def tool_called(self, call: ObservedToolCall) -> None:
        self._tell(self._observer.tool_called, call)

    def sandbox_step(self, turn: Turn, step: Step) -> None:
        self._tell(self._observer.sandbox_step, turn, step)

    def defect(self, turn_id: TurnId | None, error: BaseException) -> None:
        self._tell(self._observer.defect, turn_id, error)

    def _tell(self, tell: Callable[P, R], *args: P.args, **fields: P.kwargs) -> R | None:
        try:
            return tell(*args, **fields)
        except Exception:
            if tell.__name__ not in self._failed:
                self._failed.add(tell.__name__)
                _logger.exception("the observer failed at %s; this is logged only once", tell.__name__)
            return None
