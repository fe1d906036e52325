"""The port of a tool: arguments go in, one outcome comes out. A failure is an outcome too."""

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from turnkeep.config import EngineSettings
from turnkeep.ids import CallId, ConversationId, TurnId
from turnkeep.model.agents import AgentSpec
from turnkeep.model.principals import Principal, UserRef
from turnkeep.model.waits import WaitReason
from turnkeep_client.wire.blocks import JsonObject, JsonValue
from turnkeep_client.wire.events import Source


class ToolSpec(Struct, frozen=True, kw_only=True):
    """A description of a tool: what the model is told, and what the engine needs to run it and to recover.

    A tool that `is_idempotent` may be run again after a worker died during the call.
    """

    name: str
    description: str
    input_schema: JsonObject
    is_idempotent: bool = False
    timeout_seconds: float | None = None
    waits_for: WaitReason | None = None
    """What a call waits for before it runs: a person who allows it, or the caller, who runs it and sends the result."""
    identity: str = ""
    """What a person who allows all calls of the tool has allowed: its name, and which tool has that name."""
    identity_of: Callable[[JsonObject], str | None] | None = None
    """The identity where it depends on the arguments. It gives None for arguments with which the tool may run at
    once."""

    def identity_for(self, args: JsonObject) -> str | None:
        """For which tool a person is asked before a call with these arguments. None: for none."""
        if self.waits_for != "approval":
            return None
        return self.identity or self.name if self.identity_of is None else self.identity_of(args)


class CallContext(Struct, frozen=True, kw_only=True):
    """For which principal and in which turn a tool runs. HTTP tools send `call_id` as their Idempotency-Key.

    `user` is the user for whom the tool works, with the host's id as `external_id`; None if the turn was asked by a
    service key alone.
    """

    call_id: CallId
    turn_id: TurnId
    conversation_id: ConversationId
    principal: Principal
    result_chars: int = EngineSettings().tool_result_chars
    """Maximum number of characters that the model is sent. A tool that pages its results fits whole ones into it."""
    traceparent: str | None = None
    """The trace of this call (W3C Trace Context), for a tool that calls other services; None if there is none."""

    @property
    def user(self) -> UserRef | None:
        return self.principal.user


class Passage(Struct, frozen=True, kw_only=True):
    """A source that an answer may cite, and its text for the model."""

    source: Source
    text: str

    def rendered(self, number: int) -> str:
        """The passage as the model reads it. A place that equals the title is not repeated."""
        title, place = self.source.title, self.source.place
        where = title if place in {None, "", title} else f"{title}, {place}"
        return f"[{number}] {where}\n{self.text}"


class Outcome(Struct, frozen=True, kw_only=True):
    """The outcome of a call. `result` is any JSON; the model gets it as text.

    `passages` follow it, each under the number that its source has in the turn, by which the answer cites it.
    """

    result: JsonValue = None
    error: str | None = None
    sources: tuple[Source, ...] = ()
    passages: tuple[Passage, ...] = ()


class Tool(Protocol):
    spec: ToolSpec

    async def call(self, args: JsonObject, context: CallContext) -> Outcome:
        """Run once. The engine turns an exception into an error outcome. Cancellation must stop the work."""


class McpListing(Struct, frozen=True, kw_only=True):
    """What an MCP server offers, under the names that it gives its tools, or why it cannot be used now."""

    tools: tuple[ToolSpec, ...] = ()
    problem: str | None = None
    issuer: str | None = None
    """The authorization server at which a person must agree first; None if that is not what is missing."""
    can_register: bool = True
    """Whether that server registers clients by itself. Otherwise an admin gives a client id."""


class Toolbox(Protocol):
    """The tools of one agent, as they were when its turn was claimed. `notes` say what is missing, and why."""

    notes: tuple[str, ...]

    def specs(self) -> tuple[ToolSpec, ...]: ...

    def get(self, name: str) -> Tool | None: ...


class Tools(Protocol):
    """All tools of a server."""

    @property
    def native(self) -> tuple[ToolSpec, ...]:
        """The native tools, those of the operator included, sorted by name."""

    async def toolbox(
        self,
        agent: AgentSpec | None,
        principal: Principal,
        conversation_id: ConversationId | None = None,
        client: Sequence[JsonObject] = (),
    ) -> Toolbox:
        """The tools that this agent may use for this principal: what the agent names and the key allows, and these
        `client` tools of the question.

        Without a conversation, MCP servers whose address or headers name the conversation are left out.
        """

    async def mcp_server_problem(self, server: JsonObject, principal: Principal) -> str | None:
        """Why this MCP server cannot be used now; None if it can, or if that depends on the user."""

    async def mcp_listing(self, server: JsonObject, principal: Principal) -> McpListing:
        """The tools of this MCP server, listed now, or what is missing. Raises AddressRefused."""

    async def check_address(self, url: str) -> str | None:
        """Raises InvalidRequest for an address that tools may not call. Returns another problem with it, or None."""
