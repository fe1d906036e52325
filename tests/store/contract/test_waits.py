"""Waits in the store: who may write, what an answer does, and what many waits cost."""

import asyncio
from collections.abc import Mapping

import pytest
from msgspec import structs

from tests.store.databases import Database
from tests.store.factories import LEASE_SECONDS, Tenant, answered, begin, claim, failed, wait_in_queue
from turnkeep.errors import AlreadyDecided, ConversationBusy, Defect, InvalidRequest, LeaseLost, NotFound
from turnkeep.ids import CallId
from turnkeep.model.turns import Held
from turnkeep.model.waits import CallAnswer, Wait, WaitingCall, digest_of
from turnkeep.store.ports import Store
from turnkeep_client.wire.events import Approval, Decided, DecidedCall, Reset, Steered, ToolCall, TurnBegan

ALLOW = CallAnswer(verdict="allow", by="ann")
DENY = CallAnswer(verdict="deny", by="ann")
WAIT_SECONDS = 3_600


def a_call(name: str = "call_1", **fields: object) -> WaitingCall:
    call = WaitingCall(
        id=CallId(name), name="pay", args={"amount": 5}, reason="approval", digest=digest_of("pay", {"amount": 5})
    )
    return structs.replace(call, **fields)


def asked(*calls: WaitingCall) -> Approval:
    shown = tuple(ToolCall(id=call.id, name=call.name, args=call.args) for call in calls)
    return Approval(calls=shown, expires_at=WAIT_SECONDS)


async def wait(store: Store, held: Held, now: int, *calls: WaitingCall, after: int = 1) -> bool:
    calls = calls or (a_call(),)
    given = Wait(calls=calls, since=now, expires_at=now + WAIT_SECONDS * 1000, reason="approval")
    return await store.wait(held, after=after, events=[asked(*calls)], wait=given)


async def decided(store: Store, tenant: Tenant, held: Held, answers: Mapping[str, CallAnswer]) -> str:
    given = {CallId(name): each for name, each in answers.items()}
    return (await store.answer_calls(tenant.ann, held.turn_id, given, reason="approval")).status


