"""Promised files completed by many workers at once, on both databases and both kinds of storage.

A ready file has the bytes whose sha256 its row tells, and nothing else is left behind.
"""

import asyncio
import hashlib
import zlib
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from tests.files.blocks import blocks, keys, whole
from tests.store.factories import Tenant, a_conversation
from turnkeep.errors import CallerError, Conflict, InvalidRequest, NotFound, Unavailable
from turnkeep.files.bag import Bag
from turnkeep.files.keys import incoming_key
from turnkeep.files.ports import Objects
from turnkeep.ids import FileId
from turnkeep.model.files import File
from turnkeep.store.ports import Store

OLD, NEW = b"the old bytes", b"the new bytes"


class Delayed:
    """A worker's view of a store or a storage, in which something happens just before or after one of its verbs."""

    def __init__(self, real: Any, verb: str, meanwhile: Callable[[], Awaitable[None]], *, after: bool = False) -> None:
        self._real, self._verb, self._meanwhile, self._after = real, verb, meanwhile, after

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._real, name)
        if name != self._verb:
            return verb

        async def delayed(*values: Any, **options: Any) -> Any:
            self._verb = ""  # once
            if not self._after:
                await self._meanwhile()
            answer = await verb(*values, **options)
            if self._after:
                await self._meanwhile()
            return answer

        return delayed


class Scene:
    """A promised file of which the old bytes have come, and workers that may complete it."""

    def __init__(self, store: Store, objects: Objects, tenant: Tenant, file: File) -> None:
        self.store, self.objects, self.file, self._tenant = store, objects, file, tenant

    @classmethod
    async def begin(cls, store: Store, objects: Objects, tenant: Tenant) -> "Scene":
        conversation = await a_conversation(store, tenant.ann)
        promising = Bag(store, objects, max_file_bytes=1_000)
        file = await promising.promise(tenant.ann, conversation.id, name="a.txt", size=len(OLD), mime_type="text/plain")
        scene = cls(store, objects, tenant, file)
        await scene.put(OLD)
        return scene

    async def put(self, data: bytes) -> None:
        """As a bucket does it, without a check whether the file is complete."""
        await self.objects.put(incoming_key(self.file.id), blocks(data))

    async def complete(self, *, store: Any = None, objects: Any = None, sha256: str | None = None) -> File:
        """Complete the file on a separate worker."""
        worker = Bag(cast(Store, store or self.store), cast(Objects, objects or self.objects), max_file_bytes=1_000)
        return await worker.complete(self._tenant.ann, self.file.id, sha256=sha256)

    async def delete(self) -> None:
        await self.store.delete_file(self._tenant.ann, self.file.id)

    async def is_whole(self, data: bytes, *, besides: int = 0) -> None:
        """The file is ready, it and its bytes are these, and there is nothing else but what others now look at."""
        file = await self.store.file(self._tenant.ann, self.file.id)
        assert (file.status, file.sha256, file.crc32) == ("ready", sha256_of(data), zlib.crc32(data))
        assert await whole(self.objects.read(file.storage_key, start=0, end=file.size)) == data
        assert len(await keys(self.objects) - {incoming_key(self.file.id), file.storage_key}) == besides


@pytest.fixture
async def scene(store: Store, objects: Objects, tenant: Tenant) -> Scene:
    return await Scene.begin(store, objects, tenant)


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class TestTwoWorkers:
    async def test_with_the_same_bytes_return_the_same_file(self, scene: Scene) -> None:
        answers = await asyncio.gather(*(scene.complete() for _ in range(8)))
        assert all(answer == answers[0] for answer in answers)
        await scene.is_whole(OLD)
        assert await keys(scene.objects) == {answers[0].storage_key}

    @pytest.mark.parametrize("verb", ["file", "complete_file"])
    async def test_other_bytes_are_put_and_completed_while_one_inspects_the_old_ones(
        self, scene: Scene, verb: str
    ) -> None:
        """Either upload may win; the row has the sha256 of the bytes that won."""

        async def meanwhile() -> None:
            await scene.put(NEW)
            await scene.complete()

        slow = Delayed(scene.store, verb, meanwhile, after=verb == "file")
        if verb == "file":  # its bytes are gone, and the file is ready: the answer is the file
            assert (await scene.complete(store=slow)).sha256 == sha256_of(NEW)
        else:
            with pytest.raises(Conflict, match="other bytes"):
                await scene.complete(store=slow)
        await scene.is_whole(NEW)

    async def test_one_decides_while_the_other_has_seen_other_bytes(self, scene: Scene) -> None:
        """The second worker is before its last step when the first makes the file ready."""
        seen, decided = asyncio.Event(), asyncio.Event()
        other: list[asyncio.Task[File]] = []

        async def wait() -> None:
            seen.set()
            await decided.wait()

        async def meanwhile() -> None:
            await scene.put(NEW)
            other.append(asyncio.create_task(scene.complete(store=Delayed(scene.store, "complete_file", wait))))
            await asyncio.wait_for(seen.wait(), 30)

        first = await scene.complete(store=Delayed(scene.store, "complete_file", meanwhile))
        assert first.sha256 == sha256_of(OLD)
        await scene.is_whole(OLD, besides=1)
        decided.set()
        with pytest.raises(Conflict, match="other bytes"):
            await other[0]
        await scene.is_whole(OLD)

    @pytest.mark.parametrize("verb", ["copy", "size"])
    async def test_other_bytes_arrive_between_the_steps_of_one(self, scene: Scene, verb: str) -> None:
        async def meanwhile() -> None:
            await scene.put(NEW)

        done = await scene.complete(objects=Delayed(scene.objects, verb, meanwhile))
        expected = {"copy": NEW, "size": OLD}[verb]
        assert done.sha256 == sha256_of(expected)
        await scene.is_whole(expected)

    async def test_one_with_a_wrong_sha256_does_not_disturb_the_other(self, scene: Scene) -> None:
        async def meanwhile() -> None:
            await scene.complete()

        slow = Delayed(scene.objects, "size", meanwhile)
        with pytest.raises(InvalidRequest, match="sha256"):
            await scene.complete(objects=slow, sha256=sha256_of(NEW))
        await scene.is_whole(OLD)

    async def test_in_any_order(self, scene: Scene) -> None:
        """Twelve workers put and complete in random order."""

        async def put_and_complete(data: bytes) -> File | Exception:
            try:
                await scene.put(data)
                return await scene.complete()
            except CallerError as exc:
                return exc

        answers = await asyncio.gather(*(put_and_complete((OLD, NEW)[n % 2]) for n in range(12)))
        ready = [answer for answer in answers if isinstance(answer, File)]
        assert ready
        assert all(answer == ready[0] for answer in ready)
        assert all(isinstance(answer, File | Conflict) for answer in answers)
        await scene.is_whole(OLD if ready[0].sha256 == sha256_of(OLD) else NEW)


