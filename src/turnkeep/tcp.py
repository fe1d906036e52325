"""TCP connections whose peer falls silent: the kernel closes them, instead of keeping them for hours.

A network can fail without a word: packets are dropped, and no side is told. Without these options a connection that
waits for an answer would then wait for about 15 minutes, and one that waits for a message for two hours.
"""

import socket
from typing import Any

_WANTED = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 5_000}
"""Seconds, seconds, a number, milliseconds: a silent peer is noticed after 5 seconds if something was sent to it, else
after 11."""


def silence_options() -> dict[int, int]:
    """The options of level IPPROTO_TCP that this system knows, with their values. SO_KEEPALIVE is needed too."""
    return {getattr(socket, name): value for name, value in _WANTED.items() if hasattr(socket, name)}


def notice_silence(found: Any) -> None:
    """Set the options on a socket, as `get_extra_info("socket")` of a transport has it. Other than TCP: do nothing."""
    if found is None or found.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in silence_options().items():
        found.setsockopt(socket.IPPROTO_TCP, option, value)
