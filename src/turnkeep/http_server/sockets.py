"""Sockets: listening ones, the local address of one, and TCP keep-alive. Host names, and which of them are local."""

import ipaddress
import resource
import socket

from turnkeep.errors import Conflict, InvalidRequest

MOST_FILES = 1 << 20


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
