"""Files into a workspace and back: hostile zips, hostile files."""

import io

import pytest

from tests.files.hostile_zips import HOSTILE
from tests.sandbox_runner.box_processes import fails, says, shell
from tests.sandbox_runner.fake_server import zip_of
from tests.sandbox_runner.harness import SMALL
from turnkeep.sandbox.boxes.ports import Box, BoxCommand, Driver, Ended
from turnkeep.sandbox.workspace import (
    ASSETS,
    SKILLS,
    BagRefused,
    BoxWorkspace,
    WorkspaceFailed,
    WorkspaceFile,
    skill_files,
)


@pytest.fixture
def workspace(driver: Driver, box: Box) -> BoxWorkspace:
    return BoxWorkspace(box, driver.python, SMALL.limits)


class TestUnpacking:
    async def test_files_land_in_assets(self, box: Box, workspace: BoxWorkspace) -> None:
        large = bytes(range(256)) * 4_000
        count = await workspace.unpack(io.BytesIO(zip_of({"a.txt": b"A", "sub/größe.bin": large, "empty": b""})))
        assert count == 3
        assert await says(box, "cat /workspace/assets/a.txt") == "A"
        assert await says(box, "stat -c %s /root/workspace/assets/sub/größe.bin assets/empty") == f"{len(large)}\n0"

    async def test_an_empty_zip_is_accepted(self, workspace: BoxWorkspace) -> None:
        assert await workspace.unpack(io.BytesIO(zip_of({}))) == 0

    @pytest.mark.parametrize("name", HOSTILE)
    async def test_a_hostile_zip_is_refused_with_a_reason(self, box: Box, workspace: BoxWorkspace, name: str) -> None:
        with pytest.raises(BagRefused) as refused:
            await workspace.unpack(io.BytesIO(HOSTILE[name]()))
        assert refused.value.detail[0].isupper() or refused.value.detail[0] in "'\""
        assert await says(box, "find / -xdev -newer /workspace -name '*evil*' 2>/dev/null; ls -A /root") == "workspace"

    async def test_a_refused_zip_leaves_no_file(self, box: Box, workspace: BoxWorkspace) -> None:
        with pytest.raises(BagRefused):
            await workspace.unpack(io.BytesIO(zip_of({"good": b"x", "../bad": b"y"})))
        assert await says(box, "ls -A assets") == ""


class TestPuttingSkills:
    async def test_programs_of_a_skill_can_be_run_and_its_description_cannot(
        self, box: Box, workspace: BoxWorkspace
    ) -> None:
        await workspace.put(SKILLS, skill_files({"greet": {"SKILL.md": "# Greets", "bin/hi": "#!/bin/sh\necho hi\n"}}))
        assert await says(box, "skills/greet/bin/hi") == "hi"
        assert await says(box, "test -x skills/greet/SKILL.md || echo no") == "no"

    async def test_a_skill_cannot_change_files_of_the_runner(self, box: Box, workspace: BoxWorkspace) -> None:
        """The runner's own helper is not in the box: it comes with each request, and nothing in the box can wait
        for it with another one under its name."""
        await says(box, "mkdir -p x && echo 'raise SystemExit(9)' > json.py && cp json.py os.py && cp json.py x/")
        await says(box, "printf '#!/bin/sh\\necho hijacked' > python3 && chmod +x python3 && export PATH=.:$PATH")
        await fails(box, "echo x >> /usr/bin/env")
        await workspace.put(ASSETS, [WorkspaceFile(path="after.txt", data=b"fine")])
        assert await says(box, "cat assets/after.txt") == "fine"
        assert await workspace.script.ask("read", {"path": "assets/after.txt", "first_line": 1, "lines": 5}) == "fine"


class TestCollecting:
    async def test_only_new_and_changed_files_come_back(self, box: Box, workspace: BoxWorkspace) -> None:
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

    async def test_symlinks_and_fifos_are_left_out_and_named(self, box: Box, workspace: BoxWorkspace) -> None:
        await says(
            box,
            "cd assets; ln -s /etc/passwd link; ln -s /etc folder; ln -s /proc/1/environ env; mkfifo pipe; touch good",
        )
        collected = await workspace.collect()
        assert [asset.path for asset in collected.assets] == ["good"]
        assert set(collected.skipped) == {"link", "folder", "env", "pipe"}
        collected.assets[0].file.close()

    async def test_a_hardlink_can_only_name_a_file_of_the_box_itself(self, box: Box, workspace: BoxWorkspace) -> None:
        ended = await shell(
            box, "ln /etc/passwd assets/passwd; ln /usr/bin/env assets/env; ln /proc/1/environ assets/e"
        )
        assert ended.exit_code != 0
        await says(box, "echo own > own; ln own assets/own")
        collected = await workspace.collect()
        assert {asset.path: asset.file.read() for asset in collected.assets} == {"own": b"own\n"}
        collected.assets[0].file.close()

    async def test_assets_itself_may_have_become_a_link(self, box: Box, workspace: BoxWorkspace) -> None:
        await says(box, "rmdir assets && ln -s /usr/lib assets")
        collected = await workspace.collect()
        for asset in collected.assets:
            asset.file.close()
        assert collected.assets == ()

    async def test_invalid_file_names_are_skipped(self, box: Box, workspace: BoxWorkspace) -> None:
        await says(box, "cd assets; echo x > $'line\\nbreak'; echo y > good")
        collected = await workspace.collect()
        assert [asset.path for asset in collected.assets] == ["good"]
        assert collected.skipped == (r"'line\nbreak'",)
        collected.assets[0].file.close()

    async def test_wrong_output_of_a_box_is_refused(self, driver: Driver) -> None:
        for said in (b"", b"nonsense\n", b'{"path": "a", "size": 10}\nshort', b'{"path": 1}\n', b"x" * 100_000):
            with pytest.raises(WorkspaceFailed):
                await BoxWorkspace(_Liar(said), driver.python, SMALL.limits).collect()


class _Liar:
    """A box that says what it likes."""

    def __init__(self, said: bytes) -> None:
        self._said = said

    async def run(self, command: BoxCommand) -> Ended:
        assert command.on_output is not None
        command.on_output(self._said)
        return Ended(exit_code=0, output=b"", seconds=0.0)

    async def close(self) -> None:
        pass
