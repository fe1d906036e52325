"""Claims: what the rules decide from facts alone, without a database."""

from typing import Any

import pytest
from msgspec import structs

from turnkeep.errors import Conflict, ConversationBusy, IdempotencyConflict, InvalidRequest, NotFound
from turnkeep.ids import (
    ConversationId,
    FileId,
    OrgId,
    TurnId,
    UserId,
    WorkspaceId,
    new_conversation_id,
    new_file_id,
    new_message_id,
    new_turn_id,
)
from turnkeep.model.principals import Principal
from turnkeep.store.commands import EXPECTED_TOKENS, Claim, NewConversation
from turnkeep.store.rules import claims
from turnkeep.store.rules.claims import (
    AcceptedClaim,
    Attachable,
    ClaimedConversation,
    ClaimFacts,
    FileFacts,
    KnownTurn,
    NewIds,
    Repeat,
    ScopeLimits,
    Spending,
    counters_of,
    turns_left,
)
from turnkeep.store.rules.turns import Beside, CurrentTurn, Queue
from turnkeep_client.wire.blocks import Text

ANN = Principal(org_id=OrgId("org_1"), workspace_id=WorkspaceId("ws_1"), user_id=UserId("user_1"), role="member")
HEAD = TurnId("turn_head")
IDLE = ClaimFacts(
    now=1_750_000_000_000,
    conversation=ClaimedConversation(head_turn_id=HEAD, queue=Queue(next_ordinal=4)),
)


def a_claim(**fields: object) -> Claim:
    values = {
        "principal": ANN,
        "turn_id": new_turn_id(),
        "worker": "w1",
        "lease_seconds": 30.0,
        "blocks": (Text(text="Hello"),),
        "conversation_id": new_conversation_id(),
    }
    return Claim(**(values | fields))  # type: ignore[arg-type]


def decide(claim: Claim, facts: ClaimFacts, *, is_repeat: bool = False) -> Repeat | AcceptedClaim:
    ids = NewIds(
        conversation_id=claim.conversation_id or new_conversation_id(),
        message_id=new_message_id(),
    )
    return claims.decide(claim, facts, ids, is_repeat=is_repeat)


def new_turn(claim: Claim, facts: ClaimFacts) -> AcceptedClaim:
    decided = decide(claim, facts)
    assert isinstance(decided, AcceptedClaim)
    return decided


class TestANewTurn:
    def test_starts_after_the_head_at_the_next_ordinal(self) -> None:
        decided = new_turn(a_claim(), IDLE)
        assert (decided.turn.parent_turn_id, decided.turn.ordinal, decided.turn.status) == (HEAD, 4, "running")
        assert decided.claimed().held is not None
        assert decided.lease_until == IDLE.now + 30_000

    def test_makes_its_own_conversation(self) -> None:
        decided = new_turn(a_claim(conversation_id=None), ClaimFacts(now=1))
        assert (decided.turn.parent_turn_id, decided.turn.ordinal) == (None, 1)

    def test_waits_without_a_place_while_another_runs(self) -> None:
        busy = ClaimedConversation(
            head_turn_id=HEAD, queue=Queue(next_ordinal=4, running=CurrentTurn(id=TurnId("turn_r"), started_at=7))
        )
        decided = new_turn(a_claim(if_busy="enqueue"), structs.replace(IDLE, conversation=busy))
        assert (decided.turn.status, decided.turn.attempt, decided.turn.started_at) == ("queued", 0, None)
        assert decided.position is None
        assert decided.claimed().held is None

    def test_starts_where_the_turn_started_that_it_replaces(self) -> None:
        beside = Beside(parent_turn_id=TurnId("turn_p"), status="succeeded", started_at=5)
        decided = new_turn(a_claim(beside=HEAD), structs.replace(IDLE, beside=beside))
        assert decided.turn.parent_turn_id == "turn_p"
        assert decided.position is not None
        assert decided.position.is_branch


class TestARefusal:
    def test_of_a_conversation_that_the_principal_does_not_have(self) -> None:
        with pytest.raises(NotFound, match="No such conversation"):
            decide(a_claim(), structs.replace(IDLE, conversation=None))

    def test_of_a_workspace_or_an_agent_that_does_not_exist(self) -> None:
        with pytest.raises(NotFound, match="No such workspace"):
            decide(a_claim(conversation_id=None), ClaimFacts(now=1, has_workspace=False))
        asked = a_claim(conversation_id=None, new=NewConversation())
        with pytest.raises(NotFound, match="No such agent"):
            decide(asked, ClaimFacts(now=1, has_agent=False))

    def test_of_an_edit_of_a_turn_that_never_started(self) -> None:
        beside = Beside(parent_turn_id=None, status="cancelled", started_at=None)
        with pytest.raises(InvalidRequest, match="never started"):
            decide(a_claim(beside=HEAD), structs.replace(IDLE, beside=beside))

    def test_of_a_busy_conversation_names_the_turn_that_runs(self) -> None:
        running = Queue(next_ordinal=4, running=CurrentTurn(id=TurnId("turn_r"), started_at=7))
        busy = ClaimedConversation(head_turn_id=HEAD, queue=running)
        with pytest.raises(ConversationBusy) as refused:
            decide(a_claim(), structs.replace(IDLE, conversation=busy))
        assert (refused.value.turn_id, refused.value.started_at) == ("turn_r", 7)


