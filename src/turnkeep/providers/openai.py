"""`openai/…`: OpenAI's models, and those of any server with an OpenAI-compatible address (vLLM, Ollama, llama.cpp).

OpenAI itself is called by the Responses API, the only one that returns reasoning; other servers by Chat Completions,
which all of them support. A setting overrides that.

Compatible servers differ in small things: reasoning comes as `reasoning_content` or `reasoning`, if at all; parallel
calls may share one index; usage may be missing, or contain anything.

Decision: docs/decisions/0304
"""

import re
from typing import Any, Literal, cast
from urllib.parse import urlsplit

from turnkeep.providers.drafts import ALIVE, MAX_ARGUMENT_CHARS, Arguments, Calls, Draft, tokens, whole
from turnkeep.providers.failures import Sdk, StreamFailed
from turnkeep.providers.lessons import OPENAI_CHAT, OPENAI_RESPONSES
from turnkeep.providers.ports import Abilities, Delta, ModelRequest, Reply, Target, ToolOffer
from turnkeep.providers.retry import RetryPolicy
from turnkeep.providers.sdk_provider import LIST_SECONDS, Effort, SdkProvider, http_options, object_schema, own_name
from turnkeep_client.wire.blocks import JsonObject, Reasoning, Text, Usage

Api = Literal["auto", "responses", "chat"]

OFFICIAL_URL = "https://api.openai.com/v1"

_REASONS = re.compile(r"^(?:o\d|gpt-(?:[5-9]|\d\d)|gpt-oss|codex|computer-use)", re.IGNORECASE)
_CHATS_ONLY = re.compile(r"-chat(?:-|$)")
_NO_CHAT = re.compile(
    r"embedding|whisper|tts|dall-e|image|moderation|davinci|babbage|sora|realtime|audio|transcribe|instruct",
    re.IGNORECASE,
)


class OpenAIProvider(SdkProvider):
    """OpenAI, or a compatible server at `base_url`. Without a key the SDK reads its usual environment variable."""

    name = "openai"

    def __init__(
        self,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        api: Api = "auto",
        effort: Effort = "auto",
        retry_policy: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
    ) -> None:
        self.target: Target = "openai_responses" if _speaks_responses(api, base_url) else "openai_chat"
        lessons = OPENAI_RESPONSES if self.target == "openai_responses" else OPENAI_CHAT
        super().__init__(api_key=api_key, base_url=base_url, retry_policy=retry_policy, lessons=lessons)
        self._effort = effort

    async def abilities(self, model: str) -> Abilities:
        """The API does not say what a model can do. A model is assumed to see images until it refuses one."""
        return Abilities(sees_images=not self._lessons.has(model, "pictures"))

    async def models(self) -> list[str]:
        page = await self._query(lambda client: client.models.list(timeout=LIST_SECONDS))
        names = [model.id for model in page.data]
        if is_official(self._base_url):
            names = [name for name in names if not _NO_CHAT.search(name)]
        return [f"{self.name}/{name}" for name in names]

    async def _body(self, request: ModelRequest) -> JsonObject:
        if self.target == "openai_responses":
            return _responses_body(request, self._effort)
        return _chat_body(request, self._effort)

    async def _open(self, body: JsonObject, timeout: Any) -> Any:
        client = await self.client()
        resource = client.responses if self.target == "openai_responses" else client.chat.completions
        return await resource.create(**body, stream=True, timeout=timeout)

    def _draft(self) -> Draft:
        return OpenAIResponsesDraft() if self.target == "openai_responses" else OpenAIChatDraft()

    @property
    def _sdk(self) -> Sdk:
        import openai

        return cast("Sdk", openai)

    def _connect(self) -> Any:
        import openai

        client = openai.AsyncOpenAI(
            api_key=self._api_key,
            base_url=self._base_url or OFFICIAL_URL,
            max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(**http_options()),
        )
        resource = client.responses if self.target == "openai_responses" else client.chat.completions
        _ = resource, client.models  # imported with their first use
        return client


def is_official(base_url: str | None) -> bool:
    """Whether this is OpenAI's own service, in any of its regions."""
    host = urlsplit(base_url or OFFICIAL_URL).hostname
    return host is not None and (host == "api.openai.com" or host.endswith(".api.openai.com"))


def _speaks_responses(api: Api, base_url: str | None) -> bool:
    return api == "responses" or (api == "auto" and is_official(base_url))


