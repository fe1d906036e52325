"""The watchdog reads /proc, where a command that is not in its box yet looks like any process of this machine."""

import socket
import subprocess
from collections.abc import Iterator

import pytest

from turnkeep.sandbox.boxes.limits import Watchdog
from turnkeep.sandbox.boxes.ports import MIB, BoxLimits


@pytest.fixture
def outside() -> Iterator[int]:
    """A process that shares the network of this machine."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process.pid
        process.kill()


class TestTheMemoryOfACommand:
    def test_does_not_count_the_sockets_of_this_machine(self, outside: int) -> None:
        pairs = [socket.socketpair() for _ in range(200)]
        try:
            assert Watchdog(BoxLimits(memory_bytes=32 * MIB)).look(outside) is None
        finally:
            for each in [end for pair in pairs for end in pair]:
                each.close()

    def test_counts_the_memory_of_its_processes(self, outside: int) -> None:
        assert Watchdog(BoxLimits(memory_bytes=1)).look(outside) == "memory"
