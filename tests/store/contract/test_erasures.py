"""Erasures: jobs that any worker can continue, and after which nothing of a user is left."""

import asyncio
import secrets
from collections.abc import Sequence

import pytest
from msgspec import structs

from tests.store.databases import Database
from tests.store.factories import (
    Tenant,
    a_claim,
    a_conversation,
    a_file,
    a_row,
    a_tenant,
    a_user,
    answered,
    as_user,
    begin,
    claim,
    finish,
    finish_with_tool,
    save_member,
    step,
    stopped,
    wait_in_queue,
)
from turnkeep.errors import Forbidden, InvalidRequest, NotFound
from turnkeep.ids import CallId, ConversationId, ErasureId, FileId, UserId, new_connection_id, new_file_id
from turnkeep.model.conversations import NewShare
from turnkeep.model.files import NewFile
from turnkeep.model.knowledge import Column, FileText
from turnkeep.model.principals import Principal
from turnkeep.model.waits import CallAnswer, Wait, WaitingCall, digest_of
from turnkeep.store.commands import ErasureJob, NewConversation, TokenBinding, UsageFilter
from turnkeep.store.ports import Store
from turnkeep.store.rules.erasures import PAGES_AT_ONCE
from turnkeep_client.wire.blocks import ToolResult
from turnkeep_client.wire.events import Approval, LogLine, Step, ToolCall

CANARY = "xylophonequartz"
LEASE = 60.0


def new_file(name: str) -> NewFile:
    file_id = new_file_id()
    return NewFile(
        id=file_id,
        conversation_id=None,
        name=name,
        mime_type="text/plain",
        size=4,
        storage_key=f"bag/{file_id}",
        sha256="0f" * 32,
    )


async def begin_user(store: Store, tenant: Tenant) -> ErasureJob:
    assert tenant.ann.user_id is not None
    return await store.begin_erasure(tenant.service, user_id=tenant.ann.user_id, lease_seconds=LEASE)


async def erase(store: Store, job: ErasureJob) -> bool:
    """All steps, as the engine runs them, but for the bytes."""
    ids = await store.conversations_to_erase(job)
    await store.hide_conversations(ids)
    while files := await store.files_to_erase(job, ids):
        await store.erase_files(job, [file_id for file_id, _ in files])
    await erase_conversations(store, job, ids)
    await store.erase_knowledge(job)
    await store.erase_decisions(job)
    await store.scrub()
    return await store.close_erasure(job)


async def erase_conversations(store: Store, job: ErasureJob, ids: Sequence[ConversationId]) -> list[str]:
    """All steps of it; the storage keys that were left."""
    return [key async for keys in store.erase_conversations(job, ids) for key in keys]


async def words_everywhere(store: Store, tenant: Tenant) -> None:
    """Ann leaves the canary in everything that the store keeps of a user."""
    ann = tenant.ann
    member = await store.member(tenant.org.id, tenant.workspace.id, "ann")
    await save_member(store, tenant.org.id, structs.replace(member, name=CANARY))
    held = await begin(
        store,
        ann,
        f"{CANARY} asked",
        new=NewConversation(title=CANARY, metadata={"note": CANARY}, external_id=CANARY),
        metadata={"note": CANARY},
        idempotency_key=CANARY,
        request_hash="h",
    )
    binding = TokenBinding(purpose="run", turn_id=held.turn_id, attempt=1)
    await store.add_token(secrets.token_bytes(32), binding, expires_in_seconds=60)
    log = LogLine(after_seq=1, level="info", message=CANARY)
    await store.record(held, after=1, rows=[a_row(held, 1)], events=[step(CANARY)], logs=[log])
    await store.settle(held, after=2, settlement=answered(held, CANARY, sequence=2))
    await store.rate_turn(ann, held.turn_id, "down", CANARY)
    new_share = NewShare(secret_hash=secrets.token_bytes(32), seconds=60)
    await store.share_conversation(ann, held.conversation_id, new_share)
    await finish_with_tool(store, ann, CANARY)
    file = await a_file(store, ann, conversation_id=held.conversation_id, name=f"{CANARY}.txt")
    await a_file(store, ann, name=f"{CANARY}.md")
    await store.save_file_text(tenant.org.id, FileText(key=f"{file.sha256}.text", text=CANARY), unit="page")
    await store.create_page(ann, title=CANARY, content=CANARY)
    table = await store.create_table(ann, name=CANARY, columns=[Column(key=0, name=CANARY, type="text")])
    await store.add_rows(ann, table.id, [[CANARY]], batch=CANARY)
    other = await store.create_table(tenant.bob, name="Bob's", columns=[Column(key=0, name="c", type="text")])
    await store.add_rows(ann, other.id, [[CANARY], [CANARY]], batch=f"{CANARY} 2")
    await store.add_rows(tenant.bob, other.id, [["stays"]], batch="b")
    await store.conversations(ann, query=CANARY)
    connection = await store.begin_mcp_connection(
        ann, f"https://{CANARY}", connection_id=new_connection_id(), issuer=CANARY, attempt=CANARY
    )
    await store.finish_mcp_connection(ann, connection.id, attempt=CANARY, sealed=CANARY, issuer=CANARY)


