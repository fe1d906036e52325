"""Share links: one branch of a conversation as it was when it was shared, known by a hash, with an end."""

import secrets
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
    answered,
    begin,
    claim,
    finish,
    finish_with_tool,
    save_member,
    shown,
    spoken,
    wait_in_queue,
)
from turnkeep.errors import Conflict, Forbidden, InvalidRequest, NotFound
from turnkeep.ids import new_share_id, new_turn_id
from turnkeep.model.conversations import NewShare, OpenShare, Share
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Turn
from turnkeep.store.commands import ConversationChange, NewConversation
from turnkeep.store.ports import Store
from turnkeep_client.wire.blocks import Text

DAY = 86_400.0


async def share(store: Store, by: Principal, turn: Turn, **fields: Any) -> tuple[bytes, Share]:
    given: dict[str, Any] = {"secret_hash": secrets.token_bytes(32), "seconds": DAY}
    new = NewShare(**given | fields)
    return new.secret_hash, await store.share_conversation(by, turn.conversation_id, new)


async def opened(store: Store, token: bytes) -> OpenShare:
    found = await store.open_share(token)
    assert found is not None
    return found


async def lines(store: Store, token: bytes) -> list[str]:
    return spoken(await store.shared_messages(await opened(store, token)))


async def next_turn(store: Store, by: Principal, turn: Turn, question: str, **fields: Any) -> Turn:
    return await finish(store, by, question, f"re {question}", conversation_id=turn.conversation_id, **fields)


