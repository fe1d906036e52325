"""Rules of sign-in: what a session and an invite are stored as, and every refusal."""

from typing import Any

from turnkeep.errors import NotFound
from turnkeep.model.sessions import BROWSER_CHARS, NewSession
from turnkeep.store.checks import check_hash


def session_record(session: NewSession) -> dict[str, Any]:
    """What a new session is written with. A browser may call itself anything, so its name is cleaned and cut."""
    browser = "".join(character for character in session.browser if character.isprintable())
    return {
        "hash": check_hash(session.secret_hash, "A cookie"),
        "method": session.method,
        "browser": browser[:BROWSER_CHARS],
        "ms": int(session.seconds * 1000),
    }


def invite_record(secret_hash: bytes, seconds: float) -> dict[str, Any]:
    return {"hash": check_hash(secret_hash, "A link"), "ms": int(seconds * 1000)}


def no_session() -> NotFound:
    return NotFound("No such session. It may have ended.")


def no_invite() -> NotFound:
    return NotFound("No such invite. It may have been used, or have expired.")
