"""Cursors of pages: opaque to clients, a JSON list inside. Its first item names the list to which the cursor belongs.

Decision: docs/decisions/0401
"""

import base64
import binascii
import zlib
from typing import TypeVar

import msgspec

from turnkeep.errors import InvalidRequest
from turnkeep.ids import ConversationId, ShareId
from turnkeep.model.conversations import Conversation, Hit
from turnkeep.model.messages import Order
from turnkeep.store.commands import EVERYTHING, ConversationFilter

Key = TypeVar("Key")

FEEDBACK = "feedback"
"""The list of all feedback of a workspace."""


def encode_cursor(of: str, *key: int | str) -> str:
    """`of` names the list, and whatever else decides its order."""
    return base64.urlsafe_b64encode(msgspec.json.encode((_mark(of), *key))).decode().rstrip("=")


def decode_cursor(cursor: str, of: str, key: type[Key]) -> Key:
    """The key that was encoded, as that type; InvalidRequest for anything that is not a cursor of this list."""
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        mark, *rest = msgspec.json.decode(raw, type=tuple[int | str, ...])
        if mark != _mark(of):
            raise InvalidRequest("This cursor is of another list. Use the next_cursor of the page before.")
        return msgspec.convert(rest, type=key)
    except (binascii.Error, ValueError) as exc:  # msgspec's errors are ValueErrors
        raise InvalidRequest("This cursor is malformed. Use the next_cursor of the page before.") from exc


def list_of(query: str | None, only: ConversationFilter = EVERYTHING) -> str:
    """The list of conversations, or those that a search finds, or those that a filter leaves."""
    name = "conversations" if query is None else f"conversations that have {query}"
    return name if only == EVERYTHING else f"{name} {msgspec.json.encode(only).decode()}"


def list_cursor(of: str, hit: Hit) -> str:
    return encode_cursor(of, hit.conversation.updated_at, hit.conversation.id)


TRASH = "deleted conversations"


def trash_cursor(conversation: Conversation) -> str:
    return encode_cursor(TRASH, conversation.deleted_at or 0, conversation.id)


def messages_of(conversation_id: ConversationId, order: Order) -> str:
    return f"messages of {conversation_id}, {order}"


def rows_of(conversation_id: ConversationId) -> str:
    """Those of its trace."""
    return f"trace of {conversation_id}"


def shared_turns_of(share_id: ShareId) -> str:
    """What a share link shows."""
    return f"shared by {share_id}"


def _mark(of: str) -> int:
    """Short, since cursors travel in addresses. It finds mistakes; it is no protection."""
    return zlib.crc32(of.encode(errors="replace"))
