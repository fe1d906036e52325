"""The escape suite: what code in a box must not be able to do, on every driver. Real boxes, one attempt each."""

import asyncio
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sandbox_runner.box_processes import eventually, fails, mounts, processes_called, python, raises, says, shell
from tests.sandbox_runner.harness import SMALL, WHEEL, drivers, make
from turnkeep.sandbox.boxes.ports import MIB, Box, BoxCommand, BoxLimits, Driver

CALLS: dict[str, tuple[tuple[str, int, int, str], ...]] = {
    "modules of the kernel": (
        ("init_module", 175, 105, "room, 4096, room"),
        ("finit_module", 313, 273, "0, room, 0"),
        ("delete_module", 176, 106, "b'nothing', 0"),
        ("kexec_load", 246, 104, "0, 0, 0, 0"),
        ("kexec_file_load", 320, 294, "0, 0, 0, room, 0"),
    ),
    "mounts by the newer calls": (
        ("open_tree", 428, 428, "-100, b'/', 1"),
        ("fsopen", 430, 430, "b'tmpfs', 0"),
        ("fspick", 433, 433, "-100, b'/', 0"),
        ("move_mount", 429, 429, "-100, b'/tmp', -100, b'/workspace', 0"),
        ("mount_setattr", 442, 442, "-100, b'/', 0, room, 32"),
        ("pivot_root", 155, 41, "b'/workspace', b'/workspace'"),
        ("umount2", 166, 39, "b'/workspace', 2"),
    ),
    "memory of another process": (
        ("process_vm_readv", 310, 270, "1, room, 1, room, 1, 0"),
        ("process_vm_writev", 311, 271, "1, room, 1, room, 1, 0"),
        ("pidfd_getfd", 438, 438, "0, 0, 0"),
        ("kcmp", 312, 272, "1, 1, 0, 0, 0"),
    ),
    "programs in the kernel": (
        ("bpf", 321, 280, "0, room, 64"),
        ("perf_event_open", 298, 241, "room, 0, -1, -1, 0"),
        ("userfaultfd", 323, 282, "0"),
        ("io_uring_setup", 425, 425, "8, room"),
    ),
    "files by their handle": (
        ("name_to_handle_at", 303, 264, "-100, b'/', room, room, 0"),
        ("open_by_handle_at", 304, 265, "-100, room, 0"),
        ("fanotify_init", 300, 262, "0, 0"),
    ),
    "the machine as a whole": (
        ("reboot", 169, 142, "0, 0, 0, 0"),
        ("swapon", 167, 224, "b'/workspace', 0"),
        ("acct", 163, 89, "b'/workspace/log'"),
        ("settimeofday", 164, 170, "room, 0"),
        ("clock_settime", 227, 112, "0, room"),
        ("sethostname", 170, 161, "b'evil', 4"),
        ("syslog", 103, 116, "3, room, 4096"),
    ),
    "keys of the kernel": (
        ("add_key", 248, 217, "b'user', b'name', b'value', 5, -3"),
        ("request_key", 249, 218, "b'user', b'name', 0, -3"),
    ),
}
"""What must be refused: the name of a call, its numbers on x86_64 and aarch64, and arguments. `room` is 4096 bytes."""


@pytest.fixture
def secret() -> Iterator[Path]:
    """A file that every user of this machine may read."""
    with tempfile.NamedTemporaryFile(mode="w", prefix="turnkeep-secret-", dir="/tmp", delete=False) as file:
        file.write("top secret")
    path = Path(file.name)
    path.chmod(0o644)
    yield path
    path.unlink()


@pytest.fixture(params=[*drivers(), WHEEL])
async def driver(request: pytest.FixtureRequest) -> Driver:
    """Also bwrap of the wheel, which is another version, and is started in another way."""
    return make(request.param)


