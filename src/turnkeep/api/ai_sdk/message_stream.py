"""A turn as the AI SDK's UI message stream, and as the message that a client makes of that stream.

One message of the SDK is one turn, and one step in it is one iteration. So a reset drops exactly the previews of the
iteration that is spoken again. A tool of the server is a dynamic part that the server executes. A client tool is a part
of its own type, which the page executes.

A stream ends where a turn waits, because the SDK answers with a new request. The stream of that request begins after
the wait, and goes on with the same message. A resumed stream is a replay from the beginning.

Decision: docs/decisions/1010
"""

from collections.abc import Iterable, Sequence
from typing import Any, assert_never

import msgspec
from msgspec import UNSET, Struct

from turnkeep.ids import TurnId
from turnkeep.streaming.formats import DONE, SentWords, whole_of
from turnkeep.streaming.frames import DeltaFrame, Frame, Kind
from turnkeep_client.wire import sse
from turnkeep_client.wire.blocks import JsonObject, JsonValue
from turnkeep_client.wire.events import (
    Approval,
    ClientCalls,
    Decided,
    DecidedCall,
    Failure,
    Files,
    Recorded,
    Reset,
    Result,
    Source,
    Sources,
    Steered,
    Step,
    ToolCall,
    ToolCalls,
    TurnBegan,
)

HEADER = (b"x-vercel-ai-ui-message-stream", b"v1")
CANCELLED = "cancelled"

_json = msgspec.json.Encoder().encode
_FINISH = {"length": "length", "empty": "other"}


class ToolPart(Struct):
    """What the stream has said of a call."""

    name: str
    args: JsonValue
    is_client: bool = False
    is_asked: bool = False
    """The call needs an approval."""
    is_allowed: bool | None = None
    """What the stream has said of the decision."""
    has_begun: bool = False
    has_ended: bool = False


