"""Bad input: a clear error from our tree, and nothing written. Every verb, every field that holds text.

Each test proves that its refusal leaves every table as it was. So all of them share one database of each kind, and one
event loop with it.
"""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import pytest
import pytest_asyncio
from msgspec import structs

from tests.store.databases import Database, PostgresDatabase, SqliteDatabase, make_postgres_database
from tests.store.factories import (
    Tenant,
    a_claim,
    a_file,
    a_key,
    a_row,
    a_tenant,
    answered,
    begin,
    elsewhere,
    failed,
    final_row,
    finish,
    nothing_written,
    save_agent,
    save_member,
    save_workspace,
    step,
    tool_calls,
)
from turnkeep.errors import CallerError, InvalidRequest, NotFound, TooLarge
from turnkeep.ids import CallId, new_call_id, new_file_id, new_turn_id
from turnkeep.model.agents import AgentSpec, Snapshot
from turnkeep.model.files import File
from turnkeep.model.messages import Legacy
from turnkeep.model.principals import Scopes
from turnkeep.model.turns import Held, Turn, TurnError
from turnkeep.store.commands import ConversationChange, NewConversation, TokenBinding
from turnkeep.store.ports import Store
from turnkeep_client.wire.blocks import FileRef, Image, Reasoning, Text, TextPart, ToolResult, ToolUse
from turnkeep_client.wire.events import LogLine, Reset, Source, Sources

TEN_MEGABYTES = 10_000_000

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="session")
def bad_input_uri() -> str:
    return make_postgres_database("bad_input")


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def opening(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], Awaitable[Database]]:
    if request.param == "sqlite":
        path = tmp_path_factory.mktemp("bad_input") / "turnkeep.db"
        return lambda: SqliteDatabase.open(path)
    uri: str = request.getfixturevalue("bad_input_uri")
    return lambda: PostgresDatabase.open(uri)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def database(opening: Callable[[], Awaitable[Database]]) -> AsyncIterator[Database]:
    opened = await opening()
    yield opened
    await opened.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tenant(database: Database) -> Tenant:
    return await a_tenant(database.store)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(database: Database, tenant: Tenant) -> "Stage":
    return await Stage.set_up(database.store, tenant)


class Stage:
    """A store in which something has happened, for verbs to be tried on."""

    def __init__(self, store: Store, tenant: Tenant, held: Held, settled: Turn, file: File) -> None:
        self.store = store
        self.tenant = tenant
        self.held = held
        self.settled = settled
        self.file = file

    @classmethod
    async def set_up(cls, store: Store, tenant: Tenant) -> "Stage":
        settled = await finish(store, tenant.ann)
        return cls(store, tenant, await begin(store, tenant.ann), settled, await a_file(store, tenant.ann))

    async def claim(self, **fields: Any) -> None:
        await self.store.claim(a_claim(self.tenant.ann, **fields))

    async def record(self, **fields: Any) -> None:
        await self.store.record(self.held, after=1, **fields)

    async def settle(self, **fields: Any) -> None:
        await self.store.settle(self.held, after=1, settlement=structs.replace(answered(self.held), **fields))

    async def append(self, **fields: Any) -> None:
        conversation_id = self.settled.conversation_id
        turn = structs.replace(elsewhere(conversation_id), **fields)
        await self.store.append(self.tenant.ann, conversation_id, turn)

    async def append_row(self, **fields: Any) -> None:
        question, answer = elsewhere(self.settled.conversation_id).rows
        await self.append(rows=(question, structs.replace(answer, **fields)))

    async def change(self, **fields: Any) -> None:
        change = ConversationChange(**fields)
        await self.store.change_conversation(self.tenant.ann, self.settled.conversation_id, change)

    async def rename_member(self, name: str) -> None:
        member = await self.store.ensure_member(self.tenant.org.id, self.tenant.workspace.id, "ann")
        await save_member(self.store, self.tenant.org.id, structs.replace(member, name=name))

    async def add_file(self, **fields: Any) -> None:
        await a_file(self.store, self.tenant.ann, **fields)

    async def import_changed(self, **fields: Any) -> None:
        exported = await self.store.export_conversation(self.tenant.service, self.settled.conversation_id)
        await self.store.import_conversation(self.tenant.ann, structs.replace(exported, **fields))


Attempt = Callable[[Stage, str], Awaitable[object]]

