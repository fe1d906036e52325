"""Endings: how a turn that did not reach its answer is settled, so that nothing is left open.

The partial text is kept, every open step is closed, and every tool call gets a result: no provider will refuse the
conversation because this turn was broken off.
"""

from turnkeep.engine.held_turn import HeldTurn
from turnkeep.engine.recovery import open_calls
from turnkeep.engine.tool_calls import stopped
from turnkeep.model.display import Display, fold
from turnkeep.model.events import Failure, Step, TurnEvent
from turnkeep.model.truncation import fit_display
from turnkeep.model.turns import FinalStatus, TurnError
from turnkeep.store.commands import Settlement

CANCELLED = TurnError(code="cancelled", message="Stopped.")


async def settle_cancelled(run: HeldTurn) -> None:
    await _settle(run, "cancelled", CANCELLED)


async def settle_failed(run: HeldTurn, code: str, message: str) -> None:
    await _settle(run, "failed", TurnError(code=code, message=message))


async def settle_bare(run: HeldTurn, code: str, message: str) -> None:
    """For a turn whose ending the store does not take: without the words, files and tokens of this attempt, one of
    which must be at fault. Made only of what is in the store already, so that it can be kept."""
    await run.recorder.quiesce()
    recorder, error = run.recorder, TurnError(code=code, message=message)
    await run.settle(
        Settlement(
            status="failed",
            terminal=Failure(code=error.code, message=error.message),
            usage=run.turn.usage,
            rows=tuple(run.result_row(call.use, stopped()) for call in open_calls(recorder.rows, recorder.events)),
            events=tuple(closed_steps(recorder.display())),
            error=error,
        )
    )


def closed_steps(display: Display) -> list[Step]:
    """An end for every step that has begun and not ended. Nobody knows what it came to."""
    return [Step(id=step.id, name=step.name, status="failed", error=stopped().error) for step in display.open_steps()]


async def _settle(run: HeldTurn, status: FinalStatus, error: TurnError) -> None:
    """Close what is open, keep what was said, and end with one terminal event."""
    await run.recorder.quiesce()
    recorder = run.recorder
    unanswered = open_calls(recorder.rows, recorder.events)
    closing: list[TurnEvent] = [*closed_steps(recorder.display())]
    text, reasoning = recorder.spoken("text"), recorder.spoken("reasoning")
    closing += await run.wind_up()
    if text or reasoning:
        # Recorded as an event too: a reader who was cut off in the middle gets the rest of these words when it resumes.
        closing.append(run.broken_off(text=text, reasoning=reasoning))
    display = fit_display(fold((*recorder.events, *closing)))
    final = run.final_row(text, display=display) if display.content else None
    terminal = (
        Failure(code=error.code, message=error.message)
        if final is None
        else Failure(code=error.code, message=error.message, message_id=final.id)
    )
    await run.settle(
        Settlement(
            status=status,
            terminal=terminal,
            usage=run.usage,
            final=final,
            rows=tuple(run.result_row(call.use, stopped()) for call in unanswered),
            events=tuple(closing),
            error=error,
        )
    )
