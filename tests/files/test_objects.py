"""Objects, on a local disk and in a bucket: the same promises for both."""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests import buckets
from tests.files.blocks import blocks, in_pieces, keys, whole
from turnkeep.errors import StorageFull, Unavailable
from turnkeep.files.bucket import BucketObjects
from turnkeep.files.objects import LocalObjects, open_objects, translated
from turnkeep.files.ports import Missing, Objects

MIB = 1024 * 1024


class TestPutting:
    @pytest.mark.parametrize("size", [0, 1, 65_536, MIB, 5 * MIB, 11 * MIB + 7])
    async def test_stored_bytes_are_read_back(self, objects: Objects, size: int) -> None:
        data = os.urandom(size)
        await objects.put("bag/a.bin", in_pieces(data))
        assert await objects.size("bag/a.bin") == size
        assert await whole(objects.read("bag/a.bin", start=0, end=size)) == data

    @pytest.mark.parametrize("size", [10, 12 * MIB])
    async def test_a_source_that_fails_leaves_nothing(self, objects: Objects, size: int) -> None:
        async def failing() -> AsyncIterator[bytes]:
            for _ in range(max(1, size // MIB)):
                yield os.urandom(min(size, MIB))
            raise LookupError("cut")

        with pytest.raises(LookupError, match="cut"):
            await objects.put("bag/a.bin", failing())
        assert await keys(objects) == set()

    async def test_a_caller_that_is_cancelled_leaves_nothing(self, objects: Objects, tmp_path: Path) -> None:
        stuck = asyncio.Event()

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(12):
                yield os.urandom(MIB)
            stuck.set()
            await asyncio.Event().wait()

        putting = asyncio.create_task(objects.put("bag/a.bin", endless()))
        await asyncio.wait_for(stuck.wait(), 30)
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
        deadline = time.monotonic() + 30
        while any(path.is_file() for path in (tmp_path / "files").rglob("*")):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        assert await keys(objects) == set()


class TestReading:
    async def test_any_range(self, objects: Objects) -> None:
        data = os.urandom(3 * MIB + 5)
        await objects.put("bag/a.bin", in_pieces(data))
        for start, end in ((0, 1), (5, 10), (MIB - 1, MIB + 1), (MIB, 3 * MIB), (3 * MIB, len(data)), (7, 7)):
            assert await whole(objects.read("bag/a.bin", start=start, end=end)) == data[start:end]

    @pytest.mark.parametrize("start", [0, 9, 10, 15])
    async def test_a_truncated_object_is_not_read_as_complete(self, objects: Objects, start: int) -> None:
        await objects.put("bag/a.bin", blocks(b"0123456789"))
        with pytest.raises(Unavailable):
            await whole(objects.read("bag/a.bin", start=start, end=20))

    async def test_a_missing_object_has_no_size_and_raises(self, objects: Objects) -> None:
        assert await objects.size("bag/none") is None
        with pytest.raises(Missing):
            await whole(objects.read("bag/none", start=0, end=1))
        with pytest.raises(Missing):
            await objects.copy("bag/none", "bag/other")


class TestCopyAndDelete:
    async def test_a_copy_does_not_depend_on_its_original(self, objects: Objects) -> None:
        await objects.put("bag/a", blocks(b"hello"))
        await objects.copy("bag/a", "files/b")
        await objects.delete(["bag/a"])
        assert await keys(objects) == {"files/b"}
        assert await whole(objects.read("files/b", start=0, end=5)) == b"hello"

    async def test_a_copy_does_not_change_when_its_original_is_put_again(self, objects: Objects) -> None:
        for size in (5, 7 * MIB):
            await objects.put("incoming/a", in_pieces(b"a" * size))
            await objects.copy("incoming/a", f"bag/x/y/{size}")
            await objects.put("incoming/a", in_pieces(b"b" * size))
            assert await whole(objects.read(f"bag/x/y/{size}", start=0, end=size)) == b"a" * size

    async def test_a_copy_is_new_however_old_its_original_is(self, objects: Objects, tmp_path: Path) -> None:
        """The orphan sweep leaves new objects alone, because their row may be about to be written."""
        await objects.put("bag/a", blocks(b"hello"))
        if isinstance(objects, LocalObjects):
            os.utime(tmp_path / "files" / "bag" / "a", (1, 1))
        before = time.time() * 1000
        await objects.copy("bag/a", "files/b")
        [[copied]] = [page async for page in objects.list("files")]
        assert copied.modified_at >= before - 5_000

    async def test_deleting_a_missing_object_is_no_error(self, objects: Objects) -> None:
        await objects.put("bag/a", blocks(b"hello"))
        await objects.delete(["bag/none", "bag/a", "bag/a"])
        assert await keys(objects) == set()
        await objects.delete([])


class TestListing:
    async def test_has_key_size_and_time(self, objects: Objects) -> None:
        before = time.time() * 1000
        for name in ("a", "b/c", "b/d"):
            await objects.put(f"bag/{name}", blocks(name.encode() * 10))
        found = [each async for page in objects.list("bag") for each in page]
        assert {(each.key, each.size) for each in found} == {("bag/a", 10), ("bag/b/c", 30), ("bag/b/d", 30)}
        assert all(before - 5_000 <= each.modified_at <= before + 60_000 for each in found)
        assert await keys(objects, "bag/b") == {"bag/b/c", "bag/b/d"}
        assert await keys(objects, "nothing") == set()


class TestLocalDisk:
    async def test_a_killed_put_is_removed_once_it_is_old(self, tmp_path: Path) -> None:
        script = """
import asyncio, sys
from pathlib import Path
from turnkeep.files.objects import LocalObjects

async def endless():
    while True:
        yield b"x" * 1_000_000
        print("written", flush=True)
        await asyncio.sleep(0.01)

asyncio.run(LocalObjects(Path(sys.argv[1])).put("bag/a", endless()))
"""
        child = subprocess.Popen([sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE)
        assert child.stdout is not None
        with child, child.stdout:
            for _ in range(5):
                child.stdout.readline()
            child.send_signal(signal.SIGKILL)
        objects = LocalObjects(tmp_path)
        assert await keys(objects) == set()
        left = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert len(left) == 1, "a killed put leaves its draft"
        assert await objects.discard_unfinished(before=int(time.time() * 1000) - 60_000) == 0
        assert await objects.discard_unfinished(before=int(time.time() * 1000) + 60_000) == 1
        assert not left[0].exists()

    async def test_an_object_is_flushed_with_the_folders_that_lead_to_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        objects = LocalObjects(tmp_path)
        flushed: list[str] = []
        fsync = os.fsync

        def noted(descriptor: int) -> None:
            flushed.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", noted)
        await objects.put("bag/a/b.bin", blocks(b"hello"))
        expected = [str(tmp_path / name) for name in ("bag/a/b.bin", "bag/a", "bag")] + [str(tmp_path)]
        assert flushed == expected
        flushed.clear()
        await objects.copy("bag/a/b.bin", "files/c.bin")
        assert flushed == [str(tmp_path / name) for name in ("files/c.bin", "files")] + [str(tmp_path)]

    async def test_only_the_owner_may_read_the_folder(self, tmp_path: Path) -> None:
        LocalObjects(tmp_path / "new")
        assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700

    async def test_has_no_upload_address(self, tmp_path: Path) -> None:
        assert await LocalObjects(tmp_path).upload_url("bag/a", size=1, seconds=60) is None
        assert await LocalObjects(tmp_path).upload_origin() is None

    def test_every_error_of_a_full_disk_is_storage_full(self) -> None:
        for number in (27, 28, 122):
            with pytest.raises(StorageFull), translated():
                raise OSError(number, "no room")
        with pytest.raises(Unavailable), translated():
            raise OSError(5, "Input/output error")


class TestBucket:
    @pytest.fixture
    def bucket(self, monkeypatch: pytest.MonkeyPatch) -> BucketObjects:
        for name, value in buckets.shared_environ().items():
            monkeypatch.setenv(name, value)
        return BucketObjects(buckets.BUCKET, prefix=secrets.token_hex(8))

    async def test_a_client_may_put_to_a_signed_address(self, bucket: BucketObjects) -> None:
        url = await bucket.upload_url("incoming/a", size=5, seconds=60)
        assert url is not None
        async with httpx.AsyncClient(trust_env=False, timeout=120) as client:
            assert (await client.put(url, content=b"hello")).status_code == 200
        assert await whole(bucket.read("incoming/a", start=0, end=5)) == b"hello"

    async def test_all_addresses_have_one_origin(self, bucket: BucketObjects) -> None:
        assert await bucket.upload_origin() == buckets.shared_environ()["AWS_ENDPOINT_URL"]

    async def test_a_forged_signature_is_refused_by_the_bucket(self, bucket: BucketObjects) -> None:
        url = await bucket.upload_url("incoming/a", size=5, seconds=60)
        assert url is not None
        last = "0" if url[-1] != "0" else "1"
        async with httpx.AsyncClient(trust_env=False, timeout=120) as client:
            for forged in (url[:-1] + last, url.replace("incoming/a", "incoming/b"), url.partition("?")[0]):
                assert (await client.put(forged, content=b"hello")).status_code == 403
            assert (await client.get(url)).status_code == 403
        assert await keys(bucket) == set()

    async def test_an_address_takes_exactly_the_announced_bytes(self, bucket: BucketObjects) -> None:
        url = await bucket.upload_url("incoming/a", size=5, seconds=60)
        assert url is not None
        async with httpx.AsyncClient(trust_env=False, timeout=120) as client:
            for other in (b"", b"hell", b"hello!", b"x" * 1_000_000):
                assert (await client.put(url, content=other)).status_code == 403
            assert await keys(bucket) == set()
            longer = url.replace("content-length%3Bhost", "host")
            assert (await client.put(longer, content=b"hello!")).status_code == 403
            assert (await client.put(url, content=b"hello")).status_code == 200
        assert await bucket.size("incoming/a") == 5

    async def test_without_the_secret_the_address_is_as_obstore_signs_it(
        self, bucket: BucketObjects, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
        url = await bucket.upload_url("incoming/a", size=5, seconds=60)
        assert url is not None
        async with httpx.AsyncClient(trust_env=False, timeout=120) as client:
            assert (await client.put(url, content=b"hello!")).status_code == 200

    async def test_wrong_credentials_are_named_in_the_error(
        self, bucket: BucketObjects, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        stranger = open_objects(f"s3://{buckets.BUCKET}/x", folder=Path("unused"))
        with pytest.raises(Unavailable, match="credentials"):
            await stranger.put("bag/a", blocks(b"hello"))
