"""`compile`: stored rows become the conversation that a provider is sent.

A pure function. It reads no clock, no file and no setting, so the same rows give the same bytes, and a turn that has
ended keeps its bytes in every later request for as long as the window does not move past it.

All targets get one normal form: the conversation begins with the user, and the two sides take turns. Not every
provider insists on it, but servers behind an OpenAI-compatible address often do, through their chat templates.
"""

from collections.abc import Sequence
from functools import partial
from typing import Literal, assert_never

from msgspec import Raw, Struct, structs

from turnkeep.compiler.exchange import (
    BEGAN_EARLIER,
    Exchange,
    Repair,
    Speaker,
    Utterance,
    note,
    repair,
    without_reasoning,
)
from turnkeep.compiler.provider_formats import (
    ANTHROPIC_ID_CHARS,
    CHAT_ID_CHARS,
    RESPONSES_ID_CHARS,
    CallNames,
    anthropic_messages,
    chat_messages,
    mark_for_cache,
    responses_input,
    safe_name,
    system_blocks,
)
from turnkeep.compiler.utterances import Contents, View, plain_text, shown_files, view_turn
from turnkeep.compiler.window import ALL_TURNS, CHARS_PER_TOKEN, Budget, FittedTurns, Group, fit, group_turns, size_of
from turnkeep.ids import FileId, TurnId
from turnkeep.model.messages import Message
from turnkeep_client.wire.blocks import JsonObject, Reading, Reasoning, ToolResult, ToolUse, paragraphs_of


class JoinedExchanges(Struct, frozen=True, kw_only=True):
    """All utterances, user and assistant in alternation. The first `closed` lines belong to turns that have ended."""

    lines: list[Utterance]
    closed: int
    repairs: list[Repair]


Target = Literal["anthropic", "openai_chat", "openai_responses", "sandbox"]

Thinking = Literal["off", "enabled", "adaptive"]
"""Anthropic's three modes. With `enabled` a tool loop must have begun with thinking; with `adaptive` it may have."""


class Compiled(Struct, frozen=True, kw_only=True):
    """The conversation of a request, and a report on how it was made.

    `messages` is `messages`, or `input` for Responses. `system` is what goes beside it: blocks for Anthropic,
    `instructions` for Responses, None where it is inside the messages. `thinking` says whether the request may
    switch thinking on. `tool_names` are the tools that the messages mention: Anthropic refuses tool blocks in a
    request that declares no tools. `settled` are encoded messages that come before `messages`, if the request was made
    by `compile_after`.
    """

    target: Target
    messages: list[JsonObject]
    settled: tuple[Raw, ...] = ()
    system: list[JsonObject] | str | None
    thinking: bool
    reasoning_of: str | None
    """The provider whose reasoning the messages contain, if there was any."""
    tool_names: tuple[str, ...]
    call_names: frozenset[str]
    """The names that the calls have in the messages."""
    repairs: tuple[Repair, ...]
    turns_included: int
    turns_dropped: int
    size: int
    chars: int
    first_turn: TurnId | None
    """The turn with which the messages begin."""
    asked: tuple[int, ...]
    """The sizes of the open turn at each of its requests, from the first to this one."""
    readings: dict[FileId, Reading]
    """How the files of the open turn are given to the model."""


