"""What the model is told about its place: the agent's instructions, the workspace, its skills, the talk so far."""

import re
from collections.abc import Sequence

from turnkeep.ids import ConversationId, TurnId, new_message_id, new_turn_id
from turnkeep.model.messages import Message
from turnkeep.runner.envelope import ChatTurn, Config, Skill
from turnkeep_client.wire.blocks import Text

SUMMARY_CHARS = 400

_PLACE = """\
You work in a sandbox: a Linux box with a shell and Python, without a network, that is erased after your answer. Your \
folder is /workspace. Files that the user attached are in /workspace/assets. Whatever you leave in /workspace/assets, \
new or changed, is given to the user; nothing else is kept."""

_SKILLS = """\
You have skills, each a folder below /workspace/skills with instructions in SKILL.md and programs that run_recipe \
runs. Read a skill's SKILL.md before you use it."""

_FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)\n---\s*\n", re.DOTALL)
_DESCRIPTION = re.compile(r"^description:\s*(.+?)\s*$", re.MULTILINE)


def instructions(config: Config) -> str:
    """The agent's own words first, then where it is, then what it can learn."""
    parts = [config.agent.instructions.strip(), _PLACE]
    if config.agent.skills:
        parts += [_SKILLS, "\n".join(f"- {skill.name}: {summary(skill)}" for skill in config.agent.skills)]
    return "\n\n".join(part for part in parts if part)


def summary(skill: Skill) -> str:
    """The description from the front matter of SKILL.md, or its first line that is more than a heading."""
    text = skill.files.get("SKILL.md", "")
    front = _FRONT_MATTER.match(text)
    if front and (found := _DESCRIPTION.search(front[1])):
        return found[1].strip("\"'")[:SUMMARY_CHARS]
    body = text[front.end() :] if front else text
    lines = [line.strip() for line in body.splitlines() if line.strip()]
    words = next((line for line in lines if not line.startswith("#")), lines[0].lstrip("# ") if lines else "")
    return words[:SUMMARY_CHARS] or "no description"


def history(turns: Sequence[ChatTurn], conversation_id: ConversationId) -> list[Message]:
    """The talk so far as rows: a user's words begin a turn, the assistant's belong to the one that is open."""
    rows: list[Message] = []
    turn_id, sequence = new_turn_id(), 0
    for entry in turns:
        if entry.role == "user" and rows:
            turn_id, sequence = new_turn_id(), 0
        rows.append(
            Message(
                id=new_message_id(),
                turn_id=turn_id,
                conversation_id=conversation_id,
                turn_sequence=sequence,
                role=entry.role,
                blocks=(Text(text=entry.content),),
                created_at=entry.ts,
            )
        )
        sequence += 1
    return rows


def question(prompt: str, turn_id: TurnId, conversation_id: ConversationId, *, now: int) -> Message:
    return Message(
        id=new_message_id(),
        turn_id=turn_id,
        conversation_id=conversation_id,
        turn_sequence=0,
        role="user",
        blocks=(Text(text=prompt),),
        created_at=now,
    )
