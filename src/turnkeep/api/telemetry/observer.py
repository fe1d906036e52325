"""The observer of the engine: it turns what the engine reports into metrics, log lines and spans."""

import logging

from turnkeep.api.telemetry.logs import FIELDS
from turnkeep.api.telemetry.metrics import Metrics
from turnkeep.api.telemetry.tracing import Tracing
from turnkeep.engine import Observer
from turnkeep.errors import TurnkeepError
from turnkeep.ids import TurnId
from turnkeep.model.turns import Turn
from turnkeep_client.wire.blocks import Usage

_logger = logging.getLogger("turnkeep.turns")


class EngineObserver(Observer):
    """Each method is quick and never raises."""

    def __init__(self, metrics: Metrics, tracing: Tracing | None = None) -> None:
        self._metrics = metrics
        self._tracing = tracing

    def turn_began(self, turn: Turn) -> None:
        self._metrics.turns_began.inc()
        _logger.info("turn began", extra={FIELDS: _about(turn)})

    def turn_ended(self, turn: Turn) -> None:
        self._metrics.turns_ended.labels(turn.status).inc()
        error = None if turn.error is None else turn.error.code
        tokens = {"input_tokens": turn.usage.input_tokens, "output_tokens": turn.usage.output_tokens}
        _logger.info("turn ended", extra={FIELDS: {**_about(turn), "status": turn.status, "code": error, **tokens}})
        if self._tracing is not None:
            self._tracing.turn(turn)

    def turn_let_go(self, turn_id: TurnId, reason: TurnkeepError) -> None:
        self._metrics.turns_let_go.labels(reason.code).inc()
        _logger.info("turn let go", extra={FIELDS: {"turn_id": turn_id, "code": reason.code, "reason": reason.detail}})

    def model_called(self, model: str, *, seconds: float, usage: Usage | None) -> None:
        provider = model.partition("/")[0]
        outcome = "failed" if usage is None else "answered"
        self._metrics.model_seconds.labels(provider, outcome).observe(seconds)
        if usage is not None:
            self._metrics.tokens.labels(provider, "input").inc(usage.input_tokens)
            self._metrics.tokens.labels(provider, "output").inc(usage.output_tokens)
        if self._tracing is not None:
            self._tracing.past("model call", seconds, {"gen_ai.request.model": model, "outcome": outcome})

    def tool_called(self, name: str, *, seconds: float, failed: bool) -> None:
        outcome = "failed" if failed else "succeeded"
        self._metrics.tool_seconds.labels(outcome).observe(seconds)
        if self._tracing is not None:
            self._tracing.past("tool call", seconds, {"gen_ai.tool.name": name, "outcome": outcome})

    def defect(self, turn_id: TurnId | None, error: BaseException) -> None:
        self._metrics.defects.inc()
        _logger.error("unexpected error", exc_info=error, extra={FIELDS: {"turn_id": turn_id}})


def _about(turn: Turn) -> dict[str, object]:
    return {
        "turn_id": turn.id,
        "conversation_id": turn.conversation_id,
        "attempt": turn.attempt,
        "model": turn.model,
    }
