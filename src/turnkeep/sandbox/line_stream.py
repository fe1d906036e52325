"""The lines of one turn: the stream that goes to the server, and the journal and publisher that write to it.

Journal and publisher take the place of the store and the hub. So the loop in a sandbox is the same code as the loop in
the server: it records events, and what it records is sent as NDJSON lines.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence, Set
from typing import cast

import msgspec

from turnkeep.clock import Clock, system_clock
from turnkeep.errors import Defect
from turnkeep.ids import ConversationId, TurnId
from turnkeep.model.messages import Message
from turnkeep.model.turns import Held, Turn
from turnkeep.model.waits import Wait
from turnkeep.sandbox.tools import step_name
from turnkeep.store.commands import Receipt, Settled, Settlement, Taken
from turnkeep.streaming.ndjson import LINE_BYTES
from turnkeep.streaming.ports import PreviewPiece
from turnkeep_client.wire.blocks import JsonValue, StepStatus
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
    Source,
    Sources,
    Steered,
    Step,
    ToolCalls,
    TraceLevel,
    TurnBegan,
    TurnEvent,
)
from turnkeep_client.wire.sandbox import (
    DeltaLine,
    Ending,
    ErrorLine,
    Line,
    ResultLine,
    SandboxLog,
    SourcesLine,
    StepLine,
    WaitingToolCall,
    WaitLine,
    encode_line,
)

ARGS_BYTES = 64 * 1024
ARG_CHARS = 2_000
LOG_CHARS = 8_000

UNSENT_BYTES = 16 * 1024 * 1024
"""A turn is stopped when the server has left this much unread."""


class LineStream:
    """Lines that wait to be sent.

    Writing never blocks. `on_overflow` is called once if the server does not read them.
    """

    def __init__(self, *, clock: Clock = system_clock) -> None:
        self.on_overflow: Callable[[], object] | None = None
        self._clock = clock
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._wake = asyncio.Event()
        self.ending: Ending | None = None

    def log(self, level: TraceLevel, message: str) -> None:
        self._write(SandboxLog(level=level, message=message[:LOG_CHARS], ts=self._clock()))

    def delta(self, text: str) -> None:
        self._write(DeltaLine(text=text))

    def step(self, step: Step, *, name: str | None = None) -> None:
        self._write(
            StepLine(
                id=step.id,
                name=name or step.name,
                status=cast(StepStatus, step.status),
                args=shown_args(step.args),
                result=step.result,
                error=step.error,
                duration_ms=step.duration_ms,
                ts=self._clock(),
            )
        )

    def sources(self, sources: Sequence[Source]) -> None:
        self._write(SourcesLine(sources=tuple(sources), ts=self._clock()))

    def wait(self, calls: Sequence[WaitingToolCall]) -> bool:
        """Say that these calls need answers. False, with nothing written, if they do not fit into a line."""
        line = WaitLine(calls=tuple(calls), ts=self._clock())
        if len(encode_line(line)) > LINE_BYTES:
            return False
        self._write(line)
        return True

    def result(self, message: str, *, finish: str | None = None) -> None:
        ending = ResultLine(message=message, finish=finish, ts=self._clock())
        if len(encode_line(ending)) > LINE_BYTES:
            self.error("answer_too_long", f"The answer has {len(message):,} characters, more than fits into a line.")
        else:
            self._end(ending)

    def error(self, code: str, message: str) -> None:
        self._end(ErrorLine(code=code, message=message, ts=self._clock()))

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def wake(self) -> None:
        """Make a waiting `take` return."""
        self._wake.set()

    async def take(self, *, seconds: float) -> bytes:
        """The lines since the last call; nothing after `seconds` without a line, or after `wake`."""
        if not self._unsent:
            try:
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
            except TimeoutError:
                return b""
        self._wake.clear()
        body = b"".join(self._unsent)
        self._unsent, self._unsent_bytes = [], 0
        return body

    def _end(self, ending: Ending) -> None:
        """Write the last line. Only the first ending counts, and nothing is written after it."""
        if self.ending is None:
            self._write(ending)
            self.ending = ending

    def _write(self, line: Line) -> None:
        if self.ending is not None:
            return
        encoded = encode_line(line)
        self._unsent.append(encoded)
        self._unsent_bytes += len(encoded)
        self._wake.set()
        if self._unsent_bytes > UNSENT_BYTES and self.on_overflow is not None:
            on_overflow, self.on_overflow = self.on_overflow, None
            on_overflow()


class LineJournal:
    """A journal that stores nothing: the server gets the lines. `before_ending` runs before the last line."""

    def __init__(
        self,
        turn: Turn,
        lines: LineStream,
        before_ending: Callable[[], Awaitable[None]],
        trusted: Set[str] = frozenset(),
    ) -> None:
        """`trusted` are the tools whose calls need no decision. The loop adds to them."""
        self._turn = turn
        self._lines = lines
        self._before_ending = before_ending
        self._trusted = trusted

    async def record(
        self,
        held: Held,
        *,
        after: int,
        rows: Sequence[Message] = (),
        events: Sequence[TurnEvent] = (),
        logs: Sequence[LogLine] = (),
    ) -> Receipt:
        for log in logs:
            self._lines.log(log.level, log.message)
        return Receipt(last_seq=after + len(events), cancel_requested=False)

    async def settle(self, held: Held, *, after: int, settlement: Settlement) -> Settled:
        await self._before_ending()
        return Settled(turn=self._turn, promoted=None)

    async def take_steers(self, held: Held, *, after: int, sequence: int) -> Taken:
        return Taken()

    async def wait(self, held: Held, *, after: int, events: Sequence[TurnEvent], wait: Wait) -> bool:
        raise Defect("A turn in a sandbox asks its server before it runs a call, and does not wait by itself.")

    async def trusted_tools(self, conversation_id: ConversationId) -> frozenset[str]:
        return frozenset(self._trusted)


class LinePublisher:
    """Publishes events as lines. The server makes its own events of them."""

    def __init__(self, lines: LineStream) -> None:
        self._lines = lines
        self._names: dict[str, str] = {}
        self._in_progress: set[str] = set()
        self._has_preview = False

    def publish(self, turn_id: TurnId, recorded: Sequence[Recorded]) -> None:
        for each in recorded:
            self._write_event(each.event)

    def preview(self, piece: PreviewPiece) -> None:
        if piece.kind == "text":
            self._has_preview = True
            self._lines.delta(piece.text)

    def progress(self, call_id: str, output: str) -> None:
        """Show that a step is still running, with the end of its output so far."""
        name = self._names.get(call_id)
        if name is not None:
            self._in_progress.add(call_id)
            self._lines.step(Step(id=call_id, name=name, status="running", result=output))

    def forget(self, turn_id: TurnId) -> None:
        pass

    def _write_event(self, event: TurnEvent) -> None:
        match event:
            case Step():
                self._write_step(event)
            case ToolCalls():
                if event.text and not self._has_preview:
                    self._lines.delta(event.text)
                self._has_preview = False
            case Result():
                self._lines.result(event.message, finish=event.finish)
            case Failure():
                self._lines.error(event.code, event.message)
            case Reset():
                self._lines.log("warn", f"The model was asked again: {event.reason}")
            case Sources():
                self._lines.sources(event.sources)
            case TurnBegan() | Files() | Approval() | ClientCalls() | Decided() | Steered():
                pass

    def _write_step(self, step: Step) -> None:
        if step.status == "running" and isinstance(step.args, dict):
            self._names[step.id] = step_name(step.name, step.args)
        name = self._names.get(step.id, step.name)
        if step.status != "running":
            self._names.pop(step.id, None)  # late output of an ended step is not shown
        # The error of a failed step contains the output that was shown while it ran; do not show it twice.
        drops_output = step.status == "failed" and step.id in self._in_progress
        shown = Step(
            id=step.id,
            name=name,
            status=cast(StepStatus, step.status),
            args=step.args,
            result=None if drops_output else step.result,
            error=step.error,
            duration_ms=step.duration_ms,
        )
        self._lines.step(shown)


def shown_args(args: JsonValue) -> JsonValue:
    """The arguments of a call as readers see them: whole, unless they are very long."""
    if not isinstance(args, dict) or len(msgspec.json.encode(args)) <= ARGS_BYTES:
        return args
    short = {name: _cut(value) for name, value in args.items()}
    return short if len(msgspec.json.encode(short)) <= ARGS_BYTES else {"cut": f"{len(args):,} arguments"}


def _cut(value: JsonValue) -> JsonValue:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return value if len(text) <= ARG_CHARS else f"{text[:ARG_CHARS]} [cut: {len(text):,} characters in all]"
