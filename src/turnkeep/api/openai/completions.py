"""`POST /openai/v1/chat/completions`: a turn for clients that speak Chat Completions.

The client sends the whole history with each request, so by default each request is a conversation of its own that no
list shows; a call of one of the client's tools ends the turn, and its result comes with the next request. With
`metadata.conversation_id`, or the header `Turnkeep-Conversation`, the turn belongs to a stored conversation: of the
messages only the last question, or the results of tools, are taken, and the stored history is what the model sees.

Tools of the server are invisible here. After a reset the answer begins again with a new paragraph.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import structs
from starlette.types import ASGIApp

from turnkeep.api.http.disconnects import ClientDisconnected
from turnkeep.api.http.endpoints import ApiCall, Endpoints, Nothing, known_id
from turnkeep.api.http.problem_details import InvalidField
from turnkeep.api.http.responses import json_response, no_content
from turnkeep.api.native.turns import check_rate
from turnkeep.api.native.waits import name_of
from turnkeep.api.openai.chat_completions import usage_of
from turnkeep.api.openai.messages import (
    AskedQuestion,
    GivenRows,
    ask_alone,
    check_kept,
    client_tools,
    flag,
    has_changed,
    idempotency_of,
    metadata_of,
    output_format,
    read_json,
    read_messages,
    refuse_given,
    sampling_of,
    stored_files,
    whole_number,
)
from turnkeep.api.openai.models import BASE, OK, ROUTE, chosen_model
from turnkeep.api.openai.segments import (
    Segment,
    explained,
    newest_turn,
    segment_after,
    stream_segment,
    wait_for_segment,
)
from turnkeep.engine import Draining, Options, Question
from turnkeep.errors import ConversationBusy, InvalidRequest, Unavailable
from turnkeep.ids import CallId, ConversationId
from turnkeep.model.turns import Turn
from turnkeep.model.waits import CallAnswer
from turnkeep.store.commands import NewConversation
from turnkeep.streaming.formats import SentCounts, texts_of
from turnkeep.streaming.frames import Cursor, DeltaFrame, Frame
from turnkeep_client.wire.blocks import JsonObject, ToolResult, Usage
from turnkeep_client.wire.events import Approval, ClientCalls, Failure, Recorded, Reset, Result, ToolCall, ToolCalls

endpoints = Endpoints("openai")

CONVERSATION_HEADER = "turnkeep-conversation"
CONVERSATION_KEY = "conversation_id"
STARTED_AGAIN = "\n\n(The answer starts again.)\n\n"

HONOURED = (
    "frequency_penalty",
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "metadata",
    "model",
    "parallel_tool_calls",
    "presence_penalty",
    "response_format",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "temperature",
    "tool_choice",
    "tools",
    "top_p",
)
"""Fields that are honoured; by some models not, and then they are refused."""
REFUSED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "function_call": ("auto", "none"),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "n": (1,),
    "prediction": (),
    "reasoning_effort": (),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Fields that are refused, unless they have one of these values, which change nothing."""
IGNORED = ("prompt_cache_key", "safety_identifier", "service_tier", "store", "user")
"""Fields that change nothing that a caller can see."""


