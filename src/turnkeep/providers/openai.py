"""`openai/…`: OpenAI's models, and those of any server with an OpenAI-compatible address (vLLM, Ollama, llama.cpp).

OpenAI itself is called by the Responses API, the only one that returns reasoning; other servers by Chat Completions,
which all of them support. A setting overrides that.

Compatible servers differ in small things: reasoning comes as `reasoning_content` or `reasoning`, if at all; parallel
calls may share one index; usage may be missing, or contain anything.

Decision: docs/decisions/0304
"""

import re
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from turnkeep.model.sampling import ALL_OPTIONS, OutputFormat, Sampling
from turnkeep.providers.drafts import MAX_ARGUMENT_CHARS, Arguments, Calls, Draft, tokens
from turnkeep.providers.failures import ErrorResponse, StreamFailed
from turnkeep.providers.http_provider import Effort, HttpProvider, ModelList, object_schema, own_name
from turnkeep.providers.lessons import OPENAI_CHAT, OPENAI_RESPONSES
from turnkeep.providers.ports import BETWEEN_THOUGHTS, Abilities, ModelRequest, Reply, Target, ToolOffer
from turnkeep.providers.retry import RetryPolicy
from turnkeep.providers.wire import Account, ProviderSession
from turnkeep_client.wire.blocks import JsonObject, Reasoning, Text, Usage

Api = Literal["auto", "responses", "chat"]

OFFICIAL_URL = "https://api.openai.com/v1"

_CHAT_OPTIONS = ALL_OPTIONS
_RESPONSES_OPTIONS = ALL_OPTIONS - {"stop", "seed", "frequency_penalty", "presence_penalty"}

_REASONS = re.compile(r"^(?:o\d|gpt-(?:[5-9]|\d\d)|gpt-oss|codex|computer-use)", re.IGNORECASE)
_CHATS_ONLY = re.compile(r"-chat(?:-|$)")
_NO_CHAT = re.compile(
    r"embedding|whisper|tts|dall-e|image|moderation|davinci|babbage|sora|realtime|audio|transcribe|instruct",
    re.IGNORECASE,
)


class OpenAIProvider(HttpProvider):
    """OpenAI, or a compatible server at the address of the account."""

    name = "openai"
    official_url = OFFICIAL_URL

    def __init__(
        self,
        account: Account,
        *,
        api: Api = "auto",
        effort: Effort = "auto",
        retry_policy: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
        session: ProviderSession | None = None,
    ) -> None:
        is_responses = _speaks_responses(api, account.base_url)
        self.target: Target = "openai_responses" if is_responses else "openai_chat"
        super().__init__(
            account,
            path="/responses" if is_responses else "/chat/completions",
            lessons=OPENAI_RESPONSES if is_responses else OPENAI_CHAT,
            retry_policy=retry_policy,
            session=session,
        )
        self._effort = effort

    def _headers(self) -> dict[str, str]:
        key = self._account.api_key
        if not key:
            return {}
        headers = {"Authorization": f"Bearer {key}"}
        if is_azure(self._account.base_url):
            headers["api-key"] = key
        return headers

    async def abilities(self, model: str) -> Abilities:
        """The API does not say what a model can do. A model is assumed to see images until it refuses one."""
        is_responses = self.target == "openai_responses"
        return Abilities(
            sees_images=not self._lessons.has(model, "pictures"),
            options=_RESPONSES_OPTIONS if is_responses else _CHAT_OPTIONS,
        )

    async def models(self) -> list[str]:
        listed = await self._query("/models", {}, ModelList)
        names = [model.id for model in listed.data]
        if is_official(self._account.base_url):
            names = [name for name in names if not _NO_CHAT.search(name)]
        return [f"{self.name}/{name}" for name in names]

    async def _body(self, request: ModelRequest) -> JsonObject:
        is_responses = self.target == "openai_responses"
        body = _responses_body(request, self._effort) if is_responses else _chat_body(request, self._effort)
        if request.tools:
            body["tools"] = self._offers.encode(request.tools, _responses_tool if is_responses else _chat_tool)
            body |= _tool_choice(request, is_responses=is_responses)
        if is_responses:
            return body | _responses_sampling(request.sampling)
        return body | _chat_sampling(request.sampling, is_official=is_official(self._account.base_url))

    def _draft(self) -> Draft[Any]:
        return OpenAIResponsesDraft() if self.target == "openai_responses" else OpenAIChatDraft()


