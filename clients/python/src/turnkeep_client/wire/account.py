"""The account on the wire: the caller, sessions, invites, tokens, keys, orgs, workspaces, models, usage, health."""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from turnkeep_client.wire.base import Count, Id, Model, Name, RequestBody, UserName, known_words

TurnSource = Literal["ui", "api"]
"""Where a turn was asked from: a page that users see, or the API."""

CallerRole = Literal["member", "admin", "service"]

SigninMethod = Literal["link", "oidc", "invite"]
"""How a person signed in to the page: by the link that the server prints, at the identity provider, by an invite."""

Scope = Literal["workspace", "user", "key"]
"""What a monthly limit is set on."""


Feature = Literal["files", "runs", "knowledge", "export"]
"""What scopes can leave out: files and attachments; runs and sandboxes; pages and tables; exports, imports, traces."""
Tokens = Annotated[int, Meta(ge=0, le=9_007_199_254_740_991)]
Money = Annotated[float, Meta(ge=0, le=1e12)]
GroupBy = Literal["user", "agent", "model", "day", "source"]


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


class PageSession(Struct, frozen=True, kw_only=True):
    """A browser that is signed in to the page. `browser` is how it calls itself; `is_current` marks that of the
    caller."""

    id: str
    method: Annotated[str, known_words(SigninMethod)]
    browser: str
    created_at: int
    last_used_at: int
    expires_at: int
    is_current: bool = False


class NewInvite(RequestBody, frozen=True, kw_only=True):
    """`user` is the host's id of the person, who is made a user if there is none of that id. A role or name that is
    left out stays as it is; that of a new user is `member`, and `user`."""

    user: UserName
    name: Name | None = None
    role: Literal["member", "admin"] | UnsetType = UNSET
    ttl_seconds: Annotated[int, Meta(ge=60, le=2_592_000)] = 259_200


