"""What the wires of other clients have in common: a stream that ends where a turn waits, and chats with foreign ids.

The AI SDK and AG-UI cut a turn into requests. A request ends when the turn waits for an approval or for a result of a
client tool, and the next request brings the answer. The turn is one and the same. It runs in the background, because
their clients break a connection off without meaning to stop the turn.

Decision: docs/decisions/1010
"""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Protocol, TypeVar, cast

import msgspec
from msgspec import Struct
from starlette.types import ASGIApp

from turnkeep.api.http.disconnects import ClientDisconnected, while_connected
from turnkeep.api.http.endpoints import ApiCall, known_id
from turnkeep.api.http.idempotency import hash_of, idempotency_key
from turnkeep.api.http.requests import is_announced_within, read_body, spooled_body
from turnkeep.api.native.turns import ANY_IMAGE, TURN_HEADER, check_attachments, check_rate, image_of, read_events
from turnkeep.api.native.waits import answer_of, check_approver, name_of
from turnkeep.engine import Options, Question
from turnkeep.errors import (
    AlreadyDecided,
    ConversationBusy,
    IdempotencyConflict,
    InvalidRequest,
    NotFound,
    TooLarge,
)
from turnkeep.fair_queue import in_daemon_thread, owner_of
from turnkeep.files.images import RASTER_TYPES
from turnkeep.files.multipart import FormFile
from turnkeep.ids import AgentId, CallId, ConversationId, FileId, TurnId
from turnkeep.model.conversations import Conversation
from turnkeep.model.messages import Message, PublicMessage
from turnkeep.model.turns import IfBusy, Turn
from turnkeep.model.waits import CallAnswer, WaitingCall
from turnkeep.model.waits import digest_of as digest_of_call
from turnkeep.store.commands import Claimed, NewConversation
from turnkeep.store.ports import TurnStore
from turnkeep.streaming.connection import Header
from turnkeep.streaming.follow import Take, follow
from turnkeep.streaming.frames import EventFrame, Frame
from turnkeep.streaming.hub import frames_of
from turnkeep.tools.schemas import check_all_declared
from turnkeep_client import wire
from turnkeep_client.wire.agents import ClientTool, ClientTools
from turnkeep_client.wire.blocks import Block, Image, JsonObject, Text
from turnkeep_client.wire.events import Approval, ClientCalls, Decided, Recorded

BODY_BYTES = 32 * 1024 * 1024
"""Their clients send the whole chat with each message, with the pictures in it."""
READ_BYTES = 32 * 1024 * 1024
"""A chat is answered as one document. It may have as many bytes as a client could send."""
MAX_VALUES = 1_000_000
"""Values in the JSON of a body. Texts and pictures are few values; millions of empty ones would take gigabytes."""
MAX_MESSAGES = 10_000
"""Messages in a body, and parts in one message."""
MESSAGE_KEY = "client_message_id"
"""Under this name the metadata of a turn has the id that the client gave to its question."""
QUESTION_KEY = "client_message_hash"
"""Under this name the metadata of an edited question has its hash: a repeated edit is known by it."""
STEERED = "steered"
"""The error of a turn whose words another turn has taken."""
MESSAGES_AT_ONCE = 100
MOST_MESSAGES = 1_000
"""How many messages of a chat, the newest, a client gets at once."""
TURNS_AT_ONCE = 8
"""How many turns of a chat are read at the same time."""
AGENTS_AT_ONCE = 100
INTERRUPT_SECONDS = 10
"""How long a client that attaches waits for the end of a turn that another one interrupts."""
NAME_CHARS = 200
REASON_CHARS = 2_000

_CONVERSATION_ID = re.compile(r"conv_[0-9a-f]{32}")
_TURN_ID = re.compile(r"turn_[0-9a-f]{32}")
_FILE_PATH = re.compile(r"/v1/files/(file_[0-9a-z]+)/content$")
_EXTENSIONS = {"jpeg": "jpg", "plain": "txt", "markdown": "md"}
"""Extensions that are not the second word of a type."""
_SURROGATES = re.compile(rb"(?<!\\)((?:\\\\)*)((?:\\u[dD][89a-fA-F][0-9a-fA-F]{2})+)")
"""Escapes of surrogates in JSON, one behind the other. Their first backslash is not escaped itself."""
_PAIR_OR_HALF = re.compile(rb"(\\u[dD][89abAB]..\\u[dD][c-fC-F]..)|\\u....")