class MessageStream:
    """One turn for one reader. With `after`, the stream begins behind that event: the reader has what was before."""

    def __init__(self, *, turn_id: TurnId, base_url: str = "", after: int = 0) -> None:
        self.pauses_at: int | None = None
        """The event with which the turn begins to wait. The stream ends with it."""
        self._turn_id = turn_id
        self._base_url = base_url
        self._after = after
        self._metadata: JsonObject = {"turn_id": turn_id}
        self._sent = SentWords()
        self._has_started = False
        self._steps = 0
        self._in_step = False
        self._is_step_stored = False
        """Whether the current step has anything that a reset must not drop."""
        self._open: dict[Kind, str] = {}
        """The ids of the parts that are being written."""
        self._tools: dict[str, ToolPart] = {}
        self._pending: set[str] = set()
        """Calls of the current iteration that have not ended."""
        self._sources: dict[Source, None] = {}
        self._files: list[JsonObject] = []
        """Files that come behind the words of their iteration. Their event may be recorded while these are spoken, and
        a replay has it before them."""

    def encode(self, frame: Frame) -> bytes:
        return b"".join(sse.frame(_json(chunk) if chunk else DONE) for chunk in self.chunks(frame))

    def chunks(self, frame: Frame) -> list[JsonObject]:
        """The chunks of this frame. An empty one stands for the end of the stream."""
        if isinstance(frame, DeltaFrame):
            found = self._say(frame.kind, frame.text)
            return found if frame.seq >= self._after else []
        found = self._event(frame.recorded)
        if frame.seq < self._after:
            return []
        if frame.seq == self._after:
            found = [self._start()]
        if frame.seq == self.pauses_at:
            found += [{"type": "finish-step"}, {"type": "finish", "finishReason": "tool-calls"}, {}]
        return found

    def _event(self, recorded: Recorded) -> list[JsonObject]:
        event = recorded.event
        match event:
            case TurnBegan():
                return self._began(event)
            case ToolCalls():
                self._pending = {call.id for call in event.calls}
                return self._complete(event)
            case Step():
                return self._step(event)
            case Sources():
                new = [source for source in event.sources if source not in self._sources]
                self._sources |= dict.fromkeys(new)
                self._is_step_stored = True
                return [self._source(source) for source in dict.fromkeys(new)]
            case Files():
                self._files += [self._file(msgspec.to_builtins(file)) for file in event.files]
                return []
            case Reset():
                return self._reset()
            case Approval() | ClientCalls() | Decided():
                return self._wait(event)
            case Steered():
                self._is_step_stored = True
                text = {"type": "text", "text": event.message}
                return [{"type": "steering-message", "id": event.message_id, "parts": [text]}]
            case Result():
                return [*self._complete(event), *self._finish_step(), *self._finish(event)]
            case Failure():
                return [*self._end_texts(), *self._take_files(), *self._finish_step(), *self._failed(event)]
            case _:
                assert_never(event)

    # The message

    def _began(self, event: TurnBegan) -> list[JsonObject]:
        self._metadata = {"turn_id": event.turn_id, "conversation_id": event.conversation_id}
        is_first = not self._has_started
        found = [self._start()] if is_first else []
        if event.status == "queued":
            return [*found, _status("queued")]
        if is_first:
            return [*found, *self._begin_step()]
        return [] if self._steps else [_status("running"), *self._begin_step()]

    def _start(self) -> JsonObject:
        self._has_started = True
        return {"type": "start", "messageId": self._turn_id, "messageMetadata": self._metadata}

    def _finish(self, event: Result) -> list[JsonObject]:
        metadata = {**self._metadata, "message_id": event.message_id, "usage": msgspec.to_builtins(event.usage)}
        reason = _FINISH.get(event.finish or "", "stop")
        return [{"type": "finish", "finishReason": reason, "messageMetadata": metadata}, {}]

    def _failed(self, event: Failure) -> list[JsonObject]:
        metadata = {**self._metadata, "error": {"code": event.code, "message": event.message}}
        found: list[JsonObject] = [{"type": "message-metadata", "messageMetadata": metadata}]
        if event.code == CANCELLED:
            return [*found, {"type": "abort", "reason": event.message}, {}]
        return [*found, {"type": "error", "errorText": event.message}, {}]

    # Steps

    def _begin_step(self) -> list[JsonObject]:
        self._in_step, self._is_step_stored = True, False
        self._steps += 1
        return [{"type": "start-step"}]

    def _finish_step(self) -> list[JsonObject]:
        if not self._in_step:
            return []
        self._in_step = False
        return [{"type": "finish-step"}]

    def _next_step(self) -> list[JsonObject]:
        """Words that follow something stored begin another step, so that a reset drops nothing but words."""
        if self._in_step and not self._is_step_stored:
            return []
        return [*self._finish_step(), *self._begin_step()]

    def _reset(self) -> list[JsonObject]:
        """Drop the words of the iteration. Its step stays, because the SDK cannot drop one, and a reader who has not
        seen the words must have it too."""
        if not self._sent.said:
            return [] if self._pending else self._next_step()
        self._sent, self._open = SentWords(), {}
        return [{"type": "reset-step"}]

    # Words

    def _say(self, kind: Kind, text: str) -> list[JsonObject]:
        found = [] if self._sent.said else self._next_step()
        self._sent.add(kind, text)
        if kind not in self._open:
            self._open[kind] = f"{kind}-{self._steps}"
            found.append({"type": f"{kind}-start", "id": self._open[kind]})
        return [*found, {"type": f"{kind}-delta", "id": self._open[kind], "delta": text}]

    def _complete(self, event: ToolCalls | Result) -> list[JsonObject]:
        """The rest of the words of an iteration, or all of them, and the end of its parts."""
        found: list[JsonObject] = []
        rest = self._sent.rest(event)
        if rest is None:
            found += self._reset()
            rest = list(whole_of(event).items())
        for kind, text in rest:
            found += self._say(kind, text)
        if isinstance(event, ToolCalls) and event.calls and not self._sent.said:
            found += self._next_step()
        found += [*self._end_texts(), *self._take_files()]
        self._sent = SentWords()
        self._is_step_stored = True
        return found

    def _end_texts(self) -> list[JsonObject]:
        ended, self._open = self._open, {}
        return [{"type": f"{kind}-end", "id": id_} for kind, id_ in ended.items()]

    # Tools

    def _step(self, event: Step) -> list[JsonObject]:
        found: list[JsonObject] = [] if self._in_step else self._begin_step()
        self._is_step_stored = True
        tool = self._tools.get(event.id)
        if tool is None or tool.has_ended:
            tool = self._tools[event.id] = ToolPart(event.name, {} if event.args is UNSET else event.args)
            found.append(_input(event.id, tool))
        elif event.args is not UNSET and event.args != tool.args:
            tool.args = event.args
            found += [*self._allowed(event.id, tool), _input(event.id, tool)]
        if event.status == "running":
            if tool.has_begun and event.result is not UNSET:
                found.append({**_output(event.id, event.result, tool), "preliminary": True})
            found += self._allowed(event.id, tool)
            tool.has_begun = True
            return found
        return [*found, *self._ended(event, tool)]

    def _allowed(self, call_id: str, tool: ToolPart) -> list[JsonObject]:
        return [] if tool.has_begun else self._decided(call_id, tool, is_allowed=True)

    def _decided(
        self, call_id: str, tool: ToolPart, *, is_allowed: bool, reason: str | None = None
    ) -> list[JsonObject]:
        """What was decided about a call, once."""
        if not tool.is_asked or tool.is_allowed is not None:
            return []
        tool.is_allowed = is_allowed
        said = {"type": "tool-approval-response", "approvalId": call_id, "approved": is_allowed}
        return [said if reason is None else {**said, "reason": reason}]

    def _ended(self, event: Step, tool: ToolPart) -> list[JsonObject]:
        tool.has_ended = True
        found: list[JsonObject]
        if event.status == "succeeded":
            found = [_output(event.id, None if event.result is UNSET else event.result, tool)]
        elif tool.is_asked and not tool.has_begun and not tool.is_allowed:
            found = self._decided(event.id, tool, is_allowed=False, reason=_words(event))
            found.append({"type": "tool-output-denied", "toolCallId": event.id})
        else:
            error = {"type": "tool-output-error", "toolCallId": event.id, "errorText": _words(event)}
            found = [error | _kind(tool)]
        if event.id in self._pending:
            self._pending.discard(event.id)
            if not self._pending:
                found += self._finish_step()
        return found

    def _wait(self, event: Approval | ClientCalls | Decided) -> list[JsonObject]:
        """What the page is asked, and what was decided, here or on another wire."""
        if isinstance(event, Decided):
            return [chunk for made in event.decisions for chunk in self._made(made)]
        show = self._asked if isinstance(event, Approval) else self._client_call
        return [chunk for call in event.calls for chunk in show(call)]

    def _made(self, made: DecidedCall) -> list[JsonObject]:
        tool = self._tools.get(made.call_id)
        if tool is None or tool.has_ended:
            return []
        is_allowed = made.decision == "allow"
        reason = None if is_allowed else f"Denied by {made.by}{f': {made.reason}' if made.reason else '.'}"
        return self._decided(made.call_id, tool, is_allowed=is_allowed, reason=reason)

    def _asked(self, call: ToolCall) -> list[JsonObject]:
        tool = self._tools[call.id] = ToolPart(call.name, call.args, is_asked=True)
        request = {"type": "tool-approval-request", "approvalId": call.id, "toolCallId": call.id}
        return [_input(call.id, tool), request]

    def _client_call(self, call: ToolCall) -> list[JsonObject]:
        tool = self._tools[call.id] = ToolPart(call.name, call.args, is_client=True)
        return [_input(call.id, tool)]

    # Sources and files

    def _source(self, source: Source) -> JsonObject:
        id_ = f"source-{source.number or list(self._sources).index(source) + 1}"
        common = {"sourceId": id_, "title": source.title, "providerMetadata": {"turnkeep": msgspec.to_builtins(source)}}
        if source.url is not None:
            return {"type": "source-url", "url": source.url, **common}
        media_type = "text/csv" if source.table_id is not None else "text/plain"
        return {"type": "source-document", "mediaType": media_type, **common}

    def _take_files(self) -> list[JsonObject]:
        taken, self._files = self._files, []
        return taken

    def _file(self, file: JsonObject) -> JsonObject:
        return {
            "type": "file",
            "url": f"{self._base_url}/v1/files/{file['id']}/content",
            "mediaType": file["mime_type"],
            "providerMetadata": {"turnkeep": {"file_id": file["id"], "name": file["name"], "size": file["size"]}},
        }


