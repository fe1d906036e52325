"""The port of a model provider: a compiled request goes in, deltas and one complete reply come out."""

from collections.abc import AsyncGenerator
from typing import Literal, Protocol, runtime_checkable

import msgspec
from msgspec import Raw, Struct, structs

from turnkeep.errors import InvalidRequest, WorldError
from turnkeep.ids import CallId
from turnkeep.model.sampling import DEFAULT_SAMPLING, Sampling
from turnkeep_client.wire.blocks import Block, JsonObject, Usage

Target = Literal["anthropic", "openai_chat", "openai_responses"]
"""The format in which a provider takes its messages; the compiler makes it."""


Thinking = Literal["off", "enabled", "adaptive"]
"""How a model reasons, if requests must say so: not at all, always (within a budget), or when it decides to."""


class Abilities(Struct, frozen=True, kw_only=True):
    """What a model can do, as far as its messages and options depend on it."""

    thinking: Thinking = "off"
    sees_images: bool = True
    options: frozenset[str] = frozenset()
    """The options of `Sampling` that it honours. With `output` it is bound to the form of the output."""


class ToolOffer(Struct, frozen=True, kw_only=True):
    """A tool as it is described to the model."""

    name: str
    description: str
    input_schema: JsonObject


class ModelRequest(Struct, frozen=True, kw_only=True):
    """One model call, compiled for the provider's target.

    `settled` are messages of earlier turns, encoded already. They come before `messages`. `system` is what stands
    beside the messages, if the target wants it there. Tools stay declared in the last call of a turn, since the
    messages mention them, but `may_call` is then false.
    """

    model: str
    messages: list[JsonObject]
    settled: tuple[Raw, ...] = ()
    system: list[JsonObject] | str | None = None
    may_think: bool = False
    tools: tuple[ToolOffer, ...] = ()
    may_call: bool = True
    sampling: Sampling = DEFAULT_SAMPLING
    """Options that this model honours. A choice of tools counts only while `may_call` is true."""
    timeout_seconds: float = 60.0
    """To the next token."""

    @property
    def all_messages(self) -> list[JsonObject | Raw]:
        """The messages for the body of an HTTP request. msgspec copies those that are encoded."""
        return [*self.settled, *self.messages]

    def decoded(self) -> "ModelRequest":
        """The same request with all messages as objects, for a provider that looks into them."""
        if not self.settled:
            return self
        return structs.replace(self, settled=(), messages=[*map(msgspec.json.decode, self.settled), *self.messages])


BETWEEN_THOUGHTS = "\n\n"
"""Stands between two blocks of reasoning."""


class Delta(Struct, frozen=True, kw_only=True, tag=True):
    """The next characters of the text or the reasoning. All reasoning of a reply is one text here, as in the event that
    replaces it: between two blocks with words stands `BETWEEN_THOUGHTS`.

    An empty text is a sign of life: the model works on something that is not shown, such as a call's arguments.
    """

    text: str
    kind: Literal["text", "reasoning"] = "text"


class Restarted(Struct, frozen=True, kw_only=True, tag=True):
    """The provider failed and is called again: what was streamed since the last reply, if anything, is dropped."""

    reason: str


class Reply(Struct, frozen=True, kw_only=True, tag=True):
    """The whole reply, always last: text, reasoning with its signatures, and tool calls with our ids.

    `malformed` says, for a call whose arguments were no JSON object, what was wrong; its `input` is then empty.
    `finish` is `length` if the model stopped at its limit of tokens.
    """

    blocks: tuple[Block, ...]
    usage: Usage = Usage()
    malformed: dict[CallId, str] = {}
    finish: Literal["complete", "length"] = "complete"


ProviderEvent = Delta | Restarted | Reply


class ProviderFailed(WorldError):
    """The provider returned an error or ended the stream; the message is its own.

    `code` of the turn: provider_error.
    """

    code = "provider_error"


class ProviderTimedOut(ProviderFailed):
    """The provider sent nothing for too long."""

    code = "model_timeout"


class Provider(Protocol):
    """One provider. Knows its wire format; knows nothing of turns, stores or readers."""

    name: str
    target: Target

    async def abilities(self, model: str) -> Abilities:
        """What this model can do, by its full name. Never raises: if that is unknown, it returns the safest guess."""

    def speak(self, request: ModelRequest) -> AsyncGenerator[ProviderEvent, None]:
        """Stream one reply. Ends with exactly one Reply, or raises ProviderFailed. Closing it stops the call."""

    async def models(self) -> list[str]:
        """Names (`provider/model`) that can be reached now; empty when none. Raises WorldError when it is away."""

    async def close(self) -> None:
        """Close all connections. Call it when no reply is being streamed any more."""


@runtime_checkable
class NamesModels(Protocol):
    """A provider that can check the form of a model's name without a request."""

    def check_name(self, model: str) -> None:
        """Raises InvalidRequest, which says how the models of this provider are named."""


class Providers(Protocol):
    """All providers of a server, by the part of a model's name before the slash."""

    def named(self, model: str) -> Provider:
        """The provider of that model. Raises InvalidRequest, which lists the providers, if there is none."""

    async def models(self) -> list[str]:
        """The models that can be reached now, sorted; those of a provider that is away are left out."""

    async def close(self) -> None: ...


def check_full_name(model: str) -> None:
    """Raises InvalidRequest unless the name is `provider/model`, with printable characters and no spaces around it."""
    provider, _, own = model.partition("/")
    if not own or own != own.strip() or not own.isprintable():
        raise InvalidRequest(
            f"{model!r} does not name a model: write {provider}/ and then the provider's own name of it, without "
            "spaces around it. GET /v1/models lists what there is."
        )