def _chat_body(request: ModelRequest, effort: Effort) -> JsonObject:
    body: JsonObject = {
        "model": own_name(request.model),
        "messages": request.messages,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = [{"type": "function", "function": _function(offer)} for offer in request.tools]
        if not request.may_call:
            body["tool_choice"] = "none"
    if effort != "auto":
        body["reasoning_effort"] = "none" if effort == "off" else effort
    return body


def _responses_body(request: ModelRequest, effort: Effort) -> JsonObject:
    body: JsonObject = {"model": own_name(request.model), "input": request.messages, "store": False}
    if request.system:
        body["instructions"] = request.system
    if request.tools:
        body["tools"] = [{"type": "function", "strict": False, **_function(offer)} for offer in request.tools]
        if not request.may_call:
            body["tool_choice"] = "none"
    if reasons(body["model"]):
        body["include"] = ["reasoning.encrypted_content"]
        level = {} if effort == "auto" else {"effort": "none" if effort == "off" else effort}
        body["reasoning"] = {"summary": "auto", **level}
    return body


def reasons(name: str) -> bool:
    """Whether a model of this name reasons. A guess; an error of the provider corrects it (`lessons.py`)."""
    return bool(_REASONS.match(name)) and not _CHATS_ONLY.search(name)


def _function(offer: ToolOffer) -> JsonObject:
    return {"name": offer.name, "description": offer.description, "parameters": object_schema(offer)}


class OpenAIChatDraft:
    """Chat Completions: text, reasoning and calls are collected apart; the format does not say how they alternate."""

    def __init__(self) -> None:
        self.has_begun = False
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_ChatCall] = []
        self._finish_reason: str | None = None
        self._usage = Usage()

    @property
    def is_whole(self) -> bool:
        return self._finish_reason is not None

    def add(self, event: Any) -> Delta | None:
        if event.usage is not None:
            self._usage = _chat_usage(event.usage)
        if not event.choices:
            return None
        choice = event.choices[0]
        if choice.finish_reason is not None:
            self._finish_reason = choice.finish_reason
        delta = choice.delta
        if delta is None:
            return None
        text = delta.content or delta.refusal
        if text:
            self.has_begun = True
            self._text.append(text)
            return Delta(text=text)
        if extra := delta.model_extra:
            thought = extra.get("reasoning_content") or extra.get("reasoning")
            if isinstance(thought, str) and thought:
                self.has_begun = True
                self._reasoning.append(thought)
                return Delta(text=thought, kind="reasoning")
        if delta.tool_calls:
            self.has_begun = True
            for piece in delta.tool_calls:
                self._add_call(piece)
            return ALIVE
        return None

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
        return Reply(blocks=whole(calls, is_cut_off=is_cut_off), usage=self._usage, malformed=calls.malformed)

    def _add_call(self, piece: Any) -> None:
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

    def __init__(self, index: int | None, call_id: str | None, arguments: Arguments) -> None:
        self.index = index
        self.id = call_id
        self.arguments = arguments


def _chat_usage(usage: Any) -> Usage:
    details = getattr(usage, "prompt_tokens_details", None)
    return Usage(
        input_tokens=tokens(getattr(usage, "prompt_tokens", None)),
        output_tokens=tokens(getattr(usage, "completion_tokens", None)),
        cache_read_tokens=tokens(getattr(details, "cached_tokens", None)),
        cache_write_tokens=tokens(getattr(details, "cache_write_tokens", None)),
    )


class OpenAIResponsesDraft:
    """The Responses API: deltas are shown as they come; the reply is made of the finished items, which are complete."""

    def __init__(self) -> None:
        self.has_begun = False
        self._items: dict[int, Any] = {}
        self._argument_chars = 0
        self._response: Any = None
        self._ended_as: str | None = None

    @property
    def is_whole(self) -> bool:
        return self._ended_as is not None

    def add(self, event: Any) -> Delta | None:
        match event.type:
            case "response.output_text.delta" | "response.refusal.delta":
                self.has_begun = True
                return Delta(text=event.delta)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self.has_begun = True
                return Delta(text=event.delta, kind="reasoning")
            case "response.function_call_arguments.delta":
                self.has_begun = True
                self._argument_chars += len(event.delta)
                if self._argument_chars > MAX_ARGUMENT_CHARS:
                    raise StreamFailed(f"the arguments of a call did not end after {MAX_ARGUMENT_CHARS:,} characters")
                return ALIVE
            case "response.reasoning_summary_part.added":
                return Delta(text="\n\n", kind="reasoning") if event.summary_index else ALIVE
            case "response.output_item.done":
                self._items[event.output_index] = event.item
                return ALIVE
            case "response.output_item.added" | "response.content_part.added":
                return ALIVE
            case "response.completed" | "response.incomplete":
                self._ended_as, self._response = event.type.removeprefix("response."), event.response
            case "response.failed":
                raise _stream_failed(event.response.error)
            case "error":
                raise _stream_failed(event)
            case _:
                pass  # progress and parts, which the finished items contain as well
        return None

    def reply(self) -> Reply:
        if not self.is_whole:
            raise StreamFailed("the stream ended in the middle of the answer", is_transient=True)
        why = getattr(self._response.incomplete_details, "reason", None) if self._ended_as == "incomplete" else None
        if why == "content_filter":
            raise StreamFailed("the answer was stopped by the provider's content filter")
        is_cut_off = self._ended_as == "incomplete"
        calls = Calls(is_cut_off=is_cut_off)
        for _, item in sorted(self._items.items()) or enumerate(self._response.output or ()):
            _add_item(item, calls)
        usage = _responses_usage(self._response.usage)
        return Reply(blocks=whole(calls, is_cut_off=is_cut_off), usage=usage, malformed=calls.malformed)


def _add_item(item: Any, calls: Calls) -> None:
    match item.type:
        case "message":
            text = "".join(
                (part.text if part.type == "output_text" else getattr(part, "refusal", None)) or ""
                for part in item.content
            )
            if text:
                calls.blocks.append(Text(text=text))
        case "function_call":
            calls.add(item.name, item.arguments or "")
        case "reasoning":
            parts = item.summary or getattr(item, "content", None) or ()
            text = "\n\n".join(part.text for part in parts)
            data = item.encrypted_content
            if text or data:
                calls.blocks.append(Reasoning(text=text, provider="openai", data=data, item_id=item.id))
        case _:
            pass  # tools that OpenAI runs itself, which we do not use


def _stream_failed(error: Any) -> StreamFailed:
    code = getattr(error, "code", None)
    words = getattr(error, "message", None) or code or "it failed without a reason"
    return StreamFailed(str(words), kind=None if code is None else str(code))


def _responses_usage(usage: Any) -> Usage:
    details = getattr(usage, "input_tokens_details", None)
    return Usage(
        input_tokens=tokens(getattr(usage, "input_tokens", None)),
        output_tokens=tokens(getattr(usage, "output_tokens", None)),
        cache_read_tokens=tokens(getattr(details, "cached_tokens", None)),
        cache_write_tokens=tokens(getattr(details, "cache_write_tokens", None)),
    )
