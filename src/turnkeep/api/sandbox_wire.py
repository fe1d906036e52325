"""What a turn's sandbox is told, as JSON: its environment, and what the turn is about."""

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from turnkeep.model.blocks import JsonObject


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


class ChatTurn(Struct, frozen=True, kw_only=True):
    """What one side said, before this turn."""

    role: Literal["user", "assistant"]
    content: str
    ts: int


class SandboxAssets(Struct, frozen=True, kw_only=True):
    """Where the files of the conversation are, as a zip, for a short while."""

    url: str
    expires_at: int


class SandboxGateway(Struct, frozen=True, kw_only=True):
    """Where the agent's model is reached, as OpenAI's Chat Completions. The token dies with the turn."""

    base_url: str
    token: str
    expires_at: int


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
