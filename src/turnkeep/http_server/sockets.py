"""Sockets: listening ones, the local address of one, and TCP keep-alive. Host names, and which of them are local."""

import asyncio
import errno
import ipaddress
import resource
import socket
from collections.abc import Callable
from functools import lru_cache

from turnkeep.errors import Conflict, InvalidRequest

MOST_FILES = 1 << 20
FULL_SECONDS = 1.0
"""How long no connection is accepted when this process or the machine has no room for more."""
TURN_SECONDS = 0.001
"""How long a worker leaves the next connection to the others, for each that it has just accepted."""

_FULL = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def listen(host: str, port: int, *, variable: str, backlog: int) -> socket.socket:
    """A listening socket. Raises Conflict if another program listens there, and InvalidRequest, which names the setting
    `variable`, if the host is no address of this machine."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as exc:
        raise InvalidRequest(f"{variable} {host!r} is no address of this machine.") from exc
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(backlog)
    except OSError as exc:
        listener.close()
        raise Conflict(
            f"Cannot listen on {host}:{port}: {exc.strerror}. "
            "Stop the program that listens there, or choose another --port."
        ) from exc
    listener.setblocking(False)
    return listener


class SharedListener:
    """Accepts connections from a socket that several workers share, one at a time.

    An event loop accepts all connections that wait, and so the worker that wakes up first gets them all, and keeps them
    for as long as its clients do. This listener leaves the next one to the others for a moment.
    """

    def __init__(self, listening: socket.socket, make_protocol: Callable[[], asyncio.Protocol]) -> None:
        self._listening = listening
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._resume()

    def close(self) -> None:
        """Accept no more connections. The socket itself stays open."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._listening)

    async def wait_closed(self) -> None:
        """For uvicorn, which waits for connections by itself."""

    def _resume(self) -> None:
        self._timer = None
        self._loop.add_reader(self._listening, self._accept)

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listening)
        self._timer = self._loop.call_later(seconds, self._resume)

    def _accept(self) -> None:
        try:
            made, _ = self._listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another worker was quicker, or the client has gone
        except OSError as exc:
            if exc.errno not in _FULL:
                raise
            self._pause(FULL_SECONDS)
            return
        self._pause(TURN_SECONDS)
        made.setblocking(False)
        if made.family != socket.AF_UNIX:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._loop.connect_accepted_socket(self._make_protocol, made))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)


def http_address(host: str, port: int | str) -> str:
    """The address under which programs of this machine reach the listener."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def host_name(host: str) -> str:
    """The name in a Host header, without its port."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rsplit(":", 1)[0] if host.count(":") == 1 else host


@lru_cache(maxsize=256)  # asked for each request, nearly always of the same names
def is_loopback(host: str) -> bool:
    """Whether this name or address means this machine alone: `localhost`, all of 127.0.0.0/8, and ::1."""
    if host.lower().removesuffix(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def raise_open_files() -> int:
    """Let this process open as many files and sockets as it may, and return how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return MOST_FILES if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def keep_alive(made: socket.socket) -> socket.socket:
    """Turn on TCP keep-alive: a peer that vanished is noticed within half a minute. Connections inherit the options of
    their listener."""
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made
