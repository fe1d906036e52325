"""Ids: a UUIDv7 behind a prefix that a human knows, as `turn_0192f0c1…` (32 hex digits).

They sort by the time they were made (strictly, within one process) and are hard to guess.
"""

import os
import re
import threading
import time
from typing import NewType

from turnkeep.errors import InvalidRequest
from turnkeep_client.wire.base import (
    AgentId,
    CallId,
    ConnectionId,
    ConversationId,
    FileId,
    InviteId,
    KeyId,
    MessageId,
    OrgId,
    PageId,
    SessionId,
    ShareId,
    TableId,
    TurnId,
    UserId,
    WebhookId,
    WorkspaceId,
)

__all__ = [
    "PREFIXES",
    "AgentId",
    "CallId",
    "ConnectionId",
    "ConversationId",
    "ErasureId",
    "FileId",
    "InviteId",
    "KeyId",
    "MessageId",
    "OrgId",
    "OutboxId",
    "PageId",
    "SessionId",
    "ShareId",
    "TableId",
    "TurnId",
    "UserId",
    "WebhookId",
    "WorkspaceId",
    "check_id",
    "first_conversation_id",
    "first_turn_id",
    "new_agent_id",
    "new_call_id",
    "new_connection_id",
    "new_conversation_id",
    "new_erasure_id",
    "new_file_id",
    "new_invite_id",
    "new_key_id",
    "new_message_id",
    "new_org_id",
    "new_outbox_id",
    "new_page_id",
    "new_session_id",
    "new_share_id",
    "new_table_id",
    "new_turn_id",
    "new_user_id",
    "new_webhook_id",
    "new_workspace_id",
    "random_bytes",
]

PREFIXES = (
    "org",
    "ws",
    "user",
    "key",
    "agent",
    "conv",
    "turn",
    "msg",
    "file",
    "page",
    "table",
    "call",
    "evt",
    "erasure",
    "session",
    "invite",
    "share",
    "webhook",
    "mcp",
)

OutboxId = NewType("OutboxId", str)
"""An entry of the outbox, and the event that webhooks hear of."""

ErasureId = NewType("ErasureId", str)

_PATTERN = re.compile(rf"({'|'.join(PREFIXES)})_[0-9a-f]{{32}}")


def new_org_id() -> OrgId:
    return OrgId(_new("org"))


def new_workspace_id() -> WorkspaceId:
    return WorkspaceId(_new("ws"))


def new_user_id() -> UserId:
    return UserId(_new("user"))


def new_key_id() -> KeyId:
    return KeyId(_new("key"))


def new_agent_id() -> AgentId:
    return AgentId(_new("agent"))


def new_conversation_id() -> ConversationId:
    return ConversationId(_new("conv"))


def new_turn_id() -> TurnId:
    return TurnId(_new("turn"))


def new_message_id() -> MessageId:
    return MessageId(_new("msg"))


def new_file_id() -> FileId:
    return FileId(_new("file"))


def new_page_id() -> PageId:
    return PageId(_new("page"))


def new_table_id() -> TableId:
    return TableId(_new("table"))


def new_session_id() -> SessionId:
    return SessionId(_new("session"))


def new_invite_id() -> InviteId:
    return InviteId(_new("invite"))


def new_share_id() -> ShareId:
    return ShareId(_new("share"))


def new_webhook_id() -> WebhookId:
    return WebhookId(_new("webhook"))


def new_connection_id() -> ConnectionId:
    return ConnectionId(_new("mcp"))


def new_call_id() -> CallId:
    return CallId(_new("call"))


def new_outbox_id() -> OutboxId:
    return OutboxId(_new("evt"))


def new_erasure_id() -> ErasureId:
    return ErasureId(_new("erasure"))


def check_id(value: object, prefix: str) -> str:
    """The id itself if it has the right shape and kind; else InvalidRequest, naming the kind that was expected."""
    if isinstance(value, str) and _PATTERN.fullmatch(value) and value.startswith(prefix + "_"):
        return value
    shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "…"
    raise InvalidRequest(f"{shown} is not an id of this kind: expected {prefix}_ and 32 hex digits.")


def first_turn_id(moment: int) -> str:
    """The beginning of the ids that are made at this moment, which is before all of them and after earlier ones."""
    return f"turn_{moment:012x}"


def first_conversation_id(moment: int) -> str:
    """The same of conversations."""
    return f"conv_{moment:012x}"


_lock = threading.Lock()
_last_tick = 0
_random = b""

RANDOM_BYTES = 1_024


def _new(prefix: str) -> str:
    """RFC 9562, method 3: the sub-millisecond part of the clock fills rand_a, so that ids of one process rise."""
    global _last_tick  # noqa: PLW0603 - guarded by the lock
    with _lock:
        tick = _last_tick = max(time.time_ns() * 4096 // 1_000_000, _last_tick + 1)
        chance = int.from_bytes(_taken(8))
    return f"{prefix}_{tick >> 12:012x}7{tick & 0xFFF:03x}{chance >> 2 | 1 << 63:016x}"


def random_bytes(count: int) -> bytes:
    """Random bytes of the operating system, each used once.

    They are fetched many at a time: each call of `os.urandom` lets another thread run, and then waits for it.
    """
    with _lock:
        return _taken(count)


def _taken(count: int) -> bytes:
    global _random  # noqa: PLW0603 - guarded by the lock
    if len(_random) < count:
        _random = os.urandom(max(RANDOM_BYTES, count))
    taken, _random = _random[:count], _random[count:]
    return taken


def _forget_random() -> None:
    global _random, _lock
    _random, _lock = b"", threading.Lock()


os.register_at_fork(after_in_child=_forget_random)
