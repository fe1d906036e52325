"""Branches: where a turn hangs in the tree of its conversation, and which turns can be replaced or shown.

Decision: docs/decisions/0205
"""

from msgspec import Struct

from turnkeep.errors import InvalidRequest
from turnkeep.ids import TurnId
from turnkeep.model.turns import TurnStatus
from turnkeep.store.rules.refusals import no_turn


class Beside(Struct, frozen=True, kw_only=True):
    """The turn that a new turn replaces (edit, regenerate)."""

    parent_turn_id: TurnId | None
    status: TurnStatus
    started_at: int | None


class Place(Struct, frozen=True, kw_only=True):
    """The parent of a turn that starts now.

    With `is_branch` the visible chain must first be cut back (or switched) so that it ends with the parent.
    """

    parent: TurnId | None
    is_branch: bool = False


def check_replaceable(beside: Beside | None) -> None:
    """Raise unless a new turn may start beside this one. None: it is not a turn of the conversation.

    A turn that has not ended yet may be replaced: it keeps the conversation busy, and `if_busy` says what happens then.
    """
    if beside is None:
        raise no_turn()
    if beside.started_at is None and beside.status != "queued":
        raise InvalidRequest("This turn never started, so there is nothing to replace. Send a new one.")


def place_of(head: TurnId | None, beside: Beside | None) -> Place:
    """After the head; or, beside another turn, where that one started.

    A turn that was stopped before it started has no such place, so its successor goes after the head.
    """
    if beside is None or beside.started_at is None:
        return Place(parent=head)
    return Place(parent=beside.parent_turn_id, is_branch=True)
