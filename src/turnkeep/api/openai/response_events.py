"""A segment of a turn as OpenAI's response: its events in a stream, and the whole object.

`ResponseSegment` is fed the frames of a segment in order. It makes the events of OpenAI's Responses API, and keeps the
object that they build up. The object of a response that is read later is made in the same way, from the stored events.

**Sequence numbers.** Previews are not stored, so the number of an event is made of its place in the turn, and says
where to go on: `seq · 2^32 + 16 · offset + k` for the k-th event at that offset of the preview after event `seq`, and
`seq · 2^32 + 2^31 + j` for the j-th event that event `seq + 1` causes. Numbers rise, have gaps, and stay below 2^53.
A reader that resumes gets the events with higher numbers; of a text that it has in part, the rest.

Tools of the server are `mcp_call` items: a `function_call` would tell the caller to run it.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct

from turnkeep.api.openai.completions import client_tool_names
from turnkeep.api.openai.segments import Segment, response_id
from turnkeep.model.agents import Snapshot
from turnkeep.model.sampling import OutputFormat, Sampling
from turnkeep.model.turns import Turn
from turnkeep.streaming.formats import texts_of
from turnkeep.streaming.frames import Cursor, DeltaFrame, Frame, Kind
from turnkeep_client.wire.blocks import JsonObject, JsonValue, ToolResult, Usage
from turnkeep_client.wire.events import (
    Approval,
    ClientCalls,
    Failure,
    Files,
    Recorded,
    Reset,
    Result,
    Source,
    Sources,
    Step,
    ToolCall,
    ToolCalls,
    TurnBegan,
)

EVENTS_PER_SEQ = 1 << 32
AFTER_PREVIEW = 1 << 31
EVENTS_PER_OFFSET = 16
SERVER_LABEL = "turnkeep"
WIRE_KEY = "openai"
"""Key in the metadata of a turn: what this wire must remember of it (`WireNotes`). No client can change it later."""

_CLOSED_BY: dict[Kind, int] = {"text": 2, "reasoning": 7}
_OPENED: dict[Kind, int] = {"text": 5, "reasoning": 10}
_TEXT_AFTER_REASONING = 12
_CITED = re.compile(r"\[(\d{1,4})\]")

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class WireNotes(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a turn remembers for this wire: of its request, if it was asked here, and of its responses."""

    model: str = ""
    previous_response_id: str | None = None
    is_stored: bool = True
    is_background: bool | None = None
    """What the request has asked for. A turn that has waited needs no reader any more, whatever that was."""
    has_history: bool = False
    """Whether the turns before it came with the request."""
    is_fork: bool = False
    """Whether the turns before it were copied from the conversation of the response before it."""
    told: tuple[tuple[str, int], ...] = ()
    """The messages of the request with which the instructions end: role and length of each."""
    sizes: tuple[int, ...] = ()
    """How many blocks each message of the question has, if there are several."""
    deleted: dict[str, bool] = {}
    """The numbers of those segments whose responses were deleted."""
    metadata: dict[str, dict[str, str]] = {}
    """The metadata of segments with which the turn went on, by their numbers, where the request had some."""
    removed: dict[str, bool] = {}
    """The items that were deleted from the conversation (`items.removed_key`)."""
    instructions: dict[str, tuple[str, str]] = {}
    """Instructions that changed with a segment, by its number: the field `instructions`, and the messages that
    instruct the model."""

    def is_readable(self, index: int) -> bool:
        """Whether the response of this segment can be read: it was stored, and is not deleted."""
        return self.is_stored and not self.deleted.get(str(index))


