"""Export and import: a conversation with everything in it, without loss, under new ids."""

import asyncio
import threading
from collections import Counter
from typing import Any

import msgspec
import pytest
from msgspec import structs

from tests.store.databases import Database
from tests.store.factories import (
    Tenant,
    a_claim,
    a_conversation,
    a_file,
    a_tenant,
    answered,
    begin,
    claim,
    elsewhere,
    failed,
    finish,
    finish_with_tool,
    held_of,
    kinds,
    nothing_written,
    save_workspace,
    step,
    stopped,
    transcript_of,
    wait_in_queue,
)
from turnkeep.errors import CallerError, InvalidRequest
from turnkeep.ids import ConversationId, FileId
from turnkeep.model.principals import Principal
from turnkeep.model.turns import TurnReport
from turnkeep.store.checks import check_exported
from turnkeep.store.commands import ConversationChange, Exported, TurnTrace
from turnkeep.store.exports import exported_from_rows
from turnkeep.store.ports import Store
from turnkeep.store.postgres.io.database import Statements
from turnkeep.store.sqlite.io.session import Session
from turnkeep.transfer.transcripts import read_transcript
from turnkeep_client import wire
from turnkeep_client.wire.blocks import FilePart, FileRef, Text
from turnkeep_client.wire.events import Failure, Files, LogLine, Recorded, Source, Sources


async def a_rich_conversation(store: Store, tenant: Tenant) -> ConversationId:
    """Branches, failed and cancelled turns, one that never began, logs, files, an appended turn, a switched head."""
    picture = await a_file(store, tenant.ann, "picture.png")
    first = await claim(store, tenant.ann, "Look", attachment_ids=(picture.id,), metadata={"n": 1})
    conversation_id = first.turn.conversation_id
    held = held_of(first)
    await a_file(store, tenant.ann, "pending.txt", conversation_id=conversation_id, sha256=None)
    written = await a_file(store, tenant.ann, "out.csv", conversation_id=conversation_id, source="sandbox")
    shown = wire.File(
        **{name: getattr(written, name) for name in wire.File.__struct_fields__}  # the wire's view of the row
    )
    log = LogLine(after_seq=1, level="warn", message="careful", ts=4)
    await store.record(held, after=1, events=[step("s"), Files(files=(shown,))], logs=[log])
    await store.settle(held, after=3, settlement=answered(held, "Seen"))
    second = await finish_with_tool(store, tenant.ann, conversation_id=conversation_id)
    for settlement in (failed, stopped):
        held = await begin(store, tenant.ann, conversation_id=conversation_id, beside=second.id)
        await store.settle(held, after=1, settlement=settlement(held))
    held = await begin(store, tenant.ann, conversation_id=conversation_id)
    never = await wait_in_queue(store, tenant.ann, conversation_id)
    await store.request_cancel(tenant.ann, never.id)
    await store.settle(held, after=1, settlement=stopped(held, "Half an ans"))
    await store.append(tenant.ann, conversation_id, elsewhere(conversation_id, "Q", "between", "A"))
    await store.change_conversation(
        tenant.ann, conversation_id, ConversationChange(head_turn_id=second.id, title="Rich", metadata={"k": [1]})
    )
    return conversation_id


def without_ids(exported: Exported) -> Any:
    """The export as plain values, every id replaced by the order of its first appearance."""
    names: dict[str, str] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [plain(each) for each in value]
        if isinstance(value, str) and value.partition("_")[0] in {"conv", "turn", "msg", "file", "ws", "user", "agent"}:
            prefix = value.partition("_")[0]
            return names.setdefault(value, f"{prefix}-{len(names)}")
        return value

    return plain(msgspec.to_builtins(exported))


def comparable(exported: Exported) -> Any:
    """What an import must keep. Bytes of files follow later, so their place and state are new."""
    values = without_ids(exported)
    for file in values["files"]:
        del file["storage_key"], file["status"]
    return values


def everywhere(trace: TurnTrace, file_id: FileId) -> dict[str, Any]:
    """What the trace holds, with this file wherever a turn may name one."""
    ref = FileRef(file_id=file_id, name="a.txt", mime_type="text/plain", size=1)
    part = FilePart(file_id=file_id, name="a.txt", mime_type="text/plain", size=1)
    source = Source(title="a.txt", snippet="", file_id=file_id)
    file = wire.File(
        id=file_id,
        conversation_id=trace.turn.conversation_id,
        message_id=None,
        name="a.txt",
        mime_type="text/plain",
        size=1,
        sha256=None,
        source="sandbox",
        created_at=1,
    )
    rows = [
        structs.replace(row, blocks=(*row.blocks, ref), attachments=(ref,), sources=(source,), display=(part,))
        for row in trace.rows
    ]
    events = (*(each.event for each in trace.events), Sources(sources=(source,)), Files(files=(file,)))
    return {
        "turn": structs.replace(trace.turn, report=TurnReport(readings={file_id: "text"})),
        "rows": tuple(rows),
        "events": tuple(Recorded(seq=seq, event=event) for seq, event in enumerate(events, start=1)),
    }


