"""Input checks, once, in front of either database: a clear error before anything is written.

Values come from Python code that may be wrong, so they are checked whole: types, sizes, ids of the right kind, and
text that every database can keep (no NUL, no lone surrogates).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from turnkeep.errors import Forbidden, InvalidRequest, TooLarge
from turnkeep.ids import CallId, ConversationId, TurnId, check_id
from turnkeep.model.agents import AgentSpec
from turnkeep.model.conversations import Conversation, GivenFields
from turnkeep.model.files import MEDIA_TYPE, File, NewFile
from turnkeep.model.messages import Message
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Held
from turnkeep.model.waits import CallAnswer, bytes_of
from turnkeep.store.commands import (
    Appended,
    Claim,
    ConversationChange,
    ConversationFilter,
    Exported,
    NewConversation,
    Settlement,
    TokenBinding,
    TurnTrace,
)
from turnkeep_client.wire.blocks import JsonObject, Usage
from turnkeep_client.wire.events import Failure, LogLine, Result, TurnEvent

MAX_BYTES = 4 * 1024 * 1024
"""Maximum size of the JSON of one write. A tool's result is kept up to 1 MiB, a request body is 1 MiB by default."""
RESULT_BYTES = 1024 * 1024
"""Maximum size of the JSON of one result of a client tool, as of any tool's."""
NAME_CHARS = 200
FOLDER_CHARS = 100
INSTRUCTIONS_CHARS = 10_000
METADATA_BYTES = 16 * 1024
"""Maximum size of the JSON of a conversation's metadata. An import keeps what it has: only service keys import."""
KEY_CHARS = 255
STORAGE_KEY_CHARS = 1_024
AFTER_ALL_FILES = "file_g"
"""Sorts after every id of a file."""
MAX_PAGE = 100
LATEST_MS = 2**53
"""Later than any time. JSON keeps numbers up to this one exact."""

Value = TypeVar("Value")

_WIRE_NAMES = {"blocks": "message", "idempotency_key": "Idempotency-Key"}
"""What callers call a field that has another name inside."""

_encoder = msgspec.json.Encoder()
_claim = msgspec.json.Decoder(Claim)
_rows = msgspec.json.Decoder(tuple[Message, ...])
_events = msgspec.json.Decoder(tuple[TurnEvent, ...])
_logs = msgspec.json.Decoder(tuple[LogLine, ...])
_settlement = msgspec.json.Decoder(Settlement)
_appended = msgspec.json.Decoder(Appended)
_answers = msgspec.json.Decoder(dict[str, CallAnswer])
_any = msgspec.json.Decoder()


def check_own(held: Held, rows: Sequence[Message]) -> None:
    """Refuse rows that name another turn than their holder's."""
    if any(row.turn_id != held.turn_id or row.conversation_id != held.conversation_id for row in rows):
        raise InvalidRequest(f"A row belongs to another turn than {held.turn_id}.")


def check_claim(claim: Claim) -> int:
    """Refuses a claim that no database could keep, or that says nothing; returns how many bytes it takes."""
    size = _check(claim, _claim, "The message")
    check_id(claim.turn_id, "turn")
    _check_optional_ids(
        (claim.conversation_id, "conv"), (claim.beside, "turn"), *((file, "file") for file in claim.attachment_ids)
    )
    if claim.beside is not None and claim.conversation_id is None:
        raise InvalidRequest("A turn beside another one needs the conversation of that turn.")
    if not claim.blocks and not claim.attachment_ids:
        raise InvalidRequest("The message is empty. Send a text or an attachment.")
    if claim.drop_queue and claim.if_busy != "interrupt":
        raise InvalidRequest("`drop_queue` belongs to `if_busy`: `interrupt`. Send both, or leave it out.")
    if len(set(claim.attachment_ids)) != len(claim.attachment_ids):
        raise InvalidRequest("The same attachment is named twice.")
    if claim.idempotency_key is not None:
        check_text(claim.idempotency_key, "Idempotency-Key", limit=KEY_CHARS)
        if claim.request_hash is None:
            raise InvalidRequest("An idempotency key needs the hash of the request it stands for.")
    if claim.lease_seconds <= 0 or claim.queue_limit < 0:
        raise InvalidRequest("A lease must last some time, and a queue cannot be shorter than nothing.")
    _check_listed(claim.new)
    return size


