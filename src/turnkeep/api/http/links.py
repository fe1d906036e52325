"""Addresses inside answers. They are paths, so that they hold behind any proxy; only where an address may lead to
another server is it whole.
"""

from turnkeep.config import Settings


def events_url(turn_id: str) -> str:
    """Where the events of a turn are followed."""
    return f"/v1/turns/{turn_id}/events"


def address_of(settings: Settings, host: str | None) -> str:
    """This server as the caller knows it: its public address, or the Host under which it was asked."""
    return settings.public_url or (f"http://{host}" if host else settings.address())
