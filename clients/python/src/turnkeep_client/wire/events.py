"""Events: everything that can happen in a turn. Numbered without gaps, durable before anyone sees them.

The JSON of an event is the `data` of its frame on the wire. A step is the sandbox's NDJSON line, unchanged.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Struct, UnsetType, field

from turnkeep_client.wire.base import CallId, ConversationId, MessageId, TurnId, known_words
from turnkeep_client.wire.blocks import Finish, JsonObject, JsonValue, Part, StepStatus, Usage
from turnkeep_client.wire.files import File

TraceLevel = Literal["debug", "info", "warn", "error"]


class _Event(Struct, frozen=True, kw_only=True, tag_field="type"):
    pass


class TurnBegan(_Event, frozen=True, kw_only=True, tag="turn", omit_defaults=True):
    """Always first. A queued turn says it again when it starts to run, and a waiting one when it goes on; then `at` is
    that time."""

    turn_id: TurnId
    conversation_id: ConversationId
    user_message_id: MessageId
    status: Annotated[str, known_words(Literal["queued", "running"])]
    attempt: int
    at: int | None = None


class ToolCall(Struct, frozen=True, kw_only=True):
    id: CallId
    name: str
    args: JsonObject


class ToolCalls(_Event, frozen=True, kw_only=True, tag="tool_calls", omit_defaults=True):
    """An iteration is complete and replaces its previews."""

    iteration: int
    text: str
    calls: tuple[ToolCall, ...]
    reasoning: str | None = None


class Step(_Event, frozen=True, kw_only=True, tag="step", omit_defaults=True):
    """A tool, recipe or skill began, or ended. Readers join the lines of one step by `id`. A null in a line is a value;
    the client shows None for it and for a field that is absent."""

    id: str
    name: str
    status: Annotated[str, known_words(StepStatus)]
    args: JsonValue | UnsetType = UNSET
    result: JsonValue | UnsetType = UNSET
    error: JsonValue | UnsetType = UNSET
    duration_ms: int | float | None = field(default=None, name="durationMs")
    ts: int | float | None = None


class Source(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A place that an answer cites. The answer cites it by its `number`, as in `[2]`: 1, 2, 3 … within its turn.

    `place` describes the position in the source: `page 3`, a heading, `row 17`.
    """

    title: str
    snippet: str
    url: str | None = None
    file_id: str | None = None
    page_id: str | None = None
    table_id: str | None = None
    row: int | None = None
    conversation_id: str | None = None
    place: str | None = None
    number: int | None = None


class Sources(_Event, frozen=True, kw_only=True, tag="sources"):
    sources: tuple[Source, ...]


class Files(_Event, frozen=True, kw_only=True, tag="files"):
    """Files that the sandbox wrote back."""

    files: tuple[File, ...]


class Reset(_Event, frozen=True, kw_only=True, tag="reset", omit_defaults=True):
    """Another worker took over, or the provider started again: drop previews after the last durable event."""

    attempt: int
    reason: str
    at: int | None = None


class Approval(_Event, frozen=True, kw_only=True, tag="approval", omit_defaults=True):
    """The turn waits until a person allows or denies these calls. What is not decided by then counts as denied. `at` is
    when it began to wait."""

    calls: tuple[ToolCall, ...]
    expires_at: int
    at: int | None = None


class ClientCalls(_Event, frozen=True, kw_only=True, tag="client_calls", omit_defaults=True):
    """The turn waits for the results of these calls, which the caller runs."""

    calls: tuple[ToolCall, ...]
    expires_at: int
    at: int | None = None


class DecidedCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A decision that holds. `by` names who made it. `args` are other arguments, with which the call was allowed."""

    call_id: str
    decision: Annotated[str, known_words(Literal["allow", "deny"])]
    by: str
    at: int
    args: JsonObject | None = None
    reason: str | None = None


class Decided(_Event, frozen=True, kw_only=True, tag="decided"):
    """Somebody has decided about calls for which the turn waits. With the last decision the turn goes on."""

    decisions: tuple[DecidedCall, ...]


class Steered(_Event, frozen=True, kw_only=True, tag="steered"):
    """Words that the user added while the turn ran. The model is sent them with its next call."""

    message_id: MessageId
    message: str


class Result(_Event, frozen=True, kw_only=True, tag="result", omit_defaults=True):
    """Terminal: the answer. `content` is what history returns for the same message. `finish` is left out for an answer
    that is complete."""

    message_id: MessageId
    message: str
    content: tuple[Part, ...]
    usage: Usage
    finish: Annotated[str, known_words(Finish)] | None = None


class Failure(_Event, frozen=True, kw_only=True, tag="error", omit_defaults=True):
    """Terminal: no answer. A stop has code `cancelled`; `message_id` names the partial answer that was kept. `content`
    is what history returns for it, where that is less than the events say because it was too long."""

    code: str
    message: str
    message_id: MessageId | None = None
    content: tuple[Part, ...] | None = None


TurnEvent = (
    TurnBegan
    | ToolCalls
    | Step
    | Sources
    | Files
    | Reset
    | Approval
    | ClientCalls
    | Decided
    | Steered
    | Result
    | Failure
)
Terminal = Result | Failure


class Recorded(Struct, frozen=True, kw_only=True):
    """An event with the number it was given."""

    seq: int
    event: TurnEvent


class Delta(Struct, frozen=True, kw_only=True):
    """A preview: text of the current iteration. It is not an event: a later event contains the text or drops it."""

    iteration: int
    kind: Annotated[str, known_words(Literal["text", "reasoning"])]
    text: str


class LogLine(Struct, frozen=True, kw_only=True):
    """What a sandbox logged. Only the trace shows it. `after_seq` says which event it came after."""

    after_seq: int
    level: TraceLevel
    message: str
    ts: int | None = None