def check_rows(rows: Sequence[Message]) -> None:
    _check(rows, _rows, "The rows")
    if any(row.turn_sequence < 0 for row in rows):
        raise InvalidRequest("A row cannot have a negative turn_sequence.")


def check_events(events: Sequence[TurnEvent]) -> None:
    """Events of a running turn."""
    check_not_terminal(events)
    _check(events, _events, "The events")


def check_not_terminal(events: Sequence[TurnEvent]) -> None:
    """The terminal event belongs to `settle`, once."""
    if any(isinstance(event, Result | Failure) for event in events):
        raise InvalidRequest("A terminal event is written by settle, not by record.")


def check_logs(logs: Sequence[LogLine]) -> None:
    _check(logs, _logs, "The logs")


def check_record(held: Held, rows: Sequence[Message], events: Sequence[TurnEvent], logs: Sequence[LogLine]) -> None:
    """Everything that `record` is given."""
    if rows:
        check_rows(rows)
        check_own(held, rows)
    if events:
        check_events(events)
    if logs:
        check_logs(logs)


def check_answers(answers: Mapping[CallId, CallAnswer]) -> None:
    """Answers to calls that wait."""
    if not answers:
        raise InvalidRequest("There is no answer in the request.")
    _check(dict(answers), _answers, "The answers")
    for call_id, answer in answers.items():
        if (size := bytes_of(answer.value)) > RESULT_BYTES:
            raise TooLarge(
                f"The result of call {call_id} takes {size:,} bytes; at most {RESULT_BYTES:,} are allowed. Send a "
                "shorter one, or upload a file and send its name."
            )


def check_settlement(held: Held, settlement: Settlement) -> None:
    """Everything that `settle` is given."""
    _check(settlement, _settlement, "The settlement")
    check_not_terminal(settlement.events)
    if isinstance(settlement.terminal, Result) != (settlement.status == "succeeded"):
        raise InvalidRequest("A turn that succeeded ends with a result, any other with an error.")
    final = settlement.final
    if isinstance(settlement.terminal, Result) and (final is None or final.display is None):
        raise InvalidRequest("A result needs the final row, with its display.")
    if final is not None and (final.internal or final.role != "assistant"):
        raise InvalidRequest("The final row is the assistant's visible one.")
    check_usage(settlement.usage)
    check_own(held, settlement.all_rows)


def check_append(conversation_id: ConversationId, turn: Appended) -> None:
    """Everything that `append` is given."""
    check_id(conversation_id, "conv")
    _check(turn, _appended, "The turn")
    check_id(turn.turn_id, "turn")
    if not turn.rows:
        raise InvalidRequest("A turn needs at least one row.")
    sequences = [row.turn_sequence for row in turn.rows]
    if sequences != list(range(len(sequences))):
        raise InvalidRequest("The rows of a turn are numbered 0, 1, 2 … in order.")
    check_usage(turn.usage)


def check_notes(notes: JsonObject) -> None:
    """What is added to the metadata of a turn."""
    _check_shape(notes, JsonObject, "The notes")


def check_adopt(worker: object, turn_id: TurnId | None) -> None:
    """Everything that `adopt` is given."""
    check_worker(worker)
    if turn_id is not None:
        check_id(turn_id, "turn")


def check_new_conversation(new: NewConversation) -> NewConversation:
    _check_shape(new, NewConversation, "The conversation")
    _check_listed(new)
    return new


def check_external_id(external_id: str) -> str:
    return check_text(external_id, "external_id", limit=NAME_CHARS)