Body = TypeVar("Body")
Folded = TypeVar("Folded")
Answered = TypeVar("Answered")


class WireQuery(Struct, frozen=True, kw_only=True):
    """`agent` is the id or the name of an agent."""

    agent: str | None = None
    model: str | None = None
    if_busy: IfBusy = "reject"


class PausingEncoder(Protocol):
    """An encoder that is told which event is the last one of its stream, when the turn waits."""

    pauses_at: int | None

    def encode(self, frame: Frame) -> bytes: ...


async def body_of(call: ApiCall[Any, Any], kind: type[Body]) -> Body:
    """The body as this type. Fields that are not known are passed over: clients add their own."""
    try:
        return await decoded_body(call, kind)
    except msgspec.ValidationError as exc:
        raise InvalidRequest(f"{exc}.") from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidRequest(f"The body is not valid JSON: {exc}.") from exc


async def decoded_body(call: ApiCall[Any, Any], kind: type[Body]) -> Body:
    """The body as this type. Raises what `msgspec` raises, and TooLarge or QueueFull.

    A body above the ordinary limit waits on the disk for a place, so that no user can fill the memory with them.
    """
    usual = call.runtime.settings.max_body_bytes
    if is_announced_within(call.headers, usual):
        return _decoded(await read_body(call.receive, call.headers, limit=usual), kind)
    async with spooled_body(call.receive, call.headers, limit=max(BODY_BYTES, usual)) as body:
        return await apart(call, lambda: _decoded(body.read(), kind))


async def apart(call: ApiCall[Any, Any], work: Callable[[], Answered]) -> Answered:
    """What `work` returns: reading something large, in a thread beside the event loop. Raises QueueFull."""
    async with call.runtime.large_bodies.place(owner_of(call.principal)):
        return await in_daemon_thread(work)


