"""`openai/…`: OpenAI's models, and those of any server with an OpenAI-compatible address (vLLM, Ollama, llama.cpp).

OpenAI itself is asked through the Responses API, the only one that gives reasoning back; everybody else through Chat
Completions, which they all speak. A setting overrides that.
"""

import re
from typing import Any, Literal, cast
from urllib.parse import urlsplit

from turnkeep.providers.drafts import Draft
from turnkeep.providers.failures import Sdk
from turnkeep.providers.lessons import OPENAI_CHAT, OPENAI_RESPONSES
from turnkeep.providers.openai_chat_draft import OpenAIChatDraft
from turnkeep.providers.openai_responses_draft import OpenAIResponsesDraft
from turnkeep.providers.ports import Abilities, ModelRequest, Target, ToolOffer
from turnkeep.providers.retrying import Patience
from turnkeep.providers.speaking import LIST_SECONDS, Effort, SdkProvider, http_options, object_schema, own_name
from turnkeep_client.wire.blocks import JsonObject

Api = Literal["auto", "responses", "chat"]

OFFICIAL_URL = "https://api.openai.com/v1"

_REASONS = re.compile(r"^(?:o\d|gpt-(?:[5-9]|\d\d)|gpt-oss|codex|computer-use)", re.IGNORECASE)
_CHATS_ONLY = re.compile(r"-chat(?:-|$)")
_NO_CHAT = re.compile(
    r"embedding|whisper|tts|dall-e|image|moderation|davinci|babbage|sora|realtime|audio|transcribe|instruct",
    re.IGNORECASE,
)


class OpenAIProvider(SdkProvider):
    """Without an address it is OpenAI's own; without a key the SDK reads its usual environment variable."""

    name = "openai"

    def __init__(
        self,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        api: Api = "auto",
        effort: Effort = "auto",
        patience: Patience = Patience(),  # noqa: B008 - frozen
    ) -> None:
        self.target: Target = "openai_responses" if _speaks_responses(api, base_url) else "openai_chat"
        lessons = OPENAI_RESPONSES if self.target == "openai_responses" else OPENAI_CHAT
        super().__init__(api_key=api_key, base_url=base_url, patience=patience, lessons=lessons)
        self._effort = effort

    async def abilities(self, model: str) -> Abilities:
        """Nobody tells what a model can do. It is taken to see until it refuses a picture."""
        return Abilities(sees_images=not self._lessons.has(model, "pictures"))

    async def models(self) -> list[str]:
        page = await self._asked(lambda client: client.models.list(timeout=LIST_SECONDS))
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
    """Whether a model of this name reasons. A guess, which a refusal corrects."""
    return bool(_REASONS.match(name)) and not _CHATS_ONLY.search(name)


def _function(offer: ToolOffer) -> JsonObject:
    return {"name": offer.name, "description": offer.description, "parameters": object_schema(offer)}
