"""What a turn's sandbox is told, as JSON: its environment, and what the turn is about."""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from turnkeep.api.wire import Asked
from turnkeep_client.wire.blocks import JsonObject, JsonValue
from turnkeep_client.wire.events import Source


class SandboxEnvironment(Struct, frozen=True, kw_only=True):
    """Variables of the box, and what is run in it before anything else."""

    variables: dict[str, str]
    setup_script: str | None


class SandboxAgent(Struct, frozen=True, kw_only=True):
    """The agent as it was when the turn was claimed. Credentials of its tools are masked: they stay on the server."""

    instructions: str
    model: str
    tools: Sequence[str | JsonObject]
    mcp_servers: Sequence[JsonObject]
    skills: Sequence[JsonObject]
    allowed_tools: Sequence[str] | None
    """Which tools the key allows, those of the box included; null: any. `web__*` stands for all that begin so."""


class ChatTurn(Struct, frozen=True, kw_only=True):
    """What one side said, before this turn."""

    role: Literal["user", "assistant"]
    content: str
    ts: int


class SandboxAssets(Struct, frozen=True, kw_only=True):
    """Where the files of the conversation are, as a zip, for a short while."""

    url: str
    expires_at: int


class SandboxTool(Struct, frozen=True, kw_only=True):
    """A tool that the server calls for the sandbox."""

    name: str
    description: str
    input_schema: JsonObject
    timeout_seconds: float


class SandboxGateway(Struct, frozen=True, kw_only=True):
    """Where the agent's model is reached, as OpenAI's Chat Completions, and its `tools`. The token dies with the turn.

    `notes` say which tools of the agent cannot be used just now.
    """

    base_url: str
    token: str
    expires_at: int
    tools: Sequence[SandboxTool]
    notes: Sequence[str]


class ToolCall(Asked, frozen=True, kw_only=True):
    """A tool to be called. `call_id` is what an HTTP tool gets as its Idempotency-Key."""

    call_id: Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_-]+$")]
    name: Annotated[str, Meta(min_length=1, max_length=200)]
    arguments: JsonObject = field(default_factory=dict)


class FoundPassage(Struct, frozen=True, kw_only=True):
    """A place that the answer may cite, and what the model is to be told of it."""

    source: Source
    text: str


class ToolOutcome(Struct, frozen=True, kw_only=True):
    """What the call came to: any JSON, or why there is none. A tool that fails is an answer too.

    The model is told the `passages` after the result, each under a number that its source has in this turn. The runner
    gives the numbers, and says them with a `sources` line; `sources` are places without a text of their own.
    """

    result: JsonValue
    error: str | None
    sources: Sequence[Source]
    passages: Sequence[FoundPassage]


class SandboxLimits(Struct, frozen=True, kw_only=True):
    """How far the turn may go. What is left out is the runner's to decide."""

    context_chars: int
    tool_result_chars: int
    provider_timeout_seconds: float
    turn_seconds: float
    max_file_bytes: int
    tool_rounds: int | UnsetType = UNSET
    step_seconds: float | UnsetType = UNSET


class SandboxConfig(Struct, frozen=True, kw_only=True):
    """What a turn is about."""

    agent: SandboxAgent
    prompt: str
    conversation: Sequence[ChatTurn]
    chat_id: str
    assets: SandboxAssets | None
    gateway: SandboxGateway
    limits: SandboxLimits
