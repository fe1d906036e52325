"""The timeline of a turn: each piece of work as a span with its times, read from what the turn has stored.

Rows have the time at which they were written: the end of a model call, or of a tool call. A step has the duration of
its call. The metadata of an assistant row has the times of its model call; those of the last call are in the report of
the turn. Events of a takeover and of a wait have their time. What none of them says is bounded by what happened before
it, and the span is marked as estimated. So turns of older releases, imported turns and compacted turns have a timeline
too.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from turnkeep.model.messages import Message
from turnkeep.model.turns import ModelCallTimes, Turn
from turnkeep_client.wire.blocks import JsonValue, Reasoning, ReasoningPart, ToolResult, Usage
from turnkeep_client.wire.conversations import Span, SpanContent, SpanKind, SpanStatus, TimelineAccess
from turnkeep_client.wire.events import (
    Approval,
    ClientCalls,
    Decided,
    Failure,
    Files,
    LogLine,
    Recorded,
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

USAGE = "usage"
"""Key in the metadata of an assistant row: what that one iteration cost. The total stands on the final row."""
CALL = "call"
"""Key in the metadata of an assistant row: the times of its model call (`ModelCallTimes`)."""
WHOLE_RESULT = "result"
"""Key in the metadata of a tool result's row: the whole result, where readers were shown only its beginning."""

CLOCK_SKEW_MS = 60_000
"""How far the clock of a sandbox may differ. Times that are further away are not used."""

Costs = Callable[[Usage], float | None]


class TimelineSpans(Struct, frozen=True, kw_only=True):
    """The spans in the order in which they began, and what each of them has in it."""

    spans: tuple[Span, ...]
    contents: Mapping[str, SpanContent]


def timeline_of(
    turn: Turn,
    rows: Sequence[Message],
    events: Sequence[Recorded],
    logs: Sequence[LogLine],
    *,
    access: TimelineAccess,
    cost: Costs,
    now: int,
) -> TimelineSpans:
    """The spans of a turn, as far as a caller with this access may see them.

    `outline` has times, names and counts, and nothing that anyone has said. `reader` also has what readers of the
    stream are shown. `full` has whole results and the log lines of the sandbox.
    """
    builder = _Builder(turn, rows, cost=cost, now=now)
    at = {0: turn.created_at}
    for recorded in events:
        builder.add(recorded.event)
        at[recorded.seq] = builder.clock
    builder.close()
    if access == "full":
        for number, line in enumerate(logs, start=1):
            builder.add_log(number, line, otherwise=at.get(line.after_seq, builder.clock))
    # Spans that began in one millisecond stay in the order of the events.
    spans = sorted(builder.spans.values(), key=lambda span: span.started_at)
    contents = {name: _shown(content, access) for name, content in builder.contents.items()}
    if access == "outline":
        return TimelineSpans(spans=tuple(map(_outline, spans)), contents={})
    marked = [msgspec.structs.replace(span, has_content=span.id in contents) for span in spans]
    return TimelineSpans(spans=tuple(marked), contents=contents)


def _outline(span: Span) -> Span:
    """The span without words. The note of a takeover is ours and has none."""
    return span if span.kind == "takeover" else msgspec.structs.replace(span, note=None)


def _shown(content: "_Content", access: TimelineAccess) -> SpanContent:
    has_more = content.whole is not UNSET
    result = content.whole if has_more and access == "full" else content.result
    return SpanContent(
        id=content.id,
        args=None if content.args is UNSET else content.args,
        result=None if result is UNSET else result,
        error=None if content.error is UNSET else content.error,
        text=content.text or None,
        reasoning=content.reasoning or None,
        calls=content.calls,
        is_cut=has_more and access != "full",
    )


class _Content(Struct, kw_only=True):
    """What a span has in it, before it is known who reads it."""

    id: str
    args: Any = UNSET
    result: Any = UNSET
    whole: Any = UNSET
    """The whole result, where readers are shown only its beginning."""
    error: Any = UNSET
    text: str = ""
    reasoning: str = ""
    calls: tuple[JsonValue, ...] = ()


