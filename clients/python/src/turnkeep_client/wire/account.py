"""The account on the wire: the caller, tokens, service keys, orgs, workspaces, models, usage, health."""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from turnkeep_client.wire.base import Count, Id, Model, Name, RequestBody, UserName, known_words

CallerRole = Literal["member", "admin", "service"]

Scope = Literal["workspace", "user", "key"]
"""What a monthly limit is set on."""


class Me(Struct, frozen=True, kw_only=True):
    """The caller, and what a page must know before it sends a message: the default model, and the limits of
    files."""

    user_id: str | None
    workspace_id: str
    role: Annotated[str, known_words(CallerRole)]
    model: str
    max_file_bytes: int
    max_files_per_message: int


class NewToken(RequestBody, frozen=True, kw_only=True):
    user: UserName
    workspace_id: Id | None = None
    ttl_seconds: Annotated[int, Meta(ge=1, le=86_400)] = 3_600
    role: Literal["member", "admin"] | UnsetType = UNSET


class Token(Struct, frozen=True, kw_only=True):
    """A short-lived token of one user."""

    token: str
    expires_at: int


class NewKey(RequestBody, frozen=True, kw_only=True):
    name: Name
    monthly_message_limit: Count | None = None
    requests_per_minute: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    allowed_tools: Annotated[list[Name], Meta(max_length=200)] | None = None


class Key(Struct, frozen=True, kw_only=True):
    """A service key. `workspace_id` is the one workspace that it is pinned to; null: it speaks for the whole org. `key`
    is the secret itself, shown once, when it is made."""

    id: str
    name: str
    workspace_id: str | None
    monthly_message_limit: int | None
    requests_per_minute: int | None
    allowed_tools: Sequence[str] | None
    created_at: int
    revoked_at: int | None
    key: str | UnsetType = UNSET


class NewOrg(RequestBody, frozen=True, kw_only=True):
    name: Name


class Org(Struct, frozen=True, kw_only=True):
    """A tenant. `key` is its first service key, shown once, when it is made."""

    id: str
    name: str
    created_at: int
    key: str | UnsetType = UNSET


class NewWorkspace(RequestBody, frozen=True, kw_only=True):
    name: Name
    model: Model | None = None
    monthly_message_limit: Count | None = None
    user_monthly_message_limit: Count | None = None


class WorkspacePatch(RequestBody, frozen=True, kw_only=True):
    """Fields to change; null takes a model or a limit away."""

    name: Name | UnsetType = UNSET
    model: Model | UnsetType | None = UNSET
    monthly_message_limit: Count | UnsetType | None = UNSET
    user_monthly_message_limit: Count | UnsetType | None = UNSET


class Workspace(Struct, frozen=True, kw_only=True):
    """A container inside an org, with limits of its own."""

    id: str
    name: str
    is_default: bool
    model: str | None
    monthly_message_limit: int | None
    user_monthly_message_limit: int | None
    created_at: int


class ModelName(Struct, frozen=True, kw_only=True):
    """A model that this server can reach, as it is named in requests."""

    id: str
    provider: str


class Health(Struct, frozen=True, kw_only=True):
    """Whether the server is alive (`ok`) and accepts turns (`ready`)."""

    status: Annotated[str, known_words(Literal["ok", "ready"])]


class Messages(Struct, frozen=True, kw_only=True):
    """POSTs, by where they came from."""

    ui: int = 0
    api: int = 0


class KeyUsage(Struct, frozen=True, kw_only=True):
    """What one service key has used in one month, in all workspaces, and its limit."""

    messages: int
    limit: int | None


class MonthlyUsage(Struct, frozen=True, kw_only=True):
    """What one scope has used in one month. `messages` counts POSTs, never rows."""

    month: str
    messages: int
    by_source: Messages
    input_tokens: int
    output_tokens: int
    limit: int | None = None
    key: KeyUsage | None = None
    """The service key that asks; None for other callers, and for the operator's own keys, which have no limit."""