class TestTurnsThatFitIntoALimit:
    @pytest.mark.parametrize(
        "limit, used, messages, turns",
        [
            (1, 0, 0, 1),
            (EXPECTED_TOKENS, 0, 0, 1),
            (EXPECTED_TOKENS + 1, 0, 0, 2),
            (100_000, 99_999, 50, 1),
            (100_000, 40_000, 4, 6),
            (100_000, 40, 40, 50),
            (10**12, 0, 0, None),
        ],
    )
    def test_of_tokens_are_as_large_as_the_last_ones(
        self, limit: int, used: int, messages: int, turns: int | None
    ) -> None:
        spending = Spending("tokens", "monthly_token_limit", limit, used, messages)
        assert turns_left(spending) == turns

    def test_of_cost_have_the_price_of_the_model_at_least(self) -> None:
        assert turns_left(Spending("cost", "monthly_cost_limit", 1.0, 0.0, 0), 0.3) == 4
        assert turns_left(Spending("cost", "monthly_cost_limit", 1.0, 0.5, 1), 0.3) == 1
        assert turns_left(Spending("cost", "monthly_cost_limit", 1.0, 0.0, 0), 0.0) is None, "no price is known"

    def test_are_held_to_the_narrowest_limit(self) -> None:
        limits = ScopeLimits(scope="user", scope_id="user_1", tokens=5 * EXPECTED_TOKENS, cost=1.0, turns=4)
        for cost, turns, name in ((0.5, 2, "cost"), (0.01, 4, None)):
            [user, workspace] = counters_of(ANN, [limits], expected_cost=cost)
            assert (user.turns, user.spending and user.spending.noun) == (turns, name)
            assert workspace.turns is None


class TestARepeat:
    def known(self, claim: Claim, **fields: object) -> KnownTurn:
        assert claim.conversation_id is not None
        values = {
            "id": claim.turn_id,
            "conversation_id": claim.conversation_id,
            "org_id": ANN.org_id,
            "principal_ref": ANN.ref,
            "request_hash": claim.request_hash,
            "status": "running",
            "attempt": 1,
            "worker": claim.worker,
            "user_message_id": new_message_id(),
        }
        return KnownTurn(**(values | fields))  # type: ignore[arg-type]

    def test_under_its_own_id_still_holds_its_turn(self) -> None:
        claim = a_claim()
        decided = decide(claim, structs.replace(IDLE, by_id=self.known(claim)))
        assert isinstance(decided, Repeat)
        assert decided.held is not None

    def test_by_another_worker_does_not_hold_it(self) -> None:
        claim = a_claim()
        decided = decide(claim, structs.replace(IDLE, by_id=self.known(claim, worker="w2")))
        assert isinstance(decided, Repeat)
        assert decided.held is None

    def test_of_a_key_by_its_client_holds_nothing_but_a_lost_answer_does(self) -> None:
        claim = a_claim(idempotency_key="k", request_hash="h")
        facts = structs.replace(IDLE, by_key=self.known(claim))
        again, lost = decide(claim, facts), decide(claim, facts, is_repeat=True)
        assert isinstance(again, Repeat)
        assert isinstance(lost, Repeat)
        assert again.held is None
        assert lost.held is not None

    def test_of_a_key_with_another_body_is_refused(self) -> None:
        claim = a_claim(idempotency_key="k", request_hash="h")
        with pytest.raises(IdempotencyConflict):
            decide(claim, structs.replace(IDLE, by_key=self.known(claim, request_hash="other")))

    def test_of_the_id_of_another_principal_is_refused(self) -> None:
        claim = a_claim()
        with pytest.raises(Conflict, match="taken"):
            decide(claim, structs.replace(IDLE, by_id=self.known(claim, principal_ref="user_2")))


class TestAttachments:
    def file(self, file_id: FileId, name: str = "a.txt", **fields: object) -> FileFacts:
        values = {"id": file_id, "name": name, "mime_type": "text/plain", "size": 1, "status": "ready"}
        return FileFacts(**(values | fields))  # type: ignore[arg-type]

    def test_get_names_that_are_free(self) -> None:
        first, second = new_file_id(), new_file_id()
        files = (self.file(first), self.file(second, "A.TXT"))
        facts = structs.replace(IDLE, attachments=Attachable(files=files, taken_names=("a.txt",)))
        decided = new_turn(a_claim(attachment_ids=(first, second)), facts)
        assert [each.ref.name for each in decided.attachments] == ["a-1.txt", "A-2.TXT"]
        assert [ref.name for ref in decided.question.attachments] == ["a-1.txt", "A-2.TXT"]

    @pytest.mark.parametrize(
        "fields, words",
        [
            ({"status": "pending"}, "not complete"),
            ({"saved_at": 1}, "belong elsewhere"),
            ({"conversation_id": ConversationId("conv_other")}, "belong elsewhere"),
        ],
    )
    def test_that_cannot_be_attached_are_refused(self, fields: dict[str, Any], words: str) -> None:
        wanted = new_file_id()
        facts = structs.replace(IDLE, attachments=Attachable(files=(self.file(wanted, **fields),)))
        with pytest.raises(InvalidRequest, match=words):
            decide(a_claim(attachment_ids=(wanted,)), facts)

    def test_that_the_principal_does_not_have_are_not_found(self) -> None:
        with pytest.raises(NotFound, match="No such file"):
            decide(a_claim(attachment_ids=(new_file_id(),)), IDLE)
