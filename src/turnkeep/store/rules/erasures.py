"""Rules of erasures: what a job is made with, and what it counts."""

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from turnkeep.errors import InvalidRequest, NotFound
from turnkeep.ids import ConversationId, UserId, check_id
from turnkeep.model.principals import Principal
from turnkeep_client.wire.account import ErasedCounts

LEASE_MS = 15_000
"""A worker that erases has this much time for the next step. Then another worker may take the job over."""
KEPT_MS = 30 * 86_400_000
"""A job that has ended can be looked up for this long."""
ROWS_AT_ONCE = 1_000


def erased_thing(
    principal: Principal, user_id: UserId | None, conversation_id: ConversationId | None
) -> dict[str, str | None]:
    """What a job names. Raises InvalidRequest unless it is one thing."""
    if (user_id is None) == (conversation_id is None):
        raise InvalidRequest("An erasure is of one user, or of one conversation.")
    return {
        "org": principal.org_id,
        "workspace": principal.workspace_id,
        "user": None if user_id is None else check_id(user_id, "user"),
        "conversation": None if conversation_id is None else check_id(conversation_id, "conv"),
    }


def counted(counts: ErasedCounts, **more: int) -> ErasedCounts:
    """The counts with these more."""
    return structs.replace(counts, **{name: getattr(counts, name) + count for name, count in more.items()})


def size_counts(conversations: int, size: Sequence[Any]) -> dict[str, int]:
    """The counts of these conversations. `size` has their turns, messages, files and bytes."""
    turns, messages, files, bytes_ = size
    return {"conversations": conversations, "turns": turns, "messages": messages, "files": files, "bytes": bytes_}


def no_erasure() -> NotFound:
    return NotFound("No such erasure.")
