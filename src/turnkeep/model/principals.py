"""Principals: who asks, and within which scopes. Orgs, workspaces, members and service keys."""

from typing import Literal

from msgspec import Struct

from turnkeep.errors import NotFound, OutOfScope
from turnkeep.ids import AgentId, KeyId, OrgId, UserId, WorkspaceId
from turnkeep_client.wire.account import CallerRole as Role
from turnkeep_client.wire.account import Feature, Scopes, UserRef

__all__ = ["ApiKey", "Feature", "Member", "Org", "Principal", "Role", "Scopes", "UsageLimits", "UserRef", "Workspace"]


class Principal(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who asks: a service key (role `service`, perhaps acting for a user), or a user inside one workspace.

    Without `user_id` (service only) it sees the whole workspace; with one, that user's conversations alone.
    `allowed_tools` are those of the key that it came with, or that made its token; None: any. A name that ends with
    `*` stands for all that begin so. Turns keep it in their snapshot, so it holds on every worker.
    `is_pinned`: it came with a service key of this one workspace, which has no more rights than an admin of it.
    `user` is how the user of `user_id` is shown, also to tools. `scopes` are those of the key or token; None: no bounds
    beside the role. `key_ancestors` are the keys that `key_id` counts with.
    """

    org_id: OrgId
    workspace_id: WorkspaceId
    user_id: UserId | None
    role: Role
    key_id: KeyId | None = None
    allowed_tools: tuple[str, ...] | None = None
    is_pinned: bool = False
    user: UserRef | None = None
    scopes: Scopes | None = None
    key_ancestors: tuple[KeyId, ...] = ()

    @property
    def is_org_wide(self) -> bool:
        """A service key of the whole org: it sees internal rows and reaches every workspace."""
        return self.role == "service" and not self.is_pinned

    def may_use(self, tool: str) -> bool:
        if self.allowed_tools is None:
            return True
        return any(tool.startswith(name[:-1]) if name.endswith("*") else tool == name for name in self.allowed_tools)

    def reaches(self, agent_id: AgentId) -> bool:
        """Whether the scopes allow this agent."""
        return self.scopes is None or self.scopes.agents == "*" or agent_id in self.scopes.agents

    def check_agent(self, agent_id: AgentId | None) -> None:
        """Raises NotFound for an agent outside the scopes, and OutOfScope for none where the scopes name agents."""
        if agent_id is not None and not self.reaches(agent_id):
            raise NotFound("No such agent.")
        if agent_id is None and self.scopes is not None and self.scopes.agents != "*":
            raise OutOfScope("This token or key reaches only certain agents. Name one of them in `agent_id`.")

    def may_choose(self, model: str) -> bool:
        """Whether the caller may name this model. The model of an agent or a workspace is not the caller's choice."""
        return self.scopes is None or self.scopes.models == "*" or model in self.scopes.models

    def check_model(self, model: str | None) -> None:
        """Raises OutOfScope for a model that the scopes leave out. None: the caller names no model."""
        if model is not None and not self.may_choose(model):
            raise OutOfScope(f"The scopes of this token or key do not include the model {model[:200]!r}.")

    def check_feature(self, feature: Feature) -> None:
        """Raises OutOfScope for a feature that the scopes leave out."""
        if self.scopes is not None and self.scopes.features != "*" and feature not in self.scopes.features:
            raise OutOfScope(f"The scopes of this token or key do not include the feature `{feature}`.")

    @property
    def counted_keys(self) -> tuple[KeyId, ...]:
        """The keys for which a message counts: the own one, and those that made it."""
        return () if self.key_id is None else (self.key_id, *self.key_ancestors)

    @property
    def ref(self) -> str:
        """Whose idempotency keys these are."""
        return self.user_id or self.key_id or self.workspace_id


class Org(Struct, frozen=True, kw_only=True):
    """A tenant."""

    id: OrgId
    name: str
    created_at: int


class UsageLimits(Struct, frozen=True, kw_only=True):
    """What a workspace, a user or a key may use. Messages, tokens and cost are those of one month. Parallel turns are
    those that run or wait at the same time. None: any number."""

    monthly_message_limit: int | None = None
    monthly_token_limit: int | None = None
    monthly_cost_limit: float | None = None
    stored_byte_limit: int | None = None
    parallel_turn_limit: int | None = None


LIMITS = UsageLimits.__struct_fields__


NO_TITLE_MODEL = "off"
"""The title model of a workspace in which titles are the beginnings of questions."""


class Workspace(UsageLimits, frozen=True, kw_only=True):
    """A container inside an org. `is_default` marks the one that a key means when it names none.

    The limits whose names begin with `user_` hold for each user that has no such limit of their own.
    """

    id: WorkspaceId
    org_id: OrgId
    name: str
    is_default: bool
    model: str | None
    created_at: int
    user_monthly_message_limit: int | None = None
    user_monthly_token_limit: int | None = None
    user_monthly_cost_limit: float | None = None
    user_stored_byte_limit: int | None = None
    user_parallel_turn_limit: int | None = None
    title_model: str | None = None
    """The model that writes titles of conversations, or `NO_TITLE_MODEL`. None: that of the server."""


class Member(UsageLimits, frozen=True, kw_only=True):
    """A user inside one workspace; `external_id` is what the host calls them.

    Each limit takes the place of the one that the workspace sets for each user.
    """

    id: UserId
    workspace_id: WorkspaceId
    external_id: str
    role: Literal["member", "admin"]
    created_at: int
    name: str | None = None
    is_disabled: bool = False

    @property
    def shown(self) -> UserRef:
        return UserRef(id=self.id, external_id=self.external_id, name=self.name)


class ApiKey(UsageLimits, frozen=True, kw_only=True):
    """A service key as it may be shown: never the secret, which is stored hashed.

    With `workspace_id` it is pinned to that workspace; with None it speaks for the whole org. What the keys use that it
    made counts for its limits too.
    """

    id: KeyId
    org_id: OrgId
    workspace_id: WorkspaceId | None
    name: str
    requests_per_minute: int | None
    allowed_tools: tuple[str, ...] | None
    created_at: int
    revoked_at: int | None
    scopes: Scopes | None = None
    ancestors: tuple[KeyId, ...] = ()
    """The key that made this one, the maker of that key, and so on: the messages of this key count for all of them."""
