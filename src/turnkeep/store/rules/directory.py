"""Rules of the directory: checks of names, limits, roles and months, what usage is shown, and every refusal."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from turnkeep.errors import Conflict, Forbidden, InvalidRequest, NotFound
from turnkeep.ids import AgentId, OrgId, UserId, WorkspaceId, check_id
from turnkeep.model.principals import LIMITS, ApiKey, Member, Org, Principal, Workspace
from turnkeep.store.checks import NAME_CHARS, check_hash, check_json, check_limit, check_text
from turnkeep.store.commands import CountedTurn, Page, UsageFilter, page_of
from turnkeep.store.cursors import decode_cursor, encode_cursor
from turnkeep.store.rows import json_or_null, json_text, to_member
from turnkeep.store.rules.files import name_key
from turnkeep_client.wire.account import GroupBy, KeyUsage, LimitUse, Messages, MonthlyUsage, Scope, UsageRow

DEFAULT_WORKSPACE = "Default"
"""The name of the workspace that an org begins with."""

MAX_TOKENS = 2**53 - 1

USAGE_ROWS = 10_000
"""Of more groups than this, those with most messages are shown."""

_DAY = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])")
_MONTH = re.compile(r"\d{4}-(0[1-9]|1[0-2])")


def oldest(orgs: Sequence[Org]) -> Org:
    """The org that was made first."""
    return min(orgs, key=lambda org: (org.created_at, org.id))


def reached_agents(principal: Principal) -> list[AgentId] | None:
    """The agents that the scopes name; None for all."""
    scopes = principal.scopes
    return None if scopes is None or isinstance(scopes.agents, str) else [AgentId(each) for each in scopes.agents]


def check_name(value: str) -> str:
    """The name, without spaces around it."""
    return check_text(value, "name", limit=NAME_CHARS).strip()


def check_model(value: str | None) -> str | None:
    return None if value is None else check_text(value, "model", limit=NAME_CHARS)


def check_cost(value: object) -> float | None:
    """A limit of money."""
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e15:
        raise InvalidRequest("A limit of money must be a number that is not negative, or absent.")
    return float(value)


def check_quota(value: object, *, most: int = 2**31 - 1) -> int | None:
    """A limit of messages, requests or tokens."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
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
        **limit_record({name: getattr(workspace, name) for name in LIMITS}),
        **{
            f"user_{name}": value
            for name, value in limit_record({name: getattr(workspace, f"user_{name}") for name in LIMITS}).items()
        },
        "title_model": check_model(workspace.title_model),
    }


def limit_record(limits: Mapping[str, Any]) -> dict[str, Any]:
    """The limits by the names of their columns, as they may be stored."""
    return {
        "monthly_message_limit": check_quota(limits["monthly_message_limit"]),
        "monthly_token_limit": check_quota(limits["monthly_token_limit"], most=MAX_TOKENS),
        "monthly_cost_limit": check_cost(limits["monthly_cost_limit"]),
        "stored_byte_limit": check_quota(limits["stored_byte_limit"], most=MAX_TOKENS),
        "parallel_turn_limit": check_quota(limits["parallel_turn_limit"]),
    }


def member_record(org_id: OrgId, member: Member) -> dict[str, Any]:
    """What a change of a member writes, and which member it is."""
    check_workspace(org_id, member.workspace_id)
    check_role(member.role)
    return {
        "org": org_id,
        "workspace": member.workspace_id,
        "user": check_id(member.id, "user"),
        "name": None if member.name is None else check_name(member.name),
        "role": member.role,
        "is_disabled": member.is_disabled,
        **limit_record({name: getattr(member, name) for name in LIMITS}),
    }


def members_query(
    org_id: OrgId, workspace_id: WorkspaceId, query: str | None, limit: int, cursor: str | None
) -> dict[str, Any]:
    """What a page of members is read with: one more than the page holds."""
    check_workspace(org_id, workspace_id)
    check_limit(limit)
    return {
        "org": org_id,
        "workspace": workspace_id,
        "after": "" if cursor is None else decode_cursor(cursor, "members", tuple[str])[0],
        "pattern": like_pattern(query),
        "limit": limit + 1,
    }