@endpoints.add(
    "POST",
    f"{BASE}/chat/completions",
    responses=(OK,),
    raw_body="application/json",
    headers=("Idempotency-Key",),
    errors=(404, 409, 429, 503, 507),
    limits_itself=True,
    **ROUTE,
)
async def create_openai_completion(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Ask a model or an agent, as Chat Completions."""
    body = await read_json(call)
    refuse_given(body, REFUSED, "Turnkeep gives one answer, as text.")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidField("`messages` is a list of at least one message.", field="messages")
    name = body.get("model")
    chosen = await chosen_model(call, name if isinstance(name, str) else None)
    asked = await read_messages(call, messages, "openai_chat", "messages")
    bound = _bound_conversation(call, body)
    limit = whole_number(body, "max_completion_tokens") or whole_number(body, "max_tokens")
    output = output_format(body.get("response_format"), "response_format")
    options = Options(
        model=chosen.model if bound else None,
        agent_id=chosen.agent_id if bound else None,
        names_model=bound is not None,
        source=call.identity.source,
        metadata={key: value for key, value in metadata_of(body).items() if key != CONVERSATION_KEY},
        client_tools=await client_tools(_functions(body)),
        ends_with_calls=bound is None,
        instructions=asked.instructions,
        sampling=sampling_of(body, max_tokens=limit, output=output),
        opening=() if bound else asked.opening,
        **idempotency_of(call, body),  # type: ignore[arg-type]
    )
    await check_rate(call, options)
    if bound is not None:
        try:
            turn, segment = await _ask_bound(call, body, asked, options, bound)
        except ConversationBusy as busy:
            raise await explained(call.runtime, busy) from busy
    else:
        turn, segment = await _ask_alone(call, asked, options, chosen.agent_id, chosen.model)
    call.notes["turn_id"] = turn.id
    wants = body.get("stream_options")
    encoder = ChatSegment(
        turn,
        model=str(name),
        index=segment.index,
        wants_usage=isinstance(wants, dict) and wants.get("include_usage") is True,
    )
    if flag(body, "stream"):
        return stream_segment(call.runtime, turn, encoder, Cursor(segment.after))
    try:
        await wait_for_segment(call, turn, encoder, segment)
    except Draining as exc:
        raise Unavailable(f"This server is shutting down. The answer goes on as turn {turn.id}.") from exc
    except ClientDisconnected:
        return no_content()
    return _answer(encoder, turn)


def _answer(encoder: "ChatSegment", turn: Turn) -> ASGIApp:
    if encoder.failure is not None:
        error = {
            "message": encoder.failure.message,
            "type": "server_error",
            "param": None,
            "code": encoder.failure.code,
        }
        headers = {"turnkeep-turn": turn.id, "x-should-retry": "false"}
        return json_response({"error": error}, status=502, headers=headers)
    return json_response(encoder.whole(), headers={"turnkeep-turn": turn.id})


def _functions(body: JsonObject) -> list[tuple[JsonObject, str]]:
    tools = body.get("tools") or []
    if not isinstance(tools, list):
        raise InvalidField("`tools` is a list.", field="tools")
    found: list[tuple[JsonObject, str]] = []
    for place, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict):
            raise InvalidField("Only tools of type function are supported.", field=f"tools[{place}]")
        found.append((function, f"tools[{place}]"))
    return found


def _bound_conversation(call: ApiCall[Any, Any], body: JsonObject) -> ConversationId | None:
    """The stored conversation that the request names."""
    named = call.headers.get(CONVERSATION_HEADER) or metadata_of(body).get(CONVERSATION_KEY)
    return None if named is None else ConversationId(known_id(named, "conv"))


async def _ask_alone(
    call: ApiCall[Any, Any], asked: AskedQuestion, options: Options, agent_id: Any, model: str | None
) -> tuple[Turn, Segment]:
    """A turn in a conversation of its own."""
    if not asked.question:
        raise InvalidField("`messages` has results of tools, and no question before them.", field="messages")
    question = Question(
        principal=call.principal,
        message=asked.question,
        new=NewConversation(agent_id=agent_id, model=model, is_listed=False),
        options=options,
        workspace=call.identity.workspace,
    )
    return await ask_alone(call, asked, question), Segment(index=0, after=0)


async def _ask_bound(
    call: ApiCall[Any, Any], body: JsonObject, asked: AskedQuestion, options: Options, conversation_id: ConversationId
) -> tuple[Turn, Segment]:
    """A turn of a stored conversation, or the continuation of the one that waits for these results."""
    conversation = await call.runtime.store.conversation(call.principal, conversation_id)
    results = {result.call_id: result for result in (*asked.results, *_trailing_results(asked))}
    if results or not asked.question:
        turn = await newest_turn(call, conversation)
        if turn is None or turn.wait is None:
            raise InvalidRequest("No turn of this conversation waits for results of tools.")
        _check_options(body, turn, options)
        contents = {key: result.content for key, result in results.items()}
        return await _answer_calls(call, turn, contents, options.instructions)
    question = Question(
        principal=call.principal,
        message=asked.question,
        conversation_id=conversation_id,
        options=options,
        workspace=call.identity.workspace,
    )
    engine, segment = call.runtime.engine, Segment(index=0, after=0)
    if await engine.is_repeat(call.principal, options):
        return (await engine.ask(question)).turn, segment
    async with stored_files(call, structs.replace(asked, past=GivenRows())) as (_, files):
        return (await engine.ask(structs.replace(question, attachment_ids=files))).turn, segment


def _check_options(body: JsonObject, turn: Turn, options: Options) -> None:
    """Raises InvalidField for an option that a turn which goes on cannot honour any more. Instructions may change."""
    agent_id = turn.snapshot.agent_id
    if options.agent_id != agent_id or (agent_id is None and options.model != turn.model):
        raise has_changed("model")
    limit = "max_tokens" if body.get("max_completion_tokens") is None else "max_completion_tokens"
    output = None if body.get("response_format") is None else "response_format"
    check_kept(body, turn, options.sampling, options.client_tools, limit=limit, output=output)
    before = {key: value for key, value in turn.metadata.items() if isinstance(value, str)}
    if options.metadata and options.metadata != before:
        raise has_changed("metadata")


def _trailing_results(asked: AskedQuestion) -> list[ToolResult]:
    """The results after the last words of the model."""
    found: list[ToolResult] = []
    for row in reversed(asked.opening):
        if row.role == "assistant":
            break
        found += [block for block in row.blocks if isinstance(block, ToolResult)]
    return found


async def _answer_calls(
    call: ApiCall[Any, Any], turn: Turn, results: Mapping[CallId, str], instructions: str
) -> tuple[Turn, Segment]:
    """Send the results of the caller's tools to a turn that waits for them, and return the segment that follows. Other
    instructions than before hold from then on. The same results again, after a broken connection, get the same answer.
    Raises AlreadyDecided for others."""
    call.principal.check_agent(turn.snapshot.agent_id)
    assert turn.wait is not None
    if unknown := set(results) - {each.id for each in turn.wait.calls}:
        raise InvalidField(f"No tool call found for the result of {min(unknown)}.", field="messages")
    if missing := [each for each in turn.wait.open_calls if each.id not in results]:
        if missing[0].reason == "approval":
            raise ConversationBusy(turn.id, turn.started_at, waiting_for="approval")
        raise InvalidField(f"No tool output found for function call {missing[0].id}.", field="messages")
    told = instructions if instructions and instructions != turn.instructions else None
    if told is not None and turn.snapshot.sandbox:
        raise has_changed("messages")
    answer = CallAnswer(verdict="result", by=name_of(call.principal), instructions=told)
    answers = {call_id: structs.replace(answer, value=value) for call_id, value in results.items()}
    segment = await segment_after(call.runtime, turn.id, results)
    return await call.runtime.engine.answer_calls(call.principal, turn.id, answers, reason="client_tools"), segment


class ChatSegment:
    """A segment of a turn as a chat completion: whole, or in chunks."""

    def __init__(self, turn: Turn, *, model: str, index: int, wants_usage: bool = False) -> None:
        snapshot = turn.snapshot
        self.ends_at: int | None = None
        self.ended_at: int | None = None
        self.usage = Usage()
        self.before: Sequence[Recorded] = ()
        self.failure: Failure | None = None
        suffix = f"-{index}" if index else ""
        self._head = {
            "id": f"chatcmpl-{turn.id.removeprefix('turn_')}{suffix}",
            "created": turn.created_at // 1000 or int(time.time()),
            "model": model,
        }
        self._wants_usage = wants_usage
        self._own = client_tool_names(turn)
        self._ends_with_calls = snapshot.ends_with_calls
        self._skipped = snapshot.opening_rounds if index == 0 else 0
        self._sent = SentCounts()
        self._iteration_has_text = False
        self._pieces: list[tuple[str, str]] = []
        self._calls: list[ToolCall] = []
        self._finish = "stop"
        self._has_begun = False
        head = msgspec.json.encode({**self._head, "object": "chat.completion.chunk"})[:-1]
        self._prefix = b"data: " + head + b',"choices":[{"index":0,"delta":{"'
        self._suffix = b'},"finish_reason":null}]}\n\n'

    def encode(self, frame: Frame) -> bytes:
        if isinstance(frame, DeltaFrame):
            return self._delta(frame.kind, frame.text)
        event = frame.recorded.event
        begun = b"" if self._has_begun else self._begin()
        match event:
            case ToolCalls() if event.iteration >= self._skipped:
                said = self._rest(event.reasoning or "", event.text)
                self._sent, self._iteration_has_text = SentCounts(), False
                calls = b""
                if self._ends_with_calls:
                    calls = self._called([one for one in event.calls if one.name in self._own])
                return begun + said + calls
            case Reset():
                is_shown = bool(self._sent.text)
                self._sent, self._iteration_has_text = SentCounts(), False
                return self._content("content", STARTED_AGAIN) if is_shown else b""
            case ClientCalls():
                return begun + self._called(event.calls) + (self._end() if frame.seq == self.ends_at else b"")
            case Approval():
                names = ", ".join(one.name for one in event.calls)
                note = f"\n\n(The answer waits until a person allows or denies: {names}.)"
                return begun + self._content("content", note) + (self._end() if frame.seq == self.ends_at else b"")
            case Result():
                reasoning, text = texts_of(event)
                said = self._rest(reasoning, text)
                if event.finish == "length":
                    self._finish = "length"
                return begun + said + self._end()
            case Failure() if event.code == "cancelled":
                return begun + self._end()
            case Failure():
                self.failure = event
                error = {"message": event.message, "type": "server_error", "param": None, "code": event.code}
                return begun + b"data: " + msgspec.json.encode({"error": error}) + b"\n\ndata: [DONE]\n\n"
            case _:
                return begun

    def whole(self) -> JsonObject:
        """The completion, once the segment has ended."""
        message: JsonObject = {"role": "assistant", "content": self._said("content") or None, "refusal": None}
        if not message["content"] and not self._calls:
            message["content"] = ""
        if thought := self._said("reasoning_content"):
            message["reasoning_content"] = thought
        if self._calls:
            message["tool_calls"] = [_call(one) for one in self._calls]
        choice = {"index": 0, "message": message, "finish_reason": self._finish, "logprobs": None}
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": usage_of(self.usage)}

    def _said(self, field: str) -> str:
        return "".join(text for each, text in self._pieces if each == field).strip("\n")

    def _begin(self) -> bytes:
        self._has_begun = True
        return self._prefix + b'role":"assistant","content":""' + self._suffix

    def _delta(self, kind: str, text: str) -> bytes:
        if kind == "text":
            self._sent.text += len(text)
            return self._content("content", text)
        self._sent.reasoning += len(text)
        return self._content("reasoning_content", text)

    def _content(self, field: str, text: str) -> bytes:
        if field == "content" and not self._iteration_has_text:
            self._iteration_has_text = True
            if any(each == "content" for each, _ in self._pieces) and not text.startswith("\n\n"):
                text = f"\n\n{text}"
        self._pieces.append((field, text))
        return self._prefix + field.encode() + b'":' + msgspec.json.encode(text) + self._suffix

    def _rest(self, reasoning: str, text: str) -> bytes:
        """What the preview has not shown of a complete iteration."""
        missing = (("reasoning", reasoning[self._sent.reasoning :]), ("text", text[self._sent.text :]))
        return b"".join(self._delta(kind, words) for kind, words in missing if words)

    def _called(self, calls: Sequence[ToolCall]) -> bytes:
        chunks: list[bytes] = []
        for one in calls:
            place = len(self._calls)
            self._calls.append(one)
            chunks.append(self._chunk({"tool_calls": [{"index": place, **_call(one)}]}))
        if calls:
            self._finish = "tool_calls"
        return b"".join(chunks)

    def _end(self) -> bytes:
        last = self._chunk({}, finish_reason=self._finish)
        if self._wants_usage:
            usage = {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage_of(self.usage)}
            last += b"data: " + msgspec.json.encode(usage) + b"\n\n"
        return last + b"data: [DONE]\n\n"

    def _chunk(self, delta: JsonObject, finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": [choice]}
        return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


def client_tool_names(turn: Turn) -> frozenset[str]:
    """The names of the tools that the caller of this turn runs."""
    snapshot = turn.snapshot
    declared: list[Any] = [*snapshot.client_tools, *(() if snapshot.agent is None else snapshot.agent.tools)]
    return frozenset(
        str(tool["name"]) for tool in declared if isinstance(tool, dict) and tool.get("type", "http") == "client"
    )


def _call(call: ToolCall) -> JsonObject:
    arguments = msgspec.json.encode(call.args).decode()
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
