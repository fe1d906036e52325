"""Webhooks on the wire: endpoints of the host, what is sent to them, and how that went.

What is sent follows Standard Webhooks: the body is `{"type", "timestamp", "data"}` (`WebhookPayload`), and the headers
`webhook-id`, `webhook-timestamp` and `webhook-signature` prove where it comes from.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from turnkeep_client.wire.base import RequestBody, known_words
from turnkeep_client.wire.blocks import JsonObject

WebhookEvent = Literal[
    "turn.succeeded", "turn.failed", "turn.cancelled", "turn.waiting", "conversation.created", "file.created"
]
"""What a webhook can hear of."""
DeliveryStatus = Literal["pending", "delivered", "failed"]
"""A delivery is pending until the endpoint took it, or its three days are over."""

Url = Annotated[str, Meta(min_length=1, max_length=2_000)]
Events = Annotated[tuple[WebhookEvent, ...], Meta(min_length=1, max_length=20)]


class NewWebhook(RequestBody, frozen=True, kw_only=True):
    """`url` is sent what happens in the workspace; `events` says what it hears of."""

    url: Url
    events: Events
    is_enabled: bool = True


class WebhookPatch(RequestBody, frozen=True, kw_only=True):
    """Fields to change. Null leaves a field as it is."""

    url: Url | None = None
    events: Events | None = None
    is_enabled: bool | None = None


class Webhook(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An endpoint of the host. `secret` signs what is sent to it; it is shown once, when the webhook is made. A webhook
    that is disabled hears of nothing; `disabled_reason` says why the server has disabled it."""

    id: str
    workspace_id: str
    url: str
    events: Sequence[str]
    is_enabled: bool
    created_at: int
    updated_at: int
    disabled_reason: str | None = None
    secret: str | None = None


class WebhookPayload(Struct, frozen=True, kw_only=True):
    """The body that an endpoint gets. `timestamp` is when it happened (ISO 8601). `data` has ids and small facts, no
    words of a conversation: read those through the API."""

    type: Annotated[str, known_words(WebhookEvent)]
    timestamp: str
    data: JsonObject


class WebhookDelivery(Struct, frozen=True, kw_only=True):
    """One event on its way to one webhook. `id` is the `webhook-id` that the endpoint sees, the same at every attempt.
    `attempts` counts from the event, or from the last redelivery. `next_attempt_at` is null once the delivery has
    ended, and while the webhook is disabled. `response_status` and `error` are those of the last attempt."""

    id: str
    webhook_id: str
    type: Annotated[str, known_words(WebhookEvent)]
    status: Annotated[str, known_words(DeliveryStatus)]
    attempts: int
    created_at: int
    next_attempt_at: int | None
    last_attempt_at: int | None
    response_status: int | None
    error: str | None
    payload: WebhookPayload