class TestALink:
    async def test_shows_the_questions_and_answers_of_the_branch(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        first = await finish_with_tool(store, tenant.ann, "Weather?", "Rain.", new=NewConversation(title="The sky"))
        await next_turn(store, tenant.ann, first, "And then?")
        token, made = await share(store, tenant.ann, first, with_files=True)
        assert (made.user_id, made.conversation_id, made.title) == (
            tenant.ann.user_id,
            first.conversation_id,
            "The sky",
        )
        assert (made.created_at, made.expires_at) == (database.now, database.now + int(DAY * 1000))
        found = await opened(store, token)
        assert found.share == made
        assert found.share.with_files is True
        assert (found.owner.org_id, found.owner.user_id, found.owner.role) == (
            tenant.org.id,
            tenant.ann.user_id,
            "member",
        )
        assert await lines(store, token) == [
            "user: Weather?",
            "assistant: <step> Rain.",
            "user: And then?",
            "assistant: re And then?",
        ]

    async def test_is_known_by_its_hash_alone(self, store: Store, tenant: Tenant) -> None:
        await share(store, tenant.ann, await finish(store, tenant.ann))
        assert await store.open_share(secrets.token_bytes(32)) is None
        assert await store.open_share(b"") is None
        with pytest.raises(InvalidRequest):
            await share(store, tenant.ann, await finish(store, tenant.ann), secret_hash=b"")

    async def test_shows_no_later_turns_and_no_later_title(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        first = await finish(store, tenant.ann, new=NewConversation(title="Before"))
        token, _ = await share(store, tenant.ann, first)
        await database.advance(seconds=1)
        await next_turn(store, tenant.ann, first, "Secret?")
        change = ConversationChange(title="After")
        await store.change_conversation(tenant.ann, first.conversation_id, change)
        assert await lines(store, token) == ["user: Hello", "assistant: Hi!"]
        assert (await opened(store, token)).share.title == "Before"

    async def test_shows_another_branch_if_it_is_named(self, store: Store, tenant: Tenant, database: Database) -> None:
        first = await finish(store, tenant.ann, "One", "re One")
        old = await next_turn(store, tenant.ann, first, "Two")
        await next_turn(store, tenant.ann, first, "Other", beside=old.id)
        await database.advance(seconds=1)
        token, _ = await share(store, tenant.ann, first, turn_id=old.id)
        other, _ = await share(store, tenant.ann, first)
        assert (await lines(store, token))[2:] == ["user: Two", "assistant: re Two"]
        assert (await lines(store, other))[2:] == ["user: Other", "assistant: re Other"]

    async def test_leaves_out_a_turn_that_runs_or_waits(self, store: Store, tenant: Tenant) -> None:
        first = await finish(store, tenant.ann)
        running = await begin(store, tenant.ann, "Now?", conversation_id=first.conversation_id)
        queued = await wait_in_queue(store, tenant.ann, first.conversation_id)
        token, made = await share(store, tenant.ann, first)
        assert made.turn_id == first.id
        for turn_id in (running.turn_id, queued.id, new_turn_id()):
            with pytest.raises(Conflict):
                await share(store, tenant.ann, first, turn_id=turn_id)
        await store.settle(running, after=1, settlement=answered(running))
        assert await lines(store, token) == ["user: Hello", "assistant: Hi!"]

    async def test_shows_no_words_that_steered_a_turn(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann, "Long?")
        steer = structs.replace(a_row(held, 1, Text(text="Shorter!")), role="user", internal=False, iteration=None)
        await store.record(held, after=1, rows=[steer], events=[])
        turn = (await store.settle(held, after=1, settlement=answered(held, "Short.", sequence=2))).turn
        assert len((await store.transcript(tenant.ann, turn.conversation_id)).data) == 3
        token, _ = await share(store, tenant.ann, turn)
        assert await lines(store, token) == ["user: Long?", "assistant: Short."]

    async def test_comes_in_pages_of_whole_turns(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann, "0", "re 0")
        for n in range(1, 5):
            await next_turn(store, tenant.ann, turn, str(n))
        token, _ = await share(store, tenant.ann, turn)
        found, cursor, pages = await opened(store, token), None, []
        while True:
            page = await store.shared_messages(found, limit=2, cursor=cursor)
            pages.append([shown(message.content) for message in page.data if message.role == "user"])
            cursor = page.next_cursor
            if cursor is None:
                break
        assert pages == [["0", "1"], ["2", "3"], ["4"]]
        other, _ = await share(store, tenant.ann, turn)
        first = await store.shared_messages(found, limit=2)
        with pytest.raises(InvalidRequest):
            await store.shared_messages(await opened(store, other), cursor=first.next_cursor)

    async def test_finds_the_turns_that_name_a_file(self, store: Store, tenant: Tenant) -> None:
        plain = await finish(store, tenant.ann)
        file = await a_file(store, tenant.ann, conversation_id=plain.conversation_id)
        await next_turn(store, tenant.ann, plain, "Read", attachment_ids=(file.id,))
        token, _ = await share(store, tenant.ann, plain)
        found = await store.shared_messages(await opened(store, token), file_id=file.id)
        assert spoken(found)[-1] == "assistant: re Read"
        assert len(found.data) == 2
        assert [ref.file_id for ref in found.data[0].attachments] == [file.id]

    async def test_of_a_conversation_without_a_user(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.service)
        token, made = await share(store, tenant.service, turn)
        assert made.user_id is None
        assert await lines(store, token) == ["user: Hello", "assistant: Hi!"]


class TestItsEnd:
    async def test_it_ends_by_itself(self, store: Store, tenant: Tenant, database: Database) -> None:
        turn = await finish(store, tenant.ann)
        token, _ = await share(store, tenant.ann, turn)
        await database.advance(seconds=DAY - 0.001)
        assert await store.open_share(token) is not None
        await database.advance(seconds=0.001)
        assert await store.open_share(token) is None
        assert await store.shares(tenant.org.id, tenant.workspace.id) == []
        assert len((await database.contents())["shares"]) == 1
        await share(store, tenant.ann, turn)
        assert len((await database.contents())["shares"]) == 1

    async def test_it_can_be_revoked(self, store: Store, tenant: Tenant) -> None:
        turn = await finish(store, tenant.ann)
        token, made = await share(store, tenant.ann, turn)
        kept, _ = await share(store, tenant.ann, turn)
        assert tenant.bob.user_id is not None
        where = (tenant.org.id, tenant.workspace.id)
        with pytest.raises(NotFound):
            await store.revoke_share(*where, made.id, user_id=tenant.bob.user_id)
        with pytest.raises(NotFound):
            await store.revoke_share(*where, new_share_id())
        other = await a_tenant(store, "Other")
        with pytest.raises(NotFound):
            await store.revoke_share(other.org.id, other.workspace.id, made.id)
        await store.revoke_share(*where, made.id, user_id=tenant.ann.user_id)
        assert await store.open_share(token) is None
        assert await store.open_share(kept) is not None
        with pytest.raises(NotFound):
            await store.revoke_share(*where, made.id)

    @pytest.mark.parametrize("place", [0, 1])
    async def test_an_edit_of_what_it_shows_ends_it(
        self, store: Store, tenant: Tenant, database: Database, place: int
    ) -> None:
        turns = [await finish(store, tenant.ann, "One")]
        turns.append(await next_turn(store, tenant.ann, turns[0], "Two"))
        turns.append(await next_turn(store, tenant.ann, turns[0], "Three"))
        token, _ = await share(store, tenant.ann, turns[0], turn_id=turns[1].id)
        await database.advance(seconds=1)
        await next_turn(store, tenant.ann, turns[0], "Another three", beside=turns[2].id)
        assert await store.open_share(token) is not None, "what it shows has not changed"
        await next_turn(store, tenant.ann, turns[0], "Edited", beside=turns[place].id)
        assert await store.open_share(token) is None
        assert await store.shares(tenant.org.id, tenant.workspace.id) == []

    async def test_a_queued_turn_that_follows_ends_nothing(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        first = await finish(store, tenant.ann)
        token, _ = await share(store, tenant.ann, first)
        await database.advance(seconds=1)
        running = await begin(store, tenant.ann, "Next", conversation_id=first.conversation_id)
        await wait_in_queue(store, tenant.ann, first.conversation_id)
        assert await store.open_share(token) is not None
        await store.settle(running, after=1, settlement=answered(running))
        assert await store.open_share(token) is not None

    async def test_a_deleted_conversation_ends_it_for_good(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        turn = await finish(store, tenant.ann)
        token, _ = await share(store, tenant.ann, turn)
        await store.delete_conversation(tenant.ann, turn.conversation_id)
        assert await store.open_share(token) is None
        assert (await database.contents())["shares"] == []
        await store.restore_conversation(tenant.ann, turn.conversation_id)
        assert await store.open_share(token) is None

    async def test_it_ends_with_the_rights_of_its_user(self, store: Store, tenant: Tenant) -> None:
        token, _ = await share(store, tenant.ann, await finish(store, tenant.ann))
        member = await store.member(tenant.org.id, tenant.workspace.id, "ann")
        await save_member(store, tenant.org.id, structs.replace(member, is_disabled=True))
        assert await store.open_share(token) is None
        with pytest.raises(Forbidden):
            await share(store, tenant.ann, await finish(store, tenant.service))


class TestWhoMay:
    async def test_only_the_owner_shares(self, store: Store, tenant: Tenant, database: Database) -> None:
        turn = await finish(store, tenant.ann)
        other = await a_tenant(store, "Other")
        for by in (tenant.bob, other.ann, other.service):
            with pytest.raises(NotFound):
                await share(store, by, turn)
        assert (await database.contents())["shares"] == []
        await share(store, tenant.service, turn)

    async def test_an_empty_or_deleted_conversation_is_not_shared(self, store: Store, tenant: Tenant) -> None:
        empty = await a_conversation(store, tenant.ann)
        new = NewShare(secret_hash=secrets.token_bytes(32), seconds=DAY)
        with pytest.raises(Conflict):
            await store.share_conversation(tenant.ann, empty.id, new)
        turn = await finish(store, tenant.ann)
        await store.delete_conversation(tenant.ann, turn.conversation_id)
        with pytest.raises(NotFound):
            await share(store, tenant.ann, turn)

    async def test_a_turn_of_another_conversation_is_not_shared(self, store: Store, tenant: Tenant) -> None:
        mine, other = await finish(store, tenant.ann), await finish(store, tenant.bob)
        with pytest.raises(Conflict):
            await share(store, tenant.ann, mine, turn_id=other.id)

    async def test_lists(self, store: Store, tenant: Tenant) -> None:
        mine, second, others = [await finish(store, by) for by in (tenant.ann, tenant.ann, tenant.bob)]
        made = [(await share(store, by, turn))[1] for by, turn in ((tenant.ann, mine), (tenant.bob, others))]
        made.append((await share(store, tenant.ann, second))[1])
        where = (tenant.org.id, tenant.workspace.id)
        assert await store.shares(*where) == made[::-1]
        assert await store.shares(*where, user_id=tenant.ann.user_id) == [made[2], made[0]]
        assert await store.shares(*where, conversation_id=mine.conversation_id) == [made[0]]
        other = await a_tenant(store, "Other")
        assert await store.shares(other.org.id, other.workspace.id) == []
        claimed = await claim(store, tenant.bob, conversation_id=others.conversation_id)
        assert claimed.turn.status == "running"
        assert len(await store.shares(*where)) == 3
