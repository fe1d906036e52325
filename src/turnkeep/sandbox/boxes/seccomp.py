"""The system calls that no program in a box may make, as a program for the kernel's filter (classic BPF).

It is a deny-list with an upper bound. Refused are calls to rarely used parts of the kernel, calls that change
namespaces or mounts, read other processes, or hold memory that no resident size shows, and every call newer than the
list. Refused calls fail with EPERM, ENOSYS or EINVAL, so that programs can fall back, as they do on older kernels.

Some calls that hold such memory are in common use: shared memory without a file, and moving pages into pipes and
sockets. Where a cgroup counts the memory of the box, they pass.
"""

import errno
import platform
import struct

from msgspec import Struct

from turnkeep.sandbox.boxes.ports import BoxUnavailable

_NAMESPACE_FLAGS = 0x7E020000
"""Every CLONE_NEW… flag that clone knows: mount, cgroup, uts, ipc, user, pid and net."""
_AF_UNIX = 1
_TERMINAL_INJECTION = (0x5412, 0x541C)
"""ioctl TIOCSTI and TIOCLINUX type into a terminal."""
_SOL_SOCKET, _SOCKET_BUFFERS = 1, (7, 8, 32, 33)
"""setsockopt SO_SNDBUF, SO_RCVBUF and their FORCE twins: how much a socket holds."""
_MAP_SHARED, _MAP_ANONYMOUS = 0x01, 0x20
_SET_PIPE_SIZE = 1031
"""fcntl F_SETPIPE_SZ."""


class Architecture(Struct, frozen=True, kw_only=True):
    """The numbers of one machine: its audit name, its newest known call, and the calls by name."""

    audit: int
    last: int
    calls: dict[str, int]


# Calls that have the same number everywhere, since Linux 5.1.
_SINCE_5_1 = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "clone3": 435,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "memfd_secret": 447,
    "process_mrelease": 448,
    "set_mempolicy_home_node": 450,
    "statmount": 457,
    "listmount": 458,
}
_NEWEST = 462
"""mseal. Later calls are not in the tables, so they are refused as unknown."""

ARCHITECTURES = {
    "x86_64": Architecture(
        audit=0xC000003E,
        last=_NEWEST,
        calls=_SINCE_5_1
        | {
            "mmap": 9,
            "ioctl": 16,
            "shmget": 29,
            "sendfile": 40,
            "socket": 41,
            "socketpair": 53,
            "setsockopt": 54,
            "clone": 56,
            "semget": 64,
            "msgget": 68,
            "fcntl": 72,
            "ptrace": 101,
            "syslog": 103,
            "uselib": 134,
            "personality": 135,
            "ustat": 136,
            "sysfs": 139,
            "vhangup": 153,
            "modify_ldt": 154,
            "pivot_root": 155,
            "_sysctl": 156,
            "adjtimex": 159,
            "chroot": 161,
            "acct": 163,
            "settimeofday": 164,
            "mount": 165,
            "umount2": 166,
            "swapon": 167,
            "swapoff": 168,
            "reboot": 169,
            "sethostname": 170,
            "setdomainname": 171,
            "iopl": 172,
            "ioperm": 173,
            "create_module": 174,
            "init_module": 175,
            "delete_module": 176,
            "get_kernel_syms": 177,
            "query_module": 178,
            "quotactl": 179,
            "nfsservctl": 180,
            "io_setup": 206,
            "lookup_dcookie": 212,
            "clock_settime": 227,
            "mbind": 237,
            "set_mempolicy": 238,
            "kexec_load": 246,
            "add_key": 248,
            "request_key": 249,
            "keyctl": 250,
            "migrate_pages": 256,
            "unshare": 272,
            "splice": 275,
            "tee": 276,
            "vmsplice": 278,
            "move_pages": 279,
            "perf_event_open": 298,
            "fanotify_init": 300,
            "name_to_handle_at": 303,
            "open_by_handle_at": 304,
            "clock_adjtime": 305,
            "setns": 308,
            "process_vm_readv": 310,
            "process_vm_writev": 311,
            "kcmp": 312,
            "finit_module": 313,
            "memfd_create": 319,
            "kexec_file_load": 320,
            "bpf": 321,
            "userfaultfd": 323,
        },
    ),
    "aarch64": Architecture(
        audit=0xC00000B7,
        last=_NEWEST,
        calls=_SINCE_5_1
        | {
            "io_setup": 0,
            "lookup_dcookie": 18,
            "fcntl": 25,
            "ioctl": 29,
            "umount2": 39,
            "mount": 40,
            "pivot_root": 41,
            "nfsservctl": 42,
            "chroot": 51,
            "vhangup": 58,
            "quotactl": 60,
            "sendfile": 71,
            "vmsplice": 75,
            "splice": 76,
            "tee": 77,
            "acct": 89,
            "personality": 92,
            "unshare": 97,
            "kexec_load": 104,
            "init_module": 105,
            "delete_module": 106,
            "clock_settime": 112,
            "syslog": 116,
            "ptrace": 117,
            "reboot": 142,
            "sethostname": 161,
            "setdomainname": 162,
            "settimeofday": 170,
            "adjtimex": 171,
            "msgget": 186,
            "semget": 190,
            "shmget": 194,
            "socket": 198,
            "socketpair": 199,
            "setsockopt": 208,
            "add_key": 217,
            "request_key": 218,
            "keyctl": 219,
            "clone": 220,
            "mmap": 222,
            "swapon": 224,
            "swapoff": 225,
            "mbind": 235,
            "set_mempolicy": 237,
            "migrate_pages": 238,
            "move_pages": 239,
            "perf_event_open": 241,
            "fanotify_init": 262,
            "name_to_handle_at": 264,
            "open_by_handle_at": 265,
            "clock_adjtime": 266,
            "setns": 268,
            "process_vm_readv": 270,
            "process_vm_writev": 271,
            "kcmp": 272,
            "finit_module": 273,
            "memfd_create": 279,
            "bpf": 280,
            "userfaultfd": 282,
            "kexec_file_load": 294,
        },
    ),
}

