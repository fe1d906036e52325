"""What goes into a workspace, and what comes out of it: hostile zips, hostile files."""

import io
import stat
import struct
import zipfile
from collections.abc import Callable

import pytest

from tests.runner.boxing import fails, says, shell
from tests.runner.fake_server import zip_of
from tests.runner.harness import SMALL
from turnkeep.runner.archive import BagRefused
from turnkeep.runner.boxes.ports import Box, Command, Driver, Ended
from turnkeep.runner.workspace import ASSETS, SKILLS, NewFile, Workspace, WorkspaceFailed, skill_files


@pytest.fixture
def workspace(driver: Driver, box: Box) -> Workspace:
    return Workspace(box, driver.python, SMALL.limits)


def entry(name: str, data: bytes = b"x", *, kind: int = 0) -> tuple[zipfile.ZipInfo, bytes]:
    info = zipfile.ZipInfo(name)
    info.filename = name  # ZipInfo would clean it
    info.external_attr = kind << 16
    return info, data


def zipped(*entries: tuple[zipfile.ZipInfo, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for info, data in entries:
            archive.writestr(info, data, compress_type=method)
    return buffer.getvalue()


def renamed(name: bytes) -> bytes:
    """A zip whose one entry bears a name that the library would not write."""
    return zip_of({"N" * len(name): b"x"}).replace(b"N" * len(name), name)


def twice_the_same() -> bytes:
    with pytest.warns(UserWarning, match="Duplicate name"):
        return zipped(entry("same"), entry("same"))


def overlapping() -> bytes:
    """An entry inside the bytes of another, each of them in order for itself: so bombs are made."""
    single = zipped(entry("inner", b"I" * 500))
    at = single.index(b"PK\x01\x02")
    local, directory = single[:at], bytearray(single[at : single.index(b"PK\x05\x06")])
    outer = zipped(entry("outer", local))
    at, end = outer.index(b"PK\x01\x02"), bytearray(outer[outer.rindex(b"PK\x05\x06") :])
    directory[42:46] = struct.pack("<I", outer.index(b"PK\x03\x04", 4))
    both = outer[at : outer.rindex(b"PK\x05\x06")] + directory
    end[8:16] = struct.pack("<HHI", 2, 2, len(both))
    return outer[:at] + both + bytes(end)


def lying(claimed: int) -> bytes:
    """An entry that says another size than it has."""
    data = bytearray(zip_of({"liar": b"z" * 1_000}))
    directory = data.index(b"PK\x01\x02")
    data[directory + 24 : directory + 28] = struct.pack("<I", claimed)
    return bytes(data)


def damaged() -> bytes:
    data = bytearray(zip_of({"broken": bytes(range(256)) * 20}))
    data[50:60] = b"\xff" * 10
    return bytes(data)


def encrypted() -> bytes:
    data = bytearray(zip_of({"closed": b"x"}))
    for head, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.index(head) + offset
        data[at : at + 2] = struct.pack("<H", 1)
    return bytes(data)


HOSTILE: dict[str, Callable[[], bytes]] = {
    "traversal": lambda: zip_of({"../../etc/passwd": b"x"}),
    "traversal in the middle": lambda: zip_of({"a/../../b": b"x"}),
    "absolute": lambda: renamed(b"/etc/passwd"),
    "a drive": lambda: renamed(b"C:evil.exe"),
    "backslashes": lambda: renamed(b"..\\..\\evil"),
    "a NUL": lambda: renamed(b"good\0.txt"),
    "a line break": lambda: zip_of({"a\nb": b"x"}),
    "a name without end": lambda: zip_of({"n" * 300: b"x"}),
    "a path without end": lambda: zip_of({"/".join(["d" * 100] * 20): b"x"}),
    "symlink": lambda: zipped(entry("link", b"/etc/passwd", kind=stat.S_IFLNK | 0o777)),
    "device": lambda: zipped(entry("disk", b"", kind=stat.S_IFBLK | 0o666)),
    "FIFO": lambda: zipped(entry("pipe", b"", kind=stat.S_IFIFO | 0o666)),
    "socket": lambda: zipped(entry("sock", b"", kind=stat.S_IFSOCK | 0o666)),
    "duplicate": twice_the_same,
    "a file inside a file": lambda: zip_of({"a": b"x", "a/b": b"y"}),
    "overlapping": overlapping,
    "smaller than it says": lambda: lying(2_000),
    "larger than it says": lambda: lying(10),
    "bomb": lambda: zip_of({f"{number}": bytes(8 << 20) for number in range(8)}),
    "ten thousand files": lambda: zip_of({str(number): b"" for number in range(3_000)}),
    "encrypted": encrypted,
    "damaged": damaged,
    "another compression": lambda: zipped(entry("x", b"y" * 100), method=zipfile.ZIP_LZMA),
    "no zip at all": lambda: b"PK\x03\x04 not really",
    "nothing": lambda: b"",
}


class TestUnpacking:
    async def test_files_land_in_assets(self, box: Box, workspace: Workspace) -> None:
        large = bytes(range(256)) * 4_000
        count = await workspace.unpack(io.BytesIO(zip_of({"a.txt": b"A", "sub/größe.bin": large, "empty": b""})))
        assert count == 3
        assert await says(box, "cat /workspace/assets/a.txt") == "A"
        assert await says(box, "stat -c %s /root/workspace/assets/sub/größe.bin assets/empty") == f"{len(large)}\n0"

    @pytest.mark.parametrize("name", HOSTILE)
    async def test_a_hostile_zip_is_refused_in_words(self, box: Box, workspace: Workspace, name: str) -> None:
        with pytest.raises(BagRefused) as refused:
            await workspace.unpack(io.BytesIO(HOSTILE[name]()))
        assert refused.value.detail[0].isupper() or refused.value.detail[0] in "'\""
        assert await says(box, "find / -xdev -newer /workspace -name '*evil*' 2>/dev/null; ls -A /root") == "workspace"

    async def test_a_refused_zip_leaves_nothing_where_it_could_be_seen_before(
        self, box: Box, workspace: Workspace
    ) -> None:
        with pytest.raises(BagRefused):
            await workspace.unpack(io.BytesIO(zip_of({"good": b"x", "../bad": b"y"})))
        assert await says(box, "ls -A assets") == ""


class TestPuttingSkills:
    async def test_programs_of_a_skill_can_be_run_and_its_description_cannot(
        self, box: Box, workspace: Workspace
    ) -> None:
        await workspace.put(SKILLS, skill_files({"greet": {"SKILL.md": "# Greets", "bin/hi": "#!/bin/sh\necho hi\n"}}))
        assert await says(box, "skills/greet/bin/hi") == "hi"
        assert await says(box, "test -x skills/greet/SKILL.md || echo no") == "no"

    async def test_a_skill_that_rewrites_the_runners_files_finds_none(self, box: Box, workspace: Workspace) -> None:
        """The runner's own helper is not in the box: it comes with each request, and nothing in the box can wait
        for it with another one under its name."""
        await says(box, "mkdir -p x && echo 'raise SystemExit(9)' > json.py && cp json.py os.py && cp json.py x/")
        await says(box, "printf '#!/bin/sh\\necho hijacked' > python3 && chmod +x python3 && export PATH=.:$PATH")
        await fails(box, "echo x >> /usr/bin/env")
        await workspace.put(ASSETS, [NewFile(path="after.txt", data=b"fine")])
        assert await says(box, "cat assets/after.txt") == "fine"
        assert await workspace.inside.ask("read", {"path": "assets/after.txt", "first_line": 1, "lines": 5}) == "fine"


class TestCollecting:
    async def test_only_new_and_changed_files_come_back(self, box: Box, workspace: Workspace) -> None:
        await workspace.unpack(io.BytesIO(zip_of({"same.txt": b"same", "changed.txt": b"before", "gone.txt": b"x"})))
        await says(
            box, "cd assets; echo after > changed.txt; echo new > new.txt; mkdir d; echo deep > d/e; rm gone.txt"
        )
        await says(box, "echo outside > /workspace/notes.txt; touch assets/same.txt")
        collected = await workspace.collect()
        assert {asset.path: asset.file.read() for asset in collected.assets} == {
            "changed.txt": b"after\n",
            "new.txt": b"new\n",
            "d/e": b"deep\n",
        }
        assert collected.skipped == ()
        for asset in collected.assets:
            asset.file.close()

    async def test_symlinks_and_fifos_are_left_out_and_named(self, box: Box, workspace: Workspace) -> None:
        await says(
            box,
            "cd assets; ln -s /etc/passwd link; ln -s /etc folder; ln -s /proc/1/environ env; mkfifo pipe; touch good",
        )
        collected = await workspace.collect()
        assert [asset.path for asset in collected.assets] == ["good"]
        assert set(collected.skipped) == {"link", "folder", "env", "pipe"}
        collected.assets[0].file.close()

    async def test_a_hardlink_can_only_name_a_file_of_the_box_itself(self, box: Box, workspace: Workspace) -> None:
        ended = await shell(
            box, "ln /etc/passwd assets/passwd; ln /usr/bin/env assets/env; ln /proc/1/environ assets/e"
        )
        assert ended.exit_code != 0
        await says(box, "echo own > own; ln own assets/own")
        collected = await workspace.collect()
        assert {asset.path: asset.file.read() for asset in collected.assets} == {"own": b"own\n"}
        collected.assets[0].file.close()

    async def test_assets_itself_may_have_become_a_link(self, box: Box, workspace: Workspace) -> None:
        await says(box, "rmdir assets && ln -s /usr/lib assets")
        collected = await workspace.collect()
        for asset in collected.assets:
            asset.file.close()
        assert collected.assets == ()

    async def test_names_that_no_file_should_have_are_not_taken(self, box: Box, workspace: Workspace) -> None:
        await says(box, "cd assets; echo x > $'line\\nbreak'; echo y > good")
        collected = await workspace.collect()
        assert [asset.path for asset in collected.assets] == ["good"]
        assert collected.skipped == (r"'line\nbreak'",)
        collected.assets[0].file.close()

    async def test_a_box_that_lies_about_its_files_is_not_believed(self, driver: Driver) -> None:
        for said in (b"", b"nonsense\n", b'{"path": "a", "size": 10}\nshort', b'{"path": 1}\n', b"x" * 100_000):
            with pytest.raises(WorkspaceFailed):
                await Workspace(_Liar(said), driver.python, SMALL.limits).collect()


class _Liar:
    """A box that says what it likes."""

    def __init__(self, said: bytes) -> None:
        self._said = said

    async def run(self, command: Command) -> Ended:
        assert command.on_output is not None
        command.on_output(self._said)
        return Ended(exit_code=0, output=b"", seconds=0.0)

    async def close(self) -> None:
        pass