class _Builder:
    """Goes through the events of a turn, and knows the time at each of them as well as it was stored."""

    def __init__(self, turn: Turn, rows: Sequence[Message], *, cost: Costs, now: int) -> None:
        self.spans: dict[str, Span] = {}
        self.contents: dict[str, _Content] = {}
        self.clock = turn.created_at
        """When the last thing happened that is known."""
        self._turn = turn
        self._cost = cost
        self._now = now
        self._end = now if turn.settled_at is None else turn.settled_at
        self._attempt = 0
        self._model: str | None = None
        """The span of the last model call, which asked for the tools that follow."""
        self._open: dict[str, str] = {}
        """The spans of steps that have not ended, by the id of the step."""
        self._wait: str | None = None
        self._named: Counter[SpanKind] = Counter()
        self._counted = Usage()
        self._said = {row.iteration: row for row in rows if row.role == "assistant" and row.internal}
        self._final = next((row for row in reversed(rows) if row.role == "assistant" and not row.internal), None)
        self._messages = {row.id: row for row in rows}
        self._results: dict[str, Message] = {}
        for row in rows:
            for block in row.blocks:
                if isinstance(block, ToolResult):
                    self._results[block.call_id] = row
        self._add_queue()

    def add(self, event: TurnEvent) -> None:
        match event:
            case TurnBegan():
                self._begin(event)
            case ToolCalls():
                self._add_iteration(event)
            case Step() if event.status == "running":
                self._begin_step(event)
            case Step():
                self._end_step(event)
            case Reset():
                self._add_reset(event)
            case Approval() | ClientCalls():
                self._begin_wait(event)
            case Decided():
                self._add_decisions(event)
            case Steered():
                row = self._messages.get(event.message_id)
                self._add_moment("steer", "", None if row is None else row.created_at, text=event.message)
            case Files():
                names = [file.name for file in event.files]
                self._add_moment("files", "", None, note=f"{len(names)}", text="\n".join(names))
            case Result():
                self._add_answer(event)
            case Failure():
                self._add_failure()
            case Sources():
                pass

    def close(self) -> None:
        """What is under way now, in a turn that has not ended; what was cut off, in one that has."""
        is_over = self._turn.is_settled
        status: SpanStatus = "stopped" if is_over else "running"
        for name in [*self._open.values(), *([self._wait] if self._wait else [])]:
            self._replace(name, ended_at=self._end if is_over else None, status=status)
        is_idle = not self._open and self._wait is None
        if self._turn.status == "running" and is_idle and self._attempt and self._turn.started_at is not None:
            self._add_model(len(self._said), self.clock, None, status="running", is_estimated=True)

    def add_log(self, number: int, line: LogLine, *, otherwise: int) -> None:
        at = self._plausible(line.ts)
        self.spans[f"log-{number}"] = Span(
            id=f"log-{number}",
            kind="log",
            name=line.level,
            status="failed" if line.level == "error" else "succeeded",
            started_at=otherwise if at is None else at,
            ended_at=otherwise if at is None else at,
            note=line.message,
        )

    def _add_queue(self) -> None:
        turn = self._turn
        ended = turn.started_at if turn.started_at is not None else turn.settled_at
        if ended == turn.created_at:
            return
        status: SpanStatus = "succeeded"
        if turn.started_at is None:
            status = "running" if turn.settled_at is None else "stopped"
        self.spans["queue"] = Span(
            id="queue", kind="queue", name="", status=status, started_at=turn.created_at, ended_at=ended
        )
        self._move(ended)

    def _begin(self, event: TurnBegan) -> None:
        if event.status == "running":
            self._attempt = max(self._attempt, event.attempt)
            if self._wait is None and event.at is not None and "queue" in self.spans:
                self._replace("queue", ended_at=event.at)
        if self._wait is not None:
            self._replace(self._wait, ended_at=event.at or self.clock, status="succeeded")
            self._wait = None
        self._move(event.at)

    def _add_iteration(self, event: ToolCalls) -> None:
        """A call of the model that asked for tools, or whose words were cut off by the end of the turn."""
        row = self._said.get(event.iteration)
        if event.iteration < self._turn.snapshot.opening_rounds:
            self._model = None
            return  # the caller ran these rounds before it asked
        name = self._add_model_of(row, event.iteration)
        self.contents[name] = _Content(
            id=name,
            text=event.text,
            reasoning=event.reasoning or ("" if row is None else _reasoning_of(row)),
            calls=tuple(map(_call, event.calls)),
        )

    def _add_model_of(self, row: Message | None, iteration: int) -> str:
        if row is None:
            return self._add_last_call(iteration, status=self._cut_off)
        usage = msgspec.convert(row.metadata[USAGE], Usage) if USAGE in row.metadata else None
        call = msgspec.convert(row.metadata[CALL], ModelCallTimes) if row.metadata.get(CALL) else None
        if usage is not None:
            self._counted += usage
        return self._add_call(iteration, call, row.created_at, status="succeeded", usage=usage)

    def _add_last_call(self, iteration: int, *, status: SpanStatus) -> str:
        """The last call of the model. What the turn used and no other call has used is its share."""
        used, counted = self._turn.usage, self._counted
        rest = Usage(
            input_tokens=max(0, used.input_tokens - counted.input_tokens),
            output_tokens=max(0, used.output_tokens - counted.output_tokens),
            cache_read_tokens=max(0, used.cache_read_tokens - counted.cache_read_tokens),
            cache_write_tokens=max(0, used.cache_write_tokens - counted.cache_write_tokens),
        )
        self._counted = used
        ended = self._end if self._final is None else min(self._final.created_at, self._end)
        return self._add_call(
            iteration, self._turn.report.last_call, ended, status=status, usage=rest if rest != Usage() else None
        )

    def _add_call(
        self,
        iteration: int,
        call: ModelCallTimes | None,
        ended_at: int,
        *,
        status: SpanStatus,
        usage: Usage | None,
    ) -> str:
        if call is None:
            return self._add_model(iteration, self.clock, ended_at, status=status, usage=usage, is_estimated=True)
        ends = call.began_at + call.ms
        name = self._add_model(iteration, call.began_at, ends, status=status, usage=usage, first_ms=call.first_ms)
        for number, retry in enumerate(call.retries, start=1):
            self.spans[f"retry-{iteration}-{number}"] = Span(
                id=f"retry-{iteration}-{number}",
                kind="retry",
                name=self._turn.model or "",
                status="failed",
                started_at=retry.at,
                ended_at=retry.at,
                parent_id=name,
                note=retry.reason,
            )
        return name

    def _add_model(
        self,
        iteration: int,
        started_at: int,
        ended_at: int | None,
        *,
        status: SpanStatus,
        usage: Usage | None = None,
        first_ms: int | None = None,
        is_estimated: bool = False,
    ) -> str:
        name = self._model = f"model-{iteration}"
        self.spans[name] = Span(
            id=name,
            kind="model",
            name=self._turn.model or "",
            status=status,
            started_at=started_at,
            ended_at=ended_at if ended_at is None else max(started_at, ended_at),
            iteration=iteration,
            first_token_ms=first_ms,
            usage=usage,
            cost=None if usage is None else self._cost(usage),
            is_estimated=is_estimated,
        )
        self._move(ended_at)
        return name

    def _begin_step(self, step: Step) -> None:
        if step.id in self._open:
            return
        name = self._new_name("tool")
        self._open[step.id] = name
        at = self._plausible(step.ts)
        self.spans[name] = Span(
            id=name,
            kind="tool",
            name=step.name,
            status="running",
            started_at=self.clock if at is None else at,
            ended_at=None,
            parent_id=self._model,
            is_estimated=at is None,
        )
        self.contents[name] = _Content(id=name, args=step.args)

    def _end_step(self, step: Step) -> None:
        if step.id not in self._open:
            self._begin_step(step)
        name = self._open.pop(step.id)
        row = self._results.get(step.id)
        ended = self._plausible(step.ts) or (self.clock if row is None else row.created_at)
        self._move(ended)
        times: dict[str, Any] = {}
        if step.duration_ms is not None:
            # Cut as the clock cuts its times: rounded, a step could begin before the model call that asked for it.
            times = {"started_at": ended - max(0, int(step.duration_ms)), "is_estimated": False}
        elif row is None or ended < self.spans[name].started_at:
            ended = max(ended, self.spans[name].started_at)
        self._replace(name, ended_at=ended, status=self._status_of(step), **times)
        content = self.contents[name]
        content.result, content.error = step.result, step.error
        if step.args is not UNSET:
            content.args = step.args
        if row is not None and WHOLE_RESULT in row.metadata:
            content.whole = row.metadata[WHOLE_RESULT]

    def _status_of(self, step: Step) -> SpanStatus:
        if step.status == "succeeded":
            return "succeeded"
        # A call that a stop has cut off has no duration.
        return "stopped" if self._turn.status == "cancelled" and step.duration_ms is None else "failed"

    def _add_reset(self, event: Reset) -> None:
        if event.attempt <= self._attempt:
            return  # the provider began again: the times of the call tell of it
        began, self._attempt = self.clock, event.attempt
        self._move(event.at)
        name = self._new_name("takeover")
        self.spans[name] = Span(
            id=name,
            kind="takeover",
            name=event.reason,
            status="succeeded",
            started_at=began,
            ended_at=self.clock,
            note=f"{event.attempt}",
            is_estimated=True,
        )

    def _begin_wait(self, event: Approval | ClientCalls) -> None:
        self._move(event.at)
        if self._wait is None:
            self._wait = self._new_name("wait")
            self.spans[self._wait] = Span(
                id=self._wait,
                kind="wait",
                name="approval" if isinstance(event, Approval) else "client_tools",
                status="running",
                started_at=self.clock,
                ended_at=None,
                is_estimated=event.at is None,
            )
            self.contents[self._wait] = _Content(id=self._wait)
        content = self.contents[self._wait]
        content.calls = (*content.calls, *map(_call, event.calls))

    def _add_decisions(self, event: Decided) -> None:
        self._move(max((each.at for each in event.decisions), default=None))
        if self._wait is not None:
            made = [msgspec.to_builtins(each) for each in event.decisions]
            content = self.contents[self._wait]
            content.result = [*([] if content.result is UNSET else content.result), *made]

    def _add_answer(self, event: Result) -> None:
        row, call = self._final, self._turn.report.last_call
        if call is None and not event.message and self._counted == self._turn.usage:
            return  # the turn ended with calls that the caller runs, or was imported without an answer
        iteration = len(self._said) if row is None or row.iteration is None else row.iteration
        name = self._add_last_call(iteration, status="succeeded")
        reasoning = [part.text for part in event.content[-2:] if isinstance(part, ReasoningPart)]
        self.contents[name] = _Content(id=name, text=event.message, reasoning="\n".join(reasoning))

    def _add_failure(self) -> None:
        """The last call of the model, if the end of the turn has cut it off or it is the reason of the failure."""
        iteration = len(self._said)
        if self._turn.report.last_call is not None and f"model-{iteration}" not in self.spans:
            self._add_last_call(iteration, status=self._cut_off)

    @property
    def _cut_off(self) -> SpanStatus:
        return "stopped" if self._turn.status == "cancelled" else "failed"

    def _add_moment(
        self, kind: SpanKind, name: str, at: int | None, *, note: str | None = None, text: str = ""
    ) -> None:
        when = self.clock if at is None else min(max(at, self._turn.created_at), self._end)
        span_id = self._new_name(kind)
        self.spans[span_id] = Span(
            id=span_id, kind=kind, name=name, status="succeeded", started_at=when, ended_at=when, note=note
        )
        self.contents[span_id] = _Content(id=span_id, text=text)

    def _replace(self, name: str, **changes: Any) -> None:
        self.spans[name] = msgspec.structs.replace(self.spans[name], **changes)

    def _new_name(self, kind: SpanKind) -> str:
        self._named[kind] += 1
        return f"{kind}-{self._named[kind]}"

    def _move(self, at: int | None) -> None:
        """Something happened at this time. The clock goes only forwards, and not beyond the end of the turn."""
        if at is not None:
            self.clock = max(self.clock, min(at, self._end))

    def _plausible(self, ts: float | None) -> int | None:
        """The time of a line of a sandbox, in milliseconds or in seconds. None if it cannot be one of this turn."""
        for factor in (1, 1000):
            if ts is not None and self._turn.created_at - CLOCK_SKEW_MS <= ts * factor <= self._end + CLOCK_SKEW_MS:
                return min(max(round(ts * factor), self._turn.created_at), self._end)
        return None


def _call(call: ToolCall) -> JsonValue:
    return msgspec.to_builtins(call)


def _reasoning_of(row: Message) -> str:
    return "\n\n".join(block.text for block in row.blocks if isinstance(block, Reasoning) and block.text)
