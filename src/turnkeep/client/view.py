"""What a reader sees of a turn at this moment: the fold of its events, and behind it what is just being said."""

from typing import assert_never

from turnkeep.client.answers import Answer, Failed, File
from turnkeep.client.events import Delta, Event, Unknown
from turnkeep_client.wire.display import Display, fold
from turnkeep_client.wire.events import (
    Failure,
    Files,
    Reset,
    Result,
    Sources,
    Step,
    ToolCalls,
    TurnBegan,
    TurnEvent,
)
from turnkeep_client.wire.parts import Part
from turnkeep_client.wire.usage import Usage


class View:
    """Add events in order; read at any time.

    Words of a preview stand until the event comes that makes them true (`tool_calls`, `result`) or void (`reset`).
    """

    def __init__(self) -> None:
        self.began: TurnBegan | None = None
        self.ending: Result | Failure | None = None
        self.files: list[File] = []
        self._events: list[TurnEvent] = []
        self._display: Display | None = Display()
        self._said = ""
        self._preview: dict[str, list[str]] = {"text": [], "reasoning": []}

    def add(self, event: Event) -> None:
        match event:
            case Delta():
                self._preview[event.kind].append(event.text)
                return
            case Unknown():
                return
            case TurnBegan():
                self.began = event
            case ToolCalls():
                self._said = event.text or self._said
                self._forget_preview()
            case Reset():
                self._forget_preview()
            case Result() | Failure():
                self.ending = event
                self._forget_preview()
            case Files():
                self.files += event.files
            case Step() | Sources():
                pass
            case _:
                assert_never(event)
        self._events.append(event)
        self._display = None

    @property
    def text(self) -> str:
        """What is being said, or was said last; at the end the final answer's words."""
        if isinstance(self.ending, Result):
            return self.ending.message
        return "".join(self._preview["text"]) or self._said

    @property
    def is_speaking(self) -> bool:
        """Whether there are words that no event has made true yet."""
        return any(self._preview.values())

    @property
    def content(self) -> tuple[Part, ...]:
        """Everything that a reader sees, in order; once the turn has ended this is what history shows."""
        text, reasoning = "".join(self._preview["text"]), "".join(self._preview["reasoning"])
        return self.display.then_said(text=text, reasoning=reasoning).content

    @property
    def display(self) -> Display:
        """The same without the words that are just being said."""
        if self._display is None:
            self._display = fold(self._events)
        return self._display

    def answer(self, *, turn_id: str, conversation_id: str) -> Answer:
        """What the turn came to, after its terminal event."""
        ending = self.ending
        assert ending is not None, "the turn has not ended"
        status, error, usage = "succeeded", None, Usage()
        if isinstance(ending, Result):
            usage = ending.usage
        else:
            error = Failed(code=ending.code, message=ending.message)
            status = "cancelled" if ending.code == "cancelled" else "failed"
        message_id = ending.message_id
        return Answer(
            conversation_id=conversation_id,
            turn_id=turn_id,
            message_id=message_id if isinstance(message_id, str) else None,
            status=status,
            text=self.text,
            content=self.content,
            sources=self.display.sources,
            files=tuple(self.files),
            usage=usage,
            error=error,
        )

    def _forget_preview(self) -> None:
        self._preview = {"text": [], "reasoning": []}
