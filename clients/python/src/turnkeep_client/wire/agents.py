"""Agents on the wire: what may be saved, and what is shown of it. Secrets are taken in and never shown again."""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from turnkeep_client.wire.account import UserRef
from turnkeep_client.wire.base import Id, Model, Name, RequestBody, known_words
from turnkeep_client.wire.blocks import JsonObject

ToolName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
SkillName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
ServerName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,32}$")]
Address = Annotated[str, Meta(min_length=1, max_length=2_000)]
Seconds = Annotated[float, Meta(gt=0, le=3_600)]
SecretName = Annotated[str, Meta(max_length=200)]
Secret = Annotated[str, Meta(max_length=32_768)]
Secrets = Annotated[dict[SecretName, Secret], Meta(max_length=200)]
Texts = dict[str, str]
Instructions = Annotated[str, Meta(max_length=200_000)]


ApprovalRule = Literal["never", "always"]
"""Whether a person must allow each call of a tool before it runs."""
Approver = Literal["author", "admin"]
"""Who may decide about a call: the user who asked, or an admin of the workspace."""
ConnectionStatus = Literal["pending", "connected", "ended"]


class NamedTool(RequestBody, frozen=True, kw_only=True, tag_field="type", tag="native", omit_defaults=True):
    """A native tool of the server by its name, where there is more to say than the name."""

    name: ToolName
    approval: ApprovalRule | None = None


BoxToolName = Literal[
    "shell", "python", "run_recipe", "read_file", "write_file", "edit_file", "list_files", "grep_files"
]
"""The tools that every box has."""


class BoxTool(RequestBody, frozen=True, kw_only=True, tag_field="type", tag="sandbox", omit_defaults=True):
    """A tool of the agent's sandbox by its name, where there is more to say than the name. Every box has its tools
    without it."""

    name: BoxToolName
    approval: ApprovalRule | None = None


class ClientTool(RequestBody, frozen=True, kw_only=True, tag_field="type", tag="client", omit_defaults=True):
    """A tool that the caller runs: the turn waits for the result of each call."""

    name: ToolName
    description: Annotated[str, Meta(max_length=10_000)] = ""
    input_schema: JsonObject = field(default_factory=dict)


class HttpTool(RequestBody, frozen=True, kw_only=True, tag_field="type", tag="http", omit_defaults=True):
    """An endpoint as a tool: arguments are its JSON body (its query for GET and DELETE), the response body is the
    result. `method` is POST and `idempotent` false where they are not said; what is said is shown again as it was."""

    name: ToolName
    description: Annotated[str, Meta(max_length=10_000)] = ""
    input_schema: JsonObject = field(default_factory=dict)
    url: Address
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] | UnsetType = UNSET
    headers: Secrets = field(default_factory=dict)
    timeout_seconds: Seconds | None = None
    idempotent: bool | UnsetType = UNSET
    approval: ApprovalRule | None = None
    arguments: JsonObject = field(default_factory=dict)
    """Constant arguments, which the model neither sees nor sets. The `url`, headers and texts in here may have
    placeholders: `{{user.external_id}}`, `{{user.id}}`, `{{workspace.id}}`, `{{conversation.id}}`."""


class McpServer(RequestBody, frozen=True, kw_only=True, omit_defaults=True):
    """An MCP server by address, or by a command, which only the operator's key may save.

    Its tools are called `name__tool`. `tools` are those that the agent may use, as the server calls them.
    """

    name: ServerName
    url: Address | None = None
    headers: Secrets = field(default_factory=dict)
    command: Annotated[str, Meta(min_length=1, max_length=1_000)] | None = None
    args: Annotated[list[Annotated[str, Meta(max_length=10_000)]], Meta(max_length=100)] = field(default_factory=list)
    env: Secrets = field(default_factory=dict)
    tools: Annotated[list[Annotated[str, Meta(max_length=200)]], Meta(max_length=200)] | None = None
    timeout_seconds: Seconds | None = None
    approval: ApprovalRule | dict[Annotated[str, Meta(max_length=200)], ApprovalRule] | None = None
    """For all of its tools, or for those that are named here, as the server calls them."""
    arguments: JsonObject = field(default_factory=dict)
    """Constant arguments, for those of its tools that know them. Placeholders as for HTTP tools."""
    auth: Literal["oauth"] | None = None
    """`oauth`: the server is called with the tokens of the workspace's connection to this `url`."""