def _decoded(raw: bytes, kind: type[Body]) -> Body:
    if sum(map(raw.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise TooLarge(f"The body has over {MAX_VALUES:,} values. Send fewer, or attach a part of it as a file.")
    try:
        return msgspec.json.decode(raw or b"{}", type=kind)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        whole = _without_halves(raw)
        if whole == raw:
            raise
        return msgspec.json.decode(whole, type=kind)


def _without_halves(raw: bytes) -> bytes:
    """This JSON with U+FFFD in place of each half of a surrogate pair. JavaScript writes such halves where a text was
    cut inside of an emoji. A client sends its whole chat each time, so one that is refused would refuse all that
    follow."""

    def mended(found: re.Match[bytes]) -> bytes:
        return found[1] + _PAIR_OR_HALF.sub(lambda each: each[1] or rb"\ufffd", found[2])

    return _SURROGATES.sub(mended, raw)


class ReadLimit:
    """Refuses a chat that is too large to be answered as one document, while it is collected."""

    def __init__(self) -> None:
        self._left = READ_BYTES

    def add(self, *parts: Any) -> None:
        """Raises TooLarge."""
        self._left -= sum(len(msgspec.json.encode(part)) for part in parts)
        if self._left < 0:
            raise TooLarge(
                f"This chat has over {READ_BYTES:,} bytes. Read it in pages: GET /v1/conversations/{{id}}/messages."
            )


def check_count(what: str, many: Sequence[Any]) -> None:
    """Raises InvalidRequest for more messages, or parts of one, than are read."""
    if len(many) > MAX_MESSAGES:
        raise InvalidRequest(f"{what} has {len(many):,} entries; at most {MAX_MESSAGES:,} are read. Send fewer.")


def check_own_rate(call: ApiCall[Any, Any]) -> None:
    """Raises RateLimited over the rate of the key, for a request that claims no turn."""
    if call.over_limit is not None:
        raise call.over_limit


# Chats and their turns


async def chat_of(call: ApiCall[Any, Any], chat_id: str) -> Conversation | None:
    """The caller's conversation that the client knows under this id, or None. A conversation of another wire is found
    under its own id. Raises NotFound for such an id that the caller does not see."""
    if not 1 <= len(chat_id) <= NAME_CHARS:
        raise InvalidRequest(f"The id of a chat has 1 to {NAME_CHARS} characters.")
    if chat_id in {".", ".."}:
        raise InvalidRequest("The id of a chat is a part of an address, so it is not `.` or `..`.")
    found: Conversation | None = await call.runtime.store.conversation_of_host(call.principal, chat_id)
    if found is None and _CONVERSATION_ID.fullmatch(chat_id):
        found = await call.runtime.store.conversation(call.principal, ConversationId(chat_id))
    if found is not None:
        call.notes["conversation_id"] = found.id
    return found


async def chat_to_attach(call: ApiCall[Any, Any], chat_id: str) -> Conversation | None:
    """As `chat_of`, for a client that loads the chat or resumes its stream.

    A question that interrupts a turn waits for moments, until that turn has ended. Its client has shown it already. So
    this waits too: then the question is in the chat, and its stream is the one to resume. It waits while the client is
    connected, and for `INTERRUPT_SECONDS` at most. Raises Draining if this worker leaves meanwhile.
    """
    chat = await chat_of(call, chat_id)
    if chat is None or chat.running_turn_id is None:
        return chat
    store = call.runtime.store
    running = await store.turn(call.principal, chat.running_turn_id)
    if running.cancel_requested_at is None:
        return chat
    found = await store.conversation_with_queue(call.principal, chat.id)
    if found.queue and found.conversation.running_turn_id == running.id:
        with suppress(TimeoutError, ClientDisconnected):
            async with asyncio.timeout(INTERRUPT_SECONDS):
                await while_connected(call.receive, call.runtime.engine.wait(running.id, or_waiting=False))
    current: Conversation = await store.conversation(call.principal, chat.id)
    return current


async def agent_of(call: ApiCall[Any, WireQuery]) -> AgentId | None:
    """The agent that the query names by its id or its name. Raises NotFound."""
    named = call.query.agent
    if named is None:
        return None
    if named.startswith("agent_"):
        return AgentId(known_id(named, "agent"))
    cursor: str | None = None
    while True:
        page = await call.runtime.store.agents(call.principal, limit=AGENTS_AT_ONCE, cursor=cursor)
        for agent in page.data:
            if agent.spec.name == named:
                return agent.id
        cursor = page.next_cursor
        if cursor is None:
            raise NotFound(f"There is no agent called {named[:NAME_CHARS]!r}.")


async def turn_of_message(call: ApiCall[Any, Any], chat: Conversation, message_id: str) -> TurnId | None:
    """The turn of the visible branch whose question or answer the client knows under this id. Answers have the ids of
    their turns. Raises NotFound for a turn that the caller does not see."""
    if _TURN_ID.fullmatch(message_id):
        turn = await call.runtime.store.turn(call.principal, TurnId(message_id))
        return turn.id if turn.conversation_id == chat.id else None
    cursor: str | None = None
    while True:
        page = await call.runtime.store.transcript(
            call.principal, chat.id, order="desc", limit=MESSAGES_AT_ONCE, cursor=cursor
        )
        for message in page.data:
            if message_id in (message.id, message.metadata.get(MESSAGE_KEY)):
                return message.turn_id
        cursor = page.next_cursor
        if cursor is None:
            return None


async def latest_messages(
    call: ApiCall[Any, Any], chat: Conversation, *, cursor: str | None = None
) -> tuple[list[PublicMessage], str | None]:
    """The newest messages of the visible branch in their order, and the cursor of those before. Raises TooLarge."""
    found: list[PublicMessage] = []
    limit = ReadLimit()
    while len(found) < MOST_MESSAGES:
        page = await call.runtime.store.transcript(
            call.principal, chat.id, order="desc", limit=MESSAGES_AT_ONCE, cursor=cursor
        )
        found += page.data
        limit.add(*(message for message in page.data if message.role == "user"))
        cursor = page.next_cursor
        if cursor is None:
            break
    found.reverse()
    return found, cursor


async def folded_turns(
    call: ApiCall[Any, Any], turn_ids: Iterable[TurnId], fold: Callable[[TurnId, list[Frame]], Folded]
) -> dict[TurnId, Folded]:
    """What `fold` makes of the frames of each of these turns. Raises TooLarge."""
    wanted = list(dict.fromkeys(turn_ids))
    limit = ReadLimit()
    made: dict[TurnId, Folded] = {}
    for start in range(0, len(wanted), TURNS_AT_ONCE):
        few = wanted[start : start + TURNS_AT_ONCE]
        every = await asyncio.gather(*(read_events(call.runtime.store, turn_id) for turn_id in few))
        for turn_id, events in zip(few, every, strict=True):
            made[turn_id] = fold(turn_id, list(frames_of(events)))
            limit.add(made[turn_id])
            await asyncio.sleep(0)  # a turn may be long, and others wait
    return made


class Asked(Struct, frozen=True, kw_only=True):
    """A question of a foreign client: its words, the ids of its files, and files that come with it."""

    chat_id: str
    message_id: str
    blocks: tuple[Block, ...]
    file_ids: tuple[FileId, ...] = ()
    new_files: tuple["SentFile", ...] = ()
    tools: tuple[ClientTool, ...] = ()


class SentFile(Struct, frozen=True):
    """A file inside a message."""

    name: str
    media_type: str
    data: bytes
    sha256: str

    @classmethod
    def named(cls, name: object, media_type: str, data: bytes) -> "SentFile":
        """With a name that its type suggests, if the client gave none. Takes a moment for a large file: call it in a
        thread."""
        digest = hashlib.sha256(data).hexdigest()
        if isinstance(name, str) and name.strip():
            return cls(name, media_type, data, digest)
        word = re.sub("[^a-z0-9]", "", media_type.partition("/")[2].partition("+")[0].lower())
        return cls(f"file.{_EXTENSIONS.get(word, word or 'bin')}", media_type, data, digest)


def text_of(part: JsonObject, place: str) -> str:
    """The words of a text part. Raises InvalidRequest if it has none."""
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequest(f"`{place}.text` is not a text.")
    return text


def file_id_in(url: str) -> FileId | None:
    """The file that an address of this server names; None for another address."""
    found = _FILE_PATH.search(url)
    return None if found is None else FileId(known_id(found[1], "file"))


async def picture_at(call: ApiCall[Any, Any], url: str, media_type: str, place: str) -> Image:
    """The picture at an address that is not of this server. Raises InvalidRequest for anything else there."""
    if media_type not in {*RASTER_TYPES, ANY_IMAGE, ""}:
        raise InvalidRequest(
            f"`{place}` has the address of a file that is no picture ({media_type[:NAME_CHARS]}). Send the file "
            "itself, or upload it (POST /v1/files) and give the address of its content."
        )
    picture = wire.ImageBlock(media_type=media_type or ANY_IMAGE, url=url)
    return await image_of(picture, call.runtime, owner=owner_of(call.principal), place=place)


def client_tools(tools: Iterable[tuple[str, str, JsonObject]]) -> tuple[ClientTool, ...]:
    """Tools that the caller runs, by name, description and schema. Raises InvalidRequest."""
    given = [
        {"type": "client", "name": name, "description": description, "input_schema": schema}
        for name, description, schema in tools
    ]
    try:
        return tuple(msgspec.convert(given, type=ClientTools))
    except msgspec.ValidationError as exc:
        raise InvalidRequest(f"`tools` cannot be used: {exc}.") from exc


async def options_of(call: ApiCall[Any, WireQuery], asked: Asked, *, is_repeatable: bool = True) -> Options:
    """The options of its turn. The message's id is the idempotency key, unless the request has one of its own. Without
    `is_repeatable` the same message may be asked again."""
    key = idempotency_key(call)
    if key is None and is_repeatable and asked.message_id:
        key = "message-" + hashlib.sha256(f"{call.target}\n{asked.chat_id}\n{asked.message_id}".encode()).hexdigest()
    options = Options(
        model=call.query.model,
        agent_id=await agent_of(call),
        if_busy=call.query.if_busy,
        background=True,
        source=call.identity.source,
        metadata={MESSAGE_KEY: asked.message_id} if asked.message_id else {},
        client_tools=tuple(msgspec.to_builtins(tool) for tool in asked.tools),
        idempotency_key=key,
        request_hash=None if key is None else question_hash(call.target, asked),
    )
    await check_rate(call, options)
    if asked.tools:
        await asyncio.to_thread(check_all_declared, asked.tools)
    return options


async def is_asked(call: ApiCall[Any, Any], turn_id: TurnId, asked: Asked) -> bool:
    """Whether this is the question of that turn already, with the same files."""
    question = await _question_row(call, turn_id)
    if question is None:
        return False
    if question.metadata.get(QUESTION_KEY) == digest_of(asked):
        return True
    file_ids = tuple(ref.file_id for ref in question.attachments)
    return not asked.new_files and (question.blocks, file_ids) == (asked.blocks, asked.file_ids)


async def has_other_words(call: ApiCall[Any, Any], turn_id: TurnId, asked: Asked) -> bool:
    """Whether the question of that turn has other words. A client that has loaded the chat has no more than its words
    and files, so pictures in the message are not compared."""
    question = await _question_row(call, turn_id)
    return question is not None and _words(question.blocks) != _words(asked.blocks)


async def _question_row(call: ApiCall[Any, Any], turn_id: TurnId) -> Message | None:
    rows = await call.runtime.store.turn_rows(turn_id)
    return next((row for row in rows if row.role == "user" and not row.internal), None)


def _words(blocks: Iterable[Block]) -> list[str]:
    return [block.text for block in blocks if isinstance(block, Text) and block.text.strip()]


def digest_of(asked: Asked) -> str:
    return question_hash("", asked)


def question_hash(target: str, asked: Asked) -> str:
    """Tells one question from another."""
    files = [[file.name, file.sha256] for file in asked.new_files]
    said = {"chat": asked.chat_id, "blocks": msgspec.to_builtins(asked.blocks), "file_ids": asked.file_ids}
    return hash_of(target, {**said, "files": files})


async def ask(
    call: ApiCall[Any, WireQuery], asked: Asked, chat: Conversation | None, *, beside: TurnId | None = None
) -> Claimed:
    """Claim a turn for this question, in `chat`, which is made if it is None. `beside`: instead of that turn. A chat
    that waits for an answer goes on with the new question; the open calls count as not answered."""
    options = await options_of(call, asked, is_repeatable=beside is None)
    if beside is not None:
        options = msgspec.structs.replace(options, metadata={**options.metadata, QUESTION_KEY: digest_of(asked)})
    named = check_attachments(list(dict.fromkeys(asked.file_ids)), call.runtime.settings, beside=len(asked.new_files))
    try:
        return await _claim_with_files(call, asked, chat, options, named, beside)
    except IdempotencyConflict as exc:
        if idempotency_key(call) is not None:
            raise
        detail = (
            f"The message {asked.message_id[:NAME_CHARS]!r} was already sent with other words or files. Give each "
            "message an id of its own."
        )
        raise IdempotencyConflict(exc.turn_id, detail) from exc


async def _claim_with_files(
    call: ApiCall[Any, WireQuery],
    asked: Asked,
    chat: Conversation | None,
    options: Options,
    named: tuple[FileId, ...],
    beside: TurnId | None,
) -> Claimed:
    """Files that come with the message are stored first, and discarded if they are not needed."""
    engine, bag = call.runtime.engine, call.runtime.bag
    if asked.new_files and await engine.is_repeat(call.principal, options):
        asked = msgspec.structs.replace(asked, new_files=())
    uploaded: tuple[FileId, ...] = ()
    if asked.new_files:
        call.principal.check_feature("files")
        uploaded = tuple(file.id for file in await bag.receive(call.principal, None, form_of(asked.new_files)))
    is_kept = False
    try:
        claimed = await _claim(call, asked, chat, options, (*named, *uploaded), beside)
        is_kept = claimed.is_new
        return await _seen(call, claimed)
    finally:
        if uploaded and not is_kept:
            await bag.discard(uploaded)


async def _seen(call: ApiCall[Any, Any], claimed: Claimed) -> Claimed:
    """Raises NotFound for a repeated request whose turn the caller does not see any more."""
    if not claimed.is_new:
        await call.runtime.store.turn(call.principal, claimed.turn.id)
    return claimed


async def _claim(
    call: ApiCall[Any, WireQuery],
    asked: Asked,
    chat: Conversation | None,
    options: Options,
    attachments: tuple[FileId, ...],
    beside: TurnId | None,
) -> Claimed:
    engine = call.runtime.engine

    async def claim(options: Options) -> Claimed:
        if beside is not None:
            return await engine.edit(call.principal, beside, asked.blocks, options, attachment_ids=attachments)
        return await engine.ask(_question(call, asked, chat, options, attachments))

    return await _unless_waiting(claim, options)


async def _unless_waiting(claim: Callable[[Options], Awaitable[Claimed]], options: Options) -> Claimed:
    """Claim a turn. If the chat waits for an answer, the new turn goes first: an approval that is never given must not
    block a chat."""
    try:
        return await claim(options)
    except ConversationBusy as busy:
        if busy.waiting_for is None or options.if_busy != "reject":
            raise
        return await claim(msgspec.structs.replace(options, if_busy="interrupt"))


def _question(
    call: ApiCall[Any, WireQuery],
    asked: Asked,
    chat: Conversation | None,
    options: Options,
    attachments: tuple[FileId, ...],
) -> Question:
    """Agent and model of the first question are those of the chat; later they hold for the turn."""
    question = Question(
        principal=call.principal,
        message=asked.blocks,
        attachment_ids=attachments,
        options=options,
        workspace=call.identity.workspace,
    )
    if chat is not None and chat.id == asked.chat_id:
        return msgspec.structs.replace(question, conversation_id=chat.id)
    new = NewConversation(external_id=asked.chat_id, agent_id=options.agent_id, model=options.model)
    options = msgspec.structs.replace(options, agent_id=None, model=None)
    return msgspec.structs.replace(question, new=new, options=options)


async def regenerate(call: ApiCall[Any, WireQuery], asked: Asked, turn_id: TurnId) -> Claimed:
    """Ask the question of this turn again."""
    options = await options_of(call, asked, is_repeatable=False)
    engine = call.runtime.engine
    claimed = await _unless_waiting(lambda options: engine.regenerate(call.principal, turn_id, options), options)
    return await _seen(call, claimed)


async def form_of(files: Iterable[SentFile]) -> AsyncIterator[FormFile]:
    for file in files:
        yield FormFile(file.name, file.media_type, _once(file.data))


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


# Answers to calls for which a turn waits


Answer = wire.Decision | CallAnswer
"""A decision about a call, or the result of a client tool."""


async def answer_calls(call: ApiCall[Any, Any], turn: Turn, answers: Mapping[str, Answer]) -> Turn:
    """Give these answers to the open calls of the turn. The same decision again changes nothing, and of two results the
    first one holds. Raises what `checked_answers` raises."""
    decisions, results = await checked_answers(call, turn, answers)
    if decisions:
        turn = await call.runtime.engine.answer_calls(call.principal, turn.id, decisions, reason="approval")
    if results:
        turn = await call.runtime.engine.answer_calls(call.principal, turn.id, results, reason="client_tools")
    return turn


async def checked_answers(
    call: ApiCall[Any, Any], turn: Turn, answers: Mapping[str, Answer]
) -> tuple[dict[CallId, CallAnswer], dict[CallId, CallAnswer]]:
    """The decisions and the results for open calls of the turn. Raises AlreadyDecided for another decision than the one
    that holds, Forbidden if the caller may not decide about calls of this agent, InvalidRequest for arguments that do
    not fit."""
    decisions: dict[CallId, CallAnswer] = {}
    results: dict[CallId, CallAnswer] = {}
    principal = call.principal
    principal.check_agent(turn.snapshot.agent_id)
    for call_id, answer in answers.items():
        waited = None if turn.wait is None else turn.wait.call(call_id)
        if waited is None:
            continue
        if isinstance(answer, wire.Decision) and waited.reason == "approval":
            check_decision(turn, waited, answer)
            if is_open(turn, waited):
                check_approver(principal, turn)
                decisions[waited.id] = await answer_of(turn, answer, principal)
        elif isinstance(answer, CallAnswer) and waited.reason == "client_tools" and is_open(turn, waited):
            results[waited.id] = msgspec.structs.replace(answer, by=name_of(principal))
    return decisions, results


def is_open(turn: Turn, waited: WaitingCall) -> bool:
    """Whether the turn waits for an answer to this call."""
    return turn.status == "waiting" and waited.answer is None


def check_decision(turn: Turn, waited: WaitingCall, decision: wire.Decision) -> None:
    """Raises AlreadyDecided for a decision that comes too late and is another than the one that holds. A call that was
    never answered counts as denied. Their clients repeat a decision without the arguments that were allowed with it."""
    if is_open(turn, waited):
        return
    held = waited.answer
    if held is None or held.verdict != "allow":
        holds, is_same = "deny", decision.decision == "deny"
    else:
        is_same_call = decision.args is None or digest_of_call(waited.name, decision.args) == held.digest
        holds, is_same = "allow", decision.decision == "allow" and is_same_call
    if is_same:
        return
    if held is None or held.verdict == "none":
        said = "was not answered in time, which counts as denied"
    else:
        said = f"was decided already ({holds}, by {held.by})"
    raise AlreadyDecided(f"Call {waited.id} {said}. The first answer holds.", turn_id=turn.id, decision=holds)


def decision_of(call_id: str, *, is_allowed: bool, reason: object = None, args: object = None) -> wire.Decision:
    """A decision as clients of other wires give it. Arguments belong to a call that is allowed."""
    return wire.Decision(
        call_id=call_id,
        decision="allow" if is_allowed else "deny",
        reason=reason[:REASON_CHARS] if isinstance(reason, str) else None,
        args=args if is_allowed and isinstance(args, dict) else None,
    )


def last_wait(events: Sequence[Recorded], call_ids: Iterable[str]) -> int:
    """The number of the last event with which the turn began to wait for any of these calls; 0 if there is none."""
    known, found = set(call_ids), 0
    for recorded in events:
        event = recorded.event
        if isinstance(event, Approval | ClientCalls) and (
            recorded.seq == found + 1 or any(call.id in known for call in event.calls)
        ):
            found = recorded.seq
    return found


# Streams


def stream(call: ApiCall[Any, Any], turn: Turn, encoder: PausingEncoder, *, headers: Sequence[Header] = ()) -> ASGIApp:
    """The stream of the turn from its beginning, to its end or to where it waits.

    When this worker leaves, the connection is cut. These clients take a clean end for the end of the turn.
    """
    runtime = call.runtime
    call.notes["turn_id"] = turn.id

    async def batches(take: Take) -> AsyncIterator[Sequence[Frame]]:
        found = follow(runtime.store, runtime.hub, turn.id, take=take)
        async with aclosing(cast(Any, found)) as every:
            async for batch in every:
                last = batch[-1]
                if await _begins_wait(runtime.store, turn.id, last):
                    encoder.pauses_at = last.seq
                    yield batch
                    return
                yield batch

    response = runtime.streams.respond(
        batches,
        encoder,
        attach=lambda: runtime.engine.attach(turn.id),
        runs_here=lambda: runtime.engine.runs(turn.id),
        headers=((TURN_HEADER.encode(), turn.id.encode()), *headers),
        resumes=False,
    )
    return cast(ASGIApp, response)


async def _begins_wait(store: TurnStore, turn_id: TurnId, frame: Frame) -> bool:
    """Whether the turn waits now, with nothing after this frame. It may have gone on meanwhile."""
    if not isinstance(frame, EventFrame) or not isinstance(frame.recorded.event, Approval | ClientCalls | Decided):
        return False
    turn = await store.claimed_turn(turn_id)
    return turn.status == "waiting" and turn.last_seq == frame.seq
