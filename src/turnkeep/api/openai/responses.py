"""OpenAI's Responses: create, read, follow, stop, delete, and what a response was asked.

A response is a turn, or the segment of a turn between two waits (`segments.py`). Its id is made of the turn's id, so
every turn of Turnkeep can be read as a response. A request without `previous_response_id` and `conversation` begins a
conversation that no list shows.

Two requests may follow the same response. The first one is the next turn of its conversation. While that turn runs, the
other one gets a copy of the turns before it, in a conversation of its own that no list shows, so that neither waits.

A turn that waits for the caller goes on when the next request brings what is missing: `function_call_output` for each
call of the caller's tools, `mcp_approval_response` for each approval. Messages beside them steer the turn.

With `store: false` the response cannot be read later, and a call of the caller's tools ends its turn.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import structs
from starlette.types import ASGIApp

from turnkeep.api.http.disconnects import ClientDisconnected
from turnkeep.api.http.endpoints import ApiCall, Endpoints, Nothing, known_id
from turnkeep.api.http.idempotency import hash_of
from turnkeep.api.http.problem_details import InvalidField
from turnkeep.api.http.responses import json_response, no_content
from turnkeep.api.native.turns import check_rate, read_events
from turnkeep.api.native.waits import answer_of, check_approver, name_of
from turnkeep.api.openai.items import input_items, page_of, page_query, query_of, referenced_items, rows_up_to
from turnkeep.api.openai.messages import (
    APPROVAL_REQUEST,
    INSTRUCTIONS,
    AskedQuestion,
    GivenRows,
    ask_alone,
    attached_in,
    check_kept,
    client_tools,
    flag,
    has_changed,
    idempotency_of,
    is_decision,
    metadata_of,
    output_format,
    plain_items,
    read_json,
    read_messages,
    refuse_given,
    sampling_of,
    stored_files,
    whole_number,
    without_approvals,
    words_of_instruction,
)
from turnkeep.api.openai.models import BASE, INCLUDE, OK, PAGE_NAMES, ROUTE, ChosenModel, chosen_model
from turnkeep.api.openai.response_events import (
    EVENTS_PER_SEQ,
    WIRE_KEY,
    ResponseSegment,
    WireNotes,
    call_of_approval,
    cursor_of_number,
    instructions_of_segment,
    joined_instructions,
    metadata_of_segment,
    notes_of_turn,
)
from turnkeep.api.openai.segments import (
    Segment,
    encode_segment,
    explained,
    newest_turn,
    parse_response_id,
    response_id,
    segment_after,
    segments_of,
    stream_segment,
    wait_for_segment,
)
from turnkeep.api.wires import decision_of
from turnkeep.engine import Draining, Options, Question
from turnkeep.errors import (
    Conflict,
    ConversationBusy,
    InvalidRequest,
    NotFound,
    TurnkeepError,
    Unavailable,
    UnsupportedOption,
)
from turnkeep.ids import CallId, ConversationId, TurnId, new_turn_id
from turnkeep.model.conversations import Conversation
from turnkeep.model.messages import Message
from turnkeep.model.sampling import Sampling
from turnkeep.model.turns import Turn
from turnkeep.model.waits import CallAnswer, WaitReason
from turnkeep.store.commands import Appended, ConversationChange, NewConversation
from turnkeep.streaming.frames import Cursor, event_frame
from turnkeep.transfer.message_formats import Remarks, words_of
from turnkeep_client import wire
from turnkeep_client.wire.blocks import JsonObject, JsonValue

endpoints = Endpoints("openai")

ONE = f"{BASE}/responses/{{response_id}}"
LOGPROBS = "message.output_text.logprobs"

HONOURED = (
    "background",
    "conversation",
    "frequency_penalty",
    "input",
    "instructions",
    "max_output_tokens",
    "metadata",
    "model",
    "parallel_tool_calls",
    "presence_penalty",
    "previous_response_id",
    "seed",
    "stop",
    "store",
    "stream",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_p",
)
REFUSED: dict[str, tuple[Any, ...]] = {
    "context_management": ([],),
    "max_tool_calls": (),
    "moderation": (),
    "prompt": (),
    "reasoning": ({}, {"effort": None}, {"effort": None, "summary": None}, {"summary": "auto"}),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
IGNORED = (
    "include",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "stream_options",
    "user",
)


class PreviousResponseNotFound(InvalidField):
    """No response of the id in `previous_response_id`."""

    code = "previous_response_not_found"


@endpoints.add(
    "POST",
    f"{BASE}/responses",
    responses=(OK,),
    raw_body="application/json",
    headers=("Idempotency-Key",),
    errors=(404, 409, 429, 503, 507),
    limits_itself=True,
    **ROUTE,
)
async def create_openai_response(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Ask a model or an agent, as a response."""
    body = await read_json(call)
    refuse_given(body, REFUSED, "Turnkeep has no equivalent of it.")
    included = body.get("include")
    if isinstance(included, list) and LOGPROBS in included:
        raise UnsupportedOption(f"`include`: {LOGPROBS} is not supported. Leave it out.", option="include")
    try:
        turn, segment = await _turn_of(call, body)
    except ConversationBusy as busy:
        raise await explained(call.runtime, busy) from busy
    call.notes["turn_id"] = turn.id
    return await _respond(call, body, turn, segment)


