"""The loop: one turn, from the question to its answer.

`run_turn` is the page to read first. It acts through `LocalTurn`, which knows the turn. A cancel, a lost lease, a
failing provider or a time limit arrives as an exception, and `held_turn.py` settles the turn.
"""

import asyncio
import math
import time
from collections.abc import Sequence, Set
from contextlib import aclosing
from typing import Literal, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from turnkeep.compiler.window import CHARS_PER_TOKEN
from turnkeep.engine.assembly import Assembly, FilesUnavailable, GrownHistory
from turnkeep.engine.held_turn import MAX_REPLY_CHARS, FileAnnouncer, HeldTurn, OpenCall, progress_of, shown
from turnkeep.engine.observer import ObservedModelCall, ObservedToolCall
from turnkeep.engine.outcomes import Citations, call_tool, clean_reply, clean_text, outcome_unknown, shown_to_readers
from turnkeep.engine.recorder import Recorder
from turnkeep.engine.services import LoopServices
from turnkeep.engine.waits import Permissions, as_begun, events_of, next_wait, note_of_edit
from turnkeep.errors import InvalidRequest
from turnkeep.ids import CallId
from turnkeep.model.messages import Message
from turnkeep.model.sampling import OutputFormat
from turnkeep.model.timeline import CALL
from turnkeep.model.truncation import fit_display
from turnkeep.model.turns import ModelCallTimes, ModelRetry, Turn, TurnReport
from turnkeep.model.waits import Wait, WaitingCall
from turnkeep.providers.ports import (
    BETWEEN_THOUGHTS,
    Delta,
    ModelRequest,
    ProviderFailed,
    ProviderTimedOut,
    Reply,
    Restarted,
)
from turnkeep.store.commands import Settlement
from turnkeep.tools.ports import CallContext, Outcome
from turnkeep.tools.schemas import check_value
from turnkeep_client.wire.blocks import Block, Finish, JsonObject, Reasoning, ToolResult, ToolUse, Usage, text_of
from turnkeep_client.wire.display import fold
from turnkeep_client.wire.events import LogLine, Reset, Result, Sources, Step, ToolCall, ToolCalls, TurnEvent

FILES_SECONDS = 600.0
"""How long a turn waits for files that cannot be read. Then it fails."""
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0

StopReason = Literal["cancelled", "lost", "handover"]


async def run_turn(turn: "LocalTurn") -> None:
    """Ask the model, run the tools it asks for, and so on, until it answers, or has to wait for an answer itself."""
    await turn.note_missing_tools()
    await turn.record_opening()
    await turn.finish_open_calls()
    while not turn.recorder.is_waiting and turn.settled is None:
        reply = await turn.ask_model(may_call=turn.rounds_left > 0)
        calls = [block for block in reply.blocks if isinstance(block, ToolUse)]
        if not calls or turn.rounds_left == 0:
            await turn.answer(reply)
            return
        await turn.record_iteration(reply, calls)
        await turn.answer_calls([call for call in calls if call.id not in reply.malformed])


class Lease(Protocol):
    """Says whether this worker still holds the turn."""

    async def begin_call(self) -> None:
        """Return if a call may begin now. Raises HandedOver if the worker is leaving, and what `ensure` raises."""

    async def ensure(self) -> None:
        """Return if the lease holds for certain; else wait for a renewal. Raises LeaseLost."""


class NoAnswer(ProviderFailed):
    """The model asked for tools in every round and gave no answer after the last one."""

    code = "tool_rounds"


class OutputMismatch(ProviderFailed):
    """The answer does not fit the schema that the caller gave."""