def is_official(base_url: str | None) -> bool:
    """Whether this is OpenAI's own service, in any of its regions."""
    host = urlsplit(base_url or OFFICIAL_URL).hostname
    return host is not None and (host == "api.openai.com" or host.endswith(".api.openai.com"))


def is_azure(base_url: str | None) -> bool:
    """Whether the key must also be sent as `api-key`: hosts of Azure, and gateways that use its addresses."""
    parts = urlsplit(base_url or OFFICIAL_URL)
    host = parts.hostname or ""
    return host.endswith((".azure.com", ".azure.us", ".azure.cn", ".azure-api.net")) or "api-version=" in parts.query


def _speaks_responses(api: Api, base_url: str | None) -> bool:
    return api == "responses" or (api == "auto" and is_official(base_url))


def _chat_body(request: ModelRequest, effort: Effort) -> JsonObject:
    body: JsonObject = {
        "model": own_name(request.model),
        "messages": request.all_messages,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if effort != "auto":
        body["reasoning_effort"] = "none" if effort == "off" else effort
    return body


def _responses_body(request: ModelRequest, effort: Effort) -> JsonObject:
    body: JsonObject = {"model": own_name(request.model), "input": request.all_messages, "store": False, "stream": True}
    if request.system:
        body["instructions"] = request.system
    if reasons(body["model"]):
        body["include"] = ["reasoning.encrypted_content"]
        level = {} if effort == "auto" else {"effort": "none" if effort == "off" else effort}
        body["reasoning"] = {"summary": "auto", **level}
    return body


def _tool_choice(request: ModelRequest, *, is_responses: bool) -> JsonObject:
    sampling = request.sampling
    if not request.may_call:
        return {"tool_choice": "none"}
    fields: JsonObject = {}
    if sampling.tool is not None:
        name = {"name": sampling.tool}
        fields["tool_choice"] = {"type": "function", **(name if is_responses else {"function": name})}
    elif sampling.tool_choice is not None:
        fields["tool_choice"] = sampling.tool_choice
    if sampling.parallel_tool_calls is not None:
        fields["parallel_tool_calls"] = sampling.parallel_tool_calls
    return fields


def _chat_sampling(sampling: Sampling, *, is_official: bool) -> JsonObject:
    """Compatible servers know the older name of the limit, and OpenAI's newer models only the newer one."""
    fields = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "max_completion_tokens" if is_official else "max_tokens": sampling.max_tokens,
        "stop": sampling.stop,
        "seed": sampling.seed,
        "response_format": None if sampling.output is None else _chat_format(sampling.output),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _responses_sampling(sampling: Sampling) -> JsonObject:
    fields = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_output_tokens": sampling.max_tokens,
        "text": None if sampling.output is None else {"format": _responses_format(sampling.output)},
    }
    return {name: value for name, value in fields.items() if value is not None}


def _chat_format(output: OutputFormat) -> JsonObject:
    if output.schema is None:
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": _named_schema(output, output.schema)}


def _responses_format(output: OutputFormat) -> JsonObject:
    if output.schema is None:
        return {"type": "json_object"}
    return {"type": "json_schema", **_named_schema(output, output.schema)}


def _named_schema(output: OutputFormat, schema: JsonObject) -> JsonObject:
    described = {} if output.description is None else {"description": output.description}
    return {"name": output.name, "schema": schema, "strict": output.is_strict, **described}


def reasons(name: str) -> bool:
    """Whether a model of this name reasons. A guess; an error of the provider corrects it (`lessons.py`)."""
    return bool(_REASONS.match(name)) and not _CHATS_ONLY.search(name)


def _chat_tool(offer: ToolOffer) -> JsonObject:
    return {"type": "function", "function": _function(offer)}


def _responses_tool(offer: ToolOffer) -> JsonObject:
    return {"type": "function", "strict": False, **_function(offer)}


def _function(offer: ToolOffer) -> JsonObject:
    return {"name": offer.name, "description": offer.description, "parameters": object_schema(offer)}


