"""Small makers for tests of the store: who asks, what is asked, and what a turn leaves behind."""

import secrets
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct, structs

from tests.store.databases import Contents, Database
from turnkeep.ids import (
    AgentId,
    CallId,
    ConversationId,
    FileId,
    MessageId,
    OrgId,
    TurnId,
    new_call_id,
    new_file_id,
    new_key_id,
    new_message_id,
    new_turn_id,
)
from turnkeep.model.agents import Agent, AgentSpec
from turnkeep.model.conversations import Conversation
from turnkeep.model.files import File, NewFile
from turnkeep.model.messages import Message, PublicMessage
from turnkeep.model.principals import ApiKey, Member, Org, Principal, Workspace
from turnkeep.model.turns import FinalStatus, Held, Turn, TurnError
from turnkeep.store.commands import Appended, Claim, Claimed, NewConversation, Page, Settled, Settlement
from turnkeep.store.ports import Store
from turnkeep_client.wire.blocks import Block, Part, Text, TextPart, ToolResult, ToolUse, Usage
from turnkeep_client.wire.display import fold
from turnkeep_client.wire.events import Failure, Recorded, Result, Step, ToolCall, ToolCalls, TurnEvent

LEASE_SECONDS = 30.0
WORKER = "worker-1"
SOME_USAGE = Usage(input_tokens=10, output_tokens=5)
NO_USAGE = Usage()


class Tenant(Struct, frozen=True, kw_only=True):
    """An org with its default workspace, two users, and a service key that sees the whole workspace."""

    org: Org
    workspace: Workspace
    ann: Principal
    bob: Principal
    service: Principal


async def a_tenant(store: Store, name: str = "Acme") -> Tenant:
    org, workspace = await store.create_org(name)
    key = a_key(org)
    await store.add_key(key, secrets.token_bytes(32))
    return Tenant(
        org=org,
        workspace=workspace,
        ann=await a_user(store, workspace, "ann"),
        bob=await a_user(store, workspace, "bob"),
        service=Principal(org_id=org.id, workspace_id=workspace.id, user_id=None, role="service", key_id=key.id),
    )


async def a_user(store: Store, workspace: Workspace, external_id: str) -> Principal:
    member = await store.ensure_member(workspace.org_id, workspace.id, external_id)
    return Principal(org_id=workspace.org_id, workspace_id=workspace.id, user_id=member.id, role=member.role)


def a_key(org: Org, **fields: Any) -> ApiKey:
    values: dict[str, Any] = {
        "id": new_key_id(),
        "org_id": org.id,
        "workspace_id": None,
        "name": "backend",
        "monthly_message_limit": None,
        "requests_per_minute": None,
        "allowed_tools": None,
        "created_at": 1,
        "revoked_at": None,
    }
    return ApiKey(**values | fields)


async def save_workspace(store: Store, workspace: Workspace) -> Workspace:
    """Store this value, whatever is stored."""
    return await store.change_workspace(workspace.org_id, workspace.id, lambda _: workspace)


async def save_member(store: Store, org_id: OrgId, member: Member) -> Member:
    return await store.change_member(org_id, member.workspace_id, member.id, lambda _: member)


async def save_agent(store: Store, by: Principal, agent_id: AgentId, spec: AgentSpec) -> Agent:
    return await store.change_agent(by, agent_id, lambda _: spec)


async def a_conversation(store: Store, by: Principal, **fields: Any) -> Conversation:
    return await store.create_conversation(by, NewConversation(**fields))


def a_claim(by: Principal, text: str = "Hello", **fields: Any) -> Claim:
    values: dict[str, Any] = {
        "principal": by,
        "turn_id": new_turn_id(),
        "worker": WORKER,
        "lease_seconds": LEASE_SECONDS,
        "blocks": (Text(text=text),),
    }
    return Claim(**values | fields)


async def claim(store: Store, by: Principal, text: str = "Hello", **fields: Any) -> Claimed:
    return await store.claim(a_claim(by, text, **fields))


