"""A turn in a sandbox: the lines of a runner become events, rows and an answer, as in a local loop.

After the recorder, no part of the server knows where a turn ran. A runner does not repeat its lines, and its box is
erased when the connection ends. So a turn that lost its runner is not run again: it ends as `sandbox_lost` and keeps
its steps.

A call that needs an answer comes as a `wait` line. The turn then waits, and this worker holds it: the box is kept, and
its runner asks the server for the answers. What the runner sends next says that the turn goes on.

Decision: docs/decisions/0904
"""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import assert_never

import msgspec

from turnkeep.engine.held_turn import FileAnnouncer, HeldLease, HeldTurn, closed_steps, settle_failed
from turnkeep.engine.outcomes import clean_json, clean_text, of_stopped_wait, outcome_unknown
from turnkeep.engine.recorder import Recorder
from turnkeep.engine.sandbox.runner_client import RunnerClient, SandboxLost, SandboxProtocol
from turnkeep.engine.services import Services
from turnkeep.engine.waits import events_of, next_wait
from turnkeep.errors import Fenced, SandboxUnavailable, WorldError
from turnkeep.ids import CallId
from turnkeep.model.messages import Message
from turnkeep.model.truncation import ANSWER_BYTES, cut_bytes, fit_display, is_too_deep
from turnkeep.model.turns import Turn, TurnReport
from turnkeep.model.waits import Wait, WaitingCall, digest_of
from turnkeep.store.commands import Settlement, TokenBinding, TokenPurpose
from turnkeep.streaming.ndjson import LineParser
from turnkeep.tools.waits import can_wait
from turnkeep_client.wire.blocks import Finish, Text, paragraphs_of
from turnkeep_client.wire.display import fold
from turnkeep_client.wire.events import Decided, LogLine, Result, Source, Sources, Step, ToolCalls, TurnBegan, TurnEvent
from turnkeep_client.wire.sandbox import (
    DeltaLine,
    Ending,
    Line,
    OpenLine,
    ResultLine,
    SandboxLog,
    SandboxRequest,
    SourcesLine,
    StepLine,
    WaitingToolCall,
    WaitLine,
)

TakeLines = Callable[[Sequence[Line]], None]
"""Gets the lines themselves, as they come. Must be quick, and must not raise."""

COUNTING_SECONDS = 2.0
"""How long the end of a turn waits for model calls that were cut off to be counted. Their worker may have died."""
COUNTING_TICK_SECONDS = 0.02
LOOK_SECONDS = 1.0
"""How often the row of a turn that waits for several decisions is looked at, so that readers hear of each."""
CLOSING_SECONDS = 10.0
"""How long a runner may take to close the stream after its last line. Then the server closes it."""
SPOKEN_BYTES = 1_000_000
"""Maximum size of the text between two steps."""
STREAM_BYTES = 128 * 1024 * 1024
"""Maximum size of the stream of one turn, whose events stay in memory while it runs."""
MOST_SOURCES = 1_000
"""Maximum number of sources of one turn. All of them are part of its message, which is loaded whole."""
SOURCE_CHARS = 2_000
CODE_CHARS = 100
MESSAGE_CHARS = 4_000
_MAX_TS = 1 << 53


class _Taken:
    """What some lines amount to, before it is recorded."""

    def __init__(self) -> None:
        self.rows: list[Message] = []
        self.events: list[TurnEvent] = []
        self.logs: list[LogLine] = []
        self.unshown: list[str] = []