class LocalTurn(HeldTurn):
    """One turn, its loop in this process."""

    can_be_handed_over = True

    def __init__(
        self,
        services: LoopServices,
        turn: Turn,
        recorder: Recorder,
        lease: Lease,
        assembly: Assembly,
        announcer: FileAnnouncer | None = None,
    ) -> None:
        super().__init__(services, turn, recorder)
        self._lease = lease
        self._preview_rate = services.preview_rate
        self._assembly = assembly
        self._toolbox = assembly.toolbox
        self.announcer = announcer
        self._progress = progress_of(recorder.rows, recorder.events)
        self._iteration = self._progress.iterations
        self._citations = Citations(recorder.display().sources)
        self.usage = self._progress.usage
        self._finish: Finish = "complete"
        self._steers = 0 if turn.attempt == 1 else -1
        """How many messages that steer the turn were looked at."""
        self._last_call: ModelCallTimes | None = None
        """The last call of the model, until its iteration is recorded."""

    async def work(self) -> None:
        await run_turn(self)

    def history(self) -> GrownHistory | None:
        """What the next turn has before it; None if it must read that from the store."""
        return self._assembly.history_with(self.recorder.rows, self.turn.ordinal)

    def report(self) -> TurnReport:
        return msgspec.structs.replace(self._assembly.report(self._finish), last_call=self._last_call)

    @property
    def rounds_left(self) -> int:
        return self.settings.tool_rounds + self.turn.snapshot.opening_rounds - self._iteration

    async def note_missing_tools(self) -> None:
        """Log the tools that this turn cannot have. The trace shows them; the model does not see them."""
        if notes := self._toolbox.notes:
            seq, now = len(self.recorder.events), self._clock()
            lines = [LogLine(after_seq=seq, level="warn", message=note, ts=now) for note in notes]
            await self.recorder.record(logs=lines)

    async def record_opening(self) -> None:
        """Record the rounds that the caller had run before it asked, once. Later turns then have them before them as if
        they had happened here. All of it is one write."""
        opening = self.turn.snapshot.opening
        if not opening or self._iteration:
            return
        rows: list[Message] = []
        events: list[TurnEvent] = []
        names: dict[str, ToolUse] = {}
        for said in opening:
            calls = [block for block in said.blocks if isinstance(block, ToolUse)]
            names |= {call.id: call for call in calls}
            if said.role == "assistant":
                rows.append(self.row("assistant", said.blocks, internal=True, iteration=self._iteration))
                events.append(_completed(self._iteration, said.blocks, calls))
                self._iteration += 1
                continue
            rows.append(self.row("user", said.blocks, internal=True, iteration=max(0, self._iteration - 1)))
            events += [
                ended_step(names[block.call_id], outcome_of(block), seconds=None, args=names[block.call_id].input)
                for block in said.blocks
                if isinstance(block, ToolResult) and block.call_id in names
            ]
        await self.recorder.record(rows=rows, events=events)

    async def finish_open_calls(self) -> None:
        """Give every call that an earlier attempt left open a result: run it, or record that its outcome is unknown."""
        unknown: list[OpenCall] = []
        again: list[ToolUse] = []
        for call in self._progress.open_calls:
            tool = self._toolbox.get(call.use.name)
            repeatable = tool is not None and tool.spec.is_idempotent
            if call.has_begun and not repeatable:
                unknown.append(call)
            else:
                again.append(call.use)
        for call in unknown:
            await self._record_outcome(as_begun(call.use, self.turn.wait), outcome_unknown(), seconds=None)
        if again:
            begun = {call.use.id for call in self._progress.open_calls if call.has_begun}
            await self.answer_calls(again, begun=begun, wait=self.turn.wait)

    async def ask_model(self, *, may_call: bool) -> Reply:
        """One iteration: send the request, preview the reply while it comes in, and return the whole of it."""
        if self.announcer is not None:
            await self.announcer.announce()
        await self._take_steers()
        request = await self._request(may_call=may_call)
        await self._lease.begin_call()
        call = ObservedModelCall(self.turn, request, is_first=self._iteration == 0 and self.turn.attempt == 1)
        self._observer.model_call_began(call)
        try:
            call.reply = await self._listen(request, call)
        except BaseException as exc:
            call.error = exc
            raise
        finally:
            call.end()
            self._last_call = call.times(now=self._clock())
            self._observer.model_called(call)
            if call.reply is None and self.recorder.previewed_chars:
                self.usage += usage_of_part(request, self.recorder.previewed_chars)
        self.usage += call.reply.usage
        return call.reply

    async def _take_steers(self) -> None:
        """Take what was sent to steer the turn, if the last write told of something new. A worker that has adopted the
        turn looks in any case."""
        if self.recorder.steers != self._steers:
            self._steers = self.recorder.steers
            await self.recorder.take_steers()
            self._observer.reached("steered", self.turn.id)

    async def _request(self, *, may_call: bool) -> ModelRequest:
        """The request of the next iteration. While its files cannot be read, wait for them with growing pauses.

        Nothing is recorded meanwhile, and the turn is not let go: another worker would not be able to read them either.
        Raises FilesUnavailable when that lasts too long, and the turn fails.
        """
        pause, ends_at = FIRST_PAUSE_SECONDS, time.monotonic() + FILES_SECONDS
        while True:
            try:
                return await self._assembly.request(self.turn, self.recorder.rows, self.settings, may_call=may_call)
            except FilesUnavailable:
                if time.monotonic() + pause > ends_at:
                    raise
            await asyncio.sleep(pause)
            await self._lease.begin_call()
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def record_iteration(self, reply: Reply, calls: Sequence[ToolUse]) -> None:
        """Record a complete iteration: its row, and the event that replaces its previews. Calls whose arguments could
        not be read get their result in the same write. What is stored of them looks like a call without arguments,
        which a worker that goes on with the turn would run."""
        row = self.row("assistant", reply.blocks, internal=True, iteration=self._iteration, usage=reply.usage)
        rows = [msgspec.structs.replace(row, metadata=row.metadata | {CALL: msgspec.to_builtins(self._last_call)})]
        events: list[TurnEvent] = [_completed(self._iteration, reply.blocks, calls)]
        for call in calls:
            if (problem := reply.malformed.get(call.id)) is not None:
                outcome = Outcome(error=f"The arguments were not valid: {problem}")
                rows.append(msgspec.structs.replace(self.result_row(call, outcome), iteration=self._iteration))
                events.append(ended_step(call, outcome, seconds=None, args=call.input))
        await self.recorder.record(rows=rows, events=events)
        self._iteration += 1
        self._last_call = None
        self._observer.reached("iteration_recorded", self.turn.id)

    async def answer_calls(
        self,
        calls: Sequence[ToolUse],
        *,
        begun: Set[CallId] = frozenset(),
        wait: Wait | None = None,
    ) -> None:
        """Give each of these calls its result. Those that may run do so at once. If others need an answer first, the
        turn then waits for it. `wait` has the answers that came. Of very many calls the first ones are run."""
        calls, excess = calls[: self.settings.tool_calls], calls[self.settings.tool_calls :]
        if excess:
            await self._refuse_calls(excess)
        needs_approval = any(
            tool is not None and tool.spec.waits_for == "approval"
            for tool in (self._toolbox.get(call.name) for call in calls)
        )
        permissions = Permissions(
            agent_id=self.turn.snapshot.agent_id,
            wait=wait,
            trusted=await self.recorder.trusted_tools() if needs_approval else frozenset(),
        )
        found = permissions.sort(calls, self._toolbox, begun=begun)
        for call, outcome in found.answered:
            await self._record_outcome(call, outcome, seconds=None, args=call.input)
        if found.runs:
            await self.call_tools(found.runs, begun=begun)
        approvals = [call for call in found.waits if call.reason == "approval"]
        if found.waits and self.turn.snapshot.ends_with_calls and not approvals:
            await self._end_with_calls([call for call in calls if any(call.id == waits.id for waits in found.waits)])
        elif found.waits:
            # A turn that ends with calls of the caller's tools waits only for a person.
            await self.wait_for(approvals if self.turn.snapshot.ends_with_calls else found.waits)

    async def _end_with_calls(self, calls: Sequence[ToolUse]) -> None:
        """End the turn with these calls, which the caller runs. Their results come with another question, if at all."""
        outcome = Outcome(result="(The caller runs this call. Its result is not part of this turn.)")
        await self.answer(Reply(blocks=()), rows=[self.result_row(call, outcome) for call in calls])

    async def wait_for(self, calls: Sequence[WaitingCall]) -> None:
        """Let the turn wait for answers to these calls. Then it is not held any more, and `run_turn` returns."""
        await self._lease.ensure()
        wait = next_wait(self.turn.wait, calls, now=self._clock(), seconds=self.settings.approval_seconds)
        self._observer.reached("waiting", self.turn.id)
        await self.recorder.wait(wait, events_of(wait))
        self._observer.reached("waited", self.turn.id)

    async def call_tools(self, calls: Sequence[ToolUse], *, begun: Set[CallId] = frozenset()) -> None:
        """Run the calls side by side; record each result as it arrives.

        Steps of calls that have `begun` before are not recorded again. That would look like progress, and a tool that
        kills every worker which runs it would be run for ever.
        """
        await self._lease.begin_call()
        steps = [
            Step(id=call.id, name=call.name, status="running", args=call.input)
            for call in calls
            if call.id not in begun
        ]
        if steps:
            await self.recorder.record(events=steps)
        self._observer.reached("tool_starting", self.turn.id)
        try:
            async with asyncio.TaskGroup() as group:
                for call in calls:
                    group.create_task(self._call_one(call))
        except BaseExceptionGroup as failures:
            # Tools do not raise. The recorder does, when the lease is lost or the database is away.
            raise failures.exceptions[0] from failures

    async def answer(self, reply: Reply, *, rows: Sequence[Message] = ()) -> None:
        """Settle with the model's words as the answer, after these rows."""
        text = text_of(reply.blocks)
        blocks = tuple(block for block in reply.blocks if not isinstance(block, ToolUse))
        if not text.strip() and any(isinstance(block, ToolUse) for block in reply.blocks):
            raise NoAnswer(f"The model used all {self.settings.tool_rounds} tool rounds and gave no answer.")
        if reply.finish == "complete" and not rows:
            await self._check_output(text)
        self._finish = reply.finish if text.strip() else "empty"
        files = await self.wind_up()
        display = fit_display(fold((*self.recorder.events, *files)))
        display = display.then_said(text=text, reasoning=_reasoning_text(reply.blocks))
        final = self.row("assistant", blocks, internal=False, iteration=self._iteration, usage=reply.usage)
        final = shown(final, display, usage=self.usage)
        result = Result(
            message_id=final.id,
            message=text,
            content=display.content,
            usage=self.usage,
            finish=None if self._finish == "complete" else self._finish,
        )
        await self.settle(
            Settlement(
                status="succeeded", terminal=result, usage=self.usage, final=final, rows=tuple(rows), events=files
            )
        )

    async def _check_output(self, text: str) -> None:
        """Raises OutputMismatch if the answer has not the form that was asked for, and the provider cannot be bound to
        it. The check takes a while if the schema is large."""
        output = self.turn.snapshot.sampling.output
        if output is None:
            return
        can = await self._assembly.provider.abilities(self.turn.model or self.settings.model)
        if "output" not in can.options and (problem := await asyncio.to_thread(mismatch_of, text, output)):
            raise OutputMismatch(f"The answer of the model has not the form that was asked for: {problem}")

    async def wind_up(self) -> tuple[TurnEvent, ...]:
        """An event for the files that were written back and not announced yet; it becomes part of the settlement."""
        return () if self.announcer is None else await self.announcer.unannounced()

    async def _listen(self, request: ModelRequest, call: ObservedModelCall) -> Reply:
        """Preview each piece of the reply; the time limit starts again with each of them.

        A timer for each piece would cost more than the piece. So the timer is set late by `slack`, and moved only when
        that much time has passed since it was last moved. It is moved with the first piece, whose time is noted.
        """
        now, limit = asyncio.get_running_loop().time, request.timeout_seconds
        slack = min(1.0, limit / 10)
        moved_at = -math.inf
        self._preview_rate.speakers += 1
        try:
            async with (
                asyncio.timeout(limit + slack) as timer,
                aclosing(self._assembly.provider.speak(request)) as spoken,
            ):
                async for piece in spoken:
                    if now() - moved_at >= slack:
                        moved_at = now()
                        timer.reschedule(moved_at + limit + slack)
                        if call.first_at is None and isinstance(piece, Delta):
                            call.first_at = time.monotonic()
                    match piece:
                        case Delta():
                            self._show(piece)
                            if (pause := self._preview_rate.pause_seconds(now())) > 0:
                                await asyncio.sleep(pause)
                        case Restarted():
                            call.retries.append(ModelRetry(at=self._clock(), reason=clean_text(piece.reason)))
                            await self._record_restart(piece.reason)
                            moved_at = -math.inf
                        case Reply():
                            return self._assembly.with_own_names(clean_reply(piece))
        except TimeoutError as exc:
            raise ProviderTimedOut(f"The model sent nothing for {limit:g} seconds.") from exc
        finally:
            self._preview_rate.speakers -= 1
        raise ProviderFailed("The model's stream ended without an answer.")

    def _show(self, piece: Delta) -> None:
        text = clean_text(piece.text)
        if not text:
            return
        self.recorder.preview(self._iteration, piece.kind, text)
        if self.recorder.previewed_chars > MAX_REPLY_CHARS:
            raise ProviderFailed(f"The model did not stop after {MAX_REPLY_CHARS:,} characters.")
        self._observer.reached("previewed", self.turn.id)

    async def _record_restart(self, reason: str) -> None:
        """Record that the provider starts its reply again: readers must drop the text that they were shown."""
        if self.recorder.spoken("text") or self.recorder.spoken("reasoning"):
            attempt, reason = self.recorder.held.attempt, clean_text(reason)
            await self.recorder.record(events=[Reset(attempt=attempt, reason=reason, at=self._clock())])
            self._observer.was_reset(self.turn.id, "provider")

    async def _call_one(self, call: ToolUse) -> None:
        observed = ObservedToolCall(self.turn, call)
        self._observer.tool_call_began(observed)
        try:
            outcome = observed.outcome = await self._outcome_of(call, observed.traceparent)
        finally:
            observed.end()
            self._observer.tool_called(observed)
        self._observer.reached("tool_ended", self.turn.id)
        await self._record_outcome(call, outcome, seconds=observed.seconds)
        self._observer.reached("result_recorded", self.turn.id)

    async def _outcome_of(self, call: ToolUse, traceparent: str | None) -> Outcome:
        context = CallContext(
            call_id=call.id,
            turn_id=self.turn.id,
            conversation_id=self.turn.conversation_id,
            principal=self._principal,
            result_chars=self.settings.tool_result_chars,
            traceparent=traceparent,
        )
        await self._lease.ensure()  # it may have run out while the step was being committed
        return await call_tool(self._toolbox, call, context, default_timeout=self.settings.tool_timeout_seconds)

    async def _refuse_calls(self, calls: Sequence[ToolUse]) -> None:
        """Record that these calls are not run, all at once."""
        most = self.settings.tool_calls
        refused = Outcome(error=f"This call was not run: a round may have {most} calls. Call it again in the next one.")
        await self.recorder.record(
            rows=[self.result_row(call, refused) for call in calls],
            events=[ended_step(call, refused, seconds=None) for call in calls],
        )

    async def _record_outcome(
        self, call: ToolUse, outcome: Outcome, *, seconds: float | None, args: JsonObject | UnsetType = UNSET
    ) -> None:
        """Record the result. `args` are given for a call whose step was not recorded before."""
        outcome = self._citations.numbered(outcome)
        events: list[TurnEvent] = [ended_step(call, outcome, seconds=seconds, args=args)]
        if outcome.sources:
            events.append(Sources(sources=outcome.sources))
        row = self.result_row(call, outcome, note=note_of_edit(call, self.turn.wait))
        await self.recorder.record(rows=[row], events=events)


