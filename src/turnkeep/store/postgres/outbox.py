"""The outbox and webhooks on PostgreSQL. The functions that end turns write entries, and triggers write deliveries,
each in the transaction that causes them."""

from collections.abc import Callable, Iterable, Sequence

from turnkeep.ids import OrgId, OutboxId, TurnId, WebhookId, WorkspaceId, check_id, new_outbox_id
from turnkeep.model.outbox import Delivery, OutboxEntry, TakenDelivery, Webhook
from turnkeep.store.checks import check_limit
from turnkeep.store.commands import AttemptOutcome, Page, page_of
from turnkeep.store.cursors import decode_cursor, encode_cursor
from turnkeep.store.postgres.io.database import Database, Statements
from turnkeep.store.postgres.io.pool import Rows
from turnkeep.store.rows import to_delivery, to_entry, to_webhook
from turnkeep.store.rules.directory import no_workspace
from turnkeep.store.rules.outbox import (
    AFTER_EVERY_EVENT,
    GIVE_UP_MS,
    GONE,
    KEPT_MS,
    PURGED_AT_ONCE,
    NewEntry,
    changed_webhook,
    ended_attempt,
    named_webhook,
    no_delivery,
    no_webhook,
    told_turn,
    too_many_webhooks,
    webhook_record,
)

_DELIVERY_WIDTH = len(Delivery.__struct_fields__)


class PostgresOutbox:
    """The verbs of the outbox."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def take_entries(self, *, limit: int = 100, lease_seconds: float) -> list[OutboxEntry]:
        rows = await self._database.write("take_entries", limit, int(lease_seconds * 1000))
        return sorted(map(to_entry, rows), key=lambda entry: entry.id)

    async def mark_delivered(self, entry_ids: Sequence[OutboxId]) -> None:
        if entry_ids:
            await self._database.write("delete_entries", sorted(entry_ids))

    async def postpone_entry(self, entry_id: OutboxId, *, seconds: float) -> None:
        await self._database.write("postpone_entry", entry_id, int(seconds * 1000))


class PostgresWebhooks:
    """Endpoints of the host, and what they are sent."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create_webhook(
        self,
        org_id: OrgId,
        workspace_id: WorkspaceId,
        *,
        url: str,
        events: Sequence[str],
        is_enabled: bool = True,
        secret: str,
    ) -> Webhook:
        record = webhook_record(org_id, workspace_id, url=url, events=events, is_enabled=is_enabled, secret=secret)
        rows = await self._database.write("insert_webhook", *record.values())
        if rows:
            return to_webhook(rows[0])
        if not await self._database.read("workspace", org_id, workspace_id):
            raise no_workspace()
        raise too_many_webhooks()

    async def webhooks(self, org_id: OrgId, workspace_id: WorkspaceId) -> list[Webhook]:
        which = (check_id(org_id, "org"), check_id(workspace_id, "ws"))
        return [to_webhook(row) for row in await self._database.read("webhooks", *which)]

    async def webhook(self, org_id: OrgId, workspace_id: WorkspaceId, webhook_id: WebhookId) -> Webhook:
        which = named_webhook(org_id, workspace_id, webhook_id)
        rows = await self._database.read("webhook", *which.values())
        if not rows:
            raise no_webhook()
        return to_webhook(rows[0])

    async def change_webhook(
        self,
        org_id: OrgId,
        workspace_id: WorkspaceId,
        webhook_id: WebhookId,
        change: Callable[[Webhook], Webhook],
    ) -> Webhook:
        which = named_webhook(org_id, workspace_id, webhook_id)

        async def work(statements: Statements) -> Webhook:
            rows = await statements.fetch("webhook_to_change", *which.values())
            if not rows:
                raise no_webhook()
            before = to_webhook(rows[0])
            [row] = await statements.fetch("change_webhook", *changed_webhook(before, change(before)).values())
            after = to_webhook(row)
            if after.is_enabled != before.is_enabled:
                await statements.fetch("resume_deliveries" if after.is_enabled else "park_deliveries", webhook_id)
            return after

        return await self._database.transact(work)

    async def delete_webhook(self, org_id: OrgId, workspace_id: WorkspaceId, webhook_id: WebhookId) -> None:
        which = named_webhook(org_id, workspace_id, webhook_id)
        if not await self._database.write("delete_webhook", *which.values()):
            raise no_webhook()
        await self._database.write("purge_orphaned_deliveries", PURGED_AT_ONCE)

    async def deliveries(
        self,
        org_id: OrgId,
        workspace_id: WorkspaceId,
        webhook_id: WebhookId,
        *,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[Delivery]:
        check_limit(limit)
        before = AFTER_EVERY_EVENT if cursor is None else decode_cursor(cursor, "deliveries", tuple[str])[0]
        await self.webhook(org_id, workspace_id, webhook_id)
        found = [to_delivery(row) for row in await self._database.read("deliveries", webhook_id, before, limit + 1)]
        return page_of(found, limit=limit, cursor_of=lambda delivery: encode_cursor("deliveries", delivery.id))

    async def redeliver(
        self, org_id: OrgId, workspace_id: WorkspaceId, webhook_id: WebhookId, delivery_id: OutboxId
    ) -> Delivery:
        which = named_webhook(org_id, workspace_id, webhook_id)
        rows = await self._database.write("redeliver", *which.values(), check_id(delivery_id, "evt"), GIVE_UP_MS)
        if not rows:
            raise no_delivery()
        return to_delivery(rows[0])

    async def take_deliveries(
        self,
        *,
        limit: int,
        lease_seconds: float,
        after: str = "",
        busy: Sequence[WebhookId] = (),
        trusted: Sequence[WebhookId] = (),
        each: int = 1,
    ) -> list[TakenDelivery]:
        rows = await self._database.write(
            "take_deliveries", after, list(busy), list(trusted), each, limit, int(lease_seconds * 1000)
        )
        taken = [
            TakenDelivery(delivery=to_delivery(row[:_DELIVERY_WIDTH]), webhook=to_webhook(row[_DELIVERY_WIDTH:]))
            for row in map(tuple, rows)
        ]
        return sorted(
            (each for each in taken if each.webhook.is_enabled), key=lambda each: (each.webhook.id, each.delivery.id)
        )

    async def end_attempt(self, delivery: Delivery, outcome: AttemptOutcome) -> Delivery | None:
        values = (delivery.webhook_id, delivery.id, delivery.attempts, *ended_attempt(outcome).values())
        if not outcome.is_gone:
            return _first(await self._database.write("end_attempt", *values))

        async def work(statements: Statements) -> Delivery | None:
            if await statements.fetch("disable_webhook", delivery.webhook_id, GONE):
                await statements.fetch("park_deliveries", delivery.webhook_id)
            return _first(await statements.fetch("end_attempt", *values))

        return await self._database.transact(work)

    async def purge_deliveries(self, *, limit: int = 1_000) -> int:
        old = await self._database.write("purge_old_deliveries", KEPT_MS, limit)
        return len(old) + len(await self._database.write("purge_orphaned_deliveries", limit))


def _first(rows: Rows) -> Delivery | None:
    return to_delivery(rows[0]) if rows else None


def cancelled_entries(turn_ids: Iterable[TurnId]) -> list[NewEntry]:
    """The entries of turns that are cancelled while they wait."""
    return [told_turn(new_outbox_id(), turn_id, "cancelled") for turn_id in turn_ids]
