"""Endings: how a turn that did not reach its answer is settled, so that nothing is left open.

The partial text is kept, every open step is closed, and every tool call gets a result. So no provider refuses the
conversation later because this turn was interrupted.

Decision: docs/decisions/0201
"""

from turnkeep.engine.held_turn import HeldTurn
from turnkeep.engine.recovery import open_calls
from turnkeep.engine.tool_calls import stopped
from turnkeep.model.truncation import fit_display
from turnkeep.model.turns import FinalStatus, TurnError
from turnkeep.store.commands import Settlement
from turnkeep_client.wire.display import Display, fold
from turnkeep_client.wire.events import Failure, Step, TurnEvent

CANCELLED = TurnError(code="cancelled", message="Stopped.")


async def settle_cancelled(active: HeldTurn) -> None:
    await _settle(active, "cancelled", CANCELLED)


async def settle_failed(active: HeldTurn, code: str, message: str) -> None:
    await _settle(active, "failed", TurnError(code=code, message=message))


async def settle_bare(active: HeldTurn, code: str, message: str) -> None:
    """For a turn whose ending the store refuses. It leaves out the words, files and tokens of this attempt, because one
    of them must be the reason, and uses only what is in the store already."""
    await active.recorder.quiesce()
    recorder, error = active.recorder, TurnError(code=code, message=message)
    await active.settle(
        Settlement(
            status="failed",
            terminal=Failure(code=error.code, message=error.message),
            usage=active.turn.usage,
            rows=tuple(active.result_row(call.use, stopped()) for call in open_calls(recorder.rows, recorder.events)),
            events=tuple(closed_steps(recorder.display())),
            error=error,
        )
    )


def closed_steps(display: Display) -> list[Step]:
    """An end for every step that has begun and not ended. Its outcome is unknown."""
    return [Step(id=step.id, name=step.name, status="failed", error=stopped().error) for step in display.open_steps()]


async def _settle(active: HeldTurn, status: FinalStatus, error: TurnError) -> None:
    """Close what is open, keep what was said, and end with one terminal event."""
    await active.recorder.quiesce()
    recorder = active.recorder
    unanswered = open_calls(recorder.rows, recorder.events)
    closing: list[TurnEvent] = [*closed_steps(recorder.display())]
    text, reasoning = recorder.spoken("text"), recorder.spoken("reasoning")
    closing += await active.wind_up()
    if text or reasoning:
        # Recorded as an event too: a reader whose connection broke gets the rest of these words when it resumes.
        closing.append(active.broken_off(text=text, reasoning=reasoning))
    display = fit_display(fold((*recorder.events, *closing)))
    final = active.final_row(text, display=display) if display.content else None
    terminal = (
        Failure(code=error.code, message=error.message)
        if final is None
        else Failure(code=error.code, message=error.message, message_id=final.id)
    )
    await active.settle(
        Settlement(
            status=status,
            terminal=terminal,
            usage=active.usage,
            final=final,
            rows=tuple(active.result_row(call.use, stopped()) for call in unanswered),
            events=tuple(closing),
            error=error,
        )
    )
