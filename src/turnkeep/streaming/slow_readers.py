"""What happens to readers that do not read."""

from msgspec import Struct

from turnkeep.streaming.connection import Connection


class SlowReaderPolicy(Struct, frozen=True, kw_only=True):
    """A reader whose socket accepts nothing is cut, and may come back at its cursor.

    Until then it costs one write and what the server buffers for a socket; other readers do not notice.
    """

    stall_seconds: float = 30.0
    """A socket that accepted nothing for so long, while there was something to send, is closed."""
    write_bytes: int = 65_536
    """The largest single write. More is sent in pieces, each after the one before was accepted."""


class Pace:
    """How one reader takes what it is sent. Asked now and then, it says whether the reader stands still."""

    __slots__ = ("_accepted", "_connection", "_policy", "_since", "is_blocked", "sent")

    def __init__(self, policy: SlowReaderPolicy, connection: Connection | None) -> None:
        self.sent = 0
        """Bytes that the server took over from us."""
        self.is_blocked = False
        """The server asks us to wait, because it has more than it likes to buffer."""
        self._policy = policy
        self._connection = connection
        self._accepted = -1
        self._since = 0.0

    def is_stalled(self, now: float) -> bool:
        unsent = 0 if self._connection is None else self._connection.get_write_buffer_size()
        accepted = self.sent - unsent
        if accepted > self._accepted or not (unsent or self.is_blocked):
            self._accepted = max(accepted, self._accepted)
            self._since = now
        return now - self._since >= self._policy.stall_seconds