class TestReading:
    async def test_files_of_the_host_are_not_there(self, box: Box, secret: Path) -> None:
        for path in (str(secret), "/etc/shadow", "/etc/hostname", "/var/log", "/home", "/srv", "/opt", "/boot"):
            await fails(box, f"ls {path}")
        assert await says(box, "ls -A /root") == "workspace"

    async def test_neither_is_this_project_nor_its_interpreter(self, box: Box) -> None:
        await fails(box, f"ls {Path(__file__).parents[2]}")

    async def test_a_data_directory_is_not_there(self, box: Box, tmp_path: Path) -> None:
        (tmp_path / "turnkeep.db").write_text("rows")
        for folder in (tmp_path, *tmp_path.parents[:-1]):
            if str(folder) != "/tmp":
                await fails(box, f"ls {folder}")
        assert await says(box, "ls -A /tmp") == ""

    async def test_the_workspace_of_another_turn_is_not_there(self, driver: Driver, box: Box) -> None:
        other = await driver.start(SMALL.limits)
        try:
            await says(other, "echo mine > /workspace/note; echo mine > /tmp/note; echo mine > /dev/shm/note")
            assert await says(box, "find / -name note -not -path '/proc/*' 2>/dev/null; true") == ""
        finally:
            await other.close()

    async def test_the_environment_of_the_runner_is_not_there(
        self, driver: Driver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TURNKEEP_SECRET_KEYS", "top-secret")
        box = await driver.start(SMALL.limits)
        try:
            given = await shell(box, "env -0", environment={"GIVEN": "yes"})
            names = {entry.partition(b"=")[0].decode() for entry in given.output.split(b"\0") if entry}
            assert names >= {"GIVEN"}
            of_the_image = {name for name in names if name.startswith(("PYTHON", "GPG", "HOSTNAME"))}
            assert names - of_the_image <= {"GIVEN", "PATH", "HOME", "LANG", "USER", "PWD", "SHLVL", "_"}
            everything = await shell(box, "cat /proc/*/environ")
            assert b"top-secret" not in everything.output
        finally:
            await box.close()

    async def test_the_processes_of_the_host_are_not_there(self, box: Box) -> None:
        seen = await says(box, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        assert "pytest" not in seen
        assert int(await says(box, "ls -d /proc/[0-9]* | wc -l")) < 10
        await fails(box, f"kill -0 {os.getpid()}")

    async def test_the_kernels_own_secrets_are_not_there(self, box: Box) -> None:
        await fails(box, "head -c 10 /proc/kcore | grep .")
        await fails(box, "grep . /proc/keys")
        await fails(box, "dmesg")

    async def test_the_root_of_another_process_is_that_of_the_box(self, box: Box, secret: Path) -> None:
        """`/proc/PID/root` leads past every mount to what that process sees as `/`."""
        assert await says(box, "ls -A /proc/1/root") == await says(box, "ls -A /")
        for process in ("1", "self"):
            await fails(box, f"cat /proc/{process}/root{secret} || cat /proc/{process}/cwd/../../../../..{secret}")
        await fails(
            box, "for fd in /proc/[0-9]*/fd/*; do test -d $fd && ls $fd/../../etc/shadow && exit 0; done; exit 1"
        )

    async def test_hardware_and_cgroups_of_the_host_are_not_there(self, box: Box) -> None:
        await fails(box, "ls -d /sys/class/net/eth0 || ls /sys/kernel/debug/* || ls /sys/firmware/*")
        await fails(box, "ls /dev/mem || ls /dev/kmsg || ls /dev/sda || ls /dev/vda || ls /dev/kvm || ls /dev/fuse")
        await fails(box, "find /sys -name release_agent 2>/dev/null | grep .")


class TestWriting:
    async def test_settings_of_the_kernel_cannot_be_changed(self, box: Box) -> None:
        """Several of them name a program that the kernel starts as root, outside of every box."""
        for setting, value in (
            ("kernel/core_pattern", "|/workspace/evil"),
            ("kernel/modprobe", "/workspace/evil"),
            ("kernel/hotplug", "/workspace/evil"),
            ("fs/binfmt_misc/register", ":evil:M::MZ::/workspace/evil:"),
            ("vm/overcommit_memory", "1"),
            ("vm/drop_caches", "3"),
        ):
            await fails(box, f"echo '{value}' > /proc/sys/{setting}")
        await fails(box, "echo b > /proc/sysrq-trigger")
        await fails(box, "echo evil > /proc/sys/kernel/hostname")

    async def test_the_workspace_cannot_be_exchanged_for_another_folder(self, box: Box) -> None:
        """The runner reads `assets` from outside, by its path."""
        for folder in ("/workspace", "/root/workspace", "/tmp", "/dev/shm"):
            await fails(box, f"mv {folder} /workspace/moved || {{ rmdir {folder} && ln -s / {folder}; }}")
        await says(box, "touch /workspace/still-here && test -e /root/workspace/still-here")

    async def test_programs_of_the_host_cannot_be_linked_or_changed(self, box: Box) -> None:
        await fails(box, "ln $(readlink -f /usr/bin/env) /workspace/env")
        await fails(box, "chmod u+s /usr/bin/env || touch /usr/bin/env || rm -f /usr/bin/env")
        await fails(box, "echo x >> /etc/passwd || echo x >> /etc/ld.so.preload")

    async def test_nothing_but_the_workspace_and_tmp_can_be_written(self, box: Box) -> None:
        for folder in ("/", "/usr", "/usr/bin", "/etc", "/root", "/dev", "/proc", "/proc/sys/kernel", "/bin"):
            await fails(box, f"echo x > {folder}/turnkeep-test")
        await says(box, "touch /workspace/a /root/workspace/b /tmp/c && test -e /workspace/b")

    async def test_a_mount_cannot_be_made_writable_again(self, box: Box) -> None:
        await fails(box, "mount -o remount,rw /usr || mount -o remount,rw /")
        await fails(box, "mount -t tmpfs none /workspace")
        await fails(box, "chroot /workspace true")

    async def test_devices_cannot_be_made(self, box: Box) -> None:
        await fails(box, "mknod /workspace/disk b 254 0 || mknod /workspace/mem c 1 1")


class TestPrivileges:
    async def test_the_user_is_unprivileged_and_cannot_change_that(self, box: Box) -> None:
        assert await says(box, "id -u") != "0"
        status = await says(box, "cat /proc/self/status")
        for line in ("CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000"):
            assert line in status
        assert "NoNewPrivs:\t1" in status
        await fails(box, "su -c true || sudo -n true")

    async def test_the_user_is_a_real_one_that_nothing_else_uses(self, driver: Driver, box: Box, mark: str) -> None:
        running = asyncio.create_task(shell(box, f"exec sleep {mark}"))
        try:
            await eventually(lambda: any(map(_is_sleep, processes_called(mark))))
            owners = {_uid(pid) for pid in processes_called(mark) if _is_sleep(pid)}
            assert 0 not in owners
            if os.geteuid() == 0:
                assert all(owner > 60_000 for owner in owners)
        finally:
            running.cancel()
            await asyncio.wait({running})

    async def test_there_is_no_terminal_to_type_into(self, box: Box) -> None:
        await fails(box, "echo x > /dev/tty")

    async def test_system_calls_that_reach_into_the_kernel_are_refused(self, box: Box) -> None:
        for call, arguments in (
            ("unshare", "0x10000000"),
            ("setns", "0, 0"),
            ("ptrace", "16, 1, 0, 0"),
            ("mount", "b'none', b'/tmp', b'tmpfs', 0, 0"),
            ("keyctl", "0, -3, 0"),
            ("personality", "0x0040000"),
        ):
            ended = await python(
                box,
                "import ctypes, sys\n"
                "libc = ctypes.CDLL(None, use_errno=True)\n"
                f"call = getattr(libc, {call!r}, None)\n"
                f"sys.exit(0 if call is not None and call({arguments}) != -1 else 3)",
            )
            assert ended.exit_code == 3, call

    async def test_the_first_process_of_the_box_is_no_way_around_the_filter(self, box: Box) -> None:
        """The same user owns it, so its memory can be written: it must not have more rights than other processes. It
        starts the command, and takes the filter at the same moment."""
        wait = "for n in $(seq 100); do grep -q 'Seccomp:.2' /proc/1/status && break; sleep 0.05; done"
        status = await says(box, f"{wait}; cat /proc/1/status")
        for line in (
            "Seccomp:\t2",
            "NoNewPrivs:\t1",
            *(f"Cap{kind}:\t0000000000000000" for kind in ("Prm", "Eff", "Bnd")),
        ):
            assert line in status

    async def test_no_descriptor_of_the_runner_is_left_open(self, request: pytest.FixtureRequest, box: Box) -> None:
        for process in ("self", "1"):
            found = (await says(box, f"cd /proc/{process}/fd && for fd in *; do readlink $fd; done; true")).splitlines()
            # bwrap of the wheel and its library are copies in memory, which no box can change: `TestTheWheel`.
            copies = ("/memfd:bwrap", "/memfd:lib") if WHEEL in request.node.name else ()
            harmless = ("pipe:", "socket:", "/proc/", "/dev/null", "anon_inode", *copies)
            assert [name for name in found if not name.startswith(harmless)] == [], process
            assert len(found) <= 8 + 2 * len(copies)

    async def test_namespaces_cannot_be_made_by_clone_either(self, box: Box) -> None:
        await fails(box, "unshare --user --map-root-user true")
        await fails(box, "unshare --fork --pid --user true")

    async def test_a_file_cannot_give_rights_to_the_process_that_runs_it(self, box: Box) -> None:
        """Neither by its bits nor by its attributes, wherever it lies."""
        before = await says(box, "id -u")
        for folder in ("/workspace", "/tmp", "/dev/shm"):
            copy = f"{folder}/copy-of-id"
            ran = await shell(box, f"cp $(command -v id) {copy} && chmod 6755 {copy} && {copy} -u")
            assert ran.output.decode().strip().endswith(before) or ran.exit_code != 0, folder
            all_rights = "bytes.fromhex('0100000202000000000000000000000000000000')"
            code = f"import os; os.setxattr('{copy}', 'security.capability', {all_rights})"
            assert "Error" in await raises(box, code), folder

    async def test_the_user_and_the_groups_cannot_be_changed(self, box: Box) -> None:
        for call in ("os.setuid(0)", "os.setgid(0)", "os.setgroups([0])", "os.setresuid(0, 0, 0)", "os.setreuid(1, 1)"):
            assert "Error" in await raises(box, f"import os; {call}"), call
        assert "Error" in await raises(box, "open('/proc/self/uid_map', 'w').write('0 0 1')")

    async def test_limits_and_priority_cannot_be_raised(self, box: Box) -> None:
        for limit in ("NOFILE", "NPROC", "FSIZE", "CPU", "AS", "CORE"):
            code = (
                "import resource\n"
                f"soft, hard = resource.getrlimit(resource.RLIMIT_{limit})\n"
                "assert hard != resource.RLIM_INFINITY, 'there is none'\n"
                f"resource.setrlimit(resource.RLIMIT_{limit}, (soft, hard + 1))"
            )
            said = await raises(box, code)
            assert "there is none" in said or "not allowed" in said or "Operation not permitted" in said, limit
        await fails(box, "renice -n -5 $$")
        for policy in ("SCHED_FIFO", "SCHED_RR"):
            assert "Error" in await raises(box, f"import os; os.sched_setscheduler(0, os.{policy}, os.sched_param(1))")

    async def test_no_key_can_be_typed_into_the_terminal_of_the_runner(self, box: Box) -> None:
        code = (
            "import fcntl, os, termios\n"
            "for fd in range(10):\n"
            "    try: fcntl.ioctl(fd, termios.TIOCSTI, b'x')\n"
            "    except OSError: continue\n"
            "    print('typed'); break\n"
        )
        assert b"typed" not in (await python(box, code)).output

    @pytest.mark.parametrize("purpose", CALLS)
    async def test_raw_system_calls_are_refused(self, box: Box, purpose: str) -> None:
        """By their numbers: a library need not know them. They are refused, and not only called with wrong values."""
        machine = await says(box, "uname -m")
        for call, *numbers, arguments in CALLS[purpose]:
            number = numbers[machine != "x86_64"]
            ended = await python(
                box,
                "import ctypes, errno, os, sys\n"
                "libc = ctypes.CDLL(None, use_errno=True)\n"
                "room = ctypes.create_string_buffer(4096)\n"
                "ctypes.set_errno(0)\n"
                f"done = libc.syscall({number}, {arguments})\n"
                "sys.exit(3 if done == -1 and ctypes.get_errno() in (errno.EPERM, errno.ENOSYS, errno.EACCES) else 0)",
            )
            assert ended.exit_code not in (0, 1), (call, ended.output)

    async def test_the_filter_holds_for_calls_of_another_architecture(self, box: Box) -> None:
        """The x32 numbers of x86_64 mean the same calls, and a filter that compares plain numbers misses them."""
        if await says(box, "uname -m") != "x86_64":
            return  # no other processor has such numbers
        for number in (165, 272, 317, 101):
            ended = await python(
                box,
                "import ctypes, sys\n"
                "libc = ctypes.CDLL(None, use_errno=True)\n"
                f"sys.exit(0 if libc.syscall(ctypes.c_long(0x40000000 | {number}), 0x10000000, 0, 0, 0) >= 0 else 3)",
            )
            assert ended.exit_code != 0, number


class TestWhoIsKilledFirst:
    async def test_the_kernel_kills_boxes_before_the_server_and_they_cannot_change_it(
        self, driver: Driver, box: Box
    ) -> None:
        if driver.name == "docker":
            return  # the engine sets it for the container
        assert await says(box, "cat /proc/self/oom_score_adj") == "1000"
        await fails(box, "echo 0 > /proc/self/oom_score_adj")
        assert await says(box, "cat /proc/self/oom_score_adj") == "1000"


class TestConnecting:
    async def test_no_address_can_be_reached(self, box: Box) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        with listening:
            here = listening.getsockname()[1]
            for host, port in (
                ("127.0.0.1", here),
                ("169.254.169.254", 80),
                ("10.0.0.1", 80),
                ("192.168.1.1", 80),
                ("8.8.8.8", 53),
                ("::1", here),
            ):
                code = f"import socket; socket.create_connection(({host!r}, {port}), timeout=2)"
                assert "Error" in await raises(box, code), host

    async def test_datagrams_go_nowhere(self, box: Box) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
            listening.bind(("127.0.0.1", 0))
            port = listening.getsockname()[1]
            await python(
                box,
                "import socket\n"
                "sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
                f"sender.sendto(b'out', ('127.0.0.1', {port}))",
            )
            listening.setblocking(False)
            with pytest.raises(BlockingIOError):
                listening.recv(10)

    async def test_a_unix_socket_of_the_host_cannot_be_reached(self, box: Box, secret: Path) -> None:
        path = f"{secret}.sock"
        abstract = f"\0turnkeep-test-{os.getpid()}"
        with socket.socket(socket.AF_UNIX) as named, socket.socket(socket.AF_UNIX) as unnamed:
            named.bind(path)
            named.listen()
            os.chmod(path, 0o777)
            unnamed.bind(abstract)
            unnamed.listen()
            try:
                for address in (path, abstract, "/var/run/docker.sock", "/run/dbus/system_bus_socket"):
                    code = f"import socket; socket.socket(socket.AF_UNIX).connect({address!r})"
                    assert "Error" in await raises(box, code), address
            finally:
                os.unlink(path)

    async def test_sockets_that_know_no_network_namespace_are_refused(self, box: Box) -> None:
        for family in ("AF_VSOCK", "AF_NETLINK", "AF_PACKET", "AF_ALG"):
            code = f"import socket; socket.socket(socket.{family}, socket.SOCK_RAW)"
            assert "Error" in await raises(box, code), family


class TestBombs:
    async def test_a_fork_bomb_runs_into_the_process_limit(self, box: Box) -> None:
        ended = await shell(box, "bomb() { bomb | bomb & }; bomb; sleep 60", seconds=2.0)
        assert ended.stopped_by in {"time", "processes"}
        assert ended.seconds < 10
        assert await says(box, "echo still alive") == "still alive"

    async def test_the_process_limit_holds_for_the_real_user(self, box: Box) -> None:
        ended = await python(
            box,
            "import os\n"
            "count = 0\n"
            "try:\n"
            "    while True:\n"
            "        if os.fork() == 0:\n"
            "            import time; time.sleep(60)\n"
            "        count += 1\n"
            "except OSError:\n"
            "    print('refused after', count)\n",
        )
        assert ended.stopped_by is None
        assert 10 <= int(ended.output.split()[-1]) <= SMALL.processes

    async def test_a_memory_bomb_of_one_process_is_stopped(self, box: Box) -> None:
        ended = await python(box, "kept = []\nwhile True: kept.append(bytearray(5_000_000))")
        assert ended.exit_code != 0

    async def test_a_memory_bomb_of_many_processes_is_stopped(self, box: Box) -> None:
        one = "import time; kept = bytearray(40_000_000); time.sleep(60)"
        ended = await shell(box, f"for i in $(seq 12); do python3 -I -S -c '{one}' & done; wait")
        assert ended.stopped_by == "memory" or ended.exit_code != 0
        assert ended.seconds < 15

    async def test_a_memory_bomb_of_shared_pages_is_stopped(self, box: Box) -> None:
        ended = await python(
            box,
            "import mmap, time\n"
            "shared = mmap.mmap(-1, 1 << 30)\n"
            "for _ in range(1000): shared.write(bytes(1 << 20))\n"
            "time.sleep(60)",
        )
        assert ended.stopped_by == "memory" or ended.exit_code != 0
        assert ended.seconds < 15

    async def test_a_memory_bomb_of_two_steps_is_stopped(self, box: Box) -> None:
        """Each alone stays within the limit, which is the box's."""
        code = "import time; kept = bytearray(80_000_000); time.sleep(20)"
        steps = [asyncio.create_task(python(box, code)) for _ in "ab"]
        done, left = await asyncio.wait(steps, return_when=asyncio.FIRST_COMPLETED)
        for step in left:
            step.cancel()
        await asyncio.wait(steps)
        ends = [step.result() for step in done]
        assert "memory" in {ended.stopped_by for ended in ends} or 137 in {ended.exit_code for ended in ends}
        assert "time" not in {ended.stopped_by for ended in ends}

    async def test_a_memory_bomb_of_page_tables_is_stopped(self, box: Box) -> None:
        ended = await python(
            box,
            "import mmap, time\n"
            "for _ in range(64):\n"
            "    area = mmap.mmap(-1, 1 << 36, flags=mmap.MAP_PRIVATE | 0x4000, prot=mmap.PROT_READ)\n"
            "    for at in range(0, 1 << 36, 1 << 21): area[at]\n"
            "    globals()[f'kept{_}'] = area\n"
            "time.sleep(60)",
            seconds=30.0,
        )
        assert ended.stopped_by == "memory" or ended.exit_code != 0
        assert ended.seconds < 25

    async def test_a_memory_bomb_of_sockets_is_stopped(self, box: Box) -> None:
        ended = await python(
            box,
            "import os, socket, time\n"
            "for _ in range(8): os.fork()\n"
            "kept = []\n"
            "try:\n"
            "    while True:\n"
            "        pair = socket.socketpair()\n"
            "        pair[0].setblocking(False)\n"
            "        kept.append(pair)\n"
            "        try:\n"
            "            while True: pair[0].send(bytes(50_000))\n"
            "        except BlockingIOError: pass\n"
            "except OSError: pass\n"
            "time.sleep(60)",
            seconds=20.0,
        )
        assert ended.stopped_by == "memory" or ended.exit_code != 0
        assert ended.seconds < 15

    async def test_memory_that_no_process_shows_cannot_be_had(self, driver: Driver, box: Box) -> None:
        if driver.name == "docker":
            return  # its cgroup counts such memory
        for code in ("os.memfd_create('x')", "ctypes.CDLL(None).shmget(0, 4096, 0o1600) == -1 and sys.exit(1)"):
            assert (await python(box, f"import ctypes, os, sys; {code}")).exit_code != 0

    async def test_a_disk_bomb_finds_the_disk_full(self, box: Box) -> None:
        third = SMALL.limits.disk_bytes // 3
        for place in ("/workspace", "/tmp", "/dev/shm"):
            script = f"for i in 1 2 3 4; do head -c {third} /dev/zero > {place}/bomb$i; done; rm -f {place}/bomb*"
            assert b"No space left" in (await shell(box, script)).output, place
        huge = await shell(box, f"head -c {SMALL.limits.file_bytes * 2} /dev/zero > huge; rm -f huge")
        assert b"File size limit" in huge.output or b"File too large" in huge.output or b"No space" in huge.output
        assert await says(box, "echo room again > /workspace/note && cat /workspace/note") == "room again"

    async def test_ten_thousand_files_are_too_many(self, box: Box) -> None:
        ended = await python(
            box, "for number in range(10_000): open(f'/workspace/{number}', 'w').close()\nprint('all made')"
        )
        assert b"all made" not in ended.output
        assert b"No space left" in ended.output

    async def test_endless_output_is_cut(self, box: Box) -> None:
        ended = await shell(box, "yes")
        assert ended.stopped_by == "output"
        assert len(ended.output) == SMALL.limits.output_bytes

    async def test_endless_errors_are_cut_too(self, box: Box) -> None:
        assert (await shell(box, "yes >&2")).stopped_by == "output"

    async def test_too_many_open_files_are_refused(self, box: Box) -> None:
        ended = await python(box, "kept = [open('/dev/null') for _ in range(5_000)]")
        assert b"Too many open files" in ended.output

    async def test_time_on_the_processor_is_limited(self, driver: Driver) -> None:
        box = await driver.start(BoxLimits(cpu_seconds=1, memory_bytes=128 * MIB, disk_bytes=MIB, files=100))
        try:
            ended = await shell(box, "while :; do :; done", seconds=60.0)
            assert ended.stopped_by is None
            assert ended.exit_code != 0
        finally:
            await box.close()


class TestOutliving:
    async def test_sleeping_for_ever_ends_at_the_time_limit(self, box: Box, mark: str) -> None:
        ended = await shell(box, f"sleep {mark}", seconds=0.3)
        assert (ended.stopped_by, ended.exit_code) == ("time", 137)
        assert not processes_called(mark)

    async def test_signals_can_be_ignored_and_it_makes_no_difference(self, box: Box, mark: str) -> None:
        ended = await shell(box, f"trap '' TERM INT HUP QUIT; while :; do sleep {mark}; done", seconds=0.5)
        assert ended.stopped_by == "time"
        assert not processes_called(mark)

    async def test_a_double_fork_does_not_survive_the_step(self, box: Box, mark: str) -> None:
        await says(box, f"(setsid nohup sleep {mark} >/dev/null 2>&1 &) ; (setsid nohup sleep {mark} &) ; echo left")
        assert not processes_called(mark)

    async def test_a_process_without_any_pipe_does_not_survive_either(self, box: Box, mark: str) -> None:
        await python(
            box,
            "import os, sys\n"
            "if os.fork() == 0:\n"
            "    os.setsid()\n"
            "    if os.fork() == 0:\n"
            "        for fd in range(200):\n"
            "            try: os.close(fd)\n"
            "            except OSError: pass\n"
            f"        os.execvp('sleep', ['sleep', '{mark}'])\n"
            "    os._exit(0)\n",
        )
        assert not processes_called(mark)

    async def test_cancelling_kills_the_whole_tree_within_a_second(self, box: Box, mark: str) -> None:
        script = f"trap '' TERM; for i in $(seq 20); do (setsid sleep {mark} &); done; sleep {mark}"
        running = asyncio.create_task(shell(box, script))
        await eventually(lambda: len([pid for pid in processes_called(mark) if _is_sleep(pid)]) >= 10)
        began = time.monotonic()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not processes_called(mark)
        assert time.monotonic() - began < 15.0  # one second on a quiet machine

    async def test_closing_a_box_kills_what_runs_in_it(self, driver: Driver, mark: str) -> None:
        box = await driver.start(SMALL.limits)
        running = asyncio.create_task(shell(box, f"sleep {mark}"))
        await eventually(lambda: bool(processes_called(mark)))
        await box.close()
        assert not processes_called(mark)
        assert (await running).exit_code != 0

    async def test_a_command_that_is_cancelled_in_any_moment_leaves_nothing(self, box: Box, mark: str) -> None:
        """Also while its box is being built: the building process must not be killed before what it builds."""
        for milliseconds in range(0, 40, 2):
            running = asyncio.create_task(shell(box, f"sleep {mark}"))
            await asyncio.sleep(milliseconds / 1000)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert not processes_called(mark), milliseconds

    async def test_nothing_is_left_of_a_closed_box(self, driver: Driver) -> None:
        before = mounts()
        box = await driver.start(SMALL.limits)
        await says(box, "echo x > /workspace/remains-of-a-box")
        await box.close()
        await box.close()
        assert mounts() == before
        with pytest.raises(Exception, match="closed"):
            await box.run(BoxCommand(argv=["true"]))

    async def test_a_signal_to_everybody_reaches_only_the_box(self, driver: Driver, box: Box, mark: str) -> None:
        other = await driver.start(SMALL.limits)
        try:
            neighbour = asyncio.create_task(shell(other, f"sleep {mark}"))
            await eventually(lambda: any(map(_is_sleep, processes_called(mark))))
            await shell(box, "kill -9 -1")
            await shell(box, "for pid in $(seq 2 400); do kill -9 $pid 2>/dev/null; done")
            assert any(map(_is_sleep, processes_called(mark)))
            assert await says(box, "echo still alive") == "still alive"
            neighbour.cancel()
            await asyncio.wait({neighbour})
        finally:
            await other.close()

    async def test_folders_that_are_hard_to_remove_do_not_outlive_the_box(self, driver: Driver) -> None:
        """Too deep to be named, not readable, with names that are no text."""
        before = mounts()
        box = await driver.start(SMALL.limits)
        ended = await python(
            box,
            "import os\n"
            "os.chdir('/workspace')\n"
            "os.mkdir(b'\\xff\\xfe\\n')\n"
            "os.mkdir('closed'); open('closed/file', 'w').close(); os.chmod('closed', 0)\n"
            "os.mkfifo('waits-for-ever'); os.symlink('/', 'root'); os.symlink('circle', 'circle')\n"
            "try:\n"
            "    for depth in range(1_500):\n"
            "        os.mkdir('d' * 50); os.chdir('d' * 50)\n"
            "except OSError: pass\n"
            "print('made', flush=True)",
        )
        assert b"made" in ended.output
        async with asyncio.timeout(60):
            await box.close()
        assert mounts() == before


class TestWorkingSideBySide:
    async def test_steps_of_one_box_share_its_files_and_nothing_else(self, box: Box) -> None:
        first = asyncio.create_task(shell(box, "echo here > shared; sleep 30", seconds=25))

        async def is_shared() -> bool:
            return (await shell(box, "cat shared")).output == b"here\n"

        await eventually(is_shared)
        assert "sleep" not in await says(box, "cat /proc/[0-9]*/comm")
        first.cancel()
        await asyncio.wait({first})

    async def test_a_limit_ends_the_step_and_not_its_neighbour(self, box: Box) -> None:
        quick, slow = await asyncio.gather(
            shell(box, "sleep 60", seconds=0.3), shell(box, "sleep 1; echo done", seconds=15)
        )
        assert quick.stopped_by == "time"
        assert slow.output == b"done\n"


def _is_sleep(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "sleep"
    except OSError:
        return False


def _uid(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition("\nUid:")[2].split()[0])