def members_page(rows: Sequence[Sequence[Any]], limit: int) -> Page[Member]:
    found = [to_member(row) for row in rows]
    return page_of(found, limit=limit, cursor_of=lambda member: encode_cursor("members", member.id))


def key_record(key: ApiKey, secret_hash: bytes) -> dict[str, Any]:
    """The columns of a new key."""
    check_id(key.id, "key")
    check_workspace(key.org_id, key.workspace_id)
    tools = check_json(key.allowed_tools, "allowed_tools")
    scopes = check_json(key.scopes, "scopes")
    return {
        "id": key.id,
        "org": key.org_id,
        "name": check_name(key.name),
        "hash": check_hash(secret_hash, "A secret"),
        "per_minute": check_quota(key.requests_per_minute),
        "tools": None if tools is None else json_text(tools),
        "created_at": key.created_at,
        "revoked_at": key.revoked_at,
        "workspace": key.workspace_id,
        "scopes": None if scopes is None else json_text(scopes),
        "ancestors": json_or_null(key.ancestors),
        "maker": key.ancestors[0] if key.ancestors else None,
        **limit_record({name: getattr(key, name) for name in LIMITS}),
    }


def check_key_is_new(*, has_org: bool, has_workspace: bool, has_maker: bool, is_same: bool) -> None:
    """Why a key could not be added. Nothing is raised if this very key is there: the answer was lost."""
    if not has_org:
        raise no_org()
    if not has_workspace:
        raise no_workspace()
    if not has_maker:
        raise Forbidden("The key that makes this one was revoked.")
    if not is_same:
        raise Conflict("This key exists already.")


def usage_scope(principal: Principal, user_id: UserId | None) -> tuple[str, str]:
    """Whose month is shown: that of the principal's user, of another user (to a service), or of the workspace."""
    user = principal.user_id or user_id
    return ("workspace", principal.workspace_id) if user is None else ("user", user)


def limit_of(scope: str, workspace: Workspace, own: Sequence[Any] | None) -> int | None:
    """The limit of messages of a workspace, or of a user: their own (`own`), or that of each user."""
    if scope == "workspace":
        return workspace.monthly_message_limit
    return workspace.user_monthly_message_limit if own is None or own[0] is None else own[0]


def monthly_usage(month: str, counted: Sequence[int], limit: int | None, key: Sequence[Any] | None) -> MonthlyUsage:
    """`counted` are messages from the web page, messages of the API, and tokens in and out. `key` is what the
    principal's own key has used, and its limit."""
    ui, api, input_tokens, output_tokens = counted
    return MonthlyUsage(
        month=month,
        messages=ui + api,
        by_source=Messages(ui=ui, api=api),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        limit=limit,
        key=None if key is None else KeyUsage(messages=key[0], limit=key[1]),
    )


def usage_query(principal: Principal, only: UsageFilter, group_by: GroupBy) -> dict[str, Any]:
    """What the usage of groups is read with. A member reads their own."""
    return _of_filter(principal, only) | {"group_by": group_by, "limit": USAGE_ROWS}


def _of_filter(principal: Principal, only: UsageFilter) -> dict[str, Any]:
    check_month(only.month)
    user_id = principal.user_id if principal.role == "member" else only.user_id
    if only.day is not None and not (_DAY.fullmatch(only.day) and only.day.startswith(only.month)):
        raise InvalidRequest("day must be one of that month, such as 2026-11-30.")
    return {
        "org": principal.org_id,
        "workspace": principal.workspace_id,
        "month": only.month,
        "user": None if user_id is None else check_id(user_id, "user"),
        "agent": None if only.agent_id is None else check_id(only.agent_id, "agent"),
        "model": check_model(only.model),
        "day": only.day,
    }