_MOVES_PAGES = ("sendfile", "splice", "tee")
_CONDITIONAL = frozenset(
    {"clone", "clone3", "fcntl", "ioctl", "mmap", "setsockopt", "socket", "socketpair", *_MOVES_PAGES}
)
"""Calls that are refused only with certain arguments, with another error, or without a cgroup."""

# struct seccomp_data: the call's number, the architecture, the instruction pointer, six arguments of 64 bits.
_NUMBER, _ARCHITECTURE, _ARGUMENT_0, _ARGUMENT_1, _ARGUMENT_2, _ARGUMENT_3 = 0, 4, 16, 24, 32, 40

_LOAD, _RETURN = 0x20, 0x06
_IF_EQUAL, _IF_GREATER, _IF_ANY_BIT = 0x15, 0x25, 0x45
_ALLOW, _KILL = 0x7FFF0000, 0x80000000


def _refuse(number: int) -> int:
    return 0x00050000 | number


def filter_program(machine: str | None = None, *, is_memory_counted: bool = False) -> bytes:
    """The filter for this machine, as `bwrap --seccomp` reads it. Raises BoxUnavailable on an unknown architecture.

    `is_memory_counted` says that a cgroup counts all memory of the box.
    """
    machine = machine or platform.machine()
    architecture = ARCHITECTURES.get(machine)
    if architecture is None:
        known = " and ".join(sorted(ARCHITECTURES))
        raise BoxUnavailable(
            f"There is no system call filter for {machine} machines; the bubblewrap driver works on {known}. "
            "Use the docker driver here."
        )
    program = _instructions(architecture)
    if not is_memory_counted:
        program += _uncounted_memory(architecture.calls)
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


Instruction = tuple[int, int, int, int]


def _instructions(architecture: Architecture) -> list[Instruction]:
    """A straight list of checks: each either returns a verdict or continues with the next."""
    calls = architecture.calls
    program: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        # A call of another architecture (32 bits on a machine of 64) would bypass the numbers below.
        *_answer_unless(_IF_EQUAL, architecture.audit, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        # Also refuses x32, whose numbers are above 2**30.
        *_answer_if(_IF_GREATER, architecture.last, _refuse(errno.ENOSYS)),
        # glibc falls back to clone, whose flags can be seen; those of clone3 are behind a pointer.
        *_answer_if(_IF_EQUAL, calls["clone3"], _refuse(errno.ENOSYS)),
    ]
    for name in sorted(set(calls) - _CONDITIONAL):
        program += _answer_if(_IF_EQUAL, calls[name], _refuse(errno.EPERM))
    program += _with_argument(
        calls["clone"], _ARGUMENT_0, _answer_if(_IF_ANY_BIT, _NAMESPACE_FLAGS, _refuse(errno.EPERM))
    )
    for name in ("socket", "socketpair"):
        other_family = _answer_unless(_IF_EQUAL, _AF_UNIX, _refuse(errno.EAFNOSUPPORT))
        program += _with_argument(calls[name], _ARGUMENT_0, other_family)
    for request in _TERMINAL_INJECTION:
        program += _with_argument(calls["ioctl"], _ARGUMENT_1, _answer_if(_IF_EQUAL, request, _refuse(errno.EPERM)))
    larger = [
        instruction for option in _SOCKET_BUFFERS for instruction in _answer_if(_IF_EQUAL, option, _refuse(errno.EPERM))
    ]
    for_sockets = [(_IF_EQUAL, 0, 1 + len(larger), _SOL_SOCKET), (_LOAD, 0, 0, _ARGUMENT_2), *larger]
    return program + _with_argument(calls["setsockopt"], _ARGUMENT_1, for_sockets)


def _uncounted_memory(calls: dict[str, int]) -> list[Instruction]:
    """Refuse what holds memory that no process shows."""
    # A page of the mapping keeps all of its pages, though only that page is shown.
    shared = [
        (_IF_ANY_BIT, 0, 2, _MAP_ANONYMOUS),
        (_IF_ANY_BIT, 0, 1, _MAP_SHARED),
        (_RETURN, 0, 0, _refuse(errno.EPERM)),
    ]
    program = _with_argument(calls["mmap"], _ARGUMENT_3, shared)
    program += _with_argument(calls["fcntl"], _ARGUMENT_1, _answer_if(_IF_EQUAL, _SET_PIPE_SIZE, _refuse(errno.EPERM)))
    for name in _MOVES_PAGES:
        program += _answer_if(_IF_EQUAL, calls[name], _refuse(errno.EINVAL))
    return program


def _answer_if(question: int, value: int, answer: int) -> list[Instruction]:
    return [(question, 0, 1, value), (_RETURN, 0, 0, answer)]


def _answer_unless(question: int, value: int, answer: int) -> list[Instruction]:
    return [(question, 1, 0, value), (_RETURN, 0, 0, answer)]


def _with_argument(call: int, argument: int, then: list[Instruction]) -> list[Instruction]:
    """Check the lower half of an argument of one call; afterwards the number of the call is loaded again."""
    look = [(_LOAD, 0, 0, argument), *then, (_LOAD, 0, 0, _NUMBER)]
    return [(_IF_EQUAL, 0, len(look), call), *look]
