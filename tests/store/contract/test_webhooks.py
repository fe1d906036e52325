"""Webhooks: each event leaves one delivery for each webhook that hears of it, in the transaction that causes it."""

import asyncio
import time
from typing import Any

import pytest
from msgspec import structs

from tests.store.databases import Database
from tests.store.factories import (
    Tenant,
    a_conversation,
    a_file,
    a_tenant,
    answered,
    begin,
    claim,
    elsewhere,
    failed,
    finish,
    nothing_written,
    stopped,
    wait_in_queue,
)
from turnkeep.errors import Conflict, InvalidRequest, LeaseLost, NotFound
from turnkeep.ids import OutboxId, WebhookId, new_outbox_id, new_webhook_id
from turnkeep.model.outbox import Delivery, TakenDelivery, Webhook
from turnkeep.model.turns import Held
from turnkeep.store.commands import AttemptOutcome, NewConversation
from turnkeep.store.ports import Store
from turnkeep.store.rules.outbox import KEPT_MS, MOST_WEBHOOKS

ALL = ("turn.succeeded", "turn.failed", "turn.cancelled", "turn.waiting", "conversation.created", "file.created")
TURNS = ALL[:4]
LEASE = 20.0
DAY = 86_400.0
TAKEN = AttemptOutcome(response_status=204)
REFUSED = AttemptOutcome(response_status=500, error="HTTP 500.", pause_seconds=60)


async def a_webhook(store: Store, tenant: Tenant, events: tuple[str, ...] = TURNS, **fields: Any) -> Webhook:
    url = "https://shop.example.com/hook"
    values: dict[str, Any] = {"url": url, "events": events, "secret": "tks1.sealed"} | fields
    return await store.create_webhook(tenant.org.id, tenant.workspace.id, **values)


async def deliveries(store: Store, tenant: Tenant, webhook: Webhook) -> list[Delivery]:
    """All of them, the oldest first."""
    page = await store.deliveries(tenant.org.id, tenant.workspace.id, webhook.id, limit=100)
    return list(reversed(page.data))


async def take(store: Store, **options: Any) -> list[TakenDelivery]:
    return await store.take_deliveries(**{"limit": 100, "lease_seconds": LEASE, "each": 1} | options)


async def change(store: Store, tenant: Tenant, webhook: Webhook, **fields: Any) -> Webhook:
    return await store.change_webhook(
        tenant.org.id, tenant.workspace.id, webhook.id, lambda before: structs.replace(before, **fields)
    )


def named(taken: list[TakenDelivery]) -> list[tuple[str, str]]:
    return [(each.webhook.id, each.delivery.id) for each in taken]


