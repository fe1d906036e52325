"""Waits: the calls for which a turn waits, and what became of each.

A call waits for a person who allows or denies it, or for the caller, who runs it and sends its result. A decision holds
for the very arguments that were shown: `digest_of` binds them. What runs is compared with it again.
"""

import hashlib
from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import Struct

from turnkeep.ids import AgentId, CallId
from turnkeep_client.wire.blocks import JsonObject, JsonValue
from turnkeep_client.wire.conversations import WaitReason

__all__ = [
    "UNANSWERED",
    "CallAnswer",
    "Verdict",
    "Wait",
    "WaitReason",
    "WaitingCall",
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

    def is_same_as(self, other: "CallAnswer") -> bool:
        """Whether both say the same. Who said it, and why, does not matter."""
        return (self.verdict, self.args, self.value) == (other.verdict, other.args, other.value)


UNANSWERED = CallAnswer(verdict="none")
"""For a call that got no answer in time."""


class WaitingCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that waits, or has waited. `schema` is that of the tool's arguments."""

    id: CallId
    name: str
    args: JsonObject
    reason: WaitReason
    digest: str
    schema: JsonObject = {}
    answer: CallAnswer | None = None

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

    `waited_ms` is how long earlier waits of the turn took: that time does not count as its running time.
    """

    calls: tuple[WaitingCall, ...]
    since: int
    expires_at: int
    reason: WaitReason | None = None
    """What is missing; an approval comes before a client's result. None: nothing any more."""
    resumed_at: int | None = None
    waited_ms: int = 0

    @property
    def open_calls(self) -> tuple[WaitingCall, ...]:
        return tuple(call for call in self.calls if call.answer is None)

    @property
    def total_ms(self) -> int:
        """How long the turn has waited in all, once it goes on."""
        until = self.expires_at if self.resumed_at is None else self.resumed_at
        return self.waited_ms + max(0, until - self.since)

    def call(self, call_id: str) -> WaitingCall | None:
        """The newest call of this id."""
        return next((call for call in reversed(self.calls) if call.id == call_id), None)


def reason_of(calls: Iterable[WaitingCall]) -> WaitReason | None:
    """What these calls wait for."""
    reasons = {call.reason for call in calls if call.answer is None}
    if "approval" in reasons:
        return "approval"
    return "client_tools" if reasons else None


def trust_of(agent_id: AgentId | None, tool: str) -> str:
    """How a conversation remembers that calls of this tool need no decision. Another agent's tool of the same name is
    another tool."""
    return f"{agent_id or ''}:{tool}"