TEXT_FIELDS: dict[str, Attempt] = {
    "claim: a text": lambda s, t: s.claim(blocks=(Text(text=t),)),
    "claim: what was thought": lambda s, t: s.claim(blocks=(Reasoning(text="x", signature=t),)),
    "claim: a picture": lambda s, t: s.claim(blocks=(Image(media_type="image/png", data=t),)),
    "claim: metadata": lambda s, t: s.claim(metadata={"a": [t]}),
    "claim: a key of metadata": lambda s, t: s.claim(metadata={t: 1}),
    "claim: metadata of the conversation": lambda s, t: s.claim(new=NewConversation(metadata={"a": t})),
    "claim: title": lambda s, t: s.claim(new=NewConversation(title=t)),
    "claim: workflow": lambda s, t: s.claim(new=NewConversation(workflow_id=t)),
    "claim: model of the conversation": lambda s, t: s.claim(new=NewConversation(model=t)),
    "claim: model": lambda s, t: s.claim(model=t),
    "claim: snapshot": lambda s, t: s.claim(snapshot=Snapshot(agent=AgentSpec(name="a", instructions=t))),
    "claim: worker": lambda s, t: s.claim(worker=t),
    "claim: idempotency key": lambda s, t: s.claim(idempotency_key=t, request_hash="h"),
    "claim: request hash": lambda s, t: s.claim(idempotency_key="k", request_hash=t),
    "claim: turn id": lambda s, t: s.claim(turn_id=t),
    "claim: conversation id": lambda s, t: s.claim(conversation_id=t),
    "record: a text": lambda s, t: s.record(rows=[a_row(s.held, 1, Text(text=t))]),
    "record: a tool's input": lambda s, t: s.record(
        rows=[a_row(s.held, 1, ToolUse(id=new_call_id(), name="f", input={"a": {"b": [t]}}))]
    ),
    "record: a call's id": lambda s, t: s.record(rows=[a_row(s.held, 1, ToolUse(id=CallId(t), name="f", input={}))]),
    "record: a tool's result": lambda s, t: s.record(
        rows=[a_row(s.held, 1, ToolResult(call_id=new_call_id(), content=t))]
    ),
    "record: a file's name": lambda s, t: s.record(
        rows=[a_row(s.held, 1, FileRef(file_id=new_file_id(), name=t, mime_type="a/b", size=1))]
    ),
    "record: provider": lambda s, t: s.record(rows=[a_row(s.held, 1, provider=t)]),
    "record: row id": lambda s, t: s.record(rows=[a_row(s.held, 1, id=t)]),
    "record: metadata": lambda s, t: s.record(rows=[a_row(s.held, 1, metadata={"a": t})]),
    "record: legacy": lambda s, t: s.record(rows=[a_row(s.held, 1, legacy=Legacy(content=t))]),
    "record: display": lambda s, t: s.record(rows=[a_row(s.held, 1, display=(TextPart(text=t),))]),
    "record: an iteration's text": lambda s, t: s.record(events=[tool_calls(text=t)]),
    "record: a step's result": lambda s, t: s.record(events=[step("s", result={"a": t})]),
    "record: a step's id": lambda s, t: s.record(events=[step(t)]),
    "record: a source": lambda s, t: s.record(events=[Sources(sources=(Source(title=t, snippet=""),))]),
    "record: a reason": lambda s, t: s.record(events=[Reset(attempt=1, reason=t)]),
    "record: a log line": lambda s, t: s.record(logs=[LogLine(after_seq=1, level="info", message=t)]),
    "settle: final": lambda s, t: s.settle(final=final_row(s.held, 1, t)),
    "settle: terminal": lambda s, t: s.settle(terminal=structs.replace(answered(s.held).terminal, message=t)),
    "settle: an error": lambda s, t: s.store.settle(
        s.held,
        after=1,
        settlement=structs.replace(failed(s.held), error=TurnError(code="c", message=t)),
    ),
    "settle: rows": lambda s, t: s.settle(rows=(a_row(s.held, 2, Text(text=t)),)),
    "settle: events": lambda s, t: s.settle(events=(step(t),)),
    "settle: logs": lambda s, t: s.settle(logs=(LogLine(after_seq=1, level="info", message=t),)),
    "append: a text": lambda s, t: s.append_row(blocks=(Text(text=t),)),
    "append: a source": lambda s, t: s.append_row(sources=(Source(title="a", snippet=t),)),
    "append: model": lambda s, t: s.append(model=t),
    "append: turn id": lambda s, t: s.append(turn_id=t),
    "adopt: worker": lambda s, t: s.store.adopt(t, lease_seconds=1),
    "create: title": lambda s, t: s.store.create_conversation(s.tenant.ann, NewConversation(title=t)),
    "create: metadata": lambda s, t: s.store.create_conversation(s.tenant.ann, NewConversation(metadata={"a": t})),
    "create: model": lambda s, t: s.store.create_conversation(s.tenant.ann, NewConversation(model=t)),
    "create: workflow": lambda s, t: s.store.create_conversation(s.tenant.ann, NewConversation(workflow_id=t)),
    "change: title": lambda s, t: s.change(title=t),
    "change: model": lambda s, t: s.change(model=t),
    "change: metadata": lambda s, t: s.change(metadata={"a": t}),
    "change: agent": lambda s, t: s.change(agent_id=t),
    "change: head": lambda s, t: s.change(head_turn_id=t),
    "file: name": lambda s, t: s.add_file(name=t),
    "file: type": lambda s, t: s.add_file(mime_type=t),
    "file: key": lambda s, t: s.add_file(storage_key=t),
    "file: sha256": lambda s, t: s.add_file(sha256=t),
    "file: id": lambda s, t: s.add_file(file_id=t),
    "complete: sha256": lambda s, t: s.store.complete_file(s.tenant.ann, s.file.id, size=1, sha256=t),
    "org: name": lambda s, t: s.store.create_org(t),
    "workspace: name": lambda s, t: s.store.create_workspace(s.tenant.org.id, t),
    "workspace: model": lambda s, t: s.store.create_workspace(s.tenant.org.id, "Lab", model=t),
    "workspace: new name": lambda s, t: save_workspace(s.store, structs.replace(s.tenant.workspace, name=t)),
    "member: name": lambda s, t: s.store.ensure_member(s.tenant.org.id, s.tenant.workspace.id, t),
    "key: name": lambda s, t: s.store.add_key(a_key(s.tenant.org, name=t), secrets.token_bytes(32)),
    "key: tools": lambda s, t: s.store.add_key(a_key(s.tenant.org, allowed_tools=(t,)), secrets.token_bytes(32)),
    "key: scopes": lambda s, t: s.store.add_key(
        a_key(s.tenant.org, scopes=Scopes(models=(t,))), secrets.token_bytes(32)
    ),
    "member: new name": lambda s, t: s.rename_member(t),
    "agent: name": lambda s, t: s.store.create_agent(s.tenant.service, AgentSpec(name=t)),
    "agent: instructions": lambda s, t: s.store.create_agent(s.tenant.service, AgentSpec(name="a", instructions=t)),
    "agent: environment": lambda s, t: s.store.create_agent(
        s.tenant.service, AgentSpec(name="a", environment={"a": t})
    ),
    "principal: user": lambda s, t: s.store.claim(a_claim(structs.replace(s.tenant.ann, user_id=cast(Any, t)))),
    "token: turn": lambda s, t: s.store.add_token(
        secrets.token_bytes(32),
        TokenBinding(purpose="run", turn_id=cast(Any, t), attempt=1),
        expires_in_seconds=1,
    ),
}

