"""Agents on the wire: what may be saved, and what is shown of it to whom."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from turnkeep.api.wire import Asked, Model, Name
from turnkeep.config import MASK
from turnkeep.errors import Forbidden, InvalidRequest
from turnkeep.model.agents import Agent as StoredAgent
from turnkeep.model.agents import AgentSpec
from turnkeep.model.blocks import JsonObject

ToolName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Address = Annotated[str, Meta(pattern=r"^https?://[^\s/]", max_length=2_000)]
Texts = dict[str, str]
Instructions = Annotated[str, Meta(max_length=200_000)]


class HttpTool(Asked, frozen=True, kw_only=True, tag_field="type", tag="http", omit_defaults=True):
    """An endpoint as a tool: arguments are its JSON body, the response body is the result."""

    name: ToolName
    description: Annotated[str, Meta(max_length=10_000)] = ""
    input_schema: JsonObject = field(default_factory=dict)
    url: Address
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "POST"
    headers: Texts = field(default_factory=dict)
    timeout_seconds: Annotated[float, Meta(gt=0, le=3_600)] | None = None
    idempotent: bool = False


class McpServer(Asked, frozen=True, kw_only=True, omit_defaults=True):
    """An MCP server by address, or by a command (which only a service key may save)."""

    name: ToolName
    url: Address | None = None
    headers: Texts = field(default_factory=dict)
    command: Annotated[str, Meta(min_length=1, max_length=1_000)] | None = None
    args: list[str] = field(default_factory=list)
    env: Texts = field(default_factory=dict)


class Skill(Asked, frozen=True, kw_only=True):
    """A folder of texts; `SKILL.md` tells what it is for."""

    name: ToolName
    files: Texts


class Environment(Asked, frozen=True, kw_only=True, omit_defaults=True):
    variables: Texts = field(default_factory=dict)
    setup_script: Annotated[str, Meta(max_length=200_000)] | None = None


class NewAgent(Asked, frozen=True, kw_only=True):
    name: Name
    instructions: Instructions = ""
    model: Model | None = None
    tools: list[ToolName | HttpTool] = field(default_factory=list)
    mcp_servers: list[McpServer] = field(default_factory=list)
    skills: list[Skill] = field(default_factory=list)
    sandbox: bool = False
    environment: Environment = Environment()


class AgentPatch(Asked, frozen=True, kw_only=True):
    """Fields to change; those left out stay."""

    name: Name | UnsetType = UNSET
    instructions: Instructions | UnsetType = UNSET
    model: Model | UnsetType | None = UNSET
    tools: list[ToolName | HttpTool] | UnsetType = UNSET
    mcp_servers: list[McpServer] | UnsetType = UNSET
    skills: list[Skill] | UnsetType = UNSET
    sandbox: bool | UnsetType = UNSET
    environment: Environment | UnsetType = UNSET


class Agent(Struct, frozen=True, kw_only=True):
    """A saved agent. Members see that there are secrets (headers, variables), not what they are."""

    id: str
    workspace_id: str
    name: str
    instructions: str
    model: str | None
    tools: Sequence[str | JsonObject]
    mcp_servers: Sequence[JsonObject]
    skills: Sequence[JsonObject]
    sandbox: bool
    environment: JsonObject
    created_at: int
    updated_at: int


def spec_of(asked: NewAgent | AgentPatch, *, before: AgentSpec | None = None, may_run_commands: bool) -> AgentSpec:
    """What is stored, with everything that was left out as it was before."""
    given = {name: value for name in asked.__struct_fields__ if (value := getattr(asked, name)) is not UNSET}
    _check(given, may_run_commands=may_run_commands)
    values = {name: _plain(value) for name, value in given.items()}
    return AgentSpec(**values) if before is None else msgspec.structs.replace(before, **values)


def agent_of(agent: StoredAgent, *, shows_secrets: bool) -> Agent:
    spec = agent.spec
    hide = _as_it_is if shows_secrets else _masked
    return Agent(
        id=agent.id,
        workspace_id=agent.workspace_id,
        name=spec.name,
        instructions=spec.instructions,
        model=spec.model,
        tools=[hide(tool) for tool in spec.tools],
        mcp_servers=[hide(server) for server in spec.mcp_servers],
        skills=spec.skills,
        sandbox=spec.sandbox,
        environment=hide(spec.environment),
        created_at=agent.created_at,
        updated_at=agent.updated_at,
    )


def _check(given: dict[str, Any], *, may_run_commands: bool) -> None:
    for server in given.get("mcp_servers", ()):
        if (server.url is None) == (server.command is None):
            raise InvalidRequest(f"The MCP server `{server.name}` needs either a `url` or a `command`.")
        if server.command is not None and not may_run_commands:
            raise Forbidden("Only a service key may save an MCP server that is a command.")
    for skill in given.get("skills", ()):
        if "SKILL.md" not in skill.files:
            raise InvalidRequest(f"The skill `{skill.name}` has no SKILL.md.")
        for path in skill.files:
            parts = path.split("/")
            if not path or "\\" in path or "\0" in path or {"", ".", ".."} & set(parts) or len(path) > 200:
                raise InvalidRequest(f"The skill `{skill.name}` has a file with an impossible name: {path[:60]!r}.")
    for group in ("tools", "mcp_servers", "skills"):
        names = [item if isinstance(item, str) else item.name for item in given.get(group, ())]
        if len(set(names)) != len(names):
            raise InvalidRequest(f"Two of the `{group}` have the same name.")


def _plain(value: Any) -> Any:
    plain = msgspec.to_builtins(value)
    return tuple(plain) if isinstance(plain, list) else plain


def _as_it_is(value: Any) -> Any:
    return value


def _masked(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    secret = {"headers", "env", "variables"} & value.keys()
    return value | {name: dict.fromkeys(value[name], MASK) for name in secret if isinstance(value[name], dict)}
