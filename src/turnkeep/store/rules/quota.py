"""Quota: what a turn is counted for, the monthly limits of messages, and how a model call is counted once."""

import hashlib
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from turnkeep.errors import QuotaExceeded
from turnkeep.ids import CallId, KeyId, TurnId, UserId, WorkspaceId

Scope = Literal["workspace", "user", "key"]

_NAMES: dict[Scope, str] = {"workspace": "This workspace", "user": "This user", "key": "This API key"}


class Limits(Struct, frozen=True, kw_only=True):
    """The monthly limits of messages that apply to a claim. None: no limit."""

    workspace: int | None = None
    user: int | None = None
    key: int | None = None

    def of(self, scope: Scope) -> int | None:
        match scope:
            case "workspace":
                return self.workspace
            case "user":
                return self.user
            case "key":
                return self.key


def scopes(workspace_id: WorkspaceId, user_id: UserId | None, key_id: KeyId | None) -> list[tuple[Scope, str]]:
    """What a turn is counted for, in the order in which every transaction locks the counters."""
    counted: list[tuple[Scope, str]] = []
    if key_id is not None:
        counted.append(("key", key_id))
    if user_id is not None:
        counted.append(("user", user_id))
    counted.append(("workspace", workspace_id))
    return counted


def check(limits: Limits, counted: Mapping[Scope, int]) -> None:
    """Raise QuotaExceeded if a counter, with the new message in it, is over its limit.

    Call it after counting and before the commit. The counters are locked then, so of two claims at limit - 1 one
    passes.
    """
    for scope, name in _NAMES.items():
        limit = limits.of(scope)
        if limit is not None and counted.get(scope, 0) > limit:
            raise QuotaExceeded(
                f"{name} has used up its limit of {limit} messages a month. "
                "Raise the limit, or wait for the next month."
            )


def call_mark(turn_id: TurnId, call_id: CallId) -> bytes:
    """Marks a model call whose tokens were counted. It is stored as a one-time token that no secret can spend."""
    return hashlib.sha256(f"model call\0{turn_id}\0{call_id}".encode()).digest()
