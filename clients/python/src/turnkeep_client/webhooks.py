"""Webhooks: endpoints of yours that hear of what happens, and the deliveries to them."""

from collections.abc import AsyncGenerator, Sequence

from turnkeep_client.transport import Resource, given, part
from turnkeep_client.wire import Webhook, WebhookDelivery, WebhookEvent


class Webhooks(Resource):
    """The webhooks of a workspace (admins only)."""

    def list(self) -> AsyncGenerator[Webhook, None]:
        """The webhooks, newest first."""
        return self._pages("/v1/webhooks", Webhook)

    async def create(self, url: str, events: Sequence[WebhookEvent], *, is_enabled: bool = True) -> Webhook:
        """Let an endpoint hear of these events from now on; `webhook.secret` is shown only once."""
        body = given(url=url, events=events, is_enabled=is_enabled)
        return await self._transport.call("POST", "/v1/webhooks", Webhook, body=body)

    async def get(self, webhook_id: str) -> Webhook:
        """One webhook, without its secret."""
        return await self._transport.call("GET", _path(webhook_id), Webhook)

    async def update(
        self,
        webhook_id: str,
        *,
        url: str | None = None,
        events: Sequence[WebhookEvent] | None = None,
        is_enabled: bool | None = None,
    ) -> Webhook:
        """Change these fields. While a webhook is disabled, what is pending waits."""
        body = given(url=url, events=events, is_enabled=is_enabled)
        return await self._transport.call("PATCH", _path(webhook_id), Webhook, body=body)

    async def delete(self, webhook_id: str) -> None:
        """Delete a webhook with its deliveries."""
        await self._transport.fetch("DELETE", _path(webhook_id))

    def deliveries(self, webhook_id: str) -> AsyncGenerator[WebhookDelivery, None]:
        """What was sent to the webhook within the last seven days, and what is still to be sent, newest event first."""
        return self._pages(f"{_path(webhook_id)}/deliveries", WebhookDelivery)

    async def redeliver(self, webhook_id: str, delivery_id: str) -> WebhookDelivery:
        """Send a delivery again, under the same id."""
        path = f"{_path(webhook_id)}/deliveries/{part(delivery_id)}/redeliver"
        return await self._transport.call("POST", path, WebhookDelivery)


def _path(webhook_id: str) -> str:
    return f"/v1/webhooks/{part(webhook_id)}"