class RemoteTurn(HeldTurn):
    """One turn, its loop in a sandbox."""

    can_be_handed_over = False

    def __init__(
        self,
        services: Services,
        turn: Turn,
        recorder: Recorder,
        lease: HeldLease,
        *,
        is_first_start: bool,
        take_lines: TakeLines | None = None,
    ) -> None:
        super().__init__(services, turn, recorder)
        self.usage = turn.usage
        self._store = services.store
        self._sandboxes = services.sandboxes
        self._announcer = FileAnnouncer(services.store, recorder, lease)
        self._lease = lease
        self._is_first_start = is_first_start
        self._take_lines = take_lines
        self._iteration = sum(row.role == "assistant" for row in recorder.rows)
        self._said: list[str] = []
        """Text since the last step, previewed or not."""
        self._said_bytes = 0
        self._cited: set[Source] = set()
        self._finish: Finish = "complete"
        self.waits = asyncio.Event()
        """Set while the turn waits for answers."""
        self._waited_ms = 0 if turn.wait is None else turn.wait.waited_ms
        self._waiting_since = self._waiting_until = 0
        self._asks_several = False
        self._telling = asyncio.Lock()

    async def work(self) -> None:
        """Send the turn to the runner, record what comes back, and settle with what it ends with."""
        if not self._is_first_start:
            raise SandboxLost("The server that ran this turn in a sandbox was lost, and the sandbox with it.")
        if self._sandboxes is None:
            raise SandboxUnavailable("No sandbox runner is connected.")
        await self._lease.ensure()
        envelope = await self._envelope(self._sandboxes)
        parser = LineParser()
        telling = asyncio.create_task(self._tell_for_ever())
        try:
            async with self._sandboxes.stream(envelope, self.turn) as body:
                ending = await self._listen(body, parser)
        finally:
            telling.cancel()
        if self._take_lines is not None:
            self._take_lines((ending,))
        notes = self._notes(parser)
        if isinstance(ending, ResultLine):
            await self._answer(ending, notes)
            return
        if notes:
            await self.recorder.record(logs=notes)
        code = clean_text(ending.code)[:CODE_CHARS].strip() or "sandbox_error"
        await settle_failed(self, code, clean_text(ending.message)[:MESSAGE_CHARS])

    async def wind_up(self) -> tuple[TurnEvent, ...]:
        """Expire the turn's tokens first, and let calls that were cut off be counted. After that no file and no usage
        can be added, so what is read here is complete."""
        await self._store.expire_tokens(self.turn.id)
        await self._count_calls()
        await self.recorder.quiesce()  # a decision may just be recorded
        counted = await self._store.running_turn(self.turn.id, self.recorder.held.attempt)
        waited: tuple[TurnEvent, ...] = ()
        if counted is not None:
            self.usage = counted.usage
            waited = (*self._untold(counted.wait), *self._unrun_steps(counted.wait))
        return (*waited, *await self._announcer.unannounced(look=True))

    def _unrun_steps(self, wait: Wait | None) -> tuple[Step, ...]:
        """A step for each call that has waited and of which no line came, so that readers see what became of it. One
        that was allowed may have run: its line may have been lost with the box."""
        told = {event.id for event in self.recorder.events if isinstance(event, Step)}
        calls = () if wait is None else tuple(call for call in wait.calls if call.id not in told)
        return tuple(
            Step(
                id=call.id,
                name=call.name,
                status="failed",
                args=call.args,
                error=(of_stopped_wait(call) if call.allowed_args is None else outcome_unknown()).error,
            )
            for call in calls
        )

    @property
    def waited_ms(self) -> int:
        """How long the turn has waited for answers. After the end of a wait its time counts again, so that a turn whose
        runner has fallen silent ends too."""
        if not self.waits.is_set():
            return self._waited_ms
        return self._waited_ms + max(0, min(self._clock(), self._waiting_until) - self._waiting_since)

    async def _count_calls(self) -> None:
        """Wait until model calls that were cut off with the sandbox are counted. The workers that serve them do so, at
        the moment in which the sandbox hangs up."""
        held = self.recorder.held
        with suppress(TimeoutError):
            async with asyncio.timeout(COUNTING_SECONDS):
                while await self._store.has_open_calls(held.turn_id, held.attempt):  # noqa: ASYNC110 - other workers do it
                    await asyncio.sleep(COUNTING_TICK_SECONDS)

    async def _envelope(self, sandboxes: RunnerClient) -> SandboxRequest:
        asked = self.recorder.rows[0]
        long, short = self.settings.upload_token_seconds, self.settings.setup_token_seconds
        if can_wait(self.turn.snapshot):
            long += self.settings.sandbox_approval_seconds
        setup, run, upload = await asyncio.gather(
            self._token("setup", short), self._token("run", short), self._token("upload", long)
        )
        return SandboxRequest(
            agent_url=sandboxes.agent_url(self.turn.id),
            otp_setup=setup,
            otp_run=run,
            otp_upload=upload,
            prompt=prompt_of(asked),
            chat_id=self.turn.conversation_id,
        )

    async def _token(self, purpose: TokenPurpose, seconds: float) -> str:
        token = secrets.token_urlsafe(32)
        binding = TokenBinding(purpose=purpose, turn_id=self.turn.id, attempt=self.recorder.held.attempt)
        await self._store.add_token(token_hash(token), binding, expires_in_seconds=seconds)
        return token

    async def _listen(self, body: AsyncIterator[bytes], parser: LineParser) -> Ending:
        """Record the lines as they come. Returns when the body has ended, or has not ended in time after its last
        line."""
        loop, received = asyncio.get_running_loop(), 0
        try:
            async with asyncio.timeout(None) as timer:
                async for piece in body:
                    await self._take(parser.feed(piece), parser.take_notes())
                    received += len(piece)
                    if received > STREAM_BYTES:
                        raise SandboxProtocol(f"The sandbox sent more than {STREAM_BYTES:,} bytes.")
                    if parser.is_broken:
                        break
                    if parser.ending is not None and timer.when() is None:
                        timer.reschedule(loop.time() + CLOSING_SECONDS)
        except (TimeoutError, SandboxLost):
            if parser.ending is None:
                raise
        return parser.close()

    async def _take(self, lines: Sequence[OpenLine], notes: Sequence[str]) -> None:
        """Record all lines that have arrived in one write. The text after the last step is only previewed."""
        if not lines and not notes:
            return
        if self.waits.is_set() and not all(isinstance(line, SandboxLog) for line in lines):
            await self._tell_decisions()
        taken = _Taken()
        taken.logs += map(self._note, notes)
        fault: SandboxProtocol | None = None
        for line in lines:
            try:
                self._sort(line, taken)
                if isinstance(line, WaitLine):
                    await self._record(taken)
                    taken = _Taken()
                    await self._wait(line)
            except SandboxProtocol as exc:
                fault = exc  # what came before it is kept
                break
        await self._record(taken)
        if self._take_lines is not None:
            self._take_lines(lines)
        if fault is not None:
            raise fault

    async def _record(self, taken: "_Taken") -> None:
        if taken.events or taken.logs:
            await self.recorder.record(rows=taken.rows, events=taken.events, logs=taken.logs)
            for event in taken.events:
                if isinstance(event, Step):
                    self._observer.sandbox_step(self.turn, event)
        if text := "".join(taken.unshown):
            self.recorder.preview(self._iteration, "text", text)
            self._observer.reached("previewed", self.turn.id)

    async def _wait(self, line: WaitLine) -> None:
        """Let the turn wait for answers to these calls. The time that its box may wait is limited, over all waits."""
        calls = [_waiting_call(call) for call in line.calls]
        if len({call.id for call in calls}) < len(calls):
            raise SandboxProtocol("The sandbox asked for two calls with the same id.")
        before = (await self._store.claimed_turn(self.turn.id)).wait
        left = max(0.0, self.settings.sandbox_approval_seconds - self._waited_ms / 1000)
        now = self._clock()
        wait = next_wait(before, calls, now=now, seconds=min(self.settings.approval_seconds, left))
        wait = msgspec.structs.replace(wait, held_by=self.recorder.held.attempt, waited_ms=self._waited_ms)
        await self._lease.ensure()
        self._observer.reached("waiting", self.turn.id)
        await self.recorder.wait(wait, events_of(wait))
        self._waiting_since, self._waiting_until = now, wait.expires_at
        self._asks_several = sum(call.reason == "approval" for call in calls) > 1
        self.waits.set()
        self._observer.reached("waited", self.turn.id)

    async def _tell_for_ever(self) -> None:
        """Record each of several decisions as it comes, while the turn waits for the others."""
        while True:
            await self.waits.wait()
            await asyncio.sleep(LOOK_SECONDS)
            if self._asks_several and self.waits.is_set():
                with suppress(Fenced, WorldError):  # the next line meets the same, and ends the turn
                    await self._tell_decisions()

    async def _tell_decisions(self) -> None:
        """Record the decisions of this wait of which no event tells. Only the holder of a turn writes its events."""
        async with self._telling:
            found = await self._store.running_turn(self.turn.id, self.recorder.held.attempt)
            if found is not None and (news := self._untold(found.wait)):
                await self.recorder.record(events=news)

    def _untold(self, wait: Wait | None) -> tuple[Decided, ...]:
        events = (event for event in self.recorder.events if isinstance(event, Decided))
        told = {(made.call_id, made.at) for event in events for made in event.decisions}
        made = () if wait is None else wait.decisions
        news = tuple(each for each in made if (each.call_id, each.at) not in told)
        return (Decided(decisions=news),) if news else ()

    def _go_on(self, taken: "_Taken") -> None:
        """The first line after a wait says that it is over."""
        if not self.waits.is_set():
            return
        self._waited_ms = self.waited_ms
        self.waits.clear()
        taken.events.append(
            TurnBegan(
                turn_id=self.turn.id,
                conversation_id=self.turn.conversation_id,
                user_message_id=self.recorder.rows[0].id,
                status="running",
                attempt=self.recorder.held.attempt,
                at=self._clock(),
            )
        )

    def _sort(self, line: OpenLine, taken: "_Taken") -> None:
        if not isinstance(line, SandboxLog):
            self._go_on(taken)
        match line:
            case WaitLine():
                self._close_words(taken)
            case DeltaLine():
                text = clean_text(line.text)
                self._say(text)
                taken.unshown.append(text)
            case SandboxLog():
                taken.logs.append(self._log(line, after=len(self.recorder.events) + len(taken.events)))
            case StepLine() | SourcesLine():
                event = _step_of(line) if isinstance(line, StepLine) else self._sources_of(line)
                self._close_words(taken)
                taken.events.append(event)
            case _:
                assert_never(line)

    def _close_words(self, taken: "_Taken") -> None:
        """The text since the last step becomes an iteration of its own."""
        if spoken := self._spoken():
            taken.rows.append(self._spoken_row(spoken))
            taken.events.append(self._spoken_event(spoken))
            self._iteration += 1
        taken.unshown.clear()

    def _sources_of(self, line: SourcesLine) -> Sources:
        sources = tuple(_source_of(source) for source in line.sources)
        if len(self._cited.union(sources)) > MOST_SOURCES:
            raise SandboxProtocol(f"The sandbox cited more than {MOST_SOURCES:,} sources.")
        self._cited.update(sources)
        return Sources(sources=sources)

    def _say(self, text: str) -> None:
        self._said.append(text)
        self._said_bytes += len(text.encode())
        if self._said_bytes > SPOKEN_BYTES:
            raise SandboxProtocol(f"The sandbox said more than {SPOKEN_BYTES:,} bytes without a step or an end.")

    def _spoken(self) -> str:
        """The text since the last step, which is then forgotten."""
        spoken = "".join(self._said)
        self._said.clear()
        self._said_bytes = 0
        return spoken

    def _spoken_row(self, text: str) -> Message:
        return self.row("assistant", (Text(text=text),), internal=True, iteration=self._iteration)

    def _spoken_event(self, text: str) -> ToolCalls:
        return ToolCalls(iteration=self._iteration, text=text, calls=())

    def _log(self, line: SandboxLog, *, after: int) -> LogLine:
        ts = self._clock() if line.ts is None or abs(line.ts) > _MAX_TS else int(line.ts)
        return LogLine(after_seq=after, level=line.known_level, message=clean_text(line.message), ts=ts)

    def _notes(self, parser: LineParser) -> list[LogLine]:
        notes = parser.take_notes()
        if parser.ignored_lines:
            notes.append(f"{parser.ignored_lines:,} lines after the end of the turn were ignored.")
        return [self._note(note) for note in notes]

    def _note(self, message: str) -> LogLine:
        """A remark on the lines themselves, for the trace."""
        message = clean_text(message)
        return LogLine(after_seq=len(self.recorder.events), level="warn", message=message, ts=self._clock())

    def report(self) -> TurnReport:
        return TurnReport(finish=self._finish)

    async def _answer(self, ending: ResultLine, notes: Sequence[LogLine]) -> None:
        """Settle with the message of the result as the answer. Earlier text that is not part of it is kept too."""
        message = cut_bytes(clean_text(ending.message), ANSWER_BYTES, gap="\n\n")
        if not message.strip():
            self._finish = "empty"
        elif ending.finish == "length":
            self._finish = "length"
        rows: list[Message] = []
        events: list[TurnEvent] = []
        if (spoken := self._spoken()).strip() and spoken.strip() not in message:
            rows.append(self._spoken_row(spoken))
            events.append(self._spoken_event(spoken))
            self._iteration += 1
        events += closed_steps(self.recorder.display())
        events += await self.wind_up()
        display = fit_display(fold((*self.recorder.events, *events))).then_said(text=message)
        final = self.final_row(message, display=display)
        result = Result(
            message_id=final.id,
            message=message,
            content=display.content,
            usage=self.usage,
            finish=None if self._finish == "complete" else self._finish,
        )
        await self.settle(
            Settlement(
                status="succeeded",
                terminal=result,
                usage=self.usage,
                final=final,
                rows=tuple(rows),
                events=tuple(events),
                logs=tuple(notes),
            )
        )