async def _turn_of(call: ApiCall[Any, Any], body: JsonObject) -> tuple[Turn, Segment]:
    """The turn and the segment that answer the request: new ones, or those of a turn that goes on."""
    items = await _input_items(call, body)
    previous, conversation = await _place(call, body)
    before = previous or await newest_turn(call, conversation)
    if before is not None and (again := await _repeated(call, body, before, items)) is not None:
        return before, again
    if before is not None and before.status == "waiting":
        return await _go_on(call, body, before, items)
    return await _ask(call, body, items, previous, conversation)


async def _respond(call: ApiCall[Any, Any], body: JsonObject, turn: Turn, segment: Segment) -> ASGIApp:
    encoder = ResponseSegment(turn, segment)
    if flag(body, "stream"):
        return stream_segment(call.runtime, turn, encoder, Cursor(segment.after))
    headers = {"turnkeep-turn": turn.id}
    if flag(body, "background"):
        await encode_segment(call.runtime, turn.id, encoder, segment)
        return json_response(encoder.response(), headers=headers)
    try:
        await wait_for_segment(call, turn, encoder, segment)
    except Draining as exc:
        raise Unavailable(f"This server is shutting down. Read the response {response_id(turn.id)} later.") from exc
    except ClientDisconnected:
        return no_content()
    return json_response(encoder.response(), headers=headers)


