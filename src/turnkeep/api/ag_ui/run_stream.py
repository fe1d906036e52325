"""A turn as the events of AG-UI's runs, and the messages that a client makes of them.

Each iteration is one assistant message, whose id is made of the turn's id and its number. So the messages have the same
ids live, in a replay and in a snapshot. Clients that get words again under an id that they have would append them. So
a snapshot of all messages comes before anything that is said again: after a reset, and when a client attaches again.

The verifiers of the clients refuse the end of a run while a message, a reasoning or a tool call is open. Calls are
opened and closed at once here, and words are closed by whatever follows them.

Decision: docs/decisions/1010
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from typing import Any, assert_never

import msgspec
from msgspec import UNSET, Struct

from turnkeep.ids import CallId, TurnId
from turnkeep.streaming.formats import SentWords, whole_of
from turnkeep.streaming.frames import DeltaFrame, Frame, Kind
from turnkeep_client.wire import sse
from turnkeep_client.wire.blocks import JsonObject, JsonValue
from turnkeep_client.wire.events import (
    Approval,
    ClientCalls,
    Decided,
    Failure,
    Files,
    Reset,
    Result,
    Sources,
    Steered,
    Step,
    ToolCall,
    ToolCalls,
    TurnBegan,
    TurnEvent,
)

VERSION = "1.0"
CANCELLED = "cancelled"
APPROVAL = "tool_approval"
"""The reason of an interrupt that asks for a decision about a call."""

_json = msgspec.json.Encoder().encode


class RunInfo(Struct, frozen=True, kw_only=True):
    """The run for which a turn is streamed. `messages` are those that the client has before it. `answered` are the
    calls whose results it has. With `has_snapshot` the run begins with a snapshot of the messages."""

    thread_id: str
    run_id: str
    is_legacy: bool = False
    """The client is older than version 1.0."""
    messages: Sequence[JsonObject] = ()
    answered: AbstractSet[str] = frozenset()
    steered: str | None = None
    """The message of the user that came with this run, under the server's id. The client has it already."""
    has_snapshot: bool = False


