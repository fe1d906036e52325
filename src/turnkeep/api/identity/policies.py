"""Policies: which callers an endpoint accepts. `Identity` says who the caller is.

A policy decides who may call. Which rows the caller then sees is decided by the store.
"""

from enum import StrEnum

from msgspec import Struct

from turnkeep.errors import Forbidden
from turnkeep.model.principals import Principal
from turnkeep_client.wire.conversations import TurnSource


class Identity(Struct, frozen=True, kw_only=True):
    """An authenticated caller: its principal, and whether it is the bundled page (`ui`) or another client (`api`)."""

    principal: Principal
    source: TurnSource = "api"
    requests_per_minute: int | None = None
    is_operator: bool = False
    """The key comes from the server's own configuration (the local key, the bootstrap key). It may manage tenants."""


class Policy(StrEnum):
    """Who may call an endpoint."""

    PUBLIC = "public"
    """Anybody, without a key."""
    MEMBER = "member"
    """A user of the workspace, or a service key."""
    ADMIN = "admin"
    """An admin of the workspace, or a service key."""
    KEY = "key"
    """A service key, also one that is pinned to a workspace."""
    SERVICE = "service"
    """A service key of the whole org."""
    OPERATOR = "operator"
    """The operator's own service key: the local one, or the bootstrap key."""
    TURN = "turn"
    """The sandbox of the turn in the path, with a token of that turn. The handler checks the token."""
    SIGNED = "signed"
    """A caller with an address that this server signed. The handler checks the signature."""

    @property
    def identifies(self) -> bool:
        """Whether a key or a token names the caller before the handler runs."""
        return self not in {Policy.PUBLIC, Policy.TURN, Policy.SIGNED}


def check_policy(policy: Policy, identity: Identity) -> None:
    """Raises Forbidden unless the caller's role is allowed."""
    principal = identity.principal
    match policy:
        case Policy.OPERATOR if not identity.is_operator:
            raise Forbidden("This needs the operator's own key: the local one, or TURNKEEP_BOOTSTRAP_KEY.")
        case Policy.KEY if principal.role != "service":
            raise Forbidden("This needs a service key.")
        case Policy.SERVICE if not principal.is_org_wide:
            raise Forbidden("This needs a service key of the whole org.")
        case Policy.ADMIN if principal.role == "member":
            raise Forbidden("This needs an admin of the workspace, or a service key.")
        case _:
            return
