"""Timelines of turns: what is known of their times, and what can only be estimated."""

from typing import Any

from msgspec import structs

from turnkeep.ids import (
    CallId,
    ConversationId,
    MessageId,
    TurnId,
    new_conversation_id,
    new_message_id,
    new_turn_id,
    new_workspace_id,
)
from turnkeep.model.agents import Snapshot
from turnkeep.model.messages import Message
from turnkeep.model.timeline import TimelineSpans, timeline_of
from turnkeep.model.turns import ModelCallTimes, Turn, TurnReport
from turnkeep_client.wire.blocks import Text, Usage
from turnkeep_client.wire.conversations import TimelineAccess
from turnkeep_client.wire.events import (
    LogLine,
    Recorded,
    Reset,
    Result,
    Step,
    ToolCall,
    ToolCalls,
    TurnBegan,
    TurnEvent,
)

BEGAN = 1_750_000_000_000
TURN, CONVERSATION, QUESTION = new_turn_id(), new_conversation_id(), new_message_id()


def a_turn(**fields: Any) -> Turn:
    values: dict[str, Any] = {
        "id": TURN,
        "conversation_id": CONVERSATION,
        "workspace_id": new_workspace_id(),
        "user_id": None,
        "parent_turn_id": None,
        "ordinal": 1,
        "active": True,
        "status": "succeeded",
        "attempt": 1,
        "failures": 0,
        "last_seq": 1,
        "cancel_requested_at": None,
        "background": True,
        "source": "api",
        "model": "m/1",
        "snapshot": Snapshot(),
        "usage": Usage(),
        "month": "2025-06",
        "error": None,
        "metadata": {},
        "created_at": BEGAN,
        "started_at": BEGAN,
        "settled_at": BEGAN + 10_000,
    }
    return Turn(**values | fields)


def a_row(sequence: int, at: int, **fields: Any) -> Message:
    values: dict[str, Any] = {
        "id": QUESTION if sequence == 0 else new_message_id(),
        "turn_id": TurnId(TURN),
        "conversation_id": ConversationId(CONVERSATION),
        "turn_sequence": sequence,
        "role": "user" if sequence == 0 else "assistant",
        "blocks": (Text(text="words"),),
        "created_at": BEGAN + at,
        "internal": False,
    }
    return Message(**values | fields)


def began(status: str = "running", attempt: int = 1, at: int | None = None) -> TurnBegan:
    return TurnBegan(
        turn_id=TURN,
        conversation_id=CONVERSATION,
        user_message_id=QUESTION,
        status=status,
        attempt=attempt,
        at=None if at is None else BEGAN + at,
    )


ANSWER = Result(message_id=MessageId("msg"), message="words", content=(), usage=Usage())


def shown(
    turn: Turn, *events: TurnEvent, rows: tuple[Message, ...] = (), logs: tuple[LogLine, ...] = (), **more: Any
) -> TimelineSpans:
    access: TimelineAccess = more.get("access", "full")
    recorded = [Recorded(seq=number, event=event) for number, event in enumerate(events, start=1)]
    now = BEGAN + 20_000
    return timeline_of(turn, rows, recorded, logs, access=access, cost=lambda _: None, now=now)


def times(spans: TimelineSpans) -> list[tuple[str, int, int | None]]:
    ends = (None if span.ended_at is None else span.ended_at - BEGAN for span in spans.spans)
    return [(span.kind, span.started_at - BEGAN, end) for span, end in zip(spans.spans, ends, strict=True)]


class TestEstimates:
    def test_a_call_without_times_begins_after_what_came_before_it(self) -> None:
        found = shown(a_turn(), began(), ANSWER, rows=(a_row(0, 0), a_row(1, 9_000)))
        assert times(found) == [("model", 0, 9_000)]
        assert found.spans[0].is_estimated

    def test_an_imported_turn_without_rows_has_no_spans(self) -> None:
        assert shown(a_turn()).spans == ()