def token_hash(token: str) -> bytes:
    """The hash under which a one-time token is stored. The token is random and long, so a plain hash is enough."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def prompt_of(asked: Message) -> str:
    """The text of the user's message; if it has none, the names of its files."""
    text = paragraphs_of(asked.blocks).strip()
    if text or not asked.attachments:
        return text
    return f"(Attached: {', '.join(ref.name for ref in asked.attachments)})"


def _waiting_call(call: WaitingToolCall) -> WaitingCall:
    if is_too_deep(call.args):
        raise SandboxProtocol("The arguments of a call that waits are nested too deeply.")
    args = clean_json(call.args)
    assert isinstance(args, dict)
    name = clean_text(call.name)
    return WaitingCall(
        id=CallId(clean_text(call.id)),
        name=name,
        args=args,
        reason=call.reason,
        digest=digest_of(name, args),
        schema=call.input_schema,
        identity=_identity_of(call, name),
    )


def _identity_of(call: WaitingToolCall, name: str) -> str:
    """What the runner says of which tool this is, as far as it fits what a person is shown. Who always allows a tool
    trusts that one, and no other."""
    identity = clean_text(call.identity)
    shown = {name, f"sandbox:{name}"}
    if name == "run_recipe":
        shown.add(f"sandbox:{call.args.get('skill')}/{call.args.get('recipe')}")
    return identity if identity.partition("#")[0] in shown else ""


def _step_of(line: StepLine) -> Step:
    """The line as an event: unchanged, except for characters that no database stores."""
    step = line.event()
    return msgspec.structs.replace(
        step,
        id=clean_text(step.id),
        name=clean_text(step.name),
        args=clean_json(step.args),
        result=clean_json(step.result),
        error=clean_json(step.error),
    )


def _source_of(source: Source) -> Source:
    """The source as a message can keep it. Access to its target is checked when a reader opens it."""
    texts = {
        name: clean_text(value)[:SOURCE_CHARS]
        for name, value in msgspec.structs.asdict(source).items()
        if isinstance(value, str)
    }
    return msgspec.structs.replace(source, **texts)