class _Function(Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _CallPiece(Struct, gc=False):
    index: Any = None
    id: Any = None
    function: _Function | None = None


class ChatDelta(Struct, gc=False):
    """What one chunk adds to the reply. Compatible servers use several names for reasoning."""

    content: str | None = None
    refusal: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None
    tool_calls: list[_CallPiece] | None = None


class _Choice(Struct, gc=False):
    delta: ChatDelta | None = None
    finish_reason: Any = None


class _ChatChunk(Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None


class OpenAIChatDraft(Draft[_ChatChunk]):
    """Chat Completions: text, reasoning and calls are collected apart; the format does not say how they alternate."""

    decoder = msgspec.json.Decoder(_ChatChunk)

    def __init__(self) -> None:
        super().__init__()
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_ChatCall] = []
        self._finish_reason: Any = None
        self._usage = Usage()

    @property
    def is_whole(self) -> bool:
        return self._finish_reason is not None

    def take(self, event: _ChatChunk) -> None:
        if event.error:
            raise ErrorResponse(event.error)
        if event.usage is not None:
            self._usage = _chat_usage(event.usage)
        if event.choices:
            choice = event.choices[0]
            if choice.finish_reason is not None:
                self._finish_reason = choice.finish_reason
            if choice.delta is not None:
                self.add_delta(choice.delta)

    def add_delta(self, delta: ChatDelta) -> None:
        thought = delta.reasoning_content or delta.reasoning
        if thought and isinstance(thought, str):
            self._reasoning.append(thought)
            self.show(thought, "reasoning")
        for text in (delta.content, delta.refusal):
            if text:
                self._text.append(text)
                self.show(text, "text")
        if delta.tool_calls:
            self.has_begun = True
            self.is_alive = True
            for piece in delta.tool_calls:
                self._add_call(piece)

    def reply(self) -> Reply:
        if not self.is_whole:
            raise StreamFailed("the stream ended in the middle of the answer", is_transient=True)
        if self._finish_reason == "content_filter":
            raise StreamFailed("the answer was stopped by the provider's content filter")
        if self._finish_reason == "error":
            raise StreamFailed("the provider ended the answer with an error", is_transient=True)
        is_cut_off = self._finish_reason == "length"
        calls = Calls(is_cut_off=is_cut_off)
        if self._reasoning:
            calls.blocks.append(Reasoning(text="".join(self._reasoning), provider="openai"))
        if self._text:
            calls.blocks.append(Text(text="".join(self._text)))
        for call in self._calls:
            calls.add(call.arguments.name, call.arguments.text)
        return calls.reply(self._usage)

    def _add_call(self, piece: _CallPiece) -> None:
        """A piece belongs to the last call of its index, unless it has another id: then it begins a new call."""
        function = piece.function
        name = (function.name if function else None) or ""
        text = (function.arguments if function else None) or ""
        call = next((each for each in reversed(self._calls) if each.index == piece.index), None)
        if call is None or (piece.id and call.id and piece.id != call.id):
            self._calls.append(_ChatCall(piece.index, piece.id, Arguments(name, text)))
            return
        call.id = call.id or piece.id
        call.arguments.name = call.arguments.name or name
        if text:
            call.arguments.add(text)


class _ChatCall:
    __slots__ = ("arguments", "id", "index")

    def __init__(self, index: Any, call_id: Any, arguments: Arguments) -> None:
        self.index = index
        self.id = call_id
        self.arguments = arguments


def _chat_usage(usage: Any) -> Usage:
    return _usage(usage, "prompt_tokens", "completion_tokens", "prompt_tokens_details")


def _usage(usage: Any, read: str, written: str, details: str) -> Usage:
    """The counts under these names. Servers write into `usage` what they like."""
    counts = usage if isinstance(usage, dict) else {}
    cached = counts.get(details)
    cached = cached if isinstance(cached, dict) else {}
    return Usage(
        input_tokens=tokens(counts.get(read)),
        output_tokens=tokens(counts.get(written)),
        cache_read_tokens=tokens(cached.get("cached_tokens")),
        cache_write_tokens=tokens(cached.get("cache_write_tokens")),
    )


class _Response(Struct):
    """The response as a whole, which comes with its first and its last event."""

    output: Any = None
    usage: Any = None
    error: Any = None
    incomplete_details: Any = None


class _ResponseEvent(Struct, gc=False):
    """Any event of a stream, with the fields that are used."""

    type: Any = None
    delta: Any = None
    summary_index: Any = None
    output_index: Any = None
    item: Any = None
    response: _Response | None = None
    error: Any = None
    code: Any = None
    message: Any = None


class OpenAIResponsesDraft(Draft[_ResponseEvent]):
    """The Responses API: deltas are shown as they come; the reply is made of the finished items, which are complete."""

    decoder = msgspec.json.Decoder(_ResponseEvent)
    known_types = frozenset({"response.completed", "response.incomplete", "response.failed"})

    def __init__(self) -> None:
        super().__init__()
        self._items: dict[int, Any] = {}
        self._thought_at: Any = None
        """The place of the item whose reasoning came last."""
        self._argument_chars = 0
        self._response = _Response()
        self._ended_as: str | None = None

    @property
    def is_whole(self) -> bool:
        return self._ended_as is not None

    def take(self, event: _ResponseEvent) -> None:
        if event.error:
            raise ErrorResponse(event.error)
        match event.type:
            case "response.output_text.delta" | "response.refusal.delta":
                self.show(event.delta, "text")
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                if event.output_index != self._thought_at:
                    self._thought_at = event.output_index
                    self.begin_thought()
                self.think(event.delta)
            case "response.function_call_arguments.delta":
                self._count_arguments(event.delta)
            case "response.reasoning_summary_part.added":
                self.is_alive = True
                if event.summary_index:
                    self.show(BETWEEN_THOUGHTS, "reasoning")
            case "response.output_item.done":
                self.is_alive = True
                self._items[event.output_index] = event.item
            case "response.output_item.added" | "response.content_part.added":
                self.is_alive = True
            case "response.completed" | "response.incomplete" | "response.failed":
                self._end(event.type.removeprefix("response."), event.response or _Response())
            case "error":
                raise ErrorResponse({"code": event.code, "message": event.message})
            case _:
                pass  # progress and parts, which the finished items contain as well

    def _count_arguments(self, text: Any) -> None:
        self.has_begun = True
        self.is_alive = True
        self._argument_chars += len(text)
        if self._argument_chars > MAX_ARGUMENT_CHARS:
            raise StreamFailed(f"the arguments of a call did not end after {MAX_ARGUMENT_CHARS:,} characters")

    def _end(self, status: str, response: _Response) -> None:
        if status == "failed":
            raise _stream_failed(response.error)
        self._ended_as, self._response = status, response
        self.is_done = True

    def reply(self) -> Reply:
        if not self.is_whole:
            raise StreamFailed("the stream ended in the middle of the answer", is_transient=True)
        is_cut_off = self._ended_as == "incomplete"
        details = self._response.incomplete_details
        if is_cut_off and isinstance(details, dict) and details.get("reason") == "content_filter":
            raise StreamFailed("the answer was stopped by the provider's content filter")
        calls = Calls(is_cut_off=is_cut_off)
        for _, item in sorted(self._items.items()) or enumerate(self._response.output or ()):
            _add_item(item, calls)
        usage = _usage(self._response.usage, "input_tokens", "output_tokens", "input_tokens_details")
        return calls.reply(usage)


def _add_item(item: Any, calls: Calls) -> None:
    match item.get("type"):
        case "message":
            text = "".join((part.get("text") or part.get("refusal") or "") for part in item["content"])
            if text:
                calls.blocks.append(Text(text=text))
        case "function_call":
            calls.add(item["name"], item.get("arguments") or "")
        case "reasoning":
            parts = item.get("summary") or item.get("content") or ()
            text = BETWEEN_THOUGHTS.join(part["text"] for part in parts)
            data = item.get("encrypted_content")
            if text or data:
                calls.blocks.append(Reasoning(text=text, provider="openai", data=data, item_id=item.get("id")))
        case _:
            pass  # tools that OpenAI runs itself, which we do not use


def _stream_failed(error: Any) -> StreamFailed:
    fields = error if isinstance(error, dict) else {}
    code = fields.get("code")
    words = fields.get("message") or code or "it failed without a reason"
    return StreamFailed(str(words), kind=None if code is None else str(code))
