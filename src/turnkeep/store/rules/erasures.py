"""Rules of erasures: what a job is made with, and what it counts."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import structs

from turnkeep.errors import InvalidRequest, NotFound
from turnkeep.ids import ConversationId, UserId, check_id
from turnkeep.model.principals import Principal
from turnkeep.model.waits import Wait
from turnkeep_client.wire.account import ErasedCounts

LEASE_MS = 15_000
"""A worker that erases has this much time for the next step. Then another worker may take the job over."""
KEPT_MS = 30 * 86_400_000
"""A job that has ended can be looked up for this long."""
ROWS_AT_ONCE = 1_000
TURNS_AT_ONCE = 2_000
PAGES_AT_ONCE = 50
DECISIONS_AT_ONCE = 50
TEXTS_AT_ONCE = 50
"""What one step erases at most, so that no statement takes long and other writes are not held up."""


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


def in_steps(sizes: Sequence[tuple[ConversationId, int]]) -> Iterator[list[ConversationId]]:
    """The conversations in groups that are erased together. `sizes` has the turns of each. A group has few turns, or is
    one conversation."""
    group: list[ConversationId] = []
    turns = 0
    for conversation_id, size in sizes:
        if group and turns + size > TURNS_AT_ONCE:
            yield group
            group, turns = [], 0
        group.append(conversation_id)
        turns += size
    if group:
        yield group


def counted(counts: ErasedCounts, **more: int) -> ErasedCounts:
    """The counts with these more."""
    return structs.replace(counts, **{name: getattr(counts, name) + count for name, count in more.items()})


def size_counts(conversations: int, size: Sequence[Any]) -> dict[str, int]:
    """The counts of these conversations. `size` has their turns, messages, files and bytes."""
    turns, messages, files, bytes_ = size
    return {"conversations": conversations, "turns": turns, "messages": messages, "files": files, "bytes": bytes_}


def forgotten_words(wait: Wait, user_id: UserId) -> list[tuple[str, str]]:
    """What a turn of another user holds of this one, who decided about its calls, and what is put in its place.

    Both are parts of JSON as it is stored. The longer ones come first.
    """
    pairs: dict[str, str] = {}
    for call in wait.calls:
        answer = call.answer
        if answer is None or answer.by_id != user_id:
            continue
        by, reason = _inner(answer.by), _inner(answer.reason or "")
        if reason:
            pairs[f"Denied by {by}: {reason}"] = "Denied."
            pairs[f'"reason":"{reason}"'] = '"reason":""'
        if by:
            pairs[f"Denied by {by}."] = "Denied."
            pairs[f"Allowed by {by}, but"] = "Allowed, but"
            pairs[f"that were allowed by {by}."] = "that were allowed."
            pairs[f"({by} changed the arguments"] = "(A person changed the arguments"
            pairs[f'"by":"{by}","at":'] = '"by":"","at":'
        pairs[f'"by_id":"{user_id}"'] = '"by_id":""'
    return sorted(pairs.items(), key=lambda pair: -len(pair[0]))


def _inner(text: str) -> str:
    """The text as it stands inside of a JSON string."""
    return msgspec.json.encode(text).decode()[1:-1]


def no_erasure() -> NotFound:
    return NotFound("No such erasure.")
