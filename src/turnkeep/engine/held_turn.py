"""A turn that this worker holds: everything that is the same whether its loop runs here or in a sandbox."""

from abc import ABC, abstractmethod
from typing import Literal

import msgspec
from msgspec import UNSET

from turnkeep.engine.recorder import Recorder
from turnkeep.engine.recovery import USAGE
from turnkeep.engine.services import LoopServices
from turnkeep.engine.tool_calls import shown_to_readers, told_to_model
from turnkeep.errors import LeaseLost
from turnkeep.ids import new_message_id
from turnkeep.model.messages import Message
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Turn
from turnkeep.store.commands import Settled, Settlement
from turnkeep.tools.ports import Outcome
from turnkeep_client.wire.blocks import Block, Text, ToolResult, ToolUse
from turnkeep_client.wire.display import Display
from turnkeep_client.wire.events import ToolCalls, TurnEvent
from turnkeep_client.wire.usage import Usage

WHOLE_RESULT = "result"
"""Key in the metadata of a tool result's row: the whole result, where readers were shown only its beginning."""

MAX_REPLY_CHARS = 400_000
"""Maximum length of one reply. A model that says more does not come to an end."""


class HeldTurn(ABC):
    """One turn, held by this worker. `work` runs it until it is settled, or raises the reason why it cannot be."""

    can_be_handed_over: bool
    """Whether another worker could continue the turn. If not, it ends when this worker ends."""

    def __init__(self, services: LoopServices, turn: Turn, recorder: Recorder) -> None:
        """`services` hold the settings as they are for this turn. Raises LeaseLost for a turn without a principal."""
        self.turn = turn
        self.recorder = recorder
        self.settings = services.settings
        self.usage = Usage()
        self._principal = principal_of(turn)
        self._observer = services.observer
        self._clock = services.clock
        self._iteration = 0

    @property
    def settled(self) -> Settled | None:
        return self.recorder.settled

    @abstractmethod
    async def work(self) -> None: ...

    async def wind_up(self) -> tuple[TurnEvent, ...]:
        """Called before every ending: brings `usage` up to date, and returns the events that must precede the last
        one."""
        return ()

    async def settle(self, settlement: Settlement) -> None:
        self._observer.reached("settling", self.turn.id)
        await self.recorder.settle(settlement)
        self._observer.reached("settled", self.turn.id)

    def final_row(self, text: str, *, display: Display) -> Message:
        """The visible row of an answer: its last words, and everything that a reader saw of the turn."""
        blocks: tuple[Block, ...] = (Text(text=text),) if text else ()
        row = self.row("assistant", blocks, internal=False, iteration=self._iteration)
        return shown(row, display, usage=self.usage)

    def broken_off(self, *, text: str, reasoning: str) -> ToolCalls:
        """The event of an iteration that was not finished: its words so far, and no calls."""
        return ToolCalls(iteration=self._iteration, text=text, calls=(), reasoning=reasoning or UNSET)

    def result_row(self, call: ToolUse, outcome: Outcome) -> Message:
        content, is_error = told_to_model(outcome, limit=self.settings.tool_result_chars)
        block = ToolResult(call_id=call.id, content=content, is_error=is_error)
        row = self.row("user", (block,), internal=True, iteration=max(0, self._iteration - 1))
        if shown_to_readers(outcome.result) is outcome.result:
            return row
        return msgspec.structs.replace(row, metadata={WHOLE_RESULT: outcome.result})

    def row(
        self,
        role: Literal["user", "assistant"],
        blocks: tuple[Block, ...],
        *,
        internal: bool,
        iteration: int,
        usage: Usage | None = None,
    ) -> Message:
        """A row of this turn; the recorder numbers it. `usage` is what this iteration alone has cost."""
        return Message(
            id=new_message_id(),
            turn_id=self.turn.id,
            conversation_id=self.turn.conversation_id,
            turn_sequence=0,
            role=role,
            blocks=blocks,
            created_at=self._clock(),
            iteration=iteration,
            internal=internal,
            metadata={} if usage is None else {USAGE: msgspec.to_builtins(usage)},
            provider=self.turn.model if role == "assistant" else None,
        )


def shown(row: Message, display: Display, *, usage: Usage) -> Message:
    """The row as the final one: with what a reader saw, and the tokens of the whole turn."""
    return msgspec.structs.replace(row, display=display.content, sources=display.sources, usage=usage, metadata={})


def principal_of(turn: Turn) -> Principal:
    """For whom the turn runs. Raises LeaseLost for a turn that this engine did not make, so that it is let go."""
    if turn.snapshot.principal is None:
        raise LeaseLost(f"Turn {turn.id} has no principal: it was not made by this engine.")
    return turn.snapshot.principal