def _status(status: str) -> JsonObject:
    return {"type": "data-status", "data": {"status": status}, "transient": True}


def _kind(tool: ToolPart) -> JsonObject:
    return {} if tool.is_client else {"dynamic": True, "providerExecuted": True}


def _input(call_id: str, tool: ToolPart) -> JsonObject:
    said = {"type": "tool-input-available", "toolCallId": call_id, "toolName": tool.name, "input": tool.args}
    return said | _kind(tool)


def _output(call_id: str, output: JsonValue, tool: ToolPart) -> JsonObject:
    return {"type": "tool-output-available", "toolCallId": call_id, "output": output} | _kind(tool)


def _words(event: Step) -> str:
    error = event.error
    if error is UNSET or error is None:
        return "The call failed."
    return error if isinstance(error, str) else _json(error).decode()


def message_of(turn_id: TurnId, frames: Iterable[Frame], *, base_url: str) -> JsonObject:
    """The message that a client has made of these frames of a turn."""
    stream = MessageStream(turn_id=turn_id, base_url=base_url)
    message = MessageFold(turn_id)
    for frame in frames:
        for chunk in stream.chunks(frame):
            message.add(chunk)
    return message.shown()


class MessageFold:
    """Chunks become the parts of a message here, as in the SDK."""

    def __init__(self, message_id: str) -> None:
        self._id = message_id
        self._metadata: JsonObject = {}
        self._parts: list[JsonObject] = []

    def shown(self) -> JsonObject:
        return {"id": self._id, "role": "assistant", "metadata": self._metadata, "parts": self._parts}

    def add(self, chunk: JsonObject) -> None:
        match chunk.get("type", "").split("-"):
            case ["start" | "finish"] | ["message", "metadata"]:
                self._metadata = self._metadata | chunk.get("messageMetadata", {})
            case ["start", "step"]:
                self._parts.append({"type": "step-start"})
            case ["reset", "step"]:
                del self._parts[self._first_of_step() :]
            case ["text" | "reasoning" as kind, "start"]:
                part = {"type": kind, "text": "", "state": "streaming"}
                self._parts.append(part | ({"id": chunk["id"]} if kind == "reasoning" else {}))
            case ["text" | "reasoning" as kind, "delta"]:
                self._last(kind)["text"] += chunk["delta"]
            case ["text" | "reasoning" as kind, "end"]:
                self._last(kind)["state"] = "done"
            case ["source", _]:
                self._parts.append(chunk)
            case ["file"] | ["steering", "message"]:
                self._parts.append(chunk)
            case ["tool", *what]:
                self._add_tool(what, chunk)
            case _:
                pass

    def _add_tool(self, what: Sequence[str], chunk: JsonObject) -> None:
        match what:
            case ["input", "available"]:
                self._add_input(chunk)
            case ["approval", "request"]:
                part = self._tool(chunk["toolCallId"])
                part |= {"state": "approval-requested", "approval": {"id": chunk["approvalId"]}}
            case ["approval", "response"]:
                part = self._tool(chunk["approvalId"])
                said = {name: chunk[name] for name in ("approved", "reason") if name in chunk}
                part |= {"state": "approval-responded", "approval": part["approval"] | said}
            case ["output", "available"]:
                part = self._tool(chunk["toolCallId"])
                part |= {"state": "output-available", "output": chunk["output"]}
                part.pop("preliminary", None)
                if chunk.get("preliminary"):
                    part["preliminary"] = True
            case ["output", "error"]:
                self._tool(chunk["toolCallId"]).update(state="output-error", errorText=chunk["errorText"])
            case ["output", "denied"]:
                self._tool(chunk["toolCallId"])["state"] = "output-denied"
            case _:
                pass

    def _add_input(self, chunk: JsonObject) -> None:
        for part in self._parts[self._first_of_step() :]:
            if part.get("toolCallId") == chunk["toolCallId"]:
                part |= {"state": "input-available", "input": chunk["input"]}
                return
        made: dict[str, Any] = {"toolCallId": chunk["toolCallId"], "state": "input-available", "input": chunk["input"]}
        if chunk.get("dynamic"):
            kind = {"type": "dynamic-tool", "toolName": chunk["toolName"], "providerExecuted": True}
        else:
            kind = {"type": f"tool-{chunk['toolName']}"}
        self._parts.append(kind | made)

    def _tool(self, call_id: str) -> JsonObject:
        return next(part for part in reversed(self._parts) if part.get("toolCallId") == call_id)

    def _last(self, kind: str) -> JsonObject:
        return next(part for part in reversed(self._parts) if part["type"] == kind)

    def _first_of_step(self) -> int:
        starts = [place for place, part in enumerate(self._parts) if part["type"] == "step-start"]
        return starts[-1] + 1 if starts else 0