HOSTILE = {
    "nul": "a\0b",
    "half a surrogate pair": "a\ud800b",
    "ten megabytes": "x" * TEN_MEGABYTES,
}


class TestTexts:
    @pytest.mark.parametrize("hostile", list(HOSTILE))
    @pytest.mark.parametrize("field", list(TEXT_FIELDS))
    async def test_that_cannot_be_kept_are_refused_wherever_they_stand(
        self, stage: Stage, database: Database, field: str, hostile: str
    ) -> None:
        async with nothing_written(database):
            with pytest.raises(CallerError):
                await TEXT_FIELDS[field](stage, HOSTILE[hostile])

    async def test_too_large_says_so(self, store: Store, tenant: Tenant) -> None:
        with pytest.raises(TooLarge):
            await store.claim(a_claim(tenant.ann, "x" * TEN_MEGABYTES))

    @pytest.mark.parametrize("hostile", ["nul", "half a surrogate pair"])
    async def test_in_a_search_they_find_nothing_or_are_refused(
        self, store: Store, tenant: Tenant, database: Database, hostile: str
    ) -> None:
        await finish(store, tenant.ann)
        await store.index_pending()
        async with nothing_written(database):
            try:
                page = await store.conversations(tenant.ann, query=HOSTILE[hostile])
            except InvalidRequest:
                return
            assert page.data == ()

    async def test_after_all_that_the_store_works_on(self, store: Store, tenant: Tenant) -> None:
        stage = await Stage.set_up(store, tenant)
        for attempt in TEXT_FIELDS.values():
            with pytest.raises(CallerError):
                await attempt(stage, "\0")
        settled = await store.settle(stage.held, after=1, settlement=answered(stage.held))
        assert settled.turn.status == "succeeded"


