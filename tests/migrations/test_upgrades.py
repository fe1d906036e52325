"""A database with rows in it that an older release made: opened by this one, nothing is lost and all of it works."""

import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.migrations.old_databases import OldDatabase, OldPostgres, OldSqlite
from tests.store.factories import a_file, answered, finish, kinds, transcript_of
from turnkeep.compiler import compile
from turnkeep.ids import AgentId, CallId, ConversationId, FileId, KeyId, OrgId, TurnId, UserId, WorkspaceId
from turnkeep.model.principals import Principal
from turnkeep.store.migrations import load_migrations
from turnkeep.store.ports import Store
from turnkeep_client.wire.blocks import FileRef, StepPart, Text, TextPart, ToolResult, ToolUse, Usage

_numbers = itertools.count(1)


def old(prefix: str, number: int = 1) -> str:
    """An id of the old database."""
    return f"{prefix}_0000000000007000800000000000000{number}"


ORG, WORKSPACE = OrgId(old("org")), WorkspaceId(old("ws"))
ANN = Principal(org_id=ORG, workspace_id=WORKSPACE, user_id=UserId(old("user")), role="member")
BOB = Principal(org_id=ORG, workspace_id=WORKSPACE, user_id=UserId(old("user", 2)), role="admin")
SERVICE = Principal(org_id=ORG, workspace_id=WORKSPACE, user_id=None, role="service", key_id=KeyId(old("key")))
TALK, LEFT = ConversationId(old("conv")), ConversationId(old("conv", 2))
TURN, RUNNING = TurnId(old("turn")), TurnId(old("turn", 2))
CALL = CallId(old("call"))
FILE = FileId(old("file"))


