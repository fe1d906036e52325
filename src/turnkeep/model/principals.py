"""Principals: who asks. Orgs, workspaces, members and service keys."""

from typing import Literal

from msgspec import Struct

from turnkeep.ids import KeyId, OrgId, UserId, WorkspaceId
from turnkeep_client.wire.account import CallerRole as Role


class Principal(Struct, frozen=True, kw_only=True):
    """Who asks: a service key (role `service`, perhaps acting for a user), or a user inside one workspace.

    Without `user_id` (service only) it sees the whole workspace; with one, that user's conversations alone.
    `allowed_tools` are those of the key that it came with, or that made its token; None: any. A name that ends with
    `*` stands for all that begin so. Turns keep it in their snapshot, so it holds on every worker.
    `is_pinned`: it came with a service key of this one workspace, which has no more rights than an admin of it.
    """

    org_id: OrgId
    workspace_id: WorkspaceId
    user_id: UserId | None
    role: Role
    key_id: KeyId | None = None
    allowed_tools: tuple[str, ...] | None = None
    is_pinned: bool = False

    @property
    def is_org_wide(self) -> bool:
        """A service key of the whole org: it sees internal rows and reaches every workspace."""
        return self.role == "service" and not self.is_pinned

    def may_use(self, tool: str) -> bool:
        if self.allowed_tools is None:
            return True
        return any(tool.startswith(name[:-1]) if name.endswith("*") else tool == name for name in self.allowed_tools)

    @property
    def ref(self) -> str:
        """Whose idempotency keys these are."""
        return self.user_id or self.key_id or self.workspace_id


class Org(Struct, frozen=True, kw_only=True):
    """A tenant."""

    id: OrgId
    name: str
    created_at: int


class Workspace(Struct, frozen=True, kw_only=True):
    """A container inside an org. `is_default` marks the one that a key means when it names none."""

    id: WorkspaceId
    org_id: OrgId
    name: str
    is_default: bool
    model: str | None
    monthly_message_limit: int | None
    user_monthly_message_limit: int | None
    created_at: int


class Member(Struct, frozen=True, kw_only=True):
    """A user inside one workspace; `external_id` is what the host calls them."""

    id: UserId
    workspace_id: WorkspaceId
    external_id: str
    role: Literal["member", "admin"]
    created_at: int


class ApiKey(Struct, frozen=True, kw_only=True):
    """A service key as it may be shown: never the secret, which is stored hashed.

    With `workspace_id` it is pinned to that workspace; with None it speaks for the whole org.
    """

    id: KeyId
    org_id: OrgId
    workspace_id: WorkspaceId | None
    name: str
    monthly_message_limit: int | None
    requests_per_minute: int | None
    allowed_tools: tuple[str, ...] | None
    created_at: int
    revoked_at: int | None
