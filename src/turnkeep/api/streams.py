"""Streams of turns: the reader's cursor, and the frames that follow it."""

from typing import cast

from starlette.types import ASGIApp

from turnkeep.errors import InvalidRequest
from turnkeep.model.turns import Turn
from turnkeep.runtime import Runtime
from turnkeep.streaming.cursor import START, Cursor, parse
from turnkeep.streaming.follow import follow, is_over
from turnkeep.streaming.formats import FormatName, encoder_for


async def cursor_of(runtime: Runtime, turn: Turn, text: str | None, *, format: FormatName) -> tuple[Cursor, bool]:
    """Where a reader wants to go on, and whether nothing will ever follow it.

    Raises InvalidRequest for a cursor that is malformed, that the turn has not reached, or that is of another format.
    """
    if not text:
        return START, False
    cursor = parse(text)
    if cursor.state and format == "native":
        raise InvalidRequest(
            f"The cursor {text} is of another format. Go on in the format that gave it, or leave it out."
        )
    return cursor, await is_over(runtime.store, runtime.hub, turn.id, cursor)


def stream_turn(runtime: Runtime, turn: Turn, *, format: FormatName, cursor: Cursor = START) -> ASGIApp:
    """The stream of the turn after the cursor. While it is open the turn counts as watched."""
    encoder = encoder_for(format, turn_id=turn.id, model=turn.model, created_at=turn.created_at, cursor=cursor)
    stream = runtime.streams.respond(
        follow(runtime.store, runtime.hub, turn.id, cursor),
        encoder,
        attach=lambda: runtime.engine.attach(turn.id),
        headers=((b"turnkeep-turn", turn.id.encode()),),
    )
    return cast(ASGIApp, stream)