@pytest.fixture(params=["sqlite", "postgres"])
async def database(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[OldDatabase]:
    if request.param == "sqlite":
        made: OldDatabase = OldSqlite(tmp_path / "turnkeep.db")
        await made.make(monkeypatch)
        yield made
        return
    name = f"{servers.of_this_worker('old')}_{next(_numbers)}"
    made = OldPostgres(await servers.create_database(servers.shared_postgres_uri(), name))
    try:
        await made.make(monkeypatch)
        yield made
    finally:
        await servers.drop_database(servers.shared_postgres_uri(), name)


@pytest.fixture
async def store(database: OldDatabase) -> AsyncIterator[Store]:
    opened = await database.open()
    yield opened
    await opened.close()


def kept(rows: list[dict[str, Any]], columns: set[str]) -> list[dict[str, Any]]:
    """What the old release knew of these rows. A restart may end leases."""
    return sorted(({name: row[name] for name in columns - {"lease_until"}} for row in rows), key=repr)


class TestOpening:
    async def test_brings_it_to_this_release_and_keeps_every_value(self, database: OldDatabase) -> None:
        assert await database.versions() == [1]
        before = await database.rows()
        assert {table for table, rows in before.items() if rows} >= {"turns", "messages", "files", "api_keys", "agents"}
        await (await database.open()).close()
        assert await database.versions() == [each.version for each in load_migrations("sqlite")]
        after = await database.rows()
        for table, rows in before.items():
            if rows and "migration" not in table:
                columns = set(rows[0])
                assert kept(after[table], columns) == kept(rows, columns), table


class TestDividingByTime:
    """Migration 0018 makes partitions of `messages` and `turn_events`."""

    migration = next(each for each in load_migrations("postgres") if each.name == "partitions")

    @pytest.mark.parametrize("database", ["postgres"], indirect=True)
    async def test_the_rows_that_were_there_are_the_first_partition(self, database: OldDatabase) -> None:
        before = await database.rows()
        await (await database.open()).close()
        after = await database.rows()
        for table in ("messages", "turn_events"):
            known = [
                {name: row[name] for name in old_row} for row, old_row in zip(after[table], before[table], strict=True)
            ]
            assert after[f"{table}_first"] == after[table]
            assert known == before[table], "later migrations may add columns"
            assert after[f"{table}_other"] == []

    @pytest.mark.parametrize("database", ["postgres"], indirect=True)
    @pytest.mark.parametrize("steps", range(1, len(migration.steps)))
    async def test_goes_on_where_an_earlier_try_was_stopped(
        self, database: OldDatabase, monkeypatch: pytest.MonkeyPatch, steps: int
    ) -> None:
        assert isinstance(database, OldPostgres)
        before = await database.rows()
        await database.migrate_in_part(monkeypatch, self.migration, steps)
        opened = await database.open()
        assert kinds(await opened.events(TURN)) == ["turn", "tool_calls", "step", "step", "result"]
        await finish(opened, ANN, "And now?", "Sun.", conversation_id=TALK)
        await opened.close()
        after = await database.rows()
        assert after["turn_events_first"][: len(before["turn_events"])] == before["turn_events"]

    @pytest.mark.parametrize("database", ["postgres"], indirect=True)
    async def test_a_wrong_clock_of_a_server_does_not_stop_it(self, database: OldDatabase) -> None:
        assert isinstance(database, OldPostgres)
        late = "turn_" + "03" + "0" * 10 + old("turn")[17:]
        await database.execute(f"UPDATE turnkeep.messages SET turn_id = '{late}' WHERE turn_sequence = 3")
        await (await database.open()).close()
        assert len((await database.rows())["messages_first"]) == len((await database.rows())["messages"])


class TestWhatWasThere:
    async def test_the_tenant_its_key_and_its_agent(self, store: Store) -> None:
        [org] = await store.orgs()
        assert (org.id, org.name) == (ORG, "Acme")
        workspace = await store.workspace(ORG)
        assert (workspace.id, workspace.model, workspace.monthly_message_limit) == (WORKSPACE, "demo", 500)
        members = {member.external_id: member.role for member in (await store.members(ORG, WORKSPACE)).data}
        assert members == {"ann": "member", "bob": "admin"}
        key = await store.key_by_hash(b"\xab" * 32)
        assert key is not None
        assert (key.id, key.requests_per_minute, key.allowed_tools) == (SERVICE.key_id, 60, ("weather",))
        assert key.workspace_id is None, "it stays a key of the whole org"
        agent = await store.agent(ANN, AgentId(old("agent")))
        assert (agent.spec.instructions, agent.spec.tools) == ("Be brief.", ("search_pages",))

    async def test_the_conversation_as_its_user_sees_it(self, store: Store) -> None:
        [hit] = (await store.conversations(ANN)).data
        listed = hit.conversation
        assert (listed.id, listed.title, listed.message_count, listed.metadata) == (
            TALK,
            "Weather in Bern?",
            2,
            {"tag": "é"},
        )
        question, answer = (await store.transcript(ANN, TALK)).data
        assert question.content == (TextPart(text="Weather in Bern?"),)
        assert question.attachments == (FileRef(file_id=FILE, name="notes.txt", mime_type="text/plain", size=5),)
        step = StepPart(id=CALL, name="weather", status="succeeded", result="rain")
        assert answer.content == (step, TextPart(text="Rain."))
        assert (await store.conversations(BOB)).data[0].conversation.id == LEFT

    async def test_the_turn_with_its_rows_events_and_logs(self, store: Store) -> None:
        turn = await store.turn(ANN, TURN)
        assert (turn.status, turn.usage) == ("succeeded", Usage(input_tokens=10, output_tokens=5))
        blocks = [row.blocks for row in await store.turn_rows(TURN)]
        assert blocks == [
            (Text(text="Weather in Bern?"),),
            (ToolUse(id=CALL, name="weather", input={"city": "Bern"}),),
            (ToolResult(call_id=CALL, content="rain"),),
            (Text(text="Rain."),),
        ]
        assert kinds(await store.events(TURN)) == ["turn", "tool_calls", "step", "step", "result"]
        trace = await store.trace(SERVICE, TURN)
        assert [(line.after_seq, line.message) for line in trace.logs] == [(2, "asked")]
        window = await store.window(TALK)
        assert not compile(window.rows, target="anthropic").repairs

    async def test_the_file(self, store: Store) -> None:
        [file] = await store.files(ANN, TALK)
        assert file == await store.file(ANN, FILE)
        assert (file.name, file.size, file.message_id) == ("notes.txt", 5, old("msg"))
        assert (file.turn_id, file.saved_at, file.crc32) == (None, None, None), "what the old release did not know"

    async def test_what_was_used(self, store: Store) -> None:
        usage = await store.usage(SERVICE, month="2025-06")
        assert (usage.messages, usage.input_tokens, usage.output_tokens) == (2, 10, 5)


class TestGoingOn:
    async def test_it_is_found_by_search(self, store: Store) -> None:
        await store.index_pending()
        assert [hit.conversation.id for hit in (await store.conversations(ANN, query="rain")).data] == [TALK]

    async def test_the_next_turn_and_the_next_file_join_the_old_ones(self, store: Store) -> None:
        await finish(store, ANN, "And now?", "Sun.", conversation_id=TALK)
        await a_file(store, ANN, "notes.txt", conversation_id=TALK)
        assert len(await transcript_of(store, ANN, TALK)) == 4
        assert [file.name for file in await store.files(ANN, TALK)] == ["notes.txt", "notes-1.txt"]

    async def test_the_turn_that_was_left_running_is_taken_over_and_settled(self, store: Store) -> None:
        [adopted] = await store.adopt("worker-2", lease_seconds=30, limit=10)
        assert (adopted.turn.id, adopted.turn.attempt) == (RUNNING, 2)
        [renewal] = await store.renew([adopted.held], lease_seconds=30)
        assert (renewal.is_held, renewal.files_written) == (True, 0)
        await store.settle(adopted.held, after=adopted.turn.last_seq, settlement=answered(adopted.held, "At last."))
        assert await transcript_of(store, BOB, LEFT) == ["user: Left running", "assistant: At last."]

    async def test_what_came_later_works_too(self, store: Store) -> None:
        page = await store.create_page(BOB, title="Returns", content="Within 30 days.")
        assert (await store.page(ANN, page.id)).content == "Within 30 days."
