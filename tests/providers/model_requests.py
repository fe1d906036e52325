"""Requests as the compiler makes them, and their replies."""

from collections.abc import Sequence
from typing import Any

from tests.providers.wire.vendors import Line
from turnkeep.compiler import compile
from turnkeep.ids import ConversationId, TurnId, new_message_id
from turnkeep.model.messages import Message
from turnkeep.providers.ports import Delta, ModelRequest, ProviderEvent, Reply, ToolOffer
from turnkeep_client.wire.blocks import Block, Role, Text

WEATHER = ToolOffer(
    name="weather",
    description="What the weather is.",
    input_schema={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
TURN = TurnId("turn_1")


def row(role: Role, *blocks: Block, number: int = 0) -> Message:
    return Message(
        id=new_message_id(),
        turn_id=TURN,
        conversation_id=ConversationId("conv_1"),
        turn_sequence=number,
        role=role,
        blocks=blocks,
        created_at=1,
        provider=None,
    )


async def request_for(line: Line, *rows: Message, system: str = "Be brief.", **fields: Any) -> ModelRequest:
    """What the engine would send to this provider."""
    model = fields.pop("model", line.vendor.model)
    can = await line.provider.abilities(model)
    compiled = compile(
        rows or (row("user", Text(text="How is Bern?")),),
        target=line.provider.target,
        open_turn=TURN,
        system=system,
        thinking=can.thinking,
        sees_images=can.sees_images,
    )
    usual: dict[str, Any] = {"tools": (WEATHER,), "timeout_seconds": 20.0}
    return ModelRequest(
        model=model,
        messages=compiled.messages,
        system=compiled.system,
        may_think=compiled.thinking,
        **(usual | fields),
    )


async def ask(line: Line, *rows: Message, **fields: Any) -> list[ProviderEvent]:
    request = await request_for(line, *rows, **fields)
    return [piece async for piece in line.provider.speak(request)]


async def answer(line: Line, *rows: Message, **fields: Any) -> Reply:
    """The whole reply, which is the last thing and the only one of its kind."""
    pieces = await ask(line, *rows, **fields)
    replies = [piece for piece in pieces if isinstance(piece, Reply)]
    assert replies == pieces[-1:]
    return replies[0]


def shown(pieces: Sequence[ProviderEvent], kind: str = "text") -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, Delta) and piece.kind == kind)
