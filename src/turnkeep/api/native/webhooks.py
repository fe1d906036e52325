"""Webhooks: endpoints of the host that hear of what happens in a workspace, and the deliveries to them."""

import secrets
from typing import Any

from msgspec import structs
from starlette.types import ASGIApp

from turnkeep.api import views
from turnkeep.api.http.endpoints import ApiCall, Endpoints, Nothing, Policy, ResponseSpec
from turnkeep.api.http.responses import json_response, no_content
from turnkeep.api.native.query_parameters import ListQuery, PageQuery, page_of
from turnkeep.ids import OrgId, OutboxId, WebhookId, WorkspaceId
from turnkeep.model.outbox import SECRET_BYTES, Webhook, webhook_secret
from turnkeep.tools.vault import SecretUnreadable, Vault
from turnkeep_client import wire

endpoints = Endpoints("webhooks")

ONE = "/v1/webhooks/{webhook_id}"
WEBHOOK = ResponseSpec(status=200, meaning="The webhook", type=wire.Webhook)


@endpoints.add(
    "GET",
    "/v1/webhooks",
    policy=Policy.ADMIN,
    query=ListQuery,
    responses=(ResponseSpec(status=200, meaning="Webhooks, newest first", type=wire.Page[wire.Webhook]),),
)
async def list_webhooks(call: ApiCall[Nothing, ListQuery]) -> ASGIApp:
    """The webhooks of the workspace."""
    found = await call.runtime.store.webhooks(*_workspace(call))
    return json_response(page_of([views.webhook_of(one) for one in found], call.query, name=lambda one: one.id))


@endpoints.add(
    "POST",
    "/v1/webhooks",
    policy=Policy.ADMIN,
    body=wire.NewWebhook,
    responses=(ResponseSpec(status=201, meaning="The new webhook; `secret` is shown only once", type=wire.Webhook),),
    errors=(409, 507),
)
async def create_webhook(call: ApiCall[wire.NewWebhook, Nothing]) -> ASGIApp:
    """Let an endpoint of yours hear of what happens in the workspace, from now on."""
    body, runtime = call.body, call.runtime
    await runtime.webhooks.check(body.url)
    secret = webhook_secret(secrets.token_bytes(SECRET_BYTES))
    made = await runtime.store.create_webhook(
        *_workspace(call),
        url=body.url,
        events=_ordered(body.events),
        is_enabled=body.is_enabled,
        secret=runtime.vault.seal(call.principal.org_id, secret),
    )
    return json_response(views.webhook_of(made, secret=secret), status=201)


@endpoints.add("GET", ONE, policy=Policy.ADMIN, responses=(WEBHOOK,), errors=(404,))
async def read_webhook(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """One webhook, without its secret."""
    return json_response(views.webhook_of(await call.runtime.store.webhook(*_workspace(call), _id(call))))


@endpoints.add("PATCH", ONE, policy=Policy.ADMIN, body=wire.WebhookPatch, responses=(WEBHOOK,), errors=(404, 507))
async def change_webhook(call: ApiCall[wire.WebhookPatch, Nothing]) -> ASGIApp:
    """Change address, events, or whether the webhook is enabled. The secret stays. What is pending waits while the
    webhook is disabled; what happens meanwhile is not sent later."""
    body, vault = call.body, call.runtime.vault
    if body.url is not None:
        await call.runtime.store.webhook(*_workspace(call), _id(call))  # a foreign id is 404, whatever the address
        await call.runtime.webhooks.check(body.url)

    def change(before: Webhook) -> Webhook:
        return structs.replace(
            before,
            url=before.url if body.url is None else body.url,
            events=before.events if body.events is None else _ordered(body.events),
            is_enabled=before.is_enabled if body.is_enabled is None else body.is_enabled,
            secret=_renewed(vault, before),
        )

    return json_response(
        views.webhook_of(await call.runtime.store.change_webhook(*_workspace(call), _id(call), change))
    )


@endpoints.add(
    "DELETE", ONE, policy=Policy.ADMIN, responses=(ResponseSpec(status=204, meaning="Deleted"),), errors=(404, 507)
)
async def delete_webhook(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Delete a webhook with its deliveries, those that are pending included."""
    await call.runtime.store.delete_webhook(*_workspace(call), _id(call))
    return no_content()


@endpoints.add(
    "GET",
    f"{ONE}/deliveries",
    policy=Policy.ADMIN,
    query=PageQuery,
    responses=(
        ResponseSpec(status=200, meaning="Deliveries, newest event first", type=wire.Page[wire.WebhookDelivery]),
    ),
    errors=(404,),
)
async def list_deliveries(call: ApiCall[Nothing, PageQuery]) -> ASGIApp:
    """What was sent to the webhook, and what is still to be sent. Deliveries are kept for seven days."""
    page = await call.runtime.store.deliveries(
        *_workspace(call), _id(call), limit=call.query.limit, cursor=call.query.cursor or None
    )
    return json_response(wire.Page(data=list(map(views.delivery_of, page.data)), next_cursor=page.next_cursor))


@endpoints.add(
    "POST",
    f"{ONE}/deliveries/{{delivery_id}}/redeliver",
    policy=Policy.ADMIN,
    responses=(ResponseSpec(status=202, meaning="It is sent in a moment", type=wire.WebhookDelivery),),
    errors=(404, 507),
)
async def redeliver(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Send a delivery again, under the same id, and try for three days if the endpoint does not take it."""
    delivery_id = OutboxId(call.id("delivery_id", "evt"))
    again = await call.runtime.store.redeliver(*_workspace(call), _id(call), delivery_id)
    return json_response(views.delivery_of(again), status=202)


def _workspace(call: ApiCall[Any, Any]) -> tuple[OrgId, WorkspaceId]:
    return call.principal.org_id, call.principal.workspace_id


def _id(call: ApiCall[Any, Any]) -> WebhookId:
    return WebhookId(call.id("webhook_id", "webhook"))


def _renewed(vault: Vault, webhook: Webhook) -> str:
    """Its secret, sealed with the first key."""
    try:
        return vault.renew(webhook.org_id, webhook.secret)
    except SecretUnreadable:
        return webhook.secret  # its key may come back


def _ordered(events: tuple[str, ...]) -> tuple[str, ...]:
    """Each event once."""
    return tuple(dict.fromkeys(events))
