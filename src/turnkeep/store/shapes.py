"""Values that come whole: that they are what they claim to be, before anything is written.

`checks.py` looks at what a turn writes; this looks at the rest: conversations, agents, exports, tokens.
"""

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from turnkeep.errors import InvalidRequest
from turnkeep.model.agents import AgentSpec
from turnkeep.model.conversations import Conversation
from turnkeep.model.files import File
from turnkeep.store.checks import KEY_CHARS, NAME_CHARS, check_json, check_rows, check_text
from turnkeep.store.commands import (
    ConversationChange,
    Exported,
    NewConversation,
    TokenBinding,
    TurnTrace,
)
from turnkeep_client.wire.usage import Usage

Value = TypeVar("Value")


def check_new_conversation(new: NewConversation) -> NewConversation:
    _check_shape(new, NewConversation, "The conversation")
    if new.title is not None:
        check_text(new.title, "title", limit=NAME_CHARS)
    return new


def check_change(change: ConversationChange) -> ConversationChange:
    _check_shape(change, ConversationChange, "The change")
    if change.title is not None:
        check_text(change.title, "title", limit=NAME_CHARS)
    return change


def check_agent(spec: AgentSpec) -> AgentSpec:
    _check_shape(spec, AgentSpec, "The agent")
    check_text(spec.name, "name", limit=NAME_CHARS)
    return spec


def check_binding(binding: TokenBinding) -> TokenBinding:
    return _check_shape(binding, TokenBinding, "The token's binding")


def check_hash(value: object, what: str) -> bytes:
    """Secrets are stored as hashes, and hashes are bytes."""
    if not isinstance(value, bytes) or not value or len(value) > 64:
        raise InvalidRequest(f"{what} must be given as the bytes of its hash.")
    return value


def check_worker(value: object) -> str:
    return check_text(value, "worker", limit=KEY_CHARS)


def check_usage(usage: Usage) -> Usage:
    """Tokens are counted up, never down."""
    if min(usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens) < 0:
        raise InvalidRequest("A turn cannot have used fewer than 0 tokens.")
    return usage


def check_exported(exported: Exported) -> Exported:
    """Refuses an export that could not have been exported, and one in which a turn still runs or waits."""
    _check_type(exported, Exported, "The export")
    _check_type(exported.turns, tuple, "The list of turns in the export")
    _check_shape(exported.conversation, Conversation, "The conversation of the export")
    _check_shape(exported.files, tuple[File, ...], "The files of the export")
    for trace in exported.turns:
        _check_trace(trace)
    _check_distinct((trace.turn.id for trace in exported.turns), "turn")
    _check_distinct((trace.turn.ordinal for trace in exported.turns), "ordinal")
    _check_distinct((row.id for trace in exported.turns for row in trace.rows), "message")
    _check_distinct((file.id for file in exported.files), "file")
    if any(not trace.turn.is_settled for trace in exported.turns):
        raise InvalidRequest("A conversation with a turn that runs or waits cannot be imported. Let it end first.")
    return exported


def _check_trace(trace: TurnTrace) -> None:
    """Turn by turn, so that a long conversation is not too large as a whole."""
    _check_shape(trace, TurnTrace, "A turn of the export")
    check_rows(trace.rows)
    check_usage(trace.turn.usage)
    if any(row.turn_id != trace.turn.id for row in trace.rows):
        raise InvalidRequest("A row of the export stands under another turn than its own.")
    _check_distinct((row.turn_sequence for row in trace.rows), "turn_sequence")
    if [recorded.seq for recorded in trace.events] != list(range(1, len(trace.events) + 1)):
        raise InvalidRequest("The events of a turn are numbered 1, 2, 3 … in order.")


def _check_distinct(values: Iterable[object], what: str) -> None:
    seen = list(values)
    if len(set(seen)) != len(seen):
        raise InvalidRequest(f"The export holds the same {what} twice.")


def _check_shape(value: Value, kind: object, what: str) -> Value:
    """Write it as JSON and read it back as the type it should be."""
    check_json(value, what)
    try:
        msgspec.json.decode(msgspec.json.encode(value), type=kind)
    except msgspec.ValidationError as exc:
        raise InvalidRequest(f"{what} is malformed: {exc}.") from exc
    if isinstance(kind, type):
        _check_type(value, kind, what)
    return value


def _check_type(value: object, kind: type, what: str) -> None:
    if not isinstance(value, kind):
        raise InvalidRequest(f"{what} is malformed.")
