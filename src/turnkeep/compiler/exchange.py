"""Exchanges: the values that the compiler's steps pass to each other. An exchange is a turn as a model will see it.

No provider's format appears here, and nothing here reads rows.
"""

from typing import Literal

from msgspec import Struct

from turnkeep.ids import TurnId
from turnkeep_client.wire.blocks import Block, Text

Speaker = Literal["user", "assistant"]

RepairKind = Literal[
    "result_missing",
    "result_orphaned",
    "result_duplicated",
    "result_moved",
    "results_ordered",
    "result_empty",
    "result_elided",
    "call_renamed",
    "answer_missing",
    "beginning_missing",
    "continuation_asked",
    "message_empty",
    "reasoning_dropped",
    "file_missing",
]


class Utterance(Struct, frozen=True, kw_only=True):
    """What one side said at once. Tool results are the user's, as in Anthropic's protocol."""

    role: Speaker
    blocks: tuple[Block, ...]
    ts: int


class Repair(Struct, frozen=True, kw_only=True):
    """One change that the compiler had to make, described for a person."""

    kind: RepairKind
    turn_id: TurnId
    detail: str


class Exchange(Struct, frozen=True, kw_only=True):
    """One turn: what was said, in order."""

    turn_id: TurnId
    utterances: tuple[Utterance, ...]

    @property
    def opens_with(self) -> Speaker | None:
        return self.utterances[0].role if self.utterances else None

    @property
    def ends_with(self) -> Speaker | None:
        return self.utterances[-1].role if self.utterances else None

    def then(self, role: Speaker, text: str) -> "Exchange":
        """The same, followed by one more sentence."""
        ts = self.utterances[-1].ts if self.utterances else 0
        return Exchange(turn_id=self.turn_id, utterances=(*self.utterances, note(role, text, ts=ts)))


# The compiler's own texts. They never change, because a provider's cache needs the same prefix every time.
EMPTY_MESSAGE = "(empty message)"
NO_ANSWER = "(This turn ended without an answer.)"
BEGAN_EARLIER = "(The conversation began before this point.)"
PLEASE_CONTINUE = "(Please continue.)"
NO_OUTPUT = "(no output)"
OUTCOME_UNKNOWN = (
    "outcome_unknown: the call was interrupted before its result was recorded. "
    "It may or may not have taken effect; check before repeating it."
)


def note(role: Speaker, text: str, *, ts: int) -> Utterance:
    return Utterance(role=role, blocks=(Text(text=text),), ts=ts)