class RunEvents:
    """One turn for one reader. With `after`, the run begins behind that event: the reader has what was before."""

    def __init__(self, *, turn_id: TurnId, run: RunInfo, after: int = 0) -> None:
        self.pauses_at: int | None = None
        """The event with which the turn begins to wait. The run ends with it."""
        self.messages: list[JsonObject] = []
        """The messages of this turn so far."""
        self._turn_id = turn_id
        self._run = run
        self._after = after
        self._has_started = False
        self._sent = SentWords()
        self._open: Kind | None = None
        self._iteration = 1
        self._parent: str | None = None
        """The message to which calls belong that begin now."""
        self._calls: dict[str, bool] = {}
        """Calls that were announced, and whether they have ended."""
        self._results = 0
        self._asked: dict[str, Approval] = {}
        self._client_calls: dict[str, None] = {}

    def encode(self, frame: Frame) -> bytes:
        return b"".join(sse.frame(_json(event)) for event in self.events(frame))

    def events(self, frame: Frame) -> list[JsonObject]:
        if isinstance(frame, DeltaFrame):
            found = self._say(frame.kind, frame.text)
            return found if frame.seq >= self._after else []
        found = self._event(frame.recorded.event)
        if frame.seq < self._after:
            return []
        if frame.seq == self._after:
            found = self._started(self.messages)
        if frame.seq == self.pauses_at:
            found.append(self._paused())
        return found

    def _event(self, event: TurnEvent) -> list[JsonObject]:
        match event:
            case TurnBegan():
                found = [] if self._has_started else [*self._started(()), _custom("turn", msgspec.to_builtins(event))]
                return [*found, _custom("queued", {"turn_id": event.turn_id})] if event.status == "queued" else found
            case ToolCalls():
                return self._complete(event)
            case Step():
                return self._step(event)
            case Sources():
                return [*self._close(), _custom("sources", {"sources": msgspec.to_builtins(event.sources)})]
            case Files():
                return [*self._close(), _custom("files", {"files": msgspec.to_builtins(event.files)})]
            case Reset():
                return self._reset()
            case Approval() | ClientCalls() | Decided():
                return self._wait(event)
            case Steered():
                return self._steered(event)
            case Result():
                return [*self._complete(event), self._finished(event)]
            case Failure():
                return [*self._close(), self._failed(event)]
            case _:
                assert_never(event)

    def _wait(self, event: Approval | ClientCalls | Decided) -> list[JsonObject]:
        """Calls that wait. What others decide is told by the steps that follow; here it ends the question alone."""
        if isinstance(event, Decided):
            for made in event.decisions:
                self._asked.pop(made.call_id, None)
            return []
        if isinstance(event, Approval):
            self._asked |= {call.id: event for call in event.calls}
        else:
            self._client_calls |= {call.id: None for call in event.calls}
        return [said for call in event.calls for said in self._call(call)]

    # The run

    def _started(self, messages: Iterable[JsonObject]) -> list[JsonObject]:
        """The beginning of the run. A snapshot in it has these messages of the turn."""
        self._has_started = True
        return (
            [_started(self._run), _snapshot(self._run, messages)] if self._run.has_snapshot else [_started(self._run)]
        )

    def _paused(self) -> JsonObject:
        finished = {"type": "RUN_FINISHED", **_ids(self._run)}
        if self._asked:
            interrupts = [_interrupt(call_id, event) for call_id, event in self._asked.items()]
            return {**finished, "outcome": {"type": "interrupt", "interrupts": interrupts}}
        outcome: JsonObject = {"type": "success"}
        if not self._run.is_legacy:
            outcome["pendingToolCallIds"] = list(self._client_calls)
        return {**finished, "outcome": outcome}

    def _finished(self, event: Result) -> JsonObject:
        result = {"turn_id": self._turn_id, "message_id": event.message_id, "message": event.message}
        finished = {"type": "RUN_FINISHED", **_ids(self._run), "outcome": {"type": "success"}, "result": result}
        if self._run.is_legacy:
            return finished
        usage = event.usage
        tokens = {
            "inputTokens": usage.input_tokens,
            "outputTokens": usage.output_tokens,
            "totalTokens": usage.input_tokens + usage.output_tokens,
            "cachedInputTokens": usage.cache_read_tokens,
            "cacheWriteInputTokens": usage.cache_write_tokens,
        }
        return {**finished, "usage": [tokens]}

    def _failed(self, event: Failure) -> JsonObject:
        if event.code == CANCELLED and not self._run.is_legacy:
            return {"type": "RUN_FINISHED", **_ids(self._run), "outcome": {"type": "cancelled"}}
        return {"type": "RUN_ERROR", "message": event.message, "code": event.code}

    def _reset(self) -> list[JsonObject]:
        return self._replace({}) if self._sent.said else []

    # Words

    def _id(self, kind: Kind) -> str:
        message_id = f"{self._turn_id}-{self._iteration}"
        return message_id if kind == "text" else f"{message_id}-reasoning"

    def _say(self, kind: Kind, text: str) -> list[JsonObject]:
        found: list[JsonObject] = []
        message_id = self._id(kind)
        if self._open != kind:
            found = [*self._close(), *self._begin(kind, message_id)]
        self._sent.add(kind, text)
        message = next(message for message in self.messages if message["id"] == message_id)
        message["content"] += text
        name = "TEXT_MESSAGE_CONTENT" if kind == "text" else "REASONING_MESSAGE_CONTENT"
        return [*found, {"type": name, "messageId": message_id, "delta": text}]

    def _replace(self, words: dict[Kind, str]) -> list[JsonObject]:
        """Take the words of this iteration back, and say these instead, with a snapshot."""
        found = self._close()
        was_reasoning = "reasoning" in self._sent.said
        kinds: tuple[Kind, ...] = ("reasoning", "text")
        own = {self._id(kind) for kind in kinds}
        self.messages = [message for message in self.messages if message["id"] not in own]
        self._sent = SentWords()
        for kind, text in words.items():
            role = "assistant" if kind == "text" else "reasoning"
            self.messages.append({"id": self._id(kind), "role": role, "content": text})
            self._sent.add(kind, text)
        snapshot = _snapshot(self._run, self.messages)
        if was_reasoning and "reasoning" not in words:
            # A snapshot without any reasoning would leave that of the client as it is.
            snapshot["messages"].append({"id": self._id("reasoning"), "role": "reasoning", "content": ""})
        return [*found, snapshot]

    def _begin(self, kind: Kind, message_id: str) -> list[JsonObject]:
        self._open = kind
        role = "assistant" if kind == "text" else "reasoning"
        if all(message["id"] != message_id for message in self.messages):
            self.messages.append({"id": message_id, "role": role, "content": ""})
        if kind == "text":
            return [{"type": "TEXT_MESSAGE_START", "messageId": message_id, "role": role}]
        begun = {"type": "REASONING_MESSAGE_START", "messageId": message_id, "role": role}
        return [{"type": "REASONING_START", "messageId": message_id}, begun]

    def _close(self) -> list[JsonObject]:
        kind, self._open = self._open, None
        if kind is None:
            return []
        message_id = self._id(kind)
        if kind == "text":
            return [{"type": "TEXT_MESSAGE_END", "messageId": message_id}]
        ended = {"type": "REASONING_MESSAGE_END", "messageId": message_id}
        return [ended, {"type": "REASONING_END", "messageId": message_id}]

    def _complete(self, event: ToolCalls | Result) -> list[JsonObject]:
        """The rest of the words of an iteration. Calls that follow belong to its message."""
        rest = self._sent.rest(event)
        found = self._replace(whole_of(event)) if rest is None else []
        for kind, text in rest or ():
            found += self._say(kind, text)
        found += self._close()
        self._next_iteration()
        return found

    def _next_iteration(self) -> None:
        self._parent = self._id("text")
        self._iteration += 1
        self._sent = SentWords()

    def _steered(self, event: Steered) -> list[JsonObject]:
        message_id = event.message_id
        if message_id == self._run.steered:
            return self._close()
        self.messages.append({"id": message_id, "role": "user", "content": event.message})
        return [
            *self._close(),
            {"type": "TEXT_MESSAGE_START", "messageId": message_id, "role": "user"},
            {"type": "TEXT_MESSAGE_CONTENT", "messageId": message_id, "delta": event.message},
            {"type": "TEXT_MESSAGE_END", "messageId": message_id},
        ]

    # Tools

    def _call(self, call: ToolCall) -> list[JsonObject]:
        found = self._close()
        if self._parent is None:
            self._next_iteration()
        self._calls[call.id] = False
        parent = next((message for message in self.messages if message["id"] == self._parent), None)
        if parent is None:
            parent = {"id": self._parent, "role": "assistant"}
            self.messages.append(parent)
        arguments = _json(call.args).decode()
        function = {"name": call.name, "arguments": arguments}
        parent.setdefault("toolCalls", []).append({"id": call.id, "type": "function", "function": function})
        begun = {"type": "TOOL_CALL_START", "toolCallId": call.id, "toolCallName": call.name}
        return [
            *found,
            {**begun, "parentMessageId": self._parent},
            {"type": "TOOL_CALL_ARGS", "toolCallId": call.id, "delta": arguments},
            {"type": "TOOL_CALL_END", "toolCallId": call.id},
        ]

    def _step(self, event: Step) -> list[JsonObject]:
        found: list[JsonObject] = []
        if self._calls.get(event.id, True):
            args = event.args if isinstance(event.args, dict) else {}
            found = self._call(ToolCall(id=CallId(event.id), name=event.name, args=args))
        elif event.status == "running" and event.result is not UNSET:
            found = [*self._close(), self._activity(event)]
        self._asked.pop(event.id, None)
        if event.status == "running":
            return found
        self._calls[event.id] = True
        return [*found, *self._result(event)]

    def _activity(self, event: Step) -> JsonObject:
        return {
            "type": "ACTIVITY_SNAPSHOT",
            "messageId": f"{self._turn_id}-{event.id}-progress",
            "activityType": "turnkeep.step",
            "content": msgspec.to_builtins(event),
        }

    def _result(self, event: Step) -> list[JsonObject]:
        self._results += 1
        if event.id in self._client_calls:
            del self._client_calls[event.id]
            if event.id in self._run.answered:
                return []
        message = {
            "id": f"{self._turn_id}-result-{self._results}",
            "role": "tool",
            "toolCallId": event.id,
            "content": _content(event),
        }
        self.messages.insert(self._place_of_result(event.id), message)
        said = {"type": "TOOL_CALL_RESULT", "messageId": message["id"], "toolCallId": event.id}
        return [{**said, "content": message["content"], "role": "tool"}]

    def _place_of_result(self, call_id: str) -> int:
        """Behind the message that has the call, and the results that are there already. Clients do the same."""
        owner = next(
            place
            for place, message in enumerate(self.messages)
            if any(call["id"] == call_id for call in message.get("toolCalls", ()))
        )
        place = owner + 1
        while place < len(self.messages) and self.messages[place]["role"] == "tool":
            place += 1
        return place


