"""Who owns what: the parameters by which a write finds only what its principal may change."""

from typing import Any

from turnkeep.ids import ConversationId
from turnkeep.model.principals import Principal
from turnkeep.store.rules.refusals import check_service, no_conversation, no_file, no_turn
from turnkeep.store.sqlite.io.session import Row, Session

__all__ = [
    "check_service",
    "conversation_for_write",
    "in_workspace",
    "no_conversation",
    "no_file",
    "no_turn",
    "owner_of",
]


def in_workspace(principal: Principal) -> dict[str, Any]:
    """For what everyone in the workspace shares."""
    return {"org": principal.org_id, "workspace": principal.workspace_id}


def owner_of(principal: Principal) -> dict[str, Any]:
    """`user` is None for a service that acts for no user, which means the whole workspace.

    A missing user is no such service: the empty name owns nothing.
    """
    user: str | None = principal.user_id
    if user is None and principal.role != "service":
        user = ""
    return in_workspace(principal) | {"user": user}


def conversation_for_write(session: Session, principal: Principal, conversation_id: ConversationId) -> Row:
    """`head_turn_id, next_ordinal, kind, running turn, first waiting turn` of a conversation of the principal's."""
    found = session.row("conversation_for_write", owner_of(principal) | {"conversation": conversation_id})
    if found is None:
        raise no_conversation()
    return found
