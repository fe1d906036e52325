"""The account on the wire: the caller, tokens, service keys, orgs, workspaces, models, usage, health."""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from turnkeep_client.wire.base import Count, Id, Model, Name, RequestBody, UserName, known_words

TurnSource = Literal["ui", "api"]
"""Where a turn was asked from: a page that users see, or the API."""

CallerRole = Literal["member", "admin", "service"]

Scope = Literal["workspace", "user", "key"]
"""What a monthly limit is set on."""


Feature = Literal["files", "runs", "knowledge", "export"]
"""What scopes can leave out: files and attachments; runs and sandboxes; pages and tables; exports, imports, traces."""
Tokens = Annotated[int, Meta(ge=0, le=9_007_199_254_740_991)]
Money = Annotated[float, Meta(ge=0, le=1e12)]


class UserRef(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A user, as other things show them: the id here, the id that the host gave (`external_id`), and a name if there is
    one."""

    id: str
    external_id: str
    name: str | None = None


class Scopes(RequestBody, frozen=True, kw_only=True):
    """What a token or a key may reach. `*`, or a field that is left out, is everything that a member may. With a list
    of agents, every turn needs one of them. With an empty list of models, the caller cannot choose a model."""

    agents: Annotated[tuple[Id, ...], Meta(max_length=50)] | Literal["*"] = "*"
    models: Annotated[tuple[Model, ...], Meta(max_length=50)] | Literal["*"] = "*"
    features: Annotated[tuple[Feature, ...], Meta(max_length=10)] | Literal["*"] = "*"


class GrantedScopes(Struct, frozen=True, kw_only=True):
    """The scopes of a token or a key, as they are shown."""

    agents: Sequence[str] | str
    models: Sequence[str] | str
    features: Sequence[str] | str


class Me(Struct, frozen=True, kw_only=True):
    """The caller, and what a page must know before it sends a message: the default model, the limits of files, and the
    scopes of the token or key (null: all that its role may)."""

    user: UserRef | None
    user_id: str | None
    workspace_id: str
    role: Annotated[str, known_words(CallerRole)]
    model: str
    max_file_bytes: int
    max_files_per_message: int
    scopes: GrantedScopes | None = None


class NewToken(RequestBody, frozen=True, kw_only=True):
    """`source` says for which count its messages are: those of a page (`ui`), or of the API."""

    user: UserName
    workspace_id: Id | None = None
    ttl_seconds: Annotated[int, Meta(ge=1, le=86_400)] = 3_600
    role: Literal["member", "admin"] | UnsetType = UNSET
    scopes: Scopes | None = None
    source: TurnSource = "ui"


class Token(Struct, frozen=True, kw_only=True):
    """A short-lived token of one user."""

    token: str
    expires_at: int
    user: UserRef


class UserPatch(RequestBody, frozen=True, kw_only=True):
    """Fields to change; null takes a name or a limit away. A limit of messages replaces that of the workspace for each
    user."""

    name: Name | UnsetType | None = UNSET
    role: Literal["member", "admin"] | UnsetType = UNSET
    is_disabled: bool | UnsetType = UNSET
    monthly_message_limit: Count | UnsetType | None = UNSET
    monthly_token_limit: Tokens | UnsetType | None = UNSET
    monthly_cost_limit: Money | UnsetType | None = UNSET


class User(Struct, frozen=True, kw_only=True):
    """A user of a workspace. A disabled user can do nothing. Tokens are those that go in and come out; the cost is in
    the currency of the server's prices."""

    id: str
    external_id: str
    workspace_id: str
    name: str | None
    role: Annotated[str, known_words(Literal["member", "admin"])]
    is_disabled: bool
    monthly_message_limit: int | None
    monthly_token_limit: int | None
    monthly_cost_limit: float | None
    created_at: int


class NewKey(RequestBody, frozen=True, kw_only=True):
    name: Name
    monthly_message_limit: Count | None = None
    requests_per_minute: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    allowed_tools: Annotated[list[Name], Meta(max_length=200)] | None = None
    scopes: Scopes | None = None


class Key(Struct, frozen=True, kw_only=True, omit_defaults=True):
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
    scopes: GrantedScopes | None
    key: str | None = None


class NewOrg(RequestBody, frozen=True, kw_only=True):
    name: Name


class Org(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tenant. `key` is its first service key, shown once, when it is made."""

    id: str
    name: str
    created_at: int
    key: str | None = None


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
    """What one scope has used in one month. `messages` counts POSTs, never rows. `user` is the one whose month it is;
    null for that of a workspace."""

    month: str
    messages: int
    by_source: Messages
    input_tokens: int
    output_tokens: int
    limit: int | None = None
    user: UserRef | None = None
    key: KeyUsage | None = None
    """The service key that asks; None for other callers, and for the operator's own keys, which have no limit."""