def _custom(name: str, value: JsonObject) -> JsonObject:
    return {"type": "CUSTOM", "name": f"turnkeep.{name}", "value": value}


def _interrupt(call_id: str, event: Approval) -> JsonObject:
    name = next(call.name for call in event.calls if call.id == call_id)
    return {
        "id": call_id,
        "reason": APPROVAL,
        "message": f"May {name} be called?",
        "toolCallId": call_id,
        "responseSchema": {
            "type": "object",
            "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}},
            "required": ["approved"],
        },
        "expiresAt": datetime.fromtimestamp(event.expires_at / 1000, UTC).isoformat().replace("+00:00", "Z"),
    }


def _content(event: Step) -> str:
    """The result as the text of a tool message. A failure is its error."""
    value: JsonValue | Any = event.result if event.status == "succeeded" else event.error
    if value is UNSET or value is None:
        return "" if event.status == "succeeded" else "The call failed."
    return value if isinstance(value, str) else _json(value).decode()


def messages_of(turn_id: TurnId, frames: Iterable[Frame]) -> list[JsonObject]:
    """The messages of the assistant that these frames of a turn leave behind."""
    stream = RunEvents(turn_id=turn_id, run=RunInfo(thread_id="", run_id=""))
    for frame in frames:
        stream.events(frame)
    return stream.messages


def snapshot_run(run: RunInfo) -> bytes:
    """A run in which nothing happens: it only gives the messages."""
    finished = {"type": "RUN_FINISHED", **_ids(run), "outcome": {"type": "success"}}
    return b"".join(sse.frame(_json(event)) for event in (_started(run), _snapshot(run, ()), finished))


def _ids(run: RunInfo) -> JsonObject:
    return {"threadId": run.thread_id, "runId": run.run_id}


def _started(run: RunInfo) -> JsonObject:
    started = {"type": "RUN_STARTED", **_ids(run)}
    return started if run.is_legacy else {**started, "protocolVersion": VERSION}


def _snapshot(run: RunInfo, messages: Iterable[JsonObject]) -> JsonObject:
    """The messages before the run, and those of the turn that are not among them."""
    known = {message.get("id") for message in run.messages}
    own = [message for message in messages if message["id"] not in known]
    return {"type": "MESSAGES_SNAPSHOT", "messages": [*run.messages, *own]}
