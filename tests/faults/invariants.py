"""What must be true of a database whatever happened to the processes that wrote it.

Reads everything through the store's verbs, after the fact, and lists what is wrong in sentences. `at_rest` says that
all work should have been done: then nothing may run, wait or be open any more.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from tests.faults.journal import IDEMPOTENT, Journal
from turnkeep.compiler import Compiled, Target, compile
from turnkeep.compiler.judge import Violation, judge_anthropic, judge_openai_chat, judge_openai_responses
from turnkeep.ids import CallId, MessageId, TurnId, new_message_id, new_turn_id
from turnkeep.model.conversations import Conversation
from turnkeep.model.messages import Message, PublicMessage
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Turn
from turnkeep.store.commands import Exported, TurnTrace
from turnkeep.store.ports import Store
from turnkeep_client.wire.blocks import Reasoning, Text, ToolResult, ToolUse, text_of
from turnkeep_client.wire.display import fold, parts_of
from turnkeep_client.wire.events import Failure, Reset, Result, Step, ToolCalls, TurnBegan, TurnEvent

TARGETS: tuple[Target, ...] = ("anthropic", "openai_chat", "openai_responses")


class Examined(Struct, frozen=True, kw_only=True):
    """All turns that were found, and what is wrong with them."""

    traces: tuple[TurnTrace, ...]
    violations: tuple[str, ...]

    @property
    def turns(self) -> tuple[Turn, ...]:
        return tuple(trace.turn for trace in self.traces)

    @property
    def unsettled(self) -> tuple[TurnId, ...]:
        return tuple(turn.id for turn in self.turns if not turn.is_settled)

    def trace(self, turn_id: TurnId) -> TurnTrace:
        return next(trace for trace in self.traces if trace.turn.id == turn_id)


async def examine(
    store: Store,
    service: Principal,
    *,
    acknowledged: Sequence[TurnId] = (),
    journal: Journal | None = None,
    at_rest: bool = True,
) -> Examined:
    """Look at every conversation of the workspace. `acknowledged` turns must be there, each once."""
    exported = [await store.export_conversation(service, each.id) for each in await _conversations(store, service)]
    traces = tuple(trace for each in exported for trace in each.turns)
    wrong: list[str] = []
    wrong += _claims(traces, acknowledged)
    for trace in traces:
        wrong += (f"{trace.turn.id}: {sentence}" for sentence in _turn(trace, at_rest=at_rest))
    for each in exported:
        visible = await _transcript(store, service, each.conversation)
        wrong += (f"{each.conversation.id}: {sentence}" for sentence in _conversation(each, visible, at_rest=at_rest))
        rows = (await store.window(each.conversation.id)).rows
        wrong += (f"{each.conversation.id}: {sentence}" for sentence in _window(rows))
    wrong += await _usage(store, service, traces)
    if journal is not None:
        wrong += _tools(traces, journal)
    return Examined(traces=traces, violations=tuple(wrong))


# Claims and counts


def _claims(traces: Sequence[TurnTrace], acknowledged: Sequence[TurnId]) -> Iterator[str]:
    found = Counter(trace.turn.id for trace in traces)
    for turn_id in acknowledged:
        if found[turn_id] != 1:
            yield f"{turn_id} was acknowledged and is there {found[turn_id]} times"
    ids = Counter(row.id for trace in traces for row in trace.rows)
    yield from (f"the message id {id_} is there {times} times" for id_, times in ids.items() if times > 1)


async def _usage(store: Store, service: Principal, traces: Sequence[TurnTrace]) -> list[str]:
    """A claim counts once; only one that was stopped before it began is given back."""
    months = {trace.turn.month for trace in traces}
    wrong = []
    for month in months:
        turns = [trace.turn for trace in traces if trace.turn.month == month]
        counted = [turn for turn in turns if turn.status != "cancelled" or turn.started_at is not None]
        used = await store.usage(service, month=month)
        if used.messages != len(counted):
            wrong.append(f"usage of {month} says {used.messages} messages for {len(counted)} claims")
        spent = sum(turn.usage.input_tokens for turn in turns)
        if used.input_tokens != spent:
            wrong.append(f"usage of {month} says {used.input_tokens} input tokens, its turns {spent}")
    return wrong


# One turn


def _turn(trace: TurnTrace, *, at_rest: bool) -> Iterator[str]:
    turn = trace.turn
    events = [recorded.event for recorded in trace.events]
    yield from _numbering(trace)
    yield from _status(turn, events, at_rest=at_rest)
    yield from _attempts(turn, events)
    yield from _calls(trace.rows, events, is_settled=turn.is_settled)
    if turn.is_settled:
        yield from _ending(trace, events)


def _numbering(trace: TurnTrace) -> Iterator[str]:
    numbers = [recorded.seq for recorded in trace.events]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"events are numbered {numbers}"
    if trace.turn.last_seq != len(numbers):
        yield f"last_seq is {trace.turn.last_seq}, but there are {len(numbers)} events"
    sequence = [row.turn_sequence for row in trace.rows]
    if sequence != list(range(len(sequence))):
        yield f"rows are numbered {sequence}"


def _status(turn: Turn, events: Sequence[TurnEvent], *, at_rest: bool) -> Iterator[str]:
    if at_rest and not turn.is_settled:
        yield f"is still {turn.status}"
    if turn.is_settled != (turn.settled_at is not None):
        yield f"is {turn.status}, but settled_at is {turn.settled_at}"
    if (turn.error is not None) != (turn.status in {"failed", "cancelled"}):
        yield f"is {turn.status} with error {turn.error}"
    terminals = [place for place, event in enumerate(events) if isinstance(event, Result | Failure)]
    if terminals != ([len(events) - 1] if turn.is_settled else []):
        yield f"is {turn.status}, with terminal events at {terminals} of {len(events)}"
    if not events or not isinstance(events[0], TurnBegan):
        yield "does not begin with a turn event"


def _attempts(turn: Turn, events: Sequence[TurnEvent]) -> Iterator[str]:
    """Every owner told readers: the first by `turn`, each later one by `reset`."""
    told = [event.attempt for event in events if isinstance(event, TurnBegan | Reset) and event.attempt]
    if told != list(range(1, turn.attempt + 1)):
        yield f"has attempt {turn.attempt}, but readers were told of {told}"


def _calls(rows: Sequence[Message], events: Sequence[TurnEvent], *, is_settled: bool) -> Iterator[str]:
    blocks = [block for row in rows for block in row.blocks]
    asked = Counter(block.id for block in blocks if isinstance(block, ToolUse))
    answered = Counter(block.call_id for block in blocks if isinstance(block, ToolResult))
    announced = Counter(call.id for event in events if isinstance(event, ToolCalls) for call in event.calls)
    began = Counter(CallId(event.id) for event in events if isinstance(event, Step) and event.status == "running")
    ended = Counter(CallId(event.id) for event in events if isinstance(event, Step) and event.status != "running")
    yield from (f"call {call} was asked for {times} times" for call, times in asked.items() if times > 1)
    yield from (f"call {call} has {times} results" for call, times in answered.items() if times > 1)
    yield from (f"call {call} ended {times} times" for call, times in ended.items() if times > 1)
    yield from (f"the result of {call} has no call" for call in answered.keys() - asked.keys())
    if announced != asked:
        yield f"readers were told of the calls {sorted(announced)}, but the rows have {sorted(asked)}"
    yield from (f"step {call} has no call" for call in (began | ended).keys() - asked.keys())
    yield from (f"step {call} ended without having begun" for call in ended.keys() - began.keys())
    if ended.keys() != answered.keys() & began.keys():
        yield f"steps that ended ({sorted(ended)}) and results ({sorted(answered)}) are not the same calls"
    if is_settled:
        yield from (f"call {call} has no result" for call in asked.keys() - answered.keys())
        yield from (f"step {call} is still open" for call in began.keys() - ended.keys())


def _ending(trace: TurnTrace, events: Sequence[TurnEvent]) -> Iterator[str]:
    turn, terminal = trace.turn, events[-1]
    finals = [row for row in trace.rows if row.role == "assistant" and not row.internal]
    if len(finals) > 1:
        yield f"has {len(finals)} final rows"
        return
    final = finals[0] if finals else None
    if final is not None and final is not trace.rows[-1]:
        yield "has rows after its final one"
    named: MessageId | None = None
    match terminal:
        case Result():
            named = terminal.message_id
            if turn.status != "succeeded":
                yield f"is {turn.status} and ends with a result"
            if final is not None and terminal.message != text_of(final.blocks):
                yield "says something else in its result than in its final row"
        case Failure():
            named = terminal.message_id or None
            if turn.error is None or turn.status == "succeeded" or turn.error.code != terminal.code:
                yield f"is {turn.status} with {turn.error}, and ends with {terminal}"
        case _:
            return
    if named != (None if final is None else final.id):
        yield f"names {named} as its message, but the final row is {final and final.id}"
    if final is not None:
        yield from _display(final, events)


def _display(final: Message, events: Sequence[TurnEvent]) -> Iterator[str]:
    """A reload shows what the stream showed: the fold of the events, then the last words. An answer that is shown as it
    was said has no display of its own."""
    display = parts_of(final.blocks) if final.display is None else final.display
    thought = "\n\n".join(block.text for block in final.blocks if isinstance(block, Reasoning) and block.text)
    shown = fold(events[:-1]).then_said(text=text_of(final.blocks), reasoning=thought)
    if display != shown.content:
        yield f"displays {display}, but its events fold to {shown.content}"
    if fold(events).content != (display if isinstance(events[-1], Result) else fold(events[:-1]).content):
        yield "ends with a result whose content is not the display"


# One conversation


def _conversation(exported: Exported, visible: Sequence[PublicMessage], *, at_rest: bool) -> Iterator[str]:
    conversation = exported.conversation
    turns = [trace.turn for trace in exported.turns]
    running = [turn.id for turn in turns if turn.status == "running"]
    waiting = [turn.id for turn in turns if turn.status == "queued"]
    if len(running) > 1:
        yield f"has {len(running)} running turns"
    if at_rest and waiting:
        yield f"left {waiting} in the queue"
    if len({turn.ordinal for turn in turns}) != len(turns):
        yield f"numbers its turns {[turn.ordinal for turn in turns]}"
    active = [turn for turn in turns if turn.active]
    if conversation.turn_count != len(active):
        yield f"counts {conversation.turn_count} turns of {len(active)}"
    if conversation.message_count != len(visible):
        yield f"counts {conversation.message_count} messages of {len(visible)}"
    shown = [row.id for trace in exported.turns if trace.turn.active for row in trace.rows if not row.internal]
    if [message.id for message in visible] != shown:
        yield "shows another transcript than its rows"
    started = [turn.id for turn in turns if turn.started_at is not None and turn.active and turn.is_settled]
    if not running and conversation.head_turn_id != (started[-1] if started else None):
        yield f"has {conversation.head_turn_id} as its head, but {started[-1:]} was last"


def _window(rows: Sequence[Message]) -> Iterator[str]:
    """The next question can be asked of every provider, and nothing in the rows needs repair for it."""
    if not rows:
        return
    last = rows[-1]
    asked = Message(
        id=new_message_id(),
        turn_id=new_turn_id(),
        conversation_id=last.conversation_id,
        turn_sequence=0,
        role="user",
        blocks=(Text(text="And now?"),),
        created_at=last.created_at,
    )
    for target in TARGETS:
        compiled = compile((*rows, asked), target=target, open_turn=asked.turn_id)
        yield from (f"{target} would refuse: {each.rule} at {each.path}" for each in _judged(compiled))


def _judged(compiled: Compiled) -> list[Violation]:
    tools = [{"name": name} for name in compiled.tool_names]
    match compiled.target:
        case "anthropic":
            return judge_anthropic({"messages": compiled.messages, "tools": tools, "thinking": {"type": "disabled"}})
        case "openai_chat":
            return judge_openai_chat({"messages": compiled.messages, "tools": tools})
        case _:
            return judge_openai_responses({"input": compiled.messages, "store": False})


# What the tools did


def _tools(traces: Sequence[TurnTrace], journal: Journal) -> Iterator[str]:
    """Nothing ran unannounced, nothing ran twice that may not, and no result was made up."""
    entries = journal.read()
    began = [entry for entry in entries if entry.moment == "began" and entry.tool not in IDEMPOTENT]
    for what, times in Counter(entry.call_id for entry in began).items():
        if times > 1:
            yield f"call {what} ran {times} times"
    for key, times in Counter(entry.key for entry in began).items():
        if times > 1:
            yield f"{key} was done {times} times, under different calls"
    announced = {
        event.id
        for trace in traces
        for event in (recorded.event for recorded in trace.events)
        if isinstance(event, Step)
    }
    yield from (
        f"call {entry.call_id} ran before anybody was told" for entry in entries if entry.call_id not in announced
    )
    done = {entry.call_id for entry in entries if entry.moment == "ended"}
    yield from (f"call {call} has a result, but never ended" for call in _successes(traces) if call not in done)


def _successes(traces: Iterable[TurnTrace]) -> Iterator[CallId]:
    for trace in traces:
        for row in trace.rows:
            yield from (each.call_id for each in row.blocks if isinstance(each, ToolResult) and not each.is_error)


# Reading


async def _conversations(store: Store, service: Principal) -> list[Conversation]:
    found: list[Conversation] = []
    cursor: str | None = None
    while True:
        page = await store.conversations(service, limit=100, cursor=cursor)
        found += (hit.conversation for hit in page.data)
        if (cursor := page.next_cursor) is None:
            return found


async def _transcript(store: Store, service: Principal, conversation: Conversation) -> list[PublicMessage]:
    found: list[PublicMessage] = []
    cursor: str | None = None
    while True:
        page = await store.transcript(service, conversation.id, limit=100, cursor=cursor)
        found += page.data
        if (cursor := page.next_cursor) is None:
            return found
