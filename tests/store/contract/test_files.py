"""Files: the rows of a bag, whose names never collide."""

import asyncio
import secrets
from typing import Any

import pytest
from msgspec import structs

from tests.store.databases import Database
from tests.store.factories import (
    Tenant,
    a_conversation,
    a_file,
    a_tenant,
    answered,
    as_user,
    begin,
    claim,
    nothing_written,
    step,
)
from turnkeep.errors import (
    AttachedElsewhere,
    CallerError,
    Conflict,
    InvalidRequest,
    NotFound,
    StorageFull,
    Unauthorized,
)
from turnkeep.ids import FileId, new_conversation_id, new_file_id
from turnkeep.model.files import NewFile, StorageLimits, TurnBag
from turnkeep.model.turns import Held
from turnkeep.store.commands import TokenBinding
from turnkeep.store.ports import Store


class TestAdding:
    async def test_with_its_hash_it_is_ready(self, store: Store, tenant: Tenant, database: Database) -> None:
        conversation = await a_conversation(store, tenant.ann)
        file = await a_file(store, tenant.ann, "a.txt", conversation_id=conversation.id, source="sandbox", size=7)
        assert (file.status, file.name, file.size, file.source) == ("ready", "a.txt", 7, "sandbox")
        assert (file.workspace_id, file.conversation_id) == (tenant.workspace.id, conversation.id)
        assert file.message_id is None
        assert file.created_at == database.now
        assert await store.file(tenant.ann, file.id) == file

    async def test_without_its_hash_it_is_pending_until_completed(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        file = await a_file(store, tenant.ann, conversation_id=conversation.id, sha256=None, size=0)
        assert (file.status, file.sha256) == ("pending", None)
        assert await store.files(tenant.ann, conversation.id) == []
        done = await store.complete_file(tenant.ann, file.id, size=9, sha256="cd" * 32)
        assert (done.status, done.size, done.sha256) == ("ready", 9, "cd" * 32)
        assert await store.files(tenant.ann, conversation.id) == [done]

    async def test_completing_again_is_fine_with_the_same_hash_and_a_conflict_with_another(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        file = await a_file(store, tenant.ann, sha256=None)
        done = await store.complete_file(tenant.ann, file.id, size=9, sha256="cd" * 32)
        async with nothing_written(database):
            assert await store.complete_file(tenant.ann, file.id, size=9, sha256="cd" * 32) == done
            with pytest.raises(Conflict):
                await store.complete_file(tenant.ann, file.id, size=9, sha256="ef" * 32)

    async def test_into_a_conversation_of_somebody_else_is_not_found(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        mine = await a_conversation(store, tenant.ann)
        stranger = await a_tenant(store, "Other")
        async with nothing_written(database):
            for by in (tenant.bob, stranger.ann, stranger.service):
                with pytest.raises(NotFound):
                    await a_file(store, by, conversation_id=mine.id)
            with pytest.raises(NotFound):
                await a_file(store, tenant.ann, conversation_id=new_conversation_id())

    async def test_ready_ones_are_listed_in_the_order_in_which_they_came(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        conversation = await a_conversation(store, tenant.ann)
        names = ["c.txt", "a.txt", "b.txt"]
        for name in names:
            await a_file(store, tenant.ann, name, conversation_id=conversation.id)
            await database.advance(seconds=1)
        assert [file.name for file in await store.files(tenant.ann, conversation.id)] == names


class TestNames:
    async def test_a_taken_name_gets_a_number(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        names = [
            (await a_file(store, tenant.ann, "report.pdf", conversation_id=conversation.id)).name for _ in range(3)
        ]
        assert names == ["report.pdf", "report-1.pdf", "report-2.pdf"]

    @pytest.mark.parametrize(
        "first, second, expected",
        [
            ("Report.PDF", "report.pdf", "report-1.pdf"),
            ("caf\u00e9.txt", "cafe\u0301.txt", "cafe\u0301-1.txt"),
            ("\uff21.txt", "a.txt", "a-1.txt"),
            ("Straße", "STRASSE", "STRASSE-1"),
            ("README", "readme", "readme-1"),
            (".env", ".ENV", ".ENV-1"),
            ("a.tar.gz", "a.tar.gz", "a.tar-1.gz"),
        ],
    )
    async def test_names_that_differ_only_in_case_or_unicode_form_are_the_same(
        self, store: Store, tenant: Tenant, first: str, second: str, expected: str
    ) -> None:
        conversation = await a_conversation(store, tenant.ann)
        await a_file(store, tenant.ann, first, conversation_id=conversation.id)
        file = await a_file(store, tenant.ann, second, conversation_id=conversation.id)
        assert file.name == expected

    @pytest.mark.parametrize(
        "name, expected",
        [
            ("x" * 236 + ".txt", "x" * 234 + "-1.txt"),
            ("x" * 235 + ".txt", "x" * 234 + "-1.txt"),
            ("€" * 78 + "é.txt", "€" * 78 + "-1.txt"),
            ("é" * 118 + ".txt", "é" * 117 + "-1.txt"),
            ("x" * 240, "x" * 238 + "-1"),
            ("a." + "x" * 238, "a." + "x" * 236 + "-1"),
        ],
    )
    async def test_a_number_does_not_make_a_name_too_long(
        self, store: Store, tenant: Tenant, name: str, expected: str
    ) -> None:
        conversation = await a_conversation(store, tenant.ann)
        await a_file(store, tenant.ann, name, conversation_id=conversation.id)
        added = await a_file(store, tenant.ann, name, conversation_id=conversation.id)
        loose = await a_file(store, tenant.ann, name)
        await claim(store, tenant.ann, conversation_id=conversation.id, attachment_ids=(loose.id,))
        attached = await store.file(tenant.ann, loose.id)
        assert added.name == expected
        assert attached.name == expected.replace("-1", "-2")
        assert len(expected.encode()) <= 240

    async def test_a_number_that_is_taken_is_passed_over(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        for name in ("a.txt", "A-1.txt"):
            await a_file(store, tenant.ann, name, conversation_id=conversation.id)
        assert (await a_file(store, tenant.ann, "a.txt", conversation_id=conversation.id)).name == "a-2.txt"

    async def test_the_name_of_a_deleted_file_is_free(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        first = await a_file(store, tenant.ann, "a.txt", conversation_id=conversation.id)
        await store.delete_file(tenant.ann, first.id)
        assert (await a_file(store, tenant.ann, "a.txt", conversation_id=conversation.id)).name == "a.txt"

    async def test_other_bags_and_loose_files_do_not_matter(self, store: Store, tenant: Tenant) -> None:
        for conversation_id in (
            (await a_conversation(store, tenant.ann)).id,
            (await a_conversation(store, tenant.ann)).id,
            None,
            None,
        ):
            file = await a_file(store, tenant.ann, "a.txt", conversation_id=conversation_id)
            assert file.name == "a.txt"

    async def test_fifty_of_one_name_at_once_get_fifty_names(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        files = await asyncio.gather(
            *(a_file(store, tenant.ann, "a.txt", conversation_id=conversation.id) for _ in range(50))
        )
        expected = {"a.txt", *(f"a-{number}.txt" for number in range(1, 50))}
        assert {file.name for file in files} == expected

    async def test_fifty_attachments_of_one_name_at_once_too(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        loose = [await a_file(store, tenant.ann, "a.txt") for _ in range(20)]
        await asyncio.gather(
            *(
                claim(
                    store,
                    tenant.ann,
                    conversation_id=conversation.id,
                    attachment_ids=(file.id,),
                    if_busy="enqueue",
                )
                for file in loose
            ),
            *(a_file(store, tenant.ann, "a.txt", conversation_id=conversation.id) for _ in range(20)),
        )
        names = [file.name for file in await store.files(tenant.ann, conversation.id)]
        assert len(names) == len(set(names)) == 40


class TestWhoSeesThem:
    async def test_files_of_a_conversation_belong_to_its_owner(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        file = await a_file(store, tenant.service, conversation_id=conversation.id)
        for by in (tenant.ann, tenant.service, as_user(tenant.service, tenant.ann)):
            assert await store.file(by, file.id) == file
            assert await store.files(by, conversation.id) == [file]

    async def test_loose_files_belong_to_who_brought_them(self, store: Store, tenant: Tenant) -> None:
        file = await a_file(store, tenant.ann, purpose="vision")
        assert file.purpose == "vision"
        for by in (tenant.ann, tenant.service):
            assert await store.file(by, file.id) == file

    async def test_nobody_else(self, store: Store, tenant: Tenant, database: Database) -> None:
        conversation = await a_conversation(store, tenant.ann)
        stranger = await a_tenant(store, "Other")
        bagged = await a_file(store, tenant.ann, conversation_id=conversation.id)
        loose = await a_file(store, tenant.ann, sha256=None)
        async with nothing_written(database):
            for by in (tenant.bob, stranger.ann, stranger.service, as_user(tenant.service, tenant.bob)):
                with pytest.raises(NotFound):
                    await store.files(by, conversation.id)
                for file in (bagged, loose):
                    with pytest.raises(NotFound):
                        await store.file(by, file.id)
                    with pytest.raises(NotFound):
                        await store.delete_file(by, file.id)
                    with pytest.raises(NotFound):
                        await store.complete_file(by, file.id, size=1, sha256="ab" * 32)
            with pytest.raises(NotFound):
                await store.file(tenant.ann, new_file_id())


class TestDeleting:
    async def test_a_deleted_file_is_not_found(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        file = await a_file(store, tenant.ann, conversation_id=conversation.id)
        await store.delete_file(tenant.ann, file.id)
        assert await store.files(tenant.ann, conversation.id) == []
        for attempt in (
            store.file(tenant.ann, file.id),
            store.delete_file(tenant.ann, file.id),
            store.complete_file(tenant.ann, file.id, size=1, sha256="ab" * 32),
        ):
            with pytest.raises(NotFound):
                await attempt

    async def test_a_deleted_file_waits_for_no_bytes(self, store: Store, tenant: Tenant) -> None:
        file = await a_file(store, tenant.ann, sha256=None)
        assert await store.pending_files([file.id]) == {file.id}
        await store.delete_file(tenant.ann, file.id)
        assert await store.pending_files([file.id]) == set()


class TestStoredBytes:
    async def test_of_one_user_are_limited_and_deleted_files_count(self, store: Store, tenant: Tenant) -> None:
        limits = StorageLimits(user_bytes=100)
        [first] = await store.add_files(tenant.ann, [new_file("a", size=60)], limits=limits)
        await store.add_files(tenant.ann, [new_file("b", size=40)], limits=limits)
        with pytest.raises(StorageFull, match="100 bytes"):
            await store.add_files(tenant.ann, [new_file("c", size=1)], limits=limits)
        await store.delete_file(tenant.ann, first.id)
        with pytest.raises(StorageFull):
            await store.add_files(tenant.ann, [new_file("c", size=1)], limits=limits)
        await store.add_files(tenant.bob, [new_file("d", size=100)], limits=limits)
        await store.add_files(tenant.service, [new_file("e", size=1_000)], limits=limits)

    async def test_of_one_workspace_are_limited(self, store: Store, tenant: Tenant) -> None:
        limits = StorageLimits(workspace_bytes=100)
        await store.add_files(tenant.ann, [new_file("a", size=60)], limits=limits)
        with pytest.raises(StorageFull):
            await store.add_files(tenant.bob, [new_file("b", size=41)], limits=limits)
        other = await a_tenant(store, "Other")
        await store.add_files(other.ann, [new_file("c", size=100)], limits=limits)

    async def test_are_limited_for_many_at_once(self, store: Store, tenant: Tenant, database: Database) -> None:
        limits = StorageLimits(user_bytes=100)
        async with nothing_written(database):
            with pytest.raises(StorageFull):
                await store.add_files(tenant.ann, [new_file("a", size=60), new_file("b", size=60)], limits=limits)
        adding = (store.add_files(tenant.ann, [new_file(f"{n}", size=30)], limits=limits) for n in range(12))
        done = await asyncio.gather(*adding, return_exceptions=True)
        assert sum(isinstance(each, list) for each in done) == 3
        assert sum(isinstance(each, StorageFull) for each in done) == 9

    async def test_of_files_that_a_sandbox_writes_back_are_limited_too(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        token = await an_upload_token(store, held)
        limits = StorageLimits(user_bytes=100)
        with pytest.raises(StorageFull):
            await store.write_back(token, [new_file("a", size=101, source="sandbox")], limits=limits)
        assert len(await store.write_back(token, [new_file("a", size=99, source="sandbox")], limits=limits)) == 1


class TestRefusals:
    @pytest.mark.parametrize(
        "fields",
        [
            {"name": ""},
            {"name": "  "},
            {"name": "a\0b"},
            {"name": "\ud800"},
            {"name": "n" * 100_000},
            {"size": -1},
            {"size": "5"},
            {"size": 2**70},
            {"mime_type": "a\0b"},
            {"storage_key": "a\0b"},
            {"source": "elsewhere"},
            {"sha256": "a\0b"},
        ],
        ids=lambda fields: next(f"{name}-{str(value)[:10]!a}" for name, value in fields.items()),
    )
    async def test_values_that_cannot_be_kept(
        self, store: Store, tenant: Tenant, database: Database, fields: dict[str, object]
    ) -> None:
        async with nothing_written(database):
            with pytest.raises(CallerError):
                await a_file(store, tenant.ann, **{"name": "a.txt", **fields})  # type: ignore[arg-type]


def new_file(name: str = "a.txt", **fields: Any) -> NewFile:
    file_id = new_file_id()
    values: dict[str, Any] = {
        "id": file_id,
        "conversation_id": None,
        "name": name,
        "mime_type": "text/plain",
        "size": 3,
        "storage_key": f"bag/{file_id}",
        "sha256": "ab" * 32,
    }
    return NewFile(**(values | fields))


class TestManyAtOnce:
    async def test_come_in_order_under_names_of_their_own(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        new = [new_file("a.txt", conversation_id=conversation.id) for _ in range(40)]
        files = await store.add_files(tenant.ann, new)
        assert [file.id for file in files] == [each.id for each in new]
        assert [file.name for file in files] == ["a.txt", *(f"a-{number}.txt" for number in range(1, 40))]

    async def test_all_or_none(self, store: Store, tenant: Tenant, database: Database) -> None:
        mine = await a_conversation(store, tenant.ann)
        theirs = await a_conversation(store, tenant.bob)
        async with nothing_written(database):
            with pytest.raises(NotFound):
                await store.add_files(
                    tenant.ann, [new_file(conversation_id=mine.id), new_file(conversation_id=theirs.id)]
                )


class TestTheWorkspacesFiles:
    async def test_are_seen_by_everyone_in_it_newest_first(self, store: Store, tenant: Tenant) -> None:
        files = [(await store.add_files(tenant.ann, [new_file(is_saved=True)]))[0] for _ in range(3)]
        await a_file(store, tenant.ann)
        for by in (tenant.ann, tenant.bob, tenant.service):
            page = await store.saved_files(by, limit=2)
            assert page.data == (files[2], files[1])
            rest = await store.saved_files(by, limit=2, cursor=page.next_cursor)
            assert (rest.data, rest.next_cursor) == ((files[0],), None)
            assert await store.file(by, files[0].id) == files[0]

    async def test_are_nothing_to_another_tenant(self, store: Store, tenant: Tenant, database: Database) -> None:
        [file] = await store.add_files(tenant.ann, [new_file(is_saved=True)])
        stranger = await a_tenant(store, "Other")
        async with nothing_written(database):
            for by in (stranger.ann, stranger.service):
                assert (await store.saved_files(by)).data == ()
                with pytest.raises(NotFound):
                    await store.file(by, file.id)
                with pytest.raises(NotFound):
                    await store.delete_file(by, file.id)

    async def test_are_deleted_by_who_saved_them_by_an_admin_or_by_a_service(
        self, store: Store, tenant: Tenant
    ) -> None:
        admin = structs.replace(tenant.bob, role="admin")
        for by in (tenant.ann, admin, tenant.service):
            [file] = await store.add_files(tenant.ann, [new_file(is_saved=True)])
            with pytest.raises(NotFound):
                await store.delete_file(tenant.bob, file.id)
            await store.delete_file(by, file.id)
            assert (await store.saved_files(tenant.ann)).data == ()

    async def test_an_admin_has_no_such_right_on_bags_of_others(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        admin = structs.replace(tenant.bob, role="admin")
        for file in (await a_file(store, tenant.ann, conversation_id=conversation.id), await a_file(store, tenant.ann)):
            with pytest.raises(NotFound):
                await store.delete_file(admin, file.id)

    async def test_and_files_of_other_bags_are_named_to_the_one_who_would_attach_them(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        """A copy of each can be attached: the engine makes it."""
        conversation = await a_conversation(store, tenant.ann)
        own = await a_file(store, tenant.ann)
        elsewhere = await a_file(store, tenant.ann, conversation_id=conversation.id)
        [saved] = await store.add_files(tenant.bob, [new_file(is_saved=True)])
        async with nothing_written(database):
            with pytest.raises(AttachedElsewhere) as refused:
                await claim(store, tenant.ann, attachment_ids=(own.id, elsewhere.id, saved.id))
        assert refused.value.file_ids == (elsewhere.id, saved.id)
        assert refused.value.code == "invalid_request"

    async def test_what_is_not_complete_cannot_be_attached(self, store: Store, tenant: Tenant) -> None:
        [pending] = await store.add_files(tenant.ann, [new_file(sha256=None)])
        with pytest.raises(InvalidRequest) as refused:
            await claim(store, tenant.ann, attachment_ids=(pending.id,))
        words = "is not complete yet. Attach it once its upload has ended."
        assert refused.value.detail == f"File {pending.id} {words}"

    async def test_a_malformed_cursor_is_refused(self, store: Store, tenant: Tenant) -> None:
        with pytest.raises(InvalidRequest):
            await store.saved_files(tenant.ann, cursor="?")


class TestForTheEngine:
    async def test_files_by_id_leaves_out_what_cannot_be_read(self, store: Store, tenant: Tenant) -> None:
        ready, gone = await a_file(store, tenant.ann), await a_file(store, tenant.bob)
        pending = await a_file(store, tenant.ann, sha256=None)
        await store.delete_file(tenant.bob, gone.id)
        wanted = [gone.id, pending.id, ready.id, new_file_id()]
        assert await store.files_by_id(tenant.ann, wanted) == [ready]
        assert await store.ready_files(wanted) == {ready.id}
        assert await store.files_by_id(tenant.ann, []) == []
        assert await store.ready_files([]) == set()

    async def test_files_by_id_are_those_of_one_workspace(self, store: Store, tenant: Tenant) -> None:
        stranger = await a_tenant(store, "Other")
        workspace = await store.create_workspace(tenant.org.id, "Beside")
        beside = structs.replace(tenant.service, workspace_id=workspace.id)
        files = [await a_file(store, owner) for owner in (tenant.ann, stranger.ann, beside)]
        wanted = [file.id for file in files]
        for reader, own in zip((tenant.bob, stranger.service, beside), files, strict=True):
            assert await store.files_by_id(reader, wanted) == [own]
        assert await store.ready_files(wanted) == set(wanted)

    async def test_all_files_come_in_pages_deleted_ones_too(self, store: Store, tenant: Tenant) -> None:
        files = [await a_file(store, tenant.ann) for _ in range(5)]
        await store.delete_file(tenant.ann, files[1].id)
        found: list[FileId] = []
        while page := await store.all_files(after=found[-1] if found else None, limit=2):
            found += [file.id for file in page]
        assert found == [file.id for file in files]

    async def test_unfinished_uploads_are_dropped_once_they_are_old(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        old = await a_file(store, tenant.ann, sha256=None)
        imported = await a_file(store, tenant.ann, sha256=None, storage_key="imported/x")
        ready = await a_file(store, tenant.ann)
        await database.advance(seconds=10)
        young = await a_file(store, tenant.ann, sha256=None)
        assert await store.drop_unfinished(created_before=database.now) == [(old.id, old.storage_key)]
        assert [file.id for file in await store.all_files()] == [imported.id, ready.id, young.id]
        assert await store.pending_files([old.id, imported.id, ready.id, young.id]) == {imported.id, young.id}

    async def test_files_that_no_conversation_took_in_are_dropped_once_they_are_old(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        conversation = await a_conversation(store, tenant.ann)
        unused = await a_file(store, tenant.ann)
        kept = [
            await a_file(store, tenant.ann, conversation_id=conversation.id),
            *await store.add_files(tenant.ann, [new_file(is_saved=True)]),
        ]
        await database.advance(seconds=10)
        kept.append(await a_file(store, tenant.ann))
        dropped = await store.drop_unfinished(created_before=0, unused_before=database.now)
        assert dropped == [(unused.id, unused.storage_key)]
        assert {file.id for file in await store.all_files()} == {file.id for file in kept}

    async def test_only_what_is_of_no_use_can_be_discarded(self, store: Store, tenant: Tenant) -> None:
        conversation = await a_conversation(store, tenant.ann)
        bag = {"conversation_id": conversation.id}
        useless = [
            await a_file(store, tenant.ann),
            await a_file(store, tenant.ann, sha256=None),
            await a_file(store, tenant.ann, sha256=None, **bag),
        ]
        kept = [
            await a_file(store, tenant.ann, **bag),
            await a_file(store, tenant.ann, sha256=None, storage_key="imported/x"),
            *await store.add_files(tenant.ann, [new_file(is_saved=True)]),
        ]
        discarded = await store.discard_files([file.id for file in (*useless, *kept)] + [new_file_id()])
        assert sorted(discarded) == sorted((file.id, file.storage_key) for file in useless)
        assert {file.id for file in await store.all_files()} == {file.id for file in kept}

    async def test_known_keys(self, store: Store, tenant: Tenant) -> None:
        file, gone = await a_file(store, tenant.ann), await a_file(store, tenant.ann)
        await store.delete_file(tenant.ann, gone.id)
        keys = [file.storage_key, gone.storage_key, "bag/nobody"]
        assert await store.known_keys(keys) == {file.storage_key, gone.storage_key}


async def an_upload_token(store: Store, held: Held, *, seconds: float = 60) -> bytes:
    token = secrets.token_bytes(32)
    binding = TokenBinding(purpose="upload", turn_id=held.turn_id, attempt=held.attempt)
    await store.add_token(token, binding, expires_in_seconds=seconds)
    return token


class TestWritingBack:
    async def test_the_files_join_the_bag_of_the_turn(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        await a_file(store, tenant.ann, "out.csv", conversation_id=held.conversation_id)
        token = await an_upload_token(store, held)
        new = [new_file("out.csv", source="sandbox"), new_file("b.txt", source="sandbox")]
        files = await store.write_back(token, new)
        assert [(file.name, file.source, file.turn_id) for file in files] == [
            ("out-1.csv", "sandbox", held.turn_id),
            ("b.txt", "sandbox", held.turn_id),
        ]
        assert await store.written_files(held.turn_id) == files
        assert [file.id for file in await store.files(tenant.ann, held.conversation_id)][1:] == [
            file.id for file in files
        ]
        assert [await store.file(tenant.ann, file.id) for file in files] == files

    async def test_the_files_are_carried_by_the_answer_once_there_is_one(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        (file,) = await store.write_back(await an_upload_token(store, held), [new_file("a.txt", source="sandbox")])
        assert file.message_id is None
        settlement = answered(held)
        await store.settle(held, after=1, settlement=settlement)
        assert settlement.final is not None
        assert (await store.file(tenant.ann, file.id)).message_id == settlement.final.id

    async def test_the_holder_is_told_with_every_record_and_renewal(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        token = await an_upload_token(store, held)
        assert (await store.record(held, after=1, events=[step("a")])).files_written == 0
        await store.write_back(token, [new_file(source="sandbox") for _ in range(2)])
        [renewal] = await store.renew([held], lease_seconds=30)
        assert renewal.files_written == 2
        receipt = await store.record(held, after=2, events=[step("b")])
        assert receipt.files_written == 2
        assert await store.record(held, after=2, events=[step("b")]) == receipt

    async def test_a_token_buys_it_once(self, store: Store, tenant: Tenant, database: Database) -> None:
        held = await begin(store, tenant.ann)
        token = await an_upload_token(store, held)
        assert await store.peek_token(token, "upload") is not None
        await store.write_back(token, [new_file(source="sandbox")])
        assert await store.peek_token(token, "upload") is None
        async with nothing_written(database):
            with pytest.raises(Unauthorized):
                await store.write_back(token, [new_file(source="sandbox")])

    async def test_of_200_at_once_exactly_one_wins(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        token = await an_upload_token(store, held)
        answers = await asyncio.gather(
            *(store.write_back(token, [new_file(source="sandbox")]) for _ in range(200)), return_exceptions=True
        )
        assert sum(isinstance(answer, list) for answer in answers) == 1
        assert sum(isinstance(answer, Unauthorized) for answer in answers) == 199
        assert len(await store.written_files(held.turn_id)) == 1

    async def test_not_for_another_purpose_nor_late_nor_forged(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        run = secrets.token_bytes(32)
        binding = TokenBinding(purpose="run", turn_id=held.turn_id, attempt=held.attempt)
        await store.add_token(run, binding, expires_in_seconds=60)
        late = await an_upload_token(store, held, seconds=5)
        await database.advance(seconds=5)
        async with nothing_written(database):
            for token in (run, late, secrets.token_bytes(32), b""):
                assert await store.peek_token(token, "upload") is None
                with pytest.raises(Unauthorized):
                    await store.write_back(token, [new_file(source="sandbox")])

    async def test_not_after_the_turn_nor_by_an_earlier_attempt(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        ended, lost = await begin(store, tenant.ann), await begin(store, tenant.bob)
        tokens = [await an_upload_token(store, held, seconds=3600) for held in (ended, lost)]
        await store.settle(ended, after=1, settlement=answered(ended))
        await database.advance(seconds=31)
        await store.adopt("worker-2", lease_seconds=30)
        async with nothing_written(database):
            for token in tokens:
                with pytest.raises(Unauthorized):
                    await store.write_back(token, [new_file(source="sandbox")])

    async def test_not_into_a_conversation_that_was_deleted(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        held = await begin(store, tenant.ann)
        token = await an_upload_token(store, held)
        await store.delete_conversation(tenant.ann, held.conversation_id)
        async with nothing_written(database):
            with pytest.raises(Unauthorized):
                await store.write_back(token, [new_file(source="sandbox")])


class TestTheBagOfATurn:
    async def test_is_what_its_sandbox_may_see(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        files = [await a_file(store, tenant.ann, name, conversation_id=held.conversation_id) for name in ("b", "a")]
        await a_file(store, tenant.ann, "pending", conversation_id=held.conversation_id, sha256=None)
        deleted = await a_file(store, tenant.ann, "deleted", conversation_id=held.conversation_id)
        await store.delete_file(tenant.ann, deleted.id)
        bag = await store.turn_bag(held.turn_id, held.attempt)
        assert bag == TurnBag(
            org_id=tenant.org.id,
            workspace_id=tenant.workspace.id,
            conversation_id=held.conversation_id,
            files=tuple(files),
        )

    async def test_is_closed_with_the_attempt_and_with_the_turn(self, store: Store, tenant: Tenant) -> None:
        held = await begin(store, tenant.ann)
        with pytest.raises(NotFound):
            await store.turn_bag(held.turn_id, held.attempt + 1)
        await store.settle(held, after=1, settlement=answered(held))
        with pytest.raises(NotFound):
            await store.turn_bag(held.turn_id, held.attempt)
