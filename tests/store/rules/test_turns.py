"""The queue, the quota, the fence and leases: decisions from facts alone."""

import pytest

from turnkeep.errors import (
    ConversationBusy,
    Defect,
    LeaseLost,
    QueueFull,
    QuotaExceeded,
    RateLimited,
    ReachedLimit,
    TurnSettled,
)
from turnkeep.ids import ConversationId, MessageId, OrgId, TurnId
from turnkeep.model.turns import Held
from turnkeep.store.rules.claims import Counted, MessageCounter, ScopeLimits, check_limits, check_spent
from turnkeep.store.rules.turns import (
    Beside,
    Candidate,
    CurrentTurn,
    ExpiredTurn,
    Move,
    Promotion,
    PromotionFacts,
    Queue,
    TurnPosition,
    TurnState,
    WaitingTurn,
    adoption,
    cancel_step,
    enter_queue,
    fence_refusal,
    promotion,
    stand_of,
)
from turnkeep_client.wire.events import Reset, TurnBegan

NOW, JULY = 1_750_000_000_000, 1_751_328_000_000
A, B, C, R = TurnId("turn_a"), TurnId("turn_b"), TurnId("turn_c"), TurnId("turn_r")
BUSY = Queue(
    next_ordinal=6,
    running=CurrentTurn(id=R, started_at=7),
    waiting=(WaitingTurn(id=A, ordinal=3), WaitingTurn(id=B, ordinal=5)),
)


class TestEntering:
    def test_an_idle_conversation_starts_the_turn(self) -> None:
        entry = enter_queue(Queue(next_ordinal=1), if_busy="reject", limit=0, beside=None)
        assert (entry.ordinal, entry.is_started) == (1, True)

    def test_reject_names_the_turn_that_waits_if_none_runs(self) -> None:
        waiting = Queue(next_ordinal=2, waiting=(WaitingTurn(id=A, ordinal=1),))
        with pytest.raises(ConversationBusy) as refused:
            enter_queue(waiting, if_busy="reject", limit=5, beside=None)
        assert (refused.value.turn_id, refused.value.started_at) == (A, None)

    def test_enqueue_waits_at_the_end_up_to_the_limit(self) -> None:
        entry = enter_queue(BUSY, if_busy="enqueue", limit=3, beside=None)
        assert (entry.ordinal, entry.is_started, entry.moves) == (6, False, ())
        with pytest.raises(QueueFull, match="2 turns wait"):
            enter_queue(BUSY, if_busy="enqueue", limit=2, beside=None)

    def test_interrupt_stops_the_running_turn_and_waits_in_front(self) -> None:
        entry = enter_queue(BUSY, if_busy="interrupt", limit=2, beside=None)
        assert (entry.ordinal, entry.stops, entry.cancels) == (3, R, ())
        assert entry.moves == (Move(id=B, ordinal=6), Move(id=A, ordinal=5))
        with pytest.raises(QueueFull):
            enter_queue(BUSY, if_busy="interrupt", limit=1, beside=None)

    def test_an_edit_of_a_waiting_turn_replaces_it(self) -> None:
        entry = enter_queue(BUSY, if_busy="interrupt", limit=1, beside=A)
        assert (entry.ordinal, entry.cancels, entry.moves) == (5, (A,), (Move(id=B, ordinal=6),))

    def test_interrupt_may_drop_the_queue(self) -> None:
        entry = enter_queue(BUSY, if_busy="interrupt", limit=0, beside=None, drop_queue=True)
        assert (entry.ordinal, entry.stops, entry.cancels, entry.moves) == (6, R, (A, B), ())


class TestPromotion:
    def test_the_first_waiting_turn_runs_after_the_head(self) -> None:
        facts = PromotionFacts(is_deleted=False, head_turn_id=R, waiting=(Candidate(id=A), Candidate(id=B)))
        assert promotion(facts) == Promotion(starts=A, position=TurnPosition(parent=R))

    def test_an_edit_runs_where_its_turn_started(self) -> None:
        beside = Beside(parent_turn_id=C, status="succeeded", started_at=1)
        facts = PromotionFacts(is_deleted=False, head_turn_id=R, waiting=(Candidate(id=A, beside=beside),))
        assert promotion(facts).position == TurnPosition(parent=C, is_branch=True)

    def test_in_a_deleted_conversation_all_are_cancelled(self) -> None:
        facts = PromotionFacts(is_deleted=True, head_turn_id=R, waiting=(Candidate(id=A), Candidate(id=B)))
        assert promotion(facts) == Promotion(cancels=(A, B))

    def test_nothing_starts_while_a_turn_runs(self) -> None:
        facts = PromotionFacts(is_deleted=False, head_turn_id=R, waiting=(Candidate(id=A),), is_running=True)
        assert promotion(facts) == Promotion()