class TestFailures:
    @pytest.mark.parametrize("data", [OLD[:-1], OLD + b"!", b""])
    async def test_bytes_of_another_size_are_deleted(self, scene: Scene, data: bytes) -> None:
        await scene.put(data)
        with pytest.raises(InvalidRequest, match="announced"):
            await scene.complete()
        assert await keys(scene.objects) == set()
        with pytest.raises(Conflict, match="Nothing was uploaded"):
            await scene.complete()
        await scene.put(OLD)
        await scene.complete()
        await scene.is_whole(OLD)

    async def test_a_file_deleted_meanwhile_leaves_no_bytes(self, scene: Scene) -> None:
        with pytest.raises(NotFound):
            await scene.complete(store=Delayed(scene.store, "complete_file", scene.delete))
        assert await keys(scene.objects) <= {incoming_key(scene.file.id)}

    async def test_completion_can_be_repeated_after_a_database_failure(self, scene: Scene) -> None:
        async def meanwhile() -> None:
            raise Unavailable("The database is away.")

        with pytest.raises(Unavailable):
            await scene.complete(store=Delayed(scene.store, "complete_file", meanwhile))
        assert (await scene.complete()).sha256 == sha256_of(OLD)

    async def test_completion_can_be_repeated_after_a_lost_response(self, scene: Scene) -> None:
        async def meanwhile() -> None:
            raise Unavailable("The answer was lost.")

        with pytest.raises(Unavailable):
            await scene.complete(store=Delayed(scene.store, "complete_file", meanwhile, after=True))
        assert (await scene.complete()).sha256 == sha256_of(OLD)
        await scene.is_whole(OLD)

    async def test_a_cancelled_completion_keeps_the_upload(self, scene: Scene) -> None:
        reached, never = asyncio.Event(), asyncio.Event()

        async def meanwhile() -> None:
            reached.set()
            await never.wait()

        stuck = asyncio.create_task(scene.complete(objects=Delayed(scene.objects, "size", meanwhile)))
        await asyncio.wait_for(reached.wait(), 30)
        stuck.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stuck
        assert await keys(scene.objects) == {incoming_key(scene.file.id)}
        await scene.complete()
        await scene.is_whole(OLD)


class TestPutToTheServer:
    async def test_a_put_of_another_size_keeps_the_upload_before_it(self, scene: Scene) -> None:
        bag = Bag(scene.store, scene.objects, max_file_bytes=1_000)
        for wrong in (OLD[:-1], OLD + b"!"):
            with pytest.raises(CallerError):
                await bag.accept(FileId(scene.file.id), len(OLD), blocks(wrong))
        await scene.complete()
        await scene.is_whole(OLD)


class TestTheStore:
    async def test_refuses_invalid_results_of_an_inspection(self, scene: Scene, store: Store, tenant: Tenant) -> None:
        proper: dict[str, Any] = {"size": len(OLD), "sha256": sha256_of(OLD)}
        for wrong in (
            {"crc32": -1},
            {"crc32": 2**32},
            {"crc32": "7"},
            {"storage_key": "a\0"},
            {"storage_key": "k" * 5_000},
        ):
            with pytest.raises(CallerError):
                await store.complete_file(tenant.ann, scene.file.id, **(proper | wrong))
        assert (await store.file(tenant.ann, scene.file.id)).status == "pending"
