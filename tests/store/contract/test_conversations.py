"""Conversations: listed, changed, deleted, restored, purged."""

import secrets
from functools import partial
from typing import Any

import pytest
from msgspec import structs

from tests.store.databases import Database
from tests.store.factories import (
    Tenant,
    a_conversation,
    a_file,
    a_row,
    a_tenant,
    a_user,
    answered,
    as_user,
    begin,
    changed_tables,
    claim,
    elsewhere,
    finish,
    finish_with_tool,
    kinds,
    nothing_written,
    step,
    stopped,
    transcript_of,
    wait_in_queue,
)
from turnkeep.errors import CallerError, ConversationBusy, NotFound, TooLarge
from turnkeep.ids import ConversationId, new_agent_id, new_conversation_id
from turnkeep.model.agents import AgentSpec
from turnkeep.model.conversations import ConversationFolder
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Turn
from turnkeep.store.commands import ConversationChange, ConversationFilter, NewConversation, Purged, TokenBinding
from turnkeep.store.ports import Store
from turnkeep_client.wire.blocks import Usage
from turnkeep_client.wire.events import LogLine


async def listed(store: Store, by: Principal) -> list[ConversationId]:
    return [hit.conversation.id for hit in (await store.conversations(by, limit=100)).data]


class TestPagesInBytes:
    """What a reader does not take stays in the server's memory, so a page of large conversations has fewer."""

    async def large(self, store: Store, tenant: Tenant, megabytes: float) -> ConversationId:
        """A conversation as it may be stored already, or come with an import."""
        turn = await finish(store, tenant.ann, "needle")
        exported = await store.export_conversation(tenant.service, turn.conversation_id)
        conversation = structs.replace(exported.conversation, metadata={"x": "é" * int(megabytes * 2**19)})
        imported = await store.import_conversation(tenant.bob, structs.replace(exported, conversation=conversation))
        return imported.id

    @pytest.mark.parametrize("query", [None, "needle"])
    async def test_end_early_and_lose_none(
        self, store: Store, tenant: Tenant, database: Database, query: str | None
    ) -> None:
        made = []
        for megabytes in (1.5, 1.5, 0.1, 3.9, 3.9, 3.9, 0.05):
            await database.advance(seconds=1)
            made.append(await self.large(store, tenant, megabytes))
        pages: list[list[ConversationId]] = []
        cursor: str | None = None
        while cursor is not None or not pages:
            page = await store.conversations(tenant.bob, query=query, limit=100, cursor=cursor)
            pages.append([hit.conversation.id for hit in page.data])
            cursor = page.next_cursor
        assert [len(page) for page in pages] == [2, 1, 1, 3]
        assert [one for page in pages for one in page] == made[::-1]

    async def test_a_service_sees_the_same(self, store: Store, tenant: Tenant) -> None:
        for _ in range(3):
            await self.large(store, tenant, 3)
        first = await store.conversations(tenant.service, limit=100)
        assert len(first.data) >= 1
        assert first.next_cursor is not None


class TestMetadata:
    async def test_over_16_KiB_is_refused_wherever_it_is_given(self, store: Store, tenant: Tenant) -> None:
        fits, large = {"x": "y" * 16_000}, {"x": "y" * 17_000}
        conversation = await a_conversation(store, tenant.ann, metadata=fits)
        await store.change_conversation(tenant.ann, conversation.id, ConversationChange(metadata=fits))
        for refused in (
            store.create_conversation(tenant.ann, NewConversation(metadata=large)),
            store.change_conversation(tenant.ann, conversation.id, ConversationChange(metadata=large)),
            claim(store, tenant.ann, new=NewConversation(metadata=large)),
        ):
            with pytest.raises(TooLarge, match="metadata"):
                await refused


