"""The rate of previews: a process shows a limited number of pieces of text a second, for all its turns together.

A piece costs a write to each reader, and much more in Python than its text. With hundreds of turns that speak at once,
pieces would take all the time of the event loop. So a turn waits a moment after a piece when there are too many, and
its next piece has all the text that came meanwhile. Readers get fewer and larger pieces, and no text is lost.
"""

PIECES_PER_SECOND = 7_000
"""About half of the time of one core."""
MANY_SPEAKERS = 230
"""So many turns with 30 tokens a second stay below that. With more of them, tokens that are only read take a part of
the time, so fewer pieces are shown."""
BURST_SECONDS = 0.05
"""Tokens of different turns come at the same moment by chance. As many pieces as this time pays for are shown without a
wait: about 350."""
LONGEST_SECONDS = 0.1
"""The longest wait. With ten pieces a second, a text still seems to flow."""


class PreviewRate:
    """Spreads the pieces of all turns of a process. `pause_seconds` is called after each piece."""

    def __init__(self) -> None:
        self.speakers = 0
        """How many models are being listened to. Who listens counts itself."""
        self._booked_until = 0.0
        """The moment at which all pieces so far have been paid for."""

    def pause_seconds(self, now: float) -> float:
        """How long the turn waits before it looks for more text; 0 or less for not at all. `now` is monotonic."""
        price = max(1.0, self.speakers / MANY_SPEAKERS) / PIECES_PER_SECOND
        booked = max(self._booked_until, now) + price
        self._booked_until = min(booked, now + BURST_SECONDS + LONGEST_SECONDS)
        return self._booked_until - now - BURST_SECONDS