WRONG_TYPES: dict[str, Callable[[Stage], Awaitable[object]]] = {
    "a claim that is none": lambda s: s.store.claim(cast(Any, {"turn_id": new_turn_id()})),
    "blocks that are text": lambda s: s.claim(blocks="Hello"),
    "a block that is none": lambda s: s.claim(blocks=({"type": "text"},)),
    "a text that is a number": lambda s: s.claim(blocks=(Text(text=cast(Any, 5)),)),
    "a status that is none": lambda s: s.settle(status="done"),
    "an unknown way to be busy": lambda s: s.claim(if_busy="wait"),
    "an unknown source": lambda s: s.claim(source="mail"),
    "an unknown kind": lambda s: s.claim(new=NewConversation(kind=cast(Any, "forum"))),
    "a lease in words": lambda s: s.claim(lease_seconds="soon"),
    "a lease without end": lambda s: s.claim(lease_seconds=float("inf")),
    "a lease that is no number": lambda s: s.claim(lease_seconds=float("nan")),
    "watched in words": lambda s: s.claim(watched_seconds="soon"),
    "metadata that is a list": lambda s: s.claim(metadata=[1]),
    "metadata that is no JSON": lambda s: s.claim(metadata={"a": object()}),
    "metadata that holds itself": lambda s: s.claim(metadata=_endless()),
    "a title that is a number": lambda s: s.claim(new=NewConversation(title=cast(Any, 5))),
    "rows that are none": lambda s: s.record(rows=["row"]),
    "events that are none": lambda s: s.record(events=[{"type": "step"}]),
    "logs of an unknown level": lambda s: s.record(logs=[LogLine(after_seq=1, level=cast(Any, "loud"), message="x")]),
    "a row of an unknown role": lambda s: s.record(rows=[a_row(s.held, 1, role="tool")]),
    "a row before the first": lambda s: s.record(rows=[a_row(s.held, -1)]),
    "a row far out": lambda s: s.record(rows=[a_row(s.held, 2**70)]),
    "a time far out": lambda s: s.record(rows=[a_row(s.held, 1, created_at=2**70)]),
    "tokens far out": lambda s: s.settle(usage=structs.replace(s.settled.usage, input_tokens=2**70)),
    "tokens below zero": lambda s: s.settle(usage=structs.replace(s.settled.usage, input_tokens=-1)),
    "tokens in words": lambda s: s.settle(usage=structs.replace(s.settled.usage, input_tokens=cast(Any, "many"))),
    "a title to change that is a number": lambda s: s.change(title=5),
    "an agent's tools in words": lambda s: s.store.create_agent(
        s.tenant.service, AgentSpec(name="a", tools=cast(Any, "weather"))
    ),
    "an agent that is none": lambda s: s.store.create_agent(s.tenant.service, cast(Any, {"name": "a"})),
    "a conversation that is none": lambda s: s.store.create_conversation(s.tenant.ann, cast(Any, {})),
    "an export that is none": lambda s: s.store.import_conversation(s.tenant.ann, cast(Any, {})),
    "an export whose turns are none": lambda s: s.import_changed(turns=("turn",)),
    "a turn that happened nowhere": lambda s: s.store.append(s.tenant.ann, s.settled.conversation_id, cast(Any, {})),
    "a start that is no time": lambda s: s.append(started_at="yesterday"),
    "a file's size in words": lambda s: s.add_file(size="big"),
    "a name that is a number": lambda s: s.store.create_org(cast(Any, 5)),
    "a token's purpose": lambda s: s.store.add_token(
        secrets.token_bytes(32),
        TokenBinding(purpose=cast(Any, "fun"), turn_id=s.held.turn_id, attempt=1),
        expires_in_seconds=1,
    ),
    "a token that is text": lambda s: s.store.add_token(
        cast(Any, "token"),
        TokenBinding(purpose="run", turn_id=s.held.turn_id, attempt=1),
        expires_in_seconds=1,
    ),
    "a secret that is text": lambda s: s.store.add_key(a_key(s.tenant.org), cast(Any, "secret")),
    "a month that is none": lambda s: s.store.usage(s.tenant.ann, month="June"),
}


def _endless() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


class TestTypes:
    @pytest.mark.parametrize("wrong", list(WRONG_TYPES))
    async def test_that_are_wrong_are_refused(self, stage: Stage, database: Database, wrong: str) -> None:
        async with nothing_written(database):
            with pytest.raises(CallerError):
                await WRONG_TYPES[wrong](stage)


