"""The verbs of the outbox and of webhooks. Entries and deliveries are written by the verbs that cause them, in their
transaction."""

from collections.abc import Callable, Sequence
from typing import Protocol

from turnkeep.ids import OrgId, OutboxId, WebhookId, WorkspaceId
from turnkeep.model.outbox import Delivery, OutboxEntry, TakenDelivery, Webhook
from turnkeep.store.commands import AttemptOutcome, Page


class OutboxStore(Protocol):
    """Reports to other systems, delivered at least once.

    Every turn that ends writes one entry, in the transaction that ends it: `settle`, and each verb that cancels waiting
    turns. Appended and imported turns write none. The entries of a conversation are erased with it by `purge`,
    also those that are not delivered yet.
    """

    async def take_entries(self, *, limit: int = 100, lease_seconds: float) -> list[OutboxEntry]:
        """Lease the oldest entries that are due, in the order of their ids. No other worker gets them until the lease
        has ended; then any worker may take them again."""

    async def mark_delivered(self, entry_ids: Sequence[OutboxId]) -> None:
        """Erase these entries. Those that are gone already are passed over."""

    async def postpone_entry(self, entry_id: OutboxId, *, seconds: float) -> None:
        """Let no worker take the entry before that time has passed. One that is gone stays gone."""


class DeliveryStore(Protocol):
    """What the sender of webhooks needs."""

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
        """Lease deliveries that are due, the oldest of each webhook first, in the order of their webhooks.

        No other worker gets them until the lease has ended; then any worker may take them again. At most one of each
        webhook, or `each` of those in `trusted`; none of those in `busy`, nor of webhooks up to `after`.
        """

    async def end_attempt(self, delivery: Delivery, outcome: AttemptOutcome) -> Delivery | None:
        """Note how the attempt has ended for which the delivery was taken.

        A delivery whose three days are over is not tried again. An endpoint that is gone disables its webhook. None,
        and nothing changed, if the delivery is gone, has ended, or was taken again since.
        """


class WebhookStore(DeliveryStore, Protocol):
    """Endpoints of the host, and what they are sent.

    A delivery is written in the transaction that causes it, for each enabled webhook of the workspace that hears of
    such events: every entry of the outbox, every new conversation that is no run, every file that can be read from now
    on. Deliveries hold no words. They are erased with their conversation and with their user, and seven days after
    their event.
    """

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
        """NotFound if there is no such workspace, Conflict if it has as many webhooks as it may."""

    async def webhooks(self, org_id: OrgId, workspace_id: WorkspaceId) -> list[Webhook]:
        """Those of the workspace, newest first."""

    async def webhook(self, org_id: OrgId, workspace_id: WorkspaceId, webhook_id: WebhookId) -> Webhook: ...

    async def change_webhook(
        self,
        org_id: OrgId,
        workspace_id: WorkspaceId,
        webhook_id: WebhookId,
        change: Callable[[Webhook], Webhook],
    ) -> Webhook:
        """Change address, events, secret and whether it is enabled, as in `DirectoryStore`. Pending deliveries of a
        disabled webhook wait until it is enabled again."""

    async def delete_webhook(self, org_id: OrgId, workspace_id: WorkspaceId, webhook_id: WebhookId) -> None:
        """Gone; nothing more is sent to it. Its deliveries are purged soon."""

    async def deliveries(
        self,
        org_id: OrgId,
        workspace_id: WorkspaceId,
        webhook_id: WebhookId,
        *,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[Delivery]:
        """What was sent to the webhook, or will be, newest event first."""

    async def redeliver(
        self, org_id: OrgId, workspace_id: WorkspaceId, webhook_id: WebhookId, delivery_id: OutboxId
    ) -> Delivery:
        """Send it again, whether it was delivered or not, and try for three days more."""

    async def purge_deliveries(self, *, limit: int = 1_000) -> int:
        """Erase deliveries whose time is over or whose webhook is gone; how many."""
