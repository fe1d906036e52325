"""Waits: the calls for which a turn waits, and what became of each.

A call waits for a person who allows or denies it, or for the caller, who runs it and sends its result. A decision holds
for the very arguments that were shown: `digest_of` binds them. What runs is compared with it again.
"""

import hashlib
from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import Struct, structs

from turnkeep.ids import AgentId, CallId
from turnkeep_client.wire.blocks import JsonObject, JsonValue
from turnkeep_client.wire.conversations import WaitReason
from turnkeep_client.wire.events import DecidedCall

__all__ = [
    "UNANSWERED",
    "CallAnswer",
    "Verdict",
    "Wait",
    "WaitReason",
    "WaitingCall",
    "bytes_of",
    "digest_of",
    "reason_of",
    "trust_of",
]

Verdict = Literal["allow", "deny", "result", "error", "none"]
"""What became of a call: a decision, what the caller sends for a client tool, or nothing in time."""

_encode = msgspec.json.Encoder(order="sorted").encode


def digest_of(name: str, args: JsonObject) -> str:
    """Names one call with its arguments. Other arguments have another digest."""
    return hashlib.sha256(_encode([name, args])).hexdigest()


def bytes_of(value: JsonValue | Struct) -> int:
    """How many bytes the value takes as JSON."""
    return len(_encode(value))


class CallAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to one call. `digest` is that of the call that may run, or was answered. `by` names who answered."""

    verdict: Verdict
    digest: str = ""
    args: JsonObject | None = None
    """Other arguments, with which the call is allowed."""
    reason: str | None = None
    is_remembered: bool = False
    """Whether later calls of the tool in this conversation need no decision."""
    value: JsonValue = None
    """The result or the error of a client tool."""
    by: str = ""
    at: int = 0
    gist: str = ""
    """Names what was said, where the value itself is not kept any more."""
    by_id: str = ""
    """The user who answered, if the turn is not theirs. An erasure of this user looks for it."""
    instructions: str | None = None
    """What the caller instructs the model with from now on, instead of the instructions of the question."""

    @property
    def by_whom(self) -> str:
        """` by` and the name, to be put after a verb. Empty if the one who answered was erased."""
        return f" by {self.by}" if self.by else ""

    def is_same_as(self, other: "CallAnswer") -> bool:
        """Whether both say the same. Who said it, and why, does not matter. 1, 1.0 and true are not the same."""
        return self._gist == other._gist

    @property
    def _gist(self) -> str:
        return self.gist or hashlib.sha256(_encode([self.verdict, self.args, self.value])).hexdigest()

    def without_value(self) -> "CallAnswer":
        """The answer once it was recorded as the result of its call. A repeat of it is still recognised."""
        return self if self.value is None else structs.replace(self, value=None, gist=self._gist)


UNANSWERED = CallAnswer(verdict="none")
"""For a call that got no answer in time."""


class WaitingCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that waits, or has waited. `schema` is that of the tool's arguments, `identity` says which tool it is."""

    id: CallId
    name: str
    args: JsonObject
    reason: WaitReason
    digest: str
    schema: JsonObject = {}
    identity: str = ""
    answer: CallAnswer | None = None
    is_spent: bool = False
    """Whether the answer lets nothing run any more: the call has begun in the server, or another wait came after it."""

    @property
    def is_intact(self) -> bool:
        """Whether name and arguments are those that the digest was made of."""
        return self.digest == digest_of(self.name, self.args)

    @property
    def past(self) -> "WaitingCall":
        """The call after its wait: what is needed to recognise a repeated answer."""
        answer = UNANSWERED if self.answer is None else self.answer.without_value()
        return structs.replace(self, schema={}, answer=answer, is_spent=True)

    @property
    def decision(self) -> DecidedCall | None:
        """What a person has decided, as readers are told; None if no person has."""
        answer = self.answer
        if answer is None or answer.verdict not in {"allow", "deny"}:
            return None
        return DecidedCall(
            call_id=self.id,
            decision=answer.verdict,
            by=answer.by,
            at=answer.at,
            args=answer.args,
            reason=answer.reason,
        )

    @property
    def allowed_args(self) -> JsonObject | None:
        """The arguments with which the call may run. None: it may not, or these are not the ones that were allowed."""
        answer = self.answer
        if answer is None or answer.verdict != "allow":
            return None
        args = self.args if answer.args is None else answer.args
        return args if digest_of(self.name, args) == answer.digest else None


class Wait(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a turn waits, since when, and until when. `calls` are all that have waited in this turn.

    `waited_ms` is how long earlier waits of the turn took: that time does not count as its running time. `held_by` is
    the attempt that holds the turn while it waits, because its sandbox is kept meanwhile. Any other turn that waits is
    held by no worker.
    """

    calls: tuple[WaitingCall, ...]
    since: int
    expires_at: int
    reason: WaitReason | None = None
    """What is missing; an approval comes before a client's result. None: nothing any more."""
    resumed_at: int | None = None
    waited_ms: int = 0
    held_by: int | None = None

    @property
    def open_calls(self) -> tuple[WaitingCall, ...]:
        return tuple(call for call in self.calls if call.answer is None)

    @property
    def decisions(self) -> tuple[DecidedCall, ...]:
        """What was decided since the turn began to wait."""
        made = (call.decision for call in self.calls)
        return tuple(decision for decision in made if decision is not None and decision.at >= self.since)

    @property
    def instructions(self) -> str | None:
        """The instructions that came with the last answers that had some; None if there are none."""
        given = [call.answer.instructions for call in self.calls if call.answer is not None]
        return next((told for told in reversed(given) if told is not None), None)

    @property
    def total_ms(self) -> int:
        """How long the turn has waited in all, once it goes on."""
        until = self.expires_at if self.resumed_at is None else self.resumed_at
        return self.waited_ms + max(0, until - self.since)

    def is_kept_by(self, attempt: int) -> bool:
        """Whether this attempt of the turn holds it, and waits for answers."""
        return self.held_by == attempt and self.reason is not None

    def call(self, call_id: str) -> WaitingCall | None:
        """The newest call of this id."""
        return next((call for call in reversed(self.calls) if call.id == call_id), None)


def reason_of(calls: Iterable[WaitingCall]) -> WaitReason | None:
    """What these calls wait for."""
    reasons = {call.reason for call in calls if call.answer is None}
    if "approval" in reasons:
        return "approval"
    return "client_tools" if reasons else None


def trust_of(agent_id: AgentId | None, identity: str) -> str:
    """How a conversation remembers that calls of this tool need no decision. The identity of a tool is its name and its
    declaration: another tool that is given the same name, or the same one of another agent, is another tool."""
    return f"{agent_id or ''}:{identity}"
