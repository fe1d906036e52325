"""Rules of the directory: checks of names, limits, roles and months, what usage is shown, and every refusal."""

import re
from collections.abc import Sequence
from typing import Any

from turnkeep.errors import Conflict, InvalidRequest, NotFound
from turnkeep.ids import OrgId, UserId, WorkspaceId, check_id
from turnkeep.model.principals import ApiKey, Principal, Workspace
from turnkeep.store.checks import NAME_CHARS, check_hash, check_json, check_text
from turnkeep.store.rows import json_text
from turnkeep_client.wire.account import KeyUsage, Messages, MonthlyUsage

DEFAULT_WORKSPACE = "Default"
"""The name of the workspace that an org begins with."""

_MONTH = re.compile(r"\d{4}-(0[1-9]|1[0-2])")


def check_name(value: str) -> str:
    """The name, without spaces around it."""
    return check_text(value, "name", limit=NAME_CHARS).strip()


def check_model(value: str | None) -> str | None:
    return None if value is None else check_text(value, "model", limit=NAME_CHARS)


def check_quota(value: object) -> int | None:
    """A limit of messages or requests."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        raise InvalidRequest("A limit must be a whole number that is not negative, or absent.")
    return value


def check_role(value: str | None) -> None:
    if value not in {None, "member", "admin"}:
        raise InvalidRequest("role must be member or admin.")


def check_month(value: str | None) -> None:
    if value is not None and not _MONTH.fullmatch(value):
        raise InvalidRequest("month must look like 2026-11.")


def check_may_go(is_default: bool, has_conversations: bool, has_files: bool, has_knowledge: bool) -> None:
    """Whether a workspace may be deleted. Raises Conflict that says what is in the way."""
    if is_default:
        raise Conflict("The default workspace of an org cannot be deleted.")
    if has_conversations or has_files or has_knowledge:
        held = "conversations" if has_conversations else "files" if has_files else "pages or tables"
        raise Conflict(f"This workspace holds {held}. Delete them, and wait until they are purged.")


def check_workspace(org_id: OrgId, workspace_id: WorkspaceId | None) -> None:
    """Whether these can be ids. None as workspace means the default one, or none."""
    check_id(org_id, "org")
    if workspace_id is not None:
        check_id(workspace_id, "ws")


def workspace_record(workspace: Workspace) -> dict[str, Any]:
    """What a change of a workspace writes, and which workspace it is."""
    check_workspace(workspace.org_id, workspace.id)
    return {
        "org": workspace.org_id,
        "workspace": workspace.id,
        "name": check_name(workspace.name),
        "model": check_model(workspace.model),
        "limit": check_quota(workspace.monthly_message_limit),
        "user_limit": check_quota(workspace.user_monthly_message_limit),
    }


def key_record(key: ApiKey, secret_hash: bytes) -> dict[str, Any]:
    """The columns of a new key."""
    check_id(key.id, "key")
    check_workspace(key.org_id, key.workspace_id)
    tools = check_json(key.allowed_tools, "allowed_tools")
    return {
        "id": key.id,
        "org": key.org_id,
        "name": check_name(key.name),
        "hash": check_hash(secret_hash, "A secret"),
        "limit": check_quota(key.monthly_message_limit),
        "per_minute": check_quota(key.requests_per_minute),
        "tools": None if tools is None else json_text(tools),
        "created_at": key.created_at,
        "revoked_at": key.revoked_at,
        "workspace": key.workspace_id,
    }


def check_key_is_new(*, has_org: bool, has_workspace: bool, is_same: bool) -> None:
    """Why a key could not be added. Nothing is raised if this very key is there: the answer was lost."""
    if not has_org:
        raise no_org()
    if not has_workspace:
        raise no_workspace()
    if not is_same:
        raise Conflict("This key exists already.")


def usage_scope(principal: Principal, user_id: UserId | None) -> tuple[str, str]:
    """Whose month is shown: that of the principal's user, of another user (to a service), or of the workspace."""
    user = principal.user_id or user_id
    return ("workspace", principal.workspace_id) if user is None else ("user", user)


def monthly_usage(
    month: str, scope: str, counted: Sequence[int], workspace: Workspace, key: Sequence[Any] | None
) -> MonthlyUsage:
    """`counted` are messages from the web page, messages of the API, and tokens in and out. `key` is what the
    principal's own key has used, and its limit."""
    ui, api, input_tokens, output_tokens = counted
    is_user = scope == "user"
    return MonthlyUsage(
        month=month,
        messages=ui + api,
        by_source=Messages(ui=ui, api=api),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        limit=workspace.user_monthly_message_limit if is_user else workspace.monthly_message_limit,
        key=None if key is None else KeyUsage(messages=key[0], limit=key[1]),
    )


def no_org() -> NotFound:
    return NotFound("No such org.")


def no_key() -> NotFound:
    return NotFound("No such key.")


def no_workspace() -> NotFound:
    return NotFound("No such workspace.")


def no_agent() -> NotFound:
    return NotFound("No such agent.")