def _completed(iteration: int, blocks: tuple[Block, ...], calls: Sequence[ToolUse]) -> ToolCalls:
    """The event of an iteration that is complete."""
    return ToolCalls(
        iteration=iteration,
        text=text_of(blocks),
        calls=tuple(ToolCall(id=call.id, name=call.name, args=call.input) for call in calls),
        reasoning=_reasoning_text(blocks) or None,
    )


def mismatch_of(text: str, output: OutputFormat) -> str | None:
    """Why this text has not the form; None if it has."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as exc:
        return f"it is no JSON ({exc})."
    if output.schema is None:
        return None if isinstance(value, dict) else "it is no JSON object."
    try:
        check_value(value, output.schema)
    except InvalidRequest as exc:
        return exc.detail
    return None


def outcome_of(result: ToolResult) -> Outcome:
    return Outcome(error=result.content) if result.is_error else Outcome(result=result.content)


def usage_of_part(request: ModelRequest, said: int) -> Usage:
    """What a call has probably used that was stopped, or failed, after so many characters. Providers count the tokens
    of a call only at its end, and charge for the part all the same."""
    asked = len(msgspec.json.encode((request.system, request.all_messages)))
    return Usage(input_tokens=math.ceil(asked / CHARS_PER_TOKEN), output_tokens=math.ceil(said / CHARS_PER_TOKEN))


def ended_step(call: ToolUse, outcome: Outcome, *, seconds: float | None, args: JsonObject | UnsetType = UNSET) -> Step:
    duration = None if seconds is None else round(seconds * 1000)
    if outcome.error is not None:
        return Step(id=call.id, name=call.name, status="failed", args=args, error=outcome.error, duration_ms=duration)
    return Step(
        id=call.id,
        name=call.name,
        status="succeeded",
        args=args,
        result=shown_to_readers(outcome.result),
        duration_ms=duration,
    )


def _reasoning_text(blocks: Sequence[Block]) -> str:
    return BETWEEN_THOUGHTS.join(block.text for block in blocks if isinstance(block, Reasoning) and block.text)