def check_folder(name: str) -> str:
    """The name of a folder: one line of visible text, as lists show it."""
    check_text(name, "folder", limit=FOLDER_CHARS)
    if name != name.strip() or name.splitlines() != [name]:
        raise InvalidRequest("The name of a folder is one line of text, without spaces at its ends.")
    return name


def check_title(title: str | None) -> None:
    if title is not None:
        check_text(title, "title", limit=NAME_CHARS)


def check_filter(only: ConversationFilter) -> None:
    """What a list of conversations is narrowed by."""
    _check_shape(only, ConversationFilter, "The filter")
    if only.external_id is not None:
        check_external_id(only.external_id)
    _check_optional_ids((only.agent_id, "agent"))
    if only.since is not None and not 0 <= only.since <= LATEST_MS:
        raise InvalidRequest("`since` must be a time, in milliseconds since 1970.")
    if only.folder is not None:
        check_folder(only.folder)


def check_change(change: ConversationChange) -> ConversationChange:
    """All but the turns that are appended, which `check_append` reads."""
    _check_shape(structs.replace(change, appended=()), ConversationChange, "The change")
    check_ids(change.attached, "file")
    _check_listed(change)
    return change


def _check_listed(given: NewConversation | ConversationChange) -> None:
    """What every list of conversations repeats is short."""
    if isinstance(given, NewConversation) and given.external_id is not None:
        check_external_id(given.external_id)
    if given.title is not None:
        check_text(given.title, "title", limit=NAME_CHARS)
    if given.folder is not None:
        check_folder(given.folder)
    _check_behaviour(given)
    size = len(_encoder.encode(given.metadata)) if given.metadata else 0
    if size > METADATA_BYTES:
        raise TooLarge(
            f"The metadata of a conversation takes {size:,} bytes; at most {METADATA_BYTES:,} are allowed. Keep the "
            "rest in a database of your own, or attach it as a file."
        )


def _check_behaviour(given: GivenFields | ConversationChange) -> None:
    """What the model is told in every turn of a conversation."""
    if given.instructions is not None:
        check_text(given.instructions, "instructions", limit=INSTRUCTIONS_CHARS, allow_empty=True)
    if given.temperature is not None and not 0 <= given.temperature <= 2:
        raise InvalidRequest("temperature must be a number from 0 to 2.")


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
    if exported.conversation.title is not None:
        check_text(exported.conversation.title, "title", limit=NAME_CHARS, allow_empty=True)
    if exported.conversation.external_id is not None:
        check_external_id(exported.conversation.external_id)
    if exported.conversation.folder is not None:
        check_folder(exported.conversation.folder)
    _check_behaviour(exported.conversation)
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


def check_new_files(new: Sequence[NewFile]) -> None:
    for each in new:
        check_id(each.id, "file")
        if each.conversation_id is not None:
            check_id(each.conversation_id, "conv")
        if each.source not in {"user", "sandbox"}:
            raise InvalidRequest("source must be user or sandbox.")
        if each.is_saved and each.conversation_id is not None:
            raise InvalidRequest("A file is in a bag or among the workspace's Files, not both.")
        check_text(each.name, "name", limit=KEY_CHARS)
        check_media_type(each.mime_type)
        check_text(each.storage_key, "storage_key", limit=STORAGE_KEY_CHARS)
        check_bytes(each.size, each.sha256, each.crc32)


def check_completion(
    size: object, sha256: object, mime_type: object | None, storage_key: object | None, crc32: object | None
) -> None:
    check_bytes(size, sha256, crc32)
    if mime_type is not None:
        check_media_type(mime_type)
    if storage_key is not None:
        check_text(storage_key, "storage_key", limit=STORAGE_KEY_CHARS)


def check_media_type(mime_type: object) -> None:
    if not isinstance(mime_type, str) or len(mime_type) > KEY_CHARS or not MEDIA_TYPE.fullmatch(mime_type):
        raise InvalidRequest("mime_type must be type/subtype, such as text/plain.")


