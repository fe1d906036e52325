"""Ports for servers that must be told theirs before they start, or come back on the one they had.

The system gives port 0 and outgoing connections a port of its dynamic range. A port of that range, once let go, may
be somebody else's when it is wanted; so these lie below it.
"""

import secrets
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000
_USUAL_LOWEST_DYNAMIC = 32_768


def free_ports(count: int) -> list[int]:
    """So many different ports of 127.0.0.1 on which nobody listens."""
    found: list[int] = []
    while len(found) < count:
        port = _LOWEST + secrets.randbelow(_lowest_dynamic() - _LOWEST)
        if port not in found and _is_free(port):
            found.append(port)
    return found


def _lowest_dynamic() -> int:
    lowest = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else _USUAL_LOWEST_DYNAMIC
    return lowest if lowest > 2 * _LOWEST else _USUAL_LOWEST_DYNAMIC


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