class TestAWait:
    async def test_takes_the_turn_from_its_holder(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        assert await wait(store, held, database.now)
        turn = await store.turn(tenant.ann, held.turn_id)
        assert (turn.status, turn.last_seq) == ("waiting", 2)
        with pytest.raises(LeaseLost):
            await store.record(held, after=2, events=[asked(a_call())])
        with pytest.raises(LeaseLost):
            await store.settle(held, after=2, settlement=answered(held))
        [renewal] = await store.renew([held], lease_seconds=LEASE_SECONDS)
        assert not renewal.is_held
        await store.hand_over([held])
        await store.release(["worker-1"])
        await database.advance(seconds=LEASE_SECONDS * 3)
        assert await store.adopt("worker-2", lease_seconds=LEASE_SECONDS) == []
        assert await store.cancel_unwatched() == []

    async def test_a_repeat_whose_answer_was_lost_changes_nothing(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        assert await wait(store, held, database.now)
        await decided(store, tenant, held, {"call_1": ALLOW})
        assert await wait(store, held, database.now)
        turn = await store.turn(tenant.ann, held.turn_id)
        assert (turn.status, turn.last_seq) == ("running", 3)

    @pytest.mark.parametrize("is_held", [True, False])
    async def test_the_same_events_of_another_wait_are_refused(
        self, store: Store, tenant: Tenant, database: Database, is_held: bool
    ) -> None:
        held = await begin(store, tenant.ann)
        now = (await store.turn(tenant.ann, held.turn_id)).created_at
        bare = Wait(calls=(a_call(),), since=now, expires_at=now + WAIT_SECONDS * 1000, reason="approval")
        kept = structs.replace(bare, held_by=held.attempt)
        first, second = (kept, bare) if is_held else (bare, kept)
        assert await store.wait(held, after=1, events=[asked(a_call())], wait=first)
        with pytest.raises(Defect if is_held else LeaseLost):
            await store.wait(held, after=1, events=[asked(a_call())], wait=second)

    async def test_does_not_begin_after_a_request_to_stop(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        await store.request_cancel(tenant.ann, held.turn_id)
        assert not await wait(store, held, database.now)
        assert (await store.turn(tenant.ann, held.turn_id)).last_seq == 1

    async def test_keeps_the_conversation_busy_and_its_queue_waiting(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        await wait(store, held, database.now)
        with pytest.raises(ConversationBusy) as busy:
            await claim(store, tenant.ann, conversation_id=held.conversation_id)
        assert busy.value.waiting_for == "approval"
        await wait_in_queue(store, tenant.ann, held.conversation_id)
        assert await store.promote_waiting() == []
        conversation = await store.conversation(tenant.ann, held.conversation_id)
        assert (conversation.running_turn_id, conversation.waiting_for) == (held.turn_id, "approval")

    async def test_that_is_held_can_be_ended_by_its_holder(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        """Its sandbox was lost, its time is over, or the server shuts down."""
        held = await begin(store, tenant.ann)
        given = Wait(
            calls=(a_call(),), since=0, expires_at=database.now + 1000, reason="approval", held_by=held.attempt
        )
        assert await store.wait(held, after=1, events=[asked(a_call())], wait=given)
        assert (await store.turn(tenant.ann, held.turn_id)).status == "waiting"
        settled = await store.settle(held, after=2, settlement=failed(held))
        assert settled.turn.status == (await store.turn(tenant.ann, held.turn_id)).status == "failed"

    async def test_is_told_to_the_outside(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        await wait(store, held, database.now)
        entries = await store.take_entries(lease_seconds=60)
        assert [(entry.type, entry.subject_id) for entry in entries] == [("turn.waiting", held.turn_id)]

    async def test_a_webhook_hears_of_it(self, store: Store, tenant: Tenant, database: Database) -> None:
        hook = await store.create_webhook(
            tenant.org.id, tenant.workspace.id, url="https://e.com", events=("turn.waiting",), secret="tks1.sealed"
        )
        held = await begin(store, tenant.ann)
        await wait(store, held, database.now)
        [delivery] = (await store.deliveries(tenant.org.id, tenant.workspace.id, hook.id, limit=10)).data
        assert delivery.type == "turn.waiting"
        assert (delivery.data["turn_id"], delivery.data["status"]) == (held.turn_id, "waiting")


class TestAnAnswer:
    async def test_the_last_one_lets_the_turn_go_on(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        await wait(store, held, database.now, a_call("one"), a_call("two"))
        assert await decided(store, tenant, held, {"one": ALLOW}) == "waiting"
        assert await store.adopt("worker-2", lease_seconds=LEASE_SECONDS) == []
        assert await decided(store, tenant, held, {"two": DENY}) == "running"
        [adopted] = await store.adopt("worker-2", lease_seconds=LEASE_SECONDS, only_handed_over=True)
        assert (adopted.turn.status, adopted.is_first_start, adopted.turn.failures) == ("running", False, 0)
        assert adopted.turn.wait is not None
        one, two = adopted.turn.wait.calls
        assert one.allowed_args == {"amount": 5}
        assert two.allowed_args is None
        began = (await store.events(held.turn_id))[-1].event
        assert isinstance(began, TurnBegan)
        assert (began.status, began.attempt) == ("running", adopted.held.attempt)

    async def test_each_decision_is_an_event(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        await wait(store, held, database.now, a_call("one"), a_call("two"), a_call("three"))
        edited = structs.replace(ALLOW, args={"amount": 4})
        await decided(store, tenant, held, {"one": edited, "two": structs.replace(DENY, reason="No.")})
        await decided(store, tenant, held, {"one": edited})
        await decided(store, tenant, held, {"three": ALLOW})
        at = database.now
        first, second = [recorded.event for recorded in await store.events(held.turn_id, after=2)]
        assert first == Decided(
            decisions=(
                DecidedCall(call_id="one", decision="allow", by="ann", at=at, args={"amount": 4}),
                DecidedCall(call_id="two", decision="deny", by="ann", at=at, reason="No."),
            )
        )
        assert second == Decided(decisions=(DecidedCall(call_id="three", decision="allow", by="ann", at=at),))

    async def test_of_a_turn_that_is_held_is_told_by_its_holder(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        given = Wait(
            calls=(a_call(),), since=0, expires_at=database.now + 1000, reason="approval", held_by=held.attempt
        )
        assert await store.wait(held, after=1, events=[asked(a_call())], wait=given)
        assert await decided(store, tenant, held, {"call_1": ALLOW}) == "running"
        assert (await store.turn(tenant.ann, held.turn_id)).last_seq == 2
        await store.record(held, after=2, events=[Decided(decisions=())])

    @pytest.mark.parametrize("when", ["waiting", "running", "settled"])
    async def test_a_repeat_that_remembers_is_remembered(
        self, store: Store, tenant: Tenant, database: Database, when: str
    ) -> None:
        held = await begin(store, tenant.ann)
        await wait(store, held, database.now, a_call("one", identity="pay#1"), a_call("two", identity="mail#1"))
        await decided(store, tenant, held, {"one": ALLOW})
        if when != "waiting":
            await decided(store, tenant, held, {"two": ALLOW})
        if when == "settled":
            [adopted] = await store.adopt("worker-2", lease_seconds=LEASE_SECONDS, only_handed_over=True)
            await store.settle(adopted.held, after=adopted.turn.last_seq, settlement=answered(adopted.held))
        before = await store.turn(tenant.ann, held.turn_id)
        always = structs.replace(ALLOW, is_remembered=True, by="bob")
        await decided(store, tenant, held, {"one": always})
        assert await store.trusted_tools(held.conversation_id) == {":pay#1"}
        after = await store.turn(tenant.ann, held.turn_id)
        assert (after.status, after.last_seq, after.wait) == (before.status, before.last_seq, before.wait)
        with pytest.raises(AlreadyDecided):
            await decided(store, tenant, held, {"one": structs.replace(always, args={"amount": 9})})

    async def test_what_was_denied_is_not_remembered(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        await wait(store, held, database.now)
        await decided(store, tenant, held, {"call_1": DENY})
        with pytest.raises(AlreadyDecided):
            await decided(store, tenant, held, {"call_1": structs.replace(ALLOW, is_remembered=True)})
        assert await store.trusted_tools(held.conversation_id) == frozenset()

    async def test_all_of_a_request_or_none(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        await wait(store, held, database.now, a_call("one"), a_call("two"))
        await decided(store, tenant, held, {"one": DENY})
        with pytest.raises(AlreadyDecided):
            await decided(store, tenant, held, {"two": ALLOW, "one": ALLOW})
        turn = await store.turn(tenant.ann, held.turn_id)
        assert turn.wait is not None
        assert [call.id for call in turn.wait.open_calls] == ["two"]

    async def test_of_another_kind_or_user_is_refused(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        with pytest.raises(NotFound):
            await decided(store, tenant, held, {"call_1": ALLOW})
        await wait(store, held, database.now)
        given = {CallId("call_1"): ALLOW}
        with pytest.raises(NotFound):
            await store.answer_calls(tenant.bob, held.turn_id, given, reason="approval")
        with pytest.raises(InvalidRequest):
            await store.answer_calls(tenant.ann, held.turn_id, given, reason="client_tools")
        with pytest.raises(InvalidRequest):
            await store.answer_calls(tenant.ann, held.turn_id, {}, reason="approval")

    async def test_comes_too_late_after_the_deadline(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        await wait(store, held, database.now)
        assert not (await store.due_work()).has_overdue
        await database.advance(seconds=WAIT_SECONDS + 1)
        assert (await store.due_work()).has_overdue
        with pytest.raises(AlreadyDecided):
            await decided(store, tenant, held, {"call_1": ALLOW})
        assert await store.end_overdue_waits() == [held.turn_id]
        assert not (await store.due_work()).has_overdue
        [adopted] = await store.adopt("worker-2", lease_seconds=LEASE_SECONDS)
        assert adopted.turn.id == held.turn_id
        last = adopted.turn.last_seq
        await store.settle(adopted.held, after=last, settlement=answered(adopted.held))
        with pytest.raises(AlreadyDecided, match="not answered in time"):
            await decided(store, tenant, held, {"call_1": ALLOW})

    async def test_a_wait_that_ends_while_no_server_runs_lasts_until_one_does(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held, day = await begin(store, tenant.ann), 86_400
        await wait(store, held, database.now)
        await database.advance(seconds=WAIT_SECONDS + day)
        await store.end_overdue_waits()
        [adopted] = await store.adopt("worker-2", lease_seconds=LEASE_SECONDS)
        assert adopted.turn.wait is not None
        assert adopted.turn.wait.total_ms == (WAIT_SECONDS + day) * 1000
        assert [call.id for call in adopted.turn.wait.open_calls] == ["call_1"]

    async def test_a_crash_after_it_keeps_it(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        await wait(store, held, database.now)
        await decided(store, tenant, held, {"call_1": ALLOW})
        await store.adopt("worker-2", lease_seconds=LEASE_SECONDS)
        await database.advance(seconds=LEASE_SECONDS + 1)
        [again] = await store.adopt("worker-3", lease_seconds=LEASE_SECONDS)
        assert again.turn.wait is not None
        assert again.turn.wait.calls[0].allowed_args == {"amount": 5}
        assert isinstance((await store.events(held.turn_id))[-1].event, Reset)

    async def test_lets_a_call_of_a_box_begin_once(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        calls, digest = (a_call("call_1"), a_call("call_2"), a_call("call_3")), a_call().digest
        given = Wait(
            calls=calls,
            since=database.now,
            expires_at=database.now + WAIT_SECONDS * 1000,
            reason="approval",
            held_by=held.attempt,
        )
        assert await store.wait(held, after=1, events=[asked(*calls)], wait=given)

        async def spend(name: str, digest: str = digest, attempt: int = held.attempt) -> bool:
            return await store.spend_answer(held.turn_id, attempt, CallId(name), digest)

        assert not await spend("call_1"), "nobody has answered it"
        await decided(store, tenant, held, {"call_1": ALLOW, "call_2": DENY, "call_3": ALLOW})
        assert not await spend("call_2"), "it was denied"
        assert not await spend("call_x")
        assert not await spend("call_1", digest_of("pay", {"amount": 500}))
        assert not await spend("call_1", attempt=held.attempt + 1)
        told = await asyncio.gather(*(spend("call_1") for _ in range(200)))
        assert told.count(True) == 1
        await decided(store, tenant, held, {"call_1": ALLOW})  # a repeat of the answer gives it no second beginning
        assert not await spend("call_1")
        await store.request_cancel(tenant.ann, held.turn_id)
        assert not await spend("call_3"), "the turn shall stop"

    async def test_may_trust_the_tool(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        await wait(store, held, database.now)
        await decided(store, tenant, held, {"call_1": structs.replace(ALLOW, is_remembered=True)})
        assert await store.trusted_tools(held.conversation_id) == {":pay"}
        other = await begin(store, tenant.ann)
        assert await store.trusted_tools(other.conversation_id) == frozenset()


class TestAStop:
    @pytest.mark.parametrize("how", ["cancel", "interrupt", "delete"])
    async def test_ends_the_wait(self, store: Store, tenant: Tenant, database: Database, how: str) -> None:
        held = await begin(store, tenant.ann)
        await wait(store, held, database.now)
        if how == "cancel":
            assert (await store.request_cancel(tenant.ann, held.turn_id)).status == "running"
        elif how == "interrupt":
            await claim(store, tenant.ann, conversation_id=held.conversation_id, if_busy="interrupt")
        else:
            await store.delete_conversation(tenant.ann, held.conversation_id)
        [adopted] = await store.adopt("worker-2", lease_seconds=LEASE_SECONDS)
        assert (adopted.turn.id, adopted.turn.cancel_requested_at is not None) == (held.turn_id, True)


class TestSteering:
    async def test_words_wait_in_front_and_are_taken_once(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        later = await wait_in_queue(store, tenant.ann, held.conversation_id)
        ids = {"conversation_id": held.conversation_id, "if_busy": "enqueue", "steers": held.turn_id}
        one = await claim(store, tenant.ann, "Be short.", **ids)
        two = await claim(store, tenant.ann, "In French.", **ids)
        later = await store.turn(tenant.ann, later.id)
        assert one.turn.ordinal < two.turn.ordinal < later.ordinal
        receipt = await store.record(held, after=1, events=[asked(a_call())])
        assert receipt.steers == 2
        taken = await store.take_steers(held, after=2, sequence=1)
        assert [event.message for event in taken.events if isinstance(event, Steered)] == ["Be short.", "In French."]
        assert [(row.id, row.turn_sequence) for row in taken.rows] == [
            (one.user_message_id, 1),
            (two.user_message_id, 2),
        ]
        again = await store.take_steers(held, after=2, sequence=1)
        assert (again.rows, again.events) == (taken.rows, taken.events)
        assert await store.take_steers(held, after=4, sequence=3) == type(taken)()
        ended = await store.turn(tenant.ann, one.turn.id)
        assert ended.error is not None
        assert (ended.status, ended.error.code) == ("cancelled", "steered")
        settled = await store.settle(held, after=4, settlement=answered(held, sequence=3))
        assert settled.promoted == later.id
        conversation = await store.conversation(tenant.ann, held.conversation_id)
        assert conversation.message_count == 5

    async def test_words_that_were_taken_are_traced_and_exported_once(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        ids = {"conversation_id": held.conversation_id, "if_busy": "enqueue", "steers": held.turn_id}
        steered = await claim(store, tenant.ann, "Be short.", **ids)
        await store.take_steers(held, after=1, sequence=1)
        await store.settle(held, after=2, settlement=answered(held, sequence=2))
        rows = (await store.conversation_trace(tenant.service, held.conversation_id)).data
        assert [row.id for row in rows].count(steered.user_message_id) == 1
        exported = await store.export_conversation(tenant.service, held.conversation_id)
        copy = await store.import_conversation(tenant.ann, exported)
        copied = (await store.conversation_trace(tenant.service, copy.id)).data
        assert [row.blocks for row in copied] == [row.blocks for row in rows]

    async def test_what_is_not_taken_is_the_next_turn(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        await wait_in_queue(store, tenant.ann, held.conversation_id)
        ids = {"conversation_id": held.conversation_id, "if_busy": "enqueue", "steers": held.turn_id}
        steered = await claim(store, tenant.ann, "Be short.", **ids)
        settled = await store.settle(held, after=1, settlement=answered(held))
        assert settled.promoted == steered.turn.id