class TestARoundTrip:
    async def test_it_loses_nothing(self, store: Store, tenant: Tenant) -> None:
        exported = await store.export_conversation(tenant.service, await a_rich_conversation(store, tenant))
        imported = await store.import_conversation(tenant.bob, exported)
        again = await store.export_conversation(tenant.service, imported.id)
        assert comparable(again) == comparable(exported)

    async def test_into_another_org(self, store: Store, tenant: Tenant) -> None:
        exported = await store.export_conversation(tenant.service, await a_rich_conversation(store, tenant))
        stranger = await a_tenant(store, "Other")
        imported = await store.import_conversation(stranger.ann, exported)
        assert imported.workspace_id == stranger.workspace.id
        assert imported.user_id == stranger.ann.user_id
        again = await store.export_conversation(stranger.service, imported.id)
        assert comparable(again) == comparable(exported)

    async def test_no_id_of_the_original_is_left(self, store: Store, tenant: Tenant) -> None:
        exported = await store.export_conversation(tenant.service, await a_rich_conversation(store, tenant))
        imported = await store.import_conversation(tenant.ann, exported)
        again = await store.export_conversation(tenant.service, imported.id)
        assert not made_ids(exported) & made_ids(again)

    async def test_what_the_export_only_refers_to_gets_a_new_id_too(self, store: Store, tenant: Tenant) -> None:
        """Its own id may name a file of another tenant."""
        exported = await store.export_conversation(tenant.service, await a_rich_conversation(store, tenant))
        secret = await a_file(store, (await a_tenant(store, "Other")).ann, "secret.txt")
        pointing = structs.replace(
            exported,
            turns=tuple(structs.replace(trace, **everywhere(trace, secret.id)) for trace in exported.turns),
            files=(),
        )
        imported = await store.import_conversation(tenant.ann, pointing)
        again = await store.export_conversation(tenant.service, imported.id)
        assert secret.id in str(pointing)
        assert secret.id not in str(again)
        [named] = {row.attachments[0].file_id for trace in again.turns for row in trace.rows}
        assert {row.sources[0].file_id for trace in again.turns for row in trace.rows} == {named}

    async def test_so_does_what_a_failure_without_an_answer_shows(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        await store.settle(held, after=1, settlement=failed(held))
        exported = await store.export_conversation(tenant.service, held.conversation_id)
        secret = await a_file(store, (await a_tenant(store, "Other")).ann, "secret.txt")
        part = FilePart(file_id=secret.id, name="a.txt", mime_type="text/plain", size=1)
        failure = Failure(code="internal", message="x", content=(part,))
        [trace] = exported.turns
        shown = structs.replace(trace, events=(*trace.events[:-1], Recorded(seq=2, event=failure)))
        imported = await store.import_conversation(tenant.ann, structs.replace(exported, turns=(shown,)))
        again = await store.export_conversation(tenant.service, imported.id)
        last = again.turns[0].events[-1].event
        assert isinstance(last, Failure)
        assert last.content is not None
        assert secret.id not in str(again)

    async def test_with_two_ends_of_one_turn_is_refused(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann)
        exported = await store.export_conversation(tenant.service, turn.conversation_id)
        [trace] = exported.turns
        last = structs.replace(trace.events[-1], seq=len(trace.events) + 1)
        twice = structs.replace(exported, turns=(structs.replace(trace, events=(*trace.events, last)),))
        with pytest.raises(InvalidRequest, match="ends twice"):
            await store.import_conversation(tenant.ann, twice)

    async def test_through_json(self, store: Store, tenant: Tenant) -> None:
        exported = await store.export_conversation(tenant.service, await a_rich_conversation(store, tenant))
        read_back = msgspec.json.decode(msgspec.json.encode(exported), type=Exported)
        assert read_back == exported

    async def test_twice_makes_two(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann)
        exported = await store.export_conversation(tenant.service, turn.conversation_id)
        ids = {(await store.import_conversation(tenant.ann, exported)).id for _ in range(2)}
        assert len(ids) == 2
        assert turn.conversation_id not in ids

    async def test_an_empty_conversation(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann, title="Empty")
        exported = await store.export_conversation(tenant.service, conversation.id)
        assert (exported.turns, exported.files) == ((), ())
        imported = await store.import_conversation(tenant.ann, exported)
        assert imported.title == "Empty"


def made_ids(exported: Exported) -> set[str]:
    return {
        exported.conversation.id,
        *(trace.turn.id for trace in exported.turns),
        *(row.id for trace in exported.turns for row in trace.rows),
        *(file.id for file in exported.files),
        *(file.storage_key for file in exported.files),
    }


class TestAnImportedConversation:
    async def test_it_reads_like_the_original(self, store: Store, tenant: Tenant) -> None:
        original_id = await a_rich_conversation(store, tenant)
        exported = await store.export_conversation(tenant.service, original_id)
        imported = await store.import_conversation(tenant.bob, exported)
        assert await transcript_of(store, tenant.bob, imported.id) == await transcript_of(
            store, tenant.ann, original_id
        )
        before, after = await store.window(original_id), await store.window(imported.id)
        assert [row.blocks for row in before.rows] == [row.blocks for row in after.rows]
        original = exported.conversation
        assert (imported.message_count, imported.turn_count) == (original.message_count, original.turn_count)
        assert imported.title == "Rich"

    async def test_its_turns_replay_their_events(self, store: Store, tenant: Tenant) -> None:
        turn = await finish_with_tool(store, tenant.ann)
        appended = elsewhere(turn.conversation_id)
        await store.append(tenant.ann, turn.conversation_id, appended)
        exported = await store.export_conversation(tenant.service, turn.conversation_id)
        assert [len(trace.events) for trace in exported.turns] == [5, 0]
        imported = await store.import_conversation(tenant.ann, exported)
        page = await store.transcript(tenant.ann, imported.id)
        replayed = [kinds(await store.events(turn_id)) for turn_id in dict.fromkeys(m.turn_id for m in page.data)]
        assert replayed == [["turn", "tool_calls", "step", "step", "result"], ["turn", "result"]]

    async def test_it_goes_on_and_is_found_by_search(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann, "needle")
        exported = await store.export_conversation(tenant.service, turn.conversation_id)
        imported = await store.import_conversation(tenant.bob, exported)
        hits = (await store.conversations(tenant.bob, query="needle")).data
        assert [hit.conversation.id for hit in hits] == [imported.id]
        following = await finish(store, tenant.bob, conversation_id=imported.id)
        assert following.ordinal == 2
        assert following.parent_turn_id == imported.head_turn_id
        assert (await store.conversation(tenant.bob, imported.id)).message_count == 4

    async def test_its_turns_are_numbered_from_1_without_gaps(self, store: Store, tenant: Tenant) -> None:
        exported = await store.export_conversation(tenant.service, await a_rich_conversation(store, tenant))
        apart = structs.replace(
            exported,
            turns=tuple(
                structs.replace(trace, turn=structs.replace(trace.turn, ordinal=trace.turn.ordinal * 2**40 - 7))
                for trace in reversed(exported.turns)
            ),
        )
        imported = await store.import_conversation(tenant.bob, apart)
        again = await store.export_conversation(tenant.service, imported.id)
        assert [trace.turn.ordinal for trace in again.turns] == list(range(1, len(exported.turns) + 1))
        assert comparable(again)["turns"] == comparable(exported)["turns"], "branches and parents are the same"
        async with asyncio.timeout(60):
            await store.index_pending()
        following = await finish(store, tenant.bob, conversation_id=imported.id)
        assert following.ordinal == len(exported.turns) + 1

    async def test_its_files_wait_for_their_bytes(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann)
        await a_file(store, tenant.ann, "a.txt", conversation_id=turn.conversation_id)
        exported = await store.export_conversation(tenant.service, turn.conversation_id)
        imported = await store.import_conversation(tenant.ann, exported)
        [file] = (await store.export_conversation(tenant.service, imported.id)).files
        assert (file.status, file.storage_key, file.name) == ("pending", f"imported/{file.id}", "a.txt")
        done = await store.complete_file(tenant.ann, file.id, size=file.size, sha256="ab" * 32)
        assert await store.files(tenant.ann, imported.id) == [done]

    async def test_it_counts_against_no_quota(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann)
        exported = await store.export_conversation(tenant.service, turn.conversation_id)
        await save_workspace(store, structs.replace(tenant.workspace, monthly_message_limit=0))
        await store.import_conversation(tenant.bob, exported)
        assert (await store.usage(tenant.bob)).messages == 0
        assert (await store.usage(tenant.service)).messages == 1

    async def test_its_owner_alone_sees_it(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann)
        exported = await store.export_conversation(tenant.service, turn.conversation_id)
        imported = await store.import_conversation(tenant.bob, exported)
        for by, count in ((tenant.ann, 1), (tenant.bob, 1), (tenant.service, 2)):
            assert len((await store.conversations(by)).data) == count
        assert imported.user_id == tenant.bob.user_id


class TestRefusals:
    async def test_a_turn_that_has_not_ended(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        running = await store.export_conversation(tenant.service, held.conversation_id)
        await wait_in_queue(store, tenant.ann, held.conversation_id)
        waiting = await store.export_conversation(tenant.service, held.conversation_id)
        async with nothing_written(database):
            for exported in (running, waiting):
                with pytest.raises(InvalidRequest):
                    await store.import_conversation(tenant.ann, exported)

    async def test_an_export_that_was_tampered_with(self, store: Store, tenant: Tenant, database: Database) -> None:
        turn = await finish(store, tenant.ann)
        await a_file(store, tenant.ann, conversation_id=turn.conversation_id)
        good = await store.export_conversation(tenant.service, turn.conversation_id)
        [trace], [file] = good.turns, good.files
        wrong = [
            structs.replace(good, turns=(trace, trace)),
            structs.replace(good, files=(file, file)),
            structs.replace(good, turns=(structs.replace(trace, rows=trace.rows * 2),)),
            structs.replace(good, turns=(structs.replace(trace, events=trace.events * 2),)),
            structs.replace(good, conversation=structs.replace(good.conversation, title="a\0b")),
            structs.replace(good, conversation="no conversation"),
            structs.replace(good, files=(structs.replace(file, name="\ud800"),)),
        ]
        async with nothing_written(database):
            for exported in wrong:
                with pytest.raises(CallerError):
                    await store.import_conversation(tenant.ann, exported)


class TestAClaimAfterAnImport:
    async def test_an_old_idempotency_key_means_nothing_in_the_copy(self, store: Store, tenant: Tenant) -> None:
        by: Principal = tenant.ann
        request = a_claim(by, idempotency_key="k", request_hash="h")
        held = held_of(await store.claim(request))
        await store.settle(held, after=1, settlement=answered(held))
        exported = await store.export_conversation(tenant.service, held.conversation_id)
        await store.import_conversation(by, exported)
        again = await store.claim(a_claim(by, idempotency_key="k", request_hash="h"))
        assert again.turn.id == held.turn_id


class TestALongHistory:
    async def test_is_imported_with_a_handful_of_statements(
        self, store: Store, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each statement for PostgreSQL is a round trip. On SQLite each is prepared once and run for all rows."""
        said = [{"role": role, "content": f"{role} {n}"} for n in range(1_000) for role in ("user", "assistant")]
        exported = exported_from_rows(read_transcript(said).rows)
        counted = statements_of_either(monkeypatch)
        imported = await store.import_conversation(tenant.ann, exported)
        assert sum(counted.values()) <= 15, counted
        monkeypatch.undo()
        assert (imported.turn_count, imported.message_count) == (1_000, 2_000)
        rows = (await store.conversation_trace(tenant.service, imported.id, limit=100)).data
        assert [row.blocks for row in rows[:2]] == [(Text(text="user 0"),), (Text(text="assistant 0"),)]

    async def test_of_many_characters_comes_in_several_parts(
        self, store: Store, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("turnkeep.store.rules.conversations.IMPORTED_CHARS", 1_000)
        counted = statements_of_either(monkeypatch)
        said = [{"role": role, "content": f"{role} {n} " * 20} for n in range(30) for role in ("user", "assistant")]
        imported = await store.import_conversation(tenant.ann, exported_from_rows(read_transcript(said).rows))
        assert counted["insert_imported_message"] + counted["import_messages"] > 5
        assert len(await transcript_of(store, tenant.ann, imported.id)) == 60

    async def test_leaves_the_event_loop_to_others(
        self, store: Store, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        goes_on = threading.Event()

        def check_slowly(exported: Exported) -> Exported:
            assert goes_on.wait(30), "The event loop waits for the import."
            return check_exported(exported)

        monkeypatch.setattr("turnkeep.store.exports.check_exported", check_slowly)
        exported = exported_from_rows(read_transcript([{"role": "user", "content": "Hello"}]).rows)
        importing = asyncio.create_task(store.import_conversation(tenant.ann, exported))
        await asyncio.sleep(0)
        assert (await store.conversations(tenant.ann)).data == ()
        goes_on.set()
        assert (await importing).message_count == 1


def statements_of_either(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the statements of either database by their names, from now on."""
    counted: Counter[str] = Counter()

    def count(kind: type, verb: str) -> None:
        run = getattr(kind, verb)

        def counting(self: Any, name: str, *values: Any) -> Any:
            counted[name] += 1
            return run(self, name, *values)

        monkeypatch.setattr(kind, verb, counting)

    for verb in ("rows", "row", "run", "many"):
        count(Session, verb)
    count(Statements, "fetch")
    return counted
