"""Agents, and the frozen copy of one that a turn runs with."""

from msgspec import Struct

from turnkeep.ids import AgentId, WorkspaceId
from turnkeep.model.blocks import JsonObject
from turnkeep.model.principals import Principal


class AgentSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an agent is made of. Tools are names of native ones, or objects that describe HTTP tools."""

    name: str
    instructions: str = ""
    model: str | None = None
    tools: tuple[str | JsonObject, ...] = ()
    mcp_servers: tuple[JsonObject, ...] = ()
    skills: tuple[JsonObject, ...] = ()
    sandbox: bool = False
    environment: JsonObject = {}
    tokenizer: str | None = None


class Agent(Struct, frozen=True, kw_only=True):
    """A saved agent of a workspace."""

    id: AgentId
    workspace_id: WorkspaceId
    spec: AgentSpec
    created_at: int
    updated_at: int


class Snapshot(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a turn runs with, taken at claim: later edits of the agent do not reach a turn under way."""

    agent_id: AgentId | None = None
    agent: AgentSpec | None = None
    model: str | None = None
    principal: Principal | None = None
    """For whom its tools act, also after another worker has taken the turn over."""
