"""The append: a whole turn that happened elsewhere joins a conversation in which nothing runs or waits."""

from msgspec import Struct

from turnkeep.errors import ConversationBusy
from turnkeep.ids import ConversationId, TurnId
from turnkeep.store.rules.refusals import no_conversation, no_turn


class AppendFacts(Struct, frozen=True):
    """The conversation, what keeps it busy, and a turn that exists already under the id of the new one."""

    head_turn_id: TurnId | None
    next_ordinal: int
    running: TurnId | None
    started_at: int | None
    first_waiting: TurnId | None
    known_conversation_id: ConversationId | None
    known_ordinal: int | None
    is_nameless: bool


def check(facts: AppendFacts | None, conversation_id: ConversationId) -> AppendFacts:
    """The facts, if the turn may be appended, or if it was: then they have a `known_ordinal`. Raises the refusal."""
    if facts is None:
        raise no_conversation()
    if facts.known_conversation_id is not None:
        if facts.known_conversation_id != conversation_id:
            raise no_turn()
        return facts
    ahead = facts.running or facts.first_waiting
    if ahead is not None:
        raise ConversationBusy(ahead, facts.started_at)
    return facts