class Invite(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A link that signs one user in, once. `url` is the link itself, shown once, when it is made."""

    id: str
    user: UserRef
    created_at: int
    expires_at: int
    url: str | None = None


class InviteSecret(RequestBody, frozen=True, kw_only=True):
    """What follows `#` in the link of an invite."""

    token: Annotated[str, Meta(min_length=1, max_length=200)]


class IdentityProvider(Struct, frozen=True, kw_only=True):
    """Where people sign in elsewhere: a name to show, and the address that begins a sign-in."""

    name: str
    url: str


class SigninWays(Struct, frozen=True, kw_only=True):
    """The ways to sign in to the page of this server. Links and invites always are."""

    provider: IdentityProvider | None


class SignedOut(Struct, frozen=True, kw_only=True):
    """`provider_url` leads to the sign-out of the identity provider, if the person came from one that has it."""

    provider_url: str | None


class Me(Struct, frozen=True, kw_only=True):
    """The caller, and what a page must know before it sends a message: the default model, the limits of files, and the
    scopes of the token or key (null: all that its role may). `session` is that of a browser on the page."""

    user: UserRef | None
    user_id: str | None
    workspace_id: str
    role: Annotated[str, known_words(CallerRole)]
    model: str
    max_file_bytes: int
    max_files_per_message: int
    scopes: GrantedScopes | None = None
    session: PageSession | None = None


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


class LimitPatch(RequestBody, frozen=True, kw_only=True):
    """Limits to change; null takes one away. Messages, tokens and cost are those of one month; parallel turns are those
    that run or wait at the same time."""

    monthly_message_limit: Count | UnsetType | None = UNSET
    monthly_token_limit: Tokens | UnsetType | None = UNSET
    monthly_cost_limit: Money | UnsetType | None = UNSET
    stored_byte_limit: Tokens | UnsetType | None = UNSET
    parallel_turn_limit: Count | UnsetType | None = UNSET


class NewLimits(RequestBody, frozen=True, kw_only=True):
    """Limits of something new, as in `LimitPatch`. Null: no limit."""

    monthly_message_limit: Count | None = None
    monthly_token_limit: Tokens | None = None
    monthly_cost_limit: Money | None = None
    stored_byte_limit: Tokens | None = None
    parallel_turn_limit: Count | None = None


class ShownLimits(Struct, frozen=True, kw_only=True):
    """The limits of a workspace, a user or a key; null: none."""

    monthly_message_limit: int | None
    monthly_token_limit: int | None
    monthly_cost_limit: float | None
    stored_byte_limit: int | None
    parallel_turn_limit: int | None


class UserPatch(LimitPatch, frozen=True, kw_only=True):
    """Fields to change; null takes a name or a limit away. A limit replaces that of the workspace for each user."""

    name: Name | UnsetType | None = UNSET
    role: Literal["member", "admin"] | UnsetType = UNSET
    is_disabled: bool | UnsetType = UNSET


class User(ShownLimits, frozen=True, kw_only=True):
    """A user of a workspace. A disabled user can do nothing. Tokens are those that go in and come out; the cost is in
    the currency of the server's prices."""

    id: str
    external_id: str
    workspace_id: str
    name: str | None
    role: Annotated[str, known_words(Literal["member", "admin"])]
    is_disabled: bool
    created_at: int


class NewKey(NewLimits, frozen=True, kw_only=True):
    name: Name
    requests_per_minute: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    allowed_tools: Annotated[list[Name], Meta(max_length=200)] | None = None
    scopes: Scopes | None = None


class Key(ShownLimits, frozen=True, kw_only=True, omit_defaults=True):
    """A service key. `workspace_id` is the one workspace that it is pinned to; null: it speaks for the whole org. `key`
    is the secret itself, shown once, when it is made."""

    id: str
    name: str
    workspace_id: str | None
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


class NewWorkspace(NewLimits, frozen=True, kw_only=True):
    """The limits whose names begin with `user_` are for each user that has no such limit of their own."""

    name: Name
    model: Model | None = None
    user_monthly_message_limit: Count | None = None
    user_monthly_token_limit: Tokens | None = None
    user_monthly_cost_limit: Money | None = None
    user_stored_byte_limit: Tokens | None = None
    user_parallel_turn_limit: Count | None = None
    title_model: Model | None = None
    """The model that writes titles of conversations; `off`: none does; null: that of the server."""


class WorkspacePatch(LimitPatch, frozen=True, kw_only=True):
    """Fields to change; null takes a model or a limit away."""

    name: Name | UnsetType = UNSET
    model: Model | UnsetType | None = UNSET
    user_monthly_message_limit: Count | UnsetType | None = UNSET
    user_monthly_token_limit: Tokens | UnsetType | None = UNSET
    user_monthly_cost_limit: Money | UnsetType | None = UNSET
    user_stored_byte_limit: Tokens | UnsetType | None = UNSET
    user_parallel_turn_limit: Count | UnsetType | None = UNSET
    title_model: Model | UnsetType | None = UNSET


class Workspace(ShownLimits, frozen=True, kw_only=True):
    """A container inside an org, with limits of its own, and limits for each user that has no such limit."""

    id: str
    name: str
    is_default: bool
    model: str | None
    user_monthly_message_limit: int | None
    created_at: int
    user_monthly_token_limit: int | None = None
    user_monthly_cost_limit: float | None = None
    user_stored_byte_limit: int | None = None
    user_parallel_turn_limit: int | None = None
    title_model: str | None = None


class ModelName(Struct, frozen=True, kw_only=True):
    """A model that this server can reach, as it is named in requests."""

    id: str
    provider: str


class Health(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether the server is alive (`ok`) and accepts turns (`ready`). `detail` is what an operator should know."""

    status: Annotated[str, known_words(Literal["ok", "ready"])]
    detail: str | None = None


class Messages(Struct, frozen=True, kw_only=True):
    """POSTs, by where they came from."""

    ui: int = 0
    api: int = 0


class KeyUsage(Struct, frozen=True, kw_only=True):
    """What one service key has used in one month, in all workspaces, and its limit."""

    messages: int
    limit: int | None


class UsageRow(Struct, frozen=True, kw_only=True):
    """What a group has used. `group` is the id of the user or agent, the model, the day or the source; null for turns
    without one. `cost` is null if no message of the group has a price; `unpriced_messages` are those without one."""

    group: str | None
    messages: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost: float | None
    unpriced_messages: int = 0
    user: UserRef | None = None
    """Grouped by user: who that is. Null for a user that was erased."""


class LimitUse(Struct, frozen=True, kw_only=True):
    """A limit, and how much of it is used. `name` is that of its field, as `monthly_token_limit`. Limits of stored
    bytes and of parallel turns are those of now, the others those of the month."""

    scope: Annotated[str, known_words(Scope)]
    name: str
    limit: float
    used: float


class UsageTurn(Struct, frozen=True, kw_only=True):
    """A turn, as usage counts it. `cost` is null for a turn without a price, and for one that has not ended."""

    id: str
    user: UserRef | None
    agent_id: str | None
    model: str | None
    source: Annotated[str, known_words(TurnSource)]
    status: str
    created_at: int
    started_at: int | None
    settled_at: int | None
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost: float | None


class MonthlyUsage(Struct, frozen=True, kw_only=True):
    """What one scope has used in one month. `messages` counts POSTs, never rows. `user` is the one whose month it is;
    null for that of a workspace. `rows` is empty unless groups are asked for. `limits` are those that hold for this
    user or workspace, and for the key that asks."""

    month: str
    messages: int
    by_source: Messages
    input_tokens: int
    output_tokens: int
    limit: int | None = None
    user: UserRef | None = None
    key: KeyUsage | None = None
    """The service key that asks; None for other callers, and for the operator's own keys, which have no limit."""
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost: float | None = None
    group_by: Annotated[str, known_words(GroupBy)] | None = None
    rows: Sequence[UsageRow] = ()
    limits: Sequence[LimitUse] = ()


class StartedErasure(Struct, frozen=True, kw_only=True):
    """A user is being erased. `GET /v1/erasures/{erasure_id}` tells when that is done."""

    erasure_id: str


class ErasedCounts(Struct, frozen=True, kw_only=True):
    """What an erasure has erased."""

    conversations: int = 0
    turns: int = 0
    messages: int = 0
    files: int = 0
    bytes: int = 0
    pages: int = 0
    tables: int = 0
    table_rows: int = 0


class Erasure(Struct, frozen=True, kw_only=True):
    """How far an erasure has come, and how much it has erased so far."""

    id: str
    status: Annotated[str, known_words(Literal["running", "done"])]
    counts: ErasedCounts
    created_at: int
    done_at: int | None = None