BY_ID: dict[str, tuple[str, Callable[[Stage, Any], Awaitable[object]]]] = {
    "claim: turn": ("turn", lambda s, i: s.claim(turn_id=i)),
    "claim: conversation": ("conv", lambda s, i: s.claim(conversation_id=i)),
    "claim: attachment": ("file", lambda s, i: s.claim(attachment_ids=(i,))),
    "claim: beside": ("turn", lambda s, i: s.claim(conversation_id=s.settled.conversation_id, beside=i)),
    "append": ("conv", lambda s, i: s.store.append(s.tenant.ann, i, elsewhere(i))),
    "request_cancel": ("turn", lambda s, i: s.store.request_cancel(s.tenant.ann, i)),
    "add_notes": ("turn", lambda s, i: s.store.add_notes(s.tenant.ann, i, {"a": 1})),
    "turn": ("turn", lambda s, i: s.store.turn(s.tenant.ann, i)),
    "trace": ("turn", lambda s, i: s.store.trace(s.tenant.service, i)),
    "conversation": ("conv", lambda s, i: s.store.conversation(s.tenant.ann, i)),
    "conversation_with_queue": ("conv", lambda s, i: s.store.conversation_with_queue(s.tenant.ann, i)),
    "change_conversation": (
        "conv",
        lambda s, i: s.store.change_conversation(s.tenant.ann, i, ConversationChange(title="x")),
    ),
    "change: head": ("turn", lambda s, i: s.change(head_turn_id=i)),
    "change: agent": ("agent", lambda s, i: s.change(agent_id=i)),
    "delete_conversation": ("conv", lambda s, i: s.store.delete_conversation(s.tenant.ann, i)),
    "restore_conversation": ("conv", lambda s, i: s.store.restore_conversation(s.tenant.ann, i)),
    "transcript": ("conv", lambda s, i: s.store.transcript(s.tenant.ann, i)),
    "conversation_trace": ("conv", lambda s, i: s.store.conversation_trace(s.tenant.service, i)),
    "export_conversation": ("conv", lambda s, i: s.store.export_conversation(s.tenant.service, i)),
    "agent": ("agent", lambda s, i: s.store.agent(s.tenant.ann, i)),
    "change_agent": ("agent", lambda s, i: save_agent(s.store, s.tenant.ann, i, AgentSpec(name="a"))),
    "delete_agent": ("agent", lambda s, i: s.store.delete_agent(s.tenant.ann, i)),
    "file": ("file", lambda s, i: s.store.file(s.tenant.ann, i)),
    "files": ("conv", lambda s, i: s.store.files(s.tenant.ann, i)),
    "add_files": ("conv", lambda s, i: s.add_file(conversation_id=i)),
    "complete_file": ("file", lambda s, i: s.store.complete_file(s.tenant.ann, i, size=1, sha256="ab" * 32)),
    "delete_file": ("file", lambda s, i: s.store.delete_file(s.tenant.ann, i)),
    "revoke_key": ("key", lambda s, i: s.store.revoke_key(s.tenant.org.id, i)),
    "workspace": ("ws", lambda s, i: s.store.workspace(s.tenant.org.id, i)),
    "delete_workspace": ("ws", lambda s, i: s.store.delete_workspace(s.tenant.org.id, i)),
}


class TestIds:
    @pytest.mark.parametrize("verb", list(BY_ID))
    async def test_of_the_wrong_kind_or_no_id_at_all(self, stage: Stage, database: Database, verb: str) -> None:
        kind, attempt = BY_ID[verb]
        wrong = [
            ("msg_" if kind != "msg" else "turn_") + "0" * 32,
            f"{kind}_" + "0" * 31,
            f"{kind}_" + "G" * 32,
            f"{kind}_" + "0" * 32 + "\n",
            f"{kind}_' OR 1=1; --",
            "",
            "\0",
            "\ud800",
            5,
            b"conv_" + b"0" * 32,
        ]
        async with nothing_written(database):
            for value in wrong:
                with pytest.raises((InvalidRequest, NotFound)):
                    await attempt(stage, value)

    @pytest.mark.parametrize("verb", [verb for verb, (kind, _) in BY_ID.items() if kind in {"conv", "turn", "file"}])
    async def test_of_another_tenant_do_not_exist(
        self, store: Store, stage: Stage, database: Database, verb: str
    ) -> None:
        stranger = await a_tenant(store, "Other")
        theirs = await finish(store, stranger.ann)
        file = await a_file(store, stranger.ann)
        kind, attempt = BY_ID[verb]
        foreign = {"conv": theirs.conversation_id, "turn": theirs.id, "file": file.id}[kind]
        async with nothing_written(database):
            with pytest.raises(CallerError) as refused:
                await attempt(stage, foreign)
        if verb != "claim: turn":
            assert isinstance(refused.value, NotFound)
        assert stranger.org.id not in str(refused.value)