def compile(
    history: Sequence[Message],
    *,
    target: Target,
    open_turn: TurnId | None = None,
    budget: Budget = Budget(),  # noqa: B008 - frozen
    system: str = "",
    contents: Contents | None = None,
    sees_images: bool = True,
    thinking: Thinking = "off",
    cache_markers: bool = True,
    turn_count: int | None = None,
) -> Compiled:
    """The conversation for `target` in the turn `open_turn`; without an open turn, the past conversation.

    `history` holds the rows of the conversation in order, or as many of the last ones as the store returned; only the
    window is read. `turn_count` is the number of all turns, so that those left out need not be counted. With an open
    turn the result always ends with a message of the user or with tool results.
    """
    is_sandbox = target == "sandbox"
    contents = {} if contents is None or is_sandbox else contents
    family = reasoning_family(target, thinking)
    if len(history) == 1 and not is_sandbox and budget.turns == ALL_TURNS:
        only = _compile_question(
            history[0],
            target=target,
            family=family,
            open_turn=open_turn,
            budget=budget,
            system=system,
            cache_markers=cache_markers,
            turn_count=turn_count,
        )
        if only is not None:
            return only
    groups = group_turns(history, limit=budget.turns, open_turn=open_turn)
    if is_sandbox:
        groups = [group for group in groups if group.turn_id != open_turn]

    view = View(reasoning_of=family, contents=contents, sees_images=sees_images, budget=budget, has_files=is_sandbox)

    def see(view: View) -> tuple[FittedTurns, JoinedExchanges]:
        prepare = partial(_prepare_as_read if is_sandbox else prepare_turn, view=view)
        window = fit(groups, prepare, budget=budget, open_turn=open_turn, close=not is_sandbox)
        return window, join(() if is_sandbox else window.exchanges, open_turn=open_turn)

    window, conversation = see(view)
    if family == "anthropic" and thinking == "enabled" and not open_loop_thinks(conversation.lines):
        family = None
        view = structs.replace(view, reasoning_of=None)
        window, conversation = see(view)
    if is_sandbox:
        wire = _Wire(messages=sandbox_history(window.exchanges))
    else:
        wire = _translate(target, conversation.lines, conversation.closed, system=system, cache_markers=cache_markers)
    total = turn_count if turn_count is not None else _count_turns(history)
    if is_sandbox and open_turn is not None:
        total -= 1
    return Compiled(
        target=target,
        messages=wire.messages,
        system=wire.system,
        thinking=family == "anthropic",
        reasoning_of=family,
        tool_names=tool_names(conversation.lines),
        call_names=wire.call_names,
        repairs=(*window.repairs, *conversation.repairs, *map(renamed_call, wire.renamed)),
        turns_included=window.turns,
        turns_dropped=max(0, total - window.turns),
        size=window.size,
        chars=window.size if budget.measure is len else sum(chars_of(each, budget) for each in window.exchanges),
        first_turn=window.first_turn,
        asked=window.asked,
        readings=_readings(groups, open_turn, view),
    )


def _compile_question(
    row: Message,
    *,
    target: Target,
    family: str | None,
    open_turn: TurnId | None,
    budget: Budget,
    system: str,
    cache_markers: bool,
    turn_count: int | None,
) -> Compiled | None:
    """What `compile` gives for the question of the open turn alone, if it is one text. That is the first request of
    most turns: there is nothing to group, to drop and to repair. None for any other row."""
    text = plain_text(row)
    if text is None or row.role != "user" or not row.turn_id or row.turn_id != open_turn:
        return None
    size = budget.measure(text)
    if size > budget.size:
        return None
    line = Utterance(role="user", blocks=row.blocks, ts=row.created_at)
    wire = _translate(target, [line], 0, system=system, cache_markers=cache_markers)
    return Compiled(
        target=target,
        messages=wire.messages,
        system=wire.system,
        thinking=family == "anthropic",
        reasoning_of=family,
        tool_names=(),
        call_names=frozenset(),
        repairs=(),
        turns_included=1,
        turns_dropped=0 if turn_count is None else max(0, turn_count - 1),
        size=size,
        chars=size if budget.measure is len else len(text),
        first_turn=open_turn,
        asked=(size,),
        readings={},
    )


def _readings(groups: Sequence[Group], open_turn: TurnId | None, view: View) -> dict[FileId, Reading]:
    """How the files of the open turn are shown. It is the last group."""
    if not groups or groups[-1].turn_id != open_turn:
        return {}
    rows = groups[-1].rows
    if not any(row.attachments for row in rows):
        return {}
    return {file_id: file.reading for file_id, file in shown_files(rows, view).items()}


class _Wire(Struct, frozen=True, kw_only=True):
    messages: list[JsonObject]
    system: list[JsonObject] | str | None = None
    call_names: frozenset[str] = frozenset()
    renamed: Sequence[str] = ()


def reasoning_family(target: Target, thinking: Thinking) -> str | None:
    """The provider whose reasoning a request may contain."""
    if target == "anthropic":
        return "anthropic" if thinking != "off" else None
    return "openai" if target == "openai_responses" else None


def prepare_turn(group: Group, *, view: View) -> tuple[Exchange, list[Repair]]:
    """The turn as the target may see it, repaired."""
    exchange, seen = view_turn(group.turn_id, group.rows, view)
    exchange, done = repair(exchange)
    return exchange, seen + done


def _prepare_as_read(group: Group, *, view: View) -> tuple[Exchange, list[Repair]]:
    """For the sandbox, which gets what a reader sees: no instructions, and no repairs."""
    return view_turn(group.turn_id, [row for row in group.rows if row.role != "system"], view)


def _translate(target: Target, lines: Sequence[Utterance], closed: int, *, system: str, cache_markers: bool) -> _Wire:
    """The lines in the format of the target. The first `closed` ones belong to turns that have ended."""
    names = CallNames(ID_CHARS[target])
    messages = write_lines(target, lines, names, system=system)
    beside: list[JsonObject] | str | None = None
    if target == "anthropic":
        beside = system_blocks(system)
        if cache_markers:
            mark_for_cache(beside, messages, closed=closed)
    elif target == "openai_responses":
        beside = system
    return _Wire(messages=messages, system=beside, call_names=frozenset(names.given), renamed=names.renamed)