def usage_turns_query(principal: Principal, only: UsageFilter, limit: int, cursor: str | None) -> dict[str, Any]:
    """What a page of turns is read with: one more than the page holds."""
    check_limit(limit)
    which = _of_filter(principal, only)
    before = "turn_~" if cursor is None else decode_cursor(cursor, _turns_of(which), tuple[str])[0]
    return which | {"before": before, "limit": limit + 1}


def usage_turns_page(rows: Sequence[Sequence[Any]], which: Mapping[str, Any], limit: int) -> Page[CountedTurn]:
    found = [CountedTurn(*row) for row in rows]
    return page_of(found, limit=limit, cursor_of=lambda turn: encode_cursor(_turns_of(which), turn.id))


def _turns_of(which: Mapping[str, Any]) -> str:
    """The name of the list, for its cursors."""
    return " ".join(f"{name}={which[name]}" for name in ("workspace", "month", "user", "agent", "model", "day"))


def limits_query(principal: Principal, month: str, user_id: UserId | None) -> dict[str, Any]:
    """Whose limits are read: those that `usage` shows."""
    check_month(month)
    scope, scope_id = usage_scope(principal, None if user_id is None else UserId(check_id(user_id, "user")))
    return {
        "org": principal.org_id,
        "workspace": principal.workspace_id,
        "scope": scope,
        "user": scope_id if scope == "user" else None,
        "key": principal.key_id if principal.role == "service" else None,
        "month": month,
    }


class ScopeUse(Struct, frozen=True):
    """The limits of a scope, and what it has used of each. The fields are in the order of the query `limit_uses`."""

    scope: Scope
    scope_id: str
    limits: tuple[float | None, ...]
    used: tuple[float | None, ...]


def limit_uses_of(scopes: Sequence[ScopeUse], *, is_this_month: bool) -> list[LimitUse]:
    """The limits that are set."""
    return [
        LimitUse(scope=each.scope, name=name, limit=limit, used=used or 0)
        for each in scopes
        for name, limit, used in zip(LIMITS, each.limits, each.used, strict=True)
        if limit is not None and (is_this_month or name.startswith("monthly_"))
    ]


def usage_row(row: Sequence[Any]) -> UsageRow:
    """A group from a row of `usage_rows`. It has no cost if none of its ended turns has a price."""
    place, messages, input_tokens, output_tokens, cache_read, cache_write, cost, priced, unpriced = row
    return UsageRow(
        group=place or None,
        messages=messages,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cache_read_tokens=cache_read,
        cache_write_tokens=cache_write,
        cost=round(cost, 9) if priced else None,
        unpriced_messages=unpriced,
    )


def like_pattern(text: str | None) -> str | None:
    """The pattern for LIKE (escaped by `!`) that finds the text anywhere; None for no text."""
    if not text or not text.strip():
        return None
    folded = check_text(text, "q", limit=NAME_CHARS).strip().lower()
    return "%" + re.sub(r"([!%_])", r"!\1", folded) + "%"


def no_user() -> NotFound:
    return NotFound("No such user.")


def no_org() -> NotFound:
    return NotFound("No such org.")


def no_key() -> NotFound:
    return NotFound("No such key.")


def no_workspace() -> NotFound:
    return NotFound("No such workspace.")


def agent_name_key(name: str, before: str | None, others: Sequence[tuple[str | None, str | None]]) -> str | None:
    """The key of an agent's name, which no other agent of the workspace has. `others` are the keys and names of those
    that may have it; `before` is the name that the agent had.

    Raises Conflict if another agent has this name. An agent that keeps its name may share it, without a key: in
    earlier releases names could be given twice.
    """
    key = name_key(name.strip())
    if not any(other == key or (other is None and name_key((known or "").strip()) == key) for other, known in others):
        return key
    if before is not None and name_key(before.strip()) == key:
        return None
    raise agent_name_taken(name)


def agent_name_taken(name: str) -> Conflict:
    return Conflict(f"There is an agent called {name!r} in this workspace already. Choose another name.")


def no_connection() -> NotFound:
    return NotFound("No such connection. It may have been removed.")


def no_agent() -> NotFound:
    return NotFound("No such agent.")
