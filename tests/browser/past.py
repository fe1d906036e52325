"""Conversations that were led before: written straight into the store, as the local user's own."""

from tests.browser.harness import House

from turnkeep.clock import system_clock
from turnkeep.ids import ConversationId, TurnId, new_message_id, new_turn_id
from turnkeep.model.messages import Message
from turnkeep.model.principals import Principal
from turnkeep.store.commands import Appended, NewConversation
from turnkeep_client.wire.blocks import Role, Text
from turnkeep_client.wire.parts import Part, TextPart
from turnkeep_client.wire.usage import Usage

ANSWER = "Answer {n}: **every** turn is kept.\n\n- one\n- two\n\n```python\nprint({n})\n```\n"


async def long_conversation(house: House, turns: int) -> ConversationId:
    """A conversation called `A long one`, with so many turns."""
    principal = await _local_user(house)
    made = await house.server.runtime.store.create_conversation(principal, NewConversation(title="A long one"))
    for number in range(turns):
        await append_turn(house, made.id, f"Question {number}", (TextPart(text=ANSWER.format(n=number)),))
    return made.id


async def append_turn(house: House, conversation_id: ConversationId, asked: str, answer: tuple[Part, ...]) -> None:
    """One more turn: a question, and an answer that shows these parts."""
    turn_id, now = new_turn_id(), system_clock()
    said = " ".join(part.text for part in answer if isinstance(part, TextPart))
    rows = (
        _row(conversation_id, turn_id, 0, "user", asked, now),
        _row(conversation_id, turn_id, 1, "assistant", said, now, display=answer),
    )
    turn = Appended(turn_id=turn_id, rows=rows, started_at=now, settled_at=now)
    await house.server.runtime.store.append(await _local_user(house), conversation_id, turn)


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


async def _local_user(house: House) -> Principal:
    runtime = house.server.runtime
    workspace = await runtime.store.workspace(runtime.home_org)
    member = await runtime.store.ensure_member(runtime.home_org, workspace.id, "local", role="admin")
    return Principal(org_id=runtime.home_org, workspace_id=workspace.id, user_id=member.id, role="admin")