async def found(database: Database, text: str) -> list[str]:
    """The tables in which this text occurs anywhere."""
    return [name for name, rows in (await database.contents()).items() if any(text in repr(row) for row in rows)]


class TestAUser:
    async def test_leaves_no_word_in_any_table(self, store: Store, tenant: Tenant, database: Database) -> None:
        await words_everywhere(store, tenant)
        await finish(store, tenant.bob, "Bob's own")
        assert len(await found(database, CANARY)) >= 10
        job = await begin_user(store, tenant)
        assert await erase(store, job)
        assert await found(database, CANARY) == []
        assert await found(database, str(tenant.ann.user_id)) == ["erasures"]
        await store.finish_erasures([job.id])
        assert await found(database, str(tenant.ann.user_id)) == []
        with pytest.raises(NotFound):
            await store.member(tenant.org.id, tenant.workspace.id, "ann")

    async def test_leaves_nothing_however_much_there_is(self, store: Store, tenant: Tenant, database: Database) -> None:
        """More than one step of each kind."""
        columns = [Column(key=0, name="c", type="text")]
        mine = await store.create_table(tenant.ann, name="mine", columns=columns)
        other = await store.create_table(tenant.bob, name="other", columns=columns)
        gone = await store.create_table(tenant.bob, name="gone", columns=columns)
        for table in (mine, other, gone):
            for n in range(3):
                await store.add_rows(tenant.ann, table.id, [[CANARY]] * 700, batch=f"{CANARY} {n}")
        await store.add_rows(tenant.bob, mine.id, [["Bob's"]], batch="b")
        await store.add_rows(tenant.bob, other.id, [["stays"]], batch="b")
        await store.delete_table(tenant.bob, gone.id)
        for n in range(2 * PAGES_AT_ONCE + 1):
            await store.create_page(tenant.ann, title=f"{CANARY} {n}", content=CANARY)
        job = await begin_user(store, tenant)
        assert await erase(store, job)
        assert await found(database, CANARY) == []
        counts = (await store.erasure(tenant.service, job.id)).counts
        assert (counts.pages, counts.tables) == (2 * PAGES_AT_ONCE + 1, 1)
        assert counts.table_rows == 3 * 2_100 + 1
        [table] = (await store.tables(tenant.bob)).data
        assert (table.name, table.row_count) == ("other", 1)

    @pytest.mark.parametrize("reason", [f'Too "dear": {CANARY}', None])
    @pytest.mark.parametrize("end", ["settled", "waiting"])
    async def test_leaves_no_word_of_decisions_about_calls_of_others(
        self, store: Store, tenant: Tenant, database: Database, end: str, reason: str | None
    ) -> None:
        """The decision itself stays: what the model was told that happened must not change."""
        held = await begin(store, tenant.bob)
        calls = tuple(
            WaitingCall(id=CallId(id_), name="pay", args={}, reason="approval", digest=digest_of("pay", {}))
            for id_ in ("call_1", "call_2")
        )
        now = (await store.turn(tenant.bob, held.turn_id)).created_at
        wait = Wait(calls=calls, since=now, expires_at=now + 3_600_000, reason="approval")
        shown = tuple(ToolCall(id=call.id, name=call.name, args=call.args) for call in calls)
        await store.wait(held, after=1, events=[Approval(calls=shown, expires_at=now)], wait=wait)
        name = f'{CANARY} "A"'
        denied = CallAnswer(verdict="deny", by=name, by_id=str(tenant.ann.user_id), reason=reason)
        turn = await store.answer_calls(tenant.bob, held.turn_id, {CallId("call_1"): denied}, reason="approval")
        if end == "settled":
            mine = CallAnswer(verdict="allow", by="bob")
            await store.answer_calls(tenant.bob, held.turn_id, {CallId("call_2"): mine}, reason="approval")
            [adopted] = await store.adopt("worker", lease_seconds=30)
            held, last = adopted.held, adopted.turn.last_seq
            text = f"Denied by {name}: {reason}" if reason else f"Denied by {name}."
            told = ToolResult(call_id=CallId("call_1"), content=text, is_error=True)
            row = structs.replace(a_row(held, 1), role="user", blocks=(told,))
            failed = Step(id="call_1", name="pay", status="failed", error=text)
            job = await begin_user(store, tenant)
            assert not await erase(store, job), "a worker has the turn in its memory"
            await store.record(held, after=last, rows=[row], events=[failed])
            await store.settle(held, after=last + 1, settlement=answered(held, sequence=2))
        assert await found(database, CANARY)
        job = await begin_user(store, tenant)
        assert await erase(store, job)
        await store.finish_erasures([job.id])
        assert await found(database, CANARY) == []
        turn = await store.turn(tenant.bob, held.turn_id)
        assert turn.wait is not None
        decision = turn.wait.calls[0].decision
        assert decision is not None
        assert (decision.decision, decision.by) == ("deny", "")
        trace = await store.trace(tenant.service, held.turn_id)
        told_now = [block.content for row in trace.rows for block in row.blocks if isinstance(block, ToolResult)]
        assert told_now == (["Denied."] if end == "settled" else [])

    async def test_leaves_what_others_have(self, store: Store, tenant: Tenant) -> None:
        await words_everywhere(store, tenant)
        turn = await finish(store, tenant.bob, "Bob's own")
        assert await erase(store, await begin_user(store, tenant))
        assert (await store.turn(tenant.bob, turn.id)).status == "succeeded"
        [table] = (await store.tables(tenant.bob)).data
        assert (table.name, table.row_count) == ("Bob's", 1)
        assert [row.cells for row in await store.rows(tenant.bob, table.id)] == [("stays",)]

    async def test_is_counted_under_an_anonymous_id(self, store: Store, tenant: Tenant) -> None:
        await finish(store, tenant.ann)
        await finish(store, tenant.ann, source="ui")
        await finish(store, tenant.bob)
        before = await store.usage_rows(tenant.service, UsageFilter(month="2025-06"), group_by="user")
        assert await erase(store, await begin_user(store, tenant))
        after = await store.usage_rows(tenant.service, UsageFilter(month="2025-06"), group_by="user")
        assert [structs.replace(row, group=None) for row in after] == [
            structs.replace(row, group=None) for row in before
        ]
        groups = {row.group for row in after}
        assert tenant.bob.user_id in groups
        assert tenant.ann.user_id not in groups
        assert (await store.usage(tenant.service)).messages == 3
        nobody = next(group for group in groups if group != tenant.bob.user_id)
        assert (await store.usage(tenant.service, user_id=UserId(str(nobody)))).messages == 2

    async def test_can_do_nothing_from_the_beginning(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        job = await begin_user(store, tenant)
        for attempt in (
            claim(store, tenant.ann),
            store.create_conversation(tenant.ann, NewConversation()),
            store.add_files(tenant.ann, [new_file("late")]),
            store.create_page(tenant.ann, title="late", content=""),
        ):
            with pytest.raises(Forbidden):
                await attempt
        assert await erase(store, job)
        for attempt in (
            claim(store, tenant.ann),
            store.create_conversation(tenant.ann, NewConversation()),
            store.add_files(tenant.ann, [new_file("late")]),
        ):
            with pytest.raises(Forbidden):
                await attempt
        with pytest.raises(NotFound):
            await claim(store, tenant.ann, conversation_id=conversation.id)

    async def test_who_comes_again_is_a_new_user(self, store: Store, tenant: Tenant) -> None:
        assert await erase(store, await begin_user(store, tenant))
        again = await a_user(store, tenant.workspace, "ann")
        assert again.user_id != tenant.ann.user_id
        assert (await store.conversations(again)).data == ()
        assert (await claim(store, again)).is_new

    async def test_who_asks_a_hundred_times_meanwhile_leaves_nothing(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        async def ask() -> None:
            with pytest.raises(Forbidden):  # noqa: PT012
                while True:
                    held = await begin(store, tenant.ann, CANARY)
                    await store.settle(held, after=1, settlement=answered(held))

        async def remove() -> None:
            await asyncio.sleep(0.05)
            job = await begin_user(store, tenant)
            for _ in range(100):
                if await erase(store, job):
                    return
            pytest.fail("The erasure does not end.")

        await asyncio.gather(*(ask() for _ in range(10)), remove())
        assert await found(database, CANARY) == []

    async def test_whose_turn_runs_is_erased_once_it_has_ended(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann, CANARY)
        waiting = await wait_in_queue(store, tenant.ann, held.conversation_id)
        job = await begin_user(store, tenant)
        [conversation_id] = await store.conversations_to_erase(job)
        hidden = await store.hide_conversations([conversation_id])
        assert hidden.running == (held.turn_id,)
        assert hidden.ended == ((waiting.id, (await store.events(waiting.id))[-1]),)
        assert await erase_conversations(store, job, [conversation_id]) == []
        assert not await store.close_erasure(job)
        await store.settle(held, after=1, settlement=stopped(held))
        assert await erase(store, job)

    async def test_gives_the_keys_of_each_step_before_the_next(
        self, store: Store, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("turnkeep.store.rules.erasures.TURNS_AT_ONCE", 1)
        turns = [await finish(store, tenant.ann) for _ in range(3)]
        files = [await a_file(store, tenant.ann, conversation_id=turn.conversation_id) for turn in turns]
        key_of = {file.conversation_id: file.storage_key for file in files}
        job = await begin_user(store, tenant)
        ids = await store.conversations_to_erase(job)
        await store.hide_conversations(ids)
        left = set(ids)
        async for keys in store.erase_conversations(job, ids):
            [erased] = left - set(await store.conversations_to_erase(job))
            assert list(keys) == [key_of[erased]]
            left.remove(erased)
        assert not left

    async def test_of_another_tenant_or_workspace_is_not_found(self, store: Store, tenant: Tenant) -> None:
        stranger = await a_tenant(store, "Other")
        with pytest.raises(NotFound):
            await store.begin_erasure(stranger.service, user_id=tenant.ann.user_id, lease_seconds=LEASE)
        with pytest.raises(InvalidRequest):
            await store.begin_erasure(stranger.service, lease_seconds=LEASE)


class TestAConversation:
    async def begin(self, store: Store, by: Principal, conversation_id: ConversationId) -> ErasureJob:
        return await store.begin_erasure(by, conversation_id=conversation_id, lease_seconds=LEASE)

    async def test_is_erased_alone(self, store: Store, tenant: Tenant, database: Database) -> None:
        gone = await finish_with_tool(store, tenant.ann, CANARY)
        stays = await finish(store, tenant.ann, "stays")
        file = await a_file(store, tenant.ann, conversation_id=gone.conversation_id, name=f"{CANARY}.txt")
        job = await self.begin(store, tenant.ann, gone.conversation_id)
        assert await store.files_to_erase(job, [gone.conversation_id]) == [(file.id, file.storage_key)]
        assert await erase(store, job)
        assert await found(database, CANARY) == []
        assert (await store.turn(tenant.ann, stays.id)).id == stays.id
        counts = (await store.erasure(tenant.service, job.id)).counts
        assert (counts.conversations, counts.turns, counts.messages, counts.files) == (1, 1, 2, 1)
        assert counts.bytes == file.size

    async def test_may_be_deleted_already(self, store: Store, tenant: Tenant, database: Database) -> None:
        turn = await finish(store, tenant.ann, CANARY)
        await store.delete_conversation(tenant.ann, turn.conversation_id)
        assert await erase(store, await self.begin(store, tenant.ann, turn.conversation_id))
        assert await found(database, CANARY) == []
        with pytest.raises(NotFound):
            await store.restore_conversation(tenant.ann, turn.conversation_id)

    async def test_of_another_user_is_not_found(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann)
        stranger = await a_tenant(store, "Other")
        for by in (tenant.bob, stranger.service, as_user(tenant.service, tenant.bob)):
            with pytest.raises(NotFound):
                await self.begin(store, by, turn.conversation_id)
        assert (await store.turn(tenant.ann, turn.id)).id == turn.id
        job = await self.begin(store, tenant.ann, turn.conversation_id)
        with pytest.raises(NotFound):
            await self.begin(store, tenant.bob, turn.conversation_id)
        assert await erase(store, job)
        with pytest.raises(NotFound):
            await self.begin(store, tenant.ann, turn.conversation_id)

    async def test_takes_the_text_of_its_files_unless_another_file_has_the_same_bytes(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        turn = await finish(store, tenant.ann)
        file = await a_file(store, tenant.ann, conversation_id=turn.conversation_id, sha256="ab" * 32)
        shared = await a_file(store, tenant.ann, conversation_id=turn.conversation_id, sha256="cd" * 32)
        await a_file(store, tenant.bob, sha256=shared.sha256)
        for each, text in ((file, CANARY), (shared, "shared words")):
            await store.save_file_text(tenant.org.id, FileText(key=f"{each.sha256}.text", text=text), unit="page")
        assert await erase(store, await self.begin(store, tenant.ann, turn.conversation_id))
        assert await found(database, CANARY) == []
        assert "file_texts" in await found(database, "shared words")

    async def test_of_two_that_had_the_last_files_of_the_same_bytes_leaves_no_text(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        jobs: list[tuple[ErasureJob, FileId]] = []
        for _ in range(8):
            turn = await finish(store, tenant.ann)
            file = await a_file(store, tenant.ann, conversation_id=turn.conversation_id, sha256="ab" * 32)
            jobs.append((await self.begin(store, tenant.ann, turn.conversation_id), file.id))
        await store.save_file_text(tenant.org.id, FileText(key=f"{'ab' * 32}.text", text=CANARY), unit="page")
        await asyncio.gather(*(store.erase_files(job, [file_id]) for job, file_id in jobs))
        await store.scrub()
        assert await found(database, CANARY) == []

    async def test_gets_no_text_of_a_file_that_was_erased_while_it_was_read(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann)
        file = await a_file(store, tenant.ann, conversation_id=turn.conversation_id)
        assert await erase(store, await self.begin(store, tenant.ann, turn.conversation_id))
        text = FileText(key=f"{file.sha256}.text", text=CANARY)
        await store.save_file_text(tenant.org.id, text, unit="page")
        assert await store.file_texts(tenant.org.id, [text.key]) == {}


class TestTheJob:
    async def test_is_found_again_by_its_workspace_alone(self, store: Store, tenant: Tenant) -> None:
        job = await begin_user(store, tenant)
        assert await begin_user(store, tenant) == job, "the same job, not another"
        assert await store.erasure(tenant.service, job.id) == job
        stranger = await a_tenant(store, "Other")
        for by, erasure_id in ((stranger.service, job.id), (tenant.service, ErasureId("erasure_" + "0" * 32))):
            with pytest.raises(NotFound):
                await store.erasure(by, erasure_id)

    async def test_of_two_requests_at_once_is_one(self, store: Store, tenant: Tenant) -> None:
        jobs = await asyncio.gather(*(begin_user(store, tenant) for _ in range(8)))
        assert len({job.id for job in jobs}) == 1

    async def test_is_taken_by_one_worker_when_its_lease_has_ended(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        job = await begin_user(store, tenant)
        assert not (await store.due_work()).has_erasures
        assert await store.take_erasures(lease_seconds=LEASE) == []
        await database.advance(seconds=LEASE + 1)
        assert (await store.due_work()).has_erasures
        taken = await asyncio.gather(*(store.take_erasures(lease_seconds=LEASE) for _ in range(4)))
        assert [each.id for some in taken for each in some] == [job.id]
        await store.postpone_erasure(job.id, seconds=0)
        assert (await store.due_work()).has_erasures

    async def test_that_failed_says_why_and_how_often_until_it_is_done(self, store: Store, tenant: Tenant) -> None:
        job = await begin_user(store, tenant)
        await store.postpone_erasure(job.id, seconds=0)
        assert (await store.erasure(tenant.service, job.id)).failures == 0
        for _ in range(2):
            await store.postpone_erasure(job.id, seconds=0, problem="The disk is full.")
        [taken] = await store.take_erasures(lease_seconds=LEASE)
        assert (taken.failures, taken.problem) == (2, "The disk is full.")
        assert await erase(store, taken)
        await store.finish_erasures([job.id])
        assert (await store.erasure(tenant.service, job.id)).problem is None

    async def test_counts_each_thing_once_however_often_a_step_is_repeated(self, store: Store, tenant: Tenant) -> None:
        await words_everywhere(store, tenant)
        job = await begin_user(store, tenant)
        for _ in range(3):
            ids = await store.conversations_to_erase(job)
            await store.hide_conversations(ids)
            await erase_conversations(store, job, ids)
            await store.erase_knowledge(job)
        assert await erase(store, job)
        counts = (await store.erasure(tenant.service, job.id)).counts
        assert (counts.conversations, counts.turns, counts.messages) == (2, 2, 4)
        assert (counts.files, counts.pages, counts.tables, counts.table_rows) == (2, 1, 1, 3)

    async def test_that_is_closed_tells_every_worker_to_forget(self, store: Store, tenant: Tenant) -> None:
        assert (await store.due_work()).erased_at == 0
        job = await begin_user(store, tenant)
        assert await erase(store, job)
        assert (await store.due_work()).erased_at > 0
        await store.finish_erasures([job.id])
        done = await store.erasure(tenant.service, job.id)
        assert done.done_at is not None
        assert done.user_id is None
        assert not (await store.due_work()).has_erasures

    async def test_that_ended_long_ago_is_dropped(self, store: Store, tenant: Tenant, database: Database) -> None:
        job = await begin_user(store, tenant)
        assert await erase(store, job)
        await store.finish_erasures([job.id])
        await database.advance(seconds=31 * 86_400)
        await store.finish_erasures([])
        with pytest.raises(NotFound):
            await store.erasure(tenant.service, job.id)

    async def test_scrubs_while_others_write(self, store: Store, tenant: Tenant) -> None:
        writes = [store.claim(a_claim(tenant.ann)) for _ in range(20)]
        scrubbed, claimed = await asyncio.gather(store.scrub(), asyncio.gather(*writes))
        assert scrubbed
        assert all(each.is_new for each in claimed)
