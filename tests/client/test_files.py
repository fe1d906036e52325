"""Files through the client: uploaded in pieces or in one form, read back the same, and whole or not at all."""

import hashlib
import random
from pathlib import Path

import pytest

from tests.client.proxy import CuttingProxy
from tests.client.site import Site
from turnkeep.client import AsyncTurnkeep
from turnkeep.errors import Defect, InvalidRequest, NotFound
from turnkeep_client.wire import File

TEXT = b"a line of text\n" * 40


class TestUploading:
    async def test_a_file_is_attached_to_the_turn_that_names_it(self, turnkeep: AsyncTurnkeep, tmp_path: Path) -> None:
        note = tmp_path / "note.txt"
        note.write_bytes(TEXT)
        file = await turnkeep.files.upload(note)
        assert (file.name, file.size, file.sha256) == ("note.txt", len(TEXT), hashlib.sha256(TEXT).hexdigest())
        answer = await turnkeep.ask("What is it?", attachment_ids=[file.id])
        assert [one.id async for one in turnkeep.files.list(answer.conversation_id)] == [file.id]
        assert await turnkeep.files.read(file.id) == TEXT

    async def test_bytes_go_into_a_conversation_under_the_name_that_they_are_given(
        self, turnkeep: AsyncTurnkeep
    ) -> None:
        made = await turnkeep.conversations.create()
        file = await turnkeep.files.upload(TEXT, name="wörter.txt", conversation_id=made.id)
        assert (file.conversation_id, file.name) == (made.id, "wörter.txt")
        with pytest.raises(InvalidRequest, match="name"):
            await turnkeep.files.upload(TEXT)

    async def test_several_go_in_one_form(self, turnkeep: AsyncTurnkeep, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_bytes(TEXT)
        made = await turnkeep.conversations.create()
        files = await turnkeep.files.upload_here(made.id, [tmp_path / "a.txt", ("b.txt", b"more")])
        assert [file.name for file in files] == ["a.txt", "b.txt"]

    async def test_a_large_one_survives_cuts_and_is_there_once(self, site: Site, proxy: CuttingProxy) -> None:
        content = random.Random(1).randbytes(1 << 20).hex().encode()
        proxy.budget = lambda nth: 30 if nth % 3 else None
        async with site.client() as client:
            made = await client.conversations.create()
        async with site.client(proxy.url, patience_seconds=30) as client:
            file = await client.files.upload(content, name="large.txt", conversation_id=made.id)
        async with site.client() as client:
            assert [one.id async for one in client.files.list(made.id)] == [file.id]
            assert await client.files.read(file.id) == content

    async def test_what_is_not_there_is_told_before_anything_is_sent(
        self, turnkeep: AsyncTurnkeep, tmp_path: Path
    ) -> None:
        with pytest.raises(NotFound, match="There is no file"):
            await turnkeep.files.upload(tmp_path / "nothing.txt")
        with pytest.raises(InvalidRequest, match="not a file"):
            await turnkeep.files.upload(tmp_path)


class TestDownloading:
    @pytest.fixture
    async def file(self, turnkeep: AsyncTurnkeep) -> File:
        return await turnkeep.files.upload(TEXT * 200, name="long.txt")

    async def test_a_cut_download_goes_on_at_the_next_byte(
        self, site: Site, proxy: CuttingProxy, file: File, tmp_path: Path
    ) -> None:
        chance = random.Random(2)
        proxy.budget = lambda nth: chance.randrange(1_000, 40_000)
        async with site.client(proxy.url, patience_seconds=30) as client:
            path = await client.files.download(file.id, tmp_path)
        assert path == tmp_path / "long.txt"
        assert path.read_bytes() == TEXT * 200
        assert proxy.cuts > 3
        assert [each.name for each in tmp_path.glob(".*.part")] == []

    async def test_a_damaged_one_does_not_appear(
        self, turnkeep: AsyncTurnkeep, file: File, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def other(*_: object, **__: object) -> File:
            return File(**{name: getattr(file, name) for name in file.__struct_fields__} | {"sha256": "0" * 64})

        monkeypatch.setattr(turnkeep.files, "get", other)
        with pytest.raises(Defect, match="damaged"):
            await turnkeep.files.download(file.id, tmp_path / "x.txt")
        assert not (tmp_path / "x.txt").exists()

    async def test_a_copy_is_kept_in_the_workspace_and_the_file_can_go(
        self, turnkeep: AsyncTurnkeep, file: File
    ) -> None:
        await turnkeep.ask("What is it?", attachment_ids=[file.id])
        saved = await turnkeep.files.save(file.id)
        await turnkeep.files.delete(file.id)
        with pytest.raises(NotFound):
            await turnkeep.files.get(file.id)
        assert [one.id async for one in turnkeep.files.list()] == [saved.id]
        assert await turnkeep.files.read(saved.id) == TEXT * 200

    async def test_a_place_that_cannot_be_written_is_told(
        self, turnkeep: AsyncTurnkeep, file: File, tmp_path: Path
    ) -> None:
        with pytest.raises(InvalidRequest, match="cannot be written"):
            await turnkeep.files.download(file.id, tmp_path / "no" / "such" / "folder.txt")
