"""Waits of a turn: which of its calls may run, which are answered, and which must wait for an answer.

A call of a tool with `waits_for` is not run until it was answered. Calls of the same round that need no answer run
first, at once. Then the turn waits for the others together, and no worker holds it. When all are answered, a worker
adopts the turn and goes through the open calls again, this time with the answers.

An answer holds for one call with the arguments that were shown. A later call is asked about again, also one that has
the same id.
"""

from collections.abc import Sequence, Set

import msgspec
from msgspec import Struct, field, structs

from turnkeep.engine.outcomes import answered_by_client, denied
from turnkeep.ids import AgentId, CallId
from turnkeep.model.waits import Wait, WaitingCall, digest_of, reason_of, trust_of
from turnkeep.tools.ports import Outcome, Toolbox, ToolSpec
from turnkeep_client.wire.blocks import ToolUse
from turnkeep_client.wire.events import Approval, ClientCalls, ToolCall, TurnEvent


class SortedCalls(Struct, frozen=True):
    """What becomes of the calls of a round. Those in `runs` have the arguments with which they may run."""

    runs: list[ToolUse] = field(default_factory=list)
    answered: list[tuple[ToolUse, Outcome]] = field(default_factory=list)
    waits: list[WaitingCall] = field(default_factory=list)


class Permissions(Struct, frozen=True, kw_only=True):
    """What is known of the calls of a turn before they run: the answers that came, and the tools that are trusted."""

    agent_id: AgentId | None = None
    wait: Wait | None = None
    trusted: Set[str] = frozenset()

    def sort(self, calls: Sequence[ToolUse], toolbox: Toolbox, *, begun: Set[CallId]) -> SortedCalls:
        """Calls of no tool run: they end with an error. Those that have `begun` were permitted before."""
        found = SortedCalls()
        for call in calls:
            waited = None if self.wait is None else self.wait.call(call.id)
            if waited is not None and waited.digest == digest_of(call.name, call.input):
                self._answer(call, waited, found)
            elif call.id not in begun and (spec := self._asked(call, toolbox)):
                found.waits.append(_waiting(call, spec))
            else:
                found.runs.append(call)
        return found

    def _asked(self, call: ToolUse, toolbox: Toolbox) -> ToolSpec | None:
        """The tool of a call that must wait; None for one that may run."""
        tool = toolbox.get(call.name)
        if tool is None or tool.spec.waits_for is None:
            return None
        if tool.spec.waits_for == "client_tools":
            return tool.spec
        identity = tool.spec.identity_for(call.input)
        is_free = identity is None or trust_of(self.agent_id, identity) in self.trusted
        return None if is_free else tool.spec

    def _answer(self, call: ToolUse, waited: WaitingCall, found: SortedCalls) -> None:
        args, answer = waited.allowed_args, waited.answer
        if args is not None:
            found.runs.append(structs.replace(call, input=args))
        elif answer is not None and answer.verdict in {"result", "error"}:
            found.answered.append((call, answered_by_client(answer)))
        else:
            found.answered.append((call, denied(waited)))


def _waiting(call: ToolUse, spec: ToolSpec) -> WaitingCall:
    assert spec.waits_for is not None
    return WaitingCall(
        id=call.id,
        name=call.name,
        args=call.input,
        reason=spec.waits_for,
        digest=digest_of(call.name, call.input),
        schema=spec.input_schema,
        identity=spec.identity_for(call.input) or spec.name,
    )


def next_wait(before: Wait | None, calls: Sequence[WaitingCall], *, now: int, seconds: float) -> Wait:
    """The wait for answers to these calls. Calls of earlier waits stay known, so that a late repeat of their answers is
    recognised."""
    past = () if before is None else tuple(call.past for call in before.calls)
    return Wait(
        calls=(*past, *calls),
        since=now,
        expires_at=now + int(seconds * 1000),
        reason=reason_of(calls),
        waited_ms=0 if before is None else before.total_ms,
    )


def events_of(wait: Wait) -> list[TurnEvent]:
    """What readers are told when the turn begins to wait."""
    events: list[TurnEvent] = []
    if approvals := _shown(wait, "approval"):
        events.append(Approval(calls=approvals, expires_at=wait.expires_at, at=wait.since))
    if client_calls := _shown(wait, "client_tools"):
        events.append(ClientCalls(calls=client_calls, expires_at=wait.expires_at, at=wait.since))
    return events


def as_begun(call: ToolUse, wait: Wait | None) -> ToolUse:
    """The call with the arguments with which it has begun: its own, or those with which it was allowed."""
    waited = None if wait is None else wait.call(call.id)
    if waited is None or waited.allowed_args is None or waited.digest != digest_of(call.name, call.input):
        return call
    return structs.replace(call, input=waited.allowed_args)


def note_of_edit(call: ToolUse, wait: Wait | None) -> str:
    """What the model is told before the result of a call that ran with other arguments than its own."""
    waited = None if wait is None else wait.call(call.id)
    if (
        waited is None
        or waited.answer is None
        or waited.answer.args is None
        or digest_of(call.name, call.input) == waited.digest
    ):
        return ""
    return f"({waited.answer.by or 'A person'} changed the arguments to {msgspec.json.encode(call.input).decode()}.)\n"


def _shown(wait: Wait, reason: str) -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(id=call.id, name=call.name, args=call.args) for call in wait.open_calls if call.reason == reason
    )
