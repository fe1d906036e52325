"""Rules of the outbox and of webhooks: which entry a turn writes, when a delivery is tried again, and every refusal."""

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct, structs

from turnkeep.errors import Conflict, NotFound
from turnkeep.ids import OrgId, OutboxId, TurnId, WebhookId, WorkspaceId, check_id, new_webhook_id
from turnkeep.model.outbox import OutboxType, Webhook
from turnkeep.model.turns import FinalStatus
from turnkeep.store.checks import check_text
from turnkeep.store.commands import AttemptOutcome
from turnkeep.store.rows import json_text
from turnkeep.store.rules.directory import check_workspace

URL_CHARS = 2_000
MOST_WEBHOOKS = 50
"""Per workspace."""
GIVE_UP_MS = 3 * 86_400_000
"""For so long a delivery is tried. The triggers of migration 0017 know the same figure."""
KEPT_MS = 7 * 86_400_000
"""Deliveries are erased so long after their event."""
PURGED_AT_ONCE = 1_000
"""So many deliveries of a deleted webhook go with it. Others are purged later."""
AFTER_EVERY_EVENT = "evt_g"
"""Ids are hexadecimal, so this sorts after all of them."""
GONE = "The endpoint answered 410 Gone. Enable the webhook once it is back."

ToldStatus = FinalStatus | Literal["waiting"]

_TYPES: dict[ToldStatus, OutboxType] = {
    "succeeded": "turn.succeeded",
    "failed": "turn.failed",
    "cancelled": "turn.cancelled",
    "waiting": "turn.waiting",
}


class NewEntry(Struct, frozen=True, kw_only=True):
    """An entry about a turn. The database adds tenant, user, conversation and moment, which are those of the turn."""

    id: OutboxId
    type: OutboxType
    turn_id: TurnId


def told_turn(entry_id: OutboxId, turn_id: TurnId, status: ToldStatus) -> NewEntry:
    """The entry of a turn that ends now, or waits. Every way in which a turn can end writes one."""
    return NewEntry(id=entry_id, type=_TYPES[status], turn_id=turn_id)


def webhook_record(
    org_id: OrgId, workspace_id: WorkspaceId, *, url: str, events: Sequence[str], is_enabled: bool, secret: str
) -> dict[str, Any]:
    """What a new webhook is written with."""
    check_workspace(org_id, workspace_id)
    return {
        "id": new_webhook_id(),
        "org": org_id,
        "workspace": workspace_id,
        "url": check_text(url, "url", limit=URL_CHARS),
        "events": json_text(events),
        "is_enabled": is_enabled,
        "secret": secret,
        "most": MOST_WEBHOOKS,
    }


def changed_webhook(before: Webhook, after: Webhook) -> dict[str, Any]:
    """What a changed webhook is written with. One that is enabled again has no reason to be disabled."""
    if after.is_enabled:
        after = structs.replace(after, disabled_reason=None)
    return {
        "id": before.id,
        "url": check_text(after.url, "url", limit=URL_CHARS),
        "events": json_text(after.events),
        "is_enabled": after.is_enabled,
        "disabled_reason": after.disabled_reason,
        "secret": after.secret,
    }


def named_webhook(org_id: OrgId, workspace_id: WorkspaceId, webhook_id: WebhookId) -> dict[str, str]:
    check_workspace(org_id, workspace_id)
    return {"org": org_id, "workspace": workspace_id, "id": check_id(webhook_id, "webhook")}


def ended_attempt(outcome: AttemptOutcome) -> dict[str, Any]:
    """What the end of an attempt is written with. Without a pause the delivery has ended."""
    pause = None if outcome.pause_seconds is None else int(outcome.pause_seconds * 1000)
    return {
        "response_status": outcome.response_status,
        "error": outcome.error,
        "pause": pause,
        "status": "delivered" if outcome.error is None else "failed",
    }


def no_webhook() -> NotFound:
    return NotFound("No such webhook.")


def no_delivery() -> NotFound:
    return NotFound("No such delivery. Deliveries are erased seven days after their event.")


def too_many_webhooks() -> Conflict:
    return Conflict(f"A workspace has at most {MOST_WEBHOOKS} webhooks. Delete one that is not used any more.")