class Skill(RequestBody, frozen=True, kw_only=True, omit_defaults=True):
    """A folder of texts; `SKILL.md` tells what it is for."""

    name: SkillName
    files: Annotated[Texts, Meta(max_length=200)]
    approval: ApprovalRule | dict[Annotated[str, Meta(max_length=1_000)], ApprovalRule] | None = None
    """For all of its recipes, or for those that are named here by their paths."""


class Environment(RequestBody, frozen=True, kw_only=True, omit_defaults=True):
    """What the boxes of an agent have. `image` is one that the operator allows; from `packages` the server finds the
    first such image that has all of them."""

    variables: Secrets = field(default_factory=dict)
    setup_script: Annotated[str, Meta(max_length=200_000)] | None = None
    image: Annotated[str, Meta(max_length=40)] | None = None
    packages: Annotated[list[Annotated[str, Meta(min_length=1, max_length=100)]], Meta(max_length=100)] = field(
        default_factory=list
    )


class Limits(RequestBody, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of one turn. Null or absent: the limit of the server."""

    tool_rounds: Annotated[int, Meta(ge=0, le=100)] | None = None
    tool_timeout_seconds: Annotated[float, Meta(ge=0.1)] | None = None
    turn_timeout_seconds: Annotated[float, Meta(ge=1)] | None = None


Description = Annotated[str, Meta(max_length=2_000)]
Avatar = Annotated[str, Meta(max_length=2_800_000)]
"""An emoji, or a picture as a `data:` address (PNG, JPEG, GIF or WebP, at most 2 MB). The server stores it small."""
Starters = Annotated[list[Annotated[str, Meta(min_length=1, max_length=500)]], Meta(max_length=20)]
Tools = Annotated[list[ToolName | NamedTool | HttpTool | ClientTool | BoxTool], Meta(max_length=100)]
ClientTools = Annotated[list[ClientTool], Meta(max_length=100)]
Approvers = Annotated[list[Approver], Meta(min_length=1, max_length=2)]
McpServers = Annotated[list[McpServer], Meta(max_length=20)]
Skills = Annotated[list[Skill], Meta(max_length=50)]


class NewAgent(RequestBody, frozen=True, kw_only=True):
    """`description` and `starters` (questions to begin with) are for the users of the agent."""

    name: Name
    avatar: Avatar = ""
    description: Description = ""
    starters: Starters = field(default_factory=list)
    instructions: Instructions = ""
    model: Model | None = None
    tools: Tools = field(default_factory=list)
    mcp_servers: McpServers = field(default_factory=list)
    skills: Skills = field(default_factory=list)
    sandbox: bool = False
    environment: Environment = Environment()
    limits: Limits = Limits()
    approvers: Approvers = field(default_factory=lambda: ["author"])
    """Who may decide about calls that wait for an approval."""


class AgentPatch(RequestBody, frozen=True, kw_only=True):
    """Fields to change; those left out stay."""

    name: Name | UnsetType = UNSET
    avatar: Avatar | UnsetType = UNSET
    description: Description | UnsetType = UNSET
    starters: Starters | UnsetType = UNSET
    instructions: Instructions | UnsetType = UNSET
    model: Model | UnsetType | None = UNSET
    tools: Tools | UnsetType = UNSET
    mcp_servers: McpServers | UnsetType = UNSET
    skills: Skills | UnsetType = UNSET
    sandbox: bool | UnsetType = UNSET
    environment: Environment | UnsetType = UNSET
    limits: Limits | UnsetType = UNSET
    approvers: Approvers | UnsetType = UNSET


class AgentLimits(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of one turn of the agent. None: the limit of the server, which cannot be exceeded."""

    tool_rounds: int | None = None
    tool_timeout_seconds: float | None = None
    turn_timeout_seconds: float | None = None


class Agent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A saved agent. Members see `id`, `name`, `avatar`, `description`, `starters` and `model`; the rest is for admins
    and service keys. `tool_secret` is shown once, when the agent is made: calls of its tools are signed with it.

    Secrets (headers, env, variables) are masked; a masked value that is sent back stays as it is. `warnings` come with
    the answer to a save: it was saved, but something in it does not work just now.
    """

    id: str
    name: str
    description: str
    starters: Sequence[str]
    model: str | None
    avatar: str = ""
    workspace_id: str | None = None
    instructions: str | None = None
    tools: Sequence[str | JsonObject] = ()
    mcp_servers: Sequence[JsonObject] = ()
    skills: Sequence[JsonObject] = ()
    sandbox: bool | None = None
    environment: JsonObject | None = None
    limits: AgentLimits | None = None
    approvers: Sequence[str] = ()
    created_at: int | None = None
    updated_at: int | None = None
    tool_secret: str | None = None
    warnings: Sequence[str] = ()


class ToolSecret(Struct, frozen=True, kw_only=True):
    """A new secret of an agent, shown once. Calls of its tools are signed with it from the next turn on."""

    tool_secret: str


class AllowedImage(Struct, frozen=True, kw_only=True):
    """An image that agents may name in `environment.image`, with its Python packages."""

    name: str
    packages: Sequence[str]


class AgentTrial(RequestBody, frozen=True, kw_only=True):
    """A question to an agent that is not saved. Secrets of `agent` that are masked are those of the saved agent
    `agent_id`. Further questions name the `conversation_id` of the first answer."""

    agent: NewAgent
    message: Annotated[str, Meta(min_length=1, max_length=200_000)]
    agent_id: Id | None = None
    conversation_id: Id | None = None


class McpProbe(RequestBody, frozen=True, kw_only=True):
    """An MCP server whose tools shall be listed, before an agent with it is saved. Secrets that are masked are those of
    the saved agent `agent_id`."""

    server: McpServer
    agent_id: Id | None = None


class ListedMcpTool(Struct, frozen=True, kw_only=True):
    """A tool of an MCP server, as the server calls it."""

    name: str
    description: str
    input_schema: JsonObject
    idempotent: bool


class McpConnection(Struct, frozen=True, kw_only=True):
    """What the workspace may do at an MCP server that asks for authorization. `pending`: no person has agreed yet;
    `ended`: a person must agree again, and `problem` says why. `user` is the person who agreed."""

    id: str
    url: str
    issuer: str
    status: Annotated[str, known_words(ConnectionStatus)]
    problem: str | None
    user: UserRef | None
    created_at: int
    connected_at: int | None


class McpTools(Struct, frozen=True, kw_only=True):
    """The tools of an MCP server, or why they cannot be listed now. If a person must agree first at an authorization
    server, `issuer` names it. If it registers no clients by itself (`can_register`), register one there with the
    `redirect_uri`, and give its client id."""

    tools: Sequence[ListedMcpTool]
    problem: str | None
    issuer: str | None
    can_register: bool
    redirect_uri: str
    connection: McpConnection | None


class NewMcpConnection(RequestBody, frozen=True, kw_only=True):
    """`client_id` and `client_secret` of a client that was registered at the authorization server by hand; without
    them this server registers itself. `scope`: which rights to ask for, if not those that the server names."""

    url: Address
    client_id: Annotated[str, Meta(min_length=1, max_length=2_000)] | None = None
    client_secret: Annotated[str, Meta(min_length=1, max_length=2_000)] | None = None
    scope: Annotated[str, Meta(min_length=1, max_length=2_000)] | None = None


class BegunMcpConnection(Struct, frozen=True, kw_only=True):
    """A connection, and the address at which the person agrees. It holds for ten minutes, in this browser."""

    connection: McpConnection
    authorization_url: str


class NativeTool(Struct, frozen=True, kw_only=True):
    """A tool that agents can name: one of the server, or of its operator."""

    name: str
    description: str
    input_schema: JsonObject
    idempotent: bool