async def begin(store: Store, by: Principal, text: str = "Hello", **fields: Any) -> Held:
    """A turn that runs, held by `WORKER`."""
    return held_of(await claim(store, by, text, **fields))


async def wait_in_queue(
    store: Store, by: Principal, conversation_id: ConversationId, text: str = "Next", **fields: Any
) -> Turn:
    claimed = await claim(store, by, text, conversation_id=conversation_id, if_busy="enqueue", **fields)
    assert claimed.turn.status == "queued"
    return claimed.turn


def held_of(claimed: Claimed) -> Held:
    assert claimed.held is not None
    return claimed.held


async def finish(store: Store, by: Principal, question: str = "Hello", answer: str = "Hi!", **fields: Any) -> Turn:
    """A whole turn of one question and one answer."""
    held = await begin(store, by, question, **fields)
    return (await store.settle(held, after=1, settlement=answered(held, answer))).turn


async def finish_with_tool(
    store: Store, by: Principal, question: str = "Weather?", answer: str = "Rain.", **fields: Any
) -> Turn:
    """A whole turn with one tool call, written as the engine writes it."""
    held = await begin(store, by, question, **fields)
    return (await finish_tool_turn(store, held, answer)).turn


async def finish_tool_turn(store: Store, held: Held, answer: str = "Rain.", *, after: int = 1) -> Settled:
    call = new_call_id()
    calls, ran, ended = tool_calls(call), step(call, "running"), step(call, "succeeded", result="rain")
    await store.record(held, after=after, rows=[asked_for_tool(held, 1, call)], events=[calls, ran])
    await store.record(held, after=after + 2, rows=[tool_answered(held, 2, call)], events=[ended])
    content = fold([calls, ran, ended]).then_said(text=answer).content
    settlement = answered(held, answer, sequence=3, content=content)
    return await store.settle(held, after=after + 3, settlement=settlement)


# Rows


def a_row(held: Held, sequence: int, *blocks: Block, **fields: Any) -> Message:
    """A row of a turn: internal, by the assistant."""
    values: dict[str, Any] = {
        "id": new_message_id(),
        "turn_id": held.turn_id,
        "conversation_id": held.conversation_id,
        "turn_sequence": sequence,
        "role": "assistant",
        "blocks": blocks or (Text(text=f"row {sequence}"),),
        "created_at": 1,
        "iteration": 1,
        "internal": True,
    }
    return Message(**values | fields)


def asked_for_tool(held: Held, sequence: int, call: CallId) -> Message:
    return a_row(held, sequence, ToolUse(id=call, name="weather", input={"place": "Kyoto"}))


def tool_answered(held: Held, sequence: int, call: CallId, content: str = "rain") -> Message:
    return a_row(held, sequence, ToolResult(call_id=call, content=content), role="user")


def final_row(held: Held, sequence: int, text: str, **fields: Any) -> Message:
    values: dict[str, Any] = {
        "internal": False,
        "display": (TextPart(text=text),),
        "usage": Usage(input_tokens=10, output_tokens=5),
        "provider": "demo/echo",
    }
    return a_row(held, sequence, Text(text=text), **values | fields)


# Events


def tool_calls(*calls: CallId, text: str = "") -> ToolCalls:
    return ToolCalls(
        iteration=1,
        text=text,
        calls=tuple(ToolCall(id=call, name="weather", args={"place": "Kyoto"}) for call in calls),
    )


def step(id_: str, status: Any = "running", **fields: Any) -> Step:
    return Step(id=id_, name="weather", status=status, **fields)


# How turns end


def answered(
    held: Held,
    text: str = "Hi!",
    *,
    sequence: int = 1,
    content: tuple[Part, ...] | None = None,
    usage: Usage = SOME_USAGE,
    **fields: Any,
) -> Settlement:
    content = (TextPart(text=text),) if content is None else content
    final = final_row(held, sequence, text, display=content, usage=usage)
    result = Result(message_id=final.id, message=text, content=content, usage=usage)
    return Settlement(status="succeeded", terminal=result, usage=usage, final=final, **fields)