def check_bytes(size: object, sha256: object, crc32: object | None = None) -> None:
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 2**62:
        raise InvalidRequest("size must be a whole number of bytes.")
    if sha256 is not None:
        check_text(sha256, "sha256", limit=64)
    if crc32 is not None and (not isinstance(crc32, int) or isinstance(crc32, bool) or not 0 <= crc32 < 2**32):
        raise InvalidRequest("crc32 must be a whole number of 32 bits.")


def check_text(value: object, field: str, *, limit: int, allow_empty: bool = False) -> str:
    """The text itself, if it can be kept in a column of its own."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{field} must be text.")
    if not value.strip() and not allow_empty:
        raise InvalidRequest(f"{field} must not be empty.")
    if len(value) > limit:
        raise TooLarge(f"{field} has {len(value):,} characters; at most {limit:,} are allowed.")
    if "\0" in value:
        raise InvalidRequest(f"{field} holds a NUL character, which cannot be stored. Remove it.")
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        raise InvalidRequest(f"{field} holds half of a surrogate pair, which is no character. Remove it.") from exc
    return value


def check_json(value: Value, field: str) -> Value:
    """The value itself, if it is JSON that can be kept."""
    _check(value, _any, field)
    return value


def check_limit(limit: object) -> int:
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MAX_PAGE:
        raise InvalidRequest(f"limit must be a whole number from 1 to {MAX_PAGE}.")
    return limit


def check_ids(values: Iterable[object], prefix: str) -> None:
    for value in values:
        check_id(value, prefix)


def _check_optional_ids(*pairs: tuple[object, str]) -> None:
    for value, prefix in pairs:
        if value is not None:
            check_id(value, prefix)


def _check(value: object, decoder: "msgspec.json.Decoder[Any]", what: str) -> int:
    """Encode and read back as the type it claims to be: one pass each, in C. Returns the size of the JSON."""
    try:
        raw = _encoder.encode(value)
    except UnicodeEncodeError as exc:
        raise InvalidRequest(f"{what} holds half of a surrogate pair, which is no character. Remove it.") from exc
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise InvalidRequest(f"{what} cannot be written as JSON: {exc}.") from exc
    if len(raw) > MAX_BYTES:
        raise TooLarge(f"{what} takes {len(raw):,} bytes; at most {MAX_BYTES:,} are allowed. Attach it as a file.")
    # To look for one character first is quicker, and many texts have no escape at all.
    if b"\\" in raw and b"\\u0000" in raw and _holds_nul(raw):
        raise InvalidRequest(f"{_nul_field(value) or what} holds a NUL character, which cannot be stored. Remove it.")
    try:
        decoder.decode(raw)
    except (msgspec.ValidationError, RecursionError) as exc:
        raise InvalidRequest(f"{what} is malformed: {exc}.") from exc
    return len(raw)


def _nul_field(value: object) -> str | None:
    """The field with the NUL in it, as callers know it; the innermost one that has a name of its own."""
    if not isinstance(value, msgspec.Struct):
        return None
    for field in value.__struct_fields__:
        inner = getattr(value, field)
        if _holds_nul(_encoder.encode(inner)):
            return _nul_field(inner) or f"`{_WIRE_NAMES.get(field, field)}`"
    return None


def _holds_nul(raw: bytes) -> bool:
    """Whether an escape of NUL is really one, and not the text `\\u0000` after an escaped backslash."""
    place = raw.find(b"\\u0000")
    while place >= 0:
        backslashes = 1
        while raw[place - backslashes : place - backslashes + 1] == b"\\":
            backslashes += 1
        if backslashes % 2:
            return True
        place = raw.find(b"\\u0000", place + 6)
    return False


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
    if sum(isinstance(recorded.event, Result | Failure) for recorded in trace.events) > 1:
        raise InvalidRequest("A turn of the export ends twice.")


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


def check_service(principal: Principal) -> None:
    """Internal rows are for service keys of the whole org alone."""
    if not principal.is_org_wide:
        raise Forbidden("Only a service key of the whole org may see what is internal.")