class TestCreating:
    async def test_it_is_empty_and_owned_by_who_asked(self, store: Store, tenant: Tenant, database: Database) -> None:
        agent = await store.create_agent(tenant.service, AgentSpec(name="Guide"))
        created = await a_conversation(
            store,
            tenant.ann,
            kind="sandbox",
            agent_id=agent.id,
            model="m-1",
            workflow_id="flow-7",
            title="Plans",
            metadata={"a": {"b": [1]}},
        )
        assert await store.conversation(tenant.ann, created.id) == created
        assert (created.user_id, created.workspace_id) == (tenant.ann.user_id, tenant.workspace.id)
        assert (created.kind, created.agent_id, created.model) == ("sandbox", agent.id, "m-1")
        assert (created.workflow_id, created.title, created.preview) == ("flow-7", "Plans", None)
        assert created.metadata == {"a": {"b": [1]}}
        assert (created.message_count, created.turn_count) == (0, 0)
        assert (created.head_turn_id, created.running_turn_id, created.deleted_at) == (None, None, None)
        assert created.created_at == created.updated_at == database.now

    async def test_a_service_may_own_one_without_a_user(self, store: Store, tenant: Tenant) -> None:
        created = await a_conversation(store, tenant.service)
        assert created.user_id is None
        with pytest.raises(NotFound):
            await store.conversation(tenant.ann, created.id)

    async def test_a_title_that_cannot_be_kept_is_refused(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        async with nothing_written(database):
            for title in ("", "  ", "t" * 201, "a\0b"):
                with pytest.raises(CallerError):
                    await a_conversation(store, tenant.ann, title=title)


class TestListing:
    async def test_newest_change_first(self, store: Store, tenant: Tenant, database: Database) -> None:
        ids = []
        for _ in range(3):
            ids.append((await a_conversation(store, tenant.ann)).id)
            await database.advance(seconds=1)
        assert await listed(store, tenant.ann) == ids[::-1]
        await finish(store, tenant.ann, conversation_id=ids[0])
        assert await listed(store, tenant.ann) == [ids[0], ids[2], ids[1]]

    async def test_equal_times_are_ordered_by_id(self, store: Store, tenant: Tenant) -> None:
        ids = [(await a_conversation(store, tenant.ann)).id for _ in range(5)]
        assert await listed(store, tenant.ann) == sorted(ids, reverse=True)

    @pytest.mark.parametrize("limit", [1, 2, 5, 7])
    async def test_pages_meet_each_once(self, store: Store, tenant: Tenant, database: Database, limit: int) -> None:
        for number in range(7):
            await a_conversation(store, tenant.ann)
            if number % 3 == 0:
                await database.advance(seconds=1)
        met: list[ConversationId] = []
        cursor: str | None = None
        pages = 0
        while pages == 0 or cursor is not None:
            page = await store.conversations(tenant.ann, limit=limit, cursor=cursor)
            met += [hit.conversation.id for hit in page.data]
            cursor = page.next_cursor
            pages += 1
        assert met == await listed(store, tenant.ann)
        assert (len(set(met)), pages) == (7, -(-7 // limit))

    async def test_a_user_sees_their_own_and_a_service_the_whole_workspace(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        anns = await a_conversation(store, tenant.ann)
        await database.advance(seconds=1)
        bobs = await a_conversation(store, tenant.bob)
        stranger = await a_tenant(store, "Other")
        await a_conversation(store, stranger.ann)
        other = await store.create_workspace(tenant.org.id, "Other")
        await a_conversation(store, await a_user(store, other, "ann"))
        assert await listed(store, tenant.ann) == [anns.id]
        assert await listed(store, tenant.bob) == [bobs.id]
        assert await listed(store, tenant.service) == [bobs.id, anns.id]
        assert await listed(store, as_user(tenant.service, tenant.ann)) == [anns.id]

    async def test_runs_and_deleted_ones_are_left_out(self, store: Store, tenant: Tenant) -> None:
        await a_conversation(store, tenant.ann, kind="run")
        gone = await a_conversation(store, tenant.ann)
        await store.delete_conversation(tenant.ann, gone.id)
        assert await listed(store, tenant.ann) == []

    async def test_an_entry_says_which_turn_runs(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        [hit] = (await store.conversations(tenant.ann)).data
        assert hit.conversation == await store.conversation(tenant.ann, held.conversation_id)
        assert hit.conversation.running_turn_id == held.turn_id


class TestChanging:
    async def test_what_is_not_named_stays(self, store: Store, tenant: Tenant, database: Database) -> None:
        before = await a_conversation(store, tenant.ann, title="One", model="m-1", metadata={"a": 1})
        await database.advance(seconds=1)
        changed = await store.change_conversation(tenant.ann, before.id, ConversationChange(title="Two"))
        assert changed == structs.replace(before, title="Two")
        assert await store.conversation(tenant.ann, before.id) == changed

    async def test_a_new_title_does_not_move_it_in_the_list(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        older = await a_conversation(store, tenant.ann, title="Older")
        await database.advance(seconds=1)
        newer = await a_conversation(store, tenant.ann, title="Newer")
        await database.advance(seconds=1)
        await store.change_conversation(tenant.ann, older.id, ConversationChange(title="Renamed"))
        assert [hit.conversation.id for hit in (await store.conversations(tenant.ann)).data] == [newer.id, older.id]

    async def test_model_agent_and_metadata(self, store: Store, tenant: Tenant, database: Database) -> None:
        agent = await store.create_agent(tenant.service, AgentSpec(name="Guide"))
        before = await a_conversation(store, tenant.ann)
        await database.advance(seconds=1)
        change = ConversationChange(model="m-2", agent_id=agent.id, metadata={"b": None})
        changed = await store.change_conversation(tenant.ann, before.id, change)
        assert (changed.model, changed.agent_id, changed.metadata) == ("m-2", agent.id, {"b": None})
        assert changed.updated_at == before.updated_at

    async def test_an_agent_that_does_not_exist_here(self, store: Store, tenant: Tenant, database: Database) -> None:
        stranger = await a_tenant(store, "Other")
        theirs = await store.create_agent(stranger.service, AgentSpec(name="Theirs"))
        gone = await store.create_agent(tenant.service, AgentSpec(name="Gone"))
        await store.delete_agent(tenant.service, gone.id)
        mine = await a_conversation(store, tenant.ann)
        async with nothing_written(database):
            for agent_id in (theirs.id, gone.id, new_agent_id()):
                with pytest.raises(NotFound):
                    await store.change_conversation(
                        tenant.ann, mine.id, ConversationChange(agent_id=agent_id, title="New")
                    )

    async def test_a_title_has_1_to_200_characters(self, store: Store, tenant: Tenant, database: Database) -> None:
        mine = await a_conversation(store, tenant.ann)
        async with nothing_written(database):
            for title in ("", " \n", "t" * 201):
                with pytest.raises(CallerError):
                    await store.change_conversation(tenant.ann, mine.id, ConversationChange(title=title))
        change = ConversationChange(title="t" * 200)
        assert (await store.change_conversation(tenant.ann, mine.id, change)).title == "t" * 200

    async def test_of_somebody_else_it_is_not_found(self, store: Store, tenant: Tenant, database: Database) -> None:
        mine = await a_conversation(store, tenant.ann)
        stranger = await a_tenant(store, "Other")
        async with nothing_written(database):
            for by in (tenant.bob, stranger.service, as_user(tenant.service, tenant.bob)):
                with pytest.raises(NotFound):
                    await store.change_conversation(by, mine.id, ConversationChange(title="Stolen"))

    async def test_a_running_turn_does_not_hinder_a_rename(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        change = ConversationChange(title="New")
        assert (await store.change_conversation(tenant.ann, held.conversation_id, change)).title == "New"


class TestDeleting:
    async def test_a_deleted_conversation_is_not_found_by_any_verb_but_restore(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        turn = await finish(store, tenant.ann, "needle")
        conversation_id = turn.conversation_id
        file = await a_file(store, tenant.ann, conversation_id=conversation_id)
        await store.delete_conversation(tenant.ann, conversation_id)
        assert await listed(store, tenant.ann) == []
        assert (await store.conversations(tenant.ann, query="needle")).data == ()
        async with nothing_written(database):
            for by in (tenant.ann, tenant.service):
                attempts = [
                    store.conversation(by, conversation_id),
                    store.transcript(by, conversation_id),
                    store.turn(by, turn.id),
                    store.request_cancel(by, turn.id),
                    store.change_conversation(by, conversation_id, ConversationChange(title="x")),
                    store.delete_conversation(by, conversation_id),
                    store.append(by, conversation_id, elsewhere(conversation_id)),
                    claim(store, by, conversation_id=conversation_id),
                    store.files(by, conversation_id),
                    store.file(by, file.id),
                    a_file(store, by, conversation_id=conversation_id),
                ]
                for attempt in attempts:
                    with pytest.raises(NotFound):
                        await attempt
            for attempt in [
                store.trace(tenant.service, turn.id),
                store.conversation_trace(tenant.service, conversation_id),
                store.export_conversation(tenant.service, conversation_id),
            ]:
                with pytest.raises(NotFound):
                    await attempt

    async def test_of_somebody_else_it_is_not_found(self, store: Store, tenant: Tenant, database: Database) -> None:
        mine = await a_conversation(store, tenant.ann)
        stranger = await a_tenant(store, "Other")
        async with nothing_written(database):
            for by in (tenant.bob, stranger.service):
                with pytest.raises(NotFound):
                    await store.delete_conversation(by, mine.id)
            with pytest.raises(NotFound):
                await store.delete_conversation(tenant.ann, new_conversation_id())

    async def test_while_a_turn_runs_it_asks_for_a_stop_in_the_same_transaction(
        self, store: Store, tenant: Tenant
    ) -> None:
        held = await begin(store, tenant.ann)
        await store.delete_conversation(tenant.ann, held.conversation_id)
        assert (await store.record(held, after=1)).cancel_requested
        settled = await store.settle(held, after=1, settlement=stopped(held))
        assert settled.turn.status == "cancelled"

    async def test_waiting_turns_are_cancelled_and_refunded(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        waiting = [await wait_in_queue(store, tenant.ann, held.conversation_id) for _ in range(2)]
        await store.delete_conversation(tenant.ann, held.conversation_id)
        assert (await store.usage(tenant.ann)).messages == 1
        for turn in waiting:
            assert kinds(await store.events(turn.id)) == ["turn", "error"]
        settled = await store.settle(held, after=1, settlement=stopped(held))
        assert settled.promoted is None
        assert await store.promote_waiting() == []

    async def test_the_holder_may_finish_and_the_next_worker_adopt(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        await store.delete_conversation(tenant.ann, held.conversation_id)
        await database.advance(seconds=31)
        [adopted] = await store.adopt("worker-2", lease_seconds=30)
        assert adopted.turn.cancel_requested_at is not None
        settled = await store.settle(adopted.held, after=2, settlement=answered(adopted.held))
        assert settled.turn.status == "succeeded"


class TestRestoring:
    async def test_everything_is_as_it_was(self, store: Store, tenant: Tenant) -> None:
        turn = await finish_with_tool(store, tenant.ann)
        file = await a_file(store, tenant.ann, conversation_id=turn.conversation_id)
        before = await store.conversation(tenant.ann, turn.conversation_id)
        lines = await transcript_of(store, tenant.ann, turn.conversation_id)
        await store.delete_conversation(tenant.ann, turn.conversation_id)
        restored = await store.restore_conversation(tenant.ann, turn.conversation_id)
        assert structs.replace(restored, updated_at=before.updated_at) == before
        assert await transcript_of(store, tenant.ann, turn.conversation_id) == lines
        assert await store.files(tenant.ann, turn.conversation_id) == [file]
        assert await listed(store, tenant.ann) == [turn.conversation_id]

    async def test_files_that_were_deleted_before_stay_deleted(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann)
        kept = await a_file(store, tenant.ann, "kept.txt", conversation_id=turn.conversation_id)
        gone = await a_file(store, tenant.ann, "gone.txt", conversation_id=turn.conversation_id)
        await store.delete_file(tenant.ann, gone.id)
        await store.delete_conversation(tenant.ann, turn.conversation_id)
        with pytest.raises(NotFound):
            await store.file(tenant.ann, kept.id)
        await store.restore_conversation(tenant.ann, turn.conversation_id)
        assert await store.files(tenant.ann, turn.conversation_id) == [kept]
        with pytest.raises(NotFound):
            await store.file(tenant.ann, gone.id)

    async def test_it_goes_on(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann)
        await store.delete_conversation(tenant.ann, turn.conversation_id)
        await store.restore_conversation(tenant.ann, turn.conversation_id)
        following = await finish(store, tenant.ann, conversation_id=turn.conversation_id)
        assert following.parent_turn_id == turn.id

    async def test_one_that_is_not_deleted_is_answered_as_it_is(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        turn = await finish(store, tenant.ann)
        gone = await a_file(store, tenant.ann, "gone.txt", conversation_id=turn.conversation_id)
        await store.delete_file(tenant.ann, gone.id)
        await store.delete_conversation(tenant.ann, turn.conversation_id)
        restored = await store.restore_conversation(tenant.ann, turn.conversation_id)
        async with nothing_written(database):
            assert await store.restore_conversation(tenant.ann, turn.conversation_id) == restored
            with pytest.raises(NotFound):
                await store.restore_conversation(tenant.bob, turn.conversation_id)

    async def test_only_ones_own(self, store: Store, tenant: Tenant, database: Database) -> None:
        gone = await a_conversation(store, tenant.ann)
        await store.delete_conversation(tenant.ann, gone.id)
        stranger = await a_tenant(store, "Other")
        async with nothing_written(database):
            with pytest.raises(NotFound):
                await store.restore_conversation(tenant.ann, new_conversation_id())
            for by in (tenant.bob, stranger.service):
                with pytest.raises(NotFound):
                    await store.restore_conversation(by, gone.id)


class TestPinsAndFolders:
    async def ids(self, store: Store, by: Principal, **only: Any) -> list[ConversationId]:
        page = await store.conversations(by, only=ConversationFilter(**only), limit=100)
        return [hit.conversation.id for hit in page.data]

    async def test_are_changed_and_listed_by_and_move_nothing_in_the_list(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        made = []
        for n in range(4):
            await database.advance(seconds=1)
            made.append((await finish(store, tenant.ann, f"needle {n}")).conversation_id)
        plain, filed, pinned, both = made
        before = [await store.conversation(tenant.ann, each) for each in made]
        await store.change_conversation(tenant.ann, filed, ConversationChange(folder="Travel"))
        await store.change_conversation(tenant.ann, pinned, ConversationChange(is_pinned=True))
        changed = await store.change_conversation(tenant.ann, both, ConversationChange(folder="Work", is_pinned=True))
        assert changed == structs.replace(before[3], folder="Work", is_pinned=True)
        assert await listed(store, tenant.ann) == made[::-1]
        for by in (tenant.ann, tenant.service):
            assert await self.ids(store, by, is_pinned=True) == [both, pinned]
            assert await self.ids(store, by, is_pinned=False) == [filed, plain]
            assert await self.ids(store, by, folder="Travel") == [filed]
            assert await self.ids(store, by, folder="Work", is_pinned=True) == [both]
            assert await self.ids(store, by, folder="Work", is_pinned=False) == []
            assert await self.ids(store, by, is_filed=True) == [both, filed]
            assert await self.ids(store, by, is_filed=False, is_pinned=False) == [plain]
            assert await self.ids(store, by, folder="Travel", is_filed=False) == []
            found = await store.conversations(by, query="needle", only=ConversationFilter(folder="Travel"))
            assert [hit.conversation.id for hit in found.data] == [filed]
            found = await store.conversations(
                by, query="needle", only=ConversationFilter(is_filed=False, is_pinned=True)
            )
            assert [hit.conversation.id for hit in found.data] == [pinned]
        back = await store.change_conversation(tenant.ann, both, ConversationChange(without=frozenset({"folder"})))
        assert (back.folder, back.is_pinned) == (None, True)
        assert (
            await store.change_conversation(tenant.ann, both, ConversationChange(is_pinned=False))
        ).is_pinned is False

    async def test_of_others_are_not_listed_and_not_renamed(self, store: Store, tenant: Tenant) -> None:
        mine = await a_conversation(store, tenant.ann, folder="Travel")
        theirs = await a_conversation(store, tenant.bob, folder="Travel")
        stranger = await a_tenant(store, "Other")
        assert await store.folders(tenant.ann) == [ConversationFolder(name="Travel", conversations=1)]
        assert await store.folders(tenant.service) == [ConversationFolder(name="Travel", conversations=2)]
        assert await store.folders(stranger.service) == []
        with pytest.raises(NotFound):
            await store.rename_folder(stranger.service, "Travel", "Mine")
        assert await store.rename_folder(tenant.ann, "Travel", "Journeys") == 1
        assert (await store.conversation(tenant.ann, mine.id)).folder == "Journeys"
        assert (await store.conversation(tenant.bob, theirs.id)).folder == "Travel"

    async def test_a_folder_is_renamed_joined_and_removed_with_what_is_in_the_trash(
        self, store: Store, tenant: Tenant
    ) -> None:
        made = [await a_conversation(store, tenant.ann, folder=name) for name in ("B", "B", "A")]
        await store.delete_conversation(tenant.ann, made[0].id)
        assert await store.folders(tenant.ann) == [
            ConversationFolder(name="A", conversations=1),
            ConversationFolder(name="B", conversations=1),
        ]
        assert await store.rename_folder(tenant.ann, "B", "A") == 2
        assert await store.folders(tenant.ann) == [ConversationFolder(name="A", conversations=2)]
        assert (await store.restore_conversation(tenant.ann, made[0].id)).folder == "A"
        assert await store.rename_folder(tenant.ann, "A", None) == 3
        assert await store.folders(tenant.ann) == []
        with pytest.raises(NotFound):
            await store.rename_folder(tenant.ann, "A", "B")

    async def test_a_bad_name_is_refused(self, store: Store, tenant: Tenant, database: Database) -> None:
        conversation = await a_conversation(store, tenant.ann, folder="A")
        async with nothing_written(database):
            for name in ("", "  ", " A", "A\nB", "A" * 101, "A\0"):
                with pytest.raises(CallerError):
                    await store.change_conversation(tenant.ann, conversation.id, ConversationChange(folder=name))
                with pytest.raises(CallerError):
                    await store.rename_folder(tenant.ann, "A", name)
                with pytest.raises(CallerError):
                    await a_conversation(store, tenant.ann, folder=name)

    async def test_are_exported_and_imported(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann)
        await store.change_conversation(
            tenant.ann, turn.conversation_id, ConversationChange(folder="Travel", is_pinned=True)
        )
        exported = await store.export_conversation(tenant.service, turn.conversation_id)
        imported = await store.import_conversation(tenant.bob, exported)
        assert (imported.folder, imported.is_pinned) == ("Travel", True)
        bad = structs.replace(exported, conversation=structs.replace(exported.conversation, folder="x" * 101))
        with pytest.raises(CallerError):
            await store.import_conversation(tenant.bob, bad)


class TestUnread:
    async def is_unread(self, store: Store, tenant: Tenant, conversation_id: ConversationId) -> bool:
        shown = await store.conversation(tenant.ann, conversation_id)
        [hit] = [hit for hit in (await store.conversations(tenant.ann, limit=100)).data if hit.conversation == shown]
        return hit.conversation.is_unread

    async def test_begins_with_the_end_of_a_background_turn_and_ends_with_the_next_one(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann, background=True)
        await database.advance(seconds=1)
        assert not await self.is_unread(store, tenant, held.conversation_id)
        await store.settle(held, after=1, settlement=answered(held))
        assert await self.is_unread(store, tenant, held.conversation_id)
        await database.advance(seconds=1)
        again = await begin(store, tenant.ann, conversation_id=held.conversation_id, background=True)
        assert not await self.is_unread(store, tenant, held.conversation_id)
        await database.advance(seconds=1)
        await store.settle(again, after=1, settlement=stopped(again))
        assert await self.is_unread(store, tenant, held.conversation_id)

    async def test_turns_with_a_reader_mark_nothing(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann, background=True)
        await store.settle(held, after=1, settlement=answered(held))
        await database.advance(seconds=1)
        watched = await begin(store, tenant.ann, conversation_id=held.conversation_id)
        await database.advance(seconds=1)
        await store.settle(watched, after=1, settlement=answered(watched))
        assert not await self.is_unread(store, tenant, held.conversation_id)

    async def test_is_changed_both_ways_and_moves_nothing(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann, background=True)
        await database.advance(seconds=1)
        settled = await store.settle(held, after=1, settlement=answered(held))
        before = await store.conversation(tenant.ann, held.conversation_id)
        for is_unread in (False, True, False):
            await database.advance(seconds=1)
            changed = await store.change_conversation(
                tenant.ann, held.conversation_id, ConversationChange(is_unread=is_unread)
            )
            assert changed.is_unread is is_unread
            assert structs.replace(changed, read_at=before.read_at) == before
        switched = await store.change_conversation(
            tenant.ann, held.conversation_id, ConversationChange(head_turn_id=settled.turn.id)
        )
        assert not switched.is_unread, "who switches the branch has seen it"
        with pytest.raises(NotFound):
            await store.change_conversation(tenant.bob, held.conversation_id, ConversationChange(is_unread=True))

    async def test_an_import_is_not_unread(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann, background=True)
        await database.advance(seconds=1)
        await store.settle(held, after=1, settlement=answered(held))
        exported = await store.export_conversation(tenant.service, held.conversation_id)
        assert not (await store.import_conversation(tenant.ann, exported)).is_unread


class TestInstructionsAndTemperature:
    async def test_are_given_changed_taken_away_and_copied(self, store: Store, tenant: Tenant) -> None:
        made = await a_conversation(store, tenant.ann, instructions="Be brief.", temperature=0.5)
        assert (made.instructions, made.temperature) == ("Be brief.", 0.5)
        change = ConversationChange(instructions="Be long.", temperature=0.0)
        changed = await store.change_conversation(tenant.ann, made.id, change)
        assert (changed.instructions, changed.temperature) == ("Be long.", 0.0)
        assert await store.conversation(tenant.ann, made.id) == changed
        await finish(store, tenant.ann, conversation_id=made.id)
        exported = await store.export_conversation(tenant.service, made.id)
        imported = await store.import_conversation(tenant.bob, exported)
        assert (imported.instructions, imported.temperature) == ("Be long.", 0.0)
        without = ConversationChange(without=frozenset({"instructions", "temperature"}))
        plain = await store.change_conversation(tenant.ann, made.id, without)
        assert (plain.instructions, plain.temperature) == (None, None)

    async def test_that_are_wrong_are_refused(self, store: Store, tenant: Tenant, database: Database) -> None:
        made = await a_conversation(store, tenant.ann)
        async with nothing_written(database):
            for bad in ({"instructions": "x" * 10_001}, {"temperature": -0.1}, {"temperature": 2.1}):
                with pytest.raises(CallerError):
                    await store.change_conversation(tenant.ann, made.id, ConversationChange(**bad))
                with pytest.raises(CallerError):
                    await a_conversation(store, tenant.ann, **bad)


class TestTitles:
    USAGE = Usage(input_tokens=30, output_tokens=4)

    async def wanted(self, store: Store, tenant: Tenant, text: str = "How deep is the sea?") -> Turn:
        turn = await finish(store, tenant.ann, text)
        await store.want_titles([turn.id], by_default=True)
        return turn

    async def title(self, store: Store, tenant: Tenant, turn: Turn) -> tuple[str | None, str | None]:
        shown = await store.conversation(tenant.ann, turn.conversation_id)
        return shown.title, shown.titled_by

    async def test_of_a_model_is_written_found_and_counted_once(self, store: Store, tenant: Tenant) -> None:
        turn = await self.wanted(store, tenant)
        await store.want_titles([turn.id], by_default=True)  # an entry of the outbox may be delivered twice
        before, [entry] = await store.usage(tenant.ann), await store.take_titles(lease_seconds=60)
        assert (entry.conversation_id, entry.subject_id, entry.attempts) == (turn.conversation_id, turn.id, 1)
        assert await store.take_titles(lease_seconds=60) == [], "another worker has it"
        for is_first in (True, False):
            is_written = await store.end_title(entry.id, "Ocean depth", model="m", usage=self.USAGE, cost=0.5)
            assert is_written is is_first
        assert await self.title(store, tenant, turn) == ("Ocean depth", "model")
        [hit] = (await store.conversations(tenant.ann, query="ocean")).data
        assert hit.conversation.id == turn.conversation_id
        after = await store.usage(tenant.ann)
        assert after.messages == before.messages
        assert (after.input_tokens, after.output_tokens) == (before.input_tokens + 30, before.output_tokens + 4)
        await store.want_titles([turn.id], by_default=True)
        assert await store.take_titles(lease_seconds=60) == [], "it has one"

    async def test_of_a_user_is_never_replaced(self, store: Store, tenant: Tenant) -> None:
        turn = await self.wanted(store, tenant)
        [entry] = await store.take_titles(lease_seconds=60)
        await store.change_conversation(tenant.ann, turn.conversation_id, ConversationChange(title="Mine"))
        assert not await store.end_title(entry.id, "Theirs", model="m", usage=self.USAGE, cost=None)
        assert await self.title(store, tenant, turn) == ("Mine", "user")
        named = await a_conversation(store, tenant.ann, title="Named")
        asked = await finish(store, tenant.ann, conversation_id=named.id)
        await store.want_titles([asked.id], by_default=True)
        assert await store.take_titles(lease_seconds=60) == []

    async def test_a_lease_that_ends_lets_another_worker_write_it(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        await self.wanted(store, tenant)
        [entry] = await store.take_titles(lease_seconds=60)
        await database.advance(seconds=61)
        [again] = await store.take_titles(lease_seconds=60)
        assert (again.id, again.attempts) == (entry.id, 2)
        assert await store.take_entries(lease_seconds=60) != []
        assert "title.wanted" not in {each.type for each in await store.take_entries(lease_seconds=60)}

    async def test_none_keeps_the_beginning_of_the_question_for_good(self, store: Store, tenant: Tenant) -> None:
        turn = await self.wanted(store, tenant)
        [entry] = await store.take_titles(lease_seconds=60)
        assert not await store.end_title(entry.id, None, model="m", usage=Usage(), cost=None)
        assert await self.title(store, tenant, turn) == ("How deep is the sea?", "question")
        await store.want_titles([turn.id], by_default=True)
        assert await store.take_titles(lease_seconds=60) == []

    async def test_is_wanted_only_after_an_answer_of_a_listed_conversation(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        failed = (await store.settle(held, after=1, settlement=stopped(held))).turn
        run = await finish(store, tenant.ann, new=NewConversation(kind="run"))
        unlisted = await finish(store, tenant.ann, new=NewConversation(is_listed=False))
        deleted = await finish(store, tenant.ann)
        await store.delete_conversation(tenant.ann, deleted.conversation_id)
        await store.want_titles([failed.id, run.id, unlisted.id, deleted.id], by_default=True)
        assert await store.take_titles(lease_seconds=60) == []

    async def test_is_wanted_as_the_workspace_says_and_otherwise_by_default(self, store: Store, tenant: Tenant) -> None:
        org_id, workspace_id = tenant.ann.org_id, tenant.ann.workspace_id
        cases = (("off", True, False), ("off", False, False), ("m", True, True), ("m", False, True))
        for model, by_default, is_wanted in (*cases, (None, True, True), (None, False, False)):
            change = partial(structs.replace, title_model=model)
            changed = await store.change_workspace(org_id, workspace_id, change)
            assert changed == await store.workspace(org_id, workspace_id)
            assert changed.title_model == model
            turn = await finish(store, tenant.ann)
            assert await store.want_titles([turn.id], by_default=by_default) is is_wanted
            assert len(await store.take_titles(lease_seconds=60)) == is_wanted, (model, by_default)


class TestTrash:
    async def trash(self, store: Store, by: Principal) -> list[ConversationId]:
        return [one.id for one in (await store.deleted_conversations(by, limit=100)).data]

    async def test_has_what_its_owner_deleted_the_last_first_until_it_is_restored_or_purged(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        made = [(await finish(store, tenant.ann, f"Thought {n}")).conversation_id for n in range(3)]
        assert await self.trash(store, tenant.ann) == []
        for each in (made[1], made[2], made[0]):
            await database.advance(seconds=1)
            await store.delete_conversation(tenant.ann, each)
        assert await self.trash(store, tenant.ann) == [made[0], made[2], made[1]]
        [first, *_] = (await store.deleted_conversations(tenant.ann)).data
        assert (first.title, first.message_count, first.deleted_at) == ("Thought 0", 2, database.now)
        await store.restore_conversation(tenant.ann, made[2])
        assert await self.trash(store, tenant.ann) == [made[0], made[1]]
        await store.purge(deleted_before=database.now)
        assert await self.trash(store, tenant.ann) == [made[0]]

    async def test_is_read_in_pages_that_lose_none_of_the_same_moment(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        made = [(await a_conversation(store, tenant.ann)).id for _ in range(5)]
        for each in made:
            await store.delete_conversation(tenant.ann, each)
        seen: list[ConversationId] = []
        cursor = None
        while True:
            page = await store.deleted_conversations(tenant.ann, limit=2, cursor=cursor)
            seen.extend(one.id for one in page.data)
            if (cursor := page.next_cursor) is None:
                break
        assert sorted(seen) == sorted(made)
        with pytest.raises(CallerError):
            await store.deleted_conversations(
                tenant.ann, cursor=(await store.conversations(tenant.ann)).next_cursor or "x"
            )

    async def test_shows_nothing_of_others_no_runs_and_nothing_unlisted(self, store: Store, tenant: Tenant) -> None:
        mine = await a_conversation(store, tenant.ann)
        theirs = await a_conversation(store, tenant.bob)
        run = await a_conversation(store, tenant.ann, kind="run")
        unlisted = await a_conversation(store, tenant.ann, is_listed=False)
        stranger = await a_tenant(store, "Other")
        for by, each in ((tenant.ann, mine), (tenant.bob, theirs), (tenant.ann, run), (tenant.ann, unlisted)):
            await store.delete_conversation(by, each.id)
        assert await self.trash(store, tenant.ann) == [mine.id]
        assert await self.trash(store, tenant.bob) == [theirs.id]
        assert sorted(await self.trash(store, tenant.service)) == sorted([mine.id, theirs.id])
        for other in (stranger.service, stranger.ann):
            assert await self.trash(store, other) == []


class TestDeletingIdleOnes:
    LATER = 1_900_000_000_000
    """In 2030: after the time in the ids that the tests make."""

    async def test_takes_those_that_have_not_changed_with_their_files(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        idle = [await finish(store, tenant.ann) for _ in range(3)]
        file = await a_file(store, tenant.ann, conversation_id=idle[0].conversation_id)
        run = await a_conversation(store, tenant.bob, kind="run")
        used = await finish(store, tenant.ann)
        await database.move_clock_to(self.LATER)
        await finish(store, tenant.ann, conversation_id=used.conversation_id)
        counts = [await store.delete_idle(unchanged_since=self.LATER, limit=2) for _ in range(4)]
        assert counts == [2, 2, 0, 0]
        assert await listed(store, tenant.ann) == [used.conversation_id]
        with pytest.raises(NotFound):
            await store.conversation(tenant.bob, run.id)
        with pytest.raises(NotFound):
            await store.file(tenant.ann, file.id)

    async def test_leaves_what_restores_and_purges_as_any_other(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        turn = await finish(store, tenant.ann)
        file = await a_file(store, tenant.ann, conversation_id=turn.conversation_id)
        await database.move_clock_to(self.LATER)
        await store.delete_idle(unchanged_since=self.LATER)
        await store.restore_conversation(tenant.ann, turn.conversation_id)
        assert await store.files(tenant.ann, turn.conversation_id) == [file]
        await store.delete_idle(unchanged_since=self.LATER)
        assert (await store.purge(deleted_before=self.LATER)).conversations == 0
        assert (await store.purge(deleted_before=self.LATER + 1)).conversations == 1

    async def test_leaves_those_in_which_a_turn_runs_or_waits(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        await wait_in_queue(store, tenant.ann, held.conversation_id)
        await database.move_clock_to(self.LATER)
        assert await store.delete_idle(unchanged_since=self.LATER) == 0
        assert await listed(store, tenant.ann) == [held.conversation_id]

    async def test_leaves_those_that_were_imported_later(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        turn = await finish(store, tenant.ann)
        exported = await store.export_conversation(tenant.service, turn.conversation_id)
        imported = await store.import_conversation(tenant.service, exported)
        before = database.now + 1  # the ids of both are of the real time, which is later
        assert await store.delete_idle(unchanged_since=before) == 0
        assert (await store.conversation(tenant.service, imported.id)).deleted_at is None


class TestUnlisted:
    LATER = 2_000_000_000_000

    async def test_no_list_and_no_search_shows_it_and_its_owner_finds_it_by_its_id(
        self, store: Store, tenant: Tenant
    ) -> None:
        shown = await finish(store, tenant.ann, "words")
        hidden = await finish(store, tenant.ann, "words", new=NewConversation(is_listed=False))
        while await store.index_pending():
            pass
        for principal in (tenant.ann, tenant.service):
            assert await listed(store, principal) == [shown.conversation_id]
            found = await store.conversations(principal, query="words")
            assert [hit.conversation.id for hit in found.data] == [shown.conversation_id]
        assert (await store.conversation(tenant.ann, hidden.conversation_id)).is_listed is False
        assert (await store.conversation(tenant.ann, shown.conversation_id)).is_listed is True

    async def test_it_is_deleted_when_it_was_not_used_for_a_while(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        shown = await finish(store, tenant.ann)
        hidden = await finish(store, tenant.ann, new=NewConversation(is_listed=False))
        held = await begin(store, tenant.ann, new=NewConversation(is_listed=False))
        assert await store.delete_unlisted(unchanged_since=1) == 0
        await database.move_clock_to(self.LATER)
        assert await store.delete_unlisted(unchanged_since=self.LATER) == 1
        with pytest.raises(NotFound):
            await store.conversation(tenant.ann, hidden.conversation_id)
        for left in (shown, held):
            assert (await store.conversation(tenant.ann, left.conversation_id)).deleted_at is None


class TestHeads:
    async def test_without_a_head_nothing_is_visible_until_the_next_turn(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann)
        change = ConversationChange(without=frozenset({"head_turn_id"}))
        changed = await store.change_conversation(tenant.ann, turn.conversation_id, change)
        assert (changed.head_turn_id, changed.turn_count, changed.message_count) == (None, 0, 0)
        assert (await store.transcript(tenant.ann, turn.conversation_id)).data == ()
        held = await begin(store, tenant.ann, conversation_id=turn.conversation_id)
        with pytest.raises(ConversationBusy):
            await store.change_conversation(tenant.ann, turn.conversation_id, change)
        assert (await store.turn(tenant.ann, held.turn_id)).parent_turn_id is None


class TestPurging:
    async def test_it_erases_everything_of_a_conversation_and_nothing_else(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        await finish_with_tool(store, tenant.ann, "stays", new=NewConversation(title="Stays"))
        await store.conversations(tenant.ann, query="stays")
        usage = await store.usage(tenant.service)
        before = await database.contents()
        held = await begin(store, tenant.ann, "goes", source="ui")
        binding = TokenBinding(purpose="run", turn_id=held.turn_id, attempt=1)
        await store.add_token(secrets.token_bytes(32), binding, expires_in_seconds=60)
        log = LogLine(after_seq=1, level="info", message="goes")
        await store.record(held, after=1, rows=[a_row(held, 1)], events=[step("goes")], logs=[log])
        turn = (await store.settle(held, after=2, settlement=answered(held, sequence=2))).turn
        file = await a_file(store, tenant.ann, conversation_id=turn.conversation_id)
        await store.conversations(tenant.ann, query="goes")
        await store.delete_conversation(tenant.ann, turn.conversation_id)
        await database.advance(seconds=10)
        assert await store.purge(deleted_before=database.now) == Purged(
            conversations=1, storage_keys=(file.storage_key,)
        )
        after = await database.contents()
        kept = {name for name in after if name.startswith("usage") or "search_tokens" in name} | {"freed_bytes"}
        assert set(changed_tables(before, after)) <= kept
        assert (await store.usage(tenant.service)).messages == usage.messages + 1
        with pytest.raises(NotFound):
            await store.restore_conversation(tenant.ann, turn.conversation_id)

    async def test_not_before_its_time(self, store: Store, tenant: Tenant, database: Database) -> None:
        mine = await a_conversation(store, tenant.ann)
        await store.delete_conversation(tenant.ann, mine.id)
        assert await store.purge(deleted_before=database.now) == Purged(conversations=0, storage_keys=())
        assert (await store.purge(deleted_before=database.now + 1)).conversations == 1

    async def test_it_waits_for_a_turn_that_still_runs(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        await store.delete_conversation(tenant.ann, held.conversation_id)
        await database.advance(seconds=3600)
        assert (await store.purge(deleted_before=database.now)).conversations == 0
        await store.settle(held, after=1, settlement=stopped(held))
        assert (await store.purge(deleted_before=database.now)).conversations == 1

    async def test_files_that_were_deleted_one_by_one_are_erased_too(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        turn = await finish(store, tenant.ann)
        gone = await a_file(store, tenant.ann, "gone.txt", conversation_id=turn.conversation_id)
        loose = await a_file(store, tenant.ann, "loose.txt")
        kept = await a_file(store, tenant.ann, "kept.txt", conversation_id=turn.conversation_id)
        for file in (gone, loose):
            await store.delete_file(tenant.ann, file.id)
        await database.advance(seconds=10)
        purged = await store.purge(deleted_before=database.now)
        assert purged.conversations == 0
        assert sorted(purged.storage_keys) == sorted([gone.storage_key, loose.storage_key])
        assert await store.files(tenant.ann, turn.conversation_id) == [kept]
        assert (await store.purge(deleted_before=database.now)).storage_keys == ()

    async def test_a_restored_one_is_kept(self, store: Store, tenant: Tenant, database: Database) -> None:
        turn = await finish(store, tenant.ann)
        file = await a_file(store, tenant.ann, conversation_id=turn.conversation_id)
        await store.delete_conversation(tenant.ann, turn.conversation_id)
        await store.restore_conversation(tenant.ann, turn.conversation_id)
        await database.advance(seconds=10)
        assert await store.purge(deleted_before=database.now) == Purged(conversations=0, storage_keys=())
        assert await store.files(tenant.ann, turn.conversation_id) == [file]

    async def test_in_steps_of_its_limit(self, store: Store, tenant: Tenant, database: Database) -> None:
        for _ in range(5):
            await store.delete_conversation(tenant.ann, (await finish(store, tenant.ann)).conversation_id)
        await database.advance(seconds=1)
        counts = [(await store.purge(deleted_before=database.now, limit=2)).conversations for _ in range(4)]
        assert counts == [2, 2, 1, 0]