def cursor_of_number(number: int) -> Cursor:
    """The event after which a reader with this number goes on. Of the preview after it, it has a part at most."""
    return Cursor(number // EVENTS_PER_SEQ)


def notes_of_turn(turn: Turn) -> WireNotes:
    try:
        return msgspec.convert(turn.metadata.get(WIRE_KEY, {}), WireNotes)
    except msgspec.ValidationError:
        return WireNotes()


class _OpenItem(Struct):
    kind: Kind
    id: str
    index: int
    pieces: list[str]
    prefix: bytes

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class ResponseSegment:
    """One segment as a response. With `resume`, only events with a higher number are encoded."""

    def __init__(self, turn: Turn, segment: Segment, *, resume: int = -1) -> None:
        snapshot = turn.snapshot
        self.ends_at: int | None = None
        self.ended_at: int | None = None
        self.usage = Usage()
        self.before: Sequence[Recorded] = ()
        self.rounds: dict[str, int] = {}
        """In which round of this segment a message or a reasoning was said, by its id. The answer is in none."""
        self.calls: dict[str, str] = {}
        """The calls that items of server tools show, by the ids of the items."""
        self.status = "queued" if turn.status == "queued" else "in_progress"
        self._turn = turn
        self._hex = turn.id.removeprefix("turn_")
        self._fields = response_fields(turn, segment)
        self._resume = resume
        self._own = client_tool_names(turn)
        is_first = segment.index == 0
        self._skipped_rounds = snapshot.opening_rounds if is_first else 0
        self._skipped_calls = _opening_calls(snapshot) if is_first else frozenset[str]()
        self._has_begun = False
        self._output: list[JsonObject] = []
        self._open: _OpenItem | None = None
        self._has_paused = False
        """Whether the open item has all of its words, and the next event says if they were broken off."""
        self._next_index = 0
        self._opened = 0
        """Items that were opened since the last event."""
        self._offset = 0
        self._sent: dict[Kind, int] = {"text": 0, "reasoning": 0}
        self._steps: dict[str, JsonObject] = {}
        self._indexes: dict[str, int] = {}
        self._sources: list[Source] = []
        self._files: list[Any] = []
        self._error: JsonObject | None = None
        self._incomplete: JsonObject | None = None
        self._seq = segment.after
        self._number = 0
        self._round = 0
        self._called = 0
        """Calls of the caller's tools in the present event."""
        self._first_of_round = 0

    def encode(self, frame: Frame) -> bytes:
        if isinstance(frame, DeltaFrame):
            return self._delta(frame)
        seq, event = frame.seq, frame.recorded.event
        self._seq = seq - 1
        self._number = (seq - 1) * EVENTS_PER_SEQ + AFTER_PREVIEW
        self._called = 0
        encoded = b"".join(self._event(event, is_end=seq == self.ends_at))
        self._seq, self._offset, self._opened = seq, 0, 0
        self._sent = {"text": 0, "reasoning": 0}
        return encoded

    def response(self) -> JsonObject:
        """The response as it is now."""
        is_over = self.status not in {"queued", "in_progress"}
        return {
            **self._fields,
            "status": self.status,
            "completed_at": (self.ended_at or self._turn.created_at) // 1000 if self.status == "completed" else None,
            "output": [item for item in self._output if item],
            "error": self._error,
            "incomplete_details": self._incomplete,
            "usage": usage_of(self.usage) if is_over else None,
        }

    # Events

    def _event(self, event: Any, *, is_end: bool) -> list[bytes]:
        if self._has_paused and isinstance(event, ToolCalls | Step | Reset | Approval | ClientCalls | Result):
            closed = self._close(phase="commentary")
            return [*closed, *self._event(event, is_end=is_end)]
        match event:
            case TurnBegan():
                return self._began(event)
            case ToolCalls():
                return self._iteration(event)
            case Step():
                return self._step(event)
            case Sources():
                self._sources += event.sources
                return []
            case Files():
                self._files += event.files
                return []
            case Reset():
                return self._drop()
            case Approval():
                asked = [frame for call in event.calls for frame in self._approval(call)]
                return [*self._close(), *asked, *(self._end("completed") if is_end else ())]
            case ClientCalls():
                called = [frame for call in event.calls for frame in self._function_call(call)]
                return [*self._close(), *called, *(self._end("completed") if is_end else ())]
            case Result():
                return self._result(event)
            case Failure():
                return self._failure(event)
            case _:
                return []

    def _began(self, event: TurnBegan) -> list[bytes]:
        self.status = "queued" if event.status == "queued" else "in_progress"
        name = f"response.{self.status}"
        if self._has_begun:
            return [self._frame(name, response=self.response())]
        self._has_begun = True
        return [self._frame("response.created", response=self.response()), self._frame(name, response=self.response())]

    def _iteration(self, event: ToolCalls) -> list[bytes]:
        round_, self._round = self._round, self._round + 1
        if event.iteration < self._skipped_rounds:
            return []
        said = self._rest(event.reasoning or "", event.text)
        for item in self._output[self._first_of_round :]:
            if item.get("type") in {"message", "reasoning"}:
                self.rounds.setdefault(item["id"], round_)
        self._first_of_round = self._next_index
        if not event.calls and self._open is not None:  # words before a step of a sandbox, or of an answer that was cut
            self._has_paused = True
            self._output[self._open.index] = self._done_item(self._open, status="in_progress")
            return said
        said += self._close(phase="commentary")
        if self._turn.snapshot.ends_with_calls:
            own = [call for call in event.calls if call.name in self._own]
            said += [frame for call in own for frame in self._function_call(call)]
        return said

    def _result(self, event: Result) -> list[bytes]:
        status: ItemStatus = "incomplete" if event.finish == "length" else "completed"
        said = [*self._rest(*texts_of(event)), *self._close(status=status, phase="final_answer", is_last=True)]
        if event.finish == "length":
            self._incomplete = {"reason": "max_output_tokens"}
            return [*said, *self._end("incomplete")]
        return [*said, *self._end("completed")]

    def _failure(self, event: Failure) -> list[bytes]:
        closed = self._close(status="incomplete")
        for step in self._steps.values():
            if step["status"] == "in_progress":
                step["status"] = "failed"
        if event.code == "cancelled":
            return [*closed, *self._end("cancelled")]
        self._error = {"code": "server_error", "message": event.message}
        return [*closed, *self._end("failed")]

    def _end(self, status: str) -> list[bytes]:
        self.status = status
        names = {"completed": "completed", "failed": "failed"}
        last = self._frame(f"response.{names.get(status, 'incomplete')}", response=self.response())
        return [last, b"data: [DONE]\n\n"]  # OpenAI's SDKs stop there, and Open Responses wants it

    def _drop(self) -> list[bytes]:
        """The preview is void: the open items are closed as incomplete, and left out of the response."""
        if self._open is None and self._resume_is_inside_preview():
            self._reopen()
        first = self._next_index - self._opened
        closed = self._close(status="incomplete")
        for place in range(first, self._next_index):
            self._output[place] = {}
        return closed

    def _resume_is_inside_preview(self) -> bool:
        low = self._resume % EVENTS_PER_SEQ
        return self._resume // EVENTS_PER_SEQ == self._seq and 0 < low < AFTER_PREVIEW

    def _reopen(self) -> None:
        """The items that the reader has of a preview which is gone: the number of its last event tells."""
        k = self._resume % EVENTS_PER_OFFSET
        kinds: list[Kind] = ["text"]
        if k in {1, 10, 11}:
            kinds = ["reasoning"]
        elif k in {2, 3, 4, _TEXT_AFTER_REASONING}:
            kinds = ["reasoning", "text"]
        for kind in kinds:
            if self._open is not None:
                self._settle_item(self._open, self._done_item(self._open, status="completed"))
            self._begin_item(kind)

    def _step(self, event: Step) -> list[bytes]:
        if event.name in self._own or event.id in self._skipped_calls:
            return []
        frames: list[bytes] = []
        item = self._steps.get(event.id)
        if item is None:
            frames += self._begin_step(event)
            item = self._steps[event.id]
        if event.status == "running":
            return frames
        has_failed = event.status == "failed"
        item["status"] = "failed" if has_failed else "completed"
        item["output"] = None if has_failed else _words(event.result)
        item["error"] = _tool_error(event.error) if has_failed else None
        index = self._indexes.pop(event.id, None)
        del self._steps[event.id]
        if index is None:
            return frames
        name = "response.mcp_call.failed" if has_failed else "response.mcp_call.completed"
        frames.append(self._frame(name, item_id=item["id"], output_index=index))
        frames.append(self._frame("response.output_item.done", output_index=index, item=item))
        return frames

    def _begin_step(self, event: Step) -> list[bytes]:
        arguments = "{}" if event.args is UNSET else msgspec.json.encode(event.args).decode()
        item: JsonObject = {
            "id": f"mcp_{self._hex}_{self._seq}",
            "type": "mcp_call",
            "server_label": SERVER_LABEL,
            "name": event.name,
            "arguments": "",
            "output": None,
            "error": None,
            "status": "in_progress",
            "approval_request_id": None,
        }
        index = self._add(item)
        self.calls[item["id"]] = event.id
        self._steps[event.id] = item
        self._indexes[event.id] = index
        place = {"item_id": item["id"], "output_index": index}
        frames = [
            self._frame("response.output_item.added", output_index=index, item=item),
            self._frame("response.mcp_call.in_progress", **place),
            self._frame("response.mcp_call_arguments.delta", **place, delta=arguments),
            self._frame("response.mcp_call_arguments.done", **place, arguments=arguments),
        ]
        item["arguments"] = arguments
        return frames

    def _function_call(self, call: ToolCall) -> list[bytes]:
        item = function_call_item(call, f"fc_{self._hex}_{self._seq}_{self._called}")
        self._called += 1
        index = self._add(item)
        place = {"item_id": item["id"], "output_index": index}
        begun = {**item, "arguments": "", "status": "in_progress"}
        return [
            self._frame("response.output_item.added", output_index=index, item=begun),
            self._frame("response.function_call_arguments.delta", **place, delta=item["arguments"]),
            self._frame("response.function_call_arguments.done", **place, name=call.name, arguments=item["arguments"]),
            self._frame("response.output_item.done", output_index=index, item=item),
        ]

    def _approval(self, call: ToolCall) -> list[bytes]:
        item = {
            "id": approval_id(call.id),
            "type": "mcp_approval_request",
            "server_label": SERVER_LABEL,
            "name": call.name,
            "arguments": msgspec.json.encode(call.args).decode(),
        }
        index = self._add(item)
        return [
            self._frame("response.output_item.added", output_index=index, item=item),
            self._frame("response.output_item.done", output_index=index, item=item),
        ]

    # Text and reasoning

    def _delta(self, frame: DeltaFrame) -> bytes:
        start, end, kind, text = frame.start, frame.offset, frame.kind, frame.text
        base = frame.seq * EVENTS_PER_SEQ
        self._seq, self._offset = frame.seq, end
        self._sent[kind] += len(text)
        before = b""
        if self._open is None or self._open.kind != kind or self._has_paused:
            before = self._turn_to(kind, base + EVENTS_PER_OFFSET * start)
        item = self._open
        assert item is not None
        item.pieces.append(text)
        number = base + EVENTS_PER_OFFSET * end + self._mark(kind)
        if number <= self._resume:
            return before
        if base <= self._resume < base + AFTER_PREVIEW:
            known = (self._resume - base) // EVENTS_PER_OFFSET
            text = text[max(0, known - start) :]
        return before + b'%b%b,"sequence_number":%d}\n\n' % (item.prefix, msgspec.json.encode(text), number)

    def _mark(self, kind: Kind) -> int:
        if kind == "reasoning":
            return 1
        return _TEXT_AFTER_REASONING if self._opened > 1 else 0

    def _turn_to(self, kind: Kind, base: int) -> bytes:
        """Close the open item, and open one of this kind. Numbers are those of the preview."""
        frames: list[bytes] = []
        number = self._number
        if self._open is not None:
            self._number = base + _CLOSED_BY[kind]
            frames += self._close(phase="commentary")
        self._number = base + _OPENED[kind]
        frames += self._begin_item(kind)
        self._number = number
        return b"".join(frames)

    def _begin_item(self, kind: Kind) -> list[bytes]:
        place = f"{self._hex}_{self._seq}_{self._opened}"
        self._opened += 1
        if kind == "text":
            item: JsonObject = {
                "id": f"msg_{place}",
                "type": "message",
                "role": "assistant",
                "status": "in_progress",
                "content": [],
            }
            name, where = "response.output_text.delta", {"content_index": 0}
            part_name = "response.content_part.added"
            part: JsonObject = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            more: JsonObject = {"logprobs": []}
        else:
            item = {"id": f"rs_{place}", "type": "reasoning", "summary": [], "status": "in_progress"}
            name, where = "response.reasoning_summary_text.delta", {"summary_index": 0}
            part_name = "response.reasoning_summary_part.added"
            part, more = {"type": "summary_text", "text": ""}, {}
        index = self._add(item)
        fields = {"type": name, "item_id": item["id"], "output_index": index, **where, **more}
        prefix = b'event: %b\ndata: %b,"delta":' % (name.encode(), msgspec.json.encode(fields)[:-1])
        self._open = _OpenItem(kind=kind, id=item["id"], index=index, pieces=[], prefix=prefix)
        return [
            self._frame("response.output_item.added", output_index=index, item=item),
            self._frame(part_name, item_id=item["id"], output_index=index, **where, part=part),
        ]

    def _rest(self, reasoning: str, text: str) -> list[bytes]:
        """What the preview has not shown of a complete iteration, as if it were the preview's end."""
        frames: list[bytes] = []
        parts: tuple[tuple[Kind, str], ...] = (("reasoning", reasoning), ("text", text))
        seq = self._seq
        for kind, words in parts:
            if missing := words[self._sent[kind] :]:
                end = self._offset + len(missing)
                frames.append(self._delta(DeltaFrame(seq=seq, offset=end, iteration=0, kind=kind, text=missing)))
        return frames

    def _close(
        self, *, status: ItemStatus = "completed", phase: str | None = None, is_last: bool = False
    ) -> list[bytes]:
        """End the open item, if there is one."""
        item, self._open, self._has_paused = self._open, None, False
        if item is None:
            return []
        text, place = item.text, {"item_id": item.id, "output_index": item.index}
        frames: list[bytes] = []
        if item.kind == "text":
            where = {**place, "content_index": 0}
            annotations = self._annotations(text) if is_last else []
            frames += [
                self._frame("response.output_text.annotation.added", **where, annotation_index=n, annotation=annotation)
                for n, annotation in enumerate(annotations)
            ]
            done = self._done_item(item, status=status, annotations=annotations, phase=phase)
            frames.append(self._frame("response.output_text.done", **where, text=text, logprobs=[]))
            frames.append(self._frame("response.content_part.done", **where, part=done["content"][0]))
        else:
            where = {**place, "summary_index": 0}
            done = self._done_item(item, status=status)
            frames.append(self._frame("response.reasoning_summary_text.done", **where, text=text))
            frames.append(self._frame("response.reasoning_summary_part.done", **where, part=done["summary"][0]))
        self._settle_item(item, done)
        frames.append(self._frame("response.output_item.done", output_index=item.index, item=done))
        return frames

    def _done_item(
        self,
        item: _OpenItem,
        *,
        status: ItemStatus,
        annotations: Sequence[JsonObject] = (),
        phase: str | None = None,
    ) -> JsonObject:
        if item.kind == "reasoning":
            summary = [{"type": "summary_text", "text": item.text}]
            return {"id": item.id, "type": "reasoning", "summary": summary, "status": status}
        part = {"type": "output_text", "text": item.text, "annotations": list(annotations), "logprobs": []}
        done = {"id": item.id, "type": "message", "role": "assistant", "status": status, "content": [part]}
        return done if phase is None else {**done, "phase": phase}

    def _settle_item(self, item: _OpenItem, done: JsonObject) -> None:
        self._output[item.index] = done

    def _annotations(self, text: str) -> list[JsonObject]:
        """The sources that the text cites by their numbers, and the files that the turn has made, also in segments
        before this one."""
        earlier = [recorded.event for recorded in self.before]
        sources = [source for event in earlier if isinstance(event, Sources) for source in event.sources]
        files = [file for event in earlier if isinstance(event, Files) for file in event.files]
        cited: dict[int, tuple[int, int]] = {}
        for match in _CITED.finditer(text):
            cited.setdefault(int(match[1]), match.span())
        found = [
            _citation(source, *cited[source.number])
            for source in (*sources, *self._sources)
            if source.number is not None and source.number in cited
        ]
        return [
            *found,
            *({"type": "file_path", "file_id": file.id, "index": len(text)} for file in (*files, *self._files)),
        ]

    def _add(self, item: JsonObject) -> int:
        self._output.append(item)
        self._next_index += 1
        return self._next_index - 1

    def _frame(self, name: str, /, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        if number <= self._resume:
            return b""
        body = msgspec.json.encode({"type": name, **fields, "sequence_number": number})
        return b"event: %b\ndata: %b\n\n" % (name.encode(), body)


def instructions_of_segment(turn: Turn, index: int) -> tuple[str, str]:
    """The instructions that hold for a response: the field `instructions`, and the messages that instruct the model."""
    notes = notes_of_turn(turn)
    changed = [int(number) for number in notes.instructions if number.isdecimal() and int(number) <= index]
    if changed:
        return notes.instructions[str(max(changed))]
    whole, sizes = turn.snapshot.instructions, [size for _, size in notes.told]
    start = max(0, len(whole) - sum(sizes) - len("\n\n") * max(0, len(sizes) - 1)) if sizes else len(whole)
    return whole[:start].removesuffix("\n\n"), whole[start:]


def joined_instructions(parts: Iterable[str]) -> str:
    return "\n\n".join(filter(None, parts))


def metadata_of_segment(turn: Turn, index: int) -> JsonObject:
    """The metadata of a response: its own, or else that with which the turn began."""
    own = notes_of_turn(turn).metadata.get(str(index))
    return {key: value for key, value in turn.metadata.items() if isinstance(value, str)} if own is None else dict(own)


def response_fields(turn: Turn, segment: Segment) -> JsonObject:
    """The fields of a response that follow from the request."""
    snapshot, notes = turn.snapshot, notes_of_turn(turn)
    sampling = snapshot.sampling
    previous = response_id(turn.id, segment.index - 1) if segment.index else notes.previous_response_id
    return {
        "id": response_id(turn.id, segment.index),
        "object": "response",
        "created_at": turn.created_at // 1000,
        "background": turn.background if notes.is_background is None else notes.is_background,
        "conversation": {"id": turn.conversation_id},
        "frequency_penalty": sampling.frequency_penalty or 0.0,
        "instructions": joined_instructions(instructions_of_segment(turn, segment.index)) or None,
        "max_output_tokens": sampling.max_tokens,
        "max_tool_calls": None,
        "metadata": metadata_of_segment(turn, segment.index),
        "model": notes.model or turn.model or "",
        "parallel_tool_calls": sampling.parallel_tool_calls is not False,
        "presence_penalty": sampling.presence_penalty or 0.0,
        "previous_response_id": previous,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": notes.is_stored,
        "temperature": 1.0 if sampling.temperature is None else sampling.temperature,
        "text": {"format": _format(sampling.output)},
        "tool_choice": _choice(sampling),
        "tools": [_function(tool) for tool in snapshot.client_tools],
        "top_logprobs": 0,
        "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
        "truncation": "disabled",
    }


def usage_of(usage: Usage) -> JsonObject:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cache_read_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def function_call_item(call: ToolCall, own: str) -> JsonObject:
    return {
        "id": own,
        "type": "function_call",
        "call_id": call.id,
        "name": call.name,
        "arguments": msgspec.json.encode(call.args).decode(),
        "status": "completed",
    }


def approval_id(call_id: str) -> str:
    """The id of the item that asks for an approval of this call."""
    return f"mcpr_{call_id}"


def call_of_approval(item_id: str) -> str:
    return item_id.removeprefix("mcpr_")


def _opening_calls(snapshot: Snapshot) -> frozenset[str]:
    blocks = (block for row in snapshot.opening for block in row.blocks)
    return frozenset(str(block.call_id) for block in blocks if isinstance(block, ToolResult))


def _words(value: JsonValue) -> str:
    if isinstance(value, str):
        return value
    return "" if value is UNSET else msgspec.json.encode(value).decode()


def _tool_error(value: JsonValue) -> JsonObject:
    return {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": _words(value)}]}


def _citation(source: Source, start: int, end: int) -> JsonObject:
    if source.file_id is not None and source.url is None:
        return {"type": "file_citation", "file_id": source.file_id, "filename": source.title, "index": end}
    own = source.page_id or source.table_id or source.conversation_id or ""
    url = source.url or f"urn:turnkeep:{own}"
    return {"type": "url_citation", "url": url, "title": source.title, "start_index": start, "end_index": end}


def _format(output: OutputFormat | None) -> JsonObject:
    if output is None:
        return {"type": "text"}
    if output.schema is None:
        return {"type": "json_object"}
    return {
        "type": "json_schema",
        "name": output.name,
        "description": output.description,
        "schema": output.schema,
        "strict": output.is_strict,
    }


def _choice(sampling: Sampling) -> JsonValue:
    if sampling.tool is not None:
        return {"type": "function", "name": sampling.tool}
    return sampling.tool_choice or "auto"


def _function(tool: JsonObject) -> JsonObject:
    return {
        "type": "function",
        "name": tool["name"],
        "description": tool.get("description") or None,
        "parameters": tool.get("input_schema") or {"type": "object", "properties": {}},
        "strict": False,
    }
