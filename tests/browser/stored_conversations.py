"""Conversations of the local user, written directly into the store."""

from tests.browser.harness import Harness
from turnkeep.clock import system_clock
from turnkeep.ids import ConversationId, TurnId, new_message_id, new_turn_id
from turnkeep.model.messages import Message
from turnkeep.model.principals import Principal
from turnkeep.store.commands import Appended, NewConversation
from turnkeep_client.wire.blocks import Part, Role, Text, TextPart, Usage

ANSWER = "Answer {n}: **every** turn is kept.\n\n- one\n- two\n\n```python\nprint({n})\n```\n"


async def long_conversation(harness: Harness, turns: int) -> ConversationId:
    """A conversation called `A long one`, with this many turns."""
    user = await _local_user(harness)
    store = harness.server.runtime.store
    conversation = await store.create_conversation(user, NewConversation(title="A long one"))
    for number in range(turns):
        turn = _turn(conversation.id, f"Question {number}", (TextPart(text=ANSWER.format(n=number)),))
        await store.append(user, conversation.id, turn)
    return conversation.id


async def append_turn(
    harness: Harness, conversation_id: ConversationId, question: str, answer: tuple[Part, ...]
) -> None:
    """Append a turn: a question, and an answer with these parts."""
    turn = _turn(conversation_id, question, answer)
    await harness.server.runtime.store.append(await _local_user(harness), conversation_id, turn)


def _turn(conversation_id: ConversationId, question: str, answer: tuple[Part, ...]) -> Appended:
    turn_id, now = new_turn_id(), system_clock()
    text = " ".join(part.text for part in answer if isinstance(part, TextPart))
    rows = (
        _row(conversation_id, turn_id, 0, "user", question, now),
        _row(conversation_id, turn_id, 1, "assistant", text, now, display=answer),
    )
    return Appended(turn_id=turn_id, rows=rows, started_at=now, settled_at=now)


def _row(
    conversation_id: ConversationId,
    turn_id: TurnId,
    sequence: int,
    role: Role,
    text: str,
    now: int,
    display: tuple[Part, ...] | None = None,
) -> Message:
    return Message(
        id=new_message_id(),
        turn_id=turn_id,
        conversation_id=conversation_id,
        turn_sequence=sequence,
        role=role,
        blocks=(Text(text=text),),
        created_at=now,
        display=display,
        usage=Usage() if display else None,
        iteration=1 if display else None,
    )


async def _local_user(harness: Harness) -> Principal:
    runtime = harness.server.runtime
    workspace = await runtime.store.workspace(runtime.home_org)
    member = await runtime.store.ensure_member(runtime.home_org, workspace.id, "local", role="admin")
    return Principal(org_id=runtime.home_org, workspace_id=workspace.id, user_id=member.id, role="admin")
