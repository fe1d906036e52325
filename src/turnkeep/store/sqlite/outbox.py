"""The outbox and webhooks on SQLite. `write_outbox` is called by what ends a turn, inside its transaction. Triggers
write the deliveries of webhooks, each in the transaction that causes it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from turnkeep.ids import OrgId, OutboxId, WebhookId, WorkspaceId, check_id, new_outbox_id
from turnkeep.model.outbox import Delivery, OutboxEntry, TakenDelivery, Webhook
from turnkeep.model.turns import Turn
from turnkeep.store.checks import check_limit
from turnkeep.store.commands import AttemptOutcome, Page, page_of
from turnkeep.store.cursors import decode_cursor, encode_cursor
from turnkeep.store.rows import to_delivery, to_entry, to_webhook
from turnkeep.store.rules.directory import no_workspace
from turnkeep.store.rules.outbox import (
    AFTER_EVERY_EVENT,
    GIVE_UP_MS,
    GONE,
    KEPT_MS,
    PURGED_AT_ONCE,
    NewEntry,
    ToldStatus,
    changed_webhook,
    ended_attempt,
    named_webhook,
    no_delivery,
    no_webhook,
    told_turn,
    too_many_webhooks,
    webhook_record,
)
from turnkeep.store.sqlite.io.executors import StoreThreads
from turnkeep.store.sqlite.io.session import Session


class SqliteOutbox(StoreThreads):
    """The verbs of the outbox. Promises are those of `ports.OutboxStore`."""

    async def take_entries(self, *, limit: int = 100, lease_seconds: float) -> list[OutboxEntry]:
        # A look costs no write. Most looks find nothing.
        if not await self._read(has_due):
            return []
        return await self._write(take_due, limit, int(lease_seconds * 1000))

    async def mark_delivered(self, entry_ids: Sequence[OutboxId]) -> None:
        if entry_ids:
            await self._write(_delete, list(entry_ids))

    async def postpone_entry(self, entry_id: OutboxId, *, seconds: float) -> None:
        await self._write(_postpone, entry_id, int(seconds * 1000))


def write_outbox(session: Session, turn: Turn, status: ToldStatus, org_id: str) -> None:
    """Write the entry which says that this turn has ended, or waits."""
    write_entry(session, turn, told_turn(new_outbox_id(), turn.id, status), org_id)


def write_entry(session: Session, turn: Turn, entry: NewEntry, org_id: str) -> None:
    session.run(
        "insert_entry",
        (
            entry.id,
            org_id,
            turn.workspace_id,
            turn.user_id,
            entry.type,
            turn.conversation_id,
            entry.turn_id,
            session.now,
        ),
    )


def has_due(session: Session, titles: bool = False) -> bool:
    """Whether there are entries that are due: those for the outside, or titles that a model is to write."""
    return session.row("has_due_entries", {"now": session.clock(), "titles": titles}) is not None


def take_due(session: Session, limit: int, lease_ms: int, titles: bool = False) -> list[OutboxEntry]:
    """Lease them, the oldest first."""
    values = {"now": session.now, "limit": limit, "until": session.now + lease_ms, "titles": titles}
    taken = session.rows("take_entries", values)
    return sorted(map(to_entry, taken), key=lambda entry: entry.id)


def _delete(session: Session, entry_ids: Sequence[OutboxId]) -> None:
    session.many("delete_entry", [{"id": id_} for id_ in entry_ids])


def _postpone(session: Session, entry_id: OutboxId, ms: int) -> None:
    session.run("postpone_entry", {"id": entry_id, "until": session.now + ms})


class SqliteWebhooks(StoreThreads):
    """Endpoints of the host, and what they are sent. Promises are those of `ports.WebhookStore`."""

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
        return await self._write(_create_webhook, record)

    async def webhooks(self, org_id: OrgId, workspace_id: WorkspaceId) -> list[Webhook]:
        which = {"org": check_id(org_id, "org"), "workspace": check_id(workspace_id, "ws")}
        return await self._read(lambda session: [to_webhook(row) for row in session.rows("webhooks", which)])

    async def webhook(self, org_id: OrgId, workspace_id: WorkspaceId, webhook_id: WebhookId) -> Webhook:
        return await self._read(_webhook, named_webhook(org_id, workspace_id, webhook_id))

    async def change_webhook(
        self,
        org_id: OrgId,
        workspace_id: WorkspaceId,
        webhook_id: WebhookId,
        change: Callable[[Webhook], Webhook],
    ) -> Webhook:
        return await self._write(_change_webhook, named_webhook(org_id, workspace_id, webhook_id), change)

    async def delete_webhook(self, org_id: OrgId, workspace_id: WorkspaceId, webhook_id: WebhookId) -> None:
        await self._write(_delete_webhook, named_webhook(org_id, workspace_id, webhook_id))
        await self._write(_purge_orphans, PURGED_AT_ONCE)

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
        which = named_webhook(org_id, workspace_id, webhook_id)

        def read(session: Session) -> list[Delivery]:
            _webhook(session, which)
            rows = session.rows("deliveries", {"webhook": webhook_id, "before": before, "limit": limit + 1})
            return [to_delivery(row) for row in rows]

        found = await self._read(read)
        return page_of(found, limit=limit, cursor_of=lambda delivery: encode_cursor("deliveries", delivery.id))

    async def redeliver(
        self, org_id: OrgId, workspace_id: WorkspaceId, webhook_id: WebhookId, delivery_id: OutboxId
    ) -> Delivery:
        which = named_webhook(org_id, workspace_id, webhook_id)
        return await self._write(_redeliver, which, check_id(delivery_id, "evt"))

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
        most = dict.fromkeys(trusted, each) | dict.fromkeys(busy, 0)
        return await self._write(_take_deliveries, limit, int(lease_seconds * 1000), after, most)

    async def end_attempt(self, delivery: Delivery, outcome: AttemptOutcome) -> Delivery | None:
        return await self._write(_end_attempt, delivery, outcome)

    async def purge_deliveries(self, *, limit: int = 1_000) -> int:
        def purge(session: Session) -> int:
            values = {"now": session.now, "before": session.now - KEPT_MS, "limit": limit}
            return session.run("purge_old_deliveries", values)

        return await self._write(purge) + await self._write(_purge_orphans, limit)


def _create_webhook(session: Session, record: dict[str, Any]) -> Webhook:
    row = session.row("insert_webhook", record | {"now": session.now})
    if row is not None:
        return to_webhook(row)
    if session.row("workspace", {"org": record["org"], "workspace": record["workspace"]}) is None:
        raise no_workspace()
    raise too_many_webhooks()


def _webhook(session: Session, which: dict[str, str]) -> Webhook:
    row = session.row("webhook", which)
    if row is None:
        raise no_webhook()
    return to_webhook(row)


def _change_webhook(session: Session, which: dict[str, str], change: Callable[[Webhook], Webhook]) -> Webhook:
    before = _webhook(session, which)
    [row] = session.rows("change_webhook", changed_webhook(before, change(before)) | {"now": session.now})
    after = to_webhook(row)
    if after.is_enabled and not before.is_enabled:
        session.run("resume_deliveries", {"webhook": after.id, "now": session.now})
    elif before.is_enabled and not after.is_enabled:
        session.run("park_deliveries", {"webhook": after.id})
    return after


def _delete_webhook(session: Session, which: dict[str, str]) -> None:
    if not session.run("delete_webhook", which):
        raise no_webhook()


def _purge_orphans(session: Session, limit: int) -> int:
    return session.run("purge_orphaned_deliveries", {"limit": limit})


def _redeliver(session: Session, which: dict[str, str], delivery_id: str) -> Delivery:
    values = which | {"webhook": which["id"], "id": delivery_id}
    row = session.row("redeliver", values | {"now": session.now, "give_up_at": session.now + GIVE_UP_MS})
    if row is None:
        raise no_delivery()
    return to_delivery(row)


def _take_deliveries(
    session: Session, limit: int, lease_ms: int, after: str, most: Mapping[WebhookId, int]
) -> list[TakenDelivery]:
    """`most` is how many of a webhook are taken, where it is not one."""
    taken: list[TakenDelivery] = []
    while len(taken) < limit and (row := session.row("next_waiting_webhook", {"after": after})) is not None:
        [after] = row
        wanted = min(most.get(WebhookId(after), 1), limit - len(taken))
        if not wanted:
            continue
        which = {"webhook": after, "now": session.now, "until": session.now + lease_ms, "limit": wanted}
        found = sorted((to_delivery(row) for row in session.rows("take_deliveries", which)), key=lambda one: one.id)
        if found:
            [row] = session.rows("webhook_by_id", {"webhook": after})
            webhook = to_webhook(row)
            taken += [TakenDelivery(delivery=each, webhook=webhook) for each in found if webhook.is_enabled]
    return taken


def _end_attempt(session: Session, delivery: Delivery, outcome: AttemptOutcome) -> Delivery | None:
    webhook = {"webhook": delivery.webhook_id}
    if outcome.is_gone and session.run("disable_webhook", webhook | {"reason": GONE, "now": session.now}):
        session.run("park_deliveries", webhook)
    which = webhook | {"id": delivery.id, "attempts": delivery.attempts, "now": session.now}
    row = session.row("end_attempt", which | ended_attempt(outcome))
    return None if row is None else to_delivery(row)