class TestQuota:
    def test_the_message_at_the_limit_passes_and_the_next_does_not(self) -> None:
        workspace = [MessageCounter(scope="workspace", scope_id="ws_1", limit=3)]
        check_limits(workspace, Counted(messages={"ws_1": 3}), NOW)
        with pytest.raises(QuotaExceeded, match="This workspace has used up its limit of 3 messages") as refused:
            check_limits(workspace, Counted(messages={"ws_1": 4}), NOW)
        limit = ReachedLimit(scope="workspace", name="monthly_message_limit", value=3, used=3, resets_at=JULY)
        assert refused.value.limit == limit

    def test_a_key_is_called_an_api_key(self) -> None:
        counted = Counted(messages={"ws_1": 9, "key_1": 2})
        with pytest.raises(QuotaExceeded, match="This API key"):
            check_limits([MessageCounter(scope="key", scope_id="key_1", limit=1)], counted, NOW)

    def test_a_turn_too_many_may_be_tried_again_soon(self) -> None:
        user = [MessageCounter(scope="user", scope_id="user_1", turns=2)]
        check_limits(user, Counted(turns={"user_1": 2}), NOW)
        with pytest.raises(RateLimited, match="This user may have 2 turns at the same time") as refused:
            check_limits(user, Counted(turns={"user_1": 3}), NOW)
        assert refused.value.limit == ReachedLimit(scope="user", name="parallel_turn_limit", value=2, used=2)
        assert refused.value.retry_after_seconds > 0

    def test_what_is_spent_is_said_with_the_end_of_the_month(self) -> None:
        limits = [ScopeLimits(scope="key", scope_id="key_1", tokens=10, cost=2.5, used_tokens=9, used_cost=2.5)]
        with pytest.raises(QuotaExceeded, match="This API key has used up the limit of cost") as refused:
            check_spent(limits, NOW)
        limit = ReachedLimit(scope="key", name="monthly_cost_limit", value=2.5, used=2.5, resets_at=JULY)
        assert refused.value.limit == limit


class TestTheFence:
    held = Held(turn_id=A, conversation_id=ConversationId("conv_1"), attempt=2)

    def state(self, status: str = "running", attempt: int = 2, last_seq: int = 5) -> TurnState:
        return TurnState(status, attempt, last_seq, False, self.held.conversation_id, OrgId("org_1"), 0)  # type: ignore[arg-type]

    def test_only_the_holder_of_the_attempt_may_write_after_the_last_event(self) -> None:
        assert stand_of(self.state(), self.held, 5) == "held"
        assert stand_of(self.state(), self.held, 4) == "ahead"
        assert stand_of(self.state(attempt=3), self.held, 5) == "lost"
        assert stand_of(None, self.held, 5) == "lost"
        assert stand_of(self.state("succeeded"), self.held, 5) == "settled"

    def test_each_refusal_is_an_error_of_its_own(self) -> None:
        assert isinstance(fence_refusal("lost", self.held, 5, None), LeaseLost)
        assert isinstance(fence_refusal("settled", self.held, 5, 6), TurnSettled)
        assert isinstance(fence_refusal("ahead", self.held, 5, 6), Defect)


class TestAdoption:
    def turn(self, attempt: int = 1, failures: int = 1, last_seq: int = 5, lease_until: int = 9) -> ExpiredTurn:
        conversation, message = ConversationId("conv_1"), MessageId("msg_1")
        return ExpiredTurn(A, conversation, "org_1", message, attempt, failures, last_seq, 5, lease_until)

    def test_a_turn_that_got_no_further_has_failed_once_more(self) -> None:
        decided = adoption(self.turn(), now=7)
        assert (decided.attempt, decided.failures, decided.last_seq) == (2, 2, 6)
        assert decided.event == Reset(attempt=2, reason="lease_expired", at=7)

    def test_a_turn_that_got_further_starts_to_count_anew(self) -> None:
        assert adoption(self.turn(last_seq=6), now=7).failures == 0

    def test_a_turn_that_was_let_go_has_not_failed(self) -> None:
        decided = adoption(self.turn(lease_until=0), now=7)
        assert decided.failures == 1
        assert decided.event == Reset(attempt=2, reason="handover", at=7)

    def test_a_turn_from_the_queue_begins(self) -> None:
        decided = adoption(self.turn(attempt=0, lease_until=0), now=7)
        assert decided.is_first_start
        assert isinstance(decided.event, TurnBegan)


def test_a_request_to_cancel_ends_a_waiting_turn_and_marks_a_running_one_once() -> None:
    assert cancel_step("queued", None) == "end"
    assert cancel_step("running", None) == "mark"
    assert cancel_step("running", 5) == "none"
    assert cancel_step("succeeded", None) == "none"