class TestOrder:
    def test_is_that_of_the_events_where_all_began_in_one_millisecond(self) -> None:
        call = {"began_at": BEGAN + 5, "ms": 0}
        asked = a_row(1, 5, internal=True, iteration=0, metadata={"call": call})
        turn = a_turn(report=TurnReport(last_call=ModelCallTimes(began_at=BEGAN + 5, ms=0)))
        events = (
            began(),
            ToolCalls(iteration=0, text="", calls=(ToolCall(id=CallId("a"), name="shell", args={}),)),
            Step(id="a", name="shell", status="running", ts=BEGAN + 5),
            Step(id="a", name="shell", status="succeeded", result="x", ts=BEGAN + 5, duration_ms=0.3),
        )
        found = shown(turn, *events, ANSWER, rows=(a_row(0, 0), asked, a_row(2, 6)))
        assert times(found) == [("model", 5, 5), ("tool", 5, 5), ("model", 5, 5)]
        assert found.spans[1].parent_id == found.spans[0].id

    def test_a_step_begins_no_earlier_than_the_call_that_asked_for_it(self) -> None:
        """It ran from 5.0 to 6.9 milliseconds. The clock cuts its end to 6."""
        call = {"began_at": BEGAN + 5, "ms": 0}
        asked = a_row(1, 5, internal=True, iteration=0, metadata={"call": call})
        events = (
            began(),
            ToolCalls(iteration=0, text="", calls=(ToolCall(id=CallId("a"), name="shell", args={}),)),
            Step(id="a", name="shell", status="running", ts=BEGAN + 5),
            Step(id="a", name="shell", status="succeeded", result="x", ts=BEGAN + 6, duration_ms=1.9),
        )
        found = shown(a_turn(), *events, ANSWER, rows=(a_row(0, 0), asked, a_row(2, 8)))
        assert times(found)[:2] == [("model", 5, 5), ("tool", 5, 6)]


class TestASandbox:
    def test_has_steps_with_times_of_its_own_clock_in_milliseconds_or_seconds(self) -> None:
        steps = (
            Step(id="a", name="shell", status="running", args={"command": "ls"}, ts=BEGAN + 1_000),
            Step(id="a", name="shell", status="succeeded", result="x", ts=(BEGAN + 3_000) / 1000),
            Step(id="b", name="shell", status="running", ts=17),
            Step(id="b", name="shell", status="failed", error="no", ts=17),
        )
        found = shown(a_turn(), began(), *steps, ANSWER, rows=(a_row(0, 0), a_row(1, 9_000)))
        assert times(found)[:2] == [("tool", 1_000, 3_000), ("tool", 3_000, 3_000)]
        assert [span.is_estimated for span in found.spans][:2] == [False, True], "no clock says 17"

    def test_has_log_lines_for_those_who_may_see_them(self) -> None:
        logs = (
            LogLine(after_seq=1, level="info", message="one", ts=BEGAN + 2_000),
            LogLine(after_seq=1, level="error", message="two", ts=5),
        )
        turn, rows = a_turn(), (a_row(0, 0), a_row(1, 9_000))
        lines = [span for span in shown(turn, began(), ANSWER, rows=rows, logs=logs).spans if span.kind == "log"]
        assert [(line.note, line.started_at - BEGAN, line.status) for line in lines] == [
            ("two", 0, "failed"),
            ("one", 2_000, "succeeded"),
        ]
        for access in ("reader", "outline"):
            found = shown(turn, began(), ANSWER, rows=rows, logs=logs, access=access)
            assert [span.kind for span in found.spans] == ["model"]


class TestTakeovers:
    def test_last_from_the_last_sign_of_life_to_the_adoption(self) -> None:
        found = shown(
            a_turn(attempt=2),
            began(),
            Step(id="a", name="look", status="running", args={}),
            Reset(attempt=2, reason="lease_expired", at=BEGAN + 5_000),
            Step(id="a", name="look", status="succeeded", result="rain", duration_ms=1_000),
            ANSWER,
            rows=(a_row(0, 0), a_row(1, 9_500)),
        )
        assert times(found) == [("takeover", 0, 5_000), ("tool", 4_000, 5_000), ("model", 5_000, 9_500)]
        takeover = next(span for span in found.spans if span.kind == "takeover")
        assert (takeover.name, takeover.note) == ("lease_expired", "2")

    def test_a_provider_that_began_again_is_none(self) -> None:
        found = shown(a_turn(), began(), Reset(attempt=1, reason="overloaded"), ANSWER, rows=(a_row(0, 0), a_row(1, 9)))
        assert [span.kind for span in found.spans] == ["model"]


class TestATurnThatHasNotEnded:
    def test_in_the_queue_waits_until_now(self) -> None:
        turn = a_turn(status="queued", started_at=None, settled_at=None, attempt=0)
        assert times(shown(turn, began("queued", attempt=0), rows=(a_row(0, 0),))) == [("queue", 0, None)]

    def test_out_of_the_queue_waited_until_a_worker_took_it(self) -> None:
        turn = structs.replace(a_turn(status="running", settled_at=None), started_at=BEGAN + 2_000)
        found = shown(turn, began("queued", attempt=0), began(at=2_500), rows=(a_row(0, 0),))
        assert times(found) == [("queue", 0, 2_500), ("model", 2_500, None)]

    def test_runs_a_tool(self) -> None:
        turn = a_turn(status="running", settled_at=None)
        found = shown(turn, began(), Step(id=CallId("c"), name="look", status="running"), rows=(a_row(0, 0),))
        assert [(span.kind, span.status, span.ended_at) for span in found.spans] == [("tool", "running", None)]
