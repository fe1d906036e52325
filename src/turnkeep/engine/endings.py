"""Endings: how a turn that did not reach its answer is settled, so that nothing is left open.

The partial text is kept, every open step is closed, and every tool call gets a result: no provider will refuse the
conversation because this turn was broken off.
"""

from turnkeep.engine.recovery import open_calls
from turnkeep.engine.run import Run, ended_step
from turnkeep.engine.tooling import stopped
from turnkeep.model.display import fold
from turnkeep.model.events import Failure, TurnEvent
from turnkeep.model.turns import FinalStatus, TurnError
from turnkeep.store.commands import Settlement

CANCELLED = TurnError(code="cancelled", message="Stopped.")


async def settle_cancelled(run: Run) -> None:
    await _settle(run, "cancelled", CANCELLED)


async def settle_failed(run: Run, code: str, message: str) -> None:
    await _settle(run, "failed", TurnError(code=code, message=message))


async def _settle(run: Run, status: FinalStatus, error: TurnError) -> None:
    """Close what is open, keep what was said, and end with one terminal event."""
    await run.recorder.quiesce()
    recorder = run.recorder
    unanswered = open_calls(recorder.rows, recorder.events)
    still_running = {step.id for step in recorder.display().open_steps()}
    closing: list[TurnEvent] = [
        ended_step(call.use, stopped(), seconds=None) for call in unanswered if call.use.id in still_running
    ]
    text, reasoning = recorder.spoken("text"), recorder.spoken("reasoning")
    if text or reasoning:
        # Recorded as an event too: a reader who was cut off in the middle gets the rest of these words when it resumes.
        closing.append(run.broken_off(text=text, reasoning=reasoning))
    display = fold((*recorder.events, *closing))
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
