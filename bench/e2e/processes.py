"""Processes of the bench: started in a group of their own, metered from `/proc`, ended by their number."""

import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

READY_SECONDS = 90
END_SECONDS = 15
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class NotReady(RuntimeError):
    """A server did not start. The message has the end of its log."""


class Process:
    """One process with its children. Its output goes to a log."""

    def __init__(self, name: str, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path) -> None:
        self.name = name
        self._log = log
        with log.open("w") as output:
            self._popen = subprocess.Popen(
                command, env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._popen.pid

    def wait_ready(self, port: int, path: str) -> None:
        """Return when a request for that path is answered with 200."""
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if self._popen.poll() is not None:
                raise NotReady(f"{self.name} ended with {self._popen.returncode}:\n{self.last_words()}")
            if _answers(port, path):
                return
            time.sleep(0.01)
        raise NotReady(f"{self.name} was not ready within {READY_SECONDS} seconds:\n{self.last_words()}")

    def last_words(self) -> str:
        return self._log.read_text(errors="replace")[-2_000:]

    def pause(self) -> None:
        """Let it take no processor time while another one is measured."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def end(self) -> None:
        """Ask it to end, wait, and kill what is left of its group. Does nothing the second time."""
        if self._popen.poll() is None:
            self.resume()
            self._popen.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._popen.wait(END_SECONDS)
        self._signal(signal.SIGKILL)
        self._popen.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._popen.pid, number)


def cpu_seconds(pid: int) -> float:
    """What a process, its children and those that have ended used so far."""
    ticks = 0
    for one in _tree(pid):
        with suppress(OSError):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS


def memory_mb(pid: int) -> float:
    """The resident sizes of a process and its children, added up."""
    pages = 0
    for one in _tree(pid):
        with suppress(OSError):
            pages += int(Path(f"/proc/{one}/statm").read_text().split()[1])
    return pages * _PAGE / 1e6


def _tree(pid: int) -> list[int]:
    with suppress(psutil.NoSuchProcess):
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    return []


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
