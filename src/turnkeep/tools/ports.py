"""The port of a tool: arguments go in, one outcome comes out. A tool that fails has an outcome too."""

from typing import Protocol

from msgspec import Struct

from turnkeep.ids import CallId, ConversationId, TurnId
from turnkeep.model.agents import AgentSpec
from turnkeep.model.blocks import JsonObject, JsonValue
from turnkeep.model.events import Source
from turnkeep.model.principals import Principal


class ToolSpec(Struct, frozen=True, kw_only=True):
    """A tool as it is known: what the model is told, and what the engine must know to run and to recover it.

    An `is_idempotent` tool may be run again when a worker died while it ran.
    """

    name: str
    description: str
    input_schema: JsonObject
    is_idempotent: bool = False
    timeout_seconds: float | None = None


class CallContext(Struct, frozen=True, kw_only=True):
    """For whom and in which turn a tool runs. HTTP tools send `call_id` as their Idempotency-Key."""

    call_id: CallId
    turn_id: TurnId
    conversation_id: ConversationId
    principal: Principal


class Outcome(Struct, frozen=True, kw_only=True):
    """What a call came to. `result` is any JSON; the model is told its text."""

    result: JsonValue = None
    error: str | None = None
    sources: tuple[Source, ...] = ()


class Tool(Protocol):
    spec: ToolSpec

    async def call(self, args: JsonObject, context: CallContext) -> Outcome:
        """Run once. An exception is an error outcome to the engine; cancellation must stop the work."""


class Toolbox(Protocol):
    """The tools of one agent, as they were when its turn was claimed."""

    def specs(self) -> tuple[ToolSpec, ...]: ...

    def get(self, name: str) -> Tool | None: ...


class Tools(Protocol):
    """All tools of a server."""

    async def toolbox(self, agent: AgentSpec | None, principal: Principal) -> Toolbox:
        """The tools that this agent may use for this principal."""
