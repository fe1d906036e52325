"""Rules of conversations: what a new one is, what a change makes of it, and what is refused."""

from turnkeep.errors import NotFound


def no_conversation() -> NotFound:
    return NotFound("No such conversation.")


def no_turn() -> NotFound:
    return NotFound("No such turn.")
