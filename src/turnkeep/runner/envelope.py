"""The envelope: what the server tells the runner about one turn. Unknown fields are passed over, so that a newer server
can talk to an older runner; a field that we know and that is wrong is refused.
"""

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from turnkeep.errors import InvalidRequest
from turnkeep.filebag.unzipping import ZipRefused, safe_path
from turnkeep_client.wire.blocks import JsonObject, JsonValue

VARIABLE_BYTES = 128 * 1024
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SKILL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

Text = Annotated[str, Meta(min_length=1)]
Positive = Annotated[int, Meta(gt=0)]
Seconds = Annotated[float, Meta(gt=0)]


class StreamRequest(Struct, frozen=True, kw_only=True):
    """The body of `POST /stream`. `agent_url` is where the server answers for this turn."""

    agent_url: Text
    otp_setup: Text
    otp_run: Text
    otp_upload: str | None = None
    prompt: str = ""
    chat_id: str | None = None


class Environment(Struct, frozen=True, kw_only=True):
    """The answer of `/env`."""

    variables: dict[str, str] = {}
    setup_script: str | None = None

    def __post_init__(self) -> None:
        for name, value in self.variables.items():
            if not _VARIABLE.fullmatch(name):
                raise ValueError(f"{name!r} is not the name of a variable")
            if "\0" in value or len(value.encode("utf-8", "replace")) > VARIABLE_BYTES:
                raise ValueError(f"the variable {name} is too long, or has a NUL in it")


class Skill(Struct, frozen=True, kw_only=True):
    """A folder that teaches the agent something: `SKILL.md`, and programs beside it."""

    name: str
    files: dict[str, str]

    def __post_init__(self) -> None:
        if not _SKILL.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is not the name of a skill")
        for path in self.files:
            try:
                safe_path(path)
            except ZipRefused as exc:
                raise ValueError(f"the skill {self.name}: {exc.detail}") from exc


class AgentConfig(Struct, frozen=True, kw_only=True):
    model: Text
    instructions: str = ""
    tools: tuple[str | JsonObject, ...] = ()
    mcp_servers: tuple[JsonObject, ...] = ()
    skills: tuple[Skill, ...] = ()
    allowed_tools: tuple[str, ...] | None = None
    """Which tools the key allows; None: any. A name that ends with `*` stands for all that begin so."""


class ChatTurn(Struct, frozen=True, kw_only=True):
    """What one side said, before this turn."""

    role: Literal["user", "assistant"]
    content: str
    ts: int


class Assets(Struct, frozen=True, kw_only=True):
    """Where the zip of the bag is, for a short while."""

    url: Text
    expires_at: int | None = None


class OfferedTool(Struct, frozen=True, kw_only=True):
    """A tool that the server calls for us."""

    name: Text
    timeout_seconds: Seconds
    description: str = ""
    input_schema: JsonObject = {}


class GatewayAccess(Struct, frozen=True, kw_only=True):
    """The server's gateway to the model and to its own tools, open for this turn alone.

    `notes` say which tools of the agent cannot be used now. `tools` is None where a server calls none for sandboxes.
    """

    base_url: Text
    token: Text
    expires_at: int | None = None
    tools: tuple[OfferedTool, ...] | None = None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"GatewayAccess(base_url={self.base_url!r}, token='***')"


class TurnLimits(Struct, frozen=True, kw_only=True):
    """What the server asks for; the runner's own limits hold where they are tighter."""

    tool_rounds: Positive | None = None
    tool_result_chars: Positive | None = None
    context_chars: Positive | None = None
    provider_timeout_seconds: Seconds | None = None
    step_seconds: Seconds | None = None
    turn_seconds: Seconds | None = None
    max_file_bytes: Positive | None = None
    max_files: Positive | None = None


class Config(Struct, frozen=True, kw_only=True):
    """The answer of `/config`."""

    agent: AgentConfig
    prompt: str
    gateway: GatewayAccess
    conversation: tuple[ChatTurn, ...] = ()
    chat_id: str | None = None
    assets: Assets | None = None
    limits: TurnLimits = TurnLimits()


def read(data: bytes, kind: type[Struct], *, origin: str) -> JsonValue:
    """The value, or InvalidRequest that names where it came from and what is wrong with it."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidRequest(f"{origin} does not fit the contract: {exc}") from exc
