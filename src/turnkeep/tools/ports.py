"""The port of a tool: arguments go in, one outcome comes out. A tool that fails has an outcome too."""

from typing import Protocol

from msgspec import Struct

from turnkeep.config import EngineSettings
from turnkeep.ids import CallId, ConversationId, OrgId, TurnId
from turnkeep.model.agents import AgentSpec
from turnkeep.model.principals import Principal
from turnkeep_client.wire.blocks import JsonObject, JsonValue
from turnkeep_client.wire.events import Source


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
    result_chars: int = EngineSettings().tool_result_chars
    """Maximum number of characters that the model is sent. A tool that pages its results fits whole ones into it."""


class Passage(Struct, frozen=True, kw_only=True):
    """A place that an answer may cite, and what the model is told of it."""

    source: Source
    text: str

    def rendered(self, number: int) -> str:
        """As the model reads it. A place that has the title's own name is not said twice."""
        title, place = self.source.title, self.source.place
        where = title if place in {None, "", title} else f"{title}, {place}"
        return f"[{number}] {where}\n{self.text}"


class Outcome(Struct, frozen=True, kw_only=True):
    """What a call came to. `result` is any JSON; the model is told its text.

    `passages` follow it, each under the number that its source has in the turn, by which the answer cites it.
    """

    result: JsonValue = None
    error: str | None = None
    sources: tuple[Source, ...] = ()
    passages: tuple[Passage, ...] = ()


class Tool(Protocol):
    spec: ToolSpec

    async def call(self, args: JsonObject, context: CallContext) -> Outcome:
        """Run once. An exception is an error outcome to the engine; cancellation must stop the work."""


class Toolbox(Protocol):
    """The tools of one agent, as they were when its turn was claimed. `notes` say what is missing, and why."""

    notes: tuple[str, ...]

    def specs(self) -> tuple[ToolSpec, ...]: ...

    def get(self, name: str) -> Tool | None: ...


class Tools(Protocol):
    """All tools of a server."""

    @property
    def names(self) -> tuple[str, ...]:
        """The native ones."""

    async def toolbox(self, agent: AgentSpec | None, principal: Principal) -> Toolbox:
        """The tools that this agent may use for this principal: what the agent names and the key allows."""

    async def mcp_server_problem(self, server: JsonObject, org_id: OrgId) -> str | None:
        """Why this MCP server cannot be used just now; None if it can."""

    async def check_address(self, url: str) -> str | None:
        """Raises InvalidRequest for an address that tools may not call; says what else is wrong with it just now."""