@endpoints.add(
    "GET",
    ONE,
    responses=(OK,),
    query_names=("stream", "starting_after", "include_obfuscation", INCLUDE),
    errors=(404,),
    **ROUTE,
)
async def read_openai_response(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """A response. With `stream=true`, its events; with `starting_after`, those after this sequence number."""
    query = query_of(call)
    streams, after = query.get("stream", "false").lower(), query.get("starting_after")
    if streams not in {"true", "false"}:
        raise InvalidField("`stream` is true or false.", field="stream")
    turn, segment = await _response(call)
    if streams == "true":
        return await _follow(call, turn, segment, after)
    if after is not None:
        raise InvalidField("`starting_after` belongs to a stream. Send `stream=true` too.", field="starting_after")
    encoder = ResponseSegment(turn, segment)
    await encode_segment(call.runtime, turn.id, encoder, segment)
    return json_response(encoder.response())


async def _follow(call: ApiCall[Any, Any], turn: Turn, segment: Segment, after: str | None) -> ASGIApp:
    """The stream of the response. What the reader has is encoded again, and left out."""
    if not after:
        return stream_segment(call.runtime, turn, ResponseSegment(turn, segment), Cursor(segment.after))
    events = await read_events(call.runtime.store, turn.id)
    if not after.isdecimal() or len(after) > len(str(EVENTS_PER_SEQ**2)):
        raise InvalidField("`starting_after` is a sequence number of this response.", field="starting_after")
    number = int(after)
    cursor = cursor_of_number(number)
    if cursor.seq > len(events):
        raise InvalidField("The response has not come to this sequence number yet.", field="starting_after")
    cursor = Cursor(min(max(cursor.seq, segment.after), segment.until or cursor.seq))
    encoder = ResponseSegment(turn, segment, resume=number)
    if segment.until is not None and cursor.seq >= segment.until:
        cursor = Cursor(segment.until - 1)
    for recorded in events[segment.after : cursor.seq]:
        encoder.encode(event_frame(recorded))
    return stream_segment(call.runtime, turn, encoder, cursor)


@endpoints.add("POST", f"{ONE}/cancel", responses=(OK,), errors=(404, 503), **ROUTE)
async def cancel_openai_response(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Stop a response, also one whose turn waits for the caller. One that has ended otherwise stays as it is."""
    turn, segment = await _response(call)
    turn = await _stopped(call, turn, segment)
    encoder = ResponseSegment(turn, segment)
    await encode_segment(call.runtime, turn.id, encoder, segment)
    return json_response(encoder.response())


async def _stopped(call: ApiCall[Any, Any], turn: Turn, segment: Segment) -> Turn:
    """The turn, which is stopped if it runs or waits in this segment."""
    segments = segments_of(await read_events(call.runtime.store, turn.id))
    if segment.until is None or (turn.status == "waiting" and segment.index == segments[-1].index):
        return await call.runtime.engine.cancel(call.principal, turn.id)
    return turn


@endpoints.add("DELETE", ONE, responses=(OK,), errors=(404, 503), **ROUTE)
async def delete_openai_response(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Delete a response; one that goes on is stopped first. A conversation that no list shows goes with its only
    response."""
    turn, segment = await _response(call)
    turn = await _stopped(call, turn, segment)
    own = response_id(turn.id, segment.index)
    store, principal = call.runtime.store, call.principal
    conversation = await store.conversation(principal, turn.conversation_id)
    is_last = turn.id == conversation.head_turn_id and (segment.until is None or segment.until >= turn.last_seq)
    notes = notes_of_turn(turn)
    is_first = segment.index == 0 and (turn.parent_turn_id is None or notes.has_history or notes.is_fork)
    if not conversation.is_listed and is_first and is_last:
        await store.delete_conversation(principal, conversation.id)
    else:
        await store.add_notes(principal, turn.id, {WIRE_KEY: {"deleted": {str(segment.index): True}}})
    return json_response({"id": own, "object": "response", "deleted": True})


@endpoints.add("GET", f"{ONE}/input_items", responses=(OK,), query_names=(*PAGE_NAMES, INCLUDE), errors=(404,), **ROUTE)
async def list_openai_input_items(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """What the response was asked, as items."""
    turn, segment = await _response(call)
    query = page_query(call)
    return json_response(await page_of(input_items(call, turn, segment, query.order), query))


# Where a request belongs


async def _input_items(call: ApiCall[Any, Any], body: JsonObject) -> list[JsonObject]:
    given = body.get("input")
    if isinstance(given, str):
        given = [{"type": "message", "role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise InvalidField("`input` is a text, or a list of at least one item.", field="input")
    return plain_items(await referenced_items(call, given, "input"), "input")


async def _place(call: ApiCall[Any, Any], body: JsonObject) -> tuple[Turn | None, Conversation | None]:
    """The response before this one, and the conversation of the request."""
    previous, named = body.get("previous_response_id"), body.get("conversation")
    if previous is not None and named is not None:
        raise InvalidField("Give `previous_response_id` or `conversation`, not both.", field="conversation")
    if previous is not None:
        try:
            turn, segment = await _named_response(call, previous)
        except NotFound as exc:
            raise PreviousResponseNotFound(exc.detail, field="previous_response_id") from exc
        if segment.until is None:
            raise ConversationBusy(turn.id, turn.started_at)
        return turn, await call.runtime.store.conversation(call.principal, turn.conversation_id)
    if named is None:
        return None, None
    own = named.get("id") if isinstance(named, dict) else named
    conversation_id = ConversationId(known_id(str(own), "conv"))
    return None, await call.runtime.store.conversation(call.principal, conversation_id)


# A turn that waits, and goes on


async def _repeated(
    call: ApiCall[Any, Any], body: JsonObject, turn: Turn, items: Sequence[JsonObject]
) -> Segment | None:
    """The segment with which the turn went on after these very answers; None if they are none, or new. A client that
    lost the response sends them again. Raises AlreadyDecided for other answers than those that hold."""
    given = _answers_in(items)
    if body.get("previous_response_id") is None:
        given = {key: item for key, item in given.items() if key not in _calls_in(items)}
    waited = {} if turn.wait is None else {str(each.id): each for each in turn.wait.calls}
    if not given or not all(key in waited and waited[key].answer is not None for key in given):
        return None
    named = parse_response_id(str(body.get("previous_response_id")))
    segment = await segment_after(call.runtime, turn.id, given)
    if named is not None and segment.index != named[1] + 1:
        return None
    words = [item for item in items if item.get("role") == "user"]
    if words and not await call.runtime.engine.is_repeat(call.principal, _steering(call, turn, words, segment)):
        raise InvalidField(
            "`input`: these calls were answered before, with other words beside. Send the words alone, after the "
            "response that followed.",
            field="input",
        )
    await _check_options(call, body, turn)
    if _changed_instructions(body, turn, items, segment.index) is not None:
        raise has_changed("instructions")
    if body.get("metadata") is not None and metadata_of(body) != metadata_of_segment(turn, segment.index):
        raise has_changed("metadata")
    await _store_answers(call, turn, await _checked_answers(call, turn, given))
    return segment


async def _go_on(
    call: ApiCall[Any, Any], body: JsonObject, turn: Turn, items: Sequence[JsonObject]
) -> tuple[Turn, Segment]:
    """Answer the calls for which the turn waits, and return the segment that follows."""
    given = _answers_in(items)
    assert turn.wait is not None
    open_calls = {str(waits.id): waits.reason for waits in turn.wait.open_calls}
    if not set(open_calls) & set(given) and body.get("conversation") is not None:
        raise ConversationBusy(turn.id, turn.started_at, waiting_for=turn.wait.reason)
    for call_id, reason in open_calls.items():
        if call_id not in given or (reason == "approval") != is_decision(given[call_id]):
            what = "approval response" if reason == "approval" else "tool output"
            last = (await segment_after(call.runtime, turn.id, open_calls)).index - 1
            raise InvalidField(
                f"No {what} found for function call {call_id}. Send it, or cancel the response "
                f"{response_id(turn.id, last)} first.",
                field="input",
            )
    waited = {str(each.id) for each in turn.wait.calls}
    if unknown := set(given) - waited - _calls_in(items):
        raise InvalidField(f"No tool call found for function call output with call_id {min(unknown)}.", field="input")
    await _check_options(call, body, turn)
    segment = await segment_after(call.runtime, turn.id, open_calls)
    told = _changed_instructions(body, turn, items, segment.index - 1)
    if told is not None and turn.snapshot.sandbox:
        raise has_changed("instructions")
    await check_rate(call, Options())
    answers = await _checked_answers(call, turn, {key: item for key, item in given.items() if key in waited}, told)
    if words := [item for item in items if item.get("role") == "user"]:
        await _steer(call, turn, words, segment)
    notes: JsonObject = {}
    if body.get("metadata") is not None:
        notes["metadata"] = {str(segment.index): _own_metadata(body)}
    if told is not None:
        notes["instructions"] = {str(segment.index): list(told)}
    if notes:
        await call.runtime.store.add_notes(call.principal, turn.id, {WIRE_KEY: notes})
    return await _store_answers(call, turn, answers), segment


async def _check_options(call: ApiCall[Any, Any], body: JsonObject, turn: Turn) -> None:
    """Raises InvalidField for an option that is wrong, or that a turn which goes on cannot honour any more. Clients
    send all options again; the same ones are fine. Instructions may change."""
    snapshot, notes = turn.snapshot, notes_of_turn(turn)
    name, shown = body.get("model"), notes.model or turn.model
    if name is not None and name != shown:
        chosen = await chosen_model(call, name if isinstance(name, str) else None)
        agent_id = snapshot.agent_id
        if chosen != ChosenModel(agent_id=agent_id, model=turn.model if agent_id is None else None):
            raise has_changed("model")
    tools = await client_tools(_functions(body))
    sampling = _sampling({**body, "tools": body.get("tools") or list(snapshot.client_tools)})
    form = None if _text_of(body).get("format") is None else "text.format"
    check_kept(body, turn, sampling, tools, limit="max_output_tokens", output=form)
    if flag(body, "store") is False and notes.is_stored:
        raise has_changed("store")
    flag(body, "background")  # a turn that has waited needs no reader
    _own_metadata(body)


def _changed_instructions(
    body: JsonObject, turn: Turn, items: Sequence[JsonObject], index: int
) -> tuple[str, str] | None:
    """The instructions of a request with which the turn goes on: the field `instructions`, which replaces the one
    before if it is given, and the messages that instruct the model, which join those before. None if they are those
    that hold for the response of this number."""
    given, told = instructions_of_segment(turn, index)
    wanted = given if body.get("instructions") is None else _given_instructions(body)
    messages = [words_of_instruction(item, "input") for item in items if item.get("role") in INSTRUCTIONS]
    known = f"\n\n{told}\n\n"
    all_told = joined_instructions((told, *(words for words in messages if f"\n\n{words}\n\n" not in known)))
    is_same = joined_instructions((wanted, all_told)) == joined_instructions((given, told))
    return None if is_same else (wanted, all_told)


def _answers_in(items: Sequence[JsonObject]) -> dict[str, JsonObject]:
    """The outputs of functions and the decisions about approvals, by the ids of their calls."""
    return {
        call_of_approval(str(item.get("approval_request_id"))) if is_decision(item) else str(item.get("call_id")): item
        for item in items
        if is_decision(item) or item.get("type") == "function_call_output"
    }


def _calls_in(items: Sequence[JsonObject]) -> set[str]:
    """Calls that come with the request, and need no other answer than the one beside them."""
    called = {str(item.get("call_id")) for item in items if item.get("type") == "function_call"}
    return called | {call_of_approval(str(item.get("id"))) for item in items if item.get("type") == APPROVAL_REQUEST}


async def _checked_answers(
    call: ApiCall[Any, Any], turn: Turn, given: Mapping[str, JsonObject], told: Sequence[str] | None = None
) -> dict[WaitReason, dict[CallId, CallAnswer]]:
    """These decisions and results, and the instructions that come with them. Raises Forbidden if the caller may not
    decide about calls of this agent, and InvalidField for what is neither."""
    call.principal.check_agent(turn.snapshot.agent_id)
    by = name_of(call.principal)
    answers: dict[WaitReason, dict[CallId, CallAnswer]] = {"approval": {}, "client_tools": {}}
    for key, item in given.items():
        if is_decision(item):
            check_approver(call.principal, turn)
            answers["approval"][CallId(key)] = await answer_of(turn, _decision(key, item), call.principal)
        else:
            answers["client_tools"][CallId(key)] = CallAnswer(verdict="result", value=_output(item), by=by)
    if told is None:
        return answers
    words = joined_instructions(told)
    return {
        reason: {key: structs.replace(answer, instructions=words) for key, answer in those.items()}
        for reason, those in answers.items()
    }


async def _store_answers(
    call: ApiCall[Any, Any], turn: Turn, answers: Mapping[WaitReason, Mapping[CallId, CallAnswer]]
) -> Turn:
    """Let the turn go on with these answers. Repeats change nothing. Raises AlreadyDecided for another answer than the
    one that holds."""
    for reason, those in answers.items():
        if those:
            turn = await call.runtime.engine.answer_calls(call.principal, turn.id, those, reason=reason)
    return turn


async def _steer(call: ApiCall[Any, Any], turn: Turn, words: Sequence[JsonObject], segment: Segment) -> None:
    """Add the words beside the answers to the turn, once, however often the request is sent."""
    asked = await read_messages(call, words, "openai_responses", "input")
    if asked.files:
        raise InvalidField(
            "`input`: files cannot be sent beside results of tools. Send them with the next question.", field="input"
        )
    await call.runtime.engine.steer(call.principal, turn.id, asked.question, _steering(call, turn, words, segment))


def _steering(call: ApiCall[Any, Any], turn: Turn, words: Sequence[JsonObject], segment: Segment) -> Options:
    """The options of words that steer the turn into this segment. They recognise the same words."""
    said = hash_of(call.target, {"words": list(words)})
    key = f"{response_id(turn.id, segment.index)} {said}"
    return Options(source=call.identity.source, idempotency_key=key, request_hash=said)


def _decision(call_id: str, item: JsonObject) -> wire.Decision:
    is_allowed = item.get("approve")
    if not isinstance(is_allowed, bool):
        raise InvalidField("`input`: `approve` of an mcp_approval_response is true or false.", field="input")
    return decision_of(call_id, is_allowed=is_allowed, reason=item.get("reason"))


def _output(item: JsonObject) -> str:
    """The result of a tool as text. A part that is no text is named in its place, as in a history."""
    try:
        return words_of(item.get("output"), 0, Remarks())
    except InvalidRequest as exc:
        raise InvalidField("`input`: the output of a function is a text, or a list of texts.", field="input") from exc


async def _ask(
    call: ApiCall[Any, Any],
    body: JsonObject,
    items: Sequence[JsonObject],
    previous: Turn | None,
    conversation: Conversation | None,
) -> tuple[Turn, Segment]:
    """A new turn: in the conversation of the request, or in one of its own."""
    name = body.get("model")
    chosen = await _model_of(call, body, previous, conversation)
    asked = await read_messages(call, _without_approvals(items), "openai_responses", "input")
    if not asked.question:
        lost = asked.results[0].call_id if asked.results else "it"
        raise InvalidField(f"No tool call found for function call output with call_id {lost}.", field="input")
    is_stored, is_background = flag(body, "store") is not False, flag(body, "background") is True
    if is_background and not is_stored:
        raise InvalidField("A response in the background must be stored.", field="background")
    notes = WireNotes(
        model=name if isinstance(name, str) else "",
        previous_response_id=body.get("previous_response_id"),
        is_stored=is_stored,
        is_background=is_background,
        has_history=bool(asked.past.rows) and conversation is None,
        told=tuple((role, len(text)) for role, text in asked.told),
        sizes=asked.sizes if len(asked.sizes) > 1 else (),
    )
    options = Options(
        model=None if conversation is None else chosen.model,
        agent_id=None if conversation is None else chosen.agent_id,
        names_model=conversation is not None and chosen != ChosenModel(),
        background=is_background,
        source=call.identity.source,
        metadata={**_own_metadata(body), WIRE_KEY: msgspec.to_builtins(notes)},
        client_tools=await client_tools(_functions(body)),
        ends_with_calls=not is_stored,
        instructions=_instructions(body, asked),
        sampling=_sampling(body),
        opening=asked.opening,
        **idempotency_of(call, body),  # type: ignore[arg-type]
    )
    await check_rate(call, options)
    question = Question(
        principal=call.principal,
        message=asked.question,
        conversation_id=None if conversation is None else conversation.id,
        new=NewConversation(agent_id=chosen.agent_id, model=chosen.model, is_listed=False),
        options=options,
        workspace=call.identity.workspace,
    )
    segment = Segment(index=0, after=0)
    if conversation is None:
        return await ask_alone(call, asked, question), segment
    try:
        return await _ask_in(call, asked, question, conversation, previous), segment
    except Conflict:  # it is busy, or has gone on since it was read
        if previous is None or not previous.is_settled:
            raise
        return await _ask_fork(call, asked, question, conversation, previous), segment


async def _ask_fork(
    call: ApiCall[Any, Any], asked: AskedQuestion, question: Question, conversation: Conversation, previous: Turn
) -> Turn:
    """A turn in a new conversation that begins with a copy of the turns up to the response before it. For a request
    that follows a response whose conversation is busy with another turn."""
    rows = await rows_up_to(call, previous)
    named = {row.id: tuple(ref.file_id for ref in row.attachments) for row in rows if row.attachments}
    past = GivenRows(rows=(*rows, *asked.past.rows), files={**named, **asked.past.files})
    options = question.options
    notes = {**options.metadata[WIRE_KEY], "is_fork": True}
    new = question.new
    if not options.names_model:
        new = structs.replace(new, agent_id=conversation.agent_id, model=conversation.model)
    question = structs.replace(
        question,
        conversation_id=None,
        new=structs.replace(new, kind=conversation.kind),
        options=structs.replace(options, metadata={**options.metadata, WIRE_KEY: notes}),
    )
    return await ask_alone(call, structs.replace(asked, past=past), question)


async def _ask_in(
    call: ApiCall[Any, Any],
    asked: AskedQuestion,
    question: Question,
    conversation: Conversation,
    previous: Turn | None,
) -> Turn:
    """A turn in this conversation, after the response before it and the turns that came with the request. If it is
    refused, the conversation shows again what it showed before."""
    engine, prepared = call.runtime.engine, None
    if await engine.is_repeat(call.principal, question.options):
        return (await engine.ask(question)).turn
    async with stored_files(call, asked, conversation.id) as (past, files):
        question = structs.replace(question, attachment_ids=files)
        await engine.check(question)
        after = None if previous is None else previous.id
        try:
            prepared = await _prepare(call, conversation, previous, past.rows)
        except Conflict:  # perhaps with the same request, sent twice at once
            if not await engine.is_repeat(call.principal, question.options):
                raise
        if prepared is not None:
            after = prepared.head_turn_id
        try:
            return (await engine.ask(structs.replace(question, after=after))).turn
        except TurnkeepError:
            if prepared is not None:
                await _undo(call, conversation, prepared)
            raise


def _without_approvals(items: Sequence[JsonObject]) -> list[JsonObject]:
    """The items without approvals of the past. Raises InvalidField for a decision about something that is not there."""
    asked = {str(item.get("id")) for item in items if item.get("type") == APPROVAL_REQUEST}
    for item in items:
        if is_decision(item) and str(item.get("approval_request_id")) not in asked:
            name = str(item.get("approval_request_id"))[:80]
            raise InvalidField(f"No approval request {name!r} waits for a decision here.", field="input")
    if not (kept := without_approvals(items)):
        raise InvalidField("`input` has approvals, and no question after them.", field="input")
    return kept


async def _model_of(
    call: ApiCall[Any, Any], body: JsonObject, previous: Turn | None, conversation: Conversation | None
) -> ChosenModel:
    """What the request names as `model`. In a conversation that has one it may be left out."""
    name = body.get("model")
    if name is None and conversation is not None:
        return ChosenModel()
    return await chosen_model(call, name if isinstance(name, str) else None)


async def _prepare(
    call: ApiCall[Any, Any], conversation: Conversation, previous: Turn | None, past: Sequence[Message]
) -> Conversation | None:
    """Make the conversation end with the response before this one, and with the turns that came with the request.
    Returns it if it had to change. Raises Conflict if another request has changed it meanwhile."""
    is_elsewhere = previous is not None and conversation.head_turn_id != previous.id
    change = ConversationChange(
        head_turn_id=previous.id if previous is not None and is_elsewhere else None,
        expected_head=conversation.head_turn_id,
        appended=turns_of_rows(conversation.id, past),
        attached=attached_in(past),
    )
    if not is_elsewhere and not change.appended:
        return None
    return await call.runtime.store.change_conversation(call.principal, conversation.id, change)


async def _undo(call: ApiCall[Any, Any], before: Conversation, prepared: Conversation) -> None:
    """Show what the conversation showed before a question that was refused, unless it has changed since."""
    head = before.head_turn_id
    change = ConversationChange(
        head_turn_id=head,
        without=frozenset({"head_turn_id"} if head is None else ()),
        expected_head=prepared.head_turn_id,
    )
    with suppress(TurnkeepError):
        await call.runtime.store.change_conversation(call.principal, before.id, change)


def turns_of_rows(conversation_id: ConversationId, rows: Sequence[Message]) -> tuple[Appended, ...]:
    """Whole turns that happened elsewhere, of these rows."""
    made: list[Appended] = []
    by_turn: dict[TurnId, list[Message]] = {}
    for row in rows:
        by_turn.setdefault(row.turn_id, []).append(row)
    for group in by_turn.values():
        turn_id = new_turn_id()
        own = [structs.replace(row, turn_id=turn_id, conversation_id=conversation_id) for row in group]
        times = [row.created_at for row in own]
        made.append(Appended(turn_id=turn_id, rows=tuple(own), started_at=min(times), settled_at=max(times)))
    return tuple(made)


def _own_metadata(body: JsonObject) -> JsonObject:
    given = metadata_of(body)
    if WIRE_KEY in given:
        raise InvalidField(f"`metadata`: the key {WIRE_KEY!r} is taken. Choose another.", field="metadata")
    return given


def _instructions(body: JsonObject, asked: AskedQuestion) -> str:
    return joined_instructions((_given_instructions(body), asked.instructions))


def _given_instructions(body: JsonObject) -> str:
    given = body.get("instructions")
    if given is not None and not isinstance(given, str):
        raise InvalidField("`instructions` is a text.", field="instructions")
    return given or ""


def _sampling(body: JsonObject) -> Sampling:
    return sampling_of(
        body,
        max_tokens=whole_number(body, "max_output_tokens"),
        output=output_format(_text_of(body).get("format"), "text.format"),
    )


def _text_of(body: JsonObject) -> JsonObject:
    text = body.get("text") or {}
    if not isinstance(text, dict):
        raise InvalidField("`text` is an object.", field="text")
    if text.get("verbosity") not in {None, "medium"}:
        raise InvalidField("`text.verbosity` is not supported. Leave it out.", field="text.verbosity")
    return text


def _functions(body: JsonObject) -> list[tuple[JsonObject, str]]:
    tools = body.get("tools") or []
    if not isinstance(tools, list):
        raise InvalidField("`tools` is a list.", field="tools")
    found: list[tuple[JsonObject, str]] = []
    for place, tool in enumerate(tools):
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise InvalidField(
                "Only tools of type function are supported. Tools of the server belong to its agents: name an agent "
                "as `model`.",
                field=f"tools[{place}]",
            )
        found.append((tool, f"tools[{place}]"))
    return found


# Responses by their ids


async def _response(call: ApiCall[Any, Any]) -> tuple[Turn, Segment]:
    turn, segment = await _named_response(call, call.path("response_id"))
    call.notes["turn_id"] = turn.id
    return turn, segment


async def _named_response(call: ApiCall[Any, Any], name: JsonValue) -> tuple[Turn, Segment]:
    """The turn and the segment of a response. Raises NotFound, also for one that was not stored, or was deleted."""
    found = parse_response_id(name) if isinstance(name, str) else None
    if found is None:
        raise NotFound(f"There is no response {str(name)[:80]!r}.")
    turn_id, index = found
    turn = await call.runtime.store.turn(call.principal, turn_id)
    segments = segments_of(await read_events(call.runtime.store, turn_id))
    if index >= len(segments) or not notes_of_turn(turn).is_readable(index):
        raise NotFound(f"There is no response {name!r}.")
    return turn, segments[index]
