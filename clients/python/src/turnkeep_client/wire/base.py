"""Shared by all wire modules: request bodies, pages of lists, ids, and bounded texts and numbers.

**Strict in, tolerant out.** A request body derives from `RequestBody`: an unknown field, a wrong type or an unknown
word is refused with its name. A response is a plain struct: a reader passes over fields that it does not know. Words
that a newer server may add are texts with `known_words`, which documents the words of today and accepts others.

**Fields that may be absent.** A response that leaves fields out has `omit_defaults`, and such a field is None by
default. A list that may be absent is the empty tuple by default. msgspec leaves out exactly the default object, so the
server says "there is none" with an empty list and leaves the field out with `()`. Only in request bodies, and in the
three fields of a step that are any JSON, `UNSET` tells a field that is left out from null. Callers of the client never
see it (`without_unset`).

**Ids** are a prefix that a human knows and 32 hex digits, as `turn_0192f0c1…`. There is one type per kind, so that a
type checker tells a turn from a conversation. The server makes them (`turnkeep.ids`).
"""

from collections.abc import Sequence
from typing import Annotated, Any, Generic, NewType, TypeVar, get_args

from msgspec import UNSET, Meta, Struct, structs

Item = TypeVar("Item")

Name = Annotated[str, Meta(min_length=1, max_length=200)]
UserName = Annotated[str, Meta(min_length=1, max_length=255)]
Limit = Annotated[int, Meta(ge=1, le=100)]
Count = Annotated[int, Meta(ge=0, le=2_147_483_647)]
Model = Annotated[str, Meta(min_length=1, max_length=200)]
Id = Annotated[str, Meta(max_length=100)]
Cursor = Annotated[str, Meta(max_length=1_000)]

OrgId = NewType("OrgId", str)
WorkspaceId = NewType("WorkspaceId", str)
UserId = NewType("UserId", str)
KeyId = NewType("KeyId", str)
SessionId = NewType("SessionId", str)
InviteId = NewType("InviteId", str)
ShareId = NewType("ShareId", str)
WebhookId = NewType("WebhookId", str)
AgentId = NewType("AgentId", str)
ConnectionId = NewType("ConnectionId", str)
ConversationId = NewType("ConversationId", str)
TurnId = NewType("TurnId", str)
MessageId = NewType("MessageId", str)
FileId = NewType("FileId", str)
PageId = NewType("PageId", str)
TableId = NewType("TableId", str)
CallId = NewType("CallId", str)
"""Names one tool call. Ours are `call_…`; an imported call keeps the id that it came with."""


def known_words(literal: Any) -> Meta:
    """Document the words of a `Literal` on a text that accepts other words too, because a newer server may add some."""
    return Meta(extra_json_schema={"enum": list(get_args(literal))})


def without_unset(value: Any) -> None:
    """Make `UNSET` None in this value and in all within it, in place. For what is shown, and not sent again."""
    if isinstance(value, Struct):
        for name in value.__struct_fields__:
            field = getattr(value, name)
            if field is UNSET:
                structs.force_setattr(value, name, None)
            else:
                without_unset(field)
    elif isinstance(value, tuple | list):
        for item in value:
            without_unset(item)


class RequestBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The JSON body of a request."""


class Page(Struct, Generic[Item], frozen=True, kw_only=True):
    """One page of a list, and the cursor of the next (null: this was the last)."""

    data: Sequence[Item]
    next_cursor: str | None = None