ID_CHARS: dict[Target, int] = {
    "anthropic": ANTHROPIC_ID_CHARS,
    "openai_chat": CHAT_ID_CHARS,
    "openai_responses": RESPONSES_ID_CHARS,
}


def write_lines(target: Target, lines: Sequence[Utterance], names: CallNames, *, system: str = "") -> list[JsonObject]:
    """The lines in the format of the target, after the system prompt where that is a message."""
    match target:
        case "anthropic":
            return anthropic_messages(lines, names)
        case "openai_chat":
            return chat_messages(lines, names, system=system)
        case "openai_responses":
            return responses_input(lines, names)
        case "sandbox":
            raise AssertionError("a sandbox gets its history as `sandbox_history` writes it")
        case _:
            assert_never(target)


def tool_names(lines: Sequence[Utterance]) -> tuple[str, ...]:
    """The tools that the lines mention, under the names that providers accept."""
    used = {block.name: None for line in lines for block in line.blocks if isinstance(block, ToolUse)}
    return tuple({safe_name(name): None for name in used})


def renamed_call(call_id: str) -> Repair:
    detail = f"The call id {call_id!r} was used before in this conversation; the later call got another name."
    return Repair(kind="call_renamed", turn_id=TurnId(""), detail=detail)


def _count_turns(history: Sequence[Message]) -> int:
    return len({row.turn_id or row.id for row in history})


def chars_of(exchange: Exchange, budget: Budget) -> int:
    """The size of the exchange in characters, for a budget that counts tokens."""
    return size_of(exchange, Budget(image=budget.image * CHARS_PER_TOKEN))


def join(exchanges: Sequence[Exchange], *, open_turn: TurnId | None) -> JoinedExchanges:
    """Every utterance in order, neighbours of one side merged."""
    lines: list[Utterance] = []
    closed = 0
    for exchange in exchanges:
        for utterance in exchange.utterances:
            if lines and lines[-1].role == utterance.role:
                lines[-1] = _merged(lines[-1], utterance)
            else:
                lines.append(utterance)
        if exchange.turn_id != open_turn:
            closed = len(lines)
    repairs: list[Repair] = []
    if lines and lines[0].role == "assistant":
        lines.insert(0, note("user", BEGAN_EARLIER, ts=lines[0].ts))
        closed += 1
        detail = "The conversation begins with the assistant; a line says that it began earlier."
        repairs.append(Repair(kind="beginning_missing", turn_id=exchanges[0].turn_id, detail=detail))
    return JoinedExchanges(lines=lines, closed=closed, repairs=repairs)


def _merged(first: Utterance, second: Utterance) -> Utterance:
    added = second.blocks
    # A message that holds reasoning must begin with it.
    if not isinstance(first.blocks[0], Reasoning):
        added = without_reasoning(added)
    return Utterance(role=first.role, blocks=(*first.blocks, *added), ts=second.ts)


def open_loop_thinks(lines: Sequence[Utterance]) -> bool:
    """Whether the tool loop that this request would continue began with reasoning; true if there is no such loop.

    Anthropic refuses to switch thinking on in the middle of a loop.
    """
    index = len(lines) - 1
    if index < 0 or not _is_only_results(lines[index]):
        return True
    while index >= 2 and _is_only_results(lines[index - 2]):
        index -= 2
    return isinstance(lines[index - 1].blocks[0], Reasoning)


def _is_only_results(utterance: Utterance) -> bool:
    return all(isinstance(block, ToolResult) for block in utterance.blocks)


def sandbox_history(exchanges: Sequence[Exchange]) -> list[JsonObject]:
    """The history for a sandbox: `[{role, content, ts}]`, one entry for all consecutive texts of one side in a turn.

    Tools, reasoning and the compiler's own notes are left out. A failed or cancelled turn is given as it is: the
    question, and the answer as far as it came.
    """
    entries: list[JsonObject] = []
    for exchange in exchanges:
        speaker: Speaker | None = None
        for utterance in exchange.utterances:
            text = paragraphs_of(utterance.blocks)
            if not text:
                continue
            if utterance.role == speaker:
                entries[-1] = {
                    "role": speaker,
                    "content": f"{entries[-1]['content']}\n\n{text}",
                    "ts": utterance.ts,
                }
            else:
                speaker = utterance.role
                entries.append({"role": speaker, "content": text, "ts": utterance.ts})
    return entries
