"""What the server and a sandbox runner tell each other about one turn.

The server posts a `SandboxRequest`. The runner fetches the rest with the tokens in it: the environment, and the
configuration of the turn. It then calls the model and the tools of the server through the gateway. A runner passes over
fields that it does not know, so that a newer server can talk to an older runner.

The runner answers with lines of JSON (NDJSON), one `Line` each. A client that runs an agent gets the same lines. The
last one is an `Ending`.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from turnkeep_client.wire.base import RequestBody
from turnkeep_client.wire.blocks import JsonObject, JsonValue
from turnkeep_client.wire.conversations import WaitReason
from turnkeep_client.wire.events import Source, Sources, Step, TraceLevel

FEATURES_HEADER = "Turnkeep-Runner-Features"
"""What a runner knows beyond the first contract, as words: `waits`."""
WAITS = "waits"

NonEmpty = Annotated[str, Meta(min_length=1)]
Positive = Annotated[int, Meta(gt=0)]
Seconds = Annotated[float, Meta(gt=0)]

_LEVELS: dict[str, TraceLevel] = {
    **{"trace": "debug", "debug": "debug", "info": "info", "notice": "info"},
    **{"warn": "warn", "warning": "warn", "error": "error", "critical": "error", "fatal": "error"},
}


class SandboxRequest(Struct, frozen=True, kw_only=True):
    """The body of `POST /stream`. `agent_url` is where the server answers for this turn. Each token is good for one
    request."""

    agent_url: NonEmpty
    otp_setup: NonEmpty
    otp_run: NonEmpty
    otp_upload: str | None = None
    prompt: str = ""
    chat_id: str | None = None


class SandboxEnvironment(Struct, frozen=True, kw_only=True):
    """Variables of the box, what is run in it before anything else, and which image it has."""

    variables: dict[str, str] = {}
    setup_script: str | None = None
    image: str | UnsetType = UNSET


class SandboxSkill(Struct, frozen=True, kw_only=True):
    """A folder that teaches the agent something: `SKILL.md`, and programs beside it."""

    name: str
    files: dict[str, str]


class SandboxAgent(Struct, frozen=True, kw_only=True):
    """The agent as it was when the turn was claimed. Credentials of its tools are masked: they stay on the server."""

    model: NonEmpty
    instructions: str = ""
    tools: tuple[str | JsonObject, ...] = ()
    mcp_servers: tuple[JsonObject, ...] = ()
    skills: tuple[SandboxSkill, ...] = ()
    allowed_tools: tuple[str, ...] | None = None
    """Which tools the key allows, those of the box included; null: any. `web__*` stands for all that begin so."""


class ChatTurn(Struct, frozen=True, kw_only=True):
    """What one side said, before this turn."""

    role: Literal["user", "assistant"]
    content: str
    ts: int


class SandboxAssets(Struct, frozen=True, kw_only=True):
    """Where the files of the conversation are, as a zip, for a short while."""

    url: NonEmpty
    expires_at: int | None = None


class SandboxTool(Struct, frozen=True, kw_only=True):
    """A tool that the server calls for the sandbox."""

    name: NonEmpty
    timeout_seconds: Seconds
    description: str = ""
    input_schema: JsonObject = {}
    waits_for: WaitReason | None = None
    """What a call waits for before it runs (`wait` line). The server does not run a call that nobody allowed."""
    identity: str = ""


class SandboxGateway(Struct, frozen=True, kw_only=True):
    """Where the agent's model is reached, as OpenAI's Chat Completions, and its `tools`. The token ends with the turn.

    `notes` say which tools of the agent cannot be used just now. `tools` is null where a server calls none for
    sandboxes.
    """

    base_url: NonEmpty
    token: NonEmpty
    expires_at: int | None = None
    tools: tuple[SandboxTool, ...] | None = None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"SandboxGateway(base_url={self.base_url!r}, token='***')"


class SandboxLimits(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of the turn. The runner decides those that are left out, and applies its own limits where they are
    tighter."""

    context_chars: Positive | None = None
    tool_result_chars: Positive | None = None
    provider_timeout_seconds: Seconds | None = None
    turn_seconds: Seconds | None = None
    max_file_bytes: Positive | None = None
    max_files: Positive | None = None
    tool_rounds: Positive | None = None
    step_seconds: Seconds | None = None


class SandboxConfig(Struct, frozen=True, kw_only=True):
    """What a turn is about."""

    agent: SandboxAgent
    prompt: str
    gateway: SandboxGateway
    conversation: tuple[ChatTurn, ...] = ()
    chat_id: str | None = None
    assets: SandboxAssets | None = None
    limits: SandboxLimits = SandboxLimits()
    asks: tuple[str, ...] = ()
    """Tools of the box, and recipes as `skill/path`, whose calls a person must allow. The server gives them only to a
    runner that says `waits` in the header `Turnkeep-Runner-Features`."""
    trusted: tuple[str, ...] = ()
    """Identities of tools whose calls were allowed for the whole conversation."""


class WaitingToolCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that waits. `identity` says which tool it is, for a person who allows all of its calls."""

    id: NonEmpty
    name: NonEmpty
    args: JsonObject
    reason: WaitReason
    input_schema: JsonObject = {}
    identity: str = ""


class AwaitedCalls(RequestBody, frozen=True, kw_only=True):
    """The calls of a `wait` line whose answers the runner asks for."""

    call_ids: Annotated[list[Annotated[str, Meta(min_length=1, max_length=200)]], Meta(min_length=1, max_length=1_000)]


class SandboxAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to one call that waited. `digest` is that of the name and the arguments with which it may run."""

    call_id: str
    verdict: Literal["allow", "deny", "result", "error", "none"]
    digest: str = ""
    args: JsonObject | None = None
    reason: str | None = None
    value: JsonValue = None
    by: str = ""
    is_remembered: bool = False


class SandboxAnswers(Struct, frozen=True, kw_only=True):
    """The answers to all calls that were asked for. Null: not all of them are there yet; ask again."""

    answers: Sequence[SandboxAnswer] | None


class SandboxToolCall(RequestBody, frozen=True, kw_only=True):
    """A tool to be called. `call_id` is what an HTTP tool gets as its Idempotency-Key."""

    call_id: Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_-]+$")]
    name: Annotated[str, Meta(min_length=1, max_length=200)]
    arguments: JsonObject = field(default_factory=dict)


class FoundPassage(Struct, frozen=True, kw_only=True):
    """A place that the answer may cite, and its text for the model."""

    source: Source
    text: str


class ToolOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of the call: any JSON, or the error. A failure of a tool is an outcome too.

    The model gets the `passages` after the result, each under a number that its source has in this turn. The runner
    gives the numbers, and says them with a `sources` line; `sources` are places without a text of their own.
    """

    result: JsonValue
    error: str | None
    sources: Sequence[Source]
    passages: Sequence[FoundPassage]


class _Line(Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True, omit_defaults=True):
    pass


class SandboxLog(_Line, frozen=True, kw_only=True, tag="log"):
    """For the trace; readers of the turn never see it. `level` is whatever the sandbox calls it; see `known_level`."""

    level: str
    message: str
    ts: int | float | None = None

    @property
    def known_level(self) -> TraceLevel:
        """The level as the trace has it. An unknown level counts as `info`."""
        return _LEVELS.get(self.level.lower(), "info")


class DeltaLine(_Line, frozen=True, kw_only=True, tag="delta"):
    """Text of a preview."""

    text: str
    ts: int | float | None = None


class StepLine(Step, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A step began, goes on (`running` again, with the output so far as its result), or ended."""

    def event(self) -> Step:
        """The same step as an event; its JSON is this line's."""
        return Step(**msgspec.structs.asdict(self))


class SourcesLine(Sources, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Places that the answer may cite, each under the number by which it does."""

    ts: int | float | None = None


class WaitLine(_Line, frozen=True, kw_only=True, tag="wait"):
    """These calls need an answer before the turn goes on. The runner keeps the box, and asks the server for them."""

    calls: Annotated[tuple[WaitingToolCall, ...], Meta(min_length=1)]
    ts: int | float | None = None


class ResultLine(_Line, frozen=True, kw_only=True, tag="result"):
    """Terminal: the answer. `finish` is `length` if the model stopped at its limit of tokens."""

    message: str
    finish: str | None = None
    ts: int | float | None = None


class ErrorLine(_Line, frozen=True, kw_only=True, tag="error"):
    """Terminal: why there is no answer."""

    code: str
    message: str
    ts: int | float | None = None


OpenLine = SandboxLog | DeltaLine | StepLine | SourcesLine | WaitLine
Ending = ResultLine | ErrorLine
Line = OpenLine | Ending

_decode = msgspec.json.Decoder(Line).decode
_encode = msgspec.json.Encoder().encode
_FIELDS: dict[str, set[str]] = {
    str(kind.__struct_config__.tag): {"type", *(each.encode_name for each in msgspec.structs.fields(kind))}
    for kind in (SandboxLog, DeltaLine, StepLine, SourcesLine, WaitLine, ResultLine, ErrorLine)
}


def encode_line(line: Line) -> bytes:
    """The line with its line feed."""
    return _encode(line) + b"\n"


def decode_line(line: bytes) -> tuple[Line, list[str]]:
    """One line without its line feed, and the names of the unknown fields that it had. Raises what msgspec raises."""
    try:
        return _decode(line), []
    except msgspec.ValidationError:
        return _without_unknown_fields(line)


def _without_unknown_fields(line: bytes) -> tuple[Line, list[str]]:
    """The same for a line that the quick and strict decoder refused."""
    values = msgspec.json.decode(line, type=dict[str, JsonValue])
    known = _FIELDS.get(str(values.get("type")), set(values))
    fitting = {name: value for name, value in values.items() if name in known}
    return msgspec.convert(fitting, type=Line), [name for name in values if name not in known]
