"""A model that replies from a script: for tests of your own tools and pages, and for ours.

    provider = ScriptedProvider([
        [Call("lookup", {"city": "Bern"})],
        ["It is ", Pause(0.1), "sunny."],
    ])

Each list is one reply, streamed item by item. Instead of lists, a function may read the request and return the reply;
it is called for every request, so it also works when a turn moves to another worker.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Literal

from msgspec import Struct, structs

from turnkeep.ids import CallId, new_call_id
from turnkeep.model.sampling import ALL_OPTIONS
from turnkeep.providers.ports import (
    BETWEEN_THOUGHTS,
    Abilities,
    Delta,
    ModelRequest,
    ProviderEvent,
    ProviderFailed,
    Reply,
    Restarted,
    Target,
)
from turnkeep_client.wire.blocks import Block, JsonObject, Reasoning, Text, ToolUse, Usage


class Think(Struct, frozen=True):
    """Reasoning."""

    text: str
    signature: str | None = None


class Call(Struct, frozen=True):
    """Call a tool."""

    name: str
    args: JsonObject = {}
    id: str | None = None
    malformed: str | None = None
    """Pretend that the arguments were not valid JSON, for this reason."""


class Pause(Struct, frozen=True):
    seconds: float


class Until(Struct, frozen=True):
    """Wait for a condition of the test."""

    happened: Callable[[], Awaitable[object]]


class Fail(Struct, frozen=True):
    """Fail with this error."""

    error: Exception


class Restart(Struct, frozen=True):
    """Start again: what was streamed so far is dropped."""

    reason: str = "overloaded"


class OutOfTokens(Struct, frozen=True):
    """Pretend that the model stopped here because it reached its limit of tokens."""


Line = str | Think | Call | Pause | Until | Fail | Restart | OutOfTokens
Script = Sequence[Line]


class ScriptedProvider:
    """Replies with its scripts one after the other; `requests` holds the requests."""

    target: Target

    def __init__(
        self,
        scripts: Sequence[Script] | Callable[[ModelRequest], Script],
        *,
        name: str = "scripted",
        target: Target = "openai_chat",
        usage: Usage = Usage(input_tokens=10, output_tokens=5),  # noqa: B008 - frozen
        abilities: Abilities = Abilities(options=ALL_OPTIONS),  # noqa: B008 - frozen
    ) -> None:
        self.name = name
        self.target = target
        self.requests: list[ModelRequest] = []
        self._usage = usage
        self._abilities = abilities
        self._choose = scripts if callable(scripts) else self._next
        self._scripts: list[Script] = [] if callable(scripts) else list(scripts)

    def _next(self, request: ModelRequest) -> Script:
        if not self._scripts:
            raise ProviderFailed("The script has ended.")
        return self._scripts.pop(0)

    async def abilities(self, model: str) -> Abilities:
        return self._abilities

    async def speak(self, request: ModelRequest) -> AsyncGenerator[ProviderEvent, None]:
        request = request.decoded()
        self.requests.append(request)
        blocks: list[Block] = []
        malformed: dict[CallId, str] = {}
        finish: Literal["complete", "length"] = "complete"
        for line in self._choose(request):
            match line:
                case str():
                    yield Delta(text=line)
                    blocks.append(Text(text=line))
                case Think():
                    between = BETWEEN_THOUGHTS if line.text and _begins_thought(blocks) else ""
                    yield Delta(text=between + line.text, kind="reasoning")
                    blocks.append(Reasoning(text=line.text, provider=self.name, signature=line.signature))
                case Call():
                    call_id = CallId(line.id) if line.id else new_call_id()
                    blocks.append(ToolUse(id=call_id, name=line.name, input=line.args))
                    if line.malformed is not None:
                        malformed[call_id] = line.malformed
                case Pause():
                    await asyncio.sleep(line.seconds)
                case Until():
                    await line.happened()
                case Fail():
                    raise line.error
                case Restart():
                    yield Restarted(reason=line.reason)
                    blocks.clear()
                case OutOfTokens():
                    finish = "length"
                    break
        yield Reply(blocks=_joined(blocks), usage=self._usage, malformed=malformed, finish=finish)

    async def models(self) -> list[str]:
        return [self.name]

    async def close(self) -> None:
        pass


def _begins_thought(blocks: Sequence[Block]) -> bool:
    """Whether reasoning that follows these blocks is another block than the reasoning among them."""
    if blocks and isinstance(last := blocks[-1], Reasoning) and last.signature is None:
        return False
    return any(isinstance(block, Reasoning) and block.text for block in blocks)


def _joined(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """Neighbouring texts as one block, as a provider would send them. So is reasoning, up to its signature."""
    joined: list[Block] = []
    for block in blocks:
        match (joined[-1] if joined else None, block):
            case Text(text=before), Text(text=text):
                joined[-1] = Text(text=before + text)
            case Reasoning(text=before, signature=None), Reasoning(text=text):
                joined[-1] = structs.replace(block, text=before + text)
            case _:
                joined.append(block)
    return tuple(joined)
