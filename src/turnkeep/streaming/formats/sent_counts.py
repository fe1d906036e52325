"""How much of the current iteration was sent to a reader that gets only deltas.

Formats that know only deltas cannot replace a preview by the event that contains it. They send the part that the
preview left out. So they count, separately for text and reasoning, what the reader has of the iteration. A reader may
reconnect to another worker long after the preview is gone, so the counts travel in the cursor.

Decision: docs/decisions/0402
"""

from msgspec import UNSET, Struct

from turnkeep.errors import InvalidRequest
from turnkeep.streaming.frames import WHOLE, Cursor, DeltaFrame, Kind
from turnkeep_client.wire.events import Result, ToolCalls
from turnkeep_client.wire.parts import ReasoningPart, TextPart


class SentCounts(Struct):
    """Code points of the current iteration that the reader has."""

    text: int = 0
    reasoning: int = 0

    def add(self, kind: Kind, count: int) -> None:
        if kind == "text":
            self.text += count
        else:
            self.reasoning += count

    def rest(self, event: ToolCalls | Result, *, seq: int) -> list[DeltaFrame]:
        """What the reader lacks of a complete iteration, as deltas just before event `seq`.

        Their order may differ from that of the preview. So a reader that is cut between them must not get more of the
        preview, which a hub that is behind may still have: their offset is one that no preview continues.
        """
        reasoning, text = texts_of(event)
        iteration = event.iteration if isinstance(event, ToolCalls) else 0
        missing: list[tuple[Kind, str]] = [("reasoning", reasoning[self.reasoning :]), ("text", text[self.text :])]
        return [
            DeltaFrame(seq=seq - 1, offset=WHOLE, iteration=iteration, kind=kind, text=words)
            for kind, words in missing
            if words
        ]


def texts_of(event: ToolCalls | Result) -> tuple[str, str]:
    """Reasoning and text of the iteration that this event completes.

    A result has its reasoning only in its content, before the final text, as every iteration before the last one is
    followed by a step.
    """
    if isinstance(event, ToolCalls):
        return "" if event.reasoning is UNSET else event.reasoning, event.text
    before = [part for part in event.content[-2:] if not isinstance(part, TextPart)]
    last = before[-1] if before else None
    return last.text if isinstance(last, ReasoningPart) else "", event.message


def state_numbers(cursor: Cursor, count: int) -> list[int] | None:
    """The numbers in a cursor's state, or None if it has none. InvalidRequest if they are not `count` numbers."""
    if not cursor.state:
        return None
    fields = cursor.state.split(".")
    if len(fields) != count or not all(field.isdecimal() and len(field) <= 9 for field in fields):
        raise InvalidRequest("This cursor comes from a stream of another format. Resume in the format that gave it.")
    return [int(field) for field in fields]
