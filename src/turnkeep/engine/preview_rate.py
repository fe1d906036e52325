"""The rate of previews: a process shows a limited number of pieces of text a second, for all its turns together.

A piece costs a write to each reader, and much more in Python than its text. With hundreds of turns that speak at once,
pieces would take all the time of the event loop. So a turn waits a moment after a piece when there are too many, and
its next piece has all the text that came meanwhile. Readers get fewer and larger pieces, and no text is lost.
"""

PIECES_PER_SECOND = 7_000
"""About a quarter of the time of one core. 230 turns with 30 tokens a second stay below it."""
BURST_SECONDS = 0.02
"""Tokens of different turns come at the same moment by chance. So many pieces more are shown without a wait."""
LONGEST_SECONDS = 0.1
"""The longest wait. With ten pieces a second, a text still seems to flow."""


class PreviewRate:
    """Spreads the pieces of all turns of a process. `pause_seconds` is called after each piece."""

    def __init__(self) -> None:
        self._booked_until = 0.0
        """The moment at which all pieces so far have been paid for."""

    def pause_seconds(self, now: float) -> float:
        """How long the turn waits before it looks for more text; 0 or less for not at all. `now` is monotonic."""
        booked = max(self._booked_until, now) + 1 / PIECES_PER_SECOND
        self._booked_until = min(booked, now + BURST_SECONDS + LONGEST_SECONDS)
        return self._booked_until - now - BURST_SECONDS