def stopped(
    held: Held, partial: str | None = None, *, sequence: int = 1, usage: Usage = NO_USAGE, **fields: Any
) -> Settlement:
    """Cancelled, with the partial answer that was kept, if any."""
    return _ended("cancelled", "cancelled", held, partial, sequence, usage, **fields)


def failed(held: Held, *, code: str = "provider_failed", usage: Usage = NO_USAGE, **fields: Any) -> Settlement:
    return _ended("failed", code, held, None, 1, usage, **fields)


def _ended(
    status: FinalStatus,
    code: str,
    held: Held,
    partial: str | None,
    sequence: int,
    usage: Usage,
    **fields: Any,
) -> Settlement:
    message = f"It ended: {code}."
    final = None if partial is None else final_row(held, sequence, partial, usage=usage)
    return Settlement(
        status=status,
        terminal=Failure(code=code, message=message, message_id=None if final is None else final.id),
        usage=usage,
        final=final,
        error=TurnError(code=code, message=message),
        **fields,
    )


def elsewhere(conversation_id: ConversationId, *said: str, **fields: Any) -> Appended:
    """A turn that happened elsewhere: a question, rows in between (internal), an answer."""
    turn_id: TurnId = fields.pop("turn_id", None) or new_turn_id()
    held = Held(turn_id=turn_id, conversation_id=conversation_id, attempt=1)
    question, *between, answer = said or ("Hello", "Hi!")
    rows = (
        a_row(held, 0, Text(text=question), role="user", internal=False, iteration=None),
        *(a_row(held, number, Text(text=text)) for number, text in enumerate(between, start=1)),
        final_row(held, len(between) + 1, answer),
    )
    values: dict[str, Any] = {
        "turn_id": turn_id,
        "rows": rows,
        "usage": Usage(input_tokens=10, output_tokens=5),
        "started_at": 1_749_000_000_000,
        "settled_at": 1_749_000_001_000,
    }
    return Appended(**values | fields)


# Files


async def a_file(
    store: Store,
    by: Principal,
    name: str = "notes.txt",
    *,
    conversation_id: ConversationId | None = None,
    **fields: Any,
) -> File:
    """A ready file."""
    file_id: FileId = fields.pop("file_id", None) or new_file_id()
    values: dict[str, Any] = {
        "mime_type": "text/plain",
        "size": 5,
        "storage_key": f"bag/{file_id}",
        "sha256": "ab" * 32,
    }
    new = NewFile(id=file_id, conversation_id=conversation_id, name=name, **values | fields)
    [file] = await store.add_files(by, [new])
    return file


# Reading answers


def spoken(page: Page[PublicMessage]) -> list[str]:
    """A transcript as lines: `user: Hello`."""
    return [f"{message.role}: {shown(message.content)}" for message in page.data]


def shown(content: Iterable[Part]) -> str:
    return " ".join(part.text if isinstance(part, TextPart) else f"<{part.__struct_config__.tag}>" for part in content)


def kinds(events: Sequence[Recorded]) -> list[str]:
    """Events as their kinds, once their numbers are seen to be 1, 2, 3 …"""
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    return [kind_of(recorded.event) for recorded in events]


def kind_of(event: TurnEvent) -> str:
    return str(event.__struct_config__.tag)


async def transcript_of(store: Store, by: Principal, conversation_id: ConversationId) -> list[str]:
    return spoken(await store.transcript(by, conversation_id, limit=100))


@asynccontextmanager
async def nothing_written(database: Database) -> AsyncIterator[None]:
    """Whatever happens inside leaves every table as it was."""
    before = await database.contents()
    yield
    assert changed_tables(before, await database.contents()) == []


def changed_tables(before: Contents, after: Contents) -> list[str]:
    return [table for table in after if after[table] != before.get(table)]


def as_user(service: Principal, user: Principal) -> Principal:
    """The service key, acting for a user."""
    return structs.replace(service, user_id=user.user_id)


def message_ids(rows: Iterable[Message | PublicMessage]) -> list[MessageId]:
    return [row.id for row in rows]
