"""Claiming: a POST becomes a turn, whole or not at all."""

from typing import Any

import pytest
from msgspec import structs

from tests.store.databases import Database
from tests.store.factories import (
    WORKER,
    Tenant,
    a_claim,
    a_conversation,
    a_file,
    a_tenant,
    a_user,
    as_user,
    begin,
    claim,
    finish,
    held_of,
    kinds,
    nothing_written,
    transcript_of,
)
from turnkeep.clock import month_of
from turnkeep.errors import CallerError, ConversationChanged, InvalidRequest, NotFound
from turnkeep.ids import new_agent_id, new_conversation_id, new_file_id, new_turn_id
from turnkeep.model.agents import AgentSpec, Snapshot
from turnkeep.store.commands import ConversationChange, NewConversation
from turnkeep.store.ports import Store
from turnkeep_client.wire.blocks import Text
from turnkeep_client.wire.events import TurnBegan


class TestTheFirstTurn:
    async def test_it_creates_its_conversation(self, store: Store, tenant: Tenant, database: Database) -> None:
        claimed = await claim(store, tenant.ann, "Hello\nthere", new=NewConversation(kind="sandbox", model="m-1"))
        conversation = await store.conversation(tenant.ann, claimed.turn.conversation_id)
        assert conversation.user_id == tenant.ann.user_id
        assert conversation.workspace_id == tenant.workspace.id
        assert (conversation.kind, conversation.model) == ("sandbox", "m-1")
        assert (conversation.title, conversation.preview) == ("Hello", "Hello")
        assert (conversation.message_count, conversation.turn_count) == (1, 1)
        assert conversation.running_turn_id == claimed.turn.id
        assert conversation.head_turn_id is None
        assert conversation.created_at == conversation.updated_at == database.now

    async def test_it_runs_at_once_and_is_held_by_its_worker(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        claimed = await claim(store, tenant.ann)
        turn = claimed.turn
        assert claimed.is_new
        assert (turn.status, turn.attempt, turn.failures, turn.last_seq) == ("running", 1, 0, 1)
        assert (turn.ordinal, turn.active, turn.parent_turn_id) == (1, True, None)
        assert turn.created_at == turn.started_at == database.now
        assert (turn.settled_at, turn.cancel_requested_at, turn.error) == (None, None, None)
        assert turn.month == month_of(database.now)
        held = held_of(claimed)
        assert (held.turn_id, held.conversation_id, held.attempt) == (turn.id, turn.conversation_id, 1)
        assert await store.turn(tenant.ann, turn.id) == turn

    async def test_its_user_row_and_its_first_event_are_there(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        claimed = await claim(store, tenant.ann, "Hello", metadata={"page": "home"})
        [row] = await store.turn_rows(claimed.turn.id)
        assert row.id == claimed.user_message_id
        assert (row.role, row.turn_sequence, row.internal, row.iteration) == ("user", 0, False, None)
        assert row.blocks == (Text(text="Hello"),)
        assert row.metadata == {"page": "home"}
        assert row.created_at == database.now
        [recorded] = await store.events(claimed.turn.id)
        assert recorded.seq == 1
        assert recorded.event == TurnBegan(
            turn_id=claimed.turn.id,
            conversation_id=claimed.turn.conversation_id,
            user_message_id=claimed.user_message_id,
            status="running",
            attempt=1,
        )

    async def test_it_keeps_what_it_runs_with(self, store: Store, tenant: Tenant) -> None:
        snapshot = Snapshot(
            agent_id=new_agent_id(),
            agent=AgentSpec(name="Guide", tools=("weather", {"name": "http", "url": "https://example.org"})),
            model="m-1",
        )
        claimed = await claim(
            store, tenant.ann, snapshot=snapshot, model="m-1", source="ui", background=True, metadata={"a": [1, None]}
        )
        turn = await store.turn(tenant.ann, claimed.turn.id)
        assert turn.snapshot == snapshot
        assert (turn.model, turn.source, turn.background) == ("m-1", "ui", True)
        assert turn.metadata == {"a": [1, None]}

    async def test_a_given_title_stays(self, store: Store, tenant: Tenant) -> None:
        claimed = await claim(store, tenant.ann, "Hello", new=NewConversation(title="Greetings"))
        conversation = await store.conversation(tenant.ann, claimed.turn.conversation_id)
        assert (conversation.title, conversation.preview) == ("Greetings", "Hello")

    async def test_a_long_first_line_is_cut(self, store: Store, tenant: Tenant) -> None:
        claimed = await claim(store, tenant.ann, "word " * 100)
        conversation = await store.conversation(tenant.ann, claimed.turn.conversation_id)
        assert conversation.title is not None
        assert conversation.preview is not None
        assert len(conversation.title) <= 80 < len(conversation.preview) <= 120

    async def test_its_message_is_visible_at_once(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann, "Hello")
        assert await transcript_of(store, tenant.ann, held.conversation_id) == ["user: Hello"]


class TestTheNextTurn:
    async def test_it_follows_the_head(self, store: Store, tenant: Tenant) -> None:
        first = await finish(store, tenant.ann)
        second = (await claim(store, tenant.ann, conversation_id=first.conversation_id)).turn
        assert (second.ordinal, second.parent_turn_id) == (2, first.id)

    async def test_it_counts_and_moves_the_conversation_up(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        first = await finish(store, tenant.ann, "One")
        await database.advance(seconds=5)
        await begin(store, tenant.ann, "Two", conversation_id=first.conversation_id)
        conversation = await store.conversation(tenant.ann, first.conversation_id)
        assert (conversation.message_count, conversation.turn_count) == (3, 2)
        assert conversation.updated_at == database.now
        assert (conversation.title, conversation.preview) == ("One", "One")
        assert conversation.head_turn_id == first.id

    async def test_it_names_a_conversation_that_was_created_empty(self, store: Store, tenant: Tenant) -> None:
        empty = await a_conversation(store, tenant.ann)
        await begin(store, tenant.ann, "Hello", conversation_id=empty.id)
        conversation = await store.conversation(tenant.ann, empty.id)
        assert (conversation.title, conversation.preview) == ("Hello", "Hello")

    async def test_a_service_writes_into_any_conversation_of_its_workspace(self, store: Store, tenant: Tenant) -> None:
        first = await finish(store, tenant.ann)
        claimed = await claim(store, tenant.service, conversation_id=first.conversation_id)
        assert claimed.turn.parent_turn_id == first.id

    async def test_a_service_that_acts_for_a_user_is_that_user(self, store: Store, tenant: Tenant) -> None:
        claimed = await claim(store, as_user(tenant.service, tenant.ann))
        conversation = await store.conversation(tenant.ann, claimed.turn.conversation_id)
        assert conversation.user_id == tenant.ann.user_id


class TestRefusals:
    async def test_an_unknown_conversation(self, store: Store, tenant: Tenant, database: Database) -> None:
        async with nothing_written(database):
            with pytest.raises(NotFound):
                await claim(store, tenant.ann, conversation_id=new_conversation_id())

    async def test_a_conversation_of_another_user(self, store: Store, tenant: Tenant, database: Database) -> None:
        theirs = await finish(store, tenant.ann)
        async with nothing_written(database):
            with pytest.raises(NotFound):
                await claim(store, tenant.bob, conversation_id=theirs.conversation_id)
            with pytest.raises(NotFound):
                await claim(store, as_user(tenant.service, tenant.bob), conversation_id=theirs.conversation_id)

    async def test_a_conversation_of_another_workspace(self, store: Store, tenant: Tenant, database: Database) -> None:
        theirs = await finish(store, tenant.ann)
        other = await store.create_workspace(tenant.org.id, "Other")
        elsewhere = structs.replace(tenant.service, workspace_id=other.id)
        async with nothing_written(database):
            with pytest.raises(NotFound):
                await claim(store, elsewhere, conversation_id=theirs.conversation_id)

    async def test_a_conversation_of_another_org(self, store: Store, tenant: Tenant, database: Database) -> None:
        theirs = await finish(store, tenant.ann)
        stranger = await a_tenant(store, "Other")
        forged = structs.replace(stranger.service, workspace_id=tenant.workspace.id)
        async with nothing_written(database):
            with pytest.raises(NotFound):
                await claim(store, stranger.service, conversation_id=theirs.conversation_id)
            with pytest.raises(NotFound):
                await claim(store, forged, conversation_id=theirs.conversation_id)

    async def test_a_deleted_conversation(self, store: Store, tenant: Tenant, database: Database) -> None:
        gone = await finish(store, tenant.ann)
        await store.delete_conversation(tenant.ann, gone.conversation_id)
        async with nothing_written(database):
            with pytest.raises(NotFound):
                await claim(store, tenant.ann, conversation_id=gone.conversation_id)

    async def test_a_first_turn_that_is_refused_leaves_no_conversation(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        async with nothing_written(database):
            with pytest.raises(NotFound):
                await claim(store, tenant.ann, attachment_ids=(new_file_id(),))

    @pytest.mark.parametrize(
        "fields",
        [
            pytest.param({"blocks": ()}, id="nothing-said"),
            pytest.param({"beside": new_turn_id()}, id="beside-without-conversation"),
            pytest.param({"idempotency_key": "k"}, id="key-without-hash"),
            pytest.param({"lease_seconds": 0}, id="no-lease"),
            pytest.param({"queue_limit": -1}, id="negative-queue"),
            pytest.param({"new": NewConversation(title="t" * 201)}, id="long-title"),
            pytest.param({"new": NewConversation(title=" ")}, id="blank-title"),
        ],
    )
    async def test_a_claim_that_makes_no_sense(
        self, store: Store, tenant: Tenant, database: Database, fields: dict[str, Any]
    ) -> None:
        async with nothing_written(database):
            with pytest.raises(CallerError):
                await claim(store, tenant.ann, **fields)


class TestTheQuestion:
    async def test_comes_with_the_claim_as_it_is_stored(self, store: Store, tenant: Tenant) -> None:
        claimed = await claim(store, tenant.ann, "Hello", metadata={"tag": 1})
        assert claimed.question is not None
        assert await store.turn_rows(claimed.turn.id) == [claimed.question]
        assert (await store.window(claimed.turn.conversation_id)).rows == (claimed.question,)


class TestALostAnswer:
    async def test_the_same_claim_again_finds_its_turn_and_still_holds_it(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        request = a_claim(tenant.ann)
        first = await store.claim(request)
        async with nothing_written(database):
            again = await store.claim(request)
        assert again.turn == first.turn
        assert again.user_message_id == first.user_message_id
        assert again.held == first.held
        assert not again.is_new

    async def test_another_worker_does_not_get_to_hold_it(self, store: Store, tenant: Tenant) -> None:
        request = a_claim(tenant.ann)
        await store.claim(request)
        again = await store.claim(structs.replace(request, worker="worker-2"))
        assert again.turn.id == request.turn_id
        assert again.held is None

    async def test_it_is_not_held_again_once_another_attempt_began(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        request = a_claim(tenant.ann)
        await store.claim(request)
        await database.advance(seconds=31)
        await store.adopt(WORKER, lease_seconds=30)
        again = await store.claim(request)
        assert again.turn.attempt == 2
        assert again.held is None

    async def test_a_turn_id_of_somebody_else_is_refused(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        theirs = await claim(store, tenant.ann)
        async with nothing_written(database):
            with pytest.raises(CallerError):
                await claim(store, tenant.bob, turn_id=theirs.turn.id)


class TestSettings:
    """A claim names the settings of the conversation from which its turn was made."""

    GIVEN = NewConversation(kind="chat", model="m-1", instructions="Be brief.", temperature=0.7)

    async def test_the_same_ones_are_accepted(self, store: Store, tenant: Tenant) -> None:
        agent = await store.create_agent(tenant.service, AgentSpec(name="Helper"))
        given = structs.replace(self.GIVEN, agent_id=agent.id)
        turn = await finish(store, tenant.ann, new=given)
        conversation = await store.conversation(tenant.ann, turn.conversation_id)
        assert conversation.turn_settings == given.turn_settings
        second = await claim(store, tenant.ann, conversation_id=conversation.id, settings=given.turn_settings)
        assert second.is_new
        assert (second.turns_before, (await claim(store, tenant.ann)).turns_before) == (1, 0)

    @pytest.mark.parametrize(
        "change",
        [
            ConversationChange(model="m-2"),
            ConversationChange(instructions="Be long."),
            ConversationChange(temperature=0.8),
            ConversationChange(without=frozenset({"model"})),
        ],
    )
    @pytest.mark.parametrize("with_file", [False, True])
    async def test_others_are_refused(
        self, store: Store, tenant: Tenant, database: Database, change: ConversationChange, with_file: bool
    ) -> None:
        conversation_id = (await finish(store, tenant.ann, new=self.GIVEN)).conversation_id
        files = ((await a_file(store, tenant.ann)).id,) if with_file else ()
        await store.change_conversation(tenant.ann, conversation_id, change)
        question: dict[str, Any] = {"conversation_id": conversation_id, "attachment_ids": files}
        async with nothing_written(database):
            with pytest.raises(ConversationChanged):
                await claim(store, tenant.ann, settings=self.GIVEN.turn_settings, **question)
        settings = (await store.conversation(tenant.ann, conversation_id)).turn_settings
        assert (await claim(store, tenant.ann, settings=settings, **question)).is_new

    async def test_a_repeated_claim_finds_its_turn_all_the_same(self, store: Store, tenant: Tenant) -> None:
        conversation_id = (await finish(store, tenant.ann, new=self.GIVEN)).conversation_id
        request = a_claim(tenant.ann, conversation_id=conversation_id, settings=self.GIVEN.turn_settings)
        claimed = await store.claim(request)
        await store.change_conversation(tenant.ann, conversation_id, ConversationChange(model="m-2"))
        assert (await store.claim(request)).turn.id == claimed.turn.id


class TestAttachments:
    async def test_they_join_the_bag_and_the_message(self, store: Store, tenant: Tenant) -> None:
        file = await a_file(store, tenant.ann, "plan.pdf")
        claimed = await claim(store, tenant.ann, attachment_ids=(file.id,))
        attached = await store.file(tenant.ann, file.id)
        assert attached.conversation_id == claimed.turn.conversation_id
        assert attached.message_id == claimed.user_message_id
        [row] = await store.turn_rows(claimed.turn.id)
        assert row.attachments == (attached.ref(),)
        [message] = (await store.transcript(tenant.ann, claimed.turn.conversation_id)).data
        assert message.attachments == (attached.ref(),)

    async def test_a_message_may_be_an_attachment_alone(self, store: Store, tenant: Tenant) -> None:
        file = await a_file(store, tenant.ann)
        claimed = await claim(store, tenant.ann, blocks=(), attachment_ids=(file.id,))
        conversation = await store.conversation(tenant.ann, claimed.turn.conversation_id)
        assert conversation.title is None

    async def test_a_name_that_the_bag_has_already_is_changed_in_the_message_too(
        self, store: Store, tenant: Tenant
    ) -> None:
        first = await finish(store, tenant.ann)
        await a_file(store, tenant.ann, "plan.pdf", conversation_id=first.conversation_id)
        loose = await a_file(store, tenant.ann, "plan.pdf")
        claimed = await claim(store, tenant.ann, conversation_id=first.conversation_id, attachment_ids=(loose.id,))
        [row] = await store.turn_rows(claimed.turn.id)
        assert [ref.name for ref in row.attachments] == ["plan-1.pdf"]
        assert (await store.file(tenant.ann, loose.id)).name == "plan-1.pdf"

    async def test_two_of_the_same_name_are_told_apart(self, store: Store, tenant: Tenant) -> None:
        one, two = await a_file(store, tenant.ann, "a.txt"), await a_file(store, tenant.ann, "A.TXT")
        claimed = await claim(store, tenant.ann, attachment_ids=(one.id, two.id))
        [row] = await store.turn_rows(claimed.turn.id)
        assert [ref.name for ref in row.attachments] == ["a.txt", "A-1.TXT"]

    async def test_a_file_of_the_bag_may_be_attached_again(self, store: Store, tenant: Tenant) -> None:
        file = await a_file(store, tenant.ann)
        first = await claim(store, tenant.ann, attachment_ids=(file.id,))
        conversation_id = first.turn.conversation_id
        second = await claim(
            store, tenant.ann, conversation_id=conversation_id, attachment_ids=(file.id,), if_busy="enqueue"
        )
        [row] = await store.turn_rows(second.turn.id)
        assert [ref.file_id for ref in row.attachments] == [file.id]
        assert (await store.file(tenant.ann, file.id)).message_id == first.user_message_id

    async def test_a_file_of_another_bag_is_refused(self, store: Store, tenant: Tenant, database: Database) -> None:
        first, second = await finish(store, tenant.ann), await finish(store, tenant.ann)
        file = await a_file(store, tenant.ann, conversation_id=first.conversation_id)
        async with nothing_written(database):
            with pytest.raises(InvalidRequest):
                await claim(store, tenant.ann, conversation_id=second.conversation_id, attachment_ids=(file.id,))
            with pytest.raises(InvalidRequest):
                await claim(store, tenant.ann, attachment_ids=(file.id,))

    async def test_a_file_whose_bytes_are_not_complete_is_refused(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        file = await a_file(store, tenant.ann, sha256=None)
        async with nothing_written(database):
            with pytest.raises(InvalidRequest):
                await claim(store, tenant.ann, attachment_ids=(file.id,))

    async def test_the_same_file_twice_is_refused(self, store: Store, tenant: Tenant, database: Database) -> None:
        file = await a_file(store, tenant.ann)
        async with nothing_written(database):
            with pytest.raises(InvalidRequest):
                await claim(store, tenant.ann, attachment_ids=(file.id, file.id))

    async def test_a_deleted_file_is_not_found(self, store: Store, tenant: Tenant, database: Database) -> None:
        file = await a_file(store, tenant.ann)
        await store.delete_file(tenant.ann, file.id)
        async with nothing_written(database):
            with pytest.raises(NotFound):
                await claim(store, tenant.ann, attachment_ids=(file.id,))

    async def test_a_file_of_somebody_else_is_not_found(self, store: Store, tenant: Tenant, database: Database) -> None:
        theirs = await a_file(store, tenant.bob)
        stranger = await a_tenant(store, "Other")
        foreign = await a_file(store, stranger.ann)
        async with nothing_written(database):
            for file in (theirs, foreign):
                with pytest.raises(NotFound):
                    await claim(store, tenant.ann, attachment_ids=(file.id,))

    async def test_a_service_without_user_may_attach_any_of_its_workspace(self, store: Store, tenant: Tenant) -> None:
        file = await a_file(store, tenant.bob)
        claimed = await claim(store, tenant.service, attachment_ids=(file.id,))
        [row] = await store.turn_rows(claimed.turn.id)
        assert [ref.file_id for ref in row.attachments] == [file.id]

    async def test_a_file_of_another_workspace_is_not_found(self, store: Store, tenant: Tenant) -> None:
        other = await store.create_workspace(tenant.org.id, "Other")
        file = await a_file(store, await a_user(store, other, "ann"))
        with pytest.raises(NotFound):
            await claim(store, tenant.service, attachment_ids=(file.id,))


class TestRunsWithoutAThread:
    async def test_a_run_is_a_turn_in_a_conversation_that_is_never_listed(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann, new=NewConversation(kind="run", workflow_id="flow-7"))
        assert (await store.conversations(tenant.ann)).data == ()
        conversation = await store.conversation(tenant.ann, turn.conversation_id)
        assert (conversation.kind, conversation.workflow_id) == ("run", "flow-7")
        assert kinds(await store.events(turn.id)) == ["turn", "result"]
