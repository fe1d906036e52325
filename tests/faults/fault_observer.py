"""The observer of a worker process: reports to the test, and sends a signal to its process where the fault says so."""

import os
import signal
import sys

from tests.faults.worker_protocol import Adopted, Ended, Fault, LetGo, Report, Unexpected, line
from turnkeep.engine import Boundary, Observer
from turnkeep.engine.observer import ErasureStep
from turnkeep.errors import TurnkeepError
from turnkeep.ids import ErasureId, TurnId
from turnkeep.model.turns import Turn


class FaultObserver(Observer):
    """Reports what the engine does. At the place that the fault names, it sends its own process a signal."""

    def __init__(self, fault: Fault | None) -> None:
        self._fault = fault
        self._arrivals = 0

    def arm(self, fault: Fault) -> None:
        self._fault = fault
        self._arrivals = 0

    def arrive(self, place: str) -> None:
        fault = self._fault
        if fault is None or fault.place != place:
            return
        self._arrivals += 1
        if self._arrivals == fault.nth:
            os.kill(os.getpid(), signal.Signals[fault.signal])

    def reached(self, boundary: Boundary, turn_id: TurnId) -> None:
        if boundary == "adopted":
            report(Adopted(turn_id=turn_id))
        self.arrive(boundary)

    def erasure_reached(self, step: ErasureStep, erasure_id: ErasureId) -> None:
        self.arrive(step)

    def turn_ended(self, turn: Turn) -> None:
        report(Ended(turn_id=turn.id, status=turn.status))

    def turn_let_go(self, turn_id: TurnId, reason: TurnkeepError) -> None:
        report(LetGo(turn_id=turn_id, reason=reason.detail))

    def defect(self, turn_id: TurnId | None, error: BaseException) -> None:
        report(Unexpected(error=f"{turn_id}: {error!r}"))


def report(said: Report) -> None:
    """Unbuffered, and whole: a line of this length enters a pipe at once."""
    os.write(sys.stdout.fileno(), line(said))
