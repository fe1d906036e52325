"""Agents, and the frozen copy of one that a turn runs with."""

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct, structs

from turnkeep.ids import AgentId, ConnectionId, KeyId, OrgId, UserId, WorkspaceId
from turnkeep.model.principals import Principal
from turnkeep.model.sampling import DEFAULT_SAMPLING, Sampling
from turnkeep_client.wire.agents import AgentLimits, Approver
from turnkeep_client.wire.blocks import Block, JsonObject

__all__ = [
    "Agent",
    "AgentLimits",
    "AgentSpec",
    "McpConnection",
    "OpeningRow",
    "SecretPlace",
    "Snapshot",
    "with_secrets",
]


class AgentSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an agent is made of. Tools are names of native ones, or objects: a native tool with an `approval`, an HTTP
    tool, or a client tool.

    Its secrets are the values of `headers`, `env` and `variables`, and `tool_secret`, with which calls of its tools are
    signed. They are sealed before a spec is stored. `starters` are questions that a page offers in a new conversation.
    `avatar` is an emoji, or a small picture as a `data:` address. Snapshots leave it out.
    """

    name: str
    avatar: str = ""
    description: str = ""
    starters: tuple[str, ...] = ()
    instructions: str = ""
    model: str | None = None
    tools: tuple[str | JsonObject, ...] = ()
    mcp_servers: tuple[JsonObject, ...] = ()
    skills: tuple[JsonObject, ...] = ()
    sandbox: bool = False
    environment: JsonObject = {}
    tokenizer: str | None = None
    limits: AgentLimits = AgentLimits()
    tool_secret: str | None = None
    approvers: tuple[Approver, ...] = ("author",)
    """Who may decide about calls that wait for an approval: the user who asked, admins, or both."""


class SecretPlace(Struct, frozen=True, kw_only=True):
    """Where in a spec a secret stands: a header of the tool `weather`, a variable of the environment."""

    group: str
    owner: str
    field: str
    name: str

    def __str__(self) -> str:
        return f"{self.group}.{self.owner}.{self.field}.{self.name}" if self.owner else f"{self.group}.{self.name}"


def with_secrets(spec: AgentSpec, change: Callable[[SecretPlace, str], str]) -> AgentSpec:
    """The spec with `change` applied to every secret in it. The only code that knows where secrets stand."""

    def changed(group: str, item: Any) -> Any:
        if not isinstance(item, dict):
            return item
        owner = str(item.get("name", ""))
        secret = {
            field: {
                name: change(SecretPlace(group=group, owner=owner, field=field, name=name), value)
                for name, value in item[field].items()
            }
            for field in ("headers", "env", "variables")
            if isinstance(item.get(field), dict)
        }
        return item | secret

    return structs.replace(
        spec,
        tools=tuple(changed("tools", tool) for tool in spec.tools),
        mcp_servers=tuple(changed("mcp_servers", server) for server in spec.mcp_servers),
        environment=changed("environment", spec.environment),
        tool_secret=None if spec.tool_secret is None else change(_TOOL_SECRET, spec.tool_secret),
    )


_TOOL_SECRET = SecretPlace(group="tool_secret", owner="", field="", name="tool_secret")


class Agent(Struct, frozen=True, kw_only=True):
    """A saved agent of a workspace."""

    id: AgentId
    workspace_id: WorkspaceId
    spec: AgentSpec
    created_at: int
    updated_at: int


class McpConnection(Struct, frozen=True, kw_only=True):
    """What a workspace may do at an MCP server that asks for authorization (OAuth). There is one for each address.

    `sealed` has the tokens (`tools.oauth.TokenGrant`), or nothing before a person has agreed and after the permission
    has ended. `attempt` is an authorization that has begun. Both are encrypted. `version` rises with each change of
    `sealed`, and `connected_at` with each new authorization. `user_id` is the person who agreed: the connection is
    erased with this user.
    """

    id: ConnectionId
    org_id: OrgId
    workspace_id: WorkspaceId
    user_id: UserId | None
    url: str
    issuer: str
    sealed: str | None
    attempt: str | None
    problem: str | None
    version: int
    created_at: int
    connected_at: int | None

    @property
    def is_connected(self) -> bool:
        return self.sealed is not None


class OpeningRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A row of a turn that happened before the turn was asked: a call of a tool by the model, or its result. A caller
    that keeps the history itself sends it with the question."""

    role: Literal["user", "assistant"]
    blocks: tuple[Block, ...]


class Snapshot(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a turn runs with, taken at claim: later edits of the agent do not reach a turn under way."""

    agent_id: AgentId | None = None
    agent: AgentSpec | None = None
    model: str | None = None
    principal: Principal | None = None
    """For whom its tools act, also after another worker has taken the turn over."""
    sandbox: bool = False
    """Whether its loop runs in a sandbox: the conversation is of that kind, it is a run, or the agent says so."""
    client_tools: tuple[JsonObject, ...] = ()
    """Tools that came with the question. The caller runs them."""
    ends_with_calls: bool = False
    """Whether a call of such a tool ends the turn. Otherwise the turn waits for its result."""
    instructions: str = ""
    """Instructions that came with the question. They follow those of the agent."""
    sampling: Sampling = DEFAULT_SAMPLING
    conversation_instructions: str = ""
    """Instructions of the conversation. They stand between those of the agent and those of the question."""
    temperature: float | None = None
    """The temperature of the conversation. That of the question comes first."""
    opening: tuple[OpeningRow, ...] = ()
    """What happened between the question and the first call of the model: calls that the caller has run already."""
    request_id: str | None = None
    """The id of the request that asked, for the log."""
    traceparent: str | None = None
    """The trace of that request. It goes on with the turn, also on other workers."""

    @property
    def opening_rounds(self) -> int:
        """How often the model has spoken in the opening."""
        return sum(row.role == "assistant" for row in self.opening)

    @property
    def counted_keys(self) -> tuple[KeyId, ...]:
        """The keys for which the turn counts."""
        return () if self.principal is None else self.principal.counted_keys
