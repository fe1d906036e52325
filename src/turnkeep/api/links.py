"""Addresses inside answers. They are paths, so that they hold behind any proxy."""


def events_url(turn_id: str) -> str:
    """Where the events of a turn are followed."""
    return f"/v1/turns/{turn_id}/events"
