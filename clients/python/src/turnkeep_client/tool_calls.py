"""Calls of tools by a Turnkeep server, as the tool's own server sees them: for whom they are made, and the signature.

    caller = verify_tool_call(TOOL_SECRET, request.headers, await request.body())
    caller.user  # the id that your application gave to the user

The signature covers the moment, the call, the user and the body: `HMAC-SHA256(secret, "{t}.{call}.{user}.{body}")`. The
secret is the agent's `tool_secret`.
"""

import hashlib
import hmac
import time
from collections.abc import Iterator, Mapping

from msgspec import Struct

from turnkeep_client.wire.errors import Unauthorized

USER = "Turnkeep-User"
WORKSPACE = "Turnkeep-Workspace"
CONVERSATION = "Turnkeep-Conversation"
TURN = "Turnkeep-Turn"
CALL = "Turnkeep-Call"
SIGNATURE = "Turnkeep-Signature"

TOLERANCE_SECONDS = 300


class ToolCaller(Struct, frozen=True, kw_only=True):
    """For whom a tool is called, and where. `user` is the host's id of the user; None if no user asked."""

    user: str | None
    workspace_id: str
    conversation_id: str
    turn_id: str
    call_id: str


def verify_tool_call(
    secret: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    tolerance_seconds: float = TOLERANCE_SECONDS,
    now: float | None = None,
) -> ToolCaller:
    """The caller of a request that a Turnkeep server signed with this secret.

    Raises Unauthorized for a request without a valid signature, and for one that was signed more than
    `tolerance_seconds` ago. A call that is repeated has the same `call_id`.
    """
    sent = {name.lower(): value for name, value in headers.items()}
    signature, call_id = sent.get(SIGNATURE.lower(), ""), sent.get(CALL.lower(), "")
    fields = dict(item.partition("=")[::2] for item in signature.split(","))
    moment = fields.get("t", "")
    if not moment.isdecimal() or len(moment) > 15:
        raise Unauthorized("The request has no valid Turnkeep-Signature.")
    for user in _spellings(sent.get(USER.lower(), "")):
        if hmac.compare_digest(signature_of(secret, int(moment), call_id, user, body), fields.get("v1", "")):
            break
    else:
        raise Unauthorized("The Turnkeep-Signature does not fit the request and the secret.")
    if abs((time.time() if now is None else now) - int(moment)) > tolerance_seconds:
        raise Unauthorized("The Turnkeep-Signature is too old.")
    return ToolCaller(
        user=user or None,
        workspace_id=sent.get(WORKSPACE.lower(), ""),
        conversation_id=sent.get(CONVERSATION.lower(), ""),
        turn_id=sent.get(TURN.lower(), ""),
        call_id=call_id,
    )


def signature_of(secret: str, moment: int, call_id: str, user: str, body: bytes) -> str:
    """The hexadecimal signature of a call at this moment (in Unix seconds)."""
    signed = f"{moment}.{call_id}.{user}.".encode() + body
    return hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def _spellings(value: str) -> Iterator[str]:
    """The header as it came, and as UTF-8 that the HTTP library read as Latin-1."""
    yield value
    try:
        yield value.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return
