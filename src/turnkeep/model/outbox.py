"""The outbox: reports to other systems, kept from the moment of the event until they are delivered; and webhooks, the
endpoints of the host that are sent such reports."""

import base64
import hashlib
import hmac
from datetime import UTC, datetime
from typing import Literal

from msgspec import Struct

from turnkeep.ids import ConversationId, OrgId, OutboxId, UserId, WebhookId, WorkspaceId
from turnkeep_client.wire.blocks import JsonObject
from turnkeep_client.wire.webhooks import DeliveryStatus, WebhookPayload

OutboxType = Literal["turn.succeeded", "turn.failed", "turn.cancelled", "turn.waiting", "title.wanted"]
"""What an entry tells the outside; `title.wanted` is work for the engine (`engine/titles.py`)."""

SECRET_PREFIX = "whsec_"
SECRET_BYTES = 32


class OutboxEntry(Struct, frozen=True, kw_only=True):
    """One thing that happened. A receiver may get it more than once, and recognises it by its id.

    `subject_id` is what it happened to: the turn, for `turn.…`. `attempts` is how often a worker has taken the entry in
    order to deliver it. `request_id` is the id of the request that asked the turn.
    """

    id: OutboxId
    org_id: OrgId
    workspace_id: WorkspaceId
    user_id: UserId | None
    type: OutboxType
    conversation_id: ConversationId | None
    subject_id: str
    created_at: int
    attempts: int = 0
    request_id: str | None = None


class Webhook(Struct, frozen=True, kw_only=True):
    """An endpoint of the host. Its secret is sealed (`tools/vault.py`)."""

    id: WebhookId
    org_id: OrgId
    workspace_id: WorkspaceId
    url: str
    events: tuple[str, ...]
    is_enabled: bool
    disabled_reason: str | None
    secret: str
    created_at: int
    updated_at: int


class Delivery(Struct, frozen=True, kw_only=True):
    """One event on its way to one webhook, as `turnkeep_client.wire.WebhookDelivery` explains it.

    `id` is that of the event. `not_before` is None once the delivery has ended, and while the webhook is disabled.
    """

    webhook_id: WebhookId
    id: OutboxId
    type: str
    data: JsonObject
    status: DeliveryStatus
    attempts: int
    created_at: int
    not_before: int | None
    give_up_at: int
    last_attempt_at: int | None
    response_status: int | None
    error: str | None

    @property
    def payload(self) -> WebhookPayload:
        """The body that is sent, the same at every attempt."""
        at = datetime.fromtimestamp(self.created_at / 1000, UTC).isoformat(timespec="milliseconds")
        return WebhookPayload(type=self.type, timestamp=at.replace("+00:00", "Z"), data=self.data)


class TakenDelivery(Struct, frozen=True, kw_only=True):
    """A delivery that a worker has leased in order to send it, and where it goes."""

    delivery: Delivery
    webhook: Webhook


def webhook_secret(random: bytes) -> str:
    """The secret of these bytes, as libraries of Standard Webhooks expect it."""
    return SECRET_PREFIX + base64.b64encode(random).decode()


def webhook_headers(secret: str, event_id: str, seconds: int, body: bytes) -> dict[str, str]:
    """The headers of Standard Webhooks: which event this is, when it is sent (Unix time), and a signature of both and
    of the body. A receiver refuses what is old, so a copy that is sent later is of no use."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    signed = f"{event_id}.{seconds}.".encode() + body
    signature = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return {"webhook-id": event_id, "webhook-timestamp": str(seconds), "webhook-signature": f"v1,{signature}"}