class TestWebhooks:
    async def test_are_stored_listed_changed_and_deleted(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        first = await a_webhook(store, tenant)
        assert (first.events, first.is_enabled, first.disabled_reason) == (TURNS, True, None)
        assert (first.created_at, first.updated_at) == (database.now, database.now)
        second = await a_webhook(store, tenant, is_enabled=False)
        whose = (tenant.org.id, tenant.workspace.id)
        assert await store.webhooks(*whose) == [second, first]
        assert await store.webhook(*whose, first.id) == first
        await database.advance(seconds=5)
        changed = await change(store, tenant, first, url="https://other.example.com/", events=("turn.failed",))
        assert (changed.url, changed.events) == ("https://other.example.com/", ("turn.failed",))
        assert (changed.secret, changed.updated_at) == (first.secret, database.now)
        await store.delete_webhook(*whose, first.id)
        assert await store.webhooks(*whose) == [second]

    async def test_of_another_workspace_do_not_exist(self, store: Store, tenant: Tenant, database: Database) -> None:
        webhook = await a_webhook(store, tenant)
        await finish(store, tenant.ann)
        [delivery] = await deliveries(store, tenant, webhook)
        other = await store.create_workspace(tenant.org.id, "Other")
        stranger = await a_tenant(store, "Stranger")
        async with nothing_written(database):
            for org_id, workspace_id in (
                (tenant.org.id, other.id),
                (stranger.org.id, stranger.workspace.id),
                (stranger.org.id, tenant.workspace.id),
            ):
                assert await store.webhooks(org_id, workspace_id) == []
                for verb in (
                    store.webhook(org_id, workspace_id, webhook.id),
                    store.delete_webhook(org_id, workspace_id, webhook.id),
                    store.change_webhook(org_id, workspace_id, webhook.id, lambda before: before),
                    store.deliveries(org_id, workspace_id, webhook.id),
                    store.redeliver(org_id, workspace_id, webhook.id, delivery.id),
                ):
                    with pytest.raises(NotFound):
                        await verb

    async def test_need_a_workspace_and_are_limited_in_number(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        stranger = await a_tenant(store, "Stranger")
        with pytest.raises(NotFound):
            await store.create_webhook(
                tenant.org.id, stranger.workspace.id, url="https://e.com", events=TURNS, secret="s"
            )
        for _ in range(MOST_WEBHOOKS):
            await a_webhook(store, tenant)
        async with nothing_written(database):
            with pytest.raises(Conflict):
                await a_webhook(store, tenant)

    async def test_that_are_no_ids_are_refused(self, store: Store, tenant: Tenant) -> None:
        whose = (tenant.org.id, tenant.workspace.id)
        with pytest.raises(InvalidRequest):
            await store.webhook(*whose, WebhookId("nonsense"))
        with pytest.raises(InvalidRequest):
            await store.redeliver(*whose, new_webhook_id(), OutboxId("nonsense"))
        with pytest.raises(NotFound):
            await store.redeliver(*whose, new_webhook_id(), new_outbox_id())

    async def test_go_with_their_workspace(self, store: Store, tenant: Tenant) -> None:
        other = await store.create_workspace(tenant.org.id, "Other")
        await store.create_webhook(tenant.org.id, other.id, url="https://e.com", events=TURNS, secret="s")
        await store.delete_workspace(tenant.org.id, other.id)
        assert await store.webhooks(tenant.org.id, other.id) == []


class TestWhatIsWritten:
    async def test_the_end_of_a_turn(self, store: Store, tenant: Tenant, database: Database) -> None:
        webhook = await a_webhook(store, tenant)
        held = await begin(store, tenant.ann)
        asked_at = database.now
        await database.advance(seconds=3)
        turn = (await store.settle(held, after=1, settlement=answered(held))).turn
        [entry] = await store.take_entries(lease_seconds=1)
        [found] = await deliveries(store, tenant, webhook)
        assert found == Delivery(
            webhook_id=webhook.id,
            id=entry.id,
            type="turn.succeeded",
            data={
                "workspace_id": tenant.workspace.id,
                "conversation_id": held.conversation_id,
                "turn_id": held.turn_id,
                "user": {"id": tenant.ann.user_id, "external_id": "ann"},
                "status": "succeeded",
                "agent_id": None,
                "model": turn.model,
                "error": None,
                "usage": {"input_tokens": turn.usage.input_tokens, "output_tokens": turn.usage.output_tokens},
                "created_at": asked_at,
                "settled_at": database.now,
            },
            status="pending",
            attempts=0,
            created_at=database.now,
            not_before=database.now,
            give_up_at=database.now + 3 * 86_400_000,
            last_attempt_at=None,
            response_status=None,
            error=None,
        )
        assert found.payload.timestamp.startswith("2025-06-15T")

    async def test_a_failure_says_its_code_and_no_words(self, store: Store, tenant: Tenant) -> None:
        webhook = await a_webhook(store, tenant)
        held = await begin(store, tenant.service, "a secret question")
        await store.settle(held, after=1, settlement=failed(held, code="model_timeout"))
        [found] = await deliveries(store, tenant, webhook)
        assert (found.type, found.data["status"], found.data["user"]) == ("turn.failed", "failed", None)
        assert found.data["error"] == {"code": "model_timeout"}
        assert "secret" not in repr(found)

    async def test_each_way_in_which_a_turn_is_cancelled(self, store: Store, tenant: Tenant) -> None:
        webhook = await a_webhook(store, tenant)
        held = await begin(store, tenant.ann)
        waiting = [await wait_in_queue(store, tenant.ann, held.conversation_id) for _ in range(3)]
        await store.request_cancel(tenant.ann, waiting[0].id)
        await claim(store, tenant.ann, conversation_id=held.conversation_id, beside=waiting[1].id, if_busy="interrupt")
        await store.delete_conversation(tenant.ann, held.conversation_id)
        await store.settle(held, after=1, settlement=stopped(held))
        found = await deliveries(store, tenant, webhook)
        assert {each.type for each in found} == {"turn.cancelled"}
        assert {each.data["turn_id"] for each in found} >= {*(turn.id for turn in waiting), held.turn_id}
        assert {each.data["status"] for each in found} == {"cancelled"}

    async def test_the_end_by_a_worker_that_adopted_the_turn(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        webhook = await a_webhook(store, tenant)
        await begin(store, tenant.ann)
        await database.advance(seconds=60)
        [adopted] = await store.adopt("worker-2", lease_seconds=30)
        settlement = failed(adopted.held, code="worker_lost")
        await store.settle(adopted.held, after=adopted.turn.last_seq, settlement=settlement)
        assert [each.type for each in await deliveries(store, tenant, webhook)] == ["turn.failed"]

    async def test_a_new_conversation_once_and_no_run(self, store: Store, tenant: Tenant) -> None:
        webhook = await a_webhook(store, tenant, ("conversation.created",))
        made = await a_conversation(store, tenant.ann, kind="sandbox")
        asked = await finish(store, tenant.ann)
        await finish(store, tenant.ann, conversation_id=asked.conversation_id)
        await finish(store, tenant.ann, new=NewConversation(kind="run"))
        found = {each.data["conversation_id"]: each for each in await deliveries(store, tenant, webhook)}
        assert set(found) == {made.id, asked.conversation_id}
        assert found[made.id].type == "conversation.created"
        assert found[made.id].data == {
            "workspace_id": tenant.workspace.id,
            "conversation_id": made.id,
            "user": {"id": tenant.ann.user_id, "external_id": "ann"},
            "kind": "sandbox",
            "agent_id": None,
            "model": None,
            "created_at": made.created_at,
        }

    async def test_a_conversation_from_elsewhere_but_not_its_turns(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        await store.append(tenant.ann, conversation.id, elsewhere(conversation.id, "Hello", "Hi!"))
        exported = await store.export_conversation(tenant.service, conversation.id)
        webhook = await a_webhook(store, tenant, ALL)
        imported = await store.import_conversation(tenant.ann, exported)
        found = await deliveries(store, tenant, webhook)
        assert [(each.type, each.data["conversation_id"]) for each in found] == [("conversation.created", imported.id)]

    async def test_a_file_that_can_be_read_from_now_on(self, store: Store, tenant: Tenant) -> None:
        webhook = await a_webhook(store, tenant, ("file.created",))
        conversation = await a_conversation(store, tenant.ann)
        file = await a_file(store, tenant.ann, "secret.txt", conversation_id=conversation.id, size=7)
        pending = await a_file(store, tenant.ann, conversation_id=conversation.id, sha256=None, size=0)
        [found] = await deliveries(store, tenant, webhook)
        assert (found.type, found.data["file_id"], found.data["size"]) == ("file.created", file.id, 7)
        assert found.data["conversation_id"] == conversation.id
        assert "secret.txt" not in repr(found)
        for _ in range(2):
            await store.complete_file(tenant.ann, pending.id, size=9, sha256="cd" * 32)
        assert {each.data["file_id"] for each in await deliveries(store, tenant, webhook)} == {file.id, pending.id}

    async def test_only_for_enabled_webhooks_of_the_workspace_that_hear_of_it(
        self, store: Store, tenant: Tenant
    ) -> None:
        stranger = await a_tenant(store, "Stranger")
        hears = [await a_webhook(store, tenant), await a_webhook(store, tenant, ("turn.failed", "turn.succeeded"))]
        others = [
            (tenant, await a_webhook(store, tenant, ("turn.failed",))),
            (tenant, await a_webhook(store, tenant, is_enabled=False)),
            (stranger, await a_webhook(store, stranger)),
        ]
        await finish(store, tenant.ann)
        first, second = [await deliveries(store, tenant, webhook) for webhook in hears]
        assert [each.id for each in first] == [each.id for each in second]
        assert [await deliveries(store, whose, webhook) for whose, webhook in others] == [[], [], []]

    async def test_one_for_each_of_many_turns_that_settle_at_once(self, store: Store, tenant: Tenant) -> None:
        webhook = await a_webhook(store, tenant)
        held = [await begin(store, tenant.ann) for _ in range(20)]
        await asyncio.gather(*(store.settle(each, after=1, settlement=answered(each)) for each in held))
        found = await deliveries(store, tenant, webhook)
        assert sorted(str(each.data["turn_id"]) for each in found) == sorted(each.turn_id for each in held)

    async def test_none_for_what_is_rolled_back(self, store: Store, tenant: Tenant, database: Database) -> None:
        webhook = await a_webhook(store, tenant, ALL)
        held = await begin(store, tenant.ann)
        stale = Held(turn_id=held.turn_id, conversation_id=held.conversation_id, attempt=7)
        before = await deliveries(store, tenant, webhook)
        async with nothing_written(database):
            with pytest.raises(LeaseLost):
                await store.settle(stale, after=1, settlement=answered(stale))
            with pytest.raises(NotFound):
                await a_conversation(store, structs.replace(tenant.ann, workspace_id="ws_" + "0" * 32))
        assert await deliveries(store, tenant, webhook) == before


class TestTaking:
    async def test_leases_a_delivery_to_one_worker(self, store: Store, tenant: Tenant, database: Database) -> None:
        webhook = await a_webhook(store, tenant)
        assert not (await store.due_work()).has_deliveries
        await finish(store, tenant.ann)
        assert (await store.due_work()).has_deliveries
        [taken] = await take(store)
        assert (taken.webhook, taken.delivery.attempts) == (webhook, 1)
        assert await take(store) == []
        assert not (await store.due_work()).has_deliveries
        await database.advance(seconds=LEASE + 1)
        [again] = await take(store)
        assert (again.delivery.id, again.delivery.attempts) == (taken.delivery.id, 2)

    async def test_gives_each_to_one_of_many_that_ask_at_once(self, store: Store, tenant: Tenant) -> None:
        webhook = await a_webhook(store, tenant)
        turns = [await finish(store, tenant.ann) for _ in range(8)]
        asked = await asyncio.gather(*(take(store, trusted=[webhook.id], each=4) for _ in range(8)))
        found = [each.delivery.data["turn_id"] for taken in asked for each in taken]
        assert len(found) == len(set(found))
        while more := await take(store, trusted=[webhook.id], each=4):
            found += [each.delivery.data["turn_id"] for each in more]
        assert sorted(map(str, found)) == sorted(turn.id for turn in turns)

    async def test_gives_one_of_each_webhook_and_more_of_those_that_are_trusted(
        self, store: Store, tenant: Tenant
    ) -> None:
        webhooks = [await a_webhook(store, tenant) for _ in range(4)]
        for _ in range(3):
            await finish(store, tenant.ann)
        taken = await take(store, busy=[webhooks[0].id], trusted=[webhooks[2].id], each=2)
        assert [each.webhook.id for each in taken] == [webhooks[n].id for n in (1, 2, 2, 3)]
        oldest = {each.delivery.id for each in taken if each.webhook.id != webhooks[2].id}
        assert oldest == {(await deliveries(store, tenant, webhooks[0]))[0].id}
        assert [each.webhook.id for each in await take(store, after=webhooks[1].id, limit=1)] == [webhooks[2].id]

    async def test_is_woken_by_what_has_its_own_clock(self, store: Store, tenant: Tenant, database: Database) -> None:
        await database.move_clock_to(int(time.time() * 1000) + 1_000)
        webhook = await a_webhook(store, tenant, ALL)
        conversation = await a_conversation(store, tenant.ann)
        await a_file(store, tenant.ann, conversation_id=conversation.id)
        await database.advance(seconds=60)
        taken = await take(store, trusted=[webhook.id], each=10)
        assert {each.delivery.type for each in taken} == {"conversation.created", "file.created"}


class TestTheEndOfAnAttempt:
    async def test_that_was_taken(self, store: Store, tenant: Tenant, database: Database) -> None:
        webhook = await a_webhook(store, tenant)
        await finish(store, tenant.ann)
        [taken] = await take(store)
        await database.advance(seconds=2)
        ended = await store.end_attempt(taken.delivery, TAKEN)
        assert ended is not None
        assert (ended.status, ended.not_before, ended.response_status) == ("delivered", None, 204)
        assert (ended.last_attempt_at, ended.error) == (database.now, None)
        await database.advance(seconds=DAY)
        assert await take(store) == []
        assert await deliveries(store, tenant, webhook) == [ended]

    async def test_that_was_refused_is_tried_again_for_three_days(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        webhook = await a_webhook(store, tenant)
        await finish(store, tenant.ann)
        [taken] = await take(store)
        ended = await store.end_attempt(taken.delivery, REFUSED)
        assert ended is not None
        assert (ended.status, ended.not_before) == ("pending", database.now + 60_000)
        assert (ended.response_status, ended.error) == (500, "HTTP 500.")
        await database.advance(seconds=61)
        [taken] = await take(store)
        later = structs.replace(REFUSED, pause_seconds=10 * DAY)
        ended = await store.end_attempt(taken.delivery, later)
        assert ended is not None
        assert ended.not_before == ended.give_up_at == ended.created_at + 3 * 86_400_000, "the last try"
        await database.move_clock_to(ended.give_up_at)
        [taken] = await take(store)
        ended = await store.end_attempt(taken.delivery, REFUSED)
        assert ended is not None
        assert (ended.status, ended.attempts, ended.not_before) == ("failed", 3, None)
        assert await deliveries(store, tenant, webhook) == [ended]

    async def test_changes_nothing_once_another_has_begun(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        await a_webhook(store, tenant)
        await finish(store, tenant.ann)
        [slow] = await take(store)
        await database.advance(seconds=LEASE + 1)
        [quick] = await take(store)
        async with nothing_written(database):
            assert await store.end_attempt(slow.delivery, REFUSED) is None
        assert await store.end_attempt(quick.delivery, TAKEN) is not None
        async with nothing_written(database):
            assert await store.end_attempt(quick.delivery, REFUSED) is None

    async def test_at_an_endpoint_that_is_gone_disables_the_webhook(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        webhook = await a_webhook(store, tenant)
        for _ in range(2):
            await finish(store, tenant.ann)
        [taken] = await take(store)
        gone = AttemptOutcome(response_status=410, error="HTTP 410.", is_gone=True)
        ended = await store.end_attempt(taken.delivery, gone)
        assert ended is not None
        assert ended.status == "failed"
        found = await store.webhook(tenant.org.id, tenant.workspace.id, webhook.id)
        assert not found.is_enabled
        assert "410" in str(found.disabled_reason)
        await finish(store, tenant.ann)
        assert [each.status for each in await deliveries(store, tenant, webhook)] == ["failed", "pending"]
        await database.advance(seconds=DAY)
        assert await take(store) == []
        enabled = await change(store, tenant, webhook, is_enabled=True)
        assert enabled.disabled_reason is None
        assert len(await take(store)) == 1


class TestADisabledWebhook:
    async def test_keeps_what_is_pending_until_it_is_enabled(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        webhook = await a_webhook(store, tenant)
        await finish(store, tenant.ann)
        [taken] = await take(store)
        await change(store, tenant, webhook, is_enabled=False)
        await store.end_attempt(taken.delivery, REFUSED)
        await database.advance(seconds=DAY)
        assert await take(store) == []
        assert not (await store.due_work()).has_deliveries, "no sweep is woken for it"
        [waiting] = await deliveries(store, tenant, webhook)
        assert (waiting.status, waiting.not_before) == ("pending", None)
        await change(store, tenant, webhook, is_enabled=True)
        assert named(await take(store)) == [(webhook.id, taken.delivery.id)]

    async def test_hears_of_nothing_that_happens_meanwhile(self, store: Store, tenant: Tenant) -> None:
        webhook = await a_webhook(store, tenant, is_enabled=False)
        await finish(store, tenant.ann)
        await change(store, tenant, webhook, is_enabled=True)
        assert await deliveries(store, tenant, webhook) == []

    async def test_does_not_keep_workers_busy_with_what_came_while_it_was_disabled(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        webhook = await a_webhook(store, tenant)
        await finish(store, tenant.ann)
        schema = "" if database.name == "sqlite" else "turnkeep."
        await database.execute(f"UPDATE {schema}webhooks SET is_enabled = {'0' if not schema else 'false'}")
        assert await take(store) == []
        assert not (await store.due_work()).has_deliveries
        await change(store, tenant, webhook, is_enabled=True)
        assert len(await take(store)) == 1


class TestRedelivering:
    async def test_sends_the_same_event_again(self, store: Store, tenant: Tenant, database: Database) -> None:
        webhook = await a_webhook(store, tenant)
        await finish(store, tenant.ann)
        [taken] = await take(store)
        await store.end_attempt(taken.delivery, TAKEN)
        await database.advance(seconds=4 * DAY)
        again = await store.redeliver(tenant.org.id, tenant.workspace.id, webhook.id, taken.delivery.id)
        assert (again.status, again.attempts, again.not_before) == ("pending", 0, database.now)
        assert again.give_up_at == database.now + 3 * 86_400_000
        [taken_again] = await take(store)
        assert taken_again.delivery.payload == taken.delivery.payload

    async def test_waits_while_the_webhook_is_disabled(self, store: Store, tenant: Tenant) -> None:
        webhook = await a_webhook(store, tenant)
        await finish(store, tenant.ann)
        await change(store, tenant, webhook, is_enabled=False)
        [delivery] = await deliveries(store, tenant, webhook)
        again = await store.redeliver(tenant.org.id, tenant.workspace.id, webhook.id, delivery.id)
        assert (again.status, again.not_before) == ("pending", None)


class TestTheList:
    async def test_has_pages_newest_first(self, store: Store, tenant: Tenant) -> None:
        webhook = await a_webhook(store, tenant)
        turns = [await finish(store, tenant.ann) for _ in range(5)]
        which = (tenant.org.id, tenant.workspace.id, webhook.id)
        found: list[str] = []
        cursor: str | None = None
        while True:
            page = await store.deliveries(*which, limit=2, cursor=cursor)
            found += [str(each.data["turn_id"]) for each in page.data]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert found == [turn.id for turn in reversed(turns)]
        with pytest.raises(InvalidRequest):
            await store.deliveries(*which, cursor="nonsense")


class TestADeletedWebhook:
    async def test_is_sent_nothing_more_and_leaves_nothing(self, store: Store, tenant: Tenant) -> None:
        gone, other = await a_webhook(store, tenant), await a_webhook(store, tenant)
        for _ in range(3):
            await finish(store, tenant.ann)
        await store.delete_webhook(tenant.org.id, tenant.workspace.id, gone.id)
        assert {each.webhook.id for each in await take(store, each=10, trusted=[other.id])} == {other.id}
        assert await store.purge_deliveries() == 0
        assert len(await deliveries(store, tenant, other)) == 3

    async def test_with_very_many_deliveries_leaves_the_rest_to_the_purge(
        self, store: Store, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in ("postgres", "sqlite"):
            monkeypatch.setattr(f"turnkeep.store.{module}.outbox.PURGED_AT_ONCE", 1)
        gone, other = await a_webhook(store, tenant), await a_webhook(store, tenant)
        for _ in range(3):
            await finish(store, tenant.ann)
        await store.delete_webhook(tenant.org.id, tenant.workspace.id, gone.id)
        assert {each.webhook.id for each in await take(store, each=10, trusted=[gone.id])} == {other.id}
        assert [await store.purge_deliveries(limit=1) for _ in range(3)] == [1, 1, 0]
        assert len(await deliveries(store, tenant, other)) == 3


class TestErasing:
    async def test_takes_old_deliveries(self, store: Store, tenant: Tenant, database: Database) -> None:
        webhook = await a_webhook(store, tenant)
        await finish(store, tenant.ann)
        await database.advance(seconds=KEPT_MS / 1000 - 60)
        await finish(store, tenant.ann)
        assert await store.purge_deliveries() == 0
        await database.advance(seconds=61)
        assert await store.purge_deliveries() == 1
        assert len(await deliveries(store, tenant, webhook)) == 1

    async def test_leaves_what_is_sent_again(self, store: Store, tenant: Tenant, database: Database) -> None:
        webhook = await a_webhook(store, tenant)
        await finish(store, tenant.ann)
        [delivery] = await deliveries(store, tenant, webhook)
        await database.advance(seconds=KEPT_MS / 1000 - 60)
        await store.redeliver(tenant.org.id, tenant.workspace.id, webhook.id, delivery.id)
        await database.advance(seconds=DAY)
        assert await store.purge_deliveries() == 0
        await database.advance(seconds=2 * DAY + 1)
        assert await store.purge_deliveries() == 1

    async def test_a_user_takes_their_deliveries(self, store: Store, tenant: Tenant, database: Database) -> None:
        webhook = await a_webhook(store, tenant, ALL)
        await a_file(store, tenant.ann)
        await finish(store, tenant.ann)
        await finish(store, tenant.bob)
        assert tenant.ann.user_id is not None
        job = await store.begin_erasure(tenant.service, user_id=tenant.ann.user_id, lease_seconds=LEASE)
        conversations = await store.conversations_to_erase(job)
        await store.hide_conversations(conversations)
        while files := await store.files_to_erase(job, conversations):
            await store.erase_files(job, [file_id for file_id, _ in files])
        async for _ in store.erase_conversations(job, conversations):
            pass
        assert await store.close_erasure(job)
        left = await deliveries(store, tenant, webhook)
        assert {str(each.data["user"]["external_id"]) for each in left} == {"bob"}
        rows = (await database.contents())["webhook_deliveries"]
        assert all(tenant.ann.user_id not in str(row) for row in rows)

    async def test_a_conversation_takes_its_deliveries(self, store: Store, tenant: Tenant, database: Database) -> None:
        webhook = await a_webhook(store, tenant, TURNS)
        gone = await finish(store, tenant.ann)
        kept = await finish(store, tenant.ann)
        await store.delete_conversation(tenant.ann, gone.conversation_id)
        await store.purge(deleted_before=database.now + 1)
        assert [each.data["turn_id"] for each in await deliveries(store, tenant, webhook)] == [kept.id]
